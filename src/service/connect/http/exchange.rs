//! One HTTP request and what its response means for the [`Conversation`]. Without I/O.

use std::time::Duration;

use super::conversation::Action;
use super::conversation::Conversation;
use super::post::{Post, State, shown};
use crate::protocol::client::{EventParser, ResponseHead};
use crate::server::said_by;
use crate::service::Problem;
use crate::service::json::Skimmer;
use crate::service::json::quote;
use crate::service::jsonrpc::{code, member};
use crate::text::without_mark;
use crate::{Target, Time};

/// The maximum length of the body of a refusal that is read.
const MAX_REFUSAL: usize = 64 << 10;

/// The longest Retry-After that is honored.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// A message is not sent on more sessions than this.
const MAX_SESSIONS: u32 = 8;

/// An HTTP request that lasts this long is no failed attempt.
const STABLE: Duration = Duration::from_secs(10);

/// The maximum number of times that a message is redirected.
const MAX_REDIRECTS: u32 = 5;

/// A session that ends sooner than this is not begun again because of its GET stream.
const YOUNG: Duration = Duration::from_secs(5);

/// What an HTTP request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It carries this message.
    Post(u64),
    /// It fetches the rest of the answer to this message.
    Rest(u64),
    /// It is the GET stream.
    Stream,
    /// It ends the session.
    Goodbye,
}

impl Purpose {
    fn serial(self) -> Option<u64> {
        match self {
            Self::Post(serial) | Self::Rest(serial) => Some(serial),
            Self::Stream | Self::Goodbye => None,
        }
    }
}

/// The body of a response.
#[derive(Debug)]
pub(super) enum Body {
    /// Its head has not arrived.
    None,
    Events(EventParser),
    Json(Vec<u8>),
    /// Nothing in it is of interest.
    Ignored,
    Refusal(Refusal),
}

/// A response that refuses a request.
#[derive(Debug)]
pub(super) struct Refusal {
    status: u16,
    /// The status and what the server says of it in its head.
    text: String,
    retry_after: Option<Duration>,
    /// Where it redirects to with the same method.
    location: Option<Target>,
    body: Vec<u8>,
}

/// An HTTP request under way.
#[derive(Debug)]
pub(super) struct Exchange {
    purpose: Purpose,
    /// When it was sent.
    since: Time,
    pub(super) body: Body,
    /// When the answer has arrived, which the end of the stream should follow.
    pub(super) answered: Option<Time>,
}

impl Exchange {
    pub(super) fn new(purpose: Purpose, now: Time) -> Self {
        Self {
            purpose,
            since: now,
            body: Body::None,
            answered: None,
        }
    }
}

impl Conversation {
    /// The head of a response has arrived.
    pub(super) fn handle_head(&mut self, now: Time, number: u64, head: &ResponseHead<'_>) {
        let max_message = self.max_message;
        let Some(exchange) = self.exchanges.get_mut(&number) else {
            return;
        };
        let purpose = exchange.purpose;
        let media_type = head.single("content-type").unwrap_or_default();
        let media_type = media_type.split(';').next().unwrap_or_default().trim();
        exchange.body = match head.status() {
            200..300 if media_type.eq_ignore_ascii_case("text/event-stream") => {
                Body::Events(EventParser::new(max_message))
            }
            // Some servers do not say what they send.
            200..300
                if media_type.is_empty() || media_type.eq_ignore_ascii_case("application/json") =>
            {
                Body::Json(Vec::new())
            }
            200..300 => Body::Ignored,
            _ => Body::Refusal(Refusal::new(head, &self.target)),
        };
        let is_success = (200..300).contains(&head.status());
        let is_stream = matches!(exchange.body, Body::Events(_));
        let Some(serial) = purpose.serial() else {
            if purpose == Purpose::Stream && is_success && !is_stream {
                self.stream.turn_off();
            }
            return;
        };
        if !is_success {
            return;
        }
        self.was_open = true;
        if let Some(post) = self.posts.get(&serial)
            && post.method == "initialize"
            && purpose == Purpose::Post(serial)
        {
            self.session.set_id(head.single("mcp-session-id"));
        }
        self.handle_accepted(now, serial);
        self.pump(now);
    }

