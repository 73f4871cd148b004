//! Reads records.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::Value;

use super::{Place, Record, RecordError, Restored};

/// Where a [`Loader`] finds the bytes of the records.
pub(crate) trait Bytes: fmt::Debug + Send {
    /// Appends `len` bytes from a position to `buffer`, which has room for them.
    fn read_at(&mut self, at: u64, len: usize, buffer: &mut Vec<u8>) -> std::io::Result<()>;
}

/// Reads records, and gives them what they refer to.
#[derive(Debug)]
pub struct Loader {
    /// The JSON text of the current record, without insignificant white space.
    text: String,
    /// The position of the next part.
    at: usize,
    /// `None` while the records are only checked.
    bytes: Option<Box<dyn Bytes>>,
    /// The number of all bytes.
    len: u64,
    descriptors: Vec<Option<Restored>>,
    /// The texts that several values share, by their numbers.
    texts: HashMap<u64, Arc<str>>,
}

impl Loader {
    /// A loader of `len` bytes, and of these descriptors in the order in which they were saved.
    pub(crate) fn new(bytes: Box<dyn Bytes>, len: u64, descriptors: Vec<Restored>) -> Self {
        let descriptors = descriptors.into_iter().map(Some).collect();
        Self::of(Some(bytes), len, descriptors)
    }

    /// A loader that checks records without the bytes and the descriptors that they refer to.
    pub(crate) fn rehearsal(len: u64, descriptors: usize) -> Self {
        let descriptors = (0..descriptors).map(|_| Some(Restored::Rehearsed));
        Self::of(None, len, descriptors.collect())
    }

    fn of(bytes: Option<Box<dyn Bytes>>, len: u64, descriptors: Vec<Option<Restored>>) -> Self {
        Self {
            text: String::new(),
            at: 0,
            bytes,
            len,
            descriptors,
            texts: HashMap::new(),
        }
    }

    /// Whether the records are only checked. Bytes are then zeros, and there are no descriptors.
    pub fn is_rehearsal(&self) -> bool {
        self.bytes.is_none()
    }

    /// Reads the whole text of a record.
    pub(crate) fn read<T>(
        &mut self,
        text: Vec<u8>,
        read: impl FnOnce(&mut Self) -> Result<T, RecordError>,
    ) -> Result<T, RecordError> {
        let text = String::from_utf8(text).map_err(|_| not_json())?;
        (self.text, self.at) = (text, 0);
        let value = read(self)?;
        let is_whole = self.at == self.text.len();
        self.text = String::new();
        is_whole.then_some(value).ok_or_else(not_json)
    }

    /// Reads a value of any kind.
    ///
    /// # Errors
    ///
    /// The record is not JSON.
    pub fn value(&mut self) -> Result<Value, RecordError> {
        let start = self.at;
        self.skip()?;
        serde_json::from_str(&self.text[start..self.at]).map_err(|_| not_json())
    }

    /// Reads the bytes to which a [value](Loader::value) refers.
    ///
    /// # Errors
    ///
    /// The value is not a reference to bytes, or they cannot be read.
    pub fn bytes(&mut self, value: &Value) -> Result<Vec<u8>, RecordError> {
        if value.is_null() {
            return Ok(Vec::new());
        }
        let number = |at: usize| value.get(at).and_then(Value::as_u64);
        let (at, len) = number(0).zip(number(1)).ok_or_else(no_reference)?;
        self.bytes_at(at, len)
    }

    /// Reads bytes.
    pub(crate) fn take_bytes(&mut self) -> Result<Vec<u8>, RecordError> {
        let (at, len) = self.reference().ok_or_else(no_reference)?;
        self.bytes_at(at, len)
    }

    fn reference(&mut self) -> Option<(u64, u64)> {
        let mut part = |byte| self.eat(byte).then(|| self.number()).flatten();
        let numbers = part(b'[').zip(part(b','));
        numbers.filter(|_| self.eat(b']'))
    }

