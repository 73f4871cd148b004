//! A host that starts programs, in front of an MCP server behind Streamable HTTP: each message of standard input becomes an HTTP request,
//! and what the server says becomes a line of standard output.
//!
//! [`HttpBridge`] has the standard streams and the connections. [`Conversation`] decides, without I/O, what is sent, repeated, resumed
//! and answered.

mod conversation;
mod exchange;
mod post;
mod restoring;
mod session;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use self::conversation::{Action, Conversation};
pub(super) use self::post::shown;
use super::ending::unanswered;
use super::output::Output;
use super::stdin::{Input, Stdin, open_streams};
use crate::protocol::client::HttpRequest;
use crate::service::advice::{Problem, with_advice};
use crate::service::pipe::PipeState;
use crate::service::{Advise, Framing};
use crate::sys::drop_code;
use crate::{
    ClientId, CloseCode, Connect, ConnectError, Context, Outgoing, Readiness, ResponseEvent,
    Service, SourceId, Time, TimerId,
};

/// The maximum number of connections that wait for another request.
const MAX_IDLE: usize = 4;

/// The settings of an [`HttpBridge`].
#[derive(Clone, Debug)]
pub(crate) struct HttpBridgeConfig {
    /// The server to send requests to.
    pub(crate) connect: Connect,
    /// How messages are separated on the standard streams.
    pub(crate) framing: Framing,
    /// While messages of half of this size, in bytes, are not answered, standard input is not read.
    pub(crate) buffer: usize,
    /// How long to wait for answers after standard input has ended.
    pub(crate) linger: Duration,
    /// What the user can do about a problem.
    pub(crate) advise: Advise,
}

/// How far the end of the bridge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// Standard input has ended, and answers are awaited.
    InputEnded,
    /// The session is being ended.
    Leaving,
    /// Only the rest of standard output is written.
    Finished,
}

/// A service that is a client of an MCP server over HTTP.
#[derive(Debug)]
pub(crate) struct HttpBridge {
    config: HttpBridgeConfig,
    connect: Arc<Connect>,
    input: Option<Stdin>,
    output: Option<Output>,
    conversation: Conversation,
    /// The numbers of the HTTP requests under way, by their connections.
    numbers: HashMap<ClientId, u64>,
    /// Connections that can carry another request, the one that is idle longest first.
    idle: Vec<ClientId>,
    stage: Stage,
    /// When the conversation has something to do.
    timer: Option<(TimerId, Time)>,
    linger: Option<TimerId>,
    /// Whether the server's messages are held back, because nobody reads standard output.
    is_held: bool,
    has_warned: bool,
    failure: Option<String>,
}

impl HttpBridge {
    pub(crate) fn new(config: HttpBridgeConfig, max_message: usize) -> Self {
        let target = config.connect.target().clone();
        Self {
            connect: Arc::new(config.connect.clone()),
            config,
            input: None,
            output: None,
            conversation: Conversation::new(target, max_message),
            numbers: HashMap::new(),
            idle: Vec::new(),
            stage: Stage::Running,
            timer: None,
            linger: None,
            is_held: false,
            has_warned: false,
            failure: None,
        }
    }

    // Standard input.

    fn is_input_held(&self) -> bool {
        let owes_too_much = self.output.as_ref().is_some_and(Output::owes_too_much);
        owes_too_much
            || self.conversation.is_full()
            || self.conversation.held() > self.config.buffer / 2
    }

