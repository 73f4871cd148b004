//! Records terminals as [asciicast v3](https://docs.asciinema.org/manual/asciicast/v3/) files, which `asciinema play` shows.
//!
//! A file is written by the loop, which has no other thread. Events are collected for half a second or [`WRITE`] bytes, so a turn makes
//! one write of bounded size for each recording. The kernel takes it into memory, and blocks only when a disk cannot keep up with all
//! that is written to it. A recording that cannot be written ends; its terminal does not notice.

mod cast;
mod downloads;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{Access, OFlags, access};
use uuid::Uuid;

use self::cast::{EventCode, Events};
pub(super) use self::downloads::Downloads;
use crate::log_event::{log_event, word};
use crate::record::{RecordError, record};
use crate::sys::TerminalSize;
use crate::{Metrics, Time};

/// Events are written when there are so many bytes.
const WRITE: usize = 32 << 10;

/// Events are written this long after the first of them.
const WRITE_TIME: Duration = Duration::from_millis(500);

/// How terminals are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordConfig {
    /// The directory for the files.
    pub dir: PathBuf,
    /// Whether only those terminals are recorded whose call asks for it, instead of all.
    pub on_request: bool,
    /// Whether input is recorded, too. It may contain passwords.
    pub input: bool,
    /// The maximum length of a file in bytes. A recording ends when its file would be longer.
    pub limit: u64,
}

impl RecordConfig {
    /// The default settings.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            on_request: false,
            input: false,
            limit: 256 << 20,
        }
    }

    /// Checks that files can be created in the directory.
    ///
    /// # Errors
    ///
    /// It is not a directory, or the permissions do not suffice.
    pub fn check(&self) -> io::Result<()> {
        if !std::fs::metadata(&self.dir)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(access(&self.dir, Access::WRITE_OK | Access::EXEC_OK)?)
    }
}

/// What the recordings of a service have in common.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    config: Arc<RecordConfig>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    open: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    limited: AtomicU64,
}

/// The terminal that is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded<'a> {
    pub(crate) id: Uuid,
    pub(crate) command: &'a [String],
    /// The value of the variable `TERM`.
    pub(crate) kind: &'a str,
    pub(crate) size: TerminalSize,
}

impl Recorder {
    pub(crate) fn new(config: RecordConfig) -> Self {
        Self {
            config: Arc::new(config),
            counts: Arc::default(),
        }
    }

    /// Whether each terminal is recorded.
    pub(crate) fn records_all(&self) -> bool {
        !self.config.on_request
    }

    /// Begins a recording. If that fails, the terminal is not recorded, and the log tells why.
    pub(crate) fn begin(&self, now: Time, recorded: Recorded<'_>) -> Option<Recording> {
        let started = SystemTime::now();
        let name = file_name(recorded.id, started);
        let path = self.config.dir.join(name);
        let created = create(&path).and_then(|file| {
            let found = file.metadata()?;
            Ok((file, (found.dev(), found.ino())))
        });
        let (file, identity) = match created {
            Ok(created) => created,
            Err(error) => {
                self.counts.failed.fetch_add(1, Ordering::Relaxed);
                log_failure(recorded.id, &path, &error);
                return None;
            }
        };
        self.counts.open.fetch_add(1, Ordering::Relaxed);
        let mut recording = Recording {
            id: recorded.id,
            path,
            identity,
            file: Some(file),
            written: 0,
            events: Events::begin(now, started, &recorded),
            write_at: None,
            recorder: self.clone(),
        };
        // Whoever looks at the file finds a valid one.
        recording.write();
        Some(recording)
    }

    pub(crate) fn metrics(&self, out: &mut Metrics) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        out.gauge(
            "outrigger_recordings_open",
            "Recordings of terminals that are being written.",
            count(&self.counts.open),
        );
        out.counter(
            "outrigger_recording_bytes_total",
            "Bytes written to recordings of terminals.",
            count(&self.counts.bytes),
        );
        out.counters(
            "outrigger_recordings_stopped_total",
            "Recordings that ended before their terminal, by reason.",
            "reason",
            [
                ("error", count(&self.counts.failed)),
                ("limit", count(&self.counts.limited)),
            ],
        );
    }
}

