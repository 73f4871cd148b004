//! The log on standard error. Logging never blocks, and each kind of line has a rate limit.

mod json;
mod limiter;

use std::borrow::Cow;
use std::io::{self, IsTerminal};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use log::{Level, LevelFilter, Log, Metadata, Record};
use serde_json::{Map, Value};

use self::json::Recent;
use self::limiter::{Limiter, Rate};
use super::output::{Colors, LineOutput};
use crate::sys::{NonblockingFd, granted_memory, is_terminal_raw};
use crate::text::printable;
use crate::{Metrics, StatusFields};

/// The maximum length of a line in bytes. On Linux, a pipe accepts a write of this length entirely or not at all.
const MAX_LINE: usize = 4096;

/// The bytes of a line that are reserved for the count of suppressed lines.
const MARGIN: usize = 100;

/// The rate limit of each kind of the server's lines.
const OWN: Rate = Rate {
    burst: 100.0,
    per_second: 10.0,
};

/// The rate limit of the lines that programs write to standard error.
const PROGRAMS: Rate = Rate {
    burst: 1000.0,
    per_second: 200.0,
};

/// How long [`write_line`] waits for room.
const WRITE_TIMEOUT: Duration = Duration::from_millis(500);

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogFormat {
    /// `2026-01-31T12:00:00.000Z INFO  text`
    Text,
    /// `{"time":…,"level":…,"target":…,"message":…}` and the fields of the record.
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

/// The state of the log. All output to standard error goes through it.
struct State {
    output: LineOutput,
    limiter: Limiter,
    format: LogFormat,
    recent: Recent,
    /// The number of lines over the rate limit of their kind.
    suppressed: u64,
}

fn state() -> MutexGuard<'static, State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    let state = STATE.get_or_init(|| {
        Mutex::new(State {
            output: LineOutput::new(NonblockingFd::shared(io::stderr())),
            limiter: Limiter::default(),
            format: LogFormat::Text,
            recent: Recent::default(),
            suppressed: 0,
        })
    });
    // A panic of another thread leaves the state consistent.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The levels of a log for which no level was chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct DefaultLevels {
    /// Of the lines on standard error.
    pub(super) written: LevelFilter,
    /// Of the lines that the console shows.
    pub(super) shown: LevelFilter,
}

impl From<LevelFilter> for DefaultLevels {
    fn from(level: LevelFilter) -> Self {
        Self {
            written: level,
            shown: level,
        }
    }
}

struct Logger {
    /// The level of the lines on standard error.
    written: LevelFilter,
    /// The level of all lines.
    level: LevelFilter,
}

/// Starts logging. Without a level, `RUST_LOG` sets it, or else it is the default.
pub(super) fn init(level: Option<LevelFilter>, default: DefaultLevels, format: LogFormat) {
    let level = level.or_else(|| level_from(&std::env::var("RUST_LOG").ok()?));
    let levels = level.map_or(default, DefaultLevels::from);
    let logger = Logger {
        written: levels.written,
        level: levels.written.max(levels.shown),
    };
    let level = logger.level;
    state().format = format;
    if log::set_boxed_logger(Box::new(logger)).is_ok() {
        log::set_max_level(level);
    }
}

/// Keeps the newest lines from now on, for [`recent`].
pub(super) fn keep_recent() {
    state().recent.turn_on();
}

/// The newest lines of the log that follow the line `after`, as a JSON object.
pub(super) fn recent(after: Option<u64>) -> String {
    state().recent.to_json(after)
}

/// Adds the metrics of the log.
pub(super) fn metrics(out: &mut Metrics) {
    let state = state();
    out.counter(
        "outrigger_log_lines_suppressed_total",
        "Lines of the log over the rate limit of their kind.",
        state.suppressed,
    );
    out.counter(
        "outrigger_log_lines_dropped_total",
        "Lines of the log that were not written because standard error was blocked.",
        state.output.dropped_in_total(),
    );
}

/// What the health of the program says about its log and its memory.
pub(super) fn health() -> StatusFields {
    let state = state();
    let health = StatusFields::new()
        .set("suppressed_lines", state.suppressed)
        .set("dropped_lines", state.output.dropped_in_total());
    match granted_memory() {
        Some(bytes) => health.set("memory_limit", bytes),
        None => health,
    }
}

