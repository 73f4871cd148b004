//! Records: the state of a value as JSON, with its long bytes and its descriptors beside it, so that another process can continue
//! with it.
//!
//! The module that owns a struct also writes its record, with `record!`: one list of its fields serves both directions, and a new
//! field that is missing there does not compile. [`Saver`] borrows long bytes instead of copying them, and [`Loader`] reads each of
//! them once, into the memory where they stay.
//!
//! A reader skips fields that it does not know, and a field that is missing gets its default.
//! So a program can read the records of one that is a little older or newer.

mod basic;
mod containers;
#[cfg(any(test, fuzzing))]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde_json::Map;
pub(crate) use serde_json::Value;

/// A value that another process can continue with.
pub(crate) trait Record: Sized {
    /// Writes the value.
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value;

    /// Whether a record may leave the value out, because null is read as the same: zero, false, nothing, and what is empty.
    fn is_default(&self) -> bool {
        false
    }

    /// Reads the value. Null takes the place of a field that the record does not have.
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError>;
}

/// A value whose settings come from the program that continues it. [`State::save`] leaves them out.
pub(crate) trait State {
    /// Writes the state.
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value;

    /// Continues with the state that another value has saved.
    fn load(&mut self, value: Value, from: &mut Loader) -> Result<(), RecordError>;
}

/// The text of a record, in less than half the time of `to_string`, which goes through a formatter.
pub(crate) fn text_of(record: &Value) -> String {
    // Every key is a string, so this does not fail.
    serde_json::to_string(record).unwrap_or_default()
}

/// Why a record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordError(Box<Problem>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Problem {
    /// The names of the fields that lead to the problem, outermost first.
    path: String,
    text: String,
}

impl RecordError {
    /// A problem with a value.
    #[cold]
    pub fn new(problem: impl Into<String>) -> Self {
        let (path, text) = (String::new(), problem.into());
        Self(Box::new(Problem { path, text }))
    }

    /// The same problem, found inside a field.
    #[cold]
    pub(crate) fn inside(mut self, field: &str) -> Self {
        let path = &mut self.0.path;
        let separator = if path.is_empty() { "" } else { "." };
        *path = format!("{field}{separator}{path}");
        self
    }
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { path, text } = &*self.0;
        if path.is_empty() {
            return f.write_str(text);
        }
        write!(f, "{path}: {text}")
    }
}

impl std::error::Error for RecordError {}

/// Something that passes to the next process: a descriptor, or a stand-in for one in a simulation.
#[derive(Debug)]
pub(crate) enum Saved<'a> {
    Descriptor(BorrowedFd<'a>),
    #[cfg(any(test, fuzzing))]
    Simulated(Box<dyn std::any::Any>),
}

impl<'a> Saved<'a> {
    /// The descriptor.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'a>> {
        match self {
            Self::Descriptor(fd) => Some(*fd),
            #[cfg(any(test, fuzzing))]
            Self::Simulated(_) => None,
        }
    }
}

/// What the next process gets for a [`Saved`].
#[derive(Debug)]
pub(crate) enum Restored {
    Descriptor(OwnedFd),
    #[cfg(any(test, fuzzing))]
    Simulated(Box<dyn std::any::Any>),
    /// Nothing: the records are only checked.
    Rehearsed,
}

/// Collects what the records of some values refer to.
#[derive(Debug, Default)]
pub struct Saver<'a> {
    bytes: Vec<Cow<'a, [u8]>>,
    /// The number of all these bytes.
    len: usize,
    descriptors: Vec<Saved<'a>>,
}

impl<'a> Saver<'a> {
    /// Adds bytes. Returns the reference to them, for a record.
    pub fn bytes(&mut self, bytes: &'a [u8]) -> Value {
        self.add(bytes.into())
    }

    /// As [`Saver::bytes`], of bytes that were made for the record.
    pub(crate) fn own_bytes(&mut self, bytes: Vec<u8>) -> Value {
        self.add(bytes.into())
    }

    fn add(&mut self, bytes: Cow<'a, [u8]>) -> Value {
        let (at, len) = (self.len, bytes.len());
        if len > 0 {
            self.bytes.push(bytes);
            self.len += len;
        }
        Value::Array(vec![at.into(), len.into()])
    }

    /// Adds a descriptor. Returns the reference to it, for a record.
    pub fn descriptor(&mut self, descriptor: BorrowedFd<'a>) -> Value {
        self.carry(Saved::Descriptor(descriptor))
    }

    /// Adds a descriptor, or its stand-in. Returns the reference to it, for a record.
    pub(crate) fn carry(&mut self, saved: Saved<'a>) -> Value {
        self.descriptors.push(saved);
        (self.descriptors.len() - 1).into()
    }

