//! Flags for TLS.

use super::{Flag, Takes, put, samples, turn_on};

pub(super) const FLAGS: &[Flag] = &[
    Flag {
        name: "tls-cert",
        takes: Takes::One("FILE"),
        help: "file with the server certificate in PEM, followed by any intermediate certificates; turns TLS on for TCP addresses without the prefix plain:",
        brief: Some("certificate in PEM; turns TLS on"),
        requires: Some("tls-key"),
        set: |settings, value| put(&mut settings.tls.cert, Ok(Some(value.into()))),
        accepts: samples(&["/etc/ssl/server.pem"]),
        ..Flag::BASE
    },
    Flag {
        name: "tls-key",
        takes: Takes::One("FILE"),
        help: "private key of the certificate in PEM, not encrypted",
        brief: Some("its private key in PEM"),
        requires: Some("tls-cert"),
        set: |settings, value| put(&mut settings.tls.key, Ok(Some(value.into()))),
        accepts: samples(&["/etc/ssl/server.key"]),
        ..Flag::BASE
    },
    Flag {
        name: "tls-self-signed",
        help: "turn TLS on with a self-signed certificate, created for this machine's names and addresses, and print its SHA-256 fingerprint",
        brief: Some("create a certificate and print its fingerprint"),
        set: |settings, _| turn_on(&mut settings.tls.self_signed),
        ..Flag::BASE
    },
    Flag {
        name: "tls-dir",
        takes: Takes::One("DIR"),
        help: "keep the self-signed certificate and its key in this directory, so that the fingerprint stays the same",
        requires: Some("tls-self-signed"),
        set: |settings, value| put(&mut settings.tls.dir, Ok(Some(value.into()))),
        accepts: samples(&["/var/lib/outrigger"]),
        ..Flag::BASE
    },
    Flag {
        name: "tls-client-ca",
        takes: Takes::One("FILE"),
        help: "require a certificate from every client that connects over TLS; the file contains the CA certificates in PEM that must have signed it. The name in the certificate identifies the client in the log and in /status, as cert:NAME",
        set: |settings, value| put(&mut settings.tls.client_ca, Ok(Some(value.into()))),
        accepts: samples(&["/etc/ssl/clients.pem"]),
        ..Flag::BASE
    },
    Flag {
        name: "tls-client-auth",
        help: "accept a client certificate instead of a token",
        requires: Some("tls-client-ca"),
        set: |settings, _| turn_on(&mut settings.tls.client_auth),
        ..Flag::BASE
    },
];
