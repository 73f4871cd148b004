//! How a session that the server has forgotten begins again: with the host's `initialize`, log level and subscriptions, before any other
//! message. Without I/O.

use super::conversation::{Action, Conversation, FIRST_OF_HOST};
use super::post::{Kind, Post, State, shown};
use crate::Time;
use crate::service::jsonrpc::{Envelope, code, error};

impl Conversation {
    /// The server has forgotten the session of this number.
    pub(super) fn lose_session(&mut self, generation: u32) {
        if generation != self.session.generation || !self.session.has_begun() {
            return;
        }
        log::info!("the server has forgotten the session, and a new one begins");
        self.session.lose();
        if let Some(number) = self.stream.lose() {
            self.drop_exchange(number);
        }
        let own: Vec<u64> = self
            .posts
            .range(..FIRST_OF_HOST)
            .map(|(serial, _)| *serial)
            .collect();
        for serial in own {
            if let Some(Post {
                state: State::Sent(number),
                ..
            }) = self.remove(serial)
            {
                self.drop_exchange(number);
            }
        }
    }

    /// Whether the session is being restored.
    pub(super) fn is_restoring(&self) -> bool {
        let mut own = self.posts.range(..FIRST_OF_HOST);
        self.session.is_lost || own.any(|(_, post)| post.is_barrier())
    }

    /// Begins a new session in place of one that was lost, because the server may speak first. After a failure, waits until a message
    /// needs it.
    pub(super) fn begin_again(&mut self, now: Time) {
        let is_begun = self.posts.range(..FIRST_OF_HOST).next().is_some();
        let is_needed = !self.has_failed || self.posts.values().any(Post::is_in_session);
        if !self.session.is_lost || is_begun || !is_needed {
            return;
        }
        self.has_failed = false;
        let serial = self.last_own + 1;
        if let Some(text) = self.session.initialize_again(serial) {
            self.session_since = now;
            self.push_own(&text);
        }
    }

    fn push_own(&mut self, text: &str) {
        self.last_own += 1;
        if let Ok(envelope) = Envelope::parse(text) {
            self.posts.insert(self.last_own, Post::new(&envelope, true));
        }
    }

    /// No new session could begin. The next message of the host makes another attempt.
    pub(super) fn fail_to_begin_again(&mut self, why: &str) {
        log::warn!("no new session could begin: {why}");
        self.has_failed = true;
        self.posts.retain(|serial, _| *serial >= FIRST_OF_HOST);
        let lost = self
            .posts
            .iter()
            .filter(|(_, post)| post.is_in_session() && !matches!(post.state, State::Sent(_)));
        let lost: Vec<u64> = lost.map(|(serial, _)| *serial).collect();
        for serial in lost {
            if let Some(Post {
                kind: Kind::Request(id),
                ..
            }) = self.remove(serial)
            {
                let message = format!(
                    "The server has forgotten the session, and no new one could begin: {why}"
                );
                self.act(Action::Answer(error(
                    &id,
                    code::CONNECTION_LOST,
                    &message,
                    None,
                )));
            }
        }
    }

    /// The server has answered the repeated `initialize`.
    pub(super) fn handle_begun_again(&mut self, envelope: &Envelope<'_>, is_result: bool) {
        let outcome = match is_result {
            true => self.session.handle_initialized_again(envelope),
            false => Err(format!(
                "the server has refused it: {}",
                shown(envelope.text)
            )),
        };
        match outcome {
            Ok(()) => {
                for text in self.session.restoration(self.last_own + 2) {
                    self.push_own(&text);
                }
            }
            Err(why) => self.fail_to_begin_again(&why),
        }
    }
}
