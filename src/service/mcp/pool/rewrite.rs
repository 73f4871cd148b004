//! What the pool changes in messages, and reads from them.

use std::ops::Range;

use crate::StatusCode;
use crate::service::json::{Skimmer, unescape};
use crate::service::jsonrpc::{
    Envelope, SUBSCRIPTION, code, error, error_with, insert_member, member,
};
use crate::service::mcp::versions::STATELESS;

/// A notification with the id of a subscription in `params._meta`.
pub(in crate::service::mcp) fn with_subscription(envelope: &Envelope<'_>, id: &str) -> String {
    let text = envelope.text;
    let field = format!(r#""{SUBSCRIPTION}":{id}"#);
    match (&envelope.meta, &envelope.body) {
        (Some(meta), _) if text[meta.clone()].starts_with('{') => insert_member(text, meta, &field),
        (_, Some(params)) => insert_member(text, params, &format!(r#""_meta":{{{field}}}"#)),
        (_, None) => {
            let whole = 0..text.trim_end().len();
            let start = text.len() - text.trim_start().len();
            insert_member(
                text,
                &(start..whole.end),
                &format!(r#""params":{{"_meta":{{{field}}}}}"#),
            )
        }
    }
}

/// The answer to a request of a shared process: it has no client of its own.
pub(super) fn no_requests(id: &str) -> String {
    error(id, code::NO_METHOD, "Method not found", None)
}

/// The error for a request whose process has exited. `data` is JSON.
pub(in crate::service::mcp) fn server_exited(id: &str, data: &str) -> String {
    error_with(Some(id), code::INTERNAL, "MCP server exited", Some(data))
}

/// The HTTP status of a response, which follows from its error code.
pub(super) fn status_of(text: &str, result: Option<&Range<usize>>) -> StatusCode {
    if result.is_some() {
        return StatusCode::OK;
    }
    match error_code(text) {
        Some(code::NO_METHOD) => StatusCode::NOT_FOUND,
        Some(code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION) => {
            StatusCode::BAD_REQUEST
        }
        _ => StatusCode::OK,
    }
}

fn error_code(text: &str) -> Option<i32> {
    let error = member(text, &(0..text.len()), "error")?;
    text[member(text, &error, "code")?].parse().ok()
}

/// Whether the answer to `server/discover` says that revision 2026-07-28 is supported.
pub(super) fn supports_stateless(text: &str, result: Option<&Range<usize>>) -> bool {
    let versions = match result {
        Some(result) => member(text, result, "supportedVersions"),
        None if error_code(text) == Some(code::UNSUPPORTED_VERSION) => {
            let error = member(text, &(0..text.len()), "error");
            let data = error.and_then(|error| member(text, &error, "data"));
            data.and_then(|data| member(text, &data, "supported"))
        }
        None => None,
    };
    let Some(versions) = versions else {
        return false;
    };
    let mut is_supported = false;
    let _ = Skimmer::at(text, &versions).array(|version| {
        let raw = &text[version];
        is_supported |= raw.starts_with('"') && unescape(raw) == STATELESS;
    });
    is_supported
}
