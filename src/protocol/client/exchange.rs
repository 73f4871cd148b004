//! One request and its response on an HTTP/1.1 connection, without I/O (RFC 9112). The body of the response is passed on as it
//! arrives, so its length has no limit here.

use std::time::Duration;

use super::response::ResponseHead;
use super::{HandshakeError, MAX_INTERIM};
use crate::protocol::Input;
use crate::protocol::http::{BodyDecoder, Framing, find_end, is_field, write_field};

/// A request of a client.
///
/// ```
/// use outrigger::protocol::client::HttpRequest;
///
/// let request = HttpRequest::new("POST", "application/json", b"{}".as_slice())
///     .with_field("Accept", "application/json");
/// assert!(request.is_valid());
/// assert!(!request.with_field("X", "a\r\nb").is_valid());
/// ```
#[derive(Clone, Debug)]
pub struct HttpRequest {
    method: &'static str,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    patience: Option<Duration>,
}

impl HttpRequest {
    /// A request with a body of this media type.
    pub fn new(method: &'static str, media_type: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: body.into(),
            ..Self::without_body(method)
        }
        .with_field("Content-Type", media_type)
    }

    /// A request without a body.
    #[must_use]
    pub fn without_body(method: &'static str) -> Self {
        Self {
            method,
            fields: Vec::new(),
            body: Vec::new(),
            patience: None,
        }
    }

    /// Adds a header field.
    #[must_use]
    pub fn with_field(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    /// Limits the time from the end of the request to the head of its response. Without this limit, the server may take as long as the
    /// connection lasts.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self {
            patience: Some(patience),
            ..self
        }
    }

    /// Whether the fields have the characters that HTTP allows.
    pub fn is_valid(&self) -> bool {
        let mut fields = self.fields.iter();
        fields.all(|(name, value)| is_field(name, value))
    }

    /// The limit of [`HttpRequest::with_patience`].
    pub fn patience(&self) -> Option<Duration> {
        self.patience
    }

    /// Whether the request sets a field itself.
    pub fn sets(&self, name: &str) -> bool {
        let mut fields = self.fields.iter();
        fields.any(|(own, _)| own.eq_ignore_ascii_case(name))
    }

    /// Writes the request. `fields` are those of every request to this server.
    pub fn write<'f>(
        &self,
        host: &str,
        target: &str,
        fields: impl Iterator<Item = (&'f str, &'f str)>,
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(self.method.as_bytes());
        out.push(b' ');
        out.extend_from_slice(target.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\n");
        write_field("Host", host, out);
        for (name, value) in fields {
            write_field(name, value, out);
        }
        for (name, value) in &self.fields {
            write_field(name, value, out);
        }
        // A method that usually has a body must not leave its length open (RFC 9110 section 8.6).
        if !self.body.is_empty() || self.method == "POST" {
            write_field("Content-Length", &self.body.len().to_string(), out);
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.body);
    }
}

/// What the response parser expects next.
#[derive(Debug)]
enum Awaits {
    /// The head of the response.
    Head,
    Body(BodyDecoder),
    /// A body that ends with the connection.
    Rest,
    Nothing,
}

/// A part of a response.
#[derive(Debug, PartialEq, Eq)]
pub enum ExchangeEvent<'a> {
    /// The head, for [`ResponseHead::parse`].
    Head(Vec<u8>),
    /// The next bytes of the body.
    Data(&'a [u8]),
    /// The response is complete.
    End {
        /// Whether the connection can carry another request.
        is_reusable: bool,
    },
    /// The response breaks a rule of HTTP.
    Failed(HandshakeError),
}

/// Parses the response to one request.
///
/// ```
/// use outrigger::protocol::Input;
/// use outrigger::protocol::client::{Exchange, ExchangeEvent};
///
/// let mut bytes = *b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
/// let mut input = Input::new(&mut bytes);
/// let mut exchange = Exchange::default();
/// let mut next = || exchange.receive(&mut input, 16 << 10);
/// assert!(matches!(next(), Some(ExchangeEvent::Head(_))));
/// assert_eq!(next(), Some(ExchangeEvent::Data(b"{}")));
/// assert_eq!(next(), Some(ExchangeEvent::End { is_reusable: true }));
/// ```
#[derive(Debug)]
pub struct Exchange {
    awaits: Awaits,
    /// The bytes of an incomplete head.
    held: Vec<u8>,
    interim: u8,
    is_reusable: bool,
}

