//! Fuzz entry points of the process services: the readers of a program, control messages, and calls.
//!
//! The model of the readers is all output of the program, and what each reader was sent. After each operation, a reader
//! must have got the output from its start on, in order, with every gap announced. Before that, it was told its role, the
//! size of the terminal and the other clients, and it knows the latest of them. The readers that the code knows must be those
//! of the model. A reader that asks for the screen gets the one that a terminal shows which has got all output from the start.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::record::simulated::restored;
use crate::service::process::attach::{
    Attachments, NewReader, ReaderOutput, Replay, Role, Sharing,
};
use crate::service::process::bodies::{
    read_data, read_exec, read_input, read_signal, read_size, read_spawn,
};
use crate::service::process::calls::Call;
use crate::service::process::compat::Compat;
use crate::service::process::dialect::{ClientMessage, Dialect};
use crate::service::process::event_stream::Details;
use crate::service::process::exit::ProgramExit;
use crate::service::process::screen::{Follower, Format, KeyModes, ScreenSettings};
use crate::service::process::scrollback::{OutputStream, Scrollback};
use crate::service::process::waits::Wait;
use crate::service::process::{AttachEvent, AttachRole, Control, TerminalSize};
use crate::{ClientId, CloseCode, Message, Time};

/// A reader in the model.
#[derive(Debug)]
struct ReaderModel {
    role: Role,
    dialect: Dialect,
    /// Whether it was greeted.
    greeted: bool,
    /// The size and the other clients as it was last told, and when it was told of the latter by a later event.
    size: Option<TerminalSize>,
    clients: Option<(Option<String>, usize)>,
    clients_told: Option<Time>,
    /// Whether it has asked for a pause.
    paused: bool,
    /// The offset after the last byte that it was sent.
    at: u64,
    /// Whether it was sent the exit.
    exit: bool,
    /// Whether it was cut off or taken over.
    ended: bool,
    /// The rows above the screen that it is to get next.
    screen: Option<usize>,
}

/// A terminal that has got all output as it came.
#[derive(Debug)]
struct Shown {
    output: Scrollback,
    follower: Follower,
}

const SCREENS: ScreenSettings = ScreenSettings { history: 5 };

impl Shown {
    /// A snapshot cannot express everything, such as a saved cursor outside of the screen, so this one passes on, too.
    fn pass_on(&mut self, is_resized: bool) {
        self.follower.make_portable(&self.output, is_resized);
        self.follower = restored(&self.follower);
    }

    fn new(size: TerminalSize) -> Self {
        Self {
            output: Scrollback::new(1 << 16),
            follower: Follower::new(size, SCREENS),
        }
    }

    fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let spare = self.output.spare(bytes.len());
            let count = spare.len();
            spare.copy_from_slice(&bytes[..count]);
            self.output.commit(OutputStream::Stdout, count);
            self.follower.lay_out(&self.output);
            bytes = &bytes[count..];
        }
    }
}

impl ReaderModel {
    /// Whether nothing more may be sent to it.
    fn is_done(&self) -> bool {
        self.exit || self.ended
    }
}

/// The output of a program, and its readers.
#[derive(Debug, Default)]
struct ReadersModel {
    written: Vec<(u8, OutputStream)>,
    readers: BTreeMap<ClientId, ReaderModel>,
    congested: BTreeSet<ClientId>,
    /// The number of messages after which a reader is congested.
    room: usize,
    sent: BTreeMap<ClientId, usize>,
    exited: bool,
    /// Whether the server stops, which has ended the program.
    restarting: bool,
    sharing: Option<Sharing>,
    writer: Option<ClientId>,
    size: Option<TerminalSize>,
    now: Time,
    /// Whether there is output that has not been sent.
    unsent: bool,
    /// Whether pauses are ignored.
    ignores_pauses: bool,
    /// Whether the program waits for its readers.
    waits: bool,
    /// The end of the output that any reader has seen or was sent.
    sent_to: u64,
    /// The screen, if it is kept.
    shown: Option<Shown>,
    /// What must be kept after the program was last made to wait: the output from the first offset on, as long as the output
    /// is not longer than the second one.
    kept: Option<(u64, u64)>,
}

impl ReadersModel {
    fn reader(&mut self, reader: ClientId, dialect: Dialect) -> &mut ReaderModel {
        let seen = self.readers.get_mut(&reader).expect("it was attached");
        assert!(!seen.is_done(), "{reader} gets nothing after its end");
        assert_eq!(seen.dialect, dialect);
        seen
    }

