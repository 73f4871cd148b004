//! A client of revision 2026-07-28 uses a server that has only sessions.

use std::net::SocketAddr;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::{ANY, Answer, JSON, STATELESS, send, send_to};
use crate::common::program::Program;
use crate::common::traces::{TraceFile, eventually};

/// A server of 2025-11-25, which logs the lines that it gets to the file `$LOG`.
const SERVER: &str = r#"
    while read -r line; do
        echo "$line" >> "$LOG"
        id=${line#*'"id":'}; id=${id%%[,\}]*}
        case "$line" in
        *server/discover*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}\n' "$id";;
        *'"method":"initialize"'*SLOW*) ;;
        *'"method":"initialize"'*REFUSE*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no"}}\n' "$id";;
        *'"method":"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true},"logging":{}},"serverInfo":{"name":"old"},"instructions":"i"}}\n' "$id";;
        *'"method":"notifications/'*) ;;
        *resources/subscribe*memo:exit*) exit 3;;
        *resources/subscribe*no\"*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no"}}\n' "$id";;
        *'"name":"slow"'*) asked=$id;;
        *prompts/list*) echo '{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"who?"}}'
            printf '{"jsonrpc":"2.0","id":%s,"result":{"prompts":[]}}\n' "$id";;
        *'"name":"twice"'*) asked=$id; echo '{"jsonrpc":"2.0","id":"one","method":"elicitation/create","params":{"message":"1"}}';;
        *'"id":"one"'*) echo '{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"2"}}';;
        *'"name":"deaf"'*) echo '{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"1"}}'
            echo '{"jsonrpc":"2.0","id":"r","method":"elicitation/create","params":{"message":"2"}}'
            echo '{"jsonrpc":"2.0","id":"s","method":"elicitation/create","params":{"message":"3"}}'; exec sleep 60;;
        *'"name":"each"'*) printf '{"jsonrpc":"2.0","id":"of %s","method":"elicitation/create","params":{"message":"who?"}}\n' "$id";;
        *'"id":"of '*) of=${line#*'"id":"of '}; printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}\n' "${of%%\"*}";;
        *'"name":"ask"'*) asked=$id; echo '{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"who?"}}';;
        *'"id":"q"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[],"got":%s}}\n' "$asked" "$line";;
        *'"name":"change"'*) echo '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"memo:b"}}'
            echo '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"memo:a/part"}}'
            echo '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"memo:a"}}'
            printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}\n' "$id";;
        *'"name":"flood"'*) long=$(head -c 30000 /dev/zero | tr '\0' x); n=0
            while [ $n -lt 700 ]; do n=$((n+1)); printf '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"memo:a/%s%s"}}\n' "$n" "$long"; done
            printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}\n' "$id";;
        *'"name":"url"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32042,"message":"no","data":{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://x"}]}}}\n' "$id";;
        *'"name":"both"'*) asked=$id
            for id in b1 b2; do echo "{\"jsonrpc\":\"2.0\",\"id\":\"$id\",\"method\":\"elicitation/create\",\"params\":{\"message\":\"who?\"}}"; done;;
        *'"id":"b1"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}\n' "$asked";;
        *'"id":"b2"'*) ;;
        *'"name":"never"'*) ;;
        *'"name":"exit"'*) exit 3;;
        *tools/list*) printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[]}}\n' "$id";;
        *'"progressToken"'*) token=${line#*'"progressToken":'}; token=${token%%[,\}]*}
            printf '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}\n' "$token"
            printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}\n' "$id";;
        *) printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}\n' "$id";;
        esac
    done
"#;

struct World {
    address: SocketAddr,
    server: Program,
    log: TraceFile,
    _token: TraceFile,
}

impl World {
    fn new(name: &str, options: &[&str]) -> Self {
        Self::with(SERVER, name, options)
    }

    fn with(program: &str, name: &str, options: &[&str]) -> Self {
        let log = TraceFile::new(&format!("mcp-translated-{name}"));
        let token = TraceFile::new(&format!("mcp-translated-token-{name}"));
        let tokens = "ada all 0123456789abcdef0123456789\nbob all abcdef0123456789abcdef0123\n";
        std::fs::write(token.path(), tokens).expect("a file");
        let script = format!("LOG='{}'\n{program}", log.path());
        let token_path = token.path();
        let own = ["--listen", "127.0.0.1:0", "--token-file", &token_path];
        let args = [&["mcp"][..], &own, options, &["--", "sh", "-c", &script]].concat();
        let server = Program::spawn(Command::new(env!("CARGO_BIN_EXE_outrigger")).args(args));
        Self {
            address: server.address(),
            server,
            log,
            _token: token,
        }
    }

