//! The destination of a program's output: readers that attach and detach, or the answer to one call.

use super::attach::{Attachments, ReaderOutput};
use super::dialect::Dialect;
use super::event_stream::{exit_event, gap_event, output_event};
use super::exec_output::{CollectedOutput, Exceeded};
use super::exit::ProgramExit;
use super::messages::AttachEvent;
use super::scrollback::OutputStream;
use crate::record::record;
use crate::sys::TerminalSize;
use crate::{ClientId, CloseCode, Context, Message, Time};

/// The close code of a client with [`Dialect::Text`] when its program exits with code 0. Code 1 is one more, and so on to 255.
const EXITED: u16 = 4300;

/// Why a terminal ends with its server.
pub(crate) const RESTARTING: &str = "the server stops and ends the program";

/// The maximum length in bytes of a window's title.
const MAX_TITLE: usize = 1000;

/// The destination of a program's output.
#[derive(Debug)]
pub(crate) enum Sink {
    /// All attached readers.
    Shared(Attachments),
    /// The answer to an `exec` call.
    Collected(CollectedOutput),
}

// The output of an `exec` call is not saved: its caller gets 503, and its process is killed.
record!(enum Sink {
    Shared(attachments),
    Collected(..),
});

impl Sink {
    /// Whether more output should be read now.
    pub(crate) fn wants_output(&self) -> bool {
        match self {
            Self::Shared(attachments) => attachments.wants_output(),
            Self::Collected(_) => true,
        }
    }

    /// The memory of the output in bytes.
    pub(crate) fn held_memory(&self) -> usize {
        match self {
            Self::Shared(attachments) => attachments.held_memory(),
            Self::Collected(collected) => collected.memory(),
        }
    }

    /// How many bytes more are held at another size of the terminal.
    pub(crate) fn growth(&self, size: TerminalSize) -> usize {
        match self {
            Self::Shared(attachments) => attachments.growth(size),
            Self::Collected(_) => 0,
        }
    }

    /// Whether a screen is kept.
    pub(crate) fn has_screen(&self) -> bool {
        matches!(self, Self::Shared(attachments) if attachments.has_screen())
    }

    /// Gives up all output, because memory is short and the program ends. The readers are disconnected.
    pub(crate) fn discard(&mut self, ctx: &mut Context) {
        match self {
            Self::Shared(attachments) => {
                let mut readers = Vec::new();
                attachments.clients(&mut |reader| readers.push(reader));
                readers.into_iter().for_each(|id| ctx.end_for_memory(id));
                attachments.discard();
            }
            Self::Collected(collected) => collected.exceed(Exceeded::Memory),
        }
    }

    /// Space for up to `most` bytes of output.
    pub(crate) fn spare(&mut self, most: usize) -> &mut [u8] {
        match self {
            Self::Shared(attachments) => attachments.spare(most),
            Self::Collected(collected) => collected.space(most),
        }
    }

    /// Adds the first `count` bytes of `spare` to the output.
    pub(crate) fn commit(&mut self, stream: OutputStream, count: usize) {
        match self {
            Self::Shared(attachments) => attachments.commit(stream, count),
            Self::Collected(collected) => collected.commit(stream, count),
        }
    }

    /// The work since the last call, in the units of [`Context::spend`].
    pub(crate) fn take_work(&mut self) -> usize {
        match self {
            Self::Shared(attachments) => attachments.take_work(),
            Self::Collected(_) => 0,
        }
    }

    /// The amount of output that is sent without waiting for more.
    pub(crate) fn batch(&self) -> usize {
        match self {
            Self::Shared(attachments) => attachments.batch(),
            Self::Collected(_) => 0,
        }
    }

    /// Sends new output to the readers.
    pub(crate) fn pump(&mut self, ctx: &mut Context) {
        if let Self::Shared(attachments) = self {
            attachments.pump_all(&mut ContextOutput(ctx));
        }
    }

    /// The program has exited and there is no more output.
    pub(crate) fn handle_exit(&mut self, ctx: &mut Context, exit: ProgramExit) {
        if let Self::Shared(attachments) = self {
            attachments.handle_exit(exit, &mut ContextOutput(ctx));
        }
    }

