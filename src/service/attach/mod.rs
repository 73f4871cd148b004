//! `outrigger attach`: the process's own terminal is the terminal of a program behind a server.
//!
//! ```text
//! standard input -> Keyboard (escapes, waiting keys) -> messages -> server
//! standard output <- Display (backpressure, offset)  <- messages <- server
//! ```
//!
//! A resumable connection that is cut comes back by itself. To a process of `outrigger processes` there is a second way: a
//! new connection that asks for the output after the last byte received.

mod cuts;
mod display;
mod input;
mod keyboard;
mod signals;
#[cfg(any(test, fuzzing))]
pub(crate) mod simulation;

use std::cell::RefCell;
use std::io::{self, IsTerminal};
use std::rc::Rc;
use std::time::Duration;

use uuid::Uuid;

use self::display::{Display, notice_lines, notice_over_full_screen};
use self::keyboard::{EscapeParser, Keyboard};
use self::signals::TerminalSignals;
use super::advice::{Advise, Problem, with_advice};
use super::pipe::PipeState;
use super::process::{AttachEvent, AttachRole};
use super::silence::SilenceWatch;
use crate::protocol::client::ResponseHead;
use crate::sys::{RawMode, TerminalSize, terminal_size};
use crate::text::printable;
use crate::{
    Cause, ClientId, CloseCode, CloseReason, Connect, ConnectError, Context, Message, Outgoing,
    Readiness, Retry, Service, SourceId, TimerId,
};

/// The exit code if the client itself fails.
const FAILED: u8 = 255;

/// How long to wait for the first message of a terminal before the user is told that there may be none.
const RECOGNITION: Duration = Duration::from_millis(1500);

/// How long a program is quiet before it gets another end of file.
const QUIET: Duration = Duration::from_millis(250);

/// The longest time between two ends of file.
const MAX_QUIET: Duration = Duration::from_secs(10);

/// How long a terminal has a slightly different size so that its program redraws the screen.
const REDRAW: Duration = Duration::from_millis(100);

/// The time between two attempts to be the writer of a process.
const WRITER_RETRY: Duration = Duration::from_secs(2);

/// The delay before the client attaches to a process again. It grows with the square of the number of connections that
/// were cut at once, up to a limit.
const REATTACH: Duration = Duration::from_millis(100);
const MAX_REATTACH: Duration = Duration::from_secs(10);

/// The settings of an [`Attach`] service.
pub(crate) struct AttachConfig {
    /// Where and how to connect.
    pub(crate) connect: Connect,
    /// When to try again after a cut.
    pub(crate) retry: Retry,
    /// Whether to watch the program without sending to it.
    pub(crate) viewer: bool,
    /// Whether to replace the process's writer.
    pub(crate) takeover: bool,
    /// The escape character. Only a terminal has escapes.
    pub(crate) escape: Option<u8>,
    /// Writes a message for the user to standard error.
    pub(crate) notify: fn(&str),
    /// What the user can do about a problem.
    pub(crate) advise: Advise,
}

/// How the client ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    /// The exit code of the program, 0 if the user has left, or 255.
    pub(crate) code: u8,
    /// A message for the user, or an empty string.
    pub(crate) message: String,
}

/// The ending of an [`Attach`] service, which the loop owns while it runs.
pub(crate) type SharedEnding = Rc<RefCell<Option<Ending>>>;

/// The state of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first connection is being opened.
    Opening,
    Open,
    /// The connection was cut. The loop, or a new connection, comes back.
    Cut,
    /// The ending is known. Output may still have to be written.
    Ended,
}

/// What the program's standard streams are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Streams {
    /// The server has not said so yet.
    Unknown,
    Terminal,
    Pipes,
}

