//! Measures echo, handshakes and the memory of an idle client over TLS, for Outrigger and other servers in one run.
//!
//! `cargo bench --bench tls` prints a table. Names of servers after `--` select some of them. `SECONDS_EACH=2` sets the
//! duration of each measurement, `ROUNDS=3` their number, `HANDSHAKES=2000` and `IDLE=10000` the connections of the last
//! rows. The results are medians, and the figures in parentheses are multiples of the first server's.
//!
//! Every server has the same certificate and one thread, and runs Outrigger behind it if it is a proxy: its processor time and
//! memory are then those of both processes. This program generates the load, as `benches/throughput.rs` does, with TLS 1.3.

mod common;

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use common::{Measured, PATIENCE, Server, Socket, Work, connect, measure, setting, upgrade};
use mio::net::TcpStream;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore};

/// The work, and whether each message is a TLS record of its own. Otherwise each batch is one, up to the 16 KiB of a record.
const WORK: [(Work, bool); 6] = [
    (Work::new(20, 1, 100), false),
    (Work::new(20, 32, 100), false),
    (Work::new(20, 32, 100), true),
    (Work::new(1024, 16, 100), false),
    (Work::new(16384, 1, 100), false),
    (Work::new(65536, 4, 20), false),
];

/// The servers, with the program that has to be installed.
const SERVERS: [(&str, Option<&str>); 5] = [
    ("outrigger", None),
    ("tokio-rustls", None),
    ("tokio-rustls-batched", None),
    ("nginx", Some("/usr/sbin/nginx")),
    ("haproxy", Some("/usr/sbin/haproxy")),
];

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tls-bench");

/// The certificate of all servers, and what trusts it.
struct Tls {
    certificate: String,
    key: String,
    /// A file with both, as HAProxy wants it.
    both: String,
    roots: RootCertStore,
}

impl Tls {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
        let names = vec!["localhost".to_owned()];
        let certificate = rcgen::CertificateParams::new(names)
            .and_then(|parameters| parameters.self_signed(&key))
            .expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).expect("it is valid");
        let (certificate, key) = (certificate.pem(), key.serialize_pem());
        Self {
            both: write("both.pem", &format!("{certificate}{key}")),
            certificate: write("certificate.pem", &certificate),
            key: write("key.pem", &key),
            roots,
        }
    }

    /// A client with the cipher suite that browsers ask for first.
    fn client(&self, resumption: Resumption) -> Arc<ClientConfig> {
        let provider = CryptoProvider {
            cipher_suites: vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256],
            kx_groups: vec![ring::kx_group::X25519],
            ..ring::default_provider()
        };
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the suite is of this version")
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = resumption;
        Arc::new(config)
    }

    fn start(&self, name: &str) -> Server {
        let many = ["--max-clients", "100000", "--ping-interval", "1h"];
        match name {
            "outrigger" => {
                let tls = ["--tls-cert", &self.certificate, "--tls-key", &self.key];
                Server::outrigger(&[&many[..], &tls].concat())
            }
            "nginx" => behind(Server::outrigger(&many), |port, inner| {
                self.nginx(port, inner)
            }),
            "haproxy" => behind(Server::outrigger(&many), |port, inner| {
                self.haproxy(port, inner)
            }),
            _ => Server::peer(&[name, &self.certificate, &self.key]),
        }
    }

    /// One process, without a master.
    fn nginx(&self, port: u16, inner: SocketAddr) -> Command {
        let Self {
            certificate, key, ..
        } = self;
        let config = format!(
            "daemon off; master_process off; pid nginx.pid; error_log stderr crit;
            events {{ worker_connections 30000; }}
            http {{
                access_log off;
                client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; scgi_temp_path temp;
                uwsgi_temp_path temp;
                server {{
                    listen 127.0.0.1:{port} ssl;
                    ssl_certificate {certificate};
                    ssl_certificate_key {key};
                    ssl_protocols TLSv1.2 TLSv1.3;
                    location / {{
                        proxy_pass http://{inner};
                        proxy_http_version 1.1;
                        proxy_set_header Upgrade $http_upgrade;
                        proxy_set_header Connection upgrade;
                        proxy_read_timeout 1h;
                    }}
                }}
            }}"
        );
        let mut command = Command::new("/usr/sbin/nginx");
        command.args(["-e", "stderr", "-p", FOLDER, "-c"]);
        command.arg(write("nginx.conf", &config));
        command
    }

    fn haproxy(&self, port: u16, inner: SocketAddr) -> Command {
        let both = &self.both;
        let config = format!(
            "global\n nbthread 1\n ssl-default-bind-options ssl-min-ver TLSv1.2\n\
            defaults\n mode http\n timeout connect 10s\n timeout client 1h\n timeout server 1h\n timeout tunnel 1h\n\
            frontend tls\n bind 127.0.0.1:{port} ssl crt {both} alpn http/1.1\n default_backend echo\n\
            backend echo\n server outrigger {inner}\n"
        );
        let mut command = Command::new("/usr/sbin/haproxy");
        command.args(["-q", "-db", "-f"]);
        command.arg(write("haproxy.cfg", &config));
        command
    }
}

