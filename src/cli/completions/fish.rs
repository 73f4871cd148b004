//! Completions for fish.

use std::fmt::Write;

use super::super::command::Command;
use super::super::flag::{Completion, Flag, Takes};
use super::{Shared, about, commands, own_flags, takes_program};

const BEGINNING: &str = r#"# fish completion for outrigger

# Whether this many words precede the cursor.
function __outrigger_at
    set -l words (commandline -opc)
    test (count $words) -eq $argv[1]
end

# Whether the command is one of these, and its program has not begun.
function __outrigger_is
    set -l words (commandline -opc)
    set -q words[2]; and not contains -- -- $words; and contains -- $words[2] $argv
end

function __outrigger_in_program
    contains -- -- (commandline -opc)
end

# Completes the words of the program.
function __outrigger_program
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words)
    set -e words[1..$at]
    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c outrigger -f
complete -c outrigger -n __outrigger_in_program -a '(__outrigger_program)'
complete -c outrigger -n '__outrigger_at 1' -s h -l help -d 'print the help'
complete -c outrigger -n '__outrigger_at 1' -s V -l version -d 'print the version'
"#;

pub(super) fn script() -> String {
    let mut text = BEGINNING.to_owned();
    for (name, about) in commands() {
        let about = quoted(about);
        let _ = writeln!(
            text,
            "complete -c outrigger -n '__outrigger_at 1' -a {name} -d {about}"
        );
    }
    for shared in Shared::ALL {
        let names: Vec<_> = shared.commands().map(|command| command.name).collect();
        let name = shared.name();
        if names.is_empty() {
            continue;
        }
        let _ = write!(
            text,
            "\nfunction __outrigger_is_{name}\n    __outrigger_is {}\nend\n\n",
            names.join(" ")
        );
        for flag in shared.flags() {
            option(&format!("__outrigger_is_{name}"), flag, &mut text);
        }
    }
    for command in Command::ALL {
        text.push('\n');
        let name = command.name;
        let condition = format!("'__outrigger_is {name}'");
        for flag in own_flags(command) {
            option(&condition, flag, &mut text);
        }
        let _ = writeln!(
            text,
            "complete -c outrigger -n {condition} -s h -l help -d 'print the help'"
        );
        if takes_program(command) {
            let _ = writeln!(
                text,
                "complete -c outrigger -n {condition} -a -- -d 'begin the program'"
            );
        }
        let first = (command.words)().join(" ");
        if !first.is_empty() {
            let _ = writeln!(
                text,
                "complete -c outrigger -n '__outrigger_is {name}; and __outrigger_at 2' -a '{first}'"
            );
        }
    }
    text
}

fn option(condition: &str, flag: &Flag, text: &mut String) {
    let short = flag.short.map(|letter| format!(" -s {letter}"));
    let value = match (flag.takes, flag.completion()) {
        (Takes::Nothing, _) => String::new(),
        (_, Completion::Files) => " -r -F".to_owned(),
        (_, Completion::Folders) => " -x -a '(__fish_complete_directories)'".to_owned(),
        (_, Completion::Words([])) => " -x".to_owned(),
        (_, Completion::Words(words)) => format!(" -x -a '{}'", words.join(" ")),
    };
    let _ = writeln!(
        text,
        "complete -c outrigger -n {condition}{} -l {}{value} -d {}",
        short.unwrap_or_default(),
        flag.name,
        quoted(about(flag))
    );
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
