//! The environment of a client's program: the variables of the Common Gateway Interface (RFC 3875), from the request.
//!
//! The header in which a trusted proxy names the user is left out, because that of any other peer may be forged: the user is in
//! REMOTE_USER. Secrets are left out, too: tokens, cookies, and what a client needs to resume its connection. So is the field Proxy, because
//! many programs read HTTP_PROXY as the address of their own proxy.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::record::record;
use crate::server::{is_token_protocol, percent_decode};
use crate::service::Endpoint;
use crate::sys::{Command, random_uuid};
use crate::{Access, ClientId, Context, Principal, Rejection, Remote, Request, StatusCode};

/// The maximum size of what is passed on from a request. A process can be started with 128 KiB in one variable.
const MAX_REQUEST: usize = 96 << 10;

/// The prefix of variables for header fields.
const FIELD: &str = "HTTP_";

/// The variables of RFC 3875 and its extensions. The program does not inherit any of them, nor those with the prefix
/// [`FIELD`], so that all of them describe the request.
const VARIABLES: [&str; 22] = [
    "AUTH_TYPE",
    "CONTENT_LENGTH",
    "CONTENT_TYPE",
    "GATEWAY_INTERFACE",
    "HTTPS",
    "PATH_INFO",
    "PATH_TRANSLATED",
    "QUERY_STRING",
    "REMOTE_ADDR",
    "REMOTE_HOST",
    "REMOTE_IDENT",
    "REMOTE_PORT",
    "REMOTE_USER",
    "REQUEST_METHOD",
    "REQUEST_URI",
    "SCRIPT_NAME",
    "SERVER_NAME",
    "SERVER_PORT",
    "SERVER_PROTOCOL",
    "SERVER_SOFTWARE",
    "UNIQUE_ID",
    "SSL_TLS_SNI",
];

/// The header fields that are not passed on.
const HIDDEN_FIELDS: [&str; 9] = [
    "authorization",
    "cookie",
    "cookie2",
    "outrigger-resume",
    "proxy",
    "proxy-authorization",
    "sec-websocket-key",
    "set-cookie",
    "set-cookie2",
];

/// The query parameters of the server itself, which are not passed on.
const HIDDEN_PARAMETERS: [&[u8]; 4] = [b"token", b"resume", b"received", b"notice"];

/// Rejects a request that is too large for an environment.
pub(super) fn check_size(request: &Request<'_>) -> Result<(), Rejection> {
    let fields = request
        .headers()
        .map(|(name, value)| name.len() + value.len());
    let target = request.path().len() + request.query().map_or(0, str::len);
    // The target is part of several variables.
    if fields.sum::<usize>() + 3 * target <= MAX_REQUEST {
        return Ok(());
    }
    let why = "the request is too large for the environment of a program";
    Err(Rejection::new(StatusCode::HEADERS_TOO_LARGE, why).because("head_size"))
}

/// Where a request comes from.
#[derive(Debug)]
struct Origin<'a> {
    remote: Option<Remote>,
    principal: Principal,
    is_encrypted: bool,
    access: &'a Access,
    auth_header: Option<&'a str>,
}

/// The variables that describe a request.
#[derive(Debug)]
pub(super) struct Environment(Vec<(String, OsString)>);

record!(Environment as Vec<(String, OsString)>);

impl Environment {
    /// The variables for a client's program. `endpoint` is the path of the service.
    pub(super) fn new(
        ctx: &Context,
        client: ClientId,
        endpoint: &Endpoint,
        request: &Request<'_>,
    ) -> Self {
        let origin = Origin {
            remote: ctx.remote(client),
            principal: ctx.principal(client),
            is_encrypted: ctx.is_encrypted(client),
            access: &ctx.config().access,
            auth_header: ctx.config().auth_header.as_deref(),
        };
        Self::of(&origin, endpoint, request)
    }

    fn of(origin: &Origin<'_>, endpoint: &Endpoint, request: &Request<'_>) -> Self {
        let mut environment = Self(Vec::new());
        environment.add_request(origin, endpoint, request);
        environment.add_fields(origin, request);
        environment
    }

