//! Records of values from the standard library.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::fs::File;
use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use uuid::Uuid;

use super::{Loader, Record, RecordError, Restored, Saver};
use crate::sys::NonblockingFd;

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Record for $type {
            fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
                (*self).into()
            }

            fn restore(value: Value, _: &mut Loader) -> Result<Self, RecordError> {
                let number = value.as_u64().and_then(|number| Self::try_from(number).ok());
                number.ok_or_else(|| RecordError::new("a number is expected, or it is too large"))
            }
        }
    )*};
}

numbers!(u16, u32, u64, usize);

impl Record for i32 {
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        (*self).into()
    }

    fn restore(value: Value, _: &mut Loader) -> Result<Self, RecordError> {
        let number = value
            .as_i64()
            .and_then(|number| Self::try_from(number).ok());
        number.ok_or_else(|| RecordError::new("a number is expected, or it is too large"))
    }
}

/// The bits, because JSON cannot express every value.
impl Record for f32 {
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        self.to_bits().into()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        u32::restore(value, from).map(Self::from_bits)
    }
}

impl Record for bool {
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        (*self).into()
    }

    fn restore(value: Value, _: &mut Loader) -> Result<Self, RecordError> {
        let expected = || RecordError::new("true or false is expected");
        value.as_bool().ok_or_else(expected)
    }
}

impl Record for NonZeroU16 {
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        self.get().into()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        let number = Self::new(u16::restore(value, from)?);
        number.ok_or_else(|| RecordError::new("zero is not allowed"))
    }
}

impl Record for Duration {
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).into()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        u64::restore(value, from).map(Self::from_nanos)
    }
}

impl Record for String {
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        self.as_str().into()
    }

    fn restore(value: Value, _: &mut Loader) -> Result<Self, RecordError> {
        match value {
            Value::String(text) => Ok(text),
            _ => Err(RecordError::new("a string is expected")),
        }
    }
}

impl Record for Box<str> {
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        (&**self).into()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        String::restore(value, from).map(Into::into)
    }
}

impl Record for Arc<str> {
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        (&**self).into()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        String::restore(value, from).map(Into::into)
    }
}

impl<T: Record> Record for Arc<T> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        (**self).save(to)
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        T::restore(value, from).map(Self::new)
    }
}

impl Record for Cow<'static, str> {
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        (&**self).into()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        String::restore(value, from).map(Into::into)
    }
}

impl Record for IpAddr {
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        self.to_string().into()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        let text = String::restore(value, from)?;
        let wrong = |_| RecordError::new("an IP address is expected");
        text.parse().map_err(wrong)
    }
}

/// A string, which need not be UTF-8.
impl Record for OsString {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        match self.to_str() {
            Some(text) => text.into(),
            None => to.bytes(self.as_bytes()),
        }
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        match value {
            Value::String(text) => Ok(text.into()),
            value => from.bytes(&value).map(Self::from_vec),
        }
    }
}

impl Record for PathBuf {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        match self.to_str() {
            Some(text) => text.into(),
            None => to.bytes(self.as_os_str().as_bytes()),
        }
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        OsString::restore(value, from).map(Self::from)
    }
}

impl Record for Uuid {
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        self.to_string().into()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        let text = String::restore(value, from)?;
        let wrong = |_| RecordError::new("a UUID is expected");
        text.parse().map_err(wrong)
    }
}

/// Nanoseconds since the epoch.
impl Record for SystemTime {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        let since = self.duration_since(Self::UNIX_EPOCH).unwrap_or_default();
        let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let _ = to;
        nanos.into()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        Ok(Self::UNIX_EPOCH + Duration::restore(value, from)?)
    }
}

/// In a rehearsal, another file takes the place of the descriptor.
impl Record for OwnedFd {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        to.descriptor(self.as_fd())
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        match from.take(&value)? {
            Restored::Descriptor(fd) => Ok(fd),
            _ => {
                let file = File::open("/dev/null");
                let failed = |error| RecordError::new(format!("/dev/null: {error}"));
                file.map(Self::from).map_err(failed)
            }
        }
    }
}

impl Record for File {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        to.descriptor(self.as_fd())
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        OwnedFd::restore(value, from).map(Self::from)
    }
}

impl Record for NonblockingFd {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        to.descriptor(self.as_fd())
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        let fd = OwnedFd::restore(value, from)?;
        let failed = |error| RecordError::new(format!("the descriptor cannot be used: {error}"));
        Self::passed(fd).map_err(failed)
    }
}

