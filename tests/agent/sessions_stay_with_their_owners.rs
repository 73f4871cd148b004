//! Sessions of `outrigger agent`: only the connection that controls a session may use it, and only the same principal or
//! the token may load it afterwards. Clients with a session may idle.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::agent::{Client, error_code, example_agent, load};
use crate::common::program::Program;
use crate::common::traces::{TraceFile, eventually};
use crate::common::{Wire, request};
use outrigger::service::agent::AgentProtocol;
use outrigger::service::{Agent, AgentConfig};
use outrigger::{Config, Server, Service, Stopped};
use serde_json::{Value, json};

/// The response to `GET /status`.
fn status(address: SocketAddr) -> Value {
    let mut wire = Wire::open(address);
    wire.send(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = wire.read_head().to_lowercase();
    let (_, length) = head.split_once("content-length: ").expect("a length");
    let length = length.lines().next().and_then(|length| length.parse().ok());
    serde_json::from_slice(&wire.read_exact(length.expect("a number"))).expect("JSON")
}

#[test]
fn with_server_authentication_a_client_can_load_its_session_without_a_resume_token() {
    // The bug: standard clients do not know resume tokens and got "Access denied" after each lost connection.
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.env("OUTRIGGER_TOKEN", "a-token-of-the-test");
    command.args(["agent", "--listen", "127.0.0.1:0", "--", &example_agent()]);
    let server = Program::spawn(&mut command);
    let address = server.address();
    let open = || {
        let mut wire = Wire::open(address);
        let text = String::from_utf8(request("/acp?token=a-token-of-the-test")).expect("ASCII");
        wire.send(text.as_bytes());
        assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
        Client::initialized_on(wire)
    };
    load_as_same_principal(&open, false);
}

#[test]
fn on_a_unix_socket_the_same_user_can_load_its_session() {
    let file = TraceFile::new("sessions");
    let listen = format!("unix:{}", file.path());
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.args(["agent", "--listen", &listen, "--", &example_agent()]);
    let server = Program::spawn(&mut command);
    assert!(server.line().contains("ws+unix:"));
    let open = || {
        let socket = UnixStream::connect(file.path()).expect("it listens");
        let mut wire = Wire {
            stream: OwnedFd::from(socket).into(),
        };
        wire.send(&request("/acp"));
        assert!(wire.read_head().starts_with("HTTP/1.1 101 "));
        Client::initialized_on(wire)
    };
    load_as_same_principal(&open, true);

    // While the first connection lives, the same user can take its session over.
    let (mut first, session, _) = open().open_session();
    first.prompt(&session, "wait");
    first.hear();
    let mut second = open();
    let mut take = load(&session, None);
    take["_meta"]["outrigger"]["takeover"] = json!(true);
    let taken = second.ask("session/load", take);
    assert!(taken.get("result").is_some(), "{taken}");
    assert_eq!(error_code(&first.hear()), -32010, "its prompt fails");
    let told = first.hear();
    assert_eq!(told["method"], "_outrigger/session_taken_over", "{told}");
    second.say(
        &json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}),
    );
    let ended = second.hear();
    assert_eq!(ended["method"], "_outrigger/turn_ended", "{ended}");
    assert_eq!(ended["params"]["result"]["stopReason"], "cancelled");
}

/// Loads a session as the same principal. That fails while the first connection lives and succeeds afterwards.
fn load_as_same_principal(open: &dyn Fn() -> Client, is_person: bool) {
    let (mut first, session, _) = open().open_session();
    let mut second = open();
    let denied = second.ask("session/load", load(&session, None));
    assert_eq!(error_code(&denied), -32010, "{denied}");
    let listed = second.ask("session/list", json!({}));
    let listed = listed["result"]["sessions"].as_array().map(Vec::len);
    assert_eq!(listed, Some(usize::from(is_person)));
    first.prompt(&session, "wait");
    first.hear();
    first.wire.reset();
    eventually("the lost connection is detected", || {
        let loaded = second.ask("session/load", load(&session, None));
        loaded.get("result").is_some()
    });
    let id = second.prompt(&session, "goes on");
    assert_eq!(second.answer_to(id)["result"]["stopReason"], "end_turn");
}

