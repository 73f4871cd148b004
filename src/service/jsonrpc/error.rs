//! Error responses (JSON-RPC 2.0 section 5.1).

use super::envelope::EnvelopeError;
use crate::service::json::{quote, why_not_json};

/// Every error code that Outrigger sends or reads.
pub(in crate::service) mod code {
    // JSON-RPC 2.0.
    pub(in crate::service) const PARSE: i32 = -32700;
    pub(in crate::service) const INVALID: i32 = -32600;
    pub(in crate::service) const NO_METHOD: i32 = -32601;
    pub(in crate::service) const PARAMS: i32 = -32602;
    pub(in crate::service) const INTERNAL: i32 = -32603;

    // The Agent Client Protocol.
    pub(in crate::service) const CANCELLED: i32 = -32800;
    pub(in crate::service) const NOT_FOUND: i32 = -32002;

    // Outrigger, in front of an agent.
    pub(in crate::service) const DENIED: i32 = -32010;
    pub(in crate::service) const EXITED: i32 = -32012;
    pub(in crate::service) const TOO_MANY: i32 = -32013;
    pub(in crate::service) const TIMED_OUT: i32 = -32014;
    pub(in crate::service) const STOPPING: i32 = -32015;
    pub(in crate::service) const CONNECTION_LOST: i32 = -32016;

    #[cfg(feature = "mcp")]
    pub(in crate::service) use super::mcp_code::*;
}

/// Those of the Model Context Protocol, revision 2026-07-28 (its page "Overview", section "Error Codes").
#[cfg(feature = "mcp")]
mod mcp_code {
    pub(in crate::service) const HEADER_MISMATCH: i32 = -32020;
    pub(in crate::service) const MISSING_CAPABILITY: i32 = -32021;
    pub(in crate::service) const UNSUPPORTED_VERSION: i32 = -32022;
    /// The code that the SDKs of the Model Context Protocol use for an unknown session.
    pub(in crate::service) const SESSION_NOT_FOUND: i32 = -32001;
}

/// An error response. `id` is JSON, and `data` is a string for whoever looks for the cause.
pub(in crate::service) fn error(id: &str, code: i32, message: &str, data: Option<&str>) -> String {
    error_with(Some(id), code, message, data.map(quote).as_deref())
}

/// An error response whose `data` is JSON. Without `id`, it has no such member, as the Model Context Protocol asks for since
/// revision 2026-07-28.
pub(in crate::service) fn error_with(
    id: Option<&str>,
    code: i32,
    message: &str,
    data: Option<&str>,
) -> String {
    let id = id.map_or_else(String::new, |id| format!(r#""id":{id},"#));
    let data = data.map_or_else(String::new, |data| format!(r#","data":{data}"#));
    let message = quote(message);
    format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":{code},"message":{message}{data}}}}}"#)
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
