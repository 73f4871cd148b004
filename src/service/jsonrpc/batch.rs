//! Batches (JSON-RPC 2.0 section 6).

use super::text::{code, error, parse_error};
use crate::service::json::{Skimmer, why_not_json};

/// The maximum number of messages in a batch. Routing so many takes a few milliseconds.
const MAX_MESSAGES: usize = 1000;

/// Whether a message is an array, which is a batch if it is valid.
pub(crate) fn is_array(text: &str) -> bool {
    text.trim_ascii_start().starts_with('[')
}

/// The messages of a batch, which need not be valid themselves. `scanner` is at the start of `text`, and limits the number of
/// values.
///
/// # Errors
///
/// The array is not JSON, is empty, or has over 1,000 messages. The error is the single response to it.
pub(crate) fn batch_messages<'a>(
    text: &'a str,
    mut scanner: Skimmer<'a>,
) -> Result<Vec<&'a str>, String> {
    let invalid = |why| error("null", code::INVALID, "Invalid request", Some(why));
    let mut messages = Vec::new();
    match scanner.array_up_to(MAX_MESSAGES, |message| messages.push(&text[message])) {
        Ok(true) => Err(invalid("the batch has over 1,000 messages")),
        Ok(false) if scanner.end().is_ok() && messages.is_empty() => {
            Err(invalid("the batch is empty"))
        }
        Ok(false) if scanner.end().is_ok() => Ok(messages),
        Ok(false) | Err(_) => Err(parse_error(&why_not_json(text))),
    }
}