    /// The next bytes of a body have arrived.
    pub(super) fn handle_data(&mut self, now: Time, number: u64, mut bytes: &[u8]) {
        let max_message = self.max_message;
        match self.body(number) {
            Some(Body::Events(_)) => self.handle_events(now, number, bytes),
            Some(Body::Json(text)) if text.len() + bytes.len() > max_message => {
                self.handle_too_long(now, number);
            }
            Some(Body::Json(text)) => text.extend_from_slice(bytes),
            Some(Body::Refusal(refusal)) => {
                let room = MAX_REFUSAL - refusal.body.len();
                bytes = &bytes[..bytes.len().min(room)];
                refusal.body.extend_from_slice(bytes);
            }
            Some(Body::None | Body::Ignored) | None => {}
        }
    }

    fn handle_events(&mut self, now: Time, number: u64, mut bytes: &[u8]) {
        // An event may end the exchange.
        while let Some(Exchange {
            purpose,
            body: Body::Events(parser),
            ..
        }) = self.exchanges.get_mut(&number)
        {
            let purpose = *purpose;
            let next = parser.next(&mut bytes);
            let last_id = parser.last_id().map(str::to_owned);
            let retry = parser.retry();
            match purpose {
                Purpose::Post(serial) | Purpose::Rest(serial) => {
                    if let Some(post) = self.posts.get_mut(&serial) {
                        // A stream that continues begins without an id of its own.
                        if last_id.is_some() && post.is_in_session() && post.last_id != last_id {
                            post.last_id = last_id;
                            post.repeats = 0;
                        }
                        post.retry = retry.or(post.retry);
                    }
                }
                Purpose::Stream => self.stream.note(last_id, retry),
                Purpose::Goodbye => {}
            }
            match next {
                Ok(None) => return,
                Err(_) => return self.handle_too_long(now, number),
                Ok(Some(event)) if event.kind.is_empty() || event.kind == "message" => {
                    match std::str::from_utf8(&event.data).map(without_mark) {
                        Ok(text) => self.handle_remote(now, purpose.serial(), text),
                        Err(_) => log::warn!("dropped a message of the server that is not UTF-8"),
                    }
                }
                Ok(Some(event)) => {
                    log::debug!("ignored an event of the type {:?}", shown(&event.kind))
                }
            }
        }
    }

    /// A message of the server is over the limit.
    fn handle_too_long(&mut self, now: Time, number: u64) {
        let Some(exchange) = self.exchanges.get(&number) else {
            return;
        };
        let purpose = exchange.purpose;
        self.drop_exchange(number);
        match purpose.serial() {
            Some(serial) => {
                let why = "The server's answer is over the message limit";
                self.fail(now, serial, code::INTERNAL, why);
            }
            None => {
                log::warn!("a message of the server is over the message limit and is lost");
                self.stream.handle_end(now);
            }
        }
    }

    /// Takes an HTTP request that has ended. If it lasted, earlier failures no longer count.
    fn take_exchange(&mut self, now: Time, number: u64) -> Option<Exchange> {
        let exchange = self.exchanges.remove(&number)?;
        if now.since(exchange.since) >= STABLE {
            match exchange.purpose.serial() {
                Some(serial) => {
                    if let Some(post) = self.posts.get_mut(&serial) {
                        post.repeats = 0;
                    }
                }
                None => self.stream.forget_failures(),
            }
        }
        Some(exchange)
    }

    /// A response is complete.
    pub(super) fn handle_end(&mut self, now: Time, number: u64) {
        let Some(Exchange { purpose, body, .. }) = self.take_exchange(now, number) else {
            return;
        };
        match (purpose, body) {
            (Purpose::Goodbye, _) => return self.act(Action::Finish),
            (Purpose::Stream, Body::Refusal(refusal)) => self.handle_stream_refusal(now, &refusal),
            (Purpose::Stream, _) if self.stream.is_off() => {}
            (Purpose::Stream, _) => self.stream.handle_end(now),
            (Purpose::Post(serial) | Purpose::Rest(serial), body) => match body {
                Body::Refusal(refusal) => self.handle_refusal(now, purpose, serial, &refusal),
                Body::Json(text) => {
                    match std::str::from_utf8(&text).map(without_mark) {
                        Ok(text) if text.trim_ascii().is_empty() => {}
                        Ok(text) => self.handle_remote(now, Some(serial), text),
                        Err(_) => log::warn!("dropped an answer of the server that is not UTF-8"),
                    }
                    self.handle_no_answer(now, serial);
                }
                Body::Events(_) => self.handle_early_end(now, serial),
                Body::None | Body::Ignored => self.handle_no_answer(now, serial),
            },
        }
        self.pump(now);
    }

