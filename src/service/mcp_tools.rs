//! What the tools of an MCP server say about their parameters: which of them a client repeats in header fields, since revision 2026-07-28
//! ("Custom Headers from Tool Parameters"). The server checks the fields, and the client writes them.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;

#[cfg(feature = "client")]
use super::json::Skimmer;
use super::jsonrpc::member;
#[cfg(feature = "client")]
use super::jsonrpc::splice;
use crate::record::record;

/// The name of the annotation.
const ANNOTATION: &str = "x-mcp-header";

/// The maximum number of tools with annotations, others of which are ignored, and of annotations of one tool.
const MAX_TOOLS: usize = 4096;
const MAX_PARAMETERS: usize = 64;

/// The maximum length of all names and paths that are kept.
const MAX_BYTES: usize = 1 << 20;

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

record!(MirroredParameter { field, path });
record!(Tools { parameters, bytes });

/// A tool whose annotations are invalid. A client must not use it.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "client"),
    expect(dead_code, reason = "for a client's list")
)]
pub(crate) struct Rejected {
    /// Its place in the list.
    place: usize,
    name: String,
    why: &'static str,
}

impl Tools {
    /// Learns the tools in the result of `tools/list`. Returns those whose annotations are invalid, of which nothing is known.
    pub(crate) fn learn(&mut self, result: &str) -> Vec<Rejected> {
        let mut rejected = Vec::new();
        // The name of the annotation may be escaped.
        let may_have = result.contains(ANNOTATION) || result.contains("\\u");
        if self.parameters.is_empty() && !may_have {
            return rejected;
        }
        let Ok(result) = serde_json::from_str::<Value>(result) else {
            return rejected;
        };
        let tools = result["tools"].as_array().into_iter().flatten();
        for (place, tool) in tools.enumerate() {
            let Some(name) = tool["name"].as_str() else {
                continue;
            };
            if let Some(known) = self.parameters.remove(name) {
                self.bytes -= cost(name, &known);
            }
            let mut found = Vec::new();
            if let Err(why) = collect(&tool["inputSchema"], true, &mut Vec::new(), &mut found) {
                let name = name.to_owned();
                rejected.push(Rejected { place, name, why });
                continue;
            }
            let cost = cost(name, &found);
            if found.is_empty() {
                continue;
            }
            if self.parameters.len() >= MAX_TOOLS || cost > MAX_BYTES - self.bytes {
                log::warn!("the Mcp-Param fields of further tools are ignored");
                continue;
            }
            self.bytes += cost;
            self.parameters.insert(name.to_owned(), found);
        }
        rejected
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

/// Collects the annotated properties of a schema that can be reached by `properties` alone. `path` leads to the schema.
///
/// # Errors
///
/// An annotation is invalid.
fn collect(
    schema: &Value,
    is_reachable: bool,
    path: &mut Vec<String>,
    found: &mut Vec<MirroredParameter>,
) -> Result<(), &'static str> {
    let Some(members) = schema.as_object() else {
        return Ok(());
    };
    if let Some(name) = members.get(ANNOTATION) {
        if !is_reachable || path.is_empty() {
            return Err("is not on a parameter to which only \"properties\" lead");
        }
        let kind = members.get("type").and_then(Value::as_str);
        if !matches!(kind, Some("string" | "integer" | "boolean")) {
            return Err("is on a parameter that is no string, integer or boolean");
        }
        let name = name.as_str().filter(|name| is_token(name));
        let field = format!("Mcp-Param-{}", name.ok_or("is not the name of a field")?);
        let mut others = found.iter();
        if others.any(|other| other.field.eq_ignore_ascii_case(&field)) {
            return Err("occurs twice");
        }
        if found.len() == MAX_PARAMETERS {
            return Err("is on too many parameters");
        }
        let path = path.clone();
        found.push(MirroredParameter { field, path });
    }
    for (key, value) in members {
        match (&**key, value) {
            // These are values, not schemas.
            ("const" | "default" | "enum" | "examples", _) => {}
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    path.push(name.clone());
                    collect(property, is_reachable, path, found)?;
                    path.pop();
                }
            }
            ("$defs" | "definitions" | "patternProperties" | "dependentSchemas", value) => {
                let schemas = value.as_object().into_iter().flatten();
                for (_, schema) in schemas {
                    collect(schema, false, path, found)?;
                }
            }
            (_, Value::Array(schemas)) => {
                for schema in schemas {
                    collect(schema, false, path, found)?;
                }
            }
            (_, schema) => collect(schema, false, path, found)?,
        }
    }
    Ok(())
}

