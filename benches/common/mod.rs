//! What the benchmarks of whole servers share: server processes, what they use, and the load.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What follows the path in a request.
const REQUEST: &str = " HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// How long a server may take to start or to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A server, which may be several processes. Dropping it kills them.
pub(crate) struct Server {
    pub(crate) processes: Vec<Child>,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts `outrigger echo` with more arguments.
    pub(crate) fn outrigger(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
        command.args(["echo", "--listen", "127.0.0.1:0", "--log", "off"]);
        command.args(arguments);
        Self::start(command)
    }

    /// Starts a server of `benches/peers`.
    pub(crate) fn peer(arguments: &[&str]) -> Self {
        let mut command = Command::new(peers());
        command.args(arguments);
        Self::start(command)
    }

    /// The server prints a line that ends with its port.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("it says where it listens");
        let digits = line.trim_end().trim_end_matches('/');
        let port = digits.rsplit(':').next().expect("a port");
        let port: u16 = port.parse().expect("a port");
        Self {
            processes: vec![child],
            address: SocketAddr::from(([127, 0, 0, 1], port)),
        }
    }

    /// Starts a server on a free port of 127.0.0.1, which the command names, and waits until it listens.
    pub(crate) fn on_free_port(command: impl FnOnce(u16) -> Command) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.expect("a free port");
        let child = command(address.port())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the server is installed");
        let mut server = Self {
            processes: vec![child],
            address,
        };
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(address).is_err() {
            let ended = server.processes[0].try_wait();
            assert!(matches!(ended, Ok(None)), "the server stays");
            assert!(Instant::now() < deadline, "the server listens");
            std::thread::yield_now();
        }
        server
    }

    /// The processor time of all threads so far, including those that have ended.
    pub(crate) fn cpu(&self) -> Duration {
        let ticks = self.processes.iter().flat_map(|child| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it runs");
            let fields = stat.rsplit_once(')').expect("a name").1;
            let ticks = fields.split_whitespace().skip(11).take(2);
            ticks
                .map(|ticks| ticks.parse().expect("a number"))
                .collect::<Vec<u64>>()
        });
        Duration::from_millis(ticks.sum::<u64>() * 1000 / rustix::param::clock_ticks_per_second())
    }

    /// The resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let kib = self.processes.iter().map(|child| {
            let status = fs::read_to_string(format!("/proc/{}/status", child.id()));
            let status = status.expect("it runs");
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
            kib.and_then(|kib| kib.parse::<u64>().ok())
                .expect("a number")
        });
        kib.sum::<u64>() * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Builds the servers of other libraries, once. Returns their path.
fn peers() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers");
        let target = concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--release", "--quiet", "--target-dir", target])
            .current_dir(folder)
            .status();
        assert!(built.is_ok_and(|status| status.success()), "they build");
        format!("{target}/release/peers")
    })
}

/// A socket of the load generator, perhaps with TLS on it.
pub(crate) trait Socket: Read + Write {
    /// What the poll watches.
    fn source(&mut self) -> &mut TcpStream;
}

impl Socket for TcpStream {
    fn source(&mut self) -> &mut TcpStream {
        self
    }
}

/// Opens a connection.
pub(crate) fn connect(address: SocketAddr) -> std::net::TcpStream {
    let stream = std::net::TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("TCP_NODELAY");
    stream
}

/// Makes the opening handshake of WebSocket.
pub(crate) fn upgrade(stream: &mut (impl Read + Write), path: &str) {
    let request = format!("GET {path}{REQUEST}");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("it answers");
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101"));
}

/// What the connections do.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    /// Bytes per message.
    pub(crate) size: usize,
    /// Messages in flight per connection.
    pub(crate) depth: usize,
    pub(crate) connections: usize,
    /// Whether the messages are lines of text.
    is_text: bool,
    /// Whether the first connection alone sends messages, and the server sends each of them to all connections.
    pub(crate) is_published: bool,
}

impl Work {
    pub(crate) const fn new(size: usize, depth: usize, connections: usize) -> Self {
        Self {
            size,
            depth,
            connections,
            is_text: false,
            is_published: false,
        }
    }

    /// The same with messages that are lines of text.
    #[allow(dead_code, reason = "one benchmark uses it")]
    pub(crate) const fn text(mut self) -> Self {
        self.is_text = true;
        self
    }

    /// The same with one connection that sends to all.
    #[allow(dead_code, reason = "one benchmark uses it")]
    pub(crate) const fn published(mut self) -> Self {
        self.is_published = true;
        self
    }

