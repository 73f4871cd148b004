//! Tests of the servers that a client trusts.

use std::io;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::ring::default_provider;
use rustls::crypto::ring::kx_group::{SECP384R1, X25519};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, ServerConnection, SupportedProtocolVersion};

use crate::server::simulation::memory_stream::MemoryStream;
use crate::server::stream::Stream;
use crate::server::tls::pair::Pair;
use crate::server::tls::simulation::MAX_HELD;
use crate::server::tls::stream::{Scratch, TlsStream};
use crate::server::tls::{ClientTls, TlsConfig, TlsError, TlsIdentity};

const UNTRUSTED: &str = "the server's certificate is not signed by a trusted authority";

/// An authority with this name.
fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::OrganizationName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    CertifiedIssuer::self_signed(params, key).expect("an authority")
}

/// The settings of a certificate for these names.
fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    CertificateParams::new(names).expect("valid names")
}

fn signed(params: &CertificateParams, by: &CertifiedIssuer<'_, KeyPair>) -> TlsIdentity {
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, by).expect("signed").pem();
    TlsIdentity::from_pem(certificate.as_bytes(), key.serialize_pem().as_bytes()).expect("valid")
}

/// An identity that is signed with its own key, and its certificate in PEM.
fn self_signed(params: &CertificateParams) -> (TlsIdentity, String) {
    let key = KeyPair::generate().expect("a key");
    let pem = params.self_signed(&key).expect("signed").pem();
    let identity = TlsIdentity::from_pem(pem.as_bytes(), key.serialize_pem().as_bytes());
    (identity.expect("valid"), pem)
}

fn trusting(pem: &str) -> ClientTls {
    ClientTls::new()
        .with_ca_pem(pem.as_bytes())
        .expect("an authority")
}

fn pinning(fingerprint: &str) -> ClientTls {
    ClientTls::new()
        .with_fingerprint(fingerprint)
        .expect("a fingerprint")
}

/// Connects by this name. Returns why the server is not trusted.
fn connect(server: &TlsIdentity, tls: &ClientTls, name: &str) -> Result<Pair, String> {
    let config = TlsConfig::new(server.clone()).expect("valid");
    let mut pair = Pair::new(&config, tls, name);
    pair.settle();
    let Some(failure) = &pair.client.failure else {
        pair.check();
        return Ok(pair);
    };
    assert_eq!(failure.kind(), io::ErrorKind::InvalidData);
    assert!(pair.client.stream.is_certificate_error());
    assert_eq!(pair.client.opened, 0);
    // The alert tells the server.
    assert!(pair.server.failure.is_some());
    Err(failure.to_string())
}

#[track_caller]
fn assert_refused(server: &TlsIdentity, tls: &ClientTls, name: &str, expected: &str) {
    match connect(server, tls, name) {
        Ok(_) => panic!("the server is trusted"),
        Err(problem) => assert_eq!(problem, expected),
    }
}

#[track_caller]
fn assert_trusted(server: &TlsIdentity, tls: &ClientTls, name: &str) -> Pair {
    connect(server, tls, name).expect("the server is trusted")
}

#[test]
fn a_server_is_trusted_if_an_authority_has_signed_its_certificate() {
    let ca = authority("Example");
    let server = signed(&params(&["a.example", "127.0.0.1", "::1"]), &ca);
    let tls = trusting(&ca.pem());
    for name in ["a.example", "A.Example", "127.0.0.1", "::1", "[::1]"] {
        assert_trusted(&server, &tls, name);
    }
    // The second one has the same name.
    for other in [authority("Other"), authority("Example")] {
        assert_refused(&server, &trusting(&other.pem()), "a.example", UNTRUSTED);
    }
    let both = format!("{}{}", authority("Other").pem(), ca.pem());
    assert_trusted(&server, &trusting(&both), "a.example");
}

