//! The sessions of the local side in the Agent Client Protocol, so that they can continue on another connection. Without I/O.
//!
//! [`Sessions`] remembers how the local side has initialized its connection, opened its sessions and set their modes and options.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::service::jsonrpc::{Envelope, IdKey, MessageKind, member};

/// The maximum number of sessions that are remembered, and of requests for sessions that are pending.
const MAX_SESSIONS: usize = 256;

/// The maximum size of the parameters of a request that is remembered, in bytes.
const MAX_PARAMS: usize = 64 << 10;

/// The maximum number of settings of a session that are remembered.
const MAX_SETTINGS: usize = 32;

/// The local side's `initialize` and its sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    /// The parameters of `initialize`, as JSON.
    pub(super) initialize: Box<str>,
    /// The result of `initialize`, as JSON. Nothing is remembered before it.
    pub(super) initialized: Option<Box<str>>,
    /// The pending requests that concern sessions.
    asked: HashMap<IdKey, Asked>,
    /// The open sessions, in the order in which they were opened.
    pub(super) open: Vec<Session>,
    /// The sessions that could not continue and whose turn was running.
    broken: Vec<String>,
}

/// A pending request of the local side.
#[derive(Debug)]
enum Asked {
    Initialize(Box<str>),
    /// The parameters of `session/new` and of the methods like it.
    Open(Box<str>),
    Close(String),
    Set(String, Setting),
}

/// A request that has changed a session, to be repeated. A later one of the same kind replaces it.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) method: String,
    /// For `session/set_config_option`, the option.
    option: Option<String>,
    pub(super) params: Box<str>,
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    /// The parameters of the request that has opened it.
    params: Box<str>,
    /// The token with which another connection can resume it, if the server is Outrigger.
    pub(super) resume_token: Option<String>,
    pub(super) settings: Vec<Setting>,
    /// Whether a turn is running, as far as `state_update` of version 2 says so.
    is_running: bool,
    /// Whether a turn was running when the connection was lost, and no `state_update` has arrived since.
    was_running: bool,
}

impl Sessions {
    /// Handles a message from the local side.
    pub(crate) fn handle_local(&mut self, envelope: &Envelope<'_>) {
        let MessageKind::Request { method, id } = &envelope.kind else {
            return;
        };
        let text = envelope.text;
        let Some(params) = envelope.body.clone() else {
            return;
        };
        if params.len() > MAX_PARAMS || self.asked.len() == MAX_SESSIONS {
            return;
        }
        let session = || envelope.session.as_deref().map(str::to_owned);
        let params = text[params].into();
        let asked = match &**method {
            // MCP has a method of this name, too. Its versions are dates.
            "initialize" => version(envelope).map(|_| Asked::Initialize(params)),
            _ if self.initialized.is_none() => None,
            "session/new" | "session/load" | "session/resume" | "session/fork" => {
                Some(Asked::Open(params))
            }
            "session/close" | "session/delete" => session().map(Asked::Close),
            "session/set_mode" | "session/set_model" | "session/set_config_option" => {
                let option = envelope.of_body("configId");
                let setting = Setting {
                    method: method.clone().into_owned(),
                    option: option.map(|option| text[option].to_owned()),
                    params,
                };
                session().map(|session| Asked::Set(session, setting))
            }
            _ => None,
        };
        if let Some(asked) = asked {
            self.asked.insert(IdKey::of(&text[id.clone()]), asked);
        }
    }

    /// Handles a message from the remote side.
    pub(crate) fn handle_remote(&mut self, envelope: &Envelope<'_>) {
        match &envelope.kind {
            MessageKind::Response { id, result } if !self.asked.is_empty() => {
                let asked = self.asked.remove(&IdKey::of(&envelope.text[id.clone()]));
                if let (Some(asked), Some(result)) = (asked, result) {
                    self.handle_success(asked, envelope, &envelope.text[result.clone()]);
                }
            }
            MessageKind::Notification { method } if method == "session/update" => {
                self.handle_update(envelope);
            }
            _ => {}
        }
    }

    fn handle_success(&mut self, asked: Asked, envelope: &Envelope<'_>, result: &str) {
        match asked {
            Asked::Initialize(params) => {
                *self = Self {
                    initialize: params,
                    initialized: Some(result.into()),
                    ..Self::default()
                };
            }
            Asked::Open(params) => {
                let own = envelope.session.as_deref().map(str::to_owned);
                if let Some(id) = own.or_else(|| session_of(&params)) {
                    let resume_token = envelope.resume_token().map(|token| token.into_owned());
                    self.open(id, params, resume_token);
                }
            }
            Asked::Close(session) => self.open.retain(|one| one.id != session),
            Asked::Set(session, setting) => {
                if let Some(session) = self.open.iter_mut().find(|one| one.id == session) {
                    session.set(setting);
                }
            }
        }
    }

    fn open(&mut self, id: String, params: Box<str>, resume_token: Option<String>) {
        self.open.retain(|one| one.id != id);
        let size = id.len() + resume_token.as_ref().map_or(0, String::len);
        if self.open.len() < MAX_SESSIONS && size <= MAX_PARAMS {
            self.open.push(Session {
                id,
                params,
                resume_token,
                settings: Vec::new(),
                is_running: false,
                was_running: false,
            });
        }
    }

