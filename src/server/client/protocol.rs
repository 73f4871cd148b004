//! The protocol that a connection speaks, with its state. Queries of this state are methods of [`Protocol`].

use std::time::Duration;

use super::delivery::Detached;
use crate::protocol::http::{HttpConnection, HttpState};
use crate::protocol::{Time, WebSocket};
use crate::record::record;
use crate::server::error::SendError;
use crate::server::outgoing::{Outgoing, Phase};

/// The protocol of a connection.
#[derive(Debug)]
pub(crate) enum Protocol {
    /// HTTP: every connection before its upgrade.
    Http(HttpConnection),
    /// WebSocket, after the upgrade.
    WebSocket(WebSocket),
    /// A connection that this side is opening.
    Outgoing(Box<Outgoing>),
    /// None: the connection was cut, and the client may resume it.
    Detached(Box<Detached>),
}

// A connection that this side is opening cannot be saved.
record!(enum Protocol {
    Http(http),
    WebSocket(socket),
    Outgoing(..),
    Detached(detached),
});

impl Protocol {
    /// The connection before its upgrade.
    #[inline]
    pub(crate) fn http(&self) -> Option<&HttpConnection> {
        match self {
            Self::Http(http) => Some(http),
            _ => None,
        }
    }

    pub(super) fn http_mut(&mut self) -> Option<&mut HttpConnection> {
        match self {
            Self::Http(http) => Some(http),
            _ => None,
        }
    }

    /// The connection after its upgrade.
    #[inline]
    pub(crate) fn websocket(&self) -> Option<&WebSocket> {
        match self {
            Self::WebSocket(socket) => Some(socket),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn websocket_mut(&mut self) -> Option<&mut WebSocket> {
        match self {
            Self::WebSocket(socket) => Some(socket),
            _ => None,
        }
    }

    /// The state of a connection that this side is opening.
    #[inline]
    pub(crate) fn outgoing(&self) -> Option<&Outgoing> {
        match self {
            Self::Outgoing(outgoing) => Some(outgoing),
            _ => None,
        }
    }

    pub(crate) fn outgoing_mut(&mut self) -> Option<&mut Outgoing> {
        match self {
            Self::Outgoing(outgoing) => Some(outgoing),
            _ => None,
        }
    }

    /// Makes this a connection that this side is opening.
    pub(crate) fn set_outgoing(&mut self, outgoing: Outgoing) {
        *self = Self::Outgoing(Box::new(outgoing));
    }

    /// Takes the state of a connection that could not be opened.
    pub(crate) fn take_outgoing(&mut self) -> Option<Box<Outgoing>> {
        self.outgoing()?;
        let closed = Self::Http(HttpConnection::closing(self.since()));
        match std::mem::replace(self, closed) {
            Self::Outgoing(outgoing) => Some(outgoing),
            _ => None,
        }
    }

    /// The state of a client whose connection was cut.
    pub(crate) fn detached(&self) -> Option<&Detached> {
        match self {
            Self::Detached(detached) => Some(detached),
            _ => None,
        }
    }

    /// Whether this side is opening the connection.
    #[inline]
    pub(crate) fn is_outgoing(&self) -> bool {
        self.outgoing().is_some()
    }

    /// Whether the connection is for HTTP requests of this side.
    pub(crate) fn is_for_requests(&self) -> bool {
        self.outgoing().is_some_and(|one| one.requesting.is_some())
    }

    /// Whether a request of this side is under way.
    pub(crate) fn is_in_exchange(&self) -> bool {
        let is_idle = self.outgoing().is_some_and(|one| one.phase == Phase::Idle);
        self.is_for_requests() && !is_idle
    }

    /// Whether an attempt to open a connection is under way.
    pub(crate) fn is_connecting(&self) -> bool {
        let phase = self.outgoing().map(|one| one.phase);
        phase.is_some_and(|phase| !matches!(phase, Phase::Waiting | Phase::Idle))
    }

    /// Whether the connection was cut, and the client may resume it.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached().is_some()
    }

    /// How long the client has been detached.
    pub(crate) fn detached_for(&self, now: Time) -> Option<Duration> {
        Some(now.since(self.detached()?.since))
    }

    /// Whether the connection carries messages.
    #[inline]
    pub(crate) fn is_connected(&self) -> bool {
        self.websocket().is_some_and(WebSocket::is_open)
    }

    /// How long ago the last PING was sent, and the last PONG arrived.
    pub(crate) fn heartbeat(&self, now: Time) -> [Option<Duration>; 2] {
        self.websocket()
            .map_or([None; 2], |socket| socket.heartbeat(now))
    }

    /// Whether the WebSocket is closing or closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.websocket().is_some_and(|socket| !socket.is_open())
    }

