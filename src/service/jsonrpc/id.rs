//! The ids of requests (JSON-RPC 2.0 section 4): the one rule for when two of them are the same, a set of those that are pending,
//! and the recovery of the id of a message that cannot be parsed.
//!
//! An id is a string, a number or null. Two ids are the same if they are the same JSON value: `"a"` and `"\u0061"` are, and so are
//! 1, 1.0 and 10e-1, because a peer that reads numbers as floating-point numbers may write them in another form. 1 and `"1"` are
//! not. Numbers are compared exactly, also where a double could not tell them apart.
//!
//! With the recovered id, a request that is too long, not JSON, or not UTF-8 can be answered with an error instead of being
//! pending forever. [`IdRecovery`] takes the message in pieces of any size, in constant memory, and finds the id anywhere in it.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::record::record;
use crate::service::json::{Skimmer, quote, unescape};

/// The maximum length of an id or a progress token, as written, in bytes.
pub(crate) const MAX_ID: usize = 1024;

/// An integer up to this length is its own key.
const MAX_PLAIN: usize = 20;

/// A number with more zeros at its end than this has a key with an exponent.
const MAX_ZEROS: i64 = 40;

/// An id in a form that does not depend on how it is written: two ids are the same if their keys are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IdKey(Box<str>);

record!(IdKey as Box<str>);

impl IdKey {
    /// The key of an id, which is valid JSON.
    pub(crate) fn of(raw: &str) -> Self {
        Self(normal(raw).into())
    }

    /// The shortest id with this key.
    pub(crate) fn to_raw(&self) -> String {
        let text = self.0.strip_prefix('"');
        text.map_or_else(|| self.0.to_string(), quote)
    }
}

/// The content of a key: a string after a quote and without escapes, or a number.
fn normal(raw: &str) -> Cow<'_, str> {
    match raw.as_bytes().first() {
        Some(b'"') if raw.contains('\\') => format!("\"{}", unescape(raw)).into(),
        Some(b'"') => raw.strip_suffix('"').unwrap_or(raw).into(),
        Some(b'-' | b'0'..=b'9') => number(raw),
        _ => raw.into(),
    }
}

fn number(raw: &str) -> Cow<'_, str> {
    if raw.len() <= MAX_PLAIN && !raw.contains(['.', 'e', 'E']) && raw != "-0" {
        return raw.into();
    }
    let (sign, number) = match raw.strip_prefix('-') {
        Some(number) => ("-", number),
        None => ("", raw),
    };
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = [whole, fraction].concat();
    let significant = digits.trim_start_matches('0').trim_end_matches('0');
    let trailing = digits.len() - digits.trim_end_matches('0').len();
    if significant.is_empty() {
        return "0".into();
    }
    let exponent = exponent.parse::<i64>().ok();
    let exponent =
        exponent.and_then(|one| one.checked_add(trailing as i64 - fraction.len() as i64));
    // A number with a larger exponent is the same as itself only.
    let Some(exponent) = exponent else {
        return raw.into();
    };
    match exponent {
        0..=MAX_ZEROS => {
            let zeros = "0".repeat(exponent as usize);
            [sign, significant, &zeros].concat().into()
        }
        _ => format!("{sign}{significant}e{exponent}").into(),
    }
}

/// Whether two ids are the same. One over [`MAX_ID`] is the same as no other: it may be as long as a message, and is compared with
/// every pending request.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    let is_short = one.len() <= MAX_ID && other.len() <= MAX_ID;
    is_short && (one == other || normal(one) == normal(other))
}

/// The id that the server has assigned to a request, in the form in which the peer returns it.
pub(crate) fn assigned(raw: &str) -> Option<u64> {
    if raw.len() > MAX_ID {
        return None;
    }
    let key = normal(raw);
    let is_number = key.bytes().all(|byte| byte.is_ascii_digit());
    key.parse().ok().filter(|_| is_number)
}

/// An empty set with more room than this frees its memory.
const KEPT: usize = 64;

/// The requests that wait under one id. A peer that uses an id twice gets two answers.
#[derive(Debug)]
struct Waiting {
    /// The id as written.
    raw: Box<str>,
    /// The position of the first request among all.
    serial: u64,
    count: usize,
}

/// A set of ids, each with the number of its requests. It keeps their order.
#[derive(Debug, Default)]
pub(crate) struct WaitingIds {
    ids: HashMap<IdKey, Waiting>,
    len: usize,
    serial: u64,
}