    /// Adds a text that several values share, and by which they are compared. Returns the reference to it, for a record.
    pub(crate) fn shared(&self, text: &Arc<str>) -> Value {
        Value::Array(vec![text.as_ptr().addr().into(), (&**text).into()])
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

/// Where a [`Loader`] finds the bytes of the records.
pub(crate) trait Bytes: fmt::Debug + Send {
    /// Reads bytes at a position into `buffer`.
    fn read_at(&mut self, at: u64, buffer: &mut [u8]) -> std::io::Result<()>;
}

/// Gives records what they refer to.
#[derive(Debug)]
pub struct Loader {
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
        let bytes = Some(bytes);
        Self {
            bytes,
            len,
            descriptors,
            texts: HashMap::new(),
        }
    }

    /// A loader that checks records without the bytes and the descriptors that they refer to.
    pub(crate) fn rehearsal(len: u64, descriptors: usize) -> Self {
        let descriptors = (0..descriptors).map(|_| Some(Restored::Rehearsed));
        Self {
            bytes: None,
            len,
            descriptors: descriptors.collect(),
            texts: HashMap::new(),
        }
    }

    /// Whether the records are only checked. Bytes are then zeros, and there are no descriptors.
    pub fn is_rehearsal(&self) -> bool {
        self.bytes.is_none()
    }

    /// Reads the bytes to which a value refers.
    pub fn bytes(&mut self, value: &Value) -> Result<Vec<u8>, RecordError> {
        if value.is_null() {
            return Ok(Vec::new());
        }
        let numbers = value.as_array().map(Vec::as_slice);
        let number = |value: &Value| value.as_u64();
        let (Some(at), Some(len)) = (match numbers {
            Some([at, len]) => (number(at), number(len)),
            _ => (None, None),
        }) else {
            return Err(RecordError::new(
                "the position and the length of bytes are expected",
            ));
        };
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(RecordError::new("the bytes are not there"));
        }
        let Some(bytes) = &mut self.bytes else {
            return Ok(Vec::new());
        };
        let mut buffer = vec![0; len as usize];
        let read = bytes.read_at(at, &mut buffer);
        read.map_err(|error| RecordError::new(format!("cannot read the bytes: {error}")))?;
        Ok(buffer)
    }

    /// The text to which a value refers. All values with the same reference get the same one.
    pub(crate) fn shared(&mut self, value: Value) -> Result<Arc<str>, RecordError> {
        let (number, text) = <(u64, Box<str>)>::restore(value, self)?;
        let text = self.texts.entry(number).or_insert_with(|| text.into());
        Ok(Arc::clone(text))
    }

    /// Takes the descriptor to which a value refers. Each can be taken once.
    pub(crate) fn take(&mut self, value: &Value) -> Result<Restored, RecordError> {
        let index = value.as_u64().and_then(|index| usize::try_from(index).ok());
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
}

/// The fields of a record. A field that was read is null.
#[derive(Debug)]
pub(crate) struct Fields {
    all: Map<String, Value>,
    /// Whether the record does not have the field that was read last.
    is_missing: bool,
    /// The first error.
    failure: Option<RecordError>,
}

impl Fields {
    /// The fields of an object.
    pub(crate) fn of(value: Value) -> Result<Self, RecordError> {
        match value {
            Value::Object(all) => Ok(Self {
                all,
                is_missing: false,
                failure: None,
            }),
            _ => Err(RecordError::new("an object is expected")),
        }
    }

    /// Reads a field.
    pub(crate) fn take<T: Record>(
        &mut self,
        name: &str,
        from: &mut Loader,
    ) -> Result<T, RecordError> {
        self.next(name, from).ok_or_else(|| self.error())
    }

