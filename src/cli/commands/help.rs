//! `outrigger help`: prints the help of the program or of a command.

use super::super::colors::Colors;
use super::super::{Action, examples, help, parser};
use super::{Command, Serves};

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
            Some(name) if examples::find(name).is_some() => help::examples(colors),
            Some(name) => help::of(parser::command(name)?, colors),
        }))
    }),
    ..Command::BASE
};
