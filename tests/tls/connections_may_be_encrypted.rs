//! Tests of TLS with the real program and a client of rustls.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::common::program::{Program, outrigger};
use crate::common::{BINARY, PATIENCE, TEXT, TestServer, Told, Wire, frame, patient};
use outrigger::{TlsConfig, TlsIdentity};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const OUTRIGGER: &str = env!("CARGO_BIN_EXE_outrigger");

/// A connection over TLS.
type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A directory for certificates. Dropping it removes it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("outrigger-tls-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("permissions");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An authority that signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "authority");
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate and its key in PEM.
    fn sign(&self, names: &[&str], common: &str) -> (String, String) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names
            .iter()
            .map(|name| match name.parse() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName((*name).try_into().expect("a name")),
            })
            .collect();
        params.distinguished_name.push(DnType::CommonName, common);
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.0).expect("signed");
        (signed.pem(), key.serialize_pem())
    }

    /// The settings of a client that trusts this authority.
    fn client(&self, own: Option<&(String, String)>) -> Arc<ClientConfig> {
        trusting(self.pem().as_bytes(), own)
    }
}

/// The settings of a client that trusts a certificate in PEM, and may have one of its own.
fn trusting(root: &[u8], own: Option<&(String, String)>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(root).expect("a certificate");
    roots.add(root).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    Arc::new(match own {
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM"),
            )
            .expect("a certificate"),
        None => builder.with_no_client_auth(),
    })
}

fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> Tls {
    let socket = TcpStream::connect(address).expect("the server listens");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("a time limit");
    over(socket, config)
}

fn over(socket: TcpStream, config: &Arc<ClientConfig>) -> Tls {
    let name = ServerName::try_from("127.0.0.1").expect("an address");
    let client = ClientConnection::new(Arc::clone(config), name).expect("a client");
    StreamOwned::new(client, socket)
}