/// The service of `outrigger attach`.
pub(crate) struct Attach {
    config: AttachConfig,
    ending: SharedEnding,
    phase: Phase,
    client: Option<ClientId>,
    keyboard: Option<Keyboard>,
    display: Option<Display>,
    signals: Option<TerminalSignals>,
    raw: Option<RawMode>,
    /// The size that the program's terminal has.
    size: Option<TerminalSize>,
    /// Restores the size, so that the program redraws its screen.
    redraw: Option<TimerId>,
    /// The timer of the next attempt to attach to a process again.
    retry: Option<TimerId>,
    /// Whether the server has ended the program because it restarts. The next connection begins a new program.
    is_restarting: bool,
    /// The number of unstable connections in a row. They were cut before output arrived.
    unstable: u32,
    /// Whether the server has sent the role of this client, so that there is a terminal or a process.
    has_role: bool,
    streams: Streams,
    /// Whether input for pipes was sent on the present connection. If the connection cannot be resumed, nobody knows how much
    /// of it the program has got.
    has_sent: bool,
    /// Whether the end of the input of pipes was sent on the present connection.
    has_ended_input: bool,
    /// Whether output is missing.
    has_gap: bool,
    /// The timer of the message that there may be no terminal.
    recognition: Option<TimerId>,
    /// Notices that keys have no effect.
    silence: SilenceWatch,
    /// Whether the user was told that the server ignores input.
    is_ignored: bool,
    /// The timer of the next end of file, and its delay. Standard input has ended.
    end_of_file: Option<(Option<TimerId>, Duration)>,
}

impl Attach {
    /// Creates the service. The ending is set when the loop has ended.
    pub(crate) fn new(config: AttachConfig) -> (Self, SharedEnding) {
        let ending = SharedEnding::default();
        // With `?input=text`, the server sends no events.
        let has_events = config.connect.target().parameter("input").is_none();
        let this = Self {
            config,
            ending: Rc::clone(&ending),
            phase: Phase::Opening,
            client: None,
            keyboard: None,
            display: None,
            signals: None,
            raw: None,
            size: None,
            redraw: None,
            retry: None,
            is_restarting: false,
            unstable: 0,
            has_role: false,
            streams: if has_events {
                Streams::Unknown
            } else {
                Streams::Terminal
            },
            has_sent: false,
            has_ended_input: false,
            has_gap: false,
            recognition: None,
            silence: SilenceWatch::default(),
            is_ignored: false,
            end_of_file: None,
        };
        (this, ending)
    }

    /// Whether the user's terminal is standard input.
    fn is_interactive(&self) -> bool {
        io::stdin().is_terminal()
    }

    /// Whether the URL names a process, which goes on without clients.
    fn is_process(&self) -> bool {
        is_process(self.config.connect.target().path())
    }

    /// Begins a connection. After the first one, it continues where the output ended.
    fn connect(&mut self, ctx: &mut Context) {
        let is_first = self.phase == Phase::Opening;
        self.has_ended_input = false;
        let retry = self.config.retry.with_first(!is_first);
        let mut connect = self.config.connect.clone().with_retry(retry);
        let target = connect.target_mut();
        self.size = terminal_size(io::stdin()).filter(|_| !self.config.viewer);
        if let Some(size) = self.size {
            target.set_parameter("rows", &size.rows.to_string());
            target.set_parameter("cols", &size.cols.to_string());
        }
        if self.config.viewer {
            target.set_parameter("mode", "viewer");
        }
        if self.config.takeover {
            target.set_parameter("takeover", "1");
        }
        // A file or another program gets the output itself.
        let shows = self.is_process() && io::stdout().is_terminal();
        if shows && target.parameter("replay").is_none() {
            target.set_parameter("replay", "screen");
        }
        if !is_first
            && self.is_process()
            && let Some(display) = &self.display
        {
            target.set_parameter("since", &display.offset().to_string());
        }
        match ctx.connect(connect) {
            Ok(client) => self.client = Some(client),
            Err(error) => {
                let url = self.config.connect.target();
                let message = format!("cannot connect to {url}: {error}");
                self.fail(ctx, message);
            }
        }
    }

    /// Whether the server begins with the role of the client. With `?input=text`, it sends no such message.
    fn expects_role(&self) -> bool {
        self.config.connect.target().parameter("input").is_none()
    }

    /// Ends because the server has sent what no terminal sends first.
    fn fail_without_terminal(&mut self, ctx: &mut Context) {
        let url = self.config.connect.target();
        let message = format!("{url} is neither a terminal nor a process");
        let problem = Some(Problem::NoTerminal);
        self.fail(ctx, with_advice(message, problem, self.config.advise));
    }

    /// Tells the user something.
    fn notice(&self, texts: &[String]) {
        let display = self.display.as_ref();
        let is_full_screen = display.is_some_and(Display::is_full_screen);
        let text = if is_full_screen && io::stderr().is_terminal() {
            notice_over_full_screen(texts)
        } else {
            notice_lines(self.raw.is_some(), texts)
        };
        (self.config.notify)(&text);
    }

    /// The escape that leaves, if the user's terminal has escapes.
    fn leave_keys(&self) -> Option<String> {
        let escapes = self.keyboard.as_ref().filter(|_| self.raw.is_some());
        escapes.and_then(|keyboard| keyboard.escapes().leave())
    }

