//! Flags that several commands have, and those of all servers for the configuration file and the log.

use super::super::flag::{Flag, Takes, put, samples, turn_on};
use super::super::values::{choice, duration, number, size};
use crate::service::{Framing, OnFailure};

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
    Flag {
        name: "allow-upgrade",
        help: "answer POST /upgrade over TCP, too, and not only over a unix socket of the server (see 'outrigger help upgrade')",
        ..Flag::BASE
    },
    Flag {
        name: "program",
        takes: Takes::One("FILE"),
        default_note: Some("the path of this program"),
        help: "the program that replaces this one in an upgrade",
        set: |settings, value| {
            settings.upgrade_program = Some(value.into());
            Ok(())
        },
        accepts: samples(&["/usr/bin/outrigger"]),
        ..Flag::BASE
    },
    Flag {
        name: "console",
        default_note: Some("on for processes, serve and demo, unless a route is at /"),
        help: "serve the console for browsers at /, unless a page of the service is there",
        ..Flag::BASE
    },
];

pub(crate) const PASS_ENV: Flag = Flag {
    name: "pass-env",
    takes: Takes::Many("NAME"),
    help: "environment variable of the server to pass on to programs that run as another user",
    set: |settings, value| {
        if value.is_empty() || value.contains('=') {
            return Err(format!("'{value}' is not the name of a variable"));
        }
        settings.processes.pass_env.push(value.to_owned());
        settings.terminal.pass_env.push(value.to_owned());
        Ok(())
    },
    accepts: samples(&["LANG"]),
    rejects: &["", "LANG=C"],
    ..Flag::BASE
};

pub(crate) const LINGER: Flag = Flag {
    name: "linger",
    takes: Takes::One("TIME"),
    default: Some("250ms"),
    help: "how long to read output after a program has exited while one of its child processes holds the output open",
    set: |settings, value| {
        let time = duration(value)?.unwrap_or_default();
        (settings.processes.linger, settings.terminal.linger) = (time, time);
        Ok(())
    },
    ..Flag::BASE
};

pub(crate) const RECORD: Flag = Flag {
    name: "record",
    takes: Takes::One("DIR"),
    help: "record each terminal as an asciicast v3 file in this directory, which only the server's user can read",
    set: |settings, value| {
        settings.record.dir = value.into();
        let checked = settings.record.check();
        checked.map_err(|error| format!("cannot create files in '{value}': {error}"))
    },
    accepts: samples(&["/tmp"]),
    rejects: &["", "/no/such/directory", "/dev/null"],
    ..Flag::BASE
};

pub(crate) const RECORD_INPUT: Flag = Flag {
    name: "record-input",
    help: "record what clients type, too, including passwords",
    requires: Some("record"),
    set: |settings, _| turn_on(&mut settings.record.input),
    ..Flag::BASE
};

pub(crate) const RECORD_LIMIT: Flag = Flag {
    name: "record-limit",
    takes: Takes::One("BYTES"),
    default: Some("256MiB"),
    help: "maximum length of a recording, which then ends",
    requires: Some("record"),
    set: |settings, value| {
        put(
            &mut settings.record.limit,
            size(value, 4096..=1 << 50).map(|limit| limit as u64),
        )
    },
    accepts: samples(&["4KiB"]),
    rejects: &["4095", "lots"],
    ..Flag::BASE
};

pub(crate) const RESTART_LIMIT: Flag = Flag {
    name: "restart-limit",
    takes: Takes::One("N/TIME"),
    default: Some("5/60s"),
    set: |settings, value| {
        let wrong = || format!("'{value}' is not N/TIME such as 5/60s");
        let (count, window) = value.split_once('/').ok_or_else(wrong)?;
        let window = duration(window)?.ok_or_else(wrong)?;
        let count = number(count, 0..=1000)?;
        for limit in settings.restart_limits() {
            (limit.count, limit.window) = (count, window);
        }
        Ok(())
    },
    accepts: samples(&["0/1s", "1000/1h"]),
    rejects: &["5", "5/0", "1001/1s"],
    ..Flag::BASE
};

pub(crate) const ON_FAILURE: Flag = Flag {
    name: "on-failure",
    takes: Takes::One("exit|retry"),
    words: &["exit", "retry"],
    default_note: Some("exit; retry in a route of serve"),
    help: "when the program cannot be started or keeps exiting: 'exit' ends the server; 'retry' rejects clients with 503 and starts the program again, at least every 10 s",
    brief: Some("if PROGRAM fails: end the server, or keep restarting PROGRAM"),
    set: |settings, value| {
        let rule = choice(
            value,
            [("exit", OnFailure::Exit), ("retry", OnFailure::Retry)],
        )?;
        settings
            .restart_limits()
            .for_each(|limit| limit.on_failure = rule);
        Ok(())
    },
    rejects: &["", "restart"],
    ..Flag::BASE
};

pub(crate) const FRAMING: Flag = Flag {
    name: "framing",
    takes: Takes::One("FRAMING"),
    words: &["lines", "raw", "content-length"],
    default: Some("lines"),
    set: |settings, value| {
        let wrong = |_| format!("'{value}' is none of lines, raw and content-length");
        let framing: Framing = value.parse().map_err(wrong)?;
        settings.pipe.framing = framing;
        #[cfg(feature = "client")]
        {
            settings.client.framing = framing;
        }
        Ok(())
    },
    rejects: &["json"],
    ..Flag::BASE
};

pub(crate) const SUBPROTOCOL: Flag = Flag {
    name: "subprotocol",
    takes: Takes::Many("NAME"),
    help: "subprotocol that the program speaks; the server selects the first one that a client offers",
    brief: Some("subprotocol to select"),
    set: |settings, value| {
        let valid = |byte: u8| byte.is_ascii_graphic() && byte != b',';
        if value.is_empty() || !value.bytes().all(valid) {
            return Err(format!("'{value}' is not the name of a subprotocol"));
        }
        settings.app.subprotocols.push(value.to_owned());
        settings.pipe.subprotocols.push(value.to_owned());
        Ok(())
    },
    accepts: samples(&["chat.v1"]),
    rejects: &["", "a,b", "a b"],
    ..Flag::BASE
};

pub(crate) const INITIALIZE_TIMEOUT: Flag = Flag {
    name: "initialize-timeout",
    takes: Takes::One("TIME"),
    default: Some("30s"),
    set: |settings, value| {
        settings.agent.initialize_timeout = duration(value)?;
        #[cfg(feature = "mcp")]
        {
            settings.mcp.initialize_timeout = settings.agent.initialize_timeout;
        }
        Ok(())
    },
    ..Flag::BASE
};

pub(crate) const REQUEST_TIMEOUT: Flag = Flag {
    name: "request-timeout",
    takes: Takes::One("TIME"),
    default: Some("off"),
    set: |settings, value| {
        settings.agent.request_timeout = duration(value)?;
        #[cfg(feature = "mcp")]
        {
            settings.mcp.request_timeout = settings.agent.request_timeout;
        }
        Ok(())
    },
    ..Flag::BASE
};
