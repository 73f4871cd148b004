//! JSON-RPC responses: errors that Outrigger sends itself, and edits to the agent's responses that keep all other bytes.

use super::envelope::{Envelope, EnvelopeError, MessageKind, member};
use crate::service::json::{Skimmer, quote, why_not_json};

/// Error codes of JSON-RPC 2.0, of the Agent Client Protocol, and of Outrigger.
pub(in crate::service) mod code {
    pub(in crate::service) const PARSE: i32 = -32700;
    pub(in crate::service) const INVALID: i32 = -32600;
    pub(in crate::service) const NO_METHOD: i32 = -32601;
    pub(in crate::service) const PARAMS: i32 = -32602;
    pub(in crate::service) const INTERNAL: i32 = -32603;
    pub(in crate::service) const CANCELLED: i32 = -32800;
    pub(in crate::service) const NOT_FOUND: i32 = -32002;
    pub(in crate::service) const DENIED: i32 = -32010;
    pub(in crate::service) const EXITED: i32 = -32012;
    pub(in crate::service) const TOO_MANY: i32 = -32013;
    pub(in crate::service) const TIMED_OUT: i32 = -32014;
    pub(in crate::service) const STOPPING: i32 = -32015;
    pub(in crate::service) const CONNECTION_LOST: i32 = -32016;
}

/// Replaces the id of a response. The text must be a valid message.
pub(in crate::service) fn with_id(text: &str, id: &str) -> String {
    let whole = 0..text.len();
    match member(text, &whole, "id") {
        Some(range) => [&text[..range.start], id, &text[range.end..]].concat(),
        None => text.to_owned(),
    }
}

/// Sets `result._meta.outrigger` in a response of the agent.
pub(super) fn with_meta(envelope: &Envelope<'_>, outrigger: &str) -> String {
    let text = envelope.text;
    let field = format!(r#""outrigger":{outrigger}"#);
    let is_empty = |object: &std::ops::Range<usize>| {
        Skimmer::new(&text[object.start + 1..object.end]).peek() == Some(b'}')
    };
    let insert = |object: &std::ops::Range<usize>, member: &str| {
        let comma = if is_empty(object) { "" } else { "," };
        let at = object.start + 1;
        [&text[..at], member, comma, &text[at..]].concat()
    };
    match (&envelope.body, &envelope.meta, &envelope.kind) {
        (Some(_), Some(meta), _) if text.as_bytes()[meta.start] == b'{' => {
            match member(text, meta, "outrigger") {
                // The name is reserved for Outrigger, so the agent's value is replaced.
                Some(value) => {
                    let field_value = &field[r#""outrigger":"#.len()..];
                    [&text[..value.start], field_value, &text[value.end..]].concat()
                }
                None => insert(meta, &field),
            }
        }
        (Some(_), Some(meta), _) => {
            [&text[..meta.start], "{", &field, "}", &text[meta.end..]].concat()
        }
        (Some(body), None, _) => insert(body, &format!(r#""_meta":{{{field}}}"#)),
        // The result of `session/load` may be null.
        (
            None,
            _,
            MessageKind::Response {
                result: Some(result),
                ..
            },
        ) if &text[result.clone()] == "null" => [
            &text[..result.start],
            &format!(r#"{{"_meta":{{{field}}}}}"#),
            &text[result.end..],
        ]
        .concat(),
        _ => text.to_owned(),
    }
}

/// The error response to a message that is not JSON.
pub(in crate::service) fn parse_error(why: &str) -> String {
    error("null", code::PARSE, "Parse error", Some(why))
}
/// Why a client's message is refused that is over [`Config::max_json`](crate::Config::max_json).
pub(in crate::service) const TOO_LONG: &str = "the message is over the limit of JSON messages";

/// The error response to text that is not a valid message.
pub(in crate::service) fn invalid_message_error(text: &str, invalid: &EnvelopeError) -> String {
    match invalid {
        EnvelopeError::Parse => parse_error(&why_not_json(text)),
        EnvelopeError::Invalid { why, id } => {
            let id = id.clone().map_or("null", |id| &text[id]);
            error(id, code::INVALID, "Invalid request", Some(why))
        }
    }
}

/// The response to a request of the agent whose client has disconnected.
pub(super) fn client_gone(id: &str, permission: bool) -> String {
    if permission {
        return [
            r#"{"jsonrpc":"2.0","id":"#,
            id,
            r#","result":{"outcome":{"outcome":"cancelled"}}}"#,
        ]
        .concat();
    }
    error(id, code::CANCELLED, "Client disconnected", None)
}

/// An error response. It always has `data`.
pub(in crate::service) fn error(id: &str, code: i32, message: &str, why: Option<&str>) -> String {
    let data = why.map_or_else(|| "null".to_owned(), quote);
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{message}","data":{data}}}}}"#
    )
}