/// Sends a handshake and returns the head of the response.
fn upgrade(tls: &mut Tls, fields: &str) -> String {
    let request = format!(
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{fields}\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    tls.write_all(request.as_bytes()).expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        tls.read_exact(&mut byte).expect("a response");
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("ASCII")
}

/// Sends a message and expects its echo, which is longer than 125 bytes only if it is a whole number of KiB.
fn echo(tls: &mut Tls, payload: &[u8]) {
    tls.write_all(&frame(true, BINARY, payload)).expect("sent");
    let mut header = vec![0; if payload.len() < 126 { 2 } else { 10 }];
    tls.read_exact(&mut header).expect("a header");
    let mut echoed = vec![0; payload.len()];
    tls.read_exact(&mut echoed).expect("an echo");
    assert!(echoed == payload);
}

/// Starts an echo server with a certificate for 127.0.0.1.
fn serve(folder: &Folder, authority: &Authority, args: &[&str]) -> Program {
    let (certificate, key) = authority.sign(&["127.0.0.1"], "server");
    let certificate = folder.write("server.pem", &certificate);
    let key = folder.write("server.key", &key);
    let own = [
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
        "--log",
        "info",
    ];
    let all = [&["echo", "--listen", "127.0.0.1:0"], &own[..], args].concat();
    Program::spawn_with(Command::new(OUTRIGGER).args(all), Stdio::null())
}

#[test]
fn a_self_signed_certificate_is_kept_and_its_fingerprint_is_printed() {
    let folder = Folder::new("self");
    let args = [
        "echo",
        "--tls-self-signed",
        "--tls-dir",
        &folder.path("new"),
    ];
    let mut lines = Vec::new();
    for _ in 0..2 {
        let server = Program::start(&args);
        lines.push(server.line());
        let address = server.address();
        let file = folder.path("new/outrigger.pem");
        let mode = fs::metadata(&file).expect("the certificate").permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        let text = fs::read(&file).expect("the certificate");
        let mut tls = connect(address, &trusting(&text, None));
        assert!(upgrade(&mut tls, "").starts_with("HTTP/1.1 101 "));
        echo(&mut tls, b"hello");
        echo(&mut tls, &vec![7; 3 << 20]);
    }
    assert!(lines[0].starts_with("outrigger: certificate SHA-256 fingerprint "));
    assert_eq!(lines[0].len(), 43 + 32 * 3 - 1);
    assert_eq!(lines[0], lines[1]);
}

/// A connection over TLS cannot pass, so the client comes back to the same certificate.
#[cfg(target_os = "linux")]
#[test]
fn an_upgrade_keeps_a_certificate_that_is_in_no_file_and_clients_come_back() {
    let mut server = Program::start(&["echo", "--tls-self-signed", "--log", "info"]);
    let line = server.line();
    let fingerprint = line.rsplit_once(' ').expect("the fingerprint").1.to_owned();
    let url = format!("wss://{}/", server.address());
    let mut log = server.follow_log();
    let flags = ["--no-json", "--linger", "0s", "--fingerprint"];
    let args = [&["connect"], &flags[..], &[&fingerprint, &url]].concat();
    let mut client = Program::spawn_with(Command::new(OUTRIGGER).args(args), Stdio::piped());
    for round in 0..3 {
        client.write(&format!("before {round}"));
        assert_eq!(client.line(), format!("before {round}"));
        server.signal(Signal::USR2);
        // Sent while the server may stand still.
        client.write(&format!("during {round}"));
        assert_eq!(client.line(), format!("during {round}"));
        log.expect("upgraded from version");
        log.expect(" resumed: ");
    }
    client.end_input();
    assert_eq!(client.wait().code(), Some(0));
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(
        server.rest(),
        Vec::<String>::new(),
        "nothing is printed again"
    );
}

/// The bug: what the socket did not take at once was lost, and CLOSE with it.
#[cfg(target_os = "linux")]
#[test]
fn a_client_over_tls_that_cannot_come_back_gets_its_output_before_an_upgrade_ends_it() {
    let folder = Folder::new("ended");
    let authority = Authority::new();
    let mut server = serve(&folder, &authority, &[]);
    let (address, mut log) = (server.address(), server.follow_log());
    let mut tls = connect(address, &authority.client(None));
    assert!(upgrade(&mut tls, "").starts_with("HTTP/1.1 101 "));
    let payload = vec![7; 3 << 20];
    tls.write_all(&frame(true, BINARY, &payload)).expect("sent");
    let mut header = [0; 10];
    tls.read_exact(&mut header).expect("a header");
    server.signal(Signal::USR2);
    log.expect("disconnected: cause=service code=1012");
    let mut echoed = vec![0; payload.len()];
    tls.read_exact(&mut echoed).expect("an echo");
    assert!(echoed == payload);
    let mut close = [0; 4];
    tls.read_exact(&mut close).expect("CLOSE");
    assert_eq!((close[0], &close[2..]), (0x88, &1012_u16.to_be_bytes()[..]));
    drop(tls);
    let log = log.expect("upgraded from version");
    assert_eq!(log.matches(" disconnected: ").count(), 1, "{log}");
}

#[test]
fn plain_text_on_a_port_for_tls_is_answered_and_a_tls_handshake_on_a_plain_port_is_named() {
    let folder = Folder::new("wrong");
    let authority = Authority::new();
    let mut server = serve(&folder, &authority, &["--listen", "plain:127.0.0.1:0"]);
    let encrypted = server.address();
    let mut wire = Wire::open(encrypted);
    wire.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (head, body) = wire.read_response();
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    let expected = "this port requires TLS; use https:// or wss://";
    assert_eq!(body["message"], expected);
    wire.expect_end();
    let plain = server.address();
    let mut tls = connect(plain, &authority.client(None));
    assert!(tls.write_all(b"GET").and_then(|()| tls.flush()).is_err());
    server.signal(Signal::TERM);
    let (_, log) = server.wait_and_read_log();
    assert!(
        log.contains("refused: 400 the client sent a TLS handshake"),
        "{log}"
    );
}

#[test]
fn the_certificate_of_a_client_is_its_principal() {
    let folder = Folder::new("mutual");
    let (authority, stranger) = (Authority::new(), Authority::new());
    let ca = folder.write("ca.pem", &authority.pem());
    let with_name = authority.sign(&["Laptop.example", "other.example"], "common");
    let without = authority.sign(&[], "common");
    let foreign = stranger.sign(&["laptop.example"], "common");
    let token = folder.write("token", "0123456789abcdef");
    let bearer = "Authorization: Bearer 0123456789abcdef\r\n";
    for is_enough in [false, true] {
        let mut args = vec!["--tls-client-ca", &ca, "--token-file", &token];
        if is_enough {
            args.push("--tls-client-auth");
        }
        let mut server = serve(&folder, &authority, &args);
        let address = server.address();
        for refused in [None, Some(&foreign)] {
            let mut tls = connect(address, &authority.client(refused));
            let sent = tls.write_all(b"GET / HTTP/1.1\r\n\r\n");
            let mut byte = [0];
            let read = sent.and_then(|()| tls.read(&mut byte));
            assert!(!matches!(read, Ok(1..)), "{read:?}");
        }
        for own in [&with_name, &without] {
            let client = authority.client(Some(own));
            let mut tls = connect(address, &client);
            let status = if is_enough { "101" } else { "401" };
            let head = upgrade(&mut tls, "");
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            let mut tls = connect(address, &client);
            assert!(upgrade(&mut tls, bearer).starts_with("HTTP/1.1 101 "));
            echo(&mut tls, b"hello");
            // The bug: the holder of a revoked token had the scope of the certificate, which is `all`.
            let mut tls = connect(address, &client);
            let head = upgrade(&mut tls, "Authorization: Bearer revoked-0123456789\r\n");
            assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
        }
        server.signal(Signal::TERM);
        let (_, log) = server.wait_and_read_log();
        for name in ["laptop.example", "common"] {
            assert!(log.contains(&format!("principal=cert:{name}\n")), "{log}");
        }
        assert_eq!(log.matches("TLS handshake failed: ").count(), 2, "{log}");
    }
}

#[test]
fn the_certificate_of_a_trusted_proxy_does_not_stand_for_its_clients() {
    // The bug: every client of the proxy had the rights of the proxy's certificate.
    let folder = Folder::new("trusted");
    let authority = Authority::new();
    let ca = folder.write("ca.pem", &authority.pem());
    let token = folder.write("token", "0123456789abcdef");
    let proxy = authority.client(Some(&authority.sign(&["proxy.example"], "proxy")));
    let args = [
        "--tls-client-ca",
        &ca,
        "--tls-client-auth",
        "--trusted-proxy",
        "127.0.0.1",
        "--auth-header",
        "X-User",
        "--token-file",
        &token,
    ];
    let mut server = serve(&folder, &authority, &args);
    let address = server.address();
    for (fields, status) in [
        ("", 401),
        ("X-Forwarded-For: 192.0.2.1\r\n", 401),
        ("X-Forwarded-For: 192.0.2.1\r\nX-User: ada\r\n", 101),
        ("Authorization: Bearer 0123456789abcdef\r\n", 101),
    ] {
        let mut tls = connect(address, &proxy);
        let head = upgrade(&mut tls, fields);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{fields} {head}"
        );
    }
    server.signal(Signal::TERM);
    let (_, log) = server.wait_and_read_log();
    assert!(
        log.contains("remote=192.0.2.1:0 principal=user:ada\n"),
        "{log}"
    );
    assert!(
        log.contains("principal=default\n") && !log.contains("cert:"),
        "{log}"
    );
    // So a token is required, although the server accepts certificates.
    let server = serve(&folder, &authority, &args[..args.len() - 2]);
    let line = server.line();
    assert!(line.contains("?token="), "{line}");
}

