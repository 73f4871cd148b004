//! Calls that wait for a screen: until it shows something, the output rests, or the process exits.
//!
//! Waiting causes no work for output. While somebody waits, a timer looks at the screens with new output, once the output has
//! rested, and at least every 100 ms while it has not.

use std::time::Duration;

use regex_lite::{Regex, RegexBuilder};
use serde_json::{Value, json};
use uuid::Uuid;

use super::calls::no_process;
use super::compat::Compat;
use super::fields::{BodyFields, FieldType, Schema, bad_request};
use super::program::Program;
use super::programs::Programs;
use super::screen::{Format, View};
use crate::service::id_map::IdMap;
use crate::{ClientId, Context, Rejection, Response, StatusCode, Time, TimerId};

/// The time between two looks at the waiting calls.
const TICK: Duration = Duration::from_millis(20);

/// After so long without output, a screen is looked at.
const REST: Duration = Duration::from_millis(20);

/// While output does not rest, a screen is looked at so often.
const BUSY: Duration = Duration::from_millis(100);

/// The default and the maximum time to wait.
const USUAL_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// The maximum length of a text or of a regular expression, in bytes.
const MAX_TEXT: usize = 4096;
const MAX_REGEX: usize = 256;

/// The maximum size of a compiled expression in bytes. Matching takes time in proportion to it and to the text.
const COMPILED: usize = 2 << 10;

/// The end of a screen that is searched for a text and for an expression, in bytes. People's screens have fewer characters, and on a
/// larger one, the newest text is at the bottom.
const SEARCHED: usize = 32 << 10;
const MATCHED: usize = 8 << 10;

/// The work in one turn of the loop, in microseconds. The next turn goes on.
const WORK: usize = 2000;

/// The work of laying out a screen, and of answering with it.
const LAYOUT: usize = 200;

pub(super) const WAIT: &Schema = &[
    ("idle_ms", FieldType::Number),
    ("text", FieldType::Text),
    ("regex", FieldType::Text),
    ("exit", FieldType::Flag),
    ("changed_since", FieldType::Number),
    ("timeout_ms", FieldType::Number),
];

/// A call that waits until one of its conditions is true.
#[derive(Debug)]
pub(crate) struct Wait {
    idle: Option<Duration>,
    text: Option<String>,
    regex: Option<Regex>,
    changed_since: Option<u64>,
    deadline: Time,
}

/// Why a call is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Text,
    Regex,
    Idle,
    Changed,
    Exit,
    Timeout,
    /// The server stops.
    Stopping,
}

impl Reason {
    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Regex => "regex",
            Self::Idle => "idle",
            Self::Changed => "changed",
            Self::Exit => "exit",
            Self::Timeout => "timeout",
            Self::Stopping => "stopping",
        }
    }
}

impl Wait {
    /// Reads the body of `wait`.
    pub(crate) fn read(body: &[u8], now: Time) -> Result<Self, Rejection> {
        let fields = BodyFields::read(body, WAIT, Compat::None)?;
        let number = |name: &str| match fields.number(name) {
            None => Ok(None),
            Some(number) if number.fract() == 0.0 && (0.0..=1e15).contains(&number) => {
                Ok(Some(number as u64))
            }
            Some(_) => Err(bad_request(format!("{name:?} is not a whole number"))),
        };
        let text = |name: &str, most: usize| match fields.text(name) {
            Some(text) if text.is_empty() || text.len() > most => {
                Err(bad_request(format!("{name:?} has not 1 to {most} bytes")))
            }
            text => Ok(text),
        };
        let regex = text("regex", MAX_REGEX)?.map(|pattern| {
            let mut builder = RegexBuilder::new(pattern);
            // The rows below the last text are lines, too, so the end of the screen is seldom what an expression means.
            let compiled = builder.multi_line(true).size_limit(COMPILED).build();
            compiled.map_err(|error| bad_request(format!("\"regex\": {error}")))
        });
        let timeout = number("timeout_ms")?.map_or(USUAL_TIMEOUT, Duration::from_millis);
        let wait = Self {
            idle: number("idle_ms")?.map(Duration::from_millis),
            text: text("text", MAX_TEXT)?.map(str::to_owned),
            regex: regex.transpose()?,
            changed_since: number("changed_since")?,
            deadline: now + timeout.min(MAX_TIMEOUT),
        };
        let has_condition = wait.idle.is_some()
            || wait.text.is_some()
            || wait.regex.is_some()
            || wait.changed_since.is_some()
            || fields.flag("exit");
        if !has_condition {
            return Err(bad_request(
                "one of \"idle_ms\", \"text\", \"regex\", \"exit\" and \"changed_since\" is required",
            ));
        }
        Ok(wait)
    }

