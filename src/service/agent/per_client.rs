//! An agent process for each client. Messages pass through unchanged.

use std::borrow::Cow;
use std::collections::HashSet;

use super::initialize::version_of;
use super::{AgentConfig, AgentProtocol, BINARY, MAX_UNREAD, WATCH, figures};
use crate::log_event::{log_event, word};
use crate::record::{RecordError, record, state};
use crate::service::Framing;
use crate::service::child::{Child, ChildEvent, ChildInput, ClientPrograms, code_and_signal};
use crate::service::framing::Decoder;
use crate::service::json::Skimmer;
use crate::service::jsonrpc::{
    Envelope, EnvelopeError, IdKey, IdRecovery, LineDecoder, MAX_ID, MessageKind, MessageLine,
    RecoveredId, TOO_LONG, batch_messages, code, error, invalid_message_error, is_array, push_line,
    start_of,
};
use crate::service::lines::Line;
use crate::sys::random_uuid;
use crate::upgrade::Portable;
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Message, Metrics, Readiness, Rejection,
    Report, Request, Route, Service, ServiceId, SourceId, StatusCode, StatusFields, TimerId,
};

/// The maximum number of pending requests that are tracked for a client. Further ones pass through untracked.
const MAX_CLIENT_REQUESTS: usize = 1024;

/// What is kept for the agent process of one client.
#[derive(Debug, Default)]
struct ClientAgent {
    decoder: LineDecoder,
    /// Messages of the process that were refused, and that it is told about.
    refused: Vec<String>,
    /// Whether the client has sent a message.
    begun: bool,
    /// Whether the client and its agent may send batches.
    has_batches: bool,
    /// Whether the agent's output cannot be divided into messages any further.
    broken: bool,
    /// The normalized ids of the client's requests that the agent has not answered.
    client_requests: HashSet<IdKey>,
}

record!(ClientAgent {
    decoder,
    refused,
    begun,
    has_batches,
    broken,
    client_requests,
});

impl ClientAgent {
    /// Tracks the requests in a client's batch. If the client exceeds a limit, closes it and returns false.
    fn track_batch(&mut self, ctx: &mut Context, client: ClientId, text: &str) -> bool {
        let messages = batch_messages(text, Skimmer::of_client(text)).unwrap_or_default();
        let more = u32::try_from(messages.len().saturating_sub(1)).unwrap_or(u32::MAX);
        if !ctx.count_messages(client, more) {
            return false;
        }
        for message in messages {
            let Ok(envelope) = Envelope::parse(message) else {
                continue;
            };
            if envelope.id().is_some_and(|id| id.len() > MAX_ID) {
                ctx.close(client, CloseCode::POLICY, "Request id too long");
                return false;
            }
            self.track(&envelope);
        }
        true
    }

    /// Tracks the pending requests through a message of the client.
    fn track(&mut self, envelope: &Envelope<'_>) {
        match &envelope.kind {
            MessageKind::Request { id, .. } if self.client_requests.len() < MAX_CLIENT_REQUESTS => {
                let id = IdKey::of(&envelope.text[id.clone()]);
                self.client_requests.insert(id);
            }
            // In the Model Context Protocol, a cancelled request gets no response.
            MessageKind::Notification { method } if method == "notifications/cancelled" => {
                if let Some(id) = envelope.of_body("requestId") {
                    self.client_requests.remove(&IdKey::of(&envelope.text[id]));
                }
            }
            _ => {}
        }
    }
}

/// Appends a message to the input of an agent.
fn push_message(framing: Framing, input: &mut Vec<u8>, text: &str) {
    match framing {
        Framing::ContentLength => framing.encode(text.as_bytes(), input),
        Framing::Lines | Framing::Raw => push_line(input, &[text]),
    }
}

