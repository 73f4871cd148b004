//! Sessions that are being created. An agent may send messages about a session before its response to the request that creates it.
//!
//! If only one client can be meant, it gets them at once: the agent may need an answer before it can create the session. A question
//! binds the session id to that client, so the agent must create a session with this id for it.
//!
//! Otherwise, notifications wait for the response, and questions are refused. From then on, the process creates sessions for one
//! client at a time, so that the next question has a receiver.

use std::collections::VecDeque;
use std::time::Duration;

use super::Router;
use super::early::{EarlySession, WaitingRequest};
use super::exchange::Exchange;
use super::history::Entry;
use super::output::RouterOutput;
use super::requests::{ClientRequest, RequestClass, cancelled_id};
use super::session_key::SessionKey;
use super::settings::MAX_WAIT;
use crate::service::agent::named::Named;
use crate::service::jsonrpc::{Envelope, MessageKind, code, error, is_same};
use crate::{ClientId, Time};

/// Why a message about a session that does not exist has no receiver.
const SEVERAL: &str =
    "the session does not exist yet, and more than one client may be waiting for it";
const BUSY: &str = "the session does not exist yet, and a turn of another client runs";
const FOREIGN: &str = "the session does not exist yet, and its id belongs to another client";
const RENAMED: &str =
    "the session does not exist yet, and the agent has named the new session differently";

impl Exchange {
    /// How long a message may wait for a session that is being created.
    fn longest_wait(&self) -> Duration {
        self.settings.request_timeout.unwrap_or(MAX_WAIT)
    }

    /// Counts messages of the agent that were dropped because their session does not exist.
    fn count_early(&mut self, dropped: usize) {
        if dropped > 0 {
            self.counters.dropped += dropped as u64;
            log::warn!(
                "dropped {dropped} messages of the agent: their sessions were not created, or too many arrived before"
            );
        }
    }

    /// Keeps a notification about a session that is perhaps being created.
    pub(super) fn hold_early(&mut self, now: Time, process: usize, session: &str, text: &str) {
        if let Some(state) = self.processes.get_mut(process) {
            let dropped = state.creation.hold(session, text, now);
            self.count_early(dropped);
            let deadline = now + self.longest_wait();
            self.requests.wakeup.set_by(Some(deadline));
        }
    }

    /// Forgets what a process has said about sessions that none of its pending requests can create any more.
    pub(super) fn drop_early(&mut self, process: usize) {
        let state = self.processes.get(process);
        if state.is_none_or(|state| state.creation.early.is_empty()) {
            return;
        }
        let creators: Vec<ClientId> = self.requests.creators(process).collect();
        if let Some(state) = self.processes.get_mut(process) {
            let is_over = |early: &EarlySession| match early.client {
                Some(client) => !creators.contains(&client),
                None => creators.is_empty(),
            };
            let dropped = state.creation.forget(is_over);
            self.count_early(dropped);
        }
    }

    /// A request of a client that creates a session has failed. Nobody knows which session would have been its session.
    pub(super) fn creation_failed(&mut self, process: usize, client: ClientId) {
        if let Some(state) = self.processes.get_mut(process) {
            state.creation.forget(|early| early.client == Some(client));
        }
        self.drop_early(process);
    }

    /// Records that the agent has asked about a session that does not exist yet.
    pub(super) fn note_early_question(&mut self, process: usize, session: &str, upstream_id: u64) {
        let pending = &self.requests.of_agent;
        if let Some(state) = self.processes.get_mut(process)
            && let Some(early) = state.creation.get_mut(session)
        {
            early.is_bound = true;
            early.asked.retain(|id| pending.get(*id).is_some());
            early.asked.push(upstream_id);
        }
    }

    /// Whether a request that creates a session has to wait: the process creates sessions for one client at a time, and it is
    /// another one's turn.
    fn must_wait(&self, client: ClientId, process: usize) -> bool {
        let Some(state) = self.processes.get(process) else {
            return false;
        };
        let mut creators = self.requests.creators(process);
        let mut waiting = state.creation.waiting.iter();
        state.creation.is_single
            && (creators.any(|other| other != client) || waiting.any(|one| one.client != client))
    }

    /// The number of a client's requests that wait for other clients' sessions.
    pub(super) fn waiting_count(&self, client: ClientId) -> usize {
        let waiting = self.processes.iter();
        waiting.map(|state| state.creation.waiting_of(client)).sum()
    }

    /// Removes the waiting requests for which `is_over` is true, and answers them with the error that `failed` writes for an id.
    /// Returns their number.
    pub(super) fn refuse_waiting(
        &mut self,
        is_over: impl Fn(usize, &WaitingRequest) -> bool,
        failed: impl Fn(&str) -> String,
        output: &mut impl RouterOutput,
    ) -> usize {
        let mut refused = 0;
        for process in self.processes.indices() {
            let Some(state) = self.processes.get_mut(process) else {
                continue;
            };
            state.creation.waiting.retain(|one| {
                let is_over = is_over(process, one);
                if is_over {
                    output.to_client(one.client, &[&failed(&one.id)]);
                    refused += 1;
                }
                !is_over
            });
        }
        refused
    }

