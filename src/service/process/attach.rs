//! Who is attached to a program and what each has seen of its output. No I/O in here.
//!
//! The invariants, checked by the tests and the fuzzer:
//!
//! * Every reader gets the bytes from where it began, in order and complete; what is missing is announced.
//! * The end of the program comes after the last byte, and nothing after it.
//! * There is one writer at most, from the moment it attaches until it is gone or was taken over.
//! * The writer misses nothing: while it is behind by much, the program is not read.

use std::collections::BTreeMap;

use super::Exit;
use super::api::Details;
use super::scrollback::{Scrollback, Stream};
use crate::{ClientId, CloseCode};

/// The most bytes that one message carries.
const PIECE: usize = 64 << 10;

/// Output that comes fast is gathered up to this size.
const BATCH: usize = 32 << 10;

/// The close code of a writer whose place was taken.
const TAKEN_OVER: CloseCode = CloseCode(4001);

/// What a reader is, and how it is treated when it does not keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Its input goes to the program, and the program waits for it.
    Writer,
    /// It only watches. It is cut off.
    Viewer,
    /// It reads a stream of events. It is told what it has missed.
    Listener(Details),
}

/// Where messages to readers go.
pub(crate) trait Wires {
    /// Whether a reader has enough to read for now.
    fn is_congested(&self, reader: ClientId) -> bool;
    /// Output, of which `end` is the offset behind the last byte.
    fn output(&mut self, reader: ClientId, role: Role, stream: Stream, bytes: &[u8], end: u64);
    /// The bytes from one offset up to another are not there any more.
    fn gap(&mut self, reader: ClientId, role: Role, from: u64, to: u64);
    /// The program has ended and all its output was sent: the last that a reader is told.
    fn exit(&mut self, reader: ClientId, role: Role, exit: Exit);
    /// Ends a reader that does not keep up.
    fn cut_off(&mut self, reader: ClientId);
    /// Ends a reader whose place was taken.
    fn close(&mut self, reader: ClientId, code: CloseCode, reason: &str);
}

#[derive(Debug)]
struct Reader {
    role: Role,
    /// The offset of the next byte that it gets.
    next: u64,
}

/// The output of a program and its readers.
#[derive(Debug)]
pub(crate) struct Attachments {
    output: Scrollback,
    readers: BTreeMap<ClientId, Reader>,
    writer: Option<ClientId>,
    exit: Option<Exit>,
}

impl Attachments {
    /// Nobody is attached yet; the last `scrollback` bytes of output are kept for who comes.
    pub(crate) fn new(scrollback: usize) -> Self {
        Self {
            output: Scrollback::new(scrollback),
            readers: BTreeMap::new(),
            writer: None,
            exit: None,
        }
    }

    /// The output that is kept.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn output(&self) -> &Scrollback {
        &self.output
    }

    /// Room for up to `most` bytes of output, none of which the writer still has to be sent.
    pub(crate) fn spare(&mut self, most: usize) -> &mut [u8] {
        let room = self.output.capacity() - self.behind();
        self.output.spare(most.min(room))
    }

    /// Takes the first `count` bytes of `spare` as output.
    pub(crate) fn commit(&mut self, stream: Stream, count: usize) {
        self.output.commit(stream, count);
    }

    /// The offset of the next byte of output.
    pub(crate) fn end(&self) -> u64 {
        self.output.end()
    }

    /// Who writes, until it is gone.
    pub(crate) fn writer(&self) -> Option<ClientId> {
        self.writer
    }

    /// Whether a reader has not been told the end.
    pub(crate) fn reads(&self, client: ClientId) -> bool {
        self.readers.contains_key(&client)
    }

    /// Readers that have not been told the end.
    pub(crate) fn reader_count(&self) -> usize {
        self.readers.len()
    }

    /// Whether more output is to be read: not while the writer is behind by more than a message.
    pub(crate) fn wants_output(&self) -> bool {
        self.behind() < self.batch()
    }

    /// As much output as makes a message that is worth its cost.
    pub(crate) fn batch(&self) -> usize {
        BATCH.min(self.output.capacity() / 4)
    }

    /// Bytes that the writer has not been sent.
    fn behind(&self) -> usize {
        let writer = self.writer.and_then(|writer| self.readers.get(&writer));
        writer.map_or(0, |writer| (self.output.end() - writer.next) as usize)
    }

    /// Attaches a reader that has seen the output up to the offset `since`. A writer takes the place of another.
    pub(crate) fn attach(
        &mut self,
        client: ClientId,
        role: Role,
        since: u64,
        wires: &mut impl Wires,
    ) {
        if role == Role::Writer
            && let Some(other) = self.writer.replace(client)
        {
            self.readers.remove(&other);
            wires.close(other, TAKEN_OVER, "Taken over");
        }
        let start = self.output.start();
        if since < start {
            wires.gap(client, role, since, start);
        }
        let next = since.max(start).min(self.output.end());
        self.readers.insert(client, Reader { role, next });
        self.pump(client, wires);
    }

    /// A reader is gone.
    pub(crate) fn detach(&mut self, client: ClientId) {
        self.readers.remove(&client);
        if self.writer == Some(client) {
            self.writer = None;
        }
    }

    /// Sends what there is to everyone who has room for it.
    pub(crate) fn pump_all(&mut self, wires: &mut impl Wires) {
        let clients: Vec<ClientId> = self.readers.keys().copied().collect();
        for client in clients {
            self.pump(client, wires);
        }
    }

    /// Sends a reader what it has not seen, as far as it has room.
    pub(crate) fn pump(&mut self, client: ClientId, wires: &mut impl Wires) {
        let Some(reader) = self.readers.get_mut(&client) else {
            return;
        };
        let start = self.output.start();
        if reader.next < start {
            if reader.role == Role::Viewer {
                wires.cut_off(client);
                self.readers.remove(&client);
                return;
            }
            if wires.is_congested(client) {
                return;
            }
            wires.gap(client, reader.role, reader.next, start);
            reader.next = start;
        }
        while !wires.is_congested(client) {
            let (stream, bytes) = self.output.piece(reader.next, PIECE);
            if bytes.is_empty() {
                if let Some(exit) = self.exit {
                    wires.exit(client, reader.role, exit);
                    self.readers.remove(&client);
                }
                return;
            }
            reader.next += bytes.len() as u64;
            wires.output(client, reader.role, stream, bytes, reader.next);
        }
    }

    /// The program has ended and there is no more output.
    pub(crate) fn handle_exit(&mut self, exit: Exit, wires: &mut impl Wires) {
        debug_assert!(self.exit.is_none());
        self.exit = Some(exit);
        self.output.seal();
        self.pump_all(wires);
    }
}