/// Passes a line of the agent on to its client. Adds error responses for the agent to `refused`.
fn pass_on(
    ctx: &mut Context,
    client: ClientId,
    client_requests: &mut HashSet<IdKey>,
    line: MessageLine<'_>,
    refused: &mut Vec<String>,
) {
    let (recovered, why) = match line {
        MessageLine::Nothing => return,
        MessageLine::Text(text) => match Envelope::parse(text) {
            Err(EnvelopeError::Parse) => {
                let start = start_of(text.as_bytes());
                log::warn!("skipped a line of the agent of {client} that is not JSON: {start:?}");
                (IdRecovery::of(text.as_bytes()), "is not JSON")
            }
            parsed => {
                let mut note = |text: &str, parsed| {
                    if let Ok(Envelope {
                        kind: MessageKind::Response { id, .. },
                        ..
                    }) = parsed
                    {
                        client_requests.remove(&IdKey::of(&text[id]));
                    }
                };
                note(text, parsed);
                if is_array(text) {
                    let responses = batch_messages(text, Skimmer::new(text));
                    for response in responses.unwrap_or_default() {
                        note(response, Envelope::parse(response));
                    }
                }
                // A disconnected client gets no more messages.
                ctx.send(client, Message::Text(text));
                return;
            }
        },
        MessageLine::Unreadable(recovered, why) => (recovered, why),
    };
    // An error response keeps the sender of the request from waiting forever.
    match recovered {
        Some(RecoveredId::Response(id)) => {
            client_requests.remove(&IdKey::of(&id));
            let why = format!("the agent's answer {why}");
            let failed = error(&id, code::INTERNAL, "Internal error", Some(&why));
            ctx.send(client, Message::Text(&failed));
        }
        Some(RecoveredId::Request(id)) => {
            let why = format!("the request {why}");
            refused.push(error(&id, code::INVALID, "Invalid request", Some(&why)));
        }
        None => {}
    }
}

/// An agent process for each client. It starts when the client connects and is stopped when the client disconnects.
///
/// ```
/// use outrigger::service::agent::AgentProtocol;
/// use outrigger::service::{AgentConfig, AgentPerClient};
/// use outrigger::{Config, Server};
///
/// let mut config = AgentConfig::new("/mcp".parse()?, ["my-mcp-server"]);
/// config.protocol = AgentProtocol::JsonRpc;
/// let agents = AgentPerClient::new(config);
/// let config = Config::new("127.0.0.1:0".parse()?);
/// let server = Server::bind(config, agents)?;
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AgentPerClient {
    config: AgentConfig,
    agents: ClientPrograms<(), ClientAgent>,
    /// The number of binary messages, which are ignored.
    dropped: u64,
}

state!(AgentPerClient {
    keep config,
    agents,
    dropped,
});

impl AgentPerClient {
    /// Creates the service. Agent processes start when clients connect.
    pub fn new(mut config: AgentConfig) -> Self {
        if config.framing == Framing::Raw {
            config.framing = Framing::Lines;
        }
        Self {
            config,
            agents: ClientPrograms::default(),
            dropped: 0,
        }
    }

    /// Checks that the agents that run have the framing of the settings.
    fn check_state(&self) -> Result<(), RecordError> {
        self.agents.check_framing(self.config.framing)
    }

    /// Continues after the program of the server has replaced itself.
    pub(crate) fn watch_again(&mut self, ctx: &mut Context) -> Result<(), RecordError> {
        self.agents.watch_again(ctx)
    }

    /// The number of processes, including those that are being stopped.
    pub(crate) fn process_count(&self) -> usize {
        self.agents.count()
    }

    /// The number of processes that were started.
    #[cfg(feature = "mcp")]
    pub(crate) fn started(&self) -> u64 {
        self.agents.started()
    }

    /// The number of processes whose clients have disconnected.
    #[cfg(feature = "mcp")]
    pub(crate) fn stopping_count(&self) -> usize {
        self.agents.orphan_count()
    }

