//! The messages between a host and an MCP server behind HTTP: which HTTP request carries each one, what its answer is, and what happens
//! after a cut. Without I/O: messages, parts of responses and the time come in, and [`Action`]s come out.
//!
//! Each message of the host is a [`Post`]. It stays until it is finished: a request until its one answer is written, any other message
//! until the server has accepted it. What happens if the connection for a request is cut:
//!
//! | the request | then |
//! |---|---|
//! | was not sent completely | the loop connects and sends it again |
//! | has an answer whose last event has an id | the rest is fetched with `Last-Event-ID` |
//! | has the same effect if it runs twice | it is sent again |
//! | may have run | the host gets an error that says so |

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use super::exchange::{Body, Exchange, Purpose, json_error};
use super::post::{Kind, Post, State, shown};
use super::session::{Session, cancelled, is_request_of_host};
use super::stream::GetStream;
use crate::protocol::client::HttpRequest;
use crate::service::Problem;
use crate::service::json::Skimmer;
use crate::service::jsonrpc::{
    Envelope, EnvelopeError, IdKey, MAX_ID, MessageKind, batch_messages, code, error,
    invalid_message_error, is_array, splice,
};
use crate::{Target, Time};

/// The maximum number of messages of the host that are not finished.
const MAX_POSTS: usize = 1024;

/// The maximum number of HTTP requests at a time, without the GET stream.
const MAX_EXCHANGES: usize = 64;

/// How often a message is sent again. Attempts that could not send it do not count.
const MAX_REPEATS: u32 = 16;

/// The first delay before a message is sent again. It doubles each time.
const FIRST_DELAY: Duration = Duration::from_millis(100);

/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// How long to wait before coming back to a stream that the server has ended, if it does not say.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// How long a server may take to end a stream after the answer.
const AFTER_ANSWER: Duration = Duration::from_secs(5);

/// How long the server may take to end the session.
const GOODBYE_LIMIT: Duration = Duration::from_secs(2);

/// Messages of the host begin here. Lower numbers are for those that restore the session, which precede all others.
pub(super) const FIRST_OF_HOST: u64 = 1 << 32;

/// What the service must do.
#[derive(Debug)]
pub(super) enum Action {
    /// Send an HTTP request. The parts of its response come back with this number.
    Send(u64, HttpRequest),
    /// Drop the connection of a request. Nothing more of it is of interest.
    Drop(u64),
    /// Write a message of the server to the host.
    Write(String),
    /// Write a message of this side to the host.
    Answer(String),
    /// Send all further requests to this URL, to which the server has redirected one.
    Move(Target),
    /// End with this failure.
    Fail(String, Option<Problem>),
    /// The session has ended.
    Finish,
}

/// All messages under way.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) session: Session,
    /// By their order.
    pub(super) posts: BTreeMap<u64, Post>,
    /// The requests of the host among them, by their ids.
    ids: HashMap<IdKey, u64>,
    /// The HTTP requests under way, by their numbers.
    pub(super) exchanges: BTreeMap<u64, Exchange>,
    pub(super) stream: GetStream,
    /// When the present session began.
    pub(super) session_since: Time,
    actions: VecDeque<Action>,
    last_post: u64,
    pub(super) last_own: u64,
    last_exchange: u64,
    /// The revision of the last message that says its own.
    newest_version: Option<String>,
    /// Where requests are sent.
    pub(super) target: Target,
    /// The maximum length of a message.
    pub(super) max_message: usize,
    /// Whether the server has answered anything.
    pub(super) was_open: bool,
    /// Whether the last attempt to begin a session again has failed.
    pub(super) has_failed: bool,
    /// Whether only the end of the session is awaited.
    is_leaving: bool,
}

