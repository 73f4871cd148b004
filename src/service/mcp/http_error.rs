//! Why a request is answered with an error: an HTTP status with a JSON-RPC error as its body.

use std::borrow::Cow;

use super::versions::{SESSION_VERSIONS, STATELESS};
use crate::service::json::quote;
use crate::{Response, StatusCode};

/// Error codes of JSON-RPC 2.0, and those of MCP revision 2026-07-28 (its page "Overview", section "Error Codes").
pub(super) mod code {
    pub(in crate::service::mcp) const PARSE: i32 = -32700;
    pub(in crate::service::mcp) const INVALID_REQUEST: i32 = -32600;
    pub(in crate::service::mcp) const INVALID_PARAMS: i32 = -32602;
    pub(in crate::service::mcp) const METHOD_NOT_FOUND: i32 = -32601;
    pub(in crate::service::mcp) const INTERNAL: i32 = -32603;
    /// The code that the SDKs use for an unknown session.
    pub(in crate::service::mcp) const SESSION_NOT_FOUND: i32 = -32001;
    pub(in crate::service::mcp) const HEADER_MISMATCH: i32 = -32020;
    pub(in crate::service::mcp) const MISSING_CAPABILITY: i32 = -32021;
    pub(in crate::service::mcp) const UNSUPPORTED_VERSION: i32 = -32022;
}

/// The fields of answers that a page of another origin may read.
pub(super) const EXPOSED: (&str, &str) = (
    "Access-Control-Expose-Headers",
    "Mcp-Session-Id, Retry-After, WWW-Authenticate",
);

/// A JSON-RPC error response. `data` is a text for debugging.
pub(super) fn error(id: &str, code: i32, message: &str, data: Option<&str>) -> String {
    let data = data.map_or_else(String::new, |data| format!(r#","data":{}"#, quote(data)));
    let message = quote(message);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}{data}}}}}"#)
}

/// Why a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpError {
    pub(super) status: StatusCode,
    pub(super) code: i32,
    pub(super) message: Cow<'static, str>,
    /// `data` as JSON.
    data: Option<String>,
    /// The id of the request, as written.
    id: Option<String>,
}

impl HttpError {
    pub(super) fn new(
        status: StatusCode,
        code: i32,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            data: None,
            id: None,
        }
    }

    /// 400 with the code of an invalid request.
    pub(super) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::INVALID_REQUEST, message)
    }

    /// A header field is missing, malformed, or differs from the body.
    pub(super) fn header_mismatch(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::HEADER_MISMATCH, message)
    }

    /// The protocol version is not one of those that are supported.
    pub(super) fn unsupported_version(requested: &str, supports_stateless: bool) -> Self {
        let stateless = supports_stateless.then_some(STATELESS);
        let supported: Vec<&str> = stateless.into_iter().chain(SESSION_VERSIONS).collect();
        let data = serde_json::json!({"supported": supported, "requested": requested});
        Self {
            data: Some(data.to_string()),
            ..Self::new(
                StatusCode::BAD_REQUEST,
                code::UNSUPPORTED_VERSION,
                "Unsupported protocol version",
            )
        }
    }

    /// The session does not exist, has ended, or belongs to somebody else.
    pub(super) fn no_session() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            code::SESSION_NOT_FOUND,
            "Session not found",
        )
    }

    /// 406: the answer is a stream of events, which the client does not accept.
    pub(super) fn events_required() -> Self {
        Self::new(
            StatusCode::NOT_ACCEPTABLE,
            code::INVALID_REQUEST,
            "Accept must allow text/event-stream",
        )
    }

    /// The client asks for the events after one that is not known.
    pub(super) fn unknown_event() -> Self {
        Self::invalid("Last-Event-ID is unknown or no longer kept")
    }

    /// 503: the process has too much unread input.
    pub(super) fn not_reading() -> Self {
        Self::unavailable("The MCP server does not read its input")
    }

    /// 503: the client should try again.
    pub(super) fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNAVAILABLE, code::INTERNAL, message)
    }

    /// Adds the id of the request, as written.
    pub(super) fn with_id(self, id: &str) -> Self {
        Self {
            id: Some(id.to_owned()),
            ..self
        }
    }

    /// The JSON-RPC error. In revision 2026-07-28, an error without an id has no `id` member; before, the id is `null`.
    pub(super) fn to_json(&self, is_stateless: bool) -> String {
        let id = match (&self.id, is_stateless) {
            (Some(id), _) => format!(r#""id":{id},"#),
            (None, true) => String::new(),
            (None, false) => r#""id":null,"#.to_owned(),
        };
        let data = self.data.as_ref();
        let data = data.map_or_else(String::new, |data| format!(r#","data":{data}"#));
        let (code, message) = (self.code, quote(&self.message));
        format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":{code},"message":{message}{data}}}}}"#)
    }

    /// The response with the error.
    pub(super) fn to_response(&self, is_stateless: bool) -> Response {
        let response = Response::json(self.status, self.to_json(is_stateless));
        let response = response.field(EXPOSED.0, EXPOSED.1);
        match self.status {
            StatusCode::UNAVAILABLE => response.field("Retry-After", "1"),
            StatusCode::METHOD_NOT_ALLOWED if is_stateless => response.field("Allow", "POST"),
            StatusCode::METHOD_NOT_ALLOWED => response.field("Allow", "GET, POST, DELETE"),
            _ => response,
        }
    }
}
