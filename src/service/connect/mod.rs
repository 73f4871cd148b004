//! A client whose messages are lines, or messages with another framing, on the process's own standard streams.
//!
//! Every message of standard input is sent exactly once and in order, and so is every message to standard output, for as long as
//! the server keeps the connection. After a cut, the loop resumes a connection to Outrigger. When the connection is lost for good,
//! [`Requests`] answers the pending requests with errors, and [`Restoration`] loads the sessions of the Agent Client Protocol again on
//! another one.

mod continuing;
mod ending;
#[cfg(feature = "client")]
mod http;
mod input;
#[cfg(feature = "client")]
mod inquiry;
mod output;
mod requests;
pub(crate) mod restoration;
pub(crate) mod sessions;
mod stdin;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use self::ending::undelivered;
#[cfg(feature = "client")]
pub(crate) use self::http::{HttpBridge, HttpBridgeConfig};
#[cfg(feature = "client")]
pub(crate) use self::inquiry::{Answer, Inquiry, mcp_paths};
use self::output::Output;
use self::requests::Requests;
use self::restoration::Restoration;
use self::stdin::{Stdin, open_streams};
use super::advice::{Problem, with_advice};
use super::pipe::PipeState;
use super::silence::SilenceWatch;
use super::{Advise, Framing};
use crate::protocol::client::ResponseHead;
use crate::sys::drop_code;
use crate::text::{printable, without_mark};
use crate::{
    Cause, ClientId, CloseCode, CloseReason, Connect, ConnectError, Context, Message, Outgoing,
    OwnedMessage, Readiness, Retry, Service, SourceId, Time, TimerId,
};

/// The settings of a [`Bridge`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BridgeConfig {
    /// The server to connect to.
    pub connect: Connect,
    /// How messages are separated on the standard streams.
    pub framing: Framing,
    /// Whether messages are JSON-RPC. If not, they pass through untouched.
    pub json: bool,
    /// Whether to continue the sessions of the Agent Client Protocol if a connection is not resumable, by loading the sessions again on
    /// a new connection.
    pub continue_sessions: bool,
    /// While messages of half of this size, in bytes, wait for a connection, standard input is not read. The buffer of
    /// [`ResumeConfig`](crate::ResumeConfig) should have the same size.
    pub buffer: usize,
    /// How long to wait for answers after standard input has ended.
    pub linger: Duration,
    /// How long to begin connections that the server ends at once.
    pub give_up: Duration,
    /// What the user can do about a problem. It follows the problem in the log. The default says nothing.
    pub advise: Advise,
}

impl BridgeConfig {
    /// Carries JSON-RPC messages to and from a server.
    #[must_use]
    pub fn new(connect: Connect) -> Self {
        Self {
            connect,
            framing: Framing::Lines,
            json: true,
            continue_sessions: true,
            buffer: 4 << 20,
            linger: Duration::from_secs(5),
            give_up: Retry::GIVE_UP,
            advise: |_| "",
        }
    }
}

/// A connection counts as stable if it lasts this long.
const STABLE: Duration = Duration::from_secs(10);

/// The state of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// There is none until `initialize` begins one.
    None,
    /// The next one begins when the timer expires.
    Waiting(TimerId),
    /// It is being opened.
    Opening(ClientId),
    /// It is open, but the sessions must be loaded again before messages pass.
    Returning { client: ClientId, since: Time },
    /// It is open.
    Open {
        client: ClientId,
        since: Time,
        is_cut: bool,
    },
}

impl Link {
    /// The client of a connection that is open, and since when it is.
    fn connected(self) -> Option<(ClientId, Time)> {
        match self {
            Self::Returning { client, since } | Self::Open { client, since, .. } => {
                Some((client, since))
            }
            Self::None | Self::Waiting(_) | Self::Opening(_) => None,
        }
    }
}

