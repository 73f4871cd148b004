//! The program is the server: events go out as lines of JSON, commands come in.

mod answers;
mod command;
mod event;
mod peer;

use std::ops::ControlFlow;
use std::time::Duration;

use self::answers::Answers;
use self::command::{Command, Fields, Text};
use self::event::Events;
use self::peer::{Happened, Peer};
use super::Endpoint;
use super::lines::Line;
use super::text::printable;
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Message, Readiness, Rejection, Request,
    Route, Service, SourceId, TimerId, Token,
};

/// Bytes of events that a program may leave unread before clients are no longer read.
const HIGH_WATER: usize = 1 << 20;
/// Clients are read again when this little is left.
const LOW_WATER: usize = 256 << 10;
/// New clients are refused while more bytes of events than this are unread. Messages wait from [`HIGH_WATER`] on, so
/// that only `connect` and `disconnect` events add to the queue.
const MOST_QUEUED: usize = 4 << 20;

/// How long a client that has ended its direction can still be sent what the program answers to its last message.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// Lines of commands that are looked at in one turn of the loop.
const TURN_LINES: u32 = 1000;
/// The pause between two reads of a program whose lines are all wrong.
const RUBBISH_PAUSE: Duration = Duration::from_millis(10);
/// The most bytes of a wrong line that are shown in the log.
const SHOWN: usize = 200;

/// A program that ends is started again this soon at first, then after twice the time each time.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// This many ends within [`RESTART_WINDOW`] are one too many.
const RESTART_LIMIT: usize = 5;
/// See [`RESTART_LIMIT`].
const RESTART_WINDOW: Duration = Duration::from_secs(60);

/// The settings of an [`App`].
#[derive(Clone, Debug)]
pub struct AppConfig {
    /// Where clients find it.
    pub endpoint: Endpoint,
    /// The program and its arguments; empty for our own standard output and input.
    pub command: Vec<String>,
    /// Whether the program is started again when it ends.
    pub restart: bool,
    /// The subprotocols that it speaks.
    pub subprotocols: Vec<String>,
    /// A token that the program is told with the `listening` event: one that nobody else knows yet.
    pub told_token: Option<Token>,
}

impl AppConfig {
    /// The first subprotocol the client offers that the program speaks.
    fn subprotocol(&self, request: &Request<'_>) -> Option<&str> {
        let mut offered = request.list("sec-websocket-protocol");
        offered
            .find_map(|offered| self.subprotocols.iter().find(|name| *name == offered))
            .map(String::as_str)
    }
}

/// A service that hands every event to a program as a line of JSON, and does what the program's lines say.
#[derive(Debug)]
pub struct App {
    config: AppConfig,
    peer: Option<Peer>,
    /// What is to be said to the program, until its queue takes it.
    events: Events,
    /// Answers to its commands that are not events yet.
    answers: Answers,
    /// Set while a program whose lines are all wrong is not read.
    pause: Option<TimerId>,
    /// When the program ended, for the restarts that are counted.
    ends: Vec<crate::Time>,
    restart: Option<Restart>,
    failure: Option<String>,
}

/// Where a restart stands. The old program's clients are all gone before the new one hears of any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restart {
    /// Time has to pass first.
    Backoff(TimerId),
    /// The old program's clients have to go first.
    Clients,
}

impl App {
    /// An app that is started with the server.
    pub fn new(config: AppConfig) -> Self {
        Self {
            config,
            peer: None,
            events: Events::default(),
            answers: Answers::default(),
            pause: None,
            ends: Vec::new(),
            restart: None,
            failure: None,
        }
    }

    fn start(&mut self, ctx: &mut Context) {
        self.answers = Answers::default();
        match Peer::start(ctx, &self.config.command) {
            Ok(peer) => {
                self.peer = Some(peer);
                let path = self.config.endpoint.path();
                for address in ctx.listen_addresses() {
                    match &self.config.told_token {
                        // A unix socket asks for none.
                        Some(token) if address.asks_for_token() => {
                            let target = format!("{path}?token={}", token.reveal());
                            self.events.listening(address, &target);
                        }
                        _ => self.events.listening(address, path),
                    }
                }
                self.send_events(ctx);
            }
            Err(error) => self.fail(ctx, error.to_string()),
        }
    }

    /// Ends the server with a failure; clients are told that it is not their fault.
    fn fail(&mut self, ctx: &mut Context, failure: String) {
        self.failure.get_or_insert(failure);
        close_all(ctx);
        ctx.stop();
    }

