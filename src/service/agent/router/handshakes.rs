//! `initialize`, whose answer an agent process gives once for all clients of its kind. It is sent again, a limited number of times,
//! if the clients that waited for the answer have left.

use std::ops::Range;

use super::Router;
use super::exchange::Exchange;
use super::observers::name_of;
use super::output::RouterOutput;
use super::process_table::Process;
use super::requests::RequestClass;
use crate::service::agent::Approvals;
use crate::service::agent::initialize::{
    Capabilities, Initialize, PendingInitialize, declares_resume, kind_of, version_of,
    with_all_requests,
};
use crate::service::agent::response::with_meta;
use crate::service::json::{Skimmer, quote};
use crate::service::jsonrpc::{Envelope, MessageKind, code, error, member, success};
use crate::{ClientId, Time};

/// How often `initialize` is sent to an agent that does not answer it. Later clients wait for one of these answers.
const MAX_INITIALIZES: usize = 8;

impl Router {
    /// Whether the agent has not answered `initialize` yet.
    pub(crate) fn is_initializing(&self, process: usize) -> bool {
        self.exchange
            .processes
            .get(process)
            .is_some_and(|process| process.initialize.is_pending())
    }

    /// Whether a restarted agent has not accepted `initialize` and must be stopped.
    pub(crate) fn is_refused(&self, process: usize) -> bool {
        self.exchange
            .processes
            .get(process)
            .is_some_and(|process| process.initialize.is_refused())
    }

    /// The process that serves clients of this protocol version and these capabilities, or the error for the client. `None` if
    /// there is no such client.
    fn process_of_kind(
        &mut self,
        client: ClientId,
        envelope: &Envelope<'_>,
        id: &str,
        output: &impl RouterOutput,
    ) -> Option<Result<usize, String>> {
        let state = self.exchange.clients.get(client)?;
        let (before, principal) = (state.process, state.principal.clone());
        // If there is one process for all, they are of one kind.
        let kind = match self.exchange.settings.is_one_process {
            true => "all".into(),
            false => kind_of(envelope),
        };
        let is_of_kind = |process: &Process| process.kind.as_deref() == Some(&*kind);
        Some(match before {
            Some(index) if self.exchange.processes.get(index).is_some_and(is_of_kind) => Ok(index),
            Some(_) => {
                let why = Some("initialize was sent before with other capabilities");
                Err(error(id, code::INVALID, "Invalid request", why))
            }
            None => {
                let has_watch_scope = output.has_watch_scope(client);
                let found = self.process_for(&kind, &principal, has_watch_scope);
                found.map_err(|why| error(id, code::TOO_MANY, "Too many agents", Some(why)))
            }
        })
    }

    /// Handles `initialize` of a client.
    pub(super) fn initialize_from_client(
        &mut self,
        now: Time,
        client: ClientId,
        envelope: &Envelope<'_>,
        id: &str,
        output: &mut impl RouterOutput,
    ) {
        if let Err(refused) =
            self.sessions
                .check_names(&self.exchange, client, "initialize", envelope, false)
        {
            self.exchange.counters.denied += 1;
            return output.to_client(client, &[&refused.response(id)]);
        }
        self.exchange.counters.initializes += 1;
        let index = match self.process_of_kind(client, envelope, id, output) {
            Some(Ok(index)) => index,
            Some(Err(refused)) => return output.to_client(client, &[&refused]),
            None => return,
        };
        if let Some(state) = self.exchange.clients.get_mut(client) {
            state.process = Some(index);
            state.capabilities = Capabilities::read(envelope);
            state.name = name_of(envelope);
        }
        self.exchange.processes.note_client(index, client);
        self.join_process(now, index, (client, id), envelope, output);
    }

