//! An agent process for each client. Messages pass through unchanged.

use std::collections::{HashMap, HashSet};

use super::{AgentConfig, AgentProtocol, HIGH_WATER, LOW_WATER, MAX_UNREAD, WATCH};
use crate::service::Framing;
use crate::service::child::{Child, ChildEvent, code_and_signal, describe};
use crate::service::framing::Decoder;

use crate::service::jsonrpc::{
    Envelope, EnvelopeError, IdKey, IdRecovery, LineDecoder, MAX_ID, MessageKind, MessageLine,
    RecoveredId, TOO_LONG, code, error, invalid_message_error, member, push_line, start_of,
};
use crate::service::lines::Line;
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Message, Metrics, Readiness, Rejection,
    Request, Route, Service, ServiceId, SourceId, StatusCode, StatusFields, TimerId,
};
use std::ops::ControlFlow;

/// The maximum number of pending requests that are tracked for a client. Further ones pass through untracked.
const MAX_CLIENT_REQUESTS: usize = 1024;

/// The agent process of one client.
#[derive(Debug)]
struct ClientAgent {
    child: Child,
    decoder: LineDecoder,
    /// Whether the client has sent a message.
    begun: bool,
    /// Whether the agent's output cannot be divided into messages any further.
    broken: bool,
    /// The normalized ids of the client's requests that the agent has not answered.
    client_requests: HashSet<IdKey>,
}

impl ClientAgent {
    /// Tracks the pending requests through a message of the client.
    fn track(&mut self, envelope: &Envelope<'_>) {
        match &envelope.kind {
            MessageKind::Request { id, .. } if self.client_requests.len() < MAX_CLIENT_REQUESTS => {
                let id = IdKey::of(&envelope.text[id.clone()]);
                self.client_requests.insert(id);
            }
            // In the Model Context Protocol, a cancelled request gets no response.
            MessageKind::Notification { method } if method == "notifications/cancelled" => {
                let params = envelope.body.as_ref();
                let id = params.and_then(|params| member(envelope.text, params, "requestId"));
                if let Some(id) = id {
                    self.client_requests.remove(&IdKey::of(&envelope.text[id]));
                }
            }
            _ => {}
        }
    }

