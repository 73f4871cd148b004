//! Measures `outrigger mcp` beside supergateway and mcp-proxy in one run, with the same small MCP server behind each: calls of a
//! tool per second, the processor time of the bridge for each call, and the memory of the bridge.
//!
//! `cargo bench --bench mcp` prints a table. `SECONDS_EACH=2` sets the duration of each measurement, `ROUNDS=3` their number, and
//! `CLIENTS=200` the clients of the rows about memory. The results are medians. The processor time and the memory are those of the
//! bridge's process tree without the MCP servers. An answer that is wrong or late fails its measurement, and the table says so.
//! `OUTRIGGER` may name another binary, and `MCP_PEERS` the folder in which the peers are installed, `target/interop` by default:
//!
//! ```text
//! npm install --prefix target/interop/supergateway supergateway@4.0.0
//! python3 -m venv target/interop/mcp-proxy && target/interop/mcp-proxy/bin/pip install mcp-proxy==0.13.0
//! ```

#[path = "mcp/bridge.rs"]
mod bridge;
#[allow(dead_code, reason = "other benchmarks use the rest")]
mod common;
#[path = "mcp/http.rs"]
mod http;

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use bridge::{ACCEPT, Bridge, Installed, PATH, Program, pause};
use common::{Measured, median, setting};
use http::PATIENCE;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use serde_json::Value;

/// How many clients call at once.
const CALLERS: [usize; 3] = [1, 8, 64];

/// How long the callers call before a measurement begins.
const WARM_UP: Duration = Duration::from_secs(1);

/// How long a bridge is left alone before its memory is measured.
const SETTLE: Duration = Duration::from_secs(3);

/// What each request of revision 2026-07-28 says about its client.
const META: &str = r#","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}"#;

#[derive(Clone, Copy, PartialEq)]
enum Revision {
    /// 2026-07-28, which has no sessions.
    Stateless,
    /// 2025-11-25.
    Sessions,
}

use Program::{McpProxy, Outrigger, OutriggerShared, Supergateway};
use Revision::{Sessions, Stateless};

/// supergateway starts a process for each call of revision 2026-07-28, and mcp-proxy does not support that revision.
const BRIDGES: [(Program, Revision, &str); 6] = [
    (Outrigger, Stateless, "outrigger 2026-07-28"),
    (Supergateway, Stateless, "supergateway 2026-07-28"),
    (Outrigger, Sessions, "outrigger 2025-11-25"),
    (OutriggerShared, Sessions, "outrigger --share all"),
    (Supergateway, Sessions, "supergateway 2025-11-25"),
    (McpProxy, Sessions, "mcp-proxy 2025-11-25"),
];

/// The header lines of stateless requests.
fn stateless() -> String {
    format!(
        "{ACCEPT}MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: echo\r\n"
    )
}

/// A call whose answer is unique.
fn call(id: u64, revision: Revision, fields: &str) -> Vec<u8> {
    let meta = match revision {
        Stateless => META,
        Sessions => "",
    };
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo","arguments":{{"text":"hello {id}"}}{meta}}}}}"#
    );
    http::request("POST", PATH, fields, &body)
}

/// Checks the answer to a call, which is JSON or a stream of events.
fn check(answer: &http::Answer, id: u64) -> Result<(), String> {
    let text = String::from_utf8_lossy(&answer.body);
    let mut messages = text
        .lines()
        .map(|line| line.strip_prefix("data:").unwrap_or(line));
    let right = messages.any(|line| {
        let message: Value = serde_json::from_str(line).unwrap_or_default();
        message["id"] == id && message["result"]["content"][0]["text"] == format!("hello {id}")
    });
    match (answer.status, right) {
        (200, true) => Ok(()),
        (status, _) => Err(format!("{status} {}", text.trim())),
    }
}

/// A connection on which one call after another is made.
struct Caller {
    stream: TcpStream,
    fields: String,
    input: Vec<u8>,
    id: u64,
}

impl Caller {
    fn call(&mut self, ids: &mut u64, revision: Revision) -> Result<(), String> {
        *ids += 1;
        self.id = *ids;
        let request = call(self.id, revision, &self.fields);
        match self.stream.write(&request) {
            Ok(count) if count == request.len() => Ok(()),
            other => Err(format!("cannot write a call: {other:?}")),
        }
    }

    /// Reads the available bytes. Returns whether the answer is complete. It is right in that case.
    fn read(&mut self, buffer: &mut [u8]) -> Result<bool, String> {
        loop {
            match self.stream.read(buffer) {
                Ok(0) => return Err("the connection was closed".to_owned()),
                Ok(count) => self.input.extend(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("connection: {error}")),
            }
        }
        let Some((answer, length)) = http::parse(&self.input, false)? else {
            return Ok(false);
        };
        self.input.drain(..length);
        check(&answer, self.id)?;
        match answer.is_last {
            true => Err("the connection is not kept".to_owned()),
            false => Ok(true),
        }
    }
}

