//! A process that speaks MCP on its standard streams.

use std::io;
use std::ops::ControlFlow;
use std::process::Command;

use crate::service::child::{Child, ChildEvent, ChildInput, ProgramPlace};
use crate::service::framing::{Decoder, Framing};
use crate::service::jsonrpc::{
    Envelope, EnvelopeError, IdRecovery, LineDecoder, MessageLine, RecoveredId, push_line, start_of,
};
use crate::service::lines::Line;
use crate::{Context, SourceId, TimerId};

/// While a process has more unread input than this, it gets no more requests.
pub(super) const MAX_UNREAD: usize = 4 << 20;

/// What a process has sent.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is never stored")]
pub(super) enum Received<'a> {
    Message(Envelope<'a>),
    /// A line that is no message, from which an id could be read, and what is wrong with it.
    Unreadable(RecoveredId, &'static str),
    /// Nothing that could be answered.
    Nothing,
}

impl<'a> Received<'a> {
    /// Reads a line. Logs a warning if it is no message.
    fn read(line: MessageLine<'a>) -> Self {
        let (recovered, why) = match line {
            MessageLine::Nothing => (None, ""),
            MessageLine::Unreadable(recovered, why) => (recovered, why),
            MessageLine::Text(text) => match Envelope::parse(text) {
                Ok(envelope) => return Self::Message(envelope),
                Err(EnvelopeError::Parse) => {
                    let start = start_of(text.as_bytes());
                    log::warn!("skipped a line of the MCP server that is not JSON: {start:?}");
                    (IdRecovery::of(text.as_bytes()), "is not JSON")
                }
                Err(EnvelopeError::Invalid { why, .. }) => {
                    log::warn!("skipped a line of the MCP server that is no message: {why}");
                    (IdRecovery::of(text.as_bytes()), why)
                }
            },
        };
        recovered.map_or(Self::Nothing, |id| Self::Unreadable(id, why))
    }
}

/// A running process.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    decoder: LineDecoder,
}

impl Process {
    pub(super) fn start(
        ctx: &mut Context,
        command: &[String],
        place: &ProgramPlace,
    ) -> io::Result<Self> {
        let limit = ctx.config().limits.max_message;
        let decoder = Decoder::new(Framing::Lines, limit);
        let prepare = |command: &mut Command| place.prepare(command);
        Ok(Self {
            child: Child::spawn_with(ctx, command, decoder, prepare)?,
            decoder: LineDecoder::default(),
        })
    }

    pub(super) fn sources(&self) -> impl Iterator<Item = SourceId> {
        self.child.sources()
    }

    /// The timer that the process has set, if it is being stopped.
    pub(super) fn timer(&self) -> Option<TimerId> {
        self.child.timer()
    }

    /// Queues a message, unless more than [`MAX_UNREAD`] bytes wait already.
    pub(super) fn send(&mut self, ctx: &mut Context, text: &str) {
        let stdin = self.child.stdin();
        if stdin.is_some_and(|stdin| stdin.queued() <= MAX_UNREAD) {
            self.send_always(ctx, text);
        }
    }

    /// Queues a message. What is sent in this way is bounded by its sender.
    pub(super) fn send_always(&mut self, ctx: &mut Context, text: &str) {
        if let Some(stdin) = self.child.stdin() {
            stdin.append(ctx, |queue| push_line(queue, &[text]));
        }
    }

    /// Whether the process takes no more messages now.
    pub(super) fn is_behind(&mut self) -> bool {
        let is_cut_off = self.child.is_cut_off();
        let stdin = self.child.stdin();
        is_cut_off || stdin.is_none_or(|stdin| stdin.queued() > MAX_UNREAD)
    }

    /// Handles an event. Calls `received` with what arrives; `Break` pauses the output until [`Process::resume`].
    pub(super) fn handle(
        &mut self,
        ctx: &mut Context,
        input: ChildInput,
        mut received: impl FnMut(&mut Context, Received<'_>) -> ControlFlow<()>,
    ) -> ChildEvent {
        let decoder = &mut self.decoder;
        let line = |ctx: &mut Context, _: u64, line: Line<'_>| match Received::read(
            decoder.decode(line),
        ) {
            Received::Nothing => ControlFlow::Continue(()),
            message => received(ctx, message),
        };
        let event = match input {
            ChildInput::Ready(source) => self.child.handle_ready(ctx, source, line),
            ChildInput::Timer(timer) => self.child.handle_timer(ctx, timer, line),
        };
        // A process that has closed its input or output cannot answer. Its exit fails its pending requests.
        if event == ChildEvent::Handled && self.child.is_cut_off() {
            self.child.stop(ctx);
        }
        event
    }

    /// Continues to read the output.
    pub(super) fn resume(&mut self, ctx: &mut Context) {
        self.child.resume(ctx);
    }

    /// Stops the process: it reads the end of its input, and gets TERM and KILL if it does not exit. Its output is read and
    /// ignored, because a full pipe could keep it from exiting.
    pub(super) fn stop(&mut self, ctx: &mut Context) {
        self.child.resume(ctx);
        self.child.stop(ctx);
    }
}
