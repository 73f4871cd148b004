//! Conversations without sockets: the host, the HTTP requests that result, and parts of responses to them.

use std::time::Duration;

use super::conversation::{Action, Conversation};
use crate::Time;
use crate::protocol::client::ResponseHead;

/// A conversation, its time, and what it has written to the host.
struct Sim {
    conversation: Conversation,
    now: Time,
    written: Vec<String>,
    /// The HTTP requests that were sent: their numbers and texts.
    sent: Vec<(u64, String)>,
    dropped: Vec<u64>,
    is_finished: bool,
    moved: Option<String>,
    failure: Option<String>,
}

impl Sim {
    fn new() -> Self {
        Self {
            conversation: Conversation::new("http://h/mcp".parse().expect("a URL"), 1 << 20),
            now: Time::from_millis(1),
            written: Vec::new(),
            sent: Vec::new(),
            dropped: Vec::new(),
            is_finished: false,
            moved: None,
            failure: None,
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.conversation.poll_action() {
            match action {
                Action::Send(number, request) => {
                    let mut out = Vec::new();
                    request.write("h", "/mcp", std::iter::empty(), &mut out);
                    self.sent
                        .push((number, String::from_utf8(out).expect("text")));
                }
                Action::Drop(number) => self.dropped.push(number),
                Action::Move(target) => self.moved = Some(target.to_string()),
                Action::Write(text) | Action::Answer(text) => self.written.push(text),
                Action::Fail(why, _) => self.failure = Some(why),
                Action::Finish => self.is_finished = true,
            }
        }
    }

    fn host(&mut self, text: &str) {
        self.conversation.handle_local(self.now, text);
        self.act();
    }

    /// The next HTTP request: its number. It must contain all of `parts`.
    fn request(&mut self, parts: &[&str]) -> u64 {
        assert!(!self.sent.is_empty(), "no request with {parts:?}");
        let (number, text) = self.sent.remove(0);
        for part in parts {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        number
    }

    fn head(&mut self, number: u64, status: &str, fields: &str) {
        let head = format!("HTTP/1.1 {status}\r\n{fields}\r\n");
        let head = ResponseHead::parse(head.as_bytes()).expect("a head");
        self.conversation.handle_head(self.now, number, &head);
        self.act();
    }

    fn data(&mut self, number: u64, text: &str) {
        self.conversation
            .handle_data(self.now, number, text.as_bytes());
        self.act();
    }

    fn end(&mut self, number: u64) {
        self.conversation.handle_end(self.now, number);
        self.act();
    }

    /// Answers a request with JSON.
    fn json(&mut self, number: u64, status: &str, body: &str) {
        self.head(number, status, "Content-Type: application/json\r\n");
        self.data(number, body);
        self.end(number);
    }

    fn events(&mut self, number: u64, text: &str) {
        self.head(
            number,
            "200 OK",
            "Content-Type: text/event-stream; charset=utf-8\r\n",
        );
        self.data(number, text);
    }

    fn cut(&mut self, number: u64) {
        self.conversation
            .handle_failure(self.now, number, "cut", true);
        self.act();
    }

    /// Lets time pass until something is due.
    fn wait(&mut self) {
        let due = self.conversation.next_due().expect("something is due");
        self.now = self.now.max(due);
        self.conversation.handle_time(self.now);
        self.act();
    }

    fn read(&mut self) -> String {
        assert!(!self.written.is_empty(), "nothing was written");
        self.written.remove(0)
    }

    /// Begins a session with the id `session`, and returns the number of the GET stream.
    fn begin(session: &str) -> (Self, u64) {
        let mut sim = Self::new();
        sim.host(INITIALIZE);
        let number = sim.request(&["POST /mcp", "Accept: application/json, text/event-stream"]);
        let fields = format!("Content-Type: application/json\r\nMcp-Session-Id: {session}\r\n");
        sim.head(number, "200 OK", &fields);
        sim.data(number, INITIALIZED);
        sim.end(number);
        assert!(sim.read().contains("protocolVersion"));
        sim.host(READY);
        let number = sim.request(&["notifications/initialized", "Mcp-Session-Id: "]);
        sim.head(number, "202 Accepted", "");
        sim.end(number);
        let stream = sim.request(&["GET /mcp", "Accept: text/event-stream", session]);
        (sim, stream)
    }
}

const INITIALIZE: &str =
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;
const INITIALIZED: &str =
    r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}"#;
const READY: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const PAY: &str = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"pay"}}"#;
const LIST: &str = r#"{"jsonrpc":"2.0","id":8,"method":"tools/list"}"#;
const PAID: &str = r#"{"jsonrpc":"2.0","id":7,"result":{}}"#;
const LISTED: &str = r#"{"jsonrpc":"2.0","id":8,"result":{"tools":[]}}"#;

