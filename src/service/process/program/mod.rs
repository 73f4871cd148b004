//! A program with its terminal or pipes in the loop: what it writes, what it reads, and how it ends.

mod launch;
mod streams;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use uuid::Uuid;

pub(crate) use self::launch::{Launch, MARK};
use self::streams::{Input, Output, Part};
use super::Exit;
use super::sink::Sink;
use crate::sys::Process;
use crate::{Context, Readiness, SourceId, Time};

/// The most that is read of it then, if it never stops.
const LINGER_BYTES: usize = 1 << 20;

/// From the hangup to TERM, and to KILL.
const TERM_AFTER: Duration = Duration::from_secs(1);
const KILL_AFTER: Duration = Duration::from_secs(5);
/// Between two rounds of KILL, for what killed processes leave behind.
const KILL_AGAIN: Duration = Duration::from_secs(1);

/// Between two looks for the end where the system cannot tell of it.
const EXIT_POLL: Duration = Duration::from_millis(50);

/// Until when output is read although the program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linger {
    /// It runs.
    No,
    Until(Time),
    /// The time is over; so many bytes are still taken, up to the first time that there is nothing.
    Over(usize),
}

/// What is being done to end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    /// It was told that its terminal is gone.
    HungUp {
        since: Time,
    },
    Terminated {
        since: Time,
    },
    Killed {
        again: Time,
    },
}

/// A program and its streams.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) id: Uuid,
    pub(crate) command: Vec<String>,
    pub(crate) started: SystemTime,
    pub(crate) started_at: Time,
    process: Process,
    exit_watch: Option<(OwnedFd, SourceId)>,
    exit_poll: Option<Time>,
    outputs: Vec<Output>,
    input: Option<Input>,
    terminal: Option<Arc<OwnedFd>>,
    has_terminal: bool,
    /// Bytes that were read and not sent on yet.
    gathered: usize,
    /// When output was last sent on.
    sent_at: Time,
    /// When what was gathered is sent on at the latest.
    send_at: Option<Time>,
    /// How long output is still read after its end, where another process holds the other side open.
    linger_for: Duration,
    linger: Linger,
    ending: Ending,
    /// The next signal for everything that it has started.
    pending_signal: Option<Signal>,
    kill_at: Option<Time>,
    timed_out: bool,
    exit: Option<Exit>,
    exited_at: Time,
    pub(crate) sink: Sink,
}

impl Program {
    // Questions.

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn has_terminal(&self) -> bool {
        self.has_terminal
    }

    /// The offset behind the last byte of its output.
    pub(crate) fn output_end(&self) -> u64 {
        self.sink.end()
    }

