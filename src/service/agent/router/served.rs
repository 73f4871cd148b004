//! Requests of the agent that the server answers in the place of a client, for files and terminals. The router records them as
//! those that a client answers, so that the same limits hold and the agent gets exactly one answer.

use super::Router;
use super::history::Entry;
use super::output::{RouterOutput, ServedError, ServedRequest};
use super::session_key::SessionKey;
use super::sessions::SessionState;
use super::updates::own_update;
use crate::ClientId;
use crate::service::jsonrpc::{Envelope, error, success};

impl Router {
    /// Passes a recorded request on to the server.
    pub(super) fn serve(
        &self,
        id: u64,
        is_addressed: bool,
        envelope: &Envelope<'_>,
        output: &mut impl RouterOutput,
    ) {
        let Some(request) = self.exchange.requests.of_agent.get(id) else {
            return;
        };
        let Some(state) = self.exchange.clients.get(request.client) else {
            return;
        };
        output.serve(ServedRequest {
            id,
            client: request.client,
            principal: state.principal.clone(),
            session: request.session.clone().filter(|_| is_addressed),
            envelope,
        });
    }

    /// Answers a request that the server was asked to serve, with a result as JSON or an error. Nothing happens if the request is
    /// no longer pending.
    pub(crate) fn handle_served(
        &mut self,
        id: u64,
        answer: &Result<String, ServedError>,
        output: &mut impl RouterOutput,
    ) {
        let exchange = &mut self.exchange;
        let pending = exchange.requests.of_agent.get(id);
        if !pending.is_some_and(|request| request.is_served) {
            return;
        }
        let Some(request) = exchange.requests.forget_of_agent(&mut exchange.clients, id) else {
            return;
        };
        let id = &request.ids.id;
        match answer {
            Ok(result) => output.to_agent(request.process, &success(id, result)),
            Err(ServedError { code, message, why }) => {
                let failed = error(id, *code, message, Some(why));
                output.to_agent(request.process, &[&failed]);
            }
        }
    }

    /// Whether the server may still do something for a session: a client controls it that lets the server do so, and its agent
    /// process still runs.
    pub(crate) fn is_served(&self, session: &SessionKey) -> bool {
        let Some(bound) = self.sessions.get(session) else {
            return false;
        };
        let SessionState::Controlled(client) = bound.state else {
            return false;
        };
        let state = self.exchange.clients.get(client);
        state.is_some_and(|state| !state.tools.is_empty())
            && self.exchange.processes.is_current(bound.run)
    }

    /// The clients that see what happens in a session: the one that controls it, and its observers.
    pub(crate) fn audience(&self, session: &SessionKey) -> Vec<ClientId> {
        let Some(bound) = self.sessions.get(session) else {
            return Vec::new();
        };
        let observers = bound.observers.iter().copied();
        let controller = bound.controller();
        let observers = observers.filter(|observer| Some(*observer) != controller);
        controller.into_iter().chain(observers).collect()
    }

    /// Sends an update of the server's own about a session to some clients.
    pub(crate) fn show_served(
        &self,
        session: &SessionKey,
        update: &str,
        clients: &[ClientId],
        output: &mut impl RouterOutput,
    ) {
        if !clients.is_empty() {
            output.to_clients(clients, &own_update(session, update));
        }
    }

    /// Keeps an update of the server's own for clients that attach to the session later.
    pub(crate) fn remember_served(&mut self, session: &SessionKey, update: &str) {
        let update = own_update(session, update);
        self.sessions.remember(session, Entry::Update, &update);
    }
}
