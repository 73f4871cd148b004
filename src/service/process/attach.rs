//! The readers of a program's output, and the position of each. There is no I/O in here.
//!
//! The invariants, checked by the tests and the fuzzer:
//!
//! * Every reader gets all bytes from its start, in order. Missing bytes are announced as a gap.
//! * The exit of the program comes after the last byte, and nothing comes after the exit.
//! * There is at most one writer, from the time it attaches until it detaches or another one takes over.
//! * The writer misses no output: while it is far behind, the program's output is not read.
//! * If the program waits for its readers, no output is dropped that was not sent to a reader, and a listener misses none.
//! * A reader is told its role, the terminal's size and the other clients before anything else. Later changes of the size
//!   and of the clients reach every reader, the latter at most once in each interval.

use std::collections::BTreeMap;
use std::time::Duration;

use super::dialect::Dialect;
use super::exit::ProgramExit;
use super::messages::{AttachEvent, AttachRole};
use super::screen::{Follower, KeyModes, ScreenSettings};
#[cfg(feature = "screen")]
use super::screen::{Format, View};
use super::scrollback::{OutputStream, Scrollback};
use crate::record::record;
use crate::sys::TerminalSize;
use crate::{ClientId, CloseCode, Time};

/// The maximum number of bytes of output in one message.
const MAX_MESSAGE: usize = 64 << 10;

/// What the pipes of a program can hold: 64 KiB each.
const IN_PIPES: usize = 2 * (64 << 10);

/// The output that is kept when memory is short.
const KEPT: usize = 32 << 10;

/// Output that arrives quickly is collected up to this size before it is sent.
const BATCH: usize = 32 << 10;

/// The shortest time between two [`AttachEvent::Clients`] to all readers. Many clients that attach at once would otherwise
/// cause a message to each of them for each other one.
const CLIENTS_INTERVAL: Duration = Duration::from_secs(1);

/// The kind of a reader, which decides what happens when it does not keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A WebSocket client whose input goes to the program. The program waits for it.
    Writer,
    /// A WebSocket client that only watches. It is disconnected.
    Viewer,
    /// The caller of a stream of server-sent events. It gets a gap event.
    Listener,
}

record!(
    enum Role {
        Writer,
        Viewer,
        Listener,
    }
);

/// How clients share a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The program of one client, whose input it gets unless it is read-only.
    Single { read_only: bool },
    /// A writer and any number of viewers and listeners, who are told of each other.
    Shared,
}

record!(enum Sharing {
    Single { read_only },
    Shared,
});

/// A reader that attaches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewReader<'a> {
    pub(crate) client: ClientId,
    pub(crate) role: Role,
    pub(crate) dialect: Dialect,
    pub(crate) replay: Replay,
    /// The name of its principal.
    pub(crate) name: &'a str,
    /// The title of its window, for [`Dialect::Tty`].
    pub(crate) title: &'a str,
}

/// What a reader gets first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replay {
    /// The offset up to which it has seen the output.
    pub(crate) since: Option<u64>,
    /// Whether it gets the screen of a terminal in the place of output that it has not seen and that is not kept, with up to so
    /// many rows above the screen.
    pub(crate) screen: Option<usize>,
}

/// Where the messages to readers go.
pub(crate) trait ReaderOutput {
    /// Whether a reader has enough unread output for now.
    fn is_congested(&self, reader: ClientId) -> bool;
    /// Greets a reader that has attached, with its first events and the title of its window.
    fn greet(&mut self, reader: ClientId, dialect: Dialect, events: &[AttachEvent], title: &str);
    /// Tells a reader of a change.
    fn tell(&mut self, reader: ClientId, dialect: Dialect, event: &AttachEvent);
    /// Sends output; `end` is the offset after its last byte.
    fn output(
        &mut self,
        reader: ClientId,
        dialect: Dialect,
        stream: OutputStream,
        bytes: &[u8],
        end: u64,
    );
    /// Sends the sequences that rebuild the screen. Output from `offset` on follows.
    fn screen(&mut self, reader: ClientId, dialect: Dialect, data: String, offset: u64);
    /// Announces that the output between two offsets is no longer kept.
    fn gap(&mut self, reader: ClientId, dialect: Dialect, from: u64, to: u64);
    /// Announces the exit of the program, after all its output, and ends the reader's connection or stream.
    fn exit(&mut self, reader: ClientId, dialect: Dialect, exit: ProgramExit);
    /// Ends the reader's connection after all output, because the server stops and has ended the program.
    fn restart(&mut self, reader: ClientId, dialect: Dialect);
    /// Disconnects a reader that does not keep up.
    fn cut_off(&mut self, reader: ClientId);
    /// Closes a writer when another one takes over.
    fn close(&mut self, reader: ClientId, code: CloseCode, reason: &str);
}

