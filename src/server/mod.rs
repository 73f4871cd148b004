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

mod access;
mod address;
mod agreement;
mod client;
mod config;
mod context;
mod core;
mod env;
mod error;
mod event_loop;
mod handle;
mod id;
mod limits;
mod listener;
mod observe;
mod outgoing;
mod registry;
mod requests;
mod resume;
mod service;
#[cfg(any(test, fuzzing))]
pub(crate) mod simulation;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls/none.rs"]
mod tls;
mod topics;
mod upgrade;

pub use access::{
    Access, Credential, LinkTarget, ParsePeersError, ParseResourceError, ParseScopeError,
    ParseSecretError, Peers, Principal, ProtectedResource, Scope, Secret, Token, Tokens,
    TokensError,
};
#[cfg(feature = "cli")]
pub(crate) use access::{RejectionHints, words};
pub(crate) use access::{is_token_protocol, percent_decode, without_token};
#[cfg(feature = "cli")]
pub(crate) use address::split_security;
pub use address::{Listen, ListenAddress, ParseListenError, Remote};
pub use client::Keep;
#[cfg(feature = "cli")]
pub(crate) use config::is_base_path;
pub use config::{Config, ConfigError, ResumeConfig};
pub use context::Context;
pub use error::{Error, SendError};
pub use event_loop::sources::{Interest, Readiness};
pub use event_loop::startup::AdoptedOrphans;
pub use event_loop::wakeup::Reload;
pub use event_loop::{Ended, Server};
pub use handle::{Handle, Stopped};
pub use id::{ClientId, ParseClientIdError, ServiceId, SourceId, TimerId};
pub(crate) use limits::capacity::too_little_memory;
pub use observe::counters::Traffic;
pub use observe::exposition::{Histogram, Metrics};
pub use observe::status::{ClientStatus, ResumeStatus, Status, StatusFields, StatusValue};
#[cfg(any(test, fuzzing))]
pub(crate) use outgoing::Cookies;
#[cfg(feature = "client")]
pub(crate) use outgoing::said_by;
pub use outgoing::{Connect, ConnectError, ParseTargetError, Proxies, Retry, Target};
#[cfg(feature = "cli")]
pub(crate) use requests::admin::is_reserved_path;
#[cfg(feature = "cli")]
pub(crate) use resume::token::is_node_name;
pub(crate) use resume::without_resume;
pub use service::{Outgoing, Portable, Report, ResponseEvent, Route, Service};
pub(crate) use service::{continue_service, save_service};
#[cfg(all(feature = "tls", any(test, fuzzing)))]
pub(crate) use tls::simulation::converse as converse_over_tls;
#[cfg(feature = "tls")]
pub use tls::{ClientTls, TlsConfig, TlsError, TlsIdentity};
pub use topics::SubscribeError;
pub use upgrade::{Passed, Successor};