    /// How it ended, if it has.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.exit
    }

    pub(crate) fn timed_out(&self) -> bool {
        self.timed_out
    }

    /// How long it has run.
    pub(crate) fn ran(&self, now: Time) -> Duration {
        let end = if self.exit.is_some() {
            self.exited_at
        } else {
            now
        };
        end.since(self.started_at)
    }

    /// When it ended.
    pub(crate) fn exited_at(&self) -> Time {
        self.exited_at
    }

    /// Whether it has ended and all it wrote was read.
    pub(crate) fn is_finished(&self) -> bool {
        self.exit.is_some() && self.outputs.is_empty()
    }

    /// Whether it was told to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending != Ending::No
    }

    /// The signal for everything that it has started, if it has changed since the last call.
    pub(crate) fn take_pending_signal(&mut self) -> Option<Signal> {
        self.pending_signal.take()
    }

    /// What its events come from.
    pub(crate) fn sources(&self) -> impl Iterator<Item = SourceId> {
        let outputs = self.outputs.iter().map(|output| output.source);
        let input = self.input.as_ref().map(|input| input.source);
        let exit = self.exit_watch.as_ref().map(|(_, source)| *source);
        outputs.chain(input).chain(exit)
    }

    /// When [`Program::handle_timeout`] is to be called, if ever.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let linger = match self.linger {
            Linger::Until(until) => Some(until),
            Linger::No | Linger::Over(_) => None,
        };
        let ending = match self.ending {
            Ending::No => None,
            Ending::HungUp { since } => Some(since + TERM_AFTER),
            Ending::Terminated { since } => Some(since + KILL_AFTER),
            Ending::Killed { again } => Some(again),
        };
        [self.exit_poll, self.send_at, linger, ending, self.kill_at]
            .into_iter()
            .flatten()
            .min()
    }

    // Events.

    /// Handles readiness.
    pub(crate) fn handle_ready(
        &mut self,
        ctx: &mut Context,
        source: SourceId,
        readiness: Readiness,
    ) {
        if self
            .exit_watch
            .as_ref()
            .is_some_and(|(_, exit)| *exit == source)
        {
            self.check_exit(ctx);
        }
        if readiness.writable
            && let Some(input) = self.input.as_mut().filter(|input| input.source == source)
        {
            input.writable = true;
            self.write_input(ctx);
        }
        if readiness.readable
            && let Some(at) = self
                .outputs
                .iter()
                .position(|output| output.source == source)
        {
            self.outputs[at].readable = true;
            self.read_output(ctx, at);
        }
    }

    /// Does what the passed deadline asks for.
    pub(crate) fn handle_timeout(&mut self, ctx: &mut Context) {
        let now = ctx.now();
        if self.exit_poll.is_some_and(|at| now >= at) {
            self.exit_poll = Some(now + EXIT_POLL);
            self.check_exit(ctx);
        }
        if self.send_at.is_some_and(|at| now >= at) {
            self.send_on(ctx);
            self.read_all(ctx);
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill_at = None;
            self.timed_out = true;
            log::info!("process {} ran out of time: KILL", self.id);
            self.process.signal_group(Signal::KILL);
        }
        if matches!(self.linger, Linger::Until(until) if now >= until) {
            if let Some(exit) = self.exit {
                log::info!(
                    "process {} {exit}; others still hold its output open after {:?}, and their later output is lost",
                    self.id,
                    self.linger_for
                );
            }
            self.linger = Linger::Over(LINGER_BYTES);
            // Whether there is something has to be asked once more.
            for output in &mut self.outputs {
                output.readable = true;
            }
            self.read_all(ctx);
        }
        match self.ending {
            Ending::HungUp { since } if now >= since + TERM_AFTER => {
                self.ending = Ending::Terminated { since };
                self.signal_everything(Signal::TERM);
            }
            Ending::Terminated { since } if now >= since + KILL_AFTER => {
                log::info!("process {} did not end with HUP and TERM: KILL", self.id);
                self.ending = Ending::Killed {
                    again: now + KILL_AGAIN,
                };
                self.signal_everything(Signal::KILL);
            }
            Ending::Killed { again } if now >= again => {
                self.ending = Ending::Killed {
                    again: now + KILL_AGAIN,
                };
                self.signal_everything(Signal::KILL);
            }
            _ => {}
        }
    }

    fn check_exit(&mut self, ctx: &mut Context) {
        if self.exit.is_some() || !self.process.has_ended() {
            return;
        }
        if self.ending != Ending::No {
            // Once it was waited for, the group's number may be another's.
            self.process.signal_group(Signal::HUP);
        }
        let exit = Exit::from(self.process.wait());
        log::info!("process {} {exit}", self.id);
        self.exit = Some(exit);
        self.exited_at = ctx.now();
        self.kill_at = None;
        self.exit_poll = None;
        if let Some((_, source)) = self.exit_watch.take() {
            ctx.unwatch(source);
        }
        if let Some(input) = self.input.take() {
            self.forget_source(ctx, input.source, Part::Input);
        }
        // What it wrote is there now; what others write that hold the other side open may still come.
        self.linger = Linger::Until(ctx.now() + self.linger_for);
        for output in &mut self.outputs {
            output.readable = true;
        }
        self.read_all(ctx);
        self.check_finished(ctx);
    }

    fn check_finished(&mut self, ctx: &mut Context) {
        if let Some(exit) = self.exit
            && self.outputs.is_empty()
            && self.linger != Linger::No
        {
            self.linger = Linger::No;
            self.terminal = None;
            self.sink.handle_exit(ctx, exit);
        }
    }

    /// Ends what the loop waits for.
    pub(crate) fn forget(&mut self, ctx: &mut Context) {
        let sources: Vec<SourceId> = self.sources().collect();
        // A terminal's source stands there twice; the second time it is not found.
        sources.into_iter().for_each(|source| ctx.unwatch(source));
        self.outputs.clear();
        self.input = None;
        self.exit_watch = None;
    }

    // The end.

    /// Sends a signal to its process group.
    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal_group(signal);
    }

    /// Ends it and all that it has left behind: HUP, then TERM, then KILL.
    pub(crate) fn end(&mut self, now: Time) {
        if self.ending == Ending::No {
            self.ending = Ending::HungUp { since: now };
            self.signal_everything(Signal::HUP);
        }
    }

    /// Sends a signal to its group at once, and to everything else that it has started as soon as that is found.
    fn signal_everything(&mut self, signal: Signal) {
        // One that has stopped itself has to go on to end.
        for signal in [signal, Signal::CONT] {
            self.process.signal_group(signal);
        }
        self.pending_signal = Some(signal);
    }
}
