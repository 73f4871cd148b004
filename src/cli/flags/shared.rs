//! Flags of every command that runs a program for each client.

use super::super::values::duration;
use super::{Flag, Takes, put, samples};

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