#[test]
fn without_authentication_only_the_token_opens_an_ended_session() {
    // The bug: after the grace period, and with `--grace 0`, any client could load the session.
    for grace in ["50ms", "0"] {
        let server = Program::start(&["agent", "--grace", grace, "--", &example_agent()]);
        let address = server.address();
        let (owner, session, token) = Client::with_session(address);
        let mut stranger = Client::initialized(address);
        owner.wire.reset();
        eventually("the session has ended", || {
            status(address)["ended_sessions"] == 1
        });
        for token in [None, Some("guess"), Some("")] {
            let answer = stranger.ask("session/load", load(&session, token));
            assert_eq!(error_code(&answer), -32010, "{grace} {token:?}");
        }
        let snake = json!({"session_id": session, "prompt": []});
        assert_eq!(error_code(&stranger.ask("session/prompt", snake)), -32600);
        let listed = stranger.ask("session/list", json!({}));
        assert_eq!(listed["result"]["sessions"], json!([]), "{grace}");
        let loaded = stranger.ask("session/load", load(&session, Some(&token)));
        assert!(loaded.get("result").is_some(), "{loaded}");
        let id = stranger.prompt(&session, "hello");
        assert_eq!(stranger.answer_to(id)["result"]["stopReason"], "end_turn");
    }
}

#[test]
fn a_session_lost_with_the_agent_has_an_error_of_its_own_and_can_be_loaded() {
    // The bug: the error was "Access denied", and clients gave up.
    let script = r#"
        while read -r line; do
            id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
            case $line in
                *initialize*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":1}}' ;;
                *session/new*) echo '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","early":1}}'
                    echo '{"jsonrpc":"2.0","id":'$id',"result":{"sessionId":"s"}}' ;;
                *session/load*) echo '{"jsonrpc":"2.0","id":'$id',"result":null}' ;;
                *die*) exit 3 ;;
                *) echo '{"jsonrpc":"2.0","id":'$id',"result":{"stopReason":"end_turn"}}' ;;
            esac
        done"#;
    let server = Program::start(&["agent", "--", "sh", "-c", script]);
    let mut client = Client::initialized(server.address());
    let id = client.request("session/new", json!({"cwd": "/", "mcpServers": []}));
    assert_eq!(
        client.hear()["params"]["early"],
        1,
        "a message before the response is not lost"
    );
    let session = client.answer_to(id)["result"]["sessionId"].clone();
    let session = session.as_str().expect("an id").to_owned();
    let id = client.prompt(&session, "die");
    assert_eq!(error_code(&client.answer_to(id)), -32012);
    let id = client.prompt(&session, "are you there?");
    let lost = client.answer_to(id);
    assert_eq!(
        (error_code(&lost), &lost["error"]["message"]),
        (-32002, &json!("Session lost"))
    );
    assert!(
        client
            .ask("session/load", load(&session, None))
            .get("result")
            .is_some()
    );
    let id = client.prompt(&session, "are you there?");
    assert_eq!(client.answer_to(id)["result"]["stopReason"], "end_turn");
}

#[test]
fn a_response_over_the_message_limit_fails_its_request() {
    // The bug: the request waited forever.
    for answer in [
        // The id is at the start, then at the end.
        r#"printf '{"jsonrpc":"2.0","id":'$id',"result":"'; head -c 300000 /dev/zero | tr '\0' x; echo '"}'"#,
        r#"printf '{"jsonrpc":"2.0","result":"'; head -c 300000 /dev/zero | tr '\0' x; echo '","id":'$id'}'"#,
        r#"printf '{"jsonrpc":"2.0","id":'$id',"result":"\377"}\n'"#,
    ] {
        let find = r#"id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')"#;
        let script = format!("read -r line; {find}; {answer}; cat >/dev/null");
        let server = Program::start(&[
            "agent",
            "--protocol",
            "jsonrpc",
            "--max-message",
            "100KiB",
            "--",
            "sh",
            "-c",
            &script,
        ]);
        let mut client = Client::connect(server.address());
        let answer = client.ask("tools/call", json!({}));
        assert_eq!(error_code(&answer), -32603, "{answer}");
        assert!(
            answer["error"]["data"]
                .as_str()
                .is_some_and(|why| why.contains("the agent's answer is"))
        );
    }
}

/// A server in this process with a short idle timeout.
struct Served {
    address: SocketAddr,
    stop: Box<dyn Fn() -> Result<(), Stopped>>,
    thread: Option<JoinHandle<()>>,
}

