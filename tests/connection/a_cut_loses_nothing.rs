//! Clients whose connection is cut come back and go on; the other ways to end a connection end the client.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::program::Program;
use crate::common::traces::{TraceFile, eventually};
use crate::common::{
    BINARY, CLOSE, PING, PONG, TEXT, TestServer, Told, Wire, call, patient, request,
};
use outrigger::{Cause, CloseCode, Config, ResumeConfig};
use rustix::process::Signal;
use serde_json::json;

/// A connection that can be resumed.
struct Resumable {
    wire: Wire,
    token: String,
    /// The number of messages that the server says it has taken.
    taken: u64,
}

/// Sends a handshake, and returns the connection and the head of the response.
fn ask(address: SocketAddr, target: &str, field: &str) -> (Wire, String) {
    let mut wire = Wire::open(address);
    let head = String::from_utf8(request(target)).expect("ASCII");
    wire.send(
        head.replacen("Upgrade:", &format!("{field}Upgrade:"), 1)
            .as_bytes(),
    );
    let head = wire.read_head();
    (wire, head)
}

impl Resumable {
    fn connect(address: SocketAddr, path: &str) -> Self {
        let (wire, head) = ask(address, &format!("{path}?resume=new"), "");
        Self::from_response(wire, &head)
    }

    fn from_response(wire: Wire, head: &str) -> Self {
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let field = head
            .lines()
            .find_map(|line| line.strip_prefix("Outrigger-Resume: "))
            .expect("a token");
        let (token, taken) = match field.split_once("; received=") {
            Some((token, taken)) => (token, taken.parse().expect("a number")),
            None => (field, 0),
        };
        Self {
            wire,
            token: token.to_owned(),
            taken,
        }
    }

    /// Comes back with the token in a header field.
    fn resume(address: SocketAddr, path: &str, token: &str, received: u64) -> Self {
        let field = format!("Outrigger-Resume: {token}; received={received}\r\n");
        let (wire, head) = ask(address, path, &field);
        Self::from_response(wire, &head)
    }

    fn expect_text(&mut self, text: &str) {
        let frame = self.wire.read_frame();
        assert_eq!((frame.opcode, &*frame.payload), (TEXT, text.as_bytes()));
    }
}

/// The status of a handshake that comes back.
fn status(address: SocketAddr, target: &str) -> u16 {
    let (_, head) = ask(address, target, "");
    head[9..12].parse().expect("a number")
}

fn echo() -> TestServer {
    TestServer::echo(patient())
}

#[test]
fn after_a_reset_both_sides_go_on_with_the_next_message() {
    let server = echo();
    let mut client = Resumable::connect(server.address, "/x");
    let id = server.connected();
    for text in ["1", "2", "3"] {
        client.wire.send_frame(TEXT, text.as_bytes());
    }
    client.expect_text("1");
    let token = client.token;
    client.wire.reset();

    let mut client = Resumable::resume(server.address, "/x", &token, 1);
    // What the server has not taken before the reset is sent again.
    for text in &["1", "2", "3"][client.taken as usize..] {
        client.wire.send_frame(TEXT, text.as_bytes());
    }
    client.expect_text("2");
    client.expect_text("3");
    client.wire.send_close(1000);
    assert_eq!(client.wire.read_close().0, 1000);
    let ending = server.disconnected(id);
    assert_eq!(
        (ending.cause, ending.code),
        (Cause::PeerClose, CloseCode(1000))
    );
    let (_, told) = server.stop();
    let ids = told
        .iter()
        .filter(|told| matches!(told, Told::Connected(..)));
    assert_eq!(ids.count(), 0, "the service has seen one client only");
}

