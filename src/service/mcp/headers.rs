//! The header fields of a request of revision 2026-07-28 that mirror its body ("Server Validation"): the method, the name, and the
//! parameters that the tools of a server mark with `x-mcp-header` in their input schema ("Custom Headers from Tool Parameters").

use std::borrow::Cow;
use std::ops::Range;

use super::http_error::HttpError;
use crate::Request;
use crate::service::json::unescape;
use crate::service::jsonrpc::Envelope;
use crate::service::mcp_tools::Mirrored;
pub(crate) use crate::service::mcp_tools::Tools;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

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
        check_parameters(
            tools,
            request,
            &name,
            text,
            envelope.of_body("arguments").as_ref(),
        )?;
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

/// Compares the fields of a call with its arguments.
fn check_parameters(
    tools: &Tools,
    request: &Request<'_>,
    tool: &str,
    text: &str,
    arguments: Option<&Range<usize>>,
) -> Result<(), HttpError> {
    for Mirrored { field, path, value } in tools.mirrored(tool, text, arguments) {
        let header = sole_header(request, field)?;
        match (header, value) {
            (None, None) => {}
            (Some(header), Some(value)) => {
                let header = decode(field, header)?;
                if !is_equal(&header, value) {
                    return Err(HttpError::header_mismatch(format!(
                        "Header mismatch: {field} differs from the argument {:?}",
                        path.join(".")
                    )));
                }
            }
            (None, Some(_)) => {
                let argument = path.join(".");
                return Err(HttpError::header_mismatch(format!(
                    "Header mismatch: {field} is missing, but the argument {argument:?} is present"
                )));
            }
            (Some(_), None) => {
                let argument = path.join(".");
                return Err(HttpError::header_mismatch(format!(
                    "Header mismatch: {field} is present, but the argument {argument:?} is missing"
                )));
            }
        }
    }
    Ok(())
}

/// Whether a field has the value of an argument. Numbers are compared as numbers.
fn is_equal(header: &str, value: &str) -> bool {
    if value.starts_with('"') {
        return header == unescape(value);
    }
    if matches!(value, "true" | "false") {
        return header == value;
    }
    match (header.parse::<f64>(), value.parse::<f64>()) {
        (Ok(header), Ok(value)) => header == value,
        _ => false,
    }
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

    const LIST: &str = r#"{"tools":[{"name":"q","inputSchema":{"properties":{
        "region":{"type":"string","x-mcp-header":"Region"},
        "at":{"properties":{"row":{"type":"integer","x-mcp-header":"Row"}}}}}}]}"#;

    fn check(tools: &Tools, fields: &str, arguments: &str) -> bool {
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let request = Request::parse(head.as_bytes()).expect("a request");
        check_parameters(tools, &request, "q", arguments, Some(&(0..arguments.len()))).is_ok()
    }

    #[test]
    fn a_field_must_have_the_value_of_its_argument() {
        let mut tools = Tools::default();
        assert!(check(&tools, "", r#"{"region":"a"}"#), "nothing is known");
        tools.learn(LIST);
        for (fields, arguments, is_right) in [
            ("Mcp-Param-Region: a\r\n", r#"{"region":"a"}"#, true),
            (
                "mcp-param-region: =?base64?w6k=?=\r\n",
                r#"{"region":"\u00e9"}"#,
                true,
            ),
            ("Mcp-Param-Region: b\r\n", r#"{"region":"a"}"#, false),
            ("", r#"{"region":"a"}"#, false),
            ("Mcp-Param-Region: a\r\n", "{}", false),
            ("", r#"{"region":null}"#, true),
            ("", "{}", true),
            ("Mcp-Param-Row: 42.0\r\n", r#"{"at":{"row":42}}"#, true),
            ("Mcp-Param-Row: 41\r\n", r#"{"at":{"row":42}}"#, false),
            (
                "Mcp-Param-Region: =?base64?!?=\r\n",
                r#"{"region":"a"}"#,
                false,
            ),
            (
                "Mcp-Param-Region: a\r\nMcp-Param-Region: a\r\n",
                r#"{"region":"a"}"#,
                false,
            ),
            ("Mcp-Param-Other: x\r\n", "{}", true),
        ] {
            assert_eq!(
                check(&tools, fields, arguments),
                is_right,
                "{fields:?} {arguments}"
            );
        }
        tools.learn(&LIST.replace("x-mcp-header", "x-other"));
        assert!(
            check(&tools, "", r#"{"region":"a"}"#),
            "the annotation is gone"
        );
    }

    #[test]
    fn a_tool_with_invalid_annotations_is_not_checked() {
        for (from, to) in [
            ("\"Row\"", "\"region\""),
            ("\"Row\"", "\"\""),
            ("\"Row\"", "\"a b\""),
        ] {
            let mut tools = Tools::default();
            tools.learn(&LIST.replace(from, to));
            assert!(check(&tools, "", r#"{"region":"a"}"#), "{to}");
        }
    }
}