    /// The ending is known. The loop ends when the rest of the output is written, or at once.
    fn end(&mut self, ctx: &mut Context, code: u8, message: impl Into<String>, at_once: bool) {
        if self.phase == Phase::Ended {
            return;
        }
        self.phase = Phase::Ended;
        let message = message.into();
        *self.ending.borrow_mut() = Some(Ending { code, message });
        if let Some(client) = self.client {
            ctx.set_held(client, false);
            ctx.close(client, CloseCode::NORMAL, "");
        }
        if let Some(display) = &mut self.display {
            display.leave_full_screen(ctx);
        }
        if at_once {
            ctx.stop();
        } else {
            self.stop_when_written(ctx);
        }
    }

    fn fail(&mut self, ctx: &mut Context, message: impl Into<String>) {
        self.end(ctx, FAILED, message, false);
    }

    fn leave(&mut self, ctx: &mut Context) {
        let message = if self.is_process() {
            "detached; the process goes on"
        } else {
            "detached; the program ends"
        };
        self.end(ctx, 0, message, true);
    }

    fn stop_when_written(&self, ctx: &mut Context) {
        let is_written = self.display.as_ref().is_none_or(Display::is_written);
        if self.phase == Phase::Ended && is_written {
            ctx.stop();
        }
    }

    /// The first connection is open: takes the terminal.
    fn begin(&mut self, ctx: &mut Context) -> io::Result<()> {
        let is_interactive = self.is_interactive();
        if is_interactive {
            self.raw = Some(RawMode::enter(io::stdin())?);
        }
        let escape = self.config.escape.filter(|_| is_interactive);
        let escapes = EscapeParser::new(escape);
        let keyboard = Keyboard::watch(ctx, escapes, !self.config.viewer)?;
        self.keyboard = Some(keyboard);
        Ok(())
    }

    fn write_output(&mut self, ctx: &mut Context) {
        let Some(display) = &mut self.display else {
            return;
        };
        if display.write() == PipeState::Closed {
            self.end(ctx, FAILED, "standard output is closed", true);
            return;
        }
        self.hold(ctx);
        self.stop_when_written(ctx);
    }

    /// Holds the server's messages while standard output is full.
    fn hold(&mut self, ctx: &mut Context) {
        let changed = self.display.as_mut().and_then(Display::changed_fullness);
        if let (Some(is_full), Some(client)) = (changed, self.client) {
            ctx.set_held(client, is_full);
        }
    }

    fn handle_event(&mut self, ctx: &mut Context, event: AttachEvent) {
        if let AttachEvent::Role(_) = event {
            self.has_role = true;
            if let Some(timer) = self.recognition.take() {
                ctx.cancel_timer(timer);
            }
        }
        match event {
            AttachEvent::Role(AttachRole::Viewer) if !self.config.viewer && !self.is_ignored => {
                self.is_ignored = true;
                self.notice(&["watching: the server ignores the keys".to_owned()]);
            }
            // Another process may have the name when the client comes back.
            AttachEvent::Process(id) => {
                let target = self.config.connect.target_mut();
                let path = target.path();
                let path = path.strip_suffix("/attach").unwrap_or(path);
                let base = path.rsplit_once('/').map(|(base, _)| base);
                if let Some(base) = base.and_then(|base| base.strip_suffix("/by-name"))
                    && let Ok(id) = Uuid::try_parse(&id)
                {
                    target.set_path(format!("{base}/{id}/attach"));
                }
            }
            AttachEvent::Role(_) => {}
            AttachEvent::Size(_) => self.set_streams(ctx, Streams::Terminal),
            // It follows the size, if there is one.
            AttachEvent::Clients { .. } => self.set_streams(ctx, Streams::Pipes),
            AttachEvent::Screen { offset, data } => {
                if let Some(display) = &mut self.display {
                    display.show_screen(ctx, &data, offset);
                }
                self.hold(ctx);
            }
            AttachEvent::Stderr(output) => {
                let display = self.display.as_mut();
                let shown = display.map(|display| display.show_error(ctx, &output));
                if let Some(Err(error)) = shown {
                    return self.fail(ctx, format!("cannot use standard error: {error}"));
                }
                self.hold(ctx);
            }
            // A script must not take a part of the output for all of it.
            AttachEvent::Exit { .. } if self.has_gap && self.streams == Streams::Pipes => {
                self.fail(
                    ctx,
                    "the program has ended, and a part of its output is missing",
                );
            }
            AttachEvent::Exit { code, signal } => {
                let code = u8::try_from(code).unwrap_or(FAILED);
                let message = signal.map_or(String::new(), |signal| {
                    format!("the program was killed by {}", printable(signal.as_bytes()))
                });
                self.end(ctx, code, message, false);
            }
            AttachEvent::Gap { from, to } => {
                self.has_gap = true;
                if let Some(display) = &mut self.display {
                    display.skip_to(to);
                }
                self.notice(&[format!(
                    "bytes {from} to {to} of the output are no longer kept"
                )]);
            }
            AttachEvent::Error { message } => self.fail(ctx, printable(message.as_bytes())),
        }
    }
}

