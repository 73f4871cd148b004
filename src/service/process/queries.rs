//! Reads the query parameters and header fields of requests.

use super::attach::{Replay, Role};
use super::dialect::Dialect;
use super::fields::bad_request;
use super::screen::Format;
use crate::sys::TerminalSize;
use crate::{Rejection, Request};

/// The terminal size in the query of a request.
pub(crate) fn size_of(request: &Request<'_>) -> Result<TerminalSize, Rejection> {
    let read = |name: &str, usual: u16| {
        let Some(text) = request.parameters(name).last() else {
            return Ok(usual);
        };
        let number: Option<u16> = text.parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| bad_request(format!("'{name}' is not a number from 1 to 65535")))
    };
    let usual = TerminalSize::default();
    Ok(TerminalSize {
        rows: read("rows", usual.rows)?,
        cols: read("cols", usual.cols)?,
    })
}

/// A parameter of a request's query that is 0 or 1.
pub(super) fn switch(request: &Request<'_>, name: &str) -> Result<bool, Rejection> {
    match request.parameters(name).last().as_deref() {
        None | Some("0" | "false") => Ok(false),
        Some("1" | "true") => Ok(true),
        Some(_) => Err(bad_request(format!("'{name}' is not 0 or 1"))),
    }
}

/// The query of an attach request.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttachQuery {
    pub(super) role: Role,
    pub(super) takeover: bool,
    /// The new size of the terminal, if the client sends one.
    pub(super) size: Option<TerminalSize>,
}

impl AttachQuery {
    /// Whether the client only reads.
    pub(super) fn is_viewer(request: &Request<'_>) -> bool {
        Self::read(request).is_ok_and(|query| query.role == Role::Viewer)
    }

    pub(super) fn read(request: &Request<'_>) -> Result<Self, Rejection> {
        let role = match request.parameters("mode").last().as_deref() {
            None | Some("writer") => Role::Writer,
            Some("viewer") => Role::Viewer,
            Some(_) => return Err(bad_request("'mode' is not writer or viewer")),
        };
        let takeover = switch(request, "takeover")?;
        let sized = ["rows", "cols"]
            .iter()
            .any(|name| request.parameters(name).next().is_some());
        Ok(Self {
            role,
            takeover,
            size: sized.then(|| size_of(request)).transpose()?,
        })
    }
}

/// The offset from which a reader wants output, where the output ends at `end`: `since`, or the `Last-Event-ID` of a
/// browser that reconnects.
pub(super) fn since(request: &Request<'_>, end: u64) -> Result<Option<u64>, Rejection> {
    let last = request
        .header("last-event-id")
        .and_then(|value| std::str::from_utf8(value).ok());
    let Some(since) = request.parameters("since").last().or(last.map(Into::into)) else {
        return Ok(None);
    };
    let since = Some(since)
        .filter(|since| since.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|since| since.parse().ok())
        .ok_or_else(|| bad_request("'since' is not an offset"))?;
    if since > end {
        return Err(bad_request("'since' is beyond the output"));
    }
    Ok(Some(since))
}

/// The rows above the screen that a request asks for.
pub(super) fn lines_of(request: &Request<'_>) -> Result<usize, Rejection> {
    let Some(lines) = request.parameters("lines").last() else {
        return Ok(0);
    };
    let number = lines.parse::<u32>().ok();
    number
        .map(|number| number as usize)
        .ok_or_else(|| bad_request("'lines' is not a number"))
}

/// Whether a reader wants the screen in the place of old output, and how many rows above it.
pub(super) fn replay_screen(request: &Request<'_>) -> Result<Option<usize>, Rejection> {
    match request.parameters("replay").last().as_deref() {
        None | Some("output") => Ok(None),
        Some("screen") => lines_of(request).map(Some),
        Some(_) => Err(bad_request("'replay' is not screen or output")),
    }
}

/// A valid attach request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttachRequest {
    pub(super) query: AttachQuery,
    pub(super) dialect: Dialect,
    pub(super) replay: Replay,
    /// Whether the client has given a name, so that it does not know the id.
    pub(super) is_by_name: bool,
}

/// The format of a screen that a request asks for.
pub(super) fn format_of(request: &Request<'_>) -> Result<Format, Rejection> {
    match request.parameters("format").last().as_deref() {
        None | Some("json") => Ok(Format::Json),
        Some("text") => Ok(Format::Text),
        Some("ansi") => Ok(Format::Ansi),
        Some(_) => Err(bad_request("'format' is not json, text or ansi")),
    }
}