    /// Takes back a waiting request that its client cancels. Returns whether there was one.
    pub(super) fn cancel_waiting(
        &mut self,
        client: ClientId,
        cancellation: &Envelope<'_>,
        output: &mut impl RouterOutput,
    ) -> bool {
        let Ok(range) = cancelled_id(cancellation) else {
            return false;
        };
        let named = &cancellation.text[range];
        let is_it =
            |_: usize, one: &WaitingRequest| one.client == client && is_same(&one.id, named);
        let failed = |id: &str| error(id, code::CANCELLED, "Cancelled", None);
        self.refuse_waiting(is_it, failed, output) > 0
    }

    /// Forgets the waiting requests of a client that has disconnected.
    pub(super) fn forget_waiting(&mut self, client: ClientId) {
        for state in self.processes.iter_mut() {
            state.creation.waiting.retain(|one| one.client != client);
        }
    }

    /// Ends what has waited too long. Returns when to call again.
    pub(super) fn time_out_creation(
        &mut self,
        now: Time,
        output: &mut impl RouterOutput,
    ) -> Option<Time> {
        let longest = self.longest_wait();
        let why = Some(
            "the agent creates sessions for one client at a time, and another client's session takes too long",
        );
        let failed = |id: &str| error(id, code::TIMED_OUT, "Timed out", why);
        self.refuse_waiting(|_, one| one.since + longest <= now, failed, output);
        let mut dropped = 0;
        for state in self.processes.iter_mut() {
            let is_over =
                |early: &EarlySession| early.client.is_none() && early.since + longest <= now;
            dropped += state.creation.forget(is_over);
        }
        self.count_early(dropped);
        let since = self.processes.iter().flat_map(|state| {
            let early = state.creation.early.iter();
            let early = early.filter(|early| early.client.is_none());
            let waiting = state.creation.waiting.iter();
            early
                .map(|early| early.since)
                .chain(waiting.map(|one| one.since))
        });
        since.min().map(|since| since + longest)
    }
}

