//! A session of an older revision in front of a server that supports only revision 2026-07-28.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::client::{ANY, Answer, JSON, STATELESS, Session, figure, request, send};
use crate::common::program::Program;
use crate::common::traces::{TraceFile, eventually};

/// A server of 2026-07-28, which logs the lines that it gets to the file `$LOG`.
const SERVER: &str = r#"
    while read -r line; do
        echo "$line" >> "$LOG"
        id=${line#*'"id":'}; id=${id%%[,\}]*}
        case "$line" in
        *'"method":"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no"}}\n' "$id";;
        *server/discover*) printf '{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"new","version":"1"}}}}\n' "$id";;
        *subscriptions/listen*resourceSubscriptions*) listens=$id
            printf '{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s},"notifications":{"resourceSubscriptions":["memo:a"]}}}\n' "$id";;
        *'"method":"notifications/'*|*subscriptions/listen*) ;;
        *inputResponses*) answers=${line#*'"inputResponses":'}; answers=${answers%%\}\}*}
            printf '{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","got":%s}}}}\n' "$id" "$answers";;
        *'"name":"ask"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","inputRequests":{"name":{"method":"elicitation/create","params":{"message":"who?"}}},"requestState":"s"}}\n' "$id";;
        *'"name":"change"'*) printf '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s},"uri":"memo:a"}}\n' "$listens"
            printf '{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}\n' "$id";;
        *'"name":"garbage"'*) printf '{"id":%s,"result":\n' "$id";;
        *'"name":"exit"'*) exit 3;;
        *) printf '{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","tools":[]}}\n' "$id";;
        esac
    done
"#;

fn serve(name: &str, options: &[&str]) -> (Program, TraceFile) {
    let log = TraceFile::new(&format!("mcp-newer-{name}"));
    let script = format!("LOG='{}'\n{SERVER}", log.path());
    let args = [&["mcp"][..], options, &["--", "sh", "-c", &script]].concat();
    (Program::start(&args), log)
}

/// Begins a session of a client that can be asked by elicitation.
fn begin(address: SocketAddr, version: &str) -> (Session, Value) {
    let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": version, "capabilities": {"elicitation": {}}, "clientInfo": {"name": "t", "version": "1"},
    }});
    let answer = send(address, "POST", &[JSON, ANY], &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.head);
    let id = answer.field("Mcp-Session-Id").expect("a session");
    let field = format!("Mcp-Session-Id: {id}");
    let session = Session { address, field };
    let result = answer.response()["result"].clone();
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(session.send(initialized).status, 202);
    (session, result)
}

fn call(session: &Session, id: u64, method: &str, params: Value) -> Answer {
    session.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

/// The next message of a stream.
fn message(stream: &mut Answer) -> Value {
    loop {
        let (_, message) = stream.event().expect("a message");
        if !message.is_null() {
            return message;
        }
    }
}

#[test]
fn sessions_of_older_revisions_are_translated() {
    for share in ["none", "all"] {
        let (server, log) = serve(share, &["--share", share]);
        let address = server.address();
        for version in ["2025-11-25", "2025-03-26"] {
            let (session, result) = begin(address, version);
            assert_eq!(
                (&result["protocolVersion"], &result["serverInfo"]["name"]),
                (&json!(version), &json!("new"))
            );
            let list = call(&session, 1, "tools/list", json!({})).response();
            assert_eq!(
                (&list["id"], &list["result"]["tools"]),
                (&json!(1), &json!([]))
            );
            for method in ["ping", "logging/setLevel"] {
                let answer = call(&session, 2, method, json!({"level": "error"})).response();
                assert_eq!((&answer["id"], &answer["result"]), (&json!(2), &json!({})));
            }
            // The server asks in the middle of a call.
            let mut stream = call(&session, 3, "tools/call", json!({"name": "ask"}));
            let asked = message(&mut stream);
            assert_eq!(asked["method"], "elicitation/create");
            assert_eq!(asked["params"], json!({"message": "who?"}));
            let input =
                json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}});
            assert_eq!(session.send(input).status, 202);
            let answer = message(&mut stream);
            assert_eq!(
                (&answer["id"], &answer["result"]["got"]),
                (&json!(3), &json!({"name": {"action": "decline"}}))
            );
            // A subscription.
            let mut changes = session.listen(None);
            let uri = json!({"uri": "memo:a"});
            let answer = call(&session, 4, "resources/subscribe", uri.clone()).response();
            assert_eq!(answer["result"], json!({}));
            call(&session, 5, "tools/call", json!({"name": "change"})).response();
            let change = message(&mut changes);
            assert_eq!(change["params"], json!({"_meta": {}, "uri": "memo:a"}));
            let ended = |log: &TraceFile| {
                let text = log.text();
                text.lines()
                    .filter(|line| line.contains("cancelled"))
                    .count()
            };
            let before = ended(&log);
            let answer = call(&session, 6, "resources/unsubscribe", uri).response();
            assert_eq!(answer["result"], json!({}));
            eventually("the server hears of it", || ended(&log) > before);
            assert_eq!(send(address, "DELETE", &[&session.field], "").status, 204);
        }
        let text = log.text();
        let level = r#""io.modelcontextprotocol/logLevel":"error""#;
        assert!(text.contains(level), "{text}");
        eventually("nothing is pending", || {
            figure(address, "pending_requests") == 0
        });
    }
}

#[test]
fn a_server_that_exits_or_answers_garbage_fails_its_requests_only() {
    let (server, _log) = serve("fails", &["--share", "all"]);
    let address = server.address();
    let (session, _) = begin(address, "2025-11-25");
    let failed = call(&session, 1, "tools/call", json!({"name": "garbage"})).response();
    assert_eq!(failed["error"]["code"], -32603);
    let mut stream = call(&session, 2, "tools/call", json!({"name": "ask"}));
    let asked = message(&mut stream);
    let failed = call(&session, 3, "tools/call", json!({"name": "exit"})).response();
    assert_eq!(failed["error"]["message"], "MCP server exited");
    assert_eq!(
        message(&mut stream)["error"]["message"],
        "MCP server exited"
    );
    let late = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {}});
    assert_eq!(session.send(late).status, 202);
    let list = call(&session, 4, "tools/list", json!({})).response();
    assert_eq!(list["result"]["tools"], json!([]), "the session goes on");
    // Clients of 2026-07-28 use the same server.
    let found = request(address, json!(1), "server/discover", json!({})).response();
    assert_eq!(found["result"]["supportedVersions"], json!([STATELESS]));
}
