//! A service can open connections to other servers. A connection that is cut comes back, and no message is lost or repeated.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use crate::common::cutter::Cutter;
use crate::common::{PATIENCE, TestServer, patient};
use outrigger::protocol::client::ResponseHead;
use outrigger::protocol::handshake::accept_key;
use outrigger::{
    Cause, ClientId, CloseCode, CloseReason, Config, Connect, ConnectError, Context, Handle,
    Listen, Message, Outgoing, Proxies, ResumeConfig, Retry, Server, Service,
};

/// What the service was told.
#[derive(Debug)]
enum Heard {
    Opened(ClientId, bool),
    Failed(String, Option<u16>),
    Retrying,
    Cut,
    Resumed,
    Last,
    Disconnected(ClientId, CloseReason),
}

/// Sends numbers to an echo server, at most `ahead` more than have come back.
struct Counter {
    connect: Connect,
    connections: usize,
    heard: Sender<Heard>,
    /// The number of messages to send, how many were sent, and how many have come back.
    total: u64,
    sent: u64,
    received: u64,
    ahead: u64,
    closes_when_cut: bool,
    closes_at_once: bool,
}

/// The text of message `number`. Some are long.
fn text(number: u64) -> String {
    let filler = match number % 50 {
        0 => 20_000,
        7 => 700,
        _ => 5,
    };
    format!("{number}:{}", "x".repeat(filler))
}

impl Counter {
    /// Opens one connection and sends nothing.
    fn new(connect: Connect, heard: Sender<Heard>) -> Self {
        Self {
            connect,
            connections: 1,
            heard,
            total: 0,
            sent: 0,
            received: 0,
            ahead: 40,
            closes_when_cut: false,
            closes_at_once: false,
        }
    }

    fn tell(&self, heard: Heard) {
        let _ = self.heard.send(heard);
    }

    fn send_more(&mut self, ctx: &mut Context, client: ClientId) {
        while self.sent < self.total && self.sent < self.received + self.ahead {
            ctx.try_send(client, Message::Text(&text(self.sent)))
                .expect("it may be cut, but not closed");
            self.sent += 1;
        }
    }
}

impl Service for Counter {
    fn started(&mut self, ctx: &mut Context) {
        for _ in 0..self.connections {
            ctx.connect(self.connect.clone()).expect("valid");
        }
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let Message::Text(got) = message else {
            panic!("the server echoes text");
        };
        assert_eq!(
            got,
            text(self.received),
            "each message comes once and in order"
        );
        self.received += 1;
        if self.received == self.total {
            self.tell(Heard::Last);
        }
        self.send_more(ctx, client);
    }

    fn disconnected(&mut self, _: &mut Context, client: ClientId, reason: &CloseReason) {
        self.tell(Heard::Disconnected(client, reason.clone()));
    }

    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        Some(self)
    }
}

impl Outgoing for Counter {
    fn connect_opened(&mut self, ctx: &mut Context, client: ClientId, response: &ResponseHead<'_>) {
        assert_eq!(response.status(), 101);
        self.tell(Heard::Opened(client, ctx.is_resumable(client)));
        self.send_more(ctx, client);
        if self.closes_at_once {
            ctx.send(client, Message::Text("last"));
            ctx.close(client, CloseCode::NORMAL, "done");
        }
    }

    fn connect_failed(&mut self, _: &mut Context, _: ClientId, error: &ConnectError) {
        self.tell(Heard::Failed(error.to_string(), error.status()));
    }

    fn connect_retrying(
        &mut self,
        _: &mut Context,
        _: ClientId,
        error: &ConnectError,
        _: Duration,
    ) {
        assert!(error.is_retryable());
        self.tell(Heard::Retrying);
    }

    fn cut(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        self.tell(Heard::Cut);
        if self.closes_when_cut {
            ctx.send(client, Message::Text("last"));
            ctx.close(client, CloseCode::NORMAL, "done");
        }
    }

    fn resumed(&mut self, _: &mut Context, _: ClientId) {
        self.tell(Heard::Resumed);
    }
}

