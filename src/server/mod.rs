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

mod address;
mod admin;
mod budget;
mod client;
mod clock;
mod config;
mod context;
mod core;
mod drain_schedule;
mod error;
mod event_loop;
mod handle;
mod histogram;
mod id;
mod interest;
mod listener;
#[cfg(any(test, fuzzing))]
mod memory_stream;
mod metrics;
mod policy;
mod registry;
mod requests;
mod run_queue;
mod service;
mod shutdown;
mod signals;
#[cfg(any(test, fuzzing))]
pub(crate) mod simulation;
mod sources;
mod startup;
mod status;
mod stream;
#[cfg(test)]
mod tests;
mod timers;

pub use address::{InheritedSocket, Listen, ListenAddress, ParseListenError};
#[cfg(feature = "cli")]
pub(crate) use admin::ADMIN_PATHS;
pub use client::{Remote, Traffic};
pub use config::{Config, ConfigBuilder, ConfigError};
pub use context::{Context, SendError};
pub use error::Error;
pub use event_loop::{Ended, Server};
pub use handle::{Handle, OwnedMessage, Stopped};
pub use histogram::Histogram;
pub use id::{ClientId, ParseClientIdError, ServiceId, SourceId, TimerId};
pub use interest::Interest;
pub use metrics::Metrics;
#[cfg(feature = "cli")]
pub(crate) use policy::RejectionHints;
pub use policy::{Access, ParsePeersError, Peers, Principal, Token};
pub(crate) use policy::{is_token_protocol, without_token};
pub use service::{Readiness, Route, Service};
pub use startup::AdoptedOrphans;
pub use status::{ClientStatus, Status, StatusFields, StatusValue};
