//! Reaches a running server from other threads.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use mio::{Registry, Waker};

use super::connector::Resolved;
use super::context::Context;
use super::id::{ClientId, ServiceId, WAKER};
use super::service::Service;
use super::status::Status;
use crate::protocol::{CloseCode, Message};

/// The maximum number of commands that one turn of the loop executes.
const COMMANDS_PER_TURN: usize = 1024;

/// A message that owns its bytes, so that it can be sent to another thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedMessage {
    /// Text.
    Text(String),
    /// Bytes.
    Binary(Vec<u8>),
}

impl OwnedMessage {
    /// Borrows the message.
    #[must_use]
    pub fn as_message(&self) -> Message<'_> {
        match self {
            Self::Text(text) => Message::Text(text),
            Self::Binary(bytes) => Message::Binary(bytes),
        }
    }
}

impl<'a> From<&'a OwnedMessage> for Message<'a> {
    fn from(message: &'a OwnedMessage) -> Self {
        message.as_message()
    }
}

impl From<String> for OwnedMessage {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for OwnedMessage {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<u8>> for OwnedMessage {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Binary(bytes)
    }
}

/// A command from a handle to the loop.
enum HandleCommand {
    Send(ClientId, OwnedMessage),
    Broadcast(OwnedMessage),
    Close(ClientId, CloseCode, String),
    Status(Sender<Status>),
    Stop,
    /// The addresses for an attempt of an outgoing connection.
    Resolved(ClientId, u32, Resolved),
}

/// The server has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server has stopped")
    }
}

impl std::error::Error for Stopped {}

/// Controls a running server from any thread. A handle is cheap to clone.
///
/// The server executes the commands of a handle in order. It ignores a command for a client that has disconnected. A
/// method fails only if the server has stopped.
///
/// ```
/// use outrigger::{Config, Server, Service};
///
/// struct Silent;
/// impl Service for Silent {}
///
/// let config = Config::builder().listen("127.0.0.1:0".parse()?).build()?;
/// let server = Server::bind(config, Silent)?;
/// let handle = server.handle();
/// let thread = std::thread::spawn(move || server.run().map(drop));
///
/// handle.broadcast("good morning")?;
/// handle.stop()?;
/// thread.join().expect("the thread does not panic")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Handle {
    commands: Sender<HandleCommand>,
    bell: Arc<Bell>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Sends a message to a client.
    pub fn send(&self, client: ClientId, message: impl Into<OwnedMessage>) -> Result<(), Stopped> {
        self.command(HandleCommand::Send(client, message.into()))
    }

    /// Sends a message to every client.
    pub fn broadcast(&self, message: impl Into<OwnedMessage>) -> Result<(), Stopped> {
        self.command(HandleCommand::Broadcast(message.into()))
    }

    /// Closes a client with a code and a reason.
    pub fn close(
        &self,
        client: ClientId,
        code: CloseCode,
        reason: impl Into<String>,
    ) -> Result<(), Stopped> {
        self.command(HandleCommand::Close(client, code, reason.into()))
    }

    /// Requests the status of the server and waits for it. A service must use [`Context::status`] instead: on the
    /// server's own thread this method would wait forever.
    pub fn status(&self) -> Result<Status, Stopped> {
        let (answer, status) = mpsc::channel();
        self.command(HandleCommand::Status(answer))?;
        status.recv().map_err(|_| Stopped)
    }

    /// Stops the server: clients get CLOSE 1001, and the loop ends when they have disconnected or the drain timeout has
    /// passed.
    pub fn stop(&self) -> Result<(), Stopped> {
        self.command(HandleCommand::Stop)
    }

    /// Reports the addresses of a host to the loop.
    pub(super) fn resolved(
        &self,
        id: ClientId,
        attempt: u32,
        resolved: Resolved,
    ) -> Result<(), Stopped> {
        self.command(HandleCommand::Resolved(id, attempt, resolved))
    }

    fn command(&self, command: HandleCommand) -> Result<(), Stopped> {
        self.commands.send(command).map_err(|_| Stopped)?;
        self.bell.ring();
        Ok(())
    }
}

/// Wakes the loop once for any number of commands.
struct Bell {
    waker: Waker,
    rung: AtomicBool,
}

impl Bell {
    fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel)
            && let Err(error) = self.waker.wake()
        {
            log::error!("cannot wake the loop: {error}");
        }
    }
}

/// The receiving end of all handles.
pub(super) struct Inbox {
    sender: Sender<HandleCommand>,
    receiver: Receiver<HandleCommand>,
    bell: Arc<Bell>,
}

impl Inbox {
    pub(super) fn new(registry: &Registry) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let bell = Arc::new(Bell {
            waker: Waker::new(registry, WAKER)?,
            rung: AtomicBool::new(false),
        });
        Ok(Self {
            sender,
            receiver,
            bell,
        })
    }

    pub(super) fn handle(&self) -> Handle {
        Handle {
            commands: self.sender.clone(),
            bell: Arc::clone(&self.bell),
        }
    }

    /// Executes commands.
    pub(super) fn run(&self, ctx: &mut Context, service: &impl Service) {
        ctx.core.service_id = ServiceId::ALL;
        // A command that is sent after this rings the bell again.
        self.bell.rung.swap(false, Ordering::AcqRel);
        for _ in 0..COMMANDS_PER_TURN {
            let Ok(command) = self.receiver.try_recv() else {
                return;
            };
            // The results do not matter: a client may have left, and a caller may no longer wait for its answer.
            match command {
                HandleCommand::Send(client, message) => ctx.send(client, message.as_message()),
                HandleCommand::Broadcast(message) => {
                    _ = ctx.broadcast(message.as_message(), |_, _| true)
                }
                HandleCommand::Close(client, code, reason) => ctx.close(client, code, reason),
                HandleCommand::Status(answer) => {
                    _ = answer.send(Status {
                        service: service.status(),
                        ..ctx.status()
                    });
                }
                HandleCommand::Stop => ctx.stop(),
                HandleCommand::Resolved(id, attempt, resolved) => {
                    ctx.core.handle_resolved(id, attempt, resolved);
                }
            }
        }
        self.bell.ring();
    }
}
