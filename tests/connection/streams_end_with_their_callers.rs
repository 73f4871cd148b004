//! The life of HTTP calls and of streams of events: how they end with their callers, and what slow callers cost.

use std::time::Duration;

use crate::common::traces::eventually;
use crate::common::{Frame, PING, PONG, TEXT, TestServer, Told, Wire, impatient, patient};
use outrigger::{ClientId, Config, Context, Message, Response, StatusCode};

/// A server whose calls are answered as a WebSocket client says.
struct Stage {
    /// Ends before the server, so that the server need not wait for its CLOSE.
    director: Wire,
    server: TestServer,
}

impl Stage {
    fn new(config: Config) -> Self {
        let server = TestServer::start(config, |ctx, director, message| {
            let Message::Text(text) = message else { return };
            let told = act(ctx, text);
            ctx.send(director, Message::Text(&told));
        });
        let director = Wire::connect(server.address, "/");
        server.connected();
        Self { server, director }
    }

    /// Makes a call with any method, and returns its connection and its id.
    fn call(&self, request: &str) -> (Wire, ClientId) {
        let mut wire = Wire::open(self.server.address);
        wire.send(request.as_bytes());
        (wire, self.called())
    }

    /// The caller of the next call.
    fn called(&self) -> ClientId {
        loop {
            if let Told::Called(caller, _) = self.server.told() {
                return caller;
            }
        }
    }

    /// Waits until the service has heard that a caller is gone. Skips what concerns others.
    fn expect_abandoned(&self, caller: ClientId, what: &str) {
        loop {
            if let Told::Abandoned(gone) = self.server.told() {
                return assert_eq!(gone, caller, "{what}");
            }
        }
    }

    /// Does something with a call. Returns whether it worked, and whether the caller is congested then.
    fn direct(&mut self, verb: &str, caller: ClientId, count: usize) -> (bool, bool) {
        let order = format!("{verb} {caller} {count}");
        self.director.send_frame(TEXT, order.as_bytes());
        loop {
            let Frame { opcode, payload } = self.director.read_frame();
            if opcode == TEXT {
                return (payload[0] == b'y', payload[1] == b'y');
            }
            assert_eq!(opcode, PING);
            self.director.send_frame(PONG, &payload);
        }
    }
}

/// Follows an order `VERB CALLER COUNT`.
fn act(ctx: &mut Context, order: &str) -> String {
    let mut words = order.split(' ');
    let mut next = || words.next().expect("three words");
    let (verb, caller, count) = (next(), next(), next());
    let caller: ClientId = caller.parse().expect("an id");
    let done = match verb {
        "stream" => {
            let event = event(count.parse().expect("a number"));
            ctx.stream(caller, event.as_bytes())
        }
        "end" => ctx.end_stream(caller),
        "answer" => ctx.try_respond(caller, &Response::json(StatusCode::OK, "true")),
        _ => Ok(()),
    };
    let sign = |yes: bool| if yes { 'y' } else { 'n' };
    [sign(done.is_ok()), sign(ctx.is_congested(caller))]
        .iter()
        .collect()
}

/// An event with `count` bytes of data.
fn event(count: usize) -> String {
    format!("data: {}\n\n", "x".repeat(count))
}

fn chunk(bytes: &str) -> Vec<u8> {
    format!("{:x}\r\n{bytes}\r\n", bytes.len()).into_bytes()
}

/// Ends a caller's side of a connection. Returns the connection if it is only half-closed.
type Ending = fn(Wire) -> Option<Wire>;

/// What the service streams when it is called.
const FIRST: &str = "data: first\n\n";