#[test]
fn a_server_is_trusted_if_its_own_certificate_is_listed() {
    // The bug: certificates of 'openssl req -x509' are CA certificates, which a server must not use otherwise.
    let mut ca = params(&["localhost"]);
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    for params in [params(&["localhost"]), ca] {
        let (server, pem) = self_signed(&params);
        let tls = trusting(&pem);
        assert_trusted(&server, &tls, "localhost");
        let expected = "the server's certificate is not valid for 'b.example': it is for localhost";
        assert_refused(&server, &tls, "b.example", expected);
        let (_, other) = self_signed(&params);
        assert_refused(&server, &trusting(&other), "localhost", UNTRUSTED);
    }
}

#[test]
fn a_certificate_must_be_for_the_name_of_the_server() {
    let ca = authority("Example");
    let tls = trusting(&ca.pem());
    let refused = |names: &[&str], name: &str, expected: &str| {
        let server = signed(&params(names), &ca);
        let expected = format!("the server's certificate is not valid for {expected}");
        assert_refused(&server, &tls, name, &expected);
    };
    refused(
        &["a.example", "10.0.0.1"],
        "b.example",
        "'b.example': it is for a.example, 10.0.0.1",
    );
    refused(
        &["a.example"],
        "127.0.0.1",
        "'127.0.0.1': it is for a.example",
    );
    refused(&[], "a.example", "'a.example': it has no such name");
    let five = [
        "a.example",
        "b.example",
        "c.example",
        "d.example",
        "e.example",
    ];
    refused(
        &five,
        "f.example",
        "'f.example': it is for a.example, b.example, c.example, d.example and others",
    );
    assert_trusted(&signed(&params(&["*.a.example"]), &ca), &tls, "b.a.example");
}

#[test]
fn a_certificate_must_be_valid_now_and_for_servers() {
    let ca = authority("Example");
    let mut expired = params(&["localhost"]);
    expired.not_after = date_time_ymd(2020, 1, 2);
    let mut early = params(&["localhost"]);
    early.not_before = date_time_ymd(3000, 1, 2);
    let has_expired = "the server's certificate has expired: expiry=2020-01-02T00:00:00Z";
    let is_early =
        "the server's certificate is not valid before 3000-01-02T00:00:00Z, by this system's clock";
    for (params, expected) in [(expired, has_expired), (early, is_early)] {
        let tls = trusting(&ca.pem());
        assert_refused(&signed(&params, &ca), &tls, "localhost", expected);
        let (server, pem) = self_signed(&params);
        assert_refused(&server, &trusting(&pem), "localhost", expected);
    }
    let mut for_clients = params(&["localhost"]);
    for_clients.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let expected = "the server's certificate must not be used by servers (extended key usage)";
    let server = signed(&for_clients, &ca);
    assert_refused(&server, &trusting(&ca.pem()), "localhost", expected);
}

#[test]
fn a_fingerprint_is_enough_whatever_else_the_certificate_says() {
    let mut params = params(&["a.example"]);
    params.not_after = date_time_ymd(2020, 1, 2);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let (server, _) = self_signed(&params);
    let fingerprint = server.fingerprint();
    let bare = fingerprint.replace(':', "");
    for text in [
        &fingerprint,
        &bare,
        &fingerprint.to_lowercase(),
        &bare.to_lowercase(),
    ] {
        let pair = assert_trusted(&server, &pinning(text), "b.example");
        // The bug: a reload of the settings (SIGHUP) closed the server's connections to other servers.
        let client = &pair.client.stream;
        assert!(client.is_current());
        let config = TlsConfig::new(server.clone()).expect("valid");
        let ca = authority("Example").pem();
        let config = config.with_client_ca(ca.as_bytes()).expect("an authority");
        assert!(client.is_accepted_by(&config));
    }
    let (other, _) = self_signed(&params);
    let expected = format!(
        "the server's certificate has another fingerprint: {}",
        other.fingerprint()
    );
    assert_refused(&other, &pinning(&fingerprint), "a.example", &expected);
}

