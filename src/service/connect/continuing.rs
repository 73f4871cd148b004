//! Loading the sessions of a lost connection again on the next one.

use std::collections::HashSet;
use std::time::Duration;

use super::input::size_of_pending;
use super::requests::Remote;
use super::restoration::{Progress, Restoration};
use super::sessions::Sessions;
use super::{Bridge, Link, Stage};
use crate::service::jsonrpc::{Envelope, IdKey, MessageKind};
use crate::{ClientId, CloseCode, Context, Message, OwnedMessage};

/// How long the server may take for each response while the sessions are loaded. An agent may take a while to load one.
const RETURN_LIMIT: Duration = Duration::from_secs(60);

impl Bridge {
    /// A connection is open.
    pub(super) fn begin_connection(&mut self, ctx: &mut Context, client: ClientId) {
        if !self.is_restoring {
            return self.begin_messages(ctx);
        }
        let (restoration, first) = Restoration::begin(&self.requests.sessions);
        self.restoration = restoration;
        self.link = Link::Returning {
            client,
            since: ctx.now(),
        };
        self.begin_return_limit(ctx);
        _ = self.send_now(ctx, client, Message::Text(&first));
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
        self.is_restoring = false;
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
        if !matches!(self.link, Link::Returning { .. }) {
            return false;
        }
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
        self.link = Link::None;
        self.end_return(ctx);
        ctx.close(client, CloseCode::NORMAL, "");
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

    /// The server takes too long for a response on a connection that is returning.
    pub(super) fn handle_return_limit(&mut self, ctx: &mut Context) {
        self.return_limit = None;
        let Link::Returning { client, .. } = self.link else {
            return;
        };
        // While nobody reads standard output, the server's messages may be held back, and a response may be among them.
        if self.output.as_ref().is_some_and(|one| !one.has_room()) {
            return self.begin_return_limit(ctx);
        }
        self.fail_to_restore(ctx, client, "the server does not answer");
    }

    /// The connection and what the server knew of it are lost. Returns what the local side gets: errors for the requests that the
    /// server may have received. The other requests stay pending if the next connection can take the place of this one.
    pub(super) fn forget_connection(&mut self, ctx: &mut Context, reason: &str) -> Vec<String> {
        self.end_return(ctx);
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
        self.is_restoring = true;
        errors
    }
}
