//! The state and the listening sockets that this program takes over from the one that it replaces.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::thread;
use std::time::Duration;

use mio::Poll;
use serde_json::{Value, json};

use super::file::StateFile;
use super::rehearsal;
use super::state::{Agreement, Carried, Continued};
use crate::protocol::{Response, StatusCode};
use crate::record::{Loader, Record, RecordError, Restored, record};
use crate::server::address::Listen;
use crate::server::config::Config;
use crate::server::error::Error;
use crate::server::event_loop::Server;
use crate::server::id::ClientId;
use crate::server::listener::PassedListener;
use crate::server::service::Service;
use crate::sys::{end_children, monotonic_nanos, start_thread, take_passed, unblock_signals};

/// The variable that tells the next program the number of the descriptor of the state: `PID:NUMBER`.
const STATE: &str = "OUTRIGGER_STATE";

/// The variable that tells a program that it is only tried: the process id of its parent.
const REHEARSAL: &str = "OUTRIGGER_REHEARSAL";

/// The variable for the program that replaces this one. The process id keeps its children from taking it for theirs.
pub(super) fn variable(state: RawFd) -> (OsString, OsString) {
    (
        STATE.into(),
        format!("{}:{state}", std::process::id()).into(),
    )
}

/// The variable for the rehearsal.
pub(super) fn rehearsal_variable() -> (OsString, OsString) {
    (REHEARSAL.into(), std::process::id().to_string().into())
}

/// The program that tries this one. `None` if this is no rehearsal.
fn rehearsing_parent() -> Option<u32> {
    let parent: u32 = std::env::var(REHEARSAL).ok()?.parse().ok()?;
    let own = rustix::process::getppid()?.as_raw_nonzero().get();
    (u32::try_from(own) == Ok(parent)).then_some(parent)
}

/// The state of the program that this one replaces.
///
/// ```no_run
/// use outrigger::service::Echo;
/// use outrigger::upgrade::{Passed, Successor};
/// use outrigger::{Config, Server};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut passed = Passed::from_env()?;
/// let config = Config::new("127.0.0.1:7070".parse()?);
/// let echo = Echo::new("/echo".parse()?);
/// let mut server = match &mut passed {
///     Some(passed) => Server::bind_passed(config, echo, passed)?,
///     None => Server::bind(config, echo)?,
/// };
/// server.upgrade_to(Successor::new(std::env::current_exe()?, std::env::args_os()))?;
/// if let Some(passed) = passed {
///     if passed.is_rehearsal() {
///         return Ok(server.continue_service(passed)?);
///     }
///     server.continue_service(passed)?;
/// }
/// server.run()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Passed {
    /// The version of that program.
    version: String,
    records: Vec<(String, Vec<u8>)>,
    from: Loader,
    listeners: Vec<PassedListener>,
    continued: Continued,
    /// What this program says in the rehearsal.
    agreement: Agreement,
}

/// How an upgrade went, for its callers, the log and the metrics.
#[derive(Debug)]
pub(super) struct Upgrade {
    /// When the loop has stopped, on the clock of [`monotonic_nanos`].
    pub(super) began: u64,
    pub(super) carried: Carried,
    pub(super) callers: Vec<ClientId>,
    /// The child processes of the program before.
    pub(super) children: Vec<u32>,
}

record!(Upgrade {
    began,
    carried,
    callers,
    children,
});

impl Passed {
    /// Whether the program before has passed its state on to this one.
    pub fn is_coming() -> bool {
        Self::number().is_some()
    }

    /// The process id of the server: in a rehearsal, that of the program before.
    pub fn server_pid() -> u32 {
        rehearsing_parent().unwrap_or_else(std::process::id)
    }

    /// The number of the descriptor of the state.
    fn number() -> Option<RawFd> {
        let variable = std::env::var_os(STATE)?.into_string().ok()?;
        let (pid, number) = variable.split_once(':')?;
        (pid.parse() == Ok(std::process::id()))
            .then(|| number.parse().ok())
            .flatten()
    }

