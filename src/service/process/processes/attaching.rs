//! How clients attach to processes, by id or by name.

use uuid::Uuid;

use super::naming::refuse_waiter;
use super::settings::SessionCommand;
use super::{Processes, Purpose, Start, is_shared};
use crate::service::process::attach::{ReaderOutput, Replay, Role};
use crate::service::process::bodies::RunRequest;
use crate::service::process::calls::{ProcessRef, no_process};
use crate::service::process::compat::Compat;
use crate::service::process::dialect::{Dialect, log_failed_resize};
use crate::service::process::fields::bad_request;
use crate::service::process::messages::AttachEvent;
use crate::service::process::names::{NameKey, Named, RequestDigest, Waiter};
use crate::service::process::queries::{
    AttachQuery, AttachRequest, replay_screen, since, size_of, switch,
};
use crate::service::process::sink::ContextOutput;
use crate::{ClientId, CloseCode, Context, Rejection, Request, Route, StatusCode};

/// A handshake that was accepted.
#[derive(Debug)]
pub(super) enum Accepted {
    Process(Uuid, AttachRequest),
    /// The process of a name is being started.
    Starting(NameKey, AttachRequest),
    /// The process of a name has to be started.
    Session(NameKey, RunRequest, AttachRequest),
    /// The request of a page was refused. A page cannot see the status of a failed handshake, so it is told why, and closed.
    Refused(Dialect, Rejection),
}

impl Processes {
    /// What a client attaches to. A writer may start the process of a name, if the settings have a command for it.
    pub(super) fn accept_attach(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        which: ProcessRef<'_>,
        request: &Request<'_>,
    ) -> Result<Accepted, Rejection> {
        let ProcessRef::Name(name) = which else {
            let id = self.find(ctx, client, which)?;
            return Ok(Accepted::Process(id, self.read_attach(id, request)?));
        };
        // Only a writer starts anything.
        let is_writer = AttachQuery::read(request)?.role == Role::Writer;
        let restart = switch(request, "restart")? && is_writer;
        let found = self.find(ctx, client, which).ok();
        let is_over = |id| {
            let program = self.programs.get(id);
            program.is_none_or(|program| program.exit().is_some())
        };
        if let Some(id) = found.filter(|id| !(restart && is_over(*id))) {
            let attach = AttachRequest {
                is_by_name: true,
                ..self.read_attach(id, request)?
            };
            return Ok(Accepted::Process(id, attach));
        }
        let query = AttachQuery::read(request)?;
        let key = self.key(ctx, client, name);
        let is_starting = matches!(self.names.get(&key), Some(Named::Starting { .. }));
        let attach = AttachRequest {
            query,
            dialect: Dialect::of(request)?,
            replay: Replay {
                since: None,
                screen: replay_screen(request)?,
            },
            is_by_name: true,
        };
        if is_starting {
            return Ok(Accepted::Starting(key, attach));
        }
        if !is_writer {
            return Err(no_process());
        }
        let command = self.session_command(name, request)?;
        let run = RunRequest::on_terminal(command, size_of(request)?);
        let run = self.decide_recording(run)?;
        self.check_room(ctx, client, run.terminal)?;
        Ok(Accepted::Session(key, run, attach))
    }

    /// The command that attaching to a name starts: the one that the client has chosen, or the first one.
    pub(super) fn session_command(
        &self,
        name: &str,
        request: &Request<'_>,
    ) -> Result<Vec<String>, Rejection> {
        let chosen = request.parameters("command").last();
        let sessions = self.config.sessions.iter();
        let mut permitted: Vec<&SessionCommand> = sessions
            .filter(|session| session.name.as_deref().is_none_or(|own| own == name))
            .collect();
        permitted.sort_by_key(|session| session.name.is_none());
        let is_chosen = |session: &&&SessionCommand| match &chosen {
            Some(chosen) => session.command.join(" ") == **chosen,
            None => true,
        };
        match (permitted.iter().find(is_chosen), chosen.is_some()) {
            (Some(session), _) => Ok(session.command.clone()),
            (None, false) => Err(no_process()),
            (None, true) => {
                let why = "the server does not run this command for this name";
                Err(Rejection::new(StatusCode::FORBIDDEN, why))
            }
        }
    }

