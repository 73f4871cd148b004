//! Frame headers, RFC 6455 section 5.2.

use super::{ProtocolError, apply_mask};

/// The maximum payload length of a control frame (RFC 6455 section 5.5).
pub(super) const MAX_CONTROL_PAYLOAD: usize = 125;

/// The longest header of a frame from a client: two bytes, a 64-bit length and a masking key.
pub(super) const MAX_HEADER: usize = 14;

/// The longest header of a frame without a masking key.
const MAX_SENT_HEADER: usize = 10;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OpCode {
    /// The next fragment of a message.
    Continuation = 0x0,
    /// A text message, or its first fragment.
    Text = 0x1,
    /// A binary message, or its first fragment.
    Binary = 0x2,
    /// The closing handshake.
    Close = 0x8,
    /// A request for a PONG.
    Ping = 0x9,
    /// The answer to a PING.
    Pong = 0xa,
}

#[cfg(feature = "server")]
crate::record::record!(
    enum OpCode {
        Continuation,
        Text,
        Binary,
        Close,
        Ping,
        Pong,
    }
);

impl OpCode {
    /// The opcode with this value, if it is defined.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0x0 => Self::Continuation,
            0x1 => Self::Text,
            0x2 => Self::Binary,
            0x8 => Self::Close,
            0x9 => Self::Ping,
            0xa => Self::Pong,
            _ => return None,
        })
    }

    /// Whether the frame is a control frame. Control frames may come between the fragments of a message.
    pub const fn is_control(self) -> bool {
        self as u8 & 0x8 != 0
    }
}

/// The side that an endpoint takes in a connection (RFC 6455 section 1.3). Only clients mask their frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that accepts the connection.
    Server,
    /// The side that opens the connection.
    Client,
}

/// The header of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Whether this is the last frame of its message.
    pub fin: bool,
    /// The kind of the frame.
    pub opcode: OpCode,
    /// RSV1: whether the frame begins a compressed message (RFC 7692 section 6).
    pub compressed: bool,
    /// The masking key. A frame from a client always has one. In a frame from a server, it is zero.
    pub mask: [u8; 4],
    /// The number of payload bytes that follow.
    pub payload_len: u64,
}

#[cfg(feature = "server")]
crate::record::record!(FrameHeader {
    fin,
    opcode,
    compressed,
    mask,
    payload_len,
});

/// Parses the length of the payload, whose first form is `short`. Returns it, and where the mask begins; `None` if it has not
/// arrived completely.
#[inline(always)]
fn parse_length(bytes: &[u8], short: u8) -> Result<Option<(u64, usize)>, ProtocolError> {
    // "The minimal number of bytes MUST be used to encode the length."
    Ok(Some(match short {
        126 => {
            let Some(length) = bytes[2..].first_chunk::<2>() else {
                return Ok(None);
            };
            let length = u64::from(u16::from_be_bytes(*length));
            if length < 126 {
                return Err(ProtocolError::NonMinimalLength);
            }
            (length, 4)
        }
        127 => {
            if bytes.get(2).is_some_and(|byte| byte & 0x80 != 0) {
                return Err(ProtocolError::LengthTopBit);
            }
            let Some(length) = bytes[2..].first_chunk::<8>() else {
                return Ok(None);
            };
            let length = u64::from_be_bytes(*length);
            if length <= u64::from(u16::MAX) {
                return Err(ProtocolError::NonMinimalLength);
            }
            (length, 10)
        }
        length => (u64::from(length), 2),
    }))
}

