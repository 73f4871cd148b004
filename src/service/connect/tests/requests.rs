//! What passes through a bridge, before and after a loss.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::value;
use crate::random::Random;
use crate::service::connect::requests::{Local, MAX_WAITING, Remote, Requests};

fn request(id: &Value, method: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method}).to_string()
}

fn answer(id: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string()
}

/// The id and the code of an error.
fn failure(text: &str) -> (Value, i64) {
    let value = value(text);
    let code = value["error"]["code"].as_i64().expect("an error");
    (value["id"].clone(), code)
}

fn passed(local: Local<'_>) -> String {
    match local {
        Local::Pass(text) => text.into_owned(),
        other => panic!("not passed on: {other:?}"),
    }
}

#[test]
fn what_is_not_json_rpc_does_not_reach_the_local_side() {
    // The bug: the text of a terminal or a chat appeared between the messages of an agent.
    let mut requests = Requests::default();
    for text in [
        "no JSON",
        "",
        "7",
        "\"text\"",
        r#"{"type":"role","role":"writer"}"#,
    ] {
        assert_eq!(requests.handle_remote(text), Remote::Ignore, "{text}");
    }
}

#[test]
fn without_a_loss_every_message_passes_unchanged() {
    let mut requests = Requests::default();
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#,
        r#"{ "jsonrpc": "2.0", "method": "x", "params": [1] }"#,
        r#"{"jsonrpc":"2.0","id":"unknown","result":null}"#,
        r#"[{"jsonrpc":"2.0","id":2,"method":"x"}]"#,
        r#"{"id":3,"method":"old"}"#,
        r#"{"seq":1,"type":"event","event":"initialized"}"#,
    ] {
        assert_eq!(
            requests.handle_local(text),
            Local::Pass(Cow::Borrowed(text))
        );
        assert_eq!(
            requests.handle_remote(text),
            Remote::Pass(Cow::Borrowed(text))
        );
    }
    let Local::Reply(refused) = requests.handle_local("no JSON") else {
        panic!("it is refused");
    };
    assert_eq!(failure(&refused), (Value::Null, -32700));
}

#[test]
fn a_cancelled_request_waits_only_where_it_still_gets_an_answer() {
    // The bug: at the end of its input, the bridge waited for an answer that MCP servers never send.
    let mut requests = Requests::default();
    requests.handle_local(r#"{"jsonrpc":"2.0","id":"a","method":"tools/call"}"#);
    let other = r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"a"}}"#;
    requests.handle_local(other);
    assert!(requests.has_waiting());
    let cancel =
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}"#;
    assert_eq!(passed(requests.handle_local(cancel)), cancel);
    assert!(!requests.has_waiting());
}

#[test]
fn each_side_may_have_a_limited_number_of_requests() {
    let mut requests = Requests::default();
    for id in 0..MAX_WAITING {
        passed(requests.handle_local(&request(&json!(id), "x")));
        let asked = request(&json!(id), "x");
        assert_eq!(
            requests.handle_remote(&asked),
            Remote::Pass((&*asked).into())
        );
    }
    let one_more = request(&json!("more"), "x");
    let Local::Reply(refused) = requests.handle_local(&one_more) else {
        panic!("it is refused");
    };
    assert_eq!(failure(&refused), (json!("more"), -32013));
    let Remote::Refuse(refused) = requests.handle_remote(&one_more) else {
        panic!("it is refused");
    };
    assert_eq!(failure(&refused), (json!("more"), -32013));
    let long = request(&json!("x".repeat(2000)), "x");
    assert!(matches!(requests.handle_remote(&long), Remote::Refuse(_)));
    requests.handle_remote(&answer(&json!(5)));
    assert!(matches!(requests.handle_local(&one_more), Local::Pass(_)));
    assert_eq!(requests.handle_loss("gone").len(), MAX_WAITING);
    // The second loss adds nothing to the ids that the local side may still answer.
    for id in 0..MAX_WAITING {
        requests.handle_remote(&request(&json!(format!("b{id}")), "x"));
    }
    assert!(requests.handle_loss("gone").is_empty());
}

#[test]
fn the_next_initialize_begins_afresh() {
    let mut requests = Requests::default();
    requests.handle_local(&request(&json!(0), "initialize"));
    let failed = requests.handle_loss("the server has restarted");
    assert_eq!(failure(&failed[0]), (json!(0), -32016));
    assert_eq!(
        value(&failed[0])["error"]["data"],
        json!({"reason": "the server has restarted"})
    );
    let Local::Reply(refused) = requests.handle_local(&request(&json!(1), "session/prompt")) else {
        panic!("it is refused");
    };
    assert_eq!(failure(&refused), (json!(1), -32016));
    let note = r#"{"jsonrpc":"2.0","method":"x"}"#;
    assert_eq!(requests.handle_local(note), Local::Drop);
    assert_eq!(requests.handle_local(&answer(&json!(1))), Local::Drop);
    assert!(matches!(requests.handle_local("[]"), Local::Reply(_)));
    let again = request(&json!(2), "initialize");
    assert_eq!(requests.handle_local(&again), Local::Begin(&again));
    assert!(requests.has_waiting());
    assert_eq!(passed(requests.handle_local(note)), note);
}