#[test]
fn a_hangup_replaces_the_certificate_and_a_bad_one_changes_nothing() {
    let folder = Folder::new("reload");
    let (first, second) = (Authority::new(), Authority::new());
    let mut server = serve(&folder, &first, &[]);
    let mut log = server.follow_log();
    let address = server.address();
    let mut old = connect(address, &first.client(None));
    assert!(upgrade(&mut old, "").starts_with("HTTP/1.1 101 "));
    let is_served = |authority: &Authority| {
        let mut tls = connect(address, &authority.client(None));
        tls.write_all(b"GET").and_then(|()| tls.flush()).is_ok()
    };
    let (certificate, key) = second.sign(&["127.0.0.1"], "server");
    // The key does not belong to the certificate.
    folder.write("server.pem", &certificate);
    server.signal(Signal::HUP);
    let text = log.expect("the private key does not belong to the certificate");
    assert!(
        text.contains("the TLS settings stay unchanged: --tls-key: "),
        "{text}"
    );
    echo(&mut old, b"still here");
    assert!(is_served(&first));
    folder.write("server.key", &key);
    server.signal(Signal::HUP);
    log.expect("reloaded the TLS settings: fingerprint=");
    assert!(is_served(&second) && !is_served(&first));
    folder.write("server.pem", "nothing");
    server.signal(Signal::HUP);
    log.expect("server.pem: found no certificate in PEM format");
    echo(&mut old, b"still here");
    assert!(is_served(&second));
}

