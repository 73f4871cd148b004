//! Outrigger
pub mod protocol;
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
