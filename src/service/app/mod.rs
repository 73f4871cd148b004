//! An app: a program that reads events and writes commands, one JSON object per line.
//!
//! The program sees each client connect and disconnect exactly once. An invalid command causes one `error` event and
//! nothing else.

mod backend;
pub(crate) mod command;
mod events;

use std::time::Duration;

use self::backend::{Backend, BackendEvent, ReplyQueue};
use self::command::{AppCommand, CommandFields};
use self::events::Events;
use super::child::{Keeper, OnFailure, ProgramFailure, RestartLimit};
use super::lines::Line;
use super::{Endpoint, endpoint};
use crate::record::{RecordError, state};
use crate::text::printable;
use crate::upgrade::Portable;
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Message, Readiness, Rejection, Report,
    Request, Route, Service, SourceId, SubscribeError, TimerId, Token,
};
use std::ops::ControlFlow;

/// Clients are not read while more bytes of events than this are unread.
const HIGH_WATER: usize = 1 << 20;
/// Clients are read again when the unread events are down to this many bytes.
const LOW_WATER: usize = 256 << 10;
/// New clients are rejected while more bytes of events than this are unread. Above [`HIGH_WATER`], only `connect` and
/// `disconnect` events are added.
const MAX_QUEUED: usize = 4 << 20;

/// How long a client that has half-closed its connection stays connected, so that the program can answer its last
/// message.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// The maximum number of command lines that are read in one turn of the loop.
const TURN_LINES: u32 = 1000;
/// The pause between reads of a program that writes only invalid lines.
const INVALID_PAUSE: Duration = Duration::from_millis(10);
/// Why a client is closed whose message is over [`Config::max_json`](crate::Config::max_json).
const TOO_LONG: &str = "message over the limit of JSON messages";
/// The maximum number of bytes of an invalid line that are logged.
const SHOWN: usize = 200;

/// The settings of an [`App`].
///
/// ```
/// use outrigger::service::AppConfig;
///
/// let mut config = AppConfig::new("/chat".parse()?, ["python3", "chat.py"]);
/// config.restart = true;
/// config.subprotocols.push("chat.v1".to_owned());
/// # Ok::<(), outrigger::service::ParseEndpointError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AppConfig {
    /// The path that clients connect to.
    pub endpoint: Endpoint,
    /// The program and its arguments. If empty, events go to standard output and commands come from standard input.
    pub command: Vec<String>,
    /// Whether the program is started again when it exits.
    pub restart: bool,
    /// How often it may exit. With [`OnFailure::Retry`] it is always started again.
    pub restart_limit: RestartLimit,
    /// The subprotocols that the program speaks.
    pub subprotocols: Vec<String>,
    /// A generated token. The `listening` event gives it to the program, which has no other way to know it.
    pub announced_token: Option<Token>,
}

impl AppConfig {
    /// The settings of a program that is not restarted and speaks no subprotocol.
    pub fn new(endpoint: Endpoint, command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoint,
            command: command.into_iter().map(Into::into).collect(),
            restart: false,
            restart_limit: RestartLimit::default(),
            subprotocols: Vec::new(),
            announced_token: None,
        }
    }
}

/// A service that writes events to a program as lines of JSON and executes the commands that it writes.
///
/// ```
/// use outrigger::service::{App, AppConfig};
/// use outrigger::{Config, Server};
///
/// let app = App::new(AppConfig::new("/chat".parse()?, ["python3", "chat.py"]));
/// let config = Config::new("127.0.0.1:0".parse()?);
/// let server = Server::bind(config, app)?;
/// // `server.run()` starts the program.
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct App {
    config: AppConfig,
    /// The program. It is started again after all clients of the old one have disconnected, so that it sees none of them.
    program: Keeper<Backend>,
    /// Events that are not yet in the program's input queue.
    events: Events,
    /// Replies to commands that are not events yet.
    replies: ReplyQueue,
    /// The timer of the pause in reading a program that writes only invalid lines.
    pause: Option<TimerId>,
    failure: Option<String>,
}

state!(App {
    keep config,
    into program,
    events,
    replies,
    // It is set again if it is needed.
    keep pause,
    keep failure,
});

impl App {
    /// Creates the service. The program starts with the server.
    pub fn new(config: AppConfig) -> Self {
        Self {
            program: Keeper::new(config.restart_limit),
            config,
            events: Events::default(),
            replies: ReplyQueue::default(),
            pause: None,
            failure: None,
        }
    }

