//! Recovers the id of a message that cannot be parsed because it is too long, not JSON, or not UTF-8.
//!
//! With the id, a request can be answered with an error instead of waiting forever. [`IdRecovery`] takes the message in
//! pieces of any size, in constant memory, and finds the id anywhere in it.

use super::id::MAX_ID;
use crate::service::json::Skimmer;

/// The longest key that is compared, with its escapes: `"method"` with every letter escaped.
const MAX_KEY: usize = 64;

/// The kind and id of a message that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecoveredId {
    /// A request with this id, as written.
    Request(String),
    /// A response to the request with this id.
    Response(String),
}

/// The position within the members of the outermost object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    /// Before or after the outermost object.
    #[default]
    Outside,
    BeforeKey,
    Key,
    AfterKey,
    Value,
}

/// Scans a message for its id.
#[derive(Debug, Default)]
pub(crate) struct IdRecovery {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    position: Position,
    /// The current key, and the current value if its key is `id`. Both are truncated.
    key: Vec<u8>,
    value: Vec<u8>,
    keeps_value: bool,
    ids: usize,
    id: Vec<u8>,
    has_method: bool,
}

impl IdRecovery {
    /// Recovers the id of a complete message.
    pub(crate) fn of(bytes: &[u8]) -> Option<RecoveredId> {
        let mut recovery = Self::default();
        recovery.push(bytes);
        recovery.finish()
    }

    /// Scans the next piece.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.in_string {
                self.keep(byte);
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => {
                        self.in_string = false;
                        if self.position == Position::Key {
                            self.position = Position::AfterKey;
                        }
                    }
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => {
                    self.in_string = true;
                    if self.depth == 1 && self.position == Position::BeforeKey {
                        self.position = Position::Key;
                        self.key.clear();
                    }
                    self.keep(byte);
                }
                b'{' | b'[' => {
                    if self.depth == 0 && byte == b'{' {
                        self.position = Position::BeforeKey;
                    }
                    self.keep(byte);
                    self.depth += 1;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        self.end_value();
                        self.position = Position::Outside;
                    }
                }
                b',' if self.depth == 1 => {
                    self.end_value();
                    self.position = Position::BeforeKey;
                }
                b':' if self.depth == 1 && self.position == Position::AfterKey => {
                    self.begin_value()
                }
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ => self.keep(byte),
            }
        }
    }

    /// Ends the message. Returns `None` if it has no id, or more than one.
    pub(crate) fn finish(self) -> Option<RecoveredId> {
        let id = String::from_utf8(self.id).ok().filter(|_| self.ids == 1)?;
        let mut skimmer = Skimmer::new(&id);
        let is_id = matches!(skimmer.peek()?, b'"' | b'-' | b'0'..=b'9');
        (is_id && skimmer.value().is_ok() && skimmer.end().is_ok()).then_some(())?;
        Some(if self.has_method {
            RecoveredId::Request(id)
        } else {
            RecoveredId::Response(id)
        })
    }

    /// Keeps a byte of a key or of the value of `id`. Keeps one byte more than the limit, so that text over the limit can
    /// be distinguished from text at the limit.
    fn keep(&mut self, byte: u8) {
        let (kept, limit) = match self.position {
            Position::Key => (&mut self.key, MAX_KEY),
            Position::Value if self.keeps_value => (&mut self.value, MAX_ID),
            _ => return,
        };
        if kept.len() <= limit {
            kept.push(byte);
        }
    }

    fn begin_value(&mut self) {
        let key = serde_json::from_slice::<String>(&self.key).unwrap_or_default();
        self.position = Position::Value;
        self.has_method |= key == "method";
        self.keeps_value = key == "id";
        self.value.clear();
    }

    fn end_value(&mut self) {
        if self.position == Position::Value && std::mem::take(&mut self.keeps_value) {
            self.ids += 1;
            self.id = std::mem::take(&mut self.value);
            if self.id.len() > MAX_ID {
                self.id.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_found_at_any_position_and_with_any_split_into_pieces() {
        let long = "x".repeat(3000);
        let response = |id: &str| Some(RecoveredId::Response(id.to_owned()));
        let request = |id: &str| Some(RecoveredId::Request(id.to_owned()));
        for (text, want) in [
            (
                r#"{"jsonrpc":"2.0","id":7,"result":{"id":8}}"#.to_owned(),
                response("7"),
            ),
            (
                format!(r#"{{"result":[{{"id":8}},"{long}\",\"id\":9,"],"id":7}}"#),
                response("7"),
            ),
            (
                format!(r#" {{ "result" : "{long}" , "i\u0064" : "a\"b" }} "#),
                response(r#""a\"b""#),
            ),
            (
                r#"{"id":7,"method":"x","params":{"id":8}}"#.to_owned(),
                request("7"),
            ),
            (
                r#"{"params":{"method":"y"},"id":-1.5e3}"#.to_owned(),
                response("-1.5e3"),
            ),
            (r#"{"method":"x","params":{}}"#.to_owned(), None),
            (r#"{"id":7,"result":1,"id":8}"#.to_owned(), None),
            (r#"{"id":{"id":7},"result":1}"#.to_owned(), None),
            (r#"{"id":null,"result":1}"#.to_owned(), None),
            (r#"[{"id":7,"result":1}]"#.to_owned(), None),
            (r#""id":7"#.to_owned(), None),
            (format!(r#"{{"id":"{long}","result":1}}"#), None),
            // Invalid JSON elsewhere does not hide the id.
            (r#"{"id":7,"result":"\ud800"}"#.to_owned(), response("7")),
            (r#"{"id":7,"result":{]}"#.to_owned(), response("7")),
        ] {
            assert_eq!(IdRecovery::of(text.as_bytes()), want, "{text}");
            for step in [1, 3, 50] {
                let mut recovery = IdRecovery::default();
                text.as_bytes()
                    .chunks(step)
                    .for_each(|piece| recovery.push(piece));
                assert!(recovery.key.len() + recovery.value.len() + recovery.id.len() < 4096);
                assert_eq!(recovery.finish(), want, "{text}");
            }
        }
        assert_eq!(
            IdRecovery::of(b"{\"result\":\"\xff\xfe\",\"id\":3}"),
            response("3")
        );
    }
}
