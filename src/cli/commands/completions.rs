//! `outrigger completions`: prints the completions of a shell.

use super::super::completions::Shell;
use super::super::{Action, suggest};
use super::{Command, Serves};

pub(super) static COMPLETIONS: Command = Command {
    name: "completions",
    usage: "bash|zsh|fish",
    summary: "print completions for a shell",
    about: "\
Prints a script that makes a shell complete the commands of outrigger, their options and the
values of options. After '--', the shell completes the words of the program.
",
    examples: &[
        (
            "complete in this bash",
            "source <(outrigger completions bash)",
        ),
        (
            "for bash with bash-completion",
            "outrigger completions bash > ~/.local/share/bash-completion/completions/outrigger",
        ),
        (
            "for zsh, with a directory of $fpath",
            "outrigger completions zsh > /usr/local/share/zsh/site-functions/_outrigger",
        ),
        (
            "for fish",
            "outrigger completions fish > ~/.config/fish/completions/outrigger.fish",
        ),
    ],
    max_words: 1,
    words: Shell::names,
    serves: Serves::Tool(|_, words| {
        let Some(name) = words.first() else {
            return Err("missing shell: bash, zsh or fish".to_owned());
        };
        let shell = Shell::find(name).ok_or_else(|| {
            let hint = suggest::hint(name, &Shell::names(), "'", "'");
            format!("'{name}' is not one of bash, zsh, fish{hint}")
        })?;
        Ok(Action::Print(shell.script()))
    }),
    ..Command::BASE
};
