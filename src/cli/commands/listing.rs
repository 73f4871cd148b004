//! `outrigger connect --list`: what to write into the settings of MCP clients.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::super::defaults::TOKEN_VARIABLE;
use super::super::outcome::{Failure, Outcome, fail};
use super::super::programs::quoted;
use super::super::settings::Settings;
use crate::service::{Inquiry, mcp_paths};
use crate::text::is_control;
use crate::{Connect, Target};

/// Placeholders: secrets are not printed.
const TOKEN: &str = "Bearer TOKEN";
const VALUE: &str = "VALUE";

/// Prints the settings for the server of `connect`, or for each MCP server of the Outrigger there.
pub(super) fn run(settings: Settings, connect: Connect) -> Result<Outcome, Failure> {
    let target = connect.target().clone();
    if !target.is_http() {
        let error = "--list: the URL of an MCP server begins with http:// or https://";
        return Ok(fail(error, Outcome::Usage));
    }
    let mut paths = vec![target.path().to_owned()];
    if target.path() == "/" {
        let status = settings.ask(Inquiry::of_status(connect))?;
        match status.and_then(|status| mcp_paths(&status)) {
            Ok(all) => paths = all,
            Err(why) => {
                let error = format!("cannot list the servers at {target}: {why}");
                return Ok(fail(&error, Outcome::Failure));
            }
        }
    }
    let mut servers: Vec<(String, String)> = Vec::new();
    for path in paths {
        let mut at = target.clone();
        let base = name(&path, &target);
        at.set_path(path);
        // Two servers with one name would be one key of JSON, and an error in TOML.
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        let mut names = std::iter::once(base.clone()).chain(numbered);
        let is_free = |name: &String| servers.iter().all(|(other, _)| other != name);
        let name = names.find(is_free).unwrap_or_default();
        servers.push((name, at.to_string()));
    }
    let text = settings.snippets(&servers);
    // JSON and TOML escape most of them, a shell does not, and all of them confuse a reader.
    if text.chars().any(|char| char != '\n' && is_control(char)) {
        let error = "--list: the settings would contain control characters";
        return Ok(fail(error, Outcome::Failure));
    }
    super::super::output::print(&text);
    Ok(Outcome::Clean)
}

/// The name of a server in the settings: the end of its path, or the host if that says nothing. It has the characters that all
/// clients allow in a name, and is not an option for a command.
fn name(path: &str, target: &Target) -> String {
    let last = path.rsplit('/').find(|part| !part.is_empty());
    let from_path = last.filter(|last| *last != "mcp").map(plain);
    let host = target.server_name().split('.').next().unwrap_or_default();
    let from_host = || {
        host.starts_with(|first: char| first.is_ascii_alphabetic())
            .then(|| plain(host))
    };
    let name = from_path.filter(|name| !name.is_empty()).or_else(from_host);
    name.unwrap_or_else(|| "outrigger".to_owned())
}

/// Replaces the characters other than letters, digits, `-` and `_`.
fn plain(text: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
    let text = text.replace(|char| !is_plain(char), "-");
    text.trim_matches('-').to_owned()
}

