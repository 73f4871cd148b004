//! Resumable connections as a draft of the Agent Client Protocol describes them: "Durable & Resumable HTTP/WS Transport"
//! (agent-client-protocol#2208, `docs/rfds/durable-resumable-http-transport.mdx` at commit 3653fb4).
//!
//! A client asks for it in `initialize`. From then on, each message to it has a cursor: the number of the message, counted by the
//! server's own resumable connections, which also keep the messages. After a cut, the client connects again and sends
//! `stream/resume` with its cursors first. `docs/acp-resume-notes.md` lists what the draft leaves open, and what is done here.

use std::collections::HashMap;
use std::ops::Range;

use super::AcpResumable;
use crate::record::record;
use crate::server::ContinueError;
use crate::service::id_map::IdMap;
use crate::service::json::{Skimmer, quote};
use crate::service::jsonrpc::{
    Envelope, MessageKind, batch_messages, code, error, insert_member, is_array, member, splice,
};
use crate::{ClientId, CloseCode, Context, Message};

/// The maximum number of messages that are kept although the client has confirmed them.
pub(super) const RETAINED: u64 = 1000;

/// The average length of messages for which the announced number is kept. Half of the buffer is for confirmed messages.
const ANNOUNCED_LENGTH: usize = 2 << 10;

/// The method with which a client comes back.
const RESUME: &str = "stream/resume";

/// The key of a cursor in `_meta`.
const CURSOR: &str = "acp/cursor";

/// The clients that have asked for cursors, by the ids of their connections.
#[derive(Debug, Default)]
pub(super) struct Durable {
    clients: HashMap<Box<str>, ClientId>,
    connections: IdMap<ClientId, Connection>,
    /// The id in the last 101 response. The server calls `connected` next.
    accepted: Box<str>,
    /// The clients that have not initialized the connection, with the ids in the 101 responses.
    newcomers: IdMap<ClientId, Connection>,
}

/// What is known of a client's connection.
#[derive(Debug)]
struct Connection {
    id: Box<str>,
    /// How often `stream/resume` has failed on it. These messages do not count as received.
    failures: u64,
    /// Whether the client has come with the id of another one, and so needed no place of its own.
    is_returning: bool,
}

record!(Durable {
    clients,
    connections,
    accepted,
    newcomers,
});
record!(Connection {
    id,
    failures,
    is_returning,
});

/// What `stream/resume` asks for.
#[derive(Debug, PartialEq, Eq)]
struct Positions {
    /// The number up to which the client has the messages of all streams, if it says so.
    all: Option<u64>,
    /// The number of the last message on the streams that are not in `sessions`.
    connection: Option<u64>,
    /// The sessions, each with the number of its last message.
    sessions: HashMap<String, u64>,
}

impl Positions {
    /// Reads the parameters of `stream/resume`: `cursor`, up to which the client has the messages of all streams, and `cursors`, an
    /// object with `connection` and `sessions`, the positions of single streams.
    fn read(envelope: &Envelope<'_>) -> Option<Self> {
        let text = envelope.text;
        let params = envelope.body.as_ref()?;
        let number = |range: Option<Range<usize>>| match range {
            Some(range) => number_of(&text[range]).map(Some),
            None => Some(None),
        };
        let mut positions = Self {
            all: number(member(text, params, "cursor"))?,
            connection: None,
            sessions: HashMap::new(),
        };
        let streams = member(text, params, "cursors");
        let of_connection = streams
            .as_ref()
            .and_then(|streams| member(text, streams, "connection"));
        positions.connection = number(of_connection)?.or(positions.all);
        let sessions = streams.and_then(|streams| member(text, &streams, "sessions"));
        if let Some(sessions) = sessions {
            let mut is_valid = true;
            let read = Skimmer::at(text, &sessions).object(|session, cursor| {
                match number_of(&text[cursor]) {
                    Some(number) => {
                        positions.sessions.insert(session.into_owned(), number);
                    }
                    None => is_valid = false,
                }
            });
            if read.is_err() || !is_valid {
                return None;
            }
        }
        let is_empty = positions.connection.is_none() && positions.sessions.is_empty();
        (!is_empty).then_some(positions)
    }