impl Default for Exchange {
    fn default() -> Self {
        Self {
            awaits: Awaits::Head,
            held: Vec::new(),
            interim: 0,
            is_reusable: false,
        }
    }
}

impl Exchange {
    /// Consumes input up to the next event. A response head has at most `max_head` bytes. Returns `None` if more input is needed, or
    /// if the response has ended.
    pub fn receive<'a>(
        &mut self,
        input: &mut Input<'a>,
        max_head: usize,
    ) -> Option<ExchangeEvent<'a>> {
        let event = match &mut self.awaits {
            Awaits::Head => self.receive_head(input, max_head),
            Awaits::Body(body) if body.is_complete() => Ok(Some(self.end())),
            Awaits::Body(body) => match body.decode(input) {
                Ok(Some(piece)) => Ok(Some(ExchangeEvent::Data(piece))),
                Ok(None) if body.is_complete() => Ok(Some(self.end())),
                Ok(None) => Ok(None),
                Err(_) => Err("the body of the server's response is malformed"),
            },
            Awaits::Rest if input.is_empty() => Ok(None),
            Awaits::Rest => Ok(Some(ExchangeEvent::Data(input.take(input.len())))),
            Awaits::Nothing => Ok(None),
        };
        event.unwrap_or_else(|why| {
            self.awaits = Awaits::Nothing;
            input.clear();
            Some(ExchangeEvent::Failed(HandshakeError::Invalid(why)))
        })
    }

    /// The input has ended. Returns the event that this means.
    pub fn handle_end(&mut self) -> Option<ExchangeEvent<'static>> {
        match std::mem::replace(&mut self.awaits, Awaits::Nothing) {
            Awaits::Nothing => None,
            Awaits::Rest => Some(ExchangeEvent::End { is_reusable: false }),
            Awaits::Head | Awaits::Body(_) => Some(ExchangeEvent::Failed(HandshakeError::Eof)),
        }
    }

    /// Whether the head of the response has arrived, and its end has not.
    pub fn is_in_body(&self) -> bool {
        matches!(self.awaits, Awaits::Body(_) | Awaits::Rest)
    }

    /// Whether the response has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.awaits, Awaits::Nothing)
    }

    fn end(&mut self) -> ExchangeEvent<'static> {
        self.awaits = Awaits::Nothing;
        ExchangeEvent::End {
            is_reusable: self.is_reusable,
        }
    }

    fn receive_head(
        &mut self,
        input: &mut Input<'_>,
        max_head: usize,
    ) -> Result<Option<ExchangeEvent<'static>>, &'static str> {
        while !input.is_empty() {
            let end = find_end(&self.held, input.peek(), max_head)
                .map_err(|_| "the server's response is not HTTP, or its head is too large")?;
            let Some(end) = end else {
                self.held.extend_from_slice(input.take(input.len()));
                break;
            };
            let mut head = std::mem::take(&mut self.held);
            head.extend_from_slice(input.take(end));
            let response =
                ResponseHead::parse(&head).ok_or("the server's response is malformed")?;
            match response.status() {
                101 => return Err("the server changes to another protocol unasked"),
                // An interim response precedes the final one (RFC 9110 section 15.2).
                100..200 if self.interim == MAX_INTERIM => {
                    return Err("the server sends endless interim responses");
                }
                100..200 => self.interim += 1,
                _ => {
                    self.begin_body(&response, head.starts_with(b"HTTP/1.1"))?;
                    return Ok(Some(ExchangeEvent::Head(head)));
                }
            }
        }
        Ok(None)
    }

    /// Finds out how the body is delimited (RFC 9112 section 6.3).
    fn begin_body(
        &mut self,
        response: &ResponseHead<'_>,
        is_current: bool,
    ) -> Result<(), &'static str> {
        let malformed = "the length of the server's response is malformed";
        let has_coding = response.header("transfer-encoding").is_some();
        let is_chunked = response.single("transfer-encoding").map(str::trim);
        let is_chunked = is_chunked.is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
        let mut lengths = response.values("content-length").map(length);
        let length = lengths.next().transpose().map_err(|()| malformed)?;
        if lengths.any(|other| other != length.ok_or(())) {
            return Err(malformed);
        }
        let framing = match (response.status(), length) {
            (204 | 304, _) => Some(Framing::Length(0)),
            _ if has_coding && !is_chunked => {
                return Err("the server uses a transfer coding that is not supported");
            }
            // Both fields together may be an attempt to smuggle a response.
            (_, Some(_)) if is_chunked => return Err(malformed),
            _ if is_chunked => Some(Framing::Chunked),
            (_, length) => length.map(Framing::Length),
        };
        self.is_reusable =
            is_current && framing.is_some() && !response.lists("connection", "close");
        self.awaits = match framing {
            Some(framing) => {
                let body = BodyDecoder::new(framing, usize::MAX);
                Awaits::Body(body.map_err(|_| malformed)?)
            }
            None => Awaits::Rest,
        };
        Ok(())
    }
}