    /// When to call [`Sink::handle_timeout`], if at all.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match self {
            Self::Shared(attachments) => attachments.deadline(),
            Self::Collected(_) => None,
        }
    }

    /// Tells the readers what is due.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context) {
        if let Self::Shared(attachments) = self {
            attachments.tell_clients(ctx.now(), &mut ContextOutput(ctx));
        }
    }

    /// The terminal has a new size.
    pub(crate) fn resize(&mut self, ctx: &mut Context, size: TerminalSize) {
        if let Self::Shared(attachments) = self {
            // The sender of a resize message causes a message to every reader.
            ctx.spend(attachments.reader_count());
            attachments.resize(size, &mut ContextOutput(ctx));
        }
    }

    /// The program has exited, so it cannot be made to wait any more. There may be more output.
    pub(crate) fn root_exited(&mut self, ctx: &mut Context) {
        if let Self::Shared(attachments) = self {
            attachments.stop_waiting();
            attachments.end_pauses(&mut ContextOutput(ctx));
        }
    }

    /// Whether output or the exit is not sent yet.
    pub(crate) fn is_read(&self) -> bool {
        match self {
            Self::Shared(attachments) => attachments.reader_count() > 0,
            Self::Collected(_) => true,
        }
    }

    /// Visits the readers, or the caller.
    pub(crate) fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        match self {
            Self::Shared(attachments) => attachments.clients(visit),
            Self::Collected(output) => visit(output.caller),
        }
    }

    /// Whether a client has not been sent all output and the exit.
    pub(crate) fn is_read_by(&self, client: ClientId) -> bool {
        matches!(self, Self::Shared(attachments) if attachments.reads(client))
    }

    /// Whether the output has exceeded its limit.
    pub(crate) fn is_over_limit(&self) -> bool {
        matches!(self, Self::Collected(collected) if collected.exceeded().is_some())
    }

    /// The offset after the last byte of output, for readers.
    pub(crate) fn end(&self) -> u64 {
        match self {
            Self::Shared(attachments) => attachments.end(),
            Self::Collected(_) => 0,
        }
    }

    /// The client whose input goes to the program.
    pub(crate) fn writer(&self) -> Option<ClientId> {
        match self {
            Self::Shared(attachments) => attachments.writer(),
            Self::Collected(_) => None,
        }
    }

    /// The readers, unless the output is collected.
    pub(crate) fn attachments(&mut self) -> Option<&mut Attachments> {
        match self {
            Self::Shared(attachments) => Some(attachments),
            Self::Collected(_) => None,
        }
    }
}

/// Sends the messages to readers through the [`Context`], each in the reader's [`Dialect`]. Messages to readers that are
/// gone are dropped.
pub(crate) struct ContextOutput<'a>(pub(crate) &'a mut Context);

impl ContextOutput<'_> {
    /// Tells a client that its program could not be started, and closes the connection.
    pub(crate) fn fail(&mut self, client: ClientId, dialect: Dialect, why: String) {
        match dialect {
            Dialect::Json | Dialect::Merged | Dialect::KernelImages => {
                let event = AttachEvent::Error { message: why }.to_json();
                self.0.send(client, Message::Text(&event));
                let reason = "failed to start process";
                self.0.close(client, CloseCode::INTERNAL, reason);
            }
            Dialect::Text | Dialect::Tty | Dialect::EventStream(_) => {
                self.0.close(client, CloseCode::INTERNAL, why);
            }
        }
    }
}

