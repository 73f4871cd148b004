//! What the server sends: answers, requests for input, and changes.

use std::ops::Range;

use super::{
    MAX_QUESTIONS, MAX_ROUNDS, Own, Side, Stage, ToNewer, answered, id_of, number_in, refused,
};
use crate::service::json::{Skimmer, quote, unescape};
use crate::service::jsonrpc::{
    Envelope, IdKey, MessageKind, SUBSCRIPTION, code, error, insert_member, is_same, member,
    with_id,
};
use crate::service::mcp::subscription::{Filter, without_subscription};
use crate::service::mcp::{EARLIER_VERSIONS, SESSION_VERSIONS, STATELESS};

impl ToNewer {
    /// Handles a message from the server.
    pub(crate) fn handle_server(&mut self, envelope: &Envelope<'_>, out: &mut Vec<Side>) {
        let text = envelope.text;
        match (&self.stage, &envelope.kind) {
            (Stage::Translating, MessageKind::Request { id, .. }) => {
                let refused = error(&text[id.clone()], code::NO_METHOD, "Method not found", None);
                out.push(Side::Server(refused));
            }
            (Stage::Translating, MessageKind::Notification { method }) => {
                self.handle_news(method, envelope, out);
            }
            (_, MessageKind::Response { id, result }) => {
                let result = result.as_ref();
                self.handle_response(&text[id.clone()], envelope, result, out);
            }
            _ => out.push(Side::Client(text.to_owned())),
        }
    }

    fn handle_response(
        &mut self,
        id: &str,
        envelope: &Envelope<'_>,
        result: Option<&Range<usize>>,
        out: &mut Vec<Side>,
    ) {
        let text = envelope.text;
        let number = number_in(id).filter(|number| self.requests.contains_key(number));
        match (&self.stage, number) {
            (Stage::Begin, _) if is_same(id, &self.initialize) => match result {
                Some(_) => {
                    self.stage = Stage::Native;
                    out.push(Side::Client(text.to_owned()));
                }
                None => {
                    self.stage = Stage::Discovering(text.into());
                    out.push(self.ask_server(Own::Discover, "server/discover", ""));
                }
            },
            (Stage::Discovering(refusal), Some(_)) => {
                let refusal = refusal.to_string();
                self.requests.clear();
                let answer = result.and_then(|result| self.discovered(text, result));
                self.stage = match answer {
                    Some(_) => Stage::Translating,
                    None => Stage::Native,
                };
                out.push(Side::Client(answer.unwrap_or(refusal)));
            }
            (Stage::Translating, Some(number)) => {
                if let Some(Own::Resource(..)) = self.requests.get(&number) {
                    // The server has ended the subscription, or does not begin it.
                    let own = self.forget_resource(number);
                    out.extend(own.map(|own| match result {
                        Some(_) => answered(&own, "{}"),
                        None => Side::Client(with_id(text, &own)),
                    }));
                } else if let Some(Own::Repeated(key)) = self.requests.remove(&number) {
                    self.handle_answer(&key, envelope, result, out);
                }
            }
            (Stage::Translating, None) => {
                self.handle_answer(&IdKey::of(id), envelope, result, out);
            }
            _ => out.push(Side::Client(text.to_owned())),
        }
    }

