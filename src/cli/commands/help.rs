//! The commands that print what the program knows about itself: `outrigger help`, the manual page with `outrigger man`, and
//! the completions of a shell with `outrigger completions`.

use super::super::action::Action;
use super::super::command::{Command, Serves};
use super::super::completions::Shell;
use super::super::output::Colors;
use super::super::suggestion::suggestion;
use super::super::{help, manual, parser};
use crate::demo::Example;

pub(super) static HELP: Command = Command {
    name: "help",
    usage: "[COMMAND]",
    summary: "print the help of a command",
    about: "\
Prints the help of COMMAND, as 'outrigger COMMAND --help' does, or the list of all commands.
",
    examples: &[
        ("list the commands", "outrigger help"),
        (
            "describe a command and its options",
            "outrigger help terminal",
        ),
    ],
    max_words: 1,
    words: || Command::ALL.iter().map(|command| command.name).collect(),
    serves: Serves::Tool(|_, words| {
        let colors = Colors::stdout();
        Ok(Action::Print(match words.first() {
            None => help::overview(colors),
            Some(name) if Example::find(name).is_some() => help::examples(colors),
            Some(name) => help::of(parser::command(name)?, colors),
        }))
    }),
    ..Command::BASE
};

pub(super) static MAN: Command = Command {
    name: "man",
    usage: "",
    summary: "print the manual page",
    about: "\
Prints the manual page outrigger(1) in the format of man(7). It has all commands and options of this
program.
",
    examples: &[
        ("read it", "outrigger man | man -l -"),
        (
            "install it for this user",
            "outrigger man > ~/.local/share/man/man1/outrigger.1",
        ),
    ],
    serves: Serves::Tool(|_, _| Ok(Action::Print(manual::page()))),
    ..Command::BASE
};

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
            let hint = suggestion(name, &Shell::names(), "'", "'");
            format!("'{name}' is not one of bash, zsh, fish{hint}")
        })?;
        Ok(Action::Print(shell.script()))
    }),
    ..Command::BASE
};
