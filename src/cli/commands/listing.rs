//! `outrigger connect --list`: what to write into the settings of MCP clients.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::super::outcome::{Failure, Outcome, fail};
use super::super::settings::Settings;
use crate::service::{Inquiry, mcp_paths};
use crate::{Connect, Target};

/// Stands for the token, which is not printed.
const TOKEN: &str = "Bearer TOKEN";

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
    let servers = paths.into_iter().map(|path| {
        let mut at = target.clone();
        let name = name(&path, &target);
        at.set_path(path);
        (name, at.to_string())
    });
    let text = Settings::snippets(&settings, &servers.collect::<Vec<_>>());
    super::super::output::print(&text);
    Ok(Outcome::Clean)
}

/// The name of a server in the settings: the end of its path, or the host if that says nothing.
fn name(path: &str, target: &Target) -> String {
    let last = path.rsplit('/').find(|part| !part.is_empty());
    match last {
        Some(last) if last != "mcp" => last.to_owned(),
        _ => {
            let host = target.server_name();
            let first = host.split('.').next().unwrap_or_default();
            let is_name = first.starts_with(|first: char| first.is_ascii_alphabetic());
            if is_name {
                first.to_owned()
            } else {
                "outrigger".to_owned()
            }
        }
    }
}

impl Settings {
    /// The settings of each client, for servers with these names and URLs.
    fn snippets(&self, servers: &[(String, String)]) -> String {
        let has_token = self.client.token.is_some()
            || self
                .client
                .target
                .as_ref()
                .is_some_and(|target| target.token().is_some());
        let all = |entry: &dyn Fn(&str) -> Value| {
            let entries = servers.iter().map(|(name, url)| (name.clone(), entry(url)));
            Value::Object(entries.collect::<Map<_, _>>())
        };
        let remote = |mut entry: Value| {
            if has_token {
                entry["headers"] = json!({"Authorization": TOKEN});
            }
            entry
        };
        let mut text = String::new();
        if has_token {
            text.push_str("Replace TOKEN with the token.\n\n");
        }
        text.push_str("Claude Code, in a shell:\n\n");
        for (name, url) in servers {
            let header = if has_token {
                format!(" --header 'Authorization: {TOKEN}'")
            } else {
                String::new()
            };
            let _ = writeln!(text, "claude mcp add --transport http {name} {url}{header}");
        }
        let http = all(&|url| remote(json!({"type": "http", "url": url})));
        let url = all(&|url| remote(json!({"url": url})));
        let gemini = all(&|url| remote(json!({"httpUrl": url})));
        let opencode = all(&|url| remote(json!({"type": "remote", "url": url})));
        let programs = all(&|url| json!({"command": "outrigger", "args": self.arguments(url)}));
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
        text.push_str("\nCodex, in ~/.codex/config.toml:\n\n");
        for (name, url) in servers {
            // A string of JSON is one of TOML, too.
            let (name, url) = (json!(name), json!(url));
            let _ = writeln!(text, "[mcp_servers.{name}]\nurl = {url}");
            if has_token {
                text.push_str("bearer_token_env_var = \"OUTRIGGER_TOKEN\"\n");
            }
        }
        text
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
        for (name, value) in &self.client.fields {
            add("--header", format!("{name}: {value}"));
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
