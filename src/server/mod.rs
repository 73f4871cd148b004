//! The server: an event loop, one slab of clients, and one place that removes them.
//!
//! These invariants hold everywhere:
//!
//! * *One registry*: a connection exists if and only if it is in the slab of [`registry`]. While a client is read,
//!   it is checked out of its slot, which stays reserved.
//! * *One disconnect*: only `Server::disconnect` removes a client from the slab, deregisters its socket and calls
//!   `disconnected`. A second call for the same id does nothing.
//! * *News, then reap*: a service or a failing write queues what happened to a client as news. After
//!   the action, the loop acts on the news in one place, `Server::reap`.
//! * *The client does its own work*: reading, writing, answering and closing are methods of `Client`. The loop calls
//!   these methods and the service.
//! * *An idle client holds nothing*: all clients share the loop's read buffer and write buffer, and rarely used state
//!   is behind a pointer in the client's entry.

mod address;
mod admin;
mod agreement;
mod authorization;
mod budget;
mod capacity;
mod client;
mod client_query;
mod clock;
mod config;
mod connecting;
mod connector;
mod context;
mod core;
mod counters;
mod deadlines;
mod draining;
mod env;
mod error;
mod event_loop;
mod forwarding;
mod handle;
mod health;
mod history;
mod id;
mod listener;
mod memory;
#[cfg(any(test, fuzzing))]
pub(crate) mod memory_stream;
mod metrics;
mod operator;
mod policy;
mod reading;
mod registry;
mod requesting;
mod requests;
mod resume_token;
mod resumption;
mod scheduler;
mod server_metrics;
mod service;
mod shutdown;
#[cfg(any(test, fuzzing))]
pub(crate) mod simulation;
mod sources;
mod startup;
mod status;
mod stream;
#[cfg(test)]
mod tests;
mod timers;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls/none.rs"]
mod tls;
mod topics;
mod upgrade;
mod wakeup;
mod wheel;

#[cfg(feature = "cli")]
pub(crate) use address::split_security;
pub use address::{Listen, ListenAddress, ParseListenError, Remote};
#[cfg(feature = "cli")]
pub(crate) use admin::is_reserved_path;
pub(crate) use capacity::too_little_memory;
pub use client::Keep;
#[cfg(feature = "cli")]
pub(crate) use config::is_base_path;
pub use config::{Config, ConfigError, ResumeConfig};
pub use connector::{Connect, ConnectError, ParseTargetError, Proxies, Retry, Target};
pub use context::Context;
pub use counters::Traffic;
pub use error::{Error, SendError};
pub use event_loop::{Ended, Server};
pub use handle::{Handle, Stopped};
pub use id::{ClientId, ParseClientIdError, ServiceId, SourceId, TimerId};
pub use metrics::{Histogram, Metrics};
pub use policy::{
    Access, Credential, LinkTarget, ParsePeersError, ParseResourceError, ParseScopeError,
    ParseSecretError, Peers, Principal, ProtectedResource, Scope, Secret, Token, Tokens,
    TokensError,
};
#[cfg(feature = "cli")]
pub(crate) use policy::{RejectionHints, words};
pub(crate) use policy::{is_token_protocol, percent_decode, without_token};
#[cfg(feature = "cli")]
pub(crate) use resume_token::is_node_name;
pub(crate) use resumption::without_resume;
pub(crate) use service::continue_service;
pub use service::{ResponseEvent, Route, Service};
pub use sources::{Interest, Readiness};
pub use startup::AdoptedOrphans;
pub use status::{ClientStatus, ResumeStatus, Status, StatusFields, StatusValue};
#[cfg(all(feature = "tls", any(test, fuzzing)))]
pub(crate) use tls::simulation::converse as converse_over_tls;
#[cfg(feature = "tls")]
pub use tls::{ClientTls, TlsConfig, TlsError, TlsIdentity};
pub use topics::SubscribeError;
pub use upgrade::{Passed, Successor};
pub use wakeup::Reload;