    /// Lets a client's process handle an event. Its lines go to the client.
    fn handle(&mut self, ctx: &mut Context, input: ChildInput) {
        let handled = self.agents.handle(ctx, input, |ctx, client, agent, line| {
            if let Line::Broken(error) = line {
                agent.broken = true;
                ctx.close(client, CloseCode::INTERNAL, error.to_string());
            }
            let line = agent.decoder.decode(line);
            let requests = &mut agent.client_requests;
            pass_on(ctx, client, requests, line, &mut agent.refused);
        });
        match handled {
            Some((client, ChildEvent::Exited(status))) => {
                let is_clean = status.is_some_and(|status| status.success());
                let (exit_code, signal) = code_and_signal(status);
                log_event!(
                    Info,
                    "agent exited",
                    client = word(&client),
                    exit_code = exit_code,
                    signal = signal,
                );
                let code = if is_clean {
                    CloseCode::NORMAL
                } else {
                    CloseCode::INTERNAL
                };
                ctx.close(client, code, "Agent exited");
            }
            Some((client, _)) => {
                self.send_refusals(ctx, client);
                let is_broken = self.agents.state(client).is_some_and(|agent| agent.broken);
                if is_broken || self.agents.child(client).is_some_and(Child::is_cut_off) {
                    self.agents.stop(ctx, client);
                }
            }
            None => {}
        }
    }

    /// Sends a process the errors for its messages that were refused, unless it does not read its input.
    fn send_refusals(&mut self, ctx: &mut Context, client: ClientId) {
        let agent = self.agents.state_mut(client);
        let refused = agent.map(|agent| std::mem::take(&mut agent.refused));
        for refused in refused.unwrap_or_default() {
            if self
                .agents
                .child(client)
                .is_some_and(|child| child.unread() < MAX_UNREAD)
            {
                self.send(ctx, client, &refused);
            }
        }
    }

    /// Sends a message to a client's process.
    fn send(&mut self, ctx: &mut Context, client: ClientId, text: &str) {
        let framing = self.config.framing;
        self.agents
            .write(ctx, client, |input| push_message(framing, input, text));
    }

    /// Refuses a client's message that is too long. If it is an answer, the process gets an error in its place.
    fn refuse_long(&mut self, ctx: &mut Context, client: ClientId, envelope: &Envelope<'_>) {
        let id = envelope.id().unwrap_or("null");
        match &envelope.kind {
            MessageKind::Request { .. } => {
                let refused = error(id, code::INVALID, "Invalid request", Some(TOO_LONG));
                ctx.send(client, Message::Text(&refused));
            }
            MessageKind::Notification { .. } => {
                log::debug!("dropped a notification of {client}: {TOO_LONG}");
            }
            MessageKind::Response { .. } => {
                let failed = error(id, code::INTERNAL, "Internal error", Some(TOO_LONG));
                self.send(ctx, client, &failed);
            }
        }
    }
}

/// Whether a message is a prompt, which may have long images.
fn is_prompt(kind: &MessageKind<'_>) -> bool {
    matches!(kind, MessageKind::Request { method, .. } if method == "session/prompt")
}

fn is_initialize(kind: &MessageKind<'_>) -> bool {
    matches!(kind, MessageKind::Request { method, .. } if method == "initialize")
}

