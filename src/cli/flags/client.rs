//! The flags of every command that connects to a server.

use super::super::flag::{Flag, Takes, put, samples};
use super::super::values::duration;
use super::access::TOKEN_FILE;
#[cfg(feature = "deflate")]
use super::limits::DEFLATE;
use super::limits::{MAX_MESSAGE, NO_RESUME, PING_INTERVAL, PING_TIMEOUT};
use super::shared::{LOG, LOG_FORMAT};
use crate::protocol::client::is_reserved;

pub(super) const FLAGS: &[Flag] = &[
    Flag {
        default_note: None,
        help: "file with the token to present, in its first line that is neither empty nor a comment; the variable OUTRIGGER_TOKEN may hold the token instead, and so may the query of URL, as token=TOKEN",
        brief: Some("file with the token to present"),
        ..TOKEN_FILE
    },
    Flag {
        name: "header",
        takes: Takes::Many("'NAME: VALUE'"),
        help: "header field to add to the handshake, or to each HTTP request",
        brief: Some("header field to add to each request"),
        set: |settings, value| {
            settings.client.fields.push(field(value)?);
            Ok(())
        },
        accepts: samples(&["X-Tenant: blue", "Origin:https://example.com", "X-Empty:"]),
        rejects: &[
            "X-Tenant",
            ": blue",
            "X Tenant: blue",
            "X-Tenant: a\r\nb",
            "host: x",
            "Sec-WebSocket-Key: x",
        ],
        ..Flag::BASE
    },
    #[cfg(feature = "tls")]
    Flag {
        name: "ca",
        takes: Takes::One("FILE"),
        default_note: Some("the system's certificates"),
        help: "trust only the CA certificates, or the server's own certificate, in this PEM file",
        brief: Some("trust the certificates in this PEM file"),
        set: |settings, value| put(&mut settings.client.tls.ca, Ok(Some(value.into()))),
        accepts: samples(&["/etc/ssl/company.pem"]),
        ..Flag::BASE
    },
    #[cfg(feature = "tls")]
    Flag {
        name: "fingerprint",
        takes: Takes::One("SHA256"),
        help: "trust only the server certificate with this SHA-256 fingerprint, which a server with --tls-self-signed prints",
        brief: Some("trust the certificate with this fingerprint"),
        set: |settings, value| {
            put(
                &mut settings.client.tls.fingerprint,
                fingerprint(value).map(Some),
            )
        },
        accepts: samples(&[
            "aa:bb:cc:dd:ee:ff:00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF:00:11:22:33:44:55:66:77:88:99",
            "aabbccddeeff00112233445566778899AABBCCDDEEFF00112233445566778899",
        ]),
        rejects: &[
            "",
            "aa:bb",
            "aabbccddeeff00112233445566778899AABBCCDDEEFF0011223344556677889x",
        ],
        ..Flag::BASE
    },
    #[cfg(feature = "tls")]
    Flag {
        name: "tls-client-cert",
        takes: Takes::One("FILE"),
        help: "client certificate to present, in PEM, followed by any intermediate certificates",
        requires: Some("tls-client-key"),
        set: |settings, value| put(&mut settings.client.tls.cert, Ok(Some(value.into()))),
        accepts: samples(&["/etc/ssl/client.pem"]),
        ..Flag::BASE
    },
    #[cfg(feature = "tls")]
    Flag {
        name: "tls-client-key",
        takes: Takes::One("FILE"),
        help: "private key of the client certificate in PEM, not encrypted",
        requires: Some("tls-client-cert"),
        set: |settings, value| put(&mut settings.client.tls.key, Ok(Some(value.into()))),
        accepts: samples(&["/etc/ssl/client.key"]),
        ..Flag::BASE
    },
    Flag {
        name: "connect-timeout",
        takes: Takes::One("TIME"),
        default: Some("10s"),
        help: "how long one attempt to connect may take, from the look-up of the host name to the server's response",
        set: |settings, value| {
            let time = duration(value)?.ok_or("it must be longer than 0")?;
            put(&mut settings.client.connect_timeout, Ok(time))
        },
        rejects: &["0"],
        ..Flag::BASE
    },
    Flag {
        name: "give-up",
        takes: Takes::One("TIME"),
        default: Some("1h"),
        help: "how long to try to come back after a cut, and for connect also to connect at first, before giving up; 0 means no limit. Time during which the machine sleeps does not count",
        brief: Some("how long to try to come back after a cut"),
        set: |settings, value| put(&mut settings.client.give_up, duration(value)),
        ..Flag::BASE
    },
    Flag {
        help: "do not ask for a resumable connection; connect also does not continue the sessions of an agent on a new one",
        for_routes: false,
        ..NO_RESUME
    },
    #[cfg(feature = "deflate")]
    Flag {
        help: "offer to compress messages (permessage-deflate, RFC 7692)",
        ..DEFLATE
    },
    MAX_MESSAGE,
    PING_INTERVAL,
    Flag {
        help: "how long to wait for any byte from the server after a PING, or after the server last took output; 0 means no limit",
        ..PING_TIMEOUT
    },
    Flag {
        default_note: Some("warn"),
        ..LOG
    },
    LOG_FORMAT,
];

/// Parses `NAME: VALUE`.
fn field(text: &str) -> Result<(String, String), String> {
    let wrong = || format!("'{text}' is not NAME: VALUE");
    let (name, value) = text.split_once(':').ok_or_else(wrong)?;
    let in_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.!#$%&'*+^`|~".contains(&byte);
    let in_value = |byte: u8| byte == b' ' || byte == b'\t' || byte.is_ascii_graphic();
    if name.is_empty() || !name.bytes().all(in_name) || !value.bytes().all(in_value) {
        return Err(wrong().escape_debug().to_string());
    }
    if is_reserved(name) {
        return Err(format!(
            "'{name}' is set by the handshake and cannot be added"
        ));
    }
    Ok((name.to_owned(), value.trim_ascii().to_owned()))
}

/// Checks a fingerprint: 32 bytes in hexadecimal, with or without colons.
#[cfg(feature = "tls")]
fn fingerprint(text: &str) -> Result<String, String> {
    let digits: String = text.chars().filter(|&c| c != ':').collect();
    if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!("'{text}' is not a SHA-256 fingerprint"));
    }
    Ok(digits)
}
