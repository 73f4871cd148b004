//! The pool: a few processes that answer all requests of revision 2026-07-28.
//!
//! Every request gets an id that no other request of the pool has had, also as its progress token. What a process sends back names
//! this id, so it reaches the caller of that request and nobody else, under the caller's own id and token.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

use super::McpConfig;
use super::hub::{Call, Hub};
use super::listen::Filter;
use super::problem::{Problem, code};
use super::process::{Input, MAX_UNREAD, Process};
use super::reply::Reply;
use super::splice::splice;
use super::tools::Tools;
use super::versions::STATELESS;
use crate::service::agent::envelope::{Envelope, EnvelopeError, MessageKind, member};
use crate::service::agent::line_decoder::{AgentLine, start_of};
use crate::service::agent::recover_id::{IdRecovery, RecoveredId};
use crate::service::agent::response::error;
use crate::service::backoff::Backoff;
use crate::service::child::{ChildEvent, code_and_signal, describe};
use crate::service::json::{quote, unescape};
use crate::{Context, Principal, SourceId, StatusCode, TimerId};

/// The key of a subscription's id in `_meta`.
const SUBSCRIPTION_KEY: &str = "io.modelcontextprotocol/subscriptionId";

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

/// What a request is for.
#[derive(Debug)]
enum Purpose {
    /// A caller waits for the answer.
    Call {
        reply: Reply,
        principal: Principal,
        /// The caller's own id, as written.
        id: Box<str>,
        /// The caller's own progress token, as written.
        token: Option<Box<str>>,
        /// For `subscriptions/listen`: what the caller wants to hear.
        listens: Option<Filter>,
        /// Whether the answer describes tools.
        lists_tools: bool,
        /// The message, while the process is not ready.
        held: Option<Box<str>>,
    },
    /// Asks which revisions the process supports.
    Probe,
    /// Asks for the tools, page by page.
    ListTools,
}

/// A request that is not answered.
#[derive(Debug)]
struct PendingRequest {
    slot: usize,
    purpose: Purpose,
}

/// The place of a process.
#[derive(Debug)]
struct Slot {
    process: Option<Box<Process>>,
    backoff: Backoff,
    /// The process is started again when this timer expires.
    restart: Option<TimerId>,
    /// Requests that the process has not answered.
    pending: usize,
}

/// The pool.
#[derive(Debug)]
pub(super) struct Pool {
    command: Vec<String>,
    slots: Vec<Slot>,
    pub(super) support: Support,
    requests: HashMap<u64, PendingRequest>,
    last_id: u64,
    pub(super) tools: Tools,
    /// The bytes of messages that wait until the first process has said what it supports.
    held: usize,
    /// When the first process must have answered.
    probe_timer: Option<TimerId>,
    /// The requests of callers, in the order of their ids, that wait for the probe.
    waiting: Vec<u64>,
    is_stopping: bool,
}

/// The change of a process that the owner of the sources must know.
#[derive(Debug)]
pub(super) enum PoolChange {
    /// A process was started in this slot.
    Started(usize),
    /// The process of a slot is not needed any more, and was told to stop.
    Stopping(Box<Process>),
}

impl Pool {
    pub(super) fn new(config: &McpConfig) -> Self {
        let slot = || Slot {
            process: None,
            backoff: Backoff::new(config.restart_limit),
            restart: None,
            pending: 0,
        };
        Self {
            command: config.command.clone(),
            slots: std::iter::repeat_with(slot)
                .take(config.pool.max(1))
                .collect(),
            support: Support::Unknown,
            requests: HashMap::new(),
            last_id: 0,
            tools: Tools::default(),
            held: 0,
            probe_timer: None,
            waiting: Vec::new(),
            is_stopping: false,
        }
    }

    /// What is known of the tools. `None` if the program does not support revision 2026-07-28.
    pub(super) fn tools(&self) -> Option<&Tools> {
        (self.support != Support::Sessions).then_some(&self.tools)
    }

    /// The number of running processes.
    pub(super) fn process_count(&self) -> usize {
        self.slots
            .iter()
            .filter(|slot| slot.process.is_some())
            .count()
    }

    /// Whether requests can be answered, or are not for the pool.
    pub(super) fn is_ready(&self) -> bool {
        match self.support {
            Support::Unknown => false,
            Support::Stateless => self.process_count() > 0,
            Support::Sessions => true,
        }
    }

