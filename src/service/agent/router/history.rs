//! The last updates of a session, for clients that attach to it later.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::RouterOutput;
use super::sessions::{SessionKey, Sessions};
use crate::ClientId;
use crate::service::jsonrpc::{Envelope, member};

/// The bytes of the updates of all sessions that are kept.
const MAX_ALL: usize = 64 << 20;

/// The last updates of a session, as they were sent.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The updates, one behind the other.
    text: VecDeque<u8>,
    lengths: VecDeque<usize>,
    /// Whether earlier updates are no longer kept.
    is_cut: bool,
}

/// Which updates a client gets that attaches to a session: the `historyPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistoryPolicy {
    Full,
    PendingOnly,
    None,
    /// The updates after this position.
    After(usize),
}

impl HistoryPolicy {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::PendingOnly => "pending_only",
            Self::None => "none",
            Self::After(_) => "after_message",
        }
    }
}

impl History {
    /// Whether earlier updates are no longer kept.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Adds an update, and drops the oldest ones if there are more than `most` bytes.
    fn push(&mut self, update: &str, most: usize) {
        while self.text.len() + update.len() > most
            && let Some(length) = self.lengths.pop_front()
        {
            self.text.drain(..length);
            self.is_cut = true;
        }
        if update.len() > most {
            self.is_cut = true;
            return;
        }
        self.text.extend(update.as_bytes());
        self.lengths.push_back(update.len());
    }

    /// The updates from a position on.
    pub(super) fn updates(
        &self,
        from: usize,
    ) -> impl DoubleEndedIterator<Item = (usize, Cow<'_, str>)> {
        let mut end = 0;
        let ranges: Vec<_> = self
            .lengths
            .iter()
            .map(|length| {
                end += length;
                end - length..end
            })
            .collect();
        let (first, second) = self.text.as_slices();
        let bytes = move |range: std::ops::Range<usize>| -> Cow<'_, [u8]> {
            if range.end <= first.len() {
                first[range].into()
            } else if range.start >= first.len() {
                second[range.start - first.len()..range.end - first.len()].into()
            } else {
                [&first[range.start..], &second[..range.end - first.len()]]
                    .concat()
                    .into()
            }
        };
        let updates = ranges.into_iter().enumerate().skip(from);
        updates.map(move |(position, range)| {
            let text = match bytes(range) {
                Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
                Cow::Owned(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
            };
            (position, text)
        })
    }

    /// The policy that a client asks for. A message that is not kept means the whole history.
    pub(super) fn policy(&self, attach: &Envelope<'_>) -> HistoryPolicy {
        let text = attach.text;
        let value = |name: &str| {
            let range = member(text, attach.body.as_ref()?, name)?;
            Some(&text[range])
        };
        match value("historyPolicy") {
            Some(r#""none""#) => HistoryPolicy::None,
            Some(r#""pending_only""#) => HistoryPolicy::PendingOnly,
            Some(r#""after_message""#) => value("afterMessageId")
                .and_then(|id| self.position_of(id))
                .map_or(HistoryPolicy::Full, |last| HistoryPolicy::After(last + 1)),
            _ => HistoryPolicy::Full,
        }
    }

    /// The position of the last update of a message. `id` is JSON.
    fn position_of(&self, id: &str) -> Option<usize> {
        let mut updates = self.updates(0);
        let is_it = |update: &str| {
            let envelope = Envelope::parse(update).ok()?;
            let update = member(envelope.text, envelope.body.as_ref()?, "update")?;
            let message = member(envelope.text, &update, "messageId")?;
            Some(&envelope.text[message] == id)
        };
        let found = updates.rfind(|(_, update)| is_it(update) == Some(true));
        found.map(|(position, _)| position)
    }
}

impl Sessions {
    /// Keeps an update of a session for clients that attach later.
    pub(super) fn remember(&mut self, key: &SessionKey, update: &str) {
        if self.history.each == 0 {
            return;
        }
        let HistoryBudget { each, bytes } = self.history;
        if let Some(session) = self.get_mut(key) {
            let before = session.history.text.len();
            let room = MAX_ALL.saturating_sub(bytes);
            session.history.push(update, each.min(before + room));
            self.history.bytes = bytes + session.history.text.len() - before;
        }
    }

    /// Forgets the updates of a session, because its agent is about to send them again.
    pub(super) fn forget_history(&mut self, key: &SessionKey) {
        if let Some(session) = self.get_mut(key) {
            let history = std::mem::take(&mut session.history);
            self.history.bytes -= history.text.len();
        }
    }

    /// Sends a client the updates of a session that its policy asks for.
    pub(super) fn replay(
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
        for (_, update) in self
            .get(key)
            .into_iter()
            .flat_map(|one| one.history.updates(from))
        {
            output.to_client(client, &[&update]);
        }
    }
}

/// The limit on histories, and their size.
#[derive(Clone, Copy, Debug)]
pub(super) struct HistoryBudget {
    /// The bytes that are kept for each session.
    pub(super) each: usize,
    /// The bytes that are kept for all sessions.
    pub(super) bytes: usize,
}