#[test]
fn a_member_that_was_cut_gets_what_was_published_meanwhile() {
    let mut app = Program::start(&["app"]);
    let address = app.address_of_event();
    let mut client = Resumable::connect(address, "/");
    let id = app.event_of("connect")["client"].clone();
    app.command(json!({"cmd": "subscribe", "client": id, "topic": "all"}));
    app.command(json!({"cmd": "subscribe", "client": id, "topic": "price", "keep": "latest"}));
    // Long messages are kept once for all members, short ones are copied.
    let long = "x".repeat(1000);
    app.command(json!({"cmd": "publish", "topic": "all", "text": &long}));
    client.expect_text(&long);
    let token = client.token;
    client.wire.reset();
    eventually("the client is detached", || {
        app.command(json!({"cmd": "status"}));
        app.event_of("status")["detached"] == 1
    });
    for number in 0..5 {
        app.command(json!({"cmd": "publish", "topic": "all", "text": format!("{number} {long}")}));
        app.command(json!({"cmd": "publish", "topic": "all", "text": format!("{number}")}));
        app.command(json!({"cmd": "publish", "topic": "price", "text": format!("price {number}")}));
    }
    app.command(json!({"cmd": "topics", "client": id}));
    assert_eq!(app.event_of("topics")["count"], 2);
    // It has not received the first message.
    let mut client = Resumable::resume(address, "/", &token, 0);
    client.expect_text(&long);
    for number in 0..5 {
        client.expect_text(&format!("{number} {long}"));
        client.expect_text(&format!("{number}"));
    }
    client.expect_text("price 4");
    app.command(json!({"cmd": "publish", "topic": "price", "text": "price 5"}));
    client.expect_text("price 5");
}

#[test]
fn a_page_gets_its_token_in_a_notice() {
    let server = echo();
    let (mut wire, head) = ask(server.address, "/?resume=new&notice=1", "");
    let token = Resumable::from_response(Wire::open(server.address), &head).token;
    let notice = wire.read_frame();
    let expected = json!({"outrigger": {"resume": token, "received": 0}});
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&notice.payload).ok(),
        Some(expected)
    );
    wire.send_frame(TEXT, b"a");
    assert_eq!(wire.read_frame().payload, b"a");
    wire.end_output();

    // The notice is not counted, so the client has received one message.
    let (mut wire, head) = ask(
        server.address,
        &format!("/?resume={token}&received=1&notice=1"),
        "",
    );
    let client = Resumable::from_response(Wire::open(server.address), &head);
    let notice = wire.read_frame();
    let expected = json!({"outrigger": {"resume": client.token, "received": 1}});
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&notice.payload).ok(),
        Some(expected)
    );
    wire.send_frame(TEXT, b"b");
    assert_eq!(wire.read_frame().payload, b"b");
}

