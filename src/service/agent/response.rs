//! Responses of the router itself, and edits to those of the agent that keep all other bytes.

use crate::service::jsonrpc::{Envelope, MessageKind, code, error, insert_member, member};

/// Sets `result._meta.outrigger` in a response of the agent.
pub(super) fn with_meta(envelope: &Envelope<'_>, outrigger: &str) -> String {
    let text = envelope.text;
    let field = format!(r#""outrigger":{outrigger}"#);
    match (&envelope.body, &envelope.meta, &envelope.kind) {
        (Some(_), Some(meta), _) if text.as_bytes()[meta.start] == b'{' => {
            match member(text, meta, "outrigger") {
                // The name is reserved for Outrigger, so the agent's value is replaced.
                Some(value) => {
                    let field_value = &field[r#""outrigger":"#.len()..];
                    [&text[..value.start], field_value, &text[value.end..]].concat()
                }
                None => insert_member(text, meta, &field),
            }
        }
        (Some(_), Some(meta), _) => {
            [&text[..meta.start], "{", &field, "}", &text[meta.end..]].concat()
        }
        (Some(body), None, _) => insert_member(text, body, &format!(r#""_meta":{{{field}}}"#)),
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