    /// Counts a message, which may be the one that congests the reader.
    fn count(&mut self, reader: ClientId) {
        let sent = self.sent.entry(reader).or_default();
        *sent += 1;
        if sent.is_multiple_of(self.room) {
            self.congested.insert(reader);
        }
    }

    /// A reader is told that the program has ended.
    fn end(&mut self, reader: ClientId, dialect: Dialect) {
        let all = self.written.len() as u64;
        let exited = self.exited;
        let seen = self.reader(reader, dialect);
        assert!(
            exited && seen.greeted && seen.at == all,
            "the exit comes after the last byte"
        );
        seen.exit = true;
        self.writer = self.writer.filter(|writer| *writer != reader);
    }

    /// The offset from which on output must be kept while the program waits.
    fn must_keep_from(&self) -> u64 {
        let readers = self.readers.values();
        let readers = readers.filter(|seen| seen.role != Role::Viewer && !seen.is_done());
        let from = readers.map(|seen| seen.at).min();
        from.unwrap_or(self.sent_to)
    }

    /// Who is attached: the name of the writer, and the number of viewers.
    fn clients(&self) -> (Option<String>, usize) {
        let viewers = self.readers.values();
        let viewers = viewers.filter(|seen| seen.role == Role::Viewer && !seen.is_done());
        (self.writer.map(name), viewers.count())
    }
}

/// The name of a client's principal. Several clients have the same one.
fn name(client: ClientId) -> String {
    let text = client.to_string();
    text[text.len() - 1..].to_owned()
}

impl ReaderOutput for ReadersModel {
    fn is_congested(&self, reader: ClientId) -> bool {
        self.congested.contains(&reader)
    }

    fn greet(&mut self, reader: ClientId, dialect: Dialect, events: &[AttachEvent], title: &str) {
        let (size, clients) = (self.size, self.clients());
        let is_single = self.sharing != Some(Sharing::Shared);
        let is_read_only = self.sharing == Some(Sharing::Single { read_only: true });
        assert_eq!(title, "title");
        let seen = self.reader(reader, dialect);
        assert!(!std::mem::replace(&mut seen.greeted, true), "once");
        let role = match seen.role {
            Role::Writer if !is_read_only => AttachRole::Writer,
            _ => AttachRole::Viewer,
        };
        let mut expected = vec![AttachEvent::Role(role)];
        expected.extend(size.map(AttachEvent::Size));
        if !is_single {
            let (writer, viewers) = clients.clone();
            expected.push(AttachEvent::Clients { writer, viewers });
        }
        assert_eq!(events, expected);
        (seen.size, seen.clients) = (size, Some(clients));
    }

    fn tell(&mut self, reader: ClientId, dialect: Dialect, event: &AttachEvent) {
        assert!(!self.congested.contains(&reader), "{reader} is congested");
        let (now, exited) = (self.now, self.exited);
        let (size, clients) = (self.size, self.clients());
        let is_shared = self.sharing == Some(Sharing::Shared);
        let seen = self.reader(reader, dialect);
        assert!(seen.greeted);
        match event {
            AttachEvent::Size(new) => {
                assert_eq!(Some(*new), size);
                assert_ne!(seen.size.replace(*new), size, "only a change is told");
            }
            AttachEvent::Clients { writer, viewers } => {
                assert!(is_shared && !exited);
                assert_eq!((writer.clone(), *viewers), clients);
                let last = seen.clients_told.replace(now);
                assert!(last.is_none_or(|last| now.since(last) >= Duration::from_secs(1)));
                seen.clients = Some(clients);
            }
            other => panic!("{other:?}"),
        }
        self.count(reader);
    }

    fn output(
        &mut self,
        reader: ClientId,
        dialect: Dialect,
        stream: OutputStream,
        bytes: &[u8],
        end: u64,
    ) {
        assert!(!self.congested.contains(&reader), "{reader} is congested");
        let ignores_pauses = self.ignores_pauses;
        let seen = self.reader(reader, dialect);
        assert!(seen.greeted && (!seen.paused || ignores_pauses));
        let from = seen.at;
        let to = from + bytes.len() as u64;
        assert!(!bytes.is_empty() && to == end);
        let whole = &self.written[from as usize..to as usize];
        assert!(
            whole.iter().map(|(byte, _)| byte).eq(bytes)
                && whole.iter().all(|(_, of)| *of == stream),
            "{reader} gets the output from {from} on"
        );
        self.reader(reader, dialect).at = to;
        self.sent_to = self.sent_to.max(to);
        self.count(reader);
    }