    fn add_request(&mut self, origin: &Origin<'_>, endpoint: &Endpoint, request: &Request<'_>) {
        let (address, port) = match origin.remote {
            Some(remote) if !remote.is_unix() => {
                let address = std::net::SocketAddr::from(remote);
                (address.ip().to_string(), address.port().to_string())
            }
            _ => ("unix:".to_owned(), String::new()),
        };
        self.add("REMOTE_ADDR", &address);
        self.add("REMOTE_HOST", address);
        self.add("REMOTE_PORT", port);
        // A token without a name does not identify a user.
        if origin.principal.is_person() {
            self.add("REMOTE_USER", origin.principal.to_string());
        }
        if origin.is_encrypted {
            self.add("HTTPS", "on");
        }
        let host = String::from_utf8_lossy(request.header("host").unwrap_or_default());
        let default_port = if origin.is_encrypted { "443" } else { "80" };
        let (name, port) = match host.rsplit_once(':') {
            // A colon inside the brackets of an IPv6 address does not begin a port.
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (name, port),
            _ => (&*host, ""),
        };
        self.add("SERVER_NAME", name);
        self.add(
            "SERVER_PORT",
            if port.is_empty() { default_port } else { port },
        );
        self.add("SERVER_PROTOCOL", "HTTP/1.1");
        self.add(
            "SERVER_SOFTWARE",
            concat!("outrigger/", env!("CARGO_PKG_VERSION")),
        );
        self.add("GATEWAY_INTERFACE", "CGI/1.1");
        self.add("REQUEST_METHOD", request.method());
        self.add("UNIQUE_ID", random_uuid().to_string());
        let path = request.path();
        let below = endpoint.below(path).unwrap_or_default();
        self.add("SCRIPT_NAME", path.strip_suffix(below).unwrap_or(path));
        self.add("PATH_INFO", OsString::from_vec(percent_decode(below)));
        let query = request.query().unwrap_or_default();
        let shown = query
            .split('&')
            .filter(|pair| is_shown(origin.access, pair));
        let query = shown.collect::<Vec<_>>().join("&");
        let uri = match &*query {
            "" => path.to_owned(),
            query => format!("{path}?{query}"),
        };
        self.add("REQUEST_URI", uri);
        self.add("QUERY_STRING", query);
    }

    /// Adds the header fields. Fields of one name are one list (RFC 9110 section 5.3).
    fn add_fields(&mut self, origin: &Origin<'_>, request: &Request<'_>) {
        let access = origin.access;
        let first = self.0.len();
        for (name, value) in request.headers() {
            // Another character could make two names the same variable.
            let is_plain = name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            let is = |other: &str| name.eq_ignore_ascii_case(other);
            let is_hidden = HIDDEN_FIELDS.iter().any(|hidden| is(hidden))
                || access.token_header.as_deref().is_some_and(is)
                || origin.auth_header.is_some_and(is)
                || access.reveals(&String::from_utf8_lossy(value));
            let mut value = value.to_vec();
            if is("sec-websocket-protocol") {
                let text = String::from_utf8_lossy(&value);
                let offered = text.split(',').map(str::trim);
                let real: Vec<&str> = offered.filter(|name| !is_token_protocol(name)).collect();
                value = real.join(", ").into();
                if value.is_empty() {
                    continue;
                }
            } else if is_hidden {
                continue;
            }
            if !is_plain {
                continue;
            }
            let variable = format!("{FIELD}{}", name.to_ascii_uppercase().replace('-', "_"));
            match self.0[first..]
                .iter_mut()
                .find(|(name, _)| *name == variable)
            {
                Some((_, values)) => {
                    values.push(", ");
                    values.push(OsStr::from_bytes(&value));
                }
                None => self.add(variable, OsString::from_vec(value)),
            }
        }
    }

    /// Adds a variable, unless its value has a NUL, which no variable can have.
    fn add(&mut self, name: impl Into<String>, value: impl AsRef<OsStr>) {
        let value = value.as_ref();
        if !value.as_bytes().contains(&0) {
            self.0.push((name.into(), value.to_owned()));
        }
    }

    /// Sets the environment of a program: that of the server, with these variables.
    pub(super) fn apply(self, command: &mut Command) {
        let is_ours = |name: &str| VARIABLES.contains(&name) || name.starts_with(FIELD);
        command
            .environment
            .retain(|name, _| !name.to_str().is_some_and(is_ours));
        for (name, value) in self.0 {
            command.env(name, value);
        }
    }
}