/// Writes a file into the folder of the benchmark. Returns its path.
fn write(name: &str, contents: &str) -> String {
    let path = format!("{FOLDER}/{name}");
    fs::write(&path, contents).expect("the folder is there");
    path
}

/// Starts a proxy in front of a server.
fn behind(mut server: Server, command: impl FnOnce(u16, SocketAddr) -> Command) -> Server {
    let inner = server.address;
    let mut proxy = Server::on_free_port(|port| command(port, inner));
    server.processes.append(&mut proxy.processes);
    server.address = proxy.address;
    server
}

/// TLS on a socket.
struct TlsStream<S> {
    socket: S,
    tls: ClientConnection,
    /// The length of the pieces that become records.
    record: usize,
    /// Bytes from the socket that TLS has not taken yet.
    input: Vec<u8>,
    taken: usize,
}

impl TlsStream<std::net::TcpStream> {
    /// A connection after the handshake of TLS.
    fn connect(server: &Server, config: &Arc<ClientConfig>) -> Self {
        let mut socket = connect(server.address);
        socket
            .set_read_timeout(Some(PATIENCE))
            .expect("it can be set");
        let name = ServerName::try_from("localhost").expect("a name");
        let mut tls = ClientConnection::new(config.clone(), name).expect("it is configured");
        tls.set_buffer_limit(None);
        while tls.is_handshaking() {
            tls.complete_io(&mut socket).expect("the server agrees");
        }
        Self {
            socket,
            tls,
            record: usize::MAX,
            input: Vec::new(),
            taken: 0,
        }
    }

    fn into_nonblocking(self, record: usize) -> TlsStream<TcpStream> {
        self.socket.set_nonblocking(true).expect("it can be set");
        TlsStream {
            socket: TcpStream::from_std(self.socket),
            tls: self.tls,
            record,
            input: self.input,
            taken: self.taken,
        }
    }
}

impl<S: Read> Read for TlsStream<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return result,
            }
            if self.taken == self.input.len() {
                self.input.resize(1 << 16, 0);
                let read = self.socket.read(&mut self.input);
                self.input.truncate(*read.as_ref().unwrap_or(&0));
                self.taken = 0;
                if read? == 0 {
                    return Ok(0);
                }
            }
            let mut rest = &self.input[self.taken..];
            self.taken += self.tls.read_tls(&mut rest)?;
            self.tls.process_new_packets().map_err(io::Error::other)?;
        }
    }
}

impl<S: Write> Write for TlsStream<S> {
    /// Takes all bytes. The next calls of `flush` write what the socket does not take now.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for record in bytes.chunks(self.record) {
            self.tls.writer().write_all(record)?;
        }
        match self.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

impl Socket for TlsStream<TcpStream> {
    fn source(&mut self) -> &mut TcpStream {
        &mut self.socket
    }
}

/// The servers, a table of what they take, and how often each is measured.
struct Bench {
    tls: Tls,
    servers: Vec<&'static str>,
    rounds: usize,
}

impl Bench {
    /// Measures each server in turn, so that a change of the machine's speed affects all of them. Returns their results.
    fn in_turn<T>(&self, mut measure: impl FnMut(&Server) -> T) -> Vec<Vec<T>> {
        let mut all: Vec<Vec<T>> = self.servers.iter().map(|_| Vec::new()).collect();
        for _ in 0..self.rounds {
            for (name, all) in self.servers.iter().zip(&mut all) {
                all.push(measure(&self.tls.start(name)));
            }
        }
        all
    }

    /// Prints the median of each server, and its multiple of the first one.
    fn print(&self, title: &str, results: &[Vec<Measured>], digits: usize) {
        print!("{title:>38}");
        let medians: Vec<Measured> = results.iter().map(|all| Measured::median(all)).collect();
        for one in &medians {
            let ratio = one.cpu / medians[0].cpu;
            let mut cell = format!("{:.digits$} ({ratio:.2})", one.cpu);
            if one.rate > 0.0 {
                cell.push_str(&format!(" {:>8.0}/s", one.rate));
            }
            print!("{cell:>27}");
        }
        println!();
    }

    fn echo(&self, time: Duration) {
        println!("processor time for a message in µs, and messages per second");
        let config = self.tls.client(Resumption::disabled());
        for (work, separate) in WORK {
            let frame = work.batch().0.len() / work.depth;
            let record = if separate { frame } else { usize::MAX };
            let results = self.in_turn(|server| {
                measure(server, work, time, || {
                    let mut stream = TlsStream::connect(server, &config);
                    upgrade(&mut stream, "/");
                    stream.into_nonblocking(record)
                })
            });
            let title = format!(
                "{} B × {}, {} clients",
                work.size, work.depth, work.connections
            );
            let records = if separate { ", a record each" } else { "" };
            self.print(&format!("{title}{records}"), &results, 2);
        }
    }

