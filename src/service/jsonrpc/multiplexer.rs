//! Many callers' requests on a few processes, without I/O: the table of pending requests, and the replacement of their ids in both
//! directions.
//!
//! * A request is passed on under an upstream id, which is never reused. The upstream id also replaces the progress token.
//! * A process can answer only the requests that it has got, and refer only to these and to subscriptions, which several processes
//!   get. Its messages reach the caller of the request under the ids that the caller wrote, byte for byte.
//! * The response removes the request. A reference to a request that is not pending is [`Reference::Gone`].
//!
//! The owner of the table (the agent's router, the MCP pool) chooses the process, sends the messages, decides who may send what, and
//! removes a request when its response arrives.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use super::envelope::Envelope;
#[cfg(test)]
use super::envelope::MessageKind;
use super::id::{MAX_ID, assigned};
use super::members::member;
use super::spelling::is_spelling_of;
use super::text::splice;
use crate::Time;
use crate::record::{Record, record, state};
use crate::service::deadlines::Deadlines;
use crate::service::id_map::IdMap;
use crate::service::json::{Skimmer, quote};

/// The notification that reports the progress of a request (Model Context Protocol, "Progress").
pub(crate) const PROGRESS: &str = "notifications/progress";
/// The key in `_meta` that names the subscription of a message.
pub(crate) const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// The source of upstream ids. It never returns an id twice.
#[derive(Debug, Default)]
pub(crate) struct UpstreamIds(u64);

record!(UpstreamIds as u64);

