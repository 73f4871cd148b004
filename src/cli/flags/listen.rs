//! Flags for the addresses to listen on, for TLS, and for the file of `--announce`.

use super::super::flag::{Flag, Takes, put, samples, turn_on};
use super::super::values::{listen, loopback, number, port_range};
use crate::Peers;

/// Values of flags that take peers.
const PEERS: &[&str] = samples(&[
    "unix",
    "10.0.0.1",
    "10.0.0.0/8",
    "::1/128",
    "::ffff:10.0.0.0/104",
]);

/// Values that are not peers.
const NO_PEERS: &[&str] = &["", "10.0.0.0/33", "proxy", "::ffff:10.0.0.0/8"];

pub(super) const FLAGS: &[Flag] = &[
    Flag {
        name: "listen",
        takes: Takes::Many("ADDRESS"),
        default: Some("127.0.0.1:7070"),
        default_note: Some("the sockets of LISTEN_FDS if there are any"),
        help: if cfg!(feature = "tls") {
            "HOST:PORT, or PORT on 127.0.0.1, where port 0 takes a free port; unix:PATH, or fd:NUMBER for a listening socket that is already open; tls: or plain: in front turns TLS on or off for this address"
        } else {
            "HOST:PORT, or PORT on 127.0.0.1, where port 0 takes a free port; unix:PATH, or fd:NUMBER for a listening socket that is already open"
        },
        brief: Some("HOST:PORT, PORT or unix:PATH to listen on"),
        set: |settings, value| {
            settings.listen.extend(listen(value)?);
            Ok(())
        },
        accepts: samples(&[
            "127.0.0.1:0",
            "7070",
            ":7070",
            "0",
            "plain:7070",
            "[::1]:7070",
            "localhost:0",
            "unix:/tmp/x.sock",
            "fd:3",
            "plain:127.0.0.1:0",
            "plain:unix:/tmp/x.sock",
            "plain:fd:3",
        ]),
        rejects: &[
            "70700",
            ":",
            "+80",
            ":-1",
            "127.0.0.1",
            "127.0.0.1:99999",
            "unix:",
            "fd:x",
            "plain:",
            "plain:tls:fd:3",
            "",
        ],
        ..Flag::BASE
    },
    Flag {
        name: "port",
        short: Some('p'),
        takes: Takes::One("N"),
        help: "listen on this port of 127.0.0.1, as --listen 127.0.0.1:N does; 0 takes a free port",
        brief: Some("listen on this port of 127.0.0.1"),
        excludes: &[
            (
                "listen",
                "write the port after the host, as in --listen 0.0.0.0:8080",
            ),
            ("port-range", "it chooses the port"),
        ],
        set: |settings, value| {
            let port = number(value, 0..=u16::MAX.into())? as u16;
            settings.listen = vec![loopback(port)];
            Ok(())
        },
        accepts: samples(&["0", "7070", "65535"]),
        rejects: &["", "65536", "-1", ":80", "http"],
        ..Flag::BASE
    },
    Flag {
        name: "port-range",
        takes: Takes::One("A-B"),
        help: "replace the port of each address to listen on by a random free port of this range",
        set: |settings, value| put(&mut settings.port_range, port_range(value).map(Some)),
        accepts: samples(&["10000-20000", "7070-7070"]),
        rejects: &["7070", "0-10", "20-10", "1-65536"],
        ..Flag::BASE
    },
    Flag {
        name: "reuse-port",
        help: "share the ports with other processes that use this flag (SO_REUSEPORT), for one process per core",
        set: |settings, _| turn_on(&mut settings.server.reuse_port),
        ..Flag::BASE
    },
    Flag {
        name: "proxy-protocol",
        takes: Takes::Many("PEERS"),
        help: "proxies that must begin each connection with a PROXY protocol header (version 1 or 2): an address, a network such as 10.0.0.0/8, or unix",
        set: |settings, value| {
            settings.server.proxies.push(peers(value)?);
            Ok(())
        },
        accepts: PEERS,
        rejects: NO_PEERS,
        ..Flag::BASE
    },
    Flag {
        name: "trusted-proxy",
        takes: Takes::Many("PEERS"),
        help: "HTTP proxies whose X-Forwarded-For or Forwarded field (RFC 7239) names the client's address: an address, a network such as 10.0.0.0/8, or unix",
        set: |settings, value| {
            settings.server.trusted_proxies.push(peers(value)?);
            Ok(())
        },
        accepts: PEERS,
        rejects: NO_PEERS,
        ..Flag::BASE
    },
    Flag {
        name: "announce",
        takes: Takes::One("FILE"),
        help: "write {pid, port, transport, url, authToken} to FILE as JSON once the server listens, readable by its user only, and remove FILE when it begins to stop; {port} in FILE is replaced by the port, ~/ by the home directory",
        set: |settings, value| put(&mut settings.announce.file, Ok(Some(value.to_owned()))),
        accepts: samples(&["/tmp/{port}.lock"]),
        ..Flag::BASE
    },
    Flag {
        name: "announce-extra",
        takes: Takes::One("JSON"),
        help: "JSON object whose fields are added to the --announce file, and replace those of the same name, such as the pid",
        requires: Some("announce"),
        set: |settings, value| {
            settings.announce.extra = match serde_json::from_str(value) {
                Ok(serde_json::Value::Object(fields)) => fields,
                Ok(_) => return Err("not a JSON object".to_owned()),
                Err(error) => return Err(format!("not JSON: {error}")),
            };
            Ok(())
        },
        accepts: samples(&["{}", "{\"workspaceFolders\":[\"/src\"]}"]),
        rejects: &["[]", "{"],
        ..Flag::BASE
    },
];

/// Parses the peers of a proxy.
fn peers(value: &str) -> Result<Peers, String> {
    let peers = value.parse();
    peers.map_err(|error| format!("'{value}' is {error}"))
}

#[cfg(feature = "tls")]
pub(super) const TLS_FLAGS: &[Flag] = &[
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