fn serve<S: Service + Send + 'static>(service: S) -> Served {
    let mut config = Config::default();
    config.listen = vec![([127, 0, 0, 1], 0).into()];
    config.timeouts.idle = Some(Duration::from_millis(1200));
    config.timeouts.ping_interval = Some(Duration::from_millis(500));
    let server = Server::bind(config, service).expect("a free port");
    let handle = server.handle();
    Served {
        address: server.local_addresses()[0].tcp().expect("TCP"),
        stop: Box::new(move || handle.stop()),
        thread: Some(std::thread::spawn(move || drop(server.run()))),
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = (self.stop)();
        // The thread ends after all child processes have exited.
        self.thread.take().map(JoinHandle::join);
    }
}

fn config(command: &[&str], protocol: AgentProtocol, sessions_may_idle: bool) -> AgentConfig {
    let endpoint = "/acp".parse().expect("an endpoint");
    let mut config = AgentConfig::new(endpoint, command.iter().copied());
    config.protocol = protocol;
    config.sessions_may_idle = sessions_may_idle;
    config
}

#[test]
fn a_client_with_a_session_may_idle_by_default_but_not_with_a_configured_timeout() {
    // The bug: the default timeout closed clients that only waited, and their sessions ended with them.
    for by_default in [true, false] {
        let agent = config(&[&example_agent()], AgentProtocol::Acp, by_default);
        let served = serve(Agent::new(agent));
        let (mut owner, session, _) = Client::with_session(served.address);
        let (mut asker, own, _) = Client::with_session(served.address);
        let waits = asker.prompt(&own, "hold");
        asker.hear();
        let mut bystander = Client::initialized(served.address);
        assert_eq!(
            bystander.wire.read_close(),
            (1001, "Idle timeout".to_owned())
        );
        if by_default {
            // The owner has been idle for longer than the closed client.
            let id = owner.prompt(&session, "release");
            assert_eq!(asker.answer_to(waits)["result"]["stopReason"], "end_turn");
            assert_eq!(owner.answer_to(id)["result"]["stopReason"], "end_turn");
        } else {
            assert_eq!(owner.wire.read_close(), (1001, "Idle timeout".to_owned()));
            let (mut other, session, _) = Client::with_session(served.address);
            other.prompt(&session, "release");
            assert_eq!(
                asker.answer_to(waits)["result"]["stopReason"],
                "end_turn",
                "a client with a pending request is not idle"
            );
        }
    }
}

/// An agent whose sessions are "s1", "s2" and so on. When it gets `_vendor/go`, it sends `_vendor/thing` about "s1" before its
/// answer. It answers no prompts.
const AGENT: &str = r#"
    sessions=0
    while read -r line; do
        id=${line#*'"id":'}
        id=${id%%,*}
        case $line in
        *'"initialize"'*) result='{"protocolVersion":1,"agentCapabilities":{}}' ;;
        *'"session/new"'*) sessions=$((sessions + 1)) result="{\"sessionId\":\"s$sessions\"}" ;;
        *'"_vendor/go"'*)
            echo '{"jsonrpc":"2.0","method":"_vendor/thing","params":{"_meta":{"sessionId":"s1"}}}'
            result='{}'
            ;;
        *) continue ;;
        esac
        printf '{"jsonrpc":"2.0","result":%s,"id":%s}\n' "$result" "$id"
    done
"#;

#[test]
fn a_vendor_message_about_a_session_reaches_its_client_alone() {
    // The bug: it went to all clients, and to the other client alone while the prompt of that client ran.
    for passes in [false, true] {
        let options: &[&str] = if passes {
            &["--pass-methods", "_vendor/other,_vendor/thing"]
        } else {
            &[]
        };
        let arguments = [&["agent"], options, &["--", "sh", "-c", AGENT]].concat();
        let server = Program::start(&arguments);
        let address = server.address();
        let (mut ada, first, _) = Client::with_session(address);
        let (mut bob, second, _) = Client::with_session(address);
        assert_eq!((&*first, &*second), ("s1", "s2"));
        bob.prompt(&second, "hold");
        let id = bob.request("_vendor/go", json!({}));
        let mut receiver = &mut ada;
        if passes {
            receiver = &mut bob;
        }
        assert_eq!(receiver.hear()["method"], "_vendor/thing");
        // The next message of either client is an answer.
        assert_eq!(bob.hear()["id"], id);
        let answer = ada.ask("_vendor/go", json!({"x": {"sessionIds": [second]}}));
        assert_eq!(error_code(&answer), -32010, "{answer}");
    }
}