/// Measures calls of so many callers in so many sessions.
fn measure(
    bridge: &Bridge,
    revision: Revision,
    callers: usize,
    sessions: usize,
    time: Duration,
) -> Result<Measured, String> {
    let mut begun = Vec::new();
    if revision == Sessions {
        for _ in 0..sessions {
            begun.push(bridge.begin(&mut bridge.connect())?);
        }
    }
    let fields: Vec<String> = match revision {
        Stateless => vec![stateless()],
        Sessions => begun.clone(),
    };
    let mut poll = Poll::new().expect("epoll");
    let mut ids = 0;
    let mut all = Vec::new();
    for number in 0..callers {
        let stream = bridge.connect();
        stream.set_nonblocking(true).expect("it can be set");
        let mut caller = Caller {
            stream: TcpStream::from_std(stream),
            fields: fields[number % fields.len()].clone(),
            input: Vec::new(),
            id: 0,
        };
        let registry = poll.registry();
        registry
            .register(&mut caller.stream, Token(number), Interest::READABLE)
            .expect("a new socket");
        caller.call(&mut ids, revision)?;
        all.push(caller);
    }
    let (mut events, mut buffer) = (Events::with_capacity(256), vec![0; 1 << 16]);
    let (mut since, mut cpu, mut calls) = (Instant::now(), bridge.cpu(), 0_u64);
    let (mut warm, mut measured) = (false, None);
    let mut waiting = callers;
    while waiting > 0 {
        poll.poll(&mut events, Some(PATIENCE)).expect("epoll");
        if events.is_empty() {
            return Err(format!("no answer for {} s", PATIENCE.as_secs()));
        }
        for event in &events {
            let caller = &mut all[event.token().0];
            if caller.read(&mut buffer)? {
                calls += 1;
                // At the end, the last call of each caller is still awaited.
                match measured {
                    None => caller.call(&mut ids, revision)?,
                    Some(_) => waiting -= 1,
                }
            }
        }
        if !warm && since.elapsed() > WARM_UP {
            (since, cpu, calls, warm) = (Instant::now(), bridge.cpu(), 0, true);
        }
        if warm && measured.is_none() && since.elapsed() >= time {
            let used = bridge.cpu().saturating_sub(cpu);
            measured = Some(Measured {
                rate: calls as f64 / since.elapsed().as_secs_f64(),
                cpu: used.as_secs_f64() * 1e6 / calls as f64,
            });
        }
    }
    drop(all);
    for fields in begun {
        bridge.end(&fields)?;
    }
    Ok(measured.expect("it is there before the last answers"))
}

/// What clients cost that do nothing.
struct Idle {
    /// Bytes of memory of the bridge at the start, with the clients, and after them.
    memory: [f64; 3],
    /// Processor time of the bridge for each client's coming and going, in microseconds.
    cpu: f64,
    /// MCP servers with the clients.
    servers: f64,
}

