//! Outrigger
pub mod protocol;
#[cfg(test)]
mod random;
mod server;
pub mod service;
mod sys;

pub use protocol::{
    Accept, Cause, CloseCode, Disconnect, Limits, Message, ProtocolError, Refusal, Request,
    StatusCode, Time, Timeouts,
};
pub use server::{
    ClientId, ClientStatus, Config, Context, Ended, Handle, OwnedMessage, ParseClientIdError,
    Readiness, Remote, SendError, Server, Service, SourceId, Status, Stopped, TimerId, Traffic,
};

/// Entry points of the fuzz targets.
#[cfg(any(test, fuzzing))]
pub mod fuzz {
    pub use crate::protocol::fuzz::{connection, frame_header, handshake};
    pub use crate::server::fuzz::operations;
}