impl Service for AgentPerClient {
    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        self.config.route(request)
    }

    fn accept(&mut self, ctx: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        self.agents.accept(ctx)?;
        if request.parameters(WATCH).next().is_some() {
            let why = "only a session of a shared agent can be watched";
            return Err(Rejection::new(StatusCode::BAD_REQUEST, why));
        }
        self.config.accept(request, random_uuid().to_string())
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, _: &Request<'_>) {
        self.agents.queue(ctx, client, ());
    }

    fn start_program(&mut self, ctx: &mut Context, client: Option<ClientId>) {
        let Some(client) = client.filter(|client| self.agents.begin(ctx, *client).is_some()) else {
            return;
        };
        let decoder = Decoder::new(self.config.framing, ctx.config().limits.max_message);
        match Child::spawn_with(ctx, &self.config.command, decoder, |command| {
            self.config.place.prepare(command);
        }) {
            Ok(child) => self.agents.add(client, child, ClientAgent::default()),
            Err(error) => {
                log::error!("{error}");
                ctx.close(client, CloseCode::INTERNAL, "The agent cannot be started");
            }
        }
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let Some(agent) = self.agents.state_mut(client) else {
            return;
        };
        let Message::Text(text) = message else {
            if agent.begun {
                self.dropped += 1;
                return log::debug!("dropped a message of {client}: {BINARY}");
            }
            return ctx.close(client, CloseCode::UNSUPPORTED, BINARY);
        };
        // The cost grows with the length, because every byte is parsed.
        ctx.spend(3 + text.len() / 512);
        let acp = self.config.protocol == AgentProtocol::Acp;
        let first = !agent.begun;
        match Envelope::parse_client(text) {
            Ok(envelope) if envelope.id().is_some_and(|id| id.len() > MAX_ID) => {
                ctx.close(client, CloseCode::POLICY, "Request id too long");
                return;
            }
            Ok(envelope) if acp && first && !is_initialize(&envelope.kind) => {
                ctx.close(
                    client,
                    CloseCode::PROTOCOL,
                    "The first message must be initialize",
                );
                return;
            }
            Ok(Envelope {
                kind: MessageKind::Request { id, .. },
                ..
            }) if ctx.is_stopping() => {
                let refused = error(&text[id], code::STOPPING, "Server shutting down", None);
                ctx.send(client, Message::Text(&refused));
                return;
            }
            Ok(envelope) if ctx.is_long_json(text.len()) && !(acp && is_prompt(&envelope.kind)) => {
                ctx.count_long_json();
                return self.refuse_long(ctx, client, &envelope);
            }
            Ok(envelope) => {
                if first {
                    agent.begun = true;
                    let version = envelope.body.as_ref();
                    let version = version.and_then(|params| version_of(&text[params.clone()]));
                    agent.has_batches = acp && version.is_some_and(|version| version > 1);
                }
                agent.track(&envelope);
            }
            Err(_) if ctx.is_long_json(text.len()) => {
                ctx.count_long_json();
                let refused = error("null", code::INVALID, "Invalid request", Some(TOO_LONG));
                return ctx.send(client, Message::Text(&refused));
            }
            Err(EnvelopeError::Invalid { .. }) if agent.has_batches && ctx.is_stopping() => {
                let refused = error("null", code::STOPPING, "Server shutting down", None);
                return ctx.send(client, Message::Text(&refused));
            }
            // The agent answers a batch, even if not all of it is valid.
            Err(EnvelopeError::Invalid { .. }) if agent.has_batches && is_array(text) => {
                if !agent.track_batch(ctx, client, text) {
                    return;
                }
            }
            // Other protocols may have batches or an older version of JSON-RPC.
            Err(EnvelopeError::Invalid { .. }) if !acp => {}
            Err(invalid) => {
                let answer = invalid_message_error(text, &invalid);
                ctx.send(client, Message::Text(&answer));
                return;
            }
        }
        self.send(ctx, client, text);
    }

    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        let agent = self.agents.state(client);
        agent.is_some_and(|agent| !agent.client_requests.is_empty())
    }

    fn may_idle(&self, ctx: &Context, client: ClientId) -> bool {
        let has_process = self.agents.has_program(client);
        (self.config.sessions_may_idle && has_process) || self.is_waiting(ctx, client)
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        self.agents.resume(ctx, client);
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        self.agents.disconnect(ctx, client);
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, _: Readiness) {
        self.handle(ctx, ChildInput::Ready(source));
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        self.handle(ctx, ChildInput::Timer(timer));
    }

    fn draining(&mut self, _: &mut Context) {
        self.agents.drain();
    }

    fn keeps_every_client(&self, _: ServiceId) -> bool {
        true
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.agents.clients(visit);
    }

    fn stopping(&mut self, ctx: &mut Context) {
        self.agents.stop_all(ctx);
    }

    fn is_stopped(&self) -> bool {
        self.process_count() == 0
    }

    fn report(&self) -> Option<&dyn Report> {
        Some(self)
    }

    fn portable(&self) -> Option<&dyn Portable> {
        Some(self)
    }

    fn portable_mut(&mut self) -> Option<&mut dyn Portable> {
        Some(self)
    }
}

impl Report for AgentPerClient {
    fn status(&self) -> StatusFields {
        self.agents.status()
    }

    fn metrics(&self, out: &mut Metrics) {
        self.agents.metrics(out);
        figures::count_dropped(out, self.dropped);
    }
}

impl Portable for AgentPerClient {
    fn state_name(&self, id: ServiceId) -> Option<Cow<'_, str>> {
        (id == ServiceId::ALL).then_some("per-client".into())
    }

    passes_on!();
}