    /// Refuses a message that is too long. If it is an answer, the agent gets an error in its place.
    fn refuse_long(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        framing: Framing,
        envelope: &Envelope<'_>,
    ) {
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
                if let Some(stdin) = self.child.stdin() {
                    push_message(framing, stdin.queue(), &failed);
                    stdin.written_to(ctx);
                }
            }
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
                if let Ok(Envelope {
                    kind: MessageKind::Response { id, .. },
                    ..
                }) = parsed
                {
                    client_requests.remove(&IdKey::of(&text[id]));
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
/// let config = AgentConfig::new("/mcp".parse()?, ["my-mcp-server"])
///     .with_protocol(AgentProtocol::JsonRpc);
/// let agents = AgentPerClient::new(config);
/// let config = Config::builder().listen("127.0.0.1:0".parse()?).build()?;
/// let server = Server::bind(config, agents)?;
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct AgentPerClient {
    config: AgentConfig,
    /// Clients whose processes are not started yet.
    waiting: HashSet<ClientId>,
    /// The processes of connected clients.
    agents: HashMap<ClientId, ClientAgent>,
    /// Processes that are being stopped, by the former id of their disconnected client.
    stopping: HashMap<ClientId, ClientAgent>,
    /// The client whose process uses a source.
    sources: HashMap<SourceId, ClientId>,
    pub(in crate::service) started: u64,
}

impl AgentPerClient {
    /// Creates the service. Agent processes start when clients connect.
    pub fn new(mut config: AgentConfig) -> Self {
        if config.framing == Framing::Raw {
            config.framing = Framing::Lines;
        }
        Self {
            config,
            waiting: HashSet::new(),
            agents: HashMap::new(),
            stopping: HashMap::new(),
            sources: HashMap::new(),
            started: 0,
        }
    }

    /// The number of processes, including those that are being stopped.
    pub(in crate::service) fn process_count(&self) -> usize {
        self.agents.len() + self.stopping.len()
    }

    /// The number of processes whose clients have disconnected.
    #[cfg(feature = "mcp")]
    pub(in crate::service) fn stopping_count(&self) -> usize {
        self.stopping.len()
    }

    /// Lets a client's process handle an event. Its lines go to the client. Returns false if the event belongs to another
    /// process.
    fn with_child(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        handle: impl FnOnce(
            &mut Child,
            &mut Context,
            &mut dyn FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
        ) -> ChildEvent,
    ) -> bool {
        let connected = self.agents.get_mut(&client);
        let Some(agent) = connected.or_else(|| self.stopping.get_mut(&client)) else {
            return false;
        };
        let (decoder, requests) = (&mut agent.decoder, &mut agent.client_requests);
        let broken = &mut agent.broken;
        let framing = self.config.framing;
        let mut refused = Vec::new();
        let event = handle(&mut agent.child, ctx, &mut |ctx, _, line| {
            if let Line::Broken(error) = line {
                *broken = true;
                ctx.close(client, CloseCode::INTERNAL, error.to_string());
            }
            pass_on(ctx, client, requests, decoder.decode(line), &mut refused);
            // The agent is not read while its client is congested.
            if ctx.is_congested(client) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        if let Some(stdin) = agent.child.stdin().filter(|_| !refused.is_empty()) {
            for refused in &refused {
                if stdin.queued() < MAX_UNREAD {
                    push_message(framing, stdin.queue(), refused);
                }
            }
            stdin.written_to(ctx);
        }
        match event {
            ChildEvent::NotMine => return false,
            ChildEvent::Handled => {
                let queued = agent.child.stdin().map_or(0, |stdin| stdin.queued());
                if queued <= LOW_WATER {
                    ctx.set_held(client, false);
                }
                if agent.broken || agent.child.is_cut_off() {
                    agent.child.stop(ctx);
                }
            }
            ChildEvent::Exited(status) => {
                self.agents.remove(&client);
                self.stopping.remove(&client);
                self.sources.retain(|_, owner| *owner != client);
                let clean = status.is_some_and(|status| status.success());
                let (exit_code, signal) = code_and_signal(status);
                log::info!(
                    event = "agent exited", client:% = client, exit_code = exit_code, signal = signal;
                    "the agent of {client} {}", describe(status)
                );
                let code = if clean {
                    CloseCode::NORMAL
                } else {
                    CloseCode::INTERNAL
                };
                ctx.close(client, code, "Agent exited");
            }
        }
        true
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
        self.config.endpoint.route(request)
    }

    fn accept(&mut self, ctx: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        // A process may outlive its client by the few seconds that it gets to exit.
        if self.waiting.len() + self.process_count() >= ctx.config().max_clients {
            return Err(Rejection::unavailable("too many processes"));
        }
        if request.parameters(WATCH).next().is_some() {
            let why = "only a session of a shared agent can be watched";
            return Err(Rejection::new(StatusCode::BAD_REQUEST, why));
        }
        self.config.accept(request)
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, _: &Request<'_>) {
        self.waiting.insert(client);
        // Messages wait until the process runs.
        ctx.set_held(client, true);
        ctx.queue_start(client);
    }

    fn start_program(&mut self, ctx: &mut Context, client: Option<ClientId>) {
        let Some(client) = client.filter(|client| self.waiting.remove(client)) else {
            return;
        };
        ctx.set_held(client, false);
        let decoder = Decoder::new(self.config.framing, ctx.config().limits.max_message);
        match Child::spawn_with(ctx, &self.config.command, decoder, |_| {}) {
            Ok(child) => {
                self.started += 1;
                self.sources
                    .extend(child.sources().map(|source| (source, client)));
                self.agents.insert(
                    client,
                    ClientAgent {
                        child,
                        decoder: LineDecoder::default(),
                        begun: false,
                        broken: false,
                        client_requests: HashSet::new(),
                    },
                );
            }
            Err(error) => {
                log::error!("{error}");
                ctx.close(client, CloseCode::INTERNAL, "The agent cannot be started");
            }
        }
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let (Message::Text(text), Some(agent)) = (message, self.agents.get_mut(&client)) else {
            return;
        };
        // The cost grows with the length, because every byte is parsed.
        ctx.spend(3 + text.len() / 512);
        let acp = self.config.protocol == AgentProtocol::Acp;
        let framing = self.config.framing;
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
                return agent.refuse_long(ctx, client, framing, &envelope);
            }
            Ok(envelope) => {
                agent.begun = true;
                agent.track(&envelope);
            }
            Err(_) if ctx.is_long_json(text.len()) => {
                ctx.count_long_json();
                let refused = error("null", code::INVALID, "Invalid request", Some(TOO_LONG));
                return ctx.send(client, Message::Text(&refused));
            }
            // Other protocols may have batches or an older version of JSON-RPC.
            Err(EnvelopeError::Invalid { .. }) if !acp => {}
            Err(invalid) => {
                let answer = invalid_message_error(text, &invalid);
                ctx.send(client, Message::Text(&answer));
                return;
            }
        }
        if let Some(stdin) = agent.child.stdin() {
            push_message(framing, stdin.queue(), text);
            stdin.written_to(ctx);
            if stdin.queued() > HIGH_WATER {
                ctx.set_held(client, true);
            }
        }
    }

    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        let agent = self.agents.get(&client);
        agent.is_some_and(|agent| !agent.client_requests.is_empty())
    }

    fn may_idle(&self, ctx: &Context, client: ClientId) -> bool {
        let has_process = self.agents.contains_key(&client);
        (self.config.sessions_may_idle && has_process) || self.is_waiting(ctx, client)
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        if let Some(agent) = self.agents.get_mut(&client) {
            agent.child.resume(ctx);
        }
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        self.waiting.remove(&client);
        if let Some(mut agent) = self.agents.remove(&client) {
            // Its output is read and discarded, because a full pipe could keep it from exiting.
            agent.child.resume(ctx);
            agent.child.stop(ctx);
            self.stopping.insert(client, agent);
        }
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, _: Readiness) {
        if let Some(&client) = self.sources.get(&source) {
            self.with_child(ctx, client, |child, ctx, line| {
                child.handle_ready(ctx, source, line)
            });
        }
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        let clients = self.agents.keys().chain(self.stopping.keys());
        let clients: Vec<ClientId> = clients.copied().collect();
        let mut handle = |client| {
            self.with_child(ctx, client, |child, ctx, line| {
                child.handle_timer(ctx, timer, line)
            })
        };
        let _ = clients.into_iter().any(&mut handle);
    }

    fn status(&self) -> StatusFields {
        let status = serde_json::json!({"processes": self.process_count()});
        StatusFields::from_value(status)
    }

    fn metrics(&self, out: &mut Metrics) {
        out.gauge(
            "outrigger_processes_running",
            "Running programs, including those that are being stopped.",
            self.process_count(),
        );
        out.counter(
            "outrigger_processes_started_total",
            "Programs started.",
            self.started,
        );
    }

    fn keeps_every_client(&self, _: ServiceId) -> bool {
        true
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        let waiting = self.waiting.iter();
        waiting.chain(self.agents.keys()).copied().for_each(visit);
    }

    fn stopping(&mut self, ctx: &mut Context) {
        self.waiting.clear();
        for agent in self.agents.values_mut() {
            agent.child.stop(ctx);
        }
    }

    fn is_stopped(&self) -> bool {
        self.process_count() == 0
    }
}
