//! The head of a response to a client's request.

use crate::protocol::http::MAX_HEADERS;

/// A parsed response head (RFC 9112 section 4). It borrows from the bytes of the head.
///
/// ```
/// use outrigger::protocol::client::ResponseHead;
///
/// let head = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\n\r\n";
/// let response = ResponseHead::parse(head).expect("a response");
/// assert_eq!((response.status(), response.reason()), (503, "Service Unavailable"));
/// assert_eq!(response.header("retry-after"), Some(&b"5"[..]));
/// ```
#[derive(Debug)]
pub struct ResponseHead<'a> {
    status: u16,
    reason: &'a str,
    headers: [httparse::Header<'a>; MAX_HEADERS],
    header_count: usize,
}

impl<'a> ResponseHead<'a> {
    /// Parses a complete head, including the empty line at its end. Returns `None` if it is malformed.
    pub fn parse(head: &'a [u8]) -> Option<Self> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Response::new(&mut headers);
        match parsed.parse(head) {
            Ok(httparse::Status::Complete(len)) if len == head.len() => {}
            _ => return None,
        }
        let (status, reason) = (parsed.code?, parsed.reason?);
        // RFC 9110 section 15: the first digit is from 1 to 5. A server of HTTP/1.0 cannot upgrade a connection.
        if !(100..600).contains(&status) || (status == 101 && parsed.version != Some(1)) {
            return None;
        }
        let header_count = parsed.headers.len();
        Some(Self {
            status,
            reason,
            headers,
            header_count,
        })
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The reason phrase, which may be empty.
    pub fn reason(&self) -> &'a str {
        self.reason
    }

    /// The header fields in their order.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.headers[..self.header_count]
            .iter()
            .map(|header| (header.name, header.value))
    }

    /// The values of all fields with this name. Names are not case-sensitive.
    pub fn values<'r>(&'r self, name: &'r str) -> impl Iterator<Item = &'a [u8]> + 'r {
        let fields = self.headers();
        let same = fields.filter(move |(field, _)| field.eq_ignore_ascii_case(name));
        same.map(|(_, value)| value)
    }

    /// The value of the first field with this name. Names are not case-sensitive.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.values(name).next()
    }

    /// The value of the field with this name, if it is text and there is exactly one such field.
    pub fn single(&self, name: &str) -> Option<&'a str> {
        let mut values = self.values(name);
        let value = values.next()?;
        let is_single = values.next().is_none();
        std::str::from_utf8(value).ok().filter(|_| is_single)
    }

    /// Whether a field whose value is a list contains an element, in any case.
    pub(super) fn lists(&self, name: &str, element: &str) -> bool {
        self.values(name).any(|value| {
            let mut elements = value.split(|&byte| byte == b',');
            elements.any(|one| one.trim_ascii().eq_ignore_ascii_case(element.as_bytes()))
        })
    }
}
