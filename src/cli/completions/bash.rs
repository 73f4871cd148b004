//! Completions for bash.

use std::fmt::Write;

use super::super::command::Command;
use super::super::flag::{Completion, Flag, Takes};
use super::{Shared, commands, own_flags, takes_program};

const BEGINNING: &str = r#"# bash completion for outrigger

# Completes the words of the program, the first of which is at this index.
_outrigger_program() {
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$1"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif ((COMP_CWORD == $1)); then
        mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
    else
        _outrigger_files -f "${COMP_WORDS[COMP_CWORD]}"
    fi
}

_outrigger_files() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
}

_outrigger() {
    local cur=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} previous words i
    COMPREPLY=()
    for ((i = 2; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} == -- ]]; then
            _outrigger_program $((i + 1))
            return
        fi
    done
    previous=${COMP_WORDS[COMP_CWORD - 1]}
    # Readline splits --name=value into three words.
    if [[ $cur == = ]]; then
        cur=
    elif [[ $previous == = ]]; then
        previous=${COMP_WORDS[COMP_CWORD - 2]}
    fi
"#;

pub(super) fn script() -> String {
    let mut text = BEGINNING.to_owned();
    let names: Vec<_> = commands().map(|(name, _)| name).collect();
    let _ = writeln!(
        text,
        "    if ((COMP_CWORD == 1)); then\n        words='{} --help --version'",
        names.join(" ")
    );
    text.push_str("        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n");
    text.push_str("        return\n    fi\n    case \"$command $previous\" in\n");
    // A flag of a command that has the name of a shared one comes first.
    let mut own = Vec::new();
    for command in Command::ALL {
        own.extend(
            own_flags(command)
                .into_iter()
                .map(|flag| (command.name, flag)),
        );
    }
    values(&own, &mut text);
    let mut shared = Vec::new();
    for one in Shared::ALL {
        shared.extend(one.flags().into_iter().map(|flag| ("*", flag)));
    }
    values(&shared, &mut text);
    text.push_str("    esac\n");
    for shared in Shared::ALL {
        let _ = writeln!(
            text,
            "    local {}='{}'",
            shared.name(),
            names_of(&shared.flags())
        );
    }
    text.push_str("    case $command in\n");
    for command in Command::ALL {
        let mut words = names_of(&own_flags(command));
        if let Some(shared) = Shared::of(command) {
            words.push_str(&format!(" ${}", shared.name()));
        }
        let dashes = if takes_program(command) { " --" } else { "" };
        let words = format!("{words} --help{dashes}");
        let first = (command.words)().join(" ");
        let name = command.name;
        let words = words.trim_start();
        let _ = match &*first {
            "" => writeln!(text, "        {name}) words=\"{words}\" ;;"),
            first => writeln!(
                text,
                "        {name})\n            words=\"{words}\"\n            ((COMP_CWORD > 2)) || [[ $cur == -* ]] || words='{first}'\n            ;;"
            ),
        };
    }
    text.push_str(
        "    esac
    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")
}

complete -F _outrigger outrigger
",
    );
    text
}

/// The branches that complete the values of flags. `*` means every command.
fn values(flags: &[(&str, &Flag)], text: &mut String) {
    let mut branches: Vec<(String, Vec<String>)> = Vec::new();
    for (command, flag) in flags {
        if flag.takes == Takes::Nothing {
            continue;
        }
        let action = match flag.completion() {
            Completion::Words([]) => String::new(),
            Completion::Files => "            _outrigger_files -f \"$cur\"\n".to_owned(),
            Completion::Folders => "            _outrigger_files -d \"$cur\"\n".to_owned(),
            Completion::Words(words) => {
                let words = words.join(" ");
                format!("            mapfile -t COMPREPLY < <(compgen -W '{words}' -- \"$cur\")\n")
            }
        };
        let long = format!("--{}", flag.name);
        let short = flag.short.map(|letter| format!("-{letter}"));
        let names = [Some(long), short].into_iter().flatten();
        let at = branches.iter().position(|(other, _)| *other == action);
        let at = at.unwrap_or_else(|| {
            branches.push((action, Vec::new()));
            branches.len() - 1
        });
        let patterns = &mut branches[at].1;
        for name in names {
            let pattern = match *command {
                "*" => format!("*\" {name}\""),
                command => format!("\"{command} {name}\""),
            };
            // Servers and clients share some names.
            if !patterns.contains(&pattern) {
                patterns.push(pattern);
            }
        }
    }
    for (action, patterns) in branches {
        let patterns = patterns.join(" | ");
        let _ = writeln!(
            text,
            "        {patterns})\n{action}            return\n            ;;"
        );
    }
}

fn names_of(flags: &[&Flag]) -> String {
    let names = flags.iter().map(|flag| format!("--{}", flag.name));
    names.collect::<Vec<_>>().join(" ")
}
