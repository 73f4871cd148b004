//! An upgrade: the program replaces itself by a newer one, under its clients.
//!
//! ```text
//! Idle -- SIGUSR2, POST /upgrade --> Rehearsing -- yes --> Waiting -> Ending -> Agreed -- execve --> (the next program) Idle
//!   ^                                    | no                                      | execve fails
//!   +------------------------------------+-----------------------------------------+
//! ```
//!
//! The *rehearsal* is a child process. It runs the new program with the same arguments, reads the records without the bytes that they
//! refer to, opens new [addresses], and says whether it could continue, and which services. A thread waits for it, so the loop goes on.
//! If it says yes, the loop waits for the end of requests to other servers. Then the clients of the services that do not continue end,
//! and the loop goes on for up to a second, so that their programs can read of it. Then it stops between two turns, [ends or
//! completes](state) what cannot pass, writes everything into a [file] in memory and calls `execve`, which keeps the process id, the
//! children and the descriptors. The next program reads the file, and continues with what it says.
//!
//! Each record is written by the owner of the data ([`Record`](crate::record::Record)).

mod addresses;
mod file;
mod passed;
mod rehearsal;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use signal_hook::consts::SIGUSR2;

use self::file::Records;
pub use self::passed::Passed;
use self::passed::Upgrade;
use self::state::Agreement;
pub(crate) use self::state::Carried;
use super::error::Error;
use super::event_loop::Server;
use super::event_loop::wakeup::{Bell, Signals};
use super::id::{ClientId, ServiceId, UPGRADE};
use super::service::{Service, save_service};
use crate::log_event::{log_event, word};
use crate::protocol::{Rejection, Response, StatusCode, Time};
use crate::record::{Record, Saved, Saver};
use crate::sys::{
    block_signals, monotonic_nanos, number_of, own_children, replace_program, set_passes,
    start_thread, terminate_self,
};

/// The descriptors that an upgrade opens, and that are kept for it: the state, a child process with its pipes, and its end.
const RESERVED: usize = 12;

/// How long the programs of services that do not continue may read of the end of their clients.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The interval at which the loop checks whether they have read everything. The upgrade goes on when two checks in a row have found
/// nothing unread, so that the programs have time to handle what they have read.
const CHECK: Duration = Duration::from_millis(100);

/// The maximum number of callers that wait for the end of an upgrade.
const MAX_CALLERS: usize = 16;

/// The program that replaces this one: see [`Server::upgrade_to`].
///
/// ```
/// use outrigger::upgrade::Successor;
///
/// let program = std::env::current_exe()?;
/// let successor = Successor::new(program, std::env::args_os()).over_tcp(true);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Successor {
    program: PathBuf,
    arguments: Vec<OsString>,
    extra: Value,
    over_tcp: bool,
    before: Box<dyn Fn() + Send>,
    failed: Box<dyn Fn() + Send>,
}

impl Successor {
    /// The file that is executed, and its arguments, beginning with the name of the program.
    pub fn new(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = OsString>) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().collect(),
            extra: Value::Null,
            over_tcp: false,
            before: Box::new(|| {}),
            failed: Box::new(|| {}),
        }
    }

    /// What the program passes on besides the state of its server: see [`Passed::take_extra`].
    #[must_use]
    pub fn with_extra(self, extra: Value) -> Self {
        Self { extra, ..self }
    }

    /// Whether `POST /upgrade` is answered over TCP, too. By default, it is answered over the unix sockets of the server alone.
    #[must_use]
    pub fn over_tcp(self, over_tcp: bool) -> Self {
        Self { over_tcp, ..self }
    }

    /// Calls a function just before the program is replaced.
    #[must_use]
    pub fn with_farewell(self, before: impl Fn() + Send + 'static) -> Self {
        Self {
            before: Box::new(before),
            ..self
        }
    }

    /// Calls a function when an upgrade has failed and this program goes on.
    #[must_use]
    pub fn with_failure(self, failed: impl Fn() + Send + 'static) -> Self {
        Self {
            failed: Box::new(failed),
            ..self
        }
    }
}

