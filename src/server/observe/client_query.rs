//! Selects, filters and sorts the clients of an answer to `/status`, so that who asks need not get all of them.

use super::status::ClientStatus;
use crate::protocol::{Rejection, Request, StatusCode};
use crate::server::client::Client;
use crate::server::core::Core;
use crate::server::id::ClientId;

/// The maximum number of clients in one answer.
const MAX_PAGE: usize = 1000;

/// The maximum length of a filter in bytes.
const MAX_FILTER: usize = 200;

/// The names of the fields by which clients can be sorted, as they are in the answer.
const SORTS: [(&str, Sort); 11] = [
    ("id", Sort::Id),
    ("path", Sort::Path),
    ("remote", Sort::Remote),
    ("principal", Sort::Principal),
    ("connected_s", Sort::Connected),
    ("bytes_in", Sort::BytesIn),
    ("bytes_out", Sort::BytesOut),
    ("messages_in", Sort::MessagesIn),
    ("messages_out", Sort::MessagesOut),
    ("queued_bytes", Sort::Queued),
    ("detached_s", Sort::Detached),
];

/// A field by which clients are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Id,
    Path,
    Remote,
    Principal,
    Connected,
    BytesIn,
    BytesOut,
    MessagesIn,
    MessagesOut,
    Queued,
    Detached,
}

/// What clients are compared by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Number(u64),
    Text(String),
}

/// Which clients an answer lists, and in which order. The default is all of them, in the order of the registry.
#[derive(Clone, Debug)]
pub(crate) struct ClientQuery {
    /// Only clients that follow this one in the registry.
    after: Option<ClientId>,
    most: usize,
    sort: Option<Sort>,
    descending: bool,
    /// Words in lower case. Each of them must occur in a field of the client.
    words: Vec<String>,
}

impl Default for ClientQuery {
    fn default() -> Self {
        Self {
            after: None,
            most: usize::MAX,
            sort: None,
            descending: false,
            words: Vec::new(),
        }
    }
}

/// The clients that a query has selected.
pub(crate) struct Page {
    pub(crate) clients: Vec<ClientStatus>,
    /// How many clients match the filter.
    pub(crate) matched: usize,
    /// Whether more clients follow.
    pub(crate) has_more: bool,
}

impl ClientQuery {
    /// Reads `after`, `limit`, `sort`, `order` and `filter` of a request.
    pub(crate) fn read(request: &Request<'_>) -> Result<Self, Rejection> {
        let wrong = |why: String| Rejection::new(StatusCode::BAD_REQUEST, why);
        let value = |name| request.parameters(name).next();
        let mut query = Self {
            most: MAX_PAGE,
            ..Self::default()
        };
        if let Some(text) = value("after") {
            let id = text.parse();
            query.after =
                Some(id.map_err(|_| wrong(format!("after={text:?} is not a client id")))?);
        }
        if let Some(text) = value("limit") {
            let limit = text.parse().ok().filter(|limit| *limit <= MAX_PAGE);
            query.most = limit
                .ok_or_else(|| wrong(format!("limit must be a number from 0 to {MAX_PAGE}")))?;
        }
        if let Some(text) = value("sort") {
            let known = SORTS.iter().find(|(name, _)| *name == text);
            let names = || SORTS.map(|(name, _)| name).join(", ");
            let (_, sort) =
                known.ok_or_else(|| wrong(format!("sort must be one of {}", names())))?;
            if query.after.is_some() {
                return Err(wrong("sort cannot be combined with after".to_owned()));
            }
            query.sort = Some(*sort);
        }
        query.descending = match value("order").as_deref() {
            None | Some("asc") => false,
            Some("desc") => true,
            Some(_) => return Err(wrong("order must be asc or desc".to_owned())),
        };
        if query.descending && query.sort.is_none() {
            return Err(wrong("order has no effect without sort".to_owned()));
        }
        let filter = value("filter").unwrap_or_default();
        if filter.len() > MAX_FILTER {
            return Err(wrong(format!("filter is longer than {MAX_FILTER} bytes")));
        }
        query.words = filter.split_whitespace().map(str::to_lowercase).collect();
        Ok(query)
    }

