//! A flag of the command line. A row is the whole definition of a flag: its name, value, default, help and parser, its key in the
//! configuration file, its completion, and values that its test accepts and rejects.

use super::command::Command;
use super::settings::Settings;
use super::suggestion::suggestion;

/// One flag. Start a row from [`Flag::BASE`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    /// The name without dashes. It is also the key in the configuration file.
    pub(super) name: &'static str,
    /// Its letter on the command line.
    pub(super) short: Option<char>,
    pub(super) takes: Takes,
    /// The words that it takes, if its values are a fixed set.
    pub(super) words: &'static [&'static str],
    /// The default, written as a user would write it. A test checks that it is the default of the settings.
    pub(super) default: Option<&'static str>,
    /// A default that is not a single value. The help shows it after `default`.
    pub(super) default_note: Option<&'static str>,
    pub(super) help: &'static str,
    /// A short help for `-h`, which lists the flags that most people use. `None` for the other flags.
    pub(super) brief: Option<&'static str>,
    /// Whether the configuration file may contain it.
    pub(super) in_file: bool,
    /// Whether it applies to commands that serve one path, but not to those that serve routes.
    pub(super) for_one_path: bool,
    /// Whether it applies to every server, but is also a setting of a route.
    pub(super) for_routes: bool,
    /// The flag without which this one has no effect.
    pub(super) requires: Option<&'static str>,
    /// The flags with which it cannot be combined, each with what to do instead. On the command line, it overrides these in the
    /// configuration file, and they override it.
    pub(super) excludes: &'static [(&'static str, &'static str)],
    /// Parses a value into the settings. The value of a switch is empty. [`Settings::has`] tells whether it was given, so a switch
    /// that changes no setting of a service has no function.
    pub(super) set: fn(&mut Settings, &str) -> Result<(), String>,
    /// Values that [`Flag::set`] must accept, for the test.
    #[cfg_attr(not(test), expect(dead_code, reason = "for tests"))]
    pub(super) accepts: &'static [&'static str],
    /// Values that [`Flag::set`] must reject, for the test.
    #[cfg_attr(not(test), expect(dead_code, reason = "for tests"))]
    pub(super) rejects: &'static [&'static str],
}

/// The kind of value that a flag takes, with its placeholder in the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// No value: the flag is a switch.
    Nothing,
    /// One value. If the flag is repeated, the last one counts.
    One(&'static str),
    /// One value each time. The flag can be repeated, and the configuration file takes a list.
    Many(&'static str),
}

/// What a value completes to in a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completion {
    /// One of these words, or nothing.
    Words(&'static [&'static str]),
    Files,
    Folders,
}

/// Flags under a title of the help.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) flags: &'static [Flag],
}

impl Flag {
    /// The defaults of the fields of a row.
    pub(super) const BASE: Self = Self {
        name: "",
        short: None,
        takes: Takes::Nothing,
        words: &[],
        default: None,
        default_note: None,
        help: "",
        brief: None,
        in_file: true,
        for_one_path: false,
        for_routes: false,
        requires: None,
        excludes: &[],
        set: |_, _| Ok(()),
        accepts: &[],
        rejects: &[],
    };

    /// Whether a command of its kind takes it.
    pub(super) fn is_for(&self, command: &Command) -> bool {
        !(self.for_one_path && command.serves_routes())
    }

    /// The names of the flags as a user writes them, such as `-p, --port N`.
    pub(super) fn usage(&self) -> String {
        let short = self.short.map_or(String::new(), |one| format!("-{one}, "));
        match self.takes {
            Takes::Nothing => format!("{short}--{}", self.name),
            Takes::One(value) | Takes::Many(value) => format!("{short}--{} {value}", self.name),
        }
    }

    /// The help, with what the table says about repetition and the default.
    pub(super) fn description(&self) -> String {
        let mut text = self.help.to_owned();
        if matches!(self.takes, Takes::Many(_)) {
            text.push_str(" (repeatable)");
        }
        let default: Vec<&str> = self.default.into_iter().chain(self.default_note).collect();
        if !default.is_empty() {
            text.push_str(&format!(" [{}]", default.join("; ")));
        }
        text
    }

    /// The short help, with the default. `None` if `-h` does not list the flag.
    pub(super) fn short_description(&self) -> Option<String> {
        let brief = self.brief?;
        Some(match self.default {
            Some(default) => format!("{brief} [{default}]"),
            None => brief.to_owned(),
        })
    }

    /// What its value completes to.
    pub(super) fn completion(&self) -> Completion {
        match self.takes {
            Takes::One("FILE" | "FILE.json") => Completion::Files,
            Takes::One("DIR") => Completion::Folders,
            _ => Completion::Words(self.words),
        }
    }

    /// Why it cannot be combined with a flag, if so.
    pub(super) fn excludes(&self, other: &Self) -> Option<&'static str> {
        let of = |one: &Self, other: &Self| {
            let mut excluded = one.excludes.iter();
            excluded.find(|(name, _)| *name == other.name)
        };
        of(self, other)
            .or_else(|| of(other, self))
            .map(|(_, why)| *why)
    }

    /// Parses a value into the settings and records that the flag was given.
    pub(super) fn apply(&'static self, settings: &mut Settings, value: &str) -> Result<(), String> {
        (self.set)(settings, value)
            .map_err(|error| error + &suggestion(value, self.words, "'", "'"))?;
        settings.record(self);
        Ok(())
    }
}

/// Values for the test of a flag. The program does not contain them.
pub(super) const fn samples(values: &'static [&'static str]) -> &'static [&'static str] {
    if cfg!(test) { values } else { &[] }
}

/// Stores a parsed value.
pub(super) fn put<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

/// Turns a switch on.
pub(super) fn turn_on(place: &mut bool) -> Result<(), String> {
    put(place, Ok(true))
}
