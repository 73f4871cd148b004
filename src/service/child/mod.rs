//! Child processes of the services: one [`Supervisor`] for each process, whatever streams the process has.
//!
//! The supervisor starts the process, notices its exit, stops it step by step and enforces its time limit. Its owner
//! reads and writes the streams: [`Child`] exchanges lines over pipes, and a
//! [`Program`](super::process::program::Program) exchanges bytes over a terminal or pipes.
//!
//! ```text
//!                stop                     grace over               grace over
//!  Running ----------------> Asked -----------------> Terminated -----------> Killed <-+ again, if the
//!     |                        |                          |                      | |___| plan says so
//!     | exit                   | exit                     | exit                 | exit
//!     v             stop       v                          v                      v
//!  Exited ----------------> the same steps, for the processes that it has left behind
//! ```
//!
//! The lower row exists only for plans that stop process trees. With other plans the process ends in `Exited`, and
//! stopping it again does nothing.

mod line_child;
mod supervisor;

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

pub(crate) use self::line_child::{Child, ChildEvent};
pub(crate) use self::supervisor::{Escalation, StopPlan, Supervisor};

/// The exit code of a process, or the name of the signal that killed it.
pub(crate) fn code_and_signal(status: Option<ExitStatus>) -> (Option<i32>, Option<&'static str>) {
    let Some(status) = status else {
        return (None, None);
    };
    (
        status.code(),
        status
            .signal()
            .and_then(signal_hook::low_level::signal_name),
    )
}

/// Describes how a process ended, as the end of a sentence.
pub(crate) fn describe(status: Option<ExitStatus>) -> String {
    let Some(status) = status else {
        return "exited with unknown status".to_owned();
    };
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "exited".to_owned(),
    }
}
