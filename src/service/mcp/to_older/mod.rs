//! Clients of revision 2026-07-28 in front of a server of an older revision, without I/O.
//!
//! Each call has a seat of its own at a shared process until it is answered. A request loses its envelope, and its result gets the
//! members that the newer revision requires. `server/discover` is answered from the answer to `initialize`.
//!
//! What the server asks in the middle of a call becomes an `InputRequiredResult`, which ends the client's request. The call goes on. Its
//! `requestState` works once, for the same request of the same principal, until the owner ends the call because the time for the input
//! is over.
//!
//! `R` is how the owner answers a request. The owner calls [`ToOlder::begin`] or [`ToOlder::find_input`] and [`ToOlder::resume`] for
//! requests, [`ToOlder::receive`] for what a process sends to a seat, and [`ToOlder::end`] or [`ToOlder::fail`] for a call that it gives
//! up. It acts on each [`Output`].

mod call;
mod messages;
mod subscription;

use uuid::Uuid;

use self::call::{Call, Kind, Stage};
use self::messages::Question;
pub(crate) use self::messages::{
    ASKED, Questions, answer, discovery, is_unknown, may_ask, questions_for, request, state,
    versions,
};
use self::subscription::BEGIN;
use super::http_error::HttpError;
use super::hub::Handled;
use super::quota::Quota;
use super::request::CAPABILITIES_KEY;
use super::shared::{Incoming, Reach, Seat};
use super::subscription::{Filter, subscription_ended, with_subscription};
use crate::record::{Record, record};
use crate::service::id_map::IdMap;
use crate::service::jsonrpc::{Envelope, MessageKind, code, error, with_id};
use crate::sys::random_uuid;
use crate::{Principal, StatusCode};

/// What the owner has to do.
#[derive(Debug)]
pub(crate) enum Output<R> {
    /// Send a message from a seat to its process.
    Process(Seat, String),
    /// Send the caller of a call an event.
    Event(Uuid, String),
    /// The same, unless the caller is behind.
    News(Uuid, String),
    /// Answer a request.
    Answer(R, String),
    /// End a call in this round when the time for the input of its client is over.
    Wait(Uuid, u32),
    /// The call of this seat hears of changes from now on.
    Listen(Seat),
    /// A call of this principal has ended, and leaves its seat.
    End(Seat, Principal),
}

/// The calls that are not answered.
#[derive(Debug)]
pub(crate) struct ToOlder<R> {
    calls: IdMap<Uuid, Call<R>>,
    /// Those whose client was asked for input, by its state.
    inputs: IdMap<Uuid, Uuid>,
}

record!(impl<R: Record> ToOlder<R> { calls, inputs });

/// The capabilities of the client that sends a request, as JSON.
pub(crate) fn capabilities_of<'a>(envelope: &Envelope<'a>) -> &'a str {
    let capabilities = envelope.of_meta(CAPABILITIES_KEY);
    capabilities.map_or("{}", |at| &envelope.text[at])
}

