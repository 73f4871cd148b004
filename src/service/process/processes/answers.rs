//! Answers the calls to the process API.

use std::io::ErrorKind;

use serde_json::{Value, json};
use uuid::Uuid;

use super::{Processes, Purpose, Start, is_shared};
use crate::server::too_little_memory;
use crate::service::process::attach::{Attachments, Replay, Role};
use crate::service::process::bodies::{
    InputData, read_data, read_exec, read_input, read_signal, read_size, read_spawn,
};
use crate::service::process::calls::{Action, Call, no_process};
use crate::service::process::dialect::{Dialect, log_failed_resize};
use crate::service::process::event_stream::Details;
use crate::service::process::fields::bad_request;
use crate::service::process::program::Program;
use crate::service::process::queries::{format_of, lines_of, since, switch};
use crate::service::process::recording::Recording;
use crate::service::process::responses::{spec, status, summary};
use crate::service::process::waits::{Wait, screen_response};
use crate::{ClientId, Context, Rejection, Request, Response, StatusCode};

/// The header field with the content type of a stream's events.
const EVENTS_ARE_JSON: (&str, &str) = ("X-SSE-Content-Type", "application/json");

/// The media type of a recording.
const ASCIICAST: &str = "application/x-asciicast";

/// The work of reading how much CPU time and memory a process uses, in the units of [`Context::spend`].
const USAGE: usize = 20;

impl Processes {
    /// Answers a call. Returns `None` if the response follows later.
    pub(super) fn answer(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        call: Call<'_>,
        request: &Request<'_>,
        body: &[u8],
    ) -> Result<Option<Response>, Rejection> {
        let compat = self.config.compat;
        Ok(Some(match call {
            Call::List => self.list(ctx, caller, switch(request, "usage")?),
            Call::Spawn => {
                let start = Start {
                    request: self.decide_recording(read_spawn(body, compat)?)?,
                    purpose: Purpose::Spawn,
                };
                return self.enqueue(ctx, caller, start).map(|()| None);
            }
            Call::Exec => {
                let details = Details::of(request)?;
                let most = self.config.max_exec_output;
                let (request, limit) = read_exec(body, most, compat)?;
                let start = Start {
                    request: self.decide_recording(request)?,
                    purpose: Purpose::Exec(limit, details),
                };
                return self.enqueue(ctx, caller, start).map(|()| None);
            }
            Call::Ensure(name) => {
                let key = self.key(ctx, caller, name);
                let run = self.decide_recording(read_spawn(body, compat)?)?;
                return self.ensure(ctx, caller, &key, run, switch(request, "restart")?);
            }
            Call::Process(which, action) => {
                // It may have been removed since the head arrived.
                let id = self.find(ctx, caller, which)?;
                return self.act(ctx, caller, (id, action), request, body);
            }
            Call::Spec(format) => spec(format, &self.config.endpoint),
        }))
    }

    /// Answers a call to one process.
    fn act(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        (id, action): (Uuid, Action),
        request: &Request<'_>,
        body: &[u8],
    ) -> Result<Option<Response>, Rejection> {
        let ok = || Response::json(StatusCode::OK, json!({"ok": true}).to_string());
        let compat = self.config.compat;
        Ok(Some(match action {
            Action::Status => {
                let program = self.programs.get(id).ok_or_else(no_process)?;
                status(program, ctx.now(), Details::of(request)?)
            }
            Action::Stdin => self.write(ctx, id, read_data(body, compat)?)?,
            Action::Kill => {
                let signal = read_signal(body, compat)?;
                self.running(id)?.signal(signal);
                ok()
            }
            Action::Resize => {
                let size = read_size(body, compat)?;
                let program = self.running(id)?;
                if !program.has_terminal() {
                    return Err(bad_request("process is not PTY-backed"));
                }
                self.programs.resize(ctx, id, size).map_err(|error| {
                    log_failed_resize(caller, size, &error);
                    if error.kind() == ErrorKind::OutOfMemory {
                        return too_little_memory();
                    }
                    Rejection::new(StatusCode::INTERNAL, format!("resizing failed: {error}"))
                })?;
                ok()
            }
            Action::Stream => {
                self.stream(ctx, caller, id, request)?;
                return Ok(None);
            }
            Action::Attach => return Err(Rejection::not_found()),
            Action::Delete => {
                self.delete(ctx, id)?;
                ok()
            }
            Action::Screen => {
                let (above, format) = (lines_of(request)?, format_of(request)?);
                let program = self.screened(id)?;
                screen_response(ctx, program, above, format)
            }
            Action::Wait => {
                self.screened(id)?;
                let wait = Wait::read(body, ctx.now())?;
                self.waits.add(ctx, caller, id, wait, &mut self.programs);
                return Ok(None);
            }
            Action::Input => {
                self.running(id)?;
                let program = self.screened(id)?;
                let modes = program.sink.attachments().map(Attachments::key_modes);
                let bytes = read_input(body, modes.unwrap_or_default())?;
                let is_last = false;
                self.write(ctx, id, InputData { bytes, is_last })?
            }
            Action::Recording => {
                self.download(ctx, caller, id, request)?;
                return Ok(None);
            }
        }))
    }

