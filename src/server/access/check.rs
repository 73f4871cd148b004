//! Checks every request before it is upgraded or answered.
//!
//! Every web page in a browser on the same machine, and every user of the machine, can reach a server on loopback. Three
//! checks keep them out:
//!
//! * *Host*: with DNS rebinding, a page makes its own host name resolve to the server's address. Only known host names
//!   are accepted.
//! * *Origin*: a browser sends the origin of the page. Only the server's own origin and listed origins are accepted. A
//!   program that is not a browser sends none and is accepted. An accepted page may read the answers to its calls (CORS).
//! * *Token*: a secret, which a client can present in ways that suit a program, a proxy, a link or a browser's
//!   WebSocket, which cannot set headers. Its scope says which requests it allows.
//!
//! The file mode guards a unix socket, so its clients need neither a token nor a known Host. A proxy in front of the
//! socket may pass on requests of browsers, so their Origin is checked.

use std::borrow::Cow;
use std::net::IpAddr;

use super::credential::{Secret, TOKEN_PROTOCOL};
use super::links::Links;
use super::protected_resource::ProtectedResource;
use super::tokens::{CredentialId, Tokens};
use crate::protocol::{Rejection, Request, StatusCode};
use crate::server::ListenAddress;

/// The maximum number of tokens that are looked up for one request. Clients normally present one.
const MAX_PRESENTED: usize = 8;

/// What the log shows in place of a string that contains a token.
const HIDDEN: &str = "(not shown: it contains the token)";

/// Which clients may connect.
///
/// By default a server requires no token. It accepts programs that are not browsers, and pages of its own origin, under
/// the host names of loopback and of the addresses that it listens on.
///
/// ```
/// use outrigger::{Access, Token};
///
/// let mut access = Access::default();
/// access.tokens = Token::generate().into();
/// access.origins.push("https://example.com".to_owned());
/// access.hosts.push("agent.example.com".to_owned());
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Access {
    /// The tokens that clients may present. If there are none, clients need none.
    pub tokens: Tokens,
    /// An additional request header that may carry the token.
    pub token_header: Option<String>,
    /// The origins that are accepted in addition to the server's own, as browsers send them: `https://example.com` or
    /// `null`. `*` accepts all.
    pub origins: Vec<String>,
    /// The host names that are accepted in addition to those of loopback and of the server's addresses, without a port.
    /// `*` accepts all.
    pub hosts: Vec<String>,
    /// Where clients of OAuth learn how to get a token. `None` means that the server has no such document.
    pub protected_resource: Option<ProtectedResource>,
    /// What rejections suggest.
    pub(crate) hints: RejectionHints,
}

/// What to append to the message of a rejection, such as the option that would accept the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RejectionHints {
    pub(crate) host: &'static str,
    pub(crate) origin: &'static str,
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSource<'a> {
    /// Where the server listens.
    pub(crate) listen: &'a [ListenAddress],
    /// The links that the server has issued. Their tokens are secret, too.
    pub(crate) links: &'a Links,
    /// Whether it came through a unix socket whose mode limits who can connect.
    pub(crate) is_guarded: bool,
    /// Whether it came over TLS.
    pub(crate) is_encrypted: bool,
}

impl Access {
    /// Checks the Host and Origin of a request, and rejects it unless `is_authenticated`: it presented a known token, which
    /// [`Access::credential`] looks up, or needs none. `from` is how it came.
    pub(crate) fn check(
        &self,
        request: &Request<'_>,
        from: RequestSource<'_>,
        is_authenticated: bool,
    ) -> Result<(), Rejection> {
        self.check_source(request, from)?;
        if self.tokens.are_in_path(request.path()) || from.links.are_revealed_by(request.path()) {
            // The path is logged and passed on.
            let why = "the path must not contain the token";
            return Err(Rejection::new(StatusCode::BAD_REQUEST, why));
        }
        // A browser's preflight request carries no token.
        let needs_token = !self.tokens.is_empty() && !request.is_preflight();
        if needs_token && !is_authenticated {
            return Err(self.unauthorized(request, from));
        }
        Ok(())
    }

