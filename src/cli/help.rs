//! The texts of `--help`, made from the tables of commands and flags, and of `--version`.

use std::iter;

use super::command::{Command, Serves};
use super::flag::{Flag, Group};
use super::output::Colors;
use crate::demo::{EXAMPLES, Example};

/// The columns of a line.
const WIDTH: usize = 100;

/// The column at which the description of a flag begins.
const INDENT: usize = 34;

/// The number of examples in the short help.
const BRIEF_EXAMPLES: usize = 3;

/// The column at which the description of a command begins.
const NAMES: usize = 17;

/// The help of the program.
pub(super) fn overview(colors: Colors) -> String {
    let mut text = format!(
        "Outrigger puts programs on the network: over WebSocket, and MCP servers over HTTP.\n\n{} outrigger COMMAND [OPTIONS] [-- PROGRAM [ARGS...]]\n",
        colors.heading("Usage:")
    );
    for (title, is_listed) in Command::KINDS {
        text.push_str(&format!("\n{}\n", colors.heading(&format!("{title}:"))));
        for command in Command::ALL.iter().filter(|command| is_listed(command)) {
            let about = command.summary;
            describe(command.name, about, NAMES, colors, &mut text);
        }
    }
    text.push_str(&format!(
        "\n{}\n",
        colors.heading("Example programs, for the commands above:")
    ));
    for example in EXAMPLES {
        describe(example.name, example.summary, NAMES, colors, &mut text);
    }
    text.push_str(&format!("\n{}\n", colors.heading("Options:")));
    describe(
        "-h",
        "after a command: its examples and common options",
        NAMES,
        colors,
        &mut text,
    );
    describe(
        "--help",
        "after a command: everything about it",
        NAMES,
        colors,
        &mut text,
    );
    let version = "the version, the commit and the features of this program";
    describe("-V, --version", version, NAMES, colors, &mut text);
    text.push_str(
        "
A server prints 'outrigger: listening on URL' once clients can connect. Exit codes: 0 stopped as
requested, 1 failed while running, 2 wrong usage; 'attach' ends with the program's exit code, or 255
if it fails.
",
    );
    text
}

/// The short help of a command: what it does, examples, and the flags that most people use.
pub(super) fn brief(command: &Command, colors: Colors) -> String {
    let Some(brief) = command.brief else {
        return of(command, colors);
    };
    let mut text = format!("{brief}\n");
    push_usages_and_examples(command, BRIEF_EXAMPLES, colors, &mut text);
    text.push_str(&format!("\n{}\n", colors.heading("Options:")));
    let flags: Vec<&Flag> = groups(command)
        .into_iter()
        .flat_map(|(_, flags)| flags)
        .collect();
    for flag in &flags {
        if let Some(description) = flag.short_description() {
            describe(&flag.usage(), &description, INDENT, colors, &mut text);
        }
    }
    text.push_str(&format!(
        "\n'outrigger {} --help' describes all {} options.\n",
        command.name,
        flags.len()
    ));
    text
}

/// The whole help of a command.
pub(super) fn of(command: &Command, colors: Colors) -> String {
    let mut text = command.about.to_owned();
    push_usages_and_examples(command, command.examples.len(), colors, &mut text);
    for (title, flags) in groups(command) {
        text.push_str(&format!("\n{}\n", colors.heading(&format!("{title}:"))));
        for flag in flags {
            describe(
                &flag.usage(),
                &flag.description(),
                INDENT,
                colors,
                &mut text,
            );
        }
    }
    if matches!(command.serves, Serves::Tool(_)) {
        return text;
    }
    text.push_str("\nTimes are written 500ms, 20s or 5m, sizes 65536, 64KiB or 16MiB.");
    if matches!(command.serves, Serves::One(_)) {
        text.push_str(&format!(" The default path is '{}'.", command.default_path));
    }
    text.push('\n');
    text
}

fn push_usages_and_examples(command: &Command, most: usize, colors: Colors, text: &mut String) {
    for (index, usage) in usages(command).iter().enumerate() {
        let heading = match index {
            0 => format!("\n{}", colors.heading("Usage:")),
            _ => " ".repeat("Usage:".len()),
        };
        text.push_str(&format!("{heading} {usage}\n"));
    }
    text.push_str(&format!("\n{}\n", colors.heading("Examples:")));
    for (what, example) in command.examples.iter().take(most) {
        text.push_str(&format!("  # {what}\n  {}\n", colors.name(example)));
    }
}