/// How far the end of the bridge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Messages pass in both directions.
    Running,
    /// Standard input has ended. What is pending is delivered, and answers are awaited.
    InputEnded,
    /// The CLOSE was sent, or waits behind what is pending.
    Closing,
    /// Only the rest of standard output is written.
    Finished,
}

/// A service that connects to a server and carries messages between it and the process's own standard streams.
///
/// ```no_run
/// use outrigger::service::{Bridge, BridgeConfig};
/// use outrigger::{Config, Connect, Server};
///
/// let connect = Connect::new("ws://127.0.0.1:7070/acp".parse()?).resumable();
/// let bridge = Bridge::new(BridgeConfig::new(connect));
/// let server = Server::without_listeners(Config::default(), bridge)?;
/// let (bridge, _) = server.run()?;
/// # use outrigger::Service;
/// if let Some(failure) = bridge.failure() {
///     eprintln!("{failure}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Bridge {
    config: BridgeConfig,
    input: Option<Stdin>,
    output: Option<Output>,
    requests: Requests,
    /// Whether the next connection, or the present one if it is returning, loads the sessions of the last one.
    is_restoring: bool,
    restoration: Restoration,
    /// When to stop waiting for the server's next response on a connection that is returning.
    return_limit: Option<TimerId>,
    link: Link,
    stage: Stage,
    /// Messages for the next connection, and their size in bytes.
    pending: VecDeque<OwnedMessage>,
    pending_bytes: usize,
    /// The number of unstable connections in a row, and when the first of them ended.
    unstable: u32,
    unstable_since: Option<Time>,
    /// Notices that messages have no effect.
    silence: SilenceWatch,
    /// When to stop waiting for the delivery of messages and for answers.
    linger: Option<TimerId>,
    linger_expired: bool,
    /// Whether a connection was open.
    was_open: bool,
    /// Why the last attempt to open a connection failed.
    last_error: Option<String>,
    has_warned_of_protocol: bool,
    has_warned_of_input: bool,
    failure: Option<String>,
}

impl Bridge {
    /// Creates the service. It connects when the loop starts.
    pub fn new(config: BridgeConfig) -> Self {
        Self {
            config,
            input: None,
            output: None,
            requests: Requests::default(),
            is_restoring: false,
            restoration: Restoration::default(),
            return_limit: None,
            link: Link::None,
            stage: Stage::Running,
            pending: VecDeque::new(),
            pending_bytes: 0,
            unstable: 0,
            unstable_since: None,
            silence: SilenceWatch::default(),
            linger: None,
            linger_expired: false,
            was_open: false,
            last_error: None,
            has_warned_of_protocol: false,
            has_warned_of_input: false,
            failure: None,
        }
    }

    fn connect(&mut self, ctx: &mut Context) {
        match ctx.connect(self.config.connect.clone()) {
            Ok(client) => self.link = Link::Opening(client),
            Err(ConnectError::Cancelled) => self.link = Link::None,
            Err(error) => self.fail_to_connect(ctx, &error),
        }
    }

    /// Ends because no connection could be opened.
    fn fail_to_connect(&mut self, ctx: &mut Context, error: &ConnectError) {
        let target = self.config.connect.target();
        let why = with_advice(error.to_string(), Problem::of(error), self.config.advise);
        let failure = format!("cannot connect to {target}: {why}");
        self.link = Link::None;
        self.fail(ctx, &why, Some(failure));
    }

    /// Writes a warning with what the user can do about it.
    fn warn(&self, text: String, problem: Problem) {
        let text = with_advice(text, Some(problem), self.config.advise);
        log::warn!("{text}");
    }

    /// Says once that the server sends what the local side would not understand.
    fn warn_of_other_protocol(&mut self) {
        if !std::mem::replace(&mut self.has_warned_of_protocol, true) {
            let text = "the server sends messages that are not JSON-RPC, and they are ignored";
            self.warn(text.to_owned(), Problem::NotJsonRpc);
        }
    }