    fn request(&self, id: Value, method: &str, params: Value) -> Answer {
        self.request_of("0123456789abcdef0123456789", id, method, params)
    }

    fn request_of(&self, token: &str, id: Value, method: &str, params: Value) -> Answer {
        request_to(self.address, token, id, method, params)
    }

    fn lines(&self, part: &str) -> usize {
        let text = self.log.text();
        text.lines().filter(|line| line.contains(part)).count()
    }
}

/// Sends a request of revision 2026-07-28 with a token.
fn request_to(
    address: SocketAddr,
    token: &str,
    id: Value,
    method: &str,
    mut params: Value,
) -> Answer {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = STATELESS.into();
    let capabilities = &mut params["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    if capabilities.is_null() {
        *capabilities = json!({"elicitation": {}});
    }
    let name = params["name"]
        .as_str()
        .map(|name| format!("Mcp-Name: {name}"));
    let version = format!("MCP-Protocol-Version: {STATELESS}");
    let mirrored = format!("Mcp-Method: {method}");
    let token = format!("Authorization: Bearer {token}");
    let mut fields = vec![JSON, ANY, &token, &version, &mirrored];
    fields.extend(name.as_deref());
    let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    send(address, "POST", &fields, &body.to_string())
}

/// The key of a question and the state of its call.
fn question(asked: &Value) -> (String, Value) {
    let result = &asked["result"];
    assert_eq!(result["resultType"], "input_required", "{asked}");
    let requests = result["inputRequests"].as_object().expect("requests");
    let key = requests.keys().next().expect("a question");
    (key.clone(), result["requestState"].clone())
}

fn figure_of(world: &World, name: &str) -> u64 {
    let token = "Authorization: Bearer 0123456789abcdef0123456789";
    let status = send_to(world.address, "/status", "GET", &[token], "").json();
    status[name].as_u64().expect("a number")
}

#[test]
fn requests_are_answered_without_a_session() {
    let world = World::new("requests", &["--share", "principal"]);
    let found = world
        .request(json!("d"), "server/discover", json!({}))
        .response();
    assert_eq!(found["id"], "d");
    assert_eq!(found["result"]["supportedVersions"][0], STATELESS);
    let capabilities = json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}});
    assert_eq!(
        found["result"]["capabilities"], capabilities,
        "log messages are not passed on"
    );
    assert_eq!(
        found["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"],
        "old"
    );
    let list = world.request(json!(1), "tools/list", json!({})).response();
    let want = json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": []});
    assert_eq!(list["result"], want);
    let params = json!({"name": "x", "_meta": {"progressToken": "t"}});
    let mut call = world.request(json!(1), "tools/call", params);
    assert_eq!(
        call.event().expect("progress").1["params"]["progressToken"],
        "t"
    );
    let answer = call.event().expect("the answer").1;
    assert_eq!(
        (&answer["id"], &answer["result"]["resultType"]),
        (&json!(1), &json!("complete"))
    );
    assert_eq!(
        world.lines("clientCapabilities"),
        1,
        "only the first process is asked"
    );
    assert_eq!(world.lines("\"initialize\""), 1);
    for method in ["ping", "logging/setLevel", "resources/subscribe"] {
        let refused = world.request(json!(1), method, json!({"uri": "memo:a"}));
        assert_eq!(
            (refused.status, &refused.response()["error"]["code"]),
            (404, &json!(-32601))
        );
    }
    // A closed connection cancels its request.
    let waiting = world.request(json!(1), "tools/call", json!({"name": "never"}));
    drop(waiting.wire.stream.shutdown(std::net::Shutdown::Both));
    eventually("the server is told", || {
        world.lines("notifications/cancelled") == 1
    });
    let exited = world
        .request(json!(1), "tools/call", json!({"name": "exit"}))
        .response();
    assert_eq!(exited["error"]["message"], "MCP server exited");
    assert_eq!(
        world.request(json!(1), "tools/list", json!({})).response()["result"],
        want
    );
}

