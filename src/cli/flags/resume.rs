//! Flags for resumable connections.

use super::super::settings::Settings;
use super::super::values::{duration, size};
use super::{Flag, Takes, put, samples};
use crate::ResumeConfig;

fn config(settings: &mut Settings) -> &mut ResumeConfig {
    settings.server.resume.get_or_insert_default()
}

pub(super) const NO_RESUME: Flag = Flag {
    name: "no-resume",
    help: "offer no resumable connections; in the configuration file also a setting of a route",
    for_routes: true,
    ..Flag::BASE
};

pub(super) const FLAGS: &[Flag] = &[
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
