//! Where a program's output goes: to readers that come and go, or into one answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::Exit;
use super::api::Details;
use super::attach::{Attachments, Role, Wires};
use super::scrollback::Stream;
use crate::{ClientId, CloseCode, Context, Message};

/// Bytes of room offered at a time for output that is gathered.
const STEP: usize = 16 << 10;

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
    /// Whose call is answered with it.
    pub(crate) caller: ClientId,
    pub(crate) details: Details,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    limit: usize,
    all: AllGathered,
    /// Room of the stream that is being read, behind what was gathered.
    room: Vec<u8>,
    exceeded: Option<Exceeded>,
}

/// Which limit a program's output went over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exceeded {
    /// That of one of its streams.
    Own,
    /// That of all gathered output together.
    All,
}

/// The bytes that are gathered for all calls together, and their limit.
#[derive(Clone, Debug)]
pub(crate) struct AllGathered {
    bytes: Arc<AtomicUsize>,
    most: usize,
}

impl AllGathered {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            bytes: Arc::default(),
            most,
        }
    }

    /// Whether there is no room left at all.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= self.most
    }

    /// Takes room, if there is as much.
    fn take(&self, count: usize) -> bool {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let fits = count <= self.most.saturating_sub(bytes);
        if fits {
            self.bytes.store(bytes + count, Ordering::Relaxed);
        }
        fits
    }
}

impl Gathered {
    /// At most `limit` bytes of each stream.
    pub(crate) fn new(caller: ClientId, details: Details, limit: usize, all: AllGathered) -> Self {
        Self {
            caller,
            details,
            stdout: Vec::new(),
            stderr: Vec::new(),
            limit,
            all,
            room: vec![0; STEP],
            exceeded: None,
        }
    }

    fn commit(&mut self, stream: Stream, count: usize) {
        let gathered = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let taken = count.min(self.limit - gathered.len());
        if taken < count {
            self.exceeded.get_or_insert(Exceeded::Own);
        }
        if self.all.take(taken) {
            gathered.extend_from_slice(&self.room[..taken]);
        } else {
            self.exceeded = Some(Exceeded::All);
        }
    }

    /// Whether there was more than the limit of a stream.
    pub(crate) fn is_truncated(&self) -> bool {
        self.exceeded.is_some()
    }

    /// Whether there was no room for it because of what is gathered for other calls.
    pub(crate) fn had_no_room(&self) -> bool {
        self.exceeded == Some(Exceeded::All)
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        let count = self.stdout.len() + self.stderr.len();
        self.all.bytes.fetch_sub(count, Ordering::Relaxed);
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

    /// Whether a client still has to be sent output, or the end.
    pub(crate) fn is_read_by(&self, client: ClientId) -> bool {
        matches!(self, Self::Shared(attachments) if attachments.reads(client))
    }

    /// Whether there was more output than is taken.
    pub(crate) fn is_over_limit(&self) -> bool {
        matches!(self, Self::Gathered(gathered) if gathered.is_truncated())
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
        self.0.send(reader, Message::Text(text));
    }
}

impl Wires for Sockets<'_> {
    fn is_congested(&self, reader: ClientId) -> bool {
        self.0.is_congested(reader)
    }

    fn output(&mut self, reader: ClientId, role: Role, stream: Stream, bytes: &[u8], end: u64) {
        if let Role::Listener(_) = role {
            let (stream, data) = (stream.name(), BASE64_STANDARD.encode(bytes));
            let event = format!(r#"{{"stream":"{stream}","data_b64":"{data}"}}"#);
            self.stream(reader, Some(end), &event);
        } else {
            self.0.send(reader, Message::Binary(bytes));
        }
    }

    fn gap(&mut self, reader: ClientId, role: Role, from: u64, to: u64) {
        if let Role::Listener(details) = role {
            if details == Details::All {
                let event = format!(r#"{{"event":"gap","from":{from},"to":{to}}}"#);
                self.stream(reader, Some(to), &event);
            } else {
                // The offset in the next event's id shows the gap as well.
                let _ = self
                    .0
                    .stream(reader, format!(": gap {from} {to}\n\n").as_bytes());
            }
        } else {
            self.text(
                reader,
                &format!(r#"{{"type":"gap","from":{from},"to":{to}}}"#),
            );
        }
    }

    fn exit(&mut self, reader: ClientId, role: Role, exit: Exit) {
        if let Role::Listener(details) = role {
            self.stream(reader, None, &exit.to_stream_event(details));
            let _ = self.0.end_stream(reader);
        } else {
            self.text(reader, &exit.to_attach_event());
            self.0.close(reader, CloseCode::NORMAL, "Process exited");
        }
    }

    fn cut_off(&mut self, reader: ClientId) {
        self.0.cut_off(reader);
    }

    fn close(&mut self, reader: ClientId, code: CloseCode, reason: &str) {
        self.0.set_held(reader, false);
        self.0.close(reader, code, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(gathered: &mut Gathered, stream: Stream, mut count: usize) {
        while count > 0 {
            let piece = count.min(STEP);
            gathered.room[..piece].fill(b'x');
            gathered.commit(stream, piece);
            count -= piece;
        }
    }

    /// Each of thirty callers could have 32 MiB gathered for it, and nothing counted them together.
    #[test]
    fn gathered_output_has_a_limit_for_each_stream_and_one_for_all() {
        let all = AllGathered::new(250_000);
        let caller: ClientId = "c1".parse().expect("an id");
        let new = || Gathered::new(caller, Details::Usual, 100_000, all.clone());
        let mut one = new();
        gather(&mut one, Stream::Stdout, 100_000);
        gather(&mut one, Stream::Stderr, 100_000);
        assert!(!one.is_truncated());
        gather(&mut one, Stream::Stderr, 1);
        assert!(one.is_truncated() && !one.had_no_room());
        assert_eq!((one.stdout.len(), one.stderr.len()), (100_000, 100_000));
        let mut other = new();
        gather(&mut other, Stream::Stdout, 60_000);
        assert!(other.had_no_room() && other.stdout.len() <= 50_000);
        drop(one);
        assert!(!all.is_full());
        let mut third = new();
        gather(&mut third, Stream::Stdout, 100_000);
        assert!(!third.is_truncated());
        drop((other, third));
        assert_eq!(all.bytes.load(Ordering::Relaxed), 0, "all was given back");
    }
}
