//! The parser of server-sent events (HTML Living Standard, section 9.2.6), without I/O.

use std::time::Duration;

/// The maximum length of an id or of a type, in bytes. A longer one is ignored.
const MAX_NAME: usize = 1024;

/// The longest `retry` that is honored.
const MAX_RETRY: Duration = Duration::from_secs(300);

/// An event of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerEvent {
    /// Its type. Empty for the default, which is `message`.
    pub kind: String,
    /// Its data. Lines are separated by line feeds.
    pub data: Vec<u8>,
}

/// Splits a stream into events. It also remembers the id of the last one, and how long to wait before coming back.
///
/// ```
/// use outrigger::protocol::client::EventParser;
///
/// let mut parser = EventParser::new(1 << 20);
/// let mut bytes = &b"id: 7\ndata: hel"[..];
/// assert_eq!(parser.next(&mut bytes), Ok(None));
/// let mut bytes = &b"lo\n\ndata: more"[..];
/// let event = parser.next(&mut bytes).expect("it is short").expect("an event");
/// assert_eq!((&*event.data, parser.last_id()), (&b"hello"[..], Some("7")));
/// ```
#[derive(Debug)]
pub struct EventParser {
    max: usize,
    /// The bytes of an incomplete line.
    line: Vec<u8>,
    /// Whether the last byte was a carriage return, which a line feed may follow.
    is_after_cr: bool,
    is_first: bool,
    event: ServerEvent,
    has_data: bool,
    /// The id of the event that is arriving.
    id: String,
    last_id: Option<String>,
    retry: Option<Duration>,
}

/// An event is longer than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTooLong;

impl EventParser {
    /// An event has at most `max` bytes.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            max,
            line: Vec::new(),
            is_after_cr: false,
            is_first: true,
            event: ServerEvent::default(),
            has_data: false,
            id: String::new(),
            last_id: None,
            retry: None,
        }
    }

    /// The id with which the stream can be resumed after the last complete event (`Last-Event-ID`).
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// How long the server asks to wait before coming back.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Consumes bytes up to the end of the next event that has data. Returns `None` if more bytes are needed.
    ///
    /// # Errors
    ///
    /// The event is too long. The parser must not be used any more.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<ServerEvent>, EventTooLong> {
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.is_after_cr) && first == b'\n' {
                *bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + self.event.data.len() + piece.len() > self.max {
                return Err(EventTooLong);
            }
            self.line.extend_from_slice(piece);
            let Some(end) = end else {
                *bytes = &[];
                return Ok(None);
            };
            self.is_after_cr = bytes[end] == b'\r';
            *bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            let is_first = std::mem::take(&mut self.is_first);
            let bom: &[u8] = if is_first { b"\xef\xbb\xbf" } else { b"" };
            let line = line.strip_prefix(bom).unwrap_or(&line);
            if !line.is_empty() {
                self.handle_line(line);
            } else if let Some(event) = self.end_event() {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn handle_line(&mut self, line: &[u8]) {
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = match colon {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push(b'\n');
                }
                self.event.data.extend_from_slice(value);
            }
            b"event" if value.len() <= MAX_NAME => {
                self.event.kind = String::from_utf8_lossy(value).into_owned();
            }
            b"id" if value.len() <= MAX_NAME && !value.contains(&0) => {
                self.id = String::from_utf8_lossy(value).into_owned();
            }
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                let millis = std::str::from_utf8(value)
                    .ok()
                    .and_then(|text| text.parse().ok());
                let retry = millis.map_or(MAX_RETRY, Duration::from_millis);
                self.retry = Some(retry.min(MAX_RETRY));
            }
            _ => {}
        }
    }

    /// An empty line ends an event. Its id counts even if it has no data.
    fn end_event(&mut self) -> Option<ServerEvent> {
        // An event without an id keeps the last one.
        self.last_id = Some(self.id.clone()).filter(|id| !id.is_empty());
        let event = std::mem::take(&mut self.event);
        let has_data = std::mem::take(&mut self.has_data);
        (has_data && !event.data.is_empty()).then_some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8], cut: usize) -> (Vec<(String, String)>, Option<String>) {
        let mut parser = EventParser::new(1000);
        let mut events = Vec::new();
        for mut piece in bytes.chunks(cut) {
            while let Some(event) = parser.next(&mut piece).expect("it is short") {
                let data = String::from_utf8_lossy(&event.data).into_owned();
                events.push((event.kind, data));
            }
            assert!(piece.is_empty());
        }
        (events, parser.last_id().map(str::to_owned))
    }

    #[test]
    fn events_do_not_depend_on_how_they_are_split() {
        for (text, events, id) in [
            ("data: a\n\n", &[("", "a")][..], None),
            ("\u{feff}data: a\r\n\r\n", &[("", "a")], None),
            ("data: a\rdata:b\r\r", &[("", "a\nb")], None),
            (
                "event: message\nid: 1\ndata: {}\n\n",
                &[("message", "{}")],
                Some("1"),
            ),
            // What does not end with an empty line is no event, and its id does not count.
            (
                "id: 1\ndata: a\n\nid: 2\ndata: b\n",
                &[("", "a")],
                Some("1"),
            ),
            // An event without data has an id: a stream can be resumed from its beginning.
            (
                "id: 1-0\nretry: 5\ndata: \n\n: comment\n\n",
                &[],
                Some("1-0"),
            ),
            (
                "id: 1\ndata: a\n\ndata: b\n\n",
                &[("", "a"), ("", "b")],
                Some("1"),
            ),
            (
                "id: 1\ndata: a\n\nid\ndata: b\n\n",
                &[("", "a"), ("", "b")],
                None,
            ),
            ("data:  a\nother: x\nevent\n\n", &[("", " a")], None),
            ("\n\n\ndata\ndata\n\n", &[("", "\n")], None),
        ] {
            for cut in 1..=text.len() {
                let (found, last) = parse(text.as_bytes(), cut);
                let found: Vec<_> = found
                    .iter()
                    .map(|(kind, data)| (&**kind, &**data))
                    .collect();
                assert_eq!(
                    (found, last.as_deref()),
                    (events.to_vec(), id),
                    "{text:?} {cut}"
                );
            }
        }
    }

    #[test]
    fn the_time_to_wait_is_limited() {
        for (text, retry) in [
            ("retry: 1000\n\n", Some(Duration::from_secs(1))),
            ("retry: 99999999999999999999999\n\n", Some(MAX_RETRY)),
            ("retry: -1\n\n", None),
            ("retry:\n\n", None),
        ] {
            let mut parser = EventParser::new(1000);
            let mut bytes = text.as_bytes();
            assert_eq!(parser.next(&mut bytes), Ok(None));
            assert_eq!(parser.retry(), retry, "{text}");
        }
    }

    #[test]
    fn an_event_over_the_limit_is_an_error_before_it_is_kept() {
        let mut parser = EventParser::new(10);
        assert_eq!(parser.next(&mut &b"data: 12"[..]), Ok(None));
        assert_eq!(parser.next(&mut &b"3456"[..]), Err(EventTooLong));
        // Many short lines are one event.
        let mut parser = EventParser::new(100);
        let lines = "data: 12345678\n".repeat(20);
        assert_eq!(parser.next(&mut lines.as_bytes()), Err(EventTooLong));
    }
}
