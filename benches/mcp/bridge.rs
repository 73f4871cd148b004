//! The bridges that the benchmark compares, as processes, and sessions on them.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mio::{Events, Poll};

use crate::common::{self, Server};
use crate::http::{self, PATIENCE};

/// Where all bridges serve MCP.
pub(crate) const PATH: &str = "/mcp";

/// A header line that every request needs.
pub(crate) const ACCEPT: &str = "Accept: application/json, text/event-stream\r\n";

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// A program that serves an MCP server on standard streams over HTTP.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Program {
    Outrigger,
    /// With one MCP server for all sessions.
    OutriggerShared,
    Supergateway,
    McpProxy,
}

/// Where the programs are.
pub(crate) struct Installed {
    outrigger: PathBuf,
    /// The program of the MCP server. It is a file of its own, so that the bridge shares no memory with it.
    server: PathBuf,
    supergateway: PathBuf,
    mcp_proxy: PathBuf,
}

impl Installed {
    /// Finds the programs and copies those that are measured.
    pub(crate) fn find() -> Self {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let outrigger = std::env::var_os("OUTRIGGER").map(PathBuf::from);
        let outrigger = outrigger.unwrap_or_else(|| env!("CARGO_BIN_EXE_outrigger").into());
        let copies = ["mcp-bridge", "mcp-server"].map(|name| target.join(name));
        let copies = copies.map(|copy| {
            // A process of an earlier run may still execute it.
            let _ = fs::remove_file(&copy);
            fs::copy(&outrigger, &copy).expect("the binary can be copied");
            fs::canonicalize(copy).expect("it is there")
        });
        let peers = std::env::var_os("MCP_PEERS").map(PathBuf::from);
        let peers =
            peers.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/interop"));
        let [outrigger, server] = copies;
        Self {
            outrigger,
            server,
            supergateway: peers.join("supergateway/node_modules/supergateway/dist/index.js"),
            mcp_proxy: peers.join("mcp-proxy/bin/mcp-proxy"),
        }
    }

    /// Whether a bridge is installed.
    pub(crate) fn has(&self, program: Program) -> bool {
        match program {
            Program::Outrigger | Program::OutriggerShared => true,
            Program::Supergateway => self.supergateway.exists(),
            Program::McpProxy => self.mcp_proxy.exists(),
        }
    }

    /// Starts a bridge. It starts again if another program takes the port first.
    pub(crate) fn start(&self, program: Program) -> Result<Bridge, String> {
        const ATTEMPTS: usize = 3;
        let mut attempts = (0..ATTEMPTS).map(|_| self.attempt(program));
        attempts
            .find_map(|bridge| bridge.transpose())
            .unwrap_or(Err("it exits at the start".to_owned()))
    }

