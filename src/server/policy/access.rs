//! Who comes in: the one guard before every upgrade and every call.
//!
//! A server on loopback is reached by every web page in a browser on the same machine and by every user of it. What
//! tells them from the ones it is meant for:
//!
//! * *Host*: a page that has its own name resolve to our address (DNS rebinding) says that name. Only names that we know
//!   pass.
//! * *Origin*: a page says where it comes from. Only our own origin and those that are listed pass. Programs that are no
//!   browser say nothing, and pass. A page that passes may read the answers to its calls (CORS).
//! * *Token*: a secret that whoever is let in knows. It can come in ways that fit a program, a proxy, a link or a
//!   browser's WebSocket, which can set no header.
//!
//! A unix socket is guarded by its file mode: neither token nor Host are asked for there, but a proxy behind which
//! browsers are passes their Origin on.

use std::borrow::Cow;
use std::net::IpAddr;

use uuid::Uuid;

use crate::protocol::{Rejection, Request, StatusCode};
use crate::server::listener::ListenAddress;

/// The beginning of the name of a subprotocol that carries the token.
const TOKEN_PROTOCOL: &str = "outrigger.token.";

/// A token of this length does not stand in a path by chance, as `shell` might.
const LONG: usize = 16;

/// A secret that clients present. It shows itself to nobody, not even in a debug log.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Box<str>);

impl Token {
    /// A token that somebody has chosen; `None` if it is empty or could not come in a header: it has to be visible ASCII.
    pub fn new(secret: &str) -> Option<Self> {
        let valid = !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_graphic());
        valid.then(|| Self(secret.into()))
    }

    /// A fresh one, with 244 bits that nobody can guess.
    pub fn generate() -> Self {
        let (first, second) = (Uuid::new_v4(), Uuid::new_v4());
        Self(format!("{}{}", first.simple(), second.simple()).into())
    }

    /// The secret itself, for the one who is to present it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Compares in a time that does not depend on how much is the same.
    fn is(&self, presented: &[u8]) -> bool {
        let own = self.0.as_bytes();
        own.len() == presented.len()
            && own
                .iter()
                .zip(presented)
                .fold(0, |difference, (a, b)| difference | (a ^ b))
                == 0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Whom a server lets in. The default asks for no token, lets in programs that are no browser and pages of the server's
/// own origin, under the names of loopback and of the addresses that it listens on.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The secret that clients have to present; `None` for none.
    pub token: Option<Token>,
    /// One more header field that may carry it.
    pub token_header: Option<String>,
    /// Origins that may come beside the server's own, as browsers write them: `https://example.com`, `null`. `*` is all.
    pub origins: Vec<String>,
    /// Names that clients may use for the server beside those of loopback and of its addresses, without a port. `*` is
    /// all.
    pub hosts: Vec<String>,
}

impl Access {
    /// Lets a request in, or says why not. `listen` is where the server listens; `unix` says that it came through a
    /// unix socket.
    pub(in crate::server) fn check(
        &self,
        request: &Request<'_>,
        listen: &[ListenAddress],
        unix: bool,
    ) -> Result<(), Rejection> {
        self.check_source(request, listen, unix)?;
        let long = |token: &Token| token.0.len() >= LONG;
        if self.token.as_ref().is_some_and(long) && self.reveals(request.path()) {
            // Paths are logged and passed on.
            let why = "the token does not belong into the path";
            return Err(Rejection::new(StatusCode::BAD_REQUEST, why));
        }
        match &self.token {
            // A browser that asks beforehand shows no token yet.
            Some(token) if !unix && !request.is_preflight() && !self.presents(request, token) => {
                Err(unauthorized())
            }
            _ => Ok(()),
        }
    }

    /// Whether a request shows the token, or none is required.
    pub(in crate::server) fn authenticates(&self, request: &Request<'_>, unix: bool) -> bool {
        match &self.token {
            Some(token) => unix || self.presents(request, token),
            None => true,
        }
    }