    /// The number up to which the client has every message.
    fn received(&self) -> u64 {
        let sessions = self.sessions.values().copied();
        let least = sessions.chain(self.connection).min().unwrap_or_default();
        // A stream without a cursor begins with the first message.
        let least = self.connection.map_or(0, |_| least);
        least.max(self.all.unwrap_or_default())
    }

    /// Whether the client has this message, because its stream is further than others. Responses may belong to any stream, so the
    /// client gets them again.
    fn have(&self, number: u64, message: &str) -> bool {
        let Ok(envelope) = Envelope::parse(message) else {
            return false;
        };
        if matches!(envelope.kind, MessageKind::Response { .. }) {
            return false;
        }
        let own = envelope
            .session
            .as_deref()
            .and_then(|session| self.sessions.get(session));
        let position = own.copied().or(self.connection);
        position.is_some_and(|position| number <= position)
    }
}

/// Parses a cursor, given as JSON: a string of decimal digits. `None` if it is anything else.
fn number_of(cursor: &str) -> Option<u64> {
    let digits = cursor.strip_prefix('"')?.strip_suffix('"')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// Why a client cannot come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResumeFailure {
    NotOffered,
    UnknownConnection,
    InvalidCursor,
    Expired,
}

impl ResumeFailure {
    /// The `reason` in `stream/resume_failed`.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::NotOffered => "not_supported",
            Self::UnknownConnection => "unknown_connection",
            Self::InvalidCursor => "invalid_cursor",
            Self::Expired => "expired_cursor",
        }
    }
}

impl From<ContinueError> for ResumeFailure {
    fn from(error: ContinueError) -> Self {
        match error {
            ContinueError::Unknown => Self::UnknownConnection,
            ContinueError::TooFew => Self::Expired,
            ContinueError::TooMany => Self::InvalidCursor,
        }
    }
}

/// What the first message of a client asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum First {
    /// To be sent cursors. The message is `initialize`.
    Cursors,
    /// To be sent none. The message may be `initialize`.
    Initialize,
    /// To come back. The message is `stream/resume`.
    Resume,
    Other,
}

impl Durable {
    /// Chooses the id of the connection that is being accepted, and remembers it. `asked` is the id in the request: a client that comes
    /// back keeps its id.
    pub(super) fn accept(&mut self, asked: Option<&str>, new: String) -> String {
        let known = asked.filter(|id| self.clients.contains_key(*id));
        let id = known.map_or(new, str::to_owned);
        self.accepted = id.as_str().into();
        id
    }

    /// The client that a new connection with this id will continue. `None` if there is none, or another connection is about to.
    pub(super) fn continues(&self, id: &str) -> Option<ClientId> {
        let client = self.clients.get(id).copied();
        let is_awaited = || self.newcomers.values().any(|one| &*one.id == id);
        client.filter(|_| !is_awaited())
    }

    /// A client has connected with the id that was accepted last.
    pub(super) fn handle_connected(&mut self, client: ClientId) {
        let id = std::mem::take(&mut self.accepted);
        let connection = Connection {
            is_returning: self.clients.contains_key(&id),
            id,
            failures: 0,
        };
        self.newcomers.insert(client, connection);
    }

    pub(super) fn handle_disconnected(&mut self, client: ClientId) {
        self.newcomers.remove(&client);
        if let Some(connection) = self.connections.remove(&client) {
            self.clients.remove(&connection.id);
        }
    }

