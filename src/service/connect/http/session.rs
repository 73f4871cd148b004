//! The session of revisions 2025-03-26 to 2025-11-25 with a server, and how to begin it again. Without I/O.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use serde_json::Value;

use super::post::{Kind, Post};
use crate::protocol::client::HttpRequest;
use crate::service::json::{quote, unescape};
use crate::service::jsonrpc::{Envelope, IdKey, MAX_ID, MessageKind, member, with_id};
use crate::service::mcp_tools::{Mirrored, Rejected, Tools as MirroringTools, without};

/// The maximum length of a session's id, in bytes.
const MAX_SESSION_ID: usize = 1024;

/// The maximum number of requests of the server that the host has not answered, of subscriptions, and of tools that may be repeated.
const MAX_KEPT: usize = 4096;

/// The maximum length of a name or a URI that is remembered.
const MAX_NAME: usize = 1024;

/// What is known of the tools of the server.
#[derive(Debug, Default)]
pub(super) struct Tools {
    repeatable: HashSet<String>,
    mirrored: MirroringTools,
}

impl Tools {
    /// Learns from the result of `tools/list`. Returns the tools that a host of revision 2026-07-28 must not see.
    pub(super) fn learn(&mut self, result: &str) -> Vec<Rejected> {
        let rejected = self.mirrored.learn(result);
        let Ok(result) = serde_json::from_str::<Value>(result) else {
            return rejected;
        };
        for tool in result["tools"].as_array().into_iter().flatten() {
            let Some(name) = tool["name"].as_str().filter(|name| name.len() <= MAX_NAME) else {
                continue;
            };
            let hints = &tool["annotations"];
            let may_repeat = hints["readOnlyHint"] == true || hints["idempotentHint"] == true;
            if !may_repeat {
                self.repeatable.remove(name);
            } else if self.repeatable.len() < MAX_KEPT {
                self.repeatable.insert(name.to_owned());
            }
        }
        rejected
    }

    /// Whether the server says that a second call has no further effect.
    pub(super) fn may_repeat(&self, tool: &str) -> bool {
        self.repeatable.contains(tool)
    }

    /// The fields that repeat arguments of a call.
    pub(super) fn mirrored(
        &self,
        tool: &str,
        text: &str,
        arguments: Option<Range<usize>>,
    ) -> Vec<(String, String)> {
        let all = self.mirrored.mirrored(tool, text, arguments.as_ref());
        let field = |one: Mirrored<'_>| {
            let value = match one.value? {
                raw if raw.starts_with('"') => unescape(raw).into_owned(),
                raw => raw.to_owned(),
            };
            Some((one.field.to_owned(), value))
        };
        all.filter_map(field).collect()
    }
}

/// The session.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// The host's `initialize`, once the server has accepted it.
    initialize: Option<String>,
    /// The revision that the server has chosen.
    version: Option<String>,
    /// The server's id of it. A server may have none.
    id: Option<String>,
    /// Counts the sessions.
    pub(super) generation: u32,
    /// Whether the server has forgotten it, and no other one has taken its place.
    pub(super) is_lost: bool,
    /// The host's last `logging/setLevel`.
    level: Option<String>,
    /// The URIs of the host's subscriptions.
    subscriptions: BTreeSet<String>,
    /// The requests of the server that the host has not answered.
    asked: HashSet<IdKey>,
    /// The ids that were answered on an earlier session, so that they are not answered on this one. Counts how often.
    stale: HashMap<IdKey, u32>,
    pub(super) tools: Tools,
}

impl Session {
    /// Adds the fields that a request of the session has.
    pub(super) fn add_fields(&self, mut request: HttpRequest) -> HttpRequest {
        if let Some(version) = &self.version {
            request = request.with_field("MCP-Protocol-Version", version);
        }
        if let Some(id) = &self.id {
            request = request.with_field("Mcp-Session-Id", id);
        }
        request
    }

    /// Whether the server knows the session by an id.
    pub(super) fn has_id(&self) -> bool {
        self.id.is_some()
    }

    /// Whether the server has accepted an `initialize`.
    pub(super) fn has_begun(&self) -> bool {
        self.initialize.is_some()
    }

    /// The head of the response to `initialize` names the session.
    pub(super) fn set_id(&mut self, id: Option<&str>) {
        let is_id = |id: &&str| {
            !id.is_empty()
                && id.len() <= MAX_SESSION_ID
                && id.bytes().all(|byte| byte.is_ascii_graphic())
        };
        self.id = id.filter(is_id).map(str::to_owned);
    }

