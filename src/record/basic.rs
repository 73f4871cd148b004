//! Records of values from the standard library.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use uuid::Uuid;

use super::{Loader, Record, RecordError, RecordWith, Restored, Saver, record};
use crate::sys::{ChildProcess, NonblockingFd, StartReport};

/// The methods of a [`Record`] that is left out if it is empty.
macro_rules! may_be_empty {
    () => {
        fn is_default(&self) -> bool {
            self.is_empty()
        }

        fn missing() -> Option<Self> {
            Some(Self::default())
        }
    };
}

pub(super) use may_be_empty;

#[cold]
fn no_number() -> RecordError {
    RecordError::new("a number is expected, or it is too large")
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Record for $type {
            fn is_default(&self) -> bool {
                *self == 0
            }

            fn save<'a>(&'a self, to: &mut Saver<'a>) {
                to.number(*self as u64);
            }

            #[inline(never)]
            fn restore(from: &mut Loader) -> Result<Self, RecordError> {
                let number = from.number().and_then(|number| Self::try_from(number).ok());
                number.ok_or_else(no_number)
            }

            fn missing() -> Option<Self> {
                Some(0)
            }
        }
    )*};
}

numbers!(u16, u32, u64, usize);

// `u8` has no record, so that `Vec<u8>` can have its own.
record!(Option<u8> as Option<u16>, |number| number.map(u16::from), |number| {
    number.map(u8::try_from).transpose().ok()
});

impl Record for i32 {
    fn is_default(&self) -> bool {
        *self == 0
    }

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.signed_number((*self).into());
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        let number = from.signed_number();
        let number = number.and_then(|number| Self::try_from(number).ok());
        number.ok_or_else(no_number)
    }

    fn missing() -> Option<Self> {
        Some(0)
    }
}

// The bits, because JSON cannot express every value.
record!(f32 as u32, |value| value.to_bits(), |bits| Some(
    Self::from_bits(bits)
));

impl Record for bool {
    fn is_default(&self) -> bool {
        !self
    }

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.bool(*self);
    }

    #[inline(never)]
    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        match from.word("true") {
            true => Ok(true),
            false if from.word("false") => Ok(false),
            false => Err(RecordError::new("true or false is expected")),
        }
    }

    fn missing() -> Option<Self> {
        Some(false)
    }
}

record!(NonZeroU16 as u16, |number| number.get(), Self::new);

// Nanoseconds.
record!(Duration as u64, nanos_of, |nanos| Some(Self::from_nanos(
    nanos
)));

fn nanos_of(duration: &Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

// Since the epoch.
record!(SystemTime as Duration, since_epoch, |since| Some(
    Self::UNIX_EPOCH + since
));

fn since_epoch(time: &SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

record!(ExitStatus as i32, |status| status.into_raw(), |raw| Some(
    Self::from_raw(raw)
));

impl Record for String {
    may_be_empty!();

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.string(self);
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        from.string()
    }
}

/// The argument of a text that may be long. It is stored beside the record, and is empty in a rehearsal.
#[derive(Clone, Copy)]
pub(crate) struct Beside;

impl RecordWith for String {
    type With<'w> = Beside;

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.put_bytes(self.as_bytes());
    }

    fn restore(from: &mut Loader, _: Beside) -> Result<Self, RecordError> {
        Self::from_utf8(from.take_bytes()?).map_err(|_| RecordError::new("the text is not UTF-8"))
    }

    fn missing() -> Option<Self> {
        Some(Self::new())
    }
}

/// Implements [`Record`] for pointers to text.
macro_rules! texts {
    ($($type:ty),*) => {$(
        impl Record for $type {
            may_be_empty!();

            fn save<'a>(&'a self, to: &mut Saver<'a>) {
                to.string(self);
            }

            fn restore(from: &mut Loader) -> Result<Self, RecordError> {
                from.string().map(Into::into)
            }
        }
    )*};
}

texts!(Box<str>, Arc<str>, Cow<'static, str>);

record!(IpAddr as text);
record!(SocketAddr as text);
record!(Uuid as text);

impl<T: Record> Record for Arc<T> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        (**self).save(to);
    }

    #[inline(never)]
    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        T::restore(from).map(Self::new)
    }
}

/// A string, which need not be UTF-8.
impl Record for OsString {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        match self.to_str() {
            Some(text) => to.string(text),
            None => to.put_bytes(self.as_bytes()),
        }
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        match from.is_string() {
            true => from.string().map(Into::into),
            false => from.take_bytes().map(Self::from_vec),
        }
    }
}

impl Record for PathBuf {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        match self.to_str() {
            Some(text) => to.string(text),
            None => to.put_bytes(self.as_os_str().as_bytes()),
        }
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        OsString::restore(from).map(Self::from)
    }
}

/// In a rehearsal, another file takes the place of the descriptor.
impl Record for OwnedFd {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.put_descriptor(self.as_fd());
    }

    #[inline(never)]
    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        match from.take()? {
            Restored::Descriptor(fd) => Ok(fd),
            _ => {
                let file = File::open("/dev/null");
                let failed = |error| RecordError::new(format!("/dev/null: {error}"));
                file.map(Self::from).map_err(failed)
            }
        }
    }
}

/// Implements [`Record`] for types that own a descriptor.
macro_rules! descriptors {
    ($($type:ty: $of:expr),*) => {$(
        impl Record for $type {
            fn save<'a>(&'a self, to: &mut Saver<'a>) {
                to.put_descriptor(self.as_fd());
            }

            fn restore(from: &mut Loader) -> Result<Self, RecordError> {
                let failed = |error: io::Error| {
                    RecordError::new(format!("the descriptor cannot be used: {error}"))
                };
                $of(OwnedFd::restore(from)?).map_err(failed)
            }
        }
    )*};
}

descriptors!(
    File: |fd| Ok(Self::from(fd)),
    StartReport: |fd| Ok(Self::passed(fd)),
    NonblockingFd: Self::passed
);

/// The process id, and whether the process was reaped. A rehearsal must not take the process from its parent.
impl Record for ChildProcess {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.converted(self, |process| (process.id(), process.is_reaped()));
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        let (pid, reaped) = Record::restore(from)?;
        Ok(Self::adopt(pid, reaped || from.is_rehearsal()))
    }
}

/// Bytes, which are stored beside the record.
impl Record for Vec<u8> {
    may_be_empty!();

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.put_bytes(&**self);
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        from.take_bytes()
    }
}

/// Bytes, which are stored beside the record.
impl Record for VecDeque<u8> {
    may_be_empty!();

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        let (first, second) = self.as_slices();
        to.put_parts(first, second);
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        from.take_bytes().map(Into::into)
    }
}

/// A few bytes, as hexadecimal digits in the record.
impl<const N: usize> Record for [u8; N] {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.hex(self);
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        let mut bytes = [0; N];
        from.hex(&mut bytes)?;
        Ok(bytes)
    }
}

/// Nothing.
impl Record for () {
    fn is_default(&self) -> bool {
        true
    }

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.null();
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        from.skip()
    }

    fn missing() -> Option<Self> {
        Some(())
    }
}

/// What a program without some feature cannot have.
impl Record for Infallible {
    fn save<'a>(&'a self, _: &mut Saver<'a>) {
        match *self {}
    }

    fn restore(_: &mut Loader) -> Result<Self, RecordError> {
        Err(RecordError::new("this program has been built without it"))
    }
}

/// Any value, which its owner reads later.
impl Record for Value {
    fn is_default(&self) -> bool {
        self.is_null()
    }

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.value(self);
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        from.value()
    }

    fn missing() -> Option<Self> {
        Some(Self::Null)
    }
}
