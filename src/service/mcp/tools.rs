//! The parameters of tools that clients mirror in header fields: `x-mcp-header` in a tool's input schema (revision 2026-07-28,
//! "Custom Headers from Tool Parameters").

use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;

use super::headers::{decode, sole_header};
use super::http_error::HttpError;
use crate::Request;
use crate::service::json::unescape;
use crate::service::jsonrpc::member;

/// The name of the annotation.
const ANNOTATION: &str = "x-mcp-header";

/// The maximum number of tools with annotations, and of annotations of one tool. Others are not checked.
const MAX_TOOLS: usize = 4096;
const MAX_PARAMETERS: usize = 64;

/// The maximum length of all names and paths that are kept.
const MAX_BYTES: usize = 1 << 20;

/// The deepest nesting of properties that is searched for annotations.
const MAX_DEPTH: usize = 16;

/// A parameter with an annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MirroredParameter {
    /// The name of the field: `Mcp-Param-` and the annotation.
    field: String,
    /// The keys that lead to the value in the arguments.
    path: Vec<String>,
}

/// What is known of the tools of a server.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    parameters: HashMap<String, Vec<MirroredParameter>>,
    /// The length of all names and paths.
    bytes: usize,
}

impl Tools {
    /// Learns the tools in the result of `tools/list`.
    pub(crate) fn learn(&mut self, result: &str) {
        if self.parameters.is_empty() && !result.contains(ANNOTATION) {
            return;
        }
        let Ok(result) = serde_json::from_str::<Value>(result) else {
            return;
        };
        for tool in result["tools"].as_array().into_iter().flatten() {
            let Some(name) = tool["name"].as_str() else {
                continue;
            };
            let mut found = Vec::new();
            collect(&tool["inputSchema"], &mut Vec::new(), &mut found);
            if let Some(known) = self.parameters.remove(name) {
                self.bytes -= cost(name, &known);
            }
            let cost = cost(name, &found);
            if found.is_empty() || !is_valid(&found) {
                continue;
            }
            if self.parameters.len() >= MAX_TOOLS || cost > MAX_BYTES - self.bytes {
                log::warn!("the Mcp-Param fields of further tools are not checked");
                return;
            }
            self.bytes += cost;
            self.parameters.insert(name.to_owned(), found);
        }
    }

    /// Compares the fields of a call with its arguments.
    pub(super) fn check(
        &self,
        request: &Request<'_>,
        tool: &str,
        text: &str,
        arguments: Option<&Range<usize>>,
    ) -> Result<(), HttpError> {
        let parameters = self.parameters.get(tool).into_iter().flatten();
        for MirroredParameter { field, path } in parameters {
            let value = arguments.and_then(|arguments| value_at(text, arguments, path));
            let value = value.filter(|value| *value != "null");
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
}

/// The length of a tool's names and paths.
fn cost(name: &str, parameters: &[MirroredParameter]) -> usize {
    let of_parameter = |parameter: &MirroredParameter| {
        let path: usize = parameter.path.iter().map(String::len).sum();
        parameter.field.len() + path
    };
    name.len() + parameters.iter().map(of_parameter).sum::<usize>()
}

/// Collects the annotated properties of a schema that can be reached by `properties` alone.
fn collect(schema: &Value, path: &mut Vec<String>, found: &mut Vec<MirroredParameter>) {
    if path.len() >= MAX_DEPTH {
        return;
    }
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        path.push(key.clone());
        if let Some(name) = property[ANNOTATION].as_str()
            && found.len() < MAX_PARAMETERS
        {
            found.push(MirroredParameter {
                field: format!("Mcp-Param-{name}"),
                path: path.clone(),
            });
        }
        collect(property, path, found);
        path.pop();
    }
}

/// Whether the annotations of a tool are valid. Clients do not see a tool with invalid ones.
fn is_valid(parameters: &[MirroredParameter]) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let mut names: Vec<String> = parameters
        .iter()
        .map(|parameter| parameter.field.to_ascii_lowercase())
        .collect();
    names.sort_unstable();
    let is_unique = names.windows(2).all(|pair| pair[0] != pair[1]);
    let is_named = |parameter: &MirroredParameter| {
        let name = &parameter.field["Mcp-Param-".len()..];
        !name.is_empty() && name.bytes().all(is_token)
    };
    is_unique && parameters.iter().all(is_named)
}

/// The value at a path of keys, as written.
fn value_at<'a>(text: &'a str, arguments: &Range<usize>, path: &[String]) -> Option<&'a str> {
    let mut value = arguments.clone();
    for key in path {
        value = member(text, &value, key)?;
    }
    Some(&text[value])
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

    const LIST: &str = r#"{"tools":[{"name":"q","inputSchema":{"properties":{
        "region":{"type":"string","x-mcp-header":"Region"},
        "at":{"properties":{"row":{"type":"integer","x-mcp-header":"Row"}}}}}}]}"#;

    fn check(tools: &Tools, fields: &str, arguments: &str) -> bool {
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let request = Request::parse(head.as_bytes()).expect("a request");
        tools
            .check(&request, "q", arguments, Some(&(0..arguments.len())))
            .is_ok()
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
