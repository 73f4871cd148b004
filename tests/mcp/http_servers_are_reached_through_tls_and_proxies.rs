//! `outrigger connect https://...`: certificates, proxies, and what a user without a token reads.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::common::program::Program;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

const OUTRIGGER: &str = env!("CARGO_BIN_EXE_outrigger");

/// A name that only the proxy knows.
const NAME: &str = "mcp.example";

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"host","version":"1"}}}"#;

/// A server over TLS with a certificate of its own, and its files.
struct Server {
    _program: Program,
    address: SocketAddr,
    folder: PathBuf,
}

impl Server {
    fn start(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("outrigger-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let key = KeyPair::generate().expect("a key");
        let names = ["127.0.0.1".to_owned(), NAME.to_owned()];
        let certificate = CertificateParams::new(names).expect("names");
        let certificate = certificate.self_signed(&key).expect("a certificate");
        let files = [
            ("cert", certificate.pem()),
            ("key", key.serialize_pem()),
            ("token", "s3cret\n".to_owned()),
            (
                "resource",
                format!(r#"{{"resource":"https://{NAME}/mcp"}}"#),
            ),
        ];
        for (name, text) in files {
            let file = folder.join(name);
            fs::write(&file, text).expect("a file");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
        }
        let mut command = Command::new(OUTRIGGER);
        command.current_dir(&folder).args([
            "mcp",
            "--listen",
            "127.0.0.1:0",
            "--allow-host",
            NAME,
            "--tls-cert",
            "cert",
            "--tls-key",
            "key",
            "--token-file",
            "token",
            "--oauth-resource",
            "resource",
            "--",
            OUTRIGGER,
            "example-mcp",
        ]);
        let program = Program::spawn(&mut command);
        let address = program.address();
        Self {
            _program: program,
            address,
            folder,
        }
    }

    /// A host in front of `connect`, without variables for proxies.
    fn connect(&self, url: &str, options: &[&str], variables: &[(&str, &str)]) -> Program {
        let mut command = Command::new(OUTRIGGER);
        for name in ["https_proxy", "all_proxy", "no_proxy"] {
            command.env_remove(name).env_remove(name.to_uppercase());
        }
        command.env_remove("OUTRIGGER_TOKEN");
        command.envs(variables.iter().copied());
        command.current_dir(&self.folder).args(["connect", url]);
        let mut host = Program::spawn(command.args(options));
        host.write(INITIALIZE);
        host
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Uses a session until its end.
fn use_server(host: &mut Program) {
    assert_eq!(host.event()["result"]["protocolVersion"], "2025-11-25");
    host.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    let add = json!({"name": "add", "arguments": {"a": 1, "b": 2}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": add});
    host.write(&call.to_string());
    let answer = host.event();
    assert_eq!(answer["result"]["content"][0]["text"], "3", "{answer}");
    host.end_input();
    assert!(host.wait().success());
}

/// The error of the first request, and the log.
fn refusal(mut host: Program) -> (String, String) {
    let answer: Value = host.event();
    let message = answer["error"]["message"].as_str();
    let message = message.expect("an error").to_owned();
    let (status, log) = host.wait_and_read_log();
    assert_eq!(status.code(), Some(1), "{log}");
    (message, log)
}

/// A proxy that opens all tunnels to one address. The receiver gets the first lines of the requests.
fn proxy(to: SocketAddr) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (sender, requests) = channel();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(to).expect("it listens");
            let mut lines = BufReader::new(client.try_clone().expect("a descriptor")).lines();
            let request = lines.next().expect("a line").expect("text");
            while lines
                .next()
                .is_some_and(|line| !line.expect("text").is_empty())
            {}
            if sender.send(request).is_err() {
                return;
            }
            let mut answered = client.try_clone().expect("a descriptor");
            let head = b"HTTP/1.1 200 Connection established\r\n\r\n";
            answered.write_all(head).expect("it is read");
            let again = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
            for (mut from, mut to) in [(again(&client), again(&server)), (server, client)] {
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    (address, requests)
}

#[test]
fn a_server_over_tls_is_trusted_by_its_own_certificate_only() {
    let server = Server::start("connect-tls");
    let url = format!("https://{}/mcp", server.address);
    let options = ["--ca", "cert", "--token-file", "token"];
    use_server(&mut server.connect(&url, &options, &[]));
    let (message, log) = refusal(server.connect(&url, &options[2..], &[]));
    assert!(message.contains("certificate"), "{message}");
    assert!(log.contains("--ca"), "{log}");
    let (message, log) = refusal(server.connect(&url, &options[..2], &[]));
    let metadata = format!(
        "https://{}/.well-known/oauth-protected-resource",
        server.address
    );
    assert!(message.contains("401"), "{message}");
    assert!(message.contains(&metadata), "{message}");
    assert!(log.contains("--token-file"), "{log}");
}

#[test]
fn a_server_is_reached_through_a_proxy_that_alone_knows_its_name() {
    let server = Server::start("connect-proxy");
    let (address, requests) = proxy(server.address);
    let url = format!("https://{NAME}/mcp");
    let options = ["--ca", "cert", "--token-file", "token"];
    let variable = format!("http://{address}");
    let mut host = server.connect(&url, &options, &[("HTTPS_PROXY", &variable)]);
    use_server(&mut host);
    let tunnels: Vec<String> = requests.try_iter().collect();
    assert!(!tunnels.is_empty(), "the proxy is asked");
    for request in tunnels {
        assert_eq!(request, format!("CONNECT {NAME}:443 HTTP/1.1"));
    }
    // An exception connects directly, where nobody knows the name.
    let variables = [("HTTPS_PROXY", &*variable), ("NO_PROXY", "example")];
    let (message, _) = refusal(server.connect(&url, &options, &variables));
    assert!(
        message.contains(NAME) || message.contains("resolve"),
        "{message}"
    );
    assert!(requests.try_recv().is_err(), "the proxy is not asked");
}
