//! The pool: a few processes that answer all requests of revision 2026-07-28.
//!
//! Every request gets an id that no other request of the pool has had, also as its progress token. What a process sends back names
//! this id, so it reaches only the caller of that request, under the caller's own id and token.

mod from_client;
mod from_process;
mod held;

use std::borrow::Cow;

use std::time::Duration;

use self::from_client::States;
use super::STATELESS;
use super::headers::Tools;
use super::held_requests::HeldRequests;
use super::http_error::{HttpError, server_exited};
use super::hub::Hub;
use super::process::{Process, ProgramPlace};
use super::reply::Reply;
use super::subscription::{Filter, subscription_ended};
use super::{McpConfig, McpShare, McpStart, to_older};
use crate::record::{Loader, RecordError, Saver, State, record, state};
use crate::service::child::{Keeper, OnFailure, ProgramExit, ProgramFailure};
use crate::service::deadlines::Alarm;
use crate::service::jsonrpc::{Forwarded, Pending, RequestKind, UpstreamIds};
use crate::sys::drop_code;
use crate::{Context, Principal, StatusCode, Time, TimerId};

pub(super) use self::from_client::check_subscription;

/// Which revisions the program supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Support {
    /// Not known yet: the first process has been asked.
    Unknown,
    /// Revision 2026-07-28.
    Stateless,
    /// Only older ones, which have sessions. The pool has no process.
    Sessions,
}

record!(
    enum Support {
        Unknown,
        Stateless,
        Sessions,
    }
);

/// A request that a process has got and not answered.
type PendingRequest = Forwarded<Purpose>;

/// What a request is for.
#[derive(Debug)]
enum Purpose {
    /// A caller waits for the answer.
    Call {
        reply: Reply,
        principal: Principal,
        /// For `subscriptions/listen`.
        listens: Option<Box<Subscription>>,
        /// Whether the answer describes tools.
        lists_tools: bool,
        /// The error that it gets as soon as the supported revisions are known, which the error lists.
        refusal: Option<Box<HttpError>>,
    },
    /// Asks which revisions the process supports.
    Probe,
    /// Asks for the tools, page by page.
    ListTools,
}

/// A `subscriptions/listen` request. All processes of the pool get it, because any of them may have something to tell.
#[derive(Debug)]
struct Subscription {
    filter: Filter,
    /// The message, for processes that are started later.
    text: Box<str>,
    /// Whether the caller has got the acknowledgement of a process. Those of the others are dropped.
    is_acknowledged: bool,
}

record!(Subscription {
    filter,
    text,
    is_acknowledged,
});

record!(enum Purpose {
    Call {
        reply,
        principal,
        listens,
        lists_tools,
        refusal,
    },
    Probe,
    ListTools,
});

impl Purpose {
    fn subscription(&self) -> Option<&Subscription> {
        match self {
            Self::Call { listens, .. } => listens.as_deref(),
            Self::Probe | Self::ListTools => None,
        }
    }
}

impl RequestKind for Purpose {
    fn is_subscription(&self) -> bool {
        self.subscription().is_some()
    }
}

/// The maximum length of a list of revisions that is kept.
const MAX_VERSIONS: usize = 1 << 10;

/// The maximum number of pages of a list of tools that are read.
const MAX_PAGES: usize = 100;

/// A list of tools that is being read.
#[derive(Debug, Default)]
struct Listing {
    tools: Tools,
    pages: usize,
    /// Whether the tools have changed since.
    is_outdated: bool,
}

record!(Listing {
    tools,
    pages,
    is_outdated,
});

/// The place of a process.
#[derive(Debug)]
struct Slot {
    program: Keeper<Process>,
    /// Callers' requests that the process has not answered. A subscription counts for one process.
    pending: usize,
}

state!(Slot {
    into program,
    pending,
});