    fn handle_input(&mut self, ctx: &mut Context, input: Input<'_>) -> ControlFlow<()> {
        match input {
            Input::Text(text) => self.conversation.handle_local(ctx.now(), text),
            Input::Refused(answer) => self.conversation.refuse(answer),
            // Messages are JSON.
            Input::Binary(_) => {}
        }
        self.act(ctx);
        match self.is_input_held() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn read_input(&mut self, ctx: &mut Context) {
        let Some(mut input) = self.input.take() else {
            return;
        };
        let state = input.read(ctx, |ctx, input| self.handle_input(ctx, input));
        if self.stage == Stage::Running && state == PipeState::Closed {
            self.stage = Stage::InputEnded;
        }
        if self.stage != Stage::Running {
            input.close(ctx);
        }
        let failure = input.take_failure();
        self.input = Some(input);
        if failure.is_some() {
            self.failure = failure;
            self.stage = Stage::InputEnded;
        }
        self.act(ctx);
    }

    fn resume_input(&mut self, ctx: &mut Context) {
        if self.stage == Stage::Running
            && !self.is_input_held()
            && let Some(input) = &mut self.input
        {
            input.resume(ctx);
        }
    }

    // Standard output.

    fn write_output(&mut self, ctx: &mut Context) {
        let Some(output) = &mut self.output else {
            return;
        };
        if output.write() == PipeState::Closed {
            // Nobody reads the messages any more.
            self.failure = output.take_failure();
            if let Some(input) = &mut self.input {
                input.close(ctx);
            }
            return self.leave(ctx);
        }
        if self.stage == Stage::Finished && output.is_empty() {
            return ctx.stop();
        }
        self.hold(ctx);
        self.resume_input(ctx);
    }

    /// Stops or resumes reading responses, as standard output takes them.
    fn hold(&mut self, ctx: &mut Context) {
        let Some(output) = &self.output else {
            return;
        };
        let is_held = output.is_full() || (self.is_held && !output.has_room());
        if std::mem::replace(&mut self.is_held, is_held) != is_held {
            for client in self.numbers.keys() {
                ctx.set_held(*client, is_held);
            }
        }
    }

    // Requests.

    /// Does what the conversation asks for.
    fn act(&mut self, ctx: &mut Context) {
        while let Some(action) = self.conversation.poll_action() {
            match action {
                Action::Send(number, request) => self.send(ctx, number, request),
                Action::Drop(number) => self.drop_request(ctx, number),
                Action::Write(text) => {
                    if let Some(output) = &mut self.output {
                        output.message(ctx, &text);
                    }
                }
                Action::Answer(text) => {
                    if let Some(output) = &mut self.output {
                        output.answer(ctx, &text);
                    }
                }
                Action::Move(target) => {
                    let mut connect = Connect::clone(&self.connect);
                    *connect.target_mut() = target;
                    self.connect = Arc::new(connect);
                    // Connections for another URL send their requests there.
                    for client in self.idle.drain(..) {
                        ctx.close(client, CloseCode::NORMAL, "");
                    }
                }
                Action::Fail(why, problem) => self.fail(ctx, &why, problem),
                Action::Finish => self.finish(ctx),
            }
        }
        self.hold(ctx);
        self.plan(ctx);
        self.check_end(ctx);
    }

    fn send(&mut self, ctx: &mut Context, number: u64, request: HttpRequest) {
        while let Some(client) = self.idle.pop() {
            if ctx.request_again(client, request.clone()).is_ok() {
                self.numbers.insert(client, number);
                return self.begin_hold(ctx, client);
            }
        }
        match ctx.request(&self.connect, request) {
            Ok(client) => {
                self.numbers.insert(client, number);
                self.begin_hold(ctx, client);
            }
            Err(error) => {
                let why = error.to_string();
                self.conversation
                    .handle_failure(ctx.now(), number, &why, false);
            }
        }
    }

    fn begin_hold(&self, ctx: &mut Context, client: ClientId) {
        if self.is_held {
            ctx.set_held(client, true);
        }
    }

    fn drop_request(&mut self, ctx: &mut Context, number: u64) {
        let found = self.numbers.iter().find(|(_, other)| **other == number);
        if let Some(client) = found.map(|(client, _)| *client) {
            self.numbers.remove(&client);
            ctx.close(client, CloseCode::NORMAL, "");
        }
    }

    /// Sets the timer for what the conversation has to do next.
    fn plan(&mut self, ctx: &mut Context) {
        let due = self.conversation.next_due();
        if due == self.timer.map(|(_, at)| at) {
            return;
        }
        if let Some((timer, _)) = self.timer.take() {
            ctx.cancel_timer(timer);
        }
        if let Some(at) = due {
            let wait = at.since(ctx.now());
            self.timer = Some((ctx.set_timer(wait), at));
        }
    }

    // The end.

    fn check_end(&mut self, ctx: &mut Context) {
        if self.stage != Stage::InputEnded {
            return self.resume_input(ctx);
        }
        if self.conversation.is_done() {
            self.leave(ctx);
        } else if self.linger.is_none() {
            self.linger = Some(ctx.set_timer(self.config.linger));
        }
    }

    /// Ends the session.
    fn leave(&mut self, ctx: &mut Context) {
        if matches!(self.stage, Stage::Running | Stage::InputEnded) {
            self.stage = Stage::Leaving;
            self.conversation.leave();
            self.act(ctx);
        }
    }

    fn fail(&mut self, ctx: &mut Context, why: &str, problem: Option<Problem>) {
        let target = self.config.connect.target();
        let why = with_advice(why.to_owned(), problem, self.config.advise);
        self.failure = Some(format!("cannot use {target}: {why}"));
        self.leave(ctx);
    }

    /// Stops as soon as everything is written to standard output.
    fn finish(&mut self, ctx: &mut Context) {
        self.stage = Stage::Finished;
        for client in self
            .idle
            .drain(..)
            .chain(self.numbers.drain().map(|(client, _)| client))
        {
            ctx.close(client, CloseCode::NORMAL, "");
        }
        if let Some(input) = &mut self.input {
            input.close(ctx);
        }
        if self.output.as_ref().is_none_or(Output::is_empty) {
            ctx.stop();
        }
    }
}

impl Service for HttpBridge {
    fn started(&mut self, ctx: &mut Context) {
        match open_streams(ctx, self.config.framing, true) {
            Ok((input, output)) => {
                self.input = Some(input);
                self.output = Some(output);
            }
            Err(error) => {
                self.failure = Some(format!("cannot use the standard streams: {error}"));
                self.finish(ctx);
            }
        }
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, _: Readiness) {
        if self.input.as_ref().is_some_and(|input| input.is(source)) {
            self.read_input(ctx);
        } else if self.output.as_ref().is_some_and(|output| output.is(source)) {
            self.write_output(ctx);
        }
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        if self.input.as_ref().is_some_and(|one| one.is_timer(timer)) {
            self.read_input(ctx);
        } else if self.output.as_ref().is_some_and(|one| one.is_timer(timer)) {
            self.write_output(ctx);
        } else if self.timer.is_some_and(|(own, _)| own == timer) {
            self.timer = None;
            self.conversation.handle_time(ctx.now());
            self.act(ctx);
        } else if self.linger == Some(timer) {
            let count = self.conversation.unanswered();
            let failure = self.failure.take();
            self.failure = failure.or_else(|| unanswered(count, self.config.linger));
            self.leave(ctx);
        }
    }