    /// Checks the Host and Origin of a request.
    fn check_source(
        &self,
        request: &Request<'_>,
        from: RequestSource<'_>,
    ) -> Result<(), Rejection> {
        let host = host(request);
        if !from.is_guarded && !self.knows_host(host, from.listen) {
            let message = format!("this Host is not accepted{}", self.hints.host);
            return Err(Rejection::new(StatusCode::FORBIDDEN, message)
                .because("host")
                .detail(self.shown(host.as_bytes(), from.links)));
        }
        if let Some(origin) = request.header("origin")
            && self.known_origin(request, from).is_none()
        {
            let message = format!("this Origin is not accepted{}", self.hints.origin);
            return Err(Rejection::new(StatusCode::FORBIDDEN, message)
                .because("origin")
                .detail(self.shown(origin, from.links)));
        }
        Ok(())
    }

    /// 401 for a token that is missing or wrong.
    fn unauthorized(&self, request: &Request<'_>, from: RequestSource<'_>) -> Rejection {
        let rejection = Rejection::new(
            StatusCode::UNAUTHORIZED,
            "the token is missing or wrong; it comes as 'Authorization: Bearer', '?token=' or the subprotocol 'outrigger.token.'",
        );
        let Some(resource) = &self.protected_resource else {
            return rejection.field("WWW-Authenticate", "Bearer");
        };
        let challenge = resource.challenge(host(request), from.is_encrypted);
        let rejection = rejection.field("WWW-Authenticate", challenge);
        if request.header("origin").is_none() {
            return rejection;
        }
        // Without this, a page cannot read the field.
        rejection.field("Access-Control-Expose-Headers", "WWW-Authenticate")
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
        // DNS rebinding requires a name, so an address is safe. A server that listens on all addresses may have any.
        ip.to_canonical().is_loopback()
            || listen.iter().filter_map(ListenAddress::tcp).any(|own| {
                own.ip().is_unspecified() || own.ip().to_canonical() == ip.to_canonical()
            })
    }

    /// The origin of a request, if it is accepted. The server's own origin is one that equals the Host and has a known
    /// host name; over TLS, its scheme is `https`.
    pub(crate) fn known_origin<'a>(
        &self,
        request: &'a Request<'_>,
        from: RequestSource<'_>,
    ) -> Option<Cow<'a, str>> {
        let origin = String::from_utf8_lossy(request.header("origin")?);
        let listed = self
            .origins
            .iter()
            .any(|known| known == "*" || known.eq_ignore_ascii_case(&origin));
        // A proxy in front may have terminated TLS, so `https` is accepted on plain connections, too.
        let unencrypted = origin
            .strip_prefix("http://")
            .filter(|_| !from.is_encrypted);
        let authority = unencrypted.or_else(|| origin.strip_prefix("https://"));
        let host = host(request);
        let own = authority.is_some_and(|own| own.eq_ignore_ascii_case(host));
        (listed || (own && self.knows_host(host, from.listen))).then_some(origin)
    }

    /// The tokens that a request presents, in each of the ways that are allowed.
    fn presented<'a>(&self, request: &'a Request<'_>) -> impl Iterator<Item = Cow<'a, [u8]>> {
        let bearer = request.header("authorization").and_then(bearer);
        let named = self
            .token_header
            .as_deref()
            .and_then(|name| request.header(name));
        let headers = bearer.into_iter().chain(named).map(Cow::Borrowed);
        let parameters = request
            .parameters("token")
            .map(|presented| match presented {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            });
        let protocols = request
            .list("sec-websocket-protocol")
            .filter_map(|name| name.strip_prefix(TOKEN_PROTOCOL))
            .map(|presented| Cow::Borrowed(presented.as_bytes()));
        headers
            .chain(parameters)
            .chain(protocols)
            .take(MAX_PRESENTED)
    }

    /// Whether a request presents any token, which may be wrong.
    pub(crate) fn presents_token(&self, request: &Request<'_>) -> bool {
        self.presented(request).next().is_some()
    }

    /// The credential that a request presents: the first of its tokens that is accepted.
    pub(crate) fn credential(&self, request: &Request<'_>) -> Option<CredentialId> {
        if self.tokens.is_empty() {
            return None;
        }
        self.presented(request)
            .find_map(|presented| self.tokens.matching(&presented))
    }

    /// The credential of the link whose token a request presents.
    pub(crate) fn link(&self, request: &Request<'_>, links: &Links) -> Option<CredentialId> {
        if links.is_empty() {
            return None;
        }
        self.presented(request)
            .find_map(|presented| links.matching(&Secret::digest_of(&presented)))
    }

    /// A header value for the log: truncated, and with unprintable characters escaped.
    fn shown(&self, value: &[u8], links: &Links) -> String {
        /// Longer than any host name.
        const MAX_SHOWN: usize = 256;
        let shown = String::from_utf8_lossy(&value[..value.len().min(MAX_SHOWN)]);
        match self.without_secrets(&shown, links) {
            HIDDEN => HIDDEN.to_owned(),
            shown => format!("{shown:?}"),
        }
    }

    /// The text for the log, or a note in its place if it contains a token.
    pub(crate) fn without_secrets<'a>(&self, text: &'a str, links: &Links) -> &'a str {
        if self.reveals(text) || links.are_revealed_by(text) {
            HIDDEN
        } else {
            text
        }
    }

    /// Whether a string contains one of the tokens, in any letter case or percent-encoded.
    pub(crate) fn reveals(&self, text: &str) -> bool {
        self.tokens.are_revealed_by(text)
    }
}

