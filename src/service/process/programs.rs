//! All programs of a service: whose event is whose, what is due when, who reads which.

use std::collections::{BTreeSet, HashMap};
use std::io;

use uuid::Uuid;

use super::attach::Role;
use super::control::{self, Control};
use super::program::{Launch, Program};
use super::sink::{Sink, Sockets};
use crate::{ClientId, Context, Message, Readiness, SourceId, Time, TimerId};

#[derive(Debug)]
struct Entry {
    program: Program,
    /// All that its events come from, for it to be forgotten.
    sources: Vec<SourceId>,
    /// When it is forgotten after its end.
    expires: Option<Time>,
    /// Its place among the deadlines.
    deadline: Option<Time>,
    /// Whether its end was told.
    told: bool,
}

/// Programs by their ids.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    entries: HashMap<Uuid, Entry>,
    sources: HashMap<SourceId, Uuid>,
    readers: HashMap<ClientId, Uuid>,
    deadlines: BTreeSet<(Time, Uuid)>,
    /// The timer for the first deadline.
    timer: Option<(Time, TimerId)>,
    finished: Vec<Uuid>,
}

impl Programs {
    /// Starts a program.
    pub(crate) fn start(
        &mut self,
        ctx: &mut Context,
        launch: Launch,
        sink: Sink,
    ) -> io::Result<Uuid> {
        let program = Program::start(ctx, launch, sink)?;
        let id = program.id;
        let sources: Vec<SourceId> = program.sources().collect();
        self.sources
            .extend(sources.iter().map(|source| (*source, id)));
        let entry = Entry {
            program,
            sources,
            expires: None,
            deadline: None,
            told: false,
        };
        self.entries.insert(id, entry);
        self.settle(ctx, id);
        Ok(id)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&self, id: Uuid) -> Option<&Program> {
        self.entries.get(&id).map(|entry| &entry.program)
    }

    pub(crate) fn get_mut(&mut self, id: Uuid) -> Option<&mut Program> {
        self.entries.get_mut(&id).map(|entry| &mut entry.program)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Program> {
        self.entries.values().map(|entry| &entry.program)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Program> {
        self.entries.values_mut().map(|entry| &mut entry.program)
    }

    /// The program that a client is attached to.
    pub(crate) fn read_by(&self, client: ClientId) -> Option<Uuid> {
        self.readers.get(&client).copied()
    }

    /// Programs that have ended, with all their output read, since the last call.
    pub(crate) fn take_finished(&mut self) -> Vec<Uuid> {
        std::mem::take(&mut self.finished)
    }

    /// Forgets a program at a time, unless someone still reads it then.
    pub(crate) fn expire(&mut self, ctx: &mut Context, id: Uuid, at: Time) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.expires = Some(at);
        }
        self.settle(ctx, id);
    }

    /// Takes a program out. It is killed if it still runs.
    pub(crate) fn remove(&mut self, ctx: &mut Context, id: Uuid) -> Option<Program> {
        let mut entry = self.entries.remove(&id)?;
        for source in &entry.sources {
            self.sources.remove(source);
        }
        entry.program.forget(ctx);
        self.readers.retain(|_, program| *program != id);
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        Some(entry.program)
    }

    /// Does something to a program, and what follows from it.
    pub(crate) fn with(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        change: impl FnOnce(&mut Program, &mut Context),
    ) {
        if let Some(program) = self.get_mut(id) {
            change(program, ctx);
            self.settle(ctx, id);
        }
    }

    /// Ends a program and what it leaves behind, step by step.
    pub(crate) fn end(&mut self, ctx: &mut Context, id: Uuid) {
        self.with(ctx, id, |program, ctx| program.end(ctx.now()));
    }

    /// Looks again for what programs that are being ended have left behind.
    pub(crate) fn look_around(&mut self) {
        self.entries
            .values_mut()
            .for_each(|entry| entry.program.look_around());
    }

    pub(crate) fn end_all(&mut self, ctx: &mut Context) {
        let ids: Vec<Uuid> = self.entries.keys().copied().collect();
        ids.into_iter().for_each(|id| self.end(ctx, id));
    }

    // Readers.

    pub(crate) fn attach(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        client: ClientId,
        role: Role,
        since: u64,
    ) {
        self.readers.insert(client, id);
        self.with(ctx, id, |program, ctx| {
            if let Some(attachments) = program.sink.attachments() {
                attachments.attach(client, role, since, &mut Sockets(ctx));
            }
            program.read_all(ctx);
        });
    }

