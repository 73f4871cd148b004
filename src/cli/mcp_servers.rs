//! The file in which MCP clients keep their servers: `mcpServers` of Claude Desktop, Claude Code and Cursor, `servers` of VS Code. Each
//! entry with a program becomes a route.

use serde_json::{Map, Value};

use super::commands::MCP;
use super::config_file::{object, plain_json};
use super::settings::Settings;
use crate::ServiceId;
use crate::server::is_reserved_path;
use crate::service::{McpShare, McpStart, OnFailure};
use crate::text::without_mark;

/// Adds the servers of a file to the routes.
pub(super) fn add(settings: &mut Settings, path: &str) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    add_text(settings, &text).map_err(|error| format!("{path}: {error}"))
}

fn add_text(settings: &mut Settings, text: &str) -> Result<(), String> {
    let file = object(&plain_json(without_mark(text)))?;
    let lists = ["mcpServers", "servers"].map(|key| file.get(key).and_then(Value::as_object));
    let ([Some(servers), None] | [None, Some(servers)]) = lists else {
        return Err("expected an object \"mcpServers\" or \"servers\"".to_owned());
    };
    for (name, entry) in servers {
        let wrong = |why: String| format!("{name:?}: {why}");
        let entry = entry.as_object().ok_or("expected an object".to_owned());
        let entry = entry.map_err(wrong)?;
        if let Some(why) = why_skipped(entry) {
            settings
                .notes
                .push(format!("skipped the MCP server {name:?}: {why}"));
            continue;
        }
        let route = route(name, entry).map_err(wrong)?;
        let path = |route: &Settings| route.path.as_ref().map(|path| path.path().to_owned());
        let mut routes = settings.routes.iter();
        if routes.any(|(_, other)| path(other) == path(&route)) {
            return Err(wrong("another route has this path".to_owned()));
        }
        settings.routes.push((&MCP, route));
    }
    if settings.routes.len() > ServiceId::MOST {
        return Err(format!("more than {} routes", ServiceId::MOST));
    }
    if settings.routes.is_empty() {
        return Err("no entry has a program".to_owned());
    }
    Ok(())
}

/// Why an entry is not served.
fn why_skipped(entry: &Map<String, Value>) -> Option<&'static str> {
    let kind = entry.get("type").and_then(Value::as_str);
    if entry.contains_key("url") || kind.is_some_and(|kind| kind != "stdio") {
        return Some("it is not a program on this machine");
    }
    let is = |key, value| entry.get(key) == Some(&Value::Bool(value));
    (is("disabled", true) || is("enabled", false)).then_some("it is disabled")
}

/// The settings of an entry.
fn route(name: &str, entry: &Map<String, Value>) -> Result<Settings, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let path = format!("/{name}");
    if name.is_empty() || !name.bytes().all(is_plain) || name.bytes().all(|byte| byte == b'.') {
        return Err("the name cannot be a path: use letters, digits, '-', '_' and '.'".to_owned());
    }
    if is_reserved_path(&path) {
        return Err(format!("the path {path} is reserved for the server"));
    }
    let mut route = Settings::new();
    route.path = Some(path.parse().map_err(|error| format!("{error}"))?);
    route.mcp.share = McpShare::Principal;
    route.mcp.start = McpStart::Lazy;
    route
        .restart_limits()
        .for_each(|limit| limit.on_failure = OnFailure::Retry);
    let text = |key: &str| match entry.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => expanded(text).map(Some),
        Some(_) => Err(format!("{key:?} is not a string")),
    };
    let command = text("command")?.filter(|command| !command.is_empty());
    route.program.push(command.ok_or("missing \"command\"")?);
    if let Some(args) = entry.get("args").filter(|args| !args.is_null()) {
        let args = args.as_array().ok_or("\"args\" is not a list")?;
        for arg in args {
            let arg = arg.as_str().ok_or("\"args\" is not a list of strings")?;
            route.program.push(expanded(arg)?);
        }
    }
    route.terminal.cwd = text("cwd")?;
    if let Some(env) = entry.get("env").filter(|env| !env.is_null()) {
        let env = env.as_object().ok_or("\"env\" is not an object")?;
        for (name, value) in env {
            let value = match value {
                Value::String(text) => expanded(text)?,
                Value::Number(_) | Value::Bool(_) => value.to_string(),
                _ => return Err(format!("the variable {name:?} is not a string")),
            };
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(format!("{name:?} cannot be a variable"));
            }
            route.terminal.env.push((name.clone(), value));
        }
    }
    if entry.contains_key("envFile") {
        return Err("\"envFile\" is not supported: write the variables into \"env\"".to_owned());
    }
    match text("share")?.as_deref() {
        None | Some("principal") => {}
        Some("none") => route.mcp.share = McpShare::None,
        Some("all") => route.mcp.share = McpShare::All,
        Some(_) => return Err("\"share\" is not none, principal or all".to_owned()),
    }
    Ok(route)
}