/// The usage lines of a command.
pub(super) fn usages(command: &Command) -> Vec<String> {
    let mut usages: Vec<String> = command.usage.lines().map(str::to_owned).collect();
    if usages.is_empty() {
        usages.push(String::new());
    }
    for usage in &mut usages {
        *usage = format!("outrigger {} {usage}", command.name);
        usage.truncate(usage.trim_end().len());
    }
    usages
}

/// The flags of a command under their titles.
fn groups(command: &Command) -> Vec<(&'static str, Vec<&'static Flag>)> {
    let own = Group {
        title: command.title,
        flags: command.flags,
    };
    let mut groups = Vec::new();
    for group in iter::once(&own).chain(Flag::general_groups(command)) {
        let flags = group.flags.iter().filter(|flag| flag.is_for(command));
        let flags: Vec<_> = flags.collect();
        if !flags.is_empty() {
            groups.push((group.title, flags));
        }
    }
    groups
}

/// The help of the demo's programs.
pub(super) fn examples(colors: Colors) -> String {
    let mut text = "\
The programs that 'outrigger demo' runs. They use their standard streams and take no arguments.

"
    .to_owned();
    for example in EXAMPLES {
        describe(example.name, example.about, NAMES, colors, &mut text);
    }
    text.push_str(&format!("\n{}\n", colors.heading("Examples:")));
    for Example { name, command, .. } in EXAMPLES {
        let line = format!("outrigger {command} -- outrigger {name}");
        text.push_str(&format!("  {}\n", colors.name(&line)));
    }
    text
}

/// Writes a name with its description, wrapped to the width of a screen.
fn describe(name: &str, description: &str, indent: usize, colors: Colors, text: &mut String) {
    let width = name.len() + 2;
    let padding = indent.saturating_sub(width).max(2);
    text.push_str(&format!("  {}{}", colors.name(name), " ".repeat(padding)));
    let mut column = width + padding;
    let mut gap = "";
    for word in description.split(' ') {
        if column + gap.len() + word.len() > WIDTH {
            text.push_str(&format!("\n{}", " ".repeat(indent)));
            (column, gap) = (indent, "");
        }
        text.push_str(gap);
        text.push_str(word);
        column += gap.len() + word.len();
        gap = " ";
    }
    text.push('\n');
}

/// The features that a program can have.
const FEATURES: &[(&str, bool)] = &[
    ("cli", cfg!(feature = "cli")),
    ("client", cfg!(feature = "client")),
    ("deflate", cfg!(feature = "deflate")),
    ("mcp", cfg!(feature = "mcp")),
    ("screen", cfg!(feature = "screen")),
    ("server", cfg!(feature = "server")),
    ("tls", cfg!(feature = "tls")),
    ("web", cfg!(feature = "web")),
];

/// The commit that the program is built from, and whether its sources were modified. Empty if that is not known.
const COMMIT: &str = env!("OUTRIGGER_COMMIT");

/// The date of the sources in seconds since 1970. Empty if it is not known.
const DATE: &str = env!("OUTRIGGER_DATE");

/// `outrigger 0.1.0 (COMMIT)` and the features, on a line each.
pub(super) fn version() -> String {
    let commit = match COMMIT {
        "" => String::new(),
        commit => format!(" ({commit})"),
    };
    let features = FEATURES.iter().filter(|(_, is_built_in)| *is_built_in);
    let features: Vec<_> = features.map(|(name, _)| *name).collect();
    let number = env!("CARGO_PKG_VERSION");
    format!(
        "outrigger {number}{commit}\nfeatures: {}\n",
        features.join(" ")
    )
}

/// The date of the sources as `2026-01-31`, if it is known.
pub(super) fn source_date() -> Option<String> {
    let since_1970 = std::time::Duration::from_secs(DATE.parse().ok()?);
    let time = std::time::UNIX_EPOCH.checked_add(since_1970)?;
    let mut date = humantime::format_rfc3339_seconds(time).to_string();
    date.truncate("2026-01-31".len());
    Some(date)
}
