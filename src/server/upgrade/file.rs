//! The file with the state: how it is written, and how the next program reads it.
//!
//! ```text
//! {"outrigger":"0.1.0","format":1,"bytes":LENGTH,"descriptors":[NUMBER,...],"records":[{"name":NAME,"length":LENGTH},...]} LF
//! the records, each as long as the header says
//! the bytes that the records refer to, by their position from here
//! ```
//!
//! A record is one JSON value.
//!
//! A reader skips records whose name it does not know, unless the header says `"needed":true`. It refuses another format. For a
//! rehearsal, the bytes are left out, and no descriptor is passed on.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IoSlice, Read, Seek, Write};
use std::os::fd::RawFd;

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread};
use serde_json::{Value, json};

use crate::record::{Bytes, RecordError, Saver};
use crate::sys::{memory_file, number_of, seal};

/// The version of the format. Another one has records that this program cannot read at all.
const FORMAT: u64 = 1;

/// The names of the records that this program reads.
const RECORDS: [&str; 5] = ["listeners", "loop", "service", "upgrade", "program"];

/// The maximum length of the first line in bytes.
const MAX_HEADER: u64 = 4 << 20;

/// The name and the JSON of each record, in the order in which they are written.
pub(super) type Records = Vec<(&'static str, Vec<u8>)>;

/// Writes the state.
pub(super) fn write(records: &Records, saved: &Saver<'_>, with_bytes: bool) -> io::Result<File> {
    let entries = records.iter().map(|(name, text)| {
        // Every record that there is now is needed.
        json!({"name": name, "length": text.len(), "needed": true})
    });
    let numbers = saved.descriptors().iter();
    let numbers = numbers.map(|saved| saved.descriptor().map_or(-1, number_of));
    let header = json!({
        "outrigger": env!("CARGO_PKG_VERSION"),
        "format": FORMAT,
        "bytes": saved.byte_count(),
        "descriptors": numbers.collect::<Vec<RawFd>>(),
        "records": entries.collect::<Vec<_>>(),
    });
    let mut file = memory_file("outrigger-state")?;
    file.write_all(format!("{header}\n").as_bytes())?;
    for (_, text) in records {
        file.write_all(text)?;
    }
    if with_bytes {
        write_all_slices(&mut file, saved.all_bytes())?;
    }
    seal(&file);
    file.rewind()?;
    Ok(file)
}

/// Writes many slices with few calls.
fn write_all_slices(file: &mut File, slices: &[Cow<'_, [u8]>]) -> io::Result<()> {
    const AT_ONCE: usize = 512;
    for chunk in slices.chunks(AT_ONCE) {
        let mut slices: Vec<IoSlice<'_>> = chunk.iter().map(|one| IoSlice::new(one)).collect();
        let mut left = slices.as_mut_slice();
        while !left.is_empty() {
            match file.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut left, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// A state that was read, without the bytes that its records refer to.
#[derive(Debug)]
pub(super) struct StateFile {
    /// The version of the program that has written it.
    pub(super) version: String,
    pub(super) records: Vec<(String, Vec<u8>)>,
    pub(super) bytes: FileBytes,
    /// The number of the bytes.
    pub(super) len: u64,
    /// The numbers of the descriptors that were passed on.
    pub(super) descriptors: Vec<RawFd>,
}

/// The bytes in the file.
#[derive(Debug)]
pub(super) struct FileBytes {
    file: File,
    /// Where they begin.
    origin: u64,
}

impl Bytes for FileBytes {
    fn read_at(&mut self, at: u64, len: usize, buffer: &mut Vec<u8>) -> io::Result<()> {
        let (mut at, end) = (self.origin + at, buffer.len() + len);
        while buffer.len() < end {
            match pread(&self.file, spare_capacity(buffer), at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => at += count as u64,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        buffer.truncate(end);
        Ok(())
    }
}

impl StateFile {
    /// Reads the header and the records.
    pub(super) fn read(file: File) -> Result<Self, RecordError> {
        let failed =
            |error: io::Error| RecordError::new(format!("the state cannot be read: {error}"));
        let wrong = |what: &str| RecordError::new(format!("the state is not valid: {what}"));
        let left = file.metadata().map_or(0, |metadata| metadata.len());
        let mut reader = BufReader::new(&file);
        let mut line = Vec::new();
        let read = (&mut reader).take(MAX_HEADER).read_until(b'\n', &mut line);
        let mut origin = read.map_err(failed)? as u64;
        let header: Value = serde_json::from_slice(&line).map_err(|_| wrong("header"))?;
        let version = header["outrigger"].as_str().unwrap_or("?").to_owned();
        match header["format"].as_u64() {
            Some(FORMAT) => {}
            Some(other) => {
                let why = format!(
                    "the state of Outrigger {version} has format {other}, and this program reads format {FORMAT}"
                );
                return Err(RecordError::new(why));
            }
            None => return Err(wrong("format")),
        }
        let mut records = Vec::new();
        for entry in header["records"]
            .as_array()
            .ok_or_else(|| wrong("records"))?
        {
            let (name, length) = (entry["name"].as_str(), entry["length"].as_u64());
            let (Some(name), Some(length)) = (name, length) else {
                return Err(wrong("records"));
            };
            if !RECORDS.contains(&name) && entry["needed"] == true {
                return Err(RecordError::new(format!("the record {name} is not known")));
            }
            let mut text = Vec::with_capacity(length.min(left) as usize);
            (&mut reader)
                .take(length)
                .read_to_end(&mut text)
                .map_err(failed)?;
            origin += length;
            records.push((name.to_owned(), text));
        }
        let numbers = header["descriptors"]
            .as_array()
            .ok_or_else(|| wrong("descriptors"))?;
        let number = |value: &Value| {
            value
                .as_i64()
                .and_then(|number| RawFd::try_from(number).ok())
        };
        let descriptors = numbers.iter().map(number).collect::<Option<_>>();
        let descriptors = descriptors.ok_or_else(|| wrong("descriptors"))?;
        let len = header["bytes"].as_u64().ok_or_else(|| wrong("bytes"))?;
        drop(reader);
        let bytes = FileBytes { file, origin };
        Ok(Self {
            version,
            records,
            bytes,
            len,
            descriptors,
        })
    }
}