    /// Whether a condition is true. `shown` is the text of the screen, if it may have changed. Every call is answered when the process
    /// has ended, because nothing changes any more.
    fn check(&self, program: &Program, now: Time, shown: Option<&str>) -> Option<Reason> {
        let contains = |text: &String| shown.is_some_and(|shown| shown.contains(&**text));
        let matches =
            |regex: &Regex| shown.is_some_and(|shown| regex.is_match(last_part(shown, MATCHED)));
        if self.text.as_ref().is_some_and(contains) {
            Some(Reason::Text)
        } else if self.regex.as_ref().is_some_and(matches) {
            Some(Reason::Regex)
        } else if program.is_finished() {
            Some(Reason::Exit)
        } else if self
            .changed_since
            .is_some_and(|since| program.output_end() > since)
        {
            Some(Reason::Changed)
        } else if self.idle.is_some_and(|idle| program.idle(now) >= idle) {
            Some(Reason::Idle)
        } else if now >= self.deadline {
            Some(Reason::Timeout)
        } else {
            None
        }
    }

    /// The work of comparing a screen of this length: that of the most expensive expression.
    fn work(&self, length: usize) -> usize {
        match (&self.regex, &self.text) {
            (Some(_), _) => 1 + length.min(MATCHED) / 4,
            (None, Some(_)) => 1 + length / 1000,
            (None, None) => 0,
        }
    }

    fn searches(&self) -> bool {
        self.text.is_some() || self.regex.is_some()
    }
}

/// A process whose screen somebody waits for.
#[derive(Debug)]
struct Watched {
    id: Uuid,
    waits: Vec<(ClientId, Wait)>,
    /// The state of the output that was looked at, and when.
    seen: u64,
    seen_at: Time,
    /// The calls of this round that were looked at, and the screen.
    next: usize,
    shown: Option<String>,
}

/// The calls that wait.
#[derive(Debug, Default)]
pub(super) struct Waits {
    watched: Vec<Watched>,
    /// The process of each caller.
    callers: IdMap<ClientId, Uuid>,
    timer: Option<TimerId>,
    /// The number of processes that were looked at in this round.
    next: usize,
}

impl Waits {
    /// Adds a call, or answers it at once.
    pub(super) fn add(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        id: Uuid,
        wait: Wait,
        programs: &mut Programs,
    ) {
        let Some(program) = programs.get_mut(id) else {
            return ctx.respond(caller, &Response::from(&no_process()));
        };
        let now = ctx.now();
        let shown = wait.searches().then(|| text(program));
        let length = shown.as_ref().map_or(0, String::len);
        ctx.spend(wait.work(length) + LAYOUT + program.sink.take_work());
        if let Some(reason) = wait.check(program, now, shown.as_deref()) {
            return answer(ctx, caller, program, reason);
        }
        let seen = version(program);
        self.callers.insert(caller, id);
        match self.watched.iter_mut().find(|watched| watched.id == id) {
            Some(watched) => watched.waits.push((caller, wait)),
            None => self.watched.push(Watched {
                id,
                waits: vec![(caller, wait)],
                seen,
                seen_at: now,
                next: 0,
                shown: None,
            }),
        }
        self.arm(ctx, TICK);
    }