/// A client in its own thread.
struct Caller {
    handle: Handle<Counter>,
    heard: Receiver<Heard>,
}

impl Caller {
    fn start(connect: Connect, total: u64, closes_when_cut: bool) -> Self {
        Self::run(connect, 1, total, closes_when_cut)
    }

    /// A client with several connections, which sends nothing.
    fn start_many(connect: Connect, connections: usize) -> Self {
        Self::run(connect, connections, 0, false)
    }

    /// A client that sends a message and CLOSE as soon as its connection is open.
    fn start_closing(connect: Connect) -> Self {
        Self::serve(|heard| Counter {
            closes_at_once: true,
            ..Counter::new(connect, heard)
        })
    }

    fn run(connect: Connect, connections: usize, total: u64, closes_when_cut: bool) -> Self {
        Self::serve(|heard| Counter {
            connections,
            total,
            closes_when_cut,
            ..Counter::new(connect, heard)
        })
    }

    fn serve(service: impl FnOnce(Sender<Heard>) -> Counter) -> Self {
        let (heard, told) = mpsc::channel();
        let service = service(heard);
        let mut config = Config::default();
        config.resume = Some(ResumeConfig::default());
        let server = Server::without_listeners(config, service).expect("an epoll instance");
        let handle = server.handle();
        std::thread::spawn(move || server.run().map(drop));
        Self {
            handle,
            heard: told,
        }
    }

    fn next(&self) -> Heard {
        self.heard.recv_timeout(PATIENCE).expect("an event")
    }

    /// The next event that is not an attempt.
    fn outcome(&self) -> Heard {
        loop {
            match self.next() {
                Heard::Retrying => {}
                other => return other,
            }
        }
    }

    fn failed(&self) -> (String, Option<u16>) {
        match self.outcome() {
            Heard::Failed(error, status) => (error, status),
            other => panic!("{other:?}"),
        }
    }

