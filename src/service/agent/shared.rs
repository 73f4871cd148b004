//! The shared agent: one process for each kind of client. The router passes messages between the clients and the standard
//! streams of the processes.

use super::processes::AgentProcesses;
use super::receivers::{ContextOutput, Receivers, Sender};
use super::router::{BatchSender, ProcessChange, Router, RouterSettings, Viewer};
use super::{AgentConfig, AgentProtocol, Approvals, MAX_UNREAD, WATCH, figures};
use crate::record::{Load, Loader, Read, Record, RecordError, Saver, State, object};
use crate::service::child::{Child, ChildEvent, ProgramExit, ProgramFailure};
use crate::service::deadlines::Alarm;
use crate::service::jsonrpc::MessageLine;
use crate::service::lines::Line;
use crate::text::without_mark;
use crate::upgrade::Portable;
use crate::{
    Accept, ClientId, CloseCode, CloseReason, Context, Histogram, LinkTarget, Message, Metrics,
    Principal, Readiness, Rejection, Report, Request, Route, Scope, Service, ServiceId, SourceId,
    StatusCode, StatusFields, TimerId,
};
use std::ops::ControlFlow;

/// One agent process for each kind of client: those with the same protocol version and capabilities share a process.
///
/// Each client gets the responses to its own requests and the messages of its own sessions. A process that exits is
/// started again, up to the [restart limit](AgentConfig::restart_limit).
///
/// ```
/// use outrigger::service::{Agent, AgentConfig};
/// use outrigger::{Config, Server};
///
/// let agent = Agent::new(AgentConfig::new("/acp".parse()?, ["my-agent"]));
/// let config = Config::new("127.0.0.1:0".parse()?);
/// let server = Server::bind(config, agent)?;
/// // `server.run()` starts the agent and serves clients at the path /acp.
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    router: Router,
    /// The processes and the clients, to which the router's messages go.
    receivers: Receivers,
    /// Goes off at the router's next deadline.
    wakeup: Alarm,
    failure: Option<String>,
}

impl Agent {
    /// Creates the service. The first agent process starts with the server.
    pub fn new(config: AgentConfig) -> Self {
        let router = Router::new(RouterSettings::of(&config));
        let router = router.with_free_methods(config.pass_methods.clone());
        let processes = AgentProcesses::new(config.restart_limit);
        Self {
            config,
            router,
            receivers: Receivers::new(processes),
            wakeup: Alarm::default(),
            failure: None,
        }
    }

    /// Limits the histories of sessions to a part of the server's memory.
    fn limit_histories(&mut self, ctx: &Context) {
        if let Some(memory) = ctx.config().memory {
            self.router.limit_histories(memory);
        }
    }