/// A request that one side has sent, as a naive model sees it.
#[derive(Clone, Debug)]
struct Question {
    /// The id that the receiver sees.
    shown: Value,
    /// The id that the sender has chosen.
    original: Value,
    connection: usize,
}

#[test]
fn messages_of_different_connections_never_mix() {
    let ids = [
        json!(0),
        json!(1),
        json!("a"),
        json!("outrigger-1"),
        json!(1.5),
    ];
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut requests = Requests::default();
        let mut connection = 0;
        let (mut initialized, mut lost) = (false, false);
        // The local side's requests that the remote side has received, and those of the remote side that the local side sees.
        let (mut local, mut remote): (Vec<Value>, Vec<Question>) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            let id = ids[random.below(ids.len())].clone();
            match random.below(12) {
                0..3 => {
                    let begins = random.below(8) == 0;
                    let text = request(&id, if begins { "initialize" } else { "x" });
                    match requests.handle_local(&text) {
                        Local::Pass(sent) => assert!(!lost && sent == text),
                        Local::Begin(sent) => {
                            assert!(lost && begins && sent == text);
                            lost = false;
                        }
                        Local::Reply(error) => {
                            assert!(lost && !begins);
                            assert_eq!(failure(&error), (id, -32016));
                            continue;
                        }
                        Local::Drop => panic!("a request is never dropped"),
                    }
                    initialized |= begins;
                    local.push(id);
                }
                3..5 if !local.is_empty() => {
                    let id = local.remove(random.below(local.len()));
                    let text = answer(&id);
                    assert_eq!(requests.handle_remote(&text), Remote::Pass((&*text).into()));
                }
                5..7 if !lost => {
                    let uses = |one: &Question| one.connection == connection && one.original == id;
                    if remote.iter().any(uses) {
                        continue;
                    }
                    let text = request(&id, "ask");
                    let Remote::Pass(shown) = requests.handle_remote(&text) else {
                        panic!("it is shown");
                    };
                    let shown = value(&shown)["id"].clone();
                    // The local side can tell all requests that it may answer from each other.
                    assert!(
                        remote.iter().all(|one| one.shown != shown),
                        "{shown} {remote:?}"
                    );
                    remote.push(Question {
                        shown,
                        original: id,
                        connection,
                    });
                }
                7..10 if !remote.is_empty() => {
                    let question = remote.remove(random.below(remote.len()));
                    match requests.handle_local(&answer(&question.shown)) {
                        Local::Pass(sent) => {
                            assert_eq!(question.connection, connection);
                            assert_eq!(value(&sent), value(&answer(&question.original)));
                        }
                        Local::Drop => assert!(question.connection < connection || lost),
                        other => panic!("{other:?}"),
                    }
                }
                10 if !lost && !remote.is_empty() => {
                    let at = random.below(remote.len());
                    let question = remote[at].clone();
                    if question.connection != connection {
                        continue;
                    }
                    let cancel = |method: &str, id: &Value| {
                        let params = json!({"requestId": id});
                        json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()
                    };
                    let ends = random.below(2) == 0;
                    let method = if ends {
                        "notifications/cancelled"
                    } else {
                        "$/cancel_request"
                    };
                    let text = cancel(method, &question.original);
                    let Remote::Pass(shown) = requests.handle_remote(&text) else {
                        panic!("it is shown");
                    };
                    assert_eq!(value(&shown), value(&cancel(method, &question.shown)));
                    if ends {
                        remote.remove(at);
                    }
                }
                11 if !lost && random.below(3) == 0 => {
                    let errors = requests.handle_loss("gone");
                    let failed: Vec<_> = errors.iter().map(|error| failure(error).0).collect();
                    let mut waiting: Vec<Value> = std::mem::take(&mut local);
                    let mut failed_ids = failed.clone();
                    let by_text = |one: &Value| one.to_string();
                    waiting.sort_by_key(by_text);
                    failed_ids.sort_by_key(by_text);
                    assert_eq!(failed_ids, waiting, "seed {seed}");
                    connection += 1;
                    lost = std::mem::take(&mut initialized);
                }
                _ => {}
            }
            assert_eq!(requests.has_waiting(), !local.is_empty());
            assert_eq!(requests.awaits_initialize(), lost);
        }
    }
}
