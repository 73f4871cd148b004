//! Child processes of the services, and the tools that all services keep them with.
//!
//! * A [`Supervisor`] for each process, whatever streams the process has.
//! * A [`Keeper`] for a program that is started again when it exits.
//! * A [`ChildIndex`] that finds the process to which an event belongs.
//!
//! The supervisor starts the process, notices its exit, stops it step by step and enforces its time limit. Its owner
//! reads and writes the streams: [`Child`] exchanges lines over pipes, and a
//! [`Program`](super::process::program::Program) exchanges bytes over a terminal or pipes.
//!
//! ```text
//!              stop
//!  Running ----------> Stopping: Asked --grace--> Terminated --grace--> Killed
//!     |                   |
//!     | exit              | exit
//!     v        stop       v
//!  Exited -----------> StoppingLeftovers: the same steps, for the processes that it has left behind
//! ```
//!
//! Only plans that stop a whole process tree have the state `StoppingLeftovers`, and repeat KILL. With other plans, every
//! exit leads to `Exited`, where `stop` does nothing.

mod exit;
mod index;
mod keeper;
mod line_child;
mod supervisor;

pub(crate) use self::exit::{ProgramExit, ProgramFailure};
pub(crate) use self::index::{ChildIndex, ChildInput, process_metrics};
pub(crate) use self::keeper::Keeper;
pub use self::keeper::{OnFailure, RestartLimit};
pub(crate) use self::line_child::{Child, ChildEvent, TurnOutput};
pub(crate) use self::supervisor::{Escalation, StopPlan, Supervisor, signal_name, start_hint};

/// Clients are not read while a program has more unread input than this, in bytes.
pub(super) const HIGH_WATER: usize = 1 << 20;
/// Clients are read again when a program's unread input is down to this.
pub(super) const LOW_WATER: usize = 256 << 10;