/// A value of Content-Length.
fn length(value: &[u8]) -> Result<u64, ()> {
    let text = std::str::from_utf8(value).map_err(drop)?;
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(());
    }
    text.parse().map_err(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status, the body and the end of a response that arrives in pieces of `cut` bytes. `None` for an error.
    fn read(bytes: &[u8], cut: usize) -> Option<(u16, Vec<u8>, Option<bool>)> {
        let mut exchange = Exchange::default();
        let (mut status, mut body, mut end) = (0, Vec::new(), None);
        for piece in bytes.chunks(cut) {
            let mut piece = piece.to_vec();
            let mut input = Input::new(&mut piece);
            while let Some(event) = exchange.receive(&mut input, 1024) {
                match event {
                    ExchangeEvent::Head(head) => status = ResponseHead::parse(&head)?.status(),
                    ExchangeEvent::Data(data) => body.extend_from_slice(data),
                    ExchangeEvent::End { is_reusable } => end = Some(is_reusable),
                    ExchangeEvent::Failed(_) => return None,
                }
            }
        }
        match exchange.handle_end() {
            Some(ExchangeEvent::End { is_reusable }) => end = Some(is_reusable),
            Some(ExchangeEvent::Failed(_)) => end = None,
            _ => {}
        }
        Some((status, body, end))
    }

    #[test]
    fn a_response_does_not_depend_on_how_it_is_split() {
        for (text, status, body, end) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
                200,
                "hello",
                Some(true),
            ),
            (
                "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nT: 1\r\n\r\n",
                200,
                "abc",
                Some(true),
            ),
            (
                "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                202,
                "",
                Some(false),
            ),
            ("HTTP/1.1 204 No Content\r\n\r\n", 204, "", Some(true)),
            (
                "HTTP/1.0 200 OK\r\n\r\nto the end",
                200,
                "to the end",
                Some(false),
            ),
            (
                "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
                200,
                "x",
                Some(false),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
                200,
                "hello",
                None,
            ),
            ("HTTP/1.1 200 OK\r\nContent-", 0, "", None),
        ] {
            for cut in 1..=text.len() {
                let read = read(text.as_bytes(), cut);
                assert_eq!(read, Some((status, body.into(), end)), "{text:?} {cut}");
            }
        }
    }

    #[test]
    fn a_malformed_response_is_an_error() {
        for text in [
            "SSH-2.0-OpenSSH_9.6\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
        ] {
            for cut in [1, 7, text.len()] {
                assert_eq!(read(text.as_bytes(), cut), None, "{text:?} {cut}");
            }
        }
        let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(9);
        assert_eq!(read(endless.as_bytes(), 10), None);
        let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(1100));
        assert_eq!(read(long.as_bytes(), 100), None);
    }

    #[test]
    fn a_request_has_its_length_and_every_field_once() {
        let mut out = Vec::new();
        let request = HttpRequest::new("POST", "application/json", b"{}".as_slice());
        request.write("h", "/mcp?x", [("Cookie", "a=b")].into_iter(), &mut out);
        let text = String::from_utf8(out).expect("text");
        assert_eq!(
            text,
            "POST /mcp?x HTTP/1.1\r\nHost: h\r\nCookie: a=b\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        );
        let mut out = Vec::new();
        HttpRequest::without_body("GET").write("h", "/", std::iter::empty(), &mut out);
        assert_eq!(out, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    }
}
