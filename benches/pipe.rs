//! Measures `outrigger pipe` beside websocketd in one run: lines through `cat`, which each client has for itself, the start of
//! programs, and the memory of idle clients.
//!
//! `cargo bench --bench pipe` prints a table. `SECONDS_EACH=2` sets the duration of each measurement, `ROUNDS=3` their number,
//! and `IDLE=200` the clients of the last rows. The results are medians. The processor time and the memory are those of the
//! server without the programs. websocketd has to be installed.

#[allow(dead_code, reason = "other benchmarks use the rest")]
mod common;

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Measured, Server, Work, measure, median, setting, upgrade};
use mio::net::TcpStream;

/// websocketd divides longer messages into frames, which the load does not expect.
const WORK: [Work; 4] = [
    Work::new(20, 1, 16).text(),
    Work::new(20, 32, 16).text(),
    Work::new(1024, 16, 16).text(),
    Work::new(4000, 4, 16).text(),
];

const SERVERS: [&str; 2] = ["outrigger", "websocketd"];

fn start(name: &str) -> Server {
    Server::on_free_port(|port| {
        let mut command = match name {
            "outrigger" => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
                command.args(["pipe", "--no-auth", "--log", "off", "--listen"]);
                command.args([&format!("127.0.0.1:{port}"), "--", "cat"]);
                command
            }
            _ => {
                let mut command = Command::new("websocketd");
                command.args(["--address=127.0.0.1", "--loglevel=fatal"]);
                command.args([&format!("--port={port}"), "cat"]);
                command
            }
        };
        command.stderr(Stdio::null());
        command
    })
}

fn connect(address: SocketAddr) -> TcpStream {
    let mut stream = common::connect(address);
    upgrade(&mut stream, "/");
    stream.set_nonblocking(true).expect("it can be set");
    TcpStream::from_std(stream)
}

/// The number of threads of a server.
fn threads(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.processes[0].id()));
    let status = status.expect("it runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"));
    line.and_then(|line| line.trim().parse().ok())
        .expect("a number")
}

/// What an idle client costs.
struct Idle {
    /// Processor time to accept it and start its program, in microseconds.
    start: f64,
    /// Bytes of memory.
    each: f64,
    resident: f64,
    threads: f64,
}

fn idle(name: &str, count: usize) -> Idle {
    let server = start(name);
    // The first connection also allocates shared memory.
    let first = connect(server.address);
    let (before, cpu) = (server.resident(), server.cpu());
    let all: Vec<_> = (0..count).map(|_| connect(server.address)).collect();
    let used = server.cpu().saturating_sub(cpu);
    let resident = server.resident();
    let idle = Idle {
        start: used.as_secs_f64() * 1e6 / count as f64,
        each: resident.saturating_sub(before) as f64 / count as f64,
        resident: resident as f64,
        threads: threads(&server) as f64,
    };
    drop((first, all));
    idle
}

fn main() {
    // `cargo test --all-targets` runs this without --bench, and there is nothing to measure.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    common::raise_descriptor_limit();
    let time = Duration::from_secs_f64(setting("SECONDS_EACH", 1.0));
    let rounds = setting("ROUNDS", 3.0) as usize;
    let count = setting("IDLE", 200.0) as usize;

    println!("the server's processor time for a message in µs, and messages per second");
    print!("{:>28}", "bytes, depth, conns");
    SERVERS.iter().for_each(|name| print!("{name:>24}"));
    println!();
    for work in WORK {
        let mut measured = SERVERS.map(|_| Vec::new());
        // Alternates between the servers, so that a change of the machine's speed affects all of them.
        for _ in 0..rounds {
            for (name, measured) in SERVERS.iter().zip(&mut measured) {
                let server = start(name);
                measured.push(measure(&server, work, time, || connect(server.address)));
            }
        }
        let row = measured.map(|all| Measured::median(&all));
        let Work {
            size,
            depth,
            connections,
            ..
        } = work;
        print!("{:>28}", format!("{size}, {depth}, {connections}"));
        row.iter()
            .for_each(|one| print!("{:>24}", format!("{:.2}  {:.0}/s", one.cpu, one.rate)));
        println!();
    }
    let mut measured = SERVERS.map(|_| Vec::new());
    for _ in 0..rounds {
        for (name, measured) in SERVERS.iter().zip(&mut measured) {
            measured.push(idle(name, count));
        }
    }
    type Figure = fn(&Idle) -> f64;
    let figures = [
        ("µs to start a program", (|idle| idle.start) as Figure),
        ("bytes, idle client", |idle| idle.each),
        ("bytes, server with clients", |idle| idle.resident),
        ("threads of the server", |idle| idle.threads),
    ];
    for (title, figure) in figures {
        print!("{title:>28}");
        for all in &measured {
            print!("{:>24.0}", median(all.iter().map(figure)));
        }
        println!();
    }
}
