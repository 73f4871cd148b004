//! The children of a service: [`ChildIndex`] finds the one that an event belongs to, and [`ClientPrograms`] keeps a program for each
//! client, from the queue of starts to its exit.

use std::hash::Hash;
use std::ops::ControlFlow;

use serde_json::Value;

use super::{Child, ChildEvent, HIGH_WATER, LOW_WATER, TurnOutput};
use crate::record::{Fields, Loader, Record, RecordError, Saver, object};
use crate::service::Framing;
use crate::service::id_map::IdMap;
use crate::service::lines::Line;
use crate::{ClientId, Context, Metrics, Rejection, SourceId, StatusFields, TimerId};

/// The maximum number of programs that the status lists.
const MAX_LISTED: usize = 200;

/// An event of a child process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChildInput {
    /// A stream is ready, or the process has exited.
    Ready(SourceId),
    /// The timer of the child has expired.
    Timer(TimerId),
}

/// The children of a service by the sources and timers of their events. Every method takes constant time.
#[derive(Debug)]
pub(crate) struct ChildIndex<K> {
    sources: IdMap<SourceId, K>,
    timers: IdMap<TimerId, K>,
    children: IdMap<K, Handles>,
}

/// What a child is found by.
#[derive(Debug)]
struct Handles {
    sources: Vec<SourceId>,
    timer: Option<TimerId>,
}

impl<K> Default for ChildIndex<K> {
    fn default() -> Self {
        Self {
            sources: IdMap::default(),
            timers: IdMap::default(),
            children: IdMap::default(),
        }
    }
}

impl<K: Copy + Eq + Hash> ChildIndex<K> {
    /// Adds a child, with all sources that it has. A child that had the key before is removed.
    pub(crate) fn add(
        &mut self,
        key: K,
        sources: impl IntoIterator<Item = SourceId>,
        timer: Option<TimerId>,
    ) {
        self.remove(key);
        let sources: Vec<SourceId> = sources.into_iter().collect();
        let found = sources.iter().map(|source| (*source, key));
        self.sources.extend(found);
        let handles = Handles {
            sources,
            timer: None,
        };
        self.children.insert(key, handles);
        self.set_timer(key, timer);
    }

    /// The child that an event belongs to. `None` if it belongs to none, or to one that was removed.
    pub(crate) fn find(&self, input: ChildInput) -> Option<K> {
        match input {
            ChildInput::Ready(source) => self.sources.get(&source).copied(),
            ChildInput::Timer(timer) => self.timers.get(&timer).copied(),
        }
    }

    /// Notes the timer of a child, which changes when it handles an event and when it is stopped.
    pub(crate) fn set_timer(&mut self, key: K, timer: Option<TimerId>) {
        let Some(handles) = self.children.get_mut(&key) else {
            return;
        };
        let before = std::mem::replace(&mut handles.timer, timer);
        if before != timer {
            before.map(|before| self.timers.remove(&before));
            timer.map(|timer| self.timers.insert(timer, key));
        }
    }

    /// Gives a child another key, if it has not been removed.
    #[cfg(feature = "mcp")]
    pub(crate) fn rename(&mut self, key: K, new: K) {
        if let Some(handles) = self.children.get(&key) {
            let (sources, timer) = (handles.sources.clone(), handles.timer);
            self.remove(key);
            self.add(new, sources, timer);
        }
    }

    /// Removes a child that has exited.
    pub(crate) fn remove(&mut self, key: K) {
        if let Some(handles) = self.children.remove(&key) {
            for source in handles.sources {
                self.sources.remove(&source);
            }
            handles.timer.map(|timer| self.timers.remove(&timer));
        }
    }
}

/// The program of one client.
#[derive(Debug)]
struct Entry<T> {
    child: Child,
    /// Whether the client is gone, and the program is being stopped.
    is_orphan: bool,
    state: T,
}

impl<T: Record> Record for Entry<T> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        let Self {
            child,
            is_orphan,
            state,
        } = self;
        object!({"child": child.save(to), "is_orphan": is_orphan, "state": state.save(to)})
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            child: fields.take("child", from)?,
            is_orphan: fields.take("is_orphan", from)?,
            state: fields.take("state", from)?,
        })
    }
}

/// Gets the lines of a child, with their numbers.
type Output<'a> = dyn FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()> + 'a;

