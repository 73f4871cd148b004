//! The `initialize` handshake of an agent process, whose result all clients of its kind get.

use std::ops::Range;

use serde_json::{Value, json};

use crate::record::record;
use crate::service::jsonrpc::{Envelope, insert_member, member};
use crate::{ClientId, Time};

/// The state of a process's one `initialize`.
#[derive(Debug)]
pub(super) enum Initialize {
    /// No client has sent it, or the agent answered with an error.
    Never,
    /// The agent has not answered.
    Pending(PendingInitialize),
    /// The agent answered with this result.
    Done {
        params: Box<str>,
        result: Box<str>,
        agent_resumes: bool,
    },
}

/// An `initialize` that the agent has not answered.
#[derive(Debug, Default)]
pub(super) struct PendingInitialize {
    /// The upstream ids that it was sent under. It is sent again if the clients that waited for it have left.
    pub(super) ids: Vec<u64>,
    /// The first upstream id that it was sent under. Requests with higher ids wait until the agent has accepted it.
    pub(super) first_id: u64,
    pub(super) params: Box<str>,
    /// The clients that get the answer, under their own request ids.
    pub(super) wanted: Vec<(ClientId, Box<str>)>,
    /// Whether an earlier process has accepted it. Clients rely on the result in that case.
    pub(super) was_accepted: bool,
    /// Whether a restarted agent has rejected it, although its predecessor accepted it, or has not answered in time.
    pub(super) is_refused: bool,
    /// The time at which the waiting clients get a timeout error.
    pub(super) deadline: Option<Time>,
}

record!(enum Initialize {
    Never,
    Pending(pending),
    Done {
        params,
        result,
        agent_resumes,
    },
});

record!(PendingInitialize {
    ids,
    first_id,
    params,
    wanted,
    was_accepted,
    is_refused,
    deadline,
});

impl Initialize {
    /// The pending `initialize`.
    pub(super) fn pending(&mut self) -> Option<&mut PendingInitialize> {
        match self {
            Self::Pending(pending) => Some(pending),
            Self::Never | Self::Done { .. } => None,
        }
    }

    /// Whether `id` is an id of the pending `initialize`.
    pub(super) fn is_pending_as(&self, id: u64) -> bool {
        matches!(self, Self::Pending(pending) if pending.ids.contains(&id))
    }

    /// Whether the agent has not answered it yet.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self, Self::Pending(_))
    }

    /// Whether a restarted agent must be stopped because it has not accepted it.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Pending(pending) if pending.is_refused)
    }

    /// The time at which the waiting clients get a timeout error.
    pub(super) fn deadline(&self) -> Option<Time> {
        match self {
            Self::Pending(pending) => pending.deadline,
            Self::Never | Self::Done { .. } => None,
        }
    }

    /// Whether a client waits for the answer.
    pub(super) fn is_wanted_by(&self, client: ClientId) -> bool {
        self.wanted().any(|wanted| wanted == client)
    }

    /// Whether the agent has declared that it does not support `session/resume`.
    pub(super) fn lacks_resume(&self) -> bool {
        matches!(
            self,
            Self::Done {
                agent_resumes: false,
                ..
            }
        )
    }

    /// The clients that wait for the answer.
    pub(super) fn wanted(&self) -> impl Iterator<Item = ClientId> {
        let wanted = match self {
            Self::Pending(pending) => &pending.wanted[..],
            Self::Never | Self::Done { .. } => &[],
        };
        wanted.iter().map(|(client, _)| *client)
    }

    /// Whether any client waits for the answer.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted().next().is_some()
    }

    /// Removes a client that has disconnected.
    pub(super) fn forget(&mut self, client: ClientId) {
        if let Some(pending) = self.pending() {
            pending.wanted.retain(|(other, _)| *other != client);
        }
    }

    /// Takes the clients that wait for the answer, because it will not come.
    pub(super) fn take_wanted(&mut self) -> Vec<(ClientId, Box<str>)> {
        let pending = self.pending();
        pending.map_or_else(Vec::new, |pending| {
            pending.deadline = None;
            std::mem::take(&mut pending.wanted)
        })
    }

    /// Prepares to send `initialize` with the same parameters to a restarted agent. Returns false if nobody needs it.
    pub(super) fn restart(&mut self, id: u64) -> bool {
        let pending = match std::mem::replace(self, Self::Never) {
            // Clients that sent it while no agent was running still wait, and so do their requests.
            Self::Pending(pending) => pending,
            Self::Done { params, .. } => PendingInitialize {
                first_id: id,
                params,
                was_accepted: true,
                ..PendingInitialize::default()
            },
            Self::Never => return false,
        };
        if pending.wanted.is_empty() && !pending.was_accepted {
            return false;
        }
        *self = Self::Pending(PendingInitialize {
            ids: vec![id],
            is_refused: false,
            deadline: None,
            ..pending
        });
        true
    }
}

/// The kind of a client: clients of one kind share an agent process. It consists of the protocol version and the
/// capabilities in the parameters of `initialize`, as JSON in a canonical form. The capability `transport` does not count: it concerns the server, not the agent.
pub(super) fn kind_of(envelope: &Envelope<'_>) -> Box<str> {
    let value = |name: &str| {
        let params = envelope.body.as_ref()?;
        let range = member(envelope.text, params, name)?;
        let text = &envelope.text[range];
        // The parser has another limit on nesting. What it rejects is compared as text.
        let value = serde_json::from_str(text);
        Some(value.unwrap_or_else(|_| Value::String(text.to_owned())))
    };
    let capabilities = |name: &str| {
        let capabilities = value(name).filter(|value| !value.is_null());
        let mut capabilities = capabilities.unwrap_or_else(|| json!({}));
        if let Some(members) = capabilities.as_object_mut() {
            members.remove("transport");
        }
        capabilities
    };
    let kind = json!([
        value("protocolVersion"),
        capabilities("clientCapabilities"),
        capabilities("capabilities"),
    ]);
    kind.to_string().into()
}