impl Settings {
    /// The settings of each client, for servers with these names and URLs.
    fn snippets(&self, servers: &[(String, String)]) -> String {
        let target = self.client.target.as_ref();
        let has_token =
            self.client.token.is_some() || target.is_some_and(|one| one.token().is_some());
        let all = |entry: &dyn Fn(&str) -> Value| {
            let entries = servers.iter().map(|(name, url)| (name.clone(), entry(url)));
            Value::Object(entries.collect::<Map<_, _>>())
        };
        let fields = &self.client.fields;
        let given = fields.iter().map(|(name, _)| (name.as_str(), VALUE));
        let token = has_token.then_some(("Authorization", TOKEN));
        let headers: Vec<(&str, &str)> = token.into_iter().chain(given).collect();
        let remote = |mut entry: Value| {
            if !headers.is_empty() {
                let headers = headers
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), json!(value)));
                entry["headers"] = headers.collect::<Map<_, _>>().into();
            }
            entry
        };
        let mut text = String::new();
        if has_token {
            text.push_str("Replace TOKEN with the token.\n\n");
        }
        if !fields.is_empty() {
            text.push_str("Replace each VALUE with the value of its header field.\n\n");
        }
        text.push_str("Claude Code, in a shell:\n\n");
        for (name, url) in servers {
            let url = quoted(url);
            let _ = write!(text, "claude mcp add --transport http {name} {url}");
            for (name, value) in &headers {
                let header = quoted(&format!("{name}: {value}"));
                let _ = write!(text, " --header {header}");
            }
            text.push('\n');
        }
        let http = all(&|url| remote(json!({"type": "http", "url": url})));
        let url = all(&|url| remote(json!({"url": url})));
        let gemini = all(&|url| remote(json!({"httpUrl": url})));
        let opencode = all(&|url| remote(json!({"type": "remote", "url": url})));
        let programs = all(&|url| {
            let mut entry = json!({"command": "outrigger", "args": self.arguments(url)});
            if has_token && self.token_file.is_none() {
                entry["env"] = json!({TOKEN_VARIABLE: "TOKEN"});
            }
            entry
        });
        for (title, value) in [
            ("VS Code, in .vscode/mcp.json", json!({"servers": http})),
            ("Cursor, in .cursor/mcp.json", json!({"mcpServers": url})),
            (
                "Gemini CLI and Qwen Code, in settings.json",
                json!({"mcpServers": gemini}),
            ),
            ("opencode, in opencode.json", json!({"mcp": opencode})),
            (
                "Claude Desktop, in claude_desktop_config.json, and all clients that start programs",
                json!({"mcpServers": programs}),
            ),
        ] {
            let _ = writeln!(text, "\n{title}:\n\n{value:#}");
        }
        let _ = write!(text, "\nCodex, in ~/.codex/config.toml:\n\n");
        servers
            .iter()
            .for_each(|server| self.add_for_codex(server, has_token, &mut text));
        text
    }

    fn add_for_codex(&self, (name, url): &(String, String), has_token: bool, text: &mut String) {
        // Without control characters, a string of JSON is one of TOML, too.
        let (name, url) = (json!(name), json!(url));
        let _ = writeln!(text, "[mcp_servers.{name}]\nurl = {url}");
        if has_token {
            let _ = writeln!(text, "bearer_token_env_var = {}", json!(TOKEN_VARIABLE));
        }
        let fields = self.client.fields.iter();
        let fields: Vec<_> = fields
            .map(|(name, _)| format!("{} = {}", json!(name), json!(VALUE)))
            .collect();
        if !fields.is_empty() {
            let _ = writeln!(text, "http_headers = {{ {} }}", fields.join(", "));
        }
    }

    /// The arguments of `connect` for a server, with the options that were given here.
    fn arguments(&self, url: &str) -> Vec<String> {
        let mut arguments = vec!["connect".to_owned(), url.to_owned()];
        let absolute = |file: &std::path::Path| {
            let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
            file.display().to_string()
        };
        let mut add = |flag: &str, value: String| {
            arguments.extend([flag.to_owned(), value]);
        };
        if let Some(file) = &self.token_file {
            add("--token-file", absolute(file));
        }
        for (name, _) in &self.client.fields {
            add("--header", format!("{name}: {VALUE}"));
        }
        #[cfg(feature = "tls")]
        {
            let tls = &self.client.tls;
            let files = [
                ("--ca", &tls.ca),
                ("--tls-client-cert", &tls.cert),
                ("--tls-client-key", &tls.key),
            ];
            for (flag, file) in files {
                if let Some(file) = file {
                    add(flag, absolute(file));
                }
            }
            if let Some(fingerprint) = &tls.fingerprint {
                add("--fingerprint", fingerprint.clone());
            }
        }
        arguments
    }
}
