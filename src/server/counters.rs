//! Counts what the server does. `metrics.rs` writes the counts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::histogram::Histogram;
use super::service_times::ServiceTimes;
use super::traffic::Traffic;
use crate::protocol::{Cause, CloseReason, Rejection, StatusCode};

/// The names of [`Outcome`]s, in their order.
pub(super) const OUTCOMES: [&str; 4] = ["websocket", "http", "refused", "unused"];

/// The outcomes of TLS handshakes.
pub(super) const TLS_OUTCOMES: [&str; 3] = ["full", "resumed", "failed"];

/// How a connection was used, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was upgraded to WebSocket.
    WebSocket,
    /// The client made an HTTP call.
    Http,
    /// Its request was rejected.
    Rejected,
    /// The client sent no complete request.
    Unused,
}

/// Counters since the start of the loop.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    /// Accepted connections.
    pub(super) accepted: u64,
    /// Responses by status, 101 included.
    pub(super) responses: BTreeMap<u16, u64>,
    /// Rejected requests by reason.
    pub(super) rejections: BTreeMap<&'static str, u64>,
    /// Clients that only a service or only the registry had. Any such client is a bug.
    pub(super) disagreements: u64,
    /// Requests with a wrong token.
    pub(super) wrong_tokens: u64,
    /// Ended connections, in the order of [`OUTCOMES`].
    pub(super) outcomes: [u64; OUTCOMES.len()],
    /// Disconnected clients, in the order of [`Cause::ALL`].
    pub(super) disconnects: [u64; Cause::ALL.len()],
    /// How long clients were connected, in the order of [`Cause::ALL`].
    pub(super) durations: [Histogram; Cause::ALL.len()],
    /// Clients that violated the protocol, by close code.
    pub(super) violations: BTreeMap<u16, u64>,
    /// Clients that did not complete the closing handshake in time.
    pub(super) close_timeouts: u64,
    /// Turns in which the read limit of a client was reached.
    pub(super) turn_reads: u64,
    /// Turns in which the accept limit of a listener was reached.
    pub(super) turn_accepts: u64,
    /// The traffic of ended connections.
    pub(super) ended: Traffic,
    /// The traffic of ended WebSocket connections.
    pub(super) ended_clients: Traffic,
    /// Messages of clients that services have refused because of their length.
    pub(super) long_json: u64,
    /// Calls that services have received, except those of the console.
    pub(super) service_calls: u64,
    /// Clients whose connection was cut and that could resume it.
    pub(super) detaches: u64,
    /// Connections that clients have resumed.
    pub(super) resumes: u64,
    /// Resumed connections whose old connection had not ended.
    pub(super) takeovers: u64,
    /// TLS handshakes by outcome, in the order of [`TLS_OUTCOMES`].
    pub(super) tls_handshakes: [u64; TLS_OUTCOMES.len()],
    /// The durations of turns of the loop, without waiting, and the parts of them that services have taken. Turns that have
    /// answered a request of the console are left out.
    pub(super) turns: ServiceTimes,
}

impl Counters {
    /// Counts a response.
    pub(super) fn responded(&mut self, status: StatusCode) {
        *self.responses.entry(status.0).or_default() += 1;
    }

    /// Counts a complete TLS handshake.
    pub(super) fn tls_opened(&mut self, is_resumed: bool) {
        self.tls_handshakes[usize::from(is_resumed)] += 1;
    }

    /// Counts a TLS handshake that was not completed.
    pub(super) fn tls_failed(&mut self) {
        self.tls_handshakes[2] += 1;
    }

    /// Counts a rejected request and its response.
    pub(super) fn refused(&mut self, rejection: &Rejection) {
        self.counted(rejection);
        self.responded(rejection.status);
    }

    /// Counts a rejected request, but no response.
    pub(super) fn counted(&mut self, rejection: &Rejection) {
        *self.rejections.entry(rejection.reason()).or_default() += 1;
    }

    /// Counts the end of a client that was connected for `duration`.
    pub(super) fn disconnected(&mut self, reason: &CloseReason, duration: Duration) {
        let mut causes = Cause::ALL.iter();
        if let Some(at) = causes.position(|cause| *cause == reason.cause) {
            self.disconnects[at] += 1;
            self.durations[at].observe(duration);
        }
        if reason.cause == Cause::ProtocolError {
            *self.violations.entry(reason.code.0).or_default() += 1;
        }
    }

    /// Counts the end of a connection of any kind.
    pub(super) fn ended(&mut self, traffic: Traffic, outcome: Outcome) {
        self.ended.add(traffic);
        if outcome == Outcome::WebSocket {
            self.ended_clients.add(traffic);
        }
        self.outcomes[outcome as usize] += 1;
    }
}
