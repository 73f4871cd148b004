//! Flags that limit what clients can make the server hold or do, and how long a client or the end of the server may take;
//! the flags of compression and of resumable connections.

use std::num::NonZeroU32;

use super::super::flag::{Flag, Takes, put, samples};
use super::super::settings::Settings;
use super::super::values::{duration, number, size};
use crate::server::is_node_name;
use crate::{Config, ResumeConfig};

pub(super) const MAX_MESSAGE: Flag = Flag {
    name: "max-message",
    takes: Takes::One("BYTES"),
    default: Some("16MiB"),
    help: "maximum length of a message; a longer one closes the connection with 1009",
    brief: Some("maximum length of a message"),
    set: |settings, value| {
        put(
            &mut settings.server.limits.max_message,
            size(value, 125..=1 << 40),
        )
    },
    accepts: samples(&["125", "1GiB"]),
    rejects: &["124", "lots"],
    ..Flag::BASE
};

#[cfg(feature = "deflate")]
pub(super) const DEFLATE: Flag = Flag {
    name: "deflate",
    help: "compress messages for clients that support it (permessage-deflate, RFC 7692)",
    brief: Some("compress messages (permessage-deflate)"),
    ..Flag::BASE
};

pub(super) const FLAGS: &[Flag] = &[
    Flag {
        name: "max-clients",
        takes: Takes::One("N"),
        default: Some("10000"),
        help: "maximum clients at once; more get 503",
        brief: Some("maximum clients at once"),
        set: |settings, value| {
            put(
                &mut settings.server.max_clients,
                number(value, 1..=1_000_000),
            )
        },
        accepts: samples(&["1", "1000000"]),
        rejects: &["0", "1000001", "many"],
        ..Flag::BASE
    },
    Flag {
        name: "memory",
        takes: Takes::One("BYTES"),
        default_note: Some("a quarter of what the system grants"),
        help: "maximum memory that clients can make the server hold: incomplete messages, unread and unconfirmed output, bodies of calls, and what services keep for them. Near it, whoever holds most gives it back: output and screens of programs are shrunk, or the largest client ends with 1013. 0 means no limit",
        brief: Some("memory that clients can use"),
        set: |settings, value| {
            let bytes = size(value, 0..=1 << 40)?;
            if (1..Config::MIN_MEMORY).contains(&bytes) {
                return Err(format!("'{value}' is less than 1MiB"));
            }
            settings.server.memory = Some(bytes).filter(|bytes| *bytes > 0);
            Ok(())
        },
        accepts: samples(&["0", "1MiB", "8GiB"]),
        rejects: &["1023KiB", "much"],
        ..Flag::BASE
    },
    Flag {
        name: "max-clients-per-address",
        takes: Takes::One("N"),
        default: Some("0"),
        help: "maximum clients and pending calls from one IP address; more get 503; 0 means no limit. Connections of any kind are limited to twice as many. Behind a proxy all clients have the same address",
        set: |settings, value| {
            let most = number(value, 0..=1_000_000)?;
            settings.server.max_clients_per_address = (most > 0).then_some(most);
            Ok(())
        },
        accepts: samples(&["0", "8"]),
        rejects: &["-1"],
        ..Flag::BASE
    },
    Flag {
        name: "max-clients-per-principal",
        takes: Takes::One("N"),
        default: Some("0"),
        help: "maximum clients and pending calls of one person: the holder of a named token, a certificate, a user of a proxy or of a unix socket; more get 503; 0 means no limit",
        set: |settings, value| {
            let most = number(value, 0..=1_000_000)?;
            settings.server.max_clients_per_principal = (most > 0).then_some(most);
            Ok(())
        },
        accepts: samples(&["0", "8"]),
        rejects: &["-1"],
        ..Flag::BASE
    },
    Flag {
        name: "affinity-cookie",
        takes: Takes::One("NAME=VALUE"),
        help: "cookie to set with each 101 response, for load balancers",
        set: |settings, value| {
            let named = value
                .split_once('=')
                .is_some_and(|(name, _)| !name.is_empty());
            let valid = |byte: u8| byte.is_ascii_graphic() && !b";,\"\\".contains(&byte);
            if !named || !value.bytes().all(valid) {
                return Err(format!("'{value}' is not NAME=VALUE"));
            }
            settings.server.affinity_cookie = Some(value.to_owned());
            Ok(())
        },
        accepts: samples(&["server=a"]),
        rejects: &["server", "=a", "server=a;b"],
        ..Flag::BASE
    },
    Flag {
        name: "node",
        takes: Takes::One("NAME"),
        help: "name of this server among several, which its resume tokens contain; another server answers them with 421",
        set: |settings, value| {
            if !is_node_name(value) {
                return Err(format!(
                    "'{value}' is not 1 to 64 letters, digits, '-', '_' and '.'"
                ));
            }
            settings.server.node = Some(value.to_owned());
            Ok(())
        },
        accepts: samples(&["one", "rooms-0.rooms"]),
        rejects: &["", "a b", "a;b"],
        ..Flag::BASE
    },
    Flag {
        name: "max-head",
        takes: Takes::One("BYTES"),
        default: Some("16KiB"),
        help: "maximum length of a request head; a longer one gets 431",
        set: |settings, value| {
            put(
                &mut settings.server.limits.max_head,
                size(value, 1024..=1 << 20),
            )
        },
        accepts: samples(&["1024", "1MiB"]),
        rejects: &["1023", "2MiB"],
        ..Flag::BASE
    },
    MAX_MESSAGE,
    Flag {
        name: "max-json",
        takes: Takes::One("BYTES"),
        default: Some("4MiB"),
        help: "maximum length of a client's message to an agent, an MCP server or an app. A longer one gets an error; with app it closes the connection with 1009. The prompts of an agent are limited by --max-message only",
        set: |settings, value| put(&mut settings.server.max_json, size(value, 1024..=1 << 40)),
        accepts: samples(&["1KiB", "16MiB"]),
        rejects: &["1023", "much"],
        ..Flag::BASE
    },
    Flag {
        name: "max-outbound",
        takes: Takes::One("BYTES"),
        default: Some("8MiB"),
        help: "maximum unread output buffered for one client, not counting its longest message; more closes the connection with 1008. The limit is four times as high for a client that keeps reading",
        set: |settings, value| {
            put(
                &mut settings.server.max_outbound,
                size(value, 1024..=1 << 40),
            )
        },
        accepts: samples(&["1KiB"]),
        rejects: &["1023"],
        ..Flag::BASE
    },
    #[cfg(feature = "deflate")]
    DEFLATE,
    #[cfg(feature = "deflate")]
    Flag {
        name: "deflate-memory",
        takes: Takes::One("BYTES"),
        default: Some("64MiB"),
        help: "maximum memory for clients whose messages refer to earlier ones, 322KiB each; further clients get no_context_takeover",
        requires: Some("deflate"),
        set: |settings, value| put(&mut settings.deflate.memory, size(value, 0..=1 << 40)),
        accepts: samples(&["0", "1GiB"]),
        rejects: &["lots"],
        ..Flag::BASE
    },
    Flag {
        name: "rate-limit",
        takes: Takes::One("MESSAGES/S"),
        default: Some("0"),
        help: "maximum messages per second from one client; more close the connection with 1008; 0 means no limit",
        set: |settings, value| {
            let rate = number(value, 0..=1_000_000)?;
            settings.server.rate_limit = NonZeroU32::new(rate as u32);
            Ok(())
        },
        accepts: samples(&["100"]),
        rejects: &["-1", "fast"],
        ..Flag::BASE
    },
];

