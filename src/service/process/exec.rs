//! The `exec` calls: each waits for the exit of its process, and its output is collected until then as base64, within the limits
//! of a stream and of all calls together.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use uuid::Uuid;

use super::body::bad_request;
use super::compat::Compat;
use super::programs::Programs;
use super::responses::{Details, answer_executed, execution};
use super::scrollback::OutputStream;
use super::sink::Sink;
use crate::service::id_map::IdMap;
use crate::{ClientId, Context, Rejection, Response, StatusCode, Time};

/// Bytes of space offered at a time for collected output.
const STEP: usize = 16 << 10;

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

/// Output that is collected until the program exits, up to a limit for each stream.
#[derive(Debug)]
pub(crate) struct CollectedOutput {
    /// The caller that gets the output.
    pub(crate) caller: ClientId,
    pub(crate) details: Details,
    stdout: Base64Blocks,
    stderr: Base64Blocks,
    limit: usize,
    budget: ExecBudget,
    /// The number of bytes that are reserved from the budget.
    held: usize,
    /// Space for the next read.
    space: Vec<u8>,
    exceeded: Option<Exceeded>,
}

/// The limit that a program's output has exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceeded {
    /// The limit of one stream, in bytes.
    Stream(usize),
    /// The limit of all collected output together.
    Total,
}

/// The number of bytes that are collected for all calls together, and their limit.
#[derive(Clone, Debug)]
pub(crate) struct ExecBudget {
    bytes: Arc<AtomicUsize>,
    most: usize,
}

impl ExecBudget {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            bytes: Arc::default(),
            most,
        }
    }

    /// Whether the limit is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) >= self.most
    }

    /// Reserves space for `count` bytes, if there is enough.
    fn reserve(&self, count: usize) -> bool {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let fits = count <= self.most.saturating_sub(bytes);
        if fits {
            self.bytes.store(bytes + count, Ordering::Relaxed);
        }
        fits
    }
}

impl CollectedOutput {
    /// Collects at most `limit` bytes of each stream.
    pub(crate) fn new(
        caller: ClientId,
        details: Details,
        limit: usize,
        budget: ExecBudget,
    ) -> Self {
        Self {
            caller,
            details,
            stdout: Base64Blocks::default(),
            stderr: Base64Blocks::default(),
            limit,
            budget,
            held: 0,
            space: vec![0; STEP],
            exceeded: None,
        }
    }

    /// Space for at most this many bytes of output.
    pub(super) fn space(&mut self, most: usize) -> &mut [u8] {
        let most = most.min(STEP);
        &mut self.space[..most]
    }

    pub(super) fn commit(&mut self, stream: OutputStream, count: usize) {
        if self.exceeded.is_some() {
            return;
        }
        let collected = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        if count > self.limit - collected.len() {
            self.exceed(Exceeded::Stream(self.limit));
        } else if self.budget.reserve(count) {
            self.held += count;
            collected.push(&self.space[..count]);
        } else {
            self.exceed(Exceeded::Total);
        }
    }

    /// The answer is an error, so the output is not needed. Other calls get its space at once, or all of them would fail
    /// together.
    fn exceed(&mut self, limit: Exceeded) {
        self.exceeded = Some(limit);
        self.stdout = Base64Blocks::default();
        self.stderr = Base64Blocks::default();
        self.release();
    }

    /// Gives the space back.
    fn release(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.budget.bytes.fetch_sub(held, Ordering::Relaxed);
    }

    /// Takes standard output and standard error as base64, each in blocks.
    pub(super) fn take(&mut self) -> [Vec<String>; 2] {
        [&mut self.stdout, &mut self.stderr].map(|output| std::mem::take(output).finish())
    }

    /// The number of bytes that are held.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// The limit because of which output was dropped, if any was.
    pub(crate) fn exceeded(&self) -> Option<Exceeded> {
        self.exceeded
    }
}

impl Drop for CollectedOutput {
    fn drop(&mut self) {
        self.release();
    }
}

/// The length of a block from which on further text goes into a new one. Blocks that grew without a limit would be copied
/// again and again.
const BLOCK: usize = 256 << 10;