impl Service for Attach {
    fn started(&mut self, ctx: &mut Context) {
        let target = self.config.connect.target();
        let since = target
            .parameter("since")
            .and_then(|since| since.parse().ok());
        let display = Display::watch(ctx, since.unwrap_or_default());
        let watched = display.and_then(|display| {
            self.display = Some(display);
            self.signals = Some(TerminalSignals::watch(ctx)?);
            Ok(())
        });
        match watched {
            Ok(()) => self.connect(ctx),
            Err(error) => self.fail(ctx, format!("cannot use the standard streams: {error}")),
        }
    }

    fn message(&mut self, ctx: &mut Context, _: ClientId, message: Message<'_>) {
        if self.phase == Phase::Ended {
            return;
        }
        let has_role = self.has_role || !self.expects_role();
        match message {
            Message::Binary(_) if !has_role => self.fail_without_terminal(ctx),
            Message::Binary(output) => {
                self.unstable = 0;
                if let Some(display) = &mut self.display {
                    display.show(ctx, output);
                }
                self.hold(ctx);
                self.repeat_end_of_file(ctx);
            }
            Message::Text(text) => match AttachEvent::parse(text) {
                Some(event) => self.handle_event(ctx, event),
                None if !has_role => self.fail_without_terminal(ctx),
                None => log::debug!("a text message of {} bytes is unknown", text.len()),
            },
        }
    }

    fn drained(&mut self, ctx: &mut Context, _: ClientId) {
        self.send_keys(ctx);
    }

    fn disconnected(&mut self, ctx: &mut Context, _: ClientId, reason: &CloseReason) {
        self.client = None;
        match reason.code {
            _ if self.phase == Phase::Ended => {}
            CloseCode::SERVICE_RESTART => {
                self.is_restarting |= is_restart(reason);
                self.lose(ctx, reason);
            }
            CloseCode::ABNORMAL => self.lose(ctx, reason),
            CloseCode::TAKEN_OVER => self.fail(ctx, "another client has taken over"),
            CloseCode::CONFLICT => {
                let message = "another client is the writer".to_owned();
                let problem = Some(Problem::Conflict);
                self.fail(ctx, with_advice(message, problem, self.config.advise));
            }
            code => {
                let reason = printable(reason.reason.as_bytes());
                let message = format!("the connection was closed: {code} {reason}");
                self.fail(ctx, message.trim_end());
            }
        }
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.client.into_iter().for_each(visit);
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        if self.display.as_ref().is_some_and(|one| one.is(source)) {
            if readiness.writable {
                self.write_output(ctx);
            }
        } else if self.keyboard.as_ref().is_some_and(|one| one.is(source)) {
            self.read_keys(ctx);
        } else if let Some(signals) = self.signals.as_mut().filter(|one| one.is(source)) {
            let change = signals.take();
            if signals.ended_by().is_some() {
                return ctx.stop();
            }
            if let Some(raw) = self.raw.as_ref().filter(|_| change.is_continued) {
                raw.renew();
            }
            self.update_size(ctx);
        }
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        if self.display.as_ref().is_some_and(|one| one.is_timer(timer)) {
            self.write_output(ctx);
        } else if self
            .keyboard
            .as_ref()
            .is_some_and(|one| one.is_timer(timer))
        {
            self.read_keys(ctx);
        } else if self.silence.is_timer(timer) {
            self.silence.check(ctx, self.client);
        } else if self.redraw == Some(timer) {
            self.redraw = None;
            self.update_size(ctx);
        } else if self.recognition == Some(timer) {
            self.recognition = None;
            if self.phase == Phase::Open && self.expects_role() {
                let leave = self.leave_keys();
                let hint = leave.map_or(String::new(), |leave| format!(" (Enter {leave} leaves)"));
                let text = "the server is silent, so this may be neither a terminal nor a process";
                self.notice(&[format!("{text}{hint}")]);
            }
        } else if self.retry == Some(timer) {
            self.retry = None;
            if self.phase == Phase::Cut {
                self.connect(ctx);
            }
        } else if let Some((waiting, delay)) = &mut self.end_of_file
            && *waiting == Some(timer)
        {
            *waiting = None;
            *delay = (*delay * 2).min(MAX_QUIET);
            self.type_end_of_file();
            self.send_keys(ctx);
        }
    }

