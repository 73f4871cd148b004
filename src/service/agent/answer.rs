//! Answers: those that are made here, and those of the agent with something exchanged in their own bytes.

use super::envelope::{Envelope, EnvelopeError, Kind, member};
use super::json::{Skimmer, quote};

/// Error codes, beside those of JSON-RPC 2.0 itself.
pub(super) mod code {
    pub(in crate::service::agent) const PARSE: i32 = -32700;
    pub(in crate::service::agent) const INVALID: i32 = -32600;
    pub(in crate::service::agent) const NO_METHOD: i32 = -32601;
    pub(in crate::service::agent) const INTERNAL: i32 = -32603;
    pub(in crate::service::agent) const CANCELLED: i32 = -32800;
    pub(in crate::service::agent) const NOT_FOUND: i32 = -32002;
    pub(in crate::service::agent) const DENIED: i32 = -32010;
    pub(in crate::service::agent) const EXITED: i32 = -32012;
    pub(in crate::service::agent) const TOO_MANY: i32 = -32013;
    pub(in crate::service::agent) const STOPPING: i32 = -32015;
}

/// A response of the agent with the id put back. The text is one of ours or was walked over before.
pub(super) fn with_id(text: &str, id: &str) -> String {
    let whole = 0..text.len();
    match member(text, &whole, "id") {
        Some(range) => [&text[..range.start], id, &text[range.end..]].concat(),
        None => text.to_owned(),
    }
}

/// The agent's answer with `result._meta.outrigger.resumeToken` put in.
pub(super) fn with_resume_token(envelope: &Envelope<'_>, token: &str) -> String {
    let text = envelope.text;
    let ours = format!(r#""outrigger":{{"resumeToken":"{token}"}}"#);
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
                // The agent has no business there.
                Some(value) => {
                    let value_of_ours = &ours[r#""outrigger":"#.len()..];
                    [&text[..value.start], value_of_ours, &text[value.end..]].concat()
                }
                None => insert(meta, &ours),
            }
        }
        (Some(_), Some(meta), _) => {
            [&text[..meta.start], "{", &ours, "}", &text[meta.end..]].concat()
        }
        (Some(body), None, _) => insert(body, &format!(r#""_meta":{{{ours}}}"#)),
        // `session/load` may be answered with null: there is nothing else to keep.
        (
            None,
            _,
            Kind::Response {
                result: Some(result),
                ..
            },
        ) if &text[result.clone()] == "null" => [
            &text[..result.start],
            &format!(r#"{{"_meta":{{{ours}}}}}"#),
            &text[result.end..],
        ]
        .concat(),
        _ => text.to_owned(),
    }
}

/// The answer to a message that is none.
pub(super) fn refusal_of(text: &str, invalid: &EnvelopeError) -> String {
    match invalid {
        EnvelopeError::Parse => error("null", code::PARSE, "Parse error", None),
        EnvelopeError::Invalid { why, id } => {
            let id = id.clone().map_or("null", |id| &text[id]);
            error(id, code::INVALID, "Invalid request", Some(why))
        }
    }
}

/// What the agent is told in place of a client that is not there.
pub(super) fn answer_for_nobody(id: &str, permission: bool) -> String {
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

/// An error response, always with data.
pub(super) fn error(id: &str, code: i32, message: &str, why: Option<&str>) -> String {
    let data = why.map_or_else(|| "null".to_owned(), quote);
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{message}","data":{data}}}}}"#
    )
}
