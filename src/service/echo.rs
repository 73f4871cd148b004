//! Every message comes back.

use super::Endpoint;
use crate::{ClientId, Context, Message, Rejection, Request, Route, Service};

/// Sends every message back to the client that it came from.
#[derive(Clone, Debug)]
pub struct Echo {
    endpoint: Endpoint,
}

impl Echo {
    /// An echo at this endpoint.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }
}

impl Service for Echo {
    fn route(&mut self, request: &Request<'_>) -> Result<Route, Rejection> {
        self.endpoint.route(request)
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        // A client that cannot be sent to any more is on its way out, and nothing else is to be done.
        ctx.send(client, message);
    }
}
