//! Why connections end: violations of the protocol, close codes (RFC 6455 section 7.4), close reasons, and the payload of
//! CLOSE frames.

use std::borrow::Cow;
use std::fmt;

use super::frame::MAX_CONTROL_PAYLOAD;

/// A close code, RFC 6455 section 7.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CloseCode(pub u16);

#[cfg(feature = "server")]
crate::record::record!(CloseCode as u16);

impl CloseCode {
    /// The connection served its purpose.
    pub const NORMAL: Self = Self(1000);
    /// The endpoint goes away: the server stops, the user left the page, or the connection was idle.
    pub const GOING_AWAY: Self = Self(1001);
    /// A violation of the protocol.
    pub const PROTOCOL: Self = Self(1002);
    /// The endpoint does not accept this kind of data.
    pub const UNSUPPORTED: Self = Self(1003);
    /// The CLOSE frame had no code. Never sent.
    pub const NONE: Self = Self(1005);
    /// There was no CLOSE frame. Never sent.
    pub const ABNORMAL: Self = Self(1006);
    /// The data does not match its type, such as text that is not UTF-8.
    pub const INVALID_DATA: Self = Self(1007);
    /// A violation of the endpoint's policy.
    pub const POLICY: Self = Self(1008);
    /// The message is over the limit.
    pub const TOO_BIG: Self = Self(1009);
    /// The server met an unexpected condition.
    pub const INTERNAL: Self = Self(1011);
    /// The server restarts. The client may connect again.
    pub const SERVICE_RESTART: Self = Self(1012);
    /// Try again later: the server is overloaded (IANA's registry of close codes).
    pub const TRY_AGAIN: Self = Self(1013);
    /// Another connection of the same client has taken over. For private use, RFC 6455 section 7.4.2.
    pub const TAKEN_OVER: Self = Self(4001);
    /// Another client has what this one asked for, such as the input of a process. For private use, RFC 6455 section 7.4.2.
    pub const CONFLICT: Self = Self(4009);
    /// The program that served this client alone has failed. Another connection would start it again. For private use, RFC 6455
    /// section 7.4.2.
    pub const PROGRAM_FAILED: Self = Self(4011);

    /// Whether a CLOSE frame may carry the code: the codes that RFC 6455 and the IANA registry define for it, those for
    /// libraries and frameworks (3000 to 3999), and those for private use (4000 to 4999).
    pub const fn is_sendable(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The event that ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The peer sent CLOSE.
    PeerClose,
    /// The peer ended the TCP connection without CLOSE.
    Eof,
    /// Reading failed.
    ReadError,
    /// Writing failed.
    WriteError,
    /// The peer violated the protocol.
    ProtocolError,
    /// The peer sent nothing after a PING.
    PingTimeout,
    /// No data message was received or sent for the idle timeout.
    IdleTimeout,
    /// The peer left more output unread than the limit.
    SlowConsumer,
    /// The server held too much memory for the peer.
    Memory,
    /// The peer sent more messages than the rate limit.
    RateLimit,
    /// The connection was cut, and was not resumed: the client did not come back in time, or the server that this side had
    /// connected to no longer knew it.
    NotResumed,
    /// A connection that this side had opened was cut, and no new one could be opened to resume it.
    Unreachable,
    /// The token that the peer presented is no longer accepted.
    Revoked,
    /// An operator disconnected the client.
    Operator,
    /// The service closed it.
    Service,
    /// The server stops.
    Shutdown,
}

#[cfg(feature = "server")]
crate::record::record!(
    enum Cause {
        PeerClose,
        Eof,
        ReadError,
        WriteError,
        ProtocolError,
        PingTimeout,
        IdleTimeout,
        SlowConsumer,
        Memory,
        RateLimit,
        NotResumed,
        Unreachable,
        Revoked,
        Operator,
        Service,
        Shutdown,
    }
);

impl Cause {
    /// Every cause, for tables of counters. A new one comes last, because a state of an earlier version has the tables.
    pub const ALL: [Self; 16] = [
        Self::PeerClose,
        Self::Eof,
        Self::ReadError,
        Self::WriteError,
        Self::ProtocolError,
        Self::PingTimeout,
        Self::IdleTimeout,
        Self::SlowConsumer,
        Self::Memory,
        Self::RateLimit,
        Self::NotResumed,
        Self::Revoked,
        Self::Operator,
        Self::Service,
        Self::Shutdown,
        Self::Unreachable,
    ];

