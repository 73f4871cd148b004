//! Measures echo end to end, and the memory of an idle connection, for Outrigger and other libraries in one run.
//!
//! `cargo bench --bench throughput` prints a table and draws `benches/throughput.svg`. `SECONDS_EACH=2` sets the duration of
//! each measurement, `ROUNDS=3` their number. The results are medians.
//!
//! Every server is a process. This program generates the load: each connection writes a batch of masked frames and waits for
//! all of its echoes before the next batch. The main result is the server's processor time per message, which depends less on
//! a busy machine than messages per second do.

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use common::{Measured, Server, Work, measure, setting, upgrade};
use mio::net::TcpStream;

const WORK: [Work; 6] = [
    Work::new(20, 1, 100),
    Work::new(20, 32, 100),
    Work::new(1024, 16, 100),
    Work::new(16384, 1, 50),
    Work::new(65536, 4, 20),
    Work::new(1 << 20, 1, 8),
];

const SERVERS: [&str; 4] = [
    "outrigger",
    "tungstenite",
    "tokio-tungstenite",
    "fastwebsockets",
];

/// The number of idle connections for the measurement of memory.
const IDLE: usize = 2000;

fn start(name: &str) -> Server {
    match name {
        "outrigger" => Server::outrigger(&[]),
        _ => Server::peer(&[name]),
    }
}

/// A connection after its handshake.
fn connect(server: &Server) -> TcpStream {
    let mut stream = common::connect(server.address);
    upgrade(&mut stream);
    stream.set_nonblocking(true).expect("it can be set");
    TcpStream::from_std(stream)
}

fn main() {
    // `cargo test --all-targets` runs this without --bench, and there is nothing to measure.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    common::raise_descriptor_limit();
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
                let server = start(name);
                measured
                    .entry(name)
                    .or_default()
                    .push(measure(&server, work, time, || connect(&server)));
            }
        }
        let Work {
            size,
            depth,
            connections,
            ..
        } = work;
        print!("{:>20}", format!("{size}, {depth}, {connections}"));
        let row = SERVERS.map(|name| Measured::median(&measured[name]));
        row.iter()
            .for_each(|one| print!("{:>24}", format!("{:.2}  {:.0}/s", one.cpu, one.rate)));
        println!();
        table.push((work, row));
    }

    print!("{:>20}", "bytes, idle conn");
    let idle = SERVERS.map(|name| {
        let server = start(name);
        // The first connection also allocates shared memory.
        let first = connect(&server);
        let before = server.resident();
        let all: Vec<_> = (0..IDLE).map(|_| connect(&server)).collect();
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
        .map(|(work, row)| {
            let &Work {
                size,
                depth,
                connections,
                ..
            } = work;
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