impl WaitingIds {
    /// The number of requests.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn contains(&self, key: &IdKey) -> bool {
        self.ids.contains_key(key)
    }

    /// Adds a request.
    pub(crate) fn insert(&mut self, raw: &str) {
        self.serial += 1;
        self.len += 1;
        let waiting = self.ids.entry(IdKey::of(raw)).or_insert_with(|| Waiting {
            raw: raw.into(),
            serial: self.serial,
            count: 0,
        });
        waiting.count += 1;
    }

    /// Removes a request with this key. Returns whether there was one.
    pub(crate) fn remove(&mut self, key: &IdKey) -> bool {
        let Some(waiting) = self.ids.get_mut(key) else {
            return false;
        };
        self.len -= 1;
        waiting.count -= 1;
        if waiting.count == 0 {
            self.ids.remove(key);
        }
        if self.ids.is_empty() && self.ids.capacity() > KEPT {
            self.ids = HashMap::new();
        }
        true
    }

    /// Removes all requests and returns their ids as written, in the order of the requests.
    pub(crate) fn take(&mut self) -> Vec<Box<str>> {
        let mut waiting: Vec<Waiting> = std::mem::take(&mut self.ids).into_values().collect();
        self.len = 0;
        waiting.sort_unstable_by_key(|waiting| waiting.serial);
        let waiting = waiting.into_iter();
        waiting
            .flat_map(|waiting| std::iter::repeat_n(waiting.raw, waiting.count))
            .collect()
    }
}

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
    /// The same, behind other text, such as the escape sequence `ESC [ 0 m`. A bracket there begins no array.
    Prose,
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

record!(IdRecovery {
    depth,
    in_string,
    is_escaped,
    position,
    key,
    value,
    keeps_value,
    ids,
    id,
    has_method,
});

record!(
    enum Position {
        Outside,
        Prose,
        BeforeKey,
        Key,
        AfterKey,
        Value,
    }
);

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
                b'[' if self.position == Position::Prose => {}
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
                _ if self.depth == 0 => self.position = Position::Prose,
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
    fn an_id_is_the_same_however_it_is_written() {
        // The bug: four functions answered this by three rules.
        let same = [
            ("1", "1.0"),
            ("1", "10e-1"),
            ("0", "-0"),
            ("0", "-0.0e7"),
            ("0", "0e99999999999999999999"),
            ("1000", "1E+3"),
            ("-1.5", "-15e-1"),
            ("12345678901234567890123", "12345678901234567890123.0"),
            ("1000000000000000000000", "1e21"),
            ("null", "null"),
            (r#""a/""#, r#""\u0061\/""#),
            (r#""""#, r#""""#),
        ];
        for (one, other) in same {
            assert!(is_same(one, other) && is_same(other, one), "{one} {other}");
        }
        let different = [
            ("1", "\"1\""),
            ("1", "-1"),
            ("1", "2"),
            ("1", "10"),
            ("null", "\"null\""),
            ("1", "1.5"),
            ("1e400", "1e401"),
            ("1e9223372036854775807", "10e9223372036854775807"),
            ("9007199254740993", "9007199254740992"),
            ("9007199254740993.0", "9007199254740992"),
            (r#""a""#, r#""A""#),
            (r#""1.0""#, r#""1""#),
        ];
        for (one, other) in different {
            assert!(!is_same(one, other), "{one} {other}");
        }
        for text in ["1", "-7", "null", r#""a\"b""#, r#""""#, "1.5e-7"] {
            assert!(is_same(&IdKey::of(text).to_raw(), text));
        }
    }

    /// The bug: a cancellation with an id of megabytes was brought into another form for each pending request.
    #[test]
    fn an_id_that_is_too_long_is_compared_with_nothing() {
        let long = "1".repeat(10 * MAX_ID);
        assert!(!is_same(&long, &long) && !is_same("1", &long));
        assert_eq!(assigned(&format!("7.{}", "0".repeat(MAX_ID))), None);
    }

    #[test]
    fn an_assigned_id_comes_back_in_any_form_of_the_number() {
        for (raw, id) in [
            ("7", Some(7)),
            ("7.0", Some(7)),
            ("70e-1", Some(7)),
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("\"7\"", None),
            ("-7", None),
            ("7.5", None),
            ("null", None),
        ] {
            assert_eq!(assigned(raw), id, "{raw}");
        }
    }

    #[test]
    fn ids_come_out_in_the_order_of_their_requests() {
        let mut ids = WaitingIds::default();
        for id in ["3", "\"x\"", "1", "3.0", "2"] {
            ids.insert(id);
        }
        assert!(ids.remove(&IdKey::of("1")) && !ids.remove(&IdKey::of("1")));
        assert_eq!(ids.len(), 4);
        let taken: Vec<String> = ids.take().into_iter().map(String::from).collect();
        assert_eq!(taken, ["3", "3", "\"x\"", "2"]);
        assert!(ids.is_empty() && !ids.contains(&IdKey::of("3")));
    }

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
            // The bug: the bracket of an escape sequence hid the object behind it.
            (
                "\u{1b}[32minfo\u{1b}[0m {\"id\":7,\"result\":[1]}".to_owned(),
                response("7"),
            ),
            (r#"[info] {"id":7,"result":1}"#.to_owned(), response("7")),
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