    /// A client is gone. Returns the program that it was attached to.
    pub(crate) fn detach(&mut self, ctx: &mut Context, client: ClientId) -> Option<Uuid> {
        let id = self.readers.remove(&client)?;
        self.with(ctx, id, |program, ctx| {
            if let Some(attachments) = program.sink.attachments() {
                attachments.detach(client);
            }
            program.read_all(ctx);
        });
        Some(id)
    }

    /// A client has room again.
    pub(crate) fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        let Some(id) = self.read_by(client) else {
            return;
        };
        self.with(ctx, id, |program, ctx| {
            if let Some(attachments) = program.sink.attachments() {
                attachments.pump(client, &mut Sockets(ctx));
            }
            program.read_all(ctx);
        });
    }

    /// Handles what an attached client sends: binary is input, text is control.
    pub(crate) fn message(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        message: Message<'_>,
        read_only: bool,
    ) {
        let Some(id) = self.read_by(client) else {
            return;
        };
        self.with(ctx, id, |program, ctx| {
            let writes = program
                .sink
                .attachments()
                .is_some_and(|attachments| attachments.writer() == Some(client));
            match message {
                Message::Binary(_) if read_only || !writes => {
                    log::debug!("{client} may not write: input ignored");
                }
                Message::Binary(bytes) => {
                    // Who is behind with much is not read any more, so what waits is little more than a message.
                    program.push_input(ctx, bytes);
                }
                Message::Text(text) => match control::parse(text) {
                    Some(Control::Resize(size)) if writes => {
                        if let Err(error) = program.resize(size) {
                            log::debug!("resizing the terminal of {client} failed: {error}");
                        }
                    }
                    Some(Control::Resize(_)) => {
                        log::debug!("{client} only watches: resize ignored");
                    }
                    None => {
                        // It may be what was typed, passwords too, so it is not shown.
                        log::warn!(
                            "{client} sent a text message of {} bytes that is no control message; ignored",
                            text.len()
                        );
                    }
                },
            }
        });
    }

    // Events.

    pub(crate) fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        let Some(&id) = self.sources.get(&source) else {
            return;
        };
        self.with(ctx, id, |program, ctx| {
            program.handle_ready(ctx, source, readiness)
        });
    }

    /// Handles the timer for the first deadline.
    pub(crate) fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        if self.timer.is_none_or(|(_, ours)| ours != timer) {
            return;
        }
        self.timer = None;
        let now = ctx.now();
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            entry.deadline = None;
            entry.program.handle_timeout(ctx);
            if entry.expires.is_some_and(|at| at <= now) {
                let attachments = entry.program.sink.attachments();
                if attachments.is_none_or(|readers| readers.reader_count() == 0) {
                    self.remove(ctx, id);
                    continue;
                }
                // Who still reads is waited for once more.
                entry.expires = Some(now + super::processes::READING_ON);
            }
            self.settle(ctx, id);
        }
        self.arm(ctx);
    }

    /// Does what follows from any change of a program: whether its writer is read, its deadline, its end.
    fn settle(&mut self, ctx: &mut Context, id: Uuid) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if entry.program.is_finished() && !std::mem::replace(&mut entry.told, true) {
            self.finished.push(id);
        }
        let behind = entry.program.is_behind();
        let writer = entry
            .program
            .sink
            .attachments()
            .and_then(|readers| readers.writer());
        if let Some(writer) = writer {
            ctx.set_held(writer, behind);
        }
        let next = [entry.program.deadline(), entry.expires]
            .into_iter()
            .flatten()
            .min();
        if entry.deadline != next {
            if let Some(deadline) = std::mem::replace(&mut entry.deadline, next) {
                self.deadlines.remove(&(deadline, id));
            }
            self.deadlines.extend(next.map(|next| (next, id)));
        }
        self.arm(ctx);
    }

    fn arm(&mut self, ctx: &mut Context) {
        let Some(&(first, _)) = self.deadlines.first() else {
            return;
        };
        if let Some((at, timer)) = self.timer {
            if at <= first {
                return;
            }
            ctx.cancel_timer(timer);
        }
        self.timer = Some((first, ctx.set_timer(first.since(ctx.now()))));
    }
}