    fn screen(&mut self, reader: ClientId, dialect: Dialect, data: String, offset: u64) {
        let seen = self.reader(reader, dialect);
        assert!(seen.greeted);
        let above = seen.screen.take().expect("it is to get a screen");
        seen.at = offset;
        self.sent_to = self.sent_to.max(offset);
        let shown = self.shown.as_mut().expect("the screen is kept");
        let expected = shown.follower.rebuild(&shown.output, above);
        assert_eq!((data, offset), expected);
    }

    fn gap(&mut self, reader: ClientId, dialect: Dialect, from: u64, to: u64) {
        assert!(from < to && to <= self.written.len() as u64);
        let seen = self.reader(reader, dialect);
        assert_eq!(seen.at, from, "a gap begins at the position of {reader}");
        assert!(seen.greeted);
        seen.at = to;
    }

    fn exit(&mut self, reader: ClientId, dialect: Dialect, _: ProgramExit) {
        assert!(!self.restarting);
        self.end(reader, dialect);
    }

    fn restart(&mut self, reader: ClientId, dialect: Dialect) {
        assert!(self.restarting);
        self.end(reader, dialect);
    }

    fn cut_off(&mut self, reader: ClientId) {
        let seen = self.readers.get_mut(&reader).expect("it was attached");
        assert!(!seen.is_done() && seen.role == Role::Viewer);
        seen.ended = true;
    }

    fn close(&mut self, reader: ClientId, code: CloseCode, _: &str) {
        assert_eq!(code, CloseCode::TAKEN_OVER);
        if let Some(seen) = self.readers.get_mut(&reader) {
            assert_eq!(seen.role, Role::Writer);
            // A writer that was sent the exit is being closed already.
            seen.ended = !seen.exit;
        }
    }
}