    /// Handshakes of TLS alone, one after the other, while another client is idle: a server may clean up after its last one.
    fn handshakes(&self, count: usize) {
        println!(
            "processor time for a handshake in µs, and handshakes per second of processor time"
        );
        for (kind, title) in [
            (HandshakeKind::Full, "full, then closed"),
            (HandshakeKind::Resumed, "resumed, then closed"),
        ] {
            let results = self.in_turn(|server| {
                let config = self.tls.client(match kind {
                    HandshakeKind::Resumed => Resumption::in_memory_sessions(32),
                    _ => Resumption::disabled(),
                });
                let mut idle = TlsStream::connect(server, &config);
                upgrade(&mut idle, "/");
                // The first one takes a ticket.
                handshake(server, &config);
                let cpu = server.cpu();
                for _ in 0..count {
                    assert_eq!(handshake(server, &config), Some(kind));
                }
                per_client(server, count, cpu)
            });
            self.print(title, &results, 0);
        }
    }

    /// Clients that connect, upgrade and stay: what each of them takes to get in, and then the memory.
    fn idle(&self, count: usize) {
        let config = self.tls.client(Resumption::disabled());
        let results = self.in_turn(|server| {
            let connect = || {
                let mut stream = TlsStream::connect(server, &config);
                upgrade(&mut stream, "/");
                // The state of TLS is not needed any more.
                stream.socket
            };
            // The first connection also allocates shared memory.
            let first = connect();
            let before = server.resident();
            let cpu = server.cpu();
            let clients: Vec<_> = (0..count).map(|_| connect()).collect();
            let client = per_client(server, count, cpu);
            let bytes = server.resident().saturating_sub(before) as f64 / clients.len() as f64;
            drop(first);
            (
                client,
                Measured {
                    cpu: bytes,
                    rate: 0.0,
                },
            )
        });
        let of = |part: fn(&(Measured, Measured)) -> Measured| -> Vec<Vec<Measured>> {
            let all = results.iter();
            all.map(|all| all.iter().map(part).collect()).collect()
        };
        self.print("full, with the upgrade, and stays", &of(|one| one.0), 0);
        println!("resident memory in bytes");
        self.print(&format!("an idle client of {count}"), &of(|one| one.1), 0);
    }
}

/// The processor time for a client, and how many would take a second of it.
fn per_client(server: &Server, count: usize, before: Duration) -> Measured {
    let used = server.cpu().saturating_sub(before).as_secs_f64();
    let count = count as f64;
    Measured {
        rate: count / used,
        cpu: used * 1e6 / count,
    }
}

/// A connection that makes the handshake of TLS and ends. Waits until the server ends it too.
fn handshake(server: &Server, config: &Arc<ClientConfig>) -> Option<HandshakeKind> {
    let mut stream = TlsStream::connect(server, config);
    let kind = stream.tls.handshake_kind();
    stream.tls.send_close_notify();
    stream.flush().expect("the server is there");
    stream.socket.shutdown(Shutdown::Write).expect("it is open");
    // The tickets come first.
    let ended = io::copy(&mut stream, &mut io::sink());
    let timed_out = |error: &io::Error| error.kind() == ErrorKind::WouldBlock;
    assert!(
        !ended.is_err_and(|error| timed_out(&error)),
        "the server ends it"
    );
    kind
}

fn main() {
    // `cargo test --all-targets` runs this without --bench, and there is nothing to measure.
    let (flags, names): (Vec<_>, Vec<_>) = std::env::args()
        .skip(1)
        .partition(|arg| arg.starts_with('-'));
    if !flags.iter().any(|flag| flag == "--bench") {
        return;
    }
    let descriptors = common::raise_descriptor_limit() as usize;
    fs::create_dir_all(FOLDER).expect("a folder below target/");
    let mut servers = Vec::new();
    for (name, program) in SERVERS {
        let wanted = names.is_empty() || names.iter().any(|one| one == name);
        match program.filter(|program| !Path::new(program).exists()) {
            _ if !wanted => {}
            Some(program) => println!("without {name}: {program} is not installed"),
            None => servers.push(name),
        }
    }
    let bench = Bench {
        tls: Tls::new(),
        servers,
        rounds: setting("ROUNDS", 3.0) as usize,
    };
    println!("TLS 1.3 with AES-128-GCM, X25519 and ECDSA P-256");
    print!("{:>38}", "");
    bench.servers.iter().for_each(|name| print!("{name:>27}"));
    println!();
    bench.echo(Duration::from_secs_f64(setting("SECONDS_EACH", 1.0)));
    bench.handshakes(setting("HANDSHAKES", 2000.0) as usize);
    // A proxy has two descriptors for each client.
    let most = descriptors.saturating_sub(100) / 2;
    bench.idle((setting("IDLE", 10_000.0) as usize).min(most));
}
