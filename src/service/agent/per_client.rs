//! One agent process for each connection: messages are passed through as they are.

use std::collections::{HashMap, HashSet};

use super::answer::{code, error, refusal_of};
use super::envelope::{Envelope, EnvelopeError, Kind, member};
use super::json::unescape;
use super::router::MAX_ID;
use super::salvage::{Salvage, Salvaged};
use super::{
    AgentConfig, AgentProtocol, Ear, HIGH_WATER, Heard, LOW_WATER, MAX_UNREAD, push_line, shown,
};
use crate::service::child::{Child, ChildEvent, describe};
use crate::service::lines::{Flow, Line};
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Message, Metrics, Readiness, Rejection,
    Request, Route, Service, SourceId, StatusFields, TimerId,
};

/// The maximum of waiting requests tracked for one client. Further ones are not tracked.
const MAX_WAITING: usize = 1024;

/// A client's process.
#[derive(Debug)]
struct Process {
    child: Child,
    ear: Ear,
    /// Whether the client's first message has come.
    begun: bool,
    /// The client's requests that were not answered.
    waiting: HashSet<Box<str>>,
}

impl Process {
    /// Notes what a message of the client asks for.
    fn note_request(&mut self, envelope: &Envelope<'_>) {
        match &envelope.kind {
            Kind::Request { id, .. } if self.waiting.len() < MAX_WAITING => {
                self.waiting.insert(value_of(&envelope.text[id.clone()]));
            }
            // In this protocol, a cancelled request gets no answer.
            Kind::Notification { method } if method == "notifications/cancelled" => {
                let params = envelope.body.as_ref();
                let id = params.and_then(|params| member(envelope.text, params, "requestId"));
                if let Some(id) = id {
                    self.waiting.remove(&value_of(&envelope.text[id]));
                }
            }
            _ => {}
        }
    }
}

/// An id however it is written.
fn value_of(raw: &str) -> Box<str> {
    if raw.starts_with('"') {
        return format!("\"{}", unescape(raw)).into();
    }
    raw.into()
}

/// Passes a line of the agent on to its client.
fn pass_on(
    ctx: &mut Context,
    client: ClientId,
    waiting: &mut HashSet<Box<str>>,
    heard: Heard<'_>,
    refused: &mut Vec<String>,
) {
    let (salvaged, why) = match heard {
        Heard::Nothing => return,
        Heard::Text(text) => match Envelope::parse(text) {
            Err(EnvelopeError::Parse) => {
                let shown = shown(text.as_bytes());
                log::warn!("a line of the agent of {client} is not JSON, skipped: {shown:?}");
                (Salvage::of(text.as_bytes()), "is not JSON")
            }
            parsed => {
                if let Ok(Envelope {
                    kind: Kind::Response { id, .. },
                    ..
                }) = parsed
                {
                    waiting.remove(&value_of(&text[id]));
                }
                // A disconnected client gets no more messages.
                ctx.send(client, Message::Text(text));
                return;
            }
        },
        Heard::Unreadable(salvaged, why) => (salvaged, why),
    };
    // Answer it with an error, so that the request does not wait for ever.
    match salvaged {
        Some(Salvaged::Response(id)) => {
            waiting.remove(&value_of(&id));
            let why = format!("the agent's answer {why}");
            let failed = error(&id, code::INTERNAL, "Internal error", Some(&why));
            ctx.send(client, Message::Text(&failed));
        }
        Some(Salvaged::Request(id)) => {
            let why = format!("the request {why}");
            refused.push(error(&id, code::INVALID, "Invalid request", Some(&why)));
        }
        None => {}
    }
}

/// An agent that is started for each connection and ends with it.
#[derive(Debug)]
pub struct AgentPerClient {
    config: AgentConfig,
    processes: HashMap<ClientId, Process>,
    /// Whose process an event belongs to.
    sources: HashMap<SourceId, ClientId>,
    started: u64,
}

impl AgentPerClient {
    /// Agents that are started as clients come.
    pub fn new(config: AgentConfig) -> Self {
        Self {
            config,
            processes: HashMap::new(),
            sources: HashMap::new(),
            started: 0,
        }
    }