pub(super) const PING_INTERVAL: Flag = Flag {
    name: "ping-interval",
    takes: Takes::One("TIME"),
    default: Some("20s"),
    help: "time between two PINGs; 0 sends none",
    set: |settings, value| put(&mut settings.server.timeouts.ping_interval, duration(value)),
    ..Flag::BASE
};

pub(super) const PING_TIMEOUT: Flag = Flag {
    name: "ping-timeout",
    takes: Takes::One("TIME"),
    default: Some("20s"),
    help: "how long to wait for any byte from the client after a PING, or after the client last took output; 0 means no limit",
    set: |settings, value| put(&mut settings.server.timeouts.ping_timeout, duration(value)),
    ..Flag::BASE
};

pub(super) const TIMEOUT_FLAGS: &[Flag] = &[
    Flag {
        name: "handshake-timeout",
        takes: Takes::One("TIME"),
        default: Some("10s"),
        help: "how long a client may take for the whole request head, and again for its body; a slower one gets 408",
        set: |settings, value| put(&mut settings.server.timeouts.handshake, duration(value)),
        ..Flag::BASE
    },
    PING_INTERVAL,
    PING_TIMEOUT,
    Flag {
        name: "idle-timeout",
        takes: Takes::One("TIME"),
        default: Some("off"),
        default_note: Some("agent: 5m"),
        help: "close clients with 1001 after this time without a message in either direction and without a waiting request. The default does not apply to clients of an agent that have a session or their own process",
        set: |settings, value| put(&mut settings.server.timeouts.idle, duration(value)),
        ..Flag::BASE
    },
    Flag {
        name: "close-timeout",
        takes: Takes::One("TIME"),
        default: Some("5s"),
        help: "how long a connection may last after the server's CLOSE, or after the last answer to a call; extended while the client reads at least 1 KiB/s",
        set: |settings, value| put(&mut settings.server.timeouts.close, duration(value)),
        ..Flag::BASE
    },
    Flag {
        name: "drain-timeout",
        takes: Takes::One("TIME"),
        default: Some("10s"),
        help: "how long SIGTERM waits for pending answers and for clients to disconnect, and then again for programs",
        set: |settings, value| {
            let time = duration(value).map(Option::unwrap_or_default);
            put(&mut settings.server.drain_timeout, time)
        },
        ..Flag::BASE
    },
];

