//! Framing: how messages are separated in a stream of bytes. A [`Decoder`] finds the messages, whatever pieces the stream
//! arrives in, and [`Framing::encode`] writes them. Neither does I/O.
//!
//! Messages are lines, or follow a header with their length: the base protocol of the Language Server Protocol and the Debug
//! Adapter Protocol has a header block with the length of the message, an empty line, and the message. A header block is
//! rejected at the first byte that shows that it is something else, for example a line of a log. Memory is allocated for bytes
//! that have arrived, not for a length that is claimed.

use std::fmt;
use std::ops::ControlFlow;

use super::lines::{Line, LineSplitter};
use crate::record::record;
use crate::text::printable;

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

record!(Decoder as Kind);

record!(enum Kind {
    Lines(lines),
    Raw { limit, number },
    ContentLength(messages),
});

impl Decoder {
    /// How messages are separated.
    pub(crate) fn framing(&self) -> Framing {
        match &self.0 {
            Kind::Lines(_) => Framing::Lines,
            Kind::Raw { .. } => Framing::Raw,
            Kind::ContentLength(_) => Framing::ContentLength,
        }
    }

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

/// The field that a header block needs. Others are ignored, as in HTTP.
const LENGTH: &[u8] = b"content-length:";

/// A larger buffer is freed after each message.
const KEPT_BUFFER: usize = 64 << 10;

/// Where in a message the stream is.
#[derive(Clone, Copy, Debug)]
enum State {
    /// In a header block. `held` has the block so far.
    Header {
        /// Where the current line begins in `held`.
        line: usize,
        length: Option<usize>,
    },
    /// In a message of this length. `held` has what has arrived.
    Body(usize),
    /// The stream cannot be decoded any further.
    Broken,
}

const START: State = State::Header {
    line: 0,
    length: None,
};

record!(enum State {
    Header { line, length },
    Body(length),
    Broken,
});

/// Decodes a stream with header blocks.
#[derive(Debug)]
struct ContentLength {
    limit: usize,
    state: State,
    held: Vec<u8>,
    number: u64,
}

record!(ContentLength {
    limit,
    state,
    held,
    number,
});

type OnMessage<'a> = &'a mut dyn FnMut(u64, Line<'_>) -> ControlFlow<()>;

impl ContentLength {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            state: START,
            held: Vec::new(),
            number: 0,
        }
    }

    fn push(&mut self, piece: &[u8], message: OnMessage<'_>) -> usize {
        let mut taken = 0;
        while taken < piece.len() {
            let rest = &piece[taken..];
            let flow = match self.state {
                State::Broken => return piece.len(),
                State::Header { .. } => match self.push_header(rest) {
                    Ok(count) => {
                        taken += count;
                        // An empty message has no byte that could complete it.
                        match self.state {
                            State::Body(0) => self.end(None, message),
                            _ => ControlFlow::Continue(()),
                        }
                    }
                    Err(error) => {
                        taken = piece.len();
                        self.fail(&error, message)
                    }
                },
                State::Body(length) => {
                    let part = &rest[..rest.len().min(length - self.held.len())];
                    taken += part.len();
                    if part.len() == length {
                        self.end(Some(part), message)
                    } else {
                        self.held.extend_from_slice(part);
                        if self.held.len() < length {
                            return taken;
                        }
                        self.end(None, message)
                    }
                }
            };
            if flow.is_break() {
                break;
            }
        }
        taken
    }

    /// Takes bytes of a header block, up to the end of a line. Returns how many it took.
    fn push_header(&mut self, bytes: &[u8]) -> Result<usize, FramingError> {
        let State::Header { line, length } = self.state else {
            return Ok(0);
        };
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let whole = end.map_or(bytes.len(), |at| at + 1);
        let (part, rest) = bytes.split_at(whole.min(MAX_HEADER - self.held.len()));
        self.held.extend_from_slice(part);
        let text = &self.held[line..];
        let Some(field) = text.strip_suffix(b"\n") else {
            // The rest of the line follows.
            if !may_become_field(text) {
                return Err(FramingError::NoContentLength(self.start(rest)));
            }
            if part.len() < whole || self.held.len() == MAX_HEADER {
                return Err(FramingError::HeaderTooLong(self.start(rest)));
            }
            return Ok(part.len());
        };
        let field = field.strip_suffix(b"\r").unwrap_or(field);
        if field.is_empty() {
            let Some(length) = length else {
                return Err(FramingError::NoContentLength(self.start(rest)));
            };
            if length > self.limit {
                return Err(FramingError::MessageTooLong(self.limit));
            }
            self.held.clear();
            self.state = State::Body(length);
            return Ok(part.len());
        }
        let mut length = length;
        if let Some(value) = value_of(field, LENGTH) {
            match parse_length(value).filter(|_| length.is_none()) {
                Some(value) => length = Some(value),
                None => return Err(FramingError::InvalidContentLength(self.start(rest))),
            }
        } else if !field.contains(&b':') || !may_become_field(field) {
            return Err(FramingError::NoContentLength(self.start(rest)));
        }
        if self.held.len() == MAX_HEADER {
            return Err(FramingError::HeaderTooLong(self.start(rest)));
        }
        self.state = State::Header {
            line: self.held.len(),
            length,
        };
        Ok(part.len())
    }

    /// The start of the header block, for an error. `rest` follows what is held.
    fn start(&self, rest: &[u8]) -> String {
        let block: Vec<u8> = self.held.iter().chain(rest).take(SHOWN).copied().collect();
        printable(&block)
    }

    /// Completes a message: `whole`, or what was held.
    fn end(&mut self, whole: Option<&[u8]>, message: OnMessage<'_>) -> ControlFlow<()> {
        self.number += 1;
        let flow = message(self.number, Line::Whole(whole.unwrap_or(&self.held)));
        self.held.clear();
        if self.held.capacity() > KEPT_BUFFER {
            self.held = Vec::new();
        }
        self.state = START;
        flow
    }

    fn fail(&mut self, error: &FramingError, message: OnMessage<'_>) -> ControlFlow<()> {
        self.number += 1;
        self.held = Vec::new();
        self.state = State::Broken;
        message(self.number, Line::Broken(error))
    }

    fn finish(&mut self, message: OnMessage<'_>) {
        let is_between = match self.state {
            State::Header { .. } => self.held.is_empty(),
            State::Body(_) => false,
            State::Broken => true,
        };
        if !is_between {
            let _ = self.fail(&FramingError::Truncated, message);
        }
    }
}

/// Whether an incomplete line may become a header field or an empty line. The name of a field has no space, unlike most log lines.
fn may_become_field(line: &[u8]) -> bool {
    let is_in_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
    line == b"\r" || line.is_empty() || (!name.is_empty() && name.iter().all(is_in_name))
}

/// The value of a field, if the line has this name. `name` ends with the colon.
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, value) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then_some(value)
}

/// Parses a length. A number that is too large for this machine is the largest one, which is over any limit.
fn parse_length(value: &[u8]) -> Option<usize> {
    let digits = value.trim_ascii();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| {
        digits.iter().fold(0usize, |number, digit| {
            let next = number.checked_mul(10);
            let next = next.and_then(|next| next.checked_add(usize::from(digit - b'0')));
            next.unwrap_or(usize::MAX)
        })
    })
}