/// Base64 encodes this many bytes at a time.
const GROUP: usize = 3;

/// Bytes as base64.
#[derive(Debug, Default)]
struct Base64Blocks {
    blocks: Vec<String>,
    /// The bytes after the last whole group, fewer than [`GROUP`].
    rest: Vec<u8>,
    /// The number of bytes that were added.
    len: usize,
}

impl Base64Blocks {
    /// The number of bytes that were added.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len();
        if !self.rest.is_empty() {
            let missing = (GROUP - self.rest.len()).min(bytes.len());
            let (first, others) = bytes.split_at(missing);
            self.rest.extend_from_slice(first);
            bytes = others;
            if self.rest.len() < GROUP {
                return;
            }
            let group = std::mem::take(&mut self.rest);
            self.encode(&group);
        }
        let (groups, rest) = bytes.split_at(bytes.len() / GROUP * GROUP);
        self.encode(groups);
        self.rest.extend_from_slice(rest);
    }

    fn encode(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let is_full = self.blocks.last().is_none_or(|last| last.len() >= BLOCK);
        if is_full {
            self.blocks.push(String::new());
        }
        if let Some(block) = self.blocks.last_mut() {
            BASE64_STANDARD.encode_string(bytes, block);
        }
    }

    /// The text, in blocks.
    pub(super) fn finish(mut self) -> Vec<String> {
        let rest = std::mem::take(&mut self.rest);
        self.encode(&rest);
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn collect(collected: &mut CollectedOutput, stream: OutputStream, mut count: usize) {
        while count > 0 {
            let piece = count.min(STEP);
            collected.space[..piece].fill(b'x');
            collected.commit(stream, piece);
            count -= piece;
        }
    }

    /// The bug: thirty callers could each have 32 MiB collected, and there was no limit for all of them together.
    #[test]
    fn collected_output_has_a_limit_per_stream_and_in_total() {
        let budget = ExecBudget::new(250_000);
        let caller: ClientId = "c1".parse().expect("an id");
        let new = || CollectedOutput::new(caller, Details::Usual, 100_000, budget.clone());
        let held = || budget.bytes.load(Ordering::Relaxed);
        let mut one = new();
        collect(&mut one, OutputStream::Stdout, 100_000);
        collect(&mut one, OutputStream::Stderr, 100_000);
        assert_eq!((one.exceeded(), held()), (None, 200_000));
        // The bug: what was collected for a call that failed was held until its process had exited, so that other calls
        // failed with it.
        let mut other = new();
        collect(&mut other, OutputStream::Stdout, 60_000);
        assert_eq!((other.exceeded(), held()), (Some(Exceeded::Total), 200_000));
        collect(&mut one, OutputStream::Stderr, 1);
        assert_eq!(
            (one.exceeded(), held()),
            (Some(Exceeded::Stream(100_000)), 0)
        );
        collect(&mut one, OutputStream::Stdout, 1000);
        let mut third = new();
        collect(&mut third, OutputStream::Stdout, 100_000);
        assert_eq!((third.exceeded(), held()), (None, 100_000));
        assert!(!budget.is_full());
        drop((one, other, third));
        assert_eq!(held(), 0, "the whole budget is free again");
    }

    #[test]
    fn pieces_are_encoded_as_the_whole() {
        let mut random = Random::new(91);
        for size in [0, 1, 2, 3, 4, 5, 100, 300_000, 1_000_000] {
            let whole = random.bytes(size);
            let mut blocks = Base64Blocks::default();
            let mut left = &whole[..];
            while !left.is_empty() {
                let most = [1, 2, 3, 7, 5000, 40_000][random.below(6)];
                let (piece, others) = left.split_at(left.len().min(random.below(most + 1)));
                blocks.push(piece);
                left = others;
            }
            assert_eq!(blocks.len(), whole.len());
            let blocks = blocks.finish();
            assert!(blocks.iter().all(|block| block.len() < 2 * BLOCK));
            assert_eq!(blocks.concat(), BASE64_STANDARD.encode(&whole), "{size}");
        }
    }
}