    /// Reads a field. Notes the error if that fails, so that the caller can read all fields before it asks for the
    /// [error](Fields::error). With a way out after each field, a struct takes several times the code.
    #[inline(never)]
    pub(crate) fn next<T: Record>(&mut self, name: &str, from: &mut Loader) -> Option<T> {
        match T::restore(self.remove(name), from) {
            Ok(value) => Some(value),
            Err(error) => {
                self.note(name, error);
                None
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn note(&mut self, name: &str, error: RecordError) {
        let error = match self.is_missing {
            true => missing(),
            false => error,
        };
        self.failure.get_or_insert(error.inside(name));
    }

    /// The first error.
    #[cold]
    #[inline(never)]
    pub(crate) fn error(&mut self) -> RecordError {
        self.failure.take().unwrap_or_else(missing)
    }

    /// Reads a field into its place. Notes the error if that fails, as [`Fields::next`].
    #[inline(never)]
    pub(crate) fn set<T: Record>(&mut self, name: &str, place: &mut T, from: &mut Loader) {
        if let Some(value) = self.next(name, from) {
            *place = value;
        }
    }

    /// Continues a value with a field. Without the field, the value stays as it is.
    pub(crate) fn load<T: State>(
        &mut self,
        name: &str,
        into: &mut T,
        from: &mut Loader,
    ) -> Result<(), RecordError> {
        let value = self.remove(name);
        if self.is_missing {
            return Ok(());
        }
        into.load(value, from).map_err(|error| error.inside(name))
    }

    /// Fails with the first error that was noted.
    #[inline(never)]
    pub(crate) fn end(self) -> Result<(), RecordError> {
        self.failure.map_or(Ok(()), Err)
    }

    #[inline(never)]
    fn remove(&mut self, name: &str) -> Value {
        // Removing the member would rebalance the map.
        let value = self.all.get_mut(name).map(Value::take);
        self.is_missing = value.is_none();
        value.unwrap_or_default()
    }
}

#[cold]
fn missing() -> RecordError {
    RecordError::new("the field is missing")
}

/// Adds a field to a record. An absent value takes no room.
#[inline(never)]
pub(crate) fn add_field(record: &mut Map<String, Value>, name: &str, value: Value) {
    if !value.is_null() {
        record.insert(name.to_owned(), value);
    }
}

/// An object of these members.
#[inline(never)]
pub(crate) fn object_of(members: &mut [(&str, Value)]) -> Value {
    let mut object = Map::new();
    for (name, value) in members {
        object.insert((*name).to_owned(), value.take());
    }
    Value::Object(object)
}

/// What may be a member of such an object.
pub(crate) trait Member {
    fn into_value(self) -> Value;
}

macro_rules! members {
    ($($type:ty),*) => {$(
        impl Member for $type {
            fn into_value(self) -> Value {
                self.into()
            }
        }
    )*};
}

macro_rules! referred_members {
    ($($type:ty),*) => {$(
        impl Member for &$type {
            fn into_value(self) -> Value {
                self.clone().into()
            }
        }
    )*};
}

members!(
    Value,
    &str,
    bool,
    i32,
    u16,
    u32,
    u64,
    usize,
    String,
    Vec<Value>,
    Vec<String>
);
members!(
    Option<&str>,
    Option<String>,
    Option<Value>,
    Option<i32>,
    Option<u64>,
    Option<usize>
);
referred_members!(bool, i32, u32, u64, usize, String, Vec<String>);
referred_members!(Option<u8>, Option<String>, Option<&str>);

/// An object for a record. Unlike `json!`, it does not copy the values.
macro_rules! object {
    ({ $($name:literal: $value:expr),* $(,)? }) => {
        $crate::record::object_of(&mut [$(($name, $crate::record::Member::into_value($value))),*])
    };
}

/// Implements [`Record`] for a struct from the list of all its fields. `field = value` does not save a field, and gives it this value
/// when the struct is restored.
macro_rules! record {
    ($type:ty { $($fields:tt)* }) => {
        impl $crate::record::Record for $type {
            #[inline(never)]
            fn save<'a>(&'a self, to: &mut $crate::record::Saver<'a>) -> serde_json::Value {
                let mut record = serde_json::Map::new();
                $crate::record::record!(@save self record to [] $($fields)*);
                serde_json::Value::Object(record)
            }

            #[inline(never)]
            fn restore(
                value: serde_json::Value,
                from: &mut $crate::record::Loader,
            ) -> Result<Self, $crate::record::RecordError> {
                let mut record = $crate::record::Fields::of(value)?;
                $crate::record::record!(@restore record from [] [] $($fields)*)
            }
        }
    };
    // A struct around one value is saved as that value.
    ($type:ty as $inner:ty) => {
        impl $crate::record::Record for $type {
            fn is_default(&self) -> bool {
                $crate::record::Record::is_default(&self.0)
            }

            fn save<'a>(&'a self, to: &mut $crate::record::Saver<'a>) -> serde_json::Value {
                $crate::record::Record::save(&self.0, to)
            }

            fn restore(
                value: serde_json::Value,
                from: &mut $crate::record::Loader,
            ) -> Result<Self, $crate::record::RecordError> {
                <$inner as $crate::record::Record>::restore(value, from).map(Self)
            }
        }
    };
    // Goes through the fields: first a pattern of all of them, so that none is missing, then the ones that are saved.
    (@save $self:ident $record:ident $to:ident [$($saved:ident)*] $field:ident = $value:expr $(, $($rest:tt)*)?) => {
        let Self { $field: _, .. } = $self;
        $crate::record::record!(@save $self $record $to [$($saved)*] $($($rest)*)?);
    };
    (@save $self:ident $record:ident $to:ident [$($saved:ident)*] $field:ident $(, $($rest:tt)*)?) => {
        $crate::record::record!(@save $self $record $to [$($saved)* $field] $($($rest)*)?);
    };
    (@save $self:ident $record:ident $to:ident [$($saved:ident)*]) => {
        $(
            if !$crate::record::Record::is_default(&$self.$saved) {
                let value = $crate::record::Record::save(&$self.$saved, $to);
                $crate::record::add_field(&mut $record, stringify!($saved), value);
            }
        )*
    };
    (@restore $record:ident $from:ident [$($read:ident)*] [$($done:tt)*] $field:ident = $value:expr $(, $($rest:tt)*)?) => {
        $crate::record::record!(@restore $record $from [$($read)*] [$($done)* $field: $value,] $($($rest)*)?)
    };
    (@restore $record:ident $from:ident [$($read:ident)*] [$($done:tt)*] $field:ident $(, $($rest:tt)*)?) => {{
        let $field = $record.next(stringify!($field), $from);
        $crate::record::record!(@restore $record $from [$($read)* $field] [$($done)* $field,] $($($rest)*)?)
    }};
    (@restore $record:ident $from:ident [$($read:ident)*] [$($done:tt)*]) => {
        match ($($read,)*) {
            // A struct expression names every field, so a new one that is not in the list does not compile.
            ($(Some($read),)*) => Ok(Self { $($done)* }),
            _ => Err($record.error()),
        }
    };
}

/// Implements [`Record`] for an enum without data: each value is saved as its name.
macro_rules! record_names {
    ($type:ty { $($variant:ident),* $(,)? }) => {
        impl $crate::record::Record for $type {
            fn save<'a>(&'a self, _: &mut $crate::record::Saver<'a>) -> serde_json::Value {
                match self {
                    $(Self::$variant => stringify!($variant).into()),*
                }
            }

            fn restore(
                value: serde_json::Value,
                _: &mut $crate::record::Loader,
            ) -> Result<Self, $crate::record::RecordError> {
                match value.as_str() {
                    $(Some(stringify!($variant)) => Ok(Self::$variant),)*
                    _ => Err($crate::record::RecordError::new("an unknown value")),
                }
            }
        }
    };
}

/// Implements [`State`] for a struct from the list of all its fields. `keep field` is a setting, which stays as it is, and `into field`
/// is a [`State`] itself.
macro_rules! state {
    ($type:ty { $($fields:tt)* }) => {
        impl $crate::record::State for $type {
            #[inline(never)]
            fn save<'a>(&'a self, to: &mut $crate::record::Saver<'a>) -> serde_json::Value {
                let mut record = serde_json::Map::new();
                $crate::record::state!(@save self record to $($fields)*);
                serde_json::Value::Object(record)
            }

            #[inline(never)]
            fn load(
                &mut self,
                value: serde_json::Value,
                from: &mut $crate::record::Loader,
            ) -> Result<(), $crate::record::RecordError> {
                let mut record = $crate::record::Fields::of(value)?;
                $crate::record::state!(@load self record from [] $($fields)*)
            }
        }
    };
    (@save $self:ident $record:ident $to:ident keep $field:ident, $($rest:tt)*) => {
        $crate::record::state!(@save $self $record $to $($rest)*);
    };
    (@save $self:ident $record:ident $to:ident into $field:ident, $($rest:tt)*) => {
        let value = $crate::record::State::save(&$self.$field, $to);
        $crate::record::add_field(&mut $record, stringify!($field), value);
        $crate::record::state!(@save $self $record $to $($rest)*);
    };
    (@save $self:ident $record:ident $to:ident $field:ident, $($rest:tt)*) => {
        if !$crate::record::Record::is_default(&$self.$field) {
            let value = $crate::record::Record::save(&$self.$field, $to);
            $crate::record::add_field(&mut $record, stringify!($field), value);
        }
        $crate::record::state!(@save $self $record $to $($rest)*);
    };
    (@save $self:ident $record:ident $to:ident) => {};
    (@load $self:ident $record:ident $from:ident [$($all:ident)*] keep $field:ident, $($rest:tt)*) => {
        $crate::record::state!(@load $self $record $from [$($all)* $field] $($rest)*)
    };
    (@load $self:ident $record:ident $from:ident [$($all:ident)*] into $field:ident, $($rest:tt)*) => {{
        $record.load(stringify!($field), &mut $self.$field, $from)?;
        $crate::record::state!(@load $self $record $from [$($all)* $field] $($rest)*)
    }};
    (@load $self:ident $record:ident $from:ident [$($all:ident)*] $field:ident, $($rest:tt)*) => {{
        $record.set(stringify!($field), &mut $self.$field, $from);
        $crate::record::state!(@load $self $record $from [$($all)* $field] $($rest)*)
    }};
    (@load $self:ident $record:ident $from:ident [$($all:ident)*]) => {{
        // A pattern without `..` names every field, so a new one that is not in the list does not compile.
        let Self { $($all: _,)* } = $self;
        $record.end()
    }};
}

pub(crate) use {object, record, record_names, state};
