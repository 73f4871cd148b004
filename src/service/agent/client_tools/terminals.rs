//! Programs that the server runs for the agent: the `terminal/*` requests of version 1, and what the clients of the session see of
//! their output while they run.
//!
//! A terminal belongs to a session. It ends when the agent releases it, and when no client lets the server serve the session any
//! more. Its program has pipes and no input, because the agent cannot write to it.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::router::{ServedError, SessionKey};
use super::{Answer, Call};
use crate::log_event::{log_event, word};
use crate::record::{Fields, Loader, Record, RecordError, Saver, object, record};
use crate::service::deadlines::Alarm;
use crate::service::id_map::IdMap;
use crate::service::json::{Skimmer, unescape};
use crate::service::jsonrpc::Envelope;
use crate::service::process::LINGER;
use crate::service::process::attach::{Attachments, Sharing};
use crate::service::process::program::{Launch, PassEnv, Program};
use crate::service::process::programs::Programs;
use crate::service::process::sink::Sink;
use crate::sys::random_uuid;
use crate::{ClientId, Context, Principal, Readiness, SourceId, TimerId};

/// The maximum number of terminals of one principal, and of all. Those that are being stopped count.
const MAX_PER_PRINCIPAL: usize = 16;
const MAX_TERMINALS: usize = 64;
/// The maximum number of bytes of output that are kept for the agent.
const MAX_OUTPUT: usize = 1 << 20;
/// The maximum number of arguments and variables of a program.
const MAX_WORDS: usize = 1024;
/// How often clients get new output. Terminals without an owner are ended at the same times.
const LIVE_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum number of bytes of output that clients get at once. If there is more, they get the end of it.
const LIVE_BYTES: usize = 16 << 10;
/// The bytes of output that are kept for clients that attach to the session later.
const KEPT_BYTES: usize = 8 << 10;
/// The units of starting a program, for [`Context::spend`].
const START: usize = 1000;

/// What a client is shown of a terminal.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) session: SessionKey,
    pub(crate) update: Value,
    pub(crate) clients: Vec<ClientId>,
    /// Whether the update is kept for clients that come later.
    pub(crate) is_kept: bool,
}

#[derive(Debug)]
struct Terminal {
    session: SessionKey,
    client: ClientId,
    principal: Principal,
    /// What the program was asked to run, for people.
    command: String,
    /// The bytes of output that the agent wants to get.
    limit: usize,
    /// The requests that wait for the exit.
    waiting: Vec<u64>,
    /// Whether the agent has released it, or it belongs to nobody any more.
    is_released: bool,
    /// Whether all of its processes are gone after it was stopped.
    is_gone: bool,
    /// The clients that have seen the output up to `shown_end`.
    shown_to: Vec<ClientId>,
    shown_end: u64,
    /// Whether the exit has been shown and kept.
    has_shown_exit: bool,
}

record!(Terminal {
    session,
    client,
    principal,
    command,
    limit,
    waiting,
    is_released,
    is_gone,
    shown_to,
    shown_end,
    has_shown_exit,
});

/// The terminals of the agents.
#[derive(Debug, Default)]
pub(super) struct Terminals {
    programs: Programs,
    terminals: IdMap<Uuid, Terminal>,
    /// Goes off when clients get new output.
    live: Alarm,
    started: u64,
}

impl Terminals {
    /// Completes what is half done, so that it can be saved.
    pub(super) fn make_portable(&mut self, ctx: &mut Context) {
        self.programs.make_portable(ctx);
    }