    fn check_state(&self) -> Result<(), RecordError> {
        Ok(())
    }

    /// Continues after the program of the server has replaced itself.
    fn watch_again(&mut self, ctx: &mut Context) -> Result<(), RecordError> {
        self.program.watch_again(ctx);
        if let Some(backend) = self.program.child_mut() {
            backend.watch_again(ctx)?;
        }
        self.handle(ctx, BackendEvent::Nothing);
        self.try_restart(ctx);
        Ok(())
    }

    fn start(&mut self, ctx: &mut Context) {
        ctx.work_for_service();
        self.replies = ReplyQueue::default();
        match Backend::start(ctx, &self.config.command) {
            Ok(backend) => {
                self.program.handle_start(backend);
                let path = self.config.endpoint.path();
                for address in ctx.listen_addresses() {
                    match &self.config.announced_token {
                        // A unix socket that the server created requires no token.
                        Some(token) if address.asks_for_token() => {
                            let target = format!("{path}?token={}", token.reveal());
                            self.events.listening(address, &target);
                        }
                        _ => self.events.listening(address, path),
                    }
                }
                self.send_events(ctx);
            }
            Err(error) => self.handle_failure(ctx, error.to_string().into()),
        }
    }

    /// Starts the program again after a delay, or stops the server with a failure.
    fn handle_failure(&mut self, ctx: &mut Context, failure: ProgramFailure) {
        let path = self.config.endpoint.path();
        if self.program.handle_failure(ctx, path, &failure) {
            close_all(ctx);
        } else {
            self.fail(ctx, failure.to_string());
        }
    }

    /// Stops the server with a failure, after closing the clients with an internal error.
    fn fail(&mut self, ctx: &mut Context, failure: String) {
        self.failure.get_or_insert(failure);
        close_all(ctx);
        ctx.stop();
    }

    /// Writes events and replies to the program. Pauses the clients while too many events are queued.
    fn send_events(&mut self, ctx: &mut Context) {
        let Some(writer) = self.program.child_mut().and_then(Backend::writer) else {
            return self.events.clear();
        };
        let room = LOW_WATER.saturating_sub(writer.queued());
        self.replies.flush_to(ctx, &mut self.events, room);
        if !self.events.is_empty() {
            writer.append(ctx, |queue| self.events.append_to(queue));
        }
        if writer.queued() > HIGH_WATER {
            ctx.set_paused(true);
        }
    }

    /// Lets the program handle an event, and carries out the commands that it has written.
    fn with_backend(
        &mut self,
        ctx: &mut Context,
        handle: impl FnOnce(
            &mut Backend,
            &mut Context,
            &mut dyn FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
        ) -> BackendEvent,
    ) {
        let Some(backend) = self.program.child_mut() else {
            return;
        };
        let mut turn = CommandTurn {
            events: &mut self.events,
            replies: &mut self.replies,
            room: LOW_WATER.saturating_sub(backend.queued()),
            lines: 0,
        };
        let event = handle(backend, ctx, &mut |ctx, number, line| {
            turn.run(ctx, number, line)
        });
        self.handle(ctx, event);
    }

    fn handle(&mut self, ctx: &mut Context, event: BackendEvent) {
        self.send_events(ctx);
        let queued = self.program.child_mut().map_or(0, Backend::queued);
        if queued <= LOW_WATER {
            ctx.set_paused(false);
        }
        // Commands are read even while events wait, because a program may finish writing before it reads.
        if !self.replies.only_invalid() {
            self.resume(ctx);
        } else if self.pause.is_none() {
            self.pause = Some(ctx.set_timer(INVALID_PAUSE));
        }
        match event {
            BackendEvent::Nothing => {}
            BackendEvent::InputEnded => ctx.stop(),
            BackendEvent::OutputEnded if ctx.is_stopping() => {}
            BackendEvent::OutputEnded => self.fail(
                ctx,
                "standard output is closed: no program reads the events".to_owned(),
            ),
            BackendEvent::Exited(exit) => {
                self.program.handle_exit();
                self.events.clear();
                if ctx.is_stopping() {
                    return;
                }
                let failure = exit.failure("the program");
                if self.config.restart || self.config.restart_limit.on_failure == OnFailure::Retry {
                    self.handle_failure(ctx, failure);
                } else {
                    self.fail(ctx, failure.to_string());
                }
            }
        }
    }

    /// Resumes reading commands.
    fn resume(&mut self, ctx: &mut Context) {
        if let Some(backend) = self.program.child_mut() {
            backend.resume(ctx);
        }
    }

