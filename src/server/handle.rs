//! Reaches a running server from other threads.

use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender};

use super::context::Context;
use super::event_loop::wakeup::Bell;
use super::id::{ClientId, ServiceId};
use super::observe::status::Status;
use super::service::{Report, Service};
use crate::protocol::{CloseCode, OwnedMessage};

/// The maximum number of commands that one turn of the loop executes.
const COMMANDS_PER_TURN: usize = 1024;

/// A function that other threads run on the thread of the loop.
type Posted<S> = Box<dyn FnOnce(&mut S, &mut Context) + Send>;

/// A command from a handle to the loop.
enum HandleCommand<S> {
    Send(ClientId, OwnedMessage),
    Broadcast(OwnedMessage),
    Publish(String, OwnedMessage),
    Close(ClientId, CloseCode, String),
    Post(Posted<S>),
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

/// Controls a running server with the service `S` from any thread. A handle is cheap to clone.
///
/// The server executes the commands of a handle in order. It ignores a command for a client that has disconnected. A
/// method fails only if the server has stopped.
///
/// ```
/// use outrigger::{Config, Context, Server, Service};
///
/// #[derive(Default)]
/// struct Clock {
///     announced: u64,
/// }
/// impl Service for Clock {}
///
/// let config = Config::new("127.0.0.1:0".parse()?);
/// let server = Server::bind(config, Clock::default())?;
/// let handle = server.handle();
/// let thread = std::thread::spawn(move || server.run().map(|(clock, _)| clock.announced));
///
/// handle.broadcast("good morning")?;
/// handle.post(|clock: &mut Clock, ctx: &mut Context| {
///     clock.announced += 1;
///     ctx.broadcast("noon", |_, path| path == "/clock");
/// })?;
/// handle.stop()?;
/// assert_eq!(thread.join().expect("the thread does not panic")?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Handle<S> {
    commands: Sender<HandleCommand<S>>,
    bell: Bell,
}

impl<S> Clone for Handle<S> {
    fn clone(&self) -> Self {
        Self {
            commands: self.commands.clone(),
            bell: self.bell.clone(),
        }
    }
}

impl<S> fmt::Debug for Handle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl<S> Handle<S> {
    /// Sends a message to a client.
    pub fn send(&self, client: ClientId, message: impl Into<OwnedMessage>) -> Result<(), Stopped> {
        self.command(HandleCommand::Send(client, message.into()))
    }

    /// Sends a message to every client.
    pub fn broadcast(&self, message: impl Into<OwnedMessage>) -> Result<(), Stopped> {
        self.command(HandleCommand::Broadcast(message.into()))
    }

    /// Sends a message to the members of a [topic](Context::subscribe): of the topics with this name of all services, if the server
    /// has several. Messages that are published together are written together.
    pub fn publish(
        &self,
        topic: impl Into<String>,
        message: impl Into<OwnedMessage>,
    ) -> Result<(), Stopped> {
        self.command(HandleCommand::Publish(topic.into(), message.into()))
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

    /// Runs a function with the service on the thread of the loop, between two calls of the service. Like a method of the
    /// service, it must not block. A server that stops first may drop it without running it.
    pub fn post(
        &self,
        function: impl FnOnce(&mut S, &mut Context) + Send + 'static,
    ) -> Result<(), Stopped> {
        self.command(HandleCommand::Post(Box::new(function)))
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

    fn command(&self, command: HandleCommand<S>) -> Result<(), Stopped> {
        self.commands.send(command).map_err(|_| Stopped)?;
        self.bell.ring();
        Ok(())
    }
}

/// The receiving end of all handles.
pub(super) struct Inbox<S> {
    sender: Sender<HandleCommand<S>>,
    receiver: Receiver<HandleCommand<S>>,
    bell: Bell,
}

impl<S: Service> Inbox<S> {
    pub(super) fn new(bell: Bell) -> Self {
        let (sender, receiver) = mpsc::channel();
        Self {
            sender,
            receiver,
            bell,
        }
    }

    /// Wakes the loop.
    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(super) fn handle(&self) -> Handle<S> {
        Handle {
            commands: self.sender.clone(),
            bell: self.bell.clone(),
        }
    }

    /// Executes what other threads have asked for since the bell rang.
    pub(super) fn run(&self, ctx: &mut Context, service: &mut S) {
        self.bell.answer();
        ctx.core.handle_resolved_names();
        for _ in 0..COMMANDS_PER_TURN {
            let Ok(command) = self.receiver.try_recv() else {
                return;
            };
            ctx.core.service_id = ServiceId::ALL;
            // The results do not matter: a client may have left, and a caller may no longer wait for its answer.
            match command {
                HandleCommand::Send(client, message) => ctx.send(client, message.as_message()),
                HandleCommand::Broadcast(message) => {
                    _ = ctx.broadcast(message.as_message(), |_, _| true)
                }
                HandleCommand::Publish(topic, message) => {
                    _ = ctx.publish(&topic, message.as_message())
                }
                HandleCommand::Close(client, code, reason) => ctx.close(client, code, reason),
                HandleCommand::Post(function) => function(service, ctx),
                HandleCommand::Status(answer) => {
                    _ = answer.send(Status {
                        service: service.report().map(Report::status).unwrap_or_default(),
                        ..ctx.status()
                    });
                }
                HandleCommand::Stop => ctx.stop(),
            }
        }
        self.bell.ring();
    }
}
