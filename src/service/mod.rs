//! The services of the `outrigger` program. A library user can serve each of them too.
//!
//! | service | a client gets |
//! |---|---|
//! | [`Echo`] | every message back |
//! | [`App`] | a program that reads events and writes commands, one JSON object per line |
//! | [`Agent`] | one JSON-RPC agent process, shared by all clients |
//! | [`AgentPerClient`] | a JSON-RPC agent process of its own |
//! | [`Terminal`] | a program on a terminal of its own |
//! | [`Processes`] | an HTTP API that starts, watches and signals processes |
//!
//! [`Routes`] combines several services behind one listener.

pub mod agent;
pub mod app;
mod backoff;
mod child;
mod echo;
mod endpoint;
mod json;
mod lines;
mod pipe;
pub mod process;
mod routes;
mod text;

pub use agent::{Agent, AgentConfig, AgentPerClient};
pub use app::{App, AppConfig};
pub use backoff::RestartLimit;
pub use echo::Echo;
pub use endpoint::{Endpoint, ParseEndpointError};
pub use process::{Processes, ProcessesConfig, Terminal, TerminalConfig};
pub use routes::{Routes, RoutesBuilder, RoutesError};