    /// Hands over what was said, and stops taking input while the program does not read.
    fn send_events(&mut self, ctx: &mut Context) {
        let Some(writer) = self.peer.as_mut().and_then(Peer::writer) else {
            return self.events.clear();
        };
        let room = LOW_WATER.saturating_sub(writer.queued());
        self.answers.tell(ctx, &mut self.events, room);
        if !self.events.is_empty() {
            self.events.append_to(writer.queue());
            writer.written_to(ctx);
        }
        if writer.queued() > HIGH_WATER {
            ctx.set_paused(true);
        }
    }

    fn handle(&mut self, ctx: &mut Context, happened: Happened) {
        self.send_events(ctx);
        let queued = self.peer.as_mut().map_or(0, Peer::queued);
        if queued <= LOW_WATER {
            ctx.set_paused(false);
        }
        // Commands are read however many events wait: a program may finish writing before it reads on.
        if !self.answers.is_rubbish() {
            self.read_on(ctx);
        } else if self.pause.is_none() {
            self.pause = Some(ctx.set_timer(RUBBISH_PAUSE));
        }
        match happened {
            Happened::Nothing => {}
            Happened::InputEnded => ctx.stop(),
            Happened::OutputEnded if ctx.is_stopping() => {}
            Happened::OutputEnded => self.fail(ctx, "nobody reads the events any more".to_owned()),
            Happened::Exited(how) => {
                self.peer = None;
                self.events.clear();
                if ctx.is_stopping() {
                    return;
                }
                let failure = format!("the program {how}");
                if self.config.restart && self.may_restart(ctx) {
                    self.restart_later(ctx, &failure);
                } else {
                    self.fail(ctx, failure);
                }
            }
        }
    }

    /// Reads the commands that were left for a later turn.
    fn read_on(&mut self, ctx: &mut Context) {
        if let Some(peer) = &mut self.peer {
            peer.resume(ctx);
        }
    }

    fn may_restart(&mut self, ctx: &Context) -> bool {
        let now = ctx.now();
        self.ends.retain(|&end| now.since(end) < RESTART_WINDOW);
        self.ends.push(now);
        self.ends.len() <= RESTART_LIMIT
    }

    fn restart_later(&mut self, ctx: &mut Context, failure: &str) {
        let backoff = FIRST_BACKOFF * (1 << (self.ends.len() - 1));
        log::error!("{failure}; starting it again in {backoff:?}");
        self.restart = Some(Restart::Backoff(ctx.set_timer(backoff)));
        close_all(ctx);
    }

    /// Starts the program again if nothing has to be waited for any more.
    fn try_restart(&mut self, ctx: &mut Context) {
        if self.restart == Some(Restart::Clients) && ctx.client_count() == 0 && !ctx.is_stopping() {
            self.restart = None;
            self.start(ctx);
        }
    }
}

/// Closes every client with 1011.
fn close_all(ctx: &mut Context) {
    for client in ctx.clients() {
        // One that is being closed already goes on doing so.
        ctx.close(client, CloseCode::INTERNAL, "Program exited");
    }
}

impl Service for App {
    fn started(&mut self, ctx: &mut Context) {
        self.start(ctx);
    }

    fn route(&mut self, request: &Request<'_>) -> Result<Route, Rejection> {
        self.config.endpoint.route(request)
    }

    fn accept(&mut self, _: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        if self.peer.is_none() {
            return Err(Rejection::unavailable("the program is not running"));
        }
        if self.peer.as_mut().map_or(0, Peer::queued) > MOST_QUEUED {
            let rejection = Rejection::unavailable("the program does not read its events");
            return Err(rejection.because("program_busy"));
        }
        Ok(match self.config.subprotocol(request) {
            Some(name) => Accept::default().protocol(name),
            None => Accept::default(),
        })
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        let protocol = self.config.subprotocol(request);
        self.events.connect(
            client,
            request,
            ctx.remote(client),
            protocol,
            &ctx.config().access,
        );
        self.send_events(ctx);
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        ctx.spend(2);
        self.events.message(client, message);
        self.send_events(ctx);
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        self.answers.drained(client);
        self.send_events(ctx);
    }

