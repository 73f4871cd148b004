//! The URL of a server to connect to.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::server::access::Token;

/// The maximum length of a host name (RFC 1035 section 2.3.4).
const MAX_HOST: usize = 255;

/// The URL of a server. The scheme is `ws` or, with the feature `tls`, `wss`, for a WebSocket (RFC 6455 section 3), and `http` or `https`
/// for HTTP requests; [`Context::connect`](crate::Context::connect) treats them alike. The URL of a unix socket has the form of npm's
/// `ws`: `ws+unix:SOCKET:PATH`, or `http+unix:SOCKET:PATH`.
///
/// A token in the query (`?token=...`) is taken out and sent in a header field instead, so that it does not get into logs.
/// The text form of a target has no token.
///
/// ```
/// use outrigger::Target;
///
/// let target: Target = "wss://example.com/acp?x=1".parse()?;
/// assert_eq!((target.path(), target.is_tls()), ("/acp", true));
/// assert_eq!(target.to_string(), "wss://example.com/acp?x=1");
///
/// let target: Target = "ws+unix:/run/outrigger.sock:/acp?token=s3cret".parse()?;
/// assert!(target.token().is_some());
/// assert_eq!(target.to_string(), "ws+unix:/run/outrigger.sock:/acp");
///
/// assert!("ftp://example.com/".parse::<Target>().is_err());
/// # Ok::<(), outrigger::ParseTargetError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub(crate) place: Place,
    tls: bool,
    is_http: bool,
    /// The path, which starts with a slash.
    path: String,
    query: Option<String>,
    token: Option<Token>,
}

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A host name, or an IP address without brackets.
    Tcp { host: String, port: u16 },
    /// A unix socket.
    Unix(PathBuf),
}

impl Target {
    /// The path of the URL.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether the connection uses TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Whether the scheme is `http` or `https`, also for a unix socket.
    #[must_use]
    pub fn is_http(&self) -> bool {
        self.is_http
    }

    /// The token that was in the URL.
    #[must_use]
    pub fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// The last value of a parameter of the query, as it is in the URL.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let pairs = self.query.iter().flat_map(|query| query.rsplit('&'));
        let mut pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.find(|pair| pair.0 == name).map(|pair| pair.1)
    }

    /// Sets a parameter of the query, or replaces it. The name and the value must not need to be encoded.
    pub fn set_parameter(&mut self, name: &str, value: &str) {
        let is_other = |pair: &&str| pair.split('=').next() != Some(name);
        let query = self.query.take().unwrap_or_default();
        let mut pairs: Vec<&str> = query.split('&').filter(|pair| !pair.is_empty()).collect();
        pairs.retain(is_other);
        let new = format!("{name}={value}");
        pairs.push(&new);
        self.query = Some(pairs.join("&"));
    }

    /// Replaces the path, which starts with a slash. It must not need to be encoded.
    #[cfg(feature = "client")]
    pub(crate) fn set_path(&mut self, path: String) {
        self.path = path;
    }

    /// Where a redirect to `location` leads, if it stays on this server.
    #[cfg(feature = "client")]
    pub(crate) fn redirected(&self, location: &str) -> Option<Self> {
        let absolute = match location.starts_with('/') && !location.starts_with("//") {
            // What is not a valid URL then is not one here.
            true => format!("http://h{location}"),
            false => location.to_owned(),
        };
        let other: Self = absolute.parse().ok()?;
        let is_same = other.place == self.place && other.tls == self.tls && other.is_http;
        let is_relative = absolute.len() > location.len();
        (is_same || is_relative).then(|| Self {
            path: other.path,
            query: other.query,
            ..self.clone()
        })
    }

    /// The path and the query: the target of the request.
    pub(crate) fn request_target(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }

    /// The host and the port, for the Host field. The default port is omitted.
    pub(crate) fn authority(&self) -> String {
        match &self.place {
            Place::Tcp { host, port } if *port == default_port(self.tls) => bracketed(host),
            Place::Tcp { .. } => self.host_and_port(),
            Place::Unix(_) => "localhost".to_owned(),
        }
    }

    /// The host with the port.
    pub(crate) fn host_and_port(&self) -> String {
        match &self.place {
            Place::Tcp { host, port } => format!("{}:{port}", bracketed(host)),
            Place::Unix(_) => "localhost".to_owned(),
        }
    }

    /// The name of the server: that which its certificate must have.
    pub(crate) fn server_name(&self) -> &str {
        match &self.place {
            Place::Tcp { host, .. } => host,
            Place::Unix(_) => "localhost",
        }
    }
}