/// The pool.
#[derive(Debug)]
pub(super) struct Pool {
    command: Vec<String>,
    place: ProgramPlace,
    /// The route of the service.
    path: String,
    slots: Vec<Slot>,
    pub(super) support: Support,
    /// The index of a request's process is its slot.
    requests: Pending<PendingRequest>,
    ids: UpstreamIds,
    pub(super) tools: Tools,
    /// The revisions that the first process has said it supports, as JSON.
    versions: Option<Box<str>>,
    /// The tools that are being listed, page by page.
    listing: Option<Listing>,
    /// The slot whose process is handling an event, and the messages for it, which are sent afterwards.
    in_hand: Option<usize>,
    unsent: Vec<String>,
    /// Requests that are held until the first process has reported what it supports, or until their own process runs.
    held: HeldRequests,
    /// When the first process must have answered.
    probe_timer: Alarm,
    probe_timeout: Option<Duration>,
    /// The processes that know the state of calls with several rounds (`requestState`), if there are several.
    states: States,
    /// Whether requests that no process of the pool supports are translated, and those that were held.
    translates: bool,
    pub(super) unserved: Vec<(Reply, Principal, String)>,
    is_stopping: bool,
    /// Whether the first process has said that it supports 2026-07-28.
    is_probed: bool,
    /// Whether processes start only when a request needs them.
    is_lazy: bool,
    /// When a request has last begun or ended.
    last_used: Time,
}

/// A change that the index of processes must follow.
#[derive(Debug)]
pub(super) enum PoolChange {
    /// A process was started in this slot.
    Started(usize),
    /// The process of a slot is not needed any more, and was told to stop.
    Stopping(usize, Box<Process>),
    /// The program cannot be started, and the server stops.
    Failed(String),
}

state!(Pool {
    keep command,
    keep place,
    keep path,
    into slots,
    support,
    into requests,
    ids,
    tools,
    versions,
    listing,
    // Messages are sent, and requests translated, in the turn in which they come.
    keep in_hand,
    keep unsent,
    held,
    probe_timer,
    keep probe_timeout,
    states,
    keep translates,
    keep unserved,
    keep is_stopping,
    is_probed,
    keep is_lazy,
    last_used,
});

impl State for Vec<Slot> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.array(self, |to, slot| slot.save(to));
    }

    /// A pool that is smaller now keeps the processes that run.
    fn load(&mut self, from: &mut Loader) -> Result<(), RecordError> {
        let mut at = 0;
        from.each(&mut |from| {
            if at == self.len() {
                let (program, pending) = (self[0].program.another(), 0);
                self.push(Slot { program, pending });
            }
            at += 1;
            self[at - 1].load(from)
        })
    }
}

impl Pool {
    /// Continues after the program of the server has replaced itself.
    ///
    /// # Errors
    ///
    /// A process cannot be watched.
    pub(super) fn watch_again(
        &mut self,
        ctx: &mut Context,
        config: &McpConfig,
    ) -> Result<(), RecordError> {
        self.probe_timeout = config.initialize_timeout;
        self.probe_timer.wake(ctx);
        for slot in &mut self.slots {
            slot.program.watch_again(ctx);
            if let Some(process) = slot.program.child_mut() {
                process.watch_again(ctx)?;
            }
        }
        if self.support == Support::Stateless && !self.is_lazy {
            self.start_others(ctx);
        }
        Ok(())
    }

    pub(super) fn new(config: &McpConfig) -> Self {
        let mut limit = config.restart_limit;
        limit.on_failure = OnFailure::Retry;
        let slot = || Slot {
            program: Keeper::new(limit),
            pending: 0,
        };
        Self {
            command: config.command.clone(),
            place: config.place.clone(),
            path: config.endpoint.path().to_owned(),
            slots: std::iter::repeat_with(slot)
                .take(config.pool.max(1))
                .collect(),
            support: Support::Unknown,
            requests: Pending::new(None),
            ids: UpstreamIds::default(),
            tools: Tools::default(),
            versions: None,
            listing: None,
            in_hand: None,
            unsent: Vec::new(),
            held: HeldRequests::default(),
            probe_timer: Alarm::default(),
            probe_timeout: None,
            states: States::default(),
            translates: config.share != McpShare::None,
            unserved: Vec::new(),
            is_stopping: false,
            is_probed: false,
            is_lazy: config.start == McpStart::Lazy,
            last_used: Time::default(),
        }
    }

