//! Outrigger is a WebSocket server (RFC 6455) for programs that speak on standard streams, and a library for services of
//! your own. It runs on one mio event loop in one thread.
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
//!            |  the client's backlog, until the socket is writable                           |
//!            +-------------------------------------------------------------------------------+
//! ```
//!
//! Until the handshake, a [`protocol::HttpConnection`] takes the place of the [`protocol::WebSocket`].
//!
//! To write a server, implement [`Service`] and run it:
//!
//! ```
//! # #[cfg(feature = "server")] fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use outrigger::{ClientId, Config, Context, Message, Server, Service};
//!
//! struct Echo;
//!
//! impl Service for Echo {
//!     fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
//!         ctx.send(client, message);
//!     }
//! }
//!
//! let config = Config::builder().listen("127.0.0.1:0".parse()?).build()?;
//! let server = Server::bind(config, Echo)?;
//! println!("listening on {}", server.local_addresses()[0]);
//! # server.handle().stop()?;
//! server.run()?;
//! # Ok(()) }
//! # #[cfg(not(feature = "server"))] fn main() {}
//! ```
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
//! There is no async runtime. The only threads resolve the names of servers that a service connects to.
//!
//! The layers from the bottom: [`protocol`] uses neither sockets nor clocks. The server does not know the services. A
//! [`service`] does not use the sockets of clients.
//!
//! # Features
//!
//! All features are enabled by default.
//!
//! * `cli`: the program `outrigger`. It implies `server`.
//! * `client`: the commands `connect` and `attach` of the program. It implies `cli`.
//! * `server`: the event loop and the services. Without it, the crate is the [`protocol`] alone.
//! * `deflate`: permessage-deflate (RFC 7692).
//! * `tls`: TLS 1.2 and 1.3. It implies `server`.

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "cli")]
mod demo;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
#[cfg(feature = "server")]
mod log_event;
pub mod protocol;
#[cfg(test)]
mod random;
#[cfg(feature = "server")]
mod secret;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "server")]
pub mod service;
mod sys;
#[cfg(feature = "cli")]
mod web;

pub use protocol::{
    Accept, Cause, CloseCode, CloseReason, Limits, Message, ProtocolError, Rejection, Request,
    Response, StatusCode, Time, Timeouts,
};
#[cfg(feature = "server")]
pub use server::{
    Access, AdoptedOrphans, ClientId, ClientStatus, Config, ConfigBuilder, ConfigError, Connect,
    ConnectError, Context, Credential, Ended, Error, Handle, Histogram, Interest, LinkTarget,
    Listen, ListenAddress, Metrics, OwnedMessage, ParseClientIdError, ParseListenError,
    ParsePeersError, ParseResourceError, ParseScopeError, ParseSecretError, ParseTargetError,
    Peers, Principal, ProtectedResource, Proxies, Readiness, Reload, Remote, ResumeConfig,
    ResumeStatus, Retry, Route, Scope, Secret, SendError, Server, Service, ServiceId, SourceId,
    Status, StatusFields, StatusValue, Stopped, Target, TimerId, Token, Tokens, TokensError,
    Traffic,
};
#[cfg(feature = "tls")]
pub use server::{ClientTls, TlsConfig, TlsError, TlsIdentity};