/// Applies any operations to the readers of a program: attach, output, exit, detach, takeover, congestion, pause, resize,
/// passing time, an upgrade of the server.
pub fn attachments(data: &[u8]) {
    let [options, plan @ ..] = data else { return };
    let sharing = match options & 0x18 {
        0 => Sharing::Single { read_only: true },
        8 => Sharing::Single { read_only: false },
        _ => Sharing::Shared,
    };
    let size = (options & 0x20 == 0).then(TerminalSize::default);
    let capacity = 4096 + usize::from(options >> 4) * 100;
    let waits = options & 0x40 == 0;
    let screens = (options & 0x80 != 0).then_some(SCREENS);
    let mut attachments = Attachments::new(capacity, sharing, size)
        .waiting_for_readers(waits)
        .with_screen(screens);
    let mut model = ReadersModel {
        room: 1 + usize::from(options & 7),
        sharing: Some(sharing),
        size,
        waits,
        shown: size.filter(|_| screens.is_some()).map(Shown::new),
        ..ReadersModel::default()
    };
    let mut next = 1;
    let mut writer_began = 0;
    let mut ended_streams = BTreeSet::new();
    for pair in plan.chunks_exact(2) {
        let (operation, argument) = (pair[0], usize::from(pair[1]));
        let clients: Vec<ClientId> = model.readers.keys().copied().collect();
        let chosen = clients.get(argument % clients.len().max(1)).copied();
        match (operation % 8, chosen) {
            (0 | 1, _) | (2, None) if !model.exited => {
                let stream = if operation & 0x80 == 0 {
                    OutputStream::Stdout
                } else {
                    OutputStream::Stderr
                };
                // The program waits for the writer, and for other readers if it is told so.
                if attachments.wants_output() {
                    let spare = attachments.spare(argument * 20);
                    let count = spare.len().min(argument * 20);
                    for byte in &mut spare[..count] {
                        *byte = (model.written.len() as u8).wrapping_mul(7) ^ operation;
                        model.written.push((*byte, stream));
                    }
                    let written = spare[..count].to_vec();
                    attachments.commit(stream, count);
                    if let Some(shown) = &mut model.shown {
                        shown.add(&written);
                    }
                }
                // Output may be collected for a while.
                if operation & 0x20 == 0 {
                    attachments.pump_all(&mut model);
                    model.unsent = false;
                } else {
                    model.unsent = true;
                }
            }
            (3 | 4, _) => {
                let role = [Role::Writer, Role::Viewer, Role::Listener][argument % 3];
                let taken = attachments.writer().is_some();
                // Without a takeover, a second writer is rejected before it is attached.
                if role == Role::Writer && taken && operation & 0x40 == 0 {
                    continue;
                }
                let dialect = match role {
                    Role::Listener => Dialect::EventStream(Details::All),
                    _ => [Dialect::Json, Dialect::Merged, Dialect::Text, Dialect::Tty]
                        [argument / 3 % 3],
                };
                let client: ClientId = format!("c{next}").parse().expect("an id");
                next += 1;
                let end = attachments.end();
                let since = end.min(argument as u64 * 50);
                let replay = Replay {
                    since: (operation & 8 == 0).then_some(since),
                    screen: (operation & 0x10 != 0).then_some(argument % 4),
                };
                let since = replay.since.unwrap_or(0);
                let misses = replay.since.is_none() || since < attachments.output().start();
                let gets_screen = model.shown.is_some() && misses;
                let seen = ReaderModel {
                    role,
                    dialect,
                    greeted: false,
                    size: None,
                    clients: None,
                    clients_told: None,
                    paused: false,
                    at: since,
                    exit: false,
                    ended: false,
                    screen: replay.screen.filter(|_| gets_screen),
                };
                model.readers.insert(client, seen);
                model.sent_to = model.sent_to.max(since);
                if role == Role::Writer {
                    model.writer = Some(client);
                }
                let new = NewReader {
                    client,
                    role,
                    dialect,
                    replay,
                    name: &name(client),
                    title: "title",
                };
                attachments.attach(new, &mut model);
                assert!(model.readers.values().all(|seen| seen.screen.is_none()));
                assert_eq!(attachments.writer(), model.writer);
                let takes_input = sharing != Sharing::Single { read_only: true };
                for other in model.readers.keys() {
                    let expected = takes_input && model.writer == Some(*other);
                    assert_eq!(attachments.takes_input_of(*other), expected);
                }
                if role == Role::Writer {
                    writer_began = attachments.output().start();
                }
            }
            (5, Some(client)) => {
                attachments.detach(client);
                model.readers.remove(&client);
                model.congested.remove(&client);
                model.writer = model.writer.filter(|writer| *writer != client);
                assert_eq!(attachments.writer(), model.writer);
            }
            (2, Some(_)) if argument & 1 == 0 => {
                let size = TerminalSize {
                    rows: 1 + argument as u16 / 64,
                    cols: 80,
                };
                model.size = Some(size);
                if let Some(shown) = &mut model.shown {
                    shown.follower.resize(&shown.output, size);
                }
                attachments.resize(size, &mut model);
            }
            (2, Some(client)) => {
                let paused = argument & 2 == 0;
                attachments.set_paused(client, paused);
                if let Some(seen) = model.readers.get_mut(&client) {
                    seen.paused = paused;
                }
                if !paused {
                    attachments.pump(client, &mut model);
                }
            }
            (6, Some(client)) if model.congested.remove(&client) => {
                attachments.pump(client, &mut model);
            }
            (7, _) if argument > 250 && !model.exited => {
                model.exited = true;
                model.ignores_pauses = true;
                let exit = ProgramExit {
                    code: 7,
                    signal: None,
                };
                model.restarting = argument.is_multiple_of(2);
                if model.restarting {
                    attachments.begin_restart();
                }
                attachments.handle_exit(exit, &mut model);
            }
            (7, _) if argument > 225 && operation & 0x40 != 0 => {
                // Streams of events end before an upgrade.
                for client in clients {
                    let role = model.readers.get(&client).map(|reader| reader.role);
                    if role == Some(Role::Listener) {
                        attachments.detach(client);
                        model.readers.remove(&client);
                        model.congested.remove(&client);
                    }
                }
                attachments.pump_all(&mut model);
                model.unsent = false;
                attachments.make_portable();
                attachments = restored(&attachments);
                if let (Some(shown), Some(_)) = (&mut model.shown, model.size) {
                    shown.pass_on(attachments.resizes() > 0);
                }
            }
            (7, _) if argument > 240 => {
                if std::mem::take(&mut model.waits) {
                    let in_pipes = 128 << 10;
                    model.kept = Some((model.must_keep_from(), attachments.end() + in_pipes));
                }
                attachments.stop_waiting();
                model.ignores_pauses = true;
                attachments.end_pauses(&mut model);
                model.unsent = false;
            }
            (7, _) => {
                model.now = model.now + Duration::from_millis(argument as u64 * 20);
                attachments.tell_clients(model.now, &mut model);
                let view = attachments.view(argument % 4, Format::Text);
                assert_eq!(view.is_some(), model.shown.is_some());
            }
            _ => {}
        }
        check(&attachments, &model, writer_began);
        ended_streams.extend(attachments.take_ended_streams());
        let listeners = |seen: &ReaderModel| seen.role == Role::Listener && seen.exit;
        let missing = model
            .readers
            .iter()
            .find(|(client, seen)| listeners(seen) && !ended_streams.contains(client));
        assert!(missing.is_none(), "{missing:?} has an ended stream");
        let known = |client| model.readers.get(client).is_none_or(listeners);
        assert!(
            ended_streams.iter().all(known),
            "only listeners that were sent the exit"
        );
    }
    // Readers that read everything get to the end, and know who is attached.
    attachments.pump_all(&mut model);
    for client in model.readers.keys().copied().collect::<Vec<_>>() {
        attachments.set_paused(client, false);
        if let Some(seen) = model.readers.get_mut(&client) {
            seen.paused = false;
        }
        model.congested.insert(client);
        while model.congested.remove(&client) {
            attachments.pump(client, &mut model);
        }
        let seen = &model.readers[&client];
        assert!(seen.ended || seen.at == model.written.len() as u64);
        assert_eq!(seen.exit, model.exited && !seen.ended);
    }
    model.now = model.now + Duration::from_secs(2);
    attachments.tell_clients(model.now, &mut model);
    model.congested.clear();
    model.now = model.now + Duration::from_secs(2);
    attachments.tell_clients(model.now, &mut model);
    assert_eq!(attachments.deadline(), None);
    check(&attachments, &model, writer_began);
    for client in model.readers.keys() {
        attachments.detach(*client);
    }
    assert_eq!(attachments.deadline(), None, "nobody has to be told");
    assert_eq!(
        (attachments.writer(), attachments.reader_count()),
        (None, 0)
    );
}