    /// What is known of the tools. `None` if the program does not support revision 2026-07-28.
    pub(super) fn tools(&self) -> Option<&Tools> {
        (self.translates || self.support != Support::Sessions).then_some(&self.tools)
    }

    /// The revisions that errors list, as JSON: those that `server/discover` lists.
    pub(super) fn versions(&self) -> Cow<'_, str> {
        match &self.versions {
            Some(versions) if self.support == Support::Stateless => Cow::Borrowed(versions),
            _ => {
                let is_served = |version: &&str| *version != STATELESS || self.tools().is_some();
                let versions: Vec<&str> = to_older::versions().filter(is_served).collect();
                Cow::Owned(serde_json::json!(versions).to_string())
            }
        }
    }

    /// The number of running processes.
    pub(super) fn process_count(&self) -> usize {
        self.slots
            .iter()
            .filter(|slot| slot.program.is_running())
            .count()
    }

    /// Whether requests can be answered, or are not for the pool.
    pub(super) fn is_ready(&self) -> bool {
        match self.support {
            _ if self.is_lazy => true,
            Support::Unknown => false,
            Support::Stateless => self.process_count() > 0,
            Support::Sessions => true,
        }
    }

    /// The slots of the processes.
    pub(super) fn slots(&self) -> std::ops::Range<usize> {
        0..self.slots.len()
    }

    /// The process of a slot, if it runs.
    pub(super) fn process(&self, slot: usize) -> Option<&Process> {
        self.slots.get(slot)?.program.child()
    }

    /// Starts the first process and asks it which revisions it supports.
    pub(super) fn start(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        config: &McpConfig,
    ) -> std::io::Result<Option<PoolChange>> {
        self.probe_timeout = config.initialize_timeout;
        if self.is_lazy {
            return Ok(None);
        }
        match self.start_process(ctx, hub, 0) {
            Err(error) if config.restart_limit.on_failure == OnFailure::Exit => Err(error),
            started => Ok(self.handle_started(ctx, hub, 0, started)),
        }
    }

    /// Reports that a process was started, or schedules another attempt if it could not be started.
    fn handle_started(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
        started: std::io::Result<()>,
    ) -> Option<PoolChange> {
        match started {
            Ok(()) => Some(PoolChange::Started(slot)),
            Err(error) => {
                self.fail_held(ctx, hub, slot);
                self.restart(ctx, hub, slot, &error.to_string().into());
                None
            }
        }
    }

    /// Has a process started again after a delay. Returns false if it is given up.
    fn restart(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
        failure: &ProgramFailure,
    ) -> bool {
        let place = &mut self.slots[slot];
        hub.counts.restarts += 1;
        place.program.handle_failure(ctx, &self.path, failure)
    }

    fn start_process(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
    ) -> std::io::Result<()> {
        ctx.work_for_service();
        let process = Process::start(ctx, &self.command, &self.place)?;
        hub.counts.processes += 1;
        self.slots[slot].program.handle_start(process);
        match self.support {
            Support::Unknown => {
                self.ask(ctx, slot, "server/discover", Purpose::Probe, "");
                let deadline = self.probe_timeout.map(|timeout| ctx.now() + timeout);
                self.probe_timer.set(ctx, deadline);
            }
            Support::Stateless if slot == 0 => self.list_tools(ctx, slot),
            Support::Stateless | Support::Sessions => {}
        }
        if self.support == Support::Stateless {
            let listens = self
                .requests
                .values()
                .filter_map(|request| request.call.subscription());
            let listens: Vec<Box<str>> = listens.map(|one| one.text.clone()).collect();
            for text in listens {
                self.send(ctx, slot, &text);
            }
            self.send_held(ctx, hub, slot);
        }
        Ok(())
    }

    /// Sends a request from Outrigger itself. `params` holds more members for the request's `params`, each followed by a comma.
    fn ask(
        &mut self,
        ctx: &mut Context,
        slot: usize,
        method: &str,
        purpose: Purpose,
        params: &str,
    ) {
        let id = self.ids.next();
        let version = env!("CARGO_PKG_VERSION");
        let message = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{params}"_meta":{{"io.modelcontextprotocol/protocolVersion":"{STATELESS}","io.modelcontextprotocol/clientInfo":{{"name":"outrigger","version":"{version}"}},"io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#
        );
        let request = Forwarded {
            process: slot,
            upstream_id: id,
            sender_ids: None,
            call: purpose,
        };
        self.requests.insert(id, request);
        self.send(ctx, slot, &message);
    }

    /// Asks a process for its tools. While it is being asked, asks again afterwards.
    fn list_tools(&mut self, ctx: &mut Context, slot: usize) {
        match &mut self.listing {
            Some(listing) => listing.is_outdated = true,
            None => {
                self.listing = Some(Listing::default());
                self.ask(ctx, slot, "tools/list", Purpose::ListTools, "");
            }
        }
    }

    fn send(&mut self, ctx: &mut Context, slot: usize, text: &str) {
        match self.slots[slot].program.child_mut() {
            Some(process) => process.send(ctx, text),
            None if self.in_hand == Some(slot) => self.unsent.push(text.to_owned()),
            None => {}
        }
    }

    fn send_to_all(&mut self, ctx: &mut Context, text: &str) {
        for slot in 0..self.slots.len() {
            self.send(ctx, slot, text);
        }
    }

    /// Begins to serve, now that it is known what the program supports.
    fn finish_probe(&mut self, ctx: &mut Context, hub: &mut Hub) -> Option<PoolChange> {
        self.probe_timer.set(ctx, None);
        // Much of the code so far is needed only at the start.
        drop_code();
        if self.support == Support::Stateless {
            log::info!("the MCP server supports revision {STATELESS}");
            self.list_tools(ctx, 0);
            self.send_held(ctx, hub, 0);
            self.is_probed = true;
            return None;
        }
        log::info!("the MCP server supports only revisions with sessions");
        for id in self.held.ids().collect::<Vec<_>>() {
            if self.refuse_held(ctx, hub, id) {
                continue;
            }
            if self.translates {
                let held = self.take_held(hub, id);
                self.unserved.extend(held);
            } else if let Some((reply, own_id)) = self.take_call(hub, id) {
                let error = HttpError::unsupported_version(STATELESS, false);
                reply.reject(ctx, &error.with_id(&own_id), true);
            }
        }
        let mut process = self.slots[0].program.take_child()?;
        process.stop(ctx);
        Some(PoolChange::Stopping(0, process))
    }

    /// Queues the starts of the processes that a pool of several has besides the first.
    pub(super) fn start_others(&mut self, ctx: &mut Context) {
        if self.support != Support::Stateless || self.is_stopping {
            return;
        }
        for slot in &mut self.slots[1..] {
            slot.program.queue(ctx);
        }
    }

    /// Whether the start of a process is queued.
    pub(super) fn has_queued(&self) -> bool {
        self.slots.iter().any(|slot| slot.program.is_queued())
    }

    /// Starts the next of the processes whose starts are queued.
    pub(super) fn start_next(&mut self, ctx: &mut Context, hub: &mut Hub) -> Option<PoolChange> {
        let mut slots = self.slots.iter_mut();
        let slot = slots.position(|slot| slot.program.begin())?;
        let started = self.start_process(ctx, hub, slot);
        self.handle_started(ctx, hub, slot, started)
    }

    /// Fails the requests of a process that has exited, and has it started again.
    fn handle_exit(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
        exit: ProgramExit,
    ) -> Option<PoolChange> {
        let has_run = exit.start_error().is_none();
        // Before it has answered the probe, it has served nobody.
        let data = exit.data(self.support == Support::Unknown);
        let mut was_asked = false;
        for id in self.requests.ids_of_process(slot) {
            let Some(request) = self.take(hub, id) else {
                continue;
            };
            match (request.call, request.sender_ids) {
                (Purpose::Call { reply, .. }, Some(ids)) if has_run => {
                    reply.finish(ctx, StatusCode::OK, None, &server_exited(&ids.id, &data));
                }
                (Purpose::Call { reply, .. }, Some(ids)) => {
                    reply.reject(ctx, &HttpError::cannot_start(&ids.id), true);
                }
                (Purpose::Call { .. }, None) => {}
                (Purpose::Probe, _) => was_asked = true,
                (Purpose::ListTools, _) => self.listing = None,
            }
        }
        if was_asked {
            self.probe_timer.set(ctx, None);
        }
        if self.is_stopping || self.support == Support::Sessions {
            return None;
        }
        let failure = exit.failure("the MCP server");
        if !has_run {
            self.fail_held(ctx, hub, slot);
            // As in `start`, the program that the server begins with has to exist.
            let is_first = was_asked && !self.is_lazy;
            if !self.restart(ctx, hub, slot, &failure) && is_first {
                ctx.stop();
                return Some(PoolChange::Failed(failure.to_string()));
            }
        } else if was_asked && self.slots[slot].program.is_exhausted(ctx) {
            self.support = Support::Sessions;
            let consequence = "it has not answered server/discover; serving only sessions";
            failure.log(&self.path, None, Some(consequence));
        } else {
            self.restart(ctx, hub, slot, &failure);
        }
        None
    }

    /// Handles a timer. Returns `None` if it belongs to something else.
    pub(super) fn handle_timer(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        timer: TimerId,
    ) -> Option<Option<PoolChange>> {
        if self.probe_timer.expire(timer) {
            let is_probe = |request: &PendingRequest| matches!(request.call, Purpose::Probe);
            if let Some(&probe) = self.requests.ids_of(is_probe).first() {
                log::warn!("the MCP server has not answered server/discover in time");
                self.take(hub, probe);
                self.support = Support::Sessions;
                return Some(self.finish_probe(ctx, hub));
            }
            return Some(None);
        }
        let mut slots = self.slots.iter_mut();
        let slot = slots.find_map(|slot| slot.program.expire(timer).then_some(slot))?;
        // A request that needs the process queues it.
        if !self.is_lazy || slot.pending > 0 {
            slot.program.queue(ctx);
        }
        Some(None)
    }

    /// Ends the subscriptions, because the server stops.
    pub(super) fn drain(&mut self, ctx: &mut Context, hub: &mut Hub) {
        let is_subscription = |request: &PendingRequest| request.call.is_subscription();
        for id in self.requests.ids_of(is_subscription) {
            if let Some((reply, own)) = self.remove(ctx, hub, id, "Server shutting down") {
                reply.finish(ctx, StatusCode::OK, None, &subscription_ended(&own));
            }
        }
    }

    /// Stops all processes.
    pub(super) fn stop(&mut self, ctx: &mut Context) {
        self.is_stopping = true;
        for slot in &mut self.slots {
            if let Some(mut process) = slot.program.give_up(ctx) {
                process.stop(ctx);
                slot.program.put_back(process);
            }
        }
    }

    /// The number of pending requests from callers, for the status.
    pub(super) fn pending(&self) -> usize {
        self.slots.iter().map(|slot| slot.pending).sum()
    }
}
