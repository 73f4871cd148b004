//! Outrigger is a WebSocket server (RFC 6455) for programs that speak on standard streams, and a library for services of
//! your own. It runs on one mio event loop in one thread, without an async runtime.
//!
//! The library without the program:
//!
//! ```toml
//! outrigger = { git = "https://github.com/outrigger-ws/outrigger", default-features = false, features = ["server", "deflate", "tls"] }
//! ```
//!
//! To write a server, implement [`Service`] and run it:
//!
//! ```
//! # #[cfg(feature = "server")] fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use outrigger::{ClientId, CloseReason, Config, Context, Message, Request, Server, Service};
//!
//! /// A chat: a message goes to every client on the same path.
//! struct Chat;
//!
//! impl Service for Chat {
//!     fn connected(&mut self, ctx: &mut Context, client: ClientId, _request: &Request<'_>) {
//!         ctx.send(client, "Welcome!");
//!     }
//!
//!     fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
//!         let room = ctx.path(client).unwrap_or_default().to_owned();
//!         ctx.broadcast(message, |_, path| path == room);
//!     }
//!
//!     // Called once for each client, whatever ended its connection.
//!     fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _reason: &CloseReason) {
//!         ctx.broadcast(&format!("{client} has left."), |_, _| true);
//!     }
//! }
//!
//! let config = Config::new("127.0.0.1:0".parse()?);
//! let server = Server::bind(config, Chat)?;
//! println!("listening on {}", server.local_addresses()[0]);
//! # server.handle().stop()?;
//! server.run()?;
//! # Ok(()) }
//! # #[cfg(not(feature = "server"))] fn main() {}
//! ```
//!
//! # Features
//!
//! | feature | you get |
//! |---|---|
//! | none | the [`protocol`] alone, for an event loop of your own |
//! | `server` | [`Server`], [`Service`], and the ready-made services in [`service`] |
//! | `deflate` | permessage-deflate (RFC 7692) |
//! | `tls` (implies `server`) | TLS 1.2 and 1.3, for listeners and for connections to other servers |
//! | `screen` (implies `server`) | the screens of terminals in [`service::Processes`](crate::service): the calls `screen`, `wait` and `input` |
//! | `mcp` (implies `server`) | [`service::Mcp`](crate::service), MCP servers over Streamable HTTP |
//! | `cli` (implies `server`) | the program `outrigger` |
//! | `client` (implies `cli`) | the program's commands `connect` and `attach` |
//! | `web` (implies `cli`) | the program's terminal page, which needs files from npm |
//!
//! All but `web` are on by default, so that `cargo install` builds the whole program.
//!
//! # How it works
//!
//! ```text
//!            +------------------------------ one turn of the loop ---------------------------+
//!            |                                                                               |
//!  socket ---> read buffer ---> protocol::WebSocket ----> Service::message                   |
//!            |  (one for all      (bytes and time in,          |                             |
//!            |   clients)          events and bytes out)       v                             |
//!  socket <--- write buffer <-------- PONG, CLOSE ------ Context::send, close, broadcast     |
//!            |   | bytes that do not fit                                                     |
//!            |   v                                                                           |
//!            |  the client's output queue, until the socket is writable                      |
//!            +-------------------------------------------------------------------------------+
//! ```
//!
//! Until the handshake, a [`protocol::HttpConnection`] is used instead of the [`protocol::WebSocket`].
//!
//! Services can rely on this:
//!
//! * *One thread*: while a method of a service runs, nothing else does. Other threads use a [`Handle`].
//! * *One beginning, one end*: for every client, the server calls [`Service::connected`] once, then
//!   [`Service::disconnected`] once, whatever ended the connection. No call for that client follows.
//! * *Sending never blocks*: output that a client does not read is buffered up to a limit. A client that exceeds the
//!   limit is disconnected.
//! * *Everything has a limit*: [`Config`] limits all that a peer can make the server hold.
//!
//! # Other threads, and tokio
//!
//! [`Handle::send`], [`Handle::broadcast`] and [`Handle::post`] reach the server from any thread, and from any task of an
//! async runtime, because they never block:
//!
//! ```
//! # #[cfg(feature = "server")] fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use outrigger::{Config, Server, Service};
//! # struct Counter { visits: u64 }
//! # impl Service for Counter {}
//! # let config = Config::new("127.0.0.1:0".parse()?);
//! let server = Server::bind(config, Counter { visits: 0 })?;
//! let handle = server.handle();
//! let thread = std::thread::spawn(move || server.run().map(drop));
//!
//! handle.broadcast("to everyone")?;
//! handle.post(|counter, ctx| {
//!     // Runs on the server's thread, with the service.
//!     counter.visits += ctx.client_count() as u64;
//! })?;
//! handle.stop()?;
//! thread.join().expect("the server does not panic")?;
//! # Ok(()) }
//! # #[cfg(not(feature = "server"))] fn main() {}
//! ```
//!
//! Conversely, [`protocol::driver`] runs one connection on any byte stream, in a task of an async runtime.
//! `examples/tokio.rs` shows both, with compression.
//!
//! # A client
//!
//! A service opens connections with `Context::connect`. With `Connect::resumable` and `Connect::with_retry`, a connection
//! comes back after a cut, and no message is lost or repeated:
//!
//! ```no_run
//! # #[cfg(feature = "server")] fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use outrigger::{ClientId, Config, Connect, Context, Message, Retry, Server, Service};
//!
//! struct Listener;
//!
//! impl Service for Listener {
//!     fn started(&mut self, ctx: &mut Context) {
//!         let target = "ws://127.0.0.1:7070/echo".parse().expect("a URL");
//!         let connect = Connect::new(target).with_retry(Retry::default()).resumable();
//!         let server = ctx.connect(connect).expect("the loop is not stopping");
//!         println!("{server} is being opened");
//!     }
//!
//!     fn message(&mut self, _ctx: &mut Context, _server: ClientId, message: Message<'_>) {
//!         println!("{message:?}");
//!     }
//! }
//!
//! Server::without_listeners(Config::default(), Listener)?.run()?;
//! # Ok(()) }
//! # #[cfg(not(feature = "server"))] fn main() {}
//! ```
//!
//! # Logging
//!
//! The library logs through the crate [`log`](https://docs.rs/log), with fields for structured logs. It installs no logger.
//! Add one to your program, for example `env_logger::init()`, and select lines with `RUST_LOG=outrigger=info`.
//!
//! # Layers
//!
//! From the bottom: [`protocol`] uses neither sockets nor clocks. The server does not know the services. A [`service`] does
//! not use the sockets of clients. The only threads resolve the names of servers that a service connects to.