impl fmt::Debug for Successor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Successor")
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    /// The new program is being tried.
    Rehearsing,
    /// It can continue. Requests to other servers may go on until then.
    Waiting {
        until: Time,
    },
    /// It can continue. Clients that it does not know have ended, and programs read of it until they have read everything, or until
    /// `until`.
    Ending {
        until: Time,
        check_at: Time,
        has_read: bool,
    },
    /// It can continue, and replaces this one at the end of the turn.
    Agreed,
}

/// The upgrades of a server.
#[derive(Debug)]
pub(super) struct Upgrading {
    successor: Successor,
    signals: Signals,
    stage: Stage,
    /// Who waits for the end of the present upgrade.
    callers: Vec<ClientId>,
    /// Descriptors that are closed before an upgrade needs as many. Otherwise, a server with a full table could not be upgraded.
    reserve: Vec<File>,
    /// Whether the rehearsal needs the descriptors that are free.
    is_short: bool,
    /// When the loop has stopped, in nanoseconds, and what has become of the connections.
    end: (u64, Carried),
    /// The number of clients that have ended for the present upgrade, by their services.
    ended: BTreeMap<ServiceId, usize>,
    /// What the new program has said in the rehearsal.
    agreement: Agreement,
    sender: Sender<Result<Agreement, String>>,
    results: Receiver<Result<Agreement, String>>,
    bell: Bell,
}

/// Opens descriptors to keep, as many as there are.
fn reserve() -> Vec<File> {
    let files = (0..RESERVED).map_while(|_| File::open("/").ok());
    files.collect()
}

/// The part of a connection in an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallForUpgrade {
    /// It has not asked for the upgrade.
    Other,
    /// It has asked, and is answered early, because the state of its encryption cannot pass to the next program.
    AnsweredBefore,
    /// It has asked, and the next program answers it.
    AnsweredAfter,
}

/// Why an upgrade has not taken place. The server goes on.
#[derive(Debug)]
struct Failure(String);

impl Failure {
    fn rejection(&self) -> Rejection {
        let rejection = Rejection::new(StatusCode::CONFLICT, self.0.clone());
        rejection.because("upgrade")
    }
}

impl<S: Service> Server<S> {
    /// Makes SIGUSR2 and `POST /upgrade` replace the program of this process by another one, under its clients. The other one calls
    /// [`Passed::from_env`] first, and then [`Server::bind_passed`].
    ///
    /// Requests of services to other servers ([`Context::request`](crate::Context::request)) end before, or fail after
    /// [`Config::drain_timeout`](crate::Config::drain_timeout), and their idle connections are closed. A WebSocket that a service has
    /// opened prevents the upgrade.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the signal handler cannot be installed.
    pub fn upgrade_to(&mut self, successor: Successor) -> Result<(), Error> {
        let signals = Signals::new(self.poll.registry(), UPGRADE, &[SIGUSR2])
            .map_err(Error::system("install signal handlers"))?;
        let (sender, results) = mpsc::channel();
        self.ctx.core.upgrades = Some(successor.over_tcp);
        self.upgrading = Some(Box::new(Upgrading {
            successor,
            signals,
            stage: Stage::Idle,
            callers: Vec::new(),
            reserve: reserve(),
            is_short: false,
            end: Default::default(),
            ended: BTreeMap::new(),
            agreement: Agreement::default(),
            sender,
            results,
            bell: self.commands.bell().clone(),
        }));
        Ok(())
    }

    /// Whether a connection has asked for the upgrade, and when it is answered.
    fn call_for_upgrade(&self, id: ClientId) -> CallForUpgrade {
        let upgrading = self.upgrading.as_ref();
        let has_asked = upgrading.is_some_and(|one| one.callers.contains(&id));
        match self.ctx.core.registry.get(id).filter(|_| has_asked) {
            None => CallForUpgrade::Other,
            Some(client) if client.wire.tls().is_some() => CallForUpgrade::AnsweredBefore,
            Some(_) => CallForUpgrade::AnsweredAfter,
        }
    }

    /// Handles SIGUSR2.
    pub(super) fn handle_upgrade_signal(&mut self) {
        let count = self.upgrading.as_mut().map_or(0, |one| one.signals.take());
        if count > 0 {
            log::info!("SIGUSR2 received: upgrading");
            self.begin_upgrade(None);
        }
    }