#[test]
fn however_a_caller_goes_its_call_is_abandoned_at_once() {
    // There are no time limits, so only the end of the connection can tell the server.
    let stage = Stage::new(patient());
    let endings: [(&str, Ending); 3] = [
        ("closed", |_| None),
        ("reset", |wire| {
            wire.reset();
            None
        }),
        ("half-closed", |wire| {
            wire.end_output();
            Some(wire)
        }),
    ];
    for path in ["/call/never", "/call/stream"] {
        for version in ["1.0", "1.1"] {
            for behind in ["", "\r\nGET"] {
                for (how, end) in endings {
                    let what = format!("{path} HTTP/{version} {how} {behind:?}");
                    let (mut wire, caller) = stage.call(&format!(
                        "POST {path} HTTP/{version}\r\nHost: localhost\r\n\
                         Content-Length: 2\r\n\r\nhi{behind}"
                    ));
                    if path == "/call/stream" {
                        wire.read_head();
                        let first = match version {
                            "1.1" => chunk(FIRST),
                            _ => FIRST.into(),
                        };
                        assert_eq!(wire.read_exact(first.len()), first, "{what}");
                    }
                    let half_closed = end(wire);
                    stage.expect_abandoned(caller, &what);
                    // A caller that still reads sees that its call has ended.
                    if let Some(mut wire) = half_closed {
                        wire.expect_end();
                    }
                }
            }
        }
    }
}

