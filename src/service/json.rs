//! A JSON scanner that validates a JSON text and returns the ranges of its values without building a tree.
//!
//! A message can thus be routed and passed on with its own bytes. [`Skimmer`] is stricter than RFC 8259 requires: it
//! rejects unpaired surrogates, and it limits the nesting, and the number of values, keys and escapes.

use std::borrow::Cow;
use std::ops::Range;

/// The maximum nesting of arrays and objects.
const MAX_DEPTH: u32 = 128;

/// The maximum number of values and keys in a JSON text, nested ones included. Scanning them once takes about 10 ms.
const MAX_VALUES: u32 = 1_000_000;

/// The maximum number of values and keys in a client's message.
const MAX_CLIENT_VALUES: u32 = 250_000;

/// The units of a value, and of a key. A unit takes about 5 ns. Long strings are scanned so fast that only their length is limited.
const VALUE: u32 = 2;
/// The units of an escape, and of one in a key. A key with escapes is unescaped to compare it.
const ESCAPE: u32 = 1;
const ESCAPE_IN_KEY: u32 = 16;

/// The maximum length of a key that is unescaped to compare it. No key that matters is as long.
const MAX_KEY: usize = 1024;

/// The text is not JSON, or exceeds the limit on nesting, or on values, keys and escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotJson;

/// A cursor in a JSON text.
#[derive(Clone, Debug)]
pub(crate) struct Skimmer<'a> {
    text: &'a str,
    at: usize,
    /// The nesting of the objects that [`Skimmer::nested`] scans.
    depth: u32,
    /// The units of what may still follow.
    budget: u32,
}