    /// Begins an upgrade for the callers that have asked for one.
    pub(super) fn handle_upgrade_calls(&mut self) {
        for caller in std::mem::take(&mut self.ctx.core.upgrade_callers) {
            log_event!(
                Info,
                client = caller,
                "upgrading",
                principal = word(&self.ctx.principal(caller)),
            );
            self.begin_upgrade(Some(caller));
        }
    }

    /// Begins the rehearsal. Does nothing more than to note the caller if it has begun.
    fn begin_upgrade(&mut self, caller: Option<ClientId>) {
        let Some(upgrading) = &mut self.upgrading else {
            return;
        };
        if let Some(caller) = caller {
            if upgrading.callers.len() >= MAX_CALLERS {
                let full = Rejection::unavailable("too many callers wait for the upgrade");
                return self.answer_callers(&[caller], &Response::from(&full));
            }
            upgrading.callers.push(caller);
        }
        if upgrading.stage != Stage::Idle {
            return;
        }
        let begun = self.rehearse();
        if let Err(failure) = begun {
            self.end_upgrade(&failure);
        }
    }

    fn rehearse(&mut self) -> Result<(), Failure> {
        if let Some(obstacle) = self.obstacle() {
            return Err(Failure(obstacle.to_owned()));
        }
        let kept = self.upgrading.as_mut();
        let mut kept = kept.map_or_else(Vec::new, |one| std::mem::take(&mut one.reserve));
        let is_short = reserve().len() < RESERVED;
        kept.pop();
        let state = self
            .write_state(false)
            .map_err(|error| Failure(format!("the state cannot be written: {error}")))?;
        let Some(upgrading) = &mut self.upgrading else {
            return Ok(());
        };
        let Successor {
            program, arguments, ..
        } = &upgrading.successor;
        let (program, arguments) = (program.clone(), arguments.clone());
        let (sender, bell) = (upgrading.sender.clone(), upgrading.bell.clone());
        let rehearse = move || {
            drop(kept);
            let result = rehearsal::run(&program, &arguments, state);
            // If the loop has ended, nobody waits for the result.
            let _ = sender.send(result);
            bell.ring();
        };
        let thread = thread::Builder::new().name("rehearsal".to_owned());
        start_thread(thread, rehearse)
            .map_err(|error| Failure(format!("cannot start a thread: {error}")))?;
        upgrading.stage = Stage::Rehearsing;
        upgrading.is_short = is_short;
        Ok(())
    }

    /// Whether new connections wait: during a rehearsal that needs the free descriptors, and while clients end for the upgrade, because
    /// those that came back to this program would end once more. At other times, fills the reserve of descriptors first.
    pub(super) fn holds_connections(&mut self) -> bool {
        let Some(upgrading) = &mut self.upgrading else {
            return false;
        };
        if upgrading.stage == Stage::Rehearsing {
            return upgrading.is_short;
        }
        if matches!(upgrading.stage, Stage::Ending { .. }) {
            return true;
        }
        while upgrading.reserve.len() < RESERVED
            && let Ok(file) = File::open("/")
        {
            upgrading.reserve.push(file);
        }
        false
    }

    /// Takes the result of a rehearsal, if it has ended.
    pub(super) fn handle_rehearsal(&mut self) {
        let Some(upgrading) = &mut self.upgrading else {
            return;
        };
        let Ok(result) = upgrading.results.try_recv() else {
            return;
        };
        upgrading.reserve = reserve();
        let checked = result.and_then(|agreement| {
            if let Some(obstacle) = self.obstacle() {
                return Err(obstacle.to_owned());
            }
            agreement.check_addresses(&mut self.listeners)?;
            Ok(agreement)
        });
        let until = self.ctx.now() + self.ctx.config().drain_timeout;
        match (checked, &mut self.upgrading) {
            (Ok(agreement), Some(upgrading)) => {
                upgrading.agreement = agreement;
                upgrading.stage = Stage::Waiting { until };
            }
            (Err(why), _) => self.end_upgrade(&Failure(why)),
            (Ok(_), None) => {}
        }
    }

