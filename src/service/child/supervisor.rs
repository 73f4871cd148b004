//! The life of a child process: its start, its exit, how it is stopped, and how its exit status reads.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::record::record;
use crate::sys::{ChildProcess, Command, StartReport, exit_descriptor};
use crate::{Context, Interest, SourceId, Time};

/// The interval between checks for the exit where the system does not report it.
const EXIT_POLL: Duration = Duration::from_millis(50);

/// The time within which a child process must have executed its program. A file system may never answer.
const EXECUTE_TIMEOUT: Duration = Duration::from_secs(3);

/// How a process is stopped: the first request, then TERM, then KILL.
#[derive(Debug)]
pub(crate) struct StopPlan {
    /// The signal that asks the process to exit; `None` if its owner asks by closing its input.
    ask: Option<Signal>,
    /// From the request to TERM.
    ask_grace: Duration,
    /// From TERM to KILL.
    term_grace: Duration,
    leftovers: Leftovers,
}

/// What happens to the processes that a process has started, when it exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leftovers {
    /// The rest of its process group is killed when it exits.
    KillGroup,
    /// They keep running until the process is stopped. Then each signal goes to the whole process tree, and KILL is
    /// repeated at this interval to reach processes that were started meanwhile.
    StopTree { kill_interval: Duration },
}

impl StopPlan {
    /// For a process that exits when its input is closed.
    pub(crate) const CLOSE_INPUT: Self = Self {
        ask: None,
        ask_grace: Duration::from_secs(2),
        term_grace: Duration::from_secs(5),
        leftovers: Leftovers::KillGroup,
    };

    /// For a program on a terminal, with everything that it has started.
    pub(crate) const HANG_UP: Self = Self {
        ask: Some(Signal::HUP),
        ask_grace: Duration::from_secs(1),
        term_grace: Duration::from_secs(4),
        leftovers: Leftovers::StopTree {
            kill_interval: Duration::from_secs(1),
        },
    };
}

/// How far stopping has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopStep {
    Asked { until: Time },
    Terminated { until: Time },
    Killed { again: Option<Time> },
}

record!(enum StopStep {
    Asked { until },
    Terminated { until },
    Killed { again },
});

impl StopStep {
    fn deadline(self) -> Option<Time> {
        match self {
            Self::Asked { until } | Self::Terminated { until } => Some(until),
            Self::Killed { again } => again,
        }
    }
}

/// How and when a process exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExitRecord {
    /// Unknown if another part of the system has reaped the process.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) at: Time,
}

record!(ExitRecord { status, at });

/// The states of the picture in the parent module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChildState {
    Running,
    /// It runs and has been asked to exit.
    Stopping(StopStep),
    /// It has exited and has been reaped.
    Exited(ExitRecord),
    /// It has exited, and what it has left behind is being stopped.
    StoppingLeftovers(ExitRecord, StopStep),
}

record!(
    enum ChildState {
        Running,
        Stopping(step),
        Exited(exit),
        StoppingLeftovers(exit, step),
    }
);

/// How the exit is noticed.
#[derive(Debug)]
enum ExitWatch {
    /// The descriptor becomes readable.
    Descriptor { _fd: OwnedFd, source: SourceId },
    /// The system reports nothing; the next check is due at this time.
    Poll(Time),
}

impl ExitWatch {
    fn of(ctx: &mut Context, process: &ChildProcess) -> io::Result<Self> {
        Ok(match exit_descriptor(process.id())? {
            Some(fd) => {
                let source = ctx.watch(&fd, Interest::Readable)?;
                Self::Descriptor { _fd: fd, source }
            }
            None => Self::Poll(ctx.now() + EXIT_POLL),
        })
    }
}

/// A process that has not executed its program yet, as far as is known.
#[derive(Debug)]
struct Starting {
    report: StartReport,
    /// `None` until [`Supervisor::watch_again`].
    source: Option<SourceId>,
    /// When it is killed.
    until: Option<Time>,
}

record!(Starting {
    report,
    source = None,
    until,
});