    /// Writes down what the next program needs.
    pub(super) fn save<'a>(&'a self, to: &mut Saver<'a>) -> Value {
        let Self {
            programs,
            terminals,
            // It is set again if there are terminals.
            live: _,
            started,
        } = self;
        object!({
            "programs": programs.save(to),
            "terminals": terminals.save(to),
            "started": started,
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
        self.terminals = fields.take("terminals", from)?;
        self.started = fields.take("started", from)?;
        let programs = fields.take("programs", from)?;
        self.programs.restore(ctx, programs, None, from)?;
        if !self.terminals.is_empty() && !from.is_rehearsal() {
            self.live.set_by(ctx, ctx.now());
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.programs.len()
    }

    pub(super) fn started(&self) -> u64 {
        self.started
    }

    pub(super) fn held(&self) -> usize {
        self.programs.held_memory()
    }

    pub(super) fn are_gone(&self) -> bool {
        self.programs.are_gone()
    }

    pub(super) fn stop_all(&mut self, ctx: &mut Context) {
        self.programs.stop_all(ctx);
    }

    pub(super) fn orphans_changed(&mut self, ctx: &mut Context) {
        self.programs.orphans_changed(ctx);
    }

    pub(super) fn forget_client(&mut self, client: ClientId) {
        for terminal in self.terminals.values_mut() {
            terminal.shown_to.retain(|other| *other != client);
        }
    }

    /// Handles a request. The answer to one that waits for an exit comes later.
    pub(super) fn handle(
        &mut self,
        ctx: &mut Context,
        call: &Call,
        session: &SessionKey,
        envelope: &Envelope<'_>,
    ) -> Option<Result<String, ServedError>> {
        if envelope.method() == "terminal/create" {
            return Some(self.create(ctx, call, session, envelope));
        }
        let id = match self.find(session, envelope) {
            Ok(id) => id,
            Err(refused) => return Some(Err(refused)),
        };
        match envelope.method() {
            "terminal/output" => Some(self.output(id)),
            "terminal/wait_for_exit" => match self.exit_of(id) {
                Some(exit) => Some(Ok(exit.to_string())),
                None => {
                    let terminal = self.terminals.get_mut(&id)?;
                    terminal.waiting.push(call.id);
                    None
                }
            },
            "terminal/kill" => {
                self.programs.stop(ctx, id);
                Some(Ok("{}".to_owned()))
            }
            "terminal/release" => {
                if let Some(terminal) = self.terminals.get_mut(&id) {
                    terminal.is_released = true;
                }
                // The next turn of `show` stops the program, after clients have seen the last of it.
                self.live.set_by(ctx, ctx.now());
                Some(Ok("{}".to_owned()))
            }
            method => Some(Err(ServedError::params(format!("unknown method {method}")))),
        }
    }

    /// The terminal that a request names, if the session has it.
    fn find(&self, session: &SessionKey, envelope: &Envelope<'_>) -> Result<Uuid, ServedError> {
        let id = text_of(envelope, "terminalId")?;
        let id = id.ok_or_else(|| ServedError::params("\"terminalId\" is missing"))?;
        let found = Uuid::parse_str(&id).ok().filter(|id| {
            let terminal = self.terminals.get(id);
            terminal.is_some_and(|one| one.session == *session && !one.is_released)
        });
        found.ok_or_else(|| ServedError::not_found("the session has no such terminal"))
    }

    fn create(
        &mut self,
        ctx: &mut Context,
        call: &Call,
        session: &SessionKey,
        envelope: &Envelope<'_>,
    ) -> Result<String, ServedError> {
        let same =
            |one: &&Terminal| one.client == call.client || one.principal.is_same(&call.principal);
        if self.terminals.len() >= MAX_TERMINALS
            || self.terminals.values().filter(same).count() >= MAX_PER_PRINCIPAL
        {
            let why = format!(
                "there are {MAX_PER_PRINCIPAL} terminals of one owner, or {MAX_TERMINALS} of all: release one first"
            );
            return Err(ServedError::too_many(why));
        }
        let wanted = Wanted::read(envelope)?;
        let limit = wanted.limit;
        let sink = Attachments::new(limit, Sharing::Shared, None);
        let command = wanted.shown.clone();
        let launch = wanted.launch();
        ctx.spend(START);
        let started = self.programs.start(ctx, launch, Sink::Shared(sink));
        let id = started.map_err(|error| ServedError::failed(format!("cannot start: {error}")))?;
        self.started += 1;
        log_event!(
            Info,
            process = id,
            "terminal of an agent",
            client = word(&call.client),
            principal = word(&call.principal),
        );
        let terminal = Terminal {
            session: session.clone(),
            client: call.client,
            principal: call.principal.clone(),
            command,
            limit,
            waiting: Vec::new(),
            is_released: false,
            is_gone: false,
            shown_to: Vec::new(),
            shown_end: 0,
            has_shown_exit: false,
        };
        self.terminals.insert(id, terminal);
        self.live.set_by(ctx, ctx.now());
        Ok(json!({"terminalId": id.to_string()}).to_string())
    }

    /// The exit of a program whose output has been read to its end.
    fn exit_of(&self, id: Uuid) -> Option<Value> {
        let program = self.programs.get(id)?;
        let exit = program.exit().filter(|_| program.is_finished())?;
        // If a signal ended the program, the code (128 plus the number) is not an exit code of its own.
        let code = exit.signal.is_none().then_some(exit.code);
        Some(json!({"exitCode": code, "signal": exit.signal}))
    }

    fn output(&mut self, id: Uuid) -> Result<String, ServedError> {
        let exit = self.exit_of(id);
        let limit = self.terminals.get(&id).map_or(0, |one| one.limit);
        let program = self.programs.get_mut(id);
        let program = program.ok_or_else(|| ServedError::not_found("the terminal has ended"))?;
        let (from, bytes) = tail(program, limit);
        let bytes = if from > 0 {
            whole_characters(&bytes)
        } else {
            &bytes
        };
        let mut answer = json!({
            "output": String::from_utf8_lossy(bytes),
            "truncated": from > 0,
        });
        if let Some(exit) = exit {
            answer["exitStatus"] = exit;
        }
        Ok(answer.to_string())
    }

    // Events.

    pub(super) fn ready(&mut self, ctx: &mut Context, source: SourceId, readiness: Readiness) {
        self.programs.ready(ctx, source, readiness);
    }

    /// Handles a timer. Returns whether clients have to be told of new output.
    pub(super) fn timer(&mut self, ctx: &mut Context, timer: TimerId) -> bool {
        let is_live = self.live.expire(timer);
        if !is_live {
            self.programs.timer(ctx, timer);
        }
        is_live
    }

    /// Answers the requests that wait for programs that have exited, and forgets programs that are gone.
    pub(super) fn take_answers(&mut self, ctx: &mut Context) -> Vec<Answer> {
        let mut answers = Vec::new();
        for id in self.programs.take_finished() {
            let exit = self.exit_of(id).unwrap_or_default();
            if let Some(terminal) = self.terminals.get_mut(&id) {
                let waiting = std::mem::take(&mut terminal.waiting);
                let answer = |request| (request, Ok(exit.to_string()));
                answers.extend(waiting.into_iter().map(answer));
                self.live.set_by(ctx, ctx.now());
            }
        }
        for id in self.programs.take_gone() {
            if let Some(terminal) = self.terminals.get_mut(&id) {
                terminal.is_gone = true;
            }
            self.remove_gone(ctx, id);
        }
        answers
    }

    fn remove_gone(&mut self, ctx: &mut Context, id: Uuid) {
        let terminal = self.terminals.get(&id);
        if terminal.is_none_or(|one| one.is_gone && one.is_released) {
            self.terminals.remove(&id);
            self.programs.remove(ctx, id);
        }
    }

    /// What clients have to be shown, and stops the terminals that belong to nobody. `audience` returns the clients of a
    /// session, or `None` if the server must not serve it any more.
    pub(super) fn show(
        &mut self,
        ctx: &mut Context,
        audience: impl Fn(&SessionKey) -> Option<Vec<ClientId>>,
    ) -> (Vec<Shown>, Vec<Answer>) {
        let (mut shown, mut answers) = (Vec::new(), Vec::new());
        let ids: Vec<Uuid> = self.terminals.keys().copied().collect();
        for id in ids {
            let exit = self.exit_of(id);
            let (Some(terminal), Some(program)) =
                (self.terminals.get_mut(&id), self.programs.get_mut(id))
            else {
                continue;
            };
            let clients = audience(&terminal.session);
            if clients.is_none() && !terminal.is_released {
                log_event!(Info, process = id, "ending a terminal whose client is gone");
                terminal.is_released = true;
            }
            let mut clients = clients.unwrap_or_default();
            // Those that cannot take it now get the last of the output later.
            clients.retain(|client| !ctx.is_detached(*client) && !ctx.is_congested(*client));
            terminal.show(id, program, &clients, exit, &mut shown);
            if terminal.is_released {
                let failed = || Err(ServedError::not_found("the terminal was released"));
                let waiting = std::mem::take(&mut terminal.waiting);
                answers.extend(waiting.into_iter().map(|request| (request, failed())));
                if terminal.is_gone {
                    self.remove_gone(ctx, id);
                } else {
                    self.programs.stop(ctx, id);
                }
            }
        }
        if !self.terminals.is_empty() {
            self.live.set_by(ctx, ctx.now() + LIVE_INTERVAL);
        }
        (shown, answers)
    }
}

impl Terminal {
    /// Adds what clients have not seen of the output and the exit.
    fn show(
        &mut self,
        id: Uuid,
        program: &mut Program,
        clients: &[ClientId],
        exit: Option<Value>,
        shown: &mut Vec<Shown>,
    ) {
        let end = program.output_end();
        let is_new = |client: &ClientId| !self.shown_to.contains(client);
        let (late, known): (Vec<_>, Vec<_>) = clients.iter().copied().partition(is_new);
        let ends = exit.is_some() && !self.has_shown_exit;
        let more = end - self.shown_end;
        let fits = usize::try_from(more).is_ok_and(|more| more <= LIVE_BYTES);
        let mut add = |update: Value, clients: Vec<ClientId>, is_kept: bool| {
            if is_kept || !clients.is_empty() {
                let session = self.session.clone();
                shown.push(Shown {
                    session,
                    update,
                    clients,
                    is_kept,
                });
            }
        };
        let whole = |program: &mut Program, most: usize| {
            let (from, bytes) = tail(program, most);
            let mut update = json!({
                "sessionUpdate": "terminal_update",
                "terminalId": id.to_string(),
                "command": self.command,
                "output": {"data": BASE64_STANDARD.encode(bytes), "truncated": from > 0},
            });
            if let Some(exit) = &exit {
                update["exitStatus"] = exit.clone();
            }
            update
        };
        if !late.is_empty() {
            add(whole(program, LIVE_BYTES), late, false);
        }
        if more > 0 && fits && !known.is_empty() {
            let (_, bytes) = tail(program, more as usize);
            let update = json!({
                "sessionUpdate": "terminal_output_chunk",
                "terminalId": id.to_string(),
                "data": BASE64_STANDARD.encode(bytes),
            });
            add(update, known.clone(), false);
        } else if more > 0 {
            add(whole(program, LIVE_BYTES), known.clone(), false);
        }
        if ends || (self.is_released && !self.has_shown_exit) {
            self.has_shown_exit = true;
            let update = json!({
                "sessionUpdate": "terminal_update",
                "terminalId": id.to_string(),
                "exitStatus": exit.clone().unwrap_or_else(|| json!({})),
            });
            add(update, known, false);
            add(whole(program, KEPT_BYTES), Vec::new(), true);
        }
        self.shown_end = end;
        self.shown_to = clients.to_vec();
    }
}

/// The last bytes of a program's output, at most `most`, and the offset of the first one.
fn tail(program: &mut Program, most: usize) -> (u64, Vec<u8>) {
    let Some(attachments) = program.sink.attachments() else {
        return (0, Vec::new());
    };
    let output = attachments.output();
    let (start, end) = (output.start(), output.end());
    let from = start.max(end.saturating_sub(most as u64));
    let mut bytes = Vec::with_capacity((end - from) as usize);
    let mut at = from;
    while at < end {
        let (_, piece) = output.piece(at, most.max(1));
        if piece.is_empty() {
            break;
        }
        bytes.extend_from_slice(piece);
        at += piece.len() as u64;
    }
    (from, bytes)
}

/// Bytes without the rest of a character at their beginning.
fn whole_characters(bytes: &[u8]) -> &[u8] {
    let is_rest = |byte: &&u8| **byte & 0xc0 == 0x80;
    let rest = bytes.iter().take(3).take_while(is_rest).count();
    &bytes[rest..]
}

/// What the agent wants to run.
struct Wanted {
    /// The command line, for people.
    shown: String,
    words: Vec<String>,
    env: Vec<(String, String)>,
    cwd: Option<String>,
    limit: usize,
}

impl Wanted {
    fn read(envelope: &Envelope<'_>) -> Result<Self, ServedError> {
        let command = text_of(envelope, "command")?;
        let command = command.filter(|command| !command.is_empty());
        let command = command.ok_or_else(|| ServedError::params("\"command\" is missing"))?;
        let text = envelope.text;
        let mut args = Vec::new();
        let mut is_right = true;
        each_of(envelope, "args", |element| {
            let is_text = text[element.clone()].starts_with('"');
            is_right &= is_text;
            args.extend(is_text.then(|| unescape(&text[element]).into_owned()));
        })?;
        let mut env = Vec::new();
        each_of(envelope, "env", |element| {
            let (mut name, mut value) = (None, None);
            if text[element.clone()].starts_with('{') {
                let _ = Skimmer::at(text, &element).object(|key, range| {
                    let found = text[range.clone()].starts_with('"');
                    let found = found.then(|| unescape(&text[range]).into_owned());
                    match &*key {
                        "name" => name = found,
                        "value" => value = found,
                        _ => {}
                    }
                });
            }
            let name = name.filter(|name| !name.is_empty() && !name.contains('='));
            is_right &= name.is_some() && value.is_some();
            env.extend(name.zip(value));
        })?;
        if !is_right || args.len() > MAX_WORDS || env.len() > MAX_WORDS {
            return Err(ServedError::params(
                "\"args\" must be strings, and \"env\" names with values",
            ));
        }
        let cwd = text_of(envelope, "cwd")?;
        if cwd.as_ref().is_some_and(|cwd| !cwd.starts_with('/')) {
            return Err(ServedError::params("\"cwd\" is not an absolute path"));
        }
        let limit = number_of(envelope, "outputByteLimit")?;
        // Agents send a command line where they have no arguments.
        let shown = [&[command.clone()][..], &args].concat().join(" ");
        let words = if args.is_empty() {
            vec!["/bin/sh".to_owned(), "-c".to_owned(), command]
        } else {
            [vec![command], args].concat()
        };
        Ok(Self {
            shown,
            words,
            env,
            cwd,
            limit: limit.unwrap_or(MAX_OUTPUT).min(MAX_OUTPUT),
        })
    }

    fn launch(self) -> Launch {
        Launch {
            id: random_uuid(),
            command: self.words,
            cwd: self.cwd,
            env: self.env,
            account: None,
            pass_env: PassEnv::All,
            terminal: None,
            takes_input: false,
            stdin: None,
            timeout: None,
            linger: Some(LINGER),
            recorder: None,
        }
    }
}

/// The raw value of a parameter, unless it is missing or null.
fn value_of<'a>(envelope: &Envelope<'a>, name: &str) -> Option<&'a str> {
    let value = &envelope.text[envelope.of_body(name)?];
    (value != "null").then_some(value)
}