    /// Ends the clients that the new program does not know.
    fn begin_ending(&mut self) {
        if let Some(upgrading) = &self.upgrading {
            let departing = &upgrading.agreement.departing;
            self.ctx.core.departing.clone_from(departing);
        }
        let mut carried = Carried::default();
        self.end_departing(&mut carried, false);
        if carried != Carried::default() {
            log::info!("ending clients for the upgrade: {}", self.ended_text());
        }
        let now = self.ctx.now();
        if let Some(upgrading) = &mut self.upgrading {
            upgrading.end.1 = carried;
            upgrading.stage = if carried == Carried::default() {
                Stage::Agreed
            } else {
                Stage::Ending {
                    until: now + LAST_WORDS,
                    check_at: now + CHECK,
                    has_read: false,
                }
            };
        }
    }

    /// The clients that have ended for the present upgrade, by their services.
    fn ended_text(&self) -> String {
        let Some(upgrading) = &self.upgrading else {
            return String::new();
        };
        let path = |id: &ServiceId| {
            let route = self.ctx.core.routes.iter().find(|(one, _)| one == id);
            route.map_or("", |(_, path)| &**path)
        };
        let each = upgrading.ended.iter();
        let each = each.map(|(id, count)| format!("{count} of {:?}", path(id)));
        let total: usize = upgrading.ended.values().sum();
        let each: Vec<String> = each.collect();
        format!("{total} ({})", each.join(", "))
    }

    /// Takes the next step of an upgrade. Returns whether the program is to be replaced now, at the end of a turn.
    #[inline]
    pub(super) fn must_be_replaced(&mut self) -> bool {
        let upgrading = self.upgrading.as_ref();
        upgrading.is_some_and(|one| one.stage != Stage::Idle) && self.advance_upgrade()
    }

    #[cold]
    fn advance_upgrade(&mut self) -> bool {
        let now = self.ctx.now();
        let stage = self.upgrading.as_ref().map(|one| one.stage);
        if let Some(Stage::Waiting { until }) = stage
            && (now >= until || !self.ctx.core.has_request())
        {
            self.act(Self::begin_ending);
        }
        let Some(upgrading) = &mut self.upgrading else {
            return false;
        };
        if let Stage::Ending {
            until,
            check_at,
            has_read,
        } = &mut upgrading.stage
            && now >= *check_at
        {
            let had_read = std::mem::replace(has_read, !self.ctx.core.has_last_words());
            *check_at = now + CHECK;
            if (had_read && *has_read) || now >= *until {
                upgrading.stage = Stage::Agreed;
            }
        }
        upgrading.stage == Stage::Agreed
    }

    /// When [`Server::must_be_replaced`] may become true without an event.
    #[inline]
    pub(super) fn next_upgrade_check(&self) -> Option<Time> {
        match self.upgrading.as_ref()?.stage {
            Stage::Waiting { until } => Some(until),
            Stage::Ending { check_at, .. } => Some(check_at),
            Stage::Idle | Stage::Rehearsing | Stage::Agreed => None,
        }
    }

    /// Replaces the program. Returns only if that fails. The server then goes on.
    #[cold]
    pub(super) fn replace_program(&mut self) {
        self.end_outgoing();
        let obstacle = self.obstacle().map(str::to_owned);
        let failure = match obstacle.or_else(|| self.take_over_addresses().err()) {
            Some(why) => Failure(why),
            None => Failure(format!(
                "the program cannot be executed: {}",
                self.execute_successor()
            )),
        };
        self.act(|server| server.end_upgrade(&failure));
    }

