//! What the server does for the agent in the place of clients that have no files and programs of their own, such as the page in a
//! browser: text files below one directory, and terminals.
//!
//! The router passes the agent's requests here ([`ServedRequest`]) and takes the answers. All of this is off unless the
//! settings permit it, and a client has it only if it asks for it in `initialize`.

mod files;
mod terminals;

use std::path::PathBuf;

use serde_json::Value;

use self::files::{Directory, Lines};
pub(super) use self::terminals::Shown;
use self::terminals::{Terminals, number_of, text_of};
use super::router::{ServedError, ServedRequest, SessionKey};
use crate::log_event::{log_event, word};
use crate::record::{Fields, Loader, Record, RecordError, Saver, object, record};
use crate::service::jsonrpc::Envelope;
use crate::{ClientId, Context, Principal, Readiness, SourceId, TimerId};

/// The answer to a request of the router with this number: a result as JSON, or an error.
pub(super) type Answer = (u64, Result<String, ServedError>);

/// A request that waits to be handled.
#[derive(Debug)]
pub(super) struct Call {
    id: u64,
    client: ClientId,
    principal: Principal,
    session: Option<SessionKey>,
    text: String,
}

record!(Call {
    id,
    client,
    principal,
    session,
    text,
});

/// What has been done for agents since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ToolFigures {
    pub(super) files_read: u64,
    pub(super) files_written: u64,
    pub(super) terminals_started: u64,
    /// Requests that were answered with an error.
    pub(super) refused: u64,
    /// Terminals, including those that are being stopped.
    pub(super) terminals: usize,
}

record!(ToolFigures {
    files_read,
    files_written,
    terminals_started,
    refused,
    terminals,
});

/// Files and terminals for agents.
#[derive(Debug, Default)]
pub(super) struct ClientTools {
    directory: Option<PathBuf>,
    files: Option<Directory>,
    terminals: Terminals,
    /// The requests that the router has passed on and that are not handled yet.
    calls: Vec<Call>,
    figures: ToolFigures,
}