/// Why a program could not be executed.
fn start_error(number: i32) -> io::Error {
    if number == Errno::TIMEDOUT.raw_os_error() {
        let why = format!("the program could not be executed within {EXECUTE_TIMEOUT:?}");
        return io::Error::new(io::ErrorKind::TimedOut, why);
    }
    io::Error::from_raw_os_error(number)
}

/// What was done about a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Escalation {
    /// The process got KILL because its time limit is over.
    TimedOut,
    /// The process got TERM because it has not exited when it was asked to.
    Terminated,
    /// The process got KILL because it has not exited after TERM.
    Killed,
}

/// Owns a child process from its start to its exit. Dropping it kills the process group.
///
/// `is_*`, `exit`, `start_error` and `deadline` are getters; `handle_ready`, `poll_exit` and `escalate` handle events; `stop` and
/// `signal` are commands. The owner calls `handle_ready` when one of [`Supervisor::sources`] is ready, and `poll_exit` and
/// `escalate` when [`Supervisor::deadline`] has passed. After each of them, the start may have ended ([`Supervisor::is_starting`]).
#[derive(Debug)]
pub(crate) struct Supervisor {
    process: ChildProcess,
    starting: Option<Starting>,
    /// Why the program could not be executed, as the number of an error.
    start_error: Option<i32>,
    exit_watch: Option<ExitWatch>,
    state: ChildState,
    plan: StopPlan,
    /// When the process is killed.
    time_limit: Option<Time>,
    timed_out: bool,
    /// The signal for the process tree that the owner has not taken yet.
    tree_signal: Option<Signal>,
}

// Call `Supervisor::watch_again` after restoring it.
record!(with(owners_plan: StopPlan) Supervisor {
    process,
    // Passed on, so that a failed execution is reported after an upgrade, too.
    starting,
    start_error,
    exit_watch = None,
    state,
    plan = owners_plan,
    time_limit,
    timed_out,
    tree_signal = None,
});

impl Supervisor {
    /// Watches a process that was taken over.
    pub(crate) fn watch_again(&mut self, ctx: &mut Context) -> io::Result<()> {
        if let Some(starting) = &mut self.starting {
            starting.source = Some(ctx.watch(&starting.report, Interest::Readable)?);
        }
        if self.exit().is_none() {
            self.exit_watch = Some(ExitWatch::of(ctx, &self.process)?);
        }
        Ok(())
    }

