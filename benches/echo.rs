//! Echo end to end, beside `tungstenite` in the same run: the same load against both, in turn.
//!
//! `cargo bench --bench echo`; `SECONDS_EACH=2` sets how long each measurement takes. Both servers are libraries in
//! this process: ours is one thread with its loop, tungstenite's is one thread for each connection, as its
//! documentation shows it. The last column is what counts; absolute figures depend on the machine.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outrigger::{ClientId, Config, Context, Message, Server, Service};

struct Echo;

impl Service for Echo {
    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let _ = ctx.send(client, message);
    }
}

fn start_outrigger() -> SocketAddr {
    let config = Config {
        listen: vec![([127, 0, 0, 1], 0).into()],
        ..Config::default()
    };
    let server = Server::bind(config, Echo).expect("a free port");
    let address = server.local_addresses()[0].tcp().expect("TCP");
    std::thread::spawn(|| server.run().map(drop));
    address
}

fn start_tungstenite() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                stream.set_nodelay(true).expect("TCP_NODELAY");
                let mut socket = tungstenite::accept(stream).expect("a handshake");
                while let Ok(message) = socket.read() {
                    if (message.is_text() || message.is_binary()) && socket.send(message).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

/// One connection that writes `depth` frames of `size` bytes at once and waits for all of them.
struct Load {
    stream: TcpStream,
    batch: Vec<u8>,
    answer: Vec<u8>,
}

impl Load {
    fn connect(address: SocketAddr, size: usize, depth: usize) -> Self {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream
            .write_all(
                b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                  Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
            )
            .expect("it reads");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("it answers");
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101"));
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
        Self {
            stream,
            batch: frame.repeat(depth),
            answer: vec![0; (header + size) * depth],
        }
    }

    fn round(&mut self) {
        // Both directions at once, or large batches would wait for each other.
        let mut writer = self.stream.try_clone().expect("a second handle");
        let batch = &self.batch;
        if batch.len() < 100_000 {
            writer.write_all(batch).expect("it reads");
            self.stream
                .read_exact(&mut self.answer)
                .expect("it answers");
        } else {
            std::thread::scope(|scope| {
                scope.spawn(move || writer.write_all(batch).expect("it reads"));
                self.stream
                    .read_exact(&mut self.answer)
                    .expect("it answers");
            });
        }
    }
}

/// Messages per second over `connections` connections.
fn measure(
    address: SocketAddr,
    size: usize,
    depth: usize,
    connections: usize,
    time: Duration,
) -> f64 {
    let stop = AtomicBool::new(false);
    let messages = AtomicU64::new(0);
    let elapsed = std::thread::scope(|scope| {
        for _ in 0..connections {
            let mut load = Load::connect(address, size, depth);
            let (stop, messages) = (&stop, &messages);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    load.round();
                    messages.fetch_add(depth as u64, Ordering::Relaxed);
                }
            });
        }
        let begin = Instant::now();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        begin.elapsed()
    });
    messages.load(Ordering::Relaxed) as f64 / elapsed.as_secs_f64()
}

fn main() {
    let seconds = std::env::var("SECONDS_EACH")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1.0);
    let time = Duration::from_secs_f64(seconds);
    let (ours, theirs) = (start_outrigger(), start_tungstenite());
    println!(
        "{:>8} {:>6} {:>6} {:>16} {:>16} {:>7}",
        "size", "depth", "conns", "outrigger/s", "tungstenite/s", "ratio"
    );
    for (size, depth, connections) in [
        (20, 1, 16),
        (20, 32, 16),
        (1024, 16, 16),
        (16384, 1, 16),
        (65536, 4, 8),
        (1 << 20, 1, 4),
    ] {
        // In turn, and each twice, so that a change of the machine's pace meets both.
        let mut rates = [0.0f64; 2];
        for _ in 0..2 {
            for (rate, address) in rates.iter_mut().zip([ours, theirs]) {
                *rate += measure(address, size, depth, connections, time) / 2.0;
            }
        }
        let [a, b] = rates;
        println!(
            "{size:>8} {depth:>6} {connections:>6} {a:>16.0} {b:>16.0} {:>7.2}",
            a / b
        );
    }
}