    /// The answer to `initialize`, from the answer to `server/discover`. `None` if the server does not support 2026-07-28.
    fn discovered(&mut self, text: &str, result: &Range<usize>) -> Option<String> {
        let of_result = |name| member(text, result, name);
        let mut is_supported = false;
        let _ = Skimmer::at(text, &of_result("supportedVersions")?).array(|at: Range<usize>| {
            is_supported |= text[at] == quote(STATELESS);
        });
        if !is_supported {
            return None;
        }
        let object = |at: &Range<usize>| text[at.clone()].starts_with('{');
        let of_meta = || {
            member(
                text,
                &of_result("_meta")?,
                "io.modelcontextprotocol/serverInfo",
            )
        };
        let info = of_result("serverInfo").or_else(of_meta).filter(object);
        let info = info.map_or(r#"{"name":"mcp-server","version":"0"}"#, |at| &text[at]);
        let capabilities = of_result("capabilities").filter(object);
        let capabilities = capabilities.map_or("{}", |at| &text[at]);
        let instructions = of_result("instructions").map_or_else(String::new, |at| {
            format!(r#","instructions":{}"#, &text[at])
        });
        self.lists = Filter::lists();
        self.lists.restrict(capabilities);
        let mut versions = SESSION_VERSIONS.into_iter().chain(EARLIER_VERSIONS);
        let asked = versions.find(|version| *self.asked == quote(version));
        let version = asked.unwrap_or(SESSION_VERSIONS[0]);
        let id = &self.initialize;
        Some(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"{version}","capabilities":{capabilities},"serverInfo":{info}{instructions}}}}}"#
        ))
    }

    /// Handles a notification from the server.
    fn handle_news(&mut self, method: &str, envelope: &Envelope<'_>, out: &mut Vec<Side>) {
        let text = envelope.text;
        let subscription = envelope.of_meta(SUBSCRIPTION);
        let number = subscription.and_then(|at| number_in(&text[at]));
        match method {
            "notifications/subscriptions/acknowledged" => {
                let Some(number) = number else { return };
                let Some(Own::Resource(_, own)) = self.requests.get_mut(&number) else {
                    return;
                };
                let honored = envelope.of_body("notifications");
                let honored = honored.and_then(|at| member(text, &at, "resourceSubscriptions"));
                if honored.is_some_and(|at| text[at].contains('"')) {
                    out.extend(own.take().map(|own| answered(&own, "{}")));
                    return;
                }
                if let Some(own) = own.take() {
                    let why = "the MCP server does not report changes of this resource";
                    out.push(refused(&own, code::PARAMS, "Invalid params", why));
                }
                self.end_resource(number, out);
            }
            "notifications/cancelled" => {
                let named = envelope.request_id.clone();
                if let Some(number) = named.and_then(|at| number_in(&text[at])) {
                    // The server ends the subscription. It may end nothing else.
                    match self.requests.get(&number) {
                        Some(Own::Lists) => _ = self.requests.remove(&number),
                        Some(Own::Resource(..)) => {
                            if let Some(own) = self.forget_resource(number) {
                                let why = "the MCP server has ended the subscription";
                                out.push(refused(&own, code::INTERNAL, "Internal error", why));
                            }
                        }
                        _ => {}
                    }
                }
            }
            _ => out.push(Side::Client(without_subscription(envelope))),
        }
    }

    /// Handles the answer to a request of the client, or to one that repeats it.
    fn handle_answer(
        &mut self,
        key: &IdKey,
        envelope: &Envelope<'_>,
        result: Option<&Range<usize>>,
        out: &mut Vec<Side>,
    ) {
        let text = envelope.text;
        let kind = envelope.of_body("resultType").map(|at| &text[at]);
        let result = result.filter(|_| kind == Some(r#""input_required""#));
        match (self.calls.get_mut(key), result) {
            (Some(call), Some(result)) => {
                call.repeated = None;
                let asked = self.ask_client(key, text, result, out);
                if let Err(why) = asked {
                    self.fail_call(key, why, out);
                }
            }
            (Some(_), None) => {
                let call = self.take_call(key, out);
                out.extend(call.map(|call| Side::Client(with_id(text, &call.own))));
            }
            (None, Some(_)) => {
                let why = "the request is too long to be repeated with input";
                let own = envelope.id().unwrap_or("null");
                out.push(refused(own, code::INTERNAL, "Internal error", why));
            }
            (None, None) => out.push(Side::Client(text.to_owned())),
        }
    }

    /// Asks the client for the input that the server requires.
    fn ask_client(
        &mut self,
        key: &IdKey,
        text: &str,
        result: &Range<usize>,
        out: &mut Vec<Side>,
    ) -> Result<(), &'static str> {
        let of_result = |name| member(text, result, name);
        let mut asked = Vec::new();
        if let Some(requests) = of_result("inputRequests") {
            let _ = Skimmer::at(text, &requests).object(|name, at| asked.push((quote(&name), at)));
        }
        let state = of_result("requestState").map(|at| &text[at]);
        let names = asked.iter().map(|(name, _)| name.len()).sum::<usize>();
        if !self.keep_more(key, names + state.map_or(0, str::len)) {
            return Err("the input is too long");
        }
        let Some(call) = self.calls.get_mut(key) else {
            return Ok(());
        };
        call.rounds += 1;
        call.state = state.map(Into::into);
        if call.rounds > MAX_ROUNDS || asked.len() > MAX_QUESTIONS {
            return Err("the MCP server asks for input too often");
        }
        if asked.is_empty() {
            if state.is_none() {
                return Err("the MCP server asks for no input");
            }
            self.repeat(key, out);
            return Ok(());
        }
        for (name, at) in asked {
            let method = member(text, &at, "method").map(|at| unescape(&text[at]));
            let permitted = self.permitted.iter();
            let method = permitted
                .copied()
                .find(|one| method.as_deref() == Some(*one));
            let method =
                method.ok_or("the MCP server asks for what the client does not support")?;
            self.last_number += 1;
            let id = id_of(self.last_number);
            let params = member(text, &at, "params").map(|at| text[at].to_owned());
            let params = params.filter(|params| params.starts_with('{'));
            let params = params.map_or_else(String::new, |params| {
                let params = with_elicitation_id(params, &id);
                format!(r#","params":{params}"#)
            });
            self.questions.insert(self.last_number, (key.clone(), name));
            if let Some(call) = self.calls.get_mut(key) {
                call.open.push(self.last_number);
            }
            out.push(Side::Client(format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"{params}}}"#
            )));
        }
        Ok(())
    }
}

/// The parameters of a question. Those that let the user open an address have an id in the older revisions.
fn with_elicitation_id(params: String, id: &str) -> String {
    let whole = 0..params.len();
    let mode = member(&params, &whole, "mode").map(|at| &params[at]);
    match mode {
        Some(r#""url""#) if member(&params, &whole, "elicitationId").is_none() => {
            insert_member(&params, &whole, &format!(r#""elicitationId":{id}"#))
        }
        _ => params,
    }
}
