//! The text of messages: as lines from and to a process, with values replaced while all other bytes stay as they are, and as error
//! responses (JSON-RPC 2.0 section 5.1).

use std::ops::Range;

#[cfg(feature = "mcp")]
use super::envelope::Envelope;
use super::envelope::EnvelopeError;
use super::id::{IdRecovery, RecoveredId};
use super::members::member;
use crate::record::record;
#[cfg(feature = "mcp")]
use crate::service::json::Skimmer;
use crate::service::json::{quote, why_not_json};
use crate::service::lines::Line;
use crate::text::without_mark;

/// What a line of the agent contains.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MessageLine<'a> {
    /// An empty line, or part of a line that is too long.
    Nothing,
    Text(&'a str),
    /// A message that cannot be passed on: its id if one was found, and the reason.
    Unreadable(Option<RecoveredId>, &'static str),
}

/// Decodes an agent's lines as UTF-8 and recovers the ids of lines that are too long.
#[derive(Debug, Default)]
pub(crate) struct LineDecoder {
    /// Searches a line that is too long for its id, while the line is skipped.
    skipped: Option<IdRecovery>,
}

record!(LineDecoder { skipped });

impl LineDecoder {
    /// Decodes a line. Logs a warning if it cannot be a message.
    pub(crate) fn decode<'a>(&mut self, line: Line<'a>) -> MessageLine<'a> {
        match line {
            Line::Whole(bytes) if bytes.trim_ascii().is_empty() => MessageLine::Nothing,
            Line::Whole(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => MessageLine::Text(without_mark(text)),
                Err(_) => {
                    let start = start_of(bytes);
                    log::warn!("skipped a line of the agent that is not UTF-8: {start:?}");
                    MessageLine::Unreadable(IdRecovery::of(bytes), "is not UTF-8")
                }
            },
            Line::TooLong(bytes) => {
                let start = start_of(bytes);
                log::warn!("skipped a line of the agent over the message limit: {start:?}");
                self.skipped = Some(IdRecovery::default());
                MessageLine::Nothing
            }
            Line::Skipped(bytes) => {
                if let Some(skipped) = &mut self.skipped {
                    skipped.push(bytes);
                }
                MessageLine::Nothing
            }
            Line::Broken(error) => {
                log::warn!("cannot read the agent's output any further: {error}");
                MessageLine::Nothing
            }
            Line::SkippedEnd => {
                let recovered = self.skipped.take().and_then(IdRecovery::finish);
                MessageLine::Unreadable(recovered, "is over the message limit (max_message)")
            }
        }
    }
}

/// The start of a line, for the log.
pub(crate) fn start_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned()
}

/// Appends a message as one line. Line feeds, which JSON allows only as white space between tokens, become spaces, so
/// that one message cannot become two. U+2028 and U+2029, which some readers treat as line ends, can occur only in
/// strings and become escapes.
pub(crate) fn push_line(lines: &mut Vec<u8>, parts: &[&str]) {
    let start = lines.len();
    for part in parts {
        // Both characters start with the same byte. A search for one byte is much faster.
        if part.as_bytes().contains(&0xe2) && part.contains(['\u{2028}', '\u{2029}']) {
            let escaped = part
                .replace('\u{2028}', "\\u2028")
                .replace('\u{2029}', "\\u2029");
            lines.extend_from_slice(escaped.as_bytes());
        } else {
            lines.extend_from_slice(part.as_bytes());
        }
    }
    for byte in &mut lines[start..] {
        // The unconditional write lets the compiler vectorize the loop.
        *byte = if matches!(byte, b'\n' | b'\r') {
            b' '
        } else {
            *byte
        };
    }
    lines.push(b'\n');
}