/// The programs of clients, one for each. `W` is what a client's program is started with, and `T` what the service keeps for a
/// program that runs.
///
/// A client's messages are held until its program runs, and while the program has too much unread input. A program whose client is
/// gone keeps its place until it has exited. Finding a program by an event takes constant time.
#[derive(Debug)]
pub(crate) struct ClientPrograms<W, T> {
    /// Clients whose programs are not started yet.
    starting: IdMap<ClientId, W>,
    /// The programs, by their client, which may be gone.
    entries: IdMap<ClientId, Entry<T>>,
    index: ChildIndex<ClientId>,
    started: u64,
    /// Whether the server stops, so that no more clients are accepted.
    is_draining: bool,
    /// Whether all programs were told to stop, so that no more are started.
    is_stopping: bool,
}

impl<W, T> Default for ClientPrograms<W, T> {
    fn default() -> Self {
        Self {
            starting: IdMap::default(),
            entries: IdMap::default(),
            index: ChildIndex::default(),
            started: 0,
            is_draining: false,
            is_stopping: false,
        }
    }
}

/// Call [`ClientPrograms::watch_again`] after restoring them. A server that stops is not saved.
impl<W: Record, T: Record> Record for ClientPrograms<W, T> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        let Self {
            starting,
            entries,
            index: _,
            started,
            is_draining: _,
            is_stopping: _,
        } = self;
        object!({
            "starting": starting.save(to),
            "entries": entries.save(to),
            "started": started,
        })
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        let mut fields = Fields::of(value)?;
        Ok(Self {
            starting: fields.take("starting", from)?,
            entries: fields.take("entries", from)?,
            started: fields.take("started", from)?,
            ..Self::default()
        })
    }
}

impl<W, T> ClientPrograms<W, T> {
    /// Continues after the program of the server has replaced itself.
    ///
    /// # Errors
    ///
    /// A process cannot be watched.
    pub(crate) fn watch_again(&mut self, ctx: &mut Context) -> Result<(), RecordError> {
        for client in self.starting.keys() {
            ctx.queue_start(*client);
        }
        for (client, entry) in &mut self.entries {
            entry.child.watch_again(ctx)?;
            self.index
                .add(*client, entry.child.sources(), entry.child.timer());
        }
        Ok(())
    }

    /// Checks that every program divides its output into messages in this way.
    ///
    /// # Errors
    ///
    /// A program that runs has another framing.
    pub(crate) fn check_framing(&self, framing: Framing) -> Result<(), RecordError> {
        let mut children = self.entries.values().map(|entry| &entry.child);
        children.try_for_each(|child| child.check_framing(framing))
    }

    /// The number of programs, including those that are being stopped.
    pub(crate) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Whether the server stops.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Whether a client is connected and its program runs.
    pub(crate) fn has_program(&self, client: ClientId) -> bool {
        self.entries
            .get(&client)
            .is_some_and(|entry| !entry.is_orphan)
    }

    /// Rejects a client if there is no place for its program.
    pub(crate) fn accept(&self, ctx: &Context) -> Result<(), Rejection> {
        if self.is_draining {
            return Err(Rejection::unavailable("stopping").because("stopping"));
        }
        // A program may outlive its client by the few seconds that it gets to exit.
        if self.starting.len() + self.entries.len() >= ctx.config().max_clients {
            return Err(Rejection::unavailable("too many processes"));
        }
        Ok(())
    }

    /// Queues the start of a client's program.
    pub(crate) fn queue(&mut self, ctx: &mut Context, client: ClientId, with: W) {
        self.starting.insert(client, with);
        ctx.set_held(client, true);
        ctx.queue_start(client);
    }

    /// What a client's program is started with, if it is not started yet.
    pub(crate) fn starting_mut(&mut self, client: ClientId) -> Option<&mut W> {
        self.starting.get_mut(&client)
    }

    /// Takes a client out of the queue because its program is started now. `None` if the client is gone, or if no more programs are
    /// started.
    pub(crate) fn begin(&mut self, ctx: &mut Context, client: ClientId) -> Option<W> {
        if self.is_stopping {
            return None;
        }
        let with = self.starting.remove(&client)?;
        ctx.set_held(client, false);
        Some(with)
    }

    /// Adds a program that was started.
    pub(crate) fn add(&mut self, client: ClientId, child: Child, state: T) {
        self.started += 1;
        self.index.add(client, child.sources(), child.timer());
        let entry = Entry {
            child,
            is_orphan: false,
            state,
        };
        self.entries.insert(client, entry);
    }

    /// What the service keeps for the program of a connected client.
    pub(crate) fn state(&self, client: ClientId) -> Option<&T> {
        let entry = self.entries.get(&client).filter(|entry| !entry.is_orphan)?;
        Some(&entry.state)
    }

