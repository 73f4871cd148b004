//! The head of a request: finds its end, parses it, and checks the rules that apply to every request.

use std::borrow::Cow;
use std::mem::MaybeUninit;

use super::rejection::{Rejection, StatusCode};
use super::trace::TraceParent;

/// The upper bound of [`Limits::max_headers`](crate::Limits::max_headers).
pub const MAX_HEADERS: usize = 128;

/// Fields that must not be repeated. A proxy could interpret a repeated field differently than this server.
const SINGLETONS: [&str; 9] = [
    "host",
    "origin",
    "authorization",
    "content-length",
    "content-type",
    "transfer-encoding",
    "sec-websocket-key",
    "sec-websocket-version",
    "sec-websocket-accept",
];

/// How the body of a request is delimited, RFC 9112 section 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// By its length in bytes. The length is 0 if the request does not mention a body.
    Length(u64),
    /// By chunks, of which the last one is empty.
    Chunked,
}

/// Finds the end of a request head in `fresh`, the bytes that follow `held`. Returns how many of them belong to the head,
/// or `None` if the head is incomplete.
///
/// # Errors
///
/// The head contains a byte that is not allowed, or it is longer than `max_head` bytes.
pub fn find_end(held: &[u8], fresh: &[u8], max_head: usize) -> Result<Option<usize>, Rejection> {
    const END: u32 = u32::from_be_bytes(*b"\r\n\r\n");
    let mut last = held[held.len().saturating_sub(4)..]
        .iter()
        .fold(0, |last, &byte| last << 8 | u32::from(byte));

    let mut at = 0;
    while let Some(&byte) = fresh.get(at) {
        // Most bytes are inside lines, and are checked several at a time.
        if let Some(run) = fresh[at..].first_chunk::<RUN>()
            && held.len() + at + RUN <= max_head
            && last & 0xff != u32::from(b'\r')
            && run
                .iter()
                .fold(true, |all, byte| all & is_inside_line(*byte))
        {
            last = u32::from_be_bytes(run[RUN - 4..].try_into().unwrap_or_default());
            at += RUN;
            continue;
        }
        if held.len() + at >= max_head {
            return Err(Rejection::new(
                StatusCode::HEADERS_TOO_LARGE,
                "the request head is too large",
            )
            .because("head_size"));
        }
        // A line ends only with CR LF. Control characters show that the bytes are not HTTP, but TLS for example.
        let after_cr = last & 0xff == u32::from(b'\r');
        if after_cr != (byte == b'\n')
            || (byte < 0x20 && !matches!(byte, b'\r' | b'\n' | b'\t'))
            || byte == 0x7f
        {
            return Err(Rejection::new(StatusCode::BAD_REQUEST, "malformed request"));
        }
        last = last << 8 | u32::from(byte);
        at += 1;
        if last == END {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// The number of bytes that are checked at a time, which fit into one vector register of most processors.
const RUN: usize = 16;

/// Whether a byte may be part of a line of a head, and does not end it.
fn is_inside_line(byte: u8) -> bool {
    (byte >= 0x20) & (byte != 0x7f)
}

/// A parsed request head. It borrows from the bytes of the head.
///
/// ```
/// use outrigger::Request;
///
/// let head = b"GET /chat?room=1 HTTP/1.1\r\nHost: localhost\r\nAccept: text/html, text/plain\r\n\r\n";
/// let request = Request::parse(head)?;
/// assert_eq!((request.method(), request.path()), ("GET", "/chat"));
/// assert_eq!(request.parameters("room").next().as_deref(), Some("1"));
/// assert_eq!(request.header("host"), Some(&b"localhost"[..]));
/// assert_eq!(request.list("accept").count(), 2);
/// assert!(!request.wants_websocket());
/// # Ok::<(), outrigger::Rejection>(())
/// ```
#[derive(Debug)]
pub struct Request<'a> {
    method: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    minor_version: u8,
    headers: Vec<httparse::Header<'a>>,
}

impl<'a> Request<'a> {
    /// Parses a complete head, including the empty line at its end, with at most [`MAX_HEADERS`] fields.
    ///
    /// # Errors
    ///
    /// The request is malformed, ambiguous or too large. The error is the response to it.
    pub fn parse(head: &'a [u8]) -> Result<Self, Rejection> {
        Self::parse_within(head, MAX_HEADERS)
    }

    /// Parses a complete head with at most `max_headers` fields. See [`Request::parse`].
    pub fn parse_within(head: &'a [u8], max_headers: usize) -> Result<Self, Rejection> {
        let (request, authority) = Self::read(head, max_headers)?;
        request.check_fields()?;
        // RFC 9112 section 3.2.2 prefers the target to Host. If they differ, the request is ambiguous.
        if let (Some(authority), Some(host)) = (authority, request.header("host"))
            && !host.eq_ignore_ascii_case(authority.as_bytes())
        {
            let why = "Host differs from the request target";
            return Err(Rejection::new(StatusCode::BAD_REQUEST, why));
        }
        Ok(request)
    }

    /// Parses a head again that [`Request::parse`] has accepted.
    #[cfg(feature = "server")]
    pub(crate) fn parse_again(head: &'a [u8]) -> Result<Self, Rejection> {
        Ok(Self::read(head, MAX_HEADERS)?.0)
    }

    /// Parses a complete head. Returns the authority, too, if the target has one.
    fn read(head: &'a [u8], max_headers: usize) -> Result<(Self, Option<&'a str>), Rejection> {
        let bad = |message: &'static str| Rejection::new(StatusCode::BAD_REQUEST, message);
        let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let headers = &mut headers[..max_headers.min(MAX_HEADERS)];
        let mut parsed = httparse::Request::new(&mut []);
        match parsed.parse_with_uninit_headers(head, headers) {
            Ok(httparse::Status::Complete(len)) if len == head.len() => {}
            Ok(_) => return Err(bad("malformed request")),
            Err(httparse::Error::TooManyHeaders) => {
                return Err(Rejection::new(
                    StatusCode::HEADERS_TOO_LARGE,
                    "too many header fields",
                )
                .because("head_fields"));
            }
            Err(httparse::Error::Version) if names_version(head) => {
                return Err(Rejection::new(
                    StatusCode::VERSION_NOT_SUPPORTED,
                    "HTTP/1.1 is required",
                ));
            }
            Err(_) => return Err(bad("malformed request")),
        }
        let (Some(method), Some(target), Some(minor_version)) =
            (parsed.method, parsed.path, parsed.version)
        else {
            return Err(bad("malformed request"));
        };
        let (target, authority) =
            origin_form(target).ok_or_else(|| bad("malformed request target"))?;
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let request = Self {
            method,
            path,
            query,
            minor_version,
            headers: parsed.headers.to_vec(),
        };
        Ok((request, authority))
    }

    /// The method.
    pub fn method(&self) -> &'a str {
        self.method
    }

    /// The path without the query, not decoded.
    pub fn path(&self) -> &'a str {
        self.path
    }

    /// Takes `base` off the beginning of the path, so that `/tools/x` below `/tools` becomes `/x`. Returns `false` if the path is not
    /// below `base`, and then changes nothing.
    #[cfg(feature = "server")]
    pub(crate) fn take_base(&mut self, base: &str) -> bool {
        let below = self.path.strip_prefix(base);
        let below = below.filter(|rest| rest.starts_with('/'));
        self.path = below.unwrap_or(self.path);
        below.is_some()
    }

    /// The query without the question mark, not decoded.
    pub fn query(&self) -> Option<&'a str> {
        self.query
    }

    /// The header fields in their order.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.headers
            .iter()
            .map(|header| (header.name, header.value))
    }

    /// The value of the first field with this name. Names are not case-sensitive.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers()
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// The position of the request in a distributed trace. A request with several `traceparent` fields has none.
    pub fn trace_parent(&self) -> Option<TraceParent> {
        let mut fields = self
            .headers()
            .filter(|(name, _)| name.eq_ignore_ascii_case("traceparent"));
        let (_, value) = fields.next()?;
        TraceParent::parse(value).filter(|_| fields.next().is_none())
    }

    /// The elements of all fields with this name, for a field whose value is a list (RFC 9110 section 5.6.1).
    pub fn list<'r>(&'r self, name: &'r str) -> impl Iterator<Item = &'a str> + 'r {
        self.headers()
            .filter(move |(field, _)| field.eq_ignore_ascii_case(name))
            .filter_map(|(_, value)| std::str::from_utf8(value).ok())
            .flat_map(|value| value.split(','))
            .map(|element| element.trim_matches([' ', '\t']))
            .filter(|element| !element.is_empty())
    }

    /// Whether a field such as Accept names something, and its weight is not 0 (RFC 9110 section 12.4.2).
    #[cfg(feature = "server")]
    pub(crate) fn accepts(&self, field: &str, name: &str) -> bool {
        let mut accepted = self.list(field);
        accepted.any(|one| {
            let mut parts = one.split(';').map(str::trim);
            let is_named = parts
                .next()
                .is_some_and(|one| one.eq_ignore_ascii_case(name));
            let is_zero = |weight: &str| weight.parse() == Ok(0.0_f32);
            is_named && !parts.any(|part| part.strip_prefix("q=").is_some_and(is_zero))
        })
    }

    /// Whether the connection stays open after the response. It never does with HTTP/1.0.
    pub fn keeps_alive(&self) -> bool {
        self.minor_version >= 1
            && !self
                .list("connection")
                .any(|token| token.eq_ignore_ascii_case("close"))
    }

    /// Whether the response may be chunked, which requires HTTP/1.1.
    pub fn takes_chunks(&self) -> bool {
        self.minor_version >= 1
    }

    /// Whether the client waits for a 100 response before it sends the body (RFC 9110 section 10.1.1).
    pub fn expects_continue(&self) -> bool {
        self.minor_version >= 1
            && self
                .header("expect")
                .is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"))
    }

    /// Whether the request asks for an upgrade to WebSocket. The handshake may still be invalid.
    pub fn wants_websocket(&self) -> bool {
        self.list("upgrade")
            .any(|token| token.eq_ignore_ascii_case("websocket"))
    }

    /// Whether the request is a CORS preflight request: a browser asks if a page of another origin may make a call.
    pub fn is_preflight(&self) -> bool {
        self.method() == "OPTIONS"
            && self.header("origin").is_some()
            && self.header("access-control-request-method").is_some()
            && !self.wants_websocket()
    }

    /// The values of a query parameter, percent-decoded. A parameter without `=` has an empty value.
    ///
    /// A plus sign is kept. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// ```
    /// use outrigger::Request;
    ///
    /// let request = Request::parse(b"GET /?name=J%C3%BCrgen&x HTTP/1.1\r\nHost: h\r\n\r\n")?;
    /// assert_eq!(request.parameters("name").next().as_deref(), Some("Jürgen"));
    /// assert_eq!(request.parameters("x").next().as_deref(), Some(""));
    /// assert_eq!(request.parameters("y").next(), None);
    /// # Ok::<(), outrigger::Rejection>(())
    /// ```
    pub fn parameters<'r>(&'r self, name: &'r str) -> impl Iterator<Item = Cow<'a, str>> + 'r {
        self.query
            .unwrap_or_default()
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .filter(move |(key, _)| percent_decode(key) == name)
            .map(|(_, value)| percent_decode(value))
    }

    /// Rejects a request whose head does not announce a JSON body. A browser sends the type `application/json` to another origin
    /// only after a CORS preflight request.
    ///
    /// # Errors
    ///
    /// 400 without a body, and 415 for any other type.
    pub fn expect_json_body(&self) -> Result<(), Rejection> {
        let length = self.header("content-length").unwrap_or(b"0");
        let is_empty = length.iter().all(|digit| *digit == b'0');
        if is_empty && self.header("transfer-encoding").is_none() {
            let why = "a JSON body is required";
            return Err(Rejection::new(StatusCode::BAD_REQUEST, why));
        }
        let media_type = self
            .header("content-type")
            .and_then(|value| value.split(|byte| *byte == b';').next())
            .unwrap_or_default();
        if media_type
            .trim_ascii()
            .eq_ignore_ascii_case(b"application/json")
        {
            return Ok(());
        }
        Err(Rejection::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the Content-Type must be application/json",
        ))
    }

    /// Rejects a request that has a body, before the body has arrived.
    ///
    /// # Errors
    ///
    /// 413, or the error of [`Request::framing`].
    #[cfg(feature = "server")]
    pub(crate) fn expect_no_body(&self) -> Result<(), Rejection> {
        if self.framing()? == Framing::Length(0) {
            return Ok(());
        }
        let why = "this path accepts no body";
        Err(Rejection::new(StatusCode::CONTENT_TOO_LARGE, why))
    }

    /// How the body is delimited.
    ///
    /// # Errors
    ///
    /// The fields are malformed or ambiguous. Ambiguous requests could be smuggled past proxies (RFC 9112 section 11.2).
    pub fn framing(&self) -> Result<Framing, Rejection> {
        let bad = |message: &'static str| Err(Rejection::new(StatusCode::BAD_REQUEST, message));
        let length = self.header("content-length");
        let Some(coding) = self.header("transfer-encoding") else {
            let Some(length) = length else {
                return Ok(Framing::Length(0));
            };
            let digits = std::str::from_utf8(length)
                .ok()
                .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
            return match digits.and_then(|digits| digits.parse().ok()) {
                Some(length) => Ok(Framing::Length(length)),
                None => bad("malformed Content-Length"),
            };
        };
        if length.is_some() {
            return bad("Content-Length and Transfer-Encoding cannot be combined");
        }
        if self.minor_version < 1 {
            return bad("Transfer-Encoding requires HTTP/1.1");
        }
        if !coding.eq_ignore_ascii_case(b"chunked") {
            return Err(Rejection::new(
                StatusCode::NOT_IMPLEMENTED,
                "the only supported transfer coding is chunked",
            ));
        }
        Ok(Framing::Chunked)
    }

    /// Checks the fields that every request must or must not have.
    fn check_fields(&self) -> Result<(), Rejection> {
        let bad = |message: String| Err(Rejection::new(StatusCode::BAD_REQUEST, message));
        let mut seen = [false; SINGLETONS.len()];
        for (name, _) in self.headers() {
            let Some(at) = SINGLETONS
                .iter()
                .position(|single| name.eq_ignore_ascii_case(single))
            else {
                continue;
            };
            if std::mem::replace(&mut seen[at], true) {
                return bad(format!("duplicate field {}", SINGLETONS[at]));
            }
        }
        // RFC 9112 section 3.2: an HTTP/1.1 request without Host, or with several, is answered with 400.
        if self.minor_version >= 1 && self.header("host").is_none() {
            return bad("Host is missing".to_owned());
        }
        if !self.header("host").is_none_or(is_host) {
            return bad("malformed Host".to_owned());
        }
        Ok(())
    }
}

