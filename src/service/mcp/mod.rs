//! MCP servers on the network: a program that speaks the Model Context Protocol on its standard streams, behind Streamable HTTP.
//!
//! Requests of revision 2026-07-28 stand for themselves. A small pool of processes answers them ([`pool`]). The revisions before
//! have sessions, each with a process of its own ([`session`]). Clients can also use WebSocket on the same path, each with a
//! process of its own.

mod accept;
mod config;
mod headers;
mod hub;
mod listen;
mod pool;
mod problem;
mod process;
mod quota;
mod replay;
mod reply;
mod request;
mod service;
mod session;
mod splice;
mod tools;
mod versions;

pub use self::config::McpConfig;
pub use self::service::Mcp;