    /// Starts the process of a name for a client that attaches.
    pub(super) fn attach_to_session(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        key: &NameKey,
        request: RunRequest,
        attach: AttachRequest,
    ) {
        // Input waits until the process runs.
        ctx.set_held(client, true);
        let waiter = Waiter::Attached(client, attach);
        let digest = RequestDigest::of(&request);
        let purpose = Purpose::Name(key.clone());
        match self.enqueue(ctx, client, Start { request, purpose }) {
            Ok(()) => self.names.begin(key, digest, waiter),
            Err(rejection) => refuse_waiter(ctx, &waiter, &rejection),
        }
    }

    pub(super) fn read_attach(
        &self,
        id: Uuid,
        request: &Request<'_>,
    ) -> Result<AttachRequest, Rejection> {
        let program = self.programs.get(id).filter(|program| is_shared(program));
        let program = program.ok_or_else(no_process)?;
        let is_compatible = self.config.compat == Compat::KernelImages;
        if !program.has_terminal() && is_compatible {
            return Err(bad_request("process is not PTY-backed"));
        }
        let dialect = if is_compatible {
            Dialect::of_compatible(request)?
        } else {
            Dialect::of(request)?
        };
        Ok(AttachRequest {
            query: AttachQuery::read(request)?,
            dialect,
            replay: Replay {
                since: since(request, program.output_end())?,
                screen: replay_screen(request)?,
            },
            is_by_name: false,
        })
    }

    pub(super) fn route_attach(
        &self,
        which: ProcessRef<'_>,
        request: &Request<'_>,
    ) -> Result<Route, Rejection> {
        let route = Route::web_socket();
        let id = match which {
            ProcessRef::Id(id) => id,
            // It depends on the client which process this is.
            ProcessRef::Name(_) => return Ok(route),
        };
        // The process of a client that comes back may have been removed, and its last output still waits for the client.
        if asks_to_come_back(request) {
            return Ok(route);
        }
        let attach = self.read_attach(id, request)?;
        // A client that is refused leaves no connection that could be resumed.
        let is_refused = asks_for_new_connection(request) && self.is_refused(id, &attach);
        Ok(route.with_resumption(!is_refused))
    }

    /// Whether a client would be a second writer of its process.
    pub(super) fn is_refused(&self, id: Uuid, attach: &AttachRequest) -> bool {
        let program = self.programs.get(id);
        attach.query.role == Role::Writer
            && !attach.query.takeover
            && program.is_some_and(|program| program.sink.writer().is_some())
    }

    /// Attaches a client to a process.
    pub(super) fn attach(
        &mut self,
        ctx: &mut Context,
        id: Uuid,
        client: ClientId,
        attach: AttachRequest,
    ) {
        if self.is_refused(id, &attach) {
            let why = "another client is the writer";
            return ctx.close(client, CloseCode::CONFLICT, why);
        }
        let AttachRequest {
            query,
            dialect,
            replay,
            is_by_name,
        } = attach;
        if let (Role::Writer, Some(size)) = (query.role, query.size)
            && let Err(error) = self.programs.resize(ctx, id, size)
        {
            log_failed_resize(client, size, &error);
        }
        // A link permits the path of the name only.
        if is_by_name && ctx.link_target(client).is_none() {
            ContextOutput(ctx).tell(client, dialect, &AttachEvent::Process(id.to_string()));
        }
        let kind = (query.role, dialect);
        self.programs.attach(ctx, id, client, kind, replay);
    }
}

/// Whether a client asks for a connection that can be resumed, rather than to resume one.
fn asks_for_new_connection(request: &Request<'_>) -> bool {
    let field = request.header("outrigger-resume");
    let parameter = request.parameters("resume").next();
    field.map_or(parameter.as_deref() == Some("new"), |field| {
        field.trim_ascii().starts_with(b"new")
    })
}

/// Whether a client asks to come back after a cut. The server knows the client by its token.
fn asks_to_come_back(request: &Request<'_>) -> bool {
    let is_resume = request.header("outrigger-resume").is_some()
        || request.parameters("resume").next().is_some();
    is_resume && !asks_for_new_connection(request)
}