    /// Whether a request may come for whom and from where it does: its Host and Origin.
    fn check_source(
        &self,
        request: &Request<'_>,
        listen: &[ListenAddress],
        unix: bool,
    ) -> Result<(), Rejection> {
        let host = host(request);
        if !unix && !self.knows_host(host, listen) {
            return Err(Rejection::new(
                StatusCode::FORBIDDEN,
                "this Host is not served here (--allow-host)",
            )
            .because("host")
            .detail(self.shown(host.as_bytes())));
        }
        if let Some(origin) = request.header("origin")
            && self.known_origin(request, listen).is_none()
        {
            return Err(Rejection::new(
                StatusCode::FORBIDDEN,
                "this Origin is not let in (--allow-origin)",
            )
            .because("origin")
            .detail(self.shown(origin)));
        }
        Ok(())
    }

    fn knows_host(&self, authority: &str, listen: &[ListenAddress]) -> bool {
        let name = host_name(authority);
        if self
            .hosts
            .iter()
            .any(|known| known == "*" || known.eq_ignore_ascii_case(name))
        {
            return true;
        }
        let bracketed = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'));
        let ip = match bracketed {
            Some(ip) => ip.parse().map(IpAddr::V6),
            None => name.parse().map(IpAddr::V4),
        };
        let Ok(ip) = ip else {
            return name.eq_ignore_ascii_case("localhost");
        };
        // An address cannot be made to mean another one. Where we listen on all of them, any may be ours.
        ip.to_canonical().is_loopback()
            || listen.iter().filter_map(ListenAddress::tcp).any(|own| {
                own.ip().is_unspecified() || own.ip().to_canonical() == ip.to_canonical()
            })
    }

    /// The origin of a request, if it has one that may come. The server's own is one whose name it knows as its own.
    pub(in crate::server) fn known_origin<'a>(
        &self,
        request: &'a Request<'_>,
        listen: &[ListenAddress],
    ) -> Option<Cow<'a, str>> {
        let origin = String::from_utf8_lossy(request.header("origin")?);
        let listed = self
            .origins
            .iter()
            .any(|known| known == "*" || known.eq_ignore_ascii_case(&origin));
        let authority = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        let host = host(request);
        let own = authority.is_some_and(|own| own.eq_ignore_ascii_case(host));
        (listed || (own && self.knows_host(host, listen))).then_some(origin)
    }

    /// Whether a request carries the token, anywhere that it may.
    fn presents(&self, request: &Request<'_>, token: &Token) -> bool {
        let bearer = request.header("authorization").and_then(bearer);
        let named = self
            .token_header
            .as_deref()
            .and_then(|name| request.header(name));
        if bearer.is_some_and(|presented| token.is(presented))
            || named.is_some_and(|presented| token.is(presented))
        {
            return true;
        }
        request
            .parameters("token")
            .any(|presented| token.is(presented.as_bytes()))
            || request
                .list("sec-websocket-protocol")
                .filter_map(|name| name.strip_prefix(TOKEN_PROTOCOL))
                .any(|presented| token.is(presented.as_bytes()))
    }

    /// A field of a request, for the log: truncated, and with unprintable characters escaped.
    fn shown(&self, value: &[u8]) -> String {
        /// Longer than any name.
        const MOST: usize = 256;
        let shown = String::from_utf8_lossy(&value[..value.len().min(MOST)]);
        if self.reveals(&shown) {
            return "(not shown: it contains the token)".to_owned();
        }
        format!("{shown:?}")
    }

    /// Whether a text has the token in it, in any way that a client or a proxy may have put it there.
    pub(crate) fn reveals(&self, text: &str) -> bool {
        let Some(token) = &self.token else {
            return false;
        };
        let has = |text: &[u8]| {
            let mut windows = text.windows(token.0.len());
            windows.any(|window| window.eq_ignore_ascii_case(token.0.as_bytes()))
        };
        has(text.as_bytes()) || has(&percent_decode(text))
    }
}

/// 401 for a token that is missing or wrong.
fn unauthorized() -> Rejection {
    Rejection::new(
        StatusCode::UNAUTHORIZED,
        "the token is missing or wrong; it comes as 'Authorization: Bearer', '?token=' or the subprotocol 'outrigger.token.'",
    )
    .field("WWW-Authenticate", "Bearer")
}