/// Whether a request line ends with an HTTP version, supported or not. If anything else follows the second space, the
/// target contains a space.
fn names_version(head: &[u8]) -> bool {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let version = line.splitn(3, |byte| *byte == b' ').nth(2);
    let version = version.and_then(|version| version.strip_prefix(b"HTTP/"));
    version.is_some_and(|digits| matches!(digits, [b'0'..=b'9', b'.', b'0'..=b'9'] | [b'0'..=b'9']))
}

/// Whether a value has only characters that a host and a port can have (RFC 3986 section 3.2). It may be empty.
fn is_host(value: &[u8]) -> bool {
    value
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(byte))
}

/// Decodes percent-encoded text (RFC 3986 section 2.1). A percent sign without two digits is kept.
fn percent_decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let digit = |at: usize| {
            let digit = after.get(at)?;
            char::from(*digit).to_digit(16)
        };
        rest = match (byte, digit(0), digit(1)) {
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
    Cow::Owned(String::from_utf8_lossy(&decoded).into_owned())
}

/// Splits a request target into path with query, and the authority if there is one (RFC 9112 section 3.2). Returns
/// `None` for the forms of CONNECT and OPTIONS.
fn origin_form(target: &str) -> Option<(&str, Option<&str>)> {
    if target.contains('#') {
        return None;
    }
    if target.starts_with('/') {
        return Some((target, None));
    }
    let (scheme, rest) = target.split_once("://")?;
    if !["http", "https", "ws", "wss"]
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known))
    {
        return None;
    }
    match rest.find(['/', '?']) {
        None => Some(("/", Some(rest))),
        Some(at) if rest[at..].starts_with('/') => Some((&rest[at..], Some(&rest[..at]))),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] =
        b"GET /chat?x=1 HTTP/1.1\r\nHost: server.example.com\r\nAccept: */*\r\n\r\n";

    #[test]
    fn a_head_reads_the_same_when_it_is_parsed_again() {
        let absolute = b"POST http://h:1/a?b HTTP/1.0\r\nHost: h:1\r\nx: \xff\r\n\r\n";
        for head in [HEAD, absolute] {
            let [first, again] =
                [Request::parse(head), Request::parse_again(head)].map(|one| one.expect("valid"));
            assert_eq!(format!("{first:?}"), format!("{again:?}"));
        }
    }

    #[test]
    fn the_end_of_a_head_is_found_wherever_it_is_and_control_characters_are_not_allowed() {
        let line = "x".repeat(3 * RUN);
        for length in 0..line.len() {
            let head = format!("{}\r\n\r\n", &line[..length]);
            let long = format!("{head}{line}");
            let found = |max| find_end(b"", long.as_bytes(), max).ok().flatten();
            assert_eq!(
                (found(head.len()), found(head.len() - 1)),
                (Some(head.len()), None)
            );
            for bad in ["\n", "\r", "\0", "\x7f"] {
                let bad = format!("{}{bad}{line}", &line[..length]);
                assert!(find_end(b"", bad.as_bytes(), 1000).is_err());
            }
            assert!(matches!(
                find_end(b"", format!("{}\t{line}", &line[..length]).as_bytes(), 1000),
                Ok(None)
            ));
        }
    }

    #[test]
    fn parameters_are_decoded_once() {
        let head = b"GET /?a=%2525&%61=b+c&a=%e4%zz%&b=1&a HTTP/1.1\r\nHost: h\r\n\r\n";
        let request = Request::parse(head).expect("valid");
        let values: Vec<_> = request.parameters("a").collect();
        assert_eq!(values, ["%25", "b+c", "\u{fffd}%zz%", ""]);
        assert_eq!(request.parameters("c").next(), None);
    }

    #[test]
    fn a_target_with_scheme_and_authority_is_reduced_to_its_path() {
        for (target, path, query) in [
            ("/", "/", None),
            ("/a/b?c=d?e", "/a/b", Some("c=d?e")),
            ("http://h/x?y", "/x", Some("y")),
            ("ws://h", "/", None),
            ("/a?b=http://h/c", "/a", Some("b=http://h/c")),
        ] {
            let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
            let request = Request::parse(head.as_bytes()).expect("valid");
            assert_eq!((request.path(), request.query()), (path, query));
        }
    }

    #[test]
    fn ambiguous_requests_are_rejected() {
        for head in [
            "GET http://h?x=/healthz HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET http://other/ HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a b/c\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
        ] {
            let refused = Request::parse(head.as_bytes()).expect_err(head);
            assert_eq!(refused.status.0, 400, "{head}");
        }
    }

    #[test]
    fn the_end_of_a_head_does_not_depend_on_how_it_is_split() {
        let bytes = [HEAD, b"\x81\x80"].concat();
        for cut in 0..=HEAD.len() {
            let (held, fresh) = bytes.split_at(cut);
            let want = if cut == HEAD.len() {
                None
            } else {
                Some(HEAD.len() - cut)
            };
            if want.is_some() {
                assert_eq!(find_end(held, fresh, 1 << 14), Ok(want), "cut at {cut}");
                assert_eq!(find_end(b"", held, 1 << 14), Ok(None), "cut at {cut}");
            }
        }
    }

    #[test]
    fn bytes_that_are_not_http_are_rejected_early() {
        for bytes in [
            &b"\x16\x03\x01"[..],
            b"GET / HTTP/1.1\n",
            b"GET / HTTP/1.1\rX",
            b"GET /\0",
            b"\x7f",
        ] {
            assert_eq!(
                find_end(b"", bytes, 1 << 14).map_err(|rejection| rejection.status.0),
                Err(400),
                "{bytes:?}"
            );
        }
        let long = vec![b'a'; 101];
        assert_eq!(find_end(b"", &long[..100], 100), Ok(None));
        assert_eq!(
            find_end(b"", &long, 100).map_err(|rejection| rejection.status.0),
            Err(431)
        );
    }
}