#[test]
fn a_malformed_fingerprint_is_refused() {
    let right = "ab".repeat(32);
    let with_colons = vec!["ab"; 32].join(":");
    for wrong in [
        String::new(),
        right[1..].to_owned(),
        format!("{right}a"),
        format!("{right}ab"),
        format!("{with_colons}:"),
        with_colons.replacen("ab:ab", "a:bab", 1),
        with_colons.replacen(':', "", 1),
        right.replacen("ab", "+b", 1),
        right.replacen("ab", "äb", 1),
        "ä".repeat(32),
    ] {
        let parsed = ClientTls::new().with_fingerprint(&wrong);
        assert!(matches!(parsed, Err(TlsError::Fingerprint(_))), "{wrong}");
    }
}

/// A server with these groups for the key exchange.
fn peer(
    version: &'static SupportedProtocolVersion,
    groups: &[&'static dyn SupportedKxGroup],
    chain: &TlsIdentity,
    key: &TlsIdentity,
) -> ServerConnection {
    let mut provider = default_provider();
    provider.kx_groups = groups.to_vec();
    let key = provider.key_provider.load_private_key(key.key());
    let certified = CertifiedKey::new(chain.chain().to_vec(), key.expect("a key"));
    let config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[version])
        .expect("the version is known")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    ServerConnection::new(Arc::new(config)).expect("a server")
}

#[test]
fn a_server_must_have_the_private_key_of_its_certificate() {
    let (server, _) = self_signed(&params(&["localhost"]));
    let (other, _) = self_signed(&params(&["localhost"]));
    let tls = pinning(&server.fingerprint());
    for version in [&TLS13, &TLS12] {
        let right = peer(version, &[X25519], &server, &server);
        assert!(handshake(right, &tls).expect("the key is right"));
        let wrong = peer(version, &[X25519], &server, &other);
        let error = handshake(wrong, &tls).unwrap_err();
        let expected = "the server does not have the private key of its certificate";
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_server_may_ask_for_another_hello() {
    // It does not have the group for which the first ClientHello has a key.
    let (server, _) = self_signed(&params(&["localhost"]));
    let tls = pinning(&server.fingerprint());
    let peer = peer(&TLS13, &[SECP384R1], &server, &server);
    assert!(handshake(peer, &tls).expect("the groups have one in common"));
}

/// Returns whether the client has completed the handshake.
fn handshake(mut peer: ServerConnection, tls: &ClientTls) -> io::Result<bool> {
    let wire = MemoryStream::default();
    wire.wire().room = usize::MAX / 2;
    let mut client = TlsStream::connect(Stream::Memory(wire.clone()), tls, "localhost")?;
    let mut scratch = Scratch::default();
    let mut opened = false;
    for _ in 0..4 {
        client.flush()?;
        let sent = std::mem::take(&mut wire.wire().from_server);
        let mut sent = &sent[..];
        while !sent.is_empty() {
            peer.read_tls(&mut sent)?;
            drop(peer.process_new_packets());
        }
        while peer.wants_write() {
            let mut output = Vec::new();
            peer.write_tls(&mut output)?;
            wire.wire().to_server.extend(output);
        }
        match client.read(&mut [0; 100], &mut scratch) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => drop(read?),
        }
        opened |= client.last_read().opens;
    }
    Ok(opened)
}

#[test]
fn certificates_of_clients_are_sent_and_checked() {
    let ca = authority("Clients");
    let (server, pem) = self_signed(&params(&["localhost"]));
    let config = TlsConfig::new(server).expect("valid");
    let config = config.with_client_ca(ca.pem().as_bytes()).expect("valid");
    let run = |tls: &ClientTls| {
        let mut pair = Pair::new(&config, tls, "localhost");
        pair.settle();
        pair
    };
    let anonymous = trusting(&pem);
    let key = KeyPair::generate().expect("a key");
    let certificate = |by: &CertifiedIssuer<'_, KeyPair>| {
        let signed = params(&["laptop"]).signed_by(&key, by).expect("signed");
        let tls = anonymous.clone();
        tls.with_identity_pem(signed.pem().as_bytes(), key.serialize_pem().as_bytes())
            .expect("valid")
    };

    let pair = run(&certificate(&ca));
    pair.check();
    assert_eq!(
        pair.server.stream.peer().map(|name| &**name),
        Some("laptop")
    );
    assert_eq!(pair.client.stream.peer(), None);

    let other = certificate(&authority("Other"));
    for (tls, expected) in [
        (
            &anonymous,
            "the server requires a client certificate (TLS alert certificate_required)",
        ),
        (
            &other,
            "the server does not accept the client certificate (TLS alert unknown_ca)",
        ),
    ] {
        let pair = run(tls);
        // With TLS 1.3, the client does not wait for the server's decision.
        assert_eq!((pair.client.opened, pair.server.opened), (1, 0));
        let failure = pair.client.failure.expect("an alert");
        assert_eq!(failure.kind(), io::ErrorKind::InvalidData);
        assert_eq!(failure.to_string(), expected);
        assert!(pair.client.stream.is_certificate_error());
    }

    let problem = anonymous.clone().with_identity_pem(
        pem.as_bytes(),
        KeyPair::generate()
            .expect("a key")
            .serialize_pem()
            .as_bytes(),
    );
    let expected = "the private key does not belong to the certificate".to_owned();
    assert_eq!(problem.unwrap_err(), TlsError::Key(expected));
    let problem = anonymous.with_ca_pem(key.serialize_pem().as_bytes());
    let expected = "found no certificate in PEM format".to_owned();
    assert_eq!(problem.unwrap_err(), TlsError::Authority(expected));
}