    /// Whether our side closes the connection, with its own CLOSE frame.
    pub const fn is_ours(self) -> bool {
        match self {
            Self::ProtocolError
            | Self::IdleTimeout
            | Self::SlowConsumer
            | Self::Memory
            | Self::RateLimit
            | Self::Revoked
            | Self::Operator
            | Self::Service
            | Self::Shutdown => true,
            Self::PeerClose
            | Self::Eof
            | Self::ReadError
            | Self::WriteError
            | Self::PingTimeout
            | Self::NotResumed
            | Self::Unreachable => false,
        }
    }

    /// The name in events, logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PeerClose => "close",
            Self::Eof => "eof",
            Self::ReadError => "read_error",
            Self::WriteError => "write_error",
            Self::ProtocolError => "protocol_error",
            Self::PingTimeout => "ping_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::SlowConsumer => "slow_consumer",
            Self::Memory => "memory",
            Self::RateLimit => "rate_limit",
            Self::NotResumed => "not_resumed",
            Self::Unreachable => "unreachable",
            Self::Revoked => "revoked",
            Self::Operator => "operator",
            Self::Service => "service",
            Self::Shutdown => "shutdown",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a connection ended.
///
/// ```
/// use outrigger::{Cause, CloseCode, CloseReason};
///
/// let reason = CloseReason::by_service(CloseCode::NORMAL, "done");
/// assert_eq!(reason.cause, Cause::Service);
/// assert_eq!(reason.to_string(), "service: 1000 done");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseReason {
    /// The event that ended the connection.
    pub cause: Cause,
    /// The close code that the peer sent or that was sent to it; [`CloseCode::ABNORMAL`] without a CLOSE frame.
    pub code: CloseCode,
    /// The reason in words.
    pub reason: Cow<'static, str>,
}

#[cfg(feature = "server")]
crate::record::record!(CloseReason {
    cause,
    code,
    reason,
});

impl CloseReason {
    /// Creates a close reason.
    pub fn new(cause: Cause, code: CloseCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            cause,
            code,
            reason: reason.into(),
        }
    }

    /// Changes the code to [`CloseCode::ABNORMAL`] if it is ours, because our CLOSE frame was not sent.
    #[must_use]
    pub fn without_close(mut self) -> Self {
        if self.cause.is_ours() {
            self.code = CloseCode::ABNORMAL;
        }
        self
    }

    /// The peer violated the protocol.
    pub fn protocol_error(error: ProtocolError) -> Self {
        Self::new(Cause::ProtocolError, error.close_code(), error.to_string())
    }

    /// The peer ended the TCP connection without CLOSE.
    pub fn eof() -> Self {
        Self::new(Cause::Eof, CloseCode::ABNORMAL, "EOF")
    }

    /// Reading from the peer failed.
    pub fn read_error(error: &std::io::Error) -> Self {
        Self::new(
            Cause::ReadError,
            CloseCode::ABNORMAL,
            format!("Client read error: {error}"),
        )
    }

    /// Writing to the peer failed.
    pub fn write_error(error: &std::io::Error) -> Self {
        Self::new(
            Cause::WriteError,
            CloseCode::ABNORMAL,
            format!("Client write error: {error}"),
        )
    }

    /// The peer sent nothing after a PING.
    pub fn ping_timeout() -> Self {
        Self::new(
            Cause::PingTimeout,
            CloseCode::ABNORMAL,
            "Connection timeout",
        )
    }

