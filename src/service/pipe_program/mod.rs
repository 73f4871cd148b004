//! A program on a WebSocket: its standard input and output are the messages.
//!
//! [`PipePerClient`] starts a program for each client, and [`PipeShared`] connects all clients to one program.

mod environment;
mod per_client;
mod shared;

pub use self::per_client::PipePerClient;
pub use self::shared::PipeShared;

use crate::service::child::{ProgramExit, RestartLimit};
use crate::service::{Endpoint, Framing};
use crate::{CloseCode, Context, Message};

/// The settings of a [`PipePerClient`] or a [`PipeShared`].
///
/// ```
/// use outrigger::service::{Framing, PipeConfig};
///
/// let mut config = PipeConfig::new("/lsp".parse()?, ["typescript-language-server", "--stdio"]);
/// config.framing = Framing::ContentLength;
/// # Ok::<(), outrigger::service::ParseEndpointError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PipeConfig {
    /// The path that clients connect to.
    pub endpoint: Endpoint,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How messages are separated on the program's standard input and output.
    pub framing: Framing,
    /// The subprotocols that the program speaks. The server selects the first one that a client offers.
    pub subprotocols: Vec<String>,
    /// How often a shared program may exit before the server stops.
    pub restart_limit: RestartLimit,
}

impl PipeConfig {
    /// The settings of a program that reads and writes lines.
    pub fn new(endpoint: Endpoint, command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoint,
            command: command.into_iter().map(Into::into).collect(),
            framing: Framing::Lines,
            subprotocols: Vec::new(),
            restart_limit: RestartLimit::default(),
        }
    }
}

/// The WebSocket message with what a program has written. Text that is not UTF-8 cannot be a text message.
fn to_message(framing: Framing, bytes: &[u8]) -> Message<'_> {
    match std::str::from_utf8(bytes) {
        Ok(text) if framing != Framing::Raw => Message::Text(text),
        _ => Message::Binary(bytes),
    }
}

/// How a client is closed when its program has exited: with `failure` if the program has failed.
fn ending(exit: &ProgramExit, failure: CloseCode) -> (CloseCode, String) {
    if let Some(error) = exit.start_error() {
        log::error!("{error}");
        return (failure, error.to_owned());
    }
    let code = if exit.is_clean() {
        CloseCode::NORMAL
    } else {
        failure
    };
    (code, format!("Program {}", exit.describe()))
}

/// Why the output of a program cannot be passed on.
fn line_too_long(ctx: &Context) -> String {
    let limit = ctx.config().limits.max_message;
    format!("Line over the message limit of {limit} bytes")
}