/// The Host header.
fn host<'a>(request: &'a Request<'_>) -> &'a str {
    let host = request.header("host").unwrap_or_default();
    std::str::from_utf8(host).unwrap_or_default()
}

/// The host name without the port.
fn host_name(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        // A colon inside the brackets of an IPv6 address does not begin a port.
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

/// Decodes a percent-encoded text. An invalid encoding stays as it is.
pub(crate) fn percent_decode(text: &str) -> Vec<u8> {
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
    use crate::Token;

    fn outcome(access: &Access, fields: &str, target: &str, unix: bool) -> u16 {
        outcome_of("GET", access, fields, target, unix)
    }

    fn outcome_of(method: &str, access: &Access, fields: &str, target: &str, unix: bool) -> u16 {
        let head = format!("{method} {target} HTTP/1.1\r\n{fields}\r\n");
        let request = Request::parse(head.as_bytes()).expect(&head);
        let listen = [ListenAddress::of_tcp(
            "10.1.2.3:7070".parse().expect("an address"),
        )];
        let links = Links::default();
        let from = RequestSource {
            listen: &listen,
            links: &links,
            is_guarded: unix,
            is_encrypted: false,
        };
        let is_authenticated = unix || access.credential(&request).is_some();
        match access.check(&request, from, is_authenticated) {
            Ok(()) => 200,
            Err(rejection) => rejection.status.0,
        }
    }

    #[test]
    fn every_combination_of_host_origin_token_and_listener_is_accepted_or_rejected() {
        let access = Access {
            tokens: Token::new("s3cret").into(),
            token_header: Some("X-Auth".to_owned()),
            origins: vec![
                "https://app.example".to_owned(),
                "vscode-webview://x".to_owned(),
            ],
            hosts: vec!["agent.example".to_owned()],
            ..Access::default()
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
    fn a_preflight_request_needs_no_token_and_every_other_request_does() {
        let access = Access {
            tokens: Token::new("s3cret").into(),
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
    fn the_servers_own_origin_equals_a_known_host() {
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
            // DNS rebinding: the Origin equals the Host, but the host name is not known.
            ("evil.example:7070", "http://evil.example:7070", 403),
            ("localhost:7070", "ftp://localhost:7070", 403),
        ] {
            let fields = format!("Host: {host}\r\nOrigin: {origin}\r\n");
            assert_eq!(outcome(&access, &fields, "/", false), expected, "{fields}");
            // A proxy may send any Host to a unix socket. An equal Origin is the server's own only if the host name is known.
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
    fn only_a_long_token_is_kept_out_of_the_path() {
        // A short token in a path may be the name of the path. A long one is there by mistake.
        for (secret, expected) in [("acp", 200), ("0123456789abcdef", 400)] {
            let access = with_token(secret);
            let target = format!("/{secret}?token={secret}");
            let outcome = outcome(&access, "Host: localhost\r\n", &target, false);
            assert_eq!(outcome, expected);
        }
    }

    #[test]
    fn the_first_tokens_of_a_request_are_looked_up() {
        let access = with_token("s3cret");
        let target = |wrong: usize| format!("/?{}token=s3cret", "token=wrong&".repeat(wrong));
        for (wrong, expected) in [(0, 200), (7, 200), (8, 401), (500, 401)] {
            let outcome = outcome(&access, "Host: localhost\r\n", &target(wrong), false);
            assert_eq!(outcome, expected);
        }
    }

    fn with_token(secret: &str) -> Access {
        Access {
            tokens: Token::new(secret).into(),
            ..Access::default()
        }
    }
}