    /// The clients of the query.
    pub(crate) fn select<'c>(
        &self,
        core: &Core,
        clients: impl Iterator<Item = &'c Client>,
    ) -> Page {
        let after = self.after.map(ClientId::slot);
        let mut found: Vec<&Client> = clients
            .filter(|client| self.matches(core, client))
            .collect();
        let matched = found.len();
        // The registry is in the order of the slots.
        let first = after.map_or(0, |slot| {
            found.partition_point(|client| client.id.slot() <= slot)
        });
        found.drain(..first);
        if let Some(sort) = self.sort {
            found = self.first(core, sort, found);
        }
        let has_more = self.sort.is_none() && found.len() > self.most;
        found.truncate(self.most);
        let clients = found.into_iter().map(|client| describe(core, client));
        Page {
            clients: clients.collect(),
            matched,
            has_more,
        }
    }

    /// Whether each word of the filter occurs in a field of the client.
    fn matches(&self, core: &Core, client: &Client) -> bool {
        if self.words.is_empty() {
            return true;
        }
        let handshake = client.handshake.as_deref();
        let field = |text: Option<&str>| text.unwrap_or_default().to_lowercase();
        let fields = [
            client.id.to_string(),
            field(Some(client.path())),
            client.wire.remote.to_string(),
            core.principal(client.id).to_string().to_lowercase(),
            field(handshake.and_then(|one| one.user_agent.as_deref())),
            field(handshake.and_then(|one| one.origin.as_deref())),
        ];
        let mut words = self.words.iter();
        words.all(|word| fields.iter().any(|field| field.contains(&**word)))
    }

    /// The first clients by a field. Equal ones are in the order of their ids.
    fn first<'c>(&self, core: &Core, sort: Sort, clients: Vec<&'c Client>) -> Vec<&'c Client> {
        let keys = clients
            .into_iter()
            .map(|client| (sort.key(core, client), client));
        let mut keys: Vec<_> = keys.collect();
        let order = |one: &(Key, &Client), other: &(Key, &Client)| {
            let order = one.0.cmp(&other.0);
            let order = if self.descending {
                order.reverse()
            } else {
                order
            };
            order.then(one.1.id.slot().cmp(&other.1.id.slot()))
        };
        // Sorting all of ten thousand clients would take several milliseconds.
        if self.most < keys.len() {
            keys.select_nth_unstable_by(self.most, order);
            keys.truncate(self.most);
        }
        keys.sort_unstable_by(order);
        keys.into_iter().map(|(_, client)| client).collect()
    }
}

impl Sort {
    fn key(self, core: &Core, client: &Client) -> Key {
        let traffic = client.traffic;
        let millis = |duration: std::time::Duration| duration.as_millis() as u64;
        Key::Number(match self {
            Self::Id => client.id.slot() as u64,
            Self::Path => return Key::Text(client.path().to_owned()),
            Self::Remote => return Key::Text(client.wire.remote.to_string()),
            Self::Principal => return Key::Text(core.principal(client.id).to_string()),
            Self::Connected => millis(core.env.now.since(client.wire.protocol.since())),
            Self::BytesIn => traffic.bytes_in,
            Self::BytesOut => traffic.bytes_out,
            Self::MessagesIn => traffic.messages_in,
            Self::MessagesOut => traffic.messages_out,
            Self::Queued => client.wire.queued() as u64,
            Self::Detached => {
                let resume = client.wire.resume_status(core.env.now);
                resume.and_then(|one| one.detached).map_or(0, millis)
            }
        })
    }
}

fn describe(core: &Core, client: &Client) -> ClientStatus {
    let handshake = client.handshake.as_deref();
    let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
    let [last_ping, last_pong] = client.wire.protocol.heartbeat(core.env.now);
    ClientStatus {
        id: client.id,
        path: client.path().to_owned(),
        remote: client.wire.remote,
        principal: core.principal(client.id),
        connected: core.env.now.since(client.wire.protocol.since()),
        opened: client.open_for(core.env.now),
        user_agent: handshake.and_then(|one| text(&one.user_agent)),
        origin: handshake.and_then(|one| text(&one.origin)),
        tls: client.wire.tls().map(|tls| tls.describe()),
        traffic: client.traffic,
        queued_bytes: client.wire.queued(),
        last_ping,
        last_pong,
        resume: client.wire.resume_status(core.env.now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<ClientQuery, String> {
        let head = format!("GET /status?{query} HTTP/1.1\r\nHost: h\r\n\r\n");
        let request = Request::parse(head.as_bytes()).expect("a request");
        ClientQuery::read(&request).map_err(|rejection| rejection.message.to_string())
    }

    #[test]
    fn a_query_that_cannot_be_answered_says_why() {
        let query = read("limit=0&sort=bytes_out&order=desc&filter=Ann%20%20x").expect("valid");
        assert_eq!((query.most, query.sort), (0, Some(Sort::BytesOut)));
        assert_eq!(
            (query.descending, &*query.words),
            (true, &["ann".to_owned(), "x".to_owned()][..])
        );
        assert_eq!(read("").map(|query| query.most), Ok(MAX_PAGE));
        for (query, why) in [
            ("limit=1001", "limit must be"),
            ("limit=x", "limit must be"),
            ("after=1", "is not a client id"),
            ("sort=age", "sort must be one of id, path"),
            ("sort=id&after=c1", "cannot be combined"),
            ("sort=id&order=up", "asc or desc"),
            ("order=desc", "without sort"),
            (&format!("filter={}", "x".repeat(201)), "longer than 200"),
        ] {
            let error = read(query).expect_err(query);
            assert!(error.contains(why), "{query}: {error}");
        }
    }
}