impl FrameHeader {
    /// Parses a header at the front of `bytes`. Returns the header and its length, or `None` if it is incomplete.
    ///
    /// An error is reported at the first byte that causes it, so the result does not depend on how the header is split.
    /// The parser does not check whether the frame is allowed in the current state of the connection. `from` is the
    /// sender. `compresses` is true if permessage-deflate was negotiated.
    pub fn parse(
        bytes: &[u8],
        from: Role,
        compresses: bool,
    ) -> Result<Option<(Self, usize)>, ProtocolError> {
        let Some(&first) = bytes.first() else {
            return Ok(None);
        };
        // "MUST be 0 unless an extension is negotiated that defines meanings for non-zero values."
        let compressed = first & 0x40 != 0;
        if first & 0x30 != 0 || compressed && !compresses {
            return Err(ProtocolError::ReservedBits);
        }
        let opcode =
            OpCode::from_bits(first & 0x0f).ok_or(ProtocolError::ReservedOpcode(first & 0x0f))?;
        // "An endpoint MUST NOT set the "Per-Message Compressed" bit of control frames and non-first fragments".
        if compressed && !matches!(opcode, OpCode::Text | OpCode::Binary) {
            return Err(ProtocolError::ReservedBits);
        }
        let fin = first & 0x80 != 0;
        // "All control frames MUST have a payload length of 125 bytes or less and MUST NOT be fragmented."
        if opcode.is_control() && !fin {
            return Err(ProtocolError::FragmentedControl);
        }

        let Some(&second) = bytes.get(1) else {
            return Ok(None);
        };
        // "The server MUST close the connection upon receiving a frame that is not masked." and "A client MUST close a
        // connection if it detects a masked frame."
        match (from, second & 0x80 != 0) {
            (Role::Client, false) => return Err(ProtocolError::Unmasked),
            (Role::Server, true) => return Err(ProtocolError::Masked),
            _ => {}
        }
        let short = second & 0x7f;
        if opcode.is_control() && usize::from(short) > MAX_CONTROL_PAYLOAD {
            return Err(ProtocolError::ControlTooLong);
        }

        let Some((payload_len, mask_at)) = parse_length(bytes, short)? else {
            return Ok(None);
        };
        let (mask, len) = match from {
            Role::Server => ([0; 4], mask_at),
            Role::Client => match bytes[mask_at..].first_chunk::<4>() {
                Some(&mask) => (mask, mask_at + 4),
                None => return Ok(None),
            },
        };
        Ok(Some((
            Self {
                fin,
                opcode,
                compressed,
                mask,
                payload_len,
            },
            len,
        )))
    }

    /// Unmasks the next piece of the payload. The header then applies to the rest.
    pub(super) fn unmask(&mut self, piece: &mut [u8]) {
        if self.mask != [0; 4] {
            self.mask = apply_mask(piece, self.mask);
        }
    }
}

/// The header of a frame, encoded without a masking key.
#[derive(Clone, Copy, Debug)]
pub struct HeaderBytes {
    bytes: [u8; MAX_SENT_HEADER],
    len: u8,
}

impl HeaderBytes {
    /// The encoded bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The header of a frame to be sent.
#[derive(Clone, Copy, Debug)]
pub struct SentHeader {
    first: u8,
    payload_len: usize,
}

impl SentHeader {
    /// The header of an uncompressed message in one frame.
    pub const fn new(opcode: OpCode, payload_len: usize) -> Self {
        Self {
            first: 0x80 | opcode as u8,
            payload_len,
        }
    }

    /// The header of a compressed message in one frame: RSV1 is set.
    pub const fn compressed(opcode: OpCode, payload_len: usize) -> Self {
        Self {
            first: 0xc0 | opcode as u8,
            payload_len,
        }
    }

    /// The header of a fragment of a compressed message. The first fragment has the opcode of the message.
    pub const fn fragment(opcode: Option<OpCode>, last: bool, payload_len: usize) -> Self {
        let kind = match opcode {
            Some(opcode) => 0x40 | opcode as u8,
            None => OpCode::Continuation as u8,
        };
        Self {
            first: if last { 0x80 | kind } else { kind },
            payload_len,
        }
    }

    /// Encodes the header of a frame from a server.
    pub fn encode(self) -> HeaderBytes {
        let mut bytes = [0; MAX_SENT_HEADER];
        bytes[0] = self.first;
        let len = match self.payload_len {
            len @ ..126 => {
                bytes[1] = len as u8;
                2
            }
            len @ ..0x1_0000 => {
                bytes[1] = 126;
                bytes[2..4].copy_from_slice(&(len as u16).to_be_bytes());
                4
            }
            len => {
                bytes[1] = 127;
                bytes[2..].copy_from_slice(&(len as u64).to_be_bytes());
                10
            }
        };
        HeaderBytes { bytes, len }
    }

    /// Appends the header and its payload, masked with `key`: a frame from a client (RFC 6455 section 5.3).
    pub fn append_masked(self, payload: &[u8], key: [u8; 4], out: &mut Vec<u8>) {
        let mut header = self.encode();
        header.bytes[1] |= 0x80;
        out.extend_from_slice(header.as_slice());
        out.extend_from_slice(&key);
        let begin = out.len();
        out.extend_from_slice(payload);
        apply_mask(&mut out[begin..], key);
    }

    /// Appends the header and its payload: a frame from a server.
    ///
    /// A header of 2 bytes is written from registers. Assembling it in memory first would stall the copy until the
    /// processor's store queue is drained, and a copy of 2 bytes may become a call.
    #[inline(always)]
    pub fn append_with(self, payload: &[u8], out: &mut Vec<u8>) {
        debug_assert_eq!(self.payload_len, payload.len());
        match payload.len() {
            len @ ..126 => {
                out.push(self.first);
                out.push(len as u8);
            }
            _ => self.append_long(out),
        }
        out.extend_from_slice(payload);
    }

