//! The fuzz target for the response to an HTTP request of this side, and the events in it.

use crate::protocol::Input;
use crate::protocol::client::{EventParser, Exchange, ExchangeEvent};

/// The maximum length of an event.
const MAX_EVENT: usize = 512;

/// With any bytes from a server, the parts of a response do not depend on how the bytes are split, and neither do its events, which are
/// those of a naive parser. The first byte says where the bytes are cut.
pub fn exchange(data: &[u8]) {
    let [cut, bytes @ ..] = data else {
        return;
    };
    let cut = usize::from(*cut) + 1;
    let whole = receive(bytes, usize::MAX);
    assert_eq!(receive(bytes, cut), whole, "split after {cut} bytes");
    // Most bytes are no response, so they are also events by themselves.
    for body in [&whole.body, bytes] {
        let events = parse(body, usize::MAX);
        assert_eq!(parse(body, cut), events, "split after {cut} bytes");
        if let Some((events, _)) = events {
            assert_eq!(events, naive(body));
        }
    }
}

/// What arrived of a response.
#[derive(Debug, Default, PartialEq, Eq)]
struct Received {
    head: Vec<u8>,
    body: Vec<u8>,
    end: String,
}

fn receive(bytes: &[u8], cut: usize) -> Received {
    let mut exchange = Exchange::default();
    let mut received = Received::default();
    for piece in bytes.chunks(cut) {
        let mut piece = piece.to_vec();
        let mut input = Input::new(&mut piece);
        while let Some(event) = exchange.receive(&mut input, 1024) {
            match event {
                ExchangeEvent::Head(head) => received.head = head,
                ExchangeEvent::Data(data) => received.body.extend_from_slice(data),
                end => received.end = format!("{end:?}"),
            }
        }
        // What follows a response belongs to no other one.
        assert!(input.is_empty() || exchange.is_over());
    }
    if let Some(end) = exchange.handle_end() {
        received.end = format!("{end:?}");
    }
    received
}

/// The types and data of events.
type Events = Vec<(String, Vec<u8>)>;

/// The events in a body, and the id of the last one. `None` if an event is too long.
fn parse(bytes: &[u8], cut: usize) -> Option<(Events, Option<String>)> {
    let mut parser = EventParser::new(MAX_EVENT);
    let mut events = Vec::new();
    for mut piece in bytes.chunks(cut) {
        while let Some(event) = parser.next(&mut piece).ok()? {
            events.push((event.kind, event.data));
        }
    }
    Some((events, parser.last_id().map(str::to_owned)))
}

/// The events in a body, as the standard describes them.
fn naive(bytes: &[u8]) -> Events {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut lines = vec![Vec::new()];
    let mut rest = bytes.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        match byte {
            b'\r' if rest.peek() == Some(&b'\n') => {}
            b'\r' | b'\n' => lines.push(Vec::new()),
            byte => lines.last_mut().expect("a line").push(byte),
        }
    }
    // What has no end is no line.
    lines.pop();
    let (mut events, mut kind, mut data) = (Vec::new(), String::new(), Vec::new());
    for line in lines {
        if line.is_empty() {
            let data: Vec<Vec<u8>> = std::mem::take(&mut data);
            let data = data.join(&b'\n');
            let kind = std::mem::take(&mut kind);
            if !data.is_empty() {
                events.push((kind, data));
            }
            continue;
        }
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (&line[..], &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => data.push(value.to_vec()),
            b"event" => kind = String::from_utf8_lossy(value).into_owned(),
            _ => {}
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use crate::random::{Random, rounds};

    #[test]
    fn responses_and_events_do_not_depend_on_how_they_are_split() {
        let parts: [&[u8]; 16] = [
            b"HTTP/1.1 200 OK\r\n",
            b"Content-Length: 20\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"\r\n",
            b"5\r\n",
            b"0\r\n\r\n",
            b"data: a\n",
            b"data",
            b":",
            b"\r",
            b"\n",
            b"id: 7\n\n",
            b"event: x\n",
            b"\xef\xbb\xbf",
            b"retry: 10\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
        ];
        let mut random = Random::new(23);
        for _ in 0..rounds(20_000) {
            let mut data = vec![random.below(20) as u8];
            for _ in 0..random.below(12) {
                data.extend_from_slice(parts[random.below(parts.len())]);
            }
            super::exchange(&data);
        }
    }
}