    /// Answers a client's `initialize` with the result of its process. If there is none yet, the client waits for it. The process
    /// gets the request unless one is already pending.
    fn join_process(
        &mut self,
        now: Time,
        index: usize,
        (client, id): (ClientId, &str),
        envelope: &Envelope<'_>,
        output: &mut impl RouterOutput,
    ) {
        let upstream_id = self.exchange.requests.next_id();
        let deadline = self.exchange.settings.initialize_timeout;
        let deadline = deadline.map(|limit| now + limit);
        let serves_all = self.exchange.settings.is_one_process;
        let Some(process) = self.exchange.processes.get_mut(index) else {
            return;
        };
        match &mut process.initialize {
            Initialize::Done { result, .. } => {
                let answer = success(id, result).concat();
                self.exchange.answer_initialize(client, &answer, output);
            }
            Initialize::Pending(pending)
                if pending.wanted.iter().any(|(other, _)| *other == client) =>
            {
                let why = Some("initialize is already being handled");
                let refused = error(id, code::INVALID, "Invalid request", why);
                output.to_client(client, &[&refused]);
            }
            Initialize::Pending(pending) => {
                let is_lost = pending.wanted.is_empty() && !pending.was_accepted;
                pending.wanted.push((client, id.into()));
                if is_lost {
                    // The clients that waited for it have left, and the answer may never come.
                    pending.deadline = deadline;
                    if pending.ids.len() < MAX_INITIALIZES {
                        pending.ids.push(upstream_id);
                        self.exchange.send_initialize(index, output);
                    } else {
                        self.exchange.requests.wakeup.set_by(deadline);
                    }
                }
            }
            initialize @ Initialize::Never => {
                let params = params_of(envelope).unwrap_or("{}");
                *initialize = Initialize::Pending(PendingInitialize {
                    ids: vec![upstream_id],
                    first_id: upstream_id,
                    params: match serves_all {
                        true => with_all_requests(params).into(),
                        false => params.into(),
                    },
                    wanted: vec![(client, id.into())],
                    deadline,
                    ..PendingInitialize::default()
                });
                self.exchange.send_initialize(index, output);
            }
        }
    }

    /// Initializes a restarted agent process with the parameters that its predecessor got.
    pub(crate) fn handle_agent_started(
        &mut self,
        now: Time,
        process: usize,
        output: &mut impl RouterOutput,
    ) {
        let id = self.exchange.requests.next_id();
        let deadline = self
            .exchange
            .settings
            .initialize_timeout
            .map(|limit| now + limit);
        let Some(state) = self.exchange.processes.get_mut(process) else {
            return;
        };
        if state.initialize.restart(id) {
            if let Some(pending) = state.initialize.pending() {
                pending.deadline = deadline;
            }
            self.exchange.send_initialize(process, output);
        }
    }

    /// Handles the agent's response to `initialize`.
    pub(super) fn initialize_from_agent(
        &mut self,
        process: usize,
        upstream_id: u64,
        envelope: &Envelope<'_>,
        id: &Range<usize>,
        output: &mut impl RouterOutput,
    ) {
        let text = envelope.text;
        let Some(state) = self.exchange.processes.get_mut(process) else {
            return;
        };
        let Some(pending) = state.initialize.pending() else {
            return;
        };
        let is_latest = pending.ids.last() == Some(&upstream_id);
        pending.ids.retain(|other| *other != upstream_id);
        let MessageKind::Response {
            result: Some(result),
            ..
        } = &envelope.kind
        else {
            let is_refused = pending.was_accepted;
            if is_refused {
                log::error!(
                    "the restarted agent rejected initialize: {}",
                    &text[..text.floor_char_boundary(300)]
                );
                pending.is_refused = true;
            }
            // The agent may reject it only because it was sent twice.
            if is_latest {
                // While the agent is refused, its clients must not reach it.
                let is_over = pending.ids.is_empty() && !is_refused;
                let wanted = state.initialize.take_wanted();
                if is_over {
                    state.initialize = Initialize::Never;
                }
                self.exchange
                    .reject_initialize(wanted, output, |client_id| {
                        [&text[..id.start], client_id, &text[id.end..]].concat()
                    });
                self.free_kind(process);
            }
            return;
        };
        let result = &text[result.clone()];
        // The responses under the other ids say nothing new. They match no request and are dropped.
        let PendingInitialize { params, wanted, .. } = std::mem::take(pending);
        state.version = version_of(result).unwrap_or(1);
        state.initialize = Initialize::Done {
            params,
            result: result.into(),
            agent_resumes: declares_resume(result),
        };
        for (client, client_id) in wanted {
            let answer = [&text[..id.start], &client_id, &text[id.end..]].concat();
            self.exchange.answer_initialize(client, &answer, output);
        }
    }

