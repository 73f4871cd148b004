//! Reading just enough of a JSON text: every byte is checked, and nothing is built.
//!
//! [`Skimmer`] walks over a text and hands out the ranges of its values, so that a message can be routed and passed on
//! with its own bytes. It is strict where RFC 8259 leaves room: a surrogate has to have its other half, and nesting has
//! a limit.

use std::borrow::Cow;
use std::ops::Range;

/// The deepest nesting of arrays and objects.
const MAX_DEPTH: u32 = 128;

/// The most values in a text, those inside of others included: walking over a million takes tens of milliseconds.
pub(crate) const MAX_VALUES: u32 = 1_000_000;

/// The text is not JSON, or more deeply nested than is taken, or has too many values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotJson;

/// A cursor in a JSON text.
#[derive(Clone, Debug)]
pub(crate) struct Skimmer<'a> {
    text: &'a str,
    at: usize,
    /// Values that may still come.
    values: u32,
}

impl<'a> Skimmer<'a> {
    /// A cursor at the front of `text`.
    pub(crate) fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            values: MAX_VALUES,
        }
    }

    /// A cursor over a value whose range was handed out before.
    pub(crate) fn at(text: &'a str, value: &Range<usize>) -> Self {
        Self {
            text: &text[..value.end],
            at: value.start,
            values: MAX_VALUES,
        }
    }

    /// The first byte of the next value.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        self.space();
        self.byte()
    }

    /// Checks that nothing follows.
    pub(crate) fn end(&mut self) -> Result<(), NotJson> {
        self.space();
        if self.at == self.text.len() {
            Ok(())
        } else {
            Err(NotJson)
        }
    }

    /// Walks over an object and calls `member` with each key and the range of its value.
    pub(crate) fn object(
        &mut self,
        mut member: impl FnMut(Cow<'a, str>, Range<usize>),
    ) -> Result<(), NotJson> {
        self.space();
        self.expect(b'{')?;
        self.space();
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            self.space();
            let key = self.string()?;
            self.space();
            self.expect(b':')?;
            let value = self.value()?;
            member(unescape(&self.text[key]), value);
            self.space();
            if self.take(b'}') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// Walks over an array and calls `element` with the range of each value.
    pub(crate) fn array(&mut self, mut element: impl FnMut(Range<usize>)) -> Result<(), NotJson> {
        self.space();
        self.expect(b'[')?;
        self.space();
        if self.take(b']') {
            return Ok(());
        }
        loop {
            element(self.value()?);
            self.space();
            if self.take(b']') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// Walks over a value of any kind.
    pub(crate) fn value(&mut self) -> Result<Range<usize>, NotJson> {
        self.space();
        let start = self.at;
        // One bit for each open bracket: whether it is an object's.
        let mut open: u128 = 0;
        let mut depth = 0;
        loop {
            self.space();
            self.values = self.values.checked_sub(1).ok_or(NotJson)?;
            match self.byte().ok_or(NotJson)? {
                bracket @ (b'{' | b'[') => {
                    self.at += 1;
                    if depth == MAX_DEPTH {
                        return Err(NotJson);
                    }
                    let is_object = bracket == b'{';
                    self.space();
                    if !self.take(if is_object { b'}' } else { b']' }) {
                        open = open << 1 | u128::from(is_object);
                        depth += 1;
                        if is_object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                b'"' => _ = self.string()?,
                b'-' | b'0'..=b'9' => self.number()?,
                b't' => self.literal("true")?,
                b'f' => self.literal("false")?,
                b'n' => self.literal("null")?,
                _ => return Err(NotJson),
            }
            loop {
                if depth == 0 {
                    return Ok(start..self.at);
                }
                self.space();
                let is_object = open & 1 != 0;
                if self.take(b',') {
                    if is_object {
                        self.key()?;
                    }
                    break;
                }
                self.expect(if is_object { b'}' } else { b']' })?;
                open >>= 1;
                depth -= 1;
            }
        }
    }

    fn key(&mut self) -> Result<(), NotJson> {
        self.space();
        self.string()?;
        self.space();
        self.expect(b':')
    }

    /// A string with its quotes.
    fn string(&mut self) -> Result<Range<usize>, NotJson> {
        let start = self.at;
        self.expect(b'"')?;
        let bytes = self.text.as_bytes();
        loop {
            self.at += plain_prefix(&bytes[self.at..]);
            match self.byte().ok_or(NotJson)? {
                b'"' => {
                    self.at += 1;
                    return Ok(start..self.at);
                }
                b'\\' => self.escape()?,
                _ => return Err(NotJson),
            }
        }
    }

    fn escape(&mut self) -> Result<(), NotJson> {
        self.at += 1;
        match self.byte().ok_or(NotJson)? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
            b'u' => match self.code_unit()? {
                0xd800..=0xdbff => {
                    self.expect(b'\\')?;
                    if self.byte() != Some(b'u') || !matches!(self.code_unit()?, 0xdc00..=0xdfff) {
                        return Err(NotJson);
                    }
                }
                0xdc00..=0xdfff => return Err(NotJson),
                _ => {}
            },
            _ => return Err(NotJson),
        }
        Ok(())
    }

    /// `u` and four hexadecimal digits.
    fn code_unit(&mut self) -> Result<u32, NotJson> {
        let digits = self
            .text
            .as_bytes()
            .get(self.at + 1..self.at + 5)
            .ok_or(NotJson)?;
        self.at += 5;
        digits.iter().try_fold(0, |unit, &digit| {
            Ok(unit << 4 | char::from(digit).to_digit(16).ok_or(NotJson)?)
        })
    }

    fn number(&mut self) -> Result<(), NotJson> {
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            let _ = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), NotJson> {
        let start = self.at;
        while self.byte().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at > start {
            Ok(())
        } else {
            Err(NotJson)
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), NotJson> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(NotJson);
        }
        self.at += word.len();
        Ok(())
    }

    fn space(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.byte() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), NotJson> {
        if self.take(byte) {
            Ok(())
        } else {
            Err(NotJson)
        }
    }
}

/// How many of the first bytes stand for themselves in a string. Most of a message is text, so eight at a time.
fn plain_prefix(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    // The high bit of each byte of `word` that is less than `n`, which is at most 0x80. Above the first such byte there
    // may be bits that mean nothing, since the subtraction borrows.
    let less = |word: u64, n: u64| word.wrapping_sub(ONES * n) & !word & HIGHS;
    let is = |word: u64, byte: u8| less(word ^ (ONES * u64::from(byte)), 1);
    let (words, rest) = bytes.as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let special = less(word, 0x20) | is(word, b'"') | is(word, b'\\');
        if special != 0 {
            return 8 * at + special.trailing_zeros() as usize / 8;
        }
    }
    let is_special = |&byte: &u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    8 * words.len() + rest.iter().position(is_special).unwrap_or(rest.len())
}

/// The text that a string stands for. `raw` has its quotes and was walked over before.
pub(crate) fn unescape(raw: &str) -> Cow<'_, str> {
    let inner = &raw[1..raw.len() - 1];
    if inner.contains('\\') {
        Cow::Owned(serde_json::from_str(raw).unwrap_or_default())
    } else {
        Cow::Borrowed(inner)
    }
}

/// A string as JSON.
pub(crate) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn is_json(text: &str) -> bool {
        let mut skimmer = Skimmer::new(text);
        skimmer.value().is_ok() && skimmer.end().is_ok()
    }

    #[test]
    fn the_plain_prefix_of_a_string_ends_where_a_byte_is_special() {
        for len in 0..40 {
            for at in 0..len {
                for byte in 0..=255 {
                    // The next byte is one that a borrow from this one makes look special.
                    let mut bytes = vec![b'!'; len];
                    bytes[at] = byte;
                    let special = byte < 0x20 || byte == b'"' || byte == b'\\';
                    assert_eq!(plain_prefix(&bytes), if special { at } else { len });
                    bytes[len - 1] = 0;
                    let end = if special { at } else { len - 1 };
                    assert_eq!(plain_prefix(&bytes), if byte == 0 { at } else { end });
                }
            }
        }
    }

    #[test]
    fn what_is_json_and_what_is_not() {
        for text in [
            "0",
            "-0",
            "1.5e-7",
            "1E+2",
            "true",
            " null ",
            "\"\"",
            "\"\\u00e9\\n\\/\"",
            "\"\\ud83d\\ude00\"",
            "[]",
            "{}",
            "[1,[2],{\"a\":[]}]",
            "{\"a\":{\"b\":null},\"c\":\"}\"}",
            "\"κόσμε\"",
        ] {
            assert!(is_json(text), "{text}");
        }
        for text in [
            "",
            " ",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "tru",
            "nulll",
            "\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\t\"",
            "[1,]",
            "[,1]",
            "{\"a\"}",
            "{\"a\":1,}",
            "{a:1}",
            "{'a':1}",
            "[1}",
            "{\"a\":1]",
            "1 2",
            "NaN",
            "\"\\ud800\"",
            "\"\\udc00\"",
            "\"\\ud800\\u0041\"",
            "[",
            "{\"a\":",
        ] {
            assert!(!is_json(text), "{text}");
        }
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(is_json(&nested(128)) && !is_json(&nested(129)) && !is_json(&nested(1 << 20)));
    }

    #[test]
    fn serde_json_agrees() {
        // serde_json is the oracle: it knows the same grammar and the same limit of surrogates.
        let mut random = Random::new(5);
        let seeds = [
            r#"{"a":[1,-2.5e3,"x\u00e9\ud83d\ude00",true,null],"b":{"c":{}}}"#,
            r#"[[],{},"",0]"#,
        ];
        for round in 0..200_000 {
            let mut bytes = seeds[round % 2].as_bytes().to_vec();
            for _ in 0..1 + random.below(4) {
                let at = random.below(bytes.len());
                match random.below(3) {
                    0 => drop(bytes.remove(at)),
                    1 => bytes.insert(at, b"{}[],:\"\\0e-.ud8 "[random.below(16)]),
                    _ => bytes[at] = b"{}[],:\"\\0e-.ud8 "[random.below(16)],
                }
            }
            let Ok(text) = String::from_utf8(bytes) else {
                continue;
            };
            let oracle = serde_json::from_str::<serde_json::Value>(&text);
            // A number too large for a float is JSON all the same.
            if oracle
                .as_ref()
                .is_err_and(|error| error.to_string().contains("out of range"))
            {
                continue;
            }
            assert_eq!(is_json(&text), oracle.is_ok(), "{text}");
        }
    }
}