#[derive(Debug)]
struct Reader {
    role: Role,
    dialect: Dialect,
    /// The offset of the next byte to send.
    next: u64,
    /// The size that it was told.
    size: Option<TerminalSize>,
    /// The value of `Attachments::clients_version` that it was told.
    clients_version: u64,
    /// Whether it has asked for a pause of its output.
    paused: bool,
}

record!(Reader {
    role,
    dialect,
    next,
    size,
    clients_version,
    paused,
});

/// The output of a program and its readers.
#[derive(Debug)]
pub(crate) struct Attachments {
    output: Scrollback,
    /// The screen of a terminal, unless no screens are kept.
    screen: Option<Box<Follower>>,
    readers: BTreeMap<ClientId, Reader>,
    writer: Option<ClientId>,
    sharing: Sharing,
    /// The size of the program's terminal, if it has one.
    size: Option<TerminalSize>,
    resizes: u64,
    /// The name of the writer's principal.
    writer_name: Option<String>,
    viewers: usize,
    /// Incremented when `writer_name` or `viewers` changes.
    clients_version: u64,
    /// Whether readers have to be told who is attached.
    clients_changed: bool,
    /// When all readers were last told who is attached.
    clients_told: Time,
    /// Whether the program waits while its output has no reader or a listener is behind.
    waits: bool,
    /// The end of the output that any reader has seen or was sent.
    sent: u64,
    /// Whether the output goes on to readers that have asked for a pause.
    ignores_pauses: bool,
    /// Listeners whose streams have ended since the last [`Attachments::take_ended_streams`].
    ended_streams: Vec<ClientId>,
    exit: Option<ProgramExit>,
    /// Whether the server stops, which ends the program: readers are told this instead of the exit.
    is_restarting: bool,
}

record!(TerminalSize { rows, cols });

record!(Attachments {
    output,
    screen,
    readers,
    writer,
    sharing,
    size,
    resizes,
    writer_name,
    viewers,
    clients_version,
    clients_changed,
    clients_told,
    waits,
    sent,
    ignores_pauses,
    // Empty here: `Programs::with` takes the ended streams after each change.
    ended_streams = Vec::new(),
    exit,
    is_restarting,
});

impl Attachments {
    /// Starts without readers. Keeps the last `scrollback` bytes of output for readers that attach later. `size` is that of
    /// the program's terminal.
    pub(crate) fn new(scrollback: usize, sharing: Sharing, size: Option<TerminalSize>) -> Self {
        Self {
            output: Scrollback::new(scrollback),
            screen: None,
            readers: BTreeMap::new(),
            writer: None,
            sharing,
            size,
            resizes: 0,
            writer_name: None,
            viewers: 0,
            clients_version: 0,
            clients_changed: false,
            clients_told: Time::default(),
            waits: false,
            sent: 0,
            ignores_pauses: false,
            ended_streams: Vec::new(),
            exit: None,
            is_restarting: false,
        }
    }

    /// Makes the program wait while its output has no reader or a listener is behind, instead of dropping output.
    #[must_use]
    pub(crate) fn waiting_for_readers(self, waits: bool) -> Self {
        Self { waits, ..self }
    }

    /// Keeps the screen, if there is a terminal.
    #[must_use]
    pub(crate) fn with_screen(self, settings: Option<ScreenSettings>) -> Self {
        let screen = self.size.zip(settings);
        Self {
            screen: screen.map(|(size, settings)| Box::new(Follower::new(size, settings))),
            ..self
        }
    }

    /// The work of laying out the screen since the last call, in the units of [`Context::spend`](crate::Context::spend).
    pub(crate) fn take_work(&mut self) -> usize {
        self.screen.as_mut().map_or(0, |screen| screen.take_work())
    }

