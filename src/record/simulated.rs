//! Records without a file, for tests and fuzzers.

use std::io;

use super::{Bytes, Loader, Record, RecordError, Saver, State};

/// The bytes of records, in memory.
#[derive(Debug)]
pub(crate) struct Memory(pub(crate) Vec<u8>);

impl Bytes for Memory {
    fn read_at(&mut self, at: u64, len: usize, buffer: &mut Vec<u8>) -> io::Result<()> {
        buffer.extend_from_slice(&self.0[at as usize..][..len]);
        Ok(())
    }
}

/// What another program makes of a record: its text, and what it refers to.
fn pass<'a, T>(
    write: impl FnOnce(&mut Saver<'a>),
    read: impl FnOnce(&mut Loader) -> Result<T, RecordError>,
) -> T {
    let mut to = Saver::default();
    write(&mut to);
    let memory = Memory(to.all_bytes().concat());
    let mut from = Loader::new(Box::new(memory), to.byte_count() as u64, Vec::new());
    from.read(to.take_text(), read)
        .expect("the record is valid")
}

/// What another program makes of the record of a value.
pub(crate) fn restored<T: Record>(value: &T) -> T {
    pass(|to| value.save(to), T::restore)
}

/// Lets another value continue with the state of one.
pub(crate) fn load_again<T: State>(value: &T, next: &mut T) {
    pass(|to| value.save(to), |from| next.load(from));
}