fn check(attachments: &Attachments, model: &ReadersModel, writer_began: u64) {
    let end = attachments.end();
    assert_eq!(end, model.written.len() as u64);
    for (client, seen) in &model.readers {
        let waits = !seen.is_done() && (seen.at < end || model.exited);
        assert!(
            !waits
                || model.unsent
                || model.congested.contains(client)
                || (seen.paused && !model.ignores_pauses),
            "{client} is not congested and gets all output"
        );
        assert!(
            seen.is_done() || model.congested.contains(client) || seen.size == model.size,
            "{client} knows the size"
        );
        let knows_clients = seen.is_done() || seen.clients == Some(model.clients());
        assert!(
            knows_clients
                || model.exited
                || model.sharing != Some(Sharing::Shared)
                || attachments.deadline().is_some(),
            "{client} knows or will learn who is attached"
        );
    }
    if let Some(seen) = attachments
        .writer()
        .and_then(|writer| model.readers.get(&writer))
    {
        let start = attachments.output().start();
        assert!(
            seen.at >= start || start == writer_began,
            "the writer misses no output"
        );
    }
    let start = attachments.output().start();
    if model.waits {
        assert!(
            start <= model.must_keep_from(),
            "no output is dropped that the program waits for"
        );
    }
    if let Some((from, until)) = model.kept {
        assert!(end > until || start <= from, "the rest is kept, too");
    }
    let writers = model
        .readers
        .values()
        .filter(|seen| seen.role == Role::Writer && !seen.ended && !seen.exit);
    assert!(writers.count() <= 1, "one writer");
    let mut known = BTreeSet::new();
    attachments.clients(&mut |client| assert!(known.insert(client), "{client} is visited once"));
    let live = model.readers.iter().filter(|(_, seen)| !seen.is_done());
    assert!(
        live.map(|(client, _)| client).eq(&known),
        "no other readers"
    );
}

