//! The ids of requests (JSON-RPC 2.0 section 4), and the one rule for when two of them are the same.
//!
//! An id is a string, a number or null. Two ids are the same if they are the same JSON value: `"a"` and `"\u0061"` are, and so are
//! 1, 1.0 and 10e-1, because a peer that reads numbers as floating-point numbers may write them in another form. 1 and `"1"` are
//! not. Numbers are compared exactly, also where a double could not tell them apart.

use std::borrow::Cow;

use crate::service::json::{quote, unescape};

/// The maximum length of an id or a progress token, as written, in bytes.
pub(crate) const MAX_ID: usize = 1024;

/// An integer up to this length is its own key.
const MAX_PLAIN: usize = 20;

/// A number with more zeros at its end than this has a key with an exponent.
const MAX_ZEROS: i64 = 40;

/// An id in a form that does not depend on how it is written: two ids are the same if their keys are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::service) struct IdKey(Box<str>);

impl IdKey {
    /// The key of an id, which is valid JSON.
    pub(in crate::service) fn of(raw: &str) -> Self {
        Self(normal(raw).into())
    }

    /// The shortest id with this key.
    pub(in crate::service) fn to_raw(&self) -> String {
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
pub(in crate::service) fn is_same(one: &str, other: &str) -> bool {
    let is_short = one.len() <= MAX_ID && other.len() <= MAX_ID;
    is_short && (one == other || normal(one) == normal(other))
}

/// The id that the server has assigned to a request, in the form in which the peer returns it.
pub(in crate::service) fn assigned(raw: &str) -> Option<u64> {
    if raw.len() > MAX_ID {
        return None;
    }
    let key = normal(raw);
    let is_number = key.bytes().all(|byte| byte.is_ascii_digit());
    key.parse().ok().filter(|_| is_number)
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
}
