//! Operation fuzzing of a whole server (to come).
use std::io::{self, Read, Write};

/// A stream.
#[derive(Debug, Default)]
pub struct MemoryStream {}
impl Read for MemoryStream {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Ok(0)
    }
}
impl Write for MemoryStream {
    fn write(&mut self, b: &[u8]) -> io::Result<usize> {
        Ok(b.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
