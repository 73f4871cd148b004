//! Calls of clients of revision 2026-07-28 to a shared process of an older revision. Each call has a seat of its own at the process
//! until it is answered.

use uuid::Uuid;

use super::Mcp;
use super::translated_call::{Kind, Stage, TranslatedCall};
use super::translated_subscription::BEGIN;
use crate::service::jsonrpc::{Envelope, MessageKind, code, error, with_id};
use crate::service::mcp::http_error::HttpError;
use crate::service::mcp::hub::Call;
use crate::service::mcp::pool::{
    Filter, check_subscription, status_of, subscription_ended, with_subscription,
};
use crate::service::mcp::reply::Reply;
use crate::service::mcp::request::CAPABILITIES_KEY;
use crate::service::mcp::shared::{Incoming, Seat};
use crate::service::mcp::to_older::{self, Question};
use crate::sys::random_uuid;
use crate::{Context, Principal, StatusCode};

impl Mcp {
    /// Handles a request of revision 2026-07-28 for a server of an older one.
    pub(super) fn translate(
        &mut self,
        ctx: &mut Context,
        envelope: &Envelope<'_>,
        reply: Reply,
        principal: Principal,
    ) {
        let own = envelope.id().unwrap_or("null");
        let failed = match to_older::state(envelope) {
            Some(state) => match self.find_input(envelope, &state, &principal) {
                Ok(id) => return self.continue_translated(ctx, id, envelope, reply),
                Err(error) => error,
            },
            None => match self.begin_translated(ctx, envelope, &reply, &principal) {
                Ok((id, seat)) => {
                    return self.send_translated(ctx, id, seat, envelope, (reply, principal));
                }
                Err(error) => error,
            },
        };
        reply.reject(ctx, &failed.with_id(own), true);
    }

    /// The call that a client continues with its input. The state is used up, unless the request is refused.
    fn find_input(
        &mut self,
        envelope: &Envelope<'_>,
        state: &str,
        principal: &Principal,
    ) -> Result<Uuid, HttpError> {
        let unknown = || {
            let why = "Invalid params: requestState is unknown, used up, or of another request";
            HttpError::new(StatusCode::BAD_REQUEST, code::PARAMS, why)
        };
        let state = Uuid::try_parse(state).map_err(|_| unknown())?;
        let id = *self.inputs.get(&state).ok_or_else(unknown)?;
        let call = self.translated.get(&id).ok_or_else(unknown)?;
        let is_same = match (&call.kind, &envelope.kind) {
            (Kind::Other { method, target, .. }, MessageKind::Request { method: asked, .. }) => {
                **method == **asked && *target == to_older::target(envelope)
            }
            _ => false,
        };
        if call.principal != *principal || !is_same {
            return Err(unknown());
        }
        let mut questions = call.questions.iter();
        if questions.any(|question| question.is_answered_badly(envelope)) {
            let why = "Invalid params: inputResponses has something that is no result";
            return Err(HttpError::new(StatusCode::BAD_REQUEST, code::PARAMS, why));
        }
        let server = self.shared.get_mut(call.seat.server);
        if !call.questions.is_empty()
            && server.is_some_and(|one| one.is_behind(envelope, principal))
        {
            return Err(HttpError::not_reading());
        }
        self.inputs.remove(&state);
        Ok(id)
    }

