//! The histories of all sessions, within one limit.

use super::Sessions;
use crate::service::agent::router::history::{Entry, History, HistoryBudget, HistoryPolicy};
use crate::service::agent::router::output::RouterOutput;
use crate::service::agent::router::session_key::SessionKey;
use crate::service::agent::router::updates::{agent_message_of, prompt_updates, turn_complete};
use crate::service::jsonrpc::Envelope;
use crate::{ClientId, Principal};

impl Sessions {
    /// Keeps an entry of a session's history for clients that attach later.
    pub(crate) fn remember(&mut self, key: &SessionKey, entry: Entry, text: &str) {
        if self.history.each == 0 {
            return;
        }
        let HistoryBudget { each, all, bytes } = self.history;
        if let Some(session) = self.get_mut(key) {
            let before = session.history.len();
            // Half of the memory is left to sessions that have a client.
            let most = if session.controller().is_some() {
                all
            } else {
                all / 2
            };
            let room = most.saturating_sub(bytes);
            session.history.push(entry, text, each.min(before + room));
            self.history.bytes = bytes + session.history.len() - before;
        }
    }

    /// Forgets the updates of a session, because its agent is about to send them again for a claim.
    pub(crate) fn forget_history_for(&mut self, claim: u64, key: &SessionKey) {
        let had_updates = self.forget_history(key);
        if let Some(session) = self.get_mut(key).filter(|_| had_updates) {
            session.history = History::forgotten(Some(claim));
        }
    }

    /// Forgets the updates of a session whose client has left if the histories take more than half of the memory for them. So the
    /// other half is left to sessions that have a client.
    pub(crate) fn make_room_for_histories(&mut self, key: &SessionKey) {
        if self.history.bytes > self.history.all / 2 {
            let had_updates = self.forget_history(key);
            if let Some(session) = self.get_mut(key).filter(|_| had_updates) {
                session.history = History::forgotten(None);
            }
        }
    }

    /// Visits the principal of each session, and the bytes of its history.
    pub(crate) fn held(&self, visit: &mut dyn FnMut(&Principal, usize)) {
        let sessions = self.values();
        let kept = sessions.filter(|session| session.history.len() > 0);
        kept.for_each(|session| visit(&session.principal, session.history.len()));
    }

    /// Forgets about so many bytes of the histories of a principal, from the longest on. Clients that attach later learn that earlier
    /// updates are missing. Returns the number of bytes.
    pub(crate) fn free_histories(&mut self, principal: &Principal, wanted: usize) -> usize {
        let own = self.iter();
        let own = own.filter(|(_, session)| session.principal == *principal);
        let mut own: Vec<(usize, SessionKey)> = own
            .map(|(key, session)| (session.history.len(), key.clone()))
            .collect();
        own.sort_unstable_by_key(|(bytes, _)| *bytes);
        let mut freed = 0;
        while freed < wanted
            && let Some((bytes, key)) = own.pop()
        {
            if self.forget_history(&key)
                && let Some(session) = self.get_mut(&key)
            {
                session.history = History::forgotten(None);
            }
            freed += bytes;
        }
        freed
    }

    /// Forgets the updates of a session. Returns whether there have been any, even if they were no longer kept.
    pub(crate) fn forget_history(&mut self, key: &SessionKey) -> bool {
        let Some(session) = self.get_mut(key) else {
            return false;
        };
        let history = std::mem::take(&mut session.history);
        self.history.bytes -= history.len();
        history.had_entries()
    }

    /// Sends a client the updates of a session that its policy asks for.
    pub(crate) fn replay(
        &self,
        key: &SessionKey,
        policy: HistoryPolicy,
        client: ClientId,
        output: &mut impl RouterOutput,
    ) {
        let from = match policy {
            HistoryPolicy::Full => 0,
            HistoryPolicy::After(from) => from,
            HistoryPolicy::PendingOnly | HistoryPolicy::None => return,
        };
        let Some(session) = self.get(key) else {
            return;
        };
        // The whole history was searched for a position, or is sent.
        output.charge(session.history.len());
        let mut last = None;
        for (_, entry, text) in session.history.entries(from) {
            match entry {
                Entry::Update => {
                    last = agent_message_of(&text).map(str::to_owned).or(last);
                    output.to_client(client, &[&text]);
                }
                Entry::Prompt => {
                    last = None;
                    for update in prompt_updates(key, &text) {
                        output.to_client(client, &[&update]);
                    }
                }
                Entry::TurnComplete => {
                    if let Ok(response) = Envelope::parse(&text) {
                        let update = turn_complete(key, &response, last.take().as_deref());
                        output.to_client(client, &[&update]);
                    }
                }
            }
        }
    }
}
