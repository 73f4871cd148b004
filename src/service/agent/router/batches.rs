//! Batches of JSON-RPC 2.0 (section 6), which version 2 of the Agent Client Protocol permits in both directions.
//!
//! A batch is taken apart. Each of its messages is checked and routed on its own, as if it had come alone. [`Batches`] collects the
//! responses to the requests of a batch, and returns them to the sender as one array when the last one is there.

use std::collections::HashMap;

use crate::ClientId;
use crate::record::record;
use crate::service::json::{Skimmer, why_not_json};
use crate::service::jsonrpc::{
    Envelope, EnvelopeError, IdKey, MessageKind, batch_messages, code, error, parse_error,
};

/// The bytes of collected responses of all batches of a sender after which those of a batch are sent, although others are missing.
const MAX_COLLECTED: usize = 1 << 20;

/// Who has sent a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BatchSender {
    Client(ClientId),
    Process(usize),
}

/// A batch that was taken apart.
#[derive(Debug, Default)]
struct Batch {
    /// The ids of the requests that were not answered.
    waits: Vec<IdKey>,
    /// The responses so far, separated by commas.
    responses: String,
}

record!(
    enum BatchSender {
        Client(client),
        Process(process),
    }
);

record!(Batch { waits, responses });

impl Batch {
    fn add(&mut self, response: &str) {
        if !self.responses.is_empty() {
            self.responses.push(',');
        }
        self.responses.push_str(response);
    }

    /// The responses as an array, if there are any.
    fn take_array(&mut self) -> Option<String> {
        let responses = std::mem::take(&mut self.responses);
        (!responses.is_empty()).then(|| format!("[{responses}]"))
    }
}

/// What a message is to the batches of its receiver.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Collected {
    /// It is not the response to a request of a batch, and is sent as it is.
    Other,
    /// It is sent later, in an array.
    Kept,
    /// It is sent now, in this array.
    Complete(String),
}

impl Collected {
    /// What is sent now: the array, or the message itself, given in parts.
    pub(crate) fn into_text(self, parts: &[&str]) -> Option<String> {
        match self {
            Self::Other => Some(parts.concat()),
            Self::Kept => None,
            Self::Complete(array) => Some(array),
        }
    }
}

/// The bytes of the responses of these batches.
fn held(batches: &[Batch]) -> usize {
    batches.iter().map(|batch| batch.responses.len()).sum()
}

/// The batches whose requests were not all answered.
#[derive(Debug, Default)]
pub(crate) struct Batches(HashMap<BatchSender, Vec<Batch>>);

record!(Batches as HashMap<BatchSender, Vec<Batch>>);

impl Batches {
    /// Takes a batch apart. Returns its valid messages, and the array to answer with at once, which has the errors for the others if
    /// no response is awaited, or if too much waits already.
    ///
    /// # Errors
    ///
    /// The batch as a whole is not valid. The error is the single response to it.
    pub(crate) fn begin<'a>(
        &mut self,
        sender: BatchSender,
        text: &'a str,
    ) -> Result<(Vec<&'a str>, Option<String>), String> {
        let scanner = match sender {
            BatchSender::Client(_) => Skimmer::of_client(text),
            BatchSender::Process(_) => Skimmer::new(text),
        };
        let mut messages = batch_messages(text, scanner)?;
        let mut batch = Batch::default();
        messages.retain(|message| match Envelope::parse(message) {
            Ok(envelope) => {
                if let MessageKind::Request { id, .. } = &envelope.kind {
                    batch.waits.push(IdKey::of(&message[id.clone()]));
                }
                true
            }
            Err(EnvelopeError::Parse) => {
                batch.add(&parse_error(&why_not_json(message)));
                false
            }
            // The id of the response is null, even if the message has one (section 6 of JSON-RPC).
            Err(EnvelopeError::Invalid { why, .. }) => {
                batch.add(&error("null", code::INVALID, "Invalid request", Some(why)));
                false
            }
        });
        if batch.waits.is_empty() {
            return Ok((messages, batch.take_array()));
        }
        let batches = self.0.entry(sender).or_default();
        let is_full = held(batches) + batch.responses.len() >= MAX_COLLECTED;
        let array = if is_full { batch.take_array() } else { None };
        batches.push(batch);
        Ok((messages, array))
    }

    /// Collects a message to `receiver` if it is the response to a request of one of its batches.
    pub(crate) fn collect(&mut self, receiver: BatchSender, parts: &[&str]) -> Collected {
        let Some(batches) = self.0.get_mut(&receiver) else {
            return Collected::Other;
        };
        let response = parts.concat();
        let key = match Envelope::parse(&response).map(|envelope| envelope.kind) {
            Ok(MessageKind::Response { id, .. }) => IdKey::of(&response[id]),
            _ => return Collected::Other,
        };
        let found = batches.iter().enumerate().find_map(|(index, batch)| {
            let at = batch.waits.iter().position(|id| *id == key)?;
            Some((index, at))
        });
        let Some((index, at)) = found else {
            return Collected::Other;
        };
        let batch = &mut batches[index];
        batch.waits.swap_remove(at);
        batch.add(&response);
        let is_complete = batch.waits.is_empty();
        if !is_complete && held(batches) < MAX_COLLECTED {
            return Collected::Kept;
        }
        let batch = &mut batches[index];
        let array = batch.take_array().unwrap_or_default();
        if is_complete {
            batches.remove(index);
            if batches.is_empty() {
                self.0.remove(&receiver);
            }
        }
        Collected::Complete(array)
    }

    /// Forgets the batches of a client that has left, or of a process that has exited.
    pub(crate) fn forget(&mut self, sender: BatchSender) {
        self.0.remove(&sender);
    }

    /// Visits the clients that have sent the batches.
    pub(crate) fn clients(&self) -> impl Iterator<Item = ClientId> {
        self.0.keys().filter_map(|sender| match sender {
            BatchSender::Client(client) => Some(*client),
            BatchSender::Process(_) => None,
        })
    }

    /// The bytes of the responses that wait for others, for each client.
    pub(crate) fn held_for_clients(&self) -> impl Iterator<Item = (ClientId, usize)> {
        self.0.iter().filter_map(|(sender, batches)| match sender {
            BatchSender::Client(client) => Some((*client, held(batches))),
            BatchSender::Process(_) => None,
        })
    }

    /// The bytes of the responses that wait for others.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn held(&self) -> usize {
        self.0.values().map(|batches| held(batches)).sum()
    }

    /// The number of batches whose requests were not all answered.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}