#[test]
fn a_question_in_the_middle_of_a_call_becomes_a_round_of_its_own() {
    let world = World::new("questions", &["--share", "principal"]);
    let call = |id: i32, params: Value| world.request(json!(id), "tools/call", params);
    let asked = call(1, json!({"name": "ask"})).response();
    let (result, id) = (&asked["result"], &asked["id"]);
    assert_eq!(
        (id, &result["resultType"]),
        (&json!(1), &json!("input_required"))
    );
    let requests = result["inputRequests"].as_object().expect("requests");
    let (key, question) = requests.iter().next().expect("one");
    let want = json!({"method": "elicitation/create", "params": {"message": "who?"}});
    assert_eq!((requests.len(), question), (1, &want));
    let state = &result["requestState"];
    let input = json!({key: {"action": "accept", "content": {"name": "Ada"}}});
    // Nobody else can continue it, nor with another request.
    for (token, name) in [
        ("abcdef0123456789abcdef0123", "ask"),
        ("0123456789abcdef0123456789", "x"),
    ] {
        let params = json!({"name": name, "requestState": state, "inputResponses": input});
        let refused = world.request_of(token, json!(2), "tools/call", params);
        assert_eq!(
            (refused.status, &refused.response()["error"]["code"]),
            (400, &json!(-32602))
        );
    }
    // Without the input, the client is asked again, with another state.
    let again = call(3, json!({"name": "ask", "requestState": state})).response();
    assert_eq!(
        (&again["id"], &again["result"]["inputRequests"]),
        (&json!(3), &result["inputRequests"])
    );
    let next = &again["result"]["requestState"];
    assert_ne!(next, state);
    let params = json!({"name": "ask", "requestState": next, "inputResponses": input});
    let answer = call(4, params.clone()).response();
    assert_eq!(
        (&answer["id"], &answer["result"]["resultType"]),
        (&json!(4), &json!("complete"))
    );
    assert_eq!(answer["result"]["got"]["result"]["content"]["name"], "Ada");
    for used in [state, next] {
        let params = json!({"name": "ask", "requestState": used, "inputResponses": input});
        assert_eq!(call(5, params).status, 400, "it works once");
    }
    assert_eq!(
        call(6, json!({"name": "x"})).response()["result"]["resultType"],
        "complete"
    );
}

#[test]
fn an_address_that_the_user_has_to_open_is_asked_for() {
    let world = World::new("url", &["--share", "principal"]);
    let call = |params| world.request(json!(1), "tools/call", params).response();
    let asked = call(json!({"name": "url"}));
    let question =
        json!({"method": "elicitation/create", "params": {"mode": "url", "url": "https://x"}});
    let want = json!({"resultType": "input_required", "inputRequests": {"0": question}});
    assert_eq!((&asked["id"], &asked["result"]), (&json!(1), &want));
    let input = json!({"0": {"action": "accept"}});
    let again = call(json!({"name": "url", "inputResponses": input}));
    assert_eq!(again["result"], want, "the server is asked again");
    let seen = (world.lines("\"url\""), world.lines("inputResponses"));
    assert_eq!(seen, (2, 0));
}

#[test]
fn subscriptions_hear_of_the_changes_that_they_want() {
    let world = World::new("subscriptions", &["--share", "all"]);
    let lists = json!({"notifications": {"toolsListChanged": true}});
    let mut quiet = world.request(json!(1), "subscriptions/listen", lists);
    quiet.event().expect("the acknowledgement");
    eventually("the server runs", || {
        world.lines("notifications/initialized") == 1
    });
    let wanted = json!({"toolsListChanged": true, "promptsListChanged": true, "resourceSubscriptions": ["memo:no", "memo:a"]});
    let params = json!({"notifications": wanted});
    let honored = json!({"toolsListChanged": true, "resourceSubscriptions": ["memo:a"]});
    let mut stream = world.request(json!("s"), "subscriptions/listen", params);
    let (_, first) = stream.event().expect("the acknowledgement");
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    let id = "io.modelcontextprotocol/subscriptionId";
    assert_eq!(
        (
            &first["params"]["_meta"][id],
            &first["params"]["notifications"]
        ),
        (&json!("s"), &honored),
        "only what the server reports"
    );
    let changed = world
        .request(json!(1), "tools/call", json!({"name": "change"}))
        .response();
    assert_eq!(changed["id"], 1);
    for uri in ["memo:a/part", "memo:a"] {
        let (_, change) = stream.event().expect("a change");
        assert_eq!(
            (&change["params"]["uri"], &change["params"]["_meta"][id]),
            (&json!(uri), &json!("s"))
        );
    }
    drop(stream);
    eventually("the subscription ends", || {
        world.lines("resources/unsubscribe") == 1
    });
    // With its process, or with the server.
    for is_exit in [true, false] {
        let params = json!({"notifications": {"toolsListChanged": true}});
        let mut stream = world.request(json!("s"), "subscriptions/listen", params);
        stream.event().expect("the acknowledgement");
        if is_exit {
            world.request(json!(1), "tools/call", json!({"name": "exit"}));
        } else {
            world.server.signal(Signal::TERM);
        }
        let (_, last) = stream.event().expect("an answer");
        let result = json!({"resultType": "complete", "_meta": {id: "s"}});
        match is_exit {
            true => assert_eq!(last["error"]["message"], "MCP server exited"),
            false => assert_eq!(last["result"], result),
        }
        assert_eq!(last["id"], "s");
        assert!(stream.event().is_none(), "the stream ends");
    }
}