    /// The response has ended. If it has not answered the request, nothing will.
    fn handle_no_answer(&mut self, now: Time, serial: u64) {
        self.fail(
            now,
            serial,
            code::INTERNAL,
            "The server has sent no answer to the request",
        );
    }

    /// The connection for a request has ended.
    pub(super) fn handle_failure(&mut self, now: Time, number: u64, why: &str, was_sent: bool) {
        let Some(Exchange { purpose, .. }) = self.take_exchange(now, number) else {
            return;
        };
        match purpose {
            Purpose::Goodbye => return self.act(Action::Finish),
            Purpose::Stream => self.stream.handle_end(now),
            Purpose::Post(serial) | Purpose::Rest(serial) if was_sent => {
                self.handle_cut(now, serial, why)
            }
            Purpose::Post(serial) | Purpose::Rest(serial) => {
                // The loop has tried as long as it may.
                let message = format!("Cannot connect to the server: {why}");
                self.fail(now, serial, code::CONNECTION_LOST, &message);
                if !self.was_open {
                    self.act(Action::Fail(why.to_owned(), None));
                }
            }
        }
        self.pump(now);
    }

    /// The server has refused to answer a message, or to send the rest of an answer.
    fn handle_refusal(&mut self, now: Time, purpose: Purpose, serial: u64, refusal: &Refusal) {
        let Some(post) = self.posts.get_mut(&serial) else {
            return;
        };
        let generation = post.generation;
        let in_session = post.is_in_session();
        let is_usual = in_session && !post.is_own && post.method != "initialize";
        if is_usual
            && self.session.has_begun()
            && refusal.is_of_session()
            && post.repeats < MAX_SESSIONS
        {
            post.last_id = None;
            // The server has not run it.
            post.repeats += 1;
            post.state = State::Queued;
            self.lose_session(generation);
            if purpose == Purpose::Rest(serial) {
                self.handle_unknown(now, serial, "the server has forgotten the session");
            }
            return;
        }
        if purpose == Purpose::Rest(serial) {
            match refusal.status {
                429 | 500.. => {}
                // The events are gone.
                _ => post.last_id = None,
            }
            return self.handle_cut(now, serial, &refusal.text);
        }
        if let Some(location) = refusal
            .location
            .clone()
            .filter(|_| post.repeats < MAX_REDIRECTS)
        {
            post.repeats += 1;
            post.state = State::Queued;
            log::info!("the server has moved to {location}");
            self.target = location.clone();
            return self.act(Action::Move(location));
        }
        if refusal.status == 429 && post.repeats < 16 {
            post.repeats += 1;
            let wait = refusal.retry_after.unwrap_or(Duration::from_secs(1));
            post.state = State::Waiting(now + wait);
            return;
        }
        if let Some(error) = refusal.json_error() {
            // What the server says is for the host.
            return self.pass_error(now, serial, error);
        }
        if matches!(refusal.status, 408 | 502..=504) {
            return self.handle_unknown(now, serial, &refusal.text);
        }
        let code = match refusal.status {
            401 | 403 => code::DENIED,
            _ => code::INTERNAL,
        };
        let message = refusal.answer();
        self.fail(now, serial, code, &message);
        if matches!(refusal.status, 401 | 403) && !self.was_open {
            let problem = (refusal.status == 401).then_some(Problem::Token);
            self.act(Action::Fail(message, problem));
        }
    }

