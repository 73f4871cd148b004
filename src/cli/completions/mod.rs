//! Completions for shells, made from the tables of commands and flags.

mod bash;
mod fish;
mod zsh;

use super::command::{Command, ProgramArg};
use super::flag::Flag;
use crate::demo::EXAMPLES;

/// A shell that can complete the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    const ALL: [(&'static str, Self); 3] = [
        ("bash", Self::Bash),
        ("zsh", Self::Zsh),
        ("fish", Self::Fish),
    ];

    pub(super) fn names() -> Vec<&'static str> {
        Self::ALL.iter().map(|(name, _)| *name).collect()
    }

    pub(super) fn find(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(other, _)| *other == name);
        found.map(|(_, shell)| *shell)
    }

    /// The script that teaches the shell to complete.
    pub(super) fn script(self) -> String {
        match self {
            Self::Bash => bash::script(),
            Self::Zsh => zsh::script(),
            Self::Fish => fish::script(),
        }
    }
}

/// The words that can follow `outrigger`, each with what it does.
fn commands() -> impl Iterator<Item = (&'static str, &'static str)> {
    let commands = Command::ALL.iter();
    let commands = commands.map(|command| (command.name, command.summary));
    let programs = EXAMPLES.iter();
    commands.chain(programs.map(|example| (example.name, brief(example.about))))
}

/// The general flags of a command that many commands share: those of all servers, or of all clients. A script has them once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shared {
    Servers,
    Clients,
}

impl Shared {
    const ALL: [Self; 2] = [Self::Servers, Self::Clients];

    fn of(command: &Command) -> Option<Self> {
        match (command.is_server(), command.is_client()) {
            (true, _) => Some(Self::Servers),
            (_, true) => Some(Self::Clients),
            _ => None,
        }
    }

    /// The name of the variable or function with these flags.
    fn name(self) -> &'static str {
        match self {
            Self::Servers => "server",
            Self::Clients => "client",
        }
    }

    fn commands(self) -> impl Iterator<Item = &'static Command> {
        let commands = Command::ALL.iter().copied();
        commands.filter(move |command| Self::of(command) == Some(self))
    }

    /// The flags that all of these commands take.
    fn flags(self) -> Vec<&'static Flag> {
        let first = self.commands().next();
        let mut flags = first.map(Flag::general).unwrap_or_default();
        flags.retain(|flag| !flag.for_one_path);
        flags
    }
}

/// The flags of a command that are not shared.
fn own_flags(command: &Command) -> Vec<&'static Flag> {
    let mut general = Flag::general(command);
    general.retain(|flag| flag.for_one_path);
    command.flags.iter().chain(general).collect()
}

fn takes_program(command: &Command) -> bool {
    command.program != ProgramArg::None
}

/// The first part of a description. The shell cuts it to the width of the screen.
fn brief(text: &str) -> &str {
    let end = ["; ", ". "].iter().filter_map(|end| text.find(end));
    &text[..end.min().unwrap_or(text.len())]
}

/// The description of a flag in a shell. The help of a fixed set explains each word.
fn about(flag: &Flag) -> &'static str {
    if flag.words.is_empty() {
        brief(flag.help)
    } else {
        flag.help
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_has_every_command_and_flag() {
        for (name, shell) in Shell::ALL {
            let script = shell.script();
            for command in Command::ALL {
                assert!(script.contains(command.name), "{name}: {}", command.name);
                for flag in Flag::of(command) {
                    let mark = match shell {
                        Shell::Bash | Shell::Zsh => format!("--{}", flag.name),
                        Shell::Fish => format!("-l {} ", flag.name),
                    };
                    assert!(script.contains(&mark), "{name}: --{}", flag.name);
                    for word in flag.words {
                        assert!(script.contains(word), "{name}: {word}");
                    }
                }
            }
        }
    }

    #[test]
    fn shared_and_own_flags_are_all_flags_of_a_command() {
        for command in Command::ALL {
            let shared = Shared::of(command).map(Shared::flags).unwrap_or_default();
            let mut all: Vec<_> = own_flags(command).into_iter().chain(shared).collect();
            let mut expected = Flag::of(command);
            for flags in [&mut all, &mut expected] {
                flags.sort_by_key(|flag| flag.name);
            }
            let help = |flags: &[&Flag]| flags.iter().map(|flag| flag.help).collect::<Vec<_>>();
            assert_eq!(help(&all), help(&expected), "{}", command.name);
        }
    }
}
