//! Colors of the help, of errors and of the log, for terminals.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use log::Level;

const RESET: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
const CYAN: &str = "\x1b[36m";
const BOLD_RED: &str = "\x1b[1;31m";

/// Whether the text for a stream has colors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Colors(bool);

impl Colors {
    /// The colors of standard output.
    pub(super) fn stdout() -> Self {
        Self::of(io::stdout().is_terminal(), |name| std::env::var_os(name))
    }

    /// The colors of standard error, which are determined once.
    pub(super) fn stderr() -> Self {
        static COLORS: OnceLock<Colors> = OnceLock::new();
        *COLORS.get_or_init(|| Self::of(io::stderr().is_terminal(), |name| std::env::var_os(name)))
    }

    /// `NO_COLOR` turns colors off and `CLICOLOR_FORCE` turns them on. Otherwise, only a terminal that supports colors has them.
    fn of(is_terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let is_forced = given("CLICOLOR_FORCE").is_some_and(|value| value != "0");
        let has_colors = is_terminal && given("TERM").is_some_and(|term| term != "dumb");
        Self(given("NO_COLOR").is_none() && (is_forced || has_colors))
    }

    /// A heading of the help.
    pub(super) fn heading(self, text: &str) -> String {
        self.paint(BOLD, text)
    }

    /// The name of a command or an option.
    pub(super) fn name(self, text: &str) -> String {
        self.paint(CYAN, text)
    }

    /// The beginning of an error message.
    pub(super) fn error(self, text: &str) -> String {
        self.paint(BOLD_RED, text)
    }

    /// The level of a line of the log, padded to the width of the longest one.
    pub(super) fn level(self, level: Level) -> String {
        let color = match level {
            Level::Error => BOLD_RED,
            Level::Warn => "\x1b[33m",
            Level::Info => "\x1b[32m",
            Level::Debug => "\x1b[34m",
            Level::Trace => "\x1b[2m",
        };
        self.paint(color, &format!("{level:<5}"))
    }

    fn paint(self, color: &str, text: &str) -> String {
        if self.0 {
            format!("{color}{text}{RESET}")
        } else {
            text.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_gets_colors_unless_a_variable_says_otherwise() {
        for (is_terminal, variables, colors) in [
            (true, &[("TERM", "xterm")][..], true),
            (false, &[("TERM", "xterm")], false),
            (true, &[("TERM", "dumb")], false),
            (true, &[], false),
            (true, &[("TERM", "xterm"), ("NO_COLOR", "1")], false),
            (true, &[("TERM", "xterm"), ("NO_COLOR", "")], true),
            (false, &[("CLICOLOR_FORCE", "1")], true),
            (false, &[("CLICOLOR_FORCE", "0")], false),
            (false, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
        ] {
            let variable = |name: &str| {
                let found = variables.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| OsString::from(value))
            };
            assert_eq!(Colors::of(is_terminal, variable).0, colors, "{variables:?}");
        }
        assert_eq!(Colors(false).level(Level::Warn), "WARN ");
        assert_eq!(Colors(true).level(Level::Warn), "\x1b[33mWARN \x1b[0m");
    }
}