    /// Messages were sent to the peer, but no PONG has confirmed them.
    pub fn unconfirmed() -> Self {
        Self::new(
            Cause::PingTimeout,
            CloseCode::ABNORMAL,
            "Messages were not confirmed",
        )
    }

    /// No data message was received or sent for the idle timeout.
    pub fn idle_timeout() -> Self {
        Self::new(Cause::IdleTimeout, CloseCode::GOING_AWAY, "Idle timeout")
    }

    /// The peer left more output unread than the limit.
    pub fn slow_consumer() -> Self {
        Self::new(Cause::SlowConsumer, CloseCode::POLICY, "Slow consumer")
    }

    /// The server held too much memory for the peer.
    pub fn memory() -> Self {
        Self::new(Cause::Memory, CloseCode::TRY_AGAIN, "Too little memory")
    }

    /// The peer sent more messages than the rate limit.
    pub fn rate_limit() -> Self {
        Self::new(Cause::RateLimit, CloseCode::POLICY, "Rate limit")
    }

    /// The client's connection was cut, for the reason `cut`, and the client did not resume it in time.
    pub fn not_resumed(cut: &Self) -> Self {
        let reason = format!("not resumed after {}", cut.cause);
        Self::new(Cause::NotResumed, CloseCode::ABNORMAL, reason)
    }

    /// What the peer presented is no longer accepted: its `credential`, a token or a certificate.
    pub fn revoked(credential: &str) -> Self {
        let reason = format!("the {credential} was revoked");
        Self::new(Cause::Revoked, CloseCode::POLICY, reason)
    }

    /// The link that the peer presented has expired.
    pub fn link_expired() -> Self {
        Self::new(Cause::Revoked, CloseCode::POLICY, "the link has expired")
    }

    /// An operator disconnected the client.
    pub fn by_operator() -> Self {
        Self::new(
            Cause::Operator,
            CloseCode::POLICY,
            "disconnected by an operator",
        )
    }

    /// The service closed the connection with a code and a reason.
    pub fn by_service(code: CloseCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Cause::Service, code, reason)
    }

    /// The server stops.
    pub fn shutdown() -> Self {
        Self::new(
            Cause::Shutdown,
            CloseCode::GOING_AWAY,
            "Server shutting down",
        )
    }
}

impl fmt::Display for CloseReason {
    /// Writes the cause, the code and the reason: `close: 1000 done`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.cause, self.code)?;
        if !self.reason.is_empty() {
            write!(f, " {}", self.reason)?;
        }
        Ok(())
    }
}

/// The maximum length of the reason in a CLOSE frame: a control frame's payload without the code.
const MAX_REASON: usize = MAX_CONTROL_PAYLOAD - 2;

/// Parses the payload of a CLOSE frame (RFC 6455 section 5.5.1): nothing, or a code and a reason in UTF-8.
pub(super) fn parse_close(payload: &[u8]) -> Result<(CloseCode, &str), ProtocolError> {
    match payload {
        [] => Ok((CloseCode::NONE, "")),
        [_] => Err(ProtocolError::TruncatedClose),
        [high, low, reason @ ..] => {
            let code = CloseCode(u16::from_be_bytes([*high, *low]));
            if !code.is_sendable() {
                return Err(ProtocolError::InvalidCloseCode(code.0));
            }
            let reason = std::str::from_utf8(reason).map_err(|_| ProtocolError::InvalidUtf8)?;
            Ok((code, reason))
        }
    }
}

/// The payload of a CLOSE frame. It is empty if the code must not be sent. A long reason is truncated between two
/// characters.
pub(super) fn close_payload(code: CloseCode, reason: &str) -> Vec<u8> {
    if !code.is_sendable() {
        return Vec::new();
    }
    let mut payload = code.0.to_be_bytes().to_vec();
    payload.extend_from_slice(&reason.as_bytes()[..reason.floor_char_boundary(MAX_REASON)]);
    payload
}

