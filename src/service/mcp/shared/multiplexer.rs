//! The sessions of a process of an older revision, without I/O.
//!
//! If the process belongs to one session ([`Who::Client`]), messages pass unchanged in both directions. The table of requests says
//! which stream gets an answer.
//!
//! Otherwise, the process sees one client. It is initialized once, with the revision and the capabilities that all its sessions have
//! in common, and again after each restart, with the log level and the subscriptions of that time. Each session sees a process of its
//! own:
//!
//! * Requests get upstream ids, which are also their progress tokens, so answers and progress reach one session.
//! * The process has the most verbose log level of all sessions, and subscribes to a resource while any session does.
//! * A request from the process gets an id of its own too, and only the session that has got it can answer it.
//!
//! The owner calls [`Multiplexer::begin`] when a process was started, and acts on each [`Output`].

use std::collections::{BTreeMap, HashMap, HashSet};

use uuid::Uuid;

use super::member::{Level, MAX_SUBSCRIPTIONS_EACH, Member, cost_of};
use crate::Principal;
use crate::record::record;
use crate::service::json::{quote, unescape};
use crate::service::jsonrpc::{
    Envelope, Forwarded, IdKey, Pending, RequestKind, UpstreamIds, cancellation, code, error,
    sole_member, success, with_id,
};
use crate::service::mcp::held_requests::HeldRequests;
use crate::service::mcp::http_error::cannot_start;
use crate::service::mcp::quota::BytesOfEach;

/// The process in the tables of requests: there is one.
pub(super) const PROCESS: usize = 0;

/// The id in the error that listening members get when the process ends.
pub(crate) const ENDED: &str = "null";

/// The maximum number of Outrigger's own requests that are tracked.
const MAX_TOLD: usize = 1024;

/// Whose sessions a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// One session, which the process belongs to.
    Client,
    /// Those of one principal, so everything that the process says is for it.
    Person,
    /// Those of several principals, or of one that may be several persons.
    Everybody,
}

/// What the owner has to do.
#[derive(Debug)]
pub(crate) enum Output {
    /// Send a line to the process. What is sent is bounded by what was accepted.
    Process(String),
    /// Send the process a response to its own request, unless the process does not read.
    AnswerToProcess(String),
    /// Pass a message on to a session. It has the ids of the session.
    Session(Uuid, Incoming, String),
    /// Pass a change on to these sessions.
    Change(Vec<Uuid>, String),
    /// Stop the process: it has refused to initialize.
    Refused,
}

impl Output {
    /// The number of messages for sessions.
    pub(crate) fn deliveries(&self) -> usize {
        match self {
            Self::Session(..) => 1,
            Self::Change(sessions, _) => sessions.len(),
            Self::Process(_) | Self::AnswerToProcess(_) | Self::Refused => 0,
        }
    }
}

/// A request of a session that ends.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its id, as written.
    pub(crate) id: Box<str>,
    /// The number that the session has given it.
    pub(crate) stream: u32,
}

impl Ended {
    pub(super) fn new(id: &str, stream: u32) -> Self {
        let id = id.into();
        Self { id, stream }
    }
}

/// The kind of a message from a process, for the session that gets it.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// The answer to a request.
    Answer(Ended),
    /// The error for a request whose process cannot be started.
    NotStarted(Ended),
    /// The error for a request that the session has cancelled.
    Cancelled(Ended),
    /// The progress of a request, by its stream. `None` if it is unknown of which.
    Progress(Option<u32>),
    /// A change that belongs to no request.
    Change,
    Request,
    /// Another notification.
    Other,
}

/// Why a process answers no more requests.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It cannot be started.
    NotStarted,
    /// All requests get this error, with their own ids.
    Error(String),
}

/// Whether a request of the process reaches the client of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Never,
    /// When the client sends or reads something again.
    Later,
    Now,
}

/// What a request to the process is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// The process is initialized.
    Begin,
    /// The process is told something for all sessions.
    Own,
    /// The member waits for the answer on this stream.
    Call(usize, u32, Effect),
}

record!(
    enum Purpose {
        Begin,
        Own,
        Call(member, stream, effect),
    }
);

impl RequestKind for Purpose {
    fn is_subscription(&self) -> bool {
        false
    }
}

