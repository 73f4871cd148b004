//! How a program of a service ended, what it wrote last to standard error, and what the log and its clients get to know about it.

use std::fmt;
use std::process::ExitStatus;
use std::time::Duration;

use serde_json::{Value, json};

use super::supervisor::{code_and_signal, describe};
use crate::log_event::log_event;
use crate::record::record;
use crate::text::printable;

/// The maximum number of lines that are kept, and of bytes of each.
const LINES: usize = 5;
const LINE: usize = 200;

/// The last lines that a program has written to standard error, without control characters.
#[derive(Debug, Default)]
pub(super) struct LastLines(Vec<String>);

record!(LastLines as Vec<String>);

impl LastLines {
    pub(super) fn push(&mut self, line: &[u8]) {
        let mut line = printable(&line[..line.len().min(LINE)]);
        line.truncate(line.floor_char_boundary(LINE));
        if line.trim().is_empty() {
            return;
        }
        if self.0.len() == LINES {
            self.0.remove(0);
        }
        self.0.push(line);
    }
}

/// The end of a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProgramExit {
    /// Unknown if another part of the system has reaped the process.
    status: Option<ExitStatus>,
    pid: u32,
    /// Its last lines of standard error, with line feeds between them.
    stderr: String,
    /// Why the process could not execute the program.
    start_error: Option<String>,
}

impl ProgramExit {
    pub(super) fn new(status: Option<ExitStatus>, pid: u32, lines: &mut LastLines) -> Self {
        let stderr = std::mem::take(&mut lines.0).join("\n");
        Self {
            status,
            pid,
            stderr,
            start_error: None,
        }
    }

    /// The end of a process that could not execute its program.
    pub(super) fn not_started(pid: u32, error: String) -> Self {
        Self {
            start_error: Some(error),
            ..Self::new(None, pid, &mut LastLines::default())
        }
    }

    /// Why the process could not execute the program, as a sentence.
    pub(crate) fn start_error(&self) -> Option<&str> {
        self.start_error.as_deref()
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// The end of a sentence, such as `exited with code 1`.
    pub(crate) fn describe(&self) -> String {
        describe(self.status)
    }

    /// The last line of standard error, for a client that was the only one.
    pub(crate) fn last_line(&self) -> Option<&str> {
        self.stderr.lines().last()
    }

    /// The member `data` of an error for a client. Standard error of a program that has served several clients may quote the others.
    pub(crate) fn data(&self, quotes: bool) -> String {
        let (code, signal) = code_and_signal(self.status);
        let mut data = json!({"code": code, "signal": signal});
        if quotes && !self.stderr.is_empty() {
            data["stderr"] = Value::from(&*self.stderr);
        }
        data.to_string()
    }

    /// The failure of a program that its service calls `name`.
    pub(crate) fn failure(self, name: &str) -> ProgramFailure {
        if let Some(error) = self.start_error {
            return ProgramFailure {
                has_run: false,
                ..error.into()
            };
        }
        ProgramFailure {
            reason: format!("{name} {}", self.describe()),
            pid: Some(self.pid),
            stderr: Some(self.stderr).filter(|text| !text.is_empty()),
            has_run: true,
        }
    }
}

/// Why a program does not run.
#[derive(Debug)]
pub(crate) struct ProgramFailure {
    reason: String,
    pid: Option<u32>,
    stderr: Option<String>,
    /// False for the exit of a process that could not execute the program.
    pub(super) has_run: bool,
}

impl ProgramFailure {
    /// Logs the failure, and when the program is started again or what else follows.
    pub(crate) fn log(&self, route: &str, restart_in: Option<Duration>, consequence: Option<&str>) {
        log_event!(
            Error,
            "program failed",
            route = route,
            pid = self.pid,
            reason = &*self.reason,
            stderr = self.stderr.as_deref(),
            restart_in = restart_in,
            consequence = consequence,
        );
    }
}

impl fmt::Display for ProgramFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        match &self.stderr {
            Some(text) => write!(f, ". Its last output was: {}", text.replace('\n', " | ")),
            None => Ok(()),
        }
    }
}

/// A failure without a process.
impl From<String> for ProgramFailure {
    fn from(reason: String) -> Self {
        Self {
            reason,
            pid: None,
            stderr: None,
            has_run: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_printable_and_bounded() {
        let mut lines = LastLines::default();
        for number in 0..100 {
            lines.push(format!("{number}\x1b[2J\u{202e}").as_bytes());
            lines.push(b" ");
        }
        lines.push("\u{1f600}".repeat(1000).as_bytes());
        lines.push(&[0xff; 1000]);
        lines.push(b"API key missing");
        assert!(lines.0.iter().all(|line| line.len() <= LINE));
        let exit = ProgramExit::new(None, 7, &mut lines);
        assert_eq!(exit.stderr.lines().count(), LINES);
        assert!(exit.stderr.starts_with("98\\u{1b}[2J\\u{202e}\n99"));
        assert_eq!(exit.last_line(), Some("API key missing"));
        let data: Value = exit.data(true).parse().expect("JSON");
        assert_eq!(data["stderr"], exit.stderr);
        assert_eq!(exit.data(false), r#"{"code":null,"signal":null}"#);
    }
}