    /// Begins to stream a process's output.
    fn stream(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        id: Uuid,
        request: &Request<'_>,
    ) -> Result<(), Rejection> {
        let since = since(request, self.output_end(id))?;
        let kind = (Role::Listener, Dialect::EventStream(Details::of(request)?));
        let begun = ctx.begin_stream(caller, &[EVENTS_ARE_JSON]);
        if begun.is_ok() && request.method() != "HEAD" {
            let replay = Replay {
                since,
                screen: None,
            };
            self.programs.attach(ctx, id, caller, kind, replay);
        }
        Ok(())
    }

    /// Begins to send a process's recording.
    fn download(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        id: Uuid,
        request: &Request<'_>,
    ) -> Result<(), Rejection> {
        let program = self.programs.get_mut(id).ok_or_else(no_process)?;
        let recording = program.recording().and_then(Recording::open);
        let why = "the process has no recording";
        let file = recording.ok_or_else(|| Rejection::new(StatusCode::NOT_FOUND, why))?;
        if ctx.begin_body(caller, ASCIICAST).is_ok() && request.method() != "HEAD" {
            self.downloads.add(ctx, caller, file);
        }
        Ok(())
    }

    /// A process whose screen is known.
    fn screened(&mut self, id: Uuid) -> Result<&mut Program, Rejection> {
        let why = if self.config.screens.is_none() {
            "the server keeps no screens"
        } else {
            "process is not PTY-backed"
        };
        let program = self.programs.get_mut(id).ok_or_else(no_process)?;
        if !program.has_terminal() || self.config.screens.is_none() {
            return Err(Rejection::new(StatusCode::CONFLICT, why));
        }
        if !program.sink.has_screen() {
            let why = "the screen was given up, because too little memory was left";
            return Err(Rejection::new(StatusCode::CONFLICT, why));
        }
        Ok(program)
    }

    /// Removes a process that has exited, with its output and its name.
    fn delete(&mut self, ctx: &mut Context, id: Uuid) -> Result<(), Rejection> {
        let program = self.programs.get(id).ok_or_else(no_process)?;
        if !program.is_finished() {
            let why = "process is running";
            return Err(Rejection::new(StatusCode::CONFLICT, why));
        }
        if program.sink.is_read() {
            let why = "clients still read the output of the process";
            return Err(Rejection::new(StatusCode::CONFLICT, why));
        }
        self.programs.remove(ctx, id);
        Ok(())
    }

    fn list(&mut self, ctx: &mut Context, caller: ClientId, with_usage: bool) -> Response {
        let now = ctx.now();
        let names = self.names.of_owner(&self.key(ctx, caller, "").owner);
        let visible = |program: &&mut Program| is_shared(program);
        let mut programs: Vec<&mut Program> = self.programs.iter_mut().filter(visible).collect();
        programs.sort_by_key(|program| program.started);
        let programs: Vec<Value> = programs
            .into_iter()
            .map(|program| {
                let name = names.get(&program.id);
                let mut summary = summary(program, now, with_usage);
                if let Some(name) = name {
                    summary["name"] = Value::from(&**name);
                }
                summary
            })
            .collect();
        if with_usage {
            // Reading the use of one process from the system takes about this time.
            ctx.spend(programs.len() * USAGE);
        }
        Response::json(StatusCode::OK, json!({"processes": programs}).to_string())
    }

    /// A process that has not exited.
    fn running(&self, id: Uuid) -> Result<&Program, Rejection> {
        let program = self.programs.get(id).ok_or_else(no_process)?;
        if program.exit().is_some() {
            let why = "process not running";
            return Err(Rejection::new(StatusCode::NOT_FOUND, why));
        }
        Ok(program)
    }

    fn write(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        data: InputData,
    ) -> Result<Response, Rejection> {
        let program = self.running(id)?;
        if data.is_last && program.has_terminal() {
            let why = "the input of a terminal has no end; send the character of ^D";
            return Err(bad_request(why));
        }
        if program.is_behind() {
            return Err(Rejection::unavailable("process does not read its input"));
        }
        let InputData { bytes, is_last } = data;
        let mut is_taken = false;
        self.programs.with(ctx, id, |program, ctx| {
            is_taken = program.takes_input() && program.push_input(ctx, &bytes);
            if is_taken && is_last {
                program.end_input(ctx);
            }
        });
        if !is_taken {
            return Err(bad_request("process has closed its input"));
        }
        Ok(Response::json(
            StatusCode::OK,
            json!({"written_bytes": bytes.len()}).to_string(),
        ))
    }

    fn output_end(&self, id: Uuid) -> u64 {
        self.programs.get(id).map_or(0, Program::output_end)
    }
}
