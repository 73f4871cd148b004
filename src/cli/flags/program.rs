//! Flags about the configuration file and the log.

use super::{Flag, Takes, put, samples};

pub(super) const LOG: Flag = Flag {
    name: "log",
    takes: Takes::One("LEVEL"),
    words: &["off", "error", "warn", "info", "debug", "trace"],
    default_note: Some("info; demo: warn"),
    help: "off, error, warn, info, debug or trace; without it, RUST_LOG sets the level",
    brief: Some("off, error, warn, info, debug or trace"),
    set: |settings, value| {
        let level = value
            .parse()
            .map_err(|_| format!("'{value}' is not one of off, error, warn, info, debug, trace"))?;
        settings.log_level = Some(level);
        Ok(())
    },
    rejects: &["loud"],
    ..Flag::BASE
};

pub(super) const LOG_FORMAT: Flag = Flag {
    name: "log-format",
    takes: Takes::One("FORMAT"),
    words: &["text", "json"],
    default: Some("text"),
    help: "text or json; the log goes to standard error",
    set: |settings, value| put(&mut settings.log_format, value.parse()),
    rejects: &["xml"],
    ..Flag::BASE
};

pub(super) const FLAGS: &[Flag] = &[
    Flag {
        name: "config",
        takes: Takes::One("FILE.json"),
        help: "JSON object with these settings by the same names, the program and its arguments as \"command\" and, for serve, \"routes\"; a flag overrides the file",
        brief: Some("JSON file with these settings"),
        in_file: false,
        // The parser reads the file before it applies any flag.
        set: |_, _| Ok(()),
        accepts: samples(&["outrigger.json"]),
        ..Flag::BASE
    },
    Flag {
        name: "check",
        help: "check that the settings are valid and the programs can be found, then exit",
        brief: Some("check the settings, then exit"),
        in_file: false,
        ..Flag::BASE
    },
    LOG,
    LOG_FORMAT,
];