/// Lets clients come, make one call and go. A client has a connection and, if there are sessions, a session and a second connection
/// for messages from the server.
fn idle(bridge: &Bridge, revision: Revision, count: usize) -> Result<Idle, String> {
    pause(SETTLE);
    let at_start = bridge.memory();
    let (servers_at_start, cpu) = (bridge.processes().1.len(), bridge.cpu());
    let mut clients = Vec::new();
    for number in 0..count as u64 {
        let mut stream = bridge.connect();
        let (fields, listening) = match revision {
            Stateless => (stateless(), None),
            Sessions => {
                let fields = bridge.begin(&mut stream)?;
                let mut listening = bridge.connect();
                let request = http::request("GET", PATH, &fields, "");
                match http::exchange(&mut listening, &request, true)?.status {
                    200 => {}
                    status => return Err(format!("GET: {status}")),
                }
                (fields, Some(listening))
            }
        };
        let request = call(number, revision, &fields);
        check(&http::exchange(&mut stream, &request, false)?, number)?;
        clients.push((stream, fields, listening));
    }
    pause(SETTLE);
    let with_clients = bridge.memory();
    let servers = bridge.processes().1.len();
    for (_, fields, _) in clients {
        if revision == Sessions {
            bridge.end(&fields)?;
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while bridge.processes().1.len() > servers_at_start {
        if Instant::now() > deadline {
            return Err("sessions that ended keep their processes".to_owned());
        }
        pause(Duration::from_millis(50));
    }
    pause(SETTLE);
    Ok(Idle {
        memory: [at_start, with_clients, bridge.memory()],
        cpu: bridge.cpu().saturating_sub(cpu).as_secs_f64() * 1e6 / count as f64,
        servers: servers as f64,
    })
}

/// The results of one cell of a table.
struct Cell<T>(Vec<Result<T, String>>);

impl<T> Cell<T> {
    /// The median of a figure, or that a measurement failed. The reasons are printed below the table.
    fn show(&self, figure: impl Fn(&T) -> f64, digits: usize) -> String {
        match self.0.iter().all(Result::is_ok) && !self.0.is_empty() {
            true => {
                let figures = self.0.iter().flatten().map(figure);
                format!("{:.digits$}", median(figures))
            }
            false => "failed".to_owned(),
        }
    }

    fn problem(&self) -> Option<&String> {
        self.0.iter().find_map(|result| result.as_ref().err())
    }
}

fn main() {
    // `cargo test --all-targets` runs this without --bench, and there is nothing to measure.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    common::raise_descriptor_limit();
    let time = Duration::from_secs_f64(setting("SECONDS_EACH", 2.0));
    let rounds = setting("ROUNDS", 3.0) as usize;
    let count = setting("CLIENTS", 200.0) as usize;
    let installed = Installed::find();
    let mut bridges = Vec::new();
    for bridge in BRIDGES {
        match installed.has(bridge.0) {
            true => bridges.push(bridge),
            false => println!("{}: not installed, skipped", bridge.2),
        }
    }
    let one_session = CALLERS.map(|callers| (callers, 1));
    let session_each = CALLERS[1..].iter().map(|&callers| (callers, callers));
    let cases: Vec<(usize, usize)> = one_session.into_iter().chain(session_each).collect();
    let mut calls: Vec<Vec<Cell<Measured>>> = Vec::new();
    calls.resize_with(bridges.len(), || {
        cases.iter().map(|_| Cell(Vec::new())).collect()
    });
    let mut clients: Vec<Cell<Idle>> = bridges.iter().map(|_| Cell(Vec::new())).collect();
    // Alternates between the bridges, so that a change of the machine's speed affects all of them.
    for _ in 0..rounds {
        for (&(program, revision, _), cells) in bridges.iter().zip(&mut calls) {
            let mut running = None;
            for (&(callers, sessions), cell) in cases.iter().zip(cells) {
                if revision == Stateless && sessions > 1 {
                    continue;
                }
                let result = match running.take() {
                    Some(bridge) => Ok(bridge),
                    None => installed.start(program),
                };
                cell.0.push(result.and_then(|bridge| {
                    let measured = measure(&bridge, revision, callers, sessions, time)?;
                    // A bridge that failed is not used again.
                    running = Some(bridge);
                    Ok(measured)
                }));
            }
        }
        for (&(program, revision, _), cell) in bridges.iter().zip(&mut clients) {
            let bridge = installed.start(program);
            cell.0
                .push(bridge.and_then(|bridge| idle(&bridge, revision, count)));
        }
    }

    print!("{:>32}", "");
    bridges.iter().for_each(|(.., name)| print!("{name:>25}"));
    println!();
    let row = |title: String, figures: Vec<String>| {
        print!("{title:>32}");
        figures.iter().for_each(|figure| print!("{figure:>25}"));
        println!();
    };
    for (at, &(callers, sessions)) in cases.iter().enumerate() {
        let title = match (callers, sessions) {
            (1, _) => "1 caller".to_owned(),
            (_, 1) => format!("{callers} callers"),
            _ => format!("{callers} callers, a session each"),
        };
        let figures = |figure: fn(&Measured) -> f64, digits| {
            let shown = calls.iter().zip(&bridges).map(|(cells, bridge)| {
                match bridge.1 == Stateless && sessions > 1 {
                    true => String::new(),
                    false => cells[at].show(figure, digits),
                }
            });
            shown.collect()
        };
        row(
            format!("calls/s, {title}"),
            figures(|measured| measured.rate, 0),
        );
        row(
            "µs of CPU for each".to_owned(),
            figures(|measured| measured.cpu, 1),
        );
    }
    let figures = |figure: fn(&Idle) -> f64, digits| {
        clients
            .iter()
            .map(|cell| cell.show(figure, digits))
            .collect()
    };
    row(
        "MB at the start".to_owned(),
        figures(|idle| idle.memory[0] / 1e6, 2),
    );
    row(
        format!("MB with {count} clients"),
        figures(|idle| idle.memory[1] / 1e6, 2),
    );
    row(
        "MB after them".to_owned(),
        figures(|idle| idle.memory[2] / 1e6, 2),
    );
    row(
        "MCP servers for them".to_owned(),
        figures(|idle| idle.servers, 0),
    );
    row(
        "µs of CPU for a client".to_owned(),
        figures(|idle| idle.cpu, 0),
    );
    for (at, (.., name)) in bridges.iter().enumerate() {
        let problems = calls[at].iter().filter_map(Cell::problem);
        for problem in problems.chain(clients[at].problem()) {
            println!("{name} failed: {problem}");
        }
    }
}