#![cfg_attr(docsrs, feature(doc_cfg))]
// clippy.toml has the limit. It is for the product only: a long scenario of a test may exceed it.
#![cfg_attr(not(any(test, fuzzing)), warn(clippy::too_many_lines))]
// The links lead to items of the default features.
#![cfg_attr(
    not(all(feature = "server", feature = "mcp")),
    allow(rustdoc::broken_intra_doc_links)
)]

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "cli")]
mod demo;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
#[cfg(test)]
mod layers;
#[cfg(feature = "server")]
mod log_event;
pub mod protocol;
#[cfg(test)]
mod random;
#[cfg(feature = "server")]
mod record;
#[cfg(feature = "server")]
mod secret;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "server")]
pub mod service;
mod sys;
#[cfg(feature = "server")]
mod text;
#[cfg(feature = "cli")]
mod web;

/// Replacing the program of a server without ending its clients.
///
/// The new program gets the sockets and what each service has written down. A service that continues implements [`Portable`]. A
/// program checks with [`Passed`] whether it replaces another one, and becomes another one with [`Successor`].
///
/// [`Portable`]: upgrade::Portable
/// [`Passed`]: upgrade::Passed
/// [`Successor`]: upgrade::Successor
#[cfg(feature = "server")]
pub mod upgrade {
    pub use serde_json::Value;

    pub use crate::record::{Loader, RecordError, Saver};
    pub use crate::server::{AdoptedOrphans, Passed, Portable, Successor};
}

pub use protocol::{
    Accept, Cause, CloseCode, CloseReason, Limits, Message, OwnedMessage, ProtocolError, Rejection,
    Request, Response, StatusCode, Time, Timeouts,
};
#[cfg(feature = "server")]
pub use server::{
    Access, ClientId, ClientStatus, Config, ConfigError, Connect, ConnectError, Context,
    Credential, Ended, Error, Handle, Histogram, Interest, Keep, LinkTarget, Listen, ListenAddress,
    Metrics, Outgoing, ParseClientIdError, ParseListenError, ParsePeersError, ParseResourceError,
    ParseScopeError, ParseSecretError, ParseTargetError, Peers, Principal, ProtectedResource,
    Proxies, Readiness, Reload, Remote, Report, ResponseEvent, ResumeConfig, ResumeStatus, Retry,
    Route, Scope, Secret, SendError, Server, Service, ServiceId, SourceId, Status, StatusFields,
    StatusValue, Stopped, SubscribeError, Target, TimerId, Token, Tokens, TokensError, Traffic,
};
#[cfg(feature = "tls")]
pub use server::{ClientTls, TlsConfig, TlsError, TlsIdentity};