    /// A signal ends the client: it leaves as a user does.
    fn draining(&mut self, ctx: &mut Context) {
        let signal = self.signals.as_ref().and_then(TerminalSignals::ended_by);
        let message = format!("ended by {}", signal.unwrap_or("a signal"));
        self.end(ctx, FAILED, message, true);
    }

    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        Some(self)
    }
}

impl Outgoing for Attach {
    fn connect_opened(&mut self, ctx: &mut Context, _: ClientId, _: &ResponseHead<'_>) {
        if self.phase == Phase::Cut {
            return self.come_back(ctx);
        }
        self.phase = Phase::Open;
        match self.begin(ctx) {
            Ok(()) => {
                // The size may have changed while the connection was opened.
                self.update_size(ctx);
                self.recognition = Some(ctx.set_timer(RECOGNITION));
            }
            Err(error) => self.fail(ctx, format!("cannot use the terminal: {error}")),
        }
    }

    fn connect_failed(&mut self, ctx: &mut Context, _: ClientId, error: &ConnectError) {
        self.client = None;
        let url = self.config.connect.target();
        match (self.phase, error.status()) {
            (Phase::Opening, _) => {
                let message = format!("cannot connect to {url}: {error}");
                self.fail(
                    ctx,
                    with_advice(message, Problem::of(error), self.config.advise),
                );
            }
            // The server may not have noticed that the former connection is gone.
            (Phase::Cut, Some(409)) => self.retry = Some(ctx.set_timer(WRITER_RETRY)),
            (Phase::Cut, _) => {
                let message = format!("connection lost; cannot connect to {url} again: {error}");
                self.fail(ctx, message);
            }
            (Phase::Open | Phase::Ended, _) => {}
        }
    }

    fn cut(&mut self, _: &mut Context, _: ClientId, reason: &CloseReason) {
        self.is_restarting |= is_restart(reason);
        if self.phase == Phase::Open {
            log::info!(
                "the connection was cut: {}",
                printable(reason.to_string().as_bytes())
            );
            self.phase = Phase::Cut;
            self.notice_cut();
        }
    }

    fn resumed(&mut self, ctx: &mut Context, _: ClientId) {
        // Whoever has sent CLOSE 1012, the program goes on.
        self.is_restarting = false;
        if self.phase == Phase::Cut {
            self.come_back(ctx);
        }
    }
}

/// Whether the server has closed the connection because it restarts.
fn is_restart(reason: &CloseReason) -> bool {
    (reason.cause, reason.code) == (Cause::PeerClose, CloseCode::SERVICE_RESTART)
}

/// Whether a path is that of a process: `.../ID/attach`, `.../by-name/NAME` or `.../by-name/NAME/attach`.
fn is_process(path: &str) -> bool {
    let Some((base, last)) = path
        .strip_suffix("/attach")
        .unwrap_or(path)
        .rsplit_once('/')
    else {
        return false;
    };
    let is_id = last.len() == 36 && Uuid::try_parse(last).is_ok();
    let is_name = !last.is_empty() && base.ends_with("/by-name");
    is_name || (is_id && path.ends_with("/attach"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_path_of_a_process_can_be_attached_to_again() {
        let id = "2f1c4a52-6f0c-4c5c-9a53-0b54a8b0e1c3";
        for path in [
            &format!("/process/{id}/attach"),
            &format!("/a/b/{id}/attach"),
            "/process/by-name/work",
            "/process/by-name/work/attach",
        ] {
            assert!(is_process(path), "{path}");
        }
        for path in [
            "/terminal",
            "/attach",
            "/process/attach",
            "/process/x/attach",
            &format!("/process/{id}/attach/"),
            &format!("/process/{}/attach", id.replace('-', "")),
            &format!("/process/{id}"),
            "/process/by-name/",
            "/by-name",
        ] {
            assert!(!is_process(path), "{path}");
        }
    }
}
