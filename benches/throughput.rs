//! Measures echo end to end, and the memory of an idle connection, for Outrigger and other libraries in one run.
//!
//! `cargo bench --bench throughput` prints a table and draws `benches/throughput.svg`. `SECONDS_EACH=2` sets the duration of
//! each measurement, `ROUNDS=3` their number. The results are medians.
//!
//! Every server is a process. This program generates the load: each connection writes a batch of masked frames and waits for
//! all of its echoes before the next batch. The main result is the server's processor time per message, which depends less on
//! a busy machine than messages per second do.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Bytes per message, messages in flight per connection, connections.
type Work = (usize, usize, usize);

const WORK: [Work; 6] = [
    (20, 1, 100),
    (20, 32, 100),
    (1024, 16, 100),
    (16384, 1, 50),
    (65536, 4, 20),
    (1 << 20, 1, 8),
];

const SERVERS: [&str; 4] = [
    "outrigger",
    "tungstenite",
    "tokio-tungstenite",
    "fastwebsockets",
];

/// The number of idle connections for the measurement of memory.
const IDLE: usize = 2000;

const REQUEST: &[u8] =
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// A server process. Dropping it kills the process.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(name: &str) -> Self {
        let mut command = if name == "outrigger" {
            let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
            command.args(["echo", "--listen", "127.0.0.1:0", "--log", "off"]);
            command
        } else {
            let mut command = Command::new(peers());
            command.arg(name);
            command
        };
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
            child,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
        }
    }

    /// The processor time of all threads so far, including those that have ended.
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        let fields = stat.rsplit_once(')').expect("a name").1;
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks
            .map(|ticks| ticks.parse::<u64>().expect("a number"))
            .sum();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }

    /// The resident memory in bytes.
    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.and_then(|kib| kib.parse::<u64>().ok())
            .expect("a number")
            * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds the servers of other libraries. Returns their path.
fn peers() -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers");
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/target/peers");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet", "--target-dir", target])
        .current_dir(folder)
        .status();
    assert!(built.is_ok_and(|status| status.success()), "they build");
    format!("{target}/release/peers")
}

/// A connection after its handshake.
fn connect(address: SocketAddr) -> std::net::TcpStream {
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("TCP_NODELAY");
    stream.write_all(REQUEST).expect("it reads");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("it answers");
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101"));
    stream
}

/// A connection that writes a batch and waits for its echo.
struct Load {
    stream: TcpStream,
    written: usize,
    read: usize,
}

impl Load {
    fn write(&mut self, batch: &[u8]) {
        while self.written < batch.len() {
            match self.stream.write(&batch[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("the server is there: {error}"),
            }
        }
    }

    /// Reads the available bytes. Returns whether the echo is complete.
    fn read(&mut self, size: usize, buffer: &mut [u8]) -> bool {
        while self.read < size {
            match self.stream.read(buffer) {
                Ok(0) => panic!("the server stays"),
                Ok(count) => self.read += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) => panic!("the server is there: {error}"),
            }
        }
        assert_eq!(self.read, size, "as many bytes as were sent");
        true
    }
}

/// Messages per second, and the server's processor time per message in microseconds.
#[derive(Clone, Copy)]
struct Measured {
    rate: f64,
    cpu: f64,
}

