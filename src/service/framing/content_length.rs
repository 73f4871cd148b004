//! The base protocol of the Language Server Protocol and the Debug Adapter Protocol: a header block with the length of the
//! message, an empty line, and the message.
//!
//! A header block is rejected at the first byte that shows that it is something else, for example a line of a log. Memory is
//! allocated for bytes that have arrived, not for a length that is claimed.

use std::ops::ControlFlow;

use super::{FramingError, MAX_HEADER, SHOWN};
use crate::service::lines::Line;
use crate::text::printable;

/// The fields that a header block may have.
const LENGTH: &[u8] = b"content-length:";
const TYPE: &[u8] = b"content-type:";

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

/// Decodes a stream with header blocks.
#[derive(Debug)]
pub(super) struct ContentLength {
    limit: usize,
    state: State,
    held: Vec<u8>,
    number: u64,
}

type OnMessage<'a> = &'a mut dyn FnMut(u64, Line<'_>) -> ControlFlow<()>;

impl ContentLength {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            state: START,
            held: Vec::new(),
            number: 0,
        }
    }

    pub(super) fn push(&mut self, piece: &[u8], message: OnMessage<'_>) -> usize {
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
        } else if value_of(field, TYPE).is_none() {
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

    pub(super) fn finish(&mut self, message: OnMessage<'_>) {
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

/// Whether an incomplete line may become a header field or an empty line.
fn may_become_field(line: &[u8]) -> bool {
    let begins = |name: &[u8]| {
        let count = line.len().min(name.len());
        line[..count].eq_ignore_ascii_case(&name[..count])
    };
    line == b"\r" || begins(LENGTH) || begins(TYPE)
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
