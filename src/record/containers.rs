//! Records of collections.
//!
//! There are hundreds of types of collections, so that what does not depend on their elements is in functions of its own.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::vec::IntoIter;

use serde_json::Value;

use super::{Loader, Record, RecordError, Saver};

/// The elements of an array that are still to be read.
struct Elements {
    values: IntoIter<Value>,
    read: usize,
    failure: Option<RecordError>,
}

impl Elements {
    #[inline(never)]
    fn of(value: Value) -> Result<Self, RecordError> {
        let values = match value {
            Value::Null => Vec::new(),
            Value::Array(values) => values,
            _ => return Err(RecordError::new("an array is expected")),
        };
        Ok(Self {
            values: values.into_iter(),
            read: 0,
            failure: None,
        })
    }

    #[inline(never)]
    fn next(&mut self) -> Option<Value> {
        self.read += 1;
        self.values.next()
    }

    /// The next element, which is a pair.
    #[inline(never)]
    fn next_pair(&mut self) -> Option<[Value; 2]> {
        match halves(self.next()?) {
            Ok(pair) => Some(pair),
            Err(error) => {
                self.note(error);
                None
            }
        }
    }

    /// Notes the first error, which is that of the element that was read last.
    #[cold]
    #[inline(never)]
    fn note(&mut self, error: RecordError) {
        let at = self.read - 1;
        self.failure
            .get_or_insert_with(|| error.inside(&format!("{at}")));
    }

    #[inline(never)]
    fn end(self) -> Result<(), RecordError> {
        self.failure.map_or(Ok(()), Err)
    }
}

/// The elements of a two-element array.
#[inline(never)]
fn halves(value: Value) -> Result<[Value; 2], RecordError> {
    let halves = match value {
        Value::Array(values) => values.try_into().ok(),
        _ => None,
    };
    halves.ok_or_else(|| RecordError::new("two elements are expected"))
}

#[inline(never)]
fn pair(first: Value, second: Value) -> Value {
    Value::Array(vec![first, second])
}

/// Adds an element to an array.
#[inline(never)]
fn add(array: &mut Vec<Value>, element: Value) {
    array.push(element);
}

impl<T: Record> Record for Option<T> {
    fn is_default(&self) -> bool {
        self.is_none()
    }

    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        match self {
            Some(value) => value.save(to),
            None => Value::Null,
        }
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        match value {
            Value::Null => Ok(None),
            value => T::restore(value, from).map(Some),
        }
    }
}

impl<T: Record> Record for Box<T> {
    fn is_default(&self) -> bool {
        (**self).is_default()
    }

    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        (**self).save(to)
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        T::restore(value, from).map(Self::new)
    }
}

impl<A: Record, B: Record> Record for (A, B) {
    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        let first = self.0.save(to);
        pair(first, self.1.save(to))
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        let [first, second] = halves(value)?;
        Ok((A::restore(first, from)?, B::restore(second, from)?))
    }
}

/// The array of these elements.
fn save_all<'a, T: Record + 'a>(
    elements: impl IntoIterator<Item = &'a T>,
    to: &mut Saver<'a>,
) -> Value {
    let mut array = Vec::new();
    for element in elements {
        add(&mut array, element.save(to));
    }
    Value::Array(array)
}

impl<T: Record, const N: usize> Record for [T; N] {
    #[inline(never)]
    fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        save_all(self, to)
    }

    #[inline(never)]
    fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
        let elements: Vec<T> = Record::restore(value, from)?;
        let wrong = |_| RecordError::new(format!("{N} elements are expected"));
        elements.try_into().map_err(wrong)
    }
}

/// Implements the record of a collection of elements.
macro_rules! elements {
    ($type:ident, $add:ident, [$($bound:ident),*]) => {
        impl<T: Record $(+ $bound)*> Record for $type<T> {
            fn is_default(&self) -> bool {
                self.is_empty()
            }

            #[inline(never)]
            fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
                save_all(self, to)
            }

            #[inline(never)]
            fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
                let mut elements = Elements::of(value)?;
                let mut all = Self::new();
                while let Some(value) = elements.next() {
                    match T::restore(value, from) {
                        Ok(element) => _ = all.$add(element),
                        Err(error) => elements.note(error),
                    }
                }
                elements.end().map(|()| all)
            }
        }
    };
}

elements!(Vec, push, []);
elements!(VecDeque, push_back, []);
elements!(BTreeSet, insert, [Ord]);
elements!(HashSet, insert, [Eq, Hash]);

/// Implements the record of a map: an array of pairs.
macro_rules! pairs {
    ($type:ty, [$($hasher:ident)?], [$($bound:ident),*]) => {
        impl<K: Record $(+ $bound)*, V: Record $(, $hasher: BuildHasher + Default)?> Record for $type {
            fn is_default(&self) -> bool {
                self.is_empty()
            }

            #[inline(never)]
            fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
                let mut array = Vec::new();
                for (key, value) in self {
                    let key = key.save(to);
                    add(&mut array, pair(key, value.save(to)));
                }
                Value::Array(array)
            }

            #[inline(never)]
            fn restore(value: Value, from: &mut Loader) -> Result<Self, RecordError> {
                let mut elements = Elements::of(value)?;
                let mut all = Self::default();
                while let Some([key, value]) = elements.next_pair() {
                    match (K::restore(key, from), V::restore(value, from)) {
                        (Ok(key), Ok(value)) => _ = all.insert(key, value),
                        (Err(error), _) | (_, Err(error)) => elements.note(error),
                    }
                }
                elements.end().map(|()| all)
            }
        }
    };
}

pairs!(BTreeMap<K, V>, [], [Ord]);
pairs!(HashMap<K, V, S>, [S], [Eq, Hash]);