#[test]
fn a_page_asks_whether_its_connection_lives() {
    // The bug: a page cannot see PINGs, so it asked for a file on another connection, which said nothing about this one.
    const NAME: &str = "0123456789abcdef";
    let server = echo();
    let beat = format!(r#"{{"outrigger":{{"heartbeat":"{NAME}"}}}}"#);
    let answer = |received: u64| {
        format!(r#"{{"outrigger":{{"heartbeat":"{NAME}","received":{received}}}}}"#)
    };
    let expect = |wire: &mut Wire, text: &str| {
        let frame = wire.read_frame();
        let got = String::from_utf8(frame.payload).expect("UTF-8");
        assert_eq!((frame.opcode, &*got), (TEXT, text));
    };
    let notice = |wire: &mut Wire, head: &str| {
        let token = Resumable::from_response(Wire::open(server.address), head).token;
        let received = json!({"outrigger": {"resume": token, "received": 2}});
        let frame = wire.read_frame();
        let got: serde_json::Value = serde_json::from_slice(&frame.payload).expect("JSON");
        assert!(
            got == received || got["outrigger"]["received"] == 0,
            "{got}"
        );
        token
    };

    // A client that is not resumable. The first answer says that the server knows heartbeats.
    let (mut wire, _) = ask(server.address, &format!("/?heartbeat={NAME}"), "");
    expect(&mut wire, &answer(0));
    wire.send_frame(TEXT, b"a");
    expect(&mut wire, "a");
    for _ in 0..3 {
        wire.send_frame(TEXT, beat.as_bytes());
        expect(&mut wire, &answer(1));
    }
    // Any other text is a message.
    for other in [
        &*beat.replace(NAME, "0123456789abcdeX"),
        &beat.replace('{', " {"),
    ] {
        wire.send_frame(TEXT, other.as_bytes());
        expect(&mut wire, other);
    }
    wire.send_frame(BINARY, beat.as_bytes());
    assert_eq!(wire.read_frame().payload, beat.as_bytes());

    // A resumable client: a heartbeat is not counted, before and after a cut.
    let target = format!("/?resume=new&notice=1&heartbeat={NAME}");
    let (mut wire, head) = ask(server.address, &target, "");
    let token = notice(&mut wire, &head);
    expect(&mut wire, &answer(0));
    for text in ["1", "2"] {
        wire.send_frame(TEXT, text.as_bytes());
        expect(&mut wire, text);
        wire.send_frame(TEXT, beat.as_bytes());
        expect(&mut wire, &answer(text.parse().expect("a number")));
    }
    wire.reset();
    let target = format!("/?resume={token}&received=2&notice=1&heartbeat={NAME}");
    let (mut wire, head) = ask(server.address, &target, "");
    notice(&mut wire, &head);
    expect(&mut wire, &answer(2));
    wire.send_frame(TEXT, b"3");
    expect(&mut wire, "3");
    wire.send_frame(TEXT, beat.as_bytes());
    expect(&mut wire, &answer(3));

    // A client that asks for none, or with a parameter of its own, gets its message back.
    for target in ["/", "/?heartbeat=30"] {
        let (mut wire, _) = ask(server.address, target, "");
        wire.send_frame(TEXT, beat.as_bytes());
        expect(&mut wire, &beat);
    }
}

#[test]
fn a_page_in_the_foreground_is_idle_if_nobody_uses_it() {
    const NAME: &str = "0123456789abcdef";
    let mut config = patient();
    config.timeouts.idle = Some(Duration::from_millis(400));
    let server = TestServer::echo(config);
    let (mut wire, _) = ask(server.address, &format!("/?heartbeat={NAME}"), "");
    wire.read_frame();
    let beat = format!(r#"{{"outrigger":{{"heartbeat":"{NAME}"}}}}"#);
    // Each answer follows its heartbeat, until the connection is closed in spite of them.
    loop {
        wire.send_frame(TEXT, beat.as_bytes());
        let frame = wire.read_frame();
        if frame.opcode == CLOSE {
            assert_eq!(frame.payload[..2], 1001_u16.to_be_bytes());
            break;
        }
        assert_eq!(frame.opcode, TEXT);
    }
}

#[test]
fn a_live_connection_is_taken_over() {
    let server = echo();
    let mut first = Resumable::connect(server.address, "/");
    let mut second = Resumable::resume(server.address, "/", &first.token, 0);
    assert_eq!(first.wire.read_close(), (4001, "Taken over".to_owned()));
    first.wire.send_close(4001);
    first.wire.expect_end();
    // The response with the second token may be lost, so the first token is good until the client sends a message.
    let mut third = Resumable::resume(server.address, "/", &first.token, 0);
    assert_eq!(second.wire.read_close().0, 4001);
    third.wire.send_frame(BINARY, b"here");
    assert_eq!(third.wire.read_frame().payload, b"here");
    let refused = format!("/?resume={}&received=0", first.token);
    assert_eq!(status(server.address, &refused), 410);
    assert_eq!(server.client_count(), 1);
}

#[test]
fn what_cannot_be_resumed_is_refused() {
    let server = echo();
    let client = Resumable::connect(server.address, "/a");
    let token = &client.token;
    // The last digit differs.
    let (most, last) = token.split_at(token.len() - 1);
    let wrong = format!("{most}{}", if last == "0" { "1" } else { "0" });
    for (target, expected) in [
        (format!("/a?resume={token}"), 400),
        (format!("/a?resume={token}&received=x"), 400),
        (format!("/a?resume={token}&received=1"), 400),
        (format!("/b?resume={token}&received=0"), 410),
        (format!("/a?resume={wrong}&received=0"), 410),
        ("/a?resume=anything&received=0".to_owned(), 410),
    ] {
        assert_eq!(status(server.address, &target), expected, "{target}");
    }
    // A page asks with a plain request, because it cannot see the status of a handshake.
    for (token, expected) in [(&**token, 426), (&*wrong, 410)] {
        let target = format!("/a?resume={token}&received=0");
        let (status, error) = call(server.address, "GET", &target, None);
        assert_eq!(status, expected);
        assert_eq!(error["type"], "error");
    }
}

#[test]
fn leaving_is_not_a_cut() {
    for (code, stays) in [
        (Some(1000), false),
        (None, false),
        (Some(1001), true),
        (Some(4000), true),
    ] {
        let server = echo();
        let mut client = Resumable::connect(server.address, "/");
        let id = server.connected();
        match code {
            Some(code) => client.wire.send_close(code),
            None => client.wire.send_frame(CLOSE, b""),
        }
        assert_eq!(client.wire.read_frame().opcode, CLOSE);
        client.wire.expect_end();
        let target = format!("/?resume={}&received=0", client.token);
        assert_eq!(
            status(server.address, &target),
            if stays { 101 } else { 410 }
        );
        if !stays {
            assert_eq!(server.disconnected(id).cause, Cause::PeerClose);
        }
    }
}

#[test]
fn a_client_that_does_not_come_back_ends_after_the_grace_time() {
    let resume = ResumeConfig {
        grace: Duration::from_millis(50),
        ..ResumeConfig::default()
    };
    let mut config: Config = patient();
    config.resume = Some(resume);
    let server = TestServer::echo(config);
    let client = Resumable::connect(server.address, "/");
    let id = server.connected();
    client.wire.reset();
    assert_eq!(server.disconnected(id).cause, Cause::NotResumed);
    let target = format!("/?resume={}&received=0", client.token);
    assert_eq!(status(server.address, &target), 410);
}

#[test]
fn pings_carry_the_number_of_messages_and_pongs_confirm_them() {
    let mut config: Config = patient();
    config.timeouts.ping_interval = Some(Duration::from_millis(100));
    let server = TestServer::echo(config);
    let mut client = Resumable::connect(server.address, "/");
    let mut confirmed = 0;
    for round in 1..4 {
        client.wire.send_frame(TEXT, b"a");
        let mut received = false;
        // The PING may come before the echo.
        while !received || confirmed < round {
            let frame = client.wire.read_frame();
            if frame.opcode == PING {
                confirmed = String::from_utf8_lossy(&frame.payload)
                    .parse()
                    .expect("a number");
                client.wire.send_frame(PONG, &frame.payload);
            } else {
                received = true;
            }
        }
    }
    let kept = || {
        let status = call(server.address, "GET", "/status", None).1;
        status["clients"][0]["resume"]["kept_bytes"].as_u64()
    };
    // The second PONG that confirms more drops what the first has confirmed.
    eventually("two messages are dropped", || {
        kept().is_some_and(|kept| kept <= 18)
    });
    let target = format!("/?resume={}&received=0", client.token);
    assert_eq!(
        status(server.address, &target),
        410,
        "the first message is not kept"
    );
}

#[test]
fn a_terminal_tells_its_exit_to_a_client_that_was_away() {
    let go = TraceFile::new("cut-go");
    let script = format!(
        "echo begin; until [ -s {} ]; do sleep 0.05; done; echo end; exit 7",
        go.path()
    );
    let server = Program::start(&["terminal", "--no-auth", "--", "sh", "-c", &script]);
    let address = server.address();
    let mut client = Resumable::connect(address, "/terminal");
    let mut output = Vec::new();
    let mut received = 0;
    while !output.ends_with(b"begin\r\n") {
        let frame = client.wire.read_frame();
        if frame.opcode == BINARY {
            output.extend(frame.payload);
        }
        received += 1;
    }
    let token = client.token;
    client.wire.reset();
    eventually("the client is detached", || {
        call(address, "GET", "/status", None).1["detached"] == 1
    });
    std::fs::write(go.path(), "go").expect("a temporary file");
    // The rest of the output, and the exit.
    let sent = || call(address, "GET", "/status", None).1["clients"][0]["messages_out"].as_u64();
    eventually("the program has exited", || sent() >= Some(received + 2));

    let mut client = Resumable::resume(address, "/terminal", &token, received);
    let mut rest = Vec::new();
    let exit = loop {
        let frame = client.wire.read_frame();
        if frame.opcode == TEXT {
            break frame.payload;
        }
        rest.extend(frame.payload);
    };
    assert_eq!(rest, b"end\r\n");
    let exit: serde_json::Value = serde_json::from_slice(&exit).expect("JSON");
    assert_eq!(
        (&exit["type"], &exit["exitCode"]),
        (&json!("exit"), &json!(7))
    );
    assert_eq!(client.wire.read_close().0, 1000);
}

#[test]
fn a_route_and_a_server_can_offer_no_resuming() {
    let config = json!({"log": "off", "no-auth": true, "routes": {
        "/yes": {"echo": {}},
        "/no": {"echo": {"no-resume": true}},
    }});
    let file = TraceFile::new("cut-routes");
    std::fs::write(file.path(), config.to_string()).expect("a temporary file");
    let server = Program::start(&["serve", "--config", &file.path()]);
    let address = server.address();
    let token = Resumable::connect(address, "/yes").token;
    for (target, expected) in [("/no?resume=new", 101), ("/no?resume=mine", 101)] {
        let (_, head) = ask(address, target, "");
        assert!(head.starts_with(&format!("HTTP/1.1 {expected} ")), "{head}");
        assert!(!head.contains("Outrigger-Resume"), "{head}");
    }
    assert_eq!(
        status(address, &format!("/no?resume={token}&received=0")),
        410
    );
}

#[test]
fn a_stopping_server_does_not_wait_for_detached_clients() {
    let mut server = Program::start(&["echo", "--no-auth", "--drain-timeout", "1h"]);
    let address = server.address();
    Resumable::connect(address, "/").wire.reset();
    eventually("the client is detached", || {
        call(address, "GET", "/status", None).1["detached"] == 1
    });
    server.signal(Signal::TERM);
    assert!(server.wait().success());
}

/// The bug: another server answered 410, which is final, so that the client gave up a connection that was still there.
#[test]
fn a_token_at_the_wrong_node_can_be_tried_again_at_the_right_one() {
    let node = |name: &str| {
        let mut config = patient();
        config.node = Some(name.to_owned());
        TestServer::echo(config)
    };
    let (one, two) = (node("one"), node("two-2.x"));
    let client = Resumable::connect(two.address, "/");
    let token = client.token.clone();
    assert!(token.ends_with(".two-2.x"), "{token}");
    let target = format!("/?resume={token}&received=0");
    let (_, head) = ask(one.address, &target, "");
    assert!(head.starts_with("HTTP/1.1 421 "), "{head}");
    assert!(head.contains("\r\nOutrigger-Node: two-2.x\r\n"), "{head}");
    for (method, server) in [("GET", &one), ("GET", &echo())] {
        let (status, body) = call(server.address, method, &target, None);
        assert_eq!((status, &body["detail"]), (421, &json!("two-2.x")));
    }
    let again = Resumable::resume(two.address, "/", &token, 0);
    assert!(again.token.ends_with(".two-2.x"));
    // This node once had the client.
    let lost = token.replace("two-2.x", "one");
    assert_eq!(
        status(one.address, &format!("/?resume={lost}&received=0")),
        410
    );
    // This is no name of a node.
    let odd = token.replace("two-2.x", "a%0ab");
    assert_eq!(
        status(one.address, &format!("/?resume={odd}&received=0")),
        410
    );
}
