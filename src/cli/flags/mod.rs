//! The table of command-line flags. A row is the whole definition of a flag: its name, value, default, help and parser,
//! its key in the configuration file, and values that its test accepts and rejects.
//!
//! The flags of all servers, and those of all clients, are in the files below. A command's own flags are in the command's
//! file.

mod access;
#[cfg(feature = "client")]
mod client;
mod limits;
mod listen;
mod program;
mod resume;
pub(super) mod shared;
mod timeouts;
#[cfg(feature = "tls")]
mod tls;

use super::commands::Command;
use super::settings::Settings;

/// One flag. Start a row from [`Flag::BASE`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    /// The name without dashes. It is also the key in the configuration file.
    pub(super) name: &'static str,
    pub(super) takes: Takes,
    /// The default, written as a user would write it. A test checks that it is the default of the settings.
    pub(super) default: Option<&'static str>,
    /// A default that is not a single value. The help shows it after `default`.
    pub(super) default_note: Option<&'static str>,
    pub(super) help: &'static str,
    /// Whether the configuration file may contain it.
    pub(super) in_file: bool,
    /// Whether it applies to commands that serve one path, but not to those that serve routes.
    pub(super) for_one_path: bool,
    /// Whether it applies to every server, but is also a setting of a route.
    pub(super) for_routes: bool,
    /// The flag without which this one has no effect.
    pub(super) requires: Option<&'static str>,
    /// Parses a value into the settings. The value of a switch is empty.
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

/// The flags that every server takes, in the order of the help.
const SERVER: &[&[Flag]] = &[
    listen::FLAGS,
    #[cfg(feature = "tls")]
    tls::FLAGS,
    access::FLAGS,
    limits::FLAGS,
    timeouts::FLAGS,
    resume::FLAGS,
    program::FLAGS,
];

/// The flags of every command that connects to a server.
const CLIENT: &[&[Flag]] = &[
    #[cfg(feature = "client")]
    client::FLAGS,
];

impl Flag {
    /// The defaults of the fields of a row.
    pub(super) const BASE: Self = Self {
        name: "",
        takes: Takes::Nothing,
        default: None,
        default_note: None,
        help: "",
        in_file: true,
        for_one_path: false,
        for_routes: false,
        requires: None,
        set: |_, _| Ok(()),
        accepts: &[],
        rejects: &[],
    };

    /// The flag of this name, if the command takes it.
    pub(super) fn find(name: &str, command: &Command) -> Option<&'static Self> {
        let mut flags = command.flags.iter().chain(Self::general(command));
        flags.find(|flag| flag.name == name)
    }

    /// The setting of this name, if a route with the command has it.
    pub(super) fn find_in_route(name: &str, command: &'static Command) -> Option<&'static Self> {
        let general = SERVER.iter().copied().flatten();
        let general = general.filter(|flag| flag.for_routes);
        let mut flags = command.flags.iter().chain(general);
        flags.find(|flag| flag.name == name)
    }

    /// The flags that a command takes because it is a server or a client.
    pub(super) fn general(command: &Command) -> impl Iterator<Item = &'static Self> {
        let serves_routes = command.serves_routes();
        let tables = if command.is_client() { CLIENT } else { SERVER };
        let flags = tables.iter().copied().flatten();
        flags.filter(move |flag| !(serves_routes && flag.for_one_path))
    }

    /// Parses a value into the settings and records that the flag was given.
    pub(super) fn apply(&'static self, settings: &mut Settings, value: &str) -> Result<(), String> {
        (self.set)(settings, value)?;
        settings.given.insert(self.name);
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
fn turn_on(place: &mut bool) -> Result<(), String> {
    *place = true;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every flag with each command that takes it.
    fn all() -> impl Iterator<Item = (&'static Command, &'static Flag)> {
        Command::ALL.iter().copied().flat_map(|command| {
            let flags = command.flags.iter().chain(Flag::general(command));
            flags.map(move |flag| (command, flag))
        })
    }

    #[test]
    fn a_default_in_the_help_is_the_default_of_the_settings() {
        for (command, flag) in all() {
            let Some(default) = flag.default else {
                continue;
            };
            let mut settings = Settings::new();
            // `--listen` adds to a list that is empty until all flags are read.
            if flag.name == "listen" {
                settings.complete_listen().expect("the default is valid");
                let complete = format!("{settings:?}");
                settings = Settings::new();
                (flag.set)(&mut settings, default).expect("the default is valid");
                assert_eq!(format!("{settings:?}"), complete);
                continue;
            }
            let before = format!("{settings:?}");
            let set = (flag.set)(&mut settings, default);
            assert_eq!(set, Ok(()), "{} --{}", command.name, flag.name);
            assert_eq!(format!("{settings:?}"), before, "--{}", flag.name);
        }
    }

    #[test]
    fn a_flag_accepts_and_rejects_the_values_of_its_row() {
        for (_, flag) in all() {
            for value in flag.accepts {
                let accepted = (flag.set)(&mut Settings::new(), value);
                assert_eq!(accepted, Ok(()), "--{} {value}", flag.name);
            }
            for value in flag.rejects {
                let rejected = (flag.set)(&mut Settings::new(), value);
                let error = rejected.expect_err(&format!("--{} {value}", flag.name));
                assert!(!error.contains('\n') && !error.ends_with('.'), "{error}");
            }
            let takes_value = flag.takes != Takes::Nothing;
            assert!(
                !takes_value || !flag.accepts.is_empty(),
                "--{} has no test",
                flag.name
            );
        }
    }

    #[test]
    fn a_name_is_used_once_and_what_a_flag_requires_exists() {
        for (command, flag) in all() {
            let mut flags = command.flags.iter().chain(Flag::general(command));
            assert_eq!(
                flags
                    .find(|other| other.name == flag.name)
                    .map(|other| other.help),
                Some(flag.help)
            );
            let same = all()
                .filter(|(other, found)| other.name == command.name && found.name == flag.name);
            assert_eq!(same.count(), 1, "--{}", flag.name);
            if let Some(required) = flag.requires {
                assert!(Flag::find(required, command).is_some(), "--{required}");
            }
        }
    }
}
