//! Completions for zsh.

use std::fmt::Write;

use super::super::command::Command;
use super::super::flag::{Completion, Flag, Takes};
use super::{Shared, about, commands, own_flags, takes_program};

const BEGINNING: &str = r#"#compdef outrigger
# zsh completion for outrigger

_outrigger() {
  local curcontext=$curcontext command at
  # Not `commands`, which is a table of zsh that completes programs.
  local -a own_commands own_options server client
  # After '--', complete the words of the program.
  at=${words[(i)--]}
  if ((at < CURRENT)); then
    shift $at words
    ((CURRENT -= at))
    _normal
    return
  fi
"#;

const MIDDLE: &str = r#"  if ((CURRENT == 2)); then
    _describe -t commands command own_commands -- own_options
    return
  fi
  command=$words[2]
  curcontext=${curcontext%:*:*}:outrigger-$command:
  shift words
  ((CURRENT -= 1))
  case $command in
"#;

/// The script also works if it is sourced instead of autoloaded.
const END: &str = r#"  esac
}

if [[ $funcstack[1] == _outrigger ]]; then
  _outrigger "$@"
else
  compdef _outrigger outrigger
fi
"#;

pub(super) fn script() -> String {
    let mut text = BEGINNING.to_owned();
    text.push_str("  own_commands=(\n");
    for (name, about) in commands() {
        let _ = writeln!(
            text,
            "    {}",
            quoted(&format!("{name}:{}", escaped(about)))
        );
    }
    text.push_str("  )\n  own_options=(\n    '--help:print the help'\n    '--version:print the version'\n  )\n");
    for shared in Shared::ALL {
        let _ = writeln!(text, "  {}=(", shared.name());
        for flag in shared.flags() {
            let _ = writeln!(text, "    {}", argument(flag));
        }
        text.push_str("  )\n");
    }
    text.push_str(MIDDLE);
    for command in Command::ALL {
        let _ = write!(text, "    {})\n      _arguments", command.name);
        for flag in own_flags(command) {
            let _ = write!(text, " \\\n        {}", argument(flag));
        }
        if let Some(shared) = Shared::of(command) {
            let _ = write!(text, " \\\n        ${}", shared.name());
        }
        text.push_str(" \\\n        '(- *)'{-h,--help}'[print the help]'");
        let first = (command.words)().join(" ");
        if takes_program(command) {
            text.push_str(" \\\n        '1:program:(--)'");
        } else if !first.is_empty() {
            let _ = write!(text, " \\\n        '1:{}:({first})'", command.name);
        } else if let Some(operand) = command.operand {
            let _ = write!(text, " \\\n        '1:{operand}: '");
        }
        text.push_str("\n      ;;\n");
    }
    text.push_str(END);
    text
}

/// The specification of a flag for `_arguments`.
fn argument(flag: &Flag) -> String {
    let value = match (flag.takes, flag.completion()) {
        (Takes::Nothing, _) => String::new(),
        (Takes::One(name) | Takes::Many(name), completion) => {
            let action = match completion {
                Completion::Files => "_files".to_owned(),
                Completion::Folders => "_files -/".to_owned(),
                Completion::Words([]) => " ".to_owned(),
                Completion::Words(words) => format!("({})", words.join(" ")),
            };
            format!(":{}:{action}", escaped(name))
        }
    };
    let name = flag.name;
    let end = if flag.takes == Takes::Nothing {
        ""
    } else {
        "="
    };
    let rest = format!("[{}]{value}", escaped(about(flag)));
    match (flag.short, flag.takes) {
        (Some(letter), _) => {
            let once = format!("(-{letter} --{name})");
            let short = quoted(&format!("{once}-{letter}+{rest}"));
            let long = quoted(&format!("{once}--{name}{end}{rest}"));
            format!("{short} {long}")
        }
        (None, Takes::Many(_)) => quoted(&format!("*--{name}{end}{rest}")),
        (None, _) => quoted(&format!("--{name}{end}{rest}")),
    }
}

/// Escapes the characters that a specification interprets.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for one in text.chars() {
        if "\\[]:".contains(one) {
            escaped.push('\\');
        }
        escaped.push(one);
    }
    escaped
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
