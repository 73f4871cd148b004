//! The ends of clients' requests, and the states of their turns.

use super::Router;
use super::output::RouterOutput;
use super::requests::{ClientRequest, RequestClass};
use super::session_key::SessionKey;
use crate::service::jsonrpc::Envelope;
use crate::{ClientId, Time};

impl Router {
    /// Removes a request that is answered, or that gets no response any more.
    pub(super) fn finish_client_request(
        &mut self,
        now: Time,
        upstream_id: u64,
    ) -> Option<ClientRequest> {
        let request = self
            .exchange
            .requests
            .forget(&mut self.exchange.clients, upstream_id)?;
        self.exchange
            .counters
            .answers
            .observe(now.since(request.call.since));
        Some(request)
    }

    /// Answers a request with an error and removes it. `failed` writes the error for an id.
    pub(super) fn fail_client_request(
        &mut self,
        upstream_id: u64,
        failed: impl Fn(&str) -> String,
        output: &mut impl RouterOutput,
    ) -> Option<ClientRequest> {
        let request = self
            .exchange
            .requests
            .forget(&mut self.exchange.clients, upstream_id)?;
        if let (RequestClass::Prompt, Some(session), Ok(envelope)) = (
            request.call.class,
            &request.call.session,
            Envelope::parse(&failed("0")),
        ) {
            self.sessions.show_turn_complete(session, &envelope, output);
        }
        request.answer(failed, output);
        Some(request)
    }

    /// Reports the state of the turns in a client's sessions. In version 2, the client is sent updates. Otherwise, returns the states by
    /// session, as JSON.
    pub(crate) fn report_turns(
        &self,
        client: ClientId,
        output: &mut impl RouterOutput,
    ) -> Option<Vec<(String, String)>> {
        let state = self.exchange.clients.get(client)?;
        let requests = &self.exchange.requests;
        let is_asked = |session: &SessionKey| {
            let mut asked = requests.of_agent.values();
            asked.any(|request| {
                request.permission
                    && request.client == client
                    && request.session.as_ref() == Some(session)
            })
        };
        let sessions = state.sessions.iter().filter_map(|key| {
            let session = self.sessions.get(key)?;
            (session.controller() == Some(client)).then_some((key, session))
        });
        if state
            .process
            .is_some_and(|process| self.exchange.has_long_turns(process))
        {
            for (key, session) in sessions {
                output.to_client(client, &[&session.activity.report(key, is_asked(key))]);
            }
            return None;
        }
        let turn = |key: &SessionKey| {
            let ids = requests.ids_for(state, key);
            let mut prompts = ids.into_iter().filter_map(|id| {
                let request = requests.of_clients.get(id)?;
                (request.call.class == RequestClass::Prompt).then_some(request)
            });
            match prompts.next() {
                Some(prompt) => {
                    let state = if is_asked(key) {
                        "requires_action"
                    } else {
                        "running"
                    };
                    // A turn that another client began has no request of this client.
                    let id = prompt.sender_ids.as_ref();
                    let id = id.map(|ids| format!(r#","promptRequestId":{}"#, ids.id));
                    format!(r#"{{"state":"{state}"{}}}"#, id.unwrap_or_default())
                }
                None => r#"{"state":"idle"}"#.to_owned(),
            }
        };
        Some(
            sessions
                .map(|(key, _)| (key.to_string(), turn(key)))
                .collect(),
        )
    }
}