/// A violation of RFC 6455 or RFC 7692 by the peer. The answer is a CLOSE frame with [`ProtocolError::close_code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// RSV1, RSV2 or RSV3 set without an extension that defines it there (section 5.2).
    ReservedBits,
    /// An undefined opcode (section 5.2).
    ReservedOpcode(u8),
    /// An unmasked frame from a client (section 5.1).
    Unmasked,
    /// A masked frame from a server (section 5.1).
    Masked,
    /// A control frame without FIN (section 5.5).
    FragmentedControl,
    /// A control frame with more than 125 bytes of payload (section 5.5).
    ControlTooLong,
    /// A length that is not encoded in its shortest form (section 5.2).
    NonMinimalLength,
    /// A 64-bit length with its most significant bit set (section 5.2).
    LengthTopBit,
    /// A continuation frame with no message to continue (section 5.4).
    UnexpectedContinuation,
    /// A new message inside an unfinished one (section 5.4).
    ExpectedContinuation,
    /// A compressed message that is not valid DEFLATE data (RFC 7692 section 7.2.2).
    InvalidCompression,
    /// A text message or a close reason that is not UTF-8 (section 8.1).
    InvalidUtf8,
    /// A message over the limit (section 10.4).
    MessageTooBig,
    /// A CLOSE frame with one byte of payload (section 5.5.1).
    TruncatedClose,
    /// A CLOSE frame with a code that must not be sent (section 7.4).
    InvalidCloseCode(u16),
}

impl ProtocolError {
    /// The code of the CLOSE frame that answers the violation.
    pub fn close_code(self) -> CloseCode {
        match self {
            Self::ReservedBits
            | Self::ReservedOpcode(_)
            | Self::Unmasked
            | Self::Masked
            | Self::FragmentedControl
            | Self::ControlTooLong
            | Self::NonMinimalLength
            | Self::LengthTopBit
            | Self::UnexpectedContinuation
            | Self::ExpectedContinuation
            | Self::TruncatedClose
            | Self::InvalidCloseCode(_) => CloseCode::PROTOCOL,
            Self::InvalidUtf8 | Self::InvalidCompression => CloseCode::INVALID_DATA,
            Self::MessageTooBig => CloseCode::TOO_BIG,
        }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReservedBits => f.write_str("Reserved bits set where they have no meaning"),
            Self::ReservedOpcode(opcode) => write!(f, "Reserved opcode {opcode:#x}"),
            Self::Unmasked => f.write_str("Frame without a mask"),
            Self::Masked => f.write_str("Masked frame from a server"),
            Self::FragmentedControl => f.write_str("Fragmented control frame"),
            Self::ControlTooLong => f.write_str("Control frame over 125 bytes"),
            Self::NonMinimalLength => f.write_str("Length not in its shortest form"),
            Self::LengthTopBit => f.write_str("Length over 63 bits"),
            Self::UnexpectedContinuation => f.write_str("Continuation without a message"),
            Self::ExpectedContinuation => f.write_str("New message inside an unfinished one"),
            Self::InvalidCompression => f.write_str("Invalid compressed data"),
            Self::InvalidUtf8 => f.write_str("Invalid UTF-8"),
            Self::MessageTooBig => f.write_str("Message too big"),
            Self::TruncatedClose => f.write_str("CLOSE frame with half a code"),
            Self::InvalidCloseCode(code) => write!(f, "Invalid close code {code}"),
        }
    }
}

impl std::error::Error for ProtocolError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_codes_are_never_sent() {
        for code in (0..1000).chain([1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535]) {
            assert!(!CloseCode(code).is_sendable(), "{code}");
            assert_eq!(close_payload(CloseCode(code), "why"), b"");
        }
        for code in [
            1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999,
            4000, 4999,
        ] {
            assert!(CloseCode(code).is_sendable(), "{code}");
        }
    }

    #[test]
    fn a_long_reason_is_truncated_between_characters() {
        let payload = close_payload(CloseCode::NORMAL, &"é".repeat(100));
        assert_eq!(
            payload.len(),
            2 + 122,
            "61 two-byte characters of the 123 bytes that fit"
        );
        assert!(parse_close(&payload).is_ok());
    }
}