/// The name of a file. It has no character that a file system forbids, and the id makes it unique.
fn file_name(id: Uuid, started: SystemTime) -> String {
    let time = humantime::format_rfc3339_seconds(started).to_string();
    let time: String = time.chars().filter(|c| !matches!(c, '-' | ':')).collect();
    format!("{time}-{id}.cast")
}

/// Creates a file that only this user can read. An existing file or link is never opened.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

fn log_failure(id: Uuid, path: &Path, error: &io::Error) {
    log_event!(
        Warn,
        process = id,
        "recording stopped",
        path = &*path.to_string_lossy(),
        error = word(error),
    );
}

/// The recording of a terminal. Dropping it writes what is left.
#[derive(Debug)]
pub(crate) struct Recording {
    id: Uuid,
    path: PathBuf,
    /// The device and the number of the file.
    identity: (u64, u64),
    /// `None` when the recording has ended.
    file: Option<File>,
    /// The length of the file.
    written: u64,
    events: Events,
    /// When events are written at the latest.
    write_at: Option<Time>,
    recorder: Recorder,
}

record!(with(own: &'w Recorder) Recording {
    id,
    path,
    identity,
    file,
    written,
    events,
    write_at = None,
    recorder = own.clone(),
} => Self::counted);

impl Recording {
    /// Writes all events, so that the file can be passed on.
    pub(crate) fn make_portable(&mut self) {
        self.write();
    }

    /// Counts a file that is continued.
    fn counted(self) -> Result<Self, RecordError> {
        let open = u64::from(self.file.is_some());
        self.recorder.counts.open.fetch_add(open, Ordering::Relaxed);
        Ok(self)
    }

    /// Records output.
    pub(crate) fn output(&mut self, now: Time, bytes: &[u8]) {
        self.add(now, |events| {
            events.add_bytes(EventCode::Output, now, bytes)
        });
    }

    /// Records input, unless the settings exclude it.
    pub(crate) fn input(&mut self, now: Time, bytes: &[u8]) {
        if self.recorder.config.input {
            self.add(now, |events| events.add_bytes(EventCode::Input, now, bytes));
        }
    }

    /// Records a new size.
    pub(crate) fn resize(&mut self, now: Time, size: TerminalSize) {
        let TerminalSize { rows, cols } = size;
        let text = format!("{cols}x{rows}");
        self.add(now, |events| events.add(EventCode::Resize, now, &text));
    }

    /// Records the exit, and closes the file.
    pub(crate) fn exit(&mut self, now: Time, code: i32) {
        self.add(now, |events| {
            events.end_bytes(now);
            events.add(EventCode::Exit, now, &code.to_string());
        });
        self.write();
        self.close();
    }