#[test]
fn a_congested_caller_that_is_killed_is_abandoned_at_once() {
    let mut stage = Stage::new(patient());
    let (wire, caller) = stage.call("GET /call/stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    while !stage.direct("stream", caller, 100_000).1 {}
    // With unread data in its socket, the system of a killed caller resets the connection.
    drop(wire);
    stage.expect_abandoned(caller, "congested");
    assert_eq!(stage.direct("stream", caller, 1), (false, false));
}

#[test]
fn a_congested_caller_that_half_closes_is_abandoned_before_its_output_is_written() {
    // The bug: the end of its input was noticed only when it had read all of its output.
    let mut stage = Stage::new(patient());
    for behind in ["", "\r\nGET"] {
        let get = "GET /call/stream HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let (mut wire, caller) = stage.call(&format!("{get}{behind}"));
        let mut expected = chunk(FIRST);
        loop {
            expected.extend(chunk(&event(100_000)));
            if stage.direct("stream", caller, 100_000).1 {
                break;
            }
        }
        wire.end_output();
        stage.expect_abandoned(caller, behind);
        assert_eq!(stage.direct("stream", caller, 1), (false, true));
        // What was queued is not lost.
        wire.read_head();
        assert!(wire.read_exact(expected.len()) == expected);
        wire.expect_end();
        assert_eq!(stage.server.handle.status().expect("it runs").calls, 0);
    }
}

#[test]
fn a_quiet_stream_carries_comments() {
    let mut config = patient();
    config.timeouts.ping_interval = Some(Duration::from_millis(50));
    config.timeouts.ping_timeout = None;
    let mut stage = Stage::new(config);
    for (version, comment) in [("1.0", b":\n\n".to_vec()), ("1.1", chunk(":\n\n"))] {
        let (mut wire, caller) = stage.call(&format!(
            "GET /call/stream HTTP/{version}\r\nHost: localhost\r\n\r\n"
        ));
        wire.read_head();
        let framed = |text: &str| match version {
            "1.1" => chunk(text),
            _ => text.into(),
        };
        let first = framed(FIRST);
        assert_eq!(wire.read_exact(first.len()), first);
        for _ in 0..2 {
            assert_eq!(wire.read_exact(comment.len()), comment);
        }
        // Comments come between events. There may be further ones before the next event.
        assert!(stage.direct("stream", caller, 3).0);
        let expected = framed(&event(3));
        loop {
            let start = wire.read_exact(comment.len());
            if start != comment {
                let rest = wire.read_exact(expected.len() - start.len());
                assert_eq!([start, rest].concat(), expected);
                break;
            }
        }
    }
}

#[test]
fn a_stream_that_is_not_read_is_abandoned_after_one_ping_window() {
    let mut config = impatient();
    config.timeouts.handshake = None;
    let mut stage = Stage::new(config);
    let (wire, caller) = stage.call("GET /call/stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    while !stage.direct("stream", caller, 100_000).1 {}
    stage.expect_abandoned(caller, "not read");
    drop(wire);
}

#[test]
fn a_slow_reader_is_cut_at_the_limit_and_others_are_served_meanwhile() {
    const LIMIT: usize = 1 << 20;
    const PIECE: usize = 50_000;
    let mut config = patient();
    config.max_outbound = LIMIT;
    let mut stage = Stage::new(config);
    let get = "GET /call/stream HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let (slow, slow_id) = stage.call(get);
    rustix::net::sockopt::set_socket_recv_buffer_size(&slow.stream, 65536).expect("a socket");
    let (mut other, other_id) = stage.call(get);
    other.read_head();
    other.read_exact(chunk(FIRST).len());
    let mut streamed = 0;
    // The limit is four times as high for a reader that may still be reading.
    while stage.direct("stream", slow_id, PIECE).0 {
        streamed += PIECE;
        // The rest is in the buffers of the two sockets.
        assert!(streamed < 4 * LIMIT + (16 << 20), "it is never cut");
        let expected = chunk(&event(10));
        assert_eq!(stage.direct("stream", other_id, 10), (true, false));
        assert_eq!(other.read_exact(expected.len()), expected);
    }
    assert!(streamed > LIMIT, "{streamed}");
    stage.expect_abandoned(slow_id, "slow");
    assert!(stage.direct("end", other_id, 0).0);
    assert_eq!(other.read_exact(5), b"0\r\n\r\n");
    drop(slow);
}

#[test]
fn a_congested_stream_is_reported_when_it_has_drained() {
    let mut stage = Stage::new(patient());
    let (mut wire, caller) = stage.call("GET /call/stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    wire.read_head();
    let mut expected = chunk(FIRST).len();
    while !stage.direct("stream", caller, 100_000).1 {
        expected += chunk(&event(100_000)).len();
    }
    expected += chunk(&event(100_000)).len();
    wire.read_exact(expected);
    loop {
        match stage.server.told() {
            Told::Drained(drained) => {
                assert_eq!(drained, caller);
                break;
            }
            Told::Message(..) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(stage.direct("look", caller, 0), (true, false));
    assert!(stage.direct("end", caller, 0).0);
    assert_eq!(wire.read_exact(5), b"0\r\n\r\n");
}

#[test]
fn requests_behind_a_stream_are_answered_in_order_when_it_ends() {
    let mut stage = Stage::new(patient());
    let delete = "DELETE /call/accepted HTTP/1.1\r\nHost: localhost\r\n";
    let behind = [
        // Without a body, with one, and with one in chunks.
        format!("{delete}\r\n"),
        format!("{delete}Content-Length: 1\r\n\r\n2"),
        format!("{delete}Transfer-Encoding: chunked\r\n\r\n1\r\n3\r\n0\r\n\r\n"),
        "POST /call HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
            .to_owned(),
    ];
    let get = "GET /call/stream HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let (mut wire, caller) = stage.call(&format!("{get}{}", behind.concat()));
    wire.read_head();
    assert!(stage.direct("stream", caller, 5).0);
    let expected = [chunk(FIRST), chunk(&event(5))].concat();
    assert_eq!(wire.read_exact(expected.len()), expected);
    assert!(stage.direct("end", caller, 0).0);
    assert_eq!(wire.read_exact(5), b"0\r\n\r\n");
    for text in ["", "2", "3"] {
        let head = wire.read_head();
        assert!(head.starts_with("HTTP/1.1 202 "), "{head}");
        assert!(head.contains(&format!("\r\nX-Text: {text}\r\n")), "{head}");
        stage.called();
    }
    assert_eq!(wire.read_head(), "HTTP/1.1 100 Continue\r\n\r\n");
    wire.send(b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: t\r\n\r\n");
    assert_eq!(wire.read_response().1["body"], "hello");
    stage.called();
    // The stream ends the connection of HTTP/1.0.
    let (mut wire, caller) = stage.call("GET /call/stream HTTP/1.0\r\nHost: localhost\r\n\r\n");
    let head = wire.read_head();
    assert!(!head.contains("Transfer-Encoding"), "{head}");
    assert_eq!(wire.read_exact(FIRST.len()), FIRST.as_bytes());
    assert!(stage.direct("end", caller, 0).0);
    wire.expect_end();
}

#[test]
fn a_caller_that_is_gone_costs_nothing() {
    let stage = Stage::new(patient());
    let status = || stage.server.handle.status().expect("it runs");
    let before = status().connections;
    let callers: Vec<_> = (0..50)
        .map(|_| stage.call("GET /call/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        .collect();
    assert_eq!((status().connections, status().calls), (before + 50, 50));
    drop(callers);
    eventually("all are gone", || {
        (status().connections, status().calls) == (before, 0)
    });
}
