//! Echo: the smallest service.

use super::Endpoint;
use crate::upgrade::Portable;
use crate::{ClientId, Context, Message, Rejection, Request, Route, Service};

/// Sends every message back to the client that sent it.
///
/// ```
/// use outrigger::service::Echo;
/// use outrigger::{Config, Server};
///
/// let config = Config::new("127.0.0.1:0".parse()?);
/// let server = Server::bind(config, Echo::new("/echo".parse()?))?;
/// # server.handle().stop()?;
/// server.run()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Echo {
    endpoint: Endpoint,
}

impl Echo {
    /// Creates an echo service at an endpoint.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }
}

impl Service for Echo {
    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        self.endpoint.route(request)
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        // A client that cannot be sent to is being disconnected.
        ctx.try_send(client, message).ok();
    }

    fn portable(&self) -> Option<&dyn Portable> {
        Some(self)
    }

    fn portable_mut(&mut self) -> Option<&mut dyn Portable> {
        Some(self)
    }
}

/// It keeps nothing for its clients, so they pass as they are.
impl Portable for Echo {}