fn measure(server: &Server, (size, depth, connections): Work, time: Duration) -> Measured {
    let mut frame = vec![0x82];
    let header = match size {
        ..126 => {
            frame.push(0x80 | size as u8);
            2
        }
        126..65536 => {
            frame.extend([0x80 | 126, (size >> 8) as u8, size as u8]);
            4
        }
        _ => {
            frame.push(0x80 | 127);
            frame.extend((size as u64).to_be_bytes());
            10
        }
    };
    frame.extend([0x12, 0x9a, 0x3c, 0xe7]);
    frame.resize(frame.len() + size, 0x55);
    let batch = frame.repeat(depth);
    let echo = (header + size) * depth;

    let mut poll = Poll::new().expect("epoll");
    let mut loads: Vec<Load> = (0..connections)
        .map(|number| {
            let stream = connect(server.address);
            stream.set_nonblocking(true).expect("it can be set");
            let mut stream = TcpStream::from_std(stream);
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry()
                .register(&mut stream, Token(number), interest)
                .expect("a new socket");
            Load {
                stream,
                written: 0,
                read: 0,
            }
        })
        .collect();
    let mut buffer = vec![0; 1 << 20];
    let mut events = Events::with_capacity(1024);
    let mut messages = 0;
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
            let load = &mut loads[event.token().0];
            load.write(&batch);
            if load.read(echo, &mut buffer) {
                messages += depth;
                (load.written, load.read) = (0, 0);
                load.write(&batch);
            }
        }
    }
    let used = server.cpu().saturating_sub(cpu);
    Measured {
        rate: messages as f64 / since.elapsed().as_secs_f64(),
        cpu: used.as_secs_f64() * 1e6 / messages as f64,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn setting(name: &str, default: f64) -> f64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() {
    // `cargo test --all-targets` runs this without --bench, and there is nothing to measure.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
    let time = Duration::from_secs_f64(setting("SECONDS_EACH", 1.0));
    let rounds = setting("ROUNDS", 3.0) as usize;

    println!("processor time for a message in µs, and messages per second");
    print!("{:>20}", "bytes, depth, conns");
    SERVERS.iter().for_each(|name| print!("{name:>24}"));
    println!();
    let mut table = Vec::new();
    for work in WORK {
        let mut measured: BTreeMap<&str, Vec<Measured>> = BTreeMap::new();
        // Alternates between the servers, so that a change of the machine's speed affects all of them.
        for _ in 0..rounds {
            for name in SERVERS {
                let server = Server::start(name);
                measured
                    .entry(name)
                    .or_default()
                    .push(measure(&server, work, time));
            }
        }
        let (size, depth, connections) = work;
        print!("{:>20}", format!("{size}, {depth}, {connections}"));
        let row = SERVERS.map(|name| Measured {
            rate: median(measured[name].iter().map(|one| one.rate).collect()),
            cpu: median(measured[name].iter().map(|one| one.cpu).collect()),
        });
        row.iter()
            .for_each(|one| print!("{:>24}", format!("{:.2}  {:.0}/s", one.cpu, one.rate)));
        println!();
        table.push((work, row));
    }

    print!("{:>20}", "bytes, idle conn");
    let idle = SERVERS.map(|name| {
        let server = Server::start(name);
        // The first connection also allocates shared memory.
        let first = connect(server.address);
        let before = server.resident();
        let all: Vec<_> = (0..IDLE).map(|_| connect(server.address)).collect();
        let each = server.resident().saturating_sub(before) / all.len() as u64;
        drop(first);
        print!("{each:>24}");
        each
    });
    println!();
    let chart = draw(&table, &idle);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/throughput.svg");
    fs::write(path, chart).expect("the chart can be written");
}

/// Draws bars: for each kind of work, the other libraries' processor time per message relative to Outrigger's.
fn draw(table: &[(Work, [Measured; 4])], idle: &[u64; 4]) -> String {
    const WIDTH: f64 = 760.0;
    const LEFT: f64 = 190.0;
    const BAR: f64 = 11.0;
    let colours = ["#2a78d6", "#8f99a6", "#b4bcc6", "#6d7783"];
    let mut groups: Vec<(String, [f64; 4])> = table
        .iter()
        .map(|((size, depth, connections), row)| {
            let size = match size {
                ..1024 => format!("{size} B"),
                1024..1048576 => format!("{} KiB", size >> 10),
                _ => format!("{} MiB", size >> 20),
            };
            let name = format!("{size} × {depth}, {connections} clients");
            (name, (*row).map(|one| one.cpu / row[0].cpu))
        })
        .collect();
    groups.push((
        "memory, idle client".to_owned(),
        (*idle).map(|bytes| bytes as f64 / idle[0].max(1) as f64),
    ));
    let height = 70.0 + groups.len() as f64 * (4.0 * BAR + 14.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<style>text{{fill:#24292f}}@media(prefers-color-scheme:dark){{text{{fill:#d6dce3}}}}</style>\n\
         <text x=\"8\" y=\"18\" font-size=\"14\">Processor time for an echoed message, Outrigger = 1 (less is better)</text>\n"
    );
    for (number, (name, colour)) in SERVERS.iter().zip(colours).enumerate() {
        let x = LEFT + number as f64 * 135.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"32\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{}\" y=\"41\">{name}</text>",
            x + 15.0
        );
    }
    // Longer bars are cut off here, and only their figures show their length.
    let most = 8.0;
    let scale = (WIDTH - LEFT - 60.0) / most;
    for (number, (name, values)) in groups.iter().enumerate() {
        let top = 58.0 + number as f64 * (4.0 * BAR + 14.0);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>",
            LEFT - 10.0,
            top + 2.0 * BAR + 4.0
        );
        for (at, (value, colour)) in values.iter().zip(colours).enumerate() {
            let y = top + at as f64 * BAR;
            let width = value.min(most) * scale;
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"10\">{value:.2}</text>",
                BAR - 2.0,
                LEFT + width + 4.0,
                y + BAR - 2.5
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}
