//! The answer to a caller: one JSON message, or a stream of server-sent events, of which a session keeps the last ones. A client that
//! was cut gets them again (`Last-Event-ID`).

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use super::http_error::{EXPOSED, HttpError};
use super::quota::Quota;
use super::request::Accepts;
use crate::record::record;
use crate::{ClientId, Context, Principal, Response, StatusCode};

/// The response to a call that is not answered yet.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) caller: ClientId,
    accepts: Accepts,
    /// Whether the head of a stream was sent.
    is_streaming: bool,
    /// The session that the head of the answer names.
    session: Option<String>,
}

record!(Reply {
    caller,
    accepts,
    is_streaming,
    session,
});

impl Reply {
    pub(super) fn new(caller: ClientId, accepts: Accepts) -> Self {
        Self {
            caller,
            accepts,
            is_streaming: false,
            session: None,
        }
    }

    /// Names the session in the head of the answer.
    pub(super) fn with_session(self, session: String) -> Self {
        Self {
            session: Some(session),
            ..self
        }
    }

    /// The session did not begin, so the head of the answer does not name it.
    pub(super) fn forget_session(&mut self) {
        self.session = None;
    }

    /// Whether the answer may be a stream.
    pub(super) fn takes_events(&self) -> bool {
        self.accepts.events
    }

    pub(super) fn is_streaming(&self) -> bool {
        self.is_streaming
    }

    /// Sends the head of a stream, unless it was sent. Returns false if the caller takes no stream, or is gone.
    pub(super) fn begin(&mut self, ctx: &mut Context) -> bool {
        if !self.is_streaming && self.accepts.events {
            let session = self.session.as_deref().map(|id| ("Mcp-Session-Id", id));
            let fields: Vec<_> = [EXPOSED].into_iter().chain(session).collect();
            self.is_streaming = ctx.begin_stream(self.caller, &fields).is_ok();
        }
        self.is_streaming
    }

    /// Sends a message before the answer. Returns false if it could not be sent.
    pub(super) fn event(&mut self, ctx: &mut Context, id: Option<EventId>, text: &str) -> bool {
        self.begin(ctx) && ctx.stream(self.caller, event(id, text).as_bytes()).is_ok()
    }

    /// Sends an event without data, with which a client can resume the stream before the first message. It asks clients to come
    /// back soon.
    pub(super) fn prime(&self, ctx: &mut Context, id: EventId) {
        let event = format!("id: {id}\nretry: 1000\ndata: \n\n");
        let _ = ctx.stream(self.caller, event.as_bytes());
    }

    /// Sends the answer, which ends the call. `status` is used only if no stream has begun.
    pub(super) fn finish(
        mut self,
        ctx: &mut Context,
        status: StatusCode,
        id: Option<EventId>,
        text: &str,
    ) {
        if self.is_streaming || !self.accepts.json {
            self.event(ctx, id, text);
            let _ = ctx.end_stream(self.caller);
            return;
        }
        let mut response = Response::json(status, text).field(EXPOSED.0, EXPOSED.1);
        if let Some(session) = self.session.take() {
            response = response.field("Mcp-Session-Id", session);
        }
        ctx.respond(self.caller, &response);
    }

    /// Ends the call without an answer, because the request was cancelled or the stream is not used any more.
    pub(super) fn end(mut self, ctx: &mut Context) {
        if self.begin(ctx) {
            let _ = ctx.end_stream(self.caller);
        } else {
            ctx.respond(self.caller, &accepted());
        }
    }

    /// Rejects the call.
    pub(super) fn reject(self, ctx: &mut Context, error: &HttpError, is_stateless: bool) {
        if self.is_streaming {
            self.finish(ctx, error.status, None, &error.to_json(is_stateless));
        } else {
            ctx.respond(self.caller, &error.to_response(is_stateless));
        }
    }
}

/// The response to a message that gets no answer.
pub(super) fn accepted() -> Response {
    Response::new(StatusCode::ACCEPTED, "application/json", b"".as_slice())
        .field(EXPOSED.0, EXPOSED.1)
}

/// A server-sent event with a message. In JSON, line ends are only white space between tokens.
fn event(id: Option<EventId>, text: &str) -> String {
    let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
    let is_line_end = |c| matches!(c, '\r' | '\n');
    if text.contains(is_line_end) {
        let text = text.replace(is_line_end, " ");
        return format!("event: message\n{id}data: {text}\n\n");
    }
    format!("event: message\n{id}data: {text}\n\n")
}

/// What an entry costs in addition to its text, in bytes.
const ENTRY: usize = 64;

/// The id of an event: the stream that it belongs to, and its place in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventId {
    pub(super) stream: u32,
    pub(super) number: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stream, self.number)
    }
}