#[test]
fn messages_carry_the_session_and_its_revision() {
    let (mut sim, stream) = Sim::begin("s1");
    sim.host(PAY);
    let pay = sim.request(&[
        "Mcp-Session-Id: s1\r\n",
        "MCP-Protocol-Version: 2025-11-25\r\n",
    ]);
    sim.events(
        pay,
        "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n",
    );
    assert!(sim.read().contains("progress"));
    // The server asks on its stream, and the host answers.
    sim.events(
        stream,
        "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"roots/list\"}\n\n",
    );
    assert!(sim.read().contains("roots/list"));
    sim.host(r#"{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}"#);
    sim.request(&[r#""roots":[]"#, "Mcp-Session-Id: s1"]);
    sim.host(r#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
    assert!(sim.sent.is_empty(), "nobody has asked");
    sim.data(pay, &format!("data: {PAID}\n\ndata: {PAID}\n\n"));
    assert_eq!(sim.written, [PAID], "once");
    sim.end(pay);
    sim.conversation.leave();
    sim.act();
    sim.written.clear();
    let goodbye = sim.request(&["DELETE /mcp", "Mcp-Session-Id: s1"]);
    sim.head(goodbye, "200 OK", "");
    sim.end(goodbye);
    assert!(sim.is_finished && sim.written.is_empty());
}

#[test]
fn no_message_overtakes_initialize_or_a_notification() {
    let mut sim = Sim::new();
    for text in [INITIALIZE, READY, LIST] {
        sim.host(text);
    }
    let number = sim.request(&["initialize"]);
    assert!(sim.sent.is_empty());
    sim.json(number, "200 OK", INITIALIZED);
    let ready = sim.request(&["notifications/initialized"]);
    assert!(sim.sent.is_empty());
    sim.head(ready, "202 Accepted", "");
    let texts: Vec<_> = sim.sent.iter().map(|(_, text)| text.as_str()).collect();
    assert!(
        texts.iter().any(|text| text.contains("tools/list")),
        "{texts:?}"
    );
}

#[test]
fn a_request_that_may_have_run_is_not_repeated() {
    let (mut sim, _) = Sim::begin("s1");
    sim.host(PAY);
    let pay = sim.request(&["pay"]);
    sim.cut(pay);
    let error = sim.read();
    assert!(
        error.contains(r#""id":7,"error":{"code":-32016"#),
        "{error}"
    );
    assert!(error.contains("may have run"), "{error}");
    assert!(sim.sent.is_empty());
    // One that changes nothing is repeated.
    sim.host(LIST);
    let list = sim.request(&["tools/list"]);
    sim.cut(list);
    assert!(sim.written.is_empty() && sim.sent.is_empty());
    sim.wait();
    let list = sim.request(&["tools/list"]);
    sim.json(list, "200 OK", LISTED);
    assert_eq!(sim.read(), LISTED);
}

#[test]
fn an_answer_is_resumed_after_its_last_event() {
    let (mut sim, _) = Sim::begin("s1");
    sim.host(PAY);
    let pay = sim.request(&["pay"]);
    sim.events(pay, "id: 5-1\nretry: 30\ndata: \n\n");
    sim.cut(pay);
    assert!(sim.sent.is_empty() && sim.written.is_empty());
    sim.wait();
    let rest = sim.request(&["GET /mcp", "Last-Event-ID: 5-1\r\n", "Mcp-Session-Id: s1"]);
    sim.cut(rest);
    sim.wait();
    let rest = sim.request(&["GET /mcp", "Last-Event-ID: 5-1\r\n"]);
    // Another server ends the stream to save connections.
    sim.events(
        rest,
        "id: 5-2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\n",
    );
    assert!(sim.read().contains("\"x\""));
    sim.end(rest);
    sim.wait();
    let rest = sim.request(&["Last-Event-ID: 5-2\r\n"]);
    sim.events(rest, &format!("id: 5-3\ndata: {PAID}\n\n"));
    assert_eq!(sim.read(), PAID);
    // The server no longer has the events of another call.
    sim.host(PAY);
    let pay = sim.request(&["pay"]);
    sim.events(pay, "id: 6-1\ndata: \n\n");
    sim.cut(pay);
    sim.wait();
    let rest = sim.request(&["Last-Event-ID: 6-1\r\n"]);
    sim.json(
        rest,
        "400 Bad Request",
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"unknown event"}}"#,
    );
    assert!(sim.read().contains("may have run"));
}

#[test]
fn a_session_that_the_server_has_forgotten_begins_again() {
    let (mut sim, stream) = Sim::begin("s1");
    for (id, method, params) in [
        (1, "logging/setLevel", r#"{"level":"debug"}"#),
        (2, "resources/subscribe", r#"{"uri":"file:///a"}"#),
        (3, "resources/subscribe", r#"{"uri":"file:///b"}"#),
        (4, "resources/unsubscribe", r#"{"uri":"file:///a"}"#),
    ] {
        sim.host(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
        ));
        let number = sim.request(&[method]);
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        sim.json(number, "200 OK", &answer);
        sim.read();
    }
    sim.host(PAY);
    sim.host(LIST);
    let (pay, list) = (sim.request(&["pay"]), sim.request(&["tools/list"]));
    sim.json(
        pay,
        "404 Not Found",
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#,
    );
    assert_eq!(sim.dropped, [stream]);
    let again = sim.request(&["initialize", "2025-11-25"]);
    assert!(sim.sent.is_empty(), "the call waits");
    // The second refusal concerns the same session.
    sim.json(list, "404 Not Found", "");
    sim.head(
        again,
        "200 OK",
        "Content-Type: application/json\r\nMcp-Session-Id: s2\r\n",
    );
    sim.data(
        again,
        &INITIALIZED.replace("\"id\":0", "\"id\":\"outrigger-1\""),
    );
    sim.end(again);
    let ready = sim.request(&["notifications/initialized", "Mcp-Session-Id: s2"]);
    sim.head(ready, "202 Accepted", "");
    sim.end(ready);
    sim.request(&["logging/setLevel", "debug", "s2"]);
    sim.request(&["resources/subscribe", "file:///b"]);
    let pay = sim.request(&["pay", "Mcp-Session-Id: s2"]);
    let list = sim.request(&["tools/list", "s2"]);
    sim.request(&["GET /mcp", "s2"]);
    sim.json(pay, "200 OK", PAID);
    sim.json(list, "200 OK", LISTED);
    assert_eq!(sim.written, [PAID, LISTED]);
}

#[test]
fn a_session_that_cannot_begin_again_fails_its_calls_and_does_not_spin() {
    let (mut sim, _) = Sim::begin("s1");
    sim.host(PAY);
    let pay = sim.request(&["pay"]);
    sim.json(pay, "404 Not Found", "");
    let again = sim.request(&["initialize"]);
    sim.head(again, "200 OK", "Content-Type: application/json\r\n");
    let other = INITIALIZED.replace("\"id\":0", "\"id\":\"outrigger-1\"");
    sim.data(again, &other.replace("2025-11-25", "2025-06-18"));
    sim.end(again);
    let error = sim.read();
    assert!(
        error.contains("revision") && error.contains("\"id\":7"),
        "{error}"
    );
    assert!(sim.sent.is_empty());
    // The next call makes another attempt.
    sim.host(LIST);
    let again = sim.request(&["initialize"]);
    sim.json(again, "403 Forbidden", "");
    assert!(sim.read().contains("\"id\":8"));
    assert!(sim.sent.is_empty() && sim.conversation.next_due().is_none());
}

#[test]
fn a_call_that_the_host_cancels_is_neither_repeated_nor_answered() {
    let (mut sim, _) = Sim::begin("s1");
    sim.host(PAY);
    let pay = sim.request(&["pay"]);
    sim.host(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#);
    assert_eq!(sim.dropped, [pay]);
    sim.request(&["notifications/cancelled", "Mcp-Session-Id: s1"]);
    sim.cut(pay);
    assert!(sim.written.is_empty());
    // Since revision 2026-07-28, the end of the connection cancels it.
    let mut sim = Sim::new();
    sim.host(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#);
    let call = sim.request(&["Mcp-Name: t\r\n", "MCP-Protocol-Version: 2026-07-28\r\n"]);
    sim.host(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#);
    assert_eq!((&*sim.dropped, sim.sent.len()), (&[call][..], 0));
}

#[test]
fn a_refusal_says_what_the_user_can_do() {
    let mut sim = Sim::new();
    sim.host(INITIALIZE);
    let number = sim.request(&["initialize"]);
    sim.head(
        number,
        "401 Unauthorized",
        "WWW-Authenticate: Bearer error=\"x\", resource_metadata=\"https://h/.well-known/oauth-protected-resource\"\r\n",
    );
    sim.end(number);
    let answer = sim.read();
    assert!(
        answer.contains("401 Unauthorized")
            && answer.contains("https://h/.well-known/oauth-protected-resource"),
        "{answer}"
    );
    assert!(sim.failure.is_some());
    // An error of JSON-RPC goes to the host as it is, with its id.
    let mut sim = Sim::new();
    sim.host(r#"{"jsonrpc":"2.0","id":"a","method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#);
    let number = sim.request(&["Mcp-Method: server/discover"]);
    sim.json(
        number,
        "400 Bad Request",
        r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"no session"},"id":null}"#,
    );
    assert_eq!(
        sim.read(),
        r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32000,"message":"no session"}}"#
    );
    assert!(sim.failure.is_none());
}

#[test]
fn an_error_reaches_the_host_whatever_its_id_and_type() {
    let error = r#""error":{"code":-32600,"message":"bad tool"}"#;
    let answer = format!(r#"{{"jsonrpc":"2.0","id":7,{error}}}"#);
    let json = "Content-Type: application/json\r\n";
    // The bug: the host learned only that there was no answer.
    for (fields, members) in [
        (json, r#""id":null,"#),
        (json, ""),
        ("", r#""id":null,"#),
        ("", r#""id":7,"#),
    ] {
        let mut sim = Sim::new();
        sim.host(PAY);
        let call = sim.request(&["tools/call"]);
        sim.head(call, "200 OK", fields);
        sim.data(
            call,
            &format!("\u{feff}{{\"jsonrpc\":\"2.0\",{members}{error}}}"),
        );
        sim.end(call);
        let got = sim.read();
        assert!(got == answer && sim.written.is_empty(), "{got}");
    }
    for (body, says) in [
        ("bad session", "answered 400 Bad Request: bad session\""),
        ("<html>", "answered 400 Bad Request\""),
    ] {
        let mut sim = Sim::new();
        sim.host(PAY);
        let call = sim.request(&["tools/call"]);
        sim.head(call, "400 Bad Request", "");
        sim.data(call, body);
        sim.end(call);
        let got = sim.read();
        assert!(got.contains(says), "{got}");
    }
}

#[test]
fn a_redirect_on_the_same_server_is_followed() {
    let mut sim = Sim::new();
    sim.host(INITIALIZE);
    let number = sim.request(&["initialize"]);
    sim.head(number, "307 Temporary Redirect", "Location: /mcp/\r\n");
    sim.end(number);
    assert_eq!(sim.moved.as_deref(), Some("http://h/mcp/"));
    // One to another server could give the token away.
    let number = sim.request(&["initialize"]);
    sim.head(
        number,
        "308 Permanent Redirect",
        "Location: https://other/mcp\r\n",
    );
    sim.end(number);
    assert!(sim.read().contains("it redirects to https://other/mcp"));
    // A server that redirects to itself is not followed for ever.
    let mut sim = Sim::new();
    sim.host(LIST);
    for _ in 0..6 {
        let number = sim.request(&["tools/list"]);
        sim.head(number, "307 Temporary Redirect", "Location: /mcp\r\n");
        sim.end(number);
    }
    assert!(sim.sent.is_empty() && sim.read().contains("307"));
}

#[test]
fn the_stream_comes_back_after_its_last_event_and_less_often_after_each_failure() {
    let (mut sim, mut stream) = Sim::begin("s1");
    sim.events(
        stream,
        "id: 0-9\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"y\"}\n\n",
    );
    for _ in 0..10 {
        sim.cut(stream);
        assert!(sim.sent.is_empty());
        sim.wait();
        stream = sim.request(&["GET /mcp", "Last-Event-ID: 0-9\r\n"]);
    }
    assert!(
        sim.now.since(Time::default()) > Duration::from_secs(20),
        "{:?}",
        sim.now
    );
    // One that lasts is no failure.
    sim.now = sim.now + Duration::from_secs(60);
    let before = sim.now;
    sim.cut(stream);
    sim.wait();
    assert!(sim.now.since(before) <= Duration::from_secs(1));
    stream = sim.request(&["GET /mcp"]);
    // A server without a stream is not asked again.
    sim.head(stream, "405 Method Not Allowed", "");
    sim.end(stream);
    assert!(sim.conversation.next_due().is_none());
}

#[test]
fn answers_over_the_limit_and_foreign_answers_are_errors() {
    let mut sim = Sim::new();
    sim.host(LIST);
    let list = sim.request(&["tools/list"]);
    sim.head(list, "200 OK", "Content-Type: application/json\r\n");
    for _ in 0..17 {
        sim.data(list, &"x".repeat(64 << 10));
    }
    assert!(sim.read().contains("over the message limit"));
    assert_eq!(sim.dropped, [list]);
    sim.host(LIST);
    let list = sim.request(&["tools/list"]);
    sim.json(list, "200 OK", PAID);
    assert!(
        sim.read().contains("no answer"),
        "the answer has another id"
    );
    // Two requests with one id: the second one is refused.
    sim.host(PAY);
    sim.host(PAY);
    assert!(sim.read().contains("not answered yet"));
}

#[test]
fn a_host_of_the_newest_revision_does_not_see_tools_with_invalid_annotations() {
    let bad =
        r#"{"name":"bad","inputSchema":{"properties":{"n":{"type":"number","x-mcp-header":"N"}}}}"#;
    let good = r#"{"name":"good","inputSchema":{"properties":{"s":{"type":"string","x-mcp-header":"S"}}}}"#;
    let answer = |tools: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":8,"result":{{"tools":[{tools}],"ttlMs":0}}}}"#)
    };
    let all = answer(&format!("{bad},{good}"));
    let (mut sim, _) = Sim::begin("s1");
    sim.host(LIST);
    let list = sim.request(&["tools/list"]);
    sim.json(list, "200 OK", &all);
    assert_eq!(sim.read(), all, "earlier revisions have no such annotation");
    let mut sim = Sim::new();
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
    sim.host(&LIST.replace('}', &format!(r#","params":{{{meta}}}}}"#)));
    let list = sim.request(&["Mcp-Method: tools/list\r\n"]);
    sim.json(list, "200 OK", &all);
    assert_eq!(sim.read(), answer(good));
    let call = format!(r#"{{"name":"good","arguments":{{"s":"a"}},{meta}}}"#);
    sim.host(&format!(
        r#"{{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{call}}}"#
    ));
    sim.request(&["Mcp-Name: good\r\n", "Mcp-Param-S: a\r\n"]);
}
