//! The server from other threads.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use mio::{Registry, Waker};

use super::context::Context;
use super::id::{ClientId, ServiceId, WAKER};
use super::service::Service;
use super::status::Status;
use crate::protocol::{CloseCode, Message};

/// Commands taken from other threads in one turn of the loop.
const COMMANDS_PER_TURN: usize = 1024;

/// A message that owns its bytes, to be handed to another thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedMessage {
    /// Text.
    Text(String),
    /// Any bytes.
    Binary(Vec<u8>),
}

impl OwnedMessage {
    /// The message, borrowed.
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

enum Command {
    Send(ClientId, OwnedMessage),
    Broadcast(OwnedMessage),
    Close(ClientId, CloseCode, String),
    Status(Sender<Status>),
    Stop,
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

/// Reaches a running server from any thread. Handles are cheap to clone; all of them name the same server.
///
/// Commands are carried out in the order in which they were given, soon after; a client that is gone by then is passed
/// over. A method fails only if the loop has ended.
#[derive(Clone)]
pub struct Handle {
    commands: Sender<Command>,
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
        self.command(Command::Send(client, message.into()))
    }

    /// Sends a message to every client.
    pub fn broadcast(&self, message: impl Into<OwnedMessage>) -> Result<(), Stopped> {
        self.command(Command::Broadcast(message.into()))
    }

    /// Closes a client with a code and a reason.
    pub fn close(
        &self,
        client: ClientId,
        code: CloseCode,
        reason: impl Into<String>,
    ) -> Result<(), Stopped> {
        self.command(Command::Close(client, code, reason.into()))
    }

    /// Asks for the server's status and waits for the answer. Not to be called on the loop's own thread, which would
    /// wait for itself: a service asks its [`Context`].
    pub fn status(&self) -> Result<Status, Stopped> {
        let (answer, status) = mpsc::channel();
        self.command(Command::Status(answer))?;
        status.recv().map_err(|_| Stopped)
    }

    /// Stops the server: clients get CLOSE 1001, and the loop ends when they are gone or the drain timeout has passed.
    pub fn stop(&self) -> Result<(), Stopped> {
        self.command(Command::Stop)
    }

    fn command(&self, command: Command) -> Result<(), Stopped> {
        self.commands.send(command).map_err(|_| Stopped)?;
        self.bell.ring();
        Ok(())
    }
}

/// Wakes the loop, once for any number of commands.
struct Bell {
    waker: Waker,
    rung: AtomicBool,
}

impl Bell {
    fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel)
            && let Err(error) = self.waker.wake()
        {
            log::error!("waking the loop failed: {error}");
        }
    }
}

/// The loop's end of all handles.
pub(super) struct Commands {
    sender: Sender<Command>,
    receiver: Receiver<Command>,
    bell: Arc<Bell>,
}

impl Commands {
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

    /// Carries out what was asked for.
    pub(super) fn run(&self, ctx: &mut Context, service: &impl Service) {
        ctx.core.service_id = ServiceId::ALL;
        // A command that is sent from here on rings again.
        self.bell.rung.swap(false, Ordering::AcqRel);
        for _ in 0..COMMANDS_PER_TURN {
            let Ok(command) = self.receiver.try_recv() else {
                return;
            };
            // A client that is gone or closing is passed over, as promised, and who asked may have given up.
            match command {
                Command::Send(client, message) => ctx.send(client, message.as_message()),
                Command::Broadcast(message) => _ = ctx.broadcast(message.as_message(), |_, _| true),
                Command::Close(client, code, reason) => ctx.close(client, code, reason),
                Command::Status(answer) => {
                    _ = answer.send(Status {
                        service: service.status(),
                        ..ctx.status()
                    });
                }
                Command::Stop => ctx.stop(),
            }
        }
        self.bell.ring();
    }
}