/// A line as a terminal shows it. A terminal in raw mode begins a new line in the same column without a carriage return.
fn for_terminal(line: Cow<'_, str>) -> Cow<'_, str> {
    if is_terminal_raw() && io::stderr().is_terminal() {
        line.replace('\n', "\r\n").into()
    } else {
        line
    }
}

/// Writes a line to standard error that is not a record of the log, such as why the program fails.
pub(super) fn write_line(line: &str) {
    let state = &mut *state();
    state.report_suppressed(None);
    let State { output, format, .. } = state;
    let line = for_terminal(line.into());
    output.line_within(line.as_bytes(), WRITE_TIMEOUT, |count| {
        format.dropped(count)
    });
}

/// Reports suppressed and dropped lines at the end of the program.
pub(super) fn finish() {
    let state = &mut *state();
    state.report_suppressed(None);
    let format = state.format;
    state.output.catch_up(|count| format.dropped(count));
}

/// The level that `RUST_LOG` sets for this program, for example `debug` or `outrigger=debug`.
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
        let state = &mut *state();
        // At `debug` and `trace`, no lines are suppressed.
        let limited = self.level <= LevelFilter::Info;
        let mut suppressed = 0;
        let now = Instant::now();
        let origin = (
            record.module_path_static().unwrap_or_default(),
            record.line().unwrap_or_default(),
        );
        if limited {
            state.report_suppressed(Some(now));
            let rate = if record.target() == PROGRAM {
                PROGRAMS
            } else {
                OWN
            };
            match state.limiter.admit(origin, rate, now) {
                Some(count) => suppressed = count,
                None => {
                    state.suppressed += 1;
                    return;
                }
            }
        }
        // Records quote peers and programs.
        let text = printable(record.args().to_string().as_bytes());
        if limited {
            // The line is cut later, so a longer text must not use up more of the rate.
            state
                .limiter
                .logged(origin, &text[..text.floor_char_boundary(MAX_LINE)]);
        }
        let fields = match state.format {
            LogFormat::Text if record.target() != PROGRAM => Map::new(),
            _ => json::fields(record),
        };
        let line = Line {
            level: record.level(),
            target: record.target(),
            text,
            fields,
            suppressed,
        };
        state.write(line, self.written);
    }

    fn flush(&self) {}
}

/// The target of the lines that programs write to standard error.
const PROGRAM: &str = "program";

impl State {
    /// Keeps a line, and writes it if its level is at most `level`.
    fn write(&mut self, line: Line<'_>, level: LevelFilter) {
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let text = match line.suppressed {
            0 => format!("{}{}", line.origin(), line.text),
            count => format!("{}{} {}", line.origin(), line.text, suppressed_note(count)),
        };
        self.recent.push(&time, line.level, line.target, &text);
        if line.level > level {
            return;
        }
        let line = for_terminal(self.format.line(&time, line).into());
        let format = self.format;
        self.output
            .line(line.as_bytes(), |count| format.dropped(count));
    }

    /// Reports suppressed lines of each kind that has not been logged for a while, or of all kinds without a time.
    fn report_suppressed(&mut self, now: Option<Instant>) {
        while let Some((count, shown)) = self.limiter.overdue(now) {
            let text = format!("suppressed {count} lines like: {shown}");
            self.write(Line::about_log(text), LevelFilter::Warn);
        }
    }
}

/// A line that is not formatted yet.
struct Line<'a> {
    level: Level,
    target: &'a str,
    text: String,
    /// The fields of the record: in JSON, and of the line of a program.
    fields: Map<String, Value>,
    /// How many lines of its kind were suppressed before it.
    suppressed: u64,
}

impl Line<'_> {
    /// The program that wrote the line, if one did: its route and its process id.
    fn origin(&self) -> String {
        let route = self.fields.get("route").and_then(Value::as_str);
        match (self.target, self.fields.get("pid")) {
            (PROGRAM, Some(pid)) => format!("{} {pid}: ", route.unwrap_or_default()),
            _ => String::new(),
        }
    }

    /// A line that concerns the log itself.
    fn about_log(text: String) -> Self {
        Self {
            level: Level::Warn,
            target: env!("CARGO_PKG_NAME"),
            text,
            fields: Map::new(),
            suppressed: 0,
        }
    }
}

impl LogFormat {
    fn line(self, time: &str, line: Line<'_>) -> String {
        let mut line = match self {
            Self::Text => text_line(time, line),
            Self::Json => json::line(time, line),
        };
        line.push('\n');
        line
    }

    /// The line that reports dropped lines.
    fn dropped(self, count: u64) -> Vec<u8> {
        let text = format!("{count} lines of the log were dropped: standard error was blocked");
        let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        self.line(&time, Line::about_log(text)).into_bytes()
    }
}

fn text_line(time: &str, line: Line<'_>) -> String {
    let origin = line.origin();
    let Line {
        level,
        target,
        text,
        suppressed,
        ..
    } = line;
    let program = match target {
        PROGRAM => format!("program {origin}"),
        _ => String::new(),
    };
    let level = Colors::stderr().level(level);
    let mut line = cut(format!("{time} {level} {program}{text}"), MAX_LINE - MARGIN);
    if suppressed > 0 {
        line.push(' ');
        line.push_str(&suppressed_note(suppressed));
    }
    line
}

fn suppressed_note(count: u64) -> String {
    format!("({count} similar lines were suppressed)")
}

fn cut(mut line: String, most: usize) -> String {
    line.truncate(line.floor_char_boundary(most));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_log_sets_the_level_of_this_program() {
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