    /// Starts the program again once the delay is over and all clients are gone.
    fn try_restart(&mut self, ctx: &mut Context) {
        if self.program.is_ready() && ctx.client_count() == 0 && !ctx.is_stopping() {
            self.program.queue(ctx);
        }
    }
}

/// Closes every client with 1011.
fn close_all(ctx: &mut Context) {
    for client in ctx.clients() {
        ctx.close(client, CloseCode::INTERNAL, "Program exited");
    }
}

impl Service for App {
    fn started(&mut self, ctx: &mut Context) {
        self.start(ctx);
    }

    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        self.config.endpoint.route(request)
    }

    fn accept(&mut self, _: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        if !self.program.is_running() {
            return Err(Rejection::unavailable("the program is not running"));
        }
        if self.program.child_mut().map_or(0, Backend::queued) > MAX_QUEUED {
            let rejection = Rejection::unavailable("the program does not read its events");
            return Err(rejection.because("program_busy"));
        }
        Ok(endpoint::accept(request, &self.config.subprotocols))
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        let protocol = endpoint::subprotocol(request, &self.config.subprotocols);
        self.events.connect(ctx, client, request, protocol);
        self.send_events(ctx);
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        ctx.spend(2 + message.as_bytes().len() / 512);
        if Events::is_long(message, ctx.config().max_json) {
            ctx.count_long_json();
            return ctx.close(client, CloseCode::TOO_BIG, TOO_LONG);
        }
        self.events.message(client, message);
        self.send_events(ctx);
    }

    fn start_program(&mut self, ctx: &mut Context, _: Option<ClientId>) {
        if self.program.begin() && !ctx.is_stopping() {
            self.start(ctx);
        }
    }

    fn drained(&mut self, ctx: &mut Context, client: ClientId) {
        self.replies.push_drained(client);
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
        self.replies.forget(client);
        self.events.disconnect(client, ending);
        self.send_events(ctx);
        self.try_restart(ctx);
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, _: Readiness) {
        self.with_backend(ctx, |backend, ctx, line| {
            backend.handle_ready(ctx, source, line)
        });
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        if self.program.expire(timer) {
            return self.try_restart(ctx);
        }
        if self.pause == Some(timer) {
            self.pause = None;
            return self.resume(ctx);
        }
        self.with_backend(ctx, |backend, ctx, line| {
            backend.handle_timer(ctx, timer, line)
        });
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.replies.clients().for_each(visit);
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn stopping(&mut self, ctx: &mut Context) {
        if let Some(backend) = self.program.child_mut() {
            backend.stop(ctx);
        }
    }

    fn is_stopped(&self) -> bool {
        self.program.child().is_none_or(Backend::is_stopped)
    }

    fn report(&self) -> Option<&dyn Report> {
        Some(self)
    }

    fn portable(&self) -> Option<&dyn Portable> {
        Some(self)
    }

    fn portable_mut(&mut self) -> Option<&mut dyn Portable> {
        Some(self)
    }
}

impl Report for App {
    fn is_ready(&self) -> bool {
        self.program.is_running()
    }
}

impl Portable for App {
    passes_on!();
}

/// The maximum length of a command line in bytes. It fits a message of the maximum size in base64 or with common escapes.
fn line_limit(ctx: &Context) -> usize {
    2 * ctx.config().limits.max_message + 4096
}

/// The commands of one turn of the loop.
struct CommandTurn<'a> {
    events: &'a mut Events,
    replies: &'a mut ReplyQueue,
    /// Replies are converted to events while fewer bytes of events than this are queued.
    room: usize,
    lines: u32,
}