/// Reads any bytes as a message of a client of each dialect, as binary and as text.
fn client_messages(data: &[u8]) {
    let text = std::str::from_utf8(data).ok();
    for dialect in [Dialect::Json, Dialect::Merged, Dialect::Text, Dialect::Tty] {
        let binary = dialect.read(Message::Binary(data));
        let input = match dialect {
            Dialect::Tty => data.strip_prefix(b"0"),
            _ => Some(data),
        };
        let is_input = matches!(binary, Ok(ClientMessage::Input(_)));
        assert_eq!(is_input, input.is_some());
        if let Ok(ClientMessage::Input(read)) = binary {
            assert_eq!(Some(read), input);
        }
        let Some(text) = text else { continue };
        let read = dialect.read(Message::Text(text));
        match dialect {
            Dialect::Json | Dialect::Merged => {
                assert!(!matches!(read, Ok(ClientMessage::Input(_))))
            }
            _ => assert_eq!(read, binary, "text and binary are the same"),
        }
        if let Ok(ClientMessage::Resize(size)) = read {
            assert!(size.rows > 0 && size.cols > 0);
        }
    }
}

/// Reads any bytes as a message of a client. A resize must survive a round trip.
pub fn control(data: &[u8]) {
    client_messages(data);
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Some(control @ Control::Resize(size)) = Control::parse(text) {
        assert!(size.rows > 0 && size.cols > 0 && text.contains("resize"));
        assert_eq!(Control::parse(&control.to_json()), Some(control));
    }
}

/// Parses any bytes as the path and the body of a call.
pub fn process_calls(data: &[u8]) {
    let (path, body) = data.split_at(data.len().min(60));
    if let Ok(path) = std::str::from_utf8(path)
        && let Ok(call) = Call::read("POST", path)
    {
        assert!(path.is_empty() || path.starts_with('/'));
        let is_short = path.len() < "/by-name/".len();
        assert!(call.process().is_none() || !is_short);
    }
    let mut requests = Vec::new();
    for compat in [Compat::None, Compat::KernelImages] {
        let spawned = read_spawn(body, compat);
        let executed = read_exec(body, 1000, compat).map(|(request, most)| {
            assert!(most <= 1000);
            request
        });
        assert!(
            spawned.is_err() || executed.is_ok() || compat != Compat::None,
            "exec accepts every body that spawn accepts"
        );
        requests.extend([spawned, executed]);
        let _ = read_data(body, compat).is_ok() && read_size(body, compat).is_ok();
        let _ = read_signal(body, compat);
    }
    if let Ok(bytes) = read_input(body, KeyModes::default()) {
        // A key is at most a few bytes, and a paste without brackets is no longer than its text.
        assert!(bytes.len() <= 8 * body.len());
    }
    let _ = Wait::read(body, Time::default());
    assert!(
        requests[0].is_err() || requests[2].is_ok(),
        "kernel-images accepts more"
    );
    for request in requests.into_iter().flatten() {
        assert!(!request.command[0].is_empty());
        assert!(request.terminal.is_some() || !request.record);
        let words = request
            .command
            .iter()
            .chain(request.env.iter().map(|(name, _)| name));
        assert!(words.into_iter().all(|word| !word.contains('\0')));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    #[test]
    fn random_operations_on_readers() {
        let mut random = Random::new(72);
        for _ in 0..rounds(600) {
            attachments(&random.bytes(400));
        }
    }

    #[test]
    fn random_control_messages_and_calls() {
        let mut random = Random::new(73);
        for good in [
            &br#"{"type":"resize","rows":24,"cols":80}"#[..],
            br#"{"AuthToken":"T","columns":80,"rows":24}"#,
            br#"1{"columns":80,"rows":24}"#,
            b"0ls",
            br#"/spawn                                                      {"command":"sh","args":["a"],"env":{"A":"b"},"cwd":"/","rows":1}"#,
            br#"/spawn                                                      {"command":"sh","allocate_tty":true,"record":true,"cols":9}"#,
            br#"/1/input                                                    {"text":"ls","keys":["Enter","C-c","S-F5"],"paste":"\u001bq"}"#,
            br#"/1/wait                                                     {"text":"a","regex":"^a{2}(b|c)$","idle_ms":9,"timeout_ms":99}"#,
        ] {
            for _ in 0..rounds(3000) {
                let mut data = good.to_vec();
                for _ in 0..random.below(4) {
                    let at = random.below(data.len());
                    data[at] = random.byte();
                }
                control(&data);
                process_calls(&data);
            }
        }
    }
}
