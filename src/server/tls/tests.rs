//! Tests of certificates and sessions in memory.

mod outgoing;
mod trust;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

use super::x509::Certificate;
use crate::server::simulation::World;

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
