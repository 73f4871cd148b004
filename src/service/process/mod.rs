//! Programs on terminals and pipes that clients attach to.
//!
//! ```text
//!  Processes (HTTP calls, attach)  --+
//!                                    +--> Programs --> Program (terminal or pipes, end, ending)
//!  Terminal (a program per client) --+                    |  reads into
//!                                                         v
//!                                     Sink: Attachments (scrollback, readers) or one gathered answer
//! ```

mod api;
mod attach;
mod body;
mod control;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod processes;
mod program;
mod programs;
mod scrollback;
mod sink;
mod terminal;

use std::fmt;
use std::process::ExitStatus;

use self::api::Details;
pub use self::processes::{Processes, ProcessesConfig};
pub use self::terminal::{Terminal, TerminalConfig};
use crate::sys::code_or_signal;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Its exit code, or as shells count 128 and the number of the signal that killed it.
    pub(crate) code: i32,
    /// The name of the signal that killed it.
    pub(crate) signal: Option<&'static str>,
}

/// The code where nobody knows how a program ended.
const UNKNOWN: i32 = 255;

impl From<Option<ExitStatus>> for Exit {
    fn from(status: Option<ExitStatus>) -> Self {
        match status.map(code_or_signal) {
            Some(Ok(code)) => Self { code, signal: None },
            Some(Err(signal)) => Self {
                code: 128 + signal,
                signal: Some(signal_hook::low_level::signal_name(signal).unwrap_or("unknown")),
            },
            None => Self {
                code: UNKNOWN,
                signal: None,
            },
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.signal {
            Some(signal) => write!(f, "was killed by {signal}"),
            None => write!(f, "exited with code {}", self.code),
        }
    }
}

impl Exit {
    /// What an attached client is told.
    fn to_attach_event(self) -> String {
        let code = self.code;
        match self.signal {
            Some(signal) => format!(r#"{{"type":"exit","exitCode":{code},"signal":"{signal}"}}"#),
            None => format!(r#"{{"type":"exit","exitCode":{code}}}"#),
        }
    }

    /// What a stream of events ends with.
    fn to_stream_event(self, details: Details) -> String {
        let code = self.code;
        match self.signal.filter(|_| details == Details::All) {
            Some(signal) => format!(r#"{{"event":"exit","exit_code":{code},"signal":"{signal}"}}"#),
            None => format!(r#"{{"event":"exit","exit_code":{code}}}"#),
        }
    }
}