    /// Writes the bridge's own answer to a message of standard input.
    fn answer(&mut self, ctx: &mut Context, text: &str) {
        if let Some(output) = &mut self.output {
            output.answer(ctx, text);
        }
    }

    fn write_output(&mut self, ctx: &mut Context) {
        let Some(output) = &mut self.output else {
            return;
        };
        if output.write() == PipeState::Closed {
            // Nobody reads the messages any more.
            log::debug!("standard output is closed");
            self.failure = output.take_failure();
            self.stage = Stage::Finished;
            if let Some(input) = &mut self.input {
                input.close(ctx);
            }
            return ctx.stop();
        }
        if let Some((client, _)) = self.link.connected()
            && output.has_room()
        {
            ctx.set_held(client, false);
        }
        if self.stage == Stage::Finished && output.is_empty() {
            return ctx.stop();
        }
        self.resume_input(ctx);
    }
}

impl Service for Bridge {
    fn started(&mut self, ctx: &mut Context) {
        match open_streams(ctx, self.config.framing, self.config.json) {
            Ok((input, output)) => {
                self.input = Some(input);
                self.output = Some(output);
            }
            Err(error) => {
                let failure = format!("cannot use the standard streams: {error}");
                return self.finish(ctx, Some(failure));
            }
        }
        self.connect(ctx);
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let connected = self.link.connected();
        let (Some(output), true) = (
            &mut self.output,
            // After the end, its requests have got errors.
            connected.is_some_and(|(open, _)| open == client) && self.stage != Stage::Finished,
        ) else {
            return;
        };
        ctx.spend(2 + message.as_bytes().len() / 512);
        match message {
            _ if !self.config.json => output.raw(ctx, message.as_bytes()),
            Message::Text(text) => {
                let text = without_mark(text);
                if !self.handle_return(ctx, client, text) {
                    self.handle_text(ctx, text);
                }
            }
            Message::Binary(_) => return self.warn_of_other_protocol(),
        }
        if self.output.as_ref().is_some_and(Output::is_full) {
            ctx.set_held(client, true);
        }
        self.check_end(ctx);
    }

    fn drained(&mut self, ctx: &mut Context, _: ClientId) {
        self.check_end(ctx);
        self.resume_input(ctx);
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, ending: &CloseReason) {
        let connected = self.link.connected();
        let Some((_, since)) = connected.filter(|(open, _)| *open == client) else {
            return;
        };
        let has_returned = matches!(self.link, Link::Open { .. });
        self.link = Link::None;
        if self.stage == Stage::Finished {
            return;
        }
        // However long a connection took: if it has not continued the last one, nothing has passed.
        let was_stable = has_returned && ctx.now().since(since) >= STABLE;
        let text = describe(ending);
        match (ending.cause, ending.code) {
            _ if ctx.is_stopping() => self.finish(ctx, None),
            (Cause::Unreachable, _) => {
                let target = self.config.connect.target();
                let failure = format!("cannot connect to {target} again: {text}");
                self.fail(ctx, &text, Some(failure));
            }
            (Cause::Service, _) if self.stage == Stage::Closing => self.finish(ctx, None),
            (Cause::PeerClose, CloseCode::NORMAL | CloseCode::NONE) => {
                self.fail(ctx, &text, None);
            }
            (Cause::PeerClose, CloseCode::PROGRAM_FAILED) => {
                let failure = format!("the program behind the server has failed: {text}");
                self.fail(ctx, &text, Some(failure));
            }
            (_, CloseCode::TAKEN_OVER) => {
                let failure = "another connection has taken over".to_owned();
                self.fail(ctx, &text, Some(failure));
            }
            _ => self.handle_loss(ctx, &text, was_stable),
        }
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, _: Readiness) {
        if self.input.as_ref().is_some_and(|input| input.is(source)) {
            self.read_input(ctx);
        } else if self.output.as_ref().is_some_and(|output| output.is(source)) {
            self.write_output(ctx);
        }
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        if self
            .input
            .as_ref()
            .is_some_and(|input| input.is_timer(timer))
        {
            self.read_input(ctx);
        } else if self.output.as_ref().is_some_and(|one| one.is_timer(timer)) {
            self.write_output(ctx);
        } else if self.silence.is_timer(timer) {
            let client = self.link.connected().map(|(client, _)| client);
            self.silence.check(ctx, client);
        } else if self.return_limit == Some(timer) {
            self.handle_return_limit(ctx);
        } else if self.linger == Some(timer) {
            self.handle_linger_end(ctx);
        } else if self.link == Link::Waiting(timer) {
            self.connect(ctx);
        }
    }

