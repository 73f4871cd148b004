//! Messages, and their assembly from fragments (RFC 6455 section 5.4).

use super::frame::{FrameHeader, OpCode};
use super::payload::check_utf8;
use super::shared::{Buffer, Buffers, capacity_for};
use super::{ProtocolError, Utf8Stream};
#[cfg(feature = "server")]
use crate::record::{Beside, record};

/// A complete message, borrowed.
///
/// ```
/// use outrigger::Message;
///
/// let message = Message::from("hello");
/// assert_eq!(message, Message::Text("hello"));
/// assert_eq!(message.as_bytes(), b"hello");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Text, valid UTF-8.
    Text(&'a str),
    /// Any bytes.
    Binary(&'a [u8]),
}

impl<'a> Message<'a> {
    /// The payload in bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }

    /// The opcode of a frame that carries the message.
    pub fn opcode(self) -> OpCode {
        match self {
            Self::Text(_) => OpCode::Text,
            Self::Binary(_) => OpCode::Binary,
        }
    }
}

impl<'a> From<&'a str> for Message<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Message<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a [u8]> for Message<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Binary(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Message<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Binary(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Message<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Binary(bytes)
    }
}

/// A message that owns its bytes, so that it can be kept or sent to another thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedMessage {
    /// Text.
    Text(String),
    /// Bytes.
    Binary(Vec<u8>),
}

#[cfg(feature = "server")]
record!(
    enum OwnedMessage {
        Text(text(Beside)),
        Binary(bytes),
    }
);

impl OwnedMessage {
    /// Borrows the message.
    #[must_use]
    pub fn as_message(&self) -> Message<'_> {
        match self {
            Self::Text(text) => Message::Text(text),
            Self::Binary(bytes) => Message::Binary(bytes),
        }
    }
}

impl<'a> From<&'a OwnedMessage> for Message<'a> {
    fn from(message: &'a OwnedMessage) -> Self {
        message.as_message()
    }
}

impl From<String> for OwnedMessage {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for OwnedMessage {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<u8>> for OwnedMessage {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Binary(bytes)
    }
}

impl From<Message<'_>> for OwnedMessage {
    fn from(message: Message<'_>) -> Self {
        match message {
            Message::Text(text) => Self::Text(text.to_owned()),
            Message::Binary(bytes) => Self::Binary(bytes.to_vec()),
        }
    }
}

/// A complete message that was received.
///
/// ```
/// use outrigger::Message;
/// use outrigger::protocol::Payload;
///
/// fn length(payload: &Payload<'_>) -> usize {
///     match payload.as_message() {
///         Message::Text(text) => text.chars().count(),
///         Message::Binary(bytes) => bytes.len(),
///     }
/// }
/// assert_eq!(length(&Payload::Borrowed(Message::Text("é"))), 1);
/// ```
#[derive(Clone, Debug)]
// A tag of its own is cheaper to test than a niche in `OwnedPayload`.
#[repr(usize)]
pub enum Payload<'a> {
    /// A message that lies in the input, because it arrived in one piece.
    Borrowed(Message<'a>),
    /// A message that was assembled or decompressed, in memory of its own.
    Owned(OwnedPayload),
}

/// The memory of a message that was assembled or decompressed.
#[derive(Clone, Debug)]
pub struct OwnedPayload(Memory);

#[derive(Clone, Debug)]
enum Memory {
    Text(String),
    Binary(Buffer),
}

impl<'a> Payload<'a> {
    /// The message.
    #[inline]
    pub fn as_message(&self) -> Message<'_> {
        match self {
            Self::Borrowed(message) => *message,
            Self::Owned(OwnedPayload(Memory::Text(text))) => Message::Text(text),
            Self::Owned(OwnedPayload(Memory::Binary(bytes))) => Message::Binary(bytes),
        }
    }

    /// Returns the memory of the message to `buffers` for another message.
    #[inline]
    pub fn recycle(self, buffers: &mut Buffers) {
        if let Self::Owned(payload) = self {
            buffers.give(payload.into_memory());
        }
    }

    /// The message of a single frame with an unmasked payload.
    pub(super) fn whole(opcode: OpCode, payload: &'a [u8]) -> Result<Self, ProtocolError> {
        let message = if opcode == OpCode::Text {
            Message::Text(check_utf8(payload)?)
        } else {
            Message::Binary(payload)
        };
        Ok(Self::Borrowed(message))
    }

    /// Copies the message into memory of its own, unless it is there already.
    pub(super) fn into_owned(self) -> Payload<'static> {
        Payload::Owned(match self {
            Self::Borrowed(Message::Text(text)) => OwnedPayload(Memory::Text(text.to_owned())),
            Self::Borrowed(Message::Binary(bytes)) => OwnedPayload(Memory::Binary(bytes.into())),
            Self::Owned(payload) => payload,
        })
    }
}

