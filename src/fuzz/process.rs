//! Fuzz entry points of the process services: the readers of a program, control messages, and calls.
//!
//! The model of the readers is all output of the program, and what each reader was sent. After each operation, a reader
//! must have got the output from its start on, in order, with every gap announced. The readers that the code knows must
//! be those of the model.

use std::collections::{BTreeMap, BTreeSet};

use crate::service::process::Control;
use crate::service::process::attach::{Attachments, ReaderOutput, Role};
use crate::service::process::calls::{
    Call, read_data, read_exec, read_signal, read_size, read_spawn,
};
use crate::service::process::events::Details;
use crate::service::process::exit::ProgramExit;
use crate::service::process::scrollback::OutputStream;
use crate::{ClientId, CloseCode};

/// A reader in the model.
#[derive(Debug)]
struct ReaderModel {
    role: Role,
    /// The offset after the last byte that it was sent.
    at: u64,
    /// Whether it was sent the exit.
    exit: bool,
    /// Whether it was cut off or taken over.
    ended: bool,
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
    /// Whether there is output that has not been sent.
    unsent: bool,
}

impl ReadersModel {
    fn reader(&mut self, reader: ClientId, role: Role) -> &mut ReaderModel {
        let seen = self.readers.get_mut(&reader).expect("it was attached");
        assert!(!seen.is_done(), "{reader} gets nothing after its end");
        assert_eq!(seen.role, role);
        seen
    }
}

impl ReaderOutput for ReadersModel {
    fn is_congested(&self, reader: ClientId) -> bool {
        self.congested.contains(&reader)
    }

    fn output(
        &mut self,
        reader: ClientId,
        role: Role,
        stream: OutputStream,
        bytes: &[u8],
        end: u64,
    ) {
        assert!(!self.congested.contains(&reader), "{reader} is congested");
        let from = self.reader(reader, role).at;
        let to = from + bytes.len() as u64;
        assert!(!bytes.is_empty() && to == end);
        let whole = &self.written[from as usize..to as usize];
        assert!(
            whole.iter().map(|(byte, _)| byte).eq(bytes)
                && whole.iter().all(|(_, of)| *of == stream),
            "{reader} gets the output from {from} on"
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
        assert_eq!(seen.at, from, "a gap begins at the position of {reader}");
        seen.at = to;
    }

    fn exit(&mut self, reader: ClientId, role: Role, _: ProgramExit) {
        let all = self.written.len() as u64;
        let exited = self.exited;
        let seen = self.reader(reader, role);
        assert!(
            exited && seen.at == all,
            "the exit comes after the last byte"
        );
        seen.exit = true;
    }

    fn cut_off(&mut self, reader: ClientId) {
        self.reader(reader, Role::Viewer).ended = true;
    }

    fn close(&mut self, reader: ClientId, code: CloseCode, _: &str) {
        assert_eq!(code, CloseCode(4001));
        if let Some(seen) = self.readers.get_mut(&reader) {
            assert_eq!(seen.role, Role::Writer);
            // A writer that was sent the exit is being closed already.
            seen.ended = !seen.exit;
        }
    }
}

/// Applies any operations to the readers of a program: attach, output, exit, detach, takeover, congestion.
pub fn attachments(data: &[u8]) {
    let [options, plan @ ..] = data else { return };
    let mut attachments = Attachments::new(4096 + usize::from(options >> 4) * 100);
    let mut model = ReadersModel {
        room: 1 + usize::from(options & 7),
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
                // The program waits for the writer and for no other reader.
                if attachments.wants_output() {
                    let spare = attachments.spare(argument * 20);
                    let count = spare.len().min(argument * 20);
                    for byte in &mut spare[..count] {
                        *byte = (model.written.len() as u8).wrapping_mul(7) ^ operation;
                        model.written.push((*byte, stream));
                    }
                    attachments.commit(stream, count);
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
                let role = [Role::Writer, Role::Viewer, Role::Listener(Details::All)][argument % 3];
                let taken = attachments.writer().is_some();
                // Without a takeover, a second writer is rejected before it is attached.
                if role == Role::Writer && taken && operation & 0x40 == 0 {
                    continue;
                }
                let client: ClientId = format!("c{next}").parse().expect("an id");
                next += 1;
                let end = attachments.end();
                let since = end.min(argument as u64 * 50);
                let seen = ReaderModel {
                    role,
                    at: since,
                    exit: false,
                    ended: false,
                };
                model.readers.insert(client, seen);
                attachments.attach(client, role, since, &mut model);
                if role == Role::Writer {
                    assert_eq!(attachments.writer(), Some(client));
                    writer_began = attachments.output().start();
                }
            }
            (5, Some(client)) => {
                attachments.detach(client);
                model.readers.remove(&client);
                model.congested.remove(&client);
                assert_ne!(attachments.writer(), Some(client));
            }
            (6, Some(client)) if model.congested.remove(&client) => {
                attachments.pump(client, &mut model);
            }
            (7, _) if argument > 250 && !model.exited => {
                model.exited = true;
                let exit = ProgramExit {
                    code: 7,
                    signal: None,
                };
                attachments.handle_exit(exit, &mut model);
            }
            _ => {}
        }
        check(&attachments, &model, writer_began);
        ended_streams.extend(attachments.take_ended_streams());
        let listeners = |seen: &ReaderModel| matches!(seen.role, Role::Listener(_)) && seen.exit;
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
    // Readers that read everything get to the end.
    attachments.pump_all(&mut model);
    for client in model.readers.keys().copied().collect::<Vec<_>>() {
        while model.congested.remove(&client) {
            attachments.pump(client, &mut model);
        }
        let seen = &model.readers[&client];
        assert!(seen.ended || seen.at == model.written.len() as u64);
        assert_eq!(seen.exit, model.exited && !seen.ended);
        attachments.detach(client);
    }
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
            !waits || model.unsent || model.congested.contains(client),
            "{client} is not congested and gets all output"
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

/// Parses any text as a control message. A resize must survive a round trip.
pub fn control(data: &[u8]) {
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
        assert_eq!(call.id().is_some(), path.len() > 36);
    }
    let spawned = read_spawn(body);
    let executed = read_exec(body, 1000).map(|(request, most)| {
        assert!(most <= 1000);
        request
    });
    assert!(
        spawned.is_err() || executed.is_ok(),
        "exec accepts every body that spawn accepts"
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
    fn random_operations_on_readers() {
        let mut random = Random::new(72);
        for _ in 0..600 {
            attachments(&random.bytes(400));
        }
    }

    #[test]
    fn random_control_messages_and_calls() {
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