impl UpstreamIds {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// Requests that have been passed on and not answered, by their upstream ids.
#[derive(Debug)]
pub(crate) struct Pending<R> {
    requests: IdMap<u64, R>,
    deadlines: Deadlines<u64>,
}

// The time limit is a setting.
state!(impl<R: Record> Pending<R> {
    requests,
    into deadlines,
});

impl<R> Pending<R> {
    /// An empty table. The time limit applies to requests that are inserted with [`Pending::insert_timed`].
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self {
            requests: IdMap::default(),
            deadlines: Deadlines::new(limit),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn get(&self, id: u64) -> Option<&R> {
        self.requests.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut R> {
        self.requests.get_mut(&id)
    }

    /// All requests with their ids, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &R)> {
        self.requests.iter().map(|(id, request)| (*id, request))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &R> {
        self.requests.values()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut R> {
        self.requests.values_mut()
    }

    /// The ids of the requests that `is_it` matches, the oldest first.
    pub(crate) fn ids_of(&self, is_it: impl Fn(&R) -> bool) -> Vec<u64> {
        let requests = self.iter().filter(|(_, request)| is_it(request));
        let mut ids: Vec<u64> = requests.map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    /// Adds a request without a time limit.
    pub(crate) fn insert(&mut self, id: u64, request: R) {
        self.requests.insert(id, request);
    }

    /// Adds a request whose time limit begins at `since`. Returns its deadline, if there is a limit.
    pub(crate) fn insert_timed(&mut self, id: u64, request: R, since: Time) -> Option<Time> {
        self.insert(id, request);
        let requests = &self.requests;
        let is_pending = |id| requests.contains_key(&id);
        self.deadlines.push(since, id, is_pending)
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<R> {
        self.requests.remove(&id)
    }

    /// The earliest deadline. The request may have been answered.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.deadlines.first()
    }

    /// The oldest request whose time limit is over. Each request is returned once. The caller removes it.
    pub(crate) fn due(&mut self, now: Time) -> Option<u64> {
        let requests = &self.requests;
        self.deadlines.pop(now, |id| requests.contains_key(&id))
    }
}

/// The owner's part of a request.
pub(crate) trait RequestKind {
    /// Whether the request stays open for notifications, as `subscriptions/listen` of the Model Context Protocol does.
    fn is_subscription(&self) -> bool;
}

/// A request that is for a process and has not been answered.
#[derive(Debug)]
pub(crate) struct Forwarded<C> {
    /// The process that answers it. Of a subscription, other processes may have got a copy.
    pub(crate) process: usize,
    /// The id that the process knows it by.
    pub(crate) upstream_id: u64,
    /// The caller's own ids. `None` if no caller gets the response.
    pub(crate) sender_ids: Option<SenderIds>,
    pub(crate) call: C,
}

record!(impl<C: Record> Forwarded<C> {
    process,
    upstream_id,
    sender_ids,
    call,
});

/// The ids of a request, as its sender wrote them.
#[derive(Debug)]
pub(crate) struct SenderIds {
    pub(crate) id: Box<str>,
    pub(crate) progress_token: Option<Box<str>>,
}

record!(SenderIds { id, progress_token });

/// Where a request has its ids.
#[derive(Clone, Debug)]
pub(crate) struct IdRanges {
    pub(crate) id: Range<usize>,
    pub(crate) progress_token: Option<Range<usize>>,
}

impl IdRanges {
    /// Finds the progress token of a request with its id at `id`. Returns an error if the token is too long, or if a process
    /// could read another token than the one that is replaced.
    pub(crate) fn find(envelope: &Envelope<'_>, id: Range<usize>) -> Result<Self, &'static str> {
        let progress_token = envelope.progress_token()?;
        let length = progress_token.as_ref().map_or(0, ExactSizeIterator::len);
        if length > MAX_ID {
            return Err("the progress token is too long");
        }
        Ok(Self { id, progress_token })
    }

    /// Copies the ids.
    pub(crate) fn read(&self, text: &str) -> SenderIds {
        let token = self.progress_token.clone();
        SenderIds {
            id: text[self.id.clone()].into(),
            progress_token: token.map(|range| text[range].into()),
        }
    }

    /// Passes the request with the upstream id in place of its ids to `send`, in parts. `other` is one more edit.
    pub(crate) fn with_upstream_id<'a, T>(
        &self,
        text: &'a str,
        upstream_id: u64,
        other: Option<(Range<usize>, &'a str)>,
        send: impl FnOnce(&[&str]) -> T,
    ) -> T {
        let upstream_id = &*upstream_id.to_string();
        let id = self.id.clone();
        if self.progress_token.is_none() && other.is_none() {
            return send(&[&text[..id.start], upstream_id, &text[id.end..]]);
        }
        let token = self.progress_token.clone();
        let edits = [
            Some((id, upstream_id)),
            token.map(|range| (range, upstream_id)),
            other,
        ];
        let mut edits: Vec<_> = edits.into_iter().flatten().collect();
        send(&splice(text, &mut edits))
    }
}

impl<C: RequestKind> Forwarded<C> {
    /// Passes a message about the request with the ids of its caller to `send`, in parts: its response, or its cancellation by the
    /// process. The message has the upstream id at `id`. Returns `None` if the request has no caller.
    pub(crate) fn with_sender_ids<T>(
        &self,
        message: &Envelope<'_>,
        id: Range<usize>,
        send: impl FnOnce(&[&str]) -> T,
    ) -> Option<T> {
        let own = &*self.sender_ids.as_ref()?.id;
        let text = message.text;
        let subscription = message
            .meta
            .as_ref()
            .filter(|_| self.call.is_subscription());
        let subscription = subscription.and_then(|meta| member(text, meta, SUBSCRIPTION));
        let subscription = subscription
            .filter(|range| upstream_id_in(&text[range.clone()]) == Some(self.upstream_id));
        Some(match subscription {
            None => send(&[&text[..id.start], own, &text[id.end..]]),
            Some(range) => {
                let named = subscription_id(own, &text[range.clone()]);
                send(&splice(text, &mut [(id, own), (range, &named)]))
            }
        })
    }
}

/// The request that a notification from a process refers to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reference<'a> {
    /// The notification refers to no request.
    None,
    /// The request has been answered, its caller has left, or the process has never got it.
    Gone,
    /// Its progress.
    Progress(Referred<'a>),
    /// Something that its caller has subscribed to.
    Subscription(Referred<'a>),
    /// `requestId`.
    Id(Referred<'a>),
}

/// A reference to a pending request, as the caller of the request has to get it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Referred<'a> {
    pub(crate) upstream_id: u64,
    /// Where the notification has the upstream id.
    pub(crate) range: Range<usize>,
    /// What the caller gets in its place.
    pub(crate) own: Cow<'a, str>,
}

impl Referred<'_> {
    /// The notification for the caller, in parts.
    pub(crate) fn parts<'a>(&'a self, text: &'a str) -> [&'a str; 3] {
        let Range { start, end } = self.range;
        [&text[..start], &self.own, &text[end..]]
    }
}

/// The requests of many callers.
impl<C: RequestKind> Pending<Forwarded<C>> {
    /// The request that a process knows by this id.
    pub(crate) fn of_process(&self, process: usize, raw: &str) -> Option<&Forwarded<C>> {
        let request = self.get(assigned(raw)?)?;
        (request.process == process).then_some(request)
    }

    /// The ids of the requests that a process has, the oldest first.
    pub(crate) fn ids_of_process(&self, process: usize) -> Vec<u64> {
        self.ids_of(|request| request.process == process)
    }

    /// The request whose upstream id a message from a process has as `requestId`.
    pub(crate) fn named_in(&self, process: usize, envelope: &Envelope<'_>) -> Option<Referred<'_>> {
        let range = envelope.request_id.clone()?;
        let request = self.of_process(process, &envelope.text[range.clone()])?;
        let own = request.sender_ids.as_ref()?.id.as_ref().into();
        Some(Referred {
            upstream_id: request.upstream_id,
            range,
            own,
        })
    }

    /// The request that a notification from a process refers to.
    pub(crate) fn reference(
        &self,
        process: usize,
        method: &str,
        envelope: &Envelope<'_>,
    ) -> Reference<'_> {
        let text = envelope.text;
        if method == PROGRESS {
            let range = sole_member(envelope, "progressToken");
            let referred = range.and_then(|range| {
                let request = self.of_process(process, &text[range.clone()])?;
                let token = request.sender_ids.as_ref()?.progress_token.as_deref()?;
                Some(Referred {
                    upstream_id: request.upstream_id,
                    range,
                    own: token.into(),
                })
            });
            return referred.map_or(Reference::Gone, Reference::Progress);
        }
        let meta = envelope.meta.as_ref();
        if let Some(range) = meta.and_then(|meta| member(text, meta, SUBSCRIPTION)) {
            let referred = self.subscriber(text, range);
            return referred.map_or(Reference::Gone, Reference::Subscription);
        }
        match &envelope.request_id {
            Some(range) if assigned(&text[range.clone()]).is_some() => {
                let referred = self.named_in(process, envelope);
                referred.map_or(Reference::Gone, Reference::Id)
            }
            _ => Reference::None,
        }
    }

    /// The subscription that is named at `range`. Several processes may have got it, so any process may name it.
    fn subscriber(&self, text: &str, range: Range<usize>) -> Option<Referred<'_>> {
        let raw = &text[range.clone()];
        let request = self.get(upstream_id_in(raw)?)?;
        let own = subscription_id(&request.sender_ids.as_ref()?.id, raw);
        request.call.is_subscription().then_some(Referred {
            upstream_id: request.upstream_id,
            range,
            own,
        })
    }
}

/// The notification that cancels a request.
pub(crate) fn cancellation(upstream_id: u64, reason: Option<&str>) -> String {
    let reason = reason.map_or_else(String::new, |why| format!(r#","reason":{}"#, quote(why)));
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{upstream_id}{reason}}}}}"#
    )
}

/// Parses the upstream id of a subscription. Some processes write it as a string.
fn upstream_id_in(raw: &str) -> Option<u64> {
    let inner = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"'));
    assigned(inner.unwrap_or(raw))
}

/// The caller's own id of a subscription: a string if the process has written a string.
fn subscription_id<'a>(own: &'a str, raw: &str) -> Cow<'a, str> {
    if raw.starts_with('"') && !own.starts_with('"') {
        quote(own).into()
    } else {
        own.into()
    }
}