    fn execute_successor(&mut self) -> io::Error {
        let began = monotonic_nanos();
        log::info!(
            "replacing version {} by {}",
            env!("CARGO_PKG_VERSION"),
            self.upgrading.as_ref().map_or_else(String::new, |one| one
                .successor
                .program
                .display()
                .to_string())
        );
        // From here on, the next program gets the signals.
        let signals = match block_signals() {
            Ok(signals) => signals,
            Err(error) => return error,
        };
        let carried = self
            .upgrading
            .as_ref()
            .map_or_else(Carried::default, |one| one.end.1);
        let carried = self.make_portable(carried);
        if let Some(upgrading) = &mut self.upgrading {
            upgrading.reserve.clear();
            upgrading.end = (began, carried);
        }
        let written = self.write_state(true);
        let must_stop = self.signals.as_mut().map_or(0, Signals::take) > 0;
        let replaced = written.and_then(|state| {
            if must_stop {
                return Err(io::Error::other("a signal to stop has come"));
            }
            if let Some(upgrading) = &self.upgrading {
                (upgrading.successor.before)();
            }
            io::Result::<Infallible>::Err(self.execute(&state))
        });
        let restored = signals.restore();
        if must_stop {
            terminate_self();
        }
        if let Err(error) = restored {
            log::error!("cannot unblock signals: {error}");
        }
        self.keep_descriptors();
        match replaced {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn execute(&self, state: &File) -> io::Error {
        let Some(upgrading) = &self.upgrading else {
            return io::ErrorKind::Unsupported.into();
        };
        let Successor {
            program, arguments, ..
        } = &upgrading.successor;
        let (name, value) = passed::variable(number_of(state));
        let others = std::env::vars_os().filter(|(other, _)| *other != name);
        let environment: Vec<_> = others.chain([(name.clone(), value)]).collect();
        replace_program(program, arguments, environment.into_iter())
    }

    /// Keeps descriptors from the programs that this one starts.
    fn keep_descriptors(&self) {
        let mut saver = Saver::default();
        let _ = self.records(&mut saver);
        for fd in saver.descriptors().iter().filter_map(Saved::descriptor) {
            if let Err(error) = set_passes(fd, false) {
                log::error!("cannot keep a descriptor from child processes: {error}");
            }
        }
    }

    /// The end of an upgrade that has not taken place.
    fn end_upgrade(&mut self, failure: &Failure) {
        self.listen_again();
        self.return_all();
        let has_ended = self
            .upgrading
            .as_ref()
            .is_some_and(|one| !one.ended.is_empty());
        let ended = has_ended.then(|| format!("; it has ended clients: {}", self.ended_text()));
        let failure = Failure(failure.0.clone() + &ended.unwrap_or_default());
        log::error!(
            "the upgrade has failed, and the server goes on: {}",
            failure.0
        );
        self.ctx.core.departing.clear();
        self.ctx.core.env.counters.failed_upgrades += 1;
        let Some(upgrading) = &mut self.upgrading else {
            return;
        };
        upgrading.stage = Stage::Idle;
        upgrading.reserve = reserve();
        upgrading.end = Default::default();
        upgrading.ended.clear();
        (upgrading.successor.failed)();
        let callers = std::mem::take(&mut upgrading.callers);
        self.answer_callers(&callers, &Response::from(&failure.rejection()));
    }

    /// Answers who has asked for an upgrade. These calls belong to no service.
    fn answer_callers(&mut self, callers: &[ClientId], answer: &Response) {
        self.ctx.core.service_id = ServiceId::ALL;
        for caller in callers {
            self.ctx.respond(*caller, answer);
        }
    }

    /// All records, with what they refer to.
    fn records<'a>(&'a self, to: &mut Saver<'a>) -> Records {
        let upgrading = self.upgrading.as_deref();
        let opened = upgrading.map_or(&[][..], |one| &one.agreement.opened);
        to.open(b'[');
        for listener in &self.listeners {
            listener.save(to);
            to.next();
        }
        for listener in opened {
            listener.save(to);
            to.next();
        }
        to.close(b']');
        let mut records = vec![("listeners", to.take_text())];
        self.save(to);
        records.push(("loop", to.take_text()));
        save_service(&self.service, to);
        records.push(("service", to.take_text()));
        if let Some(upgrading) = upgrading {
            let (began, carried) = upgrading.end;
            to.inline(&Upgrade {
                began,
                carried,
                callers: upgrading.callers.clone(),
                children: own_children(),
            });
            records.push(("upgrade", to.take_text()));
            to.value(&upgrading.successor.extra);
            records.push(("program", to.take_text()));
        }
        records
    }

    /// Writes the state. For a rehearsal, the bytes are left out, and no descriptor passes.
    fn write_state(&self, passes: bool) -> io::Result<File> {
        let mut saver = Saver::default();
        let records = self.records(&mut saver);
        let file = file::write(&records, &saver, passes)?;
        if passes {
            for fd in saver.descriptors().iter().filter_map(Saved::descriptor) {
                set_passes(fd, true)?;
            }
            set_passes(file.as_fd(), true)?;
        }
        Ok(file)
    }
}