    fn draining(&mut self, ctx: &mut Context) {
        if let Some((client, _)) = self.link.connected() {
            ctx.close(client, CloseCode::NORMAL, "");
        }
    }

    fn is_stopped(&self) -> bool {
        self.output.as_ref().is_none_or(Output::is_empty)
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        match self.link {
            Link::Opening(client) | Link::Returning { client, .. } | Link::Open { client, .. } => {
                visit(client);
            }
            Link::None | Link::Waiting(_) => {}
        }
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn outgoing(&mut self) -> Option<&mut dyn Outgoing> {
        Some(self)
    }
}

impl Outgoing for Bridge {
    fn connect_opened(&mut self, ctx: &mut Context, client: ClientId, _: &ResponseHead<'_>) {
        if self.link != Link::Opening(client) {
            return;
        }
        self.last_error = None;
        if !std::mem::replace(&mut self.was_open, true) {
            // Most of what was used until here is not used again.
            drop_code();
        }
        self.begin_connection(ctx, client);
        if self.output.as_ref().is_some_and(Output::is_full) {
            ctx.set_held(client, true);
        }
        self.check_end(ctx);
        self.resume_input(ctx);
    }

    fn connect_failed(&mut self, ctx: &mut Context, client: ClientId, error: &ConnectError) {
        match self.link {
            Link::Opening(opening)
                if opening == client && (ctx.is_stopping() || self.stage == Stage::Finished) =>
            {
                self.link = Link::None;
                self.finish(ctx, None);
            }
            Link::Opening(opening) if opening == client => self.fail_to_connect(ctx, error),
            _ => {}
        }
    }

    fn connect_retrying(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        error: &ConnectError,
        _: Duration,
    ) {
        if self.link != Link::Opening(client) {
            return;
        }
        if !self.was_open && error.is_no_such_place() {
            ctx.close(client, CloseCode::NORMAL, "");
            return self.fail_to_connect(ctx, error);
        }
        let target = self.config.connect.target();
        let text = format!("cannot connect to {target}: {error}");
        if self.last_error.is_none() {
            let limit = match self.config.give_up {
                Duration::MAX => String::new(),
                limit => format!(" for {limit:?}"),
            };
            self.warn(format!("{text}; trying again{limit}"), Problem::Unreachable);
        }
        self.last_error = Some(text);
    }

    fn cut(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        if let Link::Open {
            client: open,
            is_cut,
            ..
        } = &mut self.link
            && *open == client
        {
            *is_cut = true;
            if self.linger_expired {
                let failure = undelivered(ctx.unconfirmed(client));
                return self.finish(ctx, failure);
            }
            self.check_end(ctx);
        }
    }

    fn resumed(&mut self, ctx: &mut Context, client: ClientId) {
        if let Link::Open {
            client: open,
            is_cut,
            ..
        } = &mut self.link
            && *open == client
        {
            *is_cut = false;
            self.check_end(ctx);
            self.resume_input(ctx);
        }
    }
}

/// The end of a connection, in words.
fn describe(ending: &CloseReason) -> String {
    match (ending.code, &*printable(ending.reason.as_bytes())) {
        (code, "") => format!("the connection was closed with code {code}"),
        (CloseCode::ABNORMAL, reason) => reason.to_owned(),
        (code, reason) => format!("{reason} (close code {code})"),
    }
}
