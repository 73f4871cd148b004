//! Measures echo end to end, fan-out (one message to many), and the memory of an idle connection, for Outrigger and other
//! libraries in one run.
//!
//! `cargo bench --bench throughput` prints a table and draws `benches/throughput.svg`. `SECONDS_EACH=2` sets the duration of
//! each measurement, `ROUNDS=3` their number. The results are medians. `PUBLISHER=PROGRAM` adds a server to the fan-out: the
//! program takes a port as its only argument, and sends each message to all of its clients.
//!
//! Every server is a process. This program generates the load: each connection writes a batch of masked frames and waits for
//! all of its echoes before the next batch. In fan-out, one connection writes a batch, and the next batch follows when all
//! members, which that connection is one of, have received it. The main result is the server's processor time per message, in
//! fan-out per delivered message. It depends less on a busy machine than messages per second do.
//!
//! With `--serve`, this program is Outrigger's server for fan-out.

mod common;

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use common::{Measured, Server, Work, measure, setting, upgrade};
use mio::net::TcpStream;
use outrigger::{ClientId, Config, Context, Message, Request, Service};

const ECHO: [Work; 6] = [
    Work::new(20, 1, 100),
    Work::new(20, 32, 100),
    Work::new(1024, 16, 100),
    Work::new(16384, 1, 50),
    Work::new(65536, 4, 20),
    Work::new(1 << 20, 1, 8),
];

/// Fan-out to the connections of the work, and the number of other clients, which are idle.
const FAN_OUT: [(Work, usize); 5] = [
    (Work::new(20, 1, 100).published(), 0),
    (Work::new(20, 1, 1000).published(), 0),
    (Work::new(20, 16, 1000).published(), 0),
    (Work::new(1024, 16, 1000).published(), 0),
    (Work::new(20, 16, 10).published(), 9990),
];

/// The path of the clients that get what is published.
const MEMBER: &str = "/member";

/// The servers. The last one is there if the environment names it.
const SERVERS: [&str; 5] = [
    "outrigger",
    "tungstenite",
    "tokio-tungstenite",
    "fastwebsockets",
    PUBLISHER,
];

const PUBLISHER: &str = "PUBLISHER";

/// The number of idle connections for the measurement of memory.
const IDLE: usize = 2000;

/// Starts a server that echoes. `None` if this one does not.
fn start(name: &str) -> Option<Server> {
    match name {
        "outrigger" => Some(Server::outrigger(&[])),
        PUBLISHER => None,
        _ => Some(Server::peer(&[name])),
    }
}

/// Starts a server that sends each message to all members. `None` if this one does not, or not with other clients.
fn start_publisher(name: &str, others: usize) -> Option<Server> {
    match name {
        "outrigger" => {
            let mut command = Command::new(env::current_exe().expect("it runs"));
            command.arg("--serve");
            Some(Server::start(command))
        }
        "tokio-tungstenite" => Some(Server::peer(&["tokio-tungstenite-publish"])),
        PUBLISHER if others == 0 => {
            let program = env::var_os(PUBLISHER)?;
            Some(Server::on_free_port(|port| {
                let mut command = Command::new(program);
                command.arg(port.to_string());
                command
            }))
        }
        _ => None,
    }
}

/// Publishes each message to the clients on [`MEMBER`].
struct Publisher;

impl Service for Publisher {
    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        if request.path() == MEMBER {
            ctx.subscribe(client, "topic").expect("it is connected");
        }
    }

    fn message(&mut self, ctx: &mut Context, _: ClientId, message: Message<'_>) {
        ctx.publish("topic", message);
    }
}

/// Runs Outrigger's server for fan-out.
fn serve() {
    let mut config = Config::new(([127, 0, 0, 1], 0).into());
    // The load does not expect PINGs.
    config.timeouts.ping_interval = None;
    let server = outrigger::Server::bind(config, Publisher).expect("a free port");
    println!("{}", server.local_addresses()[0]);
    server.run().expect("the loop works");
}

/// A connection after its handshake.
fn connect(server: &Server, path: &str) -> TcpStream {
    let mut stream = common::connect(server.address);
    upgrade(&mut stream, path);
    stream.set_nonblocking(true).expect("it can be set");
    TcpStream::from_std(stream)
}

/// Measures a server once. `None` if it does not do this work. `others` is the number of idle clients beside the connections.
fn once(name: &str, work: Work, others: usize, time: Duration) -> Option<Measured> {
    if !work.is_published {
        let server = start(name)?;
        return Some(measure(&server, work, time, || connect(&server, "/")));
    }
    let server = start_publisher(name, others)?;
    let _others: Vec<_> = (0..others).map(|_| connect(&server, "/")).collect();
    Some(measure(&server, work, time, || connect(&server, MEMBER)))
}

/// The bytes of an idle connection.
fn resident(name: &str) -> Option<u64> {
    let server = start(name)?;
    // The first connection also allocates shared memory.
    let _first = connect(&server, "/");
    let before = server.resident();
    let all: Vec<_> = (0..IDLE).map(|_| connect(&server, "/")).collect();
    Some(server.resident().saturating_sub(before) / all.len() as u64)
}