    /// Gives a call a seat at the process.
    fn begin_translated(
        &mut self,
        ctx: &mut Context,
        envelope: &Envelope<'_>,
        reply: &Reply,
        principal: &Principal,
    ) -> Result<(Uuid, Seat), HttpError> {
        let method = envelope.method();
        if to_older::is_unknown(method) {
            let why = "Method not found";
            return Err(HttpError::new(StatusCode::NOT_FOUND, code::NO_METHOD, why));
        }
        if method == "subscriptions/listen" {
            check_subscription(reply, envelope.text.len())?;
        }
        self.hub.take_request(principal)?;
        let capabilities = envelope.of_meta(CAPABILITIES_KEY);
        let capabilities = capabilities.map_or("{}", |at| &envelope.text[at]);
        let id = random_uuid();
        let asked = (to_older::ASKED, capabilities);
        let joined = self.take_seat(ctx, id, principal, asked);
        let seat = joined.and_then(|seat| {
            let server = self.shared.get_mut(seat.server);
            let server = server.ok_or_else(HttpError::not_reading)?;
            if server.is_behind(envelope, principal) {
                server.sessions.leave(seat.member, &mut Vec::new());
                return Err(HttpError::not_reading());
            }
            Ok(seat)
        });
        if seat.is_err() {
            self.hub.end_request(principal);
        }
        Ok((id, seat?))
    }

    /// Sends a call that has a seat.
    fn send_translated(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        seat: Seat,
        envelope: &Envelope<'_>,
        (reply, principal): (Reply, Principal),
    ) {
        let method = envelope.method();
        let own = envelope.id().unwrap_or("null");
        let token = envelope.of_meta("progressToken");
        let capabilities = envelope.of_meta(CAPABILITIES_KEY);
        let capabilities = capabilities.map_or("{}", |at| &envelope.text[at]);
        let mut text = to_older::request(envelope);
        let kind = match method {
            "server/discover" => {
                text = to_older::initialize(own);
                Kind::Discover
            }
            "subscriptions/listen" => {
                text = to_older::initialize(BEGIN);
                Kind::Subscribing {
                    filter: Filter::of(envelope),
                    uris: Vec::new(),
                    waiting: 1,
                }
            }
            _ => Kind::Other {
                method: method.into(),
                target: to_older::target(envelope),
                questions: match to_older::may_ask(method) {
                    true => to_older::questions_for(capabilities),
                    false => Vec::new(),
                },
            },
        };
        let call = TranslatedCall {
            seat,
            principal,
            kind,
            id: own.into(),
            token: token.map(|at| envelope.text[at].into()),
            questions: Vec::new(),
            kept: 0,
            stage: Stage::Open(reply),
            round: 0,
        };
        self.translated.insert(id, call);
        self.attend(ctx, id);
        self.begin_sweep(ctx);
        self.send_from_seat(ctx, seat, &text);
    }

    /// Sends a message from a seat to the process.
    pub(super) fn send_from_seat(&mut self, ctx: &mut Context, seat: Seat, text: &str) {
        let mut out = Vec::new();
        if let Some(server) = self.shared.get_mut(seat.server)
            && let Ok(envelope) = Envelope::parse(text)
        {
            server.handle_session(ctx, seat.member, &envelope, &mut out);
        }
        self.act(ctx, seat.server, out);
    }

    /// Notes that a caller waits for a call, whose time limits begin.
    fn attend(&mut self, ctx: &mut Context, id: Uuid) {
        let Some(waiting) = self.translated.get_mut(&id) else {
            return;
        };
        let call = Call::Translated(id, waiting.round);
        let Some(reply) = waiting.reply() else {
            return;
        };
        self.hub.callers.insert(reply.caller, call);
        self.begin_limits(ctx, call);
    }

    /// Sends an event to the caller of a call. What is only news is dropped if the caller is behind, because a shared process cannot
    /// wait for it.
    pub(super) fn tell_translated(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        text: &str,
        is_news: bool,
    ) {
        if let Some(reply) = self.translated.get_mut(&id).and_then(TranslatedCall::reply) {
            if is_news && ctx.is_congested(reply.caller) {
                self.hub.counts.dropped += 1;
            } else {
                reply.event(ctx, None, text);
            }
        }
    }

