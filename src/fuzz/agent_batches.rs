//! Batches of the router's fuzz target, and a naive record of those whose requests were not all answered.

use serde_json::Value;

use crate::service::agent::router::BatchSender;
use crate::service::jsonrpc::{Envelope, MessageKind};

/// The most messages of a batch, without one that is not valid.
const MAX_MESSAGES: usize = 4;

/// How the messages of an operation are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// The number of messages. One that is not in a batch is sent alone.
    pub(super) count: usize,
    is_batch: bool,
    /// Whether the batch also has a message that is not valid.
    has_invalid: bool,
}

impl Form {
    /// Chooses the form. Most messages are sent alone.
    pub(super) fn of(operation: u8, more: usize) -> Self {
        let is_batch = operation >= 160;
        Self {
            count: if is_batch { 1 + more % MAX_MESSAGES } else { 1 },
            is_batch,
            has_invalid: (more / MAX_MESSAGES).is_multiple_of(3),
        }
    }

    /// A single message.
    pub(super) const SINGLE: Self = Self {
        count: 1,
        is_batch: false,
        has_invalid: false,
    };

    /// The text that is sent.
    pub(super) fn text(self, messages: &[String]) -> String {
        if !self.is_batch {
            return messages[0].clone();
        }
        let mut all = messages.to_vec();
        if self.has_invalid {
            all.insert(messages.len() / 2, "7".to_owned());
        }
        format!("[{}]", all.join(","))
    }
}

/// The batches of all senders whose requests were not all answered, in the order in which they were sent.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// What is being sent. The router takes it as a batch, or refuses it as a whole.
    offered: Option<(BatchSender, Vec<Value>)>,
    batches: Vec<(BatchSender, Vec<Value>)>,
}

impl Awaited {
    /// Notes the messages that are about to be sent, if they are a batch. A message that is not valid is answered without its id.
    pub(super) fn offer(&mut self, sender: BatchSender, form: Form, messages: &[String]) {
        let requests = messages.iter().filter(|message| {
            let envelope = Envelope::parse(message);
            envelope.is_ok_and(|envelope| matches!(envelope.kind, MessageKind::Request { .. }))
        });
        let id = |message: &String| {
            let message: Value = serde_json::from_str(message).expect("JSON");
            message["id"].clone()
        };
        self.offered = form.is_batch.then(|| (sender, requests.map(id).collect()));
    }

    /// Notes that the router accepted the current batch.
    pub(super) fn begin(&mut self) {
        let begun = self.offered.take();
        self.batches
            .extend(begun.filter(|(_, ids)| !ids.is_empty()));
    }

    /// What was sent has been handled.
    pub(super) fn withdraw(&mut self) {
        self.offered = None;
    }

    /// A response for a sender of batches. Returns whether it is the last one of a batch, or `None` if it belongs to no batch.
    pub(super) fn answer(&mut self, receiver: BatchSender, id: &Value) -> Option<bool> {
        let is_same = |one: &Value| match (one.as_f64(), id.as_f64()) {
            (Some(one), Some(id)) => one == id,
            _ => one == id,
        };
        let mut batches = self.batches.iter().enumerate();
        let (index, at) = batches.find_map(|(index, (sender, ids))| {
            let at = ids.iter().position(is_same)?;
            (*sender == receiver).then_some((index, at))
        })?;
        self.batches[index].1.remove(at);
        let is_last = self.batches[index].1.is_empty();
        if is_last {
            self.batches.remove(index);
        }
        Some(is_last)
    }

    /// Forgets the batches of a client or a process that is gone.
    pub(super) fn forget(&mut self, sender: BatchSender) {
        self.batches.retain(|(of, _)| *of != sender);
    }

    /// The ids of the unanswered requests in the batches of a sender.
    pub(super) fn of(&self, sender: BatchSender) -> Vec<&Value> {
        let own = self.batches.iter().filter(|(of, _)| *of == sender);
        own.flat_map(|(_, ids)| ids).collect()
    }
}
