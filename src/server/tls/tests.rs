//! Tests of certificates, and of sessions in memory in both roles.

mod trust;

use std::io;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

use super::certificates::Certificate;
use super::pair::Pair;
use super::simulation::{client_tls, config};
use super::stream::{Scratch, TlsStream};
use super::{ClientTls, TlsConfig, TlsIdentity};
use crate::server::simulation::World;
use crate::server::simulation::memory_stream::MemoryStream;
use crate::server::stream::Stream;

/// A certificate with these alternative names and this common name.
fn certificate(names: Vec<SanType>, common: &str) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = names;
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "Example");
    params.distinguished_name.push(DnType::CommonName, common);
    params.is_ca = rcgen::IsCa::ExplicitNoCa;
    params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("valid");
    certificate.der().to_vec()
}

#[test]
fn the_name_of_a_certificate_is_its_first_alternative_name_or_else_its_common_name() {
    let dns = |name: &str| SanType::DnsName(name.try_into().expect("a name"));
    let email = SanType::Rfc822Name("ada@example.com".try_into().expect("an address"));
    let address = SanType::IpAddress([127, 0, 0, 1].into());
    for (names, expected) in [
        (vec![], "common"),
        (
            vec![dns("Laptop.example"), dns("other.example")],
            "laptop.example",
        ),
        (vec![email, dns("other.example")], "ada@example.com"),
        (vec![address], "127.0.0.1"),
    ] {
        let der = certificate(names, "common");
        let parsed = Certificate::parse(&der).expect("well-formed");
        assert_eq!(parsed.name().map(String::as_str), Some(expected));
        for len in 0..der.len() {
            assert_eq!(Certificate::parse(&der[..len]), None);
        }
    }
}

#[test]
fn a_client_over_tls_connects_to_a_server_in_memory() {
    // Otherwise the operations on a server would not be tested over TLS.
    let mut world = World::new(0x10).expect("an epoll instance");
    // There is room for a whole handshake, whose length varies.
    world.open(200);
    let id = *world.old.last().expect("just opened");
    // The time of a handshake counts as work. On a busy machine, it uses up the turn, and the rest follows in the next ones.
    for _ in 0..10 {
        world.event(id, true, true, false);
        world.take_turn();
    }
    assert_eq!(world.present(), [id]);
    world.give(id, b"\x82\x81\0\0\0\0x");
    world.event(id, true, false, false);
    world.take_turn();
    assert_eq!(world.service().told.get(&id), Some(&1));
    world.check();
    world.finish();
}

/// Both sides, after the server has read the ClientHello. The first flight of the server is on the way.
fn greeted(tls: &ClientTls) -> Pair {
    let mut pair = Pair::new(&config(), tls, "localhost");
    // The first call only writes.
    pair.client.write(100, 1);
    assert_eq!(pair.client.sent, 0);
    pair.client.carry(&pair.server, usize::MAX);
    pair.server.read(1000);
    pair
}

/// The number of bytes on the way to the client.
fn on_the_way(pair: &Pair) -> usize {
    pair.server.wire.wire().from_server.len()
}

/// Sends data both ways, and ends the connection.
fn talk(pair: &mut Pair) {
    pair.settle();
    pair.client.write(40_000, 3);
    pair.server.write(50_000, 2);
    pair.settle();
    pair.check();
    pair.client.end();
    pair.settle();
    assert!(pair.server.has_read_end && !pair.client.has_read_end);
    pair.check();
}

#[test]
fn the_client_hello_waits_until_the_socket_is_writable() {
    let mut pair = Pair::new(&config(), &client_tls(), "localhost");
    let len = pair.client.stream.sealed();
    assert!(len > 0);
    pair.client.wire.wire().room = 7;
    assert_eq!(pair.client.stream.flush().expect("a socket"), 7);
    assert_eq!(pair.client.stream.sealed(), len - 7);
    assert!(pair.client.stream.is_handshaking());
    talk(&mut pair);
}

#[test]
fn the_answer_of_the_server_may_be_split_anywhere() {
    for is_resumed in [false, true] {
        let mut tls = client_tls();
        if is_resumed {
            talk(&mut greeted(&tls));
        }
        for at in 1.. {
            if !is_resumed {
                tls = client_tls();
            }
            let mut pair = greeted(&tls);
            assert_eq!(pair.server.stream.is_resumed(), is_resumed);
            if at >= on_the_way(&pair) {
                break;
            }
            pair.server.carry(&pair.client, at);
            pair.client.read(1000);
            assert_eq!(pair.client.opened, 0);
            if at % 16 == 0 {
                talk(&mut pair);
            }
            pair.settle();
            pair.check();
            assert_eq!(pair.client.stream.is_resumed(), is_resumed);
        }
    }
}

