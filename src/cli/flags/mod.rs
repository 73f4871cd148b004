//! The table of command-line flags. The flags of all servers, and those of all clients, are in the files below. A command's own flags
//! are in the command's file.

pub(super) mod access;
#[cfg(feature = "client")]
mod client;
mod limits;
mod listen;
pub(super) mod shared;

use super::command::{Command, Serves};
use super::flag::{Flag, Group};

/// The flags that every server takes, in the order of the help.
const SERVER: &[Group] = &[
    Group {
        title: "Address options",
        flags: listen::FLAGS,
    },
    #[cfg(feature = "tls")]
    Group {
        title: "TLS options",
        flags: listen::TLS_FLAGS,
    },
    Group {
        title: "Access options",
        flags: access::FLAGS,
    },
    Group {
        title: "Limit options",
        flags: limits::FLAGS,
    },
    Group {
        title: "Time limit options",
        flags: limits::TIMEOUT_FLAGS,
    },
    Group {
        title: "Resumption options",
        flags: limits::RESUME_FLAGS,
    },
    Group {
        title: "Configuration and log options",
        flags: shared::FLAGS,
    },
];

/// The flags of every command that connects to a server.
const CLIENT: &[Group] = &[
    #[cfg(feature = "client")]
    Group {
        title: "Connection options",
        flags: client::FLAGS,
    },
];

impl Flag {
    /// The flag of this name, if the command takes it.
    pub(super) fn find(name: &str, command: &Command) -> Option<&'static Self> {
        let flags = Self::of(command);
        flags.into_iter().find(|flag| flag.name == name)
    }

    /// The settings of a route with the command.
    pub(super) fn of_route(command: &Command) -> Vec<&'static Self> {
        let general = SERVER.iter().flat_map(|group| group.flags);
        let general = general.filter(|flag| flag.for_routes);
        command.flags.iter().chain(general).collect()
    }

    /// All flags of a command.
    pub(super) fn of(command: &Command) -> Vec<&'static Self> {
        let mut flags: Vec<_> = command.flags.iter().collect();
        flags.extend(Self::general(command));
        flags
    }

    /// The flags that a command takes because it is a server or a client.
    pub(super) fn general(command: &Command) -> Vec<&'static Self> {
        let groups = Self::general_groups(command).iter();
        let flags = groups.flat_map(|group| group.flags);
        flags.filter(|flag| flag.is_for(command)).collect()
    }

    /// The groups of these flags. Not every command takes all of them.
    pub(super) fn general_groups(command: &Command) -> &'static [Group] {
        match command.serves {
            Serves::Tool(_) => &[],
            _ if command.is_client() => CLIENT,
            _ => SERVER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::flag::Takes;
    use super::super::settings::Settings;
    use super::*;

    /// Every flag with each command that takes it.
    fn all() -> impl Iterator<Item = (&'static Command, &'static Flag)> {
        let commands = Command::ALL.iter().copied();
        commands.flat_map(|command| {
            let flags = Flag::of(command).into_iter();
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
    fn a_flag_accepts_and_rejects_the_values_of_its_row_and_kind() {
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
            for word in flag.words {
                let accepted = (flag.set)(&mut Settings::new(), word);
                assert_eq!(accepted, Ok(()), "--{} {word}", flag.name);
            }
            let takes_time = flag.takes == Takes::One("TIME");
            let has_samples = !flag.accepts.is_empty() || !flag.words.is_empty();
            let is_tested = has_samples || takes_time || flag.takes == Takes::Nothing;
            assert!(is_tested, "--{} has no test", flag.name);
            if takes_time {
                let set = |value| (flag.set)(&mut Settings::new(), value);
                assert_eq!(
                    (set("500ms"), set("1h")),
                    (Ok(()), Ok(())),
                    "--{}",
                    flag.name
                );
                assert!(set("soon").is_err(), "--{}", flag.name);
                let needs_time = flag.rejects.contains(&"0");
                assert_eq!(set("0").is_err(), needs_time, "--{}", flag.name);
            }
        }
    }

    #[test]
    fn a_name_is_used_once_and_what_a_flag_requires_exists() {
        for (command, flag) in all() {
            let first = Flag::find(flag.name, command);
            assert_eq!(first.map(|other| other.help), Some(flag.help));
            let flags = Flag::of(command).into_iter();
            let letters = flags.filter(|other| other.short == flag.short);
            assert!(flag.short.is_none() || letters.count() == 1);
            let same = all()
                .filter(|(other, found)| other.name == command.name && found.name == flag.name);
            assert_eq!(same.count(), 1, "--{}", flag.name);
            if let Some(required) = flag.requires {
                assert!(Flag::find(required, command).is_some(), "--{required}");
            }
            for (other, why) in flag.excludes {
                let other = Flag::find(other, command).expect(other);
                assert_eq!(other.excludes(flag), Some(*why));
            }
        }
    }
}