/// Whether a name is a token of RFC 9110.
fn is_token(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_part)
}

/// The result of `tools/list` without these tools, each of which is logged. `None` if there are none.
#[cfg(feature = "client")]
pub(crate) fn without(result: &str, rejected: &[Rejected]) -> Option<String> {
    for Rejected { name, why, .. } in rejected {
        log::warn!("the tool {name:.100?} is left out, because its {ANNOTATION} {why}");
    }
    let list = member(result, &(0..result.len()), "tools").filter(|_| !rejected.is_empty())?;
    let (mut kept, mut place) = (Vec::new(), 0);
    let _ = Skimmer::at(result, &list).array(|range: Range<usize>| {
        if rejected.iter().all(|one| one.place != place) {
            kept.push(&result[range]);
        }
        place += 1;
    });
    let kept = format!("[{}]", kept.join(","));
    Some(splice(result, &mut [(list, &kept)]).concat())
}

/// The value at a path of keys, as written.
fn value_at<'a>(text: &'a str, arguments: &Range<usize>, path: &[String]) -> Option<&'a str> {
    let mut value = arguments.clone();
    for key in path {
        value = member(text, &value, key)?;
    }
    Some(&text[value])
}

#[cfg(all(test, feature = "client"))]
mod tests {
    use super::*;

    /// A tool whose schema has these properties, and other members.
    fn tool(name: &str, properties: &str, other: &str) -> String {
        format!(
            r#"{{"name":"{name}","inputSchema":{{"type":"object","properties":{{{properties}}}{other}}}}}"#
        )
    }

    #[test]
    fn a_tool_with_an_invalid_annotation_is_left_out_of_the_list() {
        let region = r#""r":{"type":"string","x-mcp-header":"Region"}"#;
        let nested = format!(r#""n":{{"type":"object","properties":{{{region}}}}}"#);
        let data =
            r#""d":{"type":"object","default":{"x-mcp-header":1}},"x-mcp-header":{"type":"array"}"#;
        for properties in [region, &nested, data, ""] {
            let mut tools = Tools::default();
            let list = format!(r#"{{"tools":[{}]}}"#, tool("t", properties, ""));
            assert!(tools.learn(&list).is_empty(), "{properties}");
        }
        let twice = format!(r#"{region},"s":{{"type":"integer","x-mcp-header":"REGION"}}"#);
        let invalid = [
            region.replace("Region", ""),
            region.replace("Region", "a b"),
            region.replace("Region", "a\\r\\nb"),
            region.replace("\"Region\"", "7"),
            region.replace("string", "number"),
            region.replace("\"type\":\"string\",", ""),
            region.replace("x-mcp-header\":\"Region", "x\\u002dmcp-header\":\"a b"),
            twice,
            format!(r#""a":{{"type":"array","items":{{"properties":{{{region}}}}}}}"#),
            format!(r#""a":{{"anyOf":[{{"properties":{{{region}}}}}]}}"#),
        ];
        let invalid = invalid.iter().map(|properties| tool("t", properties, ""));
        let others = [
            r#","x-mcp-header":"Root""#,
            r#","$defs":{"a":{"x-mcp-header":"A"}}"#,
        ];
        for one in invalid.chain(others.map(|other| tool("t", "", other))) {
            let (first, last) = (tool("first", region, ""), tool("last", "", ""));
            let list = format!(r#"{{"nextCursor":"c","tools":[{first}, {one} ,{last}]}}"#);
            let mut tools = Tools::default();
            let rejected = tools.learn(&list);
            let want = format!(r#"{{"nextCursor":"c","tools":[{first},{last}]}}"#);
            assert_eq!(without(&list, &rejected), Some(want), "{one}");
            assert_eq!(tools.parameters.len(), 1);
        }
        assert_eq!(without("{}", &[]), None);
    }
}