/// What the answer of the process decides.
#[derive(Debug)]
pub(super) enum Effect {
    Nothing,
    /// It is `initialize`. A shared process does not get it.
    Initialize,
    /// A result gives the session this level.
    Level(Level),
    /// An error takes back the resource that the session has newly subscribed to.
    Subscribes(Box<str>),
}

record!(
    enum Effect {
        Nothing,
        Initialize,
        Level(level),
        Subscribes(uri),
    }
);

/// A request from the process that a session has got. The session takes the place of the process in the table.
#[derive(Debug)]
pub(super) struct Question;

record!(Question {});

impl RequestKind for Question {
    fn is_subscription(&self) -> bool {
        false
    }
}

/// How far the process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It does not run, or has not got anything yet.
    Stopped,
    Initializing,
    Ready,
}

record!(
    enum Who {
        Client,
        Person,
        Everybody,
    }
);
record!(
    enum Phase {
        Stopped,
        Initializing,
        Ready,
    }
);

/// The sessions of one process.
#[derive(Debug)]
pub(crate) struct Multiplexer {
    who: Who,
    /// The revision and the capabilities of all sessions, as JSON.
    version: Box<str>,
    capabilities: Box<str>,
    /// The sessions, by numbers that are not reused. The newest is the last.
    pub(super) members: BTreeMap<usize, Member>,
    joined: usize,
    /// The members that have subscribed to a resource.
    pub(super) subscribers: HashMap<Box<str>, HashSet<usize>>,
    /// What the subscriptions of each principal cost.
    subscribed: BytesOfEach,
    /// Requests from sessions and from Outrigger itself.
    pub(super) calls: Pending<Forwarded<Purpose>>,
    /// The upstream ids of the members' requests, by their own ids.
    pub(super) own_ids: HashMap<(usize, IdKey), u64>,
    /// Requests from the process.
    pub(super) questions: Pending<Forwarded<Question>>,
    pub(super) ids: UpstreamIds,
    pub(super) phase: Phase,
    /// The result of `initialize`.
    pub(super) result: Option<Box<str>>,
    /// The requests that wait until the process is ready.
    pub(super) held: HeldRequests,
    /// Whether a session has said that it is initialized, and whether the process knows.
    is_initialized: bool,
    is_told: bool,
    /// The level that the process was told last. `None` if it is unknown whether the process has accepted it.
    pub(super) level: Option<Level>,
}

record!(Multiplexer {
    who,
    version,
    capabilities,
    members,
    joined,
    subscribers,
    subscribed,
    calls into(Pending::new(None)),
    own_ids,
    questions into(Pending::new(None)),
    ids,
    phase,
    result,
    held,
    is_initialized,
    is_told,
    level,
});

impl Multiplexer {
    /// Sessions with this revision and these capabilities, which are JSON.
    pub(crate) fn new(who: Who, version: &str, capabilities: &str) -> Self {
        Self {
            who,
            version: version.into(),
            capabilities: capabilities.into(),
            members: BTreeMap::new(),
            joined: 0,
            subscribers: HashMap::new(),
            subscribed: BytesOfEach::new(MAX_SUBSCRIPTIONS_EACH),
            calls: Pending::new(None),
            own_ids: HashMap::new(),
            questions: Pending::new(None),
            ids: UpstreamIds::default(),
            phase: Phase::Stopped,
            result: None,
            held: HeldRequests::default(),
            is_initialized: false,
            is_told: false,
            level: None,
        }
    }

    /// Whether a request of a principal may wait until the process is ready.
    pub(crate) fn has_room(&self, principal: &Principal, length: usize) -> bool {
        self.held.has_room(principal, length)
    }

    pub(crate) fn has_members(&self) -> bool {
        !self.members.is_empty()
    }

    /// Notes that a member wants to hear of changes, so the process must run.
    pub(crate) fn listen(&mut self, number: usize, out: &mut Vec<Output>) {
        if let Some(member) = self.members.get_mut(&number) {
            member.is_listening = true;
            self.initialized(out);
        }
    }

    fn is_heard(&self) -> bool {
        self.members.values().any(Member::needs_process)
    }

