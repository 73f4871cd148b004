//! How the next connection continues the one that was lost.

use std::collections::HashSet;
use std::time::Duration;

use super::durable::Resumed;
use super::input::size_of_pending;
use super::requests::Remote;
use super::restoration::{Progress, Restoration};
use super::sessions::Sessions;
use super::{Bridge, Link, Stage};
use crate::service::jsonrpc::{Envelope, IdKey, MessageKind};
use crate::{ClientId, CloseCode, Connect, Context, Message, OwnedMessage};

/// How long the server may take for each response before a connection continues the last one. An agent may take a while to load a
/// session.
const RETURN_LIMIT: Duration = Duration::from_secs(60);

/// How long to wait for the responses to requests that the server may not have received.
const DOUBTS_LIMIT: Duration = Duration::from_secs(10);

/// What the next connection continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing.
    Afresh,
    /// The last connection, from the last cursor.
    Resume,
    /// The sessions of the last connection.
    Restore,
}

impl Bridge {
    /// How to begin the next connection.
    pub(super) fn next_connect(&self) -> Connect {
        let connect = self.config.connect.clone();
        match self.durable.id().filter(|_| self.next == Next::Resume) {
            // An id that is no header value is in `stream/resume` alone.
            Some(id) => connect
                .with_field("Acp-Connection-Id", id)
                .unwrap_or_else(|| self.config.connect.clone()),
            None => connect,
        }
    }

    /// A connection is open. `id` is the value of its field `Acp-Connection-Id`.
    pub(super) fn begin_connection(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        id: Option<&str>,
    ) {
        let since = ctx.now();
        if self.next != Next::Resume {
            let is_wanted = self.config.json && self.config.continue_sessions;
            self.durable
                .begin(id, is_wanted && !ctx.is_resumable(client));
        }
        let first = match self.next {
            Next::Afresh => return self.begin_messages(ctx),
            Next::Resume => self.durable.resume(),
            Next::Restore => {
                let (restoration, first) = Restoration::begin(&self.requests.sessions);
                self.restoration = restoration;
                first
            }
        };
        self.link = Link::Returning { client, since };
        self.begin_return_limit(ctx);
        match self.next {
            // It does not count as a message.
            Next::Resume => ctx.send(client, Message::Text(&first)),
            Next::Afresh | Next::Restore => _ = self.send_now(ctx, client, Message::Text(&first)),
        }
    }

    /// The connection is ready. Sends the pending messages.
    fn begin_messages(&mut self, ctx: &mut Context) {
        let (client, since) = match (self.link, self.link.connected()) {
            (Link::Opening(client), _) => (client, ctx.now()),
            (_, Some(connected)) => connected,
            _ => return,
        };
        self.link = Link::Open {
            client,
            since,
            is_cut: false,
        };
        self.end_return(ctx);
        self.pending_bytes = 0;
        for message in std::mem::take(&mut self.pending) {
            self.send(ctx, message.as_message());
        }
    }

    fn begin_return_limit(&mut self, ctx: &mut Context) {
        let timer = ctx.set_timer(RETURN_LIMIT);
        if let Some(earlier) = self.return_limit.replace(timer) {
            ctx.cancel_timer(earlier);
        }
    }

    fn end_return(&mut self, ctx: &mut Context) {
        self.next = Next::Afresh;
        if let Some(timer) = self.return_limit.take() {
            ctx.cancel_timer(timer);
        }
    }

    /// Handles a message of the server before it is passed on. Returns whether it was only for a connection that is returning.
    pub(super) fn handle_return(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        text: &str,
    ) -> bool {
        let is_returning = matches!(self.link, Link::Returning { .. });
        let next = if is_returning {
            self.next
        } else {
            Next::Afresh
        };
        // The response to `stream/resume` is not one of the messages that continue: neither its id nor its cursor counts.
        if next == Next::Resume && self.handle_resumed(ctx, client, text) {
            return true;
        }
        self.durable.receive(text);
        next == Next::Restore && self.handle_restored(ctx, client, text)
    }

    fn handle_resumed(&mut self, ctx: &mut Context, client: ClientId, text: &str) -> bool {
        match self.durable.handle_answer(text) {
            None => return false,
            Some(Resumed::Yes(again)) => {
                log::debug!("the connection continues");
                for id in self.durable.take_unplaced() {
                    self.requests.settle(id);
                }
                for text in again {
                    ctx.send(client, Message::Text(&text));
                }
                if self.durable.has_doubts() && self.doubts_limit.is_none() {
                    self.doubts_limit = Some(ctx.set_timer(DOUBTS_LIMIT));
                }
                self.begin_messages(ctx);
                self.resume_input(ctx);
            }
            Some(Resumed::No(reason)) => {
                let reason = format!("the server cannot resume it: {reason}");
                self.leave(ctx, client);
                self.handle_loss(ctx, &reason, false);
            }
        }
        true
    }

    fn handle_restored(&mut self, ctx: &mut Context, client: ClientId, text: &str) -> bool {
        match self.restoration.handle(&mut self.requests.sessions, text) {
            Progress::Unrelated => return false,
            Progress::Taken => {}
            Progress::Send(request) => {
                self.begin_return_limit(ctx);
                _ = self.send_now(ctx, client, Message::Text(&request));
            }
            Progress::Done(messages) => {
                for failure in self.restoration.failures() {
                    log::warn!("{failure}");
                }
                let count = self.requests.sessions.len();
                let sessions = if count == 1 {
                    "session continues"
                } else {
                    "sessions continue"
                };
                log::info!("{count} {sessions} on a new connection");
                for message in messages {
                    self.handle_text(ctx, &message);
                }
                self.begin_messages(ctx);
                self.resume_input(ctx);
            }
            Progress::Failed(reason) => self.fail_to_restore(ctx, client, &reason),
        }
        true
    }