    fn bytes_at(&mut self, at: u64, len: u64) -> Result<Vec<u8>, RecordError> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(RecordError::new("the bytes are not there"));
        }
        let Some(bytes) = self.bytes.as_mut().filter(|_| len > 0) else {
            return Ok(Vec::new());
        };
        let len = len as usize;
        let mut buffer = Vec::with_capacity(len);
        let read = bytes.read_at(at, len, &mut buffer);
        read.map_err(|error| RecordError::new(format!("cannot read the bytes: {error}")))?;
        Ok(buffer)
    }

    /// Reads a shared text. All values with the same reference get the same one.
    pub(crate) fn shared(&mut self) -> Result<Arc<str>, RecordError> {
        let (number, text): (u64, Box<str>) = Record::restore(self)?;
        let text = self.texts.entry(number).or_insert_with(|| text.into());
        Ok(Arc::clone(text))
    }

    /// Takes a descriptor. Each can be taken once.
    pub(crate) fn take(&mut self) -> Result<Restored, RecordError> {
        let index = self.number().and_then(|index| usize::try_from(index).ok());
        let found = index.and_then(|index| self.descriptors.get_mut(index));
        let taken = found.and_then(Option::take);
        taken.ok_or_else(|| RecordError::new("the descriptor is not there"))
    }

    /// The source of the bytes, once all records are read.
    pub(crate) fn into_bytes(self) -> Option<Box<dyn Bytes>> {
        self.bytes
    }

    /// The number of descriptors that no record has taken.
    pub(crate) fn left(&self) -> usize {
        self.descriptors.iter().flatten().count()
    }

    /// The next byte, or 0 at the end of the record.
    fn peek(&self) -> u8 {
        self.text.as_bytes().get(self.at).copied().unwrap_or(0)
    }

    /// Whether the next value is a string.
    pub(crate) fn is_string(&self) -> bool {
        self.peek() == b'"'
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == byte;
        self.at += usize::from(is_next);
        is_next
    }

    /// Reads a part of the syntax.
    #[inline(never)]
    pub(crate) fn expect(&mut self, byte: u8) -> Result<(), RecordError> {
        self.eat(byte).then_some(()).ok_or_else(not_json)
    }

    /// Reads a part of an array of two elements.
    #[inline(never)]
    pub(crate) fn pair(&mut self, byte: u8) -> Result<(), RecordError> {
        let wrong = || RecordError::new("two elements are expected");
        self.eat(byte).then_some(()).ok_or_else(wrong)
    }

    /// Reads a word such as `null`, if it is next.
    #[inline(never)]
    pub(crate) fn word(&mut self, word: &str) -> bool {
        let is_next = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        self.at += word.len() * usize::from(is_next);
        is_next
    }

    /// Reads a number that is not negative.
    #[inline(never)]
    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number: Option<u64> = None;
        while let digit @ b'0'..=b'9' = self.peek() {
            let before = number.unwrap_or(0).checked_mul(10)?;
            number = Some(before.checked_add(u64::from(digit - b'0'))?);
            self.at += 1;
        }
        number
    }

    /// Reads a number that may be negative.
    pub(crate) fn signed_number(&mut self) -> Option<i64> {
        if self.eat(b'-') {
            return 0i64.checked_sub_unsigned(self.number()?);
        }
        self.number()?.try_into().ok()
    }

    /// Reads a string.
    #[inline(never)]
    pub(crate) fn string(&mut self) -> Result<String, RecordError> {
        let start = self.at;
        match self.raw_string()? {
            (text, false) => Ok(text.to_owned()),
            (_, true) => {
                let text = serde_json::from_str(&self.text[start..self.at]);
                text.map_err(|_| not_json())
            }
        }
    }

    /// Reads a string into a value that is written as one.
    pub(crate) fn parse<T: FromStr<Err: fmt::Display>>(&mut self) -> Result<T, RecordError> {
        let (text, _) = self.raw_string()?;
        text.parse()
            .map_err(|error: T::Err| RecordError::new(error.to_string()))
    }

    /// Reads bytes that are written as hexadecimal digits.
    pub(crate) fn hex(&mut self, bytes: &mut [u8]) -> Result<(), RecordError> {
        let wrong = |count| RecordError::new(format!("{count} hexadecimal digits are expected"));
        let count = 2 * bytes.len();
        let digits = self.raw_string()?.0.as_bytes();
        if digits.len() != count {
            return Err(wrong(count));
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            let value = digit(pair[0]).zip(digit(pair[1]));
            let (high, low) = value.ok_or_else(|| wrong(count))?;
            *byte = (high << 4 | low) as u8;
        }
        Ok(())
    }

    /// Reads a string as it is written. Returns whether it has escapes.
    fn raw_string(&mut self) -> Result<(&str, bool), RecordError> {
        if !self.eat(b'"') {
            return Err(RecordError::new("a string is expected"));
        }
        let (start, mut has_escapes) = (self.at, false);
        loop {
            let is_special = |byte: &u8| matches!(byte, b'"' | b'\\');
            let rest = &self.text.as_bytes()[self.at..];
            let plain = rest.iter().position(is_special).ok_or_else(not_json)?;
            self.at += plain + 1;
            if rest[plain] == b'"' {
                break;
            }
            // What is escaped may be a quote.
            has_escapes = true;
            self.at += 1;
            if self.at > self.text.len() {
                return Err(not_json());
            }
        }
        let text = self.text.get(start..self.at - 1).ok_or_else(not_json)?;
        Ok((text, has_escapes))
    }

    /// Skips a value of any kind.
    pub(crate) fn skip(&mut self) -> Result<(), RecordError> {
        let mut depth = 0usize;
        loop {
            match self.peek() {
                b'"' => _ = self.raw_string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' if depth > 0 => self.at += 1,
                _ => {
                    let is_end = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b'"');
                    let rest = &self.text.as_bytes()[self.at..];
                    let len = rest.iter().position(is_end).unwrap_or(rest.len());
                    if len == 0 {
                        return Err(not_json());
                    }
                    self.at += len;
                }
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Reads an array. The function reads an element.
    #[inline(never)]
    pub(crate) fn each(
        &mut self,
        read: &mut dyn FnMut(&mut Self) -> Result<(), RecordError>,
    ) -> Result<(), RecordError> {
        let mut elements = Elements::of(self)?;
        while elements.has_next(self)? {
            read(self).map_err(|error| elements.inside(error))?;
        }
        Ok(())
    }

    /// Whether a string without escapes is next that is this name.
    fn is_key(&self, name: &str) -> bool {
        let (rest, end) = (&self.text.as_bytes()[self.at..], name.len() + 1);
        // The closing quote tells most names apart.
        rest.get(end) == Some(&b'"') && rest[0] == b'"' && rest[1..end] == *name.as_bytes()
    }

    /// Reads what a function then converts.
    pub(crate) fn converted<P: Record, T>(
        &mut self,
        convert: impl FnOnce(P) -> Option<T>,
    ) -> Result<T, RecordError> {
        convert(P::restore(self)?).ok_or_else(|| RecordError::new("the value is not valid"))
    }

    /// Reads an object, each field into its place. Unknown fields are skipped. If a field is missing, its place decides whether that is
    /// allowed. A field with the value null counts as missing.
    #[inline(never)]
    pub(crate) fn object(
        &mut self,
        names: &[&str],
        places: &mut [&mut dyn Place],
    ) -> Result<(), RecordError> {
        let mut members = Elements::of_object(self)?;
        debug_assert!(names.len() <= 64 && names.len() == places.len());
        let (mut seen, mut next) = (0u64, 0);
        while members.has_next(self)? {
            // The fields have the order of the places, unless another version has written them.
            let is_next = |name: &&str| self.is_key(name);
            let later = names[next..].iter().position(is_next);
            let found = later.map(|at| next + at);
            let found = found.or_else(|| names[..next].iter().position(is_next));
            match found {
                Some(at) => self.at += names[at].len() + 2,
                None => _ = self.raw_string()?,
            }
            self.expect(b':')?;
            match found {
                _ if self.word("null") => {}
                None => self.skip()?,
                Some(at) => {
                    let read = places[at].read(self);
                    read.map_err(|error| error.inside(names[at]))?;
                    seen |= 1 << at;
                    next = at + 1;
                }
            }
        }
        for (at, place) in places.iter_mut().enumerate() {
            if seen & 1 << at == 0 && !place.miss() {
                return Err(RecordError::missing().inside(names[at]));
            }
        }
        Ok(())
    }

    /// Reads the name of an enum's variant. If the variant has data, they follow, and then `}`.
    #[inline(never)]
    pub(crate) fn variant(&mut self, names: &[&str]) -> Result<usize, RecordError> {
        let has_data = self.eat(b'{');
        let name = self.raw_string()?.0;
        let found = names.iter().position(|one| *one == name);
        if has_data {
            self.expect(b':')?;
        }
        found.ok_or_else(|| RecordError::new("an unknown value"))
    }
}

/// The position in an array, or in an object.
pub(crate) struct Elements {
    read: usize,
    end: u8,
}

impl Elements {
    /// Begins to read an array.
    pub(crate) fn of(from: &mut Loader) -> Result<Self, RecordError> {
        let begun = from.eat(b'[').then_some(Self { read: 0, end: b']' });
        begun.ok_or_else(|| RecordError::new("an array is expected"))
    }

    /// Begins to read an object.
    pub(crate) fn of_object(from: &mut Loader) -> Result<Self, RecordError> {
        let begun = from.eat(b'{').then_some(Self { read: 0, end: b'}' });
        begun.ok_or_else(|| RecordError::new("an object is expected"))
    }

    /// Whether there is another element or member. The caller has read the one before.
    #[inline(never)]
    pub(crate) fn has_next(&mut self, from: &mut Loader) -> Result<bool, RecordError> {
        if from.eat(self.end) {
            return Ok(false);
        }
        if self.read > 0 {
            from.expect(b',')?;
        }
        self.read += 1;
        Ok(true)
    }

    /// Adds the index of the current element to an error.
    #[cold]
    pub(crate) fn inside(&self, error: RecordError) -> RecordError {
        error.inside(&format!("{}", self.read - 1))
    }
}

#[cold]
fn not_json() -> RecordError {
    RecordError::new("JSON is expected")
}

#[cold]
fn no_reference() -> RecordError {
    RecordError::new("the position and the length of bytes are expected")
}
