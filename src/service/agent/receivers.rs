//! The receivers of the router's messages: the agent processes and the clients.

use super::figures;
use super::processes::AgentProcesses;
use super::router::{BatchSender, Batches, Collected, RouterOutput, ServerFacts};
use crate::record::state;
use crate::service::jsonrpc::push_line;
use crate::sys::random_uuid;
use crate::{ClientId, CloseCode, Context, Message, Scope};
use std::time::Duration;

/// How long a client may take to answer a PING before it counts as silent.
const PING_ANSWER_TIME: Duration = Duration::from_secs(2);

/// Where the messages of a shared agent's router go.
#[derive(Debug)]
pub(super) struct Receivers {
    pub(super) processes: AgentProcesses,
    /// The batches of clients and processes that wait for responses.
    pub(super) batches: Batches,
}

state!(Receivers {
    into processes,
    batches,
});

impl Receivers {
    pub(super) fn new(processes: AgentProcesses) -> Self {
        Self {
            processes,
            batches: Batches::default(),
        }
    }

    /// The output of the router while it handles anything but a message from a process.
    pub(super) fn output<'a>(&'a mut self, ctx: &'a mut Context) -> ContextOutput<'a> {
        ContextOutput {
            ctx,
            receivers: self,
            sender: None,
        }
    }

    /// The output of the router while it handles a message from a process.
    pub(super) fn output_to<'a>(
        &'a mut self,
        ctx: &'a mut Context,
        sender: Sender,
    ) -> ContextOutput<'a> {
        ContextOutput {
            sender: Some(sender),
            ..self.output(ctx)
        }
    }
}

/// A process whose message is handled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) process: usize,
    /// The maximum number of bytes that may be queued for it. Further lines are dropped: they are responses to an agent that sends
    /// requests but does not read. Responses to it are not held, because it may wait for them during its start.
    pub(super) max_queued: usize,
}

/// Sends the router's messages to the agents' input and to clients.
pub(super) struct ContextOutput<'a> {
    ctx: &'a mut Context,
    receivers: &'a mut Receivers,
    sender: Option<Sender>,
}

impl ContextOutput<'_> {
    /// Queues a line for a process.
    fn push_to_agent(&mut self, index: usize, parts: &[&str]) {
        let Some(process) = self.receivers.processes.get_mut(index) else {
            return;
        };
        match self.sender {
            Some(sender) if sender.process == index => {
                if process.lines.len() < sender.max_queued {
                    push_line(&mut process.lines, parts);
                }
            }
            _ if process.holds => push_line(&mut process.held, parts),
            _ => push_line(&mut process.lines, parts),
        }
    }
}

impl RouterOutput for ContextOutput<'_> {
    fn initialize_agent(&mut self, process: usize, parts: &[&str]) {
        // If the process does not run, `send_lines` drops this line, and `Router::handle_agent_started` sends `initialize` again.
        if let Some(process) = self.receivers.processes.get_mut(process) {
            push_line(&mut process.lines, parts);
            process.holds = true;
        }
    }

    fn to_agent(&mut self, index: usize, parts: &[&str]) {
        match self
            .receivers
            .batches
            .collect(BatchSender::Process(index), parts)
        {
            Collected::Other => self.push_to_agent(index, parts),
            Collected::Kept => {}
            Collected::Complete(array) => self.push_to_agent(index, &[&array]),
        }
    }

    fn to_client(&mut self, client: ClientId, parts: &[&str]) {
        // The message may be the answer by which the client has got or lost a session.
        self.receivers.processes.touch(client);
        // A client that has disconnected or is closing gets no more messages.
        let collected = self
            .receivers
            .batches
            .collect(BatchSender::Client(client), parts);
        match (collected, parts) {
            (Collected::Other, [text]) => self.ctx.send(client, Message::Text(text)),
            (collected, parts) => {
                if let Some(text) = collected.into_text(parts) {
                    self.ctx.send(client, Message::Text(&text));
                }
            }
        }
    }

    fn to_clients(&mut self, clients: &[ClientId], text: &str) {
        self.ctx.send_to_all(clients, Message::Text(text));
    }

    fn is_long_json(&self, length: usize) -> bool {
        self.ctx.is_long_json(length)
    }

    fn count_messages(&mut self, client: ClientId, more: usize) -> bool {
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        self.ctx.count_messages(client, more)
    }

    fn count_long_json(&mut self) {
        self.ctx.count_long_json();
    }

    fn close(&mut self, client: ClientId, code: CloseCode, reason: &str) {
        self.ctx.close(client, code, reason);
    }

    fn secret(&mut self) -> String {
        random_uuid().simple().to_string()
    }

    fn is_away(&self, client: ClientId) -> bool {
        let interval = self.ctx.config().timeouts.ping_interval;
        self.ctx.is_detached(client)
            || interval
                .is_some_and(|interval| self.ctx.silent_for(client) > interval + PING_ANSWER_TIME)
    }

    fn scope(&self, client: ClientId) -> Scope {
        self.ctx.scope(client)
    }

    fn is_resumable(&self, client: ClientId) -> bool {
        self.ctx.is_resumable(client)
    }

    fn charge(&mut self, bytes: usize) {
        self.ctx.spend(bytes / 512);
    }

    fn batches(&mut self) -> &mut Batches {
        &mut self.receivers.batches
    }

    fn server_facts(&self) -> ServerFacts {
        ServerFacts {
            max_message: Some(self.ctx.config().limits.max_message),
            directory: figures::directory(),
        }
    }
}