impl Conversation {
    pub(super) fn new(target: Target, max_message: usize) -> Self {
        Self {
            target,
            session: Session::default(),
            posts: BTreeMap::new(),
            ids: HashMap::new(),
            exchanges: BTreeMap::new(),
            stream: GetStream::default(),
            session_since: Time::default(),
            actions: VecDeque::new(),
            last_post: FIRST_OF_HOST,
            last_own: 0,
            last_exchange: 0,
            newest_version: None,
            max_message,
            was_open: false,
            has_failed: false,
            is_leaving: false,
        }
    }

    /// What the service must do next.
    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// The bytes of the messages that wait to be sent, or to be answered.
    pub(super) fn held(&self) -> usize {
        self.posts.values().map(|post| post.text.len()).sum()
    }

    /// Whether the host must wait before it sends more.
    pub(super) fn is_full(&self) -> bool {
        self.posts.len() >= MAX_POSTS
    }

    /// The number of requests of the host that have no answer.
    pub(super) fn unanswered(&self) -> usize {
        self.posts
            .values()
            .filter(|post| is_request_of_host(post))
            .count()
    }

    /// Whether the server has received everything, and has answered it.
    pub(super) fn is_done(&self) -> bool {
        self.posts.values().all(|post| post.is_own)
    }

    /// Handles a message of the host.
    pub(super) fn handle_local(&mut self, now: Time, text: &str) {
        let envelope = match Envelope::parse(text) {
            Ok(envelope) => envelope,
            Err(error) => return self.act(Action::Answer(invalid_message_error(text, &error))),
        };
        if let Some(id) = envelope.id().filter(|id| id.len() > MAX_ID) {
            let why = Some("the id is too long");
            return self.act(Action::Answer(error(
                id,
                code::INVALID,
                "Invalid request",
                why,
            )));
        }
        if let Some(id) = cancelled(&envelope)
            && self.cancel(&text[id])
        {
            return;
        }
        let mut post = Post::new(&envelope, false);
        match &envelope.kind {
            MessageKind::Request { id, .. } => {
                let raw = &text[id.clone()];
                let key = IdKey::of(raw);
                if self.ids.contains_key(&key) {
                    let why = Some("a request with this id is not answered yet");
                    return self.act(Action::Answer(error(
                        raw,
                        code::INVALID,
                        "Invalid request",
                        why,
                    )));
                }
                self.ids.insert(key, self.last_post + 1);
                if post.version.is_some() {
                    self.newest_version.clone_from(&post.version);
                }
            }
            MessageKind::Response { id, .. }
                if !self.session.handle_answered(&text[id.clone()]) =>
            {
                return log::debug!("dropped a response to a request of an earlier session");
            }
            // Without a session, the host speaks the revision of its requests.
            MessageKind::Notification { .. } if !self.session.has_begun() => {
                post.version.clone_from(&self.newest_version);
            }
            MessageKind::Response { .. } | MessageKind::Notification { .. } => {}
        }
        self.last_post += 1;
        self.posts.insert(self.last_post, post);
        self.pump(now);
    }

    /// The host cancels its request, which gets no answer. Returns whether the server need not be told.
    fn cancel(&mut self, id: &str) -> bool {
        let Some(serial) = self.ids.get(&IdKey::of(id)).copied() else {
            return false;
        };
        let Some(post) = self.remove(serial) else {
            return false;
        };
        if let State::Sent(number) = post.state {
            // Since revision 2026-07-28, the closed connection cancels the request.
            self.drop_exchange(number);
        }
        let was_sent = post.state != State::Queued || post.repeats > 0;
        !was_sent || !post.is_in_session()
    }

    /// Answers a message that is over the limit.
    pub(super) fn refuse(&mut self, text: String) {
        self.act(Action::Answer(text));
    }

    /// Removes a message that is finished.
    pub(super) fn remove(&mut self, serial: u64) -> Option<Post> {
        let post = self.posts.remove(&serial)?;
        if let Some(key) = post.key().filter(|_| !post.is_own) {
            self.ids.remove(&key);
        }
        Some(post)
    }

