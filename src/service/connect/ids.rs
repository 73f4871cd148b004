//! JSON-RPC ids that wait for an answer.

use std::collections::HashMap;

use crate::service::json::{quote, unescape};

/// An empty set with more room than this frees its memory.
const KEPT: usize = 64;

/// An id in a form that does not depend on how it is written: a string after a quote and without escapes, or a number.
pub(super) fn key(raw: &str) -> Box<str> {
    if raw.starts_with('"') {
        return format!("\"{}", unescape(raw)).into();
    }
    // Some peers write 1 as 1.0.
    match raw.parse::<f64>() {
        Ok(number) if raw.contains(['.', 'e', 'E']) && number.is_finite() => {
            number.to_string().into()
        }
        _ => raw.into(),
    }
}

/// An id with this key.
pub(super) fn raw(key: &str) -> String {
    key.strip_prefix('"').map_or_else(|| key.to_owned(), quote)
}

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
pub(super) struct WaitingIds {
    ids: HashMap<Box<str>, Waiting>,
    len: usize,
    serial: u64,
}

impl WaitingIds {
    /// The number of requests.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.ids.contains_key(key)
    }

    /// Adds a request.
    pub(super) fn insert(&mut self, raw: &str) {
        self.serial += 1;
        self.len += 1;
        let waiting = self.ids.entry(key(raw)).or_insert_with(|| Waiting {
            raw: raw.into(),
            serial: self.serial,
            count: 0,
        });
        waiting.count += 1;
    }

    /// Removes a request with this key. Returns whether there was one.
    pub(super) fn remove(&mut self, key: &str) -> bool {
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
    pub(super) fn take(&mut self) -> Vec<Box<str>> {
        let mut waiting: Vec<Waiting> = std::mem::take(&mut self.ids).into_values().collect();
        self.len = 0;
        waiting.sort_unstable_by_key(|waiting| waiting.serial);
        let waiting = waiting.into_iter();
        waiting
            .flat_map(|waiting| std::iter::repeat_n(waiting.raw, waiting.count))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_same_however_it_is_written() {
        for (one, other) in [("1", "1.0"), ("1", "10e-1"), (r#""a/""#, r#""\u0061\/""#)] {
            assert_eq!(key(one), key(other), "{one} {other}");
        }
        for (one, other) in [
            ("1", "\"1\""),
            ("1", "2"),
            ("null", "\"null\""),
            ("1", "1.5"),
        ] {
            assert_ne!(key(one), key(other), "{one} {other}");
        }
        for text in ["1", "-7", "null", r#""a\"b""#] {
            assert_eq!(raw(&key(text)), text);
        }
    }

    #[test]
    fn ids_come_out_in_the_order_of_their_requests() {
        let mut ids = WaitingIds::default();
        for id in ["3", "\"x\"", "1", "3.0", "2"] {
            ids.insert(id);
        }
        assert!(ids.remove(&key("1")) && !ids.remove(&key("1")));
        assert_eq!(ids.len(), 4);
        let taken: Vec<String> = ids.take().into_iter().map(String::from).collect();
        assert_eq!(taken, ["3", "3", "\"x\"", "2"]);
        assert!(ids.is_empty() && !ids.contains("3"));
    }
}