    /// What a connection writes at once, and what each reader gets. All frames have the same length.
    pub(crate) fn batch(self) -> (Vec<u8>, Vec<u8>) {
        const MASK: [u8; 4] = [0x12, 0x9a, 0x3c, 0xe7];
        let (mut sent, mut echo) = (Vec::new(), Vec::new());
        for message in 0..self.depth {
            let masked = sent.len() + 1;
            for frame in [&mut sent, &mut echo] {
                frame.push(if self.is_text { 0x81 } else { 0x82 });
                match self.size {
                    ..126 => frame.push(self.size as u8),
                    126..65536 => frame.extend([126, (self.size >> 8) as u8, self.size as u8]),
                    _ => {
                        frame.push(127);
                        frame.extend((self.size as u64).to_be_bytes());
                    }
                }
            }
            sent[masked] |= 0x80;
            sent.extend(MASK);
            for at in 0..self.size {
                let byte = match self.is_text {
                    true => b'a' + ((at + message) % 26) as u8,
                    false => ((at + 31 * message) % 251) as u8,
                };
                sent.push(byte ^ MASK[at % 4]);
                echo.push(byte);
            }
        }
        (sent, echo)
    }
}

/// A connection that writes a batch and waits for its echo, or only waits for what another one publishes.
struct Load<S> {
    stream: S,
    written: usize,
    read: usize,
}

impl<S: Socket> Load<S> {
    fn write(&mut self, batch: &[u8]) {
        let written = loop {
            if self.written == batch.len() {
                break self.stream.flush();
            }
            match self.stream.write(&batch[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) => break Err(error),
            }
        };
        match written {
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                panic!("the server is there: {error}")
            }
            _ => {}
        }
    }

    /// Reads the available bytes. Returns whether the echo is complete.
    fn read(&mut self, echo: &[u8], buffer: &mut [u8]) -> bool {
        while self.read < echo.len() {
            match self.stream.read(buffer) {
                Ok(0) => panic!("the server stays"),
                Ok(count) => {
                    let expected = echo.get(self.read..self.read + count);
                    assert!(
                        expected == Some(&buffer[..count]),
                        "the bytes that were sent"
                    );
                    self.read += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) => panic!("the server is there: {error}"),
            }
        }
        true
    }
}

/// Messages per second, and the server's processor time per message in microseconds.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) rate: f64,
    pub(crate) cpu: f64,
}

impl Measured {
    pub(crate) fn median(all: &[Self]) -> Self {
        Self {
            rate: median(all.iter().map(|one| one.rate)),
            cpu: median(all.iter().map(|one| one.cpu)),
        }
    }
}

/// Measures echo, or messages to many, of which each that a connection receives counts. `connect` returns a connection that does
/// not block, after its handshakes.
pub(crate) fn measure<S: Socket>(
    server: &Server,
    work: Work,
    time: Duration,
    connect: impl Fn() -> S,
) -> Measured {
    let (batch, echo) = work.batch();
    let mut poll = Poll::new().expect("epoll");
    let mut loads: Vec<Load<S>> = (0..work.connections)
        .map(|number| {
            let mut stream = connect();
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry()
                .register(stream.source(), Token(number), interest)
                .expect("a new socket");
            let is_reader = work.is_published && number > 0;
            Load {
                stream,
                written: if is_reader { batch.len() } else { 0 },
                read: 0,
            }
        })
        .collect();
    let mut buffer = vec![0; 1 << 20];
    let mut events = Events::with_capacity(1024);
    let mut messages = 0;
    // The connections that have not received all of the published batch.
    let mut incomplete = loads.len();
    let (mut since, mut cpu) = (Instant::now(), server.cpu());
    let mut warm = false;
    loop {
        if !warm && since.elapsed() > Duration::from_millis(300) {
            (since, cpu, messages, warm) = (Instant::now(), server.cpu(), 0, true);
        }
        if warm && since.elapsed() >= time {
            break;
        }
        poll.poll(&mut events, Some(Duration::from_secs(1)))
            .expect("epoll");
        for event in &events {
            let mut load = &mut loads[event.token().0];
            load.write(&batch);
            // Another event may follow the one that completed the batch.
            if load.read == echo.len() || !load.read(&echo, &mut buffer) {
                continue;
            }
            messages += work.depth;
            if work.is_published {
                incomplete -= 1;
                if incomplete > 0 {
                    continue;
                }
                incomplete = loads.len();
                loads.iter_mut().for_each(|load| load.read = 0);
                load = &mut loads[0];
            }
            (load.written, load.read) = (0, 0);
            load.write(&batch);
        }
    }
    let used = server.cpu().saturating_sub(cpu);
    Measured {
        rate: messages as f64 / since.elapsed().as_secs_f64(),
        cpu: used.as_secs_f64() * 1e6 / messages as f64,
    }
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A setting of the benchmark, from the environment.
pub(crate) fn setting(name: &str, default: f64) -> f64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Raises the limit of open descriptors for this program and its servers, if it can beyond the hard limit.
/// Returns the limit.
pub(crate) fn raise_descriptor_limit() -> u64 {
    const ENOUGH: u64 = 1 << 16;
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map(|maximum| maximum.max(ENOUGH));
    for maximum in [wanted, limit.maximum] {
        let current = maximum;
        if setrlimit(Resource::Nofile, Rlimit { current, maximum }).is_ok() {
            break;
        }
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
