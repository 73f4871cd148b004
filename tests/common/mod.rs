//! Helpers for tests: a server that records the calls to its service, and a client that sends and reads exact bytes.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part"
)]

pub mod agent;
pub mod cutter;
pub mod guarded;
pub mod program;
pub mod terminal;
pub mod traces;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use outrigger::{
    ClientId, CloseReason, Config, Context, Ended, Handle, Message, OwnedMessage, Rejection,
    Request, Response, Route, Server, Service, StatusCode, TimerId,
};

/// The deadline of every wait. Only a failing test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The time between two checks of a condition that has no event.
pub const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A call to the service.
#[derive(Debug)]
pub enum Told {
    Connected(ClientId, String),
    Message(ClientId, OwnedMessage),
    Drained(ClientId),
    Disconnected(ClientId, CloseReason),
    Called(ClientId, String),
    Abandoned(ClientId),
}

type OnMessage = Box<dyn FnMut(&mut Context, ClientId, Message<'_>) + Send>;

/// A service that records each call and passes messages to the test.
pub struct Witness {
    told: Sender<Told>,
    /// The caller that gets its answer when the server stops.
    pub waiting: Option<ClientId>,
    /// Whether a timer has seen that the server stops.
    is_stopping: bool,
    on_message: OnMessage,
}

impl Service for Witness {
    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        match request.path() {
            "/nothing" => Err(Rejection::not_found()),
            path if path.starts_with("/call") => Ok(Route::call()),
            _ => Ok(Route::web_socket()),
        }
    }

    fn connected(&mut self, _: &mut Context, client: ClientId, request: &Request<'_>) {
        let _ = self
            .told
            .send(Told::Connected(client, request.path().to_owned()));
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let owned = match message {
            Message::Text(text) => OwnedMessage::Text(text.to_owned()),
            Message::Binary(bytes) => OwnedMessage::Binary(bytes.to_vec()),
        };
        let _ = self.told.send(Told::Message(client, owned));
        (self.on_message)(ctx, client, message);
    }

    /// Answers `/call` with its body, `/call/accepted` with 202 and the body in a field, `/call/stream` with a stream that does
    /// not end, `/call/wait` when the server stops, and `/call/never` not at all.
    fn call(&mut self, ctx: &mut Context, caller: ClientId, request: &Request<'_>, body: &[u8]) {
        let told = format!("{} {}", request.method(), request.path());
        let _ = self.told.send(Told::Called(caller, told));
        match request.path() {
            "/call/never" => {}
            "/call/accepted" => {
                let text = String::from_utf8_lossy(body).into_owned();
                let answer = Response::new(StatusCode::ACCEPTED, "", b"".as_slice());
                ctx.respond(caller, &answer.field("X-Text", text));
            }
            "/call/wait" => {
                self.waiting = Some(caller);
                ctx.set_timer(Duration::from_millis(10));
            }
            "/call/stream" => {
                ctx.begin_stream(caller, &[]).expect("it was just called");
                let streamed = ctx.stream(caller, b"data: first\n\n");
                assert_eq!(streamed.is_ok(), request.method() != "HEAD");
            }
            _ => {
                let text = String::from_utf8_lossy(body);
                let answer = serde_json::json!({"body": text});
                let answer = Response::json(StatusCode::OK, answer.to_string());
                ctx.try_respond(caller, &answer)
                    .expect("it was just called");
                assert!(ctx.try_respond(caller, &answer).is_err(), "once");
            }
        }
    }

    fn timer(&mut self, ctx: &mut Context, _: TimerId) {
        // In the turn in which the stop is requested, draining has not begun.
        if !ctx.is_stopping() || !std::mem::replace(&mut self.is_stopping, true) {
            ctx.set_timer(Duration::from_millis(10));
        } else if let Some(caller) = self.waiting.take() {
            let answer = Response::json(
                StatusCode::OK,
                serde_json::json!({"body": "stopping"}).to_string(),
            );
            ctx.try_respond(caller, &answer).expect("it waits");
        }
    }

    fn abandoned(&mut self, ctx: &mut Context, caller: ClientId) {
        assert!(ctx.stream(caller, b"late").is_err(), "{caller} is gone");
        let _ = self.told.send(Told::Abandoned(caller));
    }

    fn drained(&mut self, _: &mut Context, client: ClientId) {
        let _ = self.told.send(Told::Drained(client));
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, ending: &CloseReason) {
        assert!(
            ctx.try_send(client, Message::Text("late")).is_err(),
            "{client} is gone"
        );
        let _ = self.told.send(Told::Disconnected(client, ending.clone()));
    }
}

/// A server on a free port, in its own thread. Dropping it stops the server.
pub struct TestServer {
    pub address: SocketAddr,
    pub handle: Handle<Witness>,
    told: Receiver<Told>,
    ended: Option<Receiver<Ended>>,
}

impl TestServer {
    /// Starts a server that echoes.
    pub fn echo(config: Config) -> Self {
        Self::start(config, |ctx, client, message| {
            ctx.send(client, message);
        })
    }