    /// Fails an `initialize` that was not answered in time, for all waiting clients. A restarted agent is stopped.
    pub(super) fn time_out_initialize(
        &mut self,
        now: Time,
        process: usize,
        output: &mut impl RouterOutput,
    ) {
        let Some(state) = self.exchange.processes.get_mut(process) else {
            return;
        };
        if state
            .initialize
            .deadline()
            .is_none_or(|deadline| deadline > now)
        {
            return;
        }
        let wanted = state.initialize.take_wanted();
        let Some(pending) = state.initialize.pending() else {
            return;
        };
        pending.is_refused = pending.was_accepted;
        let (is_refused, first_id) = (pending.is_refused, pending.first_id);
        log::error!("the agent has not answered initialize in time");
        self.exchange.counters.timed_out += wanted.len() as u64;
        let timed_out = |client_id: &str| {
            let why = Some("the agent has not answered initialize in time");
            error(client_id, code::TIMED_OUT, "Timed out", why)
        };
        self.exchange.reject_initialize(wanted, output, timed_out);
        // The exit of a refused agent fails the requests to it.
        if !is_refused {
            self.discard_held(process, first_id, output, timed_out);
        }
    }

    /// Fails the requests that wait until a process has accepted `initialize`: those with ids above `first_id`. The agent
    /// never gets them.
    fn discard_held(
        &mut self,
        process: usize,
        first_id: u64,
        output: &mut impl RouterOutput,
        failed: impl Fn(&str) -> String,
    ) {
        let Some(state) = self.exchange.processes.get_mut(process) else {
            return;
        };
        state.abandoned.retain(|id, _| *id < first_id);
        state.orphaned.retain(|id, _| *id < first_id);
        self.exchange.processes.discard(process);
        let mut held = self.exchange.requests.of_clients.ids_of_process(process);
        held.retain(|id| *id > first_id);
        self.exchange.counters.timed_out += held.len() as u64;
        for id in held {
            if let Some(request) = self.fail_client_request(id, &failed, output)
                && let (RequestClass::Claim, Some(session)) =
                    (request.call.class, &request.call.session)
            {
                self.sessions
                    .unclaim(&mut self.exchange, id, session, output);
            }
        }
        self.exchange.drop_early(process);
    }

    /// Lets clients of any kind use a process that has rejected `initialize`, unless it has clients.
    fn free_kind(&mut self, process: usize) {
        if self.is_used(process) {
            return;
        }
        if let Some(state) = self.exchange.processes.get_mut(process)
            && matches!(state.initialize, Initialize::Never)
        {
            state.kind = None;
        }
    }
}

impl Exchange {
    /// Sends the result of `initialize` to a client, with what Outrigger adds.
    fn answer_initialize(&self, client: ClientId, answer: &str, output: &mut impl RouterOutput) {
        let resumable = output.is_resumable(client);
        let mut added = format!(r#""resume":{resumable},"takeover":true,"watch":true"#);
        let facts = output.server_facts();
        if let Some(bytes) = facts.max_message {
            added.push_str(&format!(r#","maxMessage":{bytes}"#));
        }
        if let Some(directory) = &facts.directory {
            added.push_str(&format!(r#","directory":{}"#, quote(directory)));
        }
        if self.settings.approvals == Approvals::Any {
            added.push_str(r#","approvals":"any""#);
        }
        let answer = match Envelope::parse(answer) {
            Ok(envelope) => with_meta(&envelope, &format!("{{{added}}}")),
            Err(_) => answer.to_owned(),
        };
        output.to_client(client, &[&answer]);
    }
}

/// The parameters of a message, of any JSON type.
fn params_of<'a>(envelope: &Envelope<'a>) -> Option<&'a str> {
    let whole = Skimmer::new(envelope.text).value().ok()?;
    let params = member(envelope.text, &whole, "params")?;
    Some(&envelope.text[params])
}
