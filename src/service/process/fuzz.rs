//! Operations on the readers of a program: attach, output, exit, detach, takeover, readers that do not read.
//!
//! The model is simple: all output that there ever was, and for each reader what it was sent. After each operation what
//! a reader got has to be a piece of the whole, from where it began, with every gap announced.

use std::collections::{BTreeMap, BTreeSet};

use super::Exit;
use super::api::Details;
use super::attach::{Attachments, Role, Wires};
use super::control::{Control, parse};
use super::scrollback::Stream;
use crate::{ClientId, CloseCode};

/// What a reader was sent.
#[derive(Debug)]
struct Seen {
    role: Role,
    /// The offset that it has reached.
    at: u64,
    exit: bool,
    /// Whether it was cut off or taken over: nothing more comes.
    ended: bool,
}

/// All readers as the model sees them.
#[derive(Debug, Default)]
struct Model {
    written: Vec<(u8, Stream)>,
    seen: BTreeMap<ClientId, Seen>,
    congested: BTreeSet<ClientId>,
    /// How many messages each takes before it is congested.
    room: usize,
    sent: BTreeMap<ClientId, usize>,
    exited: bool,
    /// Whether output was written that was not sent on.
    gathered: bool,
}

impl Model {
    fn reader(&mut self, reader: ClientId, role: Role) -> &mut Seen {
        let seen = self.seen.get_mut(&reader).expect("it was attached");
        assert!(
            !seen.exit && !seen.ended,
            "{reader} gets nothing after its end"
        );
        assert_eq!(seen.role, role);
        seen
    }
}

impl Wires for Model {
    fn is_congested(&self, reader: ClientId) -> bool {
        self.congested.contains(&reader)
    }

    fn output(&mut self, reader: ClientId, role: Role, stream: Stream, bytes: &[u8], end: u64) {
        assert!(!self.congested.contains(&reader), "{reader} has enough");
        let from = self.reader(reader, role).at;
        let to = from + bytes.len() as u64;
        assert!(!bytes.is_empty() && to == end);
        let whole = &self.written[from as usize..to as usize];
        assert!(
            whole.iter().map(|(byte, _)| byte).eq(bytes)
                && whole.iter().all(|(_, of)| *of == stream),
            "{reader} gets what was written from {from} on"
        );
        self.reader(reader, role).at = to;
        let sent = self.sent.entry(reader).or_default();
        *sent += 1;
        if sent.is_multiple_of(self.room) {
            self.congested.insert(reader);
        }
    }

    fn gap(&mut self, reader: ClientId, role: Role, from: u64, to: u64) {
        assert!(from < to && to <= self.written.len() as u64);
        let seen = self.reader(reader, role);
        assert_eq!(seen.at, from, "a gap begins where {reader} stands");
        seen.at = to;
    }

    fn exit(&mut self, reader: ClientId, role: Role, _: Exit) {
        let all = self.written.len() as u64;
        let exited = self.exited;
        let seen = self.reader(reader, role);
        assert!(
            exited && seen.at == all,
            "the end comes after the last byte"
        );
        seen.exit = true;
    }

    fn cut_off(&mut self, reader: ClientId) {
        self.reader(reader, Role::Viewer).ended = true;
    }

    fn close(&mut self, reader: ClientId, code: CloseCode, _: &str) {
        assert_eq!(code, CloseCode(4001));
        if let Some(seen) = self.seen.get_mut(&reader) {
            assert_eq!(seen.role, Role::Writer);
            // One that has its end is being closed already.
            seen.ended = !seen.exit;
        }
    }
}

