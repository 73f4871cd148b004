//! Messages for a session that the agent sends before its response to the request that creates the session.
//!
//! They wait, within limits, until the session has an owner. Requests wait too: the agent gets an answer when the session is
//! there, or when no pending request can create it any more.

use std::collections::VecDeque;

/// The maximum number of sessions, and of messages and bytes for each session.
const MAX_SESSIONS: usize = 16;
const MAX_MESSAGES: usize = 64;
const MAX_BYTES: usize = 256 << 10;

/// The messages that wait, by session.
#[derive(Debug, Default)]
pub(super) struct EarlyMessages {
    /// Oldest session first.
    sessions: VecDeque<WaitingSession>,
}

#[derive(Debug)]
struct WaitingSession {
    name: Box<str>,
    messages: VecDeque<Box<str>>,
    bytes: usize,
}

impl EarlyMessages {
    /// Keeps a message. Returns the older messages that were dropped to make room.
    pub(super) fn hold(&mut self, session: &str, text: &str) -> Vec<Box<str>> {
        let mut dropped = Vec::new();
        let known = self.sessions.iter().position(|held| &*held.name == session);
        let at = known.unwrap_or_else(|| {
            if self.sessions.len() == MAX_SESSIONS {
                let oldest = self.sessions.pop_front();
                dropped.extend(oldest.into_iter().flat_map(|oldest| oldest.messages));
            }
            self.sessions.push_back(WaitingSession {
                name: session.into(),
                messages: VecDeque::new(),
                bytes: 0,
            });
            self.sessions.len() - 1
        });
        let held = &mut self.sessions[at];
        held.bytes += text.len();
        held.messages.push_back(text.into());
        while held.bytes > MAX_BYTES || held.messages.len() > MAX_MESSAGES {
            let Some(oldest) = held.messages.pop_front() else {
                break;
            };
            held.bytes -= oldest.len();
            dropped.push(oldest);
        }
        if !dropped.is_empty() {
            log::warn!(
                "dropped {} messages of the agent: too many arrived before the responses that create their sessions",
                dropped.len()
            );
        }
        dropped
    }

    /// Takes the messages of a session, oldest first.
    pub(super) fn take(&mut self, session: &str) -> VecDeque<Box<str>> {
        let known = self.sessions.iter().position(|held| &*held.name == session);
        let taken = known.and_then(|at| self.sessions.remove(at));
        taken.map(|held| held.messages).unwrap_or_default()
    }

    /// Takes all messages.
    pub(super) fn take_all(&mut self) -> Vec<Box<str>> {
        let sessions = std::mem::take(&mut self.sessions).into_iter();
        sessions.flat_map(|held| held.messages).collect()
    }

    /// Takes the first message that `is_it` matches.
    pub(super) fn remove(&mut self, is_it: impl Fn(&str) -> bool) -> Option<Box<str>> {
        self.sessions.iter_mut().find_map(|held| {
            let at = held.messages.iter().position(|text| is_it(text))?;
            let removed = held.messages.remove(at)?;
            held.bytes -= removed.len();
            Some(removed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_messages_are_limited_and_the_oldest_are_dropped_first() {
        let mut early = EarlyMessages::default();
        let dropped = (0..100).flat_map(|at| early.hold("a", &at.to_string()));
        let want: Vec<Box<str>> = (0..36).map(|at| at.to_string().into()).collect();
        assert_eq!(dropped.collect::<Vec<_>>(), want);
        let held = early.take("a");
        assert_eq!(
            (held.len(), held.front().map(|text| &**text)),
            (64, Some("36"))
        );
        assert!(early.take("a").is_empty());

        assert_eq!(early.hold("b", &"x".repeat(MAX_BYTES)).len(), 0);
        assert_eq!(early.hold("b", "y").len(), 1, "bytes are limited too");
        assert_eq!(early.hold("b", &"x".repeat(MAX_BYTES + 1)).len(), 2);
        for at in 0..MAX_SESSIONS {
            early.hold(&format!("s{at}"), "z");
        }
        assert_eq!(early.sessions.len(), MAX_SESSIONS);
        assert!(early.take("b").is_empty() && early.take("s0").len() == 1);
        assert_eq!(early.take_all().len(), MAX_SESSIONS - 1);
    }
}
