//! Where a program's output goes: to readers that come and go, or into one answer.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::Exit;
use super::attach::{Attachments, Role, Wires};
use super::scrollback::Stream;
use crate::{ClientId, CloseCode, Context, Message};

/// Bytes of room offered at a time for output that is gathered.
const STEP: usize = 64 << 10;

/// Where output goes.
#[derive(Debug)]
pub(crate) enum Sink {
    /// To everyone who is attached.
    Shared(Attachments),
    /// Into one answer.
    Gathered(Gathered),
}

/// Output that is gathered until the program ends, up to a limit for each stream.
#[derive(Debug)]
pub(crate) struct Gathered {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    limit: usize,
    /// Room of the stream that is being read, behind what was gathered.
    room: Vec<u8>,
    /// Whether there was more than the limit.
    pub(crate) exceeded: bool,
}

impl Gathered {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            stdout: Vec::new(),
            stderr: Vec::new(),
            limit,
            room: vec![0; STEP],
            exceeded: false,
        }
    }

    fn commit(&mut self, stream: Stream, count: usize) {
        let gathered = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let taken = count.min(self.limit - gathered.len());
        gathered.extend_from_slice(&self.room[..taken]);
        self.exceeded |= taken < count;
    }
}

impl Sink {
    /// Whether more output is to be read now.
    pub(crate) fn wants_output(&self) -> bool {
        match self {
            Self::Shared(attachments) => attachments.wants_output(),
            Self::Gathered(_) => true,
        }
    }

    /// Room for output of at most `most` bytes.
    pub(crate) fn spare(&mut self, most: usize) -> &mut [u8] {
        match self {
            Self::Shared(attachments) => attachments.spare(most),
            Self::Gathered(gathered) => {
                let most = most.min(STEP);
                &mut gathered.room[..most]
            }
        }
    }

    /// Takes what was written into the room.
    pub(crate) fn commit(&mut self, stream: Stream, count: usize) {
        match self {
            Self::Shared(attachments) => attachments.commit(stream, count),
            Self::Gathered(gathered) => gathered.commit(stream, count),
        }
    }

    /// As much output as is worth a message by itself.
    pub(crate) fn batch(&self) -> usize {
        match self {
            Self::Shared(attachments) => attachments.batch(),
            Self::Gathered(_) => 0,
        }
    }

    /// Sends on what came.
    pub(crate) fn pump(&mut self, ctx: &mut Context) {
        if let Self::Shared(attachments) = self {
            attachments.pump_all(&mut Sockets(ctx));
        }
    }

    /// The program has ended and there is no more output.
    pub(crate) fn handle_exit(&mut self, ctx: &mut Context, exit: Exit) {
        if let Self::Shared(attachments) = self {
            attachments.handle_exit(exit, &mut Sockets(ctx));
        }
    }

    /// Whether anyone has not been told the end.
    pub(crate) fn is_read(&self) -> bool {
        match self {
            Self::Shared(attachments) => attachments.reader_count() > 0,
            Self::Gathered(_) => true,
        }
    }

    /// Whether there was more output than is taken.
    pub(crate) fn is_over_limit(&self) -> bool {
        matches!(self, Self::Gathered(gathered) if gathered.exceeded)
    }

    /// The offset behind the last byte of output that readers can ask for.
    pub(crate) fn end(&self) -> u64 {
        match self {
            Self::Shared(attachments) => attachments.end(),
            Self::Gathered(_) => 0,
        }
    }

    /// The readers, unless the output is gathered.
    pub(crate) fn attachments(&mut self) -> Option<&mut Attachments> {
        match self {
            Self::Shared(attachments) => Some(attachments),
            Self::Gathered(_) => None,
        }
    }
}

/// The clients of the loop as readers.
pub(crate) struct Sockets<'a>(pub(crate) &'a mut Context);

impl Sockets<'_> {
    /// Sends an event of a stream. The id is the offset, with which a reader that comes back goes on.
    fn stream(&mut self, reader: ClientId, id: Option<u64>, data: &str) {
        let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
        let event = format!("{id}data: {data}\n\n");
        // One that is gone has nothing coming to it any more.
        let _ = self.0.stream(reader, event.as_bytes());
    }

    fn text(&mut self, reader: ClientId, text: &str) {
        let _ = self.0.send(reader, Message::Text(text));
    }
}

impl Wires for Sockets<'_> {
    fn is_congested(&self, reader: ClientId) -> bool {
        self.0.is_congested(reader)
    }

    fn output(&mut self, reader: ClientId, role: Role, stream: Stream, bytes: &[u8], end: u64) {
        if role == Role::Listener {
            let (stream, data) = (stream.name(), BASE64_STANDARD.encode(bytes));
            let event = format!(r#"{{"stream":"{stream}","data_b64":"{data}"}}"#);
            self.stream(reader, Some(end), &event);
        } else {
            let _ = self.0.send(reader, Message::Binary(bytes));
        }
    }

    fn gap(&mut self, reader: ClientId, role: Role, from: u64, to: u64) {
        if role == Role::Listener {
            let event = format!(r#"{{"event":"gap","from":{from},"to":{to}}}"#);
            self.stream(reader, Some(to), &event);
        } else {
            self.text(
                reader,
                &format!(r#"{{"type":"gap","from":{from},"to":{to}}}"#),
            );
        }
    }

    fn exit(&mut self, reader: ClientId, role: Role, exit: Exit) {
        if role == Role::Listener {
            self.stream(reader, None, &exit.to_stream_event());
            let _ = self.0.end_stream(reader);
        } else {
            self.text(reader, &exit.to_attach_event());
            let _ = self.0.close(reader, CloseCode::NORMAL, "Process exited");
        }
    }

    fn cut_off(&mut self, reader: ClientId) {
        self.0.cut_off(reader);
    }

    fn close(&mut self, reader: ClientId, code: CloseCode, reason: &str) {
        self.0.set_held(reader, false);
        let _ = self.0.close(reader, code, reason);
    }
}