    /// Starts a process and watches it. It is killed after `time_limit`.
    ///
    /// # Errors
    ///
    /// The process cannot be created. That its program cannot be executed is known later ([`Supervisor::start_error`]), except before
    /// the server serves.
    pub(crate) fn start(
        ctx: &mut Context,
        command: Command,
        plan: StopPlan,
        time_limit: Option<Duration>,
    ) -> io::Result<Self> {
        let mut process = ChildProcess::start(command)?;
        let mut report = process.take_report();
        if ctx.starts_wait()
            && let Some(report) = report.take()
        {
            report.wait(EXECUTE_TIMEOUT);
            let late = Err(Errno::TIMEDOUT.raw_os_error());
            report.read().unwrap_or(late).map_err(start_error)?;
        }
        let starting = report.map(|report| Starting {
            report,
            source: None,
            until: Some(ctx.now() + EXECUTE_TIMEOUT),
        });
        let mut supervisor = Self {
            process,
            starting,
            start_error: None,
            exit_watch: None,
            state: ChildState::Running,
            plan,
            time_limit: time_limit.map(|limit| ctx.now() + limit),
            timed_out: false,
            tree_signal: None,
        };
        if let Err(error) = supervisor.watch_again(ctx) {
            supervisor.unwatch(ctx);
            return Err(error);
        }
        Ok(supervisor)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Takes the server's ends of standard input, output and error, for those that are pipes.
    pub(crate) fn take_pipes(&mut self) -> [Option<OwnedFd>; 3] {
        self.process.take_pipes()
    }

    /// The sources of its events.
    pub(crate) fn sources(&self) -> impl Iterator<Item = SourceId> {
        let starting = self.starting.as_ref().and_then(|starting| starting.source);
        [self.exit_source(), starting].into_iter().flatten()
    }

    /// The source whose readiness means that the process has exited, where the system reports it.
    fn exit_source(&self) -> Option<SourceId> {
        match self.exit_watch {
            Some(ExitWatch::Descriptor { source, .. }) => Some(source),
            Some(ExitWatch::Poll(_)) | None => None,
        }
    }

    /// Whether it is not known yet whether the process has executed its program.
    pub(crate) fn is_starting(&self) -> bool {
        self.starting.is_some() && self.start_error.is_none()
    }

    /// Why the process could not execute its program. It exits, or has exited.
    pub(crate) fn start_error(&self) -> Option<io::Error> {
        self.start_error.map(start_error)
    }

    /// How the process exited, if it has.
    pub(crate) fn exit(&self) -> Option<ExitRecord> {
        match self.state {
            ChildState::Running | ChildState::Stopping(_) => None,
            ChildState::Exited(exit) | ChildState::StoppingLeftovers(exit, _) => Some(exit),
        }
    }

    /// Whether the process, or what it has left behind, is being stopped.
    pub(crate) fn is_stopping(&self) -> bool {
        matches!(
            self.state,
            ChildState::Stopping(_) | ChildState::StoppingLeftovers(..)
        )
    }

    /// Whether the process was killed because its time limit was over.
    pub(crate) fn timed_out(&self) -> bool {
        self.timed_out
    }

    /// When to call `poll_exit` and `escalate`, if at all.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let poll = match self.exit_watch {
            Some(ExitWatch::Poll(at)) => Some(at),
            Some(ExitWatch::Descriptor { .. }) | None => None,
        };
        let starting = self.starting.as_ref().and_then(|starting| starting.until);
        let step = match self.state {
            ChildState::Stopping(step) | ChildState::StoppingLeftovers(_, step) => step.deadline(),
            ChildState::Running | ChildState::Exited(_) => None,
        };
        [poll, starting, step, self.time_limit]
            .into_iter()
            .flatten()
            .min()
    }

    /// Handles readiness. Returns whether the process has exited since the last call; `None` if the source belongs to something else.
    pub(crate) fn handle_ready(&mut self, ctx: &mut Context, source: SourceId) -> Option<bool> {
        if self.exit_source() == Some(source) {
            return Some(self.check_exit(ctx));
        }
        let starting = self.starting.as_ref()?;
        if starting.source != Some(source) {
            return None;
        }
        self.check_start(ctx);
        Some(false)
    }

    /// Reads whether the process has executed its program.
    fn check_start(&mut self, ctx: &mut Context) {
        let report = self.starting.as_ref().and_then(|one| one.report.read());
        if let Some(result) = report {
            // The report of a process that was killed in time looks like success.
            self.start_error = self.start_error.or(result.err());
            self.unwatch_start(ctx);
        }
    }

    /// Reaps the process if it has exited. Returns whether it has exited since the last call.
    fn check_exit(&mut self, ctx: &mut Context) -> bool {
        if self.exit().is_some() || !self.process.has_exited() {
            return false;
        }
        self.check_start(ctx);
        // The group must be signalled before the process is reaped: its number may be reused afterwards.
        match self.plan.leftovers {
            Leftovers::KillGroup => self.process.signal_group(Signal::KILL),
            Leftovers::StopTree { .. } if self.is_stopping() => {
                self.process.signal_group(Signal::HUP);
            }
            Leftovers::StopTree { .. } => {}
        }
        let exit = ExitRecord {
            status: self.process.reap(),
            at: ctx.now(),
        };
        self.state = match (self.state, self.plan.leftovers) {
            (ChildState::Stopping(step), Leftovers::StopTree { .. }) => {
                ChildState::StoppingLeftovers(exit, step)
            }
            _ => ChildState::Exited(exit),
        };
        self.time_limit = None;
        self.unwatch(ctx);
        true
    }

    /// Like [`Supervisor::check_exit`], if a check is due where the system does not report the exit.
    pub(crate) fn poll_exit(&mut self, ctx: &mut Context) -> bool {
        match &mut self.exit_watch {
            Some(ExitWatch::Poll(at)) if ctx.now() >= *at => *at = ctx.now() + EXIT_POLL,
            _ => return false,
        }
        self.check_exit(ctx)
    }

    /// Takes the next step of stopping, or enforces the time limit, if that is due.
    pub(crate) fn escalate(&mut self, now: Time) -> Option<Escalation> {
        if let Some(starting) = &mut self.starting
            && starting.until.take_if(|at| now >= *at).is_some()
        {
            let late = Err(Errno::TIMEDOUT.raw_os_error());
            self.start_error = starting.report.read().unwrap_or(late).err();
            if self.start_error.is_some() {
                self.process.signal_group(Signal::KILL);
            }
        }
        if self.time_limit.is_some_and(|at| now >= at) {
            self.time_limit = None;
            self.timed_out = true;
            self.process.signal_group(Signal::KILL);
            return Some(Escalation::TimedOut);
        }
        let (ChildState::Stopping(step) | ChildState::StoppingLeftovers(_, step)) = &mut self.state
        else {
            return None;
        };
        if step.deadline().is_none_or(|at| now < at) {
            return None;
        }
        let again = match self.plan.leftovers {
            Leftovers::KillGroup => None,
            Leftovers::StopTree { kill_interval } => Some(now + kill_interval),
        };
        let (next, signal, escalation) = match step {
            StopStep::Asked { .. } => {
                let until = now + self.plan.term_grace;
                let escalation = Some(Escalation::Terminated);
                (StopStep::Terminated { until }, Signal::TERM, escalation)
            }
            StopStep::Terminated { .. } => {
                let escalation = Some(Escalation::Killed);
                (StopStep::Killed { again }, Signal::KILL, escalation)
            }
            StopStep::Killed { .. } => (StopStep::Killed { again }, Signal::KILL, None),
        };
        *step = next;
        self.signal_all(signal);
        escalation
    }

    /// Begins to stop the process: HUP if the plan says so, then TERM, then KILL. Stopping a process tree continues
    /// after the exit of the process.
    pub(crate) fn stop(&mut self, now: Time) {
        let step = StopStep::Asked {
            until: now + self.plan.ask_grace,
        };
        self.state = match (self.state, self.plan.leftovers) {
            (ChildState::Running, _) => ChildState::Stopping(step),
            (ChildState::Exited(exit), Leftovers::StopTree { .. }) => {
                ChildState::StoppingLeftovers(exit, step)
            }
            _ => return,
        };
        if let Some(signal) = self.plan.ask {
            self.signal_all(signal);
        }
    }

    /// Sends a signal to the process group, unless the process has been reaped.
    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal_group(signal);
    }

    /// Takes the signal that the process tree has to get beyond the process group, if there is a new one.
    pub(crate) fn take_tree_signal(&mut self) -> Option<Signal> {
        self.tree_signal.take()
    }

    fn signal_all(&mut self, signal: Signal) {
        self.process.signal_group(signal);
        // A stopped process has to continue to handle the signal.
        self.process.signal_group(Signal::CONT);
        if matches!(self.plan.leftovers, Leftovers::StopTree { .. }) {
            self.tree_signal = Some(signal);
        }
    }

    fn unwatch_start(&mut self, ctx: &mut Context) {
        // The source must be unwatched before its descriptor is closed.
        if let Some(starting) = self.starting.take()
            && let Some(source) = starting.source
        {
            ctx.unwatch(source);
        }
    }

    /// Stops watching the process.
    pub(crate) fn unwatch(&mut self, ctx: &mut Context) {
        self.unwatch_start(ctx);
        if let Some(ExitWatch::Descriptor { source, _fd }) = self.exit_watch.take() {
            // The source must be unwatched before its descriptor is closed.
            ctx.unwatch(source);
        }
    }
}