/// Whether the name of a subprotocol is a token, and not a protocol.
pub(crate) fn is_token_protocol(name: &str) -> bool {
    name.starts_with(TOKEN_PROTOCOL)
}

/// A query without the token.
pub(crate) fn without_token(query: &str) -> String {
    let kept = query
        .split('&')
        .filter(|pair| !pair.starts_with("token=") && *pair != "token");
    kept.collect::<Vec<_>>().join("&")
}

/// What a request says whom it is for.
fn host<'a>(request: &'a Request<'_>) -> &'a str {
    let host = request.header("host").unwrap_or_default();
    std::str::from_utf8(host).unwrap_or_default()
}

/// The host of a host and a port.
fn host_name(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        // A colon inside the brackets of an IPv6 address is no port's.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    }
}

/// The token of `Authorization: Bearer` (RFC 6750 section 2.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

/// The bytes that a percent-encoded text stands for. What is no encoding stands for itself.
fn percent_decode(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let hex = |at: usize| {
            after
                .get(at)
                .and_then(|digit| char::from(*digit).to_digit(16))
        };
        rest = match (byte, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high << 4 | low) as u8);
                &after[2..]
            }
            _ => {
                decoded.push(*byte);
                after
            }
        };
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(access: &Access, fields: &str, target: &str, unix: bool) -> u16 {
        outcome_of("GET", access, fields, target, unix)
    }

    fn outcome_of(method: &str, access: &Access, fields: &str, target: &str, unix: bool) -> u16 {
        let head = format!("{method} {target} HTTP/1.1\r\n{fields}\r\n");
        let request = Request::parse(head.as_bytes()).expect(&head);
        let listen = [ListenAddress::Tcp(
            "10.1.2.3:7070".parse().expect("an address"),
        )];
        match access.check(&request, &listen, unix) {
            Ok(()) => 200,
            Err(rejection) => rejection.status.0,
        }
    }

    #[test]
    fn every_combination_of_host_origin_token_and_listener_has_its_answer() {
        let access = Access {
            token: Token::new("s3cret"),
            token_header: Some("X-Auth".to_owned()),
            origins: vec![
                "https://app.example".to_owned(),
                "vscode-webview://x".to_owned(),
            ],
            hosts: vec!["agent.example".to_owned()],
        };
        let hosts = [
            ("localhost:7070", true),
            ("LOCALHOST", true),
            ("127.0.0.1:7070", true),
            ("127.1.1.1", true),
            ("[::1]:7070", true),
            ("10.1.2.3:7070", true),
            ("agent.example:443", true),
            ("10.1.2.4", false),
            ("evil.example:7070", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("localhost:evil.example", false),
            ("[[::1]]:7070", false),
            ("::1", false),
            ("", false),
        ];
        let origins = [
            (None, true),
            (Some("https://app.example"), true),
            (Some("vscode-webview://x"), true),
            (Some("https://app.example:444"), false),
            (Some("https://evil.example"), false),
            (Some("null"), false),
            (Some(""), false),
        ];
        let tokens = [
            ("", "/", false),
            ("Authorization: Bearer s3cret\r\n", "/", true),
            ("Authorization: bearer  s3cret\r\n", "/", true),
            ("Authorization: Basic s3cret\r\n", "/", false),
            ("X-Auth: s3cret\r\n", "/", true),
            ("X-Auth: s3cre\r\n", "/", false),
            ("", "/?a=b&token=s3cret", true),
            ("", "/?token=s%33cret", true),
            ("", "/?token=S3cret", false),
            ("", "/?xtoken=s3cret", false),
            (
                "Sec-WebSocket-Protocol: chat, outrigger.token.s3cret\r\n",
                "/",
                true,
            ),
            ("Sec-WebSocket-Protocol: outrigger.token.\r\n", "/", false),
        ];
        for (host, known) in hosts {
            for (origin, listed) in origins {
                for (credential, target, right) in tokens {
                    for unix in [false, true] {
                        let origin_field =
                            origin.map_or(String::new(), |origin| format!("Origin: {origin}\r\n"));
                        let fields = format!("Host: {host}\r\n{origin_field}{credential}");
                        let expected = match () {
                            () if !unix && !known => 403,
                            () if !listed => 403,
                            () if !unix && !right => 401,
                            () => 200,
                        };
                        assert_eq!(
                            outcome(&access, &fields, target, unix),
                            expected,
                            "{unix} {fields} {target}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_browser_may_ask_beforehand_without_the_token_and_nobody_else() {
        let access = Access {
            token: Token::new("s3cret"),
            origins: vec!["https://app.example".to_owned()],
            ..Access::default()
        };
        let asks = "Access-Control-Request-Method: POST\r\n";
        let listed = "Origin: https://app.example\r\n";
        let upgrade = "Upgrade: websocket\r\n";
        for (method, fields, expected) in [
            ("OPTIONS", format!("{listed}{asks}"), 200),
            (
                "OPTIONS",
                format!("Origin: https://evil.example\r\n{asks}"),
                403,
            ),
            ("OPTIONS", asks.to_owned(), 401),
            ("OPTIONS", listed.to_owned(), 401),
            ("OPTIONS", format!("{listed}{asks}{upgrade}"), 401),
            ("POST", format!("{listed}{asks}"), 401),
        ] {
            let known = format!("Host: localhost\r\n{fields}");
            assert_eq!(outcome_of(method, &access, &known, "/", false), expected);
            let foreign = format!("Host: evil.example\r\n{fields}");
            assert_eq!(outcome_of(method, &access, &foreign, "/", false), 403);
        }
    }

    #[test]
    fn a_servers_own_origin_is_the_one_it_was_asked_by() {
        let access = Access {
            hosts: vec!["shell.example".to_owned()],
            ..Access::default()
        };
        for (host, origin, expected) in [
            ("shell.example", "http://shell.example", 200),
            ("localhost:7070", "http://localhost:7070", 200),
            ("shell.example", "https://shell.example", 200),
            ("localhost:7070", "http://localhost:8000", 403),
            ("localhost:7070", "http://127.0.0.1:7070", 403),
            // A page whose name was made to mean our address: its Origin equals its Host, and neither is known.
            ("evil.example:7070", "http://evil.example:7070", 403),
            ("localhost:7070", "ftp://localhost:7070", 403),
        ] {
            let fields = format!("Host: {host}\r\nOrigin: {origin}\r\n");
            assert_eq!(outcome(&access, &fields, "/", false), expected, "{fields}");
            // Behind a unix socket is a proxy: any Host may come, but it is nobody's own unless it is known.
            assert_eq!(outcome(&access, &fields, "/", true), expected, "{fields}");
        }
        let any = Access {
            origins: vec!["*".to_owned()],
            hosts: vec!["*".to_owned()],
            ..Access::default()
        };
        assert_eq!(
            outcome(&any, "Host: x\r\nOrigin: null\r\n", "/", false),
            200
        );
    }

    #[test]
    fn a_token_is_never_shown_and_never_passed_on() {
        let token = Token::generate();
        assert_eq!(token.reveal().len(), 64);
        assert_ne!(token, Token::generate());
        assert!(!format!("{token:?}").contains(token.reveal()));
        assert_eq!(
            (Token::new(""), Token::new("a b"), Token::new("a\n")),
            (None, None, None)
        );
        assert_eq!(without_token("a=b&token=x&c"), "a=b&c");
        assert_eq!(without_token("token=x"), "");
        let access = Access {
            token: Token::new("s3cret"),
            ..Access::default()
        };
        for text in ["s3cret", "http://h/?token=s3cret", "x%733cretx", "S3CRET"] {
            assert!(access.reveals(text), "{text}");
        }
        assert!(!access.reveals("s3cre") && !Access::default().reveals("s3cret"));
        // Where a short one stands in a path that may be the path's name; a long one is there by mistake.
        for (secret, expected) in [("acp", 200), ("0123456789abcdef", 400)] {
            let access = Access {
                token: Token::new(secret),
                ..Access::default()
            };
            let target = format!("/{secret}?token={secret}");
            assert_eq!(
                outcome(&access, "Host: localhost\r\n", &target, false),
                expected
            );
        }
    }
}