    /// Whether a process has to run now, although none does.
    pub(crate) fn needs_process(&self) -> bool {
        self.phase == Phase::Stopped && (!self.held.is_empty() || self.is_heard())
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Whether the process may be stopped without a loss.
    pub(crate) fn is_idle(&self) -> bool {
        self.own_ids.is_empty() && self.questions.len() == 0 && !self.is_heard()
    }

    fn subscriptions(&self) -> impl Iterator<Item = &str> {
        let members = self.members.values();
        members.flat_map(Member::subscriptions)
    }

    /// The session that gets messages that belong to no request: the only one. If sessions may belong to several persons, there must
    /// never have been another session, because the process may still be working for one that has ended.
    pub(super) fn sole(&self) -> Option<Uuid> {
        let is_sole = match self.who {
            Who::Client | Who::Person => self.members.len() == 1,
            Who::Everybody => self.joined == 1,
        };
        let (_, member) = self.members.first_key_value().filter(|_| is_sole)?;
        Some(member.session)
    }

    pub(super) fn is_one_person(&self) -> bool {
        self.who == Who::Person
    }

    /// Whether the process belongs to one session.
    pub(super) fn is_own(&self) -> bool {
        self.who == Who::Client
    }

    /// The session that the process belongs to. `None` if sessions share the process.
    pub(crate) fn owner(&self) -> Option<Uuid> {
        self.is_own().then(|| self.sole()).flatten()
    }

    /// Whether the process can get messages from sessions. Its own session initializes it.
    pub(super) fn is_open(&self) -> bool {
        match self.who {
            Who::Client => self.phase != Phase::Stopped,
            Who::Person | Who::Everybody => self.phase == Phase::Ready,
        }
    }

    /// Whether a request of a member with this id is not answered.
    pub(crate) fn is_pending(&self, number: usize, id: &str) -> bool {
        self.own_ids.contains_key(&(number, IdKey::of(id)))
    }

    /// Adds a session of a principal. Returns its number.
    pub(crate) fn join(&mut self, session: Uuid, principal: &Principal) -> usize {
        self.joined += 1;
        let member = Member::new(session, principal.clone());
        self.members.insert(self.joined, member);
        self.joined
    }

    /// Removes a session: its requests are cancelled, the requests to it fail, and what only it has asked for is taken back.
    pub(crate) fn leave(&mut self, number: usize, out: &mut Vec<Output>) {
        let Some(member) = self.members.remove(&number) else {
            return;
        };
        let is_own =
            |call: &Forwarded<Purpose>| matches!(call.call, Purpose::Call(by, ..) if by == number);
        for id in self.calls.ids_of(is_own) {
            self.cancel(id, out);
        }
        for id in self.questions.ids_of_process(number) {
            if let Some(question) = self.questions.remove(id)
                && let Some(ids) = question.sender_ids
            {
                let failed = error(&ids.id, code::INTERNAL, "The client has left", None);
                out.push(Output::Process(failed));
            }
        }
        self.subscribed.remove(&member.principal, member.cost);
        for uri in member.subscriptions() {
            self.forget_subscriber(number, uri);
            if !self.subscribers.contains_key(uri) {
                let params = format!(r#""uri":{}"#, quote(uri));
                self.tell("resources/unsubscribe", &params, out);
            }
        }
        self.correct_level(out);
    }

    /// Tells the process the level that the sessions want, if it has another one.
    fn correct_level(&mut self, out: &mut Vec<Output>) {
        if let Some(level) = self.wanted_level()
            && self.level != Some(level)
        {
            self.tell_level(level, out);
        }
    }

    fn forget_subscriber(&mut self, number: usize, uri: &str) {
        if let Some(subscribers) = self.subscribers.get_mut(uri) {
            subscribers.remove(&number);
            if subscribers.is_empty() {
                self.subscribers.remove(uri);
            }
        }
    }

    /// Returns whether the subscription is new.
    pub(super) fn subscribe(&mut self, number: usize, uri: &str) -> Result<bool, &'static str> {
        let member = self.members.get_mut(&number);
        let member = member.ok_or("the session has ended")?;
        let is_new = member.subscribe(uri)?;
        if is_new {
            if !self.subscribed.has_room(&member.principal, cost_of(uri)) {
                member.unsubscribe(uri);
                return Err("the principal has too many subscriptions");
            }
            self.subscribed.add(&member.principal, cost_of(uri));
        }
        let subscribers = self.subscribers.entry(uri.into()).or_default();
        subscribers.insert(number);
        Ok(is_new)
    }

    pub(super) fn unsubscribe(&mut self, number: usize, uri: &str) {
        if let Some(member) = self.members.get_mut(&number)
            && member.unsubscribe(uri)
        {
            self.subscribed.remove(&member.principal, cost_of(uri));
        }
        self.forget_subscriber(number, uri);
    }

    pub(super) fn wanted_level(&self) -> Option<Level> {
        self.members
            .values()
            .filter_map(|member| member.level)
            .min()
    }

    fn tell_level(&mut self, level: Level, out: &mut Vec<Output>) {
        self.level = Some(level);
        let params = format!(r#""level":{}"#, level.as_json());
        self.tell("logging/setLevel", &params, out);
    }

    /// Sends a request from Outrigger itself, if the process runs. The response does not matter.
    fn tell(&mut self, method: &str, params: &str, out: &mut Vec<Output>) {
        if self.phase == Phase::Ready {
            self.ask(method, params, Purpose::Own, out);
        }
    }

    fn ask(&mut self, method: &str, params: &str, call: Purpose, out: &mut Vec<Output>) {
        let upstream_id = self.ids.next();
        let request = Forwarded {
            process: PROCESS,
            upstream_id,
            sender_ids: None,
            call,
        };
        // Responses to Outrigger's own requests are ignored, and few of them are tracked.
        if self.calls.len().saturating_sub(self.own_ids.len()) < MAX_TOLD {
            self.calls.insert(upstream_id, request);
        }
        out.push(Output::Process(format!(
            r#"{{"jsonrpc":"2.0","id":{upstream_id},"method":"{method}","params":{{{params}}}}}"#
        )));
    }

    /// Initializes a process that was just started.
    pub(crate) fn begin(&mut self, out: &mut Vec<Output>) {
        self.phase = Phase::Initializing;
        if self.is_own() {
            return out.extend(self.held.take().map(Output::Process));
        }
        self.is_told = false;
        let (version, capabilities) = (&self.version, &self.capabilities);
        let params = format!(
            r#""protocolVersion":{version},"capabilities":{capabilities},"clientInfo":{{"name":"outrigger","version":"{}"}}"#,
            env!("CARGO_PKG_VERSION")
        );
        self.ask("initialize", &params, Purpose::Begin, out);
    }

    /// Sends a process that is initialized what it has to know, and the requests that have waited for it.
    pub(super) fn complete(&mut self, out: &mut Vec<Output>) {
        self.phase = Phase::Ready;
        let result = self.result.clone().unwrap_or_default();
        let initializes =
            |call: &Forwarded<Purpose>| matches!(call.call, Purpose::Call(.., Effect::Initialize));
        for id in self.calls.ids_of(initializes) {
            self.held.remove(id);
            if let Some((number, ended, _)) = self.take_call(id) {
                let text = answered(&ended.id, &result);
                self.answer(number, ended, text, out);
            }
        }
        if self.is_initialized || !self.held.is_empty() {
            self.initialized(out);
        }
        self.level = None;
        if let Some(level) = self.wanted_level() {
            self.tell_level(level, out);
        }
        // The requests of new subscribers are among those that wait.
        let held = self.calls.values().filter_map(|call| match &call.call {
            Purpose::Call(.., Effect::Subscribes(uri)) => Some(&**uri),
            _ => None,
        });
        let held: HashSet<&str> = held.collect();
        let known = self.subscriptions().filter(|uri| !held.contains(uri));
        let uris: HashSet<String> = known.map(quote).collect();
        for uri in uris {
            self.tell("resources/subscribe", &format!(r#""uri":{uri}"#), out);
        }
        out.extend(self.held.take().map(Output::Process));
    }

    pub(super) fn initialized(&mut self, out: &mut Vec<Output>) {
        self.is_initialized = true;
        if self.phase == Phase::Ready && !self.is_told {
            self.is_told = true;
            let text = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
            out.push(Output::Process(text.to_owned()));
        }
    }

    /// The request of a session has failed.
    pub(super) fn take_back(&mut self, number: usize, effect: Effect) {
        match effect {
            Effect::Nothing | Effect::Initialize => {}
            // The process has kept its level, which may be one of several.
            Effect::Level(_) => self.level = None,
            Effect::Subscribes(uri) => self.unsubscribe(number, &uri),
        }
    }

    /// The process has answered the request of a session.
    pub(super) fn settle(
        &mut self,
        number: usize,
        effect: Effect,
        is_result: bool,
        out: &mut Vec<Output>,
    ) {
        if matches!(effect, Effect::Initialize) {
            self.phase = Phase::Ready;
        }
        let is_level = matches!(effect, Effect::Level(_));
        match (effect, self.members.get_mut(&number)) {
            (Effect::Level(level), Some(member)) if is_result => member.level = Some(level),
            (effect, _) if !is_result => self.take_back(number, effect),
            _ => {}
        }
        // Most answers change no level, and finding the wanted one looks at every session.
        if is_level {
            self.correct_level(out);
        }
    }

    /// Takes a request out of the tables.
    pub(super) fn take(&mut self, upstream_id: u64) -> Option<Forwarded<Purpose>> {
        let call = self.calls.remove(upstream_id)?;
        if let (Purpose::Call(number, ..), Some(ids)) = (&call.call, &call.sender_ids) {
            self.own_ids.remove(&(*number, IdKey::of(&ids.id)));
        }
        Some(call)
    }

    /// Takes a request of a member out of the tables. Returns the number of the member, the request, and what its answer decides.
    pub(super) fn take_call(&mut self, upstream_id: u64) -> Option<(usize, Ended, Effect)> {
        let call = self.take(upstream_id)?;
        match (call.call, call.sender_ids) {
            (Purpose::Call(number, stream, effect), Some(ids)) => {
                Some((number, Ended { id: ids.id, stream }, effect))
            }
            _ => None,
        }
    }

    /// Whether the process has got a request, which was just taken out of the tables. It is held no more.
    pub(super) fn was_sent(&mut self, upstream_id: u64) -> bool {
        self.held.remove(upstream_id).is_none() && self.is_open()
    }

    fn cancel(&mut self, upstream_id: u64, out: &mut Vec<Output>) {
        self.take(upstream_id);
        if self.was_sent(upstream_id) {
            let why = Some("Client disconnected");
            out.push(Output::Process(cancellation(upstream_id, why)));
        }
    }

    /// The process does not run any more. It had nothing to do.
    pub(crate) fn forget_process(&mut self) {
        self.phase = Phase::Stopped;
        self.questions = Pending::new(None);
        if self.own_ids.is_empty() {
            self.calls = Pending::new(None);
        }
    }

    /// Handles the end of the process, or its failure to begin. All requests fail.
    pub(crate) fn end(&mut self, failure: &Failure, out: &mut Vec<Output>) {
        self.held = HeldRequests::default();
        // Changes are not reported until another process runs, so listening members must subscribe again. They get this error
        // first. Otherwise, a subscription that is still being set up would take the errors below for refused resources.
        let members = self.members.iter();
        for (number, _) in members.filter(|(_, member)| member.is_listening) {
            self.fail(*number, Ended::new(ENDED, 0), failure, out);
        }
        for id in self.calls.ids_of(|_| true) {
            if let Some((number, ended, effect)) = self.take_call(id) {
                self.take_back(number, effect);
                self.fail(number, ended, failure, out);
            }
        }
        self.forget_process();
    }

    /// Answers a request of a member.
    pub(super) fn answer(&self, number: usize, ended: Ended, text: String, out: &mut Vec<Output>) {
        if let Some(member) = self.members.get(&number) {
            out.push(Output::Session(
                member.session,
                Incoming::Answer(ended),
                text,
            ));
        }
    }

    fn fail(&self, number: usize, ended: Ended, failure: &Failure, out: &mut Vec<Output>) {
        let Some(member) = self.members.get(&number) else {
            return;
        };
        let (incoming, text) = match failure {
            Failure::NotStarted => {
                let text = cannot_start(&ended.id);
                (Incoming::NotStarted(ended), text)
            }
            Failure::Error(text) => {
                let text = with_id(text, &ended.id);
                (Incoming::Answer(ended), text)
            }
        };
        out.push(Output::Session(member.session, incoming, text));
    }
}

/// The response with a result, which is JSON.
pub(super) fn answered(id: &str, result: &str) -> String {
    success(id, result).concat()
}

/// The resource that a request or a notification is about.
pub(super) fn uri_of(envelope: &Envelope<'_>) -> Result<Box<str>, &'static str> {
    let raw = sole_member(envelope, "uri").map(|range| &envelope.text[range]);
    let raw = raw.filter(|raw| raw.starts_with('"'));
    raw.map(|raw| unescape(raw).into())
        .ok_or("\"uri\" is not a string")
}

/// Whether a notification reports a change, which belongs to no request.
pub(crate) fn is_change(method: &str) -> bool {
    method.ends_with("/list_changed") || method == "notifications/resources/updated"
}