/// The name of a signal, such as `SIGTERM`; `unknown` for a signal without a name.
pub(crate) fn signal_name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("unknown")
}

/// The exit code of a process, or the name of the signal that killed it.
pub(super) fn code_and_signal(status: Option<ExitStatus>) -> (Option<i32>, Option<&'static str>) {
    let Some(status) = status else {
        return (None, None);
    };
    (status.code(), status.signal().map(signal_name))
}

/// Describes how a process ended, as the end of a sentence.
pub(super) fn describe(status: Option<ExitStatus>) -> String {
    let Some(status) = status else {
        return "exited with unknown status".to_owned();
    };
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "exited".to_owned(),
    }
}

/// Why a program cannot be started although its file is there, as the end of a sentence; otherwise an empty string. The system says
/// only that something was not found.
pub(crate) fn start_hint(error: &io::Error, program: &str, cwd: Option<&str>) -> String {
    let is_malformed = error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error());
    // After other errors, such as that of a file system that does not answer, the file must not be looked at.
    if error.kind() != io::ErrorKind::NotFound && !is_malformed {
        return String::new();
    }
    let folder = Path::new(cwd.unwrap_or("."));
    let paths = std::env::var_os("PATH").filter(|_| !program.contains('/'));
    let folders = paths.map(|paths| std::env::split_paths(&paths).collect());
    let folders = folders.unwrap_or_else(|| vec![folder.to_owned()]);
    let mut files = folders.iter().map(|at| folder.join(at).join(program));
    let Some(file) = files
        .find(|file| file.is_file())
        .filter(|_| folder.is_dir())
    else {
        return String::new();
    };
    let mut start = Vec::new();
    // Opening a file that somebody has a lease of would block.
    let mode = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = open(file, mode, Mode::empty()).map_err(io::Error::from);
    let read = opened.and_then(|file| File::from(file).take(256).read_to_end(&mut start));
    let first = start
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    let interpreter = first.strip_prefix("#!").map(str::trim_start);
    match (error.kind(), interpreter) {
        _ if read.is_err() => String::new(),
        (io::ErrorKind::NotFound, Some(line)) if line.ends_with('\r') => {
            "; the lines of the file end with CR LF: convert them to LF".to_owned()
        }
        (io::ErrorKind::NotFound, Some(line)) => {
            let name = line.split([' ', '\t']).next().unwrap_or_default();
            format!("; there is no {name:?}, which the first line of the file names")
        }
        (io::ErrorKind::NotFound, None) => {
            "; the file is there, but not its loader: it was built for another system".to_owned()
        }
        _ => "; a script begins with a line such as #!/bin/sh".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bug: a script with the line ends of Windows was "No such file", although it is there.
    #[test]
    fn a_script_that_cannot_start_says_what_is_wrong_with_it() {
        let file = std::env::temp_dir().join(format!("outrigger-hint-{}", std::process::id()));
        let path = file.to_str().expect("UTF-8").to_owned();
        let hint = |text: &str, error: i32| {
            std::fs::write(&file, text).expect("a file");
            start_hint(&io::Error::from_raw_os_error(error), &path, None)
        };
        let missing = Errno::NOENT.raw_os_error();
        assert!(hint("#!/bin/sh\r\necho\r\n", missing).contains("CR LF"));
        assert!(hint("#! /no/such -x\n", missing).contains("no \"/no/such\""));
        assert!(hint("\x7fELF", missing).contains("its loader"));
        assert!(hint("echo\n", Errno::NOEXEC.raw_os_error()).contains("#!/bin/sh"));
        assert_eq!(hint("#!/bin/sh\n", Errno::AGAIN.raw_os_error()), "");
        let error = io::Error::from_raw_os_error(missing);
        assert_eq!(start_hint(&error, &path, Some("/no/such")), "");
        std::fs::remove_file(&file).expect("it is there");
        assert_eq!(start_hint(&error, &path, None), "");
    }

    fn sleeper(plan: StopPlan, time_limit: Option<Time>) -> Supervisor {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' HUP TERM; while :; do sleep 1000; done"]);
        let process = ChildProcess::start(command);
        Supervisor {
            process: process.expect("it starts"),
            starting: None,
            start_error: None,
            exit_watch: None,
            state: ChildState::Running,
            plan,
            time_limit,
            timed_out: false,
            tree_signal: None,
        }
    }

    #[test]
    fn each_step_of_stopping_follows_after_its_grace() {
        let seconds = |count: u64| Time::from_millis(count * 1000);
        let mut child = sleeper(StopPlan::CLOSE_INPUT, None);
        assert_eq!(child.deadline(), None);
        child.stop(seconds(10));
        assert_eq!(child.deadline(), Some(seconds(12)));
        assert_eq!(child.escalate(seconds(11)), None);
        assert_eq!(child.escalate(seconds(12)), Some(Escalation::Terminated));
        assert_eq!(child.deadline(), Some(seconds(17)));
        child.stop(seconds(13));
        assert_eq!(child.deadline(), Some(seconds(17)), "stop has no effect");
        assert_eq!(child.escalate(seconds(17)), Some(Escalation::Killed));
        assert_eq!((child.deadline(), child.take_tree_signal()), (None, None));

        let mut program = sleeper(StopPlan::HANG_UP, None);
        program.stop(seconds(10));
        assert_eq!(program.take_tree_signal(), Some(Signal::HUP));
        assert_eq!(program.escalate(seconds(11)), Some(Escalation::Terminated));
        assert_eq!(program.take_tree_signal(), Some(Signal::TERM));
        assert_eq!(program.escalate(seconds(15)), Some(Escalation::Killed));
        for again in [16, 17] {
            assert_eq!(program.take_tree_signal(), Some(Signal::KILL));
            assert_eq!(program.deadline(), Some(seconds(again)));
            assert_eq!(program.escalate(seconds(again)), None);
        }
    }

    #[test]
    fn a_process_tree_is_stopped_after_the_exit_of_its_program() {
        let now = Time::from_millis(1000);
        let exit = ExitRecord {
            status: None,
            at: now,
        };
        for (plan, stops) in [(StopPlan::CLOSE_INPUT, false), (StopPlan::HANG_UP, true)] {
            let mut child = sleeper(plan, None);
            child.state = ChildState::Exited(exit);
            child.stop(now);
            assert_eq!((child.is_stopping(), child.exit()), (stops, Some(exit)));
            assert_eq!(child.deadline().is_some(), stops);
        }
    }

    #[test]
    fn a_process_is_killed_at_its_time_limit() {
        let limit = Time::from_millis(500);
        let mut child = sleeper(StopPlan::HANG_UP, Some(limit));
        assert_eq!(child.deadline(), Some(limit));
        assert_eq!(child.escalate(Time::from_millis(499)), None);
        assert_eq!(child.escalate(limit), Some(Escalation::TimedOut));
        assert!(child.timed_out() && !child.is_stopping());
        assert_eq!(child.deadline(), None);
    }

    /// The bug: a program on a file system that did not answer held up the whole loop.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_program_that_cannot_be_executed_in_time_is_killed() {
        let Some(program) = crate::sys::LeasedProgram::new("timeout") else {
            return println!("this file system has no leases");
        };
        let process = ChildProcess::start(Command::new(program.path()));
        let mut child = sleeper(StopPlan::CLOSE_INPUT, None);
        child.process = process.expect("a process");
        let limit = Time::from_millis(3000);
        child.starting = child.process.take_report().map(|report| Starting {
            report,
            source: None,
            until: Some(limit),
        });
        assert_eq!(child.deadline(), Some(limit));
        assert_eq!(child.escalate(Time::from_millis(2999)), None);
        assert!(child.is_starting() && child.start_error().is_none());
        assert_eq!(child.escalate(limit), None);
        assert!(!child.is_starting());
        let error = child.start_error().expect("an error");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        let status = child.process.reap().expect("a status");
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()));
    }
}
