//! Whether a client may be read, and what a read has returned.

use crate::protocol::Payload;
use crate::protocol::client::{ClientEvent, ExchangeEvent};
use crate::protocol::http::HttpEvent;

pub(crate) use crate::protocol::Input;

/// Whether a client may be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadGate {
    /// The client may be read. If its messages are held, only control frames are handled.
    Ready,
    /// The client may not be read now.
    Held(Why),
}

/// Why a client may not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The service takes no messages (`set_paused`, `set_held`), and a message is next. Ends when the service takes
    /// messages again, or when the connection starts to close. A hold by `set_held` also ends when the peer half-closes
    /// the connection.
    Service,
    /// The output has exceeded the soft limit and has not drained since. Ends when the output is written.
    Output,
    /// A call must be answered before the input behind it is handled. Ends with the answer.
    Answer,
    /// The client has used up its share of the turn. Ends with the next read of the client, which begins a new share.
    Turn,
    /// The connection continues another client, which gets its input. Ends when the read ends.
    Joining,
    /// The client has left too much output unconfirmed, and a message is next. Ends with the next PONG, or after some time,
    /// because the PONG may be behind the message.
    Unconfirmed,
}

/// The result of one read from a client.
#[derive(Debug)]
pub(crate) enum Read {
    /// Bytes at the front of the buffer.
    Bytes(usize),
    /// Bytes in the memory of the message that they belong to.
    Placed(usize),
    /// End of file: the peer has half-closed the connection.
    End,
    /// There is nothing to read now.
    Nothing,
}

/// An event that was parsed from a client's input.
#[derive(Debug)]
pub(crate) enum Inbound<'a> {
    /// A whole message.
    Message(Payload<'a>),
    /// A message over the rate limit, which has closed the connection.
    OverRate,
    /// A heartbeat, which has been answered.
    Heartbeat(Payload<'a>),
    /// An HTTP event.
    Http(HttpEvent<'a>),
    /// The answer to a handshake of this side.
    Response(ClientEvent),
    /// A part of the response to a request of this side.
    Exchange(ExchangeEvent<'a>),
}
