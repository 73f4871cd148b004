//! Standard output: the server's messages, and the bridge's own answers.

use std::io;

use crate::service::Framing;
use crate::service::jsonrpc::push_line;
use crate::service::pipe::{PipeState, Writer};
use crate::sys::NonblockingFd;
use crate::{Context, SourceId, TimerId};

/// The server's messages wait while more than this is unwritten, in bytes.
const HIGH_WATER: usize = 64 << 10;

/// They continue when this is left.
const LOW_WATER: usize = 16 << 10;

/// Standard input is not read while more than this many bytes of the bridge's own answers may be unwritten. The server's
/// messages do not count: a program that writes a request before it reads the last answer must not be blocked by it.
const MAX_ANSWERS: usize = 1 << 20;

/// Writes messages to standard output.
#[derive(Debug)]
pub(super) struct Output {
    writer: Writer,
    framing: Framing,
    /// The bytes of own answers since little was unwritten.
    answers: usize,
}

impl Output {
    pub(super) fn new(ctx: &mut Context, fd: NonblockingFd, framing: Framing) -> io::Result<Self> {
        Ok(Self {
            writer: Writer::new(ctx, fd)?,
            framing,
            answers: 0,
        })
    }

    /// Whether an event is for this output.
    pub(super) fn is(&self, source: SourceId) -> bool {
        self.writer.is(source)
    }

    /// Whether a timer belongs to this output.
    pub(super) fn is_timer(&self, timer: TimerId) -> bool {
        self.writer.is_timer(timer)
    }

    /// Writes a JSON message.
    pub(super) fn message(&mut self, ctx: &mut Context, text: &str) {
        let framing = self.framing;
        self.writer.append(ctx, |queue| match framing {
            Framing::Lines => push_line(queue, &[text]),
            Framing::ContentLength | Framing::Raw => framing.encode(text.as_bytes(), queue),
        });
    }

    /// Writes a message whose bytes may be anything. In lines, line feeds become spaces, so that it is one line.
    pub(super) fn raw(&mut self, ctx: &mut Context, bytes: &[u8]) {
        let framing = self.framing;
        self.writer.append(ctx, |queue| {
            let start = queue.len();
            framing.encode(bytes, queue);
            if framing == Framing::Lines {
                let end = queue.len() - 1;
                for byte in &mut queue[start..end] {
                    *byte = if *byte == b'\n' { b' ' } else { *byte };
                }
            }
        });
    }

    /// Writes the bridge's own answer.
    pub(super) fn answer(&mut self, ctx: &mut Context, text: &str) {
        self.answers += text.len() + 1;
        self.message(ctx, text);
    }

    /// Writes as much as there is room for. Returns `Closed` if the reader has gone.
    pub(super) fn write(&mut self) -> PipeState {
        if self.writer.write() == PipeState::Closed || self.writer.is_closed() {
            return PipeState::Closed;
        }
        if self.has_room() {
            self.answers = 0;
        }
        PipeState::Open
    }

    /// Why writing has failed. `None` if the reader has gone.
    pub(super) fn take_failure(&mut self) -> Option<String> {
        let error = self.writer.take_error()?;
        Some(format!("cannot write to standard output: {error}"))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writer.queued() == 0
    }

    /// Whether the server's messages must wait.
    pub(super) fn is_full(&self) -> bool {
        self.writer.queued() > HIGH_WATER
    }

    /// Whether the server's messages may continue.
    pub(super) fn has_room(&self) -> bool {
        self.writer.queued() <= LOW_WATER
    }

    /// Whether standard input must wait, because its messages cause answers that nobody reads.
    pub(super) fn owes_too_much(&self) -> bool {
        self.answers > MAX_ANSWERS
    }
}
