//! Records without a file, for tests and fuzzers.

use std::io;

use serde_json::Value;

use super::{Bytes, Loader, Record, Saver, State};

/// The bytes of records, in memory.
#[derive(Debug)]
pub(crate) struct Memory(pub(crate) Vec<u8>);

impl Bytes for Memory {
    fn read_at(&mut self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        let len = buffer.len();
        buffer.copy_from_slice(&self.0[at as usize..][..len]);
        Ok(())
    }
}

/// What another program reads: the text of a record, and what it refers to.
fn passed<'a>(write: impl FnOnce(&mut Saver<'a>) -> Value) -> (Value, Loader) {
    let mut to = Saver::default();
    let record = write(&mut to).to_string();
    let memory = Memory(to.all_bytes().concat());
    let from = Loader::new(Box::new(memory), to.byte_count() as u64, Vec::new());
    (serde_json::from_str(&record).expect("JSON"), from)
}

/// What another program makes of the record of a value.
pub(crate) fn restored<T: Record>(value: &T) -> T {
    let (record, mut from) = passed(|to| value.save(to));
    T::restore(record, &mut from).expect("the record is valid")
}

/// Lets another value continue with the state of one.
pub(crate) fn load_again<T: State>(value: &T, next: &mut T) {
    let (record, mut from) = passed(|to| value.save(to));
    next.load(record, &mut from).expect("the record is valid");
}
