//! Messages for a session that the agent sends before its response to the request that creates the session.
//!
//! They wait, within limits, until the session has an owner.

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
    /// Keeps a message. Returns the number of older messages that were dropped to make room.
    pub(super) fn hold(&mut self, session: &str, text: &str) -> u64 {
        let mut dropped = 0;
        let known = self.sessions.iter().position(|held| &*held.name == session);
        let at = known.unwrap_or_else(|| {
            if self.sessions.len() == MAX_SESSIONS {
                let oldest = self.sessions.pop_front();
                dropped += oldest.map_or(0, |oldest| oldest.messages.len() as u64);
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
            dropped += 1;
        }
        if dropped > 0 {
            log::warn!(
                "dropped {dropped} messages of the agent: too many arrived before the responses that create their sessions"
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

    /// Drops all messages and returns their number.
    pub(super) fn clear(&mut self) -> u64 {
        let dropped = self.sessions.iter().map(|held| held.messages.len() as u64);
        let dropped = dropped.sum();
        self.sessions = VecDeque::new();
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_messages_are_limited_and_the_oldest_are_dropped_first() {
        let mut early = EarlyMessages::default();
        let dropped: u64 = (0..100).map(|at| early.hold("a", &at.to_string())).sum();
        assert_eq!(dropped, 36);
        let held = early.take("a");
        assert_eq!(
            (held.len(), held.front().map(|text| &**text)),
            (64, Some("36"))
        );
        assert!(early.take("a").is_empty());

        assert_eq!(early.hold("b", &"x".repeat(MAX_BYTES)), 0);
        assert_eq!(early.hold("b", "y"), 1, "bytes are limited too");
        assert_eq!(early.hold("b", &"x".repeat(MAX_BYTES + 1)), 2);
        for at in 0..MAX_SESSIONS {
            early.hold(&format!("s{at}"), "z");
        }
        assert_eq!(early.sessions.len(), MAX_SESSIONS);
        assert!(early.take("b").is_empty() && early.take("s0").len() == 1);
        assert_eq!(early.clear(), MAX_SESSIONS as u64 - 1);
    }
}