impl FromStr for EventId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = |text: &str| {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
            is_plain.then(|| text.parse::<u64>().ok()).flatten()
        };
        let (stream, place) = text.split_once('-').ok_or(())?;
        Ok(Self {
            stream: number(stream)
                .and_then(|stream| stream.try_into().ok())
                .ok_or(())?,
            number: number(place).ok_or(())?,
        })
    }
}

record!(EventId { stream, number });

/// One kept event.
#[derive(Debug)]
struct Entry {
    id: EventId,
    text: Box<str>,
}

/// The kept events of a session, the oldest first.
#[derive(Debug)]
pub(super) struct Replay {
    entries: VecDeque<Entry>,
    bytes: usize,
    most: usize,
    last: u64,
}

record!(Entry { id, text });
// The limit of a session is that of its beginning.
record!(Replay {
    entries,
    bytes,
    most,
    last,
});

impl Replay {
    /// Keeps at most `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            most,
            last: 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The id of the next event of a stream. The event is not kept.
    pub(super) fn next_id(&mut self, stream: u32) -> EventId {
        self.last += 1;
        EventId {
            stream,
            number: self.last,
        }
    }

    /// Keeps an event, in place of the oldest ones if there is no room. An event longer
    /// than the limit is not kept.
    pub(super) fn push(
        &mut self,
        quota: &mut Quota,
        principal: &Principal,
        stream: u32,
        text: &str,
    ) -> EventId {
        let id = self.next_id(stream);
        let cost = text.len() + ENTRY;
        if cost > self.most {
            return id;
        }
        while self.bytes + cost > self.most {
            self.remove_oldest(quota, principal);
        }
        while quota.take(principal, cost).is_err() {
            if !self.remove_oldest(quota, principal) {
                return id;
            }
        }
        self.bytes += cost;
        let text = text.into();
        self.entries.push_back(Entry { id, text });
        id
    }

    fn remove_oldest(&mut self, quota: &mut Quota, principal: &Principal) -> bool {
        let Some(oldest) = self.entries.pop_front() else {
            return false;
        };
        let cost = oldest.text.len() + ENTRY;
        self.bytes -= cost;
        quota.give_back(principal, cost);
        true
    }

    /// Forgets the oldest events until so many bytes are free. Returns the number of bytes that were freed.
    pub(super) fn free(&mut self, quota: &mut Quota, principal: &Principal, bytes: usize) -> usize {
        let before = self.bytes;
        while before - self.bytes < bytes && self.remove_oldest(quota, principal) {}
        before - self.bytes
    }

    /// The kept events of a stream after the one with this number.
    pub(super) fn after(&self, last: EventId) -> impl Iterator<Item = (EventId, &str)> {
        let entries = self.entries.iter();
        let of_stream = entries
            .filter(move |entry| entry.id.stream == last.stream && entry.id.number > last.number);
        of_stream.map(|entry| (entry.id, &*entry.text))
    }

    /// Whether an event of this session had this id.
    pub(super) fn has_used(&self, id: EventId) -> bool {
        id.number <= self.last
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self, quota: &mut Quota, principal: &Principal) {
        self.entries.clear();
        quota.give_back(principal, std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_events_make_room_and_streams_do_not_mix() {
        let mut quota = Quota::new(1000);
        let ada = Principal::User(1);
        let mut replay = Replay::new(3 * (ENTRY + 1));
        let ids = [(1, "a"), (2, "b"), (1, "c"), (1, "d")]
            .map(|(stream, text)| replay.push(&mut quota, &ada, stream, text));
        let after = |replay: &Replay, id| {
            replay
                .after(id)
                .map(|(_, text)| text.to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(after(&replay, ids[0]), ["c", "d"]);
        assert_eq!(after(&replay, ids[2]), ["d"]);
        assert_eq!(after(&replay, ids[3]), [""; 0]);
        let first = EventId {
            stream: 2,
            number: 0,
        };
        assert_eq!(after(&replay, first), ["b"]);
        assert_eq!(quota.used(), 3 * (ENTRY + 1));
        assert_eq!(replay.free(&mut quota, &ada, 1), ENTRY + 1);
        assert_eq!(after(&replay, ids[0]), ["c", "d"]);
        replay.push(&mut quota, &ada, 2, "b");
        replay.push(&mut quota, &ada, 1, &"x".repeat(1000));
        assert_eq!(
            after(&replay, first),
            ["b"],
            "a long event replaces nothing"
        );
        replay.clear(&mut quota, &ada);
        assert_eq!(quota.used(), 0);
    }

    #[test]
    fn an_id_reads_back_as_it_is_written() {
        let id = EventId {
            stream: 7,
            number: 12,
        };
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in ["", "7", "-", "7-", "a-1", "7-1-2", "+7-1", "99999999999-1"] {
            assert_eq!(bad.parse::<EventId>(), Err(()), "{bad}");
        }
    }
}