fn default_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

/// An IPv6 address in brackets; any other host unchanged.
fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.is_http, self.tls) {
            (false, false) => "ws",
            (false, true) => "wss",
            (true, false) => "http",
            (true, true) => "https",
        };
        let target = self.request_target();
        match &self.place {
            Place::Tcp { .. } => write!(f, "{scheme}://{}{target}", self.authority()),
            Place::Unix(socket) => write!(f, "{scheme}+unix:{}:{target}", socket.display()),
        }
    }
}

/// The text is not a URL that can be connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseTargetError(&'static str);

/// A URL with a user name, and perhaps a password.
const USER_NAME: &str = "a URL with a user name is not supported";

impl ParseTargetError {
    /// Whether the URL has a user name.
    #[cfg(feature = "client")]
    pub(crate) fn is_user_name(&self) -> bool {
        self.0 == USER_NAME
    }
}

impl fmt::Display for ParseTargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for ParseTargetError {}

impl FromStr for Target {
    type Err = ParseTargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |why| Err(ParseTargetError(why));
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return wrong("the URL contains characters that must be percent-encoded");
        }
        if text.contains('#') {
            return wrong("the URL must have no fragment ('#')");
        }
        let Some((scheme, rest)) = text.split_once(':') else {
            return wrong("the URL has no scheme; use ws://, wss:// or ws+unix:");
        };
        let scheme = scheme.to_ascii_lowercase();
        let (tls, is_unix) = match scheme.as_str() {
            "ws" | "http" => (false, false),
            "wss" | "https" => (true, false),
            "ws+unix" | "http+unix" => (false, true),
            "wss+unix" | "https+unix" => (true, true),
            _ => return wrong("the scheme of the URL is unknown; use ws://, wss:// or ws+unix:"),
        };
        if tls && !cfg!(feature = "tls") {
            return wrong("this build has no TLS, which wss:// needs");
        }
        let (place, target) = if is_unix {
            unix_place(rest)?
        } else {
            tcp_place(rest, tls)?
        };
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let path = if path.is_empty() { "/" } else { path };
        let (query, token) = split_token(query)?;
        Ok(Self {
            place,
            tls,
            is_http: scheme.starts_with("http"),
            path: path.to_owned(),
            query,
            token,
        })
    }
}

/// Reads `SOCKET:PATH`. A socket without a path has the path `/`.
fn unix_place(rest: &str) -> Result<(Place, &str), ParseTargetError> {
    // A browser's URL parser may write ws+unix:///run/x.sock.
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (socket, target) = match rest.split_once(":/") {
        Some((socket, target)) => (socket, &rest[rest.len() - target.len() - 1..]),
        None => (rest, "/"),
    };
    if socket.is_empty() || socket.contains('?') {
        return Err(ParseTargetError(
            "the URL of a unix socket has the form ws+unix:SOCKET:PATH",
        ));
    }
    Ok((Place::Unix(socket.into()), target))
}

/// Reads `//HOST:PORT/PATH`.
fn tcp_place(rest: &str, tls: bool) -> Result<(Place, &str), ParseTargetError> {
    let wrong = |why| Err(ParseTargetError(why));
    let Some(rest) = rest.strip_prefix("//") else {
        return wrong("the URL has no '//' after its scheme");
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    if authority.contains('@') {
        return wrong(USER_NAME);
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let Some((host, port)) = rest.split_once(']') else {
                return wrong("the URL has no ']' after its IPv6 address");
            };
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return wrong("the URL has no valid IPv6 address between '[' and ']'");
            }
            (host, port)
        }
        None => {
            let at = authority.find(':').unwrap_or(authority.len());
            authority.split_at(at)
        }
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    if host.is_empty() || host.len() > MAX_HOST || !host.bytes().all(is_name) {
        return wrong("the URL has no valid host");
    }
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => default_port(tls),
        Some(digits) if !digits.starts_with('+') => match digits.parse() {
            Ok(port) if port > 0 => port,
            _ => return wrong("the URL has no valid port"),
        },
        _ => return wrong("the URL has no valid port"),
    };
    let host = host.to_owned();
    Ok((Place::Tcp { host, port }, target))
}