    /// How often the terminal has got another size.
    #[cfg(feature = "screen")]
    pub(crate) fn resizes(&self) -> u64 {
        self.resizes
    }

    /// What the screen shows, with up to `above` rows above it.
    #[cfg(feature = "screen")]
    pub(crate) fn view(&mut self, above: usize, format: Format) -> Option<View> {
        let screen = self.screen.as_mut()?;
        Some(screen.view(&self.output, above, format))
    }

    /// The modes that keys depend on. Without a screen, those that a terminal begins with.
    pub(crate) fn key_modes(&mut self) -> KeyModes {
        let screen = self.screen.as_mut();
        screen.map_or_else(KeyModes::default, |screen| screen.key_modes(&self.output))
    }

    /// Completes what is half done, so that it can be saved.
    pub(crate) fn make_portable(&mut self) {
        if let Some(screen) = &mut self.screen {
            screen.make_portable(&self.output, self.resizes > 0);
        }
    }

    /// The output that is kept.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn output(&self) -> &Scrollback {
        &self.output
    }

    /// Space for up to `most` bytes of output. It overlaps no output that the writer has not been sent, and none that the
    /// program waits for.
    pub(crate) fn spare(&mut self, most: usize) -> &mut [u8] {
        let screen = self.screen.as_ref();
        let pending = screen.map_or(0, |screen| screen.pending(&self.output));
        let held = self.behind().max(self.held()).max(pending);
        self.output.spare(most.min(self.output.capacity() - held))
    }

    /// The memory of the output in bytes.
    pub(crate) fn held_memory(&self) -> usize {
        self.output.held() + self.screen.as_ref().map_or(0, |screen| screen.held())
    }

    /// How many bytes more are held at another size of the terminal.
    pub(crate) fn growth(&self, size: TerminalSize) -> usize {
        let screen = self.screen.as_ref();
        screen.map_or(0, |screen| screen.growth(size))
    }

    /// Keeps only a little output for later readers, and none above the screen, because memory is short. What the writer has not
    /// been sent, or what the program waits for, is kept, and unless `cuts` is true, what other readers have not been sent.
    pub(crate) fn shrink(&mut self, cuts: bool) {
        let above = self.screen.as_ref().map_or(0, |screen| screen.held_above());
        let next = self.readers.values().map(|reader| reader.next).min();
        let unsent = next.map_or(0, |next| self.output.end().saturating_sub(next) as usize);
        let needed = if cuts { 0 } else { unsent };
        let keep = KEPT.max(needed).max(self.behind()).max(self.held());
        if above == 0 && self.output.held() <= keep {
            return;
        }
        if let Some(screen) = &mut self.screen {
            screen.shrink(&self.output);
        }
        self.output.shrink(keep);
    }

    /// Whether the screen is kept.
    pub(crate) fn has_screen(&self) -> bool {
        self.screen.is_some()
    }

    /// Gives the screen up, because memory is short.
    pub(crate) fn drop_screen(&mut self) {
        self.screen = None;
    }

    /// Gives up all output, because memory is short and the program ends.
    pub(crate) fn discard(&mut self) {
        self.drop_screen();
        self.waits = false;
        self.output.shrink(0);
    }

    /// Adds the first `count` bytes of `spare` to the output.
    pub(crate) fn commit(&mut self, stream: OutputStream, count: usize) {
        self.output.commit(stream, count);
        if let Some(screen) = &mut self.screen {
            screen.follow(&self.output);
        }
    }

    /// The offset of the next byte of output.
    pub(crate) fn end(&self) -> u64 {
        self.output.end()
    }

    /// The client whose input goes to the program, unless the program is read-only.
    pub(crate) fn writer(&self) -> Option<ClientId> {
        self.writer
    }

    /// Whether the input of a client goes to the program.
    pub(crate) fn takes_input_of(&self, client: ClientId) -> bool {
        self.writer == Some(client) && self.sharing != Sharing::Single { read_only: true }
    }

    /// The dialect of a reader that has not been told the exit.
    pub(crate) fn dialect(&self, client: ClientId) -> Option<Dialect> {
        self.readers.get(&client).map(|reader| reader.dialect)
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

    /// Whether more output should be read from the program: not while the writer is behind by more than a message or by many changes
    /// between the streams, and not while there is no room for output that the program waits for.
    pub(crate) fn wants_output(&self) -> bool {
        let has_room =
            !self.waits || (self.held() < self.output.capacity() && !self.is_fragmented());
        let writer = self.writer.and_then(|writer| self.readers.get(&writer));
        let writer_misses =
            writer.is_some_and(|writer| self.output.is_fragmented_after(writer.next));
        self.behind() < self.batch() && has_room && !writer_misses
    }

    /// Whether output would be dropped that the program waits for, because there are too many changes between the streams.
    fn is_fragmented(&self) -> bool {
        self.held() > 0 && self.output.is_fragmented()
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

    /// The number of bytes that are kept because the program waits: those that a listener has not been sent, and without
    /// a listener or writer, those that no reader has been sent.
    fn held(&self) -> usize {
        if !self.waits {
            return 0;
        }
        let readers = self.readers.values();
        let readers = readers.filter(|reader| reader.role != Role::Viewer);
        let from = readers.map(|reader| reader.next).min();
        (self.output.end() - from.unwrap_or(self.sent)) as usize
    }

    /// The program has exited. What is still in its pipes is kept, too.
    pub(crate) fn stop_waiting(&mut self) {
        if self.waits && self.held() + IN_PIPES > self.output.capacity() {
            self.output.grow(IN_PIPES);
        }
        self.waits = false;
    }

    /// Attaches a reader. A writer replaces the current one.
    pub(crate) fn attach(&mut self, new: NewReader<'_>, out: &mut impl ReaderOutput) {
        let NewReader {
            client,
            role,
            dialect,
            replay,
            name,
            title,
        } = new;
        match role {
            Role::Writer => {
                let other = self.writer.replace(client);
                if let Some(other) = other {
                    self.remove(other);
                    out.close(other, CloseCode::TAKEN_OVER, "Taken over");
                }
                if self.writer_name.as_deref() != Some(name) {
                    self.writer_name = Some(name.to_owned());
                    self.clients_change();
                }
            }
            Role::Viewer => {
                self.viewers += 1;
                self.clients_change();
            }
            Role::Listener => {}
        }
        let role_told = match (role, self.sharing) {
            (Role::Writer, Sharing::Shared | Sharing::Single { read_only: false }) => {
                AttachRole::Writer
            }
            _ => AttachRole::Viewer,
        };
        let mut events = vec![AttachEvent::Role(role_told)];
        events.extend(self.size.map(AttachEvent::Size));
        if self.sharing == Sharing::Shared {
            events.push(self.clients_event());
        }
        out.greet(client, dialect, &events, title);
        let start = self.output.start();
        let mut since = replay.since.unwrap_or(0);
        let is_missing = replay.since.is_none() || since < start;
        match (&mut self.screen, replay.screen.filter(|_| is_missing)) {
            (Some(screen), Some(above)) => {
                let (data, offset) = screen.rebuild(&self.output, above);
                out.screen(client, dialect, data, offset);
                since = offset;
            }
            _ if since < start => out.gap(client, dialect, since, start),
            _ => {}
        }
        let reader = Reader {
            role,
            dialect,
            next: since.max(start).min(self.output.end()),
            size: self.size,
            clients_version: self.clients_version,
            paused: false,
        };
        // The client says that it has seen the output up to here.
        self.sent = self.sent.max(reader.next);
        self.readers.insert(client, reader);
        self.pump(client, out);
    }

    /// Removes a reader.
    pub(crate) fn detach(&mut self, client: ClientId) {
        self.remove(client);
        if self.writer == Some(client) {
            self.writer = None;
            self.writer_name = None;
            self.clients_change();
        }
    }

    /// Removes a reader that has been told the exit, has been cut off or is gone.
    fn remove(&mut self, client: ClientId) {
        let reader = self.readers.remove(&client);
        if reader.is_some_and(|reader| reader.role == Role::Viewer) {
            self.viewers -= 1;
            self.clients_change();
        }
        self.clients_changed &= !self.readers.is_empty();
    }

    /// Sets the size of the terminal and tells the readers.
    pub(crate) fn resize(&mut self, size: TerminalSize, out: &mut impl ReaderOutput) {
        self.size = Some(size);
        self.resizes += 1;
        if let Some(screen) = &mut self.screen {
            screen.resize(&self.output, size);
        }
        for (client, reader) in &mut self.readers {
            if !out.is_congested(*client) {
                reader.tell_size(*client, self.size, out);
            }
        }
    }

    /// Tells a client the size again, because the one that it has asked for was refused.
    pub(crate) fn tell_size(&self, client: ClientId, out: &mut impl ReaderOutput) {
        if let (Some(reader), Some(size)) = (self.readers.get(&client), self.size) {
            out.tell(client, reader.dialect, &AttachEvent::Size(size));
        }
    }

    /// Stops the output to a reader, or lets it continue. A writer that has paused makes the program wait. Returns whether this
    /// changes anything.
    pub(crate) fn set_paused(&mut self, client: ClientId, paused: bool) -> bool {
        let reader = self.readers.get_mut(&client);
        reader.is_some_and(|reader| std::mem::replace(&mut reader.paused, paused) != paused)
    }

    /// Ends all pauses, and ignores later ones: the program has exited, so it cannot be made to wait. The rest of its output
    /// could otherwise be held for any time.
    pub(crate) fn end_pauses(&mut self, out: &mut impl ReaderOutput) {
        self.ignores_pauses = true;
        self.pump_all(out);
    }

    /// Who is attached.
    fn clients_event(&self) -> AttachEvent {
        AttachEvent::Clients {
            writer: self.writer_name.clone(),
            viewers: self.viewers,
        }
    }

    /// `writer_name` or `viewers` has changed: the other readers have to be told, if there are any.
    fn clients_change(&mut self) {
        self.clients_version += 1;
        self.clients_changed =
            self.sharing == Sharing::Shared && self.exit.is_none() && !self.readers.is_empty();
    }

    /// When to call [`Attachments::tell_clients`], if at all.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.clients_changed
            .then(|| self.clients_told + CLIENTS_INTERVAL)
    }

    /// Tells all readers who is attached, if that has changed and the deadline has passed. A congested reader is told after
    /// the next interval.
    pub(crate) fn tell_clients(&mut self, now: Time, out: &mut impl ReaderOutput) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        self.clients_told = now;
        self.clients_changed = false;
        let event = self.clients_event();
        for (client, reader) in &mut self.readers {
            if reader.clients_version == self.clients_version {
                continue;
            }
            if out.is_congested(*client) {
                self.clients_changed = true;
                continue;
            }
            reader.clients_version = self.clients_version;
            out.tell(*client, reader.dialect, &event);
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
        if reader.next < start && reader.role == Role::Viewer {
            out.cut_off(client);
            return self.remove(client);
        }
        if reader.size != self.size && !out.is_congested(client) {
            reader.tell_size(client, self.size, out);
        }
        if reader.paused && !self.ignores_pauses {
            return;
        }
        if reader.next < start {
            if out.is_congested(client) {
                return;
            }
            out.gap(client, reader.dialect, reader.next, start);
            reader.next = start;
        }
        while !out.is_congested(client) {
            let (stream, bytes) = self.output.piece(reader.next, MAX_MESSAGE);
            if bytes.is_empty() {
                if let Some(exit) = self.exit {
                    if self.is_restarting {
                        out.restart(client, reader.dialect);
                    } else {
                        out.exit(client, reader.dialect, exit);
                    }
                    if reader.role == Role::Listener {
                        self.ended_streams.push(client);
                    }
                    // A client that comes later for the output and the exit may have any role.
                    self.detach(client);
                }
                return;
            }
            reader.next += bytes.len() as u64;
            self.sent = self.sent.max(reader.next);
            out.output(client, reader.dialect, stream, bytes, reader.next);
        }
    }

    /// The server stops, and ends the program. If it has not exited, its readers are told this instead of the exit.
    pub(crate) fn begin_restart(&mut self) {
        self.is_restarting = self.exit.is_none();
    }

    /// The program has exited and there is no more output.
    pub(crate) fn handle_exit(&mut self, exit: ProgramExit, out: &mut impl ReaderOutput) {
        debug_assert!(self.exit.is_none());
        self.exit = Some(exit);
        self.clients_changed = false;
        self.ignores_pauses = true;
        self.output.seal();
        self.pump_all(out);
    }
}