    /// Notes whether a turn of version 2 is running, and what the agent has set by itself.
    fn handle_update(&mut self, envelope: &Envelope<'_>) {
        let session = envelope.session.as_deref();
        let session = self.open.iter_mut().find(|one| Some(&*one.id) == session);
        let (Some(session), Some(update)) = (session, envelope.of_body("update")) else {
            return;
        };
        let text = envelope.text;
        let kind = member(text, &update, "sessionUpdate");
        match kind.map(|kind| &text[kind]) {
            Some(r#""state_update""#) => {
                let state = member(text, &update, "state");
                session.is_running = state.is_some_and(|state| &text[state] != r#""idle""#);
                session.was_running = false;
            }
            Some(r#""current_mode_update""#) => session.follow_mode(&text[update]),
            Some(r#""config_option_update""#) => session.follow_options(&text[update]),
            _ => {}
        }
    }

    /// A session could not continue.
    pub(super) fn forget(&mut self, id: &str) {
        let lost = self.open.extract_if(.., |one| one.id == id);
        let running = lost.filter(|one| one.was_running);
        self.broken.extend(running.map(|one| one.id));
    }

    /// The connection was lost, and with it the pending requests for which `is_sent` is true.
    pub(crate) fn handle_loss(&mut self, is_sent: impl Fn(&IdKey) -> bool) {
        self.asked.retain(|id, _| !is_sent(id));
        for session in &mut self.open {
            session.was_running |= std::mem::take(&mut session.is_running);
        }
    }

    /// Messages for the local side that end the turns of version 2 that have ended with the last connection.
    pub(super) fn end_turns(&mut self) -> Vec<String> {
        let broken = std::mem::take(&mut self.broken);
        let ended = self.open.iter_mut().filter_map(|one| {
            let was_running = std::mem::take(&mut one.was_running);
            was_running.then(|| one.id.clone())
        });
        let end = |session: String| {
            let state = json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": "cancelled"});
            let params = json!({"sessionId": session, "update": state});
            json!({"jsonrpc": "2.0", "method": "session/update", "params": params}).to_string()
        };
        broken.into_iter().chain(ended).map(end).collect()
    }

    /// Whether another connection can take the place of one that was lost.
    pub(crate) fn can_be_restored(&self) -> bool {
        let Some(result) = &self.initialized else {
            return false;
        };
        let abilities = Abilities::of(result);
        let can = |one: &Session| abilities.load || abilities.resume || one.resume_token.is_some();
        self.open.is_empty() || self.open.iter().any(can)
    }

    /// The result of `initialize` for a local side that sends it again after a restoration.
    pub(crate) fn initialized(&self) -> Option<&str> {
        self.initialized.as_deref()
    }

    /// The number of open sessions.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }
}

impl Session {
    fn set(&mut self, setting: Setting) {
        let is_same = |one: &Setting| one.method == setting.method && one.option == setting.option;
        self.settings.retain(|one| !is_same(one));
        if self.settings.len() < MAX_SETTINGS {
            self.settings.push(setting);
        }
    }

    /// The agent has changed the mode by itself.
    fn follow_mode(&mut self, update: &str) {
        let update: Value = serde_json::from_str(update).unwrap_or_default();
        let mode = update["currentModeId"].as_str();
        if let Some(mode) = mode.filter(|mode| mode.len() <= MAX_PARAMS) {
            let params = json!({"sessionId": self.id, "modeId": mode});
            self.set(Setting {
                method: "session/set_mode".to_owned(),
                option: None,
                params: params.to_string().into(),
            });
        }
    }

    /// The agent has changed options by itself. Those that the local side has set get the new values.
    fn follow_options(&mut self, update: &str) {
        let update: Value = serde_json::from_str(update).unwrap_or_default();
        for option in update["configOptions"].as_array().into_iter().flatten() {
            let id = option["id"].to_string();
            let mut settings = self.settings.iter_mut();
            let setting = settings.find(|one| one.option.as_ref() == Some(&id));
            let value = &option["currentValue"];
            if let Some(setting) = setting.filter(|_| !value.is_null())
                && let Ok(Value::Object(mut params)) = serde_json::from_str(&setting.params)
            {
                params.insert("value".to_owned(), value.clone());
                let params = Value::Object(params).to_string();
                if params.len() <= MAX_PARAMS {
                    setting.params = params.into();
                }
            }
        }
    }

    /// The parameters of `session/resume` or `session/load`.
    pub(super) fn params(&self) -> Value {
        let mut params: Map<String, Value> = serde_json::from_str(&self.params).unwrap_or_default();
        params.insert("sessionId".to_owned(), json!(self.id));
        // The history would be shown twice.
        params.remove("replayFrom");
        if let Some(token) = &self.resume_token {
            // The agent may need the rest of it.
            let mut meta = match params.remove("_meta") {
                Some(Value::Object(meta)) => meta,
                _ => Map::new(),
            };
            meta.insert("outrigger".to_owned(), json!({"resumeToken": token}));
            params.insert("_meta".to_owned(), Value::Object(meta));
        }
        Value::Object(params)
    }
}

/// The version of the protocol in the parameters or the result of `initialize`.
pub(super) fn version(envelope: &Envelope<'_>) -> Option<u64> {
    let version = envelope.of_body("protocolVersion")?;
    envelope.text[version].parse().ok()
}

/// `sessionId` of parameters.
fn session_of(params: &str) -> Option<String> {
    let params: Map<String, Value> = serde_json::from_str(params).ok()?;
    params.get("sessionId")?.as_str().map(str::to_owned)
}

/// Whether an agent has `session/resume` and `session/load`.
pub(super) struct Abilities {
    pub(super) resume: bool,
    pub(super) load: bool,
}

impl Abilities {
    pub(super) fn of(result: &str) -> Self {
        let result: Value = serde_json::from_str(result).unwrap_or_default();
        let first = &result["agentCapabilities"];
        Self {
            // Version 2 requires it of each agent with sessions.
            resume: first["sessionCapabilities"]["resume"].is_object()
                || result["capabilities"]["session"].is_object(),
            load: first["loadSession"] == true,
        }
    }
}