/// The member of the body with this key, unless it occurs twice or under another spelling too.
pub(crate) fn sole_member(envelope: &Envelope<'_>, name: &str) -> Option<Range<usize>> {
    let (mut found, mut count, mut is_spelled) = (None, 0, false);
    Skimmer::at(envelope.text, envelope.body.as_ref()?)
        .object(|key, value| {
            if is_spelling_of(&key, name) {
                is_spelled = key == name;
                found = Some(value);
                count += 1;
            }
        })
        .ok()?;
    found.filter(|_| count == 1 && is_spelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Listens(bool);

    impl RequestKind for Listens {
        fn is_subscription(&self) -> bool {
            self.0
        }
    }

    /// A table with request 7 of process 1, whose caller wrote `"a"` with the token `"t"`, and subscription 8, whose caller wrote 5.
    fn table() -> Pending<Forwarded<Listens>> {
        let mut table = Pending::new(None);
        for (upstream_id, id, token, listens) in
            [(7, r#""a""#, Some(r#""t""#), false), (8, "5", None, true)]
        {
            let sender_ids = Some(SenderIds {
                id: id.into(),
                progress_token: token.map(Into::into),
            });
            let request = Forwarded {
                process: 1,
                upstream_id,
                sender_ids,
                call: Listens(listens),
            };
            table.insert(upstream_id, request);
        }
        table
    }

    /// What the caller gets of a notification, or why nobody gets it.
    fn passed(process: usize, method: &str, params: &str) -> String {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        let envelope = Envelope::parse(&text).expect("a message");
        let table = table();
        match table.reference(process, method, &envelope) {
            Reference::None => "none".into(),
            Reference::Gone => "gone".into(),
            Reference::Progress(to) | Reference::Subscription(to) | Reference::Id(to) => {
                let sent = to.parts(&text).concat();
                let start = sent.find("params").expect("params") + "params\":".len();
                format!("{} {}", to.upstream_id, &sent[start..sent.len() - 1])
            }
        }
    }

    #[test]
    fn a_notification_reaches_the_caller_of_its_request_under_the_callers_own_id() {
        let subscribed = |id: &str| format!(r#"{{"_meta":{{"{SUBSCRIPTION}":{id}}}}}"#);
        let cases = [
            (
                1,
                PROGRESS,
                r#"{"progressToken":7.0}"#,
                r#"7 {"progressToken":"t"}"#,
            ),
            (2, PROGRESS, r#"{"progressToken":7}"#, "gone"),
            (1, PROGRESS, r#"{"progressToken":8}"#, "gone"),
            (
                1,
                PROGRESS,
                r#"{"progressToken":7,"progress_token":8}"#,
                "gone",
            ),
            (1, "x", r#"{"requestId":7}"#, r#"7 {"requestId":"a"}"#),
            (2, "x", r#"{"requestId":7}"#, "gone"),
            (1, "x", r#"{"requestId":9}"#, "gone"),
            (1, "x", r#"{"requestId":"9"}"#, "none"),
            (1, "x", "{}", "none"),
            (1, "x", &subscribed("8"), &["8 ", &subscribed("5")].concat()),
            (2, "x", &subscribed("8"), &["8 ", &subscribed("5")].concat()),
            (
                1,
                "x",
                &subscribed(r#""8""#),
                &["8 ", &subscribed(r#""5""#)].concat(),
            ),
            (1, "x", &subscribed("7"), "gone"),
        ];
        for (process, method, params, want) in cases {
            assert_eq!(
                passed(process, method, params),
                want,
                "{process} {method} {params}"
            );
        }
    }

    #[test]
    fn a_request_without_a_caller_is_referred_to_by_nobody() {
        let mut table = table();
        table.get_mut(7).expect("one").sender_ids = None;
        let text = r#"{"jsonrpc":"2.0","method":"x","params":{"requestId":7}}"#;
        let envelope = Envelope::parse(text).expect("a message");
        assert_eq!(table.reference(1, "x", &envelope), Reference::Gone);
        assert_eq!(table.ids_of_process(1), [7, 8]);
        assert!(table.of_process(2, "7").is_none() && table.of_process(1, "7").is_some());
    }

    #[test]
    fn a_request_gets_the_upstream_id_and_its_response_the_callers() {
        let text = r#"{"id": "a","method":"m","params":{"_meta":{"progressToken":"t"}, "requestId":1},"jsonrpc":"2.0"}"#;
        let envelope = Envelope::parse(text).expect("a message");
        let MessageKind::Request { id, .. } = envelope.kind.clone() else {
            panic!("a request");
        };
        let ids = IdRanges::find(&envelope, id).expect("ids");
        let other = envelope.request_id.clone().map(|range| (range, "6"));
        let want = r#"{"id": 7,"method":"m","params":{"_meta":{"progressToken":7}, "requestId":6},"jsonrpc":"2.0"}"#;
        assert_eq!(
            ids.with_upstream_id(text, 7, other, |parts| parts.concat()),
            want
        );
        let ids = ids.read(text);
        assert_eq!(
            (&*ids.id, ids.progress_token.as_deref()),
            (r#""a""#, Some(r#""t""#))
        );

        let table = table();
        for (upstream_id, response, want) in [
            (
                7,
                r#"{"jsonrpc":"2.0","result":[1.50],"id":7.0 }"#,
                r#"{"jsonrpc":"2.0","result":[1.50],"id":"a" }"#,
            ),
            (
                8,
                r#"{"jsonrpc":"2.0","id":8,"result":{"_meta":{"io.modelcontextprotocol/subscriptionId":"8"}}}"#,
                r#"{"jsonrpc":"2.0","id":5,"result":{"_meta":{"io.modelcontextprotocol/subscriptionId":"5"}}}"#,
            ),
        ] {
            let envelope = Envelope::parse(response).expect("a response");
            let MessageKind::Response { id, .. } = envelope.kind.clone() else {
                panic!("a response");
            };
            let request = table.get(upstream_id).expect("pending");
            let restored = request.with_sender_ids(&envelope, id, |parts| parts.concat());
            assert_eq!(restored.as_deref(), Some(want));
        }
    }

    #[test]
    fn the_oldest_request_is_due_first_and_one_without_a_limit_never() {
        let at = Time::from_millis;
        let mut pending = Pending::new(Some(Duration::from_millis(10)));
        pending.insert(1, "prompt");
        assert_eq!(pending.insert_timed(2, "old", at(0)), Some(at(10)));
        assert_eq!(pending.insert_timed(3, "new", at(5)), Some(at(15)));
        assert_eq!(
            (pending.deadline(), pending.due(at(9))),
            (Some(at(10)), None)
        );
        assert_eq!(
            (pending.due(at(20)), pending.remove(2)),
            (Some(2), Some("old"))
        );
        assert_eq!((pending.due(at(14)), pending.due(at(15))), (None, Some(3)));
        assert_eq!(pending.remove(3), Some("new"));
        assert_eq!(
            (pending.deadline(), pending.due(at(99)), pending.len()),
            (None, None, 1)
        );
    }
}
