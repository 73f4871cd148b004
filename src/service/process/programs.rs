//! The programs of a service: passes events to them, keeps their deadlines, and knows which client reads which program.
//!
//! Walking the process trees of programs that are being stopped, which many clients can cause at once, is done in bounded steps,
//! one in each turn of the loop.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use uuid::Uuid;

use super::attach::{NewReader, Replay, Role};
use super::dialect::{ClientMessage, Dialect, log_failed_resize};
use super::program::{Launch, Program, SavedStreams};
use super::recording::Recorder;
use super::sink::{ContextOutput, Sink};
use crate::record::{Loader, Read, RecordError, RecordWith, Saver, Set, object, record};
use crate::service::child::{ChildIndex, ChildInput};
use crate::service::deadlines::Alarm;
use crate::service::id_map::IdMap;
use crate::sys::{ProcessTrees, SystemProcessTable, TerminalSize};
use crate::{ClientId, Context, Message, Readiness, SourceId, Time, TimerId};

/// The maximum number of processes that one turn of the loop inspects. Each takes about 100 microseconds.
const VISITS_PER_TURN: usize = 24;

/// The cost of ending a pause, in units of [`Context::spend`]: a write.
const RESUME: usize = 20;

/// The shortest timer: until the next turn of the loop.
const NEXT_TURN: Duration = Duration::from_millis(1);

/// The pause between the end of one walk and the start of the next.
const WALK_PAUSE: Duration = Duration::from_millis(20);

/// How much longer an expired program is kept for its readers.
const READER_GRACE: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Entry {
    program: Program,
    /// Whether the end of its start has been added to `Agenda::settled`.
    settled: bool,
    /// When it is removed after its exit.
    expires: Option<Time>,
    /// Its key in `Agenda::deadlines`.
    deadline: Option<Time>,
    /// Whether its exit has been noticed.
    exited: bool,
    /// Whether it has been added to `Agenda::finished`.
    reported_finished: bool,
    /// Whether it has been added to `Agenda::gone`.
    reported_gone: bool,
}

record!(Entry {
    program,
    // What becomes known later is new to the next program.
    settled = !Program::is_starting(&program),
    expires,
    // The agenda is made anew.
    deadline = None,
    exited,
    reported_finished,
    reported_gone,
});

impl Entry {
    /// Takes over a program that another server has started.
    fn continued(
        ctx: &mut Context,
        recorder: Option<&Recorder>,
        from: &mut Loader,
    ) -> Result<Self, RecordError> {
        let (mut entry, mut streams, mut recording) = (None, None::<SavedStreams>, None);
        let mut read_recording = Read(|from: &mut Loader| match recorder {
            Some(recorder) => {
                recording = Some(RecordWith::restore(from, recorder)?);
                Ok(())
            }
            None => from.skip(),
        });
        object!(from {
            entry,
            streams,
            recording: read_recording,
        })?;
        let mut entry: Self = entry.ok_or_else(RecordError::missing)?;
        let streams = streams.ok_or_else(RecordError::missing)?;
        if !from.is_rehearsal() {
            let continued = entry.program.continue_with(ctx, streams, recording);
            let failed = |error| RecordError::new(format!("cannot watch the process: {error}"));
            continued.map_err(failed)?;
        }
        Ok(entry)
    }
}

/// The programs of a service by their ids.
///
/// A service calls `ready`, `timer`, `message`, `drained` and `detach` for its events, and takes the results with
/// `take_settled`, `take_finished` and `take_gone`.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    entries: IdMap<Uuid, Entry>,
    index: ChildIndex<Uuid>,
    /// The program of each client that is attached. A listener is removed when its stream ends, any other client when it
    /// disconnects, which may be after its program is removed.
    readers: IdMap<ClientId, Uuid>,
    agenda: Agenda,
}

/// Pending work for all programs: their deadlines, the next walk of process trees, and what the service has to be told.
#[derive(Debug, Default)]
struct Agenda {
    deadlines: BTreeSet<(Time, Uuid)>,
    /// Goes off at the first deadline.
    alarm: Alarm,
    settled: Vec<Uuid>,
    finished: Vec<Uuid>,
    gone: Vec<Uuid>,
    /// When the service continues work that it has put off.
    wake_at: Option<Time>,
    /// The process trees of programs that are being stopped.
    trees: ProcessTrees,
    /// When the next step of a walk is due.
    walk_at: Option<Time>,
    /// The earliest time of the next walk.
    next_walk: Time,
}

