//! Records without a file, for tests and fuzzers.

use std::io;

use super::{Bytes, Loader, Record, Saver};

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

/// What another program makes of the record of a value, whose text passes between them.
pub(crate) fn restored<T: Record>(value: &T) -> T {
    let mut to = Saver::default();
    let record = value.save(&mut to).to_string();
    let memory = Memory(to.all_bytes().concat());
    let mut from = Loader::new(Box::new(memory), to.byte_count() as u64, Vec::new());
    let record = serde_json::from_str(&record).expect("JSON");
    T::restore(record, &mut from).expect("the record is valid")
}