    /// Returns nothing if the bridge exits before it listens.
    fn attempt(&self, program: Program) -> Result<Option<Bridge>, String> {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("it is bound");
        drop(free);
        let (host, port) = (address.to_string(), address.port().to_string());
        let mut command = match program {
            Program::Outrigger | Program::OutriggerShared => {
                let share = match program {
                    Program::OutriggerShared => "all",
                    _ => "none",
                };
                let mut command = Command::new(&self.outrigger);
                command.args(["mcp", "--no-auth", "--log", "off", "--listen", &host]);
                // A shared process outlives the settling of an idle bridge, and ends soon after its sessions.
                command.args(["--share", share, "--process-idle", "5s", "--"]);
                command.arg(&self.server).arg("example-mcp");
                command
            }
            Program::Supergateway => {
                let mut command = Command::new("node");
                command.arg(&self.supergateway).arg("--stdio");
                command.arg(format!("{} example-mcp", self.server.display()));
                command.args(["--outputTransport", "streamableHttp", "--stateful"]);
                command.args(["--logLevel", "none", "--port", &port]);
                command
            }
            Program::McpProxy => {
                let mut command = Command::new(&self.mcp_proxy);
                command.args(["--host", "127.0.0.1", "--port", &port]);
                command.args(["--log-level", "ERROR", "--"]);
                command.arg(&self.server).arg("example-mcp");
                command
            }
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start: {error}"))?;
        let mut server = Server {
            processes: vec![child],
            address,
        };
        let deadline = Instant::now() + PATIENCE;
        while !is_listening(address) {
            if let Ok(Some(_)) = server.processes[0].try_wait() {
                return Ok(None);
            }
            if Instant::now() > deadline {
                return Err(format!("it does not listen after {} s", PATIENCE.as_secs()));
            }
            pause(Duration::from_millis(20));
        }
        Ok(Some(Bridge {
            server,
            mcp_server: self.server.clone(),
        }))
    }
}

/// Whether a server listens. A socket that connects to a free port may get that port itself and be its own peer.
fn is_listening(address: SocketAddr) -> bool {
    let stream = std::net::TcpStream::connect(address);
    stream.is_ok_and(|stream| stream.local_addr().is_ok_and(|local| local != address))
}

/// Waits.
pub(crate) fn pause(time: Duration) {
    let (mut poll, mut events) = (Poll::new().expect("epoll"), Events::with_capacity(1));
    poll.poll(&mut events, Some(time)).expect("epoll");
}

/// A running bridge. Dropping it kills it, and its MCP servers exit.
pub(crate) struct Bridge {
    server: Server,
    mcp_server: PathBuf,
}

impl Bridge {
    /// The ids of the bridge's processes, and of its MCP servers.
    pub(crate) fn processes(&self) -> (Vec<u32>, Vec<u32>) {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for entry in fs::read_dir("/proc").expect("procfs").flatten() {
            let id = entry.file_name().to_str().and_then(|id| id.parse().ok());
            let Some(id) = id else { continue };
            let Ok(stat) = fs::read_to_string(format!("/proc/{id}/stat")) else {
                continue;
            };
            let fields = stat.rsplit_once(") ").expect("a name").1;
            let parent = fields.split(' ').nth(1).and_then(|id| id.parse().ok());
            children.entry(parent.unwrap_or(0)).or_default().push(id);
        }
        let (mut bridge, mut servers) = (vec![self.server.processes[0].id()], Vec::new());
        let mut at = 0;
        while at < bridge.len() {
            for &id in children.get(&bridge[at]).into_iter().flatten() {
                let program = fs::read_link(format!("/proc/{id}/exe"));
                match program.is_ok_and(|program| program == self.mcp_server) {
                    true => servers.push(id),
                    false => bridge.push(id),
                }
            }
            at += 1;
        }
        (bridge, servers)
    }

    /// The processor time of all threads of the bridge so far.
    pub(crate) fn cpu(&self) -> Duration {
        let ticks = self.processes().0.into_iter().map(|id| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
            let ticks = fields.split(' ').skip(11).take(2);
            ticks.map(|ticks| ticks.parse().unwrap_or(0)).sum::<u64>()
        });
        Duration::from_millis(ticks.sum::<u64>() * 1000 / rustix::param::clock_ticks_per_second())
    }

    /// The proportional set size of the bridge in bytes.
    pub(crate) fn memory(&self) -> f64 {
        let kib = self.processes().0.into_iter().map(|id| {
            let rollup = fs::read_to_string(format!("/proc/{id}/smaps_rollup"));
            let rollup = rollup.unwrap_or_default();
            let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
            kib.and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0)
        });
        kib.sum::<f64>() * 1024.0
    }

    /// Opens a connection.
    pub(crate) fn connect(&self) -> std::net::TcpStream {
        common::connect(self.server.address)
    }

    /// Begins a session as clients do, and returns the header lines of its requests.
    pub(crate) fn begin(&self, stream: &mut std::net::TcpStream) -> Result<String, String> {
        let request = http::request("POST", PATH, ACCEPT, INITIALIZE);
        let answer = http::exchange(stream, &request, false)?;
        let text = String::from_utf8_lossy(&answer.body);
        let session = answer.session.filter(|_| text.contains("2025-11-25"));
        let session = session.ok_or(format!("initialize: {} {text}", answer.status))?;
        let fields =
            format!("{ACCEPT}Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: 2025-11-25\r\n");
        let request = http::request("POST", PATH, &fields, INITIALIZED);
        match http::exchange(stream, &request, false)?.status {
            202 => Ok(fields),
            status => Err(format!("initialized: {status}")),
        }
    }

    /// Ends a session. The connection is a new one, because a bridge may close one that has been idle.
    pub(crate) fn end(&self, fields: &str) -> Result<(), String> {
        let request = http::request("DELETE", PATH, fields, "");
        match http::exchange(&mut self.connect(), &request, false)?.status {
            200..300 => Ok(()),
            status => Err(format!("DELETE: {status}")),
        }
    }
}
