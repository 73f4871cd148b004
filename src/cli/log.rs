//! The log: one line for each record, to standard error.

use std::io::{IsTerminal, Write};
use std::str::FromStr;
use std::time::SystemTime;

use log::{LevelFilter, Log, Metadata, Record};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The most bytes of a line: what a pipe takes without blocking once it says that it takes anything.
const MAX_LINE: usize = 4096;

/// How a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// `2026-01-31T12:00:00.000Z INFO  text`
    Text,
    /// `{"time":…,"level":…,"target":…,"message":…}`
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("'{text}' is neither text nor json")),
        }
    }
}

struct Logger {
    format: LogFormat,
    level: LevelFilter,
}

/// Starts logging. Without a level given, `RUST_LOG` counts, and without that it is `info`.
pub(crate) fn init(level: Option<LevelFilter>, format: LogFormat) {
    let level = level
        .or_else(|| level_from(&std::env::var("RUST_LOG").ok()?))
        .unwrap_or(LevelFilter::Info);
    if log::set_boxed_logger(Box::new(Logger { format, level })).is_ok() {
        log::set_max_level(level);
    }
}

/// The level that `RUST_LOG` has for us: `debug`, or `outrigger=debug` among others.
fn level_from(directives: &str) -> Option<LevelFilter> {
    directives
        .split(',')
        .rev()
        .find_map(|directive| match directive.trim().split_once('=') {
            None => directive.trim().parse().ok(),
            Some(("outrigger", level)) => level.parse().ok(),
            Some(_) => None,
        })
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= self.level
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let time = humantime::format_rfc3339_millis(SystemTime::now());
        let mut line = match self.format {
            LogFormat::Text => {
                let program = if record.target() == "program" {
                    "program: "
                } else {
                    ""
                };
                format!("{time} {:<5} {program}{}", record.level(), record.args())
            }
            LogFormat::Json => serde_json::json!({
                "time": time.to_string(),
                "level": record.level().as_str().to_ascii_lowercase(),
                "target": record.target(),
                "message": cut(record.args().to_string(), MAX_LINE / 2),
            })
            .to_string(),
        };
        line = cut(line, MAX_LINE - 1);
        line.push('\n');
        write(line.as_bytes());
    }

    fn flush(&self) {}
}

fn cut(mut line: String, most: usize) -> String {
    line.truncate(line.floor_char_boundary(most));
    line
}

/// Writes a line unless that would block: a reader of the log that does not read must not stop the server. Such lines
/// are lost; a terminal is waited for.
fn write(line: &[u8]) {
    let stderr = std::io::stderr();
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    if stderr.is_terminal() || matches!(poll(&mut ready, Some(&Timespec::default())), Ok(1)) {
        // There is nowhere left to complain to.
        drop(stderr.lock().write_all(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_log_is_understood_as_far_as_it_is_about_us() {
        assert_eq!(level_from("debug"), Some(LevelFilter::Debug));
        assert_eq!(
            level_from("mio=trace,outrigger=warn"),
            Some(LevelFilter::Warn)
        );
        assert_eq!(level_from("info,mio=trace"), Some(LevelFilter::Info));
        assert_eq!(level_from("mio=trace"), None);
        assert_eq!(level_from(""), None);
    }
}
