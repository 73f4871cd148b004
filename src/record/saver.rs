//! Writes records.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use serde_json::Value;

use super::{Record, Saved};

/// Writes the records of some values, and collects what they refer to.
#[derive(Debug, Default)]
pub struct Saver<'a> {
    /// The record so far, as JSON. Members and elements end with a comma until the object or the array is closed.
    text: Vec<u8>,
    bytes: Vec<Cow<'a, [u8]>>,
    /// The number of all these bytes.
    len: usize,
    descriptors: Vec<Saved<'a>>,
}

impl<'a> Saver<'a> {
    /// Adds bytes. Returns the reference to them, for a [value](Saver::value).
    pub fn bytes(&mut self, bytes: &'a [u8]) -> Value {
        let (at, len) = self.add(bytes.into());
        vec![at, len].into()
    }

    /// Adds a descriptor. Returns the reference to it, for a [value](Saver::value).
    pub fn descriptor(&mut self, descriptor: BorrowedFd<'a>) -> Value {
        self.add_descriptor(Saved::Descriptor(descriptor)).into()
    }

    /// Writes a value.
    pub fn value(&mut self, value: &Value) {
        // Every key is a string, and a vector takes everything, so this does not fail.
        let _ = serde_json::to_writer(&mut self.text, value);
    }

    /// Writes bytes, which are stored beside the record.
    pub(crate) fn put_bytes(&mut self, bytes: impl Into<Cow<'a, [u8]>>) {
        let (at, len) = self.add(bytes.into());
        self.reference(at, len);
    }

    /// As [`Saver::put_bytes`], for bytes in two parts.
    pub(crate) fn put_parts(&mut self, first: impl Into<Cow<'a, [u8]>>, second: &'a [u8]) {
        let (at, len) = self.add(first.into());
        let more = self.add(second.into()).1;
        self.reference(at, len + more);
    }

    fn reference(&mut self, at: usize, len: usize) {
        self.open(b'[');
        self.number(at as u64);
        self.next();
        self.number(len as u64);
        self.close(b']');
    }

    fn add(&mut self, bytes: Cow<'a, [u8]>) -> (usize, usize) {
        let (at, len) = (self.len, bytes.len());
        if len > 0 {
            self.bytes.push(bytes);
            self.len += len;
        }
        (at, len)
    }

    /// Writes a descriptor.
    pub(crate) fn put_descriptor(&mut self, descriptor: BorrowedFd<'a>) {
        self.carry(Saved::Descriptor(descriptor));
    }

    /// Writes a descriptor, or its stand-in.
    pub(crate) fn carry(&mut self, saved: Saved<'a>) {
        let index = self.add_descriptor(saved);
        self.number(index as u64);
    }

    fn add_descriptor(&mut self, saved: Saved<'a>) -> usize {
        self.descriptors.push(saved);
        self.descriptors.len() - 1
    }

    /// Writes a text that several values share, and by which they are compared.
    pub(crate) fn shared(&mut self, text: &Arc<str>) {
        self.open(b'[');
        self.number(text.as_ptr().addr() as u64);
        self.next();
        self.string(text);
        self.close(b']');
    }

    /// Writes null.
    pub(crate) fn null(&mut self) {
        self.text.extend_from_slice(b"null");
    }

    pub(crate) fn bool(&mut self, value: bool) {
        let text: &[u8] = if value { b"true" } else { b"false" };
        self.text.extend_from_slice(text);
    }

    pub(crate) fn number(&mut self, mut number: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.text.extend_from_slice(&digits[at..]);
    }

    pub(crate) fn signed_number(&mut self, number: i64) {
        if number < 0 {
            self.text.push(b'-');
        }
        self.number(number.unsigned_abs());
    }

    /// Writes a string.
    pub(crate) fn string(&mut self, text: &str) {
        let is_plain = |byte: u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
        if text.bytes().all(is_plain) {
            self.text.push(b'"');
            self.text.extend_from_slice(text.as_bytes());
            self.text.push(b'"');
        } else {
            let _ = serde_json::to_writer(&mut self.text, text);
        }
    }