/// Whether a parameter of the query is passed on.
fn is_shown(access: &Access, pair: &str) -> bool {
    let name = pair.split('=').next().unwrap_or_default();
    !HIDDEN_PARAMETERS.contains(&&*percent_decode(name)) && !access.reveals(pair)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;
    use std::sync::Arc;

    use super::*;
    use crate::Token;

    fn variables(origin: &Origin<'_>, endpoint: &str, head: &str) -> BTreeMap<String, String> {
        let head = format!("{head}\r\n\r\n");
        let request = Request::parse(head.as_bytes()).expect("valid");
        let endpoint = endpoint.parse().expect("an endpoint");
        let Environment(variables) = Environment::of(origin, &endpoint, &request);
        let count = variables.len();
        let text = |value: OsString| value.to_string_lossy().into_owned();
        let variables = variables
            .into_iter()
            .map(|(name, value)| (name, text(value)));
        let variables: BTreeMap<_, _> = variables.collect();
        assert_eq!(variables.len(), count, "no variable is set twice");
        variables
    }

    fn origin(access: &Access) -> Origin<'_> {
        let address: SocketAddr = "192.0.2.1:50000".parse().expect("an address");
        Origin {
            remote: Some(address.into()),
            principal: Principal::Named(Arc::from("ada")),
            is_encrypted: true,
            access,
            auth_header: Some("X-User"),
        }
    }

    #[test]
    fn the_variables_describe_the_request() {
        let access = Access::default();
        let head = "GET /live/a%20b/c?x=1&y HTTP/1.1\r\nHost: example.org:8443\r\nX-A: 1\r\nx-a: 2\r\nOrigin: http://o";
        let found = variables(&origin(&access), "/live/...", head);
        for (name, value) in [
            ("REMOTE_ADDR", "192.0.2.1"),
            ("REMOTE_HOST", "192.0.2.1"),
            ("REMOTE_PORT", "50000"),
            ("REMOTE_USER", "ada"),
            ("HTTPS", "on"),
            ("SERVER_NAME", "example.org"),
            ("SERVER_PORT", "8443"),
            ("SERVER_PROTOCOL", "HTTP/1.1"),
            ("GATEWAY_INTERFACE", "CGI/1.1"),
            ("REQUEST_METHOD", "GET"),
            ("SCRIPT_NAME", "/live"),
            ("PATH_INFO", "/a b/c"),
            ("REQUEST_URI", "/live/a%20b/c?x=1&y"),
            ("QUERY_STRING", "x=1&y"),
            ("HTTP_X_A", "1, 2"),
            ("HTTP_ORIGIN", "http://o"),
            ("HTTP_HOST", "example.org:8443"),
        ] {
            assert_eq!(found.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(found["SERVER_SOFTWARE"].starts_with("outrigger/"));
        assert_eq!(found["UNIQUE_ID"].len(), 36);
        for name in found.keys().filter(|name| !name.starts_with(FIELD)) {
            assert!(
                VARIABLES.contains(&name.as_str()),
                "{name} could be inherited"
            );
        }
    }

    #[test]
    fn a_client_of_a_unix_socket_has_no_address() {
        let access = Access::default();
        let from = Origin {
            remote: None,
            principal: Principal::Token,
            is_encrypted: false,
            access: &access,
            auth_header: None,
        };
        let found = variables(&from, "/...", "GET /x HTTP/1.1\r\nHost: [::1]");
        let get = |name: &str| found.get(name).map(String::as_str);
        assert_eq!(
            (get("REMOTE_ADDR"), get("REMOTE_PORT")),
            (Some("unix:"), Some(""))
        );
        assert_eq!(
            (get("SERVER_NAME"), get("SERVER_PORT")),
            (Some("[::1]"), Some("80"))
        );
        assert_eq!(
            (get("SCRIPT_NAME"), get("PATH_INFO")),
            (Some(""), Some("/x"))
        );
        assert_eq!((get("REMOTE_USER"), get("HTTPS")), (None, None));
        assert_eq!(
            (get("QUERY_STRING"), get("REQUEST_URI")),
            (Some(""), Some("/x"))
        );
    }

    #[test]
    fn secrets_are_left_out() {
        let access = Access {
            tokens: Token::new("s3cret-token-0123").expect("valid").into(),
            token_header: Some("X-Key".to_owned()),
            ..Access::default()
        };
        let head = "GET /?a=1&token=s3cret-token-0123&%74oken=x&resume=new&received=3&notice=1&b=s3cret%2Dtoken-0123&c HTTP/1.1\r\n\
             Host: h\r\nAuthorization: Bearer q1\r\nPROXY: q2\r\nProxy-Authorization: q3\r\nCookie: q4\r\n\
             Set-Cookie: q5\r\nOutrigger-Resume: q6\r\nSec-WebSocket-Key: q7\r\nX-Key: q8\r\nX-Other: s3cret-token-0123\r\n\
             Sec-WebSocket-Protocol: chat, outrigger.token.q9\r\nX_Under: q0\r\nx-user: q\r\nX-Forwarded-For: 198.51.100.1";
        let found = variables(&origin(&access), "/...", head);
        let fields: Vec<_> = found
            .keys()
            .filter(|name| name.starts_with(FIELD))
            .collect();
        let expected = [
            "HTTP_HOST",
            "HTTP_SEC_WEBSOCKET_PROTOCOL",
            "HTTP_X_FORWARDED_FOR",
        ];
        assert_eq!(fields, expected);
        assert_eq!(found["HTTP_SEC_WEBSOCKET_PROTOCOL"], "chat");
        assert_eq!(
            (&*found["QUERY_STRING"], &*found["REQUEST_URI"]),
            ("a=1&c", "/?a=1&c")
        );
        let all = format!("{found:?}");
        assert!(!all.contains("s3cret") && !all.contains("q"), "{all}");
    }

    #[test]
    fn a_value_with_nul_is_left_out_and_a_large_request_is_rejected() {
        let access = Access::default();
        let found = variables(&origin(&access), "/...", "GET /a%00b HTTP/1.1\r\nHost: h");
        assert_eq!(found.get("PATH_INFO"), None);
        assert_eq!(found["REQUEST_URI"], "/a%00b");
        for (length, status) in [(MAX_REQUEST / 2, None), (MAX_REQUEST, Some(431))] {
            let field = "x".repeat(length);
            let head = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {field}\r\n\r\n");
            let request = Request::parse(head.as_bytes()).expect("valid");
            let rejected = check_size(&request).err();
            assert_eq!(rejected.map(|rejection| rejection.status.0), status);
        }
    }
}