impl<'a> Skimmer<'a> {
    /// A cursor at the start of `text`.
    pub(crate) fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            depth: 0,
            budget: MAX_VALUES * VALUE,
        }
    }

    /// A cursor at the start of a client's message, for which the limits are lower.
    pub(crate) fn of_client(text: &'a str) -> Self {
        Self {
            budget: MAX_CLIENT_VALUES * VALUE,
            ..Self::new(text)
        }
    }

    /// A cursor over a value whose range was returned earlier.
    pub(crate) fn at(text: &'a str, value: &Range<usize>) -> Self {
        Self {
            text: &text[..value.end],
            at: value.start,
            depth: 0,
            budget: MAX_VALUES * VALUE,
        }
    }

    /// The text that is scanned, up to the end of the value.
    pub(crate) fn text(&self) -> &'a str {
        self.text
    }

    /// Returns the first byte of the next value.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        self.space();
        self.byte()
    }

    /// Checks that only white space follows.
    pub(crate) fn end(&mut self) -> Result<(), NotJson> {
        self.space();
        if self.at == self.text.len() {
            Ok(())
        } else {
            Err(NotJson)
        }
    }

    /// Scans an object and calls `member` with each key and the range of its value. A key over 1 KiB keeps its escapes.
    pub(crate) fn object(
        &mut self,
        mut member: impl FnMut(Cow<'a, str>, Range<usize>),
    ) -> Result<(), NotJson> {
        self.members(|skimmer, key| {
            let value = skimmer.value()?;
            member(key, value);
            Ok(())
        })
    }

    /// Scans an object inside a member of another one, as [`Skimmer::members`] does, and returns its range.
    pub(crate) fn nested(
        &mut self,
        member: impl FnMut(&mut Self, Cow<'a, str>) -> Result<(), NotJson>,
    ) -> Result<Range<usize>, NotJson> {
        self.space();
        let start = self.at;
        self.spend(VALUE)?;
        self.depth += 1;
        self.members(member)?;
        self.depth -= 1;
        Ok(start..self.at)
    }

    /// Scans an object and calls `member` with each key, in front of the value, which `member` must scan.
    pub(crate) fn members(
        &mut self,
        mut member: impl FnMut(&mut Self, Cow<'a, str>) -> Result<(), NotJson>,
    ) -> Result<(), NotJson> {
        self.space();
        self.expect(b'{')?;
        self.space();
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let (key, has_escapes) = self.scan_key()?;
            let key = if has_escapes && key.len() <= MAX_KEY {
                unescape(&self.text[key])
            } else {
                Cow::Borrowed(&self.text[key.start + 1..key.end - 1])
            };
            member(self, key)?;
            self.space();
            if self.take(b'}') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// Scans an array and calls `element` with the range of each value.
    pub(crate) fn array(&mut self, element: impl FnMut(Range<usize>)) -> Result<(), NotJson> {
        self.array_up_to(usize::MAX, element).map(drop)
    }

    /// Scans at most this many values of an array and calls `element` with the range of each. Returns whether the array has more,
    /// which are not scanned.
    pub(crate) fn array_up_to(
        &mut self,
        most: usize,
        mut element: impl FnMut(Range<usize>),
    ) -> Result<bool, NotJson> {
        self.space();
        self.expect(b'[')?;
        self.space();
        if self.take(b']') {
            return Ok(false);
        }
        for _ in 0..most {
            element(self.value()?);
            self.space();
            if self.take(b']') {
                return Ok(false);
            }
            self.expect(b',')?;
        }
        Ok(true)
    }

    /// The units that are left.
    pub(crate) fn budget(&self) -> u32 {
        self.budget
    }

    /// Counts what was scanned since there were `before` units left three times more, because it will be scanned again.
    pub(crate) fn count_again(&mut self, before: u32) -> Result<(), NotJson> {
        self.spend(3 * (before - self.budget))
    }

    /// Scans a value of any kind and returns its range.
    pub(crate) fn value(&mut self) -> Result<Range<usize>, NotJson> {
        self.space();
        let start = self.at;
        // One bit for each open bracket: set for an object, clear for an array.
        let mut open: u128 = 0;
        let mut depth = self.depth;
        loop {
            self.space();
            self.spend(VALUE)?;
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
                if depth == self.depth {
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

    /// Scans a value in one pass and calls `visit` with every string in it, except keys, and with the context of the string.
    /// `context` is that of the whole value. An element of an array has the context of the array. `member` returns the
    /// context of an object's member from the context of the object and the key.
    pub(crate) fn strings<C: Copy>(
        &mut self,
        context: C,
        mut member: impl FnMut(C, &str) -> C,
        mut visit: impl FnMut(C, Range<usize>),
    ) -> Result<(), NotJson> {
        // The open brackets: the context of each, and whether it is an object.
        let mut open: Vec<(C, bool)> = Vec::new();
        let mut current = context;
        loop {
            self.space();
            self.spend(VALUE)?;
            match self.byte().ok_or(NotJson)? {
                bracket @ (b'{' | b'[') => {
                    self.at += 1;
                    if open.len() >= MAX_DEPTH as usize {
                        return Err(NotJson);
                    }
                    let is_object = bracket == b'{';
                    self.space();
                    if !self.take(if is_object { b'}' } else { b']' }) {
                        open.push((current, is_object));
                        if is_object {
                            current = member(current, &unescape(&self.text[self.key()?]));
                        }
                        continue;
                    }
                }
                b'"' => visit(current, self.string()?),
                b'-' | b'0'..=b'9' => self.number()?,
                b't' => self.literal("true")?,
                b'f' => self.literal("false")?,
                b'n' => self.literal("null")?,
                _ => return Err(NotJson),
            }
            loop {
                let Some(&(outer, is_object)) = open.last() else {
                    return Ok(());
                };
                self.space();
                if self.take(b',') {
                    current = if is_object {
                        member(outer, &unescape(&self.text[self.key()?]))
                    } else {
                        outer
                    };
                    break;
                }
                self.expect(if is_object { b'}' } else { b']' })?;
                open.pop();
            }
        }
    }

    /// Takes the units of what was scanned from the budget.
    fn spend(&mut self, units: u32) -> Result<(), NotJson> {
        let Some(left) = self.budget.checked_sub(units) else {
            self.budget = 0;
            return Err(NotJson);
        };
        self.budget = left;
        #[cfg(test)]
        tests::SCANNED.set(tests::SCANNED.get() + u64::from(units));
        Ok(())
    }

    /// Scans a key and the colon after it. Returns the range of the key with its quotes.
    fn key(&mut self) -> Result<Range<usize>, NotJson> {
        self.scan_key().map(|(key, _)| key)
    }

    /// Scans a key and the colon after it. Returns the range of the key with its quotes, and whether it has escapes.
    fn scan_key(&mut self) -> Result<(Range<usize>, bool), NotJson> {
        self.space();
        self.spend(VALUE)?;
        let before = self.budget;
        let key = self.string()?;
        let escapes = before - self.budget;
        if escapes > 0 {
            self.spend(escapes * (ESCAPE_IN_KEY - ESCAPE))?;
        }
        self.space();
        self.expect(b':')?;
        Ok((key, escapes > 0))
    }

    /// Scans a string. The range includes the quotes.
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
        self.spend(ESCAPE)?;
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

    /// Scans `u` and four hexadecimal digits.
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

    #[inline]
    fn space(&mut self) {
        if self.byte().is_some_and(is_space) {
            self.spaces();
        }
    }

    /// Skips white space, many bytes at a time while there is much of it.
    fn spaces(&mut self) {
        const CHUNK: usize = 32;
        let (chunks, _) = self.text.as_bytes()[self.at..].as_chunks::<CHUNK>();
        let mut chunks = chunks.iter();
        while chunks.next().is_some_and(|chunk| {
            // Without a branch, so that the compiler can check all bytes at once.
            let is_space =
                |byte: u8| (byte == b' ') | (byte == b'\t') | (byte == b'\n') | (byte == b'\r');
            chunk.iter().fold(true, |all, byte| all & is_space(*byte))
        }) {
            self.at += CHUNK;
        }
        while self.byte().is_some_and(is_space) {
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

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// The number of leading bytes that need no attention in a string. Most of a message is text, so this reads eight bytes
/// at a time.
fn plain_prefix(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    // Sets the high bit of each byte of `word` that is less than `n`, for `n` up to 0x80. Only the lowest set bit is
    // reliable, because the subtraction borrows from the bytes above it.
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

/// Unescapes a string. `raw` must be a valid JSON string with its quotes.
pub(crate) fn unescape(raw: &str) -> Cow<'_, str> {
    let inner = &raw[1..raw.len() - 1];
    if inner.contains('\\') {
        Cow::Owned(serde_json::from_str(raw).unwrap_or_default())
    } else {
        Cow::Borrowed(inner)
    }
}

/// Says where text is not JSON, and what was expected there. The position counts bytes from 0.
pub(crate) fn why_not_json(text: &str) -> String {
    /// The other parser has no limits, so it gets no longer text.
    const DETAILED: usize = 64 << 10;
    let mut skimmer = Skimmer::of_client(text);
    let scanned = skimmer.value().and_then(|_| skimmer.end());
    if scanned.is_ok() || skimmer.budget == 0 {
        return "the message is over a limit of values".to_owned();
    }
    let at = skimmer.at;
    if text.len() > DETAILED {
        return format!("byte {at}: not JSON, or over a limit of nesting");
    }
    // This parser stops at the same byte, and has a description of each error. It does not limit what the scanner limits.
    let why = match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Err(error) => {
            let why = error.to_string();
            let end = why.rfind(" at line ").unwrap_or(why.len());
            why[..end].to_owned()
        }
        Ok(_) => "unpaired surrogate, or over a limit of nesting or values".to_owned(),
    };
    format!("byte {at}: {why}")
}

/// Writes a string as JSON.
pub(crate) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::random::Random;

    thread_local! {
        /// The units that all scans of this thread have taken.
        pub(super) static SCANNED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    /// The units that the scans of a function take.
    pub(crate) fn units_of(scan: impl FnOnce()) -> u64 {
        let before = SCANNED.get();
        scan();
        SCANNED.get() - before
    }

    fn is_json(text: &str) -> bool {
        let mut skimmer = Skimmer::new(text);
        skimmer.value().is_ok() && skimmer.end().is_ok()
    }

    fn is_client_json(text: &str) -> bool {
        let mut skimmer = Skimmer::of_client(text);
        skimmer.value().is_ok() && skimmer.end().is_ok()
    }

    #[test]
    fn the_plain_prefix_of_a_string_ends_at_the_first_special_byte() {
        for len in 0..40 {
            for at in 0..len {
                for byte in 0..=255 {
                    // A borrow from the special byte would make the next byte, `!`, look special too.
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
    fn valid_json_is_accepted_and_anything_else_is_rejected() {
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

    /// The bug: only values counted, so 16 MiB of escapes or of spaces took up to 80 ms.
    #[test]
    fn values_keys_and_escapes_are_limited() {
        let most = MAX_CLIENT_VALUES as usize;
        let list = |unit: &str, count: usize| format!("[{}0]", unit.repeat(count));
        assert!(is_client_json(&list("0,", most - 2)) && !is_client_json(&list("0,", most - 1)));
        let object = |count: usize| format!("[{}0]", "{\"\":0},".repeat(count));
        assert!(is_client_json(&object(most / 3 - 1)) && !is_client_json(&object(most / 3)));
        let string = |count: usize| format!("\"{}\"", "\\n".repeat(count));
        assert!(is_client_json(&string(2 * most - 2)) && !is_client_json(&string(2 * most - 1)));
        let keys = |count: usize| format!("[{}0]", "{\"\\n\":0},".repeat(count));
        assert!(is_client_json(&keys(most / 11)) && !is_client_json(&keys(most / 11 + 1)));
        // A program's message may have four times as many.
        assert!(is_json(&string(8 * most - 2)) && !is_json(&string(8 * most - 1)));
        // What is scanned at the speed of memory is limited by its length alone.
        let long = |unit: &str| format!("\"{}\"{}", unit.repeat(1 << 20), " ".repeat(1 << 20));
        assert!(is_client_json(&long("x")) && is_client_json(&"1".repeat(1 << 20)));
    }

    #[test]
    fn an_error_says_where_it_is_and_what_was_expected() {
        for (text, want) in [
            ("hello", "byte 0: expected value"),
            ("", "byte 0: EOF while parsing a value"),
            (r#"{"a":1 "b":2}"#, "byte 7: expected `,` or `}`"),
            (r#"{"a":[1,2}"#, "byte 9: expected `,` or `]`"),
            (r#"{"a":é"#, "byte 5: expected value"),
            (r#"{"a" 1}"#, "byte 5: expected `:`"),
            (r#"{a:1}"#, "byte 1: key must be a string"),
            (r#"{"a":1} x"#, "byte 8: trailing characters"),
            (r#"{"a":"é"#, "byte 8: EOF while parsing a string"),
            (r#"["\x"]"#, "byte 3: invalid escape"),
            (
                r#"["\ud800"]"#,
                "byte 8: unpaired surrogate, or over a limit of nesting or values",
            ),
        ] {
            assert_eq!(why_not_json(text), want, "{text}");
        }
        let nested = "[".repeat(200) + &"]".repeat(200);
        assert!(why_not_json(&nested).starts_with("byte 129: "));
    }

    #[test]
    fn every_string_is_visited_with_the_context_of_its_key() {
        let text = r#"{"a":"1","b":[["2",{"c":"3","\u0061":[]}],{}],"d":{"a":{"b":"4"},"x":"5"},"e":7,"a":"6"}"#;
        let mut visited = Vec::new();
        let mut skimmer = Skimmer::new(text);
        let member = |outer: u32, key: &str| outer * 10 + u32::from(key.as_bytes()[0] - b'a' + 1);
        let visit = |context, range: Range<usize>| visited.push((context, &text[range]));
        assert_eq!(skimmer.strings(0, member, visit), Ok(()));
        assert_eq!(skimmer.end(), Ok(()));
        let want = [
            (1, "\"1\""),
            (2, "\"2\""),
            (23, "\"3\""),
            (412, "\"4\""),
            (64, "\"5\""),
            (1, "\"6\""),
        ];
        assert_eq!(visited, want);
        for text in ["{\"a\":[1,2}", "[", "{\"a\"}", "\"", "[1,]"] {
            let scanned = Skimmer::new(text).strings((), |(), _| (), |(), _| ());
            assert_eq!(scanned, Err(NotJson), "{text}");
        }
    }

    /// The bug: a parser without limits read the text again, so 16 MiB of spaces or escapes took up to 100 ms.
    #[test]
    fn the_reason_for_a_refusal_costs_one_more_scan_at_most() {
        let most = u64::from(MAX_CLIENT_VALUES * VALUE);
        for unit in ["0,", "\"\\n\",", "{\"a\":0},", "   "] {
            let text = format!("[{}", unit.repeat(1 << 20));
            let mut why = String::new();
            let units = units_of(|| why = why_not_json(&text));
            assert!(units <= most, "{unit:?}: {units}");
            let is_over = why == "the message is over a limit of values";
            assert!(is_over || why.starts_with(&format!("byte {}: not JSON", text.len())));
            assert_eq!(is_over, unit != "   ");
        }
    }

    #[test]
    fn the_scanner_agrees_with_serde_json() {
        // serde_json accepts the same grammar and rejects unpaired surrogates as well.
        let mut random = Random::new(5);
        let seeds = [
            r#"{"a":[1,-2.5e3,"x\u00e9\ud83d\ude00",true,null],"b":{"c":{}}}"#,
            r#"[[],{},"",0]"#,
            "{         \"a\":\r\n\t            [ ]\n\n\n\n\n\n\n\n\n\n}    ",
        ];
        for round in 0..200_000 {
            let mut bytes = seeds[round % 3].as_bytes().to_vec();
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
            // serde_json rejects a number too large for a float, which is valid JSON.
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