    /// Writes what a value displays as a string. It has nothing to escape.
    pub(crate) fn display(&mut self, value: &dyn fmt::Display) {
        self.text.push(b'"');
        let _ = write!(self, "{value}");
        self.text.push(b'"');
    }

    /// Writes bytes as hexadecimal digits.
    pub(crate) fn hex(&mut self, bytes: &[u8]) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.text.push(b'"');
        for byte in bytes {
            let digit = |value: u8| DIGITS[usize::from(value)];
            self.text.extend([digit(byte >> 4), digit(byte & 15)]);
        }
        self.text.push(b'"');
    }

    /// Begins an object with `{`, or an array with `[`.
    pub(crate) fn open(&mut self, bracket: u8) {
        self.text.push(bracket);
    }

    /// Ends an object or an array.
    pub(crate) fn close(&mut self, bracket: u8) {
        match self.text.last_mut() {
            Some(last @ b',') => *last = bracket,
            _ => self.text.push(bracket),
        }
    }

    /// Ends a member or an element.
    pub(crate) fn next(&mut self) {
        self.text.push(b',');
    }

    /// Begins a member of an object. The name has nothing to escape.
    #[inline(never)]
    pub(crate) fn key(&mut self, name: &str) {
        self.text.reserve(name.len() + 3);
        self.text.push(b'"');
        self.text.extend_from_slice(name.as_bytes());
        self.text.extend_from_slice(b"\":");
    }

    /// As [`Saver::key`], for any name.
    pub(crate) fn any_key(&mut self, name: &str) {
        self.string(name);
        self.text.push(b':');
    }

    /// Writes a field, unless it has its default.
    #[inline(never)]
    pub(crate) fn field<T: Record>(&mut self, name: &str, value: &'a T) {
        if !value.is_default() {
            self.member(name, |to| value.save(to));
        }
    }

    /// Writes a member of an object.
    #[inline]
    pub(crate) fn member(&mut self, name: &str, write: impl FnOnce(&mut Self)) {
        self.key(name);
        write(self);
        self.next();
    }

    /// Writes an array.
    pub(crate) fn array<T>(
        &mut self,
        elements: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.open(b'[');
        for element in elements {
            write(self, element);
            self.next();
        }
        self.close(b']');
    }

    /// Writes an array of two elements.
    pub(crate) fn pair(&mut self, first: &'a impl Record, second: &'a impl Record) {
        self.open(b'[');
        first.save(self);
        self.next();
        second.save(self);
        self.close(b']');
    }

    /// Writes what a function makes of a value. It refers to no bytes and descriptors.
    pub(crate) fn converted<T, P: Record>(&mut self, value: &T, convert: impl FnOnce(&T) -> P) {
        self.inline(&convert(value));
    }

    pub(crate) fn converts_to_default<T, P: Record>(
        value: &T,
        convert: impl FnOnce(&T) -> P,
    ) -> bool {
        convert(value).is_default()
    }

    /// Writes a value that does not live long enough to be referred to. It has no bytes and descriptors.
    pub(crate) fn inline(&mut self, value: &impl Record) {
        let mut to = Saver {
            text: std::mem::take(&mut self.text),
            ..Saver::default()
        };
        value.save(&mut to);
        debug_assert!(to.bytes.is_empty() && to.descriptors.is_empty());
        self.text = to.take_text();
    }

    /// Begins the variant of an enum that has data. It ends with [`Saver::close`].
    pub(crate) fn variant(&mut self, name: &str) {
        self.open(b'{');
        self.key(name);
    }

    /// The length of the record so far.
    pub(crate) fn written(&self) -> usize {
        self.text.len()
    }

    /// Takes the text of the record, which is complete.
    pub(crate) fn take_text(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.text)
    }

    /// The bytes, in the order in which they were added.
    pub(crate) fn all_bytes(&self) -> &[Cow<'a, [u8]>] {
        &self.bytes
    }

    /// The number of all bytes.
    pub(crate) fn byte_count(&self) -> usize {
        self.len
    }

    /// The descriptors, in the order in which they were added.
    pub(crate) fn descriptors(&self) -> &[Saved<'a>] {
        &self.descriptors
    }
}

impl Write for Saver<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.text.extend_from_slice(text.as_bytes());
        Ok(())
    }
}
