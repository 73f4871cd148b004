//! Flags that several commands have.

use super::super::values::{duration, number};
use super::{Flag, Takes, put, samples};
use crate::service::{Framing, OnFailure};

pub(in crate::cli) const PASS_ENV: Flag = Flag {
    name: "pass-env",
    takes: Takes::Many("NAME"),
    help: "environment variable of the server to pass on to programs that run as another user",
    set: |settings, value| {
        if value.is_empty() || value.contains('=') {
            return Err(format!("'{value}' is not the name of a variable"));
        }
        settings.pass_env.push(value.to_owned());
        Ok(())
    },
    accepts: samples(&["LANG"]),
    rejects: &["", "LANG=C"],
    ..Flag::BASE
};

pub(in crate::cli) const LINGER: Flag = Flag {
    name: "linger",
    takes: Takes::One("TIME"),
    default: Some("250ms"),
    help: "how long to read output after a program has exited while one of its child processes holds the output open",
    set: |settings, value| {
        let time = duration(value).map(Option::unwrap_or_default);
        put(&mut settings.linger, time)
    },
    accepts: samples(&["0", "2s"]),
    rejects: &["soon"],
    ..Flag::BASE
};

pub(in crate::cli) const RESTART_LIMIT: Flag = Flag {
    name: "restart-limit",
    takes: Takes::One("N/TIME"),
    default: Some("5/60s"),
    set: |settings, value| {
        let wrong = || format!("'{value}' is not N/TIME such as 5/60s");
        let (count, window) = value.split_once('/').ok_or_else(wrong)?;
        let window = duration(window)?.ok_or_else(wrong)?;
        settings.restart_limit.count = number(count, 0..=1000)?;
        settings.restart_limit.window = window;
        Ok(())
    },
    accepts: samples(&["0/1s", "1000/1h"]),
    rejects: &["5", "5/0", "1001/1s"],
    ..Flag::BASE
};

pub(in crate::cli) const ON_FAILURE: Flag = Flag {
    name: "on-failure",
    takes: Takes::One("exit|retry"),
    words: &["exit", "retry"],
    default_note: Some("exit; retry in a route of serve"),
    help: "when the program cannot be started or keeps exiting: 'exit' ends the server; 'retry' rejects clients with 503 and starts the program again, at least every 10 s",
    brief: Some("if PROGRAM fails: end the server, or keep restarting PROGRAM"),
    set: |settings, value| {
        settings.restart_limit.on_failure = match value {
            "exit" => OnFailure::Exit,
            "retry" => OnFailure::Retry,
            _ => return Err(format!("'{value}' is neither exit nor retry")),
        };
        Ok(())
    },
    accepts: samples(&["exit", "retry"]),
    rejects: &["", "restart"],
    ..Flag::BASE
};

pub(in crate::cli) const FRAMING: Flag = Flag {
    name: "framing",
    takes: Takes::One("FRAMING"),
    words: &["lines", "raw", "content-length"],
    default: Some("lines"),
    set: |settings, value| {
        let wrong = |_| format!("'{value}' is none of lines, raw and content-length");
        put(
            &mut settings.framing,
            value.parse::<Framing>().map_err(wrong),
        )
    },
    accepts: samples(&["lines", "content-length"]),
    rejects: &["json"],
    ..Flag::BASE
};

pub(in crate::cli) const INITIALIZE_TIMEOUT: Flag = Flag {
    name: "initialize-timeout",
    takes: Takes::One("TIME"),
    default: Some("30s"),
    set: |settings, value| {
        settings.initialize_timeout = duration(value)?;
        Ok(())
    },
    accepts: samples(&["0", "2m"]),
    rejects: &["soon"],
    ..Flag::BASE
};

pub(in crate::cli) const REQUEST_TIMEOUT: Flag = Flag {
    name: "request-timeout",
    takes: Takes::One("TIME"),
    default: Some("off"),
    set: |settings, value| {
        settings.request_timeout = duration(value)?;
        Ok(())
    },
    accepts: samples(&["0", "2m"]),
    rejects: &["soon"],
    ..Flag::BASE
};