impl Reader {
    /// Tells the reader the size of the terminal, if it was told another one.
    fn tell_size(
        &mut self,
        client: ClientId,
        size: Option<TerminalSize>,
        out: &mut impl ReaderOutput,
    ) {
        if self.size != size
            && let Some(size) = size
        {
            self.size = Some(size);
            out.tell(client, self.dialect, &AttachEvent::Size(size));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that takes output, or none.
    #[derive(Default)]
    struct SlowWriter {
        is_congested: bool,
        received: u64,
        gaps: Vec<(u64, u64)>,
    }

    impl ReaderOutput for SlowWriter {
        fn is_congested(&self, _: ClientId) -> bool {
            self.is_congested
        }
        fn greet(&mut self, _: ClientId, _: Dialect, _: &[AttachEvent], _: &str) {}
        fn tell(&mut self, _: ClientId, _: Dialect, _: &AttachEvent) {}
        fn output(&mut self, _: ClientId, _: Dialect, _: OutputStream, bytes: &[u8], _: u64) {
            self.received += bytes.len() as u64;
        }
        fn screen(&mut self, _: ClientId, _: Dialect, _: String, _: u64) {}
        fn gap(&mut self, _: ClientId, _: Dialect, from: u64, to: u64) {
            self.gaps.push((from, to));
        }
        fn exit(&mut self, _: ClientId, _: Dialect, _: ProgramExit) {}
        fn restart(&mut self, _: ClientId, _: Dialect) {}
        fn cut_off(&mut self, _: ClientId) {}
        fn close(&mut self, _: ClientId, _: CloseCode, _: &str) {}
    }

    /// The bug: a writer that was behind by few bytes lost output of a program that changed its stream with every byte.
    #[test]
    fn a_writer_misses_no_output_of_a_program_that_changes_its_stream_with_every_byte() {
        let mut attachments = Attachments::new(1 << 20, Sharing::Shared, None);
        let writer: ClientId = "c1".parse().expect("an id");
        let mut out = SlowWriter {
            is_congested: true,
            ..SlowWriter::default()
        };
        let new = NewReader {
            client: writer,
            role: Role::Writer,
            dialect: Dialect::Json,
            replay: Replay::default(),
            name: "nobody",
            title: "",
        };
        attachments.attach(new, &mut out);
        let streams = [OutputStream::Stdout, OutputStream::Stderr];
        for stream in streams.into_iter().cycle().take(200_000) {
            if !attachments.wants_output() {
                break;
            }
            attachments.spare(1)[0] = b'x';
            attachments.commit(stream, 1);
            attachments.pump_all(&mut out);
        }
        out.is_congested = false;
        attachments.pump_all(&mut out);
        assert_eq!((out.received, &*out.gaps), (attachments.end(), &[][..]));
    }

    /// The bug: laying out was charged to nobody, and half a megabyte without line ends was laid out in one slice.
    #[cfg(feature = "screen")]
    #[test]
    fn the_work_of_a_screen_is_charged_and_bounded() {
        let size = TerminalSize { rows: 24, cols: 80 };
        for (unit, laid_out) in [("\u{e9}", 4 << 20), ("a short line\r\n", 0)] {
            let attachments = Attachments::new(1 << 20, Sharing::Shared, Some(size));
            let mut attachments = attachments.with_screen(ScreenSettings::new(500));
            let output = unit.repeat((4 << 20) / unit.len());
            let (mut left, mut all) = (output.as_bytes(), 0);
            while !left.is_empty() {
                let spare = attachments.spare(left.len().min(64 << 10));
                let count = spare.len();
                spare.copy_from_slice(&left[..count]);
                attachments.commit(OutputStream::Stdout, count);
                left = &left[count..];
                let work = attachments.take_work();
                assert!(work <= 8000, "{unit:?}: {work} microseconds at once");
                all += work;
            }
            assert!(all >= laid_out / 50 && all < 4 << 20, "{unit:?}: {all}");
            assert!(laid_out > 0 || all < 10_000, "{unit:?}: {all}");
        }
    }
}
