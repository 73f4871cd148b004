//! All programs of a service: whose event is whose, what is due when, who reads which.
//!
//! Work that many clients can cause at once is done in bounded pieces, one in a turn of the loop: starting programs, and
//! looking for what programs that are being ended have left behind.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::time::Duration;

use uuid::Uuid;

use super::attach::Role;
use super::control::{self, Control};
use super::program::{Launch, MARK, Program};
use super::sink::{Sink, Sockets};
use crate::sys::{Families, SystemProcesses};
use crate::{ClientId, Context, Message, Readiness, SourceId, Time, TimerId};

/// The most programs that are started in one turn of the loop. Each is waited for until the system has given it a
/// processor to execute on, which takes milliseconds where many want one.
const STARTS_PER_TURN: usize = 1;

/// The most processes that are looked at in one turn of the loop, at some 100 microseconds each.
const LOOKS_PER_TURN: usize = 24;

/// The shortest time that is waited for: until the next turn.
const NEXT_TURN: Duration = Duration::from_millis(1);

/// Between the end of one walk through the processes and the next.
const WALK_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct Entry {
    program: Program,
    /// All that its events come from, for it to be forgotten.
    sources: Vec<SourceId>,
    /// Clients that have attached and are not gone.
    readers: BTreeSet<ClientId>,
    /// When it is forgotten after its end.
    expires: Option<Time>,
    /// Its place among the deadlines.
    deadline: Option<Time>,
    /// Whether its end was seen.
    ended: bool,
    /// Whether its end was told.
    told: bool,
    /// Whether it was told that nothing of it is left.
    told_gone: bool,
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
    gone: Vec<Uuid>,
    /// The turn in which programs were last started, and how many.
    starts: (Time, usize),
    /// When the service goes on with what it has put off.
    wake_at: Option<Time>,
    /// What programs that are being ended have started.
    families: Families,
    /// When the next piece of a walk is due, and the earliest time of another walk.
    walk_at: Option<Time>,
    rested_at: Time,
}

impl Programs {
    /// Whether another program may be started in this turn. If not, the service's timer comes in the next one.
    pub(crate) fn may_start(&mut self, ctx: &mut Context) -> bool {
        let now = ctx.now();
        if self.starts.0 != now {
            self.starts = (now, 0);
        }
        let may = self.starts.1 < STARTS_PER_TURN;
        if !may {
            self.wake(ctx);
        }
        may
    }

    /// Sets the service's timer for the next turn.
    pub(crate) fn wake(&mut self, ctx: &mut Context) {
        self.wake_at = Some(ctx.now() + NEXT_TURN);
        self.arm(ctx);
    }

    /// Starts a program.
    pub(crate) fn start(
        &mut self,
        ctx: &mut Context,
        launch: Launch,
        sink: Sink,
    ) -> io::Result<Uuid> {
        // One that cannot be started has cost as much.
        self.starts.1 += 1;
        let program = Program::start(ctx, launch, sink)?;
        let id = program.id;
        let sources: Vec<SourceId> = program.sources().collect();
        self.sources
            .extend(sources.iter().map(|source| (*source, id)));
        let entry = Entry {
            program,
            sources,
            readers: BTreeSet::new(),
            expires: None,
            deadline: None,
            ended: false,
            told: false,
            told_gone: false,
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

    /// Takes the programs that have ended as requested, without readers and without remaining processes, since the last
    /// call.
    pub(crate) fn take_gone(&mut self) -> Vec<Uuid> {
        std::mem::take(&mut self.gone)
    }

    /// Whether nothing is left of any program that was to end.
    pub(crate) fn are_gone(&self) -> bool {
        self.entries
            .iter()
            .all(|(id, entry)| self.is_gone(*id, entry))
    }

    fn is_gone(&self, id: Uuid, entry: &Entry) -> bool {
        entry.program.is_finished() && (!entry.program.is_ending() || self.families.is_gone(id))
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
        for reader in &entry.readers {
            self.readers.remove(reader);
        }
        self.families.remove(id);
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
    pub(crate) fn look_around(&mut self, ctx: &mut Context) {
        self.families.look_again();
        self.plan_walk(ctx);
    }

    /// Schedules a piece of a walk for a later turn, if one is needed.
    fn plan_walk(&mut self, ctx: &mut Context) {
        if self.walk_at.is_none() && self.families.has_work() {
            self.walk_at = Some((ctx.now() + NEXT_TURN).max(self.rested_at));
            self.arm(ctx);
        }
    }

    /// Makes a piece of a walk.
    fn walk(&mut self, ctx: &mut Context) {
        let mut table = SystemProcesses { variable: MARK };
        if self.families.walk(&mut table, LOOKS_PER_TURN) {
            self.rested_at = ctx.now() + WALK_PAUSE;
            let ids: Vec<Uuid> = self.entries.keys().copied().collect();
            ids.into_iter().for_each(|id| self.tell_gone(id));
        }
        self.plan_walk(ctx);
    }

    fn tell_gone(&mut self, id: Uuid) {
        let Some(entry) = self.entries.get(&id) else {
            return;
        };
        let ends = entry.program.is_ending() && !entry.program.sink.is_read();
        if ends && !entry.told_gone && self.is_gone(id, entry) {
            self.gone.push(id);
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.told_gone = true;
            }
        }
    }

    pub(crate) fn end_all(&mut self, ctx: &mut Context) {
        self.end_those(ctx, |_| true);
    }

    /// Ends those of which this is true.
    pub(crate) fn end_those(&mut self, ctx: &mut Context, which: impl Fn(&Program) -> bool) {
        let entries = self.entries.iter();
        let ids: Vec<Uuid> = entries
            .filter(|(_, entry)| which(&entry.program))
            .map(|(id, _)| *id)
            .collect();
        ids.into_iter().for_each(|id| self.end(ctx, id));
    }

    /// Whether a client still has to be sent output of a program, or its end.
    pub(crate) fn delivers_to(&self, client: ClientId) -> bool {
        let program = self.read_by(client).and_then(|id| self.get(id));
        program.is_some_and(|program| program.sink.is_read_by(client))
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
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.readers.insert(client);
            self.readers.insert(client, id);
        }
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
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.readers.remove(&client);
        }
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
        self.wake_at = self.wake_at.filter(|at| *at > now);
        if self.walk_at.is_some_and(|at| at <= now) {
            self.walk_at = None;
            self.walk(ctx);
        }
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
        if let Some(signal) = entry.program.take_pending_signal() {
            let head = entry.program.exit().is_none().then(|| entry.program.pid());
            self.families.end(id, head, signal);
        }
        if entry.program.exit().is_some() && !std::mem::replace(&mut entry.ended, true) {
            self.families.head_has_ended(id);
        }
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
        self.tell_gone(id);
        self.plan_walk(ctx);
        self.arm(ctx);
    }

    fn arm(&mut self, ctx: &mut Context) {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let first = [deadline, self.wake_at, self.walk_at];
        let Some(first) = first.into_iter().flatten().min() else {
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