    /// What a client's message asks for, if it has not initialized the connection.
    pub(super) fn first(&self, client: ClientId, text: &str, mode: AcpResumable) -> First {
        if !self.newcomers.contains_key(&client) {
            return First::Other;
        }
        let Ok(envelope) = Envelope::parse_client(text) else {
            return First::Other;
        };
        match &envelope.kind {
            MessageKind::Request { method, .. } | MessageKind::Notification { method }
                if method == RESUME =>
            {
                First::Resume
            }
            MessageKind::Request { method, .. } if method == "initialize" => match mode {
                AcpResumable::Always => First::Cursors,
                AcpResumable::Auto if asks(&envelope) => First::Cursors,
                AcpResumable::Auto | AcpResumable::Never => First::Initialize,
            },
            _ => First::Initialize,
        }
    }

    /// A client has initialized the connection. With `has_cursors`, its messages get cursors from now on. If its id belongs to a client
    /// that did not come back, it gets the id `other`.
    pub(super) fn begin(
        &mut self,
        client: ClientId,
        has_cursors: bool,
        other: impl FnOnce() -> String,
    ) {
        let newcomer = self.newcomers.remove(&client);
        let Some(mut connection) = newcomer.filter(|_| has_cursors) else {
            return;
        };
        if self.clients.contains_key(&connection.id) {
            connection.id = other().into();
        }
        self.clients.insert(connection.id.clone(), client);
        self.connections.insert(client, connection);
    }

    /// The number of messages from a client that gets cursors, without `stream/resume`.
    pub(super) fn received(&self, ctx: &Context, client: ClientId) -> u64 {
        let (received, _) = ctx.message_counts(client);
        let connection = self.connections.get(&client);
        received.saturating_sub(connection.map_or(0, |one| one.failures))
    }

    /// Whether a client is sent cursors.
    pub(super) fn has_cursors(&self, client: ClientId) -> bool {
        !self.connections.is_empty() && self.connections.contains_key(&client)
    }

    /// Sends a message to a client, with a cursor if the client gets them. A client that has disconnected or is closing gets no more
    /// messages.
    pub(super) fn send(&self, ctx: &mut Context, client: ClientId, text: &str) {
        if self.has_cursors(client) {
            let (_, sent) = ctx.message_counts(client);
            ctx.send(client, Message::Text(&with_cursor(text, sent + 1)));
        } else {
            ctx.send(client, Message::Text(text));
        }
    }

    /// Closes a client that was admitted without a place of its own, to continue as an earlier client, and has not done so. It stays
    /// if there is room. Returns whether it was closed.
    pub(super) fn turn_away(&self, ctx: &mut Context, client: ClientId) -> bool {
        let is_over = ctx.is_stopping() || ctx.has_too_many_clients();
        let newcomer = self.newcomers.get(&client);
        let is_over = is_over && newcomer.is_some_and(|newcomer| newcomer.is_returning);
        if is_over {
            ctx.close(client, CloseCode::TRY_AGAIN, "the server has no room");
        }
        is_over
    }