/// Any operations on the readers of a program.
pub fn attachments(data: &[u8]) {
    let [options, plan @ ..] = data else { return };
    let mut attachments = Attachments::new(4096 + usize::from(options >> 4) * 100);
    let mut model = Model {
        room: 1 + usize::from(options & 7),
        ..Model::default()
    };
    let mut next = 1;
    let mut writer_began = 0;
    for pair in plan.chunks_exact(2) {
        let (operation, argument) = (pair[0], usize::from(pair[1]));
        let clients: Vec<ClientId> = model.seen.keys().copied().collect();
        let chosen = clients.get(argument % clients.len().max(1)).copied();
        match (operation % 8, chosen) {
            (0 | 1, _) | (2, None) if !model.exited => {
                let stream = if operation & 0x80 == 0 {
                    Stream::Stdout
                } else {
                    Stream::Stderr
                };
                // The program waits for the writer, and for nobody else.
                if attachments.wants_output() {
                    let spare = attachments.spare(argument * 20);
                    let count = spare.len().min(argument * 20);
                    for byte in &mut spare[..count] {
                        *byte = (model.written.len() as u8).wrapping_mul(7) ^ operation;
                        model.written.push((*byte, stream));
                    }
                    attachments.commit(stream, count);
                }
                // Output may be gathered for a while.
                if operation & 0x20 == 0 {
                    attachments.pump_all(&mut model);
                    model.gathered = false;
                } else {
                    model.gathered = true;
                }
            }
            (3 | 4, _) => {
                let role = [Role::Writer, Role::Viewer, Role::Listener(Details::All)][argument % 3];
                let taken = attachments.writer().is_some();
                // Without a takeover a second writer is refused before it comes here.
                if role == Role::Writer && taken && operation & 0x40 == 0 {
                    continue;
                }
                let client: ClientId = format!("c{next}").parse().expect("an id");
                next += 1;
                let end = attachments.end();
                let since = end.min(argument as u64 * 50);
                let seen = Seen {
                    role,
                    at: since,
                    exit: false,
                    ended: false,
                };
                model.seen.insert(client, seen);
                attachments.attach(client, role, since, &mut model);
                if role == Role::Writer {
                    assert_eq!(attachments.writer(), Some(client));
                    writer_began = attachments.output().start();
                }
            }
            (5, Some(client)) => {
                attachments.detach(client);
                model.seen.remove(&client);
                model.congested.remove(&client);
                assert_ne!(attachments.writer(), Some(client));
            }
            (6, Some(client)) if model.congested.remove(&client) => {
                attachments.pump(client, &mut model);
            }
            (7, _) if argument > 250 && !model.exited => {
                model.exited = true;
                let exit = Exit {
                    code: 7,
                    signal: None,
                };
                attachments.handle_exit(exit, &mut model);
            }
            _ => {}
        }
        check(&attachments, &model, writer_began);
    }
    // Whoever reads to the end gets there.
    attachments.pump_all(&mut model);
    for client in model.seen.keys().copied().collect::<Vec<_>>() {
        while model.congested.remove(&client) {
            attachments.pump(client, &mut model);
        }
        let seen = &model.seen[&client];
        assert!(seen.ended || seen.at == model.written.len() as u64);
        assert_eq!(seen.exit, model.exited && !seen.ended);
        attachments.detach(client);
    }
    assert_eq!(
        (attachments.writer(), attachments.reader_count()),
        (None, 0)
    );
}

fn check(attachments: &Attachments, model: &Model, writer_began: u64) {
    let end = attachments.end();
    assert_eq!(end, model.written.len() as u64);
    for (client, seen) in &model.seen {
        let done = seen.exit || seen.ended;
        let waits = !done && (seen.at < end || model.exited);
        assert!(
            !waits || model.gathered || model.congested.contains(client),
            "{client} has room and gets all there is"
        );
    }
    if let Some(seen) = attachments
        .writer()
        .and_then(|writer| model.seen.get(&writer))
    {
        let start = attachments.output().start();
        assert!(
            seen.at >= start || start == writer_began,
            "the writer misses nothing"
        );
    }
    let writers = model
        .seen
        .values()
        .filter(|seen| seen.role == Role::Writer && !seen.ended && !seen.exit);
    assert!(writers.count() <= 1, "one writer");
}

/// Any text as a control message: taken only if it says all that a resize says.
pub fn control(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Some(Control::Resize(size)) = parse(text) {
        assert!(size.rows > 0 && size.cols > 0 && text.contains("resize"));
        let again = format!(
            r#"{{"type":"resize","rows":{},"cols":{}}}"#,
            size.rows, size.cols
        );
        assert_eq!(parse(&again), Some(Control::Resize(size)));
    }
}

/// Any bytes as the path and body of a call: read or refused, never a panic.
pub fn process_calls(data: &[u8]) {
    use super::api::{Call, read_data, read_exec, read_signal, read_size, read_spawn};
    let (path, body) = data.split_at(data.len().min(60));
    if let Ok(path) = std::str::from_utf8(path)
        && let Ok(call) = Call::read("POST", path)
    {
        assert!(path.is_empty() || path.starts_with('/'));
        assert_eq!(call.id().is_some(), path.len() > 36);
    }
    let spawned = read_spawn(body);
    let executed = read_exec(body, 1000).map(|(request, most)| {
        assert!(most <= 1000);
        request
    });
    assert!(
        spawned.is_err() || executed.is_ok(),
        "exec takes all that spawn takes"
    );
    for request in [spawned, executed].into_iter().flatten() {
        assert!(!request.command[0].is_empty());
        let words = request
            .command
            .iter()
            .chain(request.env.iter().map(|(name, _)| name));
        assert!(words.into_iter().all(|word| !word.contains('\0')));
    }
    let _ = (read_data(body), read_size(body), read_signal(body));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn operations_of_every_kind() {
        let mut random = Random::new(72);
        for _ in 0..600 {
            attachments(&random.bytes(400));
        }
    }

    #[test]
    fn control_messages_and_bodies_of_every_kind() {
        let mut random = Random::new(73);
        for good in [
            &br#"{"type":"resize","rows":24,"cols":80}"#[..],
            br#"/spawn                                                      {"command":"sh","args":["a"],"env":{"A":"b"},"cwd":"/","rows":1}"#,
        ] {
            for _ in 0..3000 {
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