    /// Writes to the program of a connected client: `encode` appends to its input. A program that has closed its input gets no
    /// more. The client is held while the program has too much unread input.
    pub(crate) fn write(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        let entry = self.entries.get_mut(&client);
        let entry = entry.filter(|entry| !entry.is_orphan);
        if let Some(stdin) = entry.and_then(|entry| entry.child.stdin()) {
            stdin.append(ctx, encode);
            if stdin.queued() > HIGH_WATER {
                ctx.set_held(client, true);
            }
        }
    }

    /// Continues to read the output of a client's program.
    pub(crate) fn resume(&mut self, ctx: &mut Context, client: ClientId) {
        if let Some(entry) = self.entries.get_mut(&client) {
            entry.child.resume(ctx);
        }
    }

    /// Stops a client's program.
    pub(crate) fn stop(&mut self, ctx: &mut Context, client: ClientId) {
        if let Some(entry) = self.entries.get_mut(&client) {
            entry.child.stop(ctx);
            self.index.set_timer(client, entry.child.timer());
        }
    }

    /// A client has disconnected: its program is stopped. Its output is read and ignored, because a full pipe could keep it from
    /// exiting.
    pub(crate) fn disconnect(&mut self, ctx: &mut Context, client: ClientId) {
        self.starting.remove(&client);
        if let Some(entry) = self.entries.get_mut(&client) {
            entry.is_orphan = true;
            entry.child.resume(ctx);
            self.stop(ctx, client);
        }
    }

    /// Lets a program handle an event. `line` gets each line of a connected client's program. The output waits while the client is
    /// congested, and when the program has had its share of the turn.
    /// Returns the client and what came of the event; `None` if the event belongs to no program.
    pub(crate) fn handle(
        &mut self,
        ctx: &mut Context,
        input: ChildInput,
        mut line: impl FnMut(&mut Context, ClientId, &mut T, Line<'_>),
    ) -> Option<(ClientId, ChildEvent)> {
        let client = self.index.find(input)?;
        let entry = self.entries.get_mut(&client)?;
        let (state, is_orphan) = (&mut entry.state, entry.is_orphan);
        let mut turn = TurnOutput::default();
        // As for all children, so that the code for their output exists once.
        let output: &mut Output<'_> = &mut |ctx, _, text| {
            if !is_orphan {
                line(ctx, client, state, text);
            }
            if turn.is_over(ctx) || (!is_orphan && ctx.is_congested(client)) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let event = match input {
            ChildInput::Ready(source) => entry.child.handle_ready(ctx, source, output),
            ChildInput::Timer(timer) => entry.child.handle_timer(ctx, timer, output),
        };
        if let ChildEvent::Exited(_) = event {
            self.entries.remove(&client);
            self.index.remove(client);
            return Some((client, event));
        }
        if entry.child.unread() <= LOW_WATER {
            ctx.set_held(client, false);
        }
        if is_orphan || !ctx.is_congested(client) {
            entry.child.resume(ctx);
        }
        self.index.set_timer(client, entry.child.timer());
        Some((client, event))
    }

    /// The program of a client, also of one that is gone.
    pub(crate) fn child(&self, client: ClientId) -> Option<&Child> {
        Some(&self.entries.get(&client)?.child)
    }

    /// Visits the clients whose programs are queued or run.
    pub(crate) fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.starting.keys().copied().for_each(&mut *visit);
        let entries = self.entries.iter().filter(|(_, entry)| !entry.is_orphan);
        entries.for_each(|(client, _)| visit(*client));
    }

    /// Accepts no more clients, because the server stops. Programs whose starts are queued still start.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Stops all programs and starts no more. A client whose start is queued waits for the end of its connection.
    pub(crate) fn stop_all(&mut self, ctx: &mut Context) {
        self.is_stopping = true;
        let clients: Vec<ClientId> = self.entries.keys().copied().collect();
        for client in clients {
            self.stop(ctx, client);
        }
    }

    /// The fields of the status.
    pub(crate) fn status(&self) -> StatusFields {
        let listed = self.entries.iter().take(MAX_LISTED);
        let listed = listed.map(|(client, entry)| {
            serde_json::json!({"client": client.to_string(), "pid": entry.child.pid()})
        });
        let listed: Vec<_> = listed.collect();
        StatusFields::from_value(serde_json::json!({
            "processes": self.count(),
            "programs": listed,
        }))
    }

    /// The metrics of programs.
    pub(crate) fn metrics(&self, out: &mut Metrics) {
        process_metrics(out, self.count(), self.started);
    }
}

/// The metrics of every service with programs.
pub(crate) fn process_metrics(out: &mut Metrics, running: usize, started: u64) {
    out.gauge(
        "outrigger_processes_running",
        "Running programs, including those that are being stopped.",
        running,
    );
    out.counter(
        "outrigger_processes_started_total",
        "Programs started.",
        started,
    );
}
