//! The manual page outrigger(1), made from the tables of commands and flags, in the format of man(7).

use std::fmt::Write;

use super::command::{Command, Serves};
use super::flag::{Flag, Takes};
use super::help;
use crate::demo::EXAMPLES;

/// Sections that come before the commands.
const BEGINNING: &str = r#".SH NAME
outrigger \- put programs on the network over WebSocket
.SH SYNOPSIS
.B outrigger
.I COMMAND
.RI [ OPTIONS ]
.RB [ \-\-
.I PROGRAM
.RI [ ARGS ...]]
.br
.B outrigger help
.RI [ COMMAND ]
.SH DESCRIPTION
"#;

const DESCRIPTION: &str = "\
Outrigger puts programs on the network over WebSocket: an agent that speaks JSON-RPC, a terminal, processes, an MCP server, or a program of your own. It runs beside the program as one small process, and handles limits, timeouts, backpressure, access control and clients that lose their connection and come back.

A server prints 'outrigger: listening on URL' once clients can connect. It listens on 127.0.0.1:7070 unless an option says otherwise. Commands that run programs require a token. If you do not supply one, Outrigger generates it and prints it as a part of the URL.
";

const VALUES: &str = "\
Times are written 500ms, 20s or 5m, and a number without a unit is in seconds. Sizes are written 65536, 64KiB or 16MiB. An option that is marked as repeatable can be given several times. The default of an option is in brackets.
";

/// Each file with its meaning.
const FILES: &[(&str, &str)] = &[
    (
        "FILE.json",
        "The file of --config: a JSON object with the names of options as its keys. 'outrigger serve --help' shows one with routes.",
    ),
    (
        "The token file",
        "The file of --token-file: one word, or lines NAME SCOPE SECRET as 'outrigger token' writes them. It should have mode 0600.",
    ),
];

/// Each environment variable with its meaning.
const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "OUTRIGGER_TOKEN",
        "What the token file contains, if there is no --token-file. For a client, the token to present.",
    ),
    (
        "RUST_LOG",
        "The level of the log, if there is no --log: a level, or outrigger=LEVEL.",
    ),
    (
        "LISTEN_PID, LISTEN_FDS",
        "The sockets to listen on that a service manager passes, if no option says where to listen.",
    ),
    (
        "NOTIFY_SOCKET",
        "The socket on which a service manager learns that the server is ready, reloads or stops (sd_notify).",
    ),
    (
        "http_proxy, https_proxy, all_proxy, no_proxy",
        "The proxy of connect and attach, and the hosts that need none.",
    ),
    (
        "SSL_CERT_FILE, SSL_CERT_DIR",
        "The certificates that connect and attach trust instead of the system's.",
    ),
    (
        "NO_COLOR, CLICOLOR_FORCE, TERM",
        "The help, errors and the log have colors on a terminal, unless NO_COLOR is set or TERM is dumb. With CLICOLOR_FORCE, they always have colors.",
    ),
];

/// Each exit status with its meaning.
const EXIT_STATUS: &[(&str, &str)] = &[
    ("0", "It stopped as requested."),
    ("1", "It failed while running, or a second signal ended it."),
    ("2", "The command line or the configuration is wrong."),
    (
        "255",
        "attach failed. Otherwise, the exit status of attach is that of the program, or 128 plus the number of the signal that killed it.",
    ),
];

/// Each signal with its effect.
const SIGNALS: &[(&str, &str)] = &[
    (
        "SIGTERM, SIGINT",
        "A server stops accepting clients, closes those it has with 1001, and waits for them up to --drain-timeout. A second signal ends it at once.",
    ),
    (
        "SIGHUP",
        "A server reads its settings again: tokens, allowed origins and hosts, and certificates. In a terminal, it stops if the terminal was closed, or if it reads none of its settings from a file.",
    ),
];

/// The whole page.
pub(super) fn page() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let date = help::source_date().unwrap_or_default();
    let mut page = format!(
        ".TH OUTRIGGER 1 \"{date}\" \"outrigger {version}\" \"User Commands\"\n{BEGINNING}"
    );
    paragraphs(DESCRIPTION, &mut page);
    page.push_str(".SH COMMANDS\n");
    for command in Command::ALL {
        self::command(command, &mut page);
    }
    for example in EXAMPLES {
        let about = format!("{}, for 'outrigger {}'", example.about, example.command);
        item(&bold(example.name), &about, &mut page);
    }
    page.push_str(".SH OPTIONS\n");
    paragraphs(VALUES, &mut page);
    item(
        &bold("-h"),
        "print the commands or, after a command, its examples and common options",
        &mut page,
    );
    item(
        &bold("--help"),
        "print the commands or, after a command, everything about it",
        &mut page,
    );
    let about = "print the version, the commit and the features of this program";
    item(&bold("-V, --version"), about, &mut page);
    // The options of one server and one client that take all general ones.
    let mut kinds: Vec<&Command> = Vec::new();
    for command in Command::ALL
        .iter()
        .filter(|command| !command.serves_routes())
    {
        if kinds
            .iter()
            .all(|kind| kind.is_client() != command.is_client())
        {
            kinds.push(command);
        }
    }
    for kind in kinds {
        let whose = if kind.is_client() {
            "clients"
        } else {
            "servers"
        };
        for group in Flag::general_groups(kind) {
            let _ = writeln!(page, ".SS {} of all {whose}", group.title);
            options(group.flags, &mut page);
        }
    }
    page.push_str(".SH EXAMPLES\n");
    for command in Command::ALL {
        for (what, example) in command.examples {
            begin_paragraph(&mut page);
            let _ = writeln!(page, "{}:\n.RS 4", capitalized(&text(what)));
            preformatted(example, &mut page);
            page.push_str(".RE\n");
        }
    }
    for (title, items) in [
        ("FILES", FILES),
        ("ENVIRONMENT", ENVIRONMENT),
        ("EXIT STATUS", EXIT_STATUS),
        ("SIGNALS", SIGNALS),
    ] {
        let _ = writeln!(page, ".SH {title}");
        for (name, about) in items {
            item(&bold(name), about, &mut page);
        }
    }
    page.push_str(".SH SEE ALSO\n.BR curl (1),\n.BR systemd.socket (5)\n");
    page
}

