//! Records of collections.
//!
//! There are hundreds of types of collections, so that what does not depend on their elements is in functions of [`Saver`] and
//! [`Loader`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};

use slab::Slab;

use super::basic::may_be_empty;
use super::{Loader, Record, RecordError, RecordWith, Saver};

impl<T: Record> Record for Option<T> {
    fn is_default(&self) -> bool {
        self.is_none()
    }

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        match self {
            Some(value) => value.save(to),
            None => to.null(),
        }
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        match from.word("null") {
            true => Ok(None),
            false => T::restore(from).map(Some),
        }
    }

    fn missing() -> Option<Self> {
        Some(None)
    }
}

impl<T: RecordWith> RecordWith for Option<T> {
    type With<'w> = T::With<'w>;

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        match self {
            Some(value) => value.save(to),
            None => to.null(),
        }
    }

    fn restore(from: &mut Loader, with: Self::With<'_>) -> Result<Self, RecordError> {
        match from.word("null") {
            true => Ok(None),
            false => T::restore(from, with).map(Some),
        }
    }

    fn missing() -> Option<Self> {
        Some(None)
    }
}

impl<T: Record> Record for Box<T> {
    fn is_default(&self) -> bool {
        (**self).is_default()
    }

    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        (**self).save(to);
    }

    #[inline(never)]
    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        T::restore(from).map(Self::new)
    }

    fn missing() -> Option<Self> {
        T::missing().map(Self::new)
    }
}

impl<A: Record, B: Record> Record for (A, B) {
    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.pair(&self.0, &self.1);
    }

    #[inline(never)]
    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        from.pair(b'[')?;
        let first = A::restore(from)?;
        from.pair(b',')?;
        let second = B::restore(from)?;
        from.pair(b']')?;
        Ok((first, second))
    }
}

impl<T: Record, const N: usize> Record for [T; N] {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.array(self, |to, element| element.save(to));
    }

    #[inline(never)]
    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        let elements: Vec<T> = Record::restore(from)?;
        let wrong = |_| RecordError::new(format!("{N} elements are expected"));
        elements.try_into().map_err(wrong)
    }
}

/// Implements the record of a collection of elements.
macro_rules! elements {
    ($type:ident, $add:ident, [$($bound:ident),*]) => {
        impl<T: Record $(+ $bound)*> Record for $type<T> {
            may_be_empty!();

            #[inline(never)]
            fn save<'a>(&'a self, to: &mut Saver<'a>) {
                to.array(self, |to, element| element.save(to));
            }

            #[inline(never)]
            fn restore(from: &mut Loader) -> Result<Self, RecordError> {
                let mut all = Self::new();
                from.each(&mut |from| {
                    all.$add(T::restore(from)?);
                    Ok(())
                })?;
                Ok(all)
            }
        }
    };
}

elements!(Vec, push, []);
elements!(VecDeque, push_back, []);
elements!(BTreeSet, insert, [Ord]);
elements!(HashSet, insert, [Eq, Hash]);

impl<T: for<'w> RecordWith<With<'w>: Copy>> RecordWith for Vec<T> {
    type With<'w> = T::With<'w>;

    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.array(self, |to, element| element.save(to));
    }

    #[inline(never)]
    fn restore(from: &mut Loader, with: Self::With<'_>) -> Result<Self, RecordError> {
        let mut all = Self::new();
        from.each(&mut |from| {
            all.push(T::restore(from, with)?);
            Ok(())
        })?;
        Ok(all)
    }

    fn missing() -> Option<Self> {
        Some(Self::new())
    }
}

/// Implements the record of a map: an array of pairs.
macro_rules! pairs {
    ($type:ty, [$($hasher:ident)?], [$($bound:ident),*]) => {
        impl<K: Record $(+ $bound)*, V: Record $(, $hasher: BuildHasher + Default)?> Record for $type {
            may_be_empty!();

            #[inline(never)]
            fn save<'a>(&'a self, to: &mut Saver<'a>) {
                to.array(self, |to, (key, value)| to.pair(key, value));
            }

            #[inline(never)]
            fn restore(from: &mut Loader) -> Result<Self, RecordError> {
                let mut all = Self::default();
                from.each(&mut |from| {
                    let (key, value) = Record::restore(from)?;
                    all.insert(key, value);
                    Ok(())
                })?;
                Ok(all)
            }
        }
    };
}

pairs!(BTreeMap<K, V>, [], [Ord]);
pairs!(HashMap<K, V, S>, [S], [Eq, Hash]);

/// The maximum number of slots in a [`Slab`]. Its memory depends on the last one.
const MAX_SLOTS: usize = 1 << 20;

/// An array of pairs: the slot, and what is in it.
impl<T: Record> Record for Slab<T> {
    may_be_empty!();

    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.array(self, |to, (slot, value)| {
            to.open(b'[');
            to.number(slot as u64);
            to.next();
            value.save(to);
            to.close(b']');
        });
    }

    #[inline(never)]
    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        let all: Vec<(usize, T)> = Record::restore(from)?;
        match all.iter().any(|(slot, _)| *slot >= MAX_SLOTS) {
            true => Err(RecordError::new("a slot is too large")),
            false => Ok(all.into_iter().collect()),
        }
    }
}