    /// Continues a call whose client has been asked for input.
    fn continue_translated(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        envelope: &Envelope<'_>,
        reply: Reply,
    ) {
        let Some(call) = self.translated.get_mut(&id) else {
            return;
        };
        let token = envelope.of_meta("progressToken");
        call.token = token.map(|at| envelope.text[at].into());
        call.id = envelope.id().unwrap_or("null").into();
        let seat = call.seat;
        let answer = match call.enter(Stage::Open(reply)) {
            Stage::Input { answer, .. } => answer,
            Stage::Open(_) => None,
        };
        let mut responses = Vec::new();
        call.keep_questions(&mut self.hub.bytes, |question| {
            let response = question.response(envelope);
            let is_open = response.is_none();
            responses.extend(response);
            is_open
        });
        let is_asked = !call.questions.is_empty();
        self.attend(ctx, id);
        // Another call may wait for the input, even if this one is answered.
        for response in &responses {
            self.send_from_seat(ctx, seat, response);
        }
        match answer {
            Some(answer) => self.finish_translated(ctx, id, &answer),
            None if is_asked => self.ask_for_input(ctx, id),
            None => {}
        }
    }

    /// Passes a message of the process on to the caller that it is for.
    pub(super) fn receive_translated(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        incoming: &Incoming<'_>,
        text: &str,
    ) {
        let Some(call) = self.translated.get_mut(&id) else {
            return;
        };
        match (incoming, &call.kind) {
            (Incoming::Answer(own), Kind::Subscribing { .. }) => {
                self.handle_subscribing(ctx, id, own, text);
            }
            // That of a subscription is the error of a process that has ended.
            (Incoming::Answer(_), _) => self.finish_translated(ctx, id, text),
            (Incoming::Progress(_), _) => {
                let token = call.token.as_deref();
                if let Some(text) = token.and_then(|token| to_older::progress(text, token)) {
                    self.tell_translated(ctx, id, &text, true);
                }
            }
            (Incoming::Change, Kind::Listen(filter)) => {
                if let Ok(envelope) = Envelope::parse(text)
                    && filter.wants(envelope.method(), &envelope)
                {
                    let text = with_subscription(&envelope, &call.id);
                    self.tell_translated(ctx, id, &text, false);
                }
            }
            (Incoming::Request, kind) => {
                let permitted = match kind {
                    Kind::Other { questions, .. } => &questions[..],
                    _ => &[],
                };
                let Ok(envelope) = Envelope::parse(text) else {
                    return;
                };
                let question = Question::read(&envelope, permitted);
                let bytes = &mut self.hub.bytes;
                let taken = |_: &Question| bytes.take(&call.principal, text.len()).is_ok();
                let Some(question) = question.filter(taken) else {
                    let own = envelope.id().unwrap_or("null");
                    let why = Some("the client cannot be asked for this");
                    let refused = error(own, code::NO_METHOD, "Method not found", why);
                    let seat = call.seat;
                    self.hub.counts.refused += 1;
                    return self.send_from_seat(ctx, seat, &refused);
                };
                call.kept += text.len();
                call.questions.push(question);
                self.ask_for_input(ctx, id);
            }
            (Incoming::Other, _) => {
                // The server takes a question back, or has written a log message, which no request has asked for.
                let envelope = Envelope::parse(text).ok();
                let range = envelope.and_then(|envelope| envelope.request_id);
                match range {
                    Some(at) => {
                        let bytes = &mut self.hub.bytes;
                        call.keep_questions(bytes, |one| !one.has_id(&text[at.clone()]));
                    }
                    None => self.hub.counts.dropped += 1,
                }
            }
            (Incoming::Change, _) => {}
        }
    }

    /// Asks the client of a call for input, which ends its request. The call waits for the next one.
    fn ask_for_input(&mut self, ctx: &mut Context, id: Uuid) {
        // Otherwise, the client is asked with its next request.
        let call = self.translated.get_mut(&id);
        let Some(call) = call.filter(|call| call.is_open()) else {
            return;
        };
        let state = random_uuid();
        let asked = to_older::input_required(&call.id, &state.to_string(), &call.questions);
        let before = call.enter(Stage::Input {
            state,
            answer: None,
        });
        let input = Call::Translated(id, call.round);
        self.inputs.insert(state, id);
        let (hub, waiting) = self.split();
        hub.inputs.push(ctx, input, |call| waiting.is_waiting(call));
        if let Stage::Open(reply) = before {
            self.hub.callers.remove(&reply.caller);
            reply.finish(ctx, StatusCode::OK, None, &asked);
        }
    }