    fn arm(&mut self, ctx: &mut Context, after: Duration) {
        if self.timer.is_none() && !self.watched.is_empty() {
            self.timer = Some(ctx.set_timer(after));
        }
    }

    /// Removes the call of a caller that is gone.
    pub(super) fn remove(&mut self, caller: ClientId) {
        let Some(id) = self.callers.remove(&caller) else {
            return;
        };
        for watched in self.watched.iter_mut().filter(|watched| watched.id == id) {
            let waits = &mut watched.waits;
            if let Some(at) = waits.iter().position(|(waiting, _)| *waiting == caller) {
                waits.remove(at);
                watched.next -= usize::from(at < watched.next);
            }
        }
        self.watched.retain(|watched| !watched.waits.is_empty());
    }

    pub(super) fn contains(&self, caller: ClientId) -> bool {
        self.callers.contains_key(&caller)
    }

    /// Visits the callers.
    pub(super) fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.callers.keys().copied().for_each(visit);
    }

    /// Answers the calls whose conditions are true. Returns whether the timer is that of the calls.
    pub(super) fn handle_timer(
        &mut self,
        ctx: &mut Context,
        timer: TimerId,
        programs: &mut Programs,
    ) -> bool {
        if self.timer != Some(timer) {
            return false;
        }
        self.timer = None;
        let mut work = 0;
        while let Some(watched) = self.watched.get_mut(self.next) {
            watched.look(ctx, programs, &mut self.callers, &mut work);
            if work >= WORK {
                self.arm(ctx, Duration::from_millis(1));
                return true;
            }
            self.next += 1;
        }
        self.next = 0;
        self.watched.retain(|watched| !watched.waits.is_empty());
        self.arm(ctx, TICK);
        true
    }

    /// Answers all calls, because the server stops.
    pub(super) fn end(&mut self, ctx: &mut Context, programs: &mut Programs) {
        self.callers.clear();
        for watched in std::mem::take(&mut self.watched) {
            for (caller, _) in watched.waits {
                match programs.get_mut(watched.id) {
                    Some(program) => answer(ctx, caller, program, Reason::Stopping),
                    None => ctx.respond(caller, &Response::from(&no_process())),
                }
            }
        }
    }
}

impl Watched {
    /// Answers the calls whose conditions are true, until there was much work. Then the next call goes on.
    fn look(
        &mut self,
        ctx: &mut Context,
        programs: &mut Programs,
        callers: &mut IdMap<ClientId, Uuid>,
        work: &mut usize,
    ) {
        let now = ctx.now();
        let Some(program) = programs.get_mut(self.id) else {
            for (caller, _) in self.waits.drain(..) {
                callers.remove(&caller);
                ctx.respond(caller, &Response::from(&no_process()));
            }
            return;
        };
        if self.next == 0 {
            self.begin_round(program, now, work);
        }
        let length = self.shown.as_ref().map_or(0, String::len);
        while let Some((caller, wait)) = self.waits.get(self.next) {
            if *work >= WORK {
                return;
            }
            *work += wait.work(length);
            match wait.check(program, now, self.shown.as_deref()) {
                Some(reason) => {
                    callers.remove(caller);
                    *work += LAYOUT;
                    answer(ctx, *caller, program, reason);
                    self.waits.swap_remove(self.next);
                }
                None => self.next += 1,
            }
        }
        self.next = 0;
        self.shown = None;
    }

    /// Reads the screen, if it may have changed and is due.
    fn begin_round(&mut self, program: &mut Program, now: Time, work: &mut usize) {
        let is_new = version(program) != self.seen;
        let is_due =
            program.rested(now) >= REST || now.since(self.seen_at) >= BUSY || program.is_finished();
        self.shown = None;
        if is_new && is_due {
            self.seen = version(program);
            self.seen_at = now;
            if self.waits.iter().any(|(_, wait)| wait.searches()) {
                self.shown = Some(text(program));
                *work += LAYOUT + program.sink.take_work();
            }
        }
    }
}