/// Takes the token out of a query.
fn split_token(query: Option<&str>) -> Result<(Option<String>, Option<Token>), ParseTargetError> {
    let Some(query) = query else {
        return Ok((None, None));
    };
    let mut token = None;
    let mut kept = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.strip_prefix("token=") {
            Some(value) => {
                let decoded = percent_decoded(value).and_then(|text| Token::new(&text));
                let decoded =
                    decoded.ok_or(ParseTargetError("the token in the URL is not valid"))?;
                if token.replace(decoded).is_some() {
                    return Err(ParseTargetError("the URL has two tokens"));
                }
            }
            None => kept.push(pair),
        }
    }
    let query = (!kept.is_empty()).then(|| kept.join("&"));
    Ok((query, token))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let (digits, tail) = tail.split_first_chunk::<2>()?;
            let digits = std::str::from_utf8(digits)
                .ok()
                .filter(|_| digits.iter().all(u8::is_ascii_hexdigit))?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = tail;
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_split_into_its_parts() {
        for (text, place, target, host) in [
            ("ws://h", "h:80", "/", "h"),
            ("WS://h:8080?a=b", "h:8080", "/?a=b", "h:8080"),
            ("http://h:80/x/y?a&b", "h:80", "/x/y?a&b", "h"),
            ("ws://[::1]:7070/acp", "::1:7070", "/acp", "[::1]:7070"),
            (
                "ws://127.0.0.1/?token=a%2Bb&c=d",
                "127.0.0.1:80",
                "/?c=d",
                "127.0.0.1",
            ),
            (
                "ws+unix:/run/x.sock:/acp?q",
                "/run/x.sock",
                "/acp?q",
                "localhost",
            ),
            ("ws+unix:x.sock", "x.sock", "/", "localhost"),
            (
                "ws+unix:///run/a:b.sock:/p",
                "/run/a:b.sock",
                "/p",
                "localhost",
            ),
        ] {
            let parsed: Target = text.parse().expect(text);
            let at = match &parsed.place {
                Place::Tcp { host, port } => format!("{host}:{port}"),
                Place::Unix(socket) => socket.display().to_string(),
            };
            assert_eq!(at, place, "{text}");
            assert_eq!(parsed.request_target(), target, "{text}");
            assert_eq!(parsed.authority(), host, "{text}");
            let again: Target = parsed.to_string().parse().expect("its own text");
            assert_eq!(again.to_string(), parsed.to_string());
        }
    }

    #[test]
    fn the_token_is_taken_out_and_decoded() {
        let target: Target = "ws://h/?a=1&token=x%2by&b=2".parse().expect("a URL");
        assert_eq!(target.token().map(Token::reveal), Some("x+y"));
        assert_eq!(target.to_string(), "ws://h/?a=1&b=2");
        assert!(!format!("{target:?}").contains("x+y"));
    }

    #[test]
    fn a_parameter_is_set_or_replaced() {
        let mut target: Target = "ws://h/p".parse().expect("a URL");
        target.set_parameter("since", "7");
        target.set_parameter("x", "y");
        target.set_parameter("since", "9");
        assert_eq!(target.request_target(), "/p?x=y&since=9");
    }

    #[cfg(feature = "client")]
    #[test]
    fn a_redirect_must_stay_on_the_server() {
        let target: Target = "http://h:8000/mcp?token=s3cret".parse().expect("a URL");
        for (location, leads) in [
            ("/mcp/", Some("/mcp/")),
            ("http://h:8000/mcp/?x=1", Some("/mcp/?x=1")),
            ("//other/mcp/", None),
            ("http://h/mcp/", None),
            ("https://h:8000/mcp/", None),
            ("ws://h:8000/mcp/", None),
            ("mcp/", None),
            ("/mcp/\r\nX: y", None),
        ] {
            let redirected = target.redirected(location);
            let path = redirected.as_ref().map(Target::request_target);
            assert_eq!(path.as_deref(), leads, "{location}");
            assert!(redirected.is_none_or(|one| one.token == target.token));
        }
    }

    #[test]
    fn anything_else_is_an_error_of_one_line() {
        for text in [
            "",
            "h",
            "h:80",
            "ftp://h/",
            "ws:h",
            "ws:///x",
            "ws://:80/",
            "ws://h:/",
            "ws://h:0/",
            "ws://h:65536/",
            "ws://h:+1/",
            "ws://u:p@h/",
            "ws://h/#f",
            "ws://h/ x",
            "ws://h/\r\n",
            "ws://h\u{e9}/",
            "ws://[::1/",
            "ws://[zz]/",
            "ws://a b/",
            "ws+unix:",
            "ws+unix::/x",
            "ws://h/?token=",
            "ws://h/?token=a&token=b",
            "ws://h/?token=%zz",
        ] {
            let error = text.parse::<Target>().expect_err(text).to_string();
            assert!(!error.contains('\n') && !error.ends_with('.'), "{error}");
        }
    }
}