impl Agenda {
    /// Updates what depends on a program after any change: its deadline, its exit, and whether it is gone.
    fn update(&mut self, ctx: &mut Context, id: Uuid, entry: &mut Entry) {
        if !entry.program.is_starting() && !std::mem::replace(&mut entry.settled, true) {
            self.settled.push(id);
        }
        if let Some(signal) = entry.program.take_tree_signal() {
            let root = entry.program.exit().is_none().then(|| entry.program.pid());
            self.trees.signal(id, root, signal);
        }
        if entry.program.exit().is_some() && !std::mem::replace(&mut entry.exited, true) {
            self.trees.root_has_exited(id);
        }
        if entry.program.is_finished() && !std::mem::replace(&mut entry.reported_finished, true) {
            self.finished.push(id);
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
        self.report_gone(id, entry);
        self.plan_walk(ctx);
        self.arm(ctx);
    }

    fn is_gone(&self, id: Uuid, entry: &Entry) -> bool {
        entry.program.is_finished() && (!entry.program.is_stopping() || self.trees.is_gone(id))
    }

    fn report_gone(&mut self, id: Uuid, entry: &mut Entry) {
        let stops = entry.program.is_stopping() && !entry.program.sink.is_read();
        if stops && !entry.reported_gone && self.is_gone(id, entry) {
            self.gone.push(id);
            entry.reported_gone = true;
        }
    }

    /// Schedules a step of a walk for a later turn, if one is needed.
    fn plan_walk(&mut self, ctx: &mut Context) {
        if self.walk_at.is_none() && self.trees.has_work() {
            self.walk_at = Some((ctx.now() + NEXT_TURN).max(self.next_walk));
            self.arm(ctx);
        }
    }

    /// Sets the alarm for the first deadline.
    fn arm(&mut self, ctx: &mut Context) {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let first = [deadline, self.wake_at, self.walk_at];
        if let Some(first) = first.into_iter().flatten().min() {
            self.alarm.set_by(ctx, first);
        }
    }

    /// Forgets a program that is removed.
    fn remove(&mut self, id: Uuid, entry: &Entry) {
        self.trees.remove(id);
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, id));
        }
    }
}

impl Programs {
    /// Completes what is half done, so that it can be saved.
    pub(crate) fn make_portable(&mut self, ctx: &mut Context) {
        for id in self.entries.keys().copied().collect::<Vec<_>>() {
            self.with(ctx, id, Program::make_portable);
        }
    }