/// A command with its own options.
fn command(command: &Command, page: &mut String) {
    let _ = writeln!(page, ".SS outrigger {}", text(command.name));
    begin_paragraph(page);
    let usages: Vec<_> = help::usages(command)
        .iter()
        .map(|usage| bold(usage))
        .collect();
    let _ = writeln!(page, "{}", usages.join("\n.br\n"));
    paragraphs(command.about, page);
    if let Serves::One(_) = command.serves {
        let path = format!("The default path is '{}'.", command.default_path);
        paragraphs(&path, page);
    }
    if !command.flags.is_empty() {
        options(command.flags, page);
    }
}

fn options(flags: &[Flag], page: &mut String) {
    for flag in flags {
        let short = flag.short.map(|letter| bold(&format!("-{letter}")) + ", ");
        let name = bold(&format!("--{}", flag.name));
        let value = match flag.takes {
            Takes::Nothing => String::new(),
            Takes::One(value) | Takes::Many(value) => format!(" \\fI{}\\fR", text(value)),
        };
        let term = format!("{}{name}{value}", short.unwrap_or_default());
        item(&term, &flag.description(), page);
    }
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    first.chain(chars).collect()
}

/// The longest line of the source.
const WIDTH: usize = 72;

/// A term, which is escaped, and its description.
fn item(term: &str, about: &str, page: &mut String) {
    let _ = writeln!(page, ".TP\n{term}");
    filled(about, page);
}

/// Paragraphs, of which those with columns keep their lines.
fn paragraphs(all: &str, page: &mut String) {
    for paragraph in all.trim_end().split("\n\n") {
        begin_paragraph(page);
        let has_columns = |line: &str| line.starts_with(' ') || line.contains("   ");
        if paragraph.lines().any(has_columns) {
            preformatted(paragraph, page);
        } else {
            filled(paragraph, page);
        }
    }
}

/// A heading begins a paragraph of its own.
fn begin_paragraph(page: &mut String) {
    let last = page.lines().next_back().unwrap_or_default();
    if !last.starts_with(".S") {
        page.push_str(".PP\n");
    }
}

/// Text whose lines are kept.
fn preformatted(lines: &str, page: &mut String) {
    page.push_str(".nf\n");
    for line in lines.lines() {
        let _ = writeln!(page, "{}", text(line));
    }
    page.push_str(".fi\n");
}

/// Text whose lines are filled. A sentence begins a line, so that formatters know where it ends.
fn filled(words: &str, page: &mut String) {
    let mut line = String::new();
    let mut flush = |line: &mut String| {
        if !line.is_empty() {
            let _ = writeln!(page, "{}", text(line));
            line.clear();
        }
    };
    for word in words.split_ascii_whitespace() {
        if line.len() + word.len() >= WIDTH {
            flush(&mut line);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if word.ends_with('.') && !word.ends_with("...") {
            flush(&mut line);
        }
    }
    flush(&mut line);
}

fn bold(words: &str) -> String {
    format!("\\fB{}\\fR", text(words))
}

/// Escapes the characters that roff interprets or replaces by typographic ones.
fn text(plain: &str) -> String {
    let mut escaped = String::with_capacity(plain.len());
    if plain.starts_with(['.', '\'']) {
        escaped.push_str("\\&");
    }
    for one in plain.chars() {
        match one {
            '\\' => escaped.push_str("\\e"),
            '-' => escaped.push_str("\\-"),
            '\'' => escaped.push_str("\\(aq"),
            '`' => escaped.push_str("\\(ga"),
            '^' => escaped.push_str("\\(ha"),
            '~' => escaped.push_str("\\(ti"),
            one => escaped.push(one),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_command_option_and_example() {
        let page = page();
        for command in Command::ALL {
            assert!(page.contains(&format!("\n.SS outrigger {}\n", command.name)));
            for flag in Flag::of(command) {
                let name = bold(&format!("--{}", flag.name));
                assert!(page.contains(&name), "--{}", flag.name);
            }
            for (_, example) in command.examples {
                assert!(page.contains(&text(example)), "{example}");
            }
        }
    }

    #[test]
    fn the_source_has_short_lines_and_no_unknown_request() {
        for line in page().lines() {
            let request = line.split(' ').next().unwrap_or_default();
            let known = [
                ".TH", ".SH", ".SS", ".PP", ".TP", ".RS", ".RE", ".nf", ".fi", ".br", ".B", ".I",
                ".RI", ".RB", ".BR",
            ];
            assert!(
                !line.starts_with(['.', '\'']) || known.contains(&request),
                "{line}"
            );
            assert!(!line.ends_with(' ') && !line.is_empty(), "{line:?}");
        }
    }

    #[test]
    fn what_has_a_meaning_in_roff_is_escaped() {
        assert_eq!(text("'a\\b-c"), "\\&\\(aqa\\eb\\-c");
        assert_eq!(text(".PP"), "\\&.PP");
        let mut page = String::new();
        paragraphs("One. Two e.g.\nthree.\n\n  kept  as\n  it is", &mut page);
        let expected = ".PP\nOne.\nTwo e.g.\nthree.\n.PP\n.nf\n  kept  as\n  it is\n.fi\n";
        assert_eq!(page, expected);
    }
}