    /// Starts a server that calls `on_message` for each message.
    pub fn start(
        config: Config,
        on_message: impl FnMut(&mut Context, ClientId, Message<'_>) + Send + 'static,
    ) -> Self {
        let mut config = config;
        config.listen = vec![([127, 0, 0, 1], 0).into()];
        let (sender, told) = mpsc::channel();
        let (ready, started) = mpsc::channel();
        let on_message = Box::new(on_message);
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let server = Server::bind(
                config,
                Witness {
                    told: sender,
                    waiting: None,
                    is_stopping: false,
                    on_message,
                },
            )
            .expect("a free port");
            ready
                .send((
                    server.local_addresses()[0].tcp().expect("TCP"),
                    server.handle(),
                ))
                .expect("the test waits");
            let _ = end.send(server.run().expect("the loop runs").1);
        });
        let (address, handle) = started.recv_timeout(PATIENCE).expect("the server starts");
        Self {
            address,
            handle,
            told,
            ended: Some(ended),
        }
    }

    /// The next call to the service.
    pub fn told(&self) -> Told {
        self.told
            .recv_timeout(PATIENCE)
            .expect("a call to the service")
    }

    /// Waits for `connected`. Skips messages.
    pub fn connected(&self) -> ClientId {
        loop {
            match self.told() {
                Told::Connected(client, _) => return client,
                Told::Disconnected(client, ending) => panic!("{client} disconnected: {ending:?}"),
                _ => {}
            }
        }
    }

    /// Waits for `disconnected`, which must be for this client. Skips other calls.
    pub fn disconnected(&self, client: ClientId) -> CloseReason {
        loop {
            if let Told::Disconnected(gone, ending) = self.told() {
                assert_eq!(gone, client, "the disconnected client");
                return ending;
            }
        }
    }

    /// The number of clients in the server's status.
    pub fn client_count(&self) -> usize {
        self.handle
            .status()
            .expect("the server runs")
            .client_count()
    }

    /// Stops the server and returns the remaining calls to the service.
    pub fn stop(mut self) -> (Ended, Vec<Told>) {
        self.handle.stop().expect("the server runs");
        let ended = self
            .ended
            .take()
            .expect("stopped once")
            .recv_timeout(PATIENCE)
            .expect("the loop ends in time and without a panic");
        (ended, self.told.try_iter().collect())
    }

    /// Stops the server, and checks that no client is left and none was reported twice.
    pub fn stop_and_expect_silence(self) {
        assert_eq!(self.client_count(), 0, "the registry is empty");
        let (_, told) = self.stop();
        assert!(
            told.iter()
                .all(|told| matches!(told, Told::Message(..) | Told::Drained(_))),
            "each client is reported once: {told:?}"
        );
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            let _ = self.handle.stop();
            let _ = ended.recv_timeout(PATIENCE);
        }
    }
}

/// A frame from the server.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub opcode: u8,
    pub payload: Vec<u8>,
}

pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;

/// A client that sends and reads exact bytes.
#[derive(Debug)]
pub struct Wire {
    pub stream: TcpStream,
}