#[test]
fn a_subscription_fails_if_the_server_exits_before_it_is_complete() {
    // The bug: the client got an acknowledgement without the resources, as if the server had refused them.
    let world = World::new("incomplete", &["--share", "all"]);
    let wanted = json!({"resourceSubscriptions": ["memo:exit", "memo:a"]});
    let failed = world
        .request(
            json!("s"),
            "subscriptions/listen",
            json!({"notifications": wanted}),
        )
        .response();
    assert_eq!(
        (&failed["id"], &failed["error"]["message"]),
        (&json!("s"), &json!("MCP server exited"))
    );
}

#[test]
fn a_subscription_fails_if_the_server_cannot_be_used() {
    // The bug: it was acknowledged, and its client waited for changes that could not come.
    let world = World::new("refused", &["--share", "principal"]);
    let capabilities = json!({"experimental": {"REFUSE": {}}});
    let params = json!({
        "notifications": {"toolsListChanged": true},
        "_meta": {"io.modelcontextprotocol/clientCapabilities": capabilities},
    });
    let refused = world
        .request(json!("s"), "subscriptions/listen", params)
        .response();
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&json!("s"), &json!(-32602))
    );
}

#[test]
fn the_time_limit_of_requests_does_not_count_while_a_client_gathers_input() {
    let options = ["--share", "principal", "--request-timeout", "1s"];
    let world = World::new("limit", &options);
    let call = |params| world.request(json!(1), "tools/call", params).response();
    let asked = call(json!({"name": "ask"}));
    let (key, state) = question(&asked);
    let failed = call(json!({"name": "never"}));
    assert_eq!(failed["error"]["message"], "Request timed out");
    let input = json!({&key: {"action": "decline"}});
    let answer = call(json!({"name": "ask", "requestState": state, "inputResponses": input}));
    assert_eq!(answer["result"]["resultType"], "complete");
}

#[test]
fn a_question_reaches_a_caller_that_waits() {
    // The bug: the newest call got it, although its client had gone while it was asked itself.
    let world = World::new("waits", &["--share", "principal"]);
    let mut waiting = world.request(json!(1), "tools/call", json!({"name": "slow"}));
    question(
        &world
            .request(json!(2), "prompts/get", json!({"name": "ask"}))
            .response(),
    );
    let list = world.request(json!(3), "prompts/list", json!({}));
    assert_eq!(list.response()["result"]["prompts"], json!([]));
    let (_, asked) = waiting.event().expect("a question");
    assert_eq!(
        (&asked["id"], &asked["result"]["resultType"]),
        (&json!(1), &json!("input_required"))
    );
}

#[test]
fn input_that_is_no_result_is_refused_and_the_state_can_be_used_again() {
    let world = World::new("malformed", &["--share", "principal"]);
    let call = |params| world.request(json!(1), "tools/call", params);
    let (key, state) = question(&call(json!({"name": "ask"})).response());
    for input in [json!({&key: 7}), json!({&key: null}), json!([]), json!("x")] {
        let params = json!({"name": "ask", "requestState": state, "inputResponses": input});
        let refused = call(params);
        assert_eq!(
            (refused.status, &refused.response()["error"]["code"]),
            (400, &json!(-32602)),
            "{input}"
        );
    }
    let input = json!({&key: {"action": "cancel"}, "other": 7});
    let params = json!({"name": "ask", "requestState": state, "inputResponses": input});
    let answer = call(params).response();
    assert_eq!(answer["result"]["got"]["result"]["action"], "cancel");
}

