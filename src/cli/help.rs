//! The text of `--help`, made from the tables of commands and flags.

use super::commands::{Command, Serves};
use super::flags::{Flag, Takes};

/// The columns of a line.
const WIDTH: usize = 100;

/// The column at which the description of a flag begins.
const INDENT: usize = 34;

/// The help of the program.
pub(super) fn overview() -> String {
    let mut text = "Outrigger makes programs available over WebSocket.\n\nUsage:\n".to_owned();
    for Command {
        name,
        usage,
        summary,
        ..
    } in Command::ALL
    {
        text.push_str(&format!("  outrigger {name:9} {usage:32}  {summary}\n"));
    }
    text.push_str(
        "  outrigger token     add|list|revoke                   edit the tokens that clients present

  outrigger COMMAND --help    the options of a command
  outrigger --version         the version

A server prints 'outrigger: listening on URL' once clients can connect. Exit codes: 0 stopped as
requested, 1 failed while running, 2 wrong usage; 'attach' ends with the program's exit code, or 255
if it fails.
",
    );
    text
}

/// The help of a command.
pub(super) fn of(command: &Command) -> String {
    let Command { name, usage, .. } = command;
    let mut text = format!("{}\nUsage: outrigger {name} {usage}\n", command.about);
    if !command.flags.is_empty() {
        text.push_str(&format!("\n{}:\n", command.title));
        for flag in command.flags {
            describe(flag, &mut text);
        }
    }
    text.push_str(if command.is_client() {
        "\nConnection options:\n"
    } else {
        "\nServer options:\n"
    });
    for flag in Flag::general(command) {
        describe(flag, &mut text);
    }
    text.push_str("\nTimes are written 500ms, 20s or 5m, sizes 65536, 64KiB or 16MiB.");
    if matches!(command.serves, Serves::One(_)) {
        text.push_str(&format!(" The default path is '{}'.", command.default_path));
    }
    text.push('\n');
    text
}

/// The help of `outrigger token`.
pub(super) fn token() -> String {
    "\
Edits a token file. A server that uses it with --token-file reloads it on SIGHUP and closes the
connections of revoked tokens.

Usage: outrigger token add NAME [--scope SCOPE] --token-file FILE
       outrigger token list --token-file FILE
       outrigger token revoke NAME --token-file FILE

  add       generates a token, prints it once, and writes its SHA-256 digest to FILE. A file with
            one word becomes a file with lines, in which the word is the token 'default'
  list      prints the name and the scope of each token
  revoke    removes a token. The last one cannot be removed, because a server needs one

Options:
  --scope SCOPE                   for 'add': metrics allows /status and /metrics; watch also allows
                                  viewers and observers; use also allows connections to services;
                                  all also allows the calls of the process API [all]
  --token-file FILE               the file to edit; 'add' creates it with mode 0600
"
    .to_owned()
}

/// The help of the demo's programs.
pub(super) fn examples() -> String {
    let (mcp, mcp_line) = if cfg!(feature = "mcp") {
        (
            "  outrigger example-mcp      a server of the Model Context Protocol with three tools\n",
            "  outrigger mcp -- outrigger example-mcp\n",
        )
    } else {
        ("", "")
    };
    format!(
        "\
The programs that 'outrigger demo' runs. They use their standard streams and take no arguments.

  outrigger example-agent    an agent of the Agent Client Protocol: keeps sessions, streams its
                             answers, asks for permission, can be cancelled. It uses no model
  outrigger example-app      a chat room for 'outrigger app'
{mcp}
  outrigger agent -- outrigger example-agent
  outrigger app -- outrigger example-app
{mcp_line}"
    )
}

/// Writes a flag with its description, wrapped to the width of a screen.
fn describe(flag: &Flag, text: &mut String) {
    let name = match flag.takes {
        Takes::Nothing => format!("  --{}", flag.name),
        Takes::One(value) | Takes::Many(value) => format!("  --{} {value}", flag.name),
    };
    let mut description = flag.help.to_owned();
    if matches!(flag.takes, Takes::Many(_)) {
        description.push_str(" (repeatable)");
    }
    let default: Vec<&str> = flag.default.into_iter().chain(flag.default_note).collect();
    if !default.is_empty() {
        description.push_str(&format!(" [{}]", default.join("; ")));
    }
    let mut line = format!("{name:INDENT$}");
    for word in description.split(' ') {
        if line.len() + word.len() > WIDTH {
            text.push_str(line.trim_end());
            text.push('\n');
            line = " ".repeat(INDENT);
        }
        line.push_str(word);
        line.push(' ');
    }
    text.push_str(line.trim_end());
    text.push('\n');
}