    pub(super) fn sources(&self, slot: usize) -> impl Iterator<Item = SourceId> {
        let process = self.slots.get(slot).and_then(|slot| slot.process.as_ref());
        process.into_iter().flat_map(|process| process.sources())
    }

    /// The slot whose process has set this timer.
    pub(super) fn owner_of(&self, timer: TimerId) -> Option<usize> {
        self.slots.iter().position(|slot| {
            let process = slot.process.as_ref();
            process.is_some_and(|process| process.is_timer(timer))
        })
    }

    /// Starts the first process and asks it which revisions it supports.
    pub(super) fn start(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        config: &McpConfig,
    ) -> std::io::Result<()> {
        self.start_process(ctx, hub, 0)?;
        if let Some(timeout) = config.initialize_timeout {
            self.probe_timer = Some(ctx.set_timer(timeout));
        }
        Ok(())
    }

    fn start_process(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
    ) -> std::io::Result<()> {
        let process = Process::start(ctx, &self.command)?;
        hub.counts.processes += 1;
        self.slots[slot].process = Some(Box::new(process));
        match self.support {
            Support::Unknown => self.ask(ctx, slot, "server/discover", Purpose::Probe, ""),
            Support::Stateless if slot == 0 => {
                self.ask(ctx, slot, "tools/list", Purpose::ListTools, "");
            }
            Support::Stateless | Support::Sessions => {}
        }
        Ok(())
    }