#[test]
fn bytes_may_come_one_by_one() {
    let mut pair = greeted(&client_tls());
    for _ in 0..on_the_way(&pair) {
        pair.server.carry(&pair.client, 1);
        pair.client.read(1000);
    }
    assert_eq!(pair.client.opened, 1);
    talk(&mut pair);
}

#[test]
fn a_corrupted_byte_is_noticed_or_has_no_effect() {
    let mut failed = 0;
    let mut at = 0;
    loop {
        let mut pair = greeted(&client_tls());
        let len = on_the_way(&pair);
        if at >= len {
            assert!(failed * 10 > len * 9, "{failed} of {len}");
            return;
        }
        pair.server.wire.wire().from_server[at] ^= 1 << (at % 8);
        pair.settle();
        match &pair.client.failure {
            Some(failure) => {
                assert_eq!(failure.kind(), io::ErrorKind::InvalidData);
                assert_eq!(pair.client.opened, 0);
                assert!(!failure.to_string().contains('\n'));
                failed += 1;
            }
            // The length of a record has become greater, or the byte is ignored, such as the version of a record.
            None if pair.client.opened == 0 => assert!(pair.client.stream.is_handshaking()),
            None => talk(&mut pair),
        }
        at += 1;
    }
}

#[test]
fn a_server_that_does_not_speak_tls_is_recognized() {
    for answer in ["HTTP/1.1 400 Bad Request\r\n\r\n", "220 smtp", "\0\0"] {
        let wire = MemoryStream::default();
        wire.wire().to_server.extend(answer.as_bytes());
        let socket = Stream::Memory(wire);
        let mut stream = TlsStream::connect(socket, &client_tls(), "localhost").expect("valid");
        let mut scratch = Scratch::default();
        let error = stream.read(&mut [0; 100], &mut scratch).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(error.to_string(), "the server does not speak TLS");
        assert!(stream.has_failed_handshake() && !stream.is_certificate_error());
        assert!(!stream.last_read().is_plain);
    }
}

#[test]
fn the_end_of_the_input_ends_the_handshake() {
    let len = on_the_way(&greeted(&client_tls()));
    for at in [0, 1, len / 2, len - 10] {
        let mut pair = greeted(&client_tls());
        pair.server.carry(&pair.client, at);
        pair.client.read(1000);
        pair.client.wire.wire().ended = true;
        pair.client.read(1000);
        assert!(pair.client.has_read_end && pair.client.stream.is_handshaking());
        assert_eq!(pair.client.opened, 0);
    }
}

#[test]
fn the_server_may_send_many_certificates_but_not_endlessly() {
    let chain = |count: usize| {
        let mut pem = String::new();
        let key = KeyPair::generate().expect("a key");
        for at in 0..=count {
            // Each one has about 1.7 KB.
            let names = (0..if at == 0 { 1 } else { 100 }).map(|name| format!("{name}.a.example"));
            let params = CertificateParams::new(names.collect::<Vec<_>>()).expect("valid");
            pem += &params.self_signed(&key).expect("signed").pem();
        }
        let identity = TlsIdentity::from_pem(pem.as_bytes(), key.serialize_pem().as_bytes());
        let identity = identity.expect("valid");
        let tls = ClientTls::new().with_fingerprint(&identity.fingerprint());
        let config = TlsConfig::new(identity).expect("valid");
        let mut pair = Pair::new(&config, &tls.expect("a fingerprint"), "0.a.example");
        pair.client.stream.flush().expect("a socket");
        pair.client.carry(&pair.server, usize::MAX);
        pair.server.read(1000);
        let len = on_the_way(&pair);
        // What arrives with the end of the handshake is not limited.
        while pair.server.carry(&pair.client, 1000) > 0 {
            pair.client.read(1000);
        }
        (pair, len)
    };
    let (mut pair, len) = chain(20);
    assert!(len > 32 << 10, "{len}");
    talk(&mut pair);
    let (pair, len) = chain(40);
    assert!(len > 64 << 10, "{len}");
    let failure = pair.client.failure.expect("too long");
    assert_eq!(failure.kind(), io::ErrorKind::InvalidData);
    assert!(pair.client.stream.held() < 1000);
}

#[test]
fn an_address_is_not_sent_as_a_name() {
    for (name, is_sent) in [("localhost", true), ("127.0.0.1", false), ("::1", false)] {
        let mut pair = Pair::new(&config(), &client_tls(), name);
        pair.client.stream.flush().expect("a socket");
        let hello = pair.client.wire.wire().from_server.clone();
        let contains = |text: &[u8]| hello.windows(text.len()).any(|part| part == text);
        assert_eq!(contains(name.as_bytes()), is_sent);
        assert!(contains(b"http/1.1"));
        talk(&mut pair);
    }
}
