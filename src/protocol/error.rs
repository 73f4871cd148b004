//! The violations of RFC 6455 that a peer can make, and the close code for each.

use std::fmt;

use super::close::CloseCode;

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