    /// Sends a request of Outrigger itself. `params` are further members of `params`.
    fn ask(
        &mut self,
        ctx: &mut Context,
        slot: usize,
        method: &str,
        purpose: Purpose,
        params: &str,
    ) {
        let id = self.next_id();
        let version = env!("CARGO_PKG_VERSION");
        let message = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{params}"_meta":{{"io.modelcontextprotocol/protocolVersion":"{STATELESS}","io.modelcontextprotocol/clientInfo":{{"name":"outrigger","version":"{version}"}},"io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#
        );
        self.requests.insert(id, PendingRequest { slot, purpose });
        self.send(ctx, slot, &message);
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn send(&mut self, ctx: &mut Context, slot: usize, text: &str) {
        if let Some(process) = &mut self.slots[slot].process {
            process.send(ctx, text);
        }
    }

    /// Whether a request still waits for its answer.
    pub(super) fn is_waiting(&self, id: u64) -> bool {
        self.requests.contains_key(&id)
    }

    /// Whether a request waits for its answer and its stream has not begun.
    pub(super) fn may_begin(&self, id: u64) -> bool {
        matches!(
            self.requests.get(&id),
            Some(PendingRequest { purpose: Purpose::Call { reply, .. }, .. }) if !reply.is_streaming()
        )
    }

    /// The process with the fewest requests. `None` if none runs.
    fn least_busy(&mut self) -> Option<usize> {
        let running = |(_, slot): &(usize, &mut Slot)| slot.process.is_some();
        let slots = self.slots.iter_mut().enumerate().filter(running);
        let free = slots.min_by_key(|(_, slot)| slot.pending);
        free.map(|(index, _)| index)
    }

    /// Passes a request on to a process. The caller gets the answer later.
    pub(super) fn request(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        envelope: &Envelope<'_>,
        reply: Reply,
        principal: Principal,
    ) {
        let MessageKind::Request { method, id } = &envelope.kind else {
            return;
        };
        let own_id = &envelope.text[id.clone()];
        match self.accept(hub, envelope, method, &reply, &principal) {
            Ok(slot) => {
                let request = self.next_id();
                hub.callers.insert(reply.caller, Call::Pool(request));
                let (text, token) = with_unique_ids(envelope, id, request);
                let is_held = self.support == Support::Unknown;
                let purpose = Purpose::Call {
                    reply,
                    principal,
                    id: own_id.into(),
                    token,
                    listens: (method == "subscriptions/listen").then(|| Filter::of(envelope)),
                    lists_tools: method == "tools/list",
                    held: None,
                };
                self.requests
                    .insert(request, PendingRequest { slot, purpose });
                self.slots[slot].pending += 1;
                if is_held {
                    self.hold(request, text);
                } else {
                    self.send(ctx, slot, &text);
                }
                let call = Call::Pool(request);
                hub.beginnings.push(ctx, call, |call| match call {
                    Call::Pool(id) => self.may_begin(id),
                    Call::Session(..) => true,
                });
                hub.timeouts.push(ctx, call, |call| match call {
                    Call::Pool(id) => self.is_waiting(id),
                    Call::Session(..) => true,
                });
            }
            Err(problem) => reply.reject(ctx, &problem.with_id(own_id), true),
        }
    }

    fn accept(
        &mut self,
        hub: &mut Hub,
        envelope: &Envelope<'_>,
        method: &str,
        reply: &Reply,
        principal: &Principal,
    ) -> Result<usize, Problem> {
        if method == "subscriptions/listen" && !reply.takes_events() {
            return Err(Problem::new(
                StatusCode::NOT_ACCEPTABLE,
                code::INVALID_REQUEST,
                "Accept must allow text/event-stream",
            ));
        }
        let slot = self
            .least_busy()
            .ok_or_else(|| Problem::unavailable("The server is not running"))?;
        let is_full = match self.support {
            Support::Unknown => self.held + envelope.text.len() > MAX_UNREAD,
            _ => self.slots[slot]
                .process
                .as_mut()
                .is_none_or(|process| process.is_behind()),
        };
        if is_full {
            return Err(Problem::unavailable("The server does not read its input"));
        }
        hub.take_request(principal)?;
        Ok(slot)
    }

    fn hold(&mut self, request: u64, text: String) {
        self.held += text.len();
        self.waiting.push(request);
        if let Some(PendingRequest {
            purpose: Purpose::Call { held, .. },
            ..
        }) = self.requests.get_mut(&request)
        {
            *held = Some(text.into());
        }
    }

    /// Passes on a notification of a client, unless it names a request: ids of clients mean nothing to a shared process.
    pub(super) fn notify(&mut self, ctx: &mut Context, method: &str, text: &str) {
        let names_request = matches!(
            method,
            "notifications/cancelled" | "notifications/progress" | "notifications/initialized"
        );
        if names_request || self.support != Support::Stateless {
            return;
        }
        if let Some(slot) = self.least_busy() {
            self.send(ctx, slot, text);
        }
    }

    /// Begins the stream of a request that has waited for a while.
    pub(super) fn begin_stream(&mut self, ctx: &mut Context, id: u64) {
        if let Some(PendingRequest {
            purpose: Purpose::Call { reply, .. },
            ..
        }) = self.requests.get_mut(&id)
        {
            reply.begin(ctx);
        }
    }

    /// Cancels a request whose caller is gone.
    pub(super) fn cancel(&mut self, ctx: &mut Context, hub: &mut Hub, id: u64) {
        if self.remove(ctx, hub, id, "Client disconnected").is_some() {
            hub.counts.cancelled += 1;
        }
    }

    /// Fails a request that has waited too long.
    pub(super) fn time_out(&mut self, ctx: &mut Context, hub: &mut Hub, id: u64) {
        if let Some((reply, own_id)) = self.remove(ctx, hub, id, "Request timed out") {
            let failed = error(&own_id, code::INTERNAL, "Request timed out", None);
            reply.finish(ctx, StatusCode::OK, None, &failed);
        }
    }

    /// Removes a request of a caller and tells the process.
    fn remove(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        id: u64,
        why: &str,
    ) -> Option<(Reply, Box<str>)> {
        let (slot, purpose) = self.take(hub, id)?;
        let Purpose::Call {
            reply,
            id: own_id,
            held,
            ..
        } = purpose
        else {
            return None;
        };
        match held {
            Some(text) => self.held -= text.len(),
            None => {
                let cancelled = format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":{}}}}}"#,
                    quote(why)
                );
                self.send(ctx, slot, &cancelled);
            }
        }
        Some((reply, own_id))
    }

    /// Takes a request out of the table.
    fn take(&mut self, hub: &mut Hub, id: u64) -> Option<(usize, Purpose)> {
        let PendingRequest { slot, purpose } = self.requests.remove(&id)?;
        if let Purpose::Call {
            reply, principal, ..
        } = &purpose
        {
            self.slots[slot].pending -= 1;
            hub.end_request(principal);
            hub.callers.remove(&reply.caller);
        }
        Some((slot, purpose))
    }

    /// Handles an event of the process of a slot.
    pub(super) fn handle(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
        input: Input,
    ) -> Option<PoolChange> {
        let mut process = self.slots[slot].process.take()?;
        let mut answers = Vec::new();
        let mut was_probe = false;
        let event = process.handle(ctx, input, |ctx, line| {
            was_probe |= self.handle_line(ctx, hub, slot, line, &mut answers);
            ControlFlow::Continue(())
        });
        for answer in &answers {
            process.send(ctx, answer);
        }
        self.slots[slot].process = Some(process);
        if let ChildEvent::Exited(status) = event {
            self.slots[slot].process = None;
            self.handle_exit(ctx, hub, slot, status);
            return None;
        }
        if was_probe {
            return self.finish_probe(ctx, hub);
        }
        None
    }

    /// Handles a message. Returns whether it was the answer to the probe.
    fn handle_line(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
        line: AgentLine<'_>,
        answers: &mut Vec<String>,
    ) -> bool {
        let (recovered, why) = match line {
            AgentLine::Nothing => return false,
            AgentLine::Unreadable(recovered, why) => (recovered, why),
            AgentLine::Text(text) => match Envelope::parse(text) {
                Ok(envelope) => return self.handle_message(ctx, hub, slot, &envelope, answers),
                Err(EnvelopeError::Parse) => {
                    let start = start_of(text.as_bytes());
                    log::warn!("skipped a line of the MCP server that is not JSON: {start:?}");
                    (IdRecovery::of(text.as_bytes()), "is not JSON")
                }
                Err(EnvelopeError::Invalid { why, .. }) => {
                    log::warn!("skipped a line of the MCP server that is no message: {why}");
                    (IdRecovery::of(text.as_bytes()), why)
                }
            },
        };
        match recovered {
            Some(RecoveredId::Response(id)) => {
                let id = id.parse().ok();
                let taken = id.filter(|id| self.is_of(slot, *id));
                if let Some((_, purpose)) = taken.and_then(|id| self.take(hub, id)) {
                    return self.fail(ctx, purpose, &format!("the server's answer {why}"));
                }
            }
            Some(RecoveredId::Request(id)) => answers.push(no_requests(&id)),
            None => {}
        }
        false
    }

    /// Answers the caller of a request with an internal error. Returns whether the request was the probe.
    fn fail(&mut self, ctx: &mut Context, purpose: Purpose, why: &str) -> bool {
        match purpose {
            Purpose::Call { reply, id, .. } => {
                let failed = error(&id, code::INTERNAL, "Internal error", Some(why));
                reply.finish(ctx, StatusCode::OK, None, &failed);
                false
            }
            Purpose::Probe => {
                self.support = Support::Sessions;
                true
            }
            Purpose::ListTools => false,
        }
    }

    /// Whether a request was sent to the process of this slot.
    fn is_of(&self, slot: usize, id: u64) -> bool {
        self.requests
            .get(&id)
            .is_some_and(|request| request.slot == slot)
    }

    fn handle_message(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
        envelope: &Envelope<'_>,
        answers: &mut Vec<String>,
    ) -> bool {
        ctx.spend(2 + envelope.text.len() / 512);
        match &envelope.kind {
            MessageKind::Request { id, .. } => {
                answers.push(no_requests(&envelope.text[id.clone()]));
                false
            }
            MessageKind::Notification { method } => {
                self.handle_notification(ctx, hub, slot, method, envelope);
                false
            }
            MessageKind::Response { id, result } => {
                let number = envelope.text[id.clone()].parse().ok();
                let number = number.filter(|number| self.is_of(slot, *number));
                let Some((number, (_, purpose))) =
                    number.and_then(|number| Some((number, self.take(hub, number)?)))
                else {
                    log::debug!("the MCP server has answered a request that does not wait");
                    hub.counts.dropped += 1;
                    return false;
                };
                self.handle_response(ctx, envelope, number, id, result.as_ref(), slot, purpose)
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one message")]
    fn handle_response(
        &mut self,
        ctx: &mut Context,
        envelope: &Envelope<'_>,
        number: u64,
        id: &Range<usize>,
        result: Option<&Range<usize>>,
        slot: usize,
        purpose: Purpose,
    ) -> bool {
        let text = envelope.text;
        match purpose {
            Purpose::Call {
                reply,
                id: own_id,
                lists_tools,
                ..
            } => {
                if lists_tools && let Some(result) = result {
                    self.tools.learn(&text[result.clone()]);
                }
                let mut edits = vec![(id.clone(), &*own_id)];
                let subscription = envelope.meta.as_ref();
                let subscription =
                    subscription.and_then(|meta| member(text, meta, SUBSCRIPTION_KEY));
                if let Some(range) = subscription
                    && text[range.clone()].parse() == Ok(number)
                {
                    edits.push((range, &own_id));
                }
                let answer = splice(text, &mut edits);
                reply.finish(ctx, status_of(text, result), None, &answer);
                false
            }
            Purpose::Probe => {
                self.support = match support_of(text, result) {
                    true => Support::Stateless,
                    false => Support::Sessions,
                };
                true
            }
            Purpose::ListTools => {
                if let Some(result) = result {
                    self.tools.learn(&text[result.clone()]);
                    let cursor = member(text, result, "nextCursor").map(|range| &text[range]);
                    if let Some(cursor) = cursor.filter(|cursor| cursor.starts_with('"')) {
                        let params = format!(r#""cursor":{cursor},"#);
                        self.ask(ctx, slot, "tools/list", Purpose::ListTools, &params);
                    }
                }
                false
            }
        }
    }

    /// Passes a notification on to the caller that it is for.
    fn handle_notification(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
        method: &str,
        envelope: &Envelope<'_>,
    ) {
        let text = envelope.text;
        let params = envelope.body.as_ref();
        let number = |range: &Range<usize>| {
            let id = text[range.clone()].parse::<u64>().ok();
            id.filter(|id| self.is_of(slot, *id))
        };
        if method == "notifications/progress" {
            let range = params.and_then(|params| member(text, params, "progressToken"));
            if let Some((range, id)) =
                range.and_then(|range| Some((range.clone(), number(&range)?)))
                && let Some(PendingRequest {
                    purpose:
                        Purpose::Call {
                            reply,
                            token: Some(token),
                            ..
                        },
                    ..
                }) = self.requests.get_mut(&id)
            {
                reply.event(ctx, None, &splice(text, &mut [(range, token)]));
                return;
            }
        } else if method == "notifications/cancelled" {
            // A server ends a subscription with it.
            let id = envelope.request_id.as_ref().and_then(number);
            let is_subscription = |id: &u64| {
                matches!(
                    self.requests.get(id),
                    Some(PendingRequest {
                        purpose: Purpose::Call {
                            listens: Some(_),
                            ..
                        },
                        ..
                    })
                )
            };
            if let Some(id) = id.filter(is_subscription)
                && let Some((_, Purpose::Call { reply, .. })) = self.take(hub, id)
            {
                reply.end(ctx);
                return;
            }
        } else if let Some(meta) = &envelope.meta
            && let Some(range) = member(text, meta, SUBSCRIPTION_KEY)
        {
            if let Some(id) = number(&range)
                && let Some(PendingRequest {
                    purpose:
                        Purpose::Call {
                            reply,
                            id: own_id,
                            listens: Some(_),
                            ..
                        },
                    ..
                }) = self.requests.get_mut(&id)
            {
                reply.event(ctx, None, &splice(text, &mut [(range, own_id)]));
                return;
            }
        } else {
            if method == "notifications/tools/list_changed" {
                self.ask(ctx, slot, "tools/list", Purpose::ListTools, "");
            }
            if self.tell_subscribers(ctx, slot, method, envelope) {
                return;
            }
        }
        log::debug!("a notification of the MCP server is for nobody: {method}");
        hub.counts.dropped += 1;
    }

    /// Sends a notification that names no subscription to all subscribers of its kind. Returns whether there was one.
    fn tell_subscribers(
        &mut self,
        ctx: &mut Context,
        slot: usize,
        method: &str,
        envelope: &Envelope<'_>,
    ) -> bool {
        let mut was_told = false;
        for request in self.requests.values_mut() {
            if let Purpose::Call {
                reply,
                id,
                listens: Some(filter),
                ..
            } = &mut request.purpose
                && request.slot == slot
                && filter.wants(method, envelope)
            {
                let text = with_subscription(envelope, id);
                reply.event(ctx, None, &text);
                was_told = true;
            }
        }
        was_told
    }

    /// Begins to serve, now that it is known what the program supports.
    fn finish_probe(&mut self, ctx: &mut Context, hub: &mut Hub) -> Option<PoolChange> {
        if let Some(timer) = self.probe_timer.take() {
            ctx.cancel_timer(timer);
        }
        self.held = 0;
        let waiting = std::mem::take(&mut self.waiting);
        if self.support == Support::Stateless {
            log::info!("the MCP server supports revision {STATELESS}");
            self.ask(ctx, 0, "tools/list", Purpose::ListTools, "");
            for id in waiting {
                if let Some(PendingRequest {
                    slot,
                    purpose: Purpose::Call { held, .. },
                }) = self.requests.get_mut(&id)
                    && let Some(text) = held.take()
                {
                    let slot = *slot;
                    self.send(ctx, slot, &text);
                }
            }
            return None;
        }
        log::info!("the MCP server supports only revisions with sessions");
        for id in waiting {
            if let Some((_, Purpose::Call { reply, id, .. })) = self.take(hub, id) {
                let problem = Problem::unsupported_version(STATELESS, false);
                reply.reject(ctx, &problem.with_id(&id), true);
            }
        }
        let mut process = self.slots[0].process.take()?;
        process.stop(ctx);
        Some(PoolChange::Stopping(process))
    }

    /// Starts the processes that a pool of several has besides the first.
    pub(super) fn start_others(&mut self, ctx: &mut Context, hub: &mut Hub) -> Vec<PoolChange> {
        let mut changes = Vec::new();
        if self.support != Support::Stateless || self.is_stopping {
            return changes;
        }
        for slot in 1..self.slots.len() {
            let is_new = self.slots[slot].process.is_none() && self.slots[slot].restart.is_none();
            if is_new {
                match self.start_process(ctx, hub, slot) {
                    Ok(()) => changes.push(PoolChange::Started(slot)),
                    Err(error) => log::error!("{error}"),
                }
            }
        }
        changes
    }

    /// Fails the requests of a process that has exited, and has it started again.
    fn handle_exit(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        slot: usize,
        status: Option<std::process::ExitStatus>,
    ) {
        let (code_, signal) = code_and_signal(status);
        let data = serde_json::json!({"code": code_, "signal": signal}).to_string();
        let of_slot =
            |(id, request): (&u64, &PendingRequest)| (request.slot == slot).then_some(*id);
        let mut ids: Vec<u64> = self.requests.iter().filter_map(of_slot).collect();
        ids.sort_unstable();
        let mut was_asked = false;
        for id in ids {
            match self.take(hub, id) {
                Some((_, Purpose::Call { reply, id, .. })) => {
                    reply.finish(ctx, StatusCode::OK, None, &server_exited(&id, &data));
                }
                Some((_, Purpose::Probe)) => was_asked = true,
                _ => {}
            }
        }
        self.waiting.clear();
        self.held = 0;
        if self.is_stopping {
            return;
        }
        let failure = format!("the MCP server {}", describe(status));
        let Some(delay) = self.slots[slot].backoff.next_delay(ctx.now()) else {
            if was_asked {
                self.support = Support::Sessions;
                log::error!(
                    "{failure} each time when asked for its revisions; serving only sessions"
                );
            } else {
                log::error!("{failure} too often; the pool is given up");
            }
            return;
        };
        log::error!("{failure}; restarting it in {delay:?}");
        hub.counts.restarts += 1;
        self.slots[slot].restart = Some(ctx.set_timer(delay));
    }

    /// Handles a timer. Returns `None` if it belongs to something else.
    pub(super) fn handle_timer(
        &mut self,
        ctx: &mut Context,
        hub: &mut Hub,
        timer: TimerId,
    ) -> Option<Option<PoolChange>> {
        if self.probe_timer == Some(timer) {
            self.probe_timer = None;
            let is_probe = |(id, request): (&u64, &PendingRequest)| {
                matches!(request.purpose, Purpose::Probe).then_some(*id)
            };
            if let Some(probe) = self.requests.iter().find_map(is_probe) {
                log::warn!("the MCP server has not answered server/discover in time");
                self.take(hub, probe);
                self.support = Support::Sessions;
                return Some(self.finish_probe(ctx, hub));
            }
            return Some(None);
        }
        for slot in 0..self.slots.len() {
            if self.slots[slot].restart == Some(timer) {
                self.slots[slot].restart = None;
                return Some(match self.start_process(ctx, hub, slot) {
                    Ok(()) => Some(PoolChange::Started(slot)),
                    Err(error) => {
                        log::error!("{error}");
                        self.handle_exit(ctx, hub, slot, None);
                        None
                    }
                });
            }
        }
        None
    }

    /// Ends the subscriptions, because the server stops.
    pub(super) fn drain(&mut self, ctx: &mut Context, hub: &mut Hub) {
        let is_subscription = |(id, request): (&u64, &PendingRequest)| {
            let is_it = matches!(
                request.purpose,
                Purpose::Call {
                    listens: Some(_),
                    ..
                }
            );
            is_it.then_some(*id)
        };
        let subscriptions: Vec<u64> = self.requests.iter().filter_map(is_subscription).collect();
        for id in subscriptions {
            if let Some((reply, _)) = self.remove(ctx, hub, id, "Server shutting down") {
                reply.end(ctx);
            }
        }
    }

    /// Stops all processes.
    pub(super) fn stop(&mut self, ctx: &mut Context) {
        self.is_stopping = true;
        for slot in &mut self.slots {
            if let Some(process) = &mut slot.process {
                process.stop(ctx);
            }
            if let Some(timer) = slot.restart.take() {
                ctx.cancel_timer(timer);
            }
        }
    }

    /// The number of requests of callers, by process, for the status.
    pub(super) fn pending(&self) -> usize {
        self.slots.iter().map(|slot| slot.pending).sum()
    }
}

/// The message with the unique id in place of the caller's id and progress token, and that token.
fn with_unique_ids(
    envelope: &Envelope<'_>,
    id: &Range<usize>,
    request: u64,
) -> (String, Option<Box<str>>) {
    let text = envelope.text;
    let unique = request.to_string();
    let mut edits = vec![(id.clone(), &*unique)];
    let token = envelope.meta.as_ref();
    let token = token.and_then(|meta| member(text, meta, "progressToken"));
    let own_token = token.as_ref().map(|range| text[range.clone()].into());
    edits.extend(token.map(|range| (range, &*unique)));
    (splice(text, &mut edits), own_token)
}

/// A notification with the id of a subscription in `params._meta`.
fn with_subscription(envelope: &Envelope<'_>, id: &str) -> String {
    let text = envelope.text;
    let field = format!(r#""{SUBSCRIPTION_KEY}":{id}"#);
    let inserted = |object: &Range<usize>, field: &str| {
        let at = object.start + 1;
        let is_empty = text[at..object.end - 1].trim_ascii().is_empty();
        let comma = if is_empty { "" } else { "," };
        [&text[..at], field, comma, &text[at..]].concat()
    };
    match (&envelope.meta, &envelope.body) {
        (Some(meta), _) if text[meta.clone()].starts_with('{') => inserted(meta, &field),
        (_, Some(params)) => inserted(params, &format!(r#""_meta":{{{field}}}"#)),
        (_, None) => {
            let whole = 0..text.trim_end().len();
            let start = text.len() - text.trim_start().len();
            inserted(
                &(start..whole.end),
                &format!(r#""params":{{"_meta":{{{field}}}}}"#),
            )
        }
    }
}

/// The answer to a request of a shared process: it has no client of its own.
fn no_requests(id: &str) -> String {
    error(id, code::METHOD_NOT_FOUND, "Method not found", None)
}

/// The error for a request whose process has exited. `data` is JSON.
pub(super) fn server_exited(id: &str, data: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{},"message":"Server exited","data":{data}}}}}"#,
        code::INTERNAL
    )
}

/// The HTTP status of a response, which follows from its error code.
fn status_of(text: &str, result: Option<&Range<usize>>) -> StatusCode {
    if result.is_some() {
        return StatusCode::OK;
    }
    match error_code(text) {
        Some(code::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        Some(code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION) => {
            StatusCode::BAD_REQUEST
        }
        _ => StatusCode::OK,
    }
}

fn error_code(text: &str) -> Option<i32> {
    let error = member(text, &(0..text.len()), "error")?;
    text[member(text, &error, "code")?].parse().ok()
}

/// Whether the answer to `server/discover` says that revision 2026-07-28 is supported.
fn support_of(text: &str, result: Option<&Range<usize>>) -> bool {
    let versions = match result {
        Some(result) => member(text, result, "supportedVersions"),
        None if error_code(text) == Some(code::UNSUPPORTED_VERSION) => {
            let error = member(text, &(0..text.len()), "error");
            let data = error.and_then(|error| member(text, &error, "data"));
            data.and_then(|data| member(text, &data, "supported"))
        }
        None => None,
    };
    let Some(versions) = versions else {
        return false;
    };
    let mut is_supported = false;
    let _ = crate::service::json::Skimmer::at(text, &versions).array(|version| {
        let raw = &text[version];
        is_supported |= raw.starts_with('"') && unescape(raw) == STATELESS;
    });
    is_supported
}
