//! Records of values from the standard library.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
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
            fn is_default(&self) -> bool {
                *self == 0
            }

            #[inline(never)]
            fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
                (*self).into()
            }

            #[inline(never)]
            fn restore(value: Value, _: &mut Loader) -> Result<Self, RecordError> {
                if value.is_null() {
                    return Ok(0);
                }
                let number = value.as_u64().and_then(|number| Self::try_from(number).ok());
                number.ok_or_else(|| RecordError::new("a number is expected, or it is too large"))
            }
        }
    )*};
}

numbers!(u16, u32, u64, usize);

impl Record for i32 {
    fn is_default(&self) -> bool {
        *self == 0
    }

    #[inline(never)]
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        (*self).into()
    }

    #[inline(never)]
    fn restore(value: Value, _: &mut Loader) -> Result<Self, RecordError> {
        if value.is_null() {
            return Ok(0);
        }
        let number = value
            .as_i64()
            .and_then(|number| Self::try_from(number).ok());
        number.ok_or_else(|| RecordError::new("a number is expected, or it is too large"))
    }
}

/// The bits, because JSON cannot express every value.
impl Record for f32 {
    fn is_default(&self) -> bool {
        self.to_bits() == 0
    }

    #[inline(never)]
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        self.to_bits().into()
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        u32::restore(value, from).map(Self::from_bits)
    }
}

impl Record for bool {
    fn is_default(&self) -> bool {
        !self
    }

    #[inline(never)]
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        (*self).into()
    }

    #[inline(never)]
    fn restore(value: Value, _: &mut Loader) -> Result<Self, RecordError> {
        match value {
            Value::Null => Ok(false),
            Value::Bool(value) => Ok(value),
            _ => Err(RecordError::new("true or false is expected")),
        }
    }
}

impl Record for NonZeroU16 {
    #[inline(never)]
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        self.get().into()
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        let number = Self::new(u16::restore(value, from)?);
        number.ok_or_else(|| RecordError::new("zero is not allowed"))
    }
}

impl Record for Duration {
    fn is_default(&self) -> bool {
        self.is_zero()
    }

    #[inline(never)]
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        u64::try_from(self.as_nanos()).unwrap_or(u64::MAX).into()
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        u64::restore(value, from).map(Self::from_nanos)
    }
}

impl Record for String {
    fn is_default(&self) -> bool {
        self.is_empty()
    }

    #[inline(never)]
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        self.as_str().into()
    }

    #[inline(never)]
    fn restore(value: Value, _: &mut Loader) -> Result<Self, RecordError> {
        match value {
            Value::Null => Ok(Self::new()),
            Value::String(text) => Ok(text),
            _ => Err(RecordError::new("a string is expected")),
        }
    }
}

impl Record for Box<str> {
    fn is_default(&self) -> bool {
        self.is_empty()
    }

    #[inline(never)]
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        (&**self).into()
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        String::restore(value, from).map(Into::into)
    }
}

impl Record for Arc<str> {
    #[inline(never)]
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        (&**self).into()
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        String::restore(value, from).map(Into::into)
    }
}

impl<T: Record> Record for Arc<T> {
    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        (**self).save(to)
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        T::restore(value, from).map(Self::new)
    }
}

impl Record for Cow<'static, str> {
    #[inline(never)]
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        (&**self).into()
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        String::restore(value, from).map(Into::into)
    }
}

/// Implements [`Record`] for types that are written as text.
macro_rules! as_text {
    ($($type:ty: $expected:literal),*) => {$(
        impl Record for $type {
            #[inline(never)]
            fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
                self.to_string().into()
            }

            #[inline(never)]
            fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
                let text = String::restore(value, from)?;
                text.parse().map_err(|_| RecordError::new($expected))
            }
        }
    )*};
}

as_text!(IpAddr: "an IP address is expected", SocketAddr: "an address is expected", Uuid: "a UUID is expected");

/// A string, which need not be UTF-8.
impl Record for OsString {
    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        match self.to_str() {
            Some(text) => text.into(),
            None => to.bytes(self.as_bytes()),
        }
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        match value {
            Value::String(text) => Ok(text.into()),
            value => from.bytes(&value).map(Self::from_vec),
        }
    }
}

impl Record for PathBuf {
    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        match self.to_str() {
            Some(text) => text.into(),
            None => to.bytes(self.as_os_str().as_bytes()),
        }
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        OsString::restore(value, from).map(Self::from)
    }
}

/// Nanoseconds since the epoch.
impl Record for SystemTime {
    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        let since = self.duration_since(Self::UNIX_EPOCH).unwrap_or_default();
        let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let _ = to;
        nanos.into()
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        Ok(Self::UNIX_EPOCH + Duration::restore(value, from)?)
    }
}

/// In a rehearsal, another file takes the place of the descriptor.
impl Record for OwnedFd {
    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        to.descriptor(self.as_fd())
    }

    #[inline(never)]
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
    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        to.descriptor(self.as_fd())
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        OwnedFd::restore(value, from).map(Self::from)
    }
}

impl Record for NonblockingFd {
    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        to.descriptor(self.as_fd())
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        let fd = OwnedFd::restore(value, from)?;
        let failed = |error| RecordError::new(format!("the descriptor cannot be used: {error}"));
        Self::passed(fd).map_err(failed)
    }
}

/// Bytes, which are stored beside the record.
impl Record for Vec<u8> {
    fn is_default(&self) -> bool {
        self.is_empty()
    }

    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        to.bytes(self)
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        from.bytes(&value)
    }
}

/// Bytes, which are stored beside the record in the two parts that the queue has.
impl Record for VecDeque<u8> {
    fn is_default(&self) -> bool {
        self.is_empty()
    }

    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        let (first, second) = self.as_slices();
        Value::Array(vec![to.bytes(first), to.bytes(second)])
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        if value.is_null() {
            return Ok(Self::new());
        }
        let (mut first, second): (Vec<u8>, Vec<u8>) = Record::restore(value, from)?;
        first.extend(second);
        Ok(first.into())
    }
}

/// A few bytes, as numbers in the record.
impl<const N: usize> Record for [u8; N] {
    #[inline(never)]
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        self.iter().map(|byte| Value::from(*byte)).collect()
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        let numbers = <[u16; N]>::restore(value, from)?;
        let is_byte = numbers.iter().all(|number| *number <= 255);
        let wrong = || RecordError::new("numbers below 256 are expected");
        is_byte
            .then(|| numbers.map(|number| number as u8))
            .ok_or_else(wrong)
    }
}

/// Nothing.
impl Record for () {
    fn is_default(&self) -> bool {
        true
    }

    #[inline(never)]
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        Value::Null
    }

    #[inline(never)]
    fn restore(_: Value, _: &mut Loader) -> Result<Self, RecordError> {
        Ok(())
    }
}

/// Any value, which its owner reads later.
impl Record for Value {
    fn is_default(&self) -> bool {
        self.is_null()
    }

    #[inline(never)]
    fn save<'a>(&'a self, _: &mut Saver<'a>) -> Value {
        self.clone()
    }

    #[inline(never)]
    fn restore(value: Value, _: &mut Loader) -> Result<Self, RecordError> {
        Ok(value)
    }
}