#[test]
fn a_ticket_may_contain_a_long_chain_of_the_client() {
    // The bug: a message after the handshake was limited to 20 KB, which is too little for such a ticket.
    let ca = authority("Clients");
    let (server, pem) = self_signed(&params(&["localhost"]));
    let config = TlsConfig::new(server).expect("valid");
    let config = config.with_client_ca(ca.pem().as_bytes()).expect("valid");
    let names: Vec<_> = (0..250).map(|at| format!("{at}.clients.example")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let key = KeyPair::generate().expect("a key");
    let leaf = params(&["laptop"]).signed_by(&key, &ca).expect("signed");
    let long = params(&names).signed_by(&key, &ca).expect("signed").pem();
    let chain = format!("{}{}", leaf.pem(), long.repeat(5));
    let tls = trusting(&pem).with_identity_pem(chain.as_bytes(), key.serialize_pem().as_bytes());
    let tls = tls.expect("valid");
    for is_resumed in [false, true] {
        let mut pair = Pair::new(&config, &tls, "localhost");
        let mut longest = 0;
        for _ in 0..200 {
            pair.client.stream.flush().expect("a socket");
            pair.client.carry(&pair.server, usize::MAX);
            pair.server.read(1000);
            pair.server.carry(&pair.client, 1000);
            pair.client.read(1000);
            longest = longest.max(pair.client.stream.held());
        }
        pair.settle();
        pair.check();
        assert_eq!(pair.client.stream.is_resumed(), is_resumed);
        assert!((20 << 10..MAX_HELD).contains(&longest), "{longest}");
    }
}

#[test]
fn a_name_that_is_not_valid_is_an_error_at_once() {
    let tls = pinning(&"ab".repeat(32));
    for name in ["", "a b", "[::1", "a..b"] {
        let wire = MemoryStream::default();
        let error = TlsStream::connect(Stream::Memory(wire), &tls, name).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let expected = format!("{name:?} is neither a DNS name nor an IP address");
        assert_eq!(error.to_string(), expected);
    }
}