    /// Stops the loop, and expects no further event.
    fn stop_and_expect_silence(self) {
        self.handle.stop().expect("the loop runs");
        match self.heard.recv_timeout(PATIENCE) {
            Err(mpsc::RecvTimeoutError::Disconnected) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn to(address: SocketAddr) -> Connect {
    to_path(address, "/x")
}

fn to_path(address: SocketAddr, path: &str) -> Connect {
    Connect::new(format!("ws://{address}{path}").parse().expect("a URL"))
}

fn resumable() -> Config {
    let mut config = patient();
    config.resume = Some(ResumeConfig::default());
    config
}

#[test]
fn a_server_that_has_forgotten_the_client_ends_the_connection_for_good() {
    let server = TestServer::echo(resumable());
    let proxy = Cutter::start(Some(server.address), Vec::new());
    let caller = Caller::start(to(proxy.address).resumable(), 0, false);
    let Heard::Opened(id, true) = caller.outcome() else {
        panic!("it is resumable");
    };
    let address = server.address;
    server.stop();
    // The server has sent CLOSE 1001.
    match caller.outcome() {
        Heard::Disconnected(gone, reason) => {
            assert_eq!(
                (gone, reason.cause, reason.code),
                (id, Cause::PeerClose, CloseCode::GOING_AWAY)
            );
        }
        other => panic!("{other:?}"),
    }
    let (error, _) = Caller::start(to(address), 0, false).failed();
    assert!(error.contains("refused"), "{error}");
    caller.stop_and_expect_silence();
}

#[test]
fn a_server_that_does_not_know_the_token_is_reported_as_such() {
    let server = TestServer::echo(resumable());
    let mut other = patient();
    other.resume = Some(ResumeConfig::default());
    let other = TestServer::echo(other);
    // The proxy leads to another server after the cut.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let targets = [server.address, other.address];
    std::thread::spawn(move || {
        for (target, client) in targets.iter().zip(listener.incoming()) {
            let (mut client, mut server) = (
                client.expect("a client"),
                std::net::TcpStream::connect(target).expect("a server"),
            );
            let (mut from, mut to) = (
                client.try_clone().expect("a clone"),
                server.try_clone().expect("a clone"),
            );
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            // The first connection is cut behind the response to its first message.
            let mut bytes = [0; 4096];
            let mut count = 0;
            while let Ok(read) = std::io::Read::read(&mut server, &mut bytes) {
                count += read;
                if read == 0
                    || std::io::Write::write_all(&mut client, &bytes[..read]).is_err()
                    || (count > 700 && *target == targets[0])
                {
                    break;
                }
            }
            let _ = client.shutdown(std::net::Shutdown::Both);
            let _ = server.shutdown(std::net::Shutdown::Both);
        }
    });
    let caller = Caller::start(to(address).resumable(), 500, false);
    let Heard::Opened(id, true) = caller.outcome() else {
        panic!("it is resumable");
    };
    assert!(matches!(caller.outcome(), Heard::Cut));
    // The bug: `connect_failed` reported it, too, although the connection was open.
    match caller.outcome() {
        Heard::Disconnected(gone, reason) => {
            assert_eq!((gone, reason.cause), (id, Cause::NotResumed));
            assert!(reason.reason.contains("no longer knows"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    caller.stop_and_expect_silence();
}

#[test]
fn a_refusal_is_reported_once_with_the_message_of_the_server() {
    let server = TestServer::echo(patient());
    let caller = Caller::start(
        to_path(server.address, "/nothing").with_retry(Retry::default()),
        0,
        false,
    );
    let (error, status) = caller.failed();
    assert_eq!(status, Some(404));
    assert!(
        error.starts_with("the server answered 404 Not Found: "),
        "{error}"
    );
    caller.stop_and_expect_silence();
}

#[test]
fn attempts_go_on_until_the_server_is_there() {
    let socket = std::env::temp_dir().join(format!("outrigger-late-{}.sock", std::process::id()));
    let url = format!("ws+unix:{}:/x", socket.display());
    let connect = Connect::new(url.parse().expect("a URL")).with_retry(Retry::default());
    let caller = Caller::start(connect, 3, false);
    assert!(matches!(caller.next(), Heard::Retrying));
    let mut config = patient();
    config.listen = vec![Listen::unix(&socket)];
    struct Echo;
    impl Service for Echo {
        fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
            ctx.send(client, message);
        }
    }
    let server = Server::bind(config, Echo).expect("the path is free");
    let handle = server.handle();
    let thread = std::thread::spawn(move || server.run().map(drop));
    assert!(matches!(caller.outcome(), Heard::Opened(_, false)));
    assert!(matches!(caller.outcome(), Heard::Last));
    handle.stop().expect("the server runs");
    thread.join().expect("no panic").expect("the loop runs");
    assert!(matches!(caller.outcome(), Heard::Disconnected(..)));
}

#[test]
fn a_server_that_never_answers_is_given_up_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let connect = to(address).with_timeout(Duration::from_millis(50));
    let retry = Retry::default().with_give_up(Duration::from_millis(200));
    let caller = Caller::start(connect.with_retry(retry), 0, false);
    assert!(matches!(caller.next(), Heard::Retrying));
    assert_eq!(
        caller.failed().0,
        "the connection was not established in time"
    );
    caller.stop_and_expect_silence();
}

#[test]
fn a_name_that_cannot_be_resolved_is_an_error() {
    let caller = Caller::start(
        Connect::new("ws://name.invalid/".parse().expect("a URL")),
        0,
        false,
    );
    let (error, _) = caller.failed();
    assert!(
        error.starts_with("cannot resolve 'name.invalid': "),
        "{error}"
    );
    caller.stop_and_expect_silence();
}

#[test]
fn localhost_is_resolved_and_each_of_its_addresses_is_tried() {
    let server = TestServer::echo(patient());
    let url = format!("ws://localhost:{}/x", server.address.port());
    let caller = Caller::start(Connect::new(url.parse().expect("a URL")), 5, false);
    assert!(matches!(caller.outcome(), Heard::Opened(..)));
    assert!(matches!(caller.outcome(), Heard::Last));
}

#[test]
fn what_was_sent_before_a_close_arrives_although_the_connection_is_cut() {
    let (seen, messages) = mpsc::channel();
    let server = TestServer::start(resumable(), move |_, _, message| {
        let _ = seen.send(message.as_bytes().to_vec());
    });
    let proxy = Cutter::start(Some(server.address), vec![3000]);
    let caller = Caller::start(
        to(proxy.address).resumable().with_retry(Retry::default()),
        200,
        true,
    );
    loop {
        match caller.next() {
            Heard::Disconnected(_, reason) => {
                assert_eq!(
                    (reason.cause, reason.code),
                    (Cause::Service, CloseCode::NORMAL)
                );
                break;
            }
            Heard::Failed(error, _) => panic!("{error}"),
            _ => {}
        }
    }
    let client = server.connected();
    assert_eq!(server.disconnected(client).code, CloseCode::NORMAL);
    let got: Vec<Vec<u8>> = messages.try_iter().collect();
    assert_eq!(got.last().map(Vec::as_slice), Some(&b"last"[..]));
    for (number, got) in got[..got.len() - 1].iter().enumerate() {
        assert_eq!(got, text(number as u64).as_bytes());
    }
}

#[test]
fn a_close_that_cannot_be_delivered_is_no_success() {
    let server = TestServer::echo(resumable());
    let proxy = Cutter::start(Some(server.address), Vec::new());
    let retry = Retry::default().with_give_up(Duration::from_millis(200));
    let connect = to(proxy.address).resumable().with_retry(retry);
    let caller = Caller::start(connect, 0, true);
    let Heard::Opened(id, true) = caller.outcome() else {
        panic!("it is resumable");
    };
    proxy.set_target(None);
    proxy.cut();
    assert!(matches!(caller.outcome(), Heard::Cut));
    // The bug: `connect_failed` had the error, and the reason here was the CLOSE that waited.
    match caller.outcome() {
        Heard::Disconnected(gone, reason) => assert_eq!(
            (gone, reason.cause, reason.code),
            (id, Cause::Unreachable, CloseCode::ABNORMAL)
        ),
        other => panic!("{other:?}"),
    }
    caller.stop_and_expect_silence();
}

#[test]
fn stopping_cancels_an_attempt_and_reports_it_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let caller = Caller::start(to(address).with_retry(Retry::default()), 0, false);
    let _attempt = listener.accept().expect("an attempt");
    caller.handle.stop().expect("the loop runs");
    assert_eq!(caller.failed().0, "the connection was cancelled");
    assert!(caller.heard.recv_timeout(PATIENCE).is_err());
}

/// A server that answers the first request with these bytes and then ends the connection.
fn answering(response: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        let mut head = [0; 4096];
        let _ = std::io::Read::read(&mut client, &mut head);
        let _ = std::io::Write::write_all(&mut client, response);
    });
    address
}

#[test]
fn what_a_proxy_sends_before_the_server_was_asked_is_not_taken_for_its_answer() {
    // The bug: the rest of the proxy's segment was read as the answer of the server, even of one with TLS.
    let response = b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n";
    let proxy = answering(response);
    let proxies = Proxies::through(&format!("http://{proxy}")).expect("a proxy");
    let target = "ws://server.invalid/".parse().expect("a URL");
    let caller = Caller::start(Connect::new(target).with_proxies(proxies), 0, false);
    let why = "the proxy sent data before the server was asked".to_owned();
    assert_eq!(caller.failed(), (why, None));
    caller.stop_and_expect_silence();
}

#[test]
fn nothing_behind_a_refusal_is_read() {
    // The bug: a second response in the same segment opened the connection after it had failed.
    let response = b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\nHTTP/1.1 101 Yes\r\n\r\n";
    let caller = Caller::start(to(answering(response)), 0, false);
    assert_eq!(caller.failed().1, Some(404));
    caller.stop_and_expect_silence();
}

#[test]
fn more_names_than_threads_are_resolved() {
    // The bug: the ninth name failed at once.
    let server = TestServer::echo(patient());
    let url = format!("ws://localhost:{}/x", server.address.port());
    let callers: Vec<Caller> = (0..3)
        .map(|_| Caller::start_many(Connect::new(url.parse().expect("a URL")), 20))
        .collect();
    for caller in &callers {
        for _ in 0..20 {
            assert!(matches!(caller.outcome(), Heard::Opened(..)));
        }
    }
}

#[test]
fn a_server_that_has_taken_the_close_has_not_lost_the_client() {
    // The bug: if the answer to CLOSE was cut, the client came back, and the 410 counted as a loss.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let read = |client: &mut std::net::TcpStream| {
            let mut bytes = [0; 4096];
            let count = std::io::Read::read(client, &mut bytes).expect("a client");
            bytes[..count].to_vec()
        };
        let (mut client, _) = listener.accept().expect("a client");
        let head = String::from_utf8(read(&mut client)).expect("a request");
        let key = head
            .lines()
            .find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
        let accept = accept_key(key.expect("a key").as_bytes());
        let accept = String::from_utf8_lossy(&accept);
        let response = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Accept: {accept}\r\nOutrigger-Resume: c1-secret\r\n\r\n"
        );
        std::io::Write::write_all(&mut client, response.as_bytes()).expect("a client");
        // The message and the CLOSE, which have 10 and 12 bytes.
        let mut count = 0;
        while count < 22 {
            count += read(&mut client).len();
        }
        drop(client);
        let (mut client, _) = listener.accept().expect("the client comes back");
        assert!(
            String::from_utf8(read(&mut client))
                .expect("a request")
                .contains("c1-secret; received=0")
        );
        let gone = b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n";
        std::io::Write::write_all(&mut client, gone).expect("a client");
    });
    let caller = Caller::start_closing(to(address).resumable());
    assert!(matches!(caller.outcome(), Heard::Opened(_, true)));
    assert!(matches!(caller.outcome(), Heard::Cut));
    match caller.outcome() {
        Heard::Disconnected(_, reason) => assert_eq!(reason.cause, Cause::Service),
        other => panic!("{other:?}"),
    }
    caller.stop_and_expect_silence();
}