fn main() {
    if env::args().any(|arg| arg == "--serve") {
        return serve();
    }
    // `cargo test --all-targets` runs this without --bench, and there is nothing to measure.
    if !env::args().any(|arg| arg == "--bench") {
        return;
    }
    let descriptors = common::raise_descriptor_limit();
    let time = Duration::from_secs_f64(setting("SECONDS_EACH", 1.0));
    let rounds = setting("ROUNDS", 3.0) as usize;
    let mut servers = SERVERS.to_vec();
    servers.retain(|&name| name != PUBLISHER || env::var_os(PUBLISHER).is_some());

    println!("processor time for a message in µs, and messages per second");
    print!("{:>24}", "bytes, depth, conns");
    servers.iter().for_each(|name| print!("{name:>24}"));
    println!();
    let mut groups: Vec<Group> = Vec::new();
    let echo = ECHO.map(|work| (work, 0));
    for (work, others) in echo.into_iter().chain(FAN_OUT) {
        let Work {
            size,
            depth,
            connections,
            ..
        } = work;
        let to = match (work.is_published, others) {
            (false, _) => format!("{connections}"),
            (true, 0) => format!("to {connections}"),
            (true, _) => format!("to {connections} of {}", connections + others),
        };
        print!("{:>24}", format!("{size}, {depth}, {to}"));
        // Each process has a few other descriptors.
        if descriptors < (connections + others) as u64 + 100 {
            println!("  skipped: the limit of open descriptors is {descriptors}");
            continue;
        }
        let mut measured = vec![Vec::new(); servers.len()];
        // Alternates between the servers, so that a change of the machine's speed affects all of them.
        for _ in 0..rounds {
            for (name, measured) in servers.iter().zip(&mut measured) {
                measured.extend(once(name, work, others, time));
            }
        }
        let row = measured.iter().map(|all| {
            let median = (!all.is_empty()).then(|| Measured::median(all));
            let cell = median.map(|one| format!("{:.2}  {:.0}/s", one.cpu, one.rate));
            print!("{:>24}", cell.as_deref().unwrap_or("-"));
            median.map(|one| one.cpu)
        });
        let values = row.collect();
        println!();
        let size = match size {
            ..1024 => format!("{size} B"),
            1024..1048576 => format!("{} KiB", size >> 10),
            _ => format!("{} MiB", size >> 20),
        };
        groups.push((format!("{size} × {depth}, {to} clients"), values));
    }

    print!("{:>24}", "bytes, idle conn");
    let idle = servers.iter().map(|name| {
        let bytes = resident(name);
        let cell = bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
        print!("{cell:>24}");
        bytes.map(|bytes| bytes.max(1) as f64)
    });
    groups.push(("memory, idle client".to_owned(), idle.collect()));
    println!();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/throughput.svg");
    fs::write(path, draw(&servers, &groups)).expect("the chart can be written");
}

/// A kind of work, and the figures of the servers that do it.
type Group = (String, Vec<Option<f64>>);

/// Draws bars: for each kind of work, the other libraries' processor time per message relative to Outrigger's.
fn draw(servers: &[&str], groups: &[Group]) -> String {
    const WIDTH: f64 = 760.0;
    const LEFT: f64 = 210.0;
    const BAR: f64 = 11.0;
    let colours = ["#2a78d6", "#8f99a6", "#b4bcc6", "#6d7783", "#a68f8f"];
    let bars = groups
        .iter()
        .map(|(_, values)| values.iter().flatten().count());
    let height = 70.0 + bars.sum::<usize>() as f64 * BAR + groups.len() as f64 * 14.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<style>text{{fill:#24292f}}@media(prefers-color-scheme:dark){{text{{fill:#d6dce3}}}}</style>\n\
         <text x=\"8\" y=\"18\" font-size=\"14\">Processor time for a message that is echoed, or sent to many clients, \
         Outrigger = 1 (less is better)</text>\n"
    );
    for (number, (name, colour)) in servers.iter().zip(colours).enumerate() {
        let x = LEFT + number as f64 * (WIDTH - LEFT) / servers.len() as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"32\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{}\" y=\"41\">{name}</text>",
            x + 15.0
        );
    }
    // Longer bars are cut off here, and only their figures show their length.
    let most = 8.0;
    let scale = (WIDTH - LEFT - 60.0) / most;
    let mut y = 58.0;
    for (name, values) in groups {
        let bars = values.iter().zip(colours);
        let bars: Vec<_> = bars
            .filter_map(|(value, colour)| Some(((*value)?, colour)))
            .collect();
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>",
            LEFT - 10.0,
            y + bars.len() as f64 / 2.0 * BAR + 4.0
        );
        for (value, colour) in &bars {
            let value = value / bars[0].0;
            let width = value.min(most) * scale;
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"10\">{value:.2}</text>",
                BAR - 2.0,
                LEFT + width + 4.0,
                y + BAR - 2.5
            );
            y += BAR;
        }
        y += 14.0;
    }
    svg.push_str("</svg>\n");
    svg
}
