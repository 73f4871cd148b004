//! Where the fields of a record go.

use super::{Loader, Record, RecordError, RecordWith, State};

/// The place of a field. [`Loader::object`] fills it.
pub(crate) trait Place {
    /// Reads the field.
    fn read(&mut self, from: &mut Loader) -> Result<(), RecordError>;

    /// Notes that the record does not have the field. Returns whether that is allowed.
    fn miss(&mut self) -> bool;
}

/// The value in a place. [`Loader::object`] has filled it, or has failed. A way out for each field of a struct would take several times
/// the code.
#[inline]
pub(crate) fn read<T>(place: Option<T>) -> T {
    place.expect("the field was read")
}

/// A field of a value under construction.
impl<T: Record> Place for Option<T> {
    fn read(&mut self, from: &mut Loader) -> Result<(), RecordError> {
        *self = Some(T::restore(from)?);
        Ok(())
    }

    fn miss(&mut self) -> bool {
        *self = T::missing();
        self.is_some()
    }
}

/// A field that is restored with an argument.
pub(crate) struct With<T, F>(pub(crate) Option<T>, pub(crate) F);

impl<T: RecordWith, F: FnMut(&mut Loader) -> Result<T, RecordError>> Place for With<T, F> {
    fn read(&mut self, from: &mut Loader) -> Result<(), RecordError> {
        self.0 = Some(self.1(from)?);
        Ok(())
    }

    fn miss(&mut self) -> bool {
        self.0 = T::missing();
        self.0.is_some()
    }
}

/// A field of a value that continues.
pub(crate) struct Set<'p, T>(pub(crate) &'p mut T);

impl<T: Record> Place for Set<'_, T> {
    fn read(&mut self, from: &mut Loader) -> Result<(), RecordError> {
        *self.0 = T::restore(from)?;
        Ok(())
    }

    fn miss(&mut self) -> bool {
        T::missing().map(|missing| *self.0 = missing).is_some()
    }
}

/// A field of type [`State`] in a value under construction. If the field is missing, the initial state stays.
pub(crate) struct Loaded<T>(pub(crate) Option<T>);

impl<T: State> Place for Loaded<T> {
    fn read(&mut self, from: &mut Loader) -> Result<(), RecordError> {
        self.0.as_mut().map_or(Ok(()), |value| value.load(from))
    }

    fn miss(&mut self) -> bool {
        true
    }
}

/// A field that is a [`State`]. Without the field, it stays as it is.
pub(crate) struct Load<'p, T>(pub(crate) &'p mut T);

impl<T: State> Place for Load<'_, T> {
    fn read(&mut self, from: &mut Loader) -> Result<(), RecordError> {
        self.0.load(from)
    }

    fn miss(&mut self) -> bool {
        true
    }
}

/// A field that is read by a function. Without the field, nothing happens.
pub(crate) struct Read<F>(pub(crate) F);

impl<F: FnMut(&mut Loader) -> Result<(), RecordError>> Place for Read<F> {
    fn read(&mut self, from: &mut Loader) -> Result<(), RecordError> {
        self.0(from)
    }

    fn miss(&mut self) -> bool {
        true
    }
}
