//! Standard input: reads keys, finds escapes, and keeps keys that cannot be sent yet.

use std::io;
use std::mem::MaybeUninit;

use rustix::io::Errno;

use super::escape::{EscapeParser, Typed};
use crate::service::pipe::{ByteQueue, Trigger};
use crate::sys::NonblockingFd;
use crate::{Context, Interest, Readiness, SourceId, TimerId};

/// The maximum number of bytes read at a time, and sent in one message.
const READ: usize = 16 << 10;

/// Keys are not read while this many wait to be sent.
const MAX_WAITING: usize = 64 << 10;

/// End of file as it is typed on a terminal, `^D`.
const END_OF_FILE: u8 = 4;

/// A request of the user to the client itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Leave,
    Help,
    Suspend,
}

/// The state of standard input after a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InputState {
    Open,
    /// The input has ended, and there will be no more keys.
    Ended,
}

/// Keys from standard input.
#[derive(Debug)]
pub(super) struct Keyboard {
    fd: NonblockingFd,
    trigger: Trigger,
    escapes: EscapeParser,
    /// Whether the keys are for the program. A viewer's keys are not.
    sends: bool,
    /// Keys that wait to be sent.
    waiting: ByteQueue,
    /// The last key for the program.
    last: Option<u8>,
    /// Whether reading has stopped because too many keys wait.
    paused: bool,
    ended: bool,
}

impl Keyboard {
    /// Reads standard input.
    pub(super) fn watch(ctx: &mut Context, escapes: EscapeParser, sends: bool) -> io::Result<Self> {
        let fd = NonblockingFd::shared(io::stdin())?;
        let mut trigger = Trigger::watch(ctx, &fd, Interest::Readable)?;
        if matches!(trigger, Trigger::Timer(_)) {
            trigger.again(ctx, Readiness::default());
        }
        Ok(Self {
            fd,
            trigger,
            escapes,
            sends,
            waiting: ByteQueue::default(),
            last: None,
            paused: false,
            ended: false,
        })
    }

    pub(super) fn is(&self, source: SourceId) -> bool {
        self.trigger.is(source)
    }

    pub(super) fn is_timer(&self, timer: TimerId) -> bool {
        self.trigger.is_timer(timer)
    }

    pub(super) fn escapes(&self) -> &EscapeParser {
        &self.escapes
    }

    /// Reads once. Calls `request` for each request to the client, in the order of the keys.
    pub(super) fn read(
        &mut self,
        ctx: &mut Context,
        mut request: impl FnMut(&mut Context, Request),
    ) -> InputState {
        if self.ended || self.paused {
            return InputState::Open;
        }
        let mut buffer = [MaybeUninit::uninit(); READ];
        match self.fd.read(&mut buffer) {
            Ok([]) => return self.end(ctx),
            Ok(bytes) => {
                let mut input = &*bytes;
                while let Some(typed) = self.escapes.next(&mut input) {
                    match typed {
                        Typed::Keys(keys) => self.keep(keys),
                        Typed::Escape(key) => self.keep(&[key]),
                        Typed::Leave => request(ctx, Request::Leave),
                        Typed::Help => request(ctx, Request::Help),
                        Typed::Suspend => request(ctx, Request::Suspend),
                    }
                }
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if matches!(self.trigger, Trigger::Source(_)) => {
                return InputState::Open;
            }
            Err(Errno::AGAIN) => {}
            Err(error) => {
                log::debug!("reading standard input failed: {error}");
                return self.end(ctx);
            }
        }
        self.paused = self.waiting.len() >= MAX_WAITING;
        self.again(ctx);
        InputState::Open
    }

    fn end(&mut self, ctx: &mut Context) -> InputState {
        self.ended = true;
        self.trigger.unwatch(ctx);
        if let Some(key) = self.escapes.finish() {
            self.keep(&[key]);
        }
        InputState::Ended
    }

    fn again(&mut self, ctx: &mut Context) {
        if !self.paused {
            let readiness = Readiness {
                readable: true,
                writable: false,
            };
            self.trigger.again(ctx, readiness);
        }
    }

    /// Keeps keys for the program.
    fn keep(&mut self, keys: &[u8]) {
        if self.sends {
            self.waiting.bytes().extend_from_slice(keys);
            self.last = keys.last().copied().or(self.last);
        }
    }

    /// Drops the keys that wait for the program.
    pub(super) fn forget(&mut self) {
        self.waiting = ByteQueue::default();
        self.last = None;
    }

    /// Adds the end of file that a user would type. After an unfinished line, the first `^D` only ends the line.
    pub(super) fn add_end_of_file(&mut self) {
        let is_line_start = self
            .last
            .is_none_or(|key| matches!(key, b'\n' | b'\r' | END_OF_FILE));
        let keys: &[u8] = if is_line_start {
            &[END_OF_FILE]
        } else {
            &[END_OF_FILE; 2]
        };
        self.keep(keys);
    }

    /// Sends waiting keys with `send`, a message at a time, which returns false when no more can be sent.
    pub(super) fn send(
        &mut self,
        ctx: &mut Context,
        mut send: impl FnMut(&mut Context, &[u8]) -> bool,
    ) {
        while self.waiting.len() > 0 {
            let keys = self.waiting.unwritten();
            let keys = &keys[..keys.len().min(READ)];
            if !send(ctx, keys) {
                break;
            }
            let count = keys.len();
            self.waiting.advance(count);
        }
        self.waiting.compact(READ);
        if self.paused && !self.ended && self.waiting.len() < MAX_WAITING {
            self.paused = false;
            self.again(ctx);
        }
    }
}
