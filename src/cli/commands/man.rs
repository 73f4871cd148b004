//! `outrigger man`: prints the manual page.

use super::super::{Action, manual};
use super::{Command, Serves};

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
