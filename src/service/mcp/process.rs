//! A process that speaks MCP on its standard streams. Messages of sessions pass through [`ToNewer`] until the process has shown that it
//! supports sessions.

use std::io;
use std::ops::ControlFlow;

use super::STATELESS;
use super::to_newer::{Side, ToNewer};
use crate::record::{RecordError, record};
use crate::service::child::{Child, ChildEvent, ChildInput};
use crate::service::framing::{Decoder, Framing};
use crate::service::jsonrpc::{
    Envelope, EnvelopeError, IdRecovery, LineDecoder, MessageLine, RecoveredId, code, error,
    push_line, start_of,
};
use crate::service::lines::Line;
use crate::sys::Command;
use crate::{Context, SourceId, TimerId};

/// Where a program runs. By default, it has the environment and the working directory of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramPlace {
    /// Variables that are added to its environment.
    pub env: Vec<(String, String)>,
    /// Its working directory.
    pub cwd: Option<String>,
}

impl ProgramPlace {
    /// Makes a command run there.
    fn prepare(&self, command: &mut Command) {
        for (name, value) in &self.env {
            command.env(name, value);
        }
        command.cwd = self.cwd.clone();
    }
}

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
    /// Lets clients of older revisions use a server of 2026-07-28, until it is known that they need no help.
    newer: Option<Box<ToNewer>>,
    /// What clients get without the server ([`Process::take_early`]).
    early: Vec<String>,
}

record!(Process {
    child,
    decoder,
    newer,
    early,
});

impl Process {
    /// Continues after the program of the server has replaced itself.
    ///
    /// # Errors
    ///
    /// The process cannot be watched.
    pub(super) fn watch_again(&mut self, ctx: &mut Context) -> Result<(), RecordError> {
        self.child.watch_again(ctx)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }

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
            newer: None,
            early: Vec::new(),
        })
    }

    /// Starts a process for clients of older revisions. It may speak 2026-07-28 only.
    pub(super) fn start_for_sessions(
        ctx: &mut Context,
        command: &[String],
        place: &ProgramPlace,
    ) -> io::Result<Self> {
        let started = Self::start(ctx, command, place)?;
        Ok(Self {
            newer: Some(Box::new(ToNewer::new())),
            ..started
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
        let Some(newer) = &mut self.newer else {
            return self.write(ctx, text);
        };
        let mut out = Vec::new();
        if let Ok(envelope) = Envelope::parse(text) {
            newer.handle_client(&envelope, &mut out);
        }
        for side in out {
            match side {
                Side::Server(text) => self.write(ctx, &text),
                Side::Client(text) => self.early.push(text),
            }
        }
    }

    /// Takes what the client gets because of what was sent.
    pub(super) fn take_early(&mut self) -> Vec<String> {
        std::mem::take(&mut self.early)
    }

    fn write(&mut self, ctx: &mut Context, text: &str) {
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
        let (decoder, newer) = (&mut self.decoder, &mut self.newer);
        let was_translated = newer.as_ref().is_some_and(|newer| newer.is_translating());
        let mut written = Vec::new();
        let line = |ctx: &mut Context, _: u64, line: Line<'_>| {
            let line = Received::read(decoder.decode(line));
            match (line, newer.as_deref_mut()) {
                (Received::Nothing, _) => ControlFlow::Continue(()),
                (message, None) => received(ctx, message),
                (message, Some(newer)) => translate(newer, message, &mut written, |message| {
                    received(ctx, message)
                }),
            }
        };
        let event = match input {
            ChildInput::Ready(source) => self.child.handle_ready(ctx, source, line),
            ChildInput::Timer(timer) => self.child.handle_timer(ctx, timer, line),
        };
        for text in &written {
            self.write(ctx, text);
        }
        let is_translated = self
            .newer
            .as_ref()
            .is_some_and(|newer| newer.is_translating());
        if is_translated && !was_translated {
            log::info!("the MCP server supports no sessions, which are translated to {STATELESS}");
        }
        self.newer.take_if(|newer| newer.is_native());
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

/// Translates what a process has sent. Calls `received` with what the client gets, and returns whether to read on.
fn translate(
    newer: &mut ToNewer,
    line: Received<'_>,
    written: &mut Vec<String>,
    mut received: impl FnMut(Received<'_>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let failed;
    let envelope = match line {
        Received::Message(envelope) => Some(envelope),
        Received::Unreadable(RecoveredId::Response(id), why) => {
            let why = format!("the MCP server's answer {why}");
            failed = error(&id, code::INTERNAL, "Internal error", Some(&why));
            Envelope::parse(&failed).ok()
        }
        other => return received(other),
    };
    let mut out = Vec::new();
    if let Some(envelope) = envelope {
        newer.handle_server(&envelope, &mut out);
    }
    let mut flow = ControlFlow::Continue(());
    for side in out {
        match side {
            Side::Server(text) => written.push(text),
            Side::Client(text) => {
                if let Ok(envelope) = Envelope::parse(&text)
                    && received(Received::Message(envelope)).is_break()
                {
                    flow = ControlFlow::Break(());
                }
            }
        }
    }
    flow
}