    fn draining(&mut self, ctx: &mut Context) {
        self.leave(ctx);
    }

    fn is_stopped(&self) -> bool {
        self.output.as_ref().is_none_or(Output::is_empty)
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        for client in self.numbers.keys().chain(&self.idle) {
            visit(*client);
        }
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        Some(self)
    }
}

impl Outgoing for HttpBridge {
    fn response(&mut self, ctx: &mut Context, client: ClientId, event: ResponseEvent<'_>) {
        let now = ctx.now();
        let Some(number) = self.numbers.get(&client).copied() else {
            // A connection that was idle has ended.
            if matches!(event, ResponseEvent::Failed { .. }) {
                self.idle.retain(|idle| *idle != client);
            }
            return;
        };
        match event {
            ResponseEvent::Head(head) => {
                if !self.conversation.was_open && (200..300).contains(&head.status()) {
                    // Most of what was used until here is not used again.
                    drop_code();
                }
                self.conversation.handle_head(now, number, head);
            }
            ResponseEvent::Data(data) => self.conversation.handle_data(now, number, data),
            ResponseEvent::End { is_reusable } => {
                self.numbers.remove(&client);
                if is_reusable && self.idle.len() < MAX_IDLE {
                    ctx.set_held(client, false);
                    self.idle.push(client);
                } else if is_reusable {
                    ctx.close(client, CloseCode::NORMAL, "");
                }
                self.conversation.handle_end(now, number);
            }
            ResponseEvent::Failed { error, was_sent } => {
                self.numbers.remove(&client);
                if error.is_malformed() {
                    log::warn!("the server's response is not valid: {error}");
                }
                let why = with_advice(error.to_string(), Problem::of(error), self.config.advise);
                self.conversation
                    .handle_failure(now, number, &why, was_sent);
            }
        }
        self.act(ctx);
    }

    fn connect_retrying(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        error: &ConnectError,
        _: Duration,
    ) {
        let Some(number) = self.numbers.get(&client).copied() else {
            return;
        };
        if !self.conversation.was_open && error.is_no_such_place() {
            self.numbers.remove(&client);
            ctx.close(client, CloseCode::NORMAL, "");
            let why = error.to_string();
            self.conversation
                .handle_failure(ctx.now(), number, &why, false);
            return self.act(ctx);
        }
        if !std::mem::replace(&mut self.has_warned, true) {
            let target = self.config.connect.target();
            let text = format!("cannot connect to {target}: {error}; trying again");
            let advice = Some(Problem::Unreachable);
            log::warn!("{}", with_advice(text, advice, self.config.advise));
        }
    }
}