    /// Lets the router handle an event and sends the resulting lines.
    fn with_router(
        &mut self,
        ctx: &mut Context,
        handle: impl FnOnce(&mut Router, &mut ContextOutput<'_>),
    ) {
        handle(&mut self.router, &mut self.receivers.output(ctx));
        self.carry_out(ctx);
    }

    /// Starts and stops processes as the router has decided, answers for clients, and sends lines.
    fn carry_out(&mut self, ctx: &mut Context) {
        for change in self.router.take_process_changes() {
            match change {
                ProcessChange::Start(index) => self.receivers.processes.add(ctx, index),
                ProcessChange::Stop(index) => {
                    if !self.remove_process(ctx, index) {
                        self.router.handle_stopped();
                    }
                }
                ProcessChange::Discard(index) => {
                    if let Some(process) = self.receivers.processes.get_mut(index) {
                        process.held.clear();
                    }
                }
            }
        }
        for (client, notice) in self.router.take_notices() {
            ctx.send(client, Message::Text(&notice));
            if self.router.has_nothing_to_watch(client) {
                ctx.close(client, CloseCode::NORMAL, "the session has ended");
            }
        }
        let processes = &mut self.receivers.processes;
        processes.send_lines(ctx, &self.router);
        processes.check_pressure(ctx, &self.router);
        self.watch_deadline(ctx);
    }

    /// Removes a process. Returns whether it runs and must be stopped first.
    fn remove_process(&mut self, ctx: &mut Context, index: usize) -> bool {
        self.receivers.batches.forget(BatchSender::Process(index));
        self.receivers.processes.remove(ctx, index)
    }

    fn start(&mut self, ctx: &mut Context, index: usize) {
        ctx.work_for_service();
        let limit = ctx.config().limits.max_message;
        match Child::spawn(ctx, &self.config.command, limit) {
            Ok(child) => {
                if let Some(process) = self.receivers.processes.get_mut(index) {
                    process.program.handle_start(child);
                }
                let now = ctx.now();
                self.with_router(ctx, |router, output| {
                    router.handle_agent_started(now, index, output)
                });
            }
            Err(error) => self.handle_failure(ctx, index, error.to_string().into()),
        }
    }

    /// Starts a process again after a delay, or gives it up. If it keeps failing, closes its clients, so that they need not wait
    /// for it.
    fn handle_failure(&mut self, ctx: &mut Context, index: usize, failure: ProgramFailure) {
        let Some(process) = self.receivers.processes.get_mut(index) else {
            return;
        };
        let path = self.config.endpoint.path();
        if !process.program.handle_failure(ctx, path, &failure) {
            return self.give_up(ctx, index, failure);
        }
        if process.program.is_failing() {
            let mut clients = ctx.clients();
            clients.retain(|client| self.router.uses(*client, index));
            for client in clients {
                ctx.close(client, CloseCode::INTERNAL, "Agent exited");
            }
        }
    }

    /// Gives a process up. Its clients are closed with an internal error. Without another process, the server stops with a
    /// failure.
    fn give_up(&mut self, ctx: &mut Context, index: usize, failure: ProgramFailure) {
        let mut clients = None;
        self.with_router(ctx, |router, output| {
            clients = router.give_up(index, output)
        });
        let is_last = clients.is_none();
        for client in clients.unwrap_or_else(|| ctx.clients()) {
            ctx.close(client, CloseCode::INTERNAL, "Agent exited");
        }
        if is_last {
            self.failure.get_or_insert(failure.to_string());
            ctx.stop();
        } else {
            let path = self.config.endpoint.path();
            failure.log(path, None, Some("closing the clients of this kind"));
            self.remove_process(ctx, index);
        }
    }

    fn handle_exit(&mut self, ctx: &mut Context, index: usize, exit: ProgramExit) {
        if let Some(process) = self.receivers.processes.get_mut(index) {
            process.reset();
        }
        let data = exit.data(self.router.may_quote(index));
        self.with_router(ctx, |router, output| {
            router.handle_agent_exited(index, &data, output)
        });
        if !ctx.is_stopping() {
            self.handle_failure(ctx, index, exit.failure("the agent"));
        }
    }

    /// Sets the timer for the router's next deadline, unless it expires earlier.
    fn watch_deadline(&mut self, ctx: &mut Context) {
        let Some(at) = self.router.take_wakeup() else {
            return;
        };
        self.wakeup.set_by(ctx, at);
    }

    /// Lets the child handle an event that belongs to one of the processes. Its lines go through the router.
    fn with_child(
        &mut self,
        ctx: &mut Context,
        mut handle: impl FnMut(
            &mut Child,
            &mut Context,
            &mut dyn FnMut(&mut Context, u64, Line<'_>) -> ControlFlow<()>,
        ) -> ChildEvent,
    ) {
        let (router, receivers) = (&mut self.router, &mut self.receivers);
        for index in 0..receivers.processes.len() {
            let Some(process) = receivers.processes.get_mut(index) else {
                continue;
            };
            let Some(mut child) = process.program.take_child() else {
                continue;
            };
            let sender = Sender {
                process: index,
                max_queued: MAX_UNREAD.saturating_sub(child.unread()),
            };
            let mut decoder = std::mem::take(&mut process.decoder);
            let event = handle(&mut child, ctx, &mut |ctx, _, line| {
                let now = ctx.now();
                let mut output = receivers.output_to(ctx, sender);
                match decoder.decode(line) {
                    MessageLine::Nothing => {}
                    MessageLine::Text(text) => {
                        router.handle_agent_message(now, index, text, &mut output)
                    }
                    MessageLine::Unreadable(recovered, why) => {
                        router.handle_unreadable(now, index, recovered, why, &mut output)
                    }
                }
                ControlFlow::Continue(())
            });
            if let Some(process) = receivers.processes.get_mut(index) {
                process.program.put_back(child);
                process.decoder = decoder;
            }
            match event {
                ChildEvent::NotMine => {}
                ChildEvent::Handled => return self.carry_out(ctx),
                ChildEvent::Exited(exit) => return self.handle_exit(ctx, index, exit),
            }
        }
        let stopping = receivers
            .processes
            .handle_stopping(|child| handle(child, ctx, &mut |_, _, _| ControlFlow::Continue(())));
        if let ChildEvent::Exited(_) = stopping {
            router.handle_stopped();
        }
    }

    /// Adds a client that only watches a session, or closes it with the reason why it may not.
    fn add_viewer(
        &mut self,
        ctx: &mut Context,
        client: ClientId,
        principal: Principal,
        session: Option<&str>,
    ) {
        let permitted = ctx.link_target(client).map(LinkTarget::item);
        if permitted.is_some_and(|item| item != session) {
            return ctx.close(
                client,
                CloseCode::POLICY,
                "this link is for another session",
            );
        }
        let owner = ctx.link_issuer(client).cloned();
        let may_answer = ctx.link_target(client).is_some_and(LinkTarget::may_answer);
        let session = session.unwrap_or_default().to_owned();
        let mut refused = None;
        self.with_router(ctx, |router, output| {
            let viewer = Viewer {
                client,
                principal,
                owner: owner.as_ref(),
                may_answer,
            };
            let added = router.handle_viewer(viewer, &session, output);
            refused = added.err();
        });
        if let Some(why) = refused {
            ctx.close(client, CloseCode::POLICY, why);
        }
    }
}

impl Service for Agent {
    fn started(&mut self, ctx: &mut Context) {
        self.limit_histories(ctx);
        self.start(ctx, 0);
    }

    /// A client with the scope `watch` may observe sessions; see the router.
    fn route(&self, request: &Request<'_>) -> Result<Route, Rejection> {
        let route = self.config.endpoint.route(request);
        let route = route.unwrap_or_else(Route::from).with_scope(Scope::Watch);
        Ok(route.with_hint(
            "this agent (ACP) is only served over WebSocket; an MCP server is another service",
        ))
    }

    fn accept(&mut self, _: &mut Context, request: &Request<'_>) -> Result<Accept, Rejection> {
        if self.receivers.processes.are_failing() {
            return Err(Rejection::unavailable("the agent is not running"));
        }
        if self.receivers.processes.are_flooded() {
            let rejection = Rejection::unavailable("the agent does not read its input");
            return Err(rejection.because("program_busy"));
        }
        self.config.accept(request)
    }

    fn share(
        &mut self,
        ctx: &mut Context,
        caller: ClientId,
        target: &LinkTarget,
    ) -> Result<(), Rejection> {
        if !self.config.endpoint.matches(target.path()) {
            return Err(Rejection::not_found());
        }
        let Some(session) = target.item() else {
            let why = "\"session\" is missing: a link is for one session";
            return Err(Rejection::new(StatusCode::BAD_REQUEST, why));
        };
        if target.may_answer() && self.config.approvals != Approvals::Any {
            let why = "only the client of a session may answer its permission requests, by the server's settings";
            return Err(Rejection::new(StatusCode::FORBIDDEN, why));
        }
        let shared = self.router.check_share(&ctx.principal(caller), session);
        shared.map_err(|why| Rejection::new(StatusCode::FORBIDDEN, why))
    }

    fn connected(&mut self, ctx: &mut Context, client: ClientId, request: &Request<'_>) {
        let principal = ctx.principal(client);
        let session = request.parameters(WATCH).last();
        if session.is_some() || ctx.link_target(client).is_some() {
            return self.add_viewer(ctx, client, principal, session.as_deref());
        }
        let is_sole = ctx.is_sole_principal(client);
        self.router.handle_connected(client, principal, is_sole);
        self.receivers.processes.touch(client);
        self.receivers.processes.check_pressure(ctx, &self.router);
    }

    fn message(&mut self, ctx: &mut Context, client: ClientId, message: Message<'_>) {
        let Message::Text(text) = message else {
            return self.with_router(ctx, |router, output| router.handle_binary(client, output));
        };
        // The cost grows with the length, because every byte is parsed.
        ctx.spend(3 + text.len() / 512);
        let now = ctx.now();
        self.receivers.processes.touch(client);
        self.with_router(ctx, |router, output| {
            router.handle_client_message(now, client, without_mark(text), output)
        });
    }

    fn start_program(&mut self, ctx: &mut Context, _: Option<ClientId>) {
        // A process that is not needed any more is not in the list.
        let due = self.receivers.processes.begin();
        if let Some(index) = due.filter(|_| !ctx.is_stopping()) {
            self.start(ctx, index);
        }
    }

    fn disconnected(&mut self, ctx: &mut Context, client: ClientId, _: &CloseReason) {
        let now = ctx.now();
        self.with_router(ctx, |router, output| {
            router.handle_disconnected(now, client, output)
        });
    }

    fn is_waiting(&self, _: &Context, client: ClientId) -> bool {
        self.router.is_busy(client)
    }

    fn draining(&mut self, ctx: &mut Context) {
        self.with_router(ctx, |router, output| router.drain(output));
    }

    fn may_idle(&self, ctx: &Context, client: ClientId) -> bool {
        self.is_waiting(ctx, client)
            || self.config.sessions_may_idle && self.router.has_session(client)
    }

    fn ready(&mut self, ctx: &mut Context, source: SourceId, _: Readiness) {
        self.with_child(ctx, |child, ctx, line| {
            child.handle_ready(ctx, source, line)
        });
    }

    fn timer(&mut self, ctx: &mut Context, timer: TimerId) {
        if self.wakeup.expire(timer) {
            let now = ctx.now();
            return self.with_router(ctx, |router, output| router.handle_timeout(now, output));
        }
        if self.receivers.processes.expire(ctx, timer) {
            return;
        }
        self.with_child(ctx, |child, ctx, line| child.handle_timer(ctx, timer, line));
    }

    fn keeps_every_client(&self, _: ServiceId) -> bool {
        true
    }

    fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.router.clients(visit);
        self.receivers.batches.clients().for_each(visit);
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn stopping(&mut self, ctx: &mut Context) {
        self.receivers.processes.stop(ctx);
    }

    fn is_stopped(&self) -> bool {
        self.receivers.processes.are_gone()
    }

    fn free_memory(&mut self, _: &mut Context, principal: &Principal, bytes: usize) -> usize {
        self.router.free_histories(principal, bytes)
    }

    fn report(&self) -> Option<&dyn Report> {
        Some(self)
    }

    fn portable(&self) -> Option<&dyn Portable> {
        Some(self)
    }

    fn portable_mut(&mut self) -> Option<&mut dyn Portable> {
        Some(self)
    }
}

impl Report for Agent {
    fn is_ready(&self) -> bool {
        self.receivers.processes.is_any_ready(&self.router)
    }

    fn answer_times(&self) -> Option<Histogram> {
        Some(self.router.counters().answers)
    }

    fn status(&self) -> StatusFields {
        figures::status(&self.router, &self.receivers.processes)
    }

    fn metrics(&self, out: &mut Metrics) {
        figures::metrics(out, &self.router, &self.receivers.processes);
    }

    fn held(&self, visit: &mut dyn FnMut(&Principal, usize)) {
        self.router.held(visit);
        for (client, bytes) in self.receivers.batches.held_for_clients() {
            if let Some(principal) = self.router.principal(client) {
                visit(principal, bytes);
            }
        }
    }
}

impl Portable for Agent {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        let Self {
            config,
            router,
            receivers,
            // The router says when it is needed.
            wakeup: _,
            failure: _,
        } = self;
        to.open(b'{');
        to.field("protocol", &config.protocol);
        to.member("router", |to| State::save(router, to));
        to.member("receivers", |to| State::save(receivers, to));
        to.close(b'}');
    }

    fn restore(&mut self, ctx: &mut Context, from: &mut Loader) -> Result<(), RecordError> {
        self.limit_histories(ctx);
        let configured = self.config.protocol;
        let mut protocol = Read(|from: &mut Loader| match AgentProtocol::restore(from)? {
            protocol if protocol == configured => Ok(()),
            _ => {
                let why = "the protocol of an agent that runs cannot be changed";
                Err(RecordError::new(why))
            }
        });
        object!(from {
            protocol,
            router: Load(&mut self.router),
            receivers: Load(&mut self.receivers),
        })?;
        if from.is_rehearsal() {
            return Ok(());
        }
        self.receivers.processes.watch_again(ctx)?;
        let now = ctx.now();
        self.with_router(ctx, |router, output| router.handle_timeout(now, output));
        Ok(())
    }
}
