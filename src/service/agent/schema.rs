//! The schema of the Agent Client Protocol, versions 1 and 2: its methods, and the types of the parameters of `initialize` and
//! `session/list`.

use std::ops::Range;

use crate::service::json::Skimmer;
use crate::service::jsonrpc::member;

/// Whether a method is a request or a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MethodKind {
    Request,
    Notification,
    /// The schema has both, or clients send both.
    Either,
}

use MethodKind::{Either, Notification, Request};

/// The kind of a method of either version, of a draft, or of those that Outrigger answers. `None` for any other method.
pub(super) fn kind_of_method(method: &str) -> Option<MethodKind> {
    Some(match method {
        "auth/login"
        | "auth/logout"
        | "authenticate"
        | "elicitation/create"
        | "fs/read_text_file"
        | "fs/write_text_file"
        | "initialize"
        | "logout"
        | "mcp/connect"
        | "mcp/disconnect"
        | "nes/close"
        | "nes/start"
        | "nes/suggest"
        | "providers/disable"
        | "providers/list"
        | "providers/set"
        | "session/attach"
        | "session/close"
        | "session/delete"
        | "session/detach"
        | "session/fork"
        | "session/list"
        | "session/load"
        | "session/new"
        | "session/prompt"
        | "session/request_permission"
        | "session/resume"
        | "session/set_config_option"
        | "session/set_mode"
        | "session/set_model"
        | "terminal/create"
        | "terminal/kill"
        | "terminal/output"
        | "terminal/release"
        | "terminal/wait_for_exit" => Request,
        "document/didChange"
        | "document/didClose"
        | "document/didFocus"
        | "document/didOpen"
        | "document/didSave"
        | "elicitation/complete"
        | "nes/accept"
        | "nes/reject"
        | "session/cancel"
        | "session/update" => Notification,
        "$/cancel_request" | "mcp/message" | "terminal/cancel" | "tool_call/cancel" => Either,
        _ => return None,
    })
}

/// Says why a request or notification of this method is wrong, if the schema has only the other.
pub(super) fn wrong_kind(method: &str, is_request: bool) -> Option<&'static str> {
    match (kind_of_method(method)?, is_request) {
        (Request, false) => Some("this method is a request, and must have an id"),
        (Notification, true) => Some("this method is a notification, and must have no id"),
        _ => None,
    }
}

/// Whether the settings cannot let messages of a method name any session: it is in the schema, or in a group of methods that
/// always name one.
pub(crate) fn has_session_rules(method: &str) -> bool {
    kind_of_method(method).is_some() || needs_session(method)
}

/// Whether a method must name a session.
pub(super) fn needs_session(method: &str) -> bool {
    match method {
        "session/new" | "session/list" | "nes/start" => false,
        _ => ["session/", "nes/", "document/"]
            .iter()
            .any(|prefix| method.starts_with(prefix)),
    }
}