impl OwnedPayload {
    #[inline(never)]
    fn into_memory(self) -> Vec<u8> {
        match self.0 {
            Memory::Text(text) => text.into_bytes(),
            Memory::Binary(buffer) => buffer.into_memory(),
        }
    }
}

/// A message that is still arriving. Its capacity depends on the bytes that arrived, not on the length that the peer
/// announced.
#[derive(Debug)]
pub(crate) enum Assembly {
    Text { text: String, utf8: Utf8Stream },
    Binary(Buffer),
}

#[cfg(feature = "server")]
record!(enum Assembly {
    Text { text(Beside), utf8 },
    Binary(bytes),
});

impl Assembly {
    /// Creates an empty message of this kind.
    pub(crate) fn new(opcode: OpCode) -> Self {
        match opcode {
            OpCode::Text => Self::Text {
                text: String::new(),
                utf8: Utf8Stream::default(),
            },
            _ => Self::Binary(Buffer::default()),
        }
    }

    /// The number of bytes so far, including those of an incomplete character.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Text { text, utf8 } => text.len() + utf8.pending(),
            Self::Binary(bytes) => bytes.len(),
        }
    }

    /// The capacity in bytes.
    pub(super) fn capacity(&self) -> usize {
        match self {
            Self::Text { text, .. } => text.capacity(),
            Self::Binary(bytes) => bytes.capacity(),
        }
    }

    /// Appends unmasked bytes. `most` is the maximum length of the whole message: the capacity doubles, up to `most`.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        most: usize,
        buffers: &mut Buffers,
    ) -> Result<(), ProtocolError> {
        let len = self.len() + bytes.len();
        match self {
            Self::Text { text, utf8 } => {
                let capacity = text.capacity();
                if len > capacity {
                    let mut larger = buffers.string(capacity_for(len, capacity, most));
                    larger.push_str(text);
                    buffers.give(std::mem::replace(text, larger).into_bytes());
                }
                utf8.push(bytes, text)
            }
            Self::Binary(held) => {
                held.push(bytes, most, buffers);
                Ok(())
            }
        }
    }

    /// Completes the message.
    pub(crate) fn finish(self) -> Result<Payload<'static>, ProtocolError> {
        match self {
            Self::Text { text, utf8 } => {
                utf8.finish()?;
                Ok(Payload::Owned(OwnedPayload(Memory::Text(text))))
            }
            Self::Binary(buffer) => Ok(Payload::Owned(OwnedPayload(Memory::Binary(buffer)))),
        }
    }
}

/// Checks the header of a data frame against the message that is arriving and its maximum length, `most`.
pub(super) fn check_data_frame(
    header: &FrameHeader,
    assembly: Option<&Assembly>,
    most: usize,
) -> Result<(), ProtocolError> {
    let held = match (header.opcode, assembly) {
        (OpCode::Continuation, None) => return Err(ProtocolError::UnexpectedContinuation),
        (OpCode::Continuation, Some(assembly)) => assembly.len(),
        (_, Some(_)) => return Err(ProtocolError::ExpectedContinuation),
        (_, None) => 0,
    };
    if header.payload_len > most.saturating_sub(held) as u64 {
        return Err(ProtocolError::MessageTooBig);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capacity_of_a_message_stays_below_its_maximum_length() {
        let most = 100_000;
        let mut assembly = Assembly::new(OpCode::Binary);
        for _ in 0..most / 1000 {
            let mut buffers = Buffers::default();
            assembly
                .push(&[7; 1000], most, &mut buffers)
                .expect("binary");
            let Assembly::Binary(held) = &assembly else {
                unreachable!("binary")
            };
            assert!(
                held.capacity() <= most.min(2 * held.len()),
                "{} for {}",
                held.capacity(),
                held.len()
            );
        }
    }

    #[test]
    fn the_limit_includes_the_bytes_of_an_incomplete_character() {
        let mut assembly = Assembly::new(OpCode::Text);
        assembly
            .push(b"abc\xe2\x82", 8, &mut Buffers::default())
            .expect("the start of a character");
        let frame = |payload_len| FrameHeader {
            compressed: false,
            fin: true,
            opcode: OpCode::Continuation,
            mask: [0; 4],
            payload_len,
        };
        assert_eq!(check_data_frame(&frame(3), Some(&assembly), 8), Ok(()));
        assert_eq!(
            check_data_frame(&frame(4), Some(&assembly), 8),
            Err(ProtocolError::MessageTooBig)
        );
    }
}
