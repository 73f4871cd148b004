//! From standard input to the server.

use std::ops::ControlFlow;

use super::output::Output;
use super::requests::Local;
use super::stdin::Input;
use super::{Bridge, Link, Stage};
use crate::service::Problem;
use crate::service::jsonrpc::{Envelope, MessageKind};
use crate::service::pipe::PipeState;
use crate::{ClientId, Context, Message, OwnedMessage};

/// What a message that waits for the connection takes in addition to its bytes.
const OVERHEAD: usize = 16;

/// What a message that waits for the connection takes, in bytes.
pub(super) fn size_of_pending(message: &OwnedMessage) -> usize {
    message.as_message().as_bytes().len() + OVERHEAD
}

fn is_response(message: &Message<'_>) -> bool {
    let Message::Text(text) = message else {
        return false;
    };
    Envelope::parse(text).is_ok_and(|one| matches!(one.kind, MessageKind::Response { .. }))
}

impl Bridge {
    /// Whether standard input must wait.
    fn is_held(&self, ctx: &Context) -> bool {
        let owes_too_much = self.output.as_ref().is_some_and(Output::owes_too_much);
        owes_too_much
            || match self.link {
                Link::None => false,
                Link::Waiting(_) | Link::Opening(_) | Link::Returning { .. } => {
                    self.pending_bytes > self.config.buffer / 2
                }
                Link::Open { client, .. } => ctx.is_congested(client),
            }
    }

    fn handle_input(&mut self, ctx: &mut Context, input: Input<'_>) -> ControlFlow<()> {
        match input {
            Input::Text(text) if self.config.json => self.handle_message(ctx, text),
            Input::Text(text) => self.send(ctx, Message::Text(text)),
            Input::Binary(bytes) => self.send(ctx, Message::Binary(bytes)),
            Input::Refused(answer) => self.answer(ctx, &answer),
        }
        match self.is_held(ctx) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn handle_message(&mut self, ctx: &mut Context, text: &str) {
        match self.requests.handle_local(text) {
            Local::Pass(text) => self.send(ctx, Message::Text(&text)),
            Local::Begin(text) => {
                self.connect(ctx);
                self.send(ctx, Message::Text(text));
            }
            Local::Reply(answer) => {
                let is_json = text.trim_start().starts_with(['{', '[']);
                if !is_json && !std::mem::replace(&mut self.has_warned_of_input, true) {
                    self.warn(
                        "standard input is not JSON-RPC".to_owned(),
                        Problem::NotJsonRpc,
                    );
                }
                self.answer(ctx, &answer);
            }
            Local::Drop => log::debug!("dropped a message for a connection that was lost"),
        }
    }

    /// Sends a message, or keeps it for the next connection.
    pub(super) fn send(&mut self, ctx: &mut Context, message: Message<'_>) {
        if let Link::Open { client, .. } = self.link {
            // A connection that is ending takes no more messages. If it cannot be continued, the requests among them get errors.
            let is_sent = self.send_now(ctx, client, message);
            if is_sent || self.config.json {
                return;
            }
        }
        if let Link::Returning { client, .. } = self.link
            && is_response(&message)
        {
            // The agent may need it before a session is loaded.
            _ = self.send_now(ctx, client, message);
            return;
        }
        let message = match message {
            Message::Text(text) => OwnedMessage::Text(text.to_owned()),
            Message::Binary(bytes) => OwnedMessage::Binary(bytes.to_vec()),
        };
        self.pending_bytes += size_of_pending(&message);
        self.pending.push_back(message);
    }

    /// Sends a message on a connection that is open. Returns whether it takes messages.
    pub(super) fn send_now(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        message: Message<'_>,
    ) -> bool {
        let is_sent = ctx.try_send(client, message).is_ok();
        if is_sent {
            self.silence.sent(ctx);
        }
        is_sent
    }

    /// Reads standard input again, unless it must wait.
    pub(super) fn resume_input(&mut self, ctx: &mut Context) {
        if self.stage == Stage::Running
            && !self.is_held(ctx)
            && let Some(input) = &mut self.input
        {
            input.resume(ctx);
        }
    }

    /// Reads standard input with `read`.
    pub(super) fn read_input(&mut self, ctx: &mut Context) {
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
        match failure {
            Some(failure) => self.fail(ctx, &failure.clone(), Some(failure)),
            None => self.check_end(ctx),
        }
    }
}