    /// Lets a client's process handle an event. Its lines go to the client.
    fn with_child(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        handle: impl FnOnce(
            &mut Child,
            &mut Context,
            &mut dyn FnMut(&mut Context, u64, Line<'_>) -> Flow,
        ) -> ChildEvent,
    ) -> bool {
        let Some(process) = self.processes.get_mut(&client) else {
            return false;
        };
        let (ear, waiting) = (&mut process.ear, &mut process.waiting);
        let mut refused = Vec::new();
        let event = handle(&mut process.child, ctx, &mut |ctx, _, line| {
            pass_on(ctx, client, waiting, ear.hear(line), &mut refused);
            // The agent's output waits for a client that does not keep up.
            if ctx.is_congested(client) {
                Flow::Stop
            } else {
                Flow::GoOn
            }
        });
        if let Some(stdin) = process.child.stdin().filter(|_| !refused.is_empty()) {
            for refused in &refused {
                if stdin.queued() < MAX_UNREAD {
                    push_line(stdin.queue(), &[refused]);
                }
            }
            stdin.written_to(ctx);
        }
        match event {
            ChildEvent::NotMine => return false,
            ChildEvent::Handled => {
                let queued = process.child.stdin().map_or(0, |stdin| stdin.queued());
                if queued <= LOW_WATER {
                    ctx.set_held(client, false);
                }
                if process.child.is_cut_off() {
                    process.child.stop(ctx);
                }
            }
            ChildEvent::Exited(status) => {
                self.processes.remove(&client);
                self.sources.retain(|_, owner| *owner != client);
                let clean = status.is_some_and(|status| status.success());
                log::info!("the agent of {client} {}", describe(status));
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

fn is_initialize(kind: &Kind<'_>) -> bool {
    matches!(kind, Kind::Request { method, .. } if method == "initialize")
}

impl Service for AgentPerClient {
    fn route(&mut self, request: &Request<'_>) -> Result<Route, Rejection> {
        self.config.endpoint.route(request)
    }

    fn accept(&mut self, ctx: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        // Processes may outlive their clients for the few seconds that they are given to end.
        if self.processes.len() >= ctx.config().max_clients {
            return Err(Rejection::unavailable("too many processes"));
        }
        self.config.accept(request)
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, _: &Request<'_>) {
        let limit = ctx.config().limits.max_message;
        match Child::spawn(ctx, &self.config.command, limit) {
            Ok(child) => {
                self.started += 1;
                self.sources
                    .extend(child.sources().map(|source| (source, client)));
                self.processes.insert(
                    client,
                    Process {
                        child,
                        ear: Ear::default(),
                        begun: false,
                        waiting: HashSet::new(),
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
        let (Message::Text(text), Some(process)) = (message, self.processes.get_mut(&client))
        else {
            return;
        };
        // Every byte of it is looked at.
        ctx.spend(3 + text.len() / 512);
        let acp = self.config.protocol == AgentProtocol::Acp;
        let first = !process.begun;
        match Envelope::parse(text) {
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
                kind: Kind::Request { id, .. },
                ..
            }) if ctx.is_stopping() => {
                let refused = error(&text[id], code::STOPPING, "Server shutting down", None);
                ctx.send(client, Message::Text(&refused));
                return;
            }
            Ok(envelope) => {
                process.begun = true;
                process.note_request(&envelope);
            }
            // Other protocols may have batches, or an older version.
            Err(EnvelopeError::Invalid { .. }) if !acp => {}
            Err(invalid) => {
                let answer = refusal_of(text, &invalid);
                ctx.send(client, Message::Text(&answer));
                return;
            }
        }
        if let Some(stdin) = process.child.stdin() {
            push_line(stdin.queue(), &[text]);
            stdin.written_to(ctx);
            if stdin.queued() > HIGH_WATER {
                ctx.set_held(client, true);
            }
        }
    }

    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        let process = self.processes.get(&client);
        process.is_some_and(|process| !process.waiting.is_empty())
    }

    fn may_idle(&self, ctx: &Context, client: ClientId) -> bool {
        let has_process = self.processes.contains_key(&client);
        (self.config.sessions_may_idle && has_process) || self.is_waiting(ctx, client)
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        if let Some(process) = self.processes.get_mut(&client) {
            process.child.resume(ctx);
        }
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        if let Some(process) = self.processes.get_mut(&client) {
            // What it still writes is for nobody, but it must not be kept from ending by a full pipe.
            process.child.resume(ctx);
            process.child.stop(ctx);
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
        let clients: Vec<ClientId> = self.processes.keys().copied().collect();
        let mut handle = |client| {
            self.with_child(ctx, client, |child, ctx, line| {
                child.handle_timer(ctx, timer, line)
            })
        };
        let _ = clients.into_iter().any(&mut handle);
    }

    fn status(&self) -> StatusFields {
        let status = serde_json::json!({"processes": self.processes.len()});
        StatusFields::from_value(status)
    }

    fn metrics(&self, out: &mut Metrics) {
        out.gauge(
            "outrigger_processes_running",
            "Programs that run, those that are being ended included.",
            self.processes.len(),
        );
        out.counter(
            "outrigger_processes_started_total",
            "Programs that were started.",
            self.started,
        );
    }

    fn stopping(&mut self, ctx: &mut Context) {
        for process in self.processes.values_mut() {
            process.child.stop(ctx);
        }
    }

    fn is_stopped(&self) -> bool {
        self.processes.is_empty()
    }
}
