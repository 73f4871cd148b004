//! Flags for access control and for the path to serve.

use crate::server::is_base_path;

use super::super::flag::{Flag, Takes, put, samples};

pub(crate) const TOKEN_FILE: Flag = Flag {
    name: "token-file",
    takes: Takes::One("FILE"),
    default_note: Some(
        "a generated token, printed in the 'listening' line; none for echo on loopback",
    ),
    help: "file with the tokens that clients present: one word, or lines NAME SCOPE SECRET as 'outrigger token' writes them; the variable OUTRIGGER_TOKEN may hold this text instead",
    brief: Some("file with tokens; without it, one is generated and printed"),
    set: |settings, value| put(&mut settings.token_file, Ok(Some(value.into()))),
    accepts: samples(&["/run/token"]),
    ..Flag::BASE
};

pub(super) const FLAGS: &[Flag] = &[
    TOKEN_FILE,
    Flag {
        name: "token-header",
        takes: Takes::One("NAME"),
        help: "an additional request header that may carry the token",
        set: |settings, value| {
            put(
                &mut settings.server.access.token_header,
                header_name(value).map(Some),
            )
        },
        accepts: samples(&["X-Auth"]),
        rejects: &["", "X Auth", "X-Auth:"],
        ..Flag::BASE
    },
    Flag {
        name: "auth-header",
        takes: Takes::One("NAME"),
        help: "request header in which a proxy of --trusted-proxy names the user that it has authenticated; such a request needs no token",
        requires: Some("trusted-proxy"),
        set: |settings, value| {
            put(
                &mut settings.server.auth_header,
                header_name(value).map(Some),
            )
        },
        accepts: samples(&["X-Remote-User"]),
        rejects: &["", "X Auth", "X-Auth:"],
        ..Flag::BASE
    },
    Flag {
        name: "auth-scope",
        takes: Takes::One("SCOPE"),
        words: &["all", "use", "watch", "metrics"],
        default: Some("all"),
        help: "what the users of --auth-header may do: all, use, watch or metrics",
        requires: Some("auth-header"),
        set: |settings, value| {
            let scope = value.parse();
            let scope = scope.map_err(|error| format!("'{value}' is {error}"));
            put(&mut settings.server.auth_scope, scope)
        },
        rejects: &["", "ALL", "none"],
        ..Flag::BASE
    },
    Flag {
        name: "oauth-resource",
        takes: Takes::One("FILE"),
        help: "file with the OAuth metadata of this server (RFC 9728), a JSON object: answers /.well-known/oauth-protected-resource and is named in each 401",
        set: |settings, value| put(&mut settings.oauth_resource, Ok(Some(value.into()))),
        accepts: samples(&["resource.json"]),
        ..Flag::BASE
    },
    Flag {
        name: "no-auth",
        help: "require no token: every client that can reach the server is accepted",
        brief: Some("require no token"),
        ..Flag::BASE
    },
    Flag {
        name: "allow-origin",
        takes: Takes::Many("ORIGIN"),
        help: "accept web pages of this origin, such as https://example.com, in addition to the server's own; '*' accepts all",
        brief: Some("accept web pages of this origin"),
        set: |settings, value| {
            if value != "*" && value != "null" && !value.contains("://") {
                let why = "is not an origin such as https://example.com";
                return Err(format!("'{value}' {why}"));
            }
            let origin = value.trim_end_matches('/').to_owned();
            settings.server.access.origins.push(origin);
            Ok(())
        },
        accepts: samples(&["*", "null", "https://example.com", "https://example.com/"]),
        rejects: &["example.com"],
        ..Flag::BASE
    },
    Flag {
        name: "allow-host",
        takes: Takes::Many("HOST"),
        help: "host name that clients may use for this server, without a port; '*' allows all. Always allowed: loopback's names, the addresses to listen on and, with 0.0.0.0 or [::], the machine's host name",
        brief: Some("accept this host name in requests"),
        set: |settings, value| {
            let has_port = value.rsplit_once(':').is_some_and(|(_, port)| {
                !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
            });
            if value.is_empty() || value.contains(['/', ' ']) || has_port {
                return Err(format!("'{value}' is not a host name without a port"));
            }
            settings.server.access.hosts.push(value.to_owned());
            Ok(())
        },
        accepts: samples(&["*", "example.com", "[::1]"]),
        rejects: &["", "example.com:80", "http://example.com"],
        ..Flag::BASE
    },
    Flag {
        name: "path",
        takes: Takes::One("PATH"),
        help: "path to serve; a final '/...' includes all paths below it",
        brief: Some("path to serve"),
        for_one_path: true,
        set: |settings, value| {
            let path = value.parse().map_err(|error| format!("{error}"))?;
            settings.path = Some(path);
            Ok(())
        },
        accepts: samples(&["/", "/chat", "/chat/..."]),
        rejects: &["chat"],
        ..Flag::BASE
    },
    Flag {
        name: "base-path",
        takes: Takes::One("PATH"),
        help: "beginning of all paths, such as /tools/outrigger, if a proxy passes on the paths below it unchanged; not needed if the proxy removes it",
        set: |settings, value| {
            let base = value.trim_end_matches('/');
            if !is_base_path(base) {
                return Err(format!("'{value}' is not a path such as /tools/outrigger"));
            }
            put(&mut settings.server.base_path, Ok(base.to_owned()))
        },
        accepts: samples(&["/tools", "/tools/outrigger/"]),
        rejects: &["", "/", "tools", "/a//b", "/a b", "/a?b", "/../x"],
        ..Flag::BASE
    },
];

/// Parses the name of a header.
fn header_name(value: &str) -> Result<String, String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.!#$%&'*+^`|~".contains(&byte);
    if value.is_empty() || !value.bytes().all(is_token) {
        return Err(format!("'{value}' is not a header name"));
    }
    Ok(value.to_owned())
}