    /// Answers a call with the answer of the process, or keeps it for the client's next request.
    pub(super) fn finish_translated(&mut self, ctx: &mut Context, id: Uuid, text: &str) {
        let Some(call) = self.translated.get_mut(&id) else {
            return;
        };
        if let Stage::Input { answer, .. } = &mut call.stage {
            let why = "The answer came before the input, and is too long to keep";
            *answer = Some(match self.hub.bytes.take(&call.principal, text.len()) {
                Ok(()) => {
                    call.kept += text.len();
                    text.to_owned()
                }
                Err(_) => error(&call.id, code::INTERNAL, why, None),
            });
            return;
        }
        let text = with_id(text, &call.id);
        let text = match &call.kind {
            Kind::Other {
                method, questions, ..
            } => {
                let may_ask = questions.contains(&"elicitation/create");
                let asked = may_ask.then(|| to_older::url_required(&call.id, &text));
                asked
                    .flatten()
                    .unwrap_or_else(|| to_older::answer(method, &text))
            }
            _ => to_older::discovery(&text),
        };
        if let Some(reply) = self.end_translated(ctx, id) {
            let envelope = Envelope::parse(&text).ok();
            let result = envelope.and_then(|envelope| match envelope.kind {
                MessageKind::Response { result, .. } => result,
                _ => None,
            });
            reply.finish(ctx, status_of(&text, result.as_ref()), None, &text);
        }
    }

    /// Removes a call, which is cancelled unless it was answered. Returns the reply of its caller.
    pub(super) fn end_translated(&mut self, ctx: &mut Context, id: Uuid) -> Option<Reply> {
        let call = self.translated.remove(&id)?;
        self.hub.end_request(&call.principal);
        self.hub.bytes.give_back(&call.principal, call.kept);
        let mut out = Vec::new();
        if let Some(server) = self.shared.get_mut(call.seat.server) {
            server.sessions.leave(call.seat.member, &mut out);
        }
        self.act(ctx, call.seat.server, out);
        match call.stage {
            Stage::Open(reply) => {
                self.hub.callers.remove(&reply.caller);
                Some(reply)
            }
            Stage::Input { state, .. } => {
                self.inputs.remove(&state);
                None
            }
        }
    }

    /// Fails a call.
    pub(super) fn fail_translated(&mut self, ctx: &mut Context, id: Uuid, why: &str) {
        let own = self.translated.get(&id).map(|call| call.id.clone());
        if let Some(reply) = self.end_translated(ctx, id) {
            let failed = error(&own.unwrap_or_default(), code::INTERNAL, why, None);
            reply.finish(ctx, StatusCode::OK, None, &failed);
        }
    }

    /// Begins the stream of a call that has waited for a while.
    pub(super) fn begin_translated_stream(&mut self, ctx: &mut Context, id: Uuid) {
        if let Some(reply) = self.translated.get_mut(&id).and_then(TranslatedCall::reply) {
            reply.begin(ctx);
        }
    }

    /// Ends the subscriptions, or all calls, because the server stops.
    pub(super) fn end_all_translated(&mut self, ctx: &mut Context, why: Option<&str>) {
        let calls = self.translated.iter();
        let chosen = calls.filter(|(_, call)| why.is_some() || call.is_subscription());
        let chosen: Vec<Uuid> = chosen.map(|(id, _)| *id).collect();
        for id in chosen {
            match why {
                Some(why) => self.fail_translated(ctx, id, why),
                None => {
                    let own = self.translated.get(&id).map(|call| call.id.clone());
                    if let (Some(own), Some(reply)) = (own, self.end_translated(ctx, id)) {
                        reply.finish(ctx, StatusCode::OK, None, &subscription_ended(&own));
                    }
                }
            }
        }
    }
}
