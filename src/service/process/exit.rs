//! How a program ended: its exit code, or the signal that killed it. `sink.rs` sends it to clients.

use std::fmt;
use std::process::ExitStatus;

use super::messages::AttachEvent;
use crate::record::record;
use crate::service::child::signal_name;
use crate::sys::code_or_signal;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgramExit {
    /// The exit code; 128 plus the number of the signal that killed the program, as shells count.
    pub(crate) code: i32,
    /// The name of the signal that killed the program.
    pub(crate) signal: Option<&'static str>,
}

record!(
    ProgramExit as (i32, bool),
    |exit| exit.to_pair(),
    Self::of_pair
);

/// The exit code if the status of a program is unknown.
const UNKNOWN: i32 = 255;

impl From<Option<ExitStatus>> for ProgramExit {
    fn from(status: Option<ExitStatus>) -> Self {
        match status.map(code_or_signal) {
            Some(Ok(code)) => Self { code, signal: None },
            Some(Err(signal)) => Self {
                code: 128 + signal,
                signal: Some(signal_name(signal)),
            },
            None => Self {
                code: UNKNOWN,
                signal: None,
            },
        }
    }
}

impl ProgramExit {
    /// The code, and whether a signal has killed the program.
    fn to_pair(self) -> (i32, bool) {
        (self.code, self.signal.is_some())
    }

    fn of_pair((code, is_killed): (i32, bool)) -> Option<Self> {
        let signal = is_killed.then(|| signal_name(code - 128));
        Some(Self { code, signal })
    }

    /// The code as a byte; 255 if it does not fit.
    pub(crate) fn code_byte(self) -> u8 {
        u8::try_from(self.code).unwrap_or(u8::MAX)
    }

    /// The reason of a CLOSE frame: `exited with code 3`, or `killed by SIGTERM`.
    pub(crate) fn reason(self) -> String {
        match self.signal {
            Some(signal) => format!("killed by {signal}"),
            None => self.to_string(),
        }
    }
}

impl From<ProgramExit> for AttachEvent {
    fn from(exit: ProgramExit) -> Self {
        Self::Exit {
            code: exit.code,
            signal: exit.signal.map(str::to_owned),
        }
    }
}

impl fmt::Display for ProgramExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.signal {
            Some(signal) => write!(f, "was killed by {signal}"),
            None => write!(f, "exited with code {}", self.code),
        }
    }
}