    /// What `initialize` announces to a client, besides its connection id. `None` if it gets no cursors.
    pub(super) fn announcement(&self, ctx: &Context, client: ClientId) -> Option<Announcement> {
        let id = &self.connections.get(&client)?.id;
        let config = ctx.config();
        let resume = config.resume.unwrap_or_default();
        let (grace, retained) = (resume.grace.as_secs(), announced(resume.buffer));
        let interval = config.timeouts.ping_interval;
        let interval = interval.map_or(String::new(), |interval| {
            let seconds = interval.as_millis().div_ceil(1000);
            format!(r#","keepAliveSeconds":{seconds}"#)
        });
        Some(Announcement {
            connection_id: id.to_string(),
            transport: format!(
                r#"{{"resumable":{{"retentionMessages":{retained},"retentionSeconds":{grace}{interval}}}}}"#
            ),
        })
    }

    /// Lets the client `target`, which `stream/resume` names, continue on the connection of `client`. Returns it.
    pub(super) fn resume(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        text: &str,
    ) -> Result<ClientId, ResumeFailure> {
        let resumed = self.try_resume(ctx, client, text);
        match self.newcomers.get_mut(&client) {
            Some(newcomer) if resumed.is_err() => newcomer.failures += 1,
            _ => _ = self.newcomers.remove(&client),
        }
        resumed
    }

    fn try_resume(
        &self,
        ctx: &mut Context,
        client: ClientId,
        text: &str,
    ) -> Result<ClientId, ResumeFailure> {
        let envelope = Envelope::parse_client(text).map_err(|_| ResumeFailure::InvalidCursor)?;
        let named = envelope
            .body
            .as_ref()
            .and_then(|params| member(text, params, "connectionId"))
            .and_then(|id| text[id].strip_prefix('"')?.strip_suffix('"'));
        let id = named.or(self.newcomers.get(&client).map(|one| &*one.id));
        let target = id.and_then(|id| self.clients.get(id)).copied();
        let target = target.ok_or(ResumeFailure::UnknownConnection)?;
        let positions = Positions::read(&envelope).ok_or(ResumeFailure::InvalidCursor)?;
        let received = positions.received();
        let mut skipped = Vec::new();
        if !positions.sessions.is_empty() {
            let mut scanned = 0;
            let kept = ctx.kept_after(target, received);
            let had = kept.filter(|(number, message)| {
                scanned += message.as_bytes().len();
                let text = std::str::from_utf8(message.as_bytes());
                text.is_ok_and(|text| positions.have(*number, text))
            });
            skipped = had.map(|(number, _)| number).collect();
            // Each of them is parsed.
            ctx.spend(scanned / 512);
        }
        ctx.continue_on(client, target, received, skipped)?;
        Ok(target)
    }
}

/// The number of messages that a server with this buffer announces to keep.
fn announced(buffer: usize) -> u64 {
    let fitting = buffer / 2 / ANNOUNCED_LENGTH;
    u64::try_from(fitting).unwrap_or(RETAINED).min(RETAINED)
}

/// What `initialize` announces to a client that gets cursors.
#[derive(Debug)]
pub(crate) struct Announcement {
    connection_id: String,
    /// The value of `capabilities.transport`, as JSON.
    transport: String,
}

impl Announcement {
    /// Adds the announcement to the response to `initialize`.
    pub(crate) fn add_to(&self, response: &str) -> String {
        let Ok(envelope) = Envelope::parse(response) else {
            return response.to_owned();
        };
        let Some(result) = &envelope.body else {
            return response.to_owned();
        };
        let id = format!(r#""connectionId":"{}""#, self.connection_id);
        let transport = &self.transport;
        let capabilities = member(response, result, "capabilities");
        let capabilities = capabilities.filter(|range| response.as_bytes()[range.start] == b'{');
        match capabilities {
            Some(capabilities) => match member(response, &capabilities, "transport") {
                // The agent's own transport is its standard streams.
                Some(value) => {
                    let added = insert_member(response, result, &id);
                    let moved = added.len() - response.len();
                    let value = value.start + moved..value.end + moved;
                    splice(&added, &mut [(value, transport)]).concat()
                }
                None => {
                    let member = format!(r#""transport":{transport}"#);
                    let added = insert_member(response, &capabilities, &member);
                    insert_member(
                        &added,
                        &(result.start..result.end + added.len() - response.len()),
                        &id,
                    )
                }
            },
            None => {
                let member = format!(r#"{id},"capabilities":{{"transport":{transport}}}"#);
                insert_member(response, result, &member)
            }
        }
    }
}

/// Whether `initialize` asks for cursors: the client announces `transport.resumable` among its capabilities.
fn asks(initialize: &Envelope<'_>) -> bool {
    let text = initialize.text;
    let announces = |capabilities: &str| {
        let params = initialize.body.clone()?;
        let path = [capabilities, "transport", "resumable"];
        let found = path
            .iter()
            .try_fold(params, |range, name| member(text, &range, name))?;
        Some(text[found.clone()].starts_with('{') || &text[found] == "true")
    };
    ["clientCapabilities", "capabilities"]
        .iter()
        .any(|name| announces(name) == Some(true))
}

/// A message with its cursor. It is in `_meta` of the parameters or the result, if these are an object, otherwise in `_meta` of the
/// message itself. A batch has it in its last message.
fn with_cursor(text: &str, number: u64) -> String {
    if is_array(text) {
        let messages = batch_messages(text, Skimmer::new(text)).unwrap_or_default();
        return match messages.last() {
            Some(last) => {
                let start = last.as_ptr().addr() - text.as_ptr().addr();
                let rest = &text[start + last.len()..];
                [&text[..start], &with_cursor(last, number), rest].concat()
            }
            None => text.to_owned(),
        };
    }
    let Ok(envelope) = Envelope::parse(text) else {
        return text.to_owned();
    };
    let field = format!(r#""{CURSOR}":"{number}""#);
    let meta = envelope.meta.as_ref();
    let meta = meta.filter(|meta| text.as_bytes()[meta.start] == b'{');
    if let Some(meta) = meta {
        return match member(text, meta, CURSOR) {
            Some(value) => splice(text, &mut [(value, &format!(r#""{number}""#))]).concat(),
            None => insert_member(text, meta, &field),
        };
    }
    let meta_field = format!(r#""_meta":{{{field}}}"#);
    match (&envelope.meta, &envelope.body) {
        (None, Some(body)) if text.as_bytes()[body.start] == b'{' => {
            insert_member(text, body, &meta_field)
        }
        _ => {
            let start = text.len() - text.trim_ascii_start().len();
            insert_member(text, &(start..text.trim_ascii_end().len()), &meta_field)
        }
    }
}

/// The responses to a `stream/resume` that has failed.
pub(super) fn resume_failed(text: &str, failure: ResumeFailure) -> (Option<String>, String) {
    let reason = failure.reason();
    let envelope = Envelope::parse_client(text).ok();
    let id = envelope.as_ref().and_then(Envelope::id);
    let refused = id.map(|id| error(id, code::NOT_FOUND, "Cannot resume", Some(reason)));
    let notice = format!(
        r#"{{"jsonrpc":"2.0","method":"stream/resume_failed","params":{{"reason":"{reason}"}}}}"#
    );
    (refused, notice)
}

/// The response to a `stream/resume` that has succeeded. `received` messages came from the client on its earlier connections. `turns`
/// are the states of its turns, by session, if the protocol has no updates for them.
pub(super) fn resumed(
    text: &str,
    received: u64,
    turns: Option<&[(String, String)]>,
) -> Option<String> {
    let envelope = Envelope::parse_client(text).ok()?;
    let id = envelope.id()?;
    let mut meta = format!(r#""outrigger":{{"received":{received}}}"#);
    if let Some(turns) = turns {
        if let [(_, only)] = turns {
            meta += &format!(r#","acp/turnState":{only}"#);
        }
        let all = turns
            .iter()
            .map(|(session, state)| format!("{}:{state}", quote(session)));
        meta += &format!(
            r#","acp/turnStates":{{{}}}"#,
            all.collect::<Vec<_>>().join(",")
        );
    }
    Some(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"_meta":{{{meta}}}}}}}"#
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_where_receivers_ignore_it() {
        for (text, expected) in [
            (
                r#"{"jsonrpc":"2.0","method":"m","params":{"a":1}}"#,
                r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"acp/cursor":"7"},"a":1}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"x":1}}}"#,
                r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"acp/cursor":"7","x":1}}}"#,
            ),
            // An agent cannot make up a cursor.
            (
                r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"acp/cursor":"1"}}}"#,
                r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"acp/cursor":"7"}}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"m"}"#,
                r#"{"_meta":{"acp/cursor":"7"},"jsonrpc":"2.0","method":"m"}"#,
            ),
            (
                r#" {"jsonrpc":"2.0","id":1,"result":null} "#,
                r#" {"_meta":{"acp/cursor":"7"},"jsonrpc":"2.0","id":1,"result":null} "#,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":3}}"#,
                r#"{"_meta":{"acp/cursor":"7"},"jsonrpc":"2.0","method":"m","params":{"_meta":3}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}"#,
                r#"{"_meta":{"acp/cursor":"7"},"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}"#,
            ),
            (
                r#"[{"jsonrpc":"2.0","id":1,"result":1},{"jsonrpc":"2.0","id":2,"result":{}}]"#,
                r#"[{"jsonrpc":"2.0","id":1,"result":1},{"jsonrpc":"2.0","id":2,"result":{"_meta":{"acp/cursor":"7"}}}]"#,
            ),
        ] {
            assert_eq!(with_cursor(text, 7), expected);
        }
    }

    #[test]
    fn a_small_buffer_announces_fewer_messages() {
        assert_eq!(announced(4 << 20), 1000);
        assert_eq!(announced(64 << 20), 1000);
        assert_eq!(announced(64 << 10), 16);
        assert_eq!(announced(0), 0);
    }

    #[test]
    fn the_announcement_keeps_the_capabilities_of_the_agent() {
        let announcement = Announcement {
            connection_id: "c".to_owned(),
            transport: r#"{"resumable":{}}"#.to_owned(),
        };
        for (result, expected) in [
            (
                r#"{"protocolVersion":1}"#,
                r#"{"connectionId":"c","capabilities":{"transport":{"resumable":{}}},"protocolVersion":1}"#,
            ),
            (
                r#"{"capabilities":{"session":{}}}"#,
                r#"{"connectionId":"c","capabilities":{"transport":{"resumable":{}},"session":{}}}"#,
            ),
            (
                r#"{"capabilities":{"transport":{"x":1},"session":{}}}"#,
                r#"{"connectionId":"c","capabilities":{"transport":{"resumable":{}},"session":{}}}"#,
            ),
        ] {
            let response = |result| format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
            assert_eq!(announcement.add_to(&response(result)), response(expected));
        }
        let failed = error("1", code::INTERNAL, "no", None);
        assert_eq!(announcement.add_to(&failed), failed);
        for result in ["null", "5", "[]", "\"x\"", "{}", " { } "] {
            let response = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
            let added = announcement.add_to(&response);
            assert!(Envelope::parse(&added).is_ok(), "{added}");
        }
    }

    #[test]
    fn the_positions_of_streams_say_what_a_client_lacks() {
        let read = |params: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"stream/resume","params":{params}}}"#);
            Positions::read(&Envelope::parse(&text).expect("a message"))
        };
        for invalid in [
            "{}",
            r#"{"cursor":7}"#,
            r#"{"cursor":"x"}"#,
            r#"{"cursors":{}}"#,
            r#"{"cursors":{"sessions":{"s":"1","t":2}}}"#,
            r#"{"cursors":{"sessions":3}}"#,
        ] {
            assert_eq!(read(invalid), None, "{invalid}");
        }
        let all = read(r#"{"cursor":"5"}"#).expect("positions");
        assert_eq!(all.received(), 5);
        // The stream of the connection begins with the first message.
        let some = read(r#"{"cursors":{"sessions":{"s":"9"}}}"#).expect("positions");
        assert_eq!(some.received(), 0);
        let each = read(r#"{"cursors":{"connection":"6","sessions":{"s":"9","t":"4"}}}"#);
        let each = each.expect("positions");
        assert_eq!(each.received(), 4);
        // An idle session is at an old position, but lacks nothing.
        let idle = read(r#"{"cursor":"8","cursors":{"sessions":{"s":"9","t":"4"}}}"#);
        assert_eq!(idle.expect("positions").received(), 8);
        let update = |session: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{session}"}}}}"#
            )
        };
        let other = r#"{"jsonrpc":"2.0","method":"_x","params":{}}"#;
        let response = r#"{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s"}}"#;
        for (number, message, has) in [
            (5, update("s"), true),
            (9, update("s"), true),
            (10, update("s"), false),
            (5, update("t"), false),
            (6, update("u"), true),
            (7, update("u"), false),
            (6, other.to_owned(), true),
            (7, other.to_owned(), false),
            (5, response.to_owned(), false),
        ] {
            assert_eq!(each.have(number, &message), has, "{number} {message}");
        }
    }
}
