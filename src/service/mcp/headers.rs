//! Compares the header fields of a request of revision 2026-07-28 with its body ("Server Validation").

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::http_error::HttpError;
use super::tools::Tools;
use crate::Request;
use crate::service::json::unescape;
use crate::service::jsonrpc::Envelope;

/// The value of a field. A field that occurs twice is malformed.
pub(super) fn sole_header<'a>(
    request: &Request<'a>,
    name: &str,
) -> Result<Option<&'a [u8]>, HttpError> {
    let mut values = request
        .headers()
        .filter(|(field, _)| field.eq_ignore_ascii_case(name))
        .map(|(_, value)| value);
    let first = values.next();
    if values.next().is_some() {
        let why = format!("Header mismatch: {name} occurs more than once");
        return Err(HttpError::header_mismatch(why));
    }
    Ok(first)
}

/// The value of a field as text, decoded if it is marked as base64 ("Value Encoding").
pub(super) fn decode<'a>(name: &str, value: &'a [u8]) -> Result<Cow<'a, str>, HttpError> {
    let wrong = |why| HttpError::header_mismatch(format!("Header mismatch: {name} {why}"));
    let is_plain = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~');
    let text = std::str::from_utf8(value)
        .ok()
        .filter(|text| text.as_bytes().iter().all(is_plain))
        .ok_or_else(|| wrong("has invalid characters"))?;
    let encoded = text
        .strip_prefix("=?base64?")
        .and_then(|text| text.strip_suffix("?="));
    let Some(encoded) = encoded else {
        return Ok(Cow::Borrowed(text));
    };
    let bytes = BASE64_STANDARD.decode(encoded).ok();
    let decoded = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    decoded
        .map(Cow::Owned)
        .ok_or_else(|| wrong("is not valid base64 of UTF-8"))
}

/// Checks the fields that mirror the body of a request: `Mcp-Method`, `Mcp-Name`, and the parameters of tools.
pub(super) fn check(
    request: &Request<'_>,
    method: &str,
    envelope: &Envelope<'_>,
    tools: &Tools,
) -> Result<(), HttpError> {
    let text = envelope.text;
    let header = sole_header(request, "Mcp-Method")?;
    let header = header.ok_or_else(|| missing("Mcp-Method"))?;
    // Method names are never encoded.
    if header != method.as_bytes() {
        return Err(differs("Mcp-Method", header, method));
    }
    let key = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        _ => return Ok(()),
    };
    let name = envelope
        .of_body(key)
        .map(|range| &text[range])
        .filter(|raw| raw.starts_with('"'))
        .map(unescape);
    let header = sole_header(request, "Mcp-Name")?;
    let header = header.ok_or_else(|| missing("Mcp-Name"))?;
    let Some(name) = name else {
        let why = format!("Header mismatch: Mcp-Name is present, but params.{key} is missing");
        return Err(HttpError::header_mismatch(why));
    };
    if decode("Mcp-Name", header)? != name {
        return Err(differs("Mcp-Name", header, &name));
    }
    if method == "tools/call" {
        tools.check(request, &name, text, envelope.of_body("arguments").as_ref())?;
    }
    Ok(())
}

fn missing(name: &str) -> HttpError {
    HttpError::header_mismatch(format!("Header mismatch: {name} is missing"))
}

fn differs(name: &str, header: &[u8], body: &str) -> HttpError {
    let header = String::from_utf8_lossy(header);
    HttpError::header_mismatch(format!(
        "Header mismatch: {name} is {header:?}, but the body has {body:?}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_values_are_decoded() {
        let decoded = |value: &'static str| decode("X", value.as_bytes()).ok();
        assert_eq!(decoded("us-west1").as_deref(), Some("us-west1"));
        assert_eq!(
            decoded("=?base64?SGVsbG8sIOS4lueVjA==?=").as_deref(),
            Some("Hello, \u{4e16}\u{754c}")
        );
        assert_eq!(
            decoded("=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=").as_deref(),
            Some("=?base64?literal?=")
        );
        assert_eq!(
            decoded("=?BASE64?eA==?=").as_deref(),
            Some("=?BASE64?eA==?=")
        );
        for bad in ["=?base64?*?=", "=?base64?/w==?=", "\u{e9}", "a\u{7f}"] {
            assert_eq!(decoded(bad), None, "{bad:?}");
        }
    }
}