#[test]
fn a_question_counts_until_it_is_answered() {
    let world = World::new("counts", &["--share", "principal"]);
    let call = |params| world.request(json!(1), "tools/call", params).response();
    let first = call(json!({"name": "twice"}));
    let kept = || figure_of(&world, "kept_bytes");
    let before = kept();
    let (key, state) = question(&first);
    let input = json!({&key: {"action": "decline"}});
    let params = json!({"name": "twice", "requestState": state, "inputResponses": input});
    let second = call(params);
    assert!(before > 0 && kept() <= before, "{}", kept());
    let (key, state) = question(&second);
    let input = json!({&key: {"action": "decline"}});
    let params = json!({"name": "twice", "requestState": state, "inputResponses": input});
    assert_eq!(call(params)["result"]["resultType"], "complete");
    assert_eq!(kept(), 0);
}

#[test]
fn input_for_a_server_that_does_not_read_is_not_queued_without_limit() {
    let world = World::new("deaf", &["--share", "principal"]);
    let call = |params| world.request(json!(1), "tools/call", params);
    let mut asked = call(json!({"name": "deaf"})).response();
    let mut inputs = 0;
    let refused = loop {
        let (key, state) = question(&asked);
        let content = "x".repeat(3 << 20);
        let input = json!({&key: {"action": "accept", "content": {"text": content}}});
        let params = json!({"name": "deaf", "requestState": state, "inputResponses": input});
        let answer = call(params);
        if answer.status != 200 {
            break answer;
        }
        inputs += 1;
        assert!(inputs < 3, "the third input waits for room");
        asked = answer.response();
    };
    assert_eq!(refused.status, 503);
}

#[test]
fn a_principal_whose_requests_wait_for_the_start_keeps_nobody_else_out() {
    let options = ["--share", "all", "--initialize-timeout", "2s"];
    let world = World::new("held", &options);
    let capabilities = json!({"experimental": {"SLOW": {}}});
    let call = |token, filling: usize| {
        let params = json!({
            "name": "x", "arguments": {"filling": "x".repeat(filling)},
            "_meta": {"io.modelcontextprotocol/clientCapabilities": capabilities},
        });
        world.request_of(token, json!(1), "tools/call", params)
    };
    let ada = "0123456789abcdef0123456789";
    let first = call(ada, 4_190_000);
    let second = call(ada, 10_000);
    assert_eq!(second.status, 503, "ada has used her part");
    let other = call("abcdef0123456789abcdef0123", 10_000);
    assert_eq!(other.status, 200, "bob has a part of his own");
    for waiting in [first, other] {
        assert_eq!(waiting.response()["error"]["message"], "Request timed out");
    }
}

#[test]
fn the_pool_holds_a_part_for_each_principal_while_it_starts() {
    // Longer than a busy machine needs for all that happens before the requests end.
    let options = ["--initialize-timeout", "8s"];
    let world = World::with("cat > /dev/null", "pool-held", &options);
    let address = world.address;
    let call = |token, filling: usize| {
        let params = json!({"name": "x", "arguments": {"filling": "x".repeat(filling)}});
        request_to(address, token, json!(1), "tools/call", params).status
    };
    let ada = "0123456789abcdef0123456789";
    std::thread::scope(|scope| {
        let first = scope.spawn(|| call(ada, 4_190_000));
        eventually("the request waits", || {
            figure_of(&world, "pending_requests") == 1
        });
        assert_eq!(call(ada, 10_000), 503, "ada has used her part");
        let other = call("abcdef0123456789abcdef0123", 10_000);
        assert_eq!((other, first.join().expect("a status")), (400, 400));
    });
}

#[test]
fn many_calls_that_ask_at_the_same_time_are_each_answered_once_and_leave_nothing() {
    let world = World::new("many", &["--share", "principal"]);
    let address = world.address;
    let tokens = ["0123456789abcdef0123456789", "abcdef0123456789abcdef0123"];
    let run = |token: &str| {
        let mut params = json!({"name": "each"});
        for _ in 0..100 {
            let answer = request_to(address, token, json!("same"), "tools/call", params);
            let answer = answer.response();
            assert_eq!(answer["id"], "same");
            let result = &answer["result"];
            if result["resultType"] == "complete" {
                return;
            }
            let asked = result["inputRequests"].as_object().expect("questions");
            let input = |key: &String| (key.clone(), json!({"action": "decline"}));
            let input: serde_json::Map<_, _> = asked.keys().map(input).collect();
            let state = &result["requestState"];
            params = json!({"name": "each", "requestState": state, "inputResponses": input});
        }
        panic!("a call ends");
    };
    std::thread::scope(|scope| {
        for number in 0..40 {
            scope.spawn(move || run(tokens[number % 2]));
        }
    });
    for name in ["pending_requests", "kept_bytes"] {
        assert_eq!(figure_of(&world, name), 0, "{name}");
    }
}