#[test]
fn the_certificates_of_clients_are_checked_again_after_a_hangup() {
    let folder = Folder::new("revoked");
    let (authority, other) = (Authority::new(), Authority::new());
    let ca = folder.write("ca.pem", &format!("{}{}", authority.pem(), other.pem()));
    let args = ["--tls-client-ca", &ca, "--tls-client-auth"];
    let mut server = serve(&folder, &authority, &args);
    let address = server.address();
    let clients = [&authority, &other].map(|one| {
        let own = one.sign(&["laptop"], "laptop");
        let mut tls = connect(address, &authority.client(Some(&own)));
        assert!(upgrade(&mut tls, "").starts_with("HTTP/1.1 101 "));
        tls
    });
    folder.write("ca.pem", &authority.pem());
    server.signal(Signal::HUP);
    let [mut kept, mut revoked] = clients;
    let mut close = [0; 4];
    revoked.read_exact(&mut close).expect("a CLOSE frame");
    assert_eq!(
        (close[0], u16::from_be_bytes([close[2], close[3]])),
        (0x88, 1008)
    );
    echo(&mut kept, b"hello");
    server.signal(Signal::TERM);
    let (_, log) = server.wait_and_read_log();
    assert!(log.contains(" closed_connections=1\n"), "{log}");
}

#[test]
fn a_proxys_header_precedes_the_handshake() {
    let folder = Folder::new("proxy");
    let authority = Authority::new();
    let args = ["--proxy-protocol", "127.0.0.1", "--no-auth"];
    let mut server = serve(&folder, &authority, &args);
    let address = server.address();
    let mut socket = TcpStream::connect(address).expect("the server listens");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("a time limit");
    socket
        .write_all(b"PROXY TCP4 192.0.2.9 192.0.2.1 5 443\r\n")
        .expect("sent");
    let mut tls = over(socket, &authority.client(None));
    assert!(upgrade(&mut tls, "").starts_with("HTTP/1.1 101 "));
    echo(&mut tls, b"hello");
    drop(tls);
    server.signal(Signal::TERM);
    let (_, log) = server.wait_and_read_log();
    assert!(log.contains("remote=192.0.2.9:5 "), "{log}");
}

#[test]
fn an_encrypted_origin_is_https_and_the_cookie_is_secure() {
    let folder = Folder::new("origin");
    let authority = Authority::new();
    let server = serve(&folder, &authority, &["--affinity-cookie", "server=a"]);
    let address = server.address();
    let client = authority.client(None);
    for (origin, status) in [("http://127.0.0.1", "403"), ("https://127.0.0.1", "101")] {
        let mut tls = connect(address, &client);
        let head = upgrade(&mut tls, &format!("Origin: {origin}\r\n"));
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        let is_secure =
            head.contains("\r\nSet-Cookie: server=a; Path=/; HttpOnly; SameSite=Lax; Secure\r\n");
        assert_eq!(is_secure, status == "101", "{head}");
    }
}

#[test]
fn a_stalled_handshake_is_ended_and_counted() {
    let folder = Folder::new("stalled");
    let authority = Authority::new();
    let args = ["--handshake-timeout", "2s", "--no-auth"];
    let mut server = serve(&folder, &authority, &args);
    let address = server.address();
    let mut silent = Wire::open(address);
    let mut begun = Wire::open(address);
    begun.send(&[22, 3, 1, 1, 0, 1]);
    silent.expect_end();
    begun.expect_end();
    let mut tls = connect(address, &authority.client(None));
    tls.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut text = String::new();
    // The server ends the session with close_notify, so the end is not an error.
    tls.read_to_string(&mut text).expect("the metrics");
    for expected in [
        "outrigger_tls_handshakes_total{outcome=\"full\"} 1\n",
        "outrigger_tls_handshakes_total{outcome=\"failed\"} 1\n",
        "outrigger_tls_certificate_expiry_seconds ",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    server.signal(Signal::TERM);
    let (_, log) = server.wait_and_read_log();
    // A connection without a byte is no handshake.
    assert_eq!(log.matches("TLS handshake timed out").count(), 1, "{log}");
}

#[test]
fn a_client_that_ends_its_side_gets_what_is_on_the_way() {
    let folder = Folder::new("half");
    let authority = Authority::new();
    let server = serve(&folder, &authority, &["--no-auth"]);
    let mut tls = connect(server.address(), &authority.client(None));
    assert!(upgrade(&mut tls, "").starts_with("HTTP/1.1 101 "));
    let payload = vec![9; 1 << 20];
    tls.write_all(&frame(true, TEXT, b"first")).expect("sent");
    tls.write_all(&frame(true, BINARY, &payload)).expect("sent");
    tls.conn.send_close_notify();
    tls.flush().expect("sent");
    let mut echoed = Vec::new();
    // An end without close_notify would be an error.
    tls.read_to_end(&mut echoed).expect("close_notify");
    assert!(echoed.len() > payload.len(), "{} bytes", echoed.len());
}

#[test]
fn however_an_encrypted_caller_goes_its_call_is_abandoned_at_once() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign(&["127.0.0.1"], "server");
    let identity = TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes()).expect("PEM");
    let mut config = patient();
    config.tls = Some(TlsConfig::new(identity).expect("settings"));
    let server = TestServer::echo(config);
    let client = authority.client(None);
    let close_notify = |tls: &mut Tls| {
        tls.conn.send_close_notify();
        tls.flush().expect("sent");
    };
    for (path, version) in [("never", "1.1"), ("stream", "1.1"), ("stream", "1.0")] {
        for behind in ["", "\r\nGET"] {
            for how in ["close_notify", "closed", "cut", "reset"] {
                // Without the end of the TCP connection, the server sees close_notify only when it reads.
                if how == "close_notify" && !behind.is_empty() {
                    continue;
                }
                let what = format!("{path} HTTP/{version} {how} {behind:?}");
                let mut tls = connect(server.address, &client);
                let line = format!("GET /call/{path} HTTP/{version}");
                tls.write_all(format!("{line}\r\nHost: localhost\r\n\r\n{behind}").as_bytes())
                    .expect("sent");
                let Told::Called(caller, _) = server.told() else {
                    panic!("{what}: the service is called");
                };
                if path == "stream" {
                    let (mut read, mut byte) = (Vec::new(), [0]);
                    while !read.ends_with(b"data: first\n\n") {
                        tls.read_exact(&mut byte).expect("a head and an event");
                        read.extend(byte);
                    }
                }
                let mut left = None;
                match how {
                    "close_notify" => {
                        close_notify(&mut tls);
                        left = Some(tls);
                    }
                    "closed" => {
                        close_notify(&mut tls);
                        drop(tls);
                    }
                    "cut" => drop(tls.sock),
                    _ => Wire { stream: tls.sock }.reset(),
                }
                let told = server.told();
                assert!(
                    matches!(told, Told::Abandoned(gone) if gone == caller),
                    "{what}: {told:?}"
                );
                drop(left);
            }
        }
    }
}

