//! The sessions that a message names.
//!
//! One rule holds for the messages of clients and those of agents. In a message of a method that the schema of the Agent
//! Client Protocol has, a session id is at `params.sessionId`, and anywhere in `_meta`. In any other message it can be
//! anywhere. There, every string at a key that spells a session id is one, in lists and nested objects too, but not inside
//! `content`, `rawInput` and `rawOutput`, whose contents belong to users and tools.

use std::borrow::Cow;

use crate::record::record;
use crate::service::json::{Skimmer, unescape};
use crate::service::jsonrpc::{Envelope, folded};

/// The maximum number of session ids in a message.
const MAX_NAMED: usize = 1024;
/// The maximum length of a key that names sessions, in bytes.
const MAX_KEY: usize = 1024;

/// Where a message has session ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// At `params.sessionId` and in `_meta`: the method is in the schema.
    Schema,
    /// Anywhere but in opaque contents.
    Anywhere,
    /// Nowhere, because the settings say so.
    Nowhere,
}

record!(
    enum Places {
        Schema,
        Anywhere,
        Nowhere,
    }
);

/// The sessions that a message names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Named<'a> {
    /// The session at `params.sessionId`, also under another spelling of the key.
    pub(crate) address: Option<Cow<'a, str>>,
    /// All other session ids, in their order in the message. `address` may be among them.
    pub(crate) others: Vec<Cow<'a, str>>,
}

/// A message has too many session ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

impl<'a> Named<'a> {
    /// Finds the sessions that a message names.
    pub(crate) fn find(envelope: &Envelope<'a>, places: Places) -> Result<Self, TooMany> {
        let text = envelope.text;
        let address = envelope.session.clone();
        let address = address.or_else(|| envelope.misspelled_session.clone());
        let mut found = Vec::new();
        let mut is_complete = true;
        match places {
            Places::Nowhere => return Ok(Self::default()),
            Places::Anywhere => is_complete = find_in(text, Skimmer::new(text), &mut found),
            Places::Schema => envelope.each_meta(|meta| {
                is_complete &= find_in(text, Skimmer::at(text, &meta), &mut found);
            }),
        }
        if !is_complete || found.len() > MAX_NAMED {
            return Err(TooMany);
        }
        Ok(Self {
            address,
            others: found,
        })
    }

    /// All session ids, `address` first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.address.iter().chain(&self.others).map(|id| &**id)
    }
}

/// What a value is, by the keys that lead to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A string here is a session id.
    Session,
    /// Nothing here is a session id, however deep.
    Opaque,
    Other,
}

/// Appends the session ids in a value, and at most one over the limit. Returns whether the whole value was scanned: it may have
/// as many values as a message may have, and is one more.
fn find_in<'a>(text: &'a str, mut skimmer: Skimmer<'a>, found: &mut Vec<Cow<'a, str>>) -> bool {
    let member = |outer, key: &str| match key {
        _ if outer == Place::Opaque => Place::Opaque,
        "content" | "rawInput" | "rawOutput" => Place::Opaque,
        _ if names_session(key) => Place::Session,
        // `{"session": {"id": "..."}}`
        _ if outer == Place::Session && key.eq_ignore_ascii_case("id") => Place::Session,
        _ => Place::Other,
    };
    let scanned = skimmer.strings(Place::Other, member, |place, range| {
        if place == Place::Session && found.len() <= MAX_NAMED {
            found.push(unescape(&text[range]));
        }
    });
    scanned.is_ok()
}

/// The ends of keys that name sessions, without `_` and `-`.
const ENDS: [&str; 4] = ["session", "sessions", "sessionid", "sessionids"];

/// Whether a key spells a session id: `sessionId`, `session_id`, `parentSessionId`, `sessionIds`, `session`, `sessions`.
fn names_session(key: &str) -> bool {
    let ends_with = |end: &&str| {
        let last = folded(key).rev().take(end.len());
        last.eq(end.chars().rev())
    };
    key.len() <= MAX_KEY && ENDS.iter().any(ends_with)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The session ids in a message with these parameters.
    fn named(places: Places, params: &str) -> Vec<String> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{params}}}"#);
        let envelope = Envelope::parse(&text).expect("a request");
        let named = Named::find(&envelope, places).expect("few");
        let mut ids: Vec<_> = named.all().map(str::to_owned).collect();
        ids.dedup();
        ids
    }

    #[test]
    fn other_methods_name_sessions_in_any_place_but_opaque_content() {
        for params in [
            r#"{"target":{"sessionId":"s"}}"#,
            r#"{"sessions":["s"]}"#,
            r#"{"sessionIds":["s",7,null]}"#,
            r#"{"parentSessionId":"s"}"#,
            r#"{"parent_session_id":"s"}"#,
            r#"{"PARENT-SESSION-ID":"s"}"#,
            r#"{"x":[{"y":{"ses\u0073ionID":"\u0073"}}]}"#,
            r#"{"session":"s"}"#,
            r#"{"session":{"id":"s","title":"t"}}"#,
            r#"{"sessions":[{"id":"s","title":"t"}]}"#,
            r#"{"sessionIds":[["s"]]}"#,
            "{\"\u{17f}e\u{17f}\u{17f}ionId\":{},\"y\":{\"\u{17f}essionId\":\"s\"}}",
            r#"[{"sessionId":"s"}]"#,
        ] {
            assert_eq!(named(Places::Anywhere, params), ["s"], "{params}");
            assert_eq!(named(Places::Schema, params), [""; 0], "{params}");
        }
        for params in [
            r#"{"content":{"sessionId":"s"}}"#,
            r#"{"update":{"rawInput":{"a":[{"sessionId":"s"}]},"rawOutput":{"sessions":["s"]}}}"#,
            r#"{"sessionId":null,"y":{"sessionId":7,"sessionIds":[{"x":"s"}]}}"#,
            r#"{"session":{"title":"s"},"sessionTitle":"s","sessionIdle":"s","id":"s","sess":"s"}"#,
        ] {
            assert_eq!(named(Places::Anywhere, params), [""; 0], "{params}");
            assert_eq!(named(Places::Nowhere, params), [""; 0], "{params}");
        }
    }

    #[test]
    fn methods_of_the_schema_name_sessions_at_their_place_and_in_meta() {
        let params = r#"{"sessionId":"a","update":{"sessionId":"x","_meta":{"sessionId":"y"}},"_meta":{"sessionId":"b",
            "v":{"parentSessionId":"c"}},"field_meta":{"session_id":"d"}}"#;
        assert_eq!(named(Places::Schema, params), ["a", "b", "c", "d"]);
        assert_eq!(named(Places::Schema, r#"{"session_id":"a"}"#), ["a"]);
    }

    #[test]
    fn the_number_of_ids_is_limited() {
        let text = |count| {
            let ids = vec![r#""s""#; count].join(",");
            format!(r#"{{"jsonrpc":"2.0","method":"_x","params":{{"sessions":[{ids}]}}}}"#)
        };
        let find = |text: &str| {
            let envelope = Envelope::parse(text).expect("a notification");
            Named::find(&envelope, Places::Anywhere).map(|named| named.others.len())
        };
        assert_eq!(find(&text(MAX_NAMED)), Ok(MAX_NAMED));
        assert_eq!(find(&text(MAX_NAMED + 1)), Err(TooMany));
    }
}