    /// Writes the programs and their readers down.
    pub(crate) fn save<'a>(&'a self, to: &mut Saver<'a>) {
        // A call that collects output ends before the upgrade, but not before its rehearsal.
        let shared = self.entries.values();
        let shared = shared.filter(|entry| matches!(entry.program.sink, Sink::Shared(_)));
        to.open(b'{');
        to.member("programs", |to| {
            to.array(shared, |to, entry| {
                to.open(b'{');
                to.field("entry", entry);
                entry.program.save_open(to);
                to.close(b'}');
            });
        });
        to.field("readers", &self.readers);
        to.close(b'}');
    }

    /// Takes over the programs that another server has started.
    pub(crate) fn restore(
        &mut self,
        ctx: &mut Context,
        recorder: Option<&Recorder>,
        from: &mut Loader,
    ) -> Result<(), RecordError> {
        let (entries, readers) = (&mut self.entries, &mut self.readers);
        let mut programs = Read(|from: &mut Loader| {
            from.each(&mut |from| {
                let entry = Entry::continued(ctx, recorder, from)?;
                entries.insert(entry.program.id, entry);
                Ok(())
            })
        });
        object!(from {
            programs,
            readers: Set(readers),
        })?;
        for (id, entry) in &self.entries {
            self.index.add(*id, entry.program.sources(), None);
            ctx.note_held(&entry.program.owner, 0, entry.program.held_memory());
        }
        if !from.is_rehearsal() {
            for id in self.entries.keys().copied().collect::<Vec<_>>() {
                // The event loop reports the output that is pending.
                self.with(ctx, id, |_, _| ());
            }
        }
        Ok(())
    }

    /// Sets the service's timer for the next turn.
    pub(crate) fn wake(&mut self, ctx: &mut Context) {
        self.agenda.wake_at = Some(ctx.now() + NEXT_TURN);
        self.agenda.arm(ctx);
    }

    /// Starts a program.
    pub(crate) fn start(
        &mut self,
        ctx: &mut Context,
        launch: Launch,
        sink: Sink,
    ) -> io::Result<Uuid> {
        let program = Program::start(ctx, launch, sink)?;
        let id = program.id;
        self.index.add(id, program.sources(), None);
        ctx.note_held(&program.owner, 0, program.held_memory());
        let entry = Entry {
            program,
            settled: false,
            expires: None,
            deadline: None,
            exited: false,
            reported_finished: false,
            reported_gone: false,
        };
        self.entries.insert(id, entry);
        self.with(ctx, id, |_, _| ());
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

    /// Visits the clients that are attached, and the callers of programs whose output is collected.
    pub(crate) fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.readers.keys().copied().for_each(&mut *visit);
        for entry in self.entries.values() {
            entry.program.sink.clients(visit);
        }
    }

    /// The program that a client is attached to.
    pub(crate) fn read_by(&self, client: ClientId) -> Option<Uuid> {
        self.readers.get(&client).copied()
    }

    /// Takes the programs of which it has become known since the last call whether they could be executed.
    pub(crate) fn take_settled(&mut self) -> Vec<Uuid> {
        std::mem::take(&mut self.agenda.settled)
    }

    /// Takes the programs that have finished since the last call: they have exited, and all their output has been read.
    pub(crate) fn take_finished(&mut self) -> Vec<Uuid> {
        std::mem::take(&mut self.agenda.finished)
    }

    /// Takes the programs that have been stopped completely since the last call: they have no readers and no processes
    /// left.
    pub(crate) fn take_gone(&mut self) -> Vec<Uuid> {
        std::mem::take(&mut self.agenda.gone)
    }

    /// Whether no process is left of any program.
    pub(crate) fn are_gone(&self) -> bool {
        self.entries
            .iter()
            .all(|(id, entry)| self.agenda.is_gone(*id, entry))
    }

    /// Removes a program at the given time, or later while it has readers.
    pub(crate) fn expire(&mut self, ctx: &mut Context, id: Uuid, at: Time) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.expires = Some(at);
            self.agenda.update(ctx, id, entry);
        }
    }

    /// Removes a program. Dropping it kills it if it still runs.
    pub(crate) fn remove(&mut self, ctx: &mut Context, id: Uuid) -> Option<Program> {
        let mut entry = self.entries.remove(&id)?;
        self.index.remove(id);
        entry.program.unwatch(ctx);
        ctx.note_held(&entry.program.owner, entry.program.held_memory(), 0);
        self.agenda.remove(id, &entry);
        Some(entry.program)
    }

    /// Changes a program, and updates what depends on it: whether its writer is read, its listeners, the agenda.
    pub(crate) fn with(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        change: impl FnOnce(&mut Program, &mut Context),
    ) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let before = entry.program.held_memory();
        change(&mut entry.program, ctx);
        let program = &entry.program;
        ctx.note_held(&program.owner, before, program.held_memory());
        ctx.spend(entry.program.sink.take_work());
        let behind = entry.program.is_behind();
        if let Some(attachments) = entry.program.sink.attachments() {
            if let Some(writer) = attachments.writer() {
                ctx.set_held(writer, behind);
            }
            for listener in attachments.take_ended_streams() {
                self.readers.remove(&listener);
            }
        }
        self.agenda.update(ctx, id, entry);
    }

    /// Stops a program and all that it has started: HUP, then TERM, then KILL.
    pub(crate) fn stop(&mut self, ctx: &mut Context, id: Uuid) {
        self.with(ctx, id, |program, ctx| program.stop(ctx.now()));
    }

    /// Orphans have exited: walks the process trees again.
    pub(crate) fn orphans_changed(&mut self, ctx: &mut Context) {
        self.agenda.trees.mark_outdated();
        self.agenda.plan_walk(ctx);
    }

    /// Inspects the next processes of the trees.
    fn walk(&mut self, ctx: &mut Context) {
        let mut table = SystemProcessTable;
        if self.agenda.trees.walk(&mut table, VISITS_PER_TURN) {
            self.agenda.next_walk = ctx.now() + WALK_PAUSE;
            for (id, entry) in &mut self.entries {
                self.agenda.report_gone(*id, entry);
            }
        }
        self.agenda.plan_walk(ctx);
    }

    /// Stops all programs.
    pub(crate) fn stop_all(&mut self, ctx: &mut Context) {
        self.stop_those(ctx, |_| true);
    }

    /// Stops the programs for which `which` is true.
    pub(crate) fn stop_those(&mut self, ctx: &mut Context, which: impl Fn(&Program) -> bool) {
        let entries = self.entries.iter();
        let ids: Vec<Uuid> = entries
            .filter(|(_, entry)| which(&entry.program))
            .map(|(id, _)| *id)
            .collect();
        ids.into_iter().for_each(|id| self.stop(ctx, id));
    }

    /// Whether a client has not been sent all output and the exit of its program.
    pub(crate) fn delivers_to(&self, client: ClientId) -> bool {
        let program = self.read_by(client).and_then(|id| self.get(id));
        program.is_some_and(|program| program.sink.is_read_by(client))
    }

    /// Sets the size of a program's terminal and tells its readers.
    pub(crate) fn resize(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        size: TerminalSize,
    ) -> io::Result<()> {
        let mut resized = Ok(());
        self.with(ctx, id, |program, ctx| resized = program.resize(ctx, size));
        resized
    }

    // Readers.

    /// Attaches a client.
    pub(crate) fn attach(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        client: ClientId,
        (role, dialect): (Role, Dialect),
        replay: Replay,
    ) {
        if self.entries.contains_key(&id) {
            self.readers.insert(client, id);
        }
        self.with(ctx, id, |program, ctx| {
            let title = match dialect {
                Dialect::Tty => program.title(role),
                _ => String::new(),
            };
            if let Some(attachments) = program.sink.attachments() {
                let new = NewReader {
                    client,
                    role,
                    dialect,
                    replay,
                    name: &ctx.principal(client).to_string(),
                    title: &title,
                };
                attachments.attach(new, &mut ContextOutput(ctx));
            }
            program.read_all(ctx);
        });
    }

    /// Removes a client that is gone. Returns the program that it was attached to.
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

    /// Sends more output to a client whose earlier output has drained.
    pub(crate) fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        if let Some(id) = self.read_by(client) {
            self.with(ctx, id, |program, ctx| program.catch_up(ctx, client));
        }
    }

    /// Handles a message of an attached client.
    pub(crate) fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let Some(id) = self.read_by(client) else {
            return;
        };
        self.with(ctx, id, |program, ctx| {
            let Some(attachments) = program.sink.attachments() else {
                return;
            };
            // A client that has been told the exit is being closed.
            let Some(dialect) = attachments.dialect(client) else {
                return;
            };
            let writes = attachments.writer() == Some(client);
            match dialect.read(message) {
                Ok(ClientMessage::Input(bytes)) if attachments.takes_input_of(client) => {
                    // The client is not read while much input is pending, so the queue is bounded.
                    program.push_input(ctx, bytes);
                }
                Ok(ClientMessage::EndOfInput) if attachments.takes_input_of(client) => {
                    program.end_input(ctx);
                }
                Ok(ClientMessage::Input(_) | ClientMessage::EndOfInput) => {
                    log::debug!("{client} is not the writer: input ignored");
                }
                Ok(ClientMessage::Resize(size)) if writes => {
                    if let Err(error) = program.resize(ctx, size) {
                        log_failed_resize(client, size, &error);
                        if let Some(attachments) = program.sink.attachments() {
                            attachments.tell_size(client, &mut ContextOutput(ctx));
                        }
                    }
                }
                Ok(ClientMessage::Resize(TerminalSize { rows, cols })) => {
                    log::debug!("{client} is not the writer: resize to {rows} rows and {cols} columns ignored");
                }
                Ok(ClientMessage::Pause) => {
                    attachments.set_paused(client, true);
                }
                Ok(ClientMessage::Resume) => {
                    if attachments.set_paused(client, false) {
                        ctx.spend(RESUME);
                        program.catch_up(ctx, client);
                    }
                }
                Ok(ClientMessage::Greeting) => {}
                Err(ignored) => ignored.log(client),
            }
        });
    }

    // Events.

    pub(crate) fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        if let Some(id) = self.index.find(ChildInput::Ready(source)) {
            self.with(ctx, id, |program, ctx| {
                program.handle_ready(ctx, source, readiness)
            });
        }
    }

    /// Handles the timer for the first deadline.
    pub(crate) fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        if !self.agenda.alarm.expire(timer) {
            return;
        }
        let now = ctx.now();
        self.agenda.wake_at = self.agenda.wake_at.filter(|at| *at > now);
        if self.agenda.walk_at.is_some_and(|at| at <= now) {
            self.agenda.walk_at = None;
            self.walk(ctx);
        }
        while let Some(&(deadline, id)) = self.agenda.deadlines.first()
            && deadline <= now
        {
            self.agenda.deadlines.pop_first();
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            entry.deadline = None;
            let expires = entry.expires.is_some_and(|at| at <= now);
            if expires {
                entry.expires = Some(now + READER_GRACE);
            }
            self.with(ctx, id, |program, ctx| program.handle_timeout(ctx));
            let readers = self
                .get_mut(id)
                .and_then(|program| program.sink.attachments());
            if expires && readers.is_none_or(|readers| readers.reader_count() == 0) {
                self.remove(ctx, id);
            }
        }
        self.agenda.arm(ctx);
    }
}