/// Bytes, which are stored beside the record.
impl Record for Vec<u8> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        to.bytes(self)
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        from.bytes(&value)
    }
}

impl<T: Record> Record for Option<T> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        self.as_ref().map_or(Value::Null, |one| one.save(to))
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        match value {
            Value::Null => Ok(None),
            value => T::restore(value, from).map(Some),
        }
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl<T: Record> Record for Box<T> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        (**self).save(to)
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        T::restore(value, from).map(Self::new)
    }
}

/// Restores the elements of an array.
fn elements<T: Record, C: FromIterator<T>>(
    value: Value,
    from: &mut Loader,
) -> Result<C, RecordError> {
    let Value::Array(values) = value else {
        return Err(RecordError::new("an array is expected"));
    };
    let element =
        |(at, value)| T::restore(value, from).map_err(|error| error.inside(&format!("{at}")));
    values.into_iter().enumerate().map(element).collect()
}

impl<T: Record> Record for Vec<T> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        self.iter().map(|one| one.save(to)).collect()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        elements(value, from)
    }
}

/// Bytes, which are stored beside the record in the two parts that the queue has.
impl Record for VecDeque<u8> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        let (first, second) = self.as_slices();
        Value::Array(vec![to.bytes(first), to.bytes(second)])
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        let (mut first, second): (Vec<u8>, Vec<u8>) = Record::restore(value, from)?;
        first.extend(second);
        Ok(first.into())
    }
}

impl<T: Record> Record for VecDeque<T> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        self.iter().map(|one| one.save(to)).collect()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        elements(value, from)
    }
}

impl<T: Record, const N: usize> Record for [T; N] {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        self.iter().map(|one| one.save(to)).collect()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        let elements: Vec<T> = elements(value, from)?;
        let wrong = |_| RecordError::new(format!("{N} elements are expected"));
        elements.try_into().map_err(wrong)
    }
}

/// A few bytes, as numbers in the record.
impl<const N: usize> Record for [u8; N] {
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        self.iter().map(|byte| Value::from(*byte)).collect()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        let numbers = <[u16; N]>::restore(value, from)?;
        let is_byte = numbers.iter().all(|number| *number <= 255);
        let wrong = || RecordError::new("numbers below 256 are expected");
        is_byte
            .then(|| numbers.map(|number| number as u8))
            .ok_or_else(wrong)
    }
}

impl<T: Record + Ord> Record for BTreeSet<T> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        self.iter().map(|one| one.save(to)).collect()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        elements(value, from)
    }
}

impl<T: Record + Eq + Hash> Record for HashSet<T> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        self.iter().map(|one| one.save(to)).collect()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        elements(value, from)
    }
}

/// Nothing.
impl Record for () {
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        Value::Null
    }

    fn restore(_: Value, _: &mut Loader) -> Result<Self, RecordError> {
        Ok(())
    }

    fn absent() -> Option<Self> {
        Some(())
    }
}

impl<A: Record, B: Record> Record for (A, B) {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        Value::Array(vec![self.0.save(to), self.1.save(to)])
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        match value {
            Value::Array(mut values) if values.len() == 2 => {
                let second = values.pop().unwrap_or_default();
                let first = values.pop().unwrap_or_default();
                Ok((A::restore(first, from)?, B::restore(second, from)?))
            }
            _ => Err(RecordError::new("two elements are expected")),
        }
    }
}

/// Pairs of keys and values, in the order of the keys.
impl<K: Record + Ord, V: Record> Record for BTreeMap<K, V> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        let pair = |(key, value): (&'a K, &'a V)| Value::Array(vec![key.save(to), value.save(to)]);
        self.iter().map(pair).collect()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        elements::<(K, V), Self>(value, from)
    }
}

/// Pairs of keys and values.
impl<K: Record + Eq + Hash, V: Record, S: BuildHasher + Default> Record for HashMap<K, V, S> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        let pair = |(key, value): (&'a K, &'a V)| Value::Array(vec![key.save(to), value.save(to)]);
        self.iter().map(pair).collect()
    }

    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        elements::<(K, V), Self>(value, from)
    }
}

/// Any value, which its owner reads later.
impl Record for Value {
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        self.clone()
    }

    fn restore(value: Value, _: &mut Loader) -> Result<Self, RecordError> {
        Ok(value)
    }

    fn absent() -> Option<Self> {
        Some(Self::Null)
    }
}