/// The requests that a client has declared it supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capabilities {
    read_files: bool,
    write_files: bool,
    terminal: bool,
    elicitation: bool,
    elicitation_form: bool,
    elicitation_url: bool,
}

record!(Capabilities {
    read_files,
    write_files,
    terminal,
    elicitation,
    elicitation_form,
    elicitation_url,
});

impl Capabilities {
    /// Reads them from the parameters of `initialize`: `clientCapabilities` of version 1 and `capabilities` of version 2.
    pub(super) fn read(envelope: &Envelope<'_>) -> Self {
        let text = envelope.text;
        let value = |path: &[&str]| {
            let params = envelope.body.clone()?;
            let mut path = path.iter();
            let found = path.try_fold(params, |range, name| member(text, &range, name));
            found.map(|found| &text[found])
        };
        let is_true = |path: &[&str]| value(path) == Some("true");
        let is_object = |path: &[&str]| value(path).is_some_and(|value| value.starts_with('{'));
        let announces = |path: &[&str]| {
            ["clientCapabilities", "capabilities"]
                .iter()
                .any(|name| is_object(&[&[*name], path].concat()))
        };
        let elicitation = announces(&["elicitation"]);
        let (form, url) = (
            announces(&["elicitation", "form"]),
            announces(&["elicitation", "url"]),
        );
        Self {
            read_files: is_true(&["clientCapabilities", "fs", "readTextFile"]),
            write_files: is_true(&["clientCapabilities", "fs", "writeTextFile"]),
            terminal: is_true(&["clientCapabilities", "terminal"]),
            elicitation,
            // A client that announces no mode may have been written for a draft without modes.
            elicitation_form: form || elicitation && !url,
            elicitation_url: url || elicitation && !form,
        }
    }

    /// Why the agent may not send the client this request: a capability that the client has not announced. Methods without a
    /// capability are allowed.
    pub(super) fn missing_for(self, method: &str, request: &Envelope<'_>) -> Option<&'static str> {
        let (has, missing) = match method {
            "fs/read_text_file" => (
                self.read_files,
                "the client has not announced the capability fs.readTextFile",
            ),
            "fs/write_text_file" => (
                self.write_files,
                "the client has not announced the capability fs.writeTextFile",
            ),
            "elicitation/create" => match mode_of(request) {
                Some(r#""form""#) => (
                    self.elicitation_form,
                    "the client has not announced the capability elicitation.form",
                ),
                Some(r#""url""#) => (
                    self.elicitation_url,
                    "the client has not announced the capability elicitation.url",
                ),
                _ => (
                    self.elicitation,
                    "the client has not announced the capability elicitation",
                ),
            },
            _ if method.starts_with("terminal/") => (
                self.terminal,
                "the client has not announced the capability terminal",
            ),
            _ => (true, ""),
        };
        (!has).then_some(missing)
    }
}

/// The mode of `elicitation/create`, as JSON.
fn mode_of<'a>(elicitation: &Envelope<'a>) -> Option<&'a str> {
    let mode = member(elicitation.text, elicitation.body.as_ref()?, "mode")?;
    Some(&elicitation.text[mode])
}

/// The parameters of `initialize` for a process that serves clients of every kind: those of the first client, with every capability
/// that lets the agent send requests. The router answers for clients that lack one of them. Other capabilities, which change what
/// the agent's messages look like, remain those of the first client.
pub(super) fn with_all_requests(params: &str) -> String {
    let elicitation = json!({"form": {}, "url": {}});
    let version_1 = json!({
        "fs": {"readTextFile": true, "writeTextFile": true},
        "terminal": true,
        "elicitation": elicitation,
    });
    let is_version_1 = version_of(params).is_none_or(|version| version < 2);
    let (name, all) = if is_version_1 {
        ("clientCapabilities", version_1)
    } else {
        ("capabilities", json!({"elicitation": elicitation}))
    };
    let whole = 0..params.len();
    let Some(found) = member(params, &whole, name) else {
        return match params.starts_with('{') {
            true => insert_member(params, &whole, &format!("\"{name}\":{all}")),
            false => params.to_owned(),
        };
    };
    let own = serde_json::from_str(&params[found.clone()]);
    let merged = merge(own.unwrap_or_default(), all).to_string();
    [&params[..found.start], &merged, &params[found.end..]].concat()
}

/// Adds the members of `more` to `own`, at any depth. Other values are replaced.
fn merge(own: Value, more: Value) -> Value {
    match (own, more) {
        (Value::Object(mut own), Value::Object(more)) => {
            for (name, value) in more {
                let before = own.remove(&name).unwrap_or_default();
                own.insert(name, merge(before, value));
            }
            Value::Object(own)
        }
        (_, more) => more,
    }
}

/// The protocol version in the parameters or the result of `initialize`.
pub(super) fn version_of(object: &str) -> Option<u64> {
    let whole = 0..object.len();
    let version = &object[member(object, &whole, "protocolVersion")?];
    version.parse().ok()
}

/// Whether a result of `initialize` declares `session/resume`. Version 2 requires it of every agent with sessions.
pub(super) fn declares_resume(result: &str) -> bool {
    let declares = |path: &[&str]| {
        let whole: Range<usize> = 0..result.len();
        let mut path = path.iter();
        let found = path.try_fold(whole, |range, name| member(result, &range, name));
        found.is_some_and(|found| !matches!(&result[found], "null" | "false"))
    };
    declares(&["agentCapabilities", "sessionCapabilities", "resume"])
        || declares(&["capabilities", "session"])
}