impl Router {
    /// The client that a message about a session that does not exist yet is for, or why that is not certain.
    fn creator_of(
        &self,
        process: usize,
        session: &str,
        named: &Named<'_>,
        output: &impl RouterOutput,
    ) -> Result<ClientId, &'static str> {
        let exchange = &self.exchange;
        let access = self.sessions.access(exchange);
        let state = exchange.processes.get(process).ok_or(SEVERAL)?;
        if let Some(client) = state.creation.get(session).and_then(|early| early.client) {
            let may_get = access.may_get(client, process, named, output);
            return may_get.then_some(client).ok_or(FOREIGN);
        }
        let mut creators = exchange.requests.creators(process);
        let client = creators.next().ok_or(SEVERAL)?;
        // A request whose client has left can still create a session.
        let mut abandoned = state.abandoned.values();
        if creators.any(|other| other != client) || abandoned.any(|one| one.session.is_none()) {
            return Err(SEVERAL);
        }
        if state.creation.bound_count(client) >= exchange.requests.creators(process).count() {
            return Err(RENAMED);
        }
        let mut turns = exchange.requests.of_clients.values();
        let mut sessions = self.sessions.values();
        let is_prompt = |request: &ClientRequest| {
            let call = &request.call;
            request.process == process
                && call.class == RequestClass::Prompt
                && call.client != client
        };
        if turns.any(is_prompt)
            || sessions.any(|one| {
                one.process() == process
                    && one.activity.is_running()
                    && one.controller() != Some(client)
            })
        {
            return Err(BUSY);
        }
        let principal = exchange.clients.get(client).map(|state| &state.principal);
        let mut ended = self.sessions.ended.find(session);
        let mut same_id = self.sessions.named(session);
        if !access.may_get(client, process, named, output)
            || ended.any(|record| principal.is_none_or(|own| !record.principal.is_same(own)))
            || same_id.any(|(_, one)| one.needs(process) && one.controller() != Some(client))
        {
            return Err(FOREIGN);
        }
        Ok(client)
    }

    /// Finds the client for a message about a session that does not exist yet, and passes on what has waited for it. A question that
    /// has no receiver makes the process create sessions for one client at a time.
    pub(super) fn early_receiver(
        &mut self,
        now: Time,
        process: usize,
        (session, named): (&str, &Named<'_>),
        is_question: bool,
        output: &mut impl RouterOutput,
    ) -> Result<ClientId, &'static str> {
        let found = self.creator_of(process, session, named, output);
        let Some(state) = self.exchange.processes.get_mut(process) else {
            return found;
        };
        match found {
            Ok(client) => {
                let (early, dropped) = state.creation.entry(session, now);
                let mut held = VecDeque::new();
                if early.client.replace(client).is_none() {
                    held = std::mem::take(&mut early.messages);
                    early.bytes = 0;
                }
                self.exchange.count_early(dropped);
                for text in held {
                    self.route_from_agent(now, process, &text, output);
                }
            }
            Err(why) if is_question && !state.creation.is_single => {
                state.creation.is_single = true;
                log::warn!(
                    "the agent asks about a session before it has created it, and its client is not certain ({why}): it creates sessions for one client at a time from now on"
                );
            }
            Err(_) => {}
        }
        found
    }

    /// Keeps an update that a client has received before its session exists, for those who attach to the session later.
    pub(super) fn keep_early_update(&mut self, process: usize, session: &str, text: &str) {
        let state = self.exchange.processes.get_mut(process);
        if let Some(state) = state
            && let Some(early) = state.creation.get_mut(session)
        {
            early.keep(text);
        }
    }

    /// Why a process may not use this id for the session that it has created. The request is no longer pending.
    pub(super) fn why_not_created(
        &self,
        request: &ClientRequest,
        id: &str,
    ) -> Option<&'static str> {
        let (process, client) = (request.process, request.call.client);
        let mut others = self
            .sessions
            .named(id)
            .filter(|(_, one)| !one.needs(process));
        let state = self.exchange.processes.get(process)?;
        let early = state.creation.get(id);
        let receiver = early.and_then(|early| early.client);
        let is_theirs = receiver.is_some_and(|receiver| receiver != client);
        if !self.sessions.is_free(&self.exchange.processes, process, id)
            || others.any(|(_, session)| session.is_used_by(client))
            || is_theirs
        {
            return Some("the agent answered with a session that is in use");
        }
        let mut creators = self.exchange.requests.creators(process);
        let pending = creators.by_ref().filter(|other| *other == client).count();
        let is_bound = early.is_some_and(|early| early.is_bound);
        (!is_bound && state.creation.bound_count(client) > pending)
            .then_some("the agent answered with another session than it has asked about before")
    }

    /// Passes on what a process has said about a session before it has created it.
    pub(super) fn finish_creation(
        &mut self,
        now: Time,
        process: usize,
        session: &str,
        output: &mut impl RouterOutput,
    ) {
        let state = self.exchange.processes.get_mut(process);
        let early = state.and_then(|state| state.creation.take(session));
        let key = self.sessions.of_process(process, session);
        let key: Option<SessionKey> = key.map(|(key, _)| key.clone());
        if let (Some(early), Some(key)) = (early, key) {
            if early.client.is_some() {
                for text in &early.messages {
                    self.sessions.remember(&key, Entry::Update, text);
                }
                for id in early.asked {
                    if let Some(request) = self.exchange.requests.of_agent.get_mut(id) {
                        request.session = Some(key.clone());
                    }
                }
            } else {
                for message in early.messages {
                    self.route_from_agent(now, process, &message, output);
                }
            }
        }
        self.exchange.drop_early(process);
    }

    /// Keeps a request that creates a session if it is not its client's turn, or refuses it if too many wait. Returns false if it is
    /// the client's turn.
    pub(super) fn waits_for_turn(
        &mut self,
        now: Time,
        (client, process): (ClientId, usize),
        (id, text): (&str, &str),
        output: &mut impl RouterOutput,
    ) -> bool {
        if !self.exchange.must_wait(client, process) {
            return false;
        }
        let deadline = now + self.exchange.longest_wait();
        let Some(state) = self.exchange.processes.get_mut(process) else {
            return false;
        };
        if state.creation.is_full_for(client, text) {
            let why = Some("too many requests wait for new sessions");
            let refused = error(id, code::TOO_MANY, "Too many requests", why);
            output.to_client(client, &[&refused]);
            return true;
        }
        state.creation.waiting.push_back(WaitingRequest {
            client,
            id: id.into(),
            text: text.into(),
            since: now,
        });
        self.exchange.requests.wakeup.set_by(Some(deadline));
        true
    }

    /// Sends the requests whose turn it is.
    pub(super) fn send_waiting(&mut self, now: Time, output: &mut impl RouterOutput) {
        for process in self.exchange.processes.indices() {
            let state = self.exchange.processes.get_mut(process);
            let mut waiting = state.map_or_else(VecDeque::new, |state| {
                std::mem::take(&mut state.creation.waiting)
            });
            while let Some(first) = waiting.front()
                && !self.exchange.must_wait(first.client, process)
                && let Some(one) = waiting.pop_front()
            {
                if let Ok(envelope) = Envelope::parse_client(&one.text)
                    && let MessageKind::Request { method, id } = &envelope.kind
                {
                    let id = id.clone();
                    self.request_from_client(now, one.client, &envelope, method, id, output);
                }
            }
            if let Some(state) = self.exchange.processes.get_mut(process) {
                state.creation.waiting = waiting;
            }
        }
    }
}
