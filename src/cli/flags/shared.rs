//! Flags that several commands have.

use super::super::values::{choice, duration, number};
use super::{Flag, Takes, samples};
use crate::service::{Framing, OnFailure};

pub(in crate::cli) const PASS_ENV: Flag = Flag {
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

pub(in crate::cli) const LINGER: Flag = Flag {
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

pub(in crate::cli) const RESTART_LIMIT: Flag = Flag {
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

pub(in crate::cli) const ON_FAILURE: Flag = Flag {
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

pub(in crate::cli) const FRAMING: Flag = Flag {
    name: "framing",
    takes: Takes::One("FRAMING"),
    words: &["lines", "raw", "content-length"],
    default: Some("lines"),
    set: |settings, value| {
        let wrong = |_| format!("'{value}' is none of lines, raw and content-length");
        let framing: Framing = value.parse().map_err(wrong)?;
        (settings.agent.framing, settings.pipe.framing) = (framing, framing);
        #[cfg(feature = "client")]
        {
            settings.client.framing = framing;
        }
        Ok(())
    },
    rejects: &["json"],
    ..Flag::BASE
};

pub(in crate::cli) const INITIALIZE_TIMEOUT: Flag = Flag {
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

pub(in crate::cli) const REQUEST_TIMEOUT: Flag = Flag {
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