impl<R> ToOlder<R> {
    pub(crate) fn new() -> Self {
        Self {
            calls: IdMap::default(),
            inputs: IdMap::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    /// The number of states with which a client can continue its call.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// The request that waits for a call. `None` while the client gathers input.
    pub(crate) fn reply(&mut self, id: Uuid) -> Option<&mut R> {
        match &mut self.calls.get_mut(&id)?.stage {
            Stage::Open(reply) => Some(reply),
            Stage::Input { .. } => None,
        }
    }

    /// The request that waits for a call in this round.
    pub(crate) fn reply_in(&self, id: Uuid, round: u32) -> Option<&R> {
        match &self.calls.get(&id)?.stage {
            Stage::Open(reply) if self.is_waiting(id, round) => Some(reply),
            _ => None,
        }
    }

    /// Whether a call is in this round. A round ends when the client is asked for input, and when it comes back.
    pub(crate) fn is_waiting(&self, id: Uuid, round: u32) -> bool {
        self.calls.get(&id).is_some_and(|call| call.round == round)
    }

    /// Whether a request from the process reaches the client of a call.
    pub(crate) fn reach(&self, id: Uuid) -> Reach {
        self.calls.get(&id).map_or(Reach::Never, Call::reach)
    }

    /// Begins a call, which has a seat. Returns the round in which the request waits.
    pub(crate) fn begin(
        &mut self,
        id: Uuid,
        (seat, principal): (Seat, Principal),
        envelope: &Envelope<'_>,
        reply: R,
        out: &mut Vec<Output<R>>,
    ) -> u32 {
        let method = envelope.method();
        let own = envelope.id().unwrap_or("null");
        let token = envelope.of_meta("progressToken");
        let (kind, text) = match method {
            "server/discover" => (Kind::Discover, messages::initialize(own)),
            "subscriptions/listen" => {
                let kind = Kind::Subscribing {
                    filter: Filter::of(envelope),
                    uris: Vec::new(),
                    waiting: 1,
                };
                (kind, messages::initialize(BEGIN))
            }
            _ => {
                let kind = Kind::Other {
                    method: method.into(),
                    target: messages::target(envelope),
                    permitted: match may_ask(method) {
                        true => questions_for(capabilities_of(envelope)),
                        false => Questions::default(),
                    },
                };
                (kind, request(envelope))
            }
        };
        let call = Call {
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
        self.calls.insert(id, call);
        out.push(Output::Process(seat, text));
        0
    }

    /// The call that a request continues with its input, and the seat whose process must take answers. The state can still be used.
    pub(crate) fn find_input(
        &self,
        envelope: &Envelope<'_>,
        state: &str,
        principal: &Principal,
    ) -> Result<(Uuid, Option<Seat>), HttpError> {
        let invalid = |why| HttpError::new(StatusCode::BAD_REQUEST, code::PARAMS, why);
        let unknown =
            || invalid("Invalid params: requestState is unknown, used up, or of another request");
        let state = Uuid::try_parse(state).map_err(|_| unknown())?;
        let id = *self.inputs.get(&state).ok_or_else(unknown)?;
        let call = self.calls.get(&id).ok_or_else(unknown)?;
        let is_same = match (&call.kind, &envelope.kind) {
            (Kind::Other { method, target, .. }, MessageKind::Request { method: asked, .. }) => {
                **method == **asked && *target == messages::target(envelope)
            }
            _ => false,
        };
        if call.principal != *principal || !is_same {
            return Err(unknown());
        }
        let mut questions = call.questions.iter();
        if questions.any(|question| question.is_answered_badly(envelope)) {
            return Err(invalid(
                "Invalid params: inputResponses has something that is no result",
            ));
        }
        Ok((id, (!call.questions.is_empty()).then_some(call.seat)))
    }

    /// Continues a call that [`Self::find_input`] has found, which uses up its state. Returns the round in which the request waits.
    pub(crate) fn resume(
        &mut self,
        id: Uuid,
        envelope: &Envelope<'_>,
        reply: R,
        bytes: &mut Quota,
        out: &mut Vec<Output<R>>,
    ) -> Option<u32> {
        let call = self.calls.get_mut(&id)?;
        let token = envelope.of_meta("progressToken");
        call.token = token.map(|at| envelope.text[at].into());
        call.id = envelope.id().unwrap_or("null").into();
        let answer = match call.enter(Stage::Open(reply)) {
            Stage::Input { state, answer } => {
                self.inputs.remove(&state);
                answer
            }
            Stage::Open(_) => None,
        };
        // Another call may wait for the input, even if this one is answered.
        let (seat, round) = (call.seat, call.round);
        call.keep_questions(bytes, |question| {
            let response = question.response(envelope);
            let is_open = response.is_none();
            out.extend(response.map(|response| Output::Process(seat, response)));
            is_open
        });
        let is_asked = !call.questions.is_empty();
        match answer {
            Some(answer) => self.finish(id, &answer, bytes, out),
            None if is_asked => self.ask_for_input(id, out),
            None => {}
        }
        Some(round)
    }

    /// Handles a message of the process for a call.
    pub(crate) fn receive(
        &mut self,
        id: Uuid,
        incoming: &Incoming,
        text: &str,
        bytes: &mut Quota,
        out: &mut Vec<Output<R>>,
    ) -> Handled {
        let Some(call) = self.calls.get_mut(&id) else {
            return Handled::Passed;
        };
        match (incoming, &call.kind) {
            (Incoming::Answer(ended) | Incoming::NotStarted(ended), Kind::Subscribing { .. }) => {
                self.handle_subscribing(id, &ended.id, text, bytes, out);
            }
            // That of a subscription is the error of a process that has ended.
            (Incoming::Answer(_) | Incoming::NotStarted(_), _) => {
                self.finish(id, text, bytes, out);
            }
            // A call that is cancelled leaves its seat before.
            (Incoming::Cancelled(_), _) => {}
            (Incoming::Progress(_), _) => {
                let token = call.token.as_deref();
                let text = token.and_then(|token| messages::progress(text, token));
                out.extend(text.map(|text| Output::News(id, text)));
            }
            (Incoming::Change, Kind::Listen(filter)) => {
                if let Ok(envelope) = Envelope::parse(text)
                    && filter.wants(envelope.method(), &envelope)
                {
                    out.push(Output::Event(id, with_subscription(&envelope, &call.id)));
                }
            }
            (Incoming::Change, _) => {}
            (Incoming::Request, _) => return self.handle_question(id, text, bytes, out),
            (Incoming::Other, _) => {
                // The server takes a question back, or has written a log message, which no request has asked for.
                let envelope = Envelope::parse(text).ok();
                let Some(at) = envelope.and_then(|envelope| envelope.request_id) else {
                    return Handled::Dropped;
                };
                call.keep_questions(bytes, |one| !one.has_id(&text[at.clone()]));
            }
        }
        Handled::Passed
    }

    /// Handles a request from the process. It is refused if the client cannot be asked for it.
    fn handle_question(
        &mut self,
        id: Uuid,
        text: &str,
        bytes: &mut Quota,
        out: &mut Vec<Output<R>>,
    ) -> Handled {
        let (Some(call), Ok(envelope)) = (self.calls.get_mut(&id), Envelope::parse(text)) else {
            return Handled::Dropped;
        };
        let question = Question::read(&envelope, call.permitted());
        let taken = |_: &Question| bytes.take(&call.principal, text.len()).is_ok();
        let Some(question) = question.filter(taken) else {
            let own = envelope.id().unwrap_or("null");
            let why = Some("the client cannot be asked for this");
            let refused = error(own, code::NO_METHOD, "Method not found", why);
            out.push(Output::Process(call.seat, refused));
            return Handled::Refused;
        };
        call.kept += text.len();
        call.questions.push(question);
        self.ask_for_input(id, out);
        Handled::Passed
    }

    /// Asks the client of a call for input, which ends its request. A client that gathers input is asked with its next request.
    fn ask_for_input(&mut self, id: Uuid, out: &mut Vec<Output<R>>) {
        let call = self.calls.get_mut(&id);
        let Some(call) = call.filter(|call| call.is_open()) else {
            return;
        };
        let state = random_uuid();
        let asked = messages::input_required(&call.id, &state.to_string(), &call.questions);
        self.inputs.insert(state, id);
        let answer = None;
        if let Stage::Open(reply) = call.enter(Stage::Input { state, answer }) {
            out.push(Output::Answer(reply, asked));
        }
        out.push(Output::Wait(id, call.round));
    }

    /// Answers a call with the answer of the process, or keeps it for the client's next request.
    fn finish(&mut self, id: Uuid, text: &str, bytes: &mut Quota, out: &mut Vec<Output<R>>) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        if let Stage::Input { answer, .. } = &mut call.stage {
            let why = "The answer came before the input, and is too long to keep";
            *answer = Some(match bytes.take(&call.principal, text.len()) {
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
                method, permitted, ..
            } => {
                let may_ask = permitted.contains(&"elicitation/create");
                let asked = may_ask.then(|| messages::url_required(&call.id, &text));
                asked.flatten().unwrap_or_else(|| answer(method, &text))
            }
            _ => discovery(&text),
        };
        let reply = self.end(id, bytes, out);
        out.extend(reply.map(|reply| Output::Answer(reply, text)));
    }

    /// Removes a call, which is cancelled unless it was answered. Returns its request.
    pub(crate) fn end(
        &mut self,
        id: Uuid,
        bytes: &mut Quota,
        out: &mut Vec<Output<R>>,
    ) -> Option<R> {
        let call = self.calls.remove(&id)?;
        bytes.give_back(&call.principal, call.kept);
        out.push(Output::End(call.seat, call.principal));
        match call.stage {
            Stage::Open(reply) => Some(reply),
            Stage::Input { state, .. } => {
                self.inputs.remove(&state);
                None
            }
        }
    }

    /// Removes a call, whose request is answered with an error.
    pub(crate) fn fail(
        &mut self,
        id: Uuid,
        why: &str,
        bytes: &mut Quota,
        out: &mut Vec<Output<R>>,
    ) {
        self.end_with(id, |own| error(own, code::INTERNAL, why, None), bytes, out);
    }

    fn end_with(
        &mut self,
        id: Uuid,
        text: impl Fn(&str) -> String,
        bytes: &mut Quota,
        out: &mut Vec<Output<R>>,
    ) {
        let text = self.calls.get(&id).map(|call| text(&call.id));
        let reply = self.end(id, bytes, out);
        out.extend(
            reply
                .zip(text)
                .map(|(reply, text)| Output::Answer(reply, text)),
        );
    }

    /// Ends the subscriptions, or fails all calls, because the server stops.
    pub(crate) fn end_all(
        &mut self,
        why: Option<&str>,
        bytes: &mut Quota,
        out: &mut Vec<Output<R>>,
    ) {
        let calls = self.calls.iter();
        let chosen = calls.filter(|(_, call)| why.is_some() || call.is_subscription());
        let chosen: Vec<Uuid> = chosen.map(|(id, _)| *id).collect();
        for id in chosen {
            match why {
                Some(why) => self.fail(id, why, bytes, out),
                None => self.end_with(id, subscription_ended, bytes, out),
            }
        }
    }
}
