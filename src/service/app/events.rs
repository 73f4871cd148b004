//! The events that the program reads, as lines of JSON.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use super::command::TopicsOf;
use crate::record::record;
use crate::server::{is_token_protocol, without_resume, without_token};
use crate::{ClientId, CloseReason, Context, ListenAddress, Message, Request, Status};

/// The maximum number of entries of a list of topics or of members.
const MAX_LISTED: usize = 1000;

/// Events that are not yet in the program's input queue.
#[derive(Debug, Default)]
pub(super) struct Events {
    lines: Vec<u8>,
}

record!(Events { lines });

impl Events {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn clear(&mut self) {
        self.lines.clear();
    }

    /// Moves the lines to the end of `queue`.
    pub(super) fn append_to(&mut self, queue: &mut Vec<u8>) {
        queue.append(&mut self.lines);
    }

    pub(super) fn listening(&mut self, address: &ListenAddress, target: &str) {
        let port = address.tcp().map(|address| address.port());
        let event = json!({"url": address.url(target), "port": port});
        self.push("listening", &event);
    }

    pub(super) fn connect(
        &mut self,
        ctx: &Context,
        client: ClientId,
        request: &Request<'_>,
        protocol: Option<&str>,
    ) {
        let access = &ctx.config().access;
        let is_resumable = ctx.is_resumable(client);
        // The token is hidden from the program, and so is what the server alone needs.
        let query = match request.query() {
            Some(query) if !access.tokens.is_empty() => {
                Some(without_token(query)).filter(|query| !access.reveals(query))
            }
            query => query.map(str::to_owned),
        };
        let query = query.map(|query| match is_resumable {
            true => without_resume(&query),
            false => query,
        });
        let query = query.filter(|query| !query.is_empty() || request.query() == Some(""));
        let mut headers = Map::new();
        for (name, value) in request.headers() {
            let mut value = String::from_utf8_lossy(value);
            if name.eq_ignore_ascii_case("sec-websocket-protocol") {
                let offered = value.split(',').map(str::trim);
                let real: Vec<&str> = offered.filter(|name| !is_token_protocol(name)).collect();
                value = real.join(", ").into();
                if value.is_empty() {
                    continue;
                }
            }
            // The principal is the user that a trusted proxy names. The field of any other peer may be forged.
            let names_user = ctx.config().auth_header.as_deref();
            if names_user.is_some_and(|header| name.eq_ignore_ascii_case(header)) {
                continue;
            }
            let asks_to_resume = name.eq_ignore_ascii_case("outrigger-resume");
            if access.reveals(&value) || (is_resumable && asks_to_resume) {
                continue;
            }
            match headers.entry(name.to_ascii_lowercase()) {
                serde_json::map::Entry::Vacant(entry) => drop(entry.insert(value.into())),
                // RFC 9110 section 5.3: fields of one name are one list.
                serde_json::map::Entry::Occupied(mut entry) => {
                    let joined = format!("{}, {value}", entry.get().as_str().unwrap_or_default());
                    entry.insert(joined.into());
                }
            }
        }
        let event = json!({
            "client": client.to_string(),
            "path": request.path(),
            "query": query,
            "remote": ctx.remote(client).map(|remote| remote.to_string()),
            "principal": ctx.principal(client).to_string(),
            "resumable": is_resumable,
            "origin": request.header("origin").map(String::from_utf8_lossy),
            "protocol": protocol,
            "traceparent": request.trace_parent().map(|trace| trace.to_string()),
            "headers": headers,
        });
        self.push("connect", &event);
    }

    /// Whether a message is over the limit, or its JSON is over twice the limit because most of it needs escapes.
    pub(super) fn is_long(message: Message<'_>, limit: usize) -> bool {
        /// The maximum length of an escape.
        const LONGEST: usize = 6;
        let length = message.as_bytes().len();
        match message {
            _ if length > limit => true,
            Message::Text(text) if length * LONGEST > 2 * limit => escaped_len(text) > 2 * limit,
            Message::Text(_) | Message::Binary(_) => false,
        }
    }

    /// Writes the most frequent event directly, without a JSON tree.
    pub(super) fn message(&mut self, client: ClientId, message: Message<'_>) {
        self.lines.extend_from_slice(
            format!("{{\"event\":\"message\",\"client\":\"{client}\",").as_bytes(),
        );
        match message {
            Message::Text(text) => {
                self.lines.extend_from_slice(b"\"text\":");
                push_string(&mut self.lines, text);
            }
            Message::Binary(bytes) => {
                self.lines.extend_from_slice(b"\"binary\":\"");
                push_base64(&mut self.lines, bytes);
                self.lines.push(b'"');
            }
        }
        self.lines.extend_from_slice(b"}\n");
    }

    pub(super) fn drain(&mut self, client: ClientId) {
        self.push("drain", &json!({"client": client.to_string()}));
    }