    /// Reads the state, if there is one. Call it once. All signals are blocked until [`Server::continue_service`] if there is a state,
    /// unless this is a [rehearsal](Passed::is_rehearsal).
    ///
    /// # Errors
    ///
    /// The state cannot be read.
    pub fn from_env() -> Result<Option<Self>, RecordError> {
        if rehearsing_parent().is_some() {
            let input = io::stdin().as_fd().try_clone_to_owned();
            let input = input
                .map_err(|error| RecordError::new(format!("the state cannot be read: {error}")))?;
            return Self::read(input.into(), true).map(Some);
        }
        let Some(number) = Self::number() else {
            return Ok(None);
        };
        let state = take_passed(number);
        let state = state
            .map_err(|error| RecordError::new(format!("the state cannot be read: {error}")))?;
        Self::read(state.into(), false).map(Some)
    }

    fn read(file: File, is_rehearsal: bool) -> Result<Self, RecordError> {
        let file = StateFile::read(file)?;
        let from = if is_rehearsal {
            Loader::rehearsal(file.len, file.descriptors.len())
        } else {
            let take = |number: &RawFd| {
                let lost = |error| RecordError::new(format!("descriptor {number}: {error}"));
                take_passed(*number).map(Restored::Descriptor).map_err(lost)
            };
            let descriptors = file
                .descriptors
                .iter()
                .map(take)
                .collect::<Result<_, _>>()?;
            Loader::new(Box::new(file.bytes), file.len, descriptors)
        };
        let mut passed = Self {
            version: file.version,
            records: file.records,
            from,
            listeners: Vec::new(),
            continued: Continued::default(),
            agreement: Agreement::default(),
        };
        let listeners = passed.take("listeners");
        let listeners = passed.from.read(listeners, Vec::restore);
        passed.listeners = listeners.map_err(|error| error.inside("listeners"))?;
        Ok(passed)
    }

    /// Takes the text of a record.
    fn take(&mut self, name: &str) -> Vec<u8> {
        let at = self.records.iter().position(|(one, _)| one == name);
        at.map_or_else(Vec::new, |at| self.records.swap_remove(at).1)
    }

    /// Whether the program is only tried: it must start nothing, and end with exit code 0 after [`Server::continue_service`], which says
    /// on standard output that it could continue. Otherwise, the last line of its standard error is the reason.
    pub fn is_rehearsal(&self) -> bool {
        self.from.is_rehearsal()
    }

    /// Takes what the program before has passed on besides the state of its server.
    pub fn take_extra(&mut self) -> Value {
        serde_json::from_slice(&self.take("program")).unwrap_or_default()
    }

    /// Takes the listening socket that the first program was started with under this number. In a rehearsal, another file takes its
    /// place.
    pub fn take_inherited(&mut self, number: RawFd) -> Option<Listen> {
        let name = format!("fd:{number}");
        let at = self
            .listeners
            .iter()
            .position(|one| one.name().ends_with(&name))?;
        let socket = if self.is_rehearsal() {
            File::open("/dev/null").ok()?.into()
        } else {
            self.listeners.swap_remove(at).into_socket()?
        };
        Some(Listen::inherited_as(socket, number))
    }

    /// Frees the state. A GiB takes the system a tenth of a second, for which no client has to wait. Returns the version of the program
    /// before.
    fn release(self) -> String {
        let bytes = self.from.into_bytes();
        let thread = thread::Builder::new().name("release".to_owned());
        // Without a thread, it is freed here.
        let _ = start_thread(thread, move || drop(bytes));
        self.version
    }

    /// Takes a listening socket by the address for which it was opened.
    pub(super) fn take_listener(&mut self, name: &str) -> Option<PassedListener> {
        let at = self.listeners.iter().position(|one| one.is_for(name))?;
        Some(self.listeners.swap_remove(at))
    }
}

impl<S: Service> Server<S> {
    /// A server with the listening sockets and the clients of the program before. Addresses for which it had no socket are opened, also
    /// in a rehearsal, which sends them to that program. Call [`Server::continue_service`] once the service is started.
    ///
    /// # Errors
    ///
    /// As [`Server::bind`], and [`Error::State`] if the state cannot be read.
    pub fn bind_passed(config: Config, service: S, passed: &mut Passed) -> Result<Self, Error> {
        let mut server = if passed.is_rehearsal() {
            Self::rehearse_with(config, service, passed)?
        } else {
            // The settings may have changed since the rehearsal. A server that ended would end its clients and programs.
            let log = |error: Error| match error {
                Error::Listen { address, source } => {
                    log::error!("cannot listen on {address}: {source}");
                    Ok(())
                }
                error => Err(error),
            };
            Self::bind_with(config, service, |name| passed.take_listener(name), log)?
        };
        let state = passed.take("loop");
        // The service continues instead.
        server.started = true;
        let continued = passed.from.read(state, |from| server.restore(from));
        passed.continued = continued.map_err(|error| Error::State(error.inside("loop")))?;
        Ok(server)
    }