    /// When to call [`Recording::handle_timeout`], if at all.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.write_at
    }

    /// Writes the events that are due.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if self.write_at.is_some_and(|at| now >= at) {
            self.write();
        }
    }

    /// The memory in bytes.
    pub(crate) fn held(&self) -> usize {
        self.events.held()
    }

    /// The file from its beginning, and its length with everything that has been recorded. `None` if the file is gone, or another one
    /// has taken its place.
    pub(crate) fn open(&mut self) -> Option<(File, u64)> {
        self.write();
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(flags.bits() as i32);
        let file = options.open(&self.path).ok()?;
        let found = file.metadata().ok()?;
        ((found.dev(), found.ino()) == self.identity).then_some((file, self.written))
    }

    fn add(&mut self, now: Time, add: impl FnOnce(&mut Events)) {
        if self.file.is_none() {
            return;
        }
        add(&mut self.events);
        if self.events.len() >= WRITE {
            self.write();
        } else if self.write_at.is_none() {
            self.write_at = Some(now + WRITE_TIME);
        }
    }

    /// Writes all events.
    fn write(&mut self) {
        self.write_at = None;
        let Some(file) = &mut self.file else { return };
        let room = self.recorder.config.limit.saturating_sub(self.written);
        let is_full = !self.events.finish(room);
        let bytes = self.events.bytes();
        let result = file.write_all(bytes);
        let counts = &self.recorder.counts;
        match result {
            Ok(()) => {
                self.written += bytes.len() as u64;
                let more = bytes.len() as u64;
                counts.bytes.fetch_add(more, Ordering::Relaxed);
            }
            Err(error) => {
                // Players expect whole lines. If this fails, too, nothing can be done.
                let _ = file.set_len(self.written);
                counts.failed.fetch_add(1, Ordering::Relaxed);
                log_failure(self.id, &self.path, &error);
                return self.close();
            }
        }
        self.events.clear();
        if is_full {
            counts.limited.fetch_add(1, Ordering::Relaxed);
            log_event!(
                Warn,
                process = self.id,
                "recording stopped",
                path = &*self.path.to_string_lossy(),
                reason = "it has its maximum length",
            );
            self.close();
        }
    }

    /// Ends the recording.
    fn close(&mut self) {
        if self.file.take().is_some() {
            self.recorder.counts.open.fetch_sub(1, Ordering::Relaxed);
        }
        self.events.clear();
        self.write_at = None;
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.write();
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::random_uuid;

    /// A directory, which is removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("outrigger-{}", random_uuid()));
            std::fs::create_dir(&path).expect("a directory");
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn begin(recorder: &Recorder) -> Recording {
        let recorded = Recorded {
            id: random_uuid(),
            command: &["sh".to_owned()],
            kind: "xterm",
            size: TerminalSize { rows: 24, cols: 80 },
        };
        let recording = recorder.begin(Time::from_millis(0), recorded);
        recording.expect("a recording")
    }

    fn count(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    #[test]
    fn events_are_written_within_half_a_second_or_when_there_are_many() {
        let folder = Folder::new();
        let recorder = Recorder::new(RecordConfig::new(&folder.0));
        let mut recording = begin(&recorder);
        let text = |recording: &Recording| std::fs::read_to_string(&recording.path).expect("text");
        assert!(text(&recording).ends_with("}\n"), "the header is there");
        recording.output(Time::from_millis(100), b"first");
        recording.output(Time::from_millis(400), b"second");
        assert_eq!(recording.deadline(), Some(Time::from_millis(600)));
        recording.handle_timeout(Time::from_millis(599));
        assert!(!text(&recording).contains("first"));
        recording.handle_timeout(Time::from_millis(600));
        assert!(text(&recording).ends_with("[0.300, \"o\", \"second\"]\n"));
        assert_eq!((recording.deadline(), recording.held()), (None, 0));
        let more = "x".repeat(WRITE);
        recording.output(Time::from_millis(700), more.as_bytes());
        assert!(text(&recording).contains(&more) && recording.deadline().is_none());
        let path = recording.path.clone();
        recording.output(Time::from_millis(800), b"last");
        drop(recording);
        let whole = std::fs::read_to_string(path).expect("text");
        assert!(whole.ends_with("[0.100, \"o\", \"last\"]\n"));
        assert_eq!(count(&recorder.counts.open), 0);
        assert_eq!(count(&recorder.counts.bytes), whole.len() as u64);
    }

    /// A write that fails, as on a full disk, ends the recording once.
    #[test]
    fn a_full_disk_ends_a_recording() {
        let folder = Folder::new();
        let recorder = Recorder::new(RecordConfig::new(&folder.0));
        let mut recording = begin(&recorder);
        let full = OpenOptions::new().write(true).open("/dev/full");
        recording.file = Some(full.expect("the device"));
        recording.output(Time::from_millis(100), b"lost");
        recording.handle_timeout(Time::from_millis(600));
        assert!(recording.file.is_none());
        let counts = &recorder.counts;
        assert_eq!((count(&counts.failed), count(&counts.open)), (1, 0));
        recording.output(Time::from_millis(700), &[b'x'; 2 * WRITE]);
        recording.exit(Time::from_millis(800), 0);
        assert_eq!((recording.deadline(), recording.held()), (None, 0));
        drop(recording);
        assert_eq!((count(&counts.failed), count(&counts.open)), (1, 0));
    }

    #[test]
    fn an_existing_file_or_link_is_never_written() {
        let folder = Folder::new();
        let target = folder.0.join("target");
        std::fs::write(&target, "precious").expect("a file");
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        assert!(create(&link).is_err() && create(&target).is_err());
        assert_eq!(std::fs::read_to_string(&target).expect("text"), "precious");
    }
}