/// The variables that VS Code and Cursor replace, and whose names could also be those of the environment.
const EDITOR_VARIABLES: [&str; 12] = [
    "workspaceFolder",
    "workspaceFolderBasename",
    "workspaceRoot",
    "userHome",
    "pathSeparator",
    "cwd",
    "execPath",
    "file",
    "fileWorkspaceFolder",
    "fileDirname",
    "relativeFile",
    "defaultBuildTask",
];

/// Replaces `${NAME}`, `${NAME:-DEFAULT}` and `${env:NAME}` by variables of the environment.
fn expanded(text: &str) -> Result<String, String> {
    let mut result = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        result.push_str(&rest[..start]);
        let end = rest[start..].find('}').ok_or("\"${\" without \"}\"")? + start;
        let inner = &rest[start + 2..end];
        let (name, default) = match (inner.strip_prefix("env:"), inner.split_once(":-")) {
            (Some(name), _) => (name, Some("")),
            (None, Some((name, default))) => (name, Some(default)),
            (None, None) => (inner, None),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let known = name.bytes().all(is_name).then(|| std::env::var(name).ok());
        match (known, default) {
            (Some(Some(value)), _) => result.push_str(&value),
            (Some(None), Some(default)) => result.push_str(default),
            (Some(None), None) if !EDITOR_VARIABLES.contains(&name) => {
                return Err(format!(
                    "the variable ${{{inner}}} of the environment is not set"
                ));
            }
            (Some(None), None) => {
                return Err(format!(
                    "only an editor knows ${{{inner}}}: write its value instead"
                ));
            }
            (None, _) => return Err(format!("the variable ${{{inner}}} is not supported")),
        }
        rest = &rest[end + 1..];
    }
    Ok(result + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(text: &str) -> Result<Settings, String> {
        let mut settings = Settings::new();
        add_text(&mut settings, text).map(|()| settings)
    }

    #[test]
    fn the_files_of_all_clients_are_read() {
        let text = r#"{
            // A comment with "quotes", and é.
            "mcpServers": {
                "files": {"command": "npx", "args": ["-y", "a//b", "${NO_SUCH_VARIABLE:-/tmp}", "/* c */"], "env": {"PORT": 1, "A": "x"},},
                /* Another
                   one */
                "remote": {"url": "https://example.com/mcp"},
                "old": {"type": "sse", "command": "x"},
                "off": {"command": "x", "disabled": true},
                "browser": {"type": "stdio", "command": "b", "cwd": "/", "share": "none", "args": null},
            },
        }"#;
        let settings = added(text).expect("it is valid");
        let [(_, browser), (_, files)] = &settings.routes[..] else {
            panic!("two routes");
        };
        assert_eq!(files.program, ["npx", "-y", "a//b", "/tmp", "/* c */"]);
        let env =
            [("A", "x"), ("PORT", "1")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(files.terminal.env, env);
        assert_eq!(
            (files.mcp.share, browser.mcp.share),
            (McpShare::Principal, McpShare::None)
        );
        assert_eq!(
            (files.mcp.start, browser.terminal.cwd.as_deref()),
            (McpStart::Lazy, Some("/"))
        );
        assert_eq!(
            browser.path.as_ref().map(|path| path.path()),
            Some("/browser")
        );
        assert_eq!(settings.notes.len(), 3);
        let path = std::env::var("PATH").expect("PATH");
        let text = r#"{"inputs": [], "servers": {"a": {"command": "${env:PATH}"}}}"#;
        assert_eq!(
            added(text).expect("it is valid").routes[0].1.program,
            [path]
        );
    }

    #[test]
    fn an_error_names_the_entry() {
        for (text, says) in [
            ("", "expected a JSON object; YAML, TOML"),
            ("{/* \"", "EOF"),
            ("{\"\\", "EOF"),
            ("[]", "expected a JSON object"),
            ("{}", "expected an object \"mcpServers\" or \"servers\""),
            (r#"{"servers":{},"mcpServers":{}}"#, "expected an object"),
            (r#"{"servers":{}}"#, "no entry has a program"),
            (
                r#"{"servers":{"a":{"command":"x"},"a":{"command":"y"}}}"#,
                "\"a\" is used twice",
            ),
            (r#"{"servers":{"a":7}}"#, "\"a\": expected an object"),
            (r#"{"servers":{"a":{}}}"#, "\"a\": missing \"command\""),
            (
                r#"{"servers":{"a":{"command":["x"]}}}"#,
                "\"a\": \"command\" is not a string",
            ),
            (
                r#"{"servers":{"a":{"command":"x","args":"y"}}}"#,
                "\"a\": \"args\" is not a list",
            ),
            (
                r#"{"servers":{"a":{"command":"x","env":{"A":{}}}}}"#,
                "\"a\": the variable \"A\"",
            ),
            (
                r#"{"servers":{"a":{"command":"x","env":{"A=":"1"}}}}"#,
                "cannot be a variable",
            ),
            (
                r#"{"servers":{"a":{"command":"x","envFile":"y"}}}"#,
                "\"a\": \"envFile\" is not",
            ),
            (
                r#"{"servers":{"a":{"command":"x","share":"me"}}}"#,
                "\"a\": \"share\" is not none",
            ),
            (
                r#"{"servers":{"a":{"command":"${input:key}"}}}"#,
                "\"a\": the variable ${input:key} is not supported",
            ),
            (
                r#"{"servers":{"a":{"command":"${NO_SUCH_VARIABLE}"}}}"#,
                "\"a\": the variable ${NO_SUCH_VARIABLE} of the environment is not set",
            ),
            (
                r#"{"servers":{"a":{"command":"x","cwd":"${workspaceFolder}"}}}"#,
                "\"a\": only an editor knows ${workspaceFolder}: write its value",
            ),
            (r#"{"servers":{"a":{"command":"${A"}}}"#, "without"),
            (
                r#"{"servers":{"a b":{"command":"x"}}}"#,
                "\"a b\": the name cannot be a path",
            ),
            (
                r#"{"servers":{"..":{"command":"x"}}}"#,
                "\"..\": the name cannot be a path",
            ),
            (
                r#"{"servers":{"metrics":{"command":"x"}}}"#,
                "\"metrics\": the path /metrics is reserved",
            ),
        ] {
            let error = added(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
        let many: Vec<String> = (0..64)
            .map(|number| format!(r#""{number}":{{"command":"x"}}"#))
            .collect();
        let error =
            added(&format!(r#"{{"servers":{{{}}}}}"#, many.join(","))).expect_err("too many");
        assert!(error.contains("more than 63 routes"), "{error}");
    }

    #[test]
    fn comments_are_removed_at_any_place() {
        // Every prefix, so that no end of the text is read beyond.
        let text = "{\"a\": [1, /* , */ ], // x\n \"b\\\"//\": \"é\",}";
        for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
            assert_eq!(
                plain_json(&text[..end]).matches('\n').count(),
                text[..end].matches('\n').count()
            );
        }
        assert_eq!(
            plain_json(text).replace(' ', ""),
            "{\"a\":[1],\n\"b\\\"//\":\"é\"}"
        );
    }
}