    /// A server for a rehearsal.
    fn rehearse_with(mut config: Config, service: S, passed: &mut Passed) -> Result<Self, Error> {
        config.validate()?;
        let mut addresses = Vec::new();
        for listen in std::mem::take(&mut config.listen) {
            let tls = config.uses_tls(&listen);
            let known = passed.take_listener(&listen.to_string());
            let address = passed.agreement.provide(listen, config.reuse_port, known)?;
            addresses.push(address.with_tls(tls));
        }
        let server =
            Poll::new().and_then(|poll| Self::new(poll, config, Vec::new(), addresses, service));
        server.map_err(Error::system("create the event loop"))
    }

    /// Continues the service, handles the signals that have arrived meanwhile, and answers who has asked for the upgrade. Call it after
    /// signal handlers are installed. [`Server::start`] does nothing more then.
    ///
    /// # Errors
    ///
    /// [`Error::State`] if the state cannot be read, and the failure of the service ([`Service::failure`]).
    pub fn continue_service(&mut self, mut passed: Passed) -> Result<(), Error> {
        let upgrade = passed.take("upgrade");
        let upgrade = passed.from.read(upgrade, Upgrade::restore);
        let mut upgrade = upgrade.map_err(|error| Error::State(error.inside("upgrade")))?;
        let mut continued = std::mem::take(&mut passed.continued);
        let departing = std::mem::take(&mut continued.departing);
        let (service, callers) = (passed.take("service"), &upgrade.callers);
        let restored = passed.from.read(service, |from| {
            self.restore_service(continued, callers, from)
        });
        let ended = restored.map_err(|error| Error::State(error.inside("service")))?;
        upgrade.carried.passed -= ended.closed.min(upgrade.carried.passed);
        upgrade.carried.closed += ended.closed;
        upgrade.carried.refused += ended.refused;
        if passed.is_rehearsal() {
            let compresses = self.ctx.core.env.protocol.compression.is_some();
            let agreement = Agreement {
                departing,
                compresses,
                ..passed.agreement
            };
            return rehearsal::agree(agreement).map_err(Error::system("answer the program before"));
        }
        if passed.from.left() > 0 {
            log::debug!(
                "{} descriptors were passed on that nobody needs",
                passed.from.left()
            );
        }
        unblock_signals().map_err(Error::system("unblock signals"))?;
        end_children(&upgrade.children);
        // A child may have exited while nobody was listening.
        self.reaper.child_has_ended();
        let version = passed.release();
        self.report_upgrade(&upgrade, &version);
        self.start()
    }

    fn report_upgrade(&mut self, upgrade: &Upgrade, before: &str) {
        let pause = Duration::from_nanos(monotonic_nanos().saturating_sub(upgrade.began));
        let Upgrade {
            carried, callers, ..
        } = upgrade;
        let counters = &mut self.ctx.core.env.counters;
        counters.upgrades += 1;
        counters.upgrade_pause = pause;
        log::info!(
            "upgraded from version {before} to {}: passed={} cut={} closed={} refused={} pause={:?}",
            env!("CARGO_PKG_VERSION"),
            carried.passed,
            carried.cut,
            carried.closed,
            carried.refused,
            pause
        );
        let answer = json!({
            "from": before,
            "to": env!("CARGO_PKG_VERSION"),
            "passed": carried.passed,
            "cut": carried.cut,
            "closed": carried.closed,
            "refused": carried.refused,
            "pause_ms": pause.as_secs_f64() * 1000.0,
        });
        let answer = Response::json(StatusCode::OK, answer.to_string());
        self.act(|server| server.answer_callers(callers, &answer));
    }
}
