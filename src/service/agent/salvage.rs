//! Finds the id of a message that cannot be parsed: it is too long to be held, not JSON, or not UTF-8.
//!
//! With the id, the sender of a request gets an error if its answer cannot be passed on. [`Salvage`] takes the
//! message's bytes in pieces of any size, keeps almost nothing of them, and finds the id anywhere in the message.

use super::json::Skimmer;
use super::router::MAX_ID;

/// The longest key that is looked at, as it is written: `"method"` with every letter escaped.
const MAX_KEY: usize = 64;

/// What a message was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Salvaged {
    /// A request with this id, as it was written.
    Request(String),
    /// An answer to the request with this id.
    Response(String),
}

/// Where in an object's members the reader is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Not in the outermost object, or before it.
    #[default]
    Outside,
    BeforeKey,
    Key,
    AfterKey,
    Value,
}

/// Reads a message for its id.
#[derive(Debug, Default)]
pub(super) struct Salvage {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    place: Place,
    /// The present key, and the present value if it is the id's, as far as they are kept.
    key: Vec<u8>,
    value: Vec<u8>,
    keeps_value: bool,
    ids: usize,
    id: Vec<u8>,
    has_method: bool,
}

impl Salvage {
    /// What a whole message was.
    pub(super) fn of(bytes: &[u8]) -> Option<Salvaged> {
        let mut salvage = Self::default();
        salvage.push(bytes);
        salvage.finish()
    }

    /// Takes the next piece.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.in_string {
                self.keep(byte);
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => {
                        self.in_string = false;
                        if self.place == Place::Key {
                            self.place = Place::AfterKey;
                        }
                    }
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => {
                    self.in_string = true;
                    if self.depth == 1 && self.place == Place::BeforeKey {
                        self.place = Place::Key;
                        self.key.clear();
                    }
                    self.keep(byte);
                }
                b'{' | b'[' => {
                    if self.depth == 0 && byte == b'{' {
                        self.place = Place::BeforeKey;
                    }
                    self.keep(byte);
                    self.depth += 1;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        self.end_value();
                        self.place = Place::Outside;
                    }
                }
                b',' if self.depth == 1 => {
                    self.end_value();
                    self.place = Place::BeforeKey;
                }
                b':' if self.depth == 1 && self.place == Place::AfterKey => self.begin_value(),
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ => self.keep(byte),
            }
        }
    }

    /// The message has ended. `None` if it had no id, or more than one.
    pub(super) fn finish(self) -> Option<Salvaged> {
        let id = String::from_utf8(self.id).ok().filter(|_| self.ids == 1)?;
        let mut skimmer = Skimmer::new(&id);
        let is_id = matches!(skimmer.peek()?, b'"' | b'-' | b'0'..=b'9');
        (is_id && skimmer.value().is_ok() && skimmer.end().is_ok()).then_some(())?;
        Some(if self.has_method {
            Salvaged::Request(id)
        } else {
            Salvaged::Response(id)
        })
    }

    /// Keeps a byte of a key, or of the value of `id`. One byte over the limit is kept, so that what is too long is
    /// known for it.
    fn keep(&mut self, byte: u8) {
        let (kept, limit) = match self.place {
            Place::Key => (&mut self.key, MAX_KEY),
            Place::Value if self.keeps_value => (&mut self.value, MAX_ID),
            _ => return,
        };
        if kept.len() <= limit {
            kept.push(byte);
        }
    }

    fn begin_value(&mut self) {
        let key = serde_json::from_slice::<String>(&self.key).unwrap_or_default();
        self.place = Place::Value;
        self.has_method |= key == "method";
        self.keeps_value = key == "id";
        self.value.clear();
    }

    fn end_value(&mut self) {
        if self.place == Place::Value && std::mem::take(&mut self.keeps_value) {
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
    fn the_id_is_found_wherever_it_stands_and_however_the_message_is_cut() {
        let long = "x".repeat(3000);
        let response = |id: &str| Some(Salvaged::Response(id.to_owned()));
        let request = |id: &str| Some(Salvaged::Request(id.to_owned()));
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
            // Invalid JSON elsewhere does not prevent finding the id.
            (r#"{"id":7,"result":"\ud800"}"#.to_owned(), response("7")),
            (r#"{"id":7,"result":{]}"#.to_owned(), response("7")),
        ] {
            assert_eq!(Salvage::of(text.as_bytes()), want, "{text}");
            for step in [1, 3, 50] {
                let mut salvage = Salvage::default();
                text.as_bytes()
                    .chunks(step)
                    .for_each(|piece| salvage.push(piece));
                assert!(salvage.key.len() + salvage.value.len() + salvage.id.len() < 4096);
                assert_eq!(salvage.finish(), want, "{text}");
            }
        }
        assert_eq!(
            Salvage::of(b"{\"result\":\"\xff\xfe\",\"id\":3}"),
            response("3")
        );
    }
}