impl Wire {
    /// A TCP connection without a request.
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout can be set");
        stream
            .set_write_timeout(Some(PATIENCE))
            .expect("a timeout can be set");
        stream.set_nodelay(true).expect("TCP_NODELAY can be set");
        Self { stream }
    }

    /// A WebSocket connection.
    pub fn connect(address: SocketAddr, path: &str) -> Self {
        let mut wire = Self::open(address);
        wire.send(&request(path));
        let head = wire.read_head();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        wire
    }

    /// A WebSocket connection to a terminal or a process, after its greeting.
    pub fn attach(address: SocketAddr, path: &str) -> Self {
        let mut wire = Self::connect(address, path);
        wire.read_greeting(path);
        wire
    }

    /// Reads the events that a client gets first: its role, the size of the terminal and, for a process, the clients.
    pub fn read_greeting(&mut self, path: &str) -> Vec<serde_json::Value> {
        let is_process = path.contains("/attach");
        let kinds = ["role", "size", "clients"];
        let mut events = Vec::new();
        for kind in &kinds[..if is_process { 3 } else { 2 }] {
            let frame = self.read_frame();
            let event: serde_json::Value = serde_json::from_slice(&frame.payload).expect("JSON");
            assert_eq!((frame.opcode, event["type"].as_str()), (TEXT, Some(*kind)));
            events.push(event);
        }
        events
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    pub fn send_frame(&mut self, opcode: u8, payload: &[u8]) {
        self.send(&frame(true, opcode, payload));
    }

    pub fn send_close(&mut self, code: u16) {
        self.send_frame(CLOSE, &code.to_be_bytes());
    }

    /// Resets the connection.
    pub fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO))
            .expect("SO_LINGER can be set");
    }

    pub fn end_output(&self) {
        self.stream
            .shutdown(Shutdown::Write)
            .expect("the socket is connected");
    }

    pub fn read_exact(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream
            .read_exact(&mut bytes)
            .expect("the server answers");
        bytes
    }

    /// Reads a response head, byte by byte so that it leaves what follows.
    pub fn read_head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.extend(self.read_exact(1));
        }
        String::from_utf8(head).expect("ASCII")
    }

    /// Reads a response with a JSON body.
    pub fn read_response(&mut self) -> (String, serde_json::Value) {
        let head = self.read_head();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .unwrap_or_else(|| panic!("a length in {head}"));
        let body = self.read_exact(length.parse().expect("a number"));
        (
            head,
            serde_json::from_slice(&body).expect("the body is JSON"),
        )
    }

    pub fn read_frame(&mut self) -> Frame {
        let start = self.read_exact(2);
        assert_eq!(
            start[0] & 0xf0,
            0x80,
            "one frame per message, no reserved bits"
        );
        assert_eq!(start[1] & 0x80, 0, "a server does not mask");
        let len = match start[1] {
            126 => u64::from(u16::from_be_bytes(
                self.read_exact(2).try_into().expect("2 bytes"),
            )),
            127 => u64::from_be_bytes(self.read_exact(8).try_into().expect("8 bytes")),
            len => u64::from(len),
        };
        Frame {
            opcode: start[0] & 0xf,
            payload: self.read_exact(len as usize),
        }
    }

    /// Waits for CLOSE and returns its code and reason. Skips other frames.
    pub fn read_close(&mut self) -> (u16, String) {
        loop {
            let frame = self.read_frame();
            if frame.opcode == CLOSE {
                let (code, reason) = frame.payload.split_at(2);
                let code = u16::from_be_bytes(code.try_into().expect("2 bytes"));
                return (code, String::from_utf8(reason.to_vec()).expect("UTF-8"));
            }
        }
    }

    /// Waits for the end of the connection, which must come next.
    pub fn expect_end(&mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(rest, b"", "no bytes before the end"),
            Err(error) => assert_eq!(
                error.kind(),
                ErrorKind::ConnectionReset,
                "an end, not a timeout"
            ),
        }
    }
}

/// An opening handshake.
pub fn request(path: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    .into_bytes()
}

/// Makes an HTTP call, and returns the status and the JSON of the answer.
pub fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<serde_json::Value>,
) -> (u16, serde_json::Value) {
    let body = body.map(|body| body.to_string());
    let fields = body.as_ref().map_or(String::new(), |body| {
        format!(
            "Content-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        )
    });
    let mut wire = Wire::open(address);
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    wire.send(head.as_bytes());
    wire.send(body.unwrap_or_default().as_bytes());
    let (head, body) = wire.read_response();
    let field = |name: &str| head.contains(&format!("\r\n{name}\r\n"));
    assert!(field("Content-Type: application/json"), "{head}");
    let date = head.lines().find_map(|line| line.strip_prefix("Date: "));
    let date = httpdate::parse_http_date(date.expect(&head)).expect(&head);
    let age = date.elapsed().expect("not from the future");
    assert!(age < Duration::from_secs(600), "{head}");
    let status = head.split(' ').nth(1).expect("a status");
    (status.parse().expect("a number"), body)
}

/// Upgrades the server, which must be permitted over TCP. Returns the answer.
pub fn upgrade(address: SocketAddr) -> serde_json::Value {
    let (status, answer) = call(address, "POST", "/upgrade", Some(serde_json::json!({})));
    assert_eq!(status, 200, "{answer}");
    answer
}

/// A client's frame.
pub fn frame(fin: bool, opcode: u8, payload: &[u8]) -> Vec<u8> {
    let key = [0x12, 0x9a, 0x3c, 0xe7];
    let mut bytes = vec![u8::from(fin) << 7 | opcode];
    match payload.len() {
        len @ 0..=125 => bytes.push(0x80 | len as u8),
        len @ 126..=0xffff => {
            bytes.push(0x80 | 126);
            bytes.extend((len as u16).to_be_bytes());
        }
        len => {
            bytes.push(0x80 | 127);
            bytes.extend((len as u64).to_be_bytes());
        }
    }
    bytes.extend(key);
    bytes.extend(
        payload
            .iter()
            .enumerate()
            .map(|(at, byte)| byte ^ key[at % 4]),
    );
    bytes
}

/// Short timeouts, for tests that wait for them.
pub fn impatient() -> Config {
    let mut config = Config::default();
    config.timeouts.handshake = Some(Duration::from_millis(500));
    config.timeouts.close = Some(Duration::from_millis(500));
    config.timeouts.ping_interval = Some(Duration::from_millis(250));
    config.timeouts.ping_timeout = Some(Duration::from_millis(500));
    config.drain_timeout = Duration::from_secs(2);
    config
}

/// No timeouts that could expire within a test.
pub fn patient() -> Config {
    let mut config = Config::default();
    config.timeouts.ping_interval = None;
    config.timeouts.handshake = None;
    config
}