impl ReaderOutput for ContextOutput<'_> {
    fn is_congested(&self, reader: ClientId) -> bool {
        self.0.is_congested(reader)
    }

    fn greet(&mut self, reader: ClientId, dialect: Dialect, events: &[AttachEvent], title: &str) {
        match dialect {
            Dialect::Json | Dialect::Merged => {
                for event in events {
                    self.tell(reader, dialect, event);
                }
            }
            Dialect::Tty => {
                let title = &title[..title.floor_char_boundary(MAX_TITLE)];
                let title = format!("1{title}");
                self.0.send(reader, Message::Binary(title.as_bytes()));
                self.0.send(reader, Message::Binary(b"2{}"));
            }
            Dialect::KernelImages | Dialect::Text | Dialect::EventStream(_) => {}
        }
    }

    fn tell(&mut self, reader: ClientId, dialect: Dialect, event: &AttachEvent) {
        match dialect {
            Dialect::Json | Dialect::Merged => {
                self.0.send(reader, Message::Text(&event.to_json()));
            }
            Dialect::KernelImages | Dialect::Text | Dialect::Tty | Dialect::EventStream(_) => {}
        }
    }

    fn output(
        &mut self,
        reader: ClientId,
        dialect: Dialect,
        stream: OutputStream,
        bytes: &[u8],
        end: u64,
    ) {
        match dialect {
            Dialect::Json if stream == OutputStream::Stderr => {
                self.tell(reader, dialect, &AttachEvent::Stderr(bytes.to_vec()));
            }
            Dialect::Json | Dialect::Merged | Dialect::KernelImages | Dialect::Text => {
                self.0.send(reader, Message::Binary(bytes));
            }
            Dialect::Tty => {
                let message = [b"0", bytes].concat();
                self.0.send(reader, Message::Binary(&message));
            }
            Dialect::EventStream(_) => {
                let event = output_event(stream, bytes, end);
                let _ = self.0.stream(reader, event.as_bytes());
            }
        }
    }

    fn screen(&mut self, reader: ClientId, dialect: Dialect, data: String, offset: u64) {
        // Writing a screen takes more time than the length of the message accounts for.
        self.0.spend(data.len() / 80);
        match dialect {
            Dialect::Json | Dialect::Merged => {
                self.tell(reader, dialect, &AttachEvent::Screen { offset, data });
            }
            Dialect::KernelImages | Dialect::Text | Dialect::Tty | Dialect::EventStream(_) => {
                self.output(
                    reader,
                    dialect,
                    OutputStream::Stdout,
                    data.as_bytes(),
                    offset,
                );
            }
        }
    }

    fn gap(&mut self, reader: ClientId, dialect: Dialect, from: u64, to: u64) {
        match dialect {
            Dialect::Json
            | Dialect::Merged
            | Dialect::KernelImages
            | Dialect::Text
            | Dialect::Tty => {
                self.tell(reader, dialect, &AttachEvent::Gap { from, to });
            }
            Dialect::EventStream(details) => {
                let event = gap_event(details, from, to);
                let _ = self.0.stream(reader, event.as_bytes());
            }
        }
    }

    fn exit(&mut self, reader: ClientId, dialect: Dialect, exit: ProgramExit) {
        match dialect {
            Dialect::Json | Dialect::Merged => {
                self.tell(reader, dialect, &exit.into());
                self.0.close(reader, CloseCode::NORMAL, "Process exited");
            }
            Dialect::KernelImages => {
                let event = AttachEvent::from(exit).to_json();
                self.0.send(reader, Message::Text(&event));
                self.0.close(reader, CloseCode::NORMAL, "");
            }
            Dialect::Text => {
                let code = CloseCode(EXITED + u16::from(exit.code_byte()));
                self.0.close(reader, code, exit.reason());
            }
            Dialect::Tty => self.0.close(reader, CloseCode::NORMAL, exit.reason()),
            Dialect::EventStream(details) => {
                let event = exit_event(details, exit);
                let _ = self.0.stream(reader, event.as_bytes());
                let _ = self.0.end_stream(reader);
            }
        }
    }

    fn restart(&mut self, reader: ClientId, _: Dialect) {
        self.0.close(reader, CloseCode::SERVICE_RESTART, RESTARTING);
    }

    fn cut_off(&mut self, reader: ClientId) {
        self.0.cut_off(reader);
    }

    fn close(&mut self, reader: ClientId, code: CloseCode, reason: &str) {
        self.0.set_held(reader, false);
        self.0.close(reader, code, reason);
    }
}