#[test]
fn without_sharing_a_client_of_the_newer_revision_is_refused() {
    let world = World::new("none", &[]);
    let refused = world.request(json!(1), "tools/list", json!({}));
    assert_eq!(
        (refused.status, &refused.response()["error"]["code"]),
        (400, &json!(-32022))
    );
}

#[test]
fn a_subscriber_that_reads_slowly_misses_no_change() {
    // The bug: changes were dropped like progress while the subscriber was behind.
    let options = ["--share", "all", "--max-outbound", "64MiB"];
    let world = World::new("slow", &options);
    let params = json!({"notifications": {"resourceSubscriptions": ["memo:a"]}});
    let mut stream = world.request(json!("s"), "subscriptions/listen", params);
    stream.event().expect("the acknowledgement");
    let flood = json!({"name": "flood"});
    let answer = world.request(json!(1), "tools/call", flood).response();
    assert_eq!(answer["id"], 1, "{answer}");
    for number in 1..=700 {
        let (_, change) = stream.event().expect("a change");
        let uri = change["params"]["uri"].as_str().expect("a URI");
        assert!(uri.starts_with(&format!("memo:a/{number}x")), "{number}");
    }
}

#[test]
fn a_call_whose_input_does_not_come_in_time_is_cancelled() {
    let options = ["--share", "principal", "--input-timeout", "1s"];
    let world = World::new("late", &options);
    let call = |params| world.request(json!(1), "tools/call", params);
    let (key, state) = question(&call(json!({"name": "ask"})).response());
    eventually("the call is cancelled", || {
        world.lines("notifications/cancelled") == 1
    });
    let input = json!({&key: {"action": "decline"}});
    let late = call(json!({"name": "ask", "requestState": state, "inputResponses": input}));
    assert_eq!(
        (late.status, &late.response()["error"]["code"]),
        (400, &json!(-32602))
    );
    assert_eq!(
        (
            figure_of(&world, "pending_requests"),
            figure_of(&world, "kept_bytes")
        ),
        (0, 0)
    );
}

#[test]
fn an_error_lists_the_revisions_that_discovery_lists() {
    // The bug: before a lazy server had run, the error listed all revisions, whatever the server supports.
    for (share, has_newer) in [("none", false), ("principal", true)] {
        let world = World::new(share, &["--start", "lazy", "--share", share]);
        let token = "Authorization: Bearer 0123456789abcdef0123456789";
        let key = "io.modelcontextprotocol/protocolVersion";
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": {key: "1900-01-01"}}});
        let fields = [JSON, ANY, token, "MCP-Protocol-Version: 1900-01-01"];
        let refused = send(world.address, "POST", &fields, &body.to_string());
        assert_eq!(refused.status, 400);
        let refused = refused.response();
        assert_eq!(
            (&refused["id"], &refused["error"]["data"]["requested"]),
            (&json!(1), &json!("1900-01-01"))
        );
        let listed = &refused["error"]["data"]["supported"];
        assert_eq!(listed[0] == STATELESS, has_newer, "{listed}");
        let found = world.request(json!(2), "server/discover", json!({}));
        let found = found.response();
        let supported = match has_newer {
            true => &found["result"]["supportedVersions"],
            false => &found["error"]["data"]["supported"],
        };
        assert_eq!(supported, listed);
        assert_eq!(figure_of(&world, "pending_requests"), 0);
    }
}

#[test]
fn input_for_a_call_that_is_answered_already_reaches_the_server() {
    // The bug: the older server had asked for another call, which failed although its question was answered.
    let world = World::new("answered", &["--share", "principal"]);
    let call = |params| world.request(json!(1), "tools/call", params).response();
    let (key, state) = question(&call(json!({"name": "both"})));
    let input = json!({&key: {"action": "decline"}});
    let params = json!({"name": "both", "requestState": state, "inputResponses": input});
    let (key, state) = question(&call(params));
    eventually("the server has answered", || {
        world.lines("\"id\":\"b1\"") == 1
    });
    let input = json!({&key: {"action": "cancel"}});
    let params = json!({"name": "both", "requestState": state, "inputResponses": input});
    assert_eq!(call(params)["result"]["content"], json!([]));
    eventually("the server has the input", || {
        world.lines(r#""action":"cancel""#) == 1
    });
    assert_eq!(world.lines("The client has left"), 0);
}
