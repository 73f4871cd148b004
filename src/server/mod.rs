//! The event loop: listeners, one slab of clients, one way out of it.
//!
//! The invariants, by which the rest can be read:
//!
//! * *One registry*: a connection exists if and only if it is in the slab of [`registry`]. While a client is read it is
//!   checked out of its slot, which stays reserved.
//! * *One disconnect*: `Server::disconnect` alone removes from the slab, deregisters the socket and tells the service.
//!   It removes first, so a second call finds nothing.
//! * *News, then reap*: what a service or a failing write does to a client is put into the run queue as news. The loop
//!   acts on it in one place, `Server::reap`, when the task is done.
//! * *The client does its own work*: reading, writing, answering and closing are methods of `Client`. The loop asks it to,
//!   and calls the service.
//! * *Nothing is kept for an idle client*: input is parsed in the loop's one buffer, replies are gathered in one, and
//!   state that exists only now and then is behind a pointer in the client's entry.

mod admin;
mod budget;
mod client;
mod clock;
mod config;
mod context;
mod core;
mod drain_schedule;
mod event_loop;
mod handle;
mod histogram;
mod id;
mod listener;
#[cfg(any(test, fuzzing))]
pub(crate) mod memory_stream;
mod metrics;
pub(crate) mod policy;
mod registry;
mod requests;
mod run_queue;
mod service;
mod shutdown;
mod signals;
#[cfg(any(test, fuzzing))]
pub(crate) mod simulation;
mod sources;
mod starting;
mod status;
mod stream;
#[cfg(test)]
mod tests;
mod timers;

pub use client::{Remote, Traffic};
pub use config::Config;
pub use context::{Context, SendError};
pub use event_loop::{Ended, Server};
pub use handle::{Handle, OwnedMessage, Stopped};
pub use histogram::Histogram;
pub use id::{ClientId, ParseClientIdError, ServiceId, SourceId, TimerId};
pub use listener::{Listen, ListenAddress, Peers};
pub use metrics::Metrics;
pub use policy::{Access, Principal, Token};
pub use service::{Readiness, Route, Service};
pub use status::{ClientStatus, Status};