/// Replaces ranges of a string, which must not overlap. Returns the result in parts.
pub(crate) fn splice<'a>(text: &'a str, edits: &mut [(Range<usize>, &'a str)]) -> Vec<&'a str> {
    edits.sort_unstable_by_key(|(range, _)| range.start);
    let mut parts = Vec::with_capacity(2 * edits.len() + 1);
    let mut at = 0;
    for (range, new) in edits {
        parts.extend([&text[at..range.start], new]);
        at = range.end;
    }
    parts.push(&text[at..]);
    parts
}

/// A request or a notification with more members in `params._meta`.
#[cfg(feature = "mcp")]
pub(crate) fn with_params_meta(envelope: &Envelope<'_>, members: &str) -> String {
    let text = envelope.text;
    match (&envelope.meta, &envelope.body) {
        (Some(meta), _) if text[meta.clone()].starts_with('{') => {
            insert_member(text, meta, members)
        }
        (_, Some(params)) => insert_member(text, params, &format!(r#""_meta":{{{members}}}"#)),
        (_, None) => {
            let whole = 0..text.trim_end().len();
            let start = text.len() - text.trim_start().len();
            insert_member(
                text,
                &(start..whole.end),
                &format!(r#""params":{{"_meta":{{{members}}}}}"#),
            )
        }
    }
}

/// The object at a range without these members.
#[cfg(feature = "mcp")]
pub(crate) fn without(text: &str, range: &Range<usize>, names: &[&str]) -> String {
    let mut kept = Vec::new();
    let _ = Skimmer::at(text, range).object(|key, value| {
        if !names.contains(&&*key) {
            kept.push(format!("{}:{}", quote(&key), &text[value]));
        }
    });
    format!("{{{}}}", kept.join(","))
}

/// Inserts a member at the front of the object at `object`.
pub(crate) fn insert_member(text: &str, object: &Range<usize>, member: &str) -> String {
    let at = object.start + 1;
    let is_empty = text[at..object.end - 1].trim_ascii().is_empty();
    let comma = if is_empty { "" } else { "," };
    [&text[..at], member, comma, &text[at..]].concat()
}

/// Replaces the id of a response. The text must be a valid message.
pub(crate) fn with_id(text: &str, id: &str) -> String {
    let whole = 0..text.len();
    match member(text, &whole, "id") {
        Some(range) => [&text[..range.start], id, &text[range.end..]].concat(),
        None => text.to_owned(),
    }
}

/// Every error code that Outrigger sends or reads.
pub(crate) mod code {
    // JSON-RPC 2.0.
    pub(crate) const PARSE: i32 = -32700;
    pub(crate) const INVALID: i32 = -32600;
    pub(crate) const NO_METHOD: i32 = -32601;
    pub(crate) const PARAMS: i32 = -32602;
    pub(crate) const INTERNAL: i32 = -32603;

    // The Agent Client Protocol.
    pub(crate) const CANCELLED: i32 = -32800;
    pub(crate) const NOT_FOUND: i32 = -32002;
    // `session/attach` (agent-client-protocol#533) gives these codes meanings of its own.
    pub(crate) const NO_SESSION: i32 = -32001;
    pub(crate) const NOT_AUTHORISED: i32 = -32002;
    pub(crate) const NO_ATTACH: i32 = -32003;

    // Outrigger, in front of an agent.
    pub(crate) const DENIED: i32 = -32010;
    pub(crate) const EXITED: i32 = -32012;
    pub(crate) const TOO_MANY: i32 = -32013;
    pub(crate) const TIMED_OUT: i32 = -32014;
    pub(crate) const STOPPING: i32 = -32015;
    pub(crate) const CONNECTION_LOST: i32 = -32016;

    #[cfg(feature = "mcp")]
    pub(crate) use super::mcp_code::*;
}

/// Those of the Model Context Protocol, revision 2026-07-28 (its page "Overview", section "Error Codes").
#[cfg(feature = "mcp")]
mod mcp_code {
    pub(crate) const HEADER_MISMATCH: i32 = -32020;
    pub(crate) const MISSING_CAPABILITY: i32 = -32021;
    pub(crate) const UNSUPPORTED_VERSION: i32 = -32022;
    /// The code that the SDKs of the Model Context Protocol use for an unknown session.
    pub(crate) const SESSION_NOT_FOUND: i32 = -32001;
}

/// The response with a result, in parts. Both arguments are JSON.
pub(crate) fn success<'a>(id: &'a str, result: &'a str) -> [&'a str; 5] {
    [
        r#"{"jsonrpc":"2.0","id":"#,
        id,
        r#","result":"#,
        result,
        "}",
    ]
}

/// An error response. `id` is JSON, and `data` is a string for whoever looks for the cause.
pub(crate) fn error(id: &str, code: i32, message: &str, data: Option<&str>) -> String {
    error_with(Some(id), code, message, data.map(quote).as_deref())
}

/// An error response whose `data` is JSON. Without `id`, it has no such member, as the Model Context Protocol asks for since
/// revision 2026-07-28.
pub(crate) fn error_with(id: Option<&str>, code: i32, message: &str, data: Option<&str>) -> String {
    let id = id.map_or_else(String::new, |id| format!(r#""id":{id},"#));
    let data = data.map_or_else(String::new, |data| format!(r#","data":{data}"#));
    let message = quote(message);
    format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":{code},"message":{message}{data}}}}}"#)
}

/// The error response to a message that is not JSON.
pub(crate) fn parse_error(why: &str) -> String {
    error("null", code::PARSE, "Parse error", Some(why))
}
/// Why a client's message is refused that is over [`Config::max_json`](crate::Config::max_json).
pub(crate) const TOO_LONG: &str = "the message is over the limit of JSON messages";

/// The error response to text that is not a valid message.
pub(crate) fn invalid_message_error(text: &str, invalid: &EnvelopeError) -> String {
    match invalid {
        EnvelopeError::Parse => parse_error(&why_not_json(text)),
        EnvelopeError::Invalid { why, id } => {
            let id = id.clone().map_or("null", |id| &text[id]);
            error(id, code::INVALID, "Invalid request", Some(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_message() {
        let line = "\u{feff}{\"id\":1}";
        let decoded = LineDecoder::default().decode(Line::Whole(line.as_bytes()));
        assert_eq!(decoded, MessageLine::Text(r#"{"id":1}"#));
    }

    #[test]
    fn only_the_ranges_change() {
        let text = r#"{"id": 7, "t": "x"}"#;
        assert_eq!(splice(text, &mut []).concat(), text);
        assert_eq!(
            splice(text, &mut [(15..18, "1"), (7..8, "\"seven\"")]).concat(),
            r#"{"id": "seven", "t": 1}"#
        );
    }
}