    pub(super) fn drop_exchange(&mut self, number: u64) {
        if self.exchanges.remove(&number).is_some() {
            self.act(Action::Drop(number));
        }
    }

    // What is sent.

    /// When [`Conversation::handle_time`] must be called.
    pub(super) fn next_due(&self) -> Option<Time> {
        let posts = self.posts.values().filter_map(|post| match post.state {
            State::Waiting(until) => Some(until),
            State::Queued | State::Sent(_) => None,
        });
        let answered = self.exchanges.values().filter_map(|one| one.answered);
        let answered = answered.map(|at| at + AFTER_ANSWER);
        posts.chain(self.stream.due()).chain(answered).min()
    }

    pub(super) fn handle_time(&mut self, now: Time) {
        let is_late = |one: &Exchange| one.answered.is_some_and(|at| at + AFTER_ANSWER <= now);
        let late = self.exchanges.iter().filter(|(_, one)| is_late(one));
        let late: Vec<u64> = late.map(|(number, _)| *number).collect();
        for number in late {
            self.drop_exchange(number);
        }
        self.pump(now);
    }

    /// Sends what can be sent now.
    pub(super) fn pump(&mut self, now: Time) {
        if self.is_leaving {
            return;
        }
        self.begin_again(now);
        let is_restoring = self.is_restoring();
        let serials: Vec<u64> = self.posts.keys().copied().collect();
        for serial in serials {
            let Some(post) = self.posts.get(&serial) else {
                continue;
            };
            let waits = is_restoring && !post.is_own && post.is_in_session();
            let is_due = match post.state {
                State::Queued => true,
                State::Waiting(until) => until <= now,
                State::Sent(_) => false,
            };
            let is_barrier = post.is_barrier();
            if is_due && !waits && !self.send(now, serial) {
                break;
            }
            if is_barrier && self.posts.contains_key(&serial) {
                break;
            }
        }
        if !is_restoring && self.stream.due().is_some_and(|due| due <= now) {
            self.open_stream(now);
        }
    }

    /// Sends a message, or fetches the rest of its answer. Returns false if there are too many HTTP requests.
    fn send(&mut self, now: Time, serial: u64) -> bool {
        let active = self.exchanges.len() - usize::from(self.stream.is_open());
        if active >= MAX_EXCHANGES {
            return false;
        }
        let generation = self.session.generation;
        let Some(post) = self.posts.get_mut(&serial) else {
            return true;
        };
        if post.last_id.is_some() && post.generation != generation {
            // The server that knew the events has forgotten them.
            post.last_id = None;
            self.handle_unknown(now, serial, "the session was lost");
            return true;
        }
        self.last_exchange += 1;
        let number = self.last_exchange;
        let (request, purpose) = match &post.last_id {
            Some(id) => (
                resume_request(&self.session, Some(id)),
                Purpose::Rest(serial),
            ),
            None => (post.request(&self.session), Purpose::Post(serial)),
        };
        post.generation = generation;
        post.state = State::Sent(number);
        self.exchanges.insert(number, Exchange::new(purpose, now));
        self.act(Action::Send(number, request));
        true
    }

    fn open_stream(&mut self, now: Time) {
        self.last_exchange += 1;
        let number = self.last_exchange;
        let request = resume_request(&self.session, self.stream.last_id());
        self.exchanges
            .insert(number, Exchange::new(Purpose::Stream, now));
        self.stream.open(number);
        self.act(Action::Send(number, request));
    }

    /// Ends the session. [`Action::Finish`] follows.
    pub(super) fn leave(&mut self) {
        if std::mem::replace(&mut self.is_leaving, true) {
            return;
        }
        let numbers: Vec<u64> = self.exchanges.keys().copied().collect();
        for number in numbers {
            self.drop_exchange(number);
        }
        self.posts.clear();
        self.ids.clear();
        self.stream.turn_off();
        if !self.session.has_id() {
            return self.act(Action::Finish);
        }
        self.last_exchange += 1;
        let request = self.session.add_fields(HttpRequest::without_body("DELETE"));
        let number = self.last_exchange;
        self.exchanges
            .insert(number, Exchange::new(Purpose::Goodbye, Time::default()));
        self.act(Action::Send(number, request.with_patience(GOODBYE_LIMIT)));
    }