    /// Answers a request with an error of the server that has another id, or none.
    pub(super) fn pass_error(&mut self, now: Time, serial: u64, error: &str) {
        let id = match self.posts.get(&serial) {
            Some(Post {
                is_own: false,
                kind: super::post::Kind::Request(id),
                ..
            }) => id.clone(),
            _ => return self.fail(now, serial, code::INTERNAL, &shown(error)),
        };
        self.was_open = true;
        self.remove(serial);
        self.act(Action::Write(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#
        )));
    }

    fn handle_stream_refusal(&mut self, now: Time, refusal: &Refusal) {
        self.stream.turn_off();
        if refusal.status == 429 || refusal.status >= 500 {
            return self.stream.handle_end(now);
        }
        if refusal.status == 400 && self.stream.lose_events() && !refusal.names_session() {
            // The events are gone, but not the session.
            return self.stream.handle_end(now);
        }
        let is_young = now.since(self.session_since) < YOUNG;
        if self.session.has_id() && refusal.is_of_session() && !is_young {
            return self.lose_session(self.session.generation);
        }
        if refusal.status != 405 {
            log::debug!("the server has no stream: {}", refusal.text);
        }
    }
}

impl Refusal {
    fn new(head: &ResponseHead<'_>, target: &Target) -> Self {
        let mut text = format!("{} {}", head.status(), shown(head.reason()));
        if let Some(challenge) = head.single("www-authenticate")
            && let Some(address) = parameter(challenge, "resource_metadata")
        {
            text.push_str("; its authorization is described at ");
            text.push_str(&shown(address));
        }
        let location = head.single("location");
        if let Some(location) = location {
            text.push_str("; it redirects to ");
            text.push_str(&shown(location));
        }
        if matches!(head.status(), 405 | 426) {
            text.push_str("; the URL of a WebSocket begins with ws:// or wss://");
        }
        let retry_after = head
            .single("retry-after")
            .and_then(|after| after.parse().ok());
        Self {
            status: head.status(),
            text,
            retry_after: retry_after.map(|after| Duration::from_secs(after).min(MAX_RETRY_AFTER)),
            location: location
                .filter(|_| matches!(head.status(), 307 | 308))
                .and_then(|location| target.redirected(location)),
            body: Vec::new(),
        }
    }

    /// Whether it says that the server does not know the session. Some servers do so with 400.
    fn is_of_session(&self) -> bool {
        // Since revision 2026-07-28, 404 also refuses a method.
        match self.status {
            404 => !self
                .json_error()
                .is_some_and(|error| error.contains("-32601")),
            400 => self.names_session(),
            _ => false,
        }
    }

    fn names_session(&self) -> bool {
        let error = self.json_error().unwrap_or_default().to_ascii_lowercase();
        error.contains("session")
    }

    /// The error of JSON-RPC in its body, as JSON.
    fn json_error(&self) -> Option<&str> {
        json_error(self.body()?)
    }

    fn body(&self) -> Option<&str> {
        std::str::from_utf8(&self.body).ok().map(without_mark)
    }

    /// What the server answered: the status, and the text of a body that is no page for people.
    fn answer(&self) -> String {
        if let Some(said) = said_by(&self.body) {
            return format!("the server answered {}: {said}", self.text);
        }
        let said = self
            .body()
            .map(str::trim)
            .filter(|said| !said.starts_with('<'));
        match said.unwrap_or_default() {
            "" => format!("the server answered {}", self.text),
            said => format!("the server answered {}: {}", self.text, shown(said)),
        }
    }
}

/// The error of JSON-RPC in a message, as JSON, whether or not the message has an id.
pub(super) fn json_error(text: &str) -> Option<&str> {
    let mut skimmer = Skimmer::new(text);
    let whole = skimmer.value().ok()?;
    skimmer.end().ok()?;
    let version = member(text, &whole, "jsonrpc")?;
    let error = member(text, &whole, "error")?;
    let has_code = member(text, &error, "code").is_some();
    (text[version] == quote("2.0") && has_code).then(|| &text[error])
}

/// The value of a parameter of a challenge (RFC 9110 section 11.2).
fn parameter<'a>(challenge: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = challenge.split_once(&format!("{name}="))?;
    match rest.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => rest.split([',', ' ']).next(),
    }
}
