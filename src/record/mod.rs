//! Records: the state of a value as JSON, with its long bytes and its descriptors beside it, so that another process can continue
//! with it.
//!
//! The module that owns a type also writes its record, with `record!`: one list of its fields serves both directions, and a new
//! field that is missing there does not compile. [`Saver`] writes text into one buffer, and borrows long bytes instead of copying
//! them. [`Loader`] reads values from the text one after another, and copies bytes once, into the memory where they stay.
//!
//! A reader skips fields that it does not know, in any order, and a field that is missing gets its default.
//! So a program can read the records of one that is a little older or newer.

mod basic;
mod containers;
mod loader;
mod macros;
mod places;
mod saver;
#[cfg(any(test, fuzzing))]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

pub(crate) use self::basic::Beside;
pub use self::loader::Loader;
pub(crate) use self::loader::{Bytes, Elements};
pub(crate) use self::macros::{object, record, state};
pub(crate) use self::places::{Load, Loaded, Place, Read, Set, With, read};
pub use self::saver::Saver;

/// A value that another process can continue with.
pub(crate) trait Record: Sized {
    /// Writes the value.
    fn save<'a>(&'a self, to: &mut Saver<'a>);

    /// Whether a record may leave the value out: it equals [`Record::missing`].
    fn is_default(&self) -> bool {
        false
    }

    /// Reads the value.
    fn restore(from: &mut Loader) -> Result<Self, RecordError>;

    /// The value of a field that the record does not have: zero, false, nothing, or what is empty. `None` if the field is needed.
    fn missing() -> Option<Self> {
        None
    }
}

/// A value that is restored with an argument, such as a setting of the program that continues it.
pub(crate) trait RecordWith: Sized {
    /// The argument.
    type With<'w>;

    /// Writes the value.
    fn save<'a>(&'a self, to: &mut Saver<'a>);

    /// Reads the value.
    fn restore(from: &mut Loader, with: Self::With<'_>) -> Result<Self, RecordError>;

    /// As [`Record::missing`].
    fn missing() -> Option<Self> {
        None
    }
}

/// A value whose settings come from the program that continues it. [`State::save`] leaves them out.
pub(crate) trait State {
    /// Writes the state.
    fn save<'a>(&'a self, to: &mut Saver<'a>);

    /// Continues with the state that another value has saved.
    fn load(&mut self, from: &mut Loader) -> Result<(), RecordError>;
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

    #[cold]
    pub(crate) fn missing() -> Self {
        Self::new("the field is missing")
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