    // After a cut.

    /// The server may have received a message, and its answer cannot be fetched. Sends it again if that has no further effect.
    pub(super) fn handle_unknown(&mut self, now: Time, serial: u64, why: &str) {
        let Some(post) = self.posts.get_mut(&serial) else {
            return;
        };
        let is_repeatable = post.is_repeatable(&self.session);
        if post.repeats < MAX_REPEATS && is_repeatable {
            log::debug!("sending {} again: {why}", post.method);
            post.state = State::Waiting(now + delay(post.repeats));
            post.repeats += 1;
            return;
        }
        let message = if is_repeatable {
            format!("Connection lost: {why}")
        } else {
            format!(
                "Connection lost: {why}. The server may have run the request, so it is not sent again"
            )
        };
        self.fail(now, serial, code::CONNECTION_LOST, &message);
    }

    /// The server has ended the stream of an answer before its end. If the stream can be resumed, this is how the server saves
    /// connections during long calls.
    pub(super) fn handle_early_end(&mut self, now: Time, serial: u64) {
        match self.posts.get_mut(&serial) {
            Some(post) if post.last_id.is_some() => {
                post.state = State::Waiting(now + post.retry.unwrap_or(RETRY));
            }
            _ => self.handle_unknown(
                now,
                serial,
                "the server has ended the stream without an answer",
            ),
        }
    }

    /// The connection for a message was cut.
    pub(super) fn handle_cut(&mut self, now: Time, serial: u64, why: &str) {
        let Some(post) = self.posts.get_mut(&serial) else {
            return;
        };
        if post.last_id.is_none() || post.repeats >= MAX_REPEATS {
            post.last_id = None;
            return self.handle_unknown(now, serial, why);
        }
        let wait = post.retry.unwrap_or_default().max(delay(post.repeats));
        post.repeats += 1;
        post.state = State::Waiting(now + wait);
    }

    /// Answers a request with an error, or gives up another message.
    pub(super) fn fail(&mut self, now: Time, serial: u64, code: i32, message: &str) {
        let Some(post) = self.remove(serial) else {
            return;
        };
        if post.is_own {
            return self.fail_to_begin_again(message);
        }
        match &post.kind {
            Kind::Request(id) => self.act(Action::Answer(error(id, code, message, None))),
            Kind::Notification | Kind::Response => {
                log::warn!(
                    "the server has not accepted a message {}: {message}",
                    post.method
                );
            }
        }
        self.pump(now);
    }

    // What the server says.