impl ClientTools {
    /// Reads and writes files below `directory`, if there is one, once it is opened.
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        Self {
            directory,
            ..Self::default()
        }
    }

    /// Completes what is half done, so that it can be saved.
    pub(super) fn make_portable(&mut self, ctx: &mut Context) {
        self.terminals.make_portable(ctx);
    }

    /// Writes down what the next program needs.
    pub(super) fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        let Self {
            directory: _,
            files: _,
            terminals,
            calls,
            figures,
        } = self;
        object!({
            "terminals": terminals.save(to),
            "calls": calls.save(to),
            "figures": figures.save(to),
        })
    }

    /// Continues with what another server has saved.
    pub(super) fn load(
        &mut self,
        ctx: &mut Context,
        value: Value,
        from: &mut Loader,
    ) -> Result<(), RecordError> {
        let mut fields = Fields::of(value)?;
        self.calls = fields.take("calls", from)?;
        self.figures = fields.take("figures", from)?;
        let terminals = fields.take("terminals", from)?;
        let loaded = self.terminals.load(ctx, terminals, from);
        loaded.map_err(|error| error.inside("terminals"))
    }

    /// Opens the directory. Returns why it cannot be used.
    pub(super) fn open(&mut self) -> Result<(), String> {
        let Some(path) = &self.directory else {
            return Ok(());
        };
        let opened = Directory::open(path);
        let failed = |error| format!("cannot use {} for files of agents: {error}", path.display());
        self.files = Some(opened.map_err(failed)?);
        Ok(())
    }

    /// The directory below which files are read and written.
    pub(super) fn directory(&self) -> Option<String> {
        let files = self.files.as_ref();
        files.map(|files| files.path().display().to_string())
    }

    pub(super) fn figures(&self) -> ToolFigures {
        ToolFigures {
            terminals_started: self.terminals.started(),
            terminals: self.terminals.len(),
            ..self.figures
        }
    }

    /// Queues a request. [`ClientTools::take_answers`] handles it.
    pub(super) fn queue(&mut self, request: ServedRequest<'_>) {
        self.calls.push(Call {
            id: request.id,
            client: request.client,
            principal: request.principal,
            session: request.session,
            text: request.envelope.text.to_owned(),
        });
    }

    /// Whether no request waits and no terminal runs, so that events and turns have nothing to do here.
    fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.terminals.len() == 0
    }

    /// Handles the queued requests, and returns all answers that are known.
    pub(super) fn take_answers(&mut self, ctx: &mut Context) -> Vec<Answer> {
        let mut answers = Vec::new();
        if self.is_idle() {
            return answers;
        }
        for call in std::mem::take(&mut self.calls) {
            if let Some(answer) = self.handle(ctx, &call) {
                if let Err(refused) = &answer {
                    self.figures.refused += 1;
                    log::debug!("refused a request of the agent: {}", refused.why);
                }
                answers.push((call.id, answer));
            }
        }
        answers.extend(self.terminals.take_answers(ctx));
        answers
    }

    fn handle(&mut self, ctx: &mut Context, call: &Call) -> Option<Result<String, ServedError>> {
        let Ok(envelope) = Envelope::parse(&call.text) else {
            return Some(Err(ServedError::params("the message is not valid")));
        };
        let Some(session) = &call.session else {
            return Some(Err(ServedError::params("\"sessionId\" is missing")));
        };
        match envelope.method() {
            "fs/read_text_file" => Some(self.read(ctx, &envelope)),
            "fs/write_text_file" => Some(self.write(ctx, call, &envelope)),
            _ => self.terminals.handle(ctx, call, session, &envelope),
        }
    }

    fn read(&mut self, ctx: &mut Context, envelope: &Envelope<'_>) -> Result<String, ServedError> {
        let path = path_of(envelope)?;
        let lines = Lines {
            from: number_of(envelope, "line")?.unwrap_or(1),
            most: number_of(envelope, "limit")?,
        };
        let mut scanned = 0;
        let read = self.directory_fd()?.read(&path, lines, &mut scanned);
        ctx.spend(50 + scanned / 512);
        let content = read?;
        self.figures.files_read += 1;
        log::debug!("read a file for the agent: {path:?}");
        Ok(serde_json::json!({"content": content}).to_string())
    }

    fn write(
        &mut self,
        ctx: &mut Context,
        call: &Call,
        envelope: &Envelope<'_>,
    ) -> Result<String, ServedError> {
        let path = path_of(envelope)?;
        let content = text_of(envelope, "content")?;
        let content = content.ok_or_else(|| ServedError::params("\"content\" is missing"))?;
        ctx.spend(100 + content.len() / 512);
        self.directory_fd()?.write(&path, &content)?;
        self.figures.files_written += 1;
        log_event!(
            Info,
            client = call.client,
            "wrote a file for the agent",
            path = &*path,
            bytes = content.len(),
            principal = word(&call.principal),
        );
        Ok("{}".to_owned())
    }

    fn directory_fd(&self) -> Result<&Directory, ServedError> {
        let why = "the server has no directory for files";
        self.files.as_ref().ok_or_else(|| ServedError::denied(why))
    }

    // Events.

    pub(super) fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        if !self.is_idle() {
            self.terminals.ready(ctx, source, readiness);
        }
    }

    /// Handles a timer. Returns whether [`ClientTools::show`] is due.
    pub(super) fn timer(&mut self, ctx: &mut Context, timer: TimerId) -> bool {
        self.terminals.timer(ctx, timer)
    }

    /// What clients have to be shown of terminals, and the answers for terminals that end. `audience` returns the clients of a
    /// session, or `None` if the server must not serve the session any more.
    pub(super) fn show(
        &mut self,
        ctx: &mut Context,
        audience: impl Fn(&SessionKey) -> Option<Vec<ClientId>>,
    ) -> (Vec<Shown>, Vec<Answer>) {
        self.terminals.show(ctx, audience)
    }

    pub(super) fn orphans_changed(&mut self, ctx: &mut Context) {
        self.terminals.orphans_changed(ctx);
    }

    pub(super) fn forget_client(&mut self, client: ClientId) {
        self.terminals.forget_client(client);
    }

    pub(super) fn stop_all(&mut self, ctx: &mut Context) {
        self.terminals.stop_all(ctx);
    }

    pub(super) fn are_gone(&self) -> bool {
        self.terminals.are_gone()
    }

    /// The memory of terminals' output, in bytes.
    pub(super) fn held(&self) -> usize {
        self.terminals.held()
    }
}

/// The path that a request for a file names.
fn path_of(envelope: &Envelope<'_>) -> Result<String, ServedError> {
    let path = text_of(envelope, "path")?;
    path.ok_or_else(|| ServedError::params("\"path\" is missing"))
}
