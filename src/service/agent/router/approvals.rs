//! Permission requests for observers, who may answer them if the settings permit it.

use super::exchange::Exchange;
use super::output::RouterOutput;
use super::requests::AgentRequest;
use super::session_key::SessionKey;
use super::sessions::Sessions;
use crate::ClientId;
use crate::log_event::{log_event, word};
use crate::service::json::{quote, unescape};
use crate::service::jsonrpc::{Envelope, MessageKind, member};

impl Sessions {
    /// Sends the observers of a session a permission request that the session's client has received. `sent` is the
    /// message that the client received.
    pub(super) fn show_permission(
        &self,
        exchange: &mut Exchange,
        upstream_id: u64,
        session: &SessionKey,
        sent: &str,
        output: &mut impl RouterOutput,
    ) {
        let Some(bound) = self.get(session) else {
            return;
        };
        let controller = bound.controller();
        let observers = bound.observers.iter();
        let observers = observers.filter(|observer| Some(**observer) != controller);
        for observer in observers.copied().collect::<Vec<_>>() {
            exchange.show_permission_to(observer, upstream_id, sent, output);
        }
    }

    /// Sends the open permission requests of a session to a client that has attached to the session.
    pub(super) fn send_pending(
        &self,
        exchange: &mut Exchange,
        client: ClientId,
        session: &SessionKey,
        output: &mut impl RouterOutput,
    ) {
        let pending = exchange.requests.of_agent.iter();
        let pending = pending.filter(|(_, request)| request.session.as_ref() == Some(session));
        let pending =
            pending.filter_map(|(id, request)| Some((id, request.text.as_ref()?.clone())));
        let mut pending: Vec<(u64, Box<str>)> = pending.collect();
        pending.sort_unstable_by_key(|(id, _)| *id);
        for (id, sent) in pending {
            exchange.show_permission_to(client, id, &sent, output);
        }
    }

    /// Logs who answered a permission request. Tells the other clients that could have answered it, and the observers.
    pub(super) fn note_approval(
        &self,
        exchange: &Exchange,
        upstream_id: u64,
        request: &AgentRequest,
        client: ClientId,
        answer: &Envelope<'_>,
        output: &mut impl RouterOutput,
    ) {
        let Some(session) = &request.session else {
            return;
        };
        let tool_call = request.text.as_deref().and_then(tool_call_of);
        let option = option_of(answer);
        let state = exchange.clients.get(client);
        let principal = state.map(|state| state.principal.to_string());
        let principal = principal.unwrap_or_default();
        let shown_option = option.as_deref().map_or("no option".into(), shortened);
        let shown_call = tool_call.as_deref().map_or("null".into(), shortened);
        log_event!(
            Info,
            "permission request answered",
            client = word(&client),
            principal = word(&principal),
            option = word(&shown_option),
            tool_call = word(&shown_call),
        );
        request.revoke(upstream_id, Some(client), output);
        let observed = self.get(session);
        let observed = observed.is_some_and(|bound| bound.is_observed());
        if !observed {
            return;
        }
        let by = state.map_or("{}".to_owned(), |state| state.describe(client, None));
        let json = |value: Option<String>| value.map_or("null".to_owned(), |value| quote(&value));
        let update = format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{},"update":{{"sessionUpdate":"permission_resolved","type":"permission_resolved","requestId":{upstream_id},"toolCallId":{},"chosenOptionId":{},"resolvedBy":{by}}}}}}}"#,
            quote(session),
            json(tool_call),
            json(option),
        );
        let observers = self.get(session);
        let observers = observers.map_or(&[][..], |bound| &bound.observers);
        let others = observers.iter().chain(Some(&request.client));
        for other in others.filter(|other| **other != client) {
            output.to_client(*other, &[&update]);
        }
    }
}

impl Exchange {
    /// The open permission requests of a session, as entries of the `history` in the answer to `session/attach`.
    pub(super) fn pending_history(&self, session: &SessionKey) -> Vec<String> {
        let pending = self.requests.of_agent.iter();
        let pending = pending
            .filter(|(_, request)| request.permission && request.session.as_ref() == Some(session));
        let entry = |(id, request): (u64, &AgentRequest)| {
            let call = request.text.as_deref().and_then(tool_call_of);
            let call = call.map_or("null".to_owned(), |call| quote(&call));
            format!(
                r#"{{"type":"permission_request","requestId":{id},"toolCallId":{call},"status":"pending"}}"#
            )
        };
        pending.map(entry).collect()
    }
}

/// The tool call that a permission request is about. In version 1, it is in `toolCall`. In version 2, the optional `subject` is a
/// tool call, with the id in `toolCall`, or a command, which may have the id itself.
fn tool_call_of(request: &str) -> Option<String> {
    let envelope = Envelope::parse(request).ok()?;
    let params = envelope.body?;
    let subject =
        member(request, &params, "subject").filter(|range| &request[range.clone()] != "null");
    let holder = subject.unwrap_or(params);
    let call = member(request, &holder, "toolCall").unwrap_or(holder);
    let id = &request[member(request, &call, "toolCallId")?];
    id.starts_with('"').then(|| unescape(id).into_owned())
}

/// The option that the answer to a permission request selects.
fn option_of(answer: &Envelope<'_>) -> Option<String> {
    if !matches!(
        answer.kind,
        MessageKind::Response {
            result: Some(_),
            ..
        }
    ) {
        return None;
    }
    let outcome = member(answer.text, answer.body.as_ref()?, "outcome")?;
    let option = &answer.text[member(answer.text, &outcome, "optionId")?];
    option
        .starts_with('"')
        .then(|| unescape(option).into_owned())
}

/// The start of an untrusted text, for the log.
fn shortened(text: &str) -> String {
    format!("{:?}", &text[..text.floor_char_boundary(100)])
}