    fn input_ended(&mut self, ctx: &mut Context, client: ClientId) -> Duration {
        if ctx.quiet_for(client) < LAST_ANSWER {
            LAST_ANSWER
        } else {
            Duration::ZERO
        }
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, ending: &CloseReason) {
        self.answers.forget(client);
        self.events.disconnect(client, ending);
        self.send_events(ctx);
        self.try_restart(ctx);
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, _: Readiness) {
        let Some(mut peer) = self.peer.take() else {
            return;
        };
        let mut turn = Turn {
            events: &mut self.events,
            answers: &mut self.answers,
            room: LOW_WATER.saturating_sub(peer.queued()),
            lines: 0,
        };
        let happened =
            peer.handle_ready(ctx, source, |ctx, number, line| turn.run(ctx, number, line));
        self.peer = Some(peer);
        self.handle(ctx, happened);
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        if self.restart == Some(Restart::Backoff(timer)) {
            self.restart = Some(Restart::Clients);
            return self.try_restart(ctx);
        }
        if self.pause == Some(timer) {
            self.pause = None;
            return self.read_on(ctx);
        }
        let Some(mut peer) = self.peer.take() else {
            return;
        };
        let mut turn = Turn {
            events: &mut self.events,
            answers: &mut self.answers,
            room: LOW_WATER.saturating_sub(peer.queued()),
            lines: 0,
        };
        let happened =
            peer.handle_timer(ctx, timer, |ctx, number, line| turn.run(ctx, number, line));
        self.peer = Some(peer);
        self.handle(ctx, happened);
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn stopping(&mut self, ctx: &mut Context) {
        if let Some(peer) = &mut self.peer {
            peer.stop(ctx);
        }
    }

    fn is_stopped(&self) -> bool {
        self.peer.as_ref().is_none_or(Peer::is_stopped)
    }
}

/// The most bytes of a line of commands: a message of the limit in base64 or with the usual escapes, and what is around
/// it.
fn line_limit(ctx: &Context) -> usize {
    2 * ctx.config().limits.max_message + 4096
}

/// The commands of one turn of the loop.
struct Turn<'a> {
    events: &'a mut Events,
    answers: &'a mut Answers,
    /// Answers become events while there are fewer bytes of events than this.
    room: usize,
    lines: u32,
}

impl Turn<'_> {
    /// Executes a line. An invalid line causes one `error` event and nothing else.
    fn run(&mut self, ctx: &mut Context, number: u64, line: Line<'_>) -> ControlFlow<()> {
        match line {
            Line::Whole(bytes) if bytes.trim_ascii().is_empty() => {}
            Line::Whole(bytes) => match Fields::read(bytes) {
                Ok(fields) => {
                    let done = Command::parse(fields)
                        .and_then(|command| carry_out(ctx, self.answers, command, number));
                    match done {
                        Ok(()) => self.answers.valid(ctx.now()),
                        Err(message) => {
                            log::warn!("line {number} from the program: {message}");
                            self.answers.error(message, number);
                        }
                    }
                }
                Err(message) => {
                    let shown = printable(&bytes[..bytes.len().min(SHOWN)]);
                    log::warn!(
                        "line {number} from the program is not a command ({message}): {shown}; standard output is only for \
                         commands, one JSON object a line; write anything else to standard error"
                    );
                    self.answers.error(message, number);
                }
            },
            // The beginning of the line was all that is told.
            Line::Skipped(_) | Line::SkippedEnd => return ControlFlow::Continue(()),
            Line::TooLong(bytes) => {
                let message = format!("the line is over {} bytes", line_limit(ctx));
                log::warn!(
                    "line {number} from the program: {message}: {} ...",
                    printable(bytes)
                );
                self.answers.error(message, number);
            }
        }
        self.answers.tell(ctx, self.events, self.room);
        self.lines += 1;
        if self.lines.is_multiple_of(TURN_LINES) || ctx.is_turn_spent() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Refuses a message over the limit, which holds in both directions.
fn check_size(ctx: &Context, message: Message<'_>) -> Result<(), String> {
    let limit = ctx.config().limits.max_message;
    if message.as_bytes().len() > limit {
        return Err(format!(
            "the message is over the message limit of {limit} bytes"
        ));
    }
    Ok(())
}

fn carry_out(
    ctx: &mut Context,
    answers: &mut Answers,
    command: Command,
    line: u64,
) -> Result<(), String> {
    let on = |client: ClientId| move |error: crate::SendError| format!("{error} {client}");
    match command {
        Command::Send { client, data } => {
            check_size(ctx, data.as_message())?;
            ctx.try_send(client, data.as_message()).map_err(on(client))
        }
        Command::Broadcast { data, except, path } => {
            check_size(ctx, data.as_message())?;
            ctx.broadcast(data.as_message(), |client, at| {
                !except.contains(&client) && path.as_ref().is_none_or(|path| path == at)
            });
            Ok(())
        }
        Command::Close {
            client,
            code,
            reason: Text(reason),
        } => ctx.try_close(client, code, reason).map_err(on(client)),
        Command::Status { id } => {
            answers.status(id, line);
            Ok(())
        }
        Command::Shutdown => {
            ctx.stop();
            Ok(())
        }
    }
}