/// A number that changes with the screen.
fn version(program: &mut Program) -> u64 {
    let end = program.output_end();
    let resizes = program.sink.attachments().map(|readers| readers.resizes());
    end + resizes.unwrap_or_default()
}

/// The end of what a screen shows.
fn text(program: &mut Program) -> String {
    let view = view(program, 0, Format::Text);
    let text = view.map_or(String::new(), |view| view.lines.join("\n"));
    last_part(&text, SEARCHED).to_owned()
}

/// The last whole lines of a text that have at most so many bytes together. If the last line is longer, its end.
fn last_part(text: &str, most: usize) -> &str {
    let from = text.ceil_char_boundary(text.len().saturating_sub(most));
    let part = &text[from..];
    if from == 0 || text.as_bytes()[from - 1] == b'\n' {
        return part;
    }
    part.split_once('\n').map_or(part, |(_, lines)| lines)
}

fn view(program: &mut Program, above: usize, format: Format) -> Option<View> {
    program.sink.attachments()?.view(above, format)
}

/// A screen as JSON.
fn screen(program: &mut Program, now: Time, above: usize) -> Value {
    let (offset, idle) = (program.output_end(), program.idle(now));
    let Some(view) = view(program, above, Format::Json) else {
        return Value::Null;
    };
    json!({
        "rows": view.rows,
        "cols": view.cols,
        "cursor": {
            "row": view.cursor_row,
            "col": view.cursor_col,
            "visible": view.is_cursor_visible,
        },
        "title": view.title,
        "alternate": view.is_alternate,
        "lines": view.lines,
        "offset": offset,
        "idle_ms": idle.as_millis() as u64,
    })
}

/// The answer to `GET screen`.
pub(super) fn screen_response(
    ctx: &mut Context,
    program: &mut Program,
    above: usize,
    format: Format,
) -> Response {
    if format == Format::Json {
        let shown = screen(program, ctx.now(), above);
        ctx.spend(program.sink.take_work());
        return Response::json(StatusCode::OK, shown.to_string());
    }
    let lines = view(program, above, format).map_or(Vec::new(), |view| view.lines);
    ctx.spend(program.sink.take_work());
    let mut text = lines.join("\n");
    text.push('\n');
    Response::new(
        StatusCode::OK,
        "text/plain; charset=utf-8",
        text.into_bytes(),
    )
}

/// Answers a call.
fn answer(ctx: &mut Context, caller: ClientId, program: &mut Program, reason: Reason) {
    let exit = program.exit();
    let body = json!({
        "reason": reason.name(),
        "screen": screen(program, ctx.now(), 0),
        "exit_code": exit.map(|exit| exit.code),
        "signal": exit.and_then(|exit| exit.signal),
    });
    ctx.spend(program.sink.take_work());
    ctx.respond(caller, &Response::json(StatusCode::OK, body.to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bug: an expression was compared with the beginning of the text, so a prompt at the bottom of a large screen did not match.
    #[test]
    fn the_end_of_a_large_screen_is_searched() {
        let lines = ["\u{e9}".repeat(300), "x".repeat(300), "ready $".to_owned()].join("\n");
        assert_eq!(last_part(&lines, 10_000), lines);
        assert_eq!(last_part(&lines, 7), "ready $");
        assert_eq!(last_part(&lines, 8), "ready $");
        assert_eq!(last_part(&lines, 308), &lines[601..]);
        assert_eq!(last_part(&lines, 309), &lines[601..]);
        assert_eq!(last_part(&lines, 5), "ady $");
        assert_eq!(last_part("\u{e9}\u{e9}", 3), "\u{e9}");
    }
}