fn config(settings: &mut Settings) -> &mut ResumeConfig {
    settings.server.resume.get_or_insert_default()
}

pub(super) const NO_RESUME: Flag = Flag {
    name: "no-resume",
    help: "offer no resumable connections; in the configuration file also a setting of a route",
    for_routes: true,
    ..Flag::BASE
};

pub(super) const RESUME_FLAGS: &[Flag] = &[
    Flag {
        name: "resume-grace",
        takes: Takes::One("TIME"),
        default: Some("5m"),
        help: "how long a client whose connection was cut may take to resume it, counted from the end of the client's pending work",
        set: |settings, value| {
            let time = duration(value).map(Option::unwrap_or_default);
            put(&mut config(settings).grace, time)
        },
        ..Flag::BASE
    },
    Flag {
        name: "resume-limit",
        takes: Takes::One("TIME"),
        default: Some("12h"),
        help: "how long a client whose connection was cut may take to resume it in any case",
        set: |settings, value| {
            let time = duration(value).map(Option::unwrap_or_default);
            put(&mut config(settings).limit, time)
        },
        ..Flag::BASE
    },
    Flag {
        name: "resume-buffer",
        takes: Takes::One("BYTES"),
        default: Some("4MiB"),
        help: "maximum unconfirmed messages kept for one resumable client, not counting the longest one; a client that exceeds it is disconnected with 1008",
        set: |settings, value| put(&mut config(settings).buffer, size(value, 4096..=1 << 40)),
        accepts: samples(&["4096", "1GiB"]),
        rejects: &["4095", "lots"],
        ..Flag::BASE
    },
    NO_RESUME,
];
