//! The `exec` calls: each waits for the exit of its process.

use std::collections::VecDeque;

use uuid::Uuid;

use super::compat::Compat;
use super::event_stream::Details;
use super::exec_output::{CollectedOutput, Exceeded, ExecBudget};
use super::fields::bad_request;
use super::programs::Programs;
use super::responses::{answer_executed, execution};
use super::sink::Sink;
use crate::server::too_little_memory;
use crate::service::id_map::IdMap;
use crate::{ClientId, Context, Rejection, Response, StatusCode, Time};

/// After this many bytes of output, no more calls are answered in one turn of the loop.
const ANSWERED_PER_TURN: usize = 1 << 20;

/// The `exec` calls of a service.
#[derive(Debug)]
pub(super) struct ExecCalls {
    /// The process of each caller.
    callers: IdMap<ClientId, Uuid>,
    /// The processes that have finished, in the order in which the calls are answered.
    finished: VecDeque<Uuid>,
    /// The turn in which calls were last answered, and the bytes of output in the answers.
    answered: (Time, usize),
    budget: ExecBudget,
    compat: Compat,
}

impl ExecCalls {
    /// Limits the output that is held for all calls together. Answers as `compat` does.
    pub(super) fn new(max_output: usize, compat: Compat) -> Self {
        Self {
            callers: IdMap::default(),
            finished: VecDeque::new(),
            answered: (Time::default(), 0),
            budget: ExecBudget::new(max_output),
            compat,
        }
    }

    /// Rejects a new call while too much output is held.
    pub(super) fn check_budget(&self) -> Result<(), Rejection> {
        if self.budget.is_full() {
            return Err(budget_exhausted());
        }
        Ok(())
    }

    /// A sink that collects up to `limit` bytes of each output stream for a caller.
    pub(super) fn sink(&self, caller: ClientId, limit: usize, details: Details) -> Sink {
        let budget = self.budget.clone();
        Sink::Collected(CollectedOutput::new(caller, details, limit, budget))
    }

    /// Adds a call whose process has been started.
    pub(super) fn insert(&mut self, caller: ClientId, process: Uuid) {
        self.callers.insert(caller, process);
    }

    /// Whether a caller waits for the exit of its process.
    pub(super) fn contains(&self, caller: ClientId) -> bool {
        self.callers.contains_key(&caller)
    }

    /// Visits the callers that wait.
    pub(super) fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.callers.keys().copied().for_each(visit);
    }

    /// Removes the call of a caller that is gone. Returns its process.
    pub(super) fn abandon(&mut self, caller: ClientId) -> Option<Uuid> {
        self.callers.remove(&caller)
    }

    /// Notes that a process has finished. Its call is answered by [`ExecCalls::answer_finished`].
    pub(super) fn finish(&mut self, process: Uuid) {
        self.finished.push_back(process);
    }

    /// Answers calls whose processes have finished, up to the limit of one turn, and removes the processes.
    pub(super) fn answer_finished(&mut self, ctx: &mut Context, programs: &mut Programs) {
        if self.answered.0 != ctx.now() {
            self.answered = (ctx.now(), 0);
        }
        while !self.finished.is_empty() {
            if self.answered.1 >= ANSWERED_PER_TURN {
                return programs.wake(ctx);
            }
            // The process has been removed already if its caller is gone.
            let program = self.finished.pop_front();
            let program = program.and_then(|id| programs.remove(ctx, id));
            let Some(mut program) = program else { continue };
            let has_timed_out = program.timed_out();
            let summary = execution(&program, ctx.now());
            if let Sink::Collected(output) = &mut program.sink
                && self.callers.remove(&output.caller).is_some()
            {
                self.answered.1 += output.held();
                // A part of the output could be taken for all of it.
                let failed = match output.exceeded() {
                    Some(Exceeded::Total) => Some(budget_exhausted()),
                    Some(Exceeded::Memory) => Some(too_little_memory()),
                    Some(Exceeded::Stream(limit)) => Some(output_too_long(limit)),
                    None if self.compat == Compat::KernelImages && has_timed_out => {
                        Some(Rejection::new(StatusCode::INTERNAL, "process timed out"))
                    }
                    None => None,
                };
                match failed {
                    Some(rejection) => ctx.respond(output.caller, &Response::from(&rejection)),
                    None => answer_executed(ctx, summary, output),
                }
            }
        }
    }
}

fn output_too_long(limit: usize) -> Rejection {
    bad_request(format!(
        "the process was killed, because it wrote more than {limit} bytes to one of its streams; \"max_output_bytes\" sets \
         this limit, up to --max-exec-output"
    ))
}

fn budget_exhausted() -> Rejection {
    Rejection::unavailable("too much output is held for all exec calls together")
}
