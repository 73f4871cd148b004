//! The readers of a program's output, and the position of each. There is no I/O in here.
//!
//! The invariants, checked by the tests and the fuzzer:
//!
//! * Every reader gets all bytes from its start, in order. Missing bytes are announced as a gap.
//! * The exit of the program comes after the last byte, and nothing comes after the exit.
//! * There is at most one writer, from the time it attaches until it detaches or another one takes over.
//! * The writer misses no output: while it is far behind, the program's output is not read.

use std::collections::BTreeMap;

use super::events::Details;
use super::exit::ProgramExit;
use super::scrollback::{OutputStream, Scrollback};
use crate::{ClientId, CloseCode};

/// The maximum number of bytes of output in one message.
const MAX_MESSAGE: usize = 64 << 10;

/// Output that arrives quickly is collected up to this size before it is sent.
const BATCH: usize = 32 << 10;

/// The close code of a writer when another one takes over.
const TAKEN_OVER: CloseCode = CloseCode(4001);

/// The kind of a reader, which decides what happens when it does not keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A WebSocket client whose input goes to the program. The program waits for it.
    Writer,
    /// A WebSocket client that only watches. It is disconnected.
    Viewer,
    /// The caller of a stream of server-sent events. It gets a gap event.
    Listener(Details),
}

/// Where the messages to readers go.
pub(crate) trait ReaderOutput {
    /// Whether a reader has enough unread output for now.
    fn is_congested(&self, reader: ClientId) -> bool;
    /// Sends output; `end` is the offset after its last byte.
    fn output(
        &mut self,
        reader: ClientId,
        role: Role,
        stream: OutputStream,
        bytes: &[u8],
        end: u64,
    );
    /// Announces that the output between two offsets is no longer kept.
    fn gap(&mut self, reader: ClientId, role: Role, from: u64, to: u64);
    /// Announces the exit of the program, after all its output, and ends the reader's connection or stream.
    fn exit(&mut self, reader: ClientId, role: Role, exit: ProgramExit);
    /// Disconnects a reader that does not keep up.
    fn cut_off(&mut self, reader: ClientId);
    /// Closes a writer when another one takes over.
    fn close(&mut self, reader: ClientId, code: CloseCode, reason: &str);
}

#[derive(Debug)]
struct Reader {
    role: Role,
    /// The offset of the next byte to send.
    next: u64,
}

/// The output of a program and its readers.
#[derive(Debug)]
pub(crate) struct Attachments {
    output: Scrollback,
    readers: BTreeMap<ClientId, Reader>,
    writer: Option<ClientId>,
    /// Listeners whose streams have ended since the last [`Attachments::take_ended_streams`].
    ended_streams: Vec<ClientId>,
    exit: Option<ProgramExit>,
}

impl Attachments {
    /// Starts without readers. Keeps the last `scrollback` bytes of output for readers that attach later.
    pub(crate) fn new(scrollback: usize) -> Self {
        Self {
            output: Scrollback::new(scrollback),
            readers: BTreeMap::new(),
            writer: None,
            ended_streams: Vec::new(),
            exit: None,
        }
    }

    /// The output that is kept.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn output(&self) -> &Scrollback {
        &self.output
    }

    /// Space for up to `most` bytes of output. It overlaps no output that the writer has not been sent.
    pub(crate) fn spare(&mut self, most: usize) -> &mut [u8] {
        let room = self.output.capacity() - self.behind();
        self.output.spare(most.min(room))
    }

    /// Adds the first `count` bytes of `spare` to the output.
    pub(crate) fn commit(&mut self, stream: OutputStream, count: usize) {
        self.output.commit(stream, count);
    }

    /// The offset of the next byte of output.
    pub(crate) fn end(&self) -> u64 {
        self.output.end()
    }

    /// The client whose input goes to the program.
    pub(crate) fn writer(&self) -> Option<ClientId> {
        self.writer
    }

    /// Whether a client is a reader that has not been told the exit.
    pub(crate) fn reads(&self, client: ClientId) -> bool {
        self.readers.contains_key(&client)
    }

    /// Visits the readers that have not been told the exit.
    pub(crate) fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.readers.keys().copied().for_each(visit);
    }

    /// Takes the listeners whose streams have ended since the last call.
    pub(crate) fn take_ended_streams(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.ended_streams)
    }

    /// The number of readers that have not been told the exit.
    pub(crate) fn reader_count(&self) -> usize {
        self.readers.len()
    }

    /// Whether more output should be read from the program: not while the writer is behind by more than a message.
    pub(crate) fn wants_output(&self) -> bool {
        self.behind() < self.batch()
    }

    /// The amount of output that is sent without waiting for more.
    pub(crate) fn batch(&self) -> usize {
        BATCH.min(self.output.capacity() / 4)
    }

    /// The number of bytes that the writer has not been sent.
    fn behind(&self) -> usize {
        let writer = self.writer.and_then(|writer| self.readers.get(&writer));
        writer.map_or(0, |writer| (self.output.end() - writer.next) as usize)
    }

    /// Attaches a reader that has seen the output up to the offset `since`. A writer replaces the current one.
    pub(crate) fn attach(
        &mut self,
        client: ClientId,
        role: Role,
        since: u64,
        out: &mut impl ReaderOutput,
    ) {
        if role == Role::Writer
            && let Some(other) = self.writer.replace(client)
        {
            self.readers.remove(&other);
            out.close(other, TAKEN_OVER, "Taken over");
        }
        let start = self.output.start();
        if since < start {
            out.gap(client, role, since, start);
        }
        let next = since.max(start).min(self.output.end());
        self.readers.insert(client, Reader { role, next });
        self.pump(client, out);
    }

    /// Removes a reader.
    pub(crate) fn detach(&mut self, client: ClientId) {
        self.readers.remove(&client);
        if self.writer == Some(client) {
            self.writer = None;
        }
    }

    /// Sends new output to all readers that are not congested.
    pub(crate) fn pump_all(&mut self, out: &mut impl ReaderOutput) {
        let clients: Vec<ClientId> = self.readers.keys().copied().collect();
        for client in clients {
            self.pump(client, out);
        }
    }

    /// Sends a reader the output that it has not seen, until it is congested.
    pub(crate) fn pump(&mut self, client: ClientId, out: &mut impl ReaderOutput) {
        let Some(reader) = self.readers.get_mut(&client) else {
            return;
        };
        let start = self.output.start();
        if reader.next < start {
            if reader.role == Role::Viewer {
                out.cut_off(client);
                self.readers.remove(&client);
                return;
            }
            if out.is_congested(client) {
                return;
            }
            out.gap(client, reader.role, reader.next, start);
            reader.next = start;
        }
        while !out.is_congested(client) {
            let (stream, bytes) = self.output.piece(reader.next, MAX_MESSAGE);
            if bytes.is_empty() {
                if let Some(exit) = self.exit {
                    out.exit(client, reader.role, exit);
                    if matches!(reader.role, Role::Listener(_)) {
                        self.ended_streams.push(client);
                    }
                    self.readers.remove(&client);
                }
                return;
            }
            reader.next += bytes.len() as u64;
            out.output(client, reader.role, stream, bytes, reader.next);
        }
    }

    /// The program has exited and there is no more output.
    pub(crate) fn handle_exit(&mut self, exit: ProgramExit, out: &mut impl ReaderOutput) {
        debug_assert!(self.exit.is_none());
        self.exit = Some(exit);
        self.output.seal();
        self.pump_all(out);
    }
}
