//! Which ends of a connection are cuts, after which a client may come back.

use crate::protocol::{Cause, CloseCode, CloseReason};

/// Whether an end for this reason is a cut, after which the client may come back. `peer_close` is the code of the client's
/// CLOSE.
pub(super) fn is_cut(reason: &CloseReason, peer_close: Option<CloseCode>) -> bool {
    // A page that reloads sends 1001, for example. A client that leaves sends 1000 or no code.
    let leaves = |code| matches!(code, CloseCode::NORMAL | CloseCode::NONE);
    match reason.cause {
        Cause::Eof | Cause::ReadError | Cause::WriteError | Cause::PingTimeout => true,
        Cause::PeerClose => !leaves(reason.code),
        // Without an answer to the CLOSE, the client may not have received the last messages.
        Cause::Service => {
            let is_answered = |code| code == reason.code || leaves(code);
            may_wait(reason) && !peer_close.is_some_and(is_answered)
        }
        Cause::ProtocolError
        | Cause::IdleTimeout
        | Cause::SlowConsumer
        | Cause::Memory
        | Cause::RateLimit
        | Cause::NotResumed
        | Cause::Unreachable
        | Cause::Revoked
        | Cause::Operator
        | Cause::Shutdown => false,
    }
}

/// Whether a CLOSE may reach the client later: the service sends it, and the client has done nothing wrong.
pub(super) fn may_wait(reason: &CloseReason) -> bool {
    let is_final = matches!(
        reason.code,
        CloseCode::PROTOCOL | CloseCode::POLICY | CloseCode::TOO_BIG
    );
    reason.cause == Cause::Service && !is_final
}

/// Whether an end for this reason is a cut, after which this side comes back. `peer_close` is the code of the server's
/// CLOSE.
pub(super) fn is_cut_by_server(reason: &CloseReason, peer_close: Option<CloseCode>) -> bool {
    match reason.cause {
        Cause::Eof | Cause::ReadError | Cause::WriteError | Cause::PingTimeout => true,
        // The message of a frame that breaks the protocol was not counted as received, so the server sends it again. It
        // would also send a message again that is too long or invalid.
        Cause::ProtocolError => reason.code == CloseCode::PROTOCOL,
        // Service restart, try again later, bad gateway (IANA's registry of close codes).
        Cause::PeerClose => matches!(reason.code.0, 1012..=1014),
        // Without an answer to the CLOSE, the server may not have received the last messages.
        Cause::Service => peer_close.is_none(),
        Cause::IdleTimeout
        | Cause::SlowConsumer
        | Cause::Memory
        | Cause::RateLimit
        | Cause::NotResumed
        | Cause::Unreachable
        | Cause::Revoked
        | Cause::Operator
        | Cause::Shutdown => false,
    }
}
