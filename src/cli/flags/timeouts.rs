//! Flags that limit how long a client, or the end of the server, may take.

use super::super::values::duration;
use super::{Flag, Takes, put};

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

pub(super) const FLAGS: &[Flag] = &[
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