    /// Appends a header of 4 or 10 bytes.
    #[inline(never)]
    fn append_long(self, out: &mut Vec<u8>) {
        match u16::try_from(self.payload_len) {
            Ok(len) => {
                let [high, low] = len.to_be_bytes();
                out.extend_from_slice(&[self.first, 126, high, low]);
            }
            Err(_) => out.extend_from_slice(self.encode().as_slice()),
        }
    }
}

/// Appends an unfragmented, unmasked frame to `out`.
///
/// Not inlined, because control frames are rare.
#[inline(never)]
pub fn encode_frame(opcode: OpCode, payload: &[u8], out: &mut Vec<u8>) {
    SentHeader::new(opcode, payload.len()).append_with(payload, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Option<(FrameHeader, usize)>, ProtocolError> {
        FrameHeader::parse(bytes, Role::Client, false)
    }

    #[test]
    fn the_three_forms_of_a_length_are_parsed() {
        let key = [9, 8, 7, 6];
        for (form, want) in [
            (&[0x81, 0x80 | 125][..], 125),
            (&[0x81, 0x80 | 126, 0, 126], 126),
            (&[0x81, 0x80 | 126, 0xff, 0xff], 0xffff),
            (&[0x81, 0x80 | 127, 0, 0, 0, 0, 0, 1, 0, 0], 0x10000),
        ] {
            let bytes = [form, &key].concat();
            let (header, used) = parse(&bytes).expect("valid").expect("complete");
            assert_eq!(
                (header.payload_len, header.mask, used),
                (want, key, bytes.len())
            );
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut]), Ok(None), "incomplete is not an error");
            }
        }
    }

    #[test]
    fn each_violation_is_detected_in_the_header() {
        for (bytes, error) in [
            (&[0xc1][..], ProtocolError::ReservedBits),
            (&[0xa1], ProtocolError::ReservedBits),
            (&[0x91], ProtocolError::ReservedBits),
            (&[0x83], ProtocolError::ReservedOpcode(3)),
            (&[0x8f], ProtocolError::ReservedOpcode(15)),
            (&[0x09], ProtocolError::FragmentedControl),
            (&[0x81, 0x05], ProtocolError::Unmasked),
            (&[0x89, 0xfe], ProtocolError::ControlTooLong),
            (&[0x88, 0xff], ProtocolError::ControlTooLong),
            (&[0x81, 0xfe, 0, 125], ProtocolError::NonMinimalLength),
            (
                &[0x81, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff],
                ProtocolError::NonMinimalLength,
            ),
            (&[0x81, 0xff, 0x80], ProtocolError::LengthTopBit),
        ] {
            assert_eq!(parse(bytes), Err(error), "{bytes:02x?}");
        }
    }

    #[test]
    fn a_frame_from_a_server_has_no_mask() {
        let parse = |bytes| FrameHeader::parse(bytes, Role::Server, false);
        let (header, len) = parse(&[0x82, 126, 0, 200])
            .expect("valid")
            .expect("complete");
        assert_eq!((header.payload_len, header.mask, len), (200, [0; 4], 4));
        assert_eq!(parse(&[0x82, 126, 0]), Ok(None));
        assert_eq!(parse(&[0x82, 0x80]), Err(ProtocolError::Masked));
    }

    #[test]
    fn a_masked_frame_is_what_a_server_parses() {
        for len in [0, 1, 125, 126, 65535, 65536] {
            let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let (key, mut out) = ([1, 2, 3, 4], Vec::new());
            SentHeader::new(OpCode::Binary, len).append_masked(&payload, key, &mut out);
            let (mut header, at) = parse(&out).expect("valid").expect("complete");
            assert_eq!((header.payload_len, header.mask), (len as u64, key));
            header.unmask(&mut out[at..]);
            assert_eq!(out[at..], payload);
        }
    }

    #[test]
    fn encoded_lengths_have_the_shortest_form() {
        for (len, want) in [
            (0, &[0x82, 0][..]),
            (125, &[0x82, 125]),
            (126, &[0x82, 126, 0, 126]),
            (65535, &[0x82, 126, 0xff, 0xff]),
            (65536, &[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            assert_eq!(
                SentHeader::new(OpCode::Binary, len).encode().as_slice(),
                want
            );
        }
    }
}
