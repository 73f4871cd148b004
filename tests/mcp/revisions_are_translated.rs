//! A client of revision 2026-07-28 uses a server that has only sessions.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::{ANY, Answer, JSON, STATELESS, send};
use crate::common::program::Program;
use crate::common::traces::{TraceFile, eventually};

/// A server of 2025-11-25, which logs the lines that it gets to the file `$LOG`.
const SERVER: &str = r#"
    while read -r line; do
        echo "$line" >> "$LOG"
        id=${line#*'"id":'}; id=${id%%[,\}]*}
        case "$line" in
        *server/discover*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}\n' "$id";;
        *'"method":"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"old"},"instructions":"i"}}\n' "$id";;
        *'"method":"notifications/'*) ;;
        *'"name":"ask"'*) asked=$id; echo '{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"who?"}}';;
        *'"id":"q"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[],"got":%s}}\n' "$asked" "$line";;
        *'"name":"change"'*) echo '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"memo:b"}}'
            echo '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"memo:a"}}'
            printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}\n' "$id";;
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
    _server: Program,
    log: TraceFile,
    _token: TraceFile,
}

impl World {
    fn new(name: &str, options: &[&str]) -> Self {
        let log = TraceFile::new(&format!("mcp-translated-{name}"));
        let token = TraceFile::new(&format!("mcp-translated-token-{name}"));
        let tokens = "ada all 0123456789abcdef0123456789\nbob all abcdef0123456789abcdef0123\n";
        std::fs::write(token.path(), tokens).expect("a file");
        let script = format!("LOG='{}'\n{SERVER}", log.path());
        let token_path = token.path();
        let own = ["--listen", "127.0.0.1:0", "--token-file", &token_path];
        let args = [&["mcp"][..], &own, options, &["--", "sh", "-c", &script]].concat();
        let server = Program::spawn(Command::new(env!("CARGO_BIN_EXE_outrigger")).args(args));
        Self {
            address: server.address(),
            _server: server,
            log,
            _token: token,
        }
    }

    fn request(&self, id: Value, method: &str, params: Value) -> Answer {
        self.request_of("0123456789abcdef0123456789", id, method, params)
    }

    fn request_of(&self, token: &str, id: Value, method: &str, mut params: Value) -> Answer {
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = STATELESS.into();
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({"elicitation": {}});
        let name = params["name"]
            .as_str()
            .map(|name| format!("Mcp-Name: {name}"));
        let version = format!("MCP-Protocol-Version: {STATELESS}");
        let mirrored = format!("Mcp-Method: {method}");
        let token = format!("Authorization: Bearer {token}");
        let mut fields = vec![JSON, ANY, &token, &version, &mirrored];
        fields.extend(name.as_deref());
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        send(self.address, "POST", &fields, &body.to_string())
    }

    fn lines(&self, part: &str) -> usize {
        let text = self.log.text();
        text.lines().filter(|line| line.contains(part)).count()
    }
}

#[test]
fn requests_are_answered_without_a_session() {
    let world = World::new("requests", &["--share", "principal"]);
    let found = world
        .request(json!("d"), "server/discover", json!({}))
        .response();
    assert_eq!(found["id"], "d");
    assert_eq!(found["result"]["supportedVersions"][0], STATELESS);
    assert_eq!(found["result"]["capabilities"], json!({"tools": {}}));
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
fn subscriptions_hear_of_the_changes_that_they_want() {
    let world = World::new("subscriptions", &["--share", "all"]);
    let lists = json!({"notifications": {"toolsListChanged": true}});
    let mut quiet = world.request(json!(1), "subscriptions/listen", lists);
    quiet.event().expect("the acknowledgement");
    eventually("the server runs", || {
        world.lines("notifications/initialized") == 1
    });
    let wanted = json!({"resourceSubscriptions": ["memo:a"]});
    let params = json!({"notifications": wanted});
    let mut stream = world.request(json!("s"), "subscriptions/listen", params);
    let (_, first) = stream.event().expect("the acknowledgement");
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    let id = "io.modelcontextprotocol/subscriptionId";
    assert_eq!(
        (
            &first["params"]["_meta"][id],
            &first["params"]["notifications"]
        ),
        (&json!("s"), &wanted)
    );
    eventually("the server is told", || {
        world.lines("resources/subscribe") == 1
    });
    let changed = world
        .request(json!(1), "tools/call", json!({"name": "change"}))
        .response();
    assert_eq!(changed["id"], 1);
    let (_, change) = stream.event().expect("a change");
    assert_eq!(
        (&change["params"]["uri"], &change["params"]["_meta"][id]),
        (&json!("memo:a"), &json!("s"))
    );
    drop(stream);
    eventually("the subscription ends", || {
        world.lines("resources/unsubscribe") == 1
    });
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