    /// Whether the WebSocket was opened, even if it has been cut since.
    pub(crate) fn was_open(&self) -> bool {
        !matches!(self, Self::Http(_) | Self::Outgoing(_))
    }

    /// The state of the connection before its upgrade.
    pub(super) fn http_state(&self) -> Option<HttpState> {
        self.http().map(HttpConnection::state)
    }

    /// Whether a request head is arriving, or is being handled.
    pub(crate) fn awaits_head(&self) -> bool {
        self.http_state() == Some(HttpState::Head)
    }

    /// Whether a request, or its body, is arriving.
    pub(crate) fn is_requesting(&self) -> bool {
        matches!(self.http_state(), Some(HttpState::Head | HttpState::Body))
    }

    /// Whether a call is not answered yet, or only in part.
    pub(crate) fn is_answering(&self) -> bool {
        self.http().is_some_and(HttpConnection::is_answering)
    }

    /// Whether a call has not been completely answered.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.http().is_some_and(HttpConnection::is_unanswered)
    }

    /// Whether the first request has not arrived completely.
    pub(crate) fn is_new(&self) -> bool {
        self.http().is_some_and(HttpConnection::is_new)
    }

    /// When the current state of the connection began. For an open WebSocket: when it was opened.
    pub(crate) fn since(&self) -> Time {
        match self {
            Self::Http(http) => http.since(),
            Self::Outgoing(outgoing) => outgoing.began,
            Self::WebSocket(socket) => socket.since(),
            Self::Detached(detached) => detached.since,
        }
    }

    /// When the last data message passed in either direction.
    pub(crate) fn last_message(&self) -> Time {
        match self {
            Self::WebSocket(socket) => socket.last_message(),
            Self::Detached(detached) => detached.last_message,
            Self::Http(_) | Self::Outgoing(_) => self.since(),
        }
    }

    /// The time since the last bytes arrived from an upgraded client.
    pub(crate) fn silence(&self, now: Time) -> Duration {
        self.websocket()
            .map_or_else(|| now.since(self.since()), |socket| socket.silence(now))
    }

    /// Restarts the idle timeout and cancels an awaited PONG, because the server did not read from the peer.
    pub(super) fn excuse_silence(&mut self, now: Time) {
        match self {
            Self::Http(http) => http.excuse_silence(now),
            Self::WebSocket(socket) => socket.excuse_silence(now),
            Self::Outgoing(_) | Self::Detached(_) => {}
        }
    }

    /// Requires a PROXY protocol header before the first request.
    pub(crate) fn expect_proxy_header(&mut self) {
        if let Some(http) = self.http_mut() {
            http.expect_proxy_header();
        }
    }

    /// Fails unless a call is in this state.
    pub(super) fn expect(&self, state: HttpState) -> Result<(), SendError> {
        if self.http_state() == Some(state) {
            Ok(())
        } else {
            Err(SendError::Gone)
        }
    }

    /// Whether the peer has half-closed the connection and the service still sends to it.
    pub(crate) fn is_half_closed(&self) -> bool {
        self.websocket().is_some_and(WebSocket::is_half_closed)
    }

    /// Whether the next byte of input belongs to a data message.
    pub(super) fn awaits_data(&self) -> bool {
        match self {
            Self::WebSocket(socket) => socket.awaits_data(),
            // The body of a response.
            Self::Outgoing(outgoing) => {
                let requesting = outgoing.requesting.as_ref();
                requesting.is_some_and(|one| one.exchange.is_in_body())
            }
            Self::Http(_) | Self::Detached(_) => false,
        }
    }

    /// Whether a long message is being decompressed, so that there is work without further input.
    pub(crate) fn is_inflating(&self) -> bool {
        self.websocket().is_some_and(WebSocket::is_inflating)
    }

    /// Whether input is discarded. A closing connection is always read, because closing a socket with unread data resets the
    /// connection, and the reset destroys what the peer has not read yet.
    pub(super) fn discards_input(&self) -> bool {
        match self {
            Self::WebSocket(socket) => socket.discards_input(),
            Self::Http(http) => {
                matches!(http.state(), HttpState::Closing | HttpState::Closed)
            }
            Self::Outgoing(_) => false,
            Self::Detached(_) => true,
        }
    }

    /// The memory of the protocol, without compressors, in bytes.
    pub(super) fn held(&self) -> usize {
        match self {
            Self::Http(http) => http.held(),
            Self::WebSocket(socket) => socket.held(),
            Self::Outgoing(_) | Self::Detached(_) => 0,
        }
    }

    /// The memory of the protocol and its compressors, in bytes.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn held_with_codec(&self) -> usize {
        let codec = self.websocket().map_or(0, WebSocket::held_by_codec);
        self.held() + codec
    }
}