    /// The server has forgotten the session.
    pub(super) fn lose(&mut self) {
        self.id = None;
        self.generation += 1;
        self.is_lost = true;
        for key in self.asked.drain() {
            if self.stale.len() < MAX_KEPT {
                *self.stale.entry(key).or_default() += 1;
            }
        }
    }

    /// The server has answered the host's request with a result. Returns what the host gets instead of it.
    pub(super) fn handle_result(
        &mut self,
        post: &Post,
        envelope: &Envelope<'_>,
        result: &str,
    ) -> Option<String> {
        match &*post.method {
            "initialize" => {
                *self = Self {
                    initialize: Some(post.text.clone()),
                    version: version(envelope),
                    id: self.id.take(),
                    generation: self.generation + 1,
                    ..Self::default()
                };
            }
            "logging/setLevel" => self.level = Some(post.text.clone()),
            "resources/subscribe" => {
                let uri = post.name.clone().filter(|uri| uri.len() <= MAX_NAME);
                if let Some(uri) = uri.filter(|_| self.subscriptions.len() < MAX_KEPT) {
                    self.subscriptions.insert(uri);
                }
            }
            "resources/unsubscribe" => {
                self.subscriptions
                    .retain(|uri| Some(uri) != post.name.as_ref());
            }
            "tools/list" => {
                let rejected = self.tools.learn(result);
                // In earlier revisions, the annotation has no meaning.
                return without(result, &rejected).filter(|_| !post.is_in_session());
            }
            _ => {}
        }
        None
    }

    /// The `initialize` that begins the session again. `serial` makes its id unique.
    pub(super) fn initialize_again(&self, serial: u64) -> Option<String> {
        let text = self.initialize.as_ref()?;
        Some(with_id(text, &own_id(serial)))
    }

    /// The server has answered the repeated `initialize`.
    ///
    /// # Errors
    ///
    /// The server now speaks another revision than the host knows.
    pub(super) fn handle_initialized_again(
        &mut self,
        envelope: &Envelope<'_>,
    ) -> Result<(), String> {
        let version = version(envelope);
        if version != self.version {
            let version = version.unwrap_or_default();
            return Err(format!("the server now speaks revision {version:?}"));
        }
        self.is_lost = false;
        Ok(())
    }

    /// What follows the repeated `initialize`: the log level and the subscriptions. `serial` is that of the first message.
    pub(super) fn restoration(&self, serial: u64) -> Vec<String> {
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned();
        let level = self.level.iter().cloned();
        let subscriptions = self.subscriptions.iter().map(|uri| {
            let uri = quote(uri);
            format!(
                r#"{{"jsonrpc":"2.0","id":0,"method":"resources/subscribe","params":{{"uri":{uri}}}}}"#
            )
        });
        let requests = level.chain(subscriptions).zip(serial..);
        let requests = requests.map(|(text, serial)| with_id(&text, &own_id(serial)));
        std::iter::once(initialized).chain(requests).collect()
    }

    /// The server asks the host. Returns whether there is room to remember it.
    pub(super) fn handle_asked(&mut self, id: &str) -> bool {
        let has_room = self.asked.len() < MAX_KEPT && id.len() <= MAX_ID;
        if has_room {
            self.asked.insert(IdKey::of(id));
        }
        has_room
    }

    /// The host answers the server. Returns whether the server of this session has asked.
    pub(super) fn handle_answered(&mut self, id: &str) -> bool {
        let key = IdKey::of(id);
        // The oldest request of this id comes first.
        if let Some(count) = self.stale.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.stale.remove(&key);
            }
            return false;
        }
        self.asked.remove(&key)
    }

    /// The server has cancelled its request.
    pub(super) fn handle_cancelled(&mut self, id: &str) {
        self.asked.remove(&IdKey::of(id));
    }
}

/// The id of a request of this side.
fn own_id(serial: u64) -> String {
    format!(r#""outrigger-{serial}""#)
}

fn version(envelope: &Envelope<'_>) -> Option<String> {
    let raw = &envelope.text[envelope.of_body("protocolVersion")?];
    let version = unescape(raw).into_owned();
    let is_valid = !version.is_empty() && version.len() <= 64;
    (is_valid && version.bytes().all(|byte| byte.is_ascii_graphic())).then_some(version)
}

/// `params.requestId` of a notification that cancels a request.
pub(super) fn cancelled(envelope: &Envelope<'_>) -> Option<Range<usize>> {
    let MessageKind::Notification { method } = &envelope.kind else {
        return None;
    };
    let body = envelope
        .body
        .as_ref()
        .filter(|_| method == "notifications/cancelled")?;
    member(envelope.text, body, "requestId")
}

/// Whether a message is a request of the host.
pub(super) fn is_request_of_host(post: &Post) -> bool {
    !post.is_own && matches!(post.kind, Kind::Request(_))
}