    pub(super) fn disconnect(&mut self, client: ClientId, ending: &CloseReason) {
        let event = json!({
            "client": client.to_string(),
            "code": ending.code.0,
            "reason": ending.reason,
            "cause": ending.cause.as_str(),
        });
        self.push("disconnect", &event);
    }

    /// `id` is JSON.
    pub(super) fn status(&mut self, id: &str, status: &Status) {
        let fields = status.to_json();
        let fields = fields.strip_prefix('{').unwrap_or(&fields);
        self.lines
            .extend_from_slice(format!("{{\"event\":\"status\",\"id\":{id},{fields}\n").as_bytes());
    }

    /// A list of topics, or of the members of one, of at most [`MAX_LISTED`] entries. `id` is JSON.
    pub(super) fn topics(&mut self, ctx: &Context, id: &str, of: &TopicsOf) {
        let (name, subject, (entries, count)) = match of {
            TopicsOf::All => {
                let listed = first(
                    ctx.all_topics(),
                    |(name, count)| json!({"topic": name, "client_count": count}),
                );
                ("topics", None, listed)
            }
            TopicsOf::Client(client) => {
                let subject = ("client", client.to_string());
                (
                    "topics",
                    Some(subject),
                    first(ctx.topics(*client), Value::from),
                )
            }
            TopicsOf::Members(topic) => {
                let members = first(ctx.subscribers(topic), |client| client.to_string().into());
                ("clients", Some(("topic", topic.clone())), members)
            }
        };
        let mut event = json!({ name: entries, "count": count });
        if let Some((name, subject)) = subject {
            event[name] = subject.into();
        }
        let fields = event.to_string();
        let fields = fields.strip_prefix('{').unwrap_or(&fields);
        self.lines
            .extend_from_slice(format!("{{\"event\":\"topics\",\"id\":{id},{fields}\n").as_bytes());
    }

    /// An invalid command, or `count` of them.
    pub(super) fn error(&mut self, message: &str, line: u64, count: Option<u64>) {
        let mut event = json!({"message": message, "line": line});
        if let Some(count) = count {
            event["count"] = count.into();
        }
        self.push("error", &event);
    }

    /// Writes an object with `event` as its first field, so that it is easy to read and to match.
    fn push(&mut self, name: &str, object: &Value) {
        let fields = object.to_string();
        let fields = fields.strip_prefix('{').unwrap_or(&fields);
        self.lines
            .extend_from_slice(format!("{{\"event\":\"{name}\",{fields}\n").as_bytes());
    }
}

/// The first [`MAX_LISTED`] entries as JSON, and the number of all.
fn first<T>(
    mut entries: impl Iterator<Item = T>,
    to_json: impl FnMut(T) -> Value,
) -> (Vec<Value>, usize) {
    let first: Vec<_> = entries.by_ref().take(MAX_LISTED).map(to_json).collect();
    let count = first.len() + entries.count();
    (first, count)
}

/// The length of a string as a JSON string without its quotes, or more. Has no branch, so that the compiler can count many bytes at
/// once.
fn escaped_len(text: &str) -> usize {
    /// The counts of a block fit into a byte.
    const BLOCK: usize = 255;
    let blocks = text.as_bytes().chunks(BLOCK);
    let escapes = blocks.map(|block| {
        let (mut short, mut long) = (0_u8, 0_u8);
        for &byte in block {
            short += u8::from((byte == b'"') | (byte == b'\\') | (byte == b'\n'));
            long += u8::from((byte < 0x20) & (byte != b'\n'));
        }
        usize::from(short) + 5 * usize::from(long)
    });
    text.len() + escapes.sum::<usize>()
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    /// From this length on, the room for the result is reserved at once.
    const LONG: usize = 64 << 10;
    if text.len() >= LONG {
        out.reserve(escaped_len(text) + 2);
    }
    let written = serde_json::to_writer(&mut *out, text);
    debug_assert!(written.is_ok(), "writing to memory cannot fail");
}

fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    let written = BASE64_STANDARD.encode_slice(bytes, &mut out[start..]);
    debug_assert_eq!(
        written,
        Ok(out.len() - start),
        "the buffer has exactly the size of the output"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_costs_what_its_json_does() {
        let mut out = Vec::new();
        for unit in ["x", "\"", "\\", "\n", "\u{1}", "é", "ab\ncd\"ef"] {
            let text = unit.repeat(1000);
            out.clear();
            push_string(&mut out, &text);
            assert_eq!(escaped_len(&text) + 2, out.len(), "{unit:?}");
            let most = text.len().max((out.len() - 1) / 2);
            assert!(!Events::is_long(Message::Text(&text), most));
            assert!(Events::is_long(Message::Text(&text), most - 1));
        }
        // Tabs are counted as if they needed six bytes.
        assert_eq!(escaped_len("\t\r"), 12);
    }
}
