//! Why a request is answered with an error: an HTTP status with a JSON-RPC error as its body.

use std::borrow::Cow;
use std::ops::Range;

use super::{SESSION_VERSIONS, STATELESS};
use crate::record::record;
use crate::service::jsonrpc::{code, error_with, member, splice};
use crate::{Response, StatusCode};

/// The response fields that pages of other origins may read (CORS).
pub(super) const EXPOSED: (&str, &str) = (
    "Access-Control-Expose-Headers",
    "Mcp-Session-Id, Retry-After, WWW-Authenticate",
);

/// Why a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpError {
    pub(super) status: StatusCode,
    pub(super) code: i32,
    pub(super) message: Cow<'static, str>,
    /// `data` as JSON.
    data: Option<String>,
    /// The id of the request, as written.
    id: Option<String>,
}

record!(HttpError {
    status,
    code,
    message,
    data,
    id,
});

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
        Self::new(StatusCode::BAD_REQUEST, code::INVALID, message)
    }

    /// The process of a request cannot be started.
    pub(super) fn not_started() -> Self {
        Self::unavailable("The MCP server cannot be started")
    }

    /// The same, for the request with this id.
    pub(super) fn cannot_start(id: &str) -> Self {
        Self::not_started().with_id(id)
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

    /// If this error lists the supported revisions, replaces them with those of the program, which are JSON.
    pub(super) fn with_versions(mut self, versions: &str) -> Self {
        let data = self.data.as_deref().unwrap_or_default();
        let listed = member(data, &(0..data.len()), "supported");
        if let (code::UNSUPPORTED_VERSION, Some(listed)) = (self.code, listed) {
            self.data = Some(splice(data, &mut [(listed, versions)]).concat());
        }
        self
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
            code::INVALID,
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
        let without = (!is_stateless).then_some("null");
        let id = self.id.as_deref().or(without);
        error_with(id, self.code, &self.message, self.data.as_deref())
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

/// The error for a request whose process has exited. `data` is JSON.
pub(crate) fn server_exited(id: &str, data: &str) -> String {
    error_with(Some(id), code::INTERNAL, "MCP server exited", Some(data))
}

/// The error for a request whose process cannot be started.
pub(super) fn cannot_start(id: &str) -> String {
    HttpError::cannot_start(id).to_json(false)
}

/// The HTTP status of a response, which follows from its error code.
pub(crate) fn status_of(text: &str, result: Option<&Range<usize>>) -> StatusCode {
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

pub(super) fn error_code(text: &str) -> Option<i32> {
    let error = member(text, &(0..text.len()), "error")?;
    text[member(text, &error, "code")?].parse().ok()
}