/// The type of a parameter.
#[derive(Debug)]
enum Type {
    Boolean,
    Text,
    Texts,
    /// A protocol version: an integer of 16 bits.
    Version,
    /// An object with these members, and others that are not checked.
    Object(&'static [Field]),
}

/// A member of an object: its name, its type, and whether it may be null. All are optional here, because an agent can answer
/// that one is missing.
type Field = (&'static str, Type, bool);

/// An object without members, with which a capability is declared.
const DECLARED: Type = Type::Object(&[]);

const IMPLEMENTATION: Type = Type::Object(&[
    ("name", Type::Text, false),
    ("title", Type::Text, true),
    ("version", Type::Text, false),
]);

const ELICITATION: Type = Type::Object(&[("form", DECLARED, true), ("url", DECLARED, true)]);

const NES: Type = Type::Object(&[
    ("jump", DECLARED, true),
    ("rename", DECLARED, true),
    ("searchAndReplace", DECLARED, true),
]);

/// The capabilities of a client in version 1.
const CLIENT_CAPABILITIES: Type = Type::Object(&[
    (
        "fs",
        Type::Object(&[
            ("readTextFile", Type::Boolean, false),
            ("writeTextFile", Type::Boolean, false),
        ]),
        false,
    ),
    ("terminal", Type::Boolean, false),
    (
        "session",
        Type::Object(&[
            ("compaction", DECLARED, true),
            (
                "configOptions",
                Type::Object(&[("boolean", DECLARED, true)]),
                true,
            ),
        ]),
        true,
    ),
    ("plan", DECLARED, true),
    (
        "auth",
        Type::Object(&[("terminal", Type::Boolean, false)]),
        false,
    ),
    ("elicitation", ELICITATION, true),
    ("nes", NES, true),
    ("positionEncodings", Type::Texts, false),
]);

/// The capabilities of a client in version 2.
const CAPABILITIES: Type = Type::Object(&[
    ("auth", Type::Object(&[("terminal", DECLARED, true)]), true),
    ("elicitation", ELICITATION, true),
    ("nes", NES, true),
    ("positionEncodings", Type::Texts, false),
]);

const INITIALIZE: Type = Type::Object(&[
    ("protocolVersion", Type::Version, false),
    ("clientCapabilities", CLIENT_CAPABILITIES, true),
    ("capabilities", CAPABILITIES, true),
    ("clientInfo", IMPLEMENTATION, true),
    ("info", IMPLEMENTATION, true),
]);

const LIST: Type = Type::Object(&[("cursor", Type::Text, true), ("cwd", Type::Text, true)]);

/// Checks the types of the parameters of `initialize` and `session/list`, with which a client could otherwise make an agent
/// exit. Returns the parameters that the schema has, without any others, or says what is wrong. Returns `None` for other
/// methods.
pub(super) fn known_params(text: &str, method: &str) -> Result<Option<String>, String> {
    let params = match method {
        "initialize" => &INITIALIZE,
        "session/list" => &LIST,
        _ => return Ok(None),
    };
    let whole = 0..text.len();
    let mut known = String::new();
    match member(text, &whole, "params") {
        Some(range) => {
            let checked = params.check(text, &range, "params", &mut known);
            checked.map_err(
                |why| match why.starts_with("params.protocolVersion is not") {
                    // Clients of MCP send a date.
                    true => why + "; this is an agent (ACP), not an MCP server",
                    false => why,
                },
            )?;
        }
        None => known.push_str("{}"),
    }
    Ok(Some(known))
}

impl Type {
    /// What a value of this type is.
    fn name(&self) -> &'static str {
        match self {
            Self::Boolean => "a boolean",
            Self::Text => "a string",
            Self::Texts => "a list of strings",
            Self::Version => "an integer from 0 to 65535",
            Self::Object(_) => "an object",
        }
    }

    /// Checks a value, and appends it to `known` without unknown members. `path` leads to it.
    fn check(
        &self,
        text: &str,
        value: &Range<usize>,
        path: &str,
        known: &mut String,
    ) -> Result<(), String> {
        let raw = &text[value.clone()];
        let is_right = match self {
            Self::Boolean => matches!(raw, "true" | "false"),
            Self::Text => raw.starts_with('"'),
            Self::Texts => {
                let mut are_texts = raw.starts_with('[');
                let scanned = are_texts.then(|| {
                    Skimmer::at(text, value)
                        .array(|element| are_texts &= text.as_bytes()[element.start] == b'"')
                });
                scanned.is_some_and(|scanned| scanned.is_ok()) && are_texts
            }
            Self::Version => raw.parse::<u16>().is_ok(),
            Self::Object(_) => raw.starts_with('{'),
        };
        if !is_right {
            return Err(format!("{path} is not {}", self.name()));
        }
        let Self::Object(fields) = self else {
            known.push_str(raw);
            return Ok(());
        };
        known.push('{');
        let start = known.len();
        let mut found: Vec<Option<Range<usize>>> = vec![None; fields.len()];
        let mut twice = None;
        let scanned = Skimmer::at(text, value).object(|key, range| {
            if let Some(at) = fields.iter().position(|(name, ..)| *name == key)
                && found[at].replace(range).is_some()
            {
                twice = Some(fields[at].0);
            }
        });
        debug_assert!(scanned.is_ok(), "the text has been validated");
        if let Some(name) = twice {
            return Err(format!("{path}.{name} occurs twice"));
        }
        for ((name, field, is_nullable), range) in fields.iter().zip(found) {
            let Some(range) = range else { continue };
            if *is_nullable && &text[range.clone()] == "null" {
                continue;
            }
            if known.len() > start {
                known.push(',');
            }
            known.push_str(&format!("\"{name}\":"));
            field.check(text, &range, &format!("{path}.{name}"), known)?;
        }
        known.push('}');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_outside_the_schema_has_no_kind() {
        assert_eq!(kind_of_method("session/cancel"), Some(Notification));
        assert_eq!(kind_of_method("_vendor/x"), None);
    }

    fn known(method: &str, params: &str) -> Result<Option<String>, String> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        known_params(&text, method)
    }

    #[test]
    fn a_wrong_type_is_named_with_its_place() {
        for (method, params, want) in [
            ("initialize", "[]", "params is not an object"),
            (
                "initialize",
                r#"{"protocolVersion":"1"}"#,
                "params.protocolVersion is not an integer from 0 to 65535; this is an agent (ACP), not an MCP server",
            ),
            (
                "initialize",
                r#"{"protocolVersion":1.5}"#,
                "params.protocolVersion is not",
            ),
            (
                "initialize",
                r#"{"protocolVersion":-1}"#,
                "params.protocolVersion is not",
            ),
            (
                "initialize",
                r#"{"protocolVersion":null}"#,
                "params.protocolVersion is not",
            ),
            (
                "initialize",
                r#"{"protocolVersion":1,"protocolVersion":2}"#,
                "params.protocolVersion occurs twice",
            ),
            (
                "initialize",
                r#"{"clientCapabilities":7}"#,
                "params.clientCapabilities is not an object",
            ),
            (
                "initialize",
                r#"{"clientCapabilities":{"fs":true}}"#,
                "params.clientCapabilities.fs is not an object",
            ),
            (
                "initialize",
                r#"{"clientCapabilities":{"fs":{"readTextFile":1}}}"#,
                "params.clientCapabilities.fs.readTextFile is not a boolean",
            ),
            (
                "initialize",
                r#"{"capabilities":{"positionEncodings":["a",1]}}"#,
                "params.capabilities.positionEncodings is not a list of strings",
            ),
            (
                "initialize",
                r#"{"clientInfo":{"name":1}}"#,
                "params.clientInfo.name is not a string",
            ),
            (
                "session/list",
                r#"{"cursor":5}"#,
                "params.cursor is not a string",
            ),
            (
                "session/list",
                r#"{"cwd":["/"]}"#,
                "params.cwd is not a string",
            ),
        ] {
            let why = known(method, params).expect_err(params);
            assert!(why.starts_with(want), "{params}: {why}");
        }
        assert_eq!(known("session/prompt", "7"), Ok(None));
    }

    #[test]
    fn known_parameters_are_kept_as_they_are_and_others_are_left_out() {
        for (method, params, want) in [
            (
                "session/list",
                r#"{"cwd":null,"x":{"cursor":1},"cursor" : "a\u0062","_meta":{}}"#,
                r#"{"cursor":"a\u0062"}"#,
            ),
            (
                "initialize",
                r#"{"x":1,"protocolVersion": 1,"clientInfo":{"version":"2","name":"n"},"clientCapabilities":{"fs":{"y":[],"writeTextFile":true},"terminal":false,"plan":null}}"#,
                r#"{"protocolVersion":1,"clientCapabilities":{"fs":{"writeTextFile":true},"terminal":false},"clientInfo":{"name":"n","version":"2"}}"#,
            ),
        ] {
            assert_eq!(known(method, params), Ok(Some(want.to_owned())));
        }
    }
}
