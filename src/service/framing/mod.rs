//! Framing: how messages are separated in a stream of bytes. A [`Decoder`] finds the messages, whatever pieces the stream
//! arrives in, and [`Framing::encode`] writes them. Neither does I/O.

mod content_length;

use std::fmt;
use std::ops::ControlFlow;

use self::content_length::ContentLength;
use super::lines::{Line, LineSplitter};

/// The maximum length of a header block in bytes, including the empty line at its end.
pub(crate) const MAX_HEADER: usize = 4096;

/// How many bytes of a header block that is invalid an error shows.
const SHOWN: usize = 100;

/// How messages are separated on the standard streams of a program.
///
/// ```
/// use outrigger::service::Framing;
///
/// assert_eq!("content-length".parse(), Ok(Framing::ContentLength));
/// assert_eq!(Framing::Lines.to_string(), "lines");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Framing {
    /// Each line is a message. A carriage return before the line feed does not belong to the message.
    #[default]
    Lines,
    /// Messages are not separated. What is read at once is a message.
    Raw,
    /// Each message follows a header block with its length, as in the Language Server Protocol and the Debug Adapter
    /// Protocol.
    ContentLength,
}

impl Framing {
    const NAMES: [(Self, &str); 3] = [
        (Self::Lines, "lines"),
        (Self::Raw, "raw"),
        (Self::ContentLength, "content-length"),
    ];

    /// Appends a message with its framing. With [`Framing::Lines`], line feeds inside the message are not changed, so it
    /// becomes several lines.
    pub(crate) fn encode(self, message: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Raw => out.extend_from_slice(message),
            Self::Lines => {
                out.reserve(message.len() + 1);
                out.extend_from_slice(message);
                out.push(b'\n');
            }
            Self::ContentLength => {
                let header = format!("Content-Length: {}\r\n\r\n", message.len());
                out.reserve(header.len() + message.len());
                out.extend_from_slice(header.as_bytes());
                out.extend_from_slice(message);
            }
        }
    }
}

impl fmt::Display for Framing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(framing, _)| framing == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl std::str::FromStr for Framing {
    type Err = ParseFramingError;

    /// Parses `lines`, `raw` or `content-length`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::NAMES.iter().find(|(_, name)| *name == text);
        named
            .map(|(framing, _)| *framing)
            .ok_or(ParseFramingError(()))
    }
}

/// A string that does not name a [`Framing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseFramingError(());

impl fmt::Display for ParseFramingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("none of lines, raw and content-length")
    }
}

impl std::error::Error for ParseFramingError {}

/// Why the rest of a stream cannot be divided into messages. The texts fit the reason of a CLOSE frame, with the shown
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FramingError {
    /// The header block has no `Content-Length`, or contains something else than header fields. The text is its start.
    NoContentLength(String),
    /// The value of `Content-Length` is not a number, or the field is repeated. The text is the start of the block.
    InvalidContentLength(String),
    /// The header block is longer than [`MAX_HEADER`]. The text is its start.
    HeaderTooLong(String),
    /// The message is longer than this limit.
    MessageTooLong(usize),
    /// The stream ended inside a message or a header block.
    Truncated,
}

impl fmt::Display for FramingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoContentLength(start) => write!(f, "No Content-Length: {start}"),
            Self::InvalidContentLength(start) => write!(f, "Invalid header: {start}"),
            Self::HeaderTooLong(start) => write!(f, "Header too long: {start}"),
            Self::MessageTooLong(limit) => {
                write!(f, "Content-Length over the message limit of {limit} bytes")
            }
            Self::Truncated => f.write_str("Output ended inside a message"),
        }
    }
}

impl std::error::Error for FramingError {}

/// Divides a stream into messages and numbers them from 1. It never holds more than one message of the limit.
///
/// Call [`Decoder::push`] with each piece of the stream and [`Decoder::finish`] at its end.
#[derive(Debug)]
pub(crate) struct Decoder(Kind);

#[derive(Debug)]
enum Kind {
    Lines(LineSplitter),
    Raw { limit: usize, number: u64 },
    ContentLength(Box<ContentLength>),
}

impl Decoder {
    /// Accepts messages of at most `limit` bytes.
    pub(crate) fn new(framing: Framing, limit: usize) -> Self {
        Self(match framing {
            Framing::Lines => Kind::Lines(LineSplitter::new(limit)),
            Framing::Raw => Kind::Raw { limit, number: 0 },
            Framing::ContentLength => Kind::ContentLength(Box::new(ContentLength::new(limit))),
        })
    }

    /// Takes the next piece and calls `message` with the number and the text of each message that it completes, until
    /// `message` returns `Break`. Returns the number of bytes consumed: all of them, or those up to the end of the message
    /// for which it returned `Break`.
    ///
    /// After [`Line::Broken`], the rest of the stream is consumed and ignored.
    pub(crate) fn push(
        &mut self,
        piece: &[u8],
        mut message: impl FnMut(u64, Line<'_>) -> ControlFlow<()>,
    ) -> usize {
        match &mut self.0 {
            Kind::Lines(lines) => lines.push(piece, message),
            Kind::ContentLength(messages) => messages.push(piece, &mut message),
            Kind::Raw { limit, number } => {
                let mut taken = 0;
                for chunk in piece.chunks((*limit).max(1)) {
                    taken += chunk.len();
                    *number += 1;
                    if message(*number, Line::Whole(chunk)).is_break() {
                        break;
                    }
                }
                taken
            }
        }
    }

    /// Handles the end of the stream: a last line without a line feed is a line, and any other incomplete message is an
    /// error.
    pub(crate) fn finish(&mut self, mut message: impl FnMut(u64, Line<'_>) -> ControlFlow<()>) {
        match &mut self.0 {
            Kind::Lines(lines) => lines.finish(message),
            Kind::ContentLength(messages) => messages.finish(&mut message),
            Kind::Raw { .. } => {}
        }
    }
}