#[test]
fn wrong_options_are_named() {
    let folder = Folder::new("options");
    let authority = Authority::new();
    let (certificate, key) = authority.sign(&["localhost"], "server");
    let (_, other) = authority.sign(&["localhost"], "server");
    let certificate = folder.write("cert.pem", &certificate);
    let key = folder.write("key.pem", &key);
    let other = folder.write("other.pem", &other);
    let empty = folder.write("empty.pem", "");
    let pair = ["--tls-cert", &certificate, "--tls-key", &key];
    let cases: [(&[&str], &str); 11] = [
        (&pair[..2], "--tls-cert has no effect without --tls-key"),
        (&pair[2..], "--tls-key has no effect without --tls-cert"),
        (
            &["--tls-dir", "x"],
            "--tls-dir has no effect without --tls-self-signed",
        ),
        (
            &["--tls-client-ca", &certificate],
            "--tls-client-ca has no effect without",
        ),
        (
            &["--tls-client-auth"],
            "--tls-client-auth has no effect without --tls-client-ca",
        ),
        (
            &["--listen", "tls:127.0.0.1:0"],
            "--listen tls: requires --tls-cert",
        ),
        (
            &["--tls-self-signed", "--listen", "unix:/tmp/x"],
            "no address of --listen uses TLS; write for example --listen tls:unix:PATH",
        ),
        (
            &[&pair[..], &["--tls-self-signed"]].concat(),
            "--tls-self-signed cannot be combined with --tls-cert",
        ),
        (
            &["--tls-cert", &certificate, "--tls-key", &other],
            "other.pem: the private key does not belong to the certificate",
        ),
        (
            &["--tls-cert", &empty, "--tls-key", &key],
            "empty.pem: found no certificate in PEM format",
        ),
        (
            &[&pair[..], &["--tls-client-ca", &empty]].concat(),
            "empty.pem: found no certificate in PEM format",
        ),
    ];
    for (args, expected) in cases {
        let output = outrigger(&[&["echo", "--check"], args].concat());
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(expected), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let output = outrigger(&[&["echo", "--check"], &pair[..]].concat());
    assert!(output.status.success());
}

#[test]
fn a_long_message_in_short_records_is_whole() {
    // The bug: the work of decrypting closed the gate between a read and the handling of its bytes, which were lost.
    let folder = Folder::new("records");
    let authority = Authority::new();
    let server = serve(&folder, &authority, &["--no-auth"]);
    let mut client = (*authority.client(None)).clone();
    client.max_fragment_size = Some(64);
    let mut tls = connect(server.address(), &Arc::new(client));
    assert!(upgrade(&mut tls, "").starts_with("HTTP/1.1 101 "));
    for len in [100, 600 << 10, 100] {
        let payload: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        echo(&mut tls, &payload);
    }
}
