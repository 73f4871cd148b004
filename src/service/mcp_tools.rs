//! What the tools of an MCP server say about their parameters: which of them a client repeats in header fields, since revision 2026-07-28
//! ("Custom Headers from Tool Parameters"). The server checks the fields, and the client writes them.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;

use super::jsonrpc::member;

/// The name of the annotation.
const ANNOTATION: &str = "x-mcp-header";

/// The maximum number of tools with annotations, and of annotations of one tool. Others are ignored.
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
                log::warn!("the Mcp-Param fields of further tools are ignored");
                return;
            }
            self.bytes += cost;
            self.parameters.insert(name.to_owned(), found);
        }
    }

    /// The marked parameters of a call, with the values that it gives them.
    pub(crate) fn mirrored<'a>(
        &'a self,
        tool: &str,
        text: &'a str,
        arguments: Option<&'a Range<usize>>,
    ) -> impl Iterator<Item = Mirrored<'a>> {
        let parameters = self.parameters.get(tool).into_iter().flatten();
        parameters.map(move |MirroredParameter { field, path }| {
            let value = arguments.and_then(|arguments| value_at(text, arguments, path));
            let value = value.filter(|value| *value != "null");
            Mirrored { field, path, value }
        })
    }
}

/// A marked parameter in a call.
#[derive(Debug)]
pub(crate) struct Mirrored<'a> {
    /// The name of the field.
    pub(crate) field: &'a str,
    /// The keys that lead to the value in the arguments.
    #[cfg_attr(
        not(feature = "mcp"),
        expect(dead_code, reason = "for a server's errors")
    )]
    pub(crate) path: &'a [String],
    /// The value as JSON. `None` if there is none, or if it is null.
    pub(crate) value: Option<&'a str>,
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
