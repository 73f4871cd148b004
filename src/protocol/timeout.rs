//! What the owner of a connection does after a deadline, and after all output is written.

use super::CloseReason;

/// The result of [`WebSocket::handle_timeout`](super::WebSocket::handle_timeout) and
/// [`HttpConnection::handle_timeout`](super::HttpConnection::handle_timeout).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Write the output, then ask for the next deadline.
    Continue,
    /// The request took too long: reject it with 408.
    Handshake,
    /// The delay of a rejection has passed: reject the request now
    /// ([`HttpConnection::reject_later`](super::HttpConnection::reject_later)).
    Rejection,
    /// The idle timeout has passed: close with [`CloseReason::idle_timeout`], unless the service exempts the client.
    Idle,
    /// The connection is over: close it at once.
    Gone(CloseReason),
}

/// What to do with the transport once all output is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Keep reading and writing.
    Continue,
    /// Shut down the writing side, then read and discard input until the peer closes. Closing with unread input would
    /// reset the connection, and the peer might not see the last output.
    EndOutput,
    /// Close the transport.
    Close,
}