impl CommandTurn<'_> {
    /// Executes a line. An invalid line causes one `error` event and nothing else.
    fn run(&mut self, ctx: &mut Context, number: u64, line: Line<'_>) -> ControlFlow<()> {
        match line {
            Line::Whole(bytes) if bytes.trim_ascii().is_empty() => {}
            Line::Whole(bytes) => match CommandFields::read(bytes) {
                Ok(fields) => {
                    let result = AppCommand::parse(fields)
                        .and_then(|command| execute(ctx, self.replies, command, number));
                    match result {
                        Ok(()) => self.replies.record_valid(ctx.now()),
                        Err(message) => {
                            log::warn!(
                                "invalid command on line {number} from the program: {message}"
                            );
                            self.replies.push_error(message, number);
                        }
                    }
                }
                Err(message) => {
                    let shown = printable(&bytes[..bytes.len().min(SHOWN)]);
                    log::warn!(
                        "line {number} from the program is not a command ({message}): {shown}; standard output is only for \
                         commands, one JSON object per line; write all other output to standard error"
                    );
                    self.replies.push_error(message, number);
                }
            },
            // The error was reported at the start of the line.
            Line::Skipped(_) | Line::SkippedEnd | Line::Broken(_) => {
                return ControlFlow::Continue(());
            }
            Line::TooLong(bytes) => {
                let message = format!("the line is over {} bytes", line_limit(ctx));
                log::warn!(
                    "line {number} from the program: {message}: {} ...",
                    printable(bytes)
                );
                self.replies.push_error(message, number);
            }
        }
        self.replies.flush_to(ctx, self.events, self.room);
        self.lines += 1;
        if self.lines.is_multiple_of(TURN_LINES) || ctx.is_share_spent() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Checks the message limit, which applies in both directions.
fn check_size(ctx: &Context, message: Message<'_>) -> Result<(), String> {
    let limit = ctx.config().limits.max_message;
    if message.as_bytes().len() > limit {
        return Err(format!(
            "the message is over the message limit of {limit} bytes"
        ));
    }
    Ok(())
}

fn execute(
    ctx: &mut Context,
    replies: &mut ReplyQueue,
    command: AppCommand,
    line: u64,
) -> Result<(), String> {
    let on = |client: ClientId| move |error: crate::SendError| format!("{error} {client}");
    match command {
        AppCommand::Send { client, data } => {
            check_size(ctx, data.as_message())?;
            ctx.try_send(client, data.as_message()).map_err(on(client))
        }
        AppCommand::Broadcast { data, except, path } => {
            check_size(ctx, data.as_message())?;
            ctx.broadcast(data.as_message(), |client, at| {
                except.binary_search(&client).is_err()
                    && path.as_ref().is_none_or(|path| path == at)
            });
            Ok(())
        }
        AppCommand::Subscribe {
            client,
            topic,
            keep,
        } => match ctx.subscribe_keeping(client, &topic, keep) {
            Ok(_) => Ok(()),
            Err(SubscribeError::Client(error)) => Err(on(client)(error)),
            Err(error) => Err(error.to_string()),
        },
        AppCommand::Unsubscribe { client, topic } => {
            ctx.unsubscribe(client, &topic);
            Ok(())
        }
        AppCommand::Publish {
            topic,
            data,
            except,
        } => {
            check_size(ctx, data.as_message())?;
            ctx.publish_to(&topic, data.as_message(), |client| {
                except.binary_search(&client).is_err()
            });
            Ok(())
        }
        AppCommand::Topics { id, of } => {
            replies.push_topics(id, of, line);
            Ok(())
        }
        AppCommand::Close {
            client,
            code,
            reason,
        } => ctx.try_close(client, code, reason).map_err(on(client)),
        AppCommand::Status { id } => {
            replies.push_status(id, line);
            Ok(())
        }
        AppCommand::Shutdown => {
            ctx.stop();
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;
    use crate::Config;
    use crate::server::simulation::{HEAD, World};

    #[test]
    #[cfg_attr(
        not(target_os = "linux"),
        ignore = "only Linux refuses to wait for no events"
    )]
    fn the_program_learns_of_each_end_even_if_waiting_for_events_fails() {
        // The bug: the events were queued, and the loop ended before they were written.
        let file =
            std::env::temp_dir().join(format!("outrigger-failing-poll-{}", std::process::id()));
        let script = format!("cat > {}", file.display());
        let config = AppConfig::new(
            Endpoint::from_str("/fuzz").expect("a path"),
            ["sh", "-c", &script],
        );
        let mut world = World::with_service(Config::default(), App::new(config)).expect("a loop");
        world.server.start().expect("the program starts");
        let clients = [0, 1].map(|_| {
            let id = world.add_connection(10_000).expect("room");
            world.give(id, HEAD);
            world.event(id, true, true, false);
            world.take_turn();
            id
        });
        assert_eq!(world.present(), clients);
        let none = mio::Events::with_capacity(0);
        assert!(world.server.run_with(none).is_err());
        let events = std::fs::read_to_string(&file).expect("the program has read its events");
        let _ = std::fs::remove_file(&file);
        for id in clients {
            let line = events.lines().find(|line| {
                line.contains("\"disconnect\"") && line.contains(&format!("\"{id}\""))
            });
            assert!(line.is_some(), "{events}");
        }
    }
}
