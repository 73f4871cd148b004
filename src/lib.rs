//! Outrigger puts programs on a WebSocket: RFC 6455 on one mio event loop, in one thread.
//!
//! ```text
//!            +------------------------------- the loop's turn -------------------------------+
//!            |                                                                               |
//!  socket ---> read buffer ---> protocol::Connection ---> Service::message                   |
//!            |  (one, the         (bytes and time in,          |                             |
//!            |   loop's own)       events and bytes out)       v                             |
//!  socket <--- cork <---------------- PONG, CLOSE ------ Context::send, close, broadcast     |
//!            |   | what the socket does not take                                             |
//!            |   v                                                                           |
//!            |  the client's backlog, until the socket has room                              |
//!            +-------------------------------------------------------------------------------+
//! ```
//!
//! A server is ten lines: write down what to do with a message, and run it.
//!
//! ```
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
//! # let config = Config { listen: vec![([127, 0, 0, 1], 0).into()], ..Config::default() };
//! let server = Server::bind(config, Echo)?; // `Config::default()` listens on 127.0.0.1:7070
//! # server.handle().stop().unwrap();
//! server.run()?;
//! # std::io::Result::Ok(())
//! ```
//!
//! The contract of the loop, on which services build:
//!
//! * One thread: while a method of a service runs, nothing else does. Other threads use a [`Handle`].
//! * For every client, [`Service::connected`] once, then [`Service::disconnected`] once, whatever ended it; nothing
//!   after it. Every client is in one registry and leaves it in one place.
//! * Sending never blocks and never fails loudly: what a client does not read waits up to a limit, and a client over it
//!   is cut off.
//! * Everything a peer can make the server hold has a limit, in [`Config`].
//!
//! What is deliberately absent: an async runtime, TLS (put a proxy in front), a WebSocket client, threads.
//!
//! The layers, from the wire up: [`protocol`] knows neither sockets nor clocks; the server knows no service by name; a
//! [`service`] never touches a client's socket.

pub use sys::{NonblockingFd, TerminalSize, keep_from_children, kill_orphans};

#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod protocol;
#[cfg(test)]
mod random;
mod server;
pub mod service;
mod sys;

pub use protocol::{
    Accept, Cause, CloseCode, CloseReason, Limits, Message, ProtocolError, Rejection, Request,
    Response, StatusCode, Time, Timeouts,
};
pub use server::{
    Access, ClientId, ClientStatus, Config, Context, Ended, Handle, Histogram, Listen,
    ListenAddress, Metrics, OwnedMessage, ParseClientIdError, Peers, Principal, Readiness, Remote,
    Route, SendError, Server, Service, ServiceId, SourceId, Status, Stopped, TimerId, Token,
    Traffic,
};