    /// Handles a message of the server, which came in the answer to the message `serial`, or on the GET stream.
    pub(super) fn handle_remote(&mut self, now: Time, serial: Option<u64>, text: &str) {
        if is_array(text) {
            let messages = batch_messages(text, Skimmer::new(text)).unwrap_or_default();
            for message in messages {
                if !is_array(message) {
                    self.handle_remote(now, serial, message);
                }
            }
            return;
        }
        let envelope = match Envelope::parse(text) {
            Ok(envelope) => envelope,
            Err(EnvelopeError::Parse) => {
                return log::warn!("dropped a message of the server that is not JSON");
            }
            Err(EnvelopeError::Invalid { why, .. }) => {
                return match serial.zip(json_error(text)) {
                    Some((serial, error)) => self.pass_error(now, serial, error),
                    None => log::warn!("dropped an invalid message of the server: {why}"),
                };
            }
        };
        match &envelope.kind {
            // The server could not read the id of the request.
            MessageKind::Response { id, result: None } if &text[id.clone()] == "null" => {
                match serial.zip(json_error(text)) {
                    Some((serial, error)) => self.pass_error(now, serial, error),
                    None => log::warn!("the server reports an error: {}", shown(text)),
                }
            }
            MessageKind::Request { id, .. } => {
                let raw = &text[id.clone()];
                if self.session.handle_asked(raw) {
                    return self.act(Action::Write(text.to_owned()));
                }
                let refusal = error(raw, code::TOO_MANY, "Too many waiting requests", None);
                if let Ok(envelope) = Envelope::parse(&refusal)
                    && !self.is_full()
                {
                    self.last_post += 1;
                    self.posts
                        .insert(self.last_post, Post::new(&envelope, false));
                }
            }
            MessageKind::Notification { .. } => {
                if let Some(id) = cancelled(&envelope) {
                    self.session.handle_cancelled(&text[id]);
                }
                self.act(Action::Write(text.to_owned()));
            }
            MessageKind::Response { id, result } => {
                let key = IdKey::of(&text[id.clone()]);
                // The answer to a request comes on its own stream.
                let is_own = |serial: &u64| {
                    self.posts
                        .get(serial)
                        .is_some_and(|post| post.key().as_ref() == Some(&key))
                };
                let found = match serial {
                    Some(serial) => Some(serial).filter(is_own),
                    None => self.ids.get(&key).copied(),
                };
                match found {
                    Some(serial) => self.handle_answer(now, serial, &envelope, result.clone()),
                    None => log::debug!("dropped a response that nobody waits for"),
                }
            }
        }
    }

    /// A request has its answer.
    fn handle_answer(
        &mut self,
        now: Time,
        serial: u64,
        envelope: &Envelope<'_>,
        result: Option<std::ops::Range<usize>>,
    ) {
        let Some(post) = self.remove(serial) else {
            return;
        };
        if let State::Sent(number) = post.state
            && let Some(exchange) = self.exchanges.get_mut(&number)
        {
            exchange.answered = Some(now);
        }
        let text = envelope.text;
        if !post.is_own {
            let mut replaced = None;
            match result {
                Some(result) => {
                    if post.method == "initialize" {
                        self.session_since = now;
                    }
                    let other = self
                        .session
                        .handle_result(&post, envelope, &text[result.clone()]);
                    replaced = other.map(|other| splice(text, &mut [(result, &other)]).concat());
                }
                None if post.method == "initialize" => self.session.set_id(None),
                None => {}
            }
            return self.act(Action::Write(replaced.unwrap_or_else(|| text.to_owned())));
        }
        if post.method == "initialize" {
            self.handle_begun_again(envelope, result.is_some());
        }
    }

    /// The server has accepted a message that gets no answer.
    pub(super) fn handle_accepted(&mut self, now: Time, serial: u64) {
        let is_answer_due = |post: &Post| matches!(post.kind, Kind::Request(_));
        if self.posts.get(&serial).is_none_or(is_answer_due) {
            return;
        }
        if let Some(post) = self.remove(serial)
            && post.method == "notifications/initialized"
            && post.is_in_session()
        {
            self.stream.begin(now);
        }
    }

    /// The body of the response to a message.
    pub(super) fn body(&mut self, number: u64) -> Option<&mut Body> {
        self.exchanges
            .get_mut(&number)
            .map(|exchange| &mut exchange.body)
    }
}

/// A GET, which begins the server's stream, or continues one after an event.
fn resume_request(session: &Session, last_id: Option<&str>) -> HttpRequest {
    let request = HttpRequest::without_body("GET").with_field("Accept", "text/event-stream");
    let request = session.add_fields(request);
    match last_id {
        Some(id) => request.with_field("Last-Event-ID", id),
        None => request,
    }
}

/// The delay after this many failures.
pub(super) fn delay(failures: u32) -> Duration {
    (FIRST_DELAY * 2u32.pow(failures.min(10))).min(LONGEST_DELAY)
}
