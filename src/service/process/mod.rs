//! Programs on terminals and pipes that clients attach to.
//!
//! ```text
//!  Processes (HTTP calls, attach)  --+
//!                                    +--> Programs --> Program (streams) --> Supervisor (process, exit, stop)
//!  Terminal (a program per client) --+                    |
//!                                                         v output
//!                                     Sink: Attachments (scrollback, readers) or the output of one call
//! ```
//!
//! [`Control`] and [`AttachEvent`] are the text messages between an attached client and the server; see [`messages`].
//! Clients that know other messages select another `Dialect`.

mod accounts;
pub(crate) mod attach;
pub(crate) mod bodies;
pub(crate) mod calls;
pub(crate) mod compat;
pub(crate) mod dialect;
pub(crate) mod event_stream;
mod exec;
mod exec_output;
pub(crate) mod exit;
mod fields;
pub mod messages;
mod names;
mod processes;
pub(crate) mod program;
mod programs;
mod queries;
mod recording;
mod relief;
pub(crate) mod responses;
#[cfg(not(feature = "screen"))]
#[path = "no_screen.rs"]
pub(crate) mod screen;
#[cfg(feature = "screen")]
pub(crate) mod screen;
pub(crate) mod scrollback;
mod sink;
mod terminal;
#[cfg(not(feature = "screen"))]
#[path = "no_waits.rs"]
pub(crate) mod waits;
#[cfg(feature = "screen")]
pub(crate) mod waits;

use std::time::Duration;

/// How long output is read by default after a program's exit, if another process holds it open.
const LINGER: Duration = Duration::from_millis(250);

pub use self::compat::Compat;
pub use self::messages::{AttachEvent, AttachRole, Control};
pub use self::processes::{Processes, ProcessesConfig, SessionCommand};
pub use self::recording::RecordConfig;
pub use self::terminal::{Terminal, TerminalConfig};
pub use crate::sys::TerminalSize;