/// A parameter that is a string.
pub(super) fn text_of(envelope: &Envelope<'_>, name: &str) -> Result<Option<String>, ServedError> {
    match value_of(envelope, name) {
        Some(value) if value.starts_with('"') => Ok(Some(unescape(value).into_owned())),
        Some(_) => Err(ServedError::params(format!("\"{name}\" is not a string"))),
        None => Ok(None),
    }
}

/// A parameter that is a number without a sign.
pub(super) fn number_of(envelope: &Envelope<'_>, name: &str) -> Result<Option<usize>, ServedError> {
    let Some(value) = value_of(envelope, name) else {
        return Ok(None);
    };
    let number = value.parse::<u64>().ok();
    let wrong = || ServedError::params(format!("\"{name}\" is not a number"));
    let number = number.ok_or_else(wrong)?;
    Ok(Some(usize::try_from(number).unwrap_or(usize::MAX)))
}

/// Calls `each` with the elements of a parameter that is a list.
fn each_of(
    envelope: &Envelope<'_>,
    name: &str,
    each: impl FnMut(std::ops::Range<usize>),
) -> Result<(), ServedError> {
    if value_of(envelope, name).is_none() {
        return Ok(());
    }
    let range = envelope.of_body(name).unwrap_or_default();
    if !envelope.text[range.clone()].starts_with('[') {
        return Err(ServedError::params(format!("\"{name}\" is not a list")));
    }
    let scanned = Skimmer::at(envelope.text, &range).array(each);
    scanned.map_err(|_| ServedError::params(format!("\"{name}\" is not a list")))
}