    /// Passes a message of the server on.
    pub(super) fn handle_text(&mut self, ctx: &mut Context, text: &str) {
        let Some(output) = &mut self.output else {
            return;
        };
        match self.requests.handle_remote(text) {
            Remote::Pass(text) => output.message(ctx, &text),
            Remote::Refuse(text) => self.send(ctx, Message::Text(&text)),
            Remote::Ignore => self.warn_of_other_protocol(),
            Remote::Drop => log::debug!("dropped a response that nobody waits for"),
        }
    }

    /// The sessions cannot continue. The local side must send `initialize`.
    fn fail_to_restore(&mut self, ctx: &mut Context, client: ClientId, reason: &str) {
        log::warn!("the sessions cannot continue: {reason}");
        self.leave(ctx, client);
        for text in self.lose_everything(reason) {
            self.answer(ctx, &text);
        }
        // A later loss must not load them after all.
        self.requests.sessions = Sessions::default();
        if self.stage == Stage::Running {
            return self.resume_input(ctx);
        }
        let failure = format!("the sessions cannot continue: {reason}");
        self.finish(ctx, Some(failure));
    }

    /// Nothing continues. Returns what the local side gets: errors for its requests, and the ends of its turns.
    fn lose_everything(&mut self, reason: &str) -> Vec<String> {
        if self.config.json {
            self.pending.clear();
            self.pending_bytes = 0;
        }
        let mut messages = self.requests.handle_loss(reason);
        messages.extend(self.requests.sessions.end_turns());
        messages
    }

    /// Ends a connection that cannot continue the last one.
    fn leave(&mut self, ctx: &mut Context, client: ClientId) {
        self.link = Link::None;
        self.end_return(ctx);
        ctx.close(client, CloseCode::NORMAL, "");
    }

    /// The server takes too long for a response on a connection that is returning.
    pub(super) fn handle_return_limit(&mut self, ctx: &mut Context) {
        self.return_limit = None;
        let Link::Returning { client, .. } = self.link else {
            return;
        };
        if self.is_output_behind() {
            return self.begin_return_limit(ctx);
        }
        let reason = "the server does not answer";
        match self.next {
            Next::Restore => self.fail_to_restore(ctx, client, reason),
            Next::Afresh | Next::Resume => {
                self.leave(ctx, client);
                self.handle_loss(ctx, reason, false);
            }
        }
    }

    /// Whether the server's messages may be held back because nobody reads standard output. A response may be among them.
    fn is_output_behind(&self) -> bool {
        self.output.as_ref().is_some_and(|one| !one.has_room())
    }

    /// The responses to requests that the server may not have received have not arrived in time.
    pub(super) fn handle_doubts_limit(&mut self, ctx: &mut Context) {
        if self.is_output_behind() {
            self.doubts_limit = Some(ctx.set_timer(DOUBTS_LIMIT));
            return;
        }
        self.doubts_limit = None;
        let doubtful = self.durable.take_doubtful();
        let reason = "the connection was cut, and the server does not say whether it has received the request";
        for error in self.requests.give_up(doubtful, reason) {
            self.answer(ctx, &error);
        }
        self.check_end(ctx);
    }

    /// The connection was cut, and the next one can resume it. `has_returned` tells whether messages could pass on it.
    pub(super) fn handle_cut(
        &mut self,
        ctx: &mut Context,
        reason: &str,
        was_stable: bool,
        has_returned: bool,
    ) {
        log::debug!("the connection was cut: {reason}");
        self.end_return(ctx);
        self.next = Next::Resume;
        if has_returned {
            // It does not count among those that the server ends at once.
            self.unstable = 0;
            self.unstable_since = None;
        }
        self.reconnect(ctx, reason, was_stable);
        self.check_end(ctx);
    }

    /// The connection and what the server knew of it are lost. Returns what the local side gets: errors for the requests that the
    /// server may have received. The other requests stay pending if the next connection can take the place of this one.
    pub(super) fn forget_connection(&mut self, ctx: &mut Context, reason: &str) -> Vec<String> {
        self.end_return(ctx);
        self.durable.end();
        if let Some(timer) = self.doubts_limit.take() {
            ctx.cancel_timer(timer);
        }
        let may_restore = self.config.json && self.config.continue_sessions;
        let is_running = self.stage == Stage::Running;
        if !is_running || !may_restore || !self.requests.sessions.can_be_restored() {
            return self.lose_everything(reason);
        }
        // A response that is queued answers a request from the lost connection, so it is dropped.
        let mut waiting = HashSet::new();
        self.pending.retain(|message| {
            let OwnedMessage::Text(text) = message else {
                return false;
            };
            match Envelope::parse(text) {
                Ok(Envelope {
                    kind: MessageKind::Request { id, .. },
                    ..
                }) => waiting.insert(IdKey::of(&text[id])),
                Ok(Envelope {
                    kind: MessageKind::Notification { .. },
                    ..
                }) => true,
                _ => false,
            }
        });
        let sizes = self.pending.iter().map(size_of_pending);
        self.pending_bytes = sizes.sum();
        let errors = self
            .requests
            .handle_loss_of(reason, |id| !waiting.contains(id));
        self.requests.continue_on_next();
        self.next = Next::Restore;
        errors
    }

    /// The number of messages that may not have been delivered, while no connection is ready.
    pub(super) fn undelivered_count(&self) -> u64 {
        let sent = match self.next {
            Next::Resume => self.durable.unconfirmed(),
            Next::Afresh | Next::Restore => 0,
        };
        sent + self.pending.len() as u64
    }
}