/// The bug: a client behind a load balancer came back to another server, because it did not return the cookie.
#[test]
fn cookies_of_the_server_are_returned_when_a_client_comes_back() {
    let mut config = resumable();
    config.affinity_cookie = Some("node=one".to_owned());
    let server = TestServer::echo(config);
    // A proxy that keeps the requests, and cuts the first connection behind the response to its first message.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let target = server.address;
    let (heads, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let mut client = client.expect("a client");
            let mut server = std::net::TcpStream::connect(target).expect("a server");
            let mut head = vec![0; 4096];
            let read = std::io::Read::read(&mut client, &mut head).expect("a request");
            head.truncate(read);
            std::io::Write::write_all(&mut server, &head).expect("the server reads");
            let _ = heads.send(String::from_utf8_lossy(&head).into_owned());
            let (mut from, mut to) = (
                client.try_clone().expect("a clone"),
                server.try_clone().expect("a clone"),
            );
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            let mut bytes = [0; 4096];
            let mut count = 0;
            while let Ok(read) = std::io::Read::read(&mut server, &mut bytes)
                && read > 0
                && std::io::Write::write_all(&mut client, &bytes[..read]).is_ok()
            {
                count += read;
                if number == 0 && count > 700 {
                    break;
                }
            }
            let _ = client.shutdown(std::net::Shutdown::Both);
            let _ = server.shutdown(std::net::Shutdown::Both);
        }
    });
    let connect = to(address).resumable().with_cookies();
    let connect = connect.with_field("Cookie", "own=1").expect("a field");
    let caller = Caller::start(connect, 500, false);
    assert!(matches!(caller.outcome(), Heard::Opened(_, true)));
    assert!(matches!(caller.outcome(), Heard::Cut));
    let cookie = || {
        let head = requests.recv_timeout(PATIENCE).expect("a request");
        let line = head.lines().find_map(|line| line.strip_prefix("Cookie: "));
        line.map(str::to_owned)
    };
    assert_eq!(cookie().as_deref(), Some("own=1"));
    assert_eq!(cookie().as_deref(), Some("own=1; node=one"));
}
