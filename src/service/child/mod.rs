//! Child processes of the services: one [`Supervisor`] for each process, whatever streams the process has.
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

mod exit_status;
mod line_child;
mod supervisor;

pub(crate) use self::exit_status::{code_and_signal, describe};
pub(crate) use self::line_child::{Child, ChildEvent};
pub(crate) use self::supervisor::{Escalation, StopPlan, Supervisor};
