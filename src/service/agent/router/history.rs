//! The last updates of a session, for clients that attach to it later.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::updates::agent_message_of;
use crate::record::{record, state};
use crate::service::jsonrpc::{Envelope, member};

/// The maximum number of bytes in the histories of all sessions.
pub(super) const MAX_ALL: usize = 64 << 20;

/// The part of the memory for clients that all histories may take.
pub(super) const MAX_SHARE: usize = 16;

/// What an entry of a history is. In version 1, the agent sends no updates for prompts and the end of turns, so observers get the
/// router's. These are written when they are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// An update, as it was sent.
    Update,
    /// The content of a prompt.
    Prompt,
    /// The response to a prompt.
    TurnComplete,
}

/// The last updates of a session.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The entries, one behind the other.
    text: VecDeque<u8>,
    /// What each entry is, and its length.
    entries: VecDeque<(Entry, usize)>,
    /// Whether earlier updates are no longer kept.
    is_cut: bool,
    /// The claim for which earlier updates were forgotten, until the agent has sent them again.
    forgotten_for: Option<u64>,
}

record!(
    enum Entry {
        Update,
        Prompt,
        TurnComplete,
    }
);
record!(History {
    text,
    entries,
    is_cut,
    forgotten_for,
});

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
    /// The length of all entries in bytes.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether there have been entries, even if they are no longer kept.
    pub(super) fn had_entries(&self) -> bool {
        !self.entries.is_empty() || self.is_cut()
    }

    /// A history whose earlier updates were forgotten: with a `claim`, until the agent has sent them again for it, and otherwise
    /// for good.
    pub(super) fn forgotten(claim: Option<u64>) -> Self {
        Self {
            is_cut: claim.is_none(),
            forgotten_for: claim,
            ..Self::default()
        }
    }

    /// Whether earlier updates are no longer kept.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut || self.forgotten_for.is_some()
    }

    /// The agent has confirmed a claim. Before that, it has sent the updates again that were forgotten for the claim.
    pub(super) fn handle_confirmed(&mut self, claim: u64) {
        self.forgotten_for.take_if(|forgotten| *forgotten == claim);
    }

    /// Adds an entry, and drops the oldest ones if there are more than `most` bytes.
    pub(super) fn push(&mut self, entry: Entry, text: &str, most: usize) {
        while self.text.len() + text.len() > most
            && let Some((_, length)) = self.entries.pop_front()
        {
            self.text.drain(..length);
            self.is_cut = true;
        }
        if text.len() > most {
            self.is_cut = true;
            return;
        }
        self.text.extend(text.as_bytes());
        self.entries.push_back((entry, text.len()));
    }

    /// The entries from a position on.
    pub(super) fn entries(
        &self,
        from: usize,
    ) -> impl DoubleEndedIterator<Item = (usize, Entry, Cow<'_, str>)> {
        let mut end = 0;
        let ranges: Vec<_> = self
            .entries
            .iter()
            .map(|(entry, length)| {
                end += length;
                (*entry, end - length..end)
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
        let entries = ranges.into_iter().enumerate().skip(from);
        entries.map(move |(position, (entry, range))| {
            let text = match bytes(range) {
                Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
                Cow::Owned(bytes) => String::from_utf8_lossy(&bytes).into_owned().into(),
            };
            (position, entry, text)
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

    /// The id of the agent's last message in the current turn, as JSON.
    pub(super) fn last_message(&self) -> Option<String> {
        let turn = self.entries(0).rev();
        let mut turn = turn.take_while(|(_, entry, _)| *entry == Entry::Update);
        turn.find_map(|(_, _, update)| agent_message_of(&update).map(str::to_owned))
    }

    /// The position of the last update of a message. `id` is JSON.
    fn position_of(&self, id: &str) -> Option<usize> {
        let mut entries = self.entries(0);
        let is_it = |update: &str| {
            let envelope = Envelope::parse(update).ok()?;
            let update = member(envelope.text, envelope.body.as_ref()?, "update")?;
            let message = member(envelope.text, &update, "messageId")?;
            Some(&envelope.text[message] == id)
        };
        let found = entries
            .rfind(|(_, entry, update)| *entry == Entry::Update && is_it(update) == Some(true));
        found.map(|(position, ..)| position)
    }
}

/// The limit on histories, and their size.
#[derive(Clone, Copy, Debug)]
pub(super) struct HistoryBudget {
    /// The bytes that are kept for each session.
    pub(super) each: usize,
    /// The bytes that may be kept for all sessions.
    pub(super) all: usize,
    /// The bytes that are kept for all sessions.
    pub(super) bytes: usize,
}

state!(HistoryBudget {
    keep each,
    keep all,
    bytes,
});
