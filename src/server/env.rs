//! The state that all clients of a loop share: settings, buffers, counters, news for the loop, and the account that pays for the
//! current slice.

use std::collections::VecDeque;
use std::time::Duration;

use super::access::{Addresses, Failures, Links};
use super::client::{Batches, Broadcast};
use super::config::Config;
use super::event_loop::budget::{Budget, CLIENT_SHARE};
use super::event_loop::clock::{Nanos, Stopwatch};
use super::event_loop::scheduler::{AccountId, Payer, Phase, Scheduler, Work};
use super::id::{ClientId, ServiceId};
use super::limits::memory::Memory;
use super::observe::counters::Counters;
use super::tls::Scratch;
use crate::protocol::deflate::Compression;
use crate::protocol::{Shared, Time};

/// The size at which the write buffer, or the queued output of a socket that is not full, is written.
/// Tests and fuzzers reach it with less output.
pub(super) const WRITE_BUFFER: usize = if cfg!(any(test, fuzzing)) {
    16 << 10
} else {
    256 << 10
};

/// The maximum number of decompressed bytes in one slice.
const INFLATED_SHARE: usize = 128 << 10;

#[cfg(feature = "deflate")]
fn compression(config: &Config) -> Option<Compression> {
    config.deflate.map(Compression::new)
}

#[cfg(not(feature = "deflate"))]
fn compression(_: &Config) -> Option<Compression> {
    None
}

/// The state that all clients of a loop share. Operations on a client take it as an argument.
#[derive(Debug)]
pub(super) struct Env {
    pub(super) config: Config,
    /// The time of the present turn.
    pub(super) now: Time,
    /// Whether a service may wait until its program is executed, because the server does not serve yet.
    pub(super) starts_wait: bool,
    /// How long the machine was suspended since the loop began.
    pub(super) asleep: Duration,
    /// Buffers that all TLS streams share.
    pub(super) scratch: Scratch,
    /// Limits, buffers and compressors of the protocol.
    pub(super) protocol: Shared,
    /// The write buffer. It collects the replies to one read of a client, and is empty otherwise.
    pub(super) output: Vec<u8>,
    /// The frames of this turn's broadcasts.
    pub(super) batches: Batches,
    /// The size at which the write buffer is written.
    most_output: usize,
    /// Whether some of the bytes of this read are not handled yet, so that more replies may follow.
    pub(super) has_more_input: bool,
    /// News that the loop handles after the current action. It ignores the id of a client that is gone.
    pub(super) news: VecDeque<(ClientId, News)>,
    /// The work that is left over, and who pays for what.
    pub(super) scheduler: Scheduler,
    pub(super) stopwatch: Stopwatch,
    pub(super) budget: Budget,
    /// The measured time of this turn and of the current slice, in nanoseconds.
    pub(super) turn_time: Nanos,
    slice_time: Nanos,
    /// The total number of decompressed bytes when the current slice began.
    share_began: u64,
    pub(super) counters: Counters,
    pub(super) addresses: Addresses,
    /// The addresses that have presented wrong tokens.
    pub(super) failures: Failures,
    /// The links that the server has issued.
    pub(super) links: Links,
    /// The number of calls that services have not completely answered.
    pub(super) calls: usize,
    /// The services that take no messages, one bit for each.
    paused: u64,
    /// Whether the figures must leave out the current turn, because it has answered a request with the field of the console.
    pub(super) is_uncounted: bool,
    /// The caller whose call is being handled, if the answer may be compressed.
    pub(super) gzip_for: Option<ClientId>,
    /// The number of the current turn of the loop, counted from 1.
    pub(super) turn: u64,
    /// The memory that clients hold.
    pub(super) memory: Memory,
}

impl Env {
    pub(super) fn new(config: Config, now: Time) -> Self {
        Self {
            now,
            starts_wait: false,
            asleep: Duration::ZERO,
            scratch: Scratch::default(),
            protocol: Shared::new(config.limits, compression(&config)),
            output: Vec::new(),
            batches: Batches::default(),
            most_output: WRITE_BUFFER.min(config.soft_outbound),
            has_more_input: false,
            news: VecDeque::new(),
            scheduler: Scheduler::new(),
            stopwatch: Stopwatch::default(),
            budget: Budget::default(),
            turn_time: 0,
            slice_time: 0,
            share_began: 0,
            counters: Counters::default(),
            addresses: Addresses::new(config.max_clients_per_address.is_some()),
            failures: Failures::default(),
            links: Links::default(),
            calls: 0,
            paused: 0,
            is_uncounted: false,
            gzip_for: None,
            turn: 0,
            memory: Memory::new(config.memory),
            config,
        }
    }

    /// Begins a turn of the loop at `began`, which is `now` for the protocol.
    pub(super) fn begin_turn(&mut self, began: Nanos, now: Time) {
        self.now = now;
        self.turn += 1;
        self.turn_time = 0;
        self.slice_time = 0;
        self.budget.switch();
        self.budget.settle();
        self.scheduler.begin_turn(began);
    }

    /// The time of the present turn, with the time in which the machine was suspended: for what expires at a time of day.
    pub(super) fn real_now(&self) -> Time {
        self.now + self.asleep
    }

    /// Whether a service takes no messages from its clients.
    pub(super) fn is_paused(&self, service_id: ServiceId) -> bool {
        self.paused & (ServiceId::ALL.bit() | service_id.bit()) != 0
    }

    /// Holds back the messages of a service's clients.
    pub(super) fn pause(&mut self, service_id: ServiceId) {
        self.paused |= service_id.bit();
        self.budget.add_exception();
    }

    /// Ends a pause. Returns whether the service was paused.
    pub(super) fn unpause(&mut self, service_id: ServiceId) -> bool {
        let was_paused = self.paused & service_id.bit() != 0;
        self.paused &= !service_id.bit();
        was_paused
    }

    /// Whether the slice is used up: in work, or in decompressed bytes.
    pub(super) fn is_share_spent(&self) -> bool {
        self.budget.is_spent()
            || (self.protocol.compression.is_some()
                && self.protocol.decompressed() - self.share_began
                    >= self.config.turn_bytes.clamp(1, INFLATED_SHARE) as u64)
    }

    /// Counts what was decompressed in this slice: as work, and as memory that the client may hold.
    #[cold]
    pub(super) fn count_decompressed(&mut self) {
        let bytes = self.protocol.decompressed() - self.share_began;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.budget.read(bytes);
        self.memory.add(bytes);
    }

    /// Whether the write buffer must be written: it has reached its maximum size or the soft limit of output.
    #[inline]
    pub(super) fn is_output_full(&self) -> bool {
        self.output.len() >= self.most_output
    }

    /// Begins a slice of work that an account pays for. The first slice of a turn begins with the turn.
    #[inline]
    pub(super) fn begin_slice(&mut self, account: AccountId, share: u32) {
        self.begin_slice_of(account, Phase::Input, share);
    }

    /// Begins a slice of output.
    pub(super) fn begin_output(&mut self, account: AccountId) {
        self.begin_slice_of(account, Phase::Output, CLIENT_SHARE);
    }

    #[inline(always)]
    fn begin_slice_of(&mut self, account: AccountId, phase: Phase, share: u32) {
        if !self.scheduler.continues(account, phase) {
            self.end_slice();
            self.scheduler.set_current(account, phase);
        }
        let may_hold = self.paused != 0 || self.config.rate_limit.is_some();
        self.budget.begin(share, may_hold);
        self.share_began = self.protocol.decompressed();
    }

    /// Charges the current account for its slice.
    #[inline(never)]
    fn end_slice(&mut self) {
        self.settle();
        self.slice_time = 0;
        self.budget.switch();
    }

    /// The time that the turn has taken, in nanoseconds, without that of the last slice if it did little. Call this before the
    /// next work is chosen: otherwise an account whose slice was long is chosen once more.
    #[inline]
    pub(super) fn turn_time(&mut self) -> Nanos {
        if self.budget.must_settle() {
            self.end_slice();
        }
        self.turn_time
    }

    /// Begins work of the server itself.
    pub(super) fn begin_own_work(&mut self) {
        self.begin_slice(AccountId::SERVER, CLIENT_SHARE);
    }

    /// The next work of a phase, unless the turn has taken `most` nanoseconds. The first work of a phase is always done.
    #[inline]
    pub(super) fn next_work(
        &mut self,
        phase: Phase,
        most: Nanos,
        is_first: bool,
    ) -> Option<(AccountId, Work)> {
        if self.scheduler.is_idle(phase) || (self.turn_time() >= most && !is_first) {
            return None;
        }
        self.scheduler.next(phase)
    }

    /// Charges the current account for the time since the last charge.
    pub(super) fn settle(&mut self) {
        let most = self.budget.plausible_time().saturating_sub(self.slice_time);
        let took = self.scheduler.charge(self.stopwatch.read(), most);
        self.turn_time += took;
        self.slice_time += took;
        self.budget.settle();
    }

    /// Ends a turn at `now`. Who was served last pays for it only if somebody waits.
    #[inline]
    pub(super) fn end_turn(&mut self, now: Nanos) {
        if self.has_work() {
            let most = self.budget.plausible_time().saturating_sub(self.slice_time);
            self.scheduler.charge(now, most);
            self.budget.settle();
        }
    }

    /// Whether clients or sources have work left over.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        !self.scheduler.is_idle(Phase::Input) || !self.scheduler.is_idle(Phase::Output)
    }

    /// The time that the current slice has taken, in nanoseconds.
    pub(super) fn slice_time(&mut self) -> Nanos {
        self.settle();
        self.slice_time
    }

    /// From now on in this slice, a service's own account pays: for what its clients share.
    pub(super) fn charge_service(&mut self, service_id: ServiceId) {
        self.settle();
        let id = self.scheduler.acquire(Payer::Service(service_id));
        self.scheduler.set_current(id, Phase::Input);
        self.scheduler.release(id);
    }

    /// Queues the start of a program for a service.
    pub(super) fn queue_own_start(&mut self, service_id: ServiceId) {
        let id = self.scheduler.acquire(Payer::Service(service_id));
        self.scheduler.push(id, Work::StartOwn(service_id));
        self.scheduler.release(id);
    }

    /// Counts the work and the memory of queueing a message for `sent` clients after looking at `visited` ones. Writing it is charged
    /// when it is done.
    pub(super) fn count_broadcast(
        &mut self,
        broadcast: &Broadcast<'_>,
        visited: usize,
        sent: usize,
    ) {
        /// The clients that a unit is enough for: to look at, and to queue the message for.
        const CLIENTS: (usize, usize) = (64, 8);
        /// What the message takes for each client, in bytes, besides its frame.
        const OVERHEAD: usize = 64;
        self.budget.spend(visited / CLIENTS.0 + sent / CLIENTS.1);
        self.memory.add(broadcast.created() + sent * OVERHEAD);
    }

    /// Queues news of a client.
    pub(super) fn push_news(&mut self, id: ClientId, news: News) {
        self.news.push_back((id, news));
    }

    /// Queues a client's output to be written at the end of the turn. Who has caused the output pays for it.
    pub(super) fn push_dirty(&mut self, id: ClientId) {
        self.scheduler.push_caused(Work::Write(id));
    }
}

/// A change of a client that the loop handles before the next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Its deadline may have changed.
    Rearm,
    /// Its output has drained after it was congested.
    Drained,
    /// Its connection is over.
    Closing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_slice_ends_the_turn_before_further_work_is_chosen() {
        // The bug: the clock was read when the next work began, so the account of the long slice was chosen once more. A bystander
        // waited for two messages of 8 MB instead of one.
        const LONG: Nanos = 5_000_000;
        let mut env = Env::new(Config::default(), Time::default());
        env.stopwatch = Stopwatch::simulated(LONG);
        assert_eq!(env.stopwatch.read(), 0, "the next time is later");
        let ids = [1, 2].map(|serial| ClientId::new(0, serial));
        let payer = Payer::strangers(std::net::Ipv4Addr::LOCALHOST.into());
        let account = env.scheduler.acquire(payer);
        for id in ids {
            env.scheduler.push(account, Work::Read(id));
        }
        env.begin_turn(0, Time::default());
        assert!(env.next_work(Phase::Input, LONG, true).is_some());
        env.begin_slice(account, CLIENT_SHARE);
        env.budget.read(1 << 20);
        assert_eq!(env.next_work(Phase::Input, LONG, false), None);
    }

    #[cfg(feature = "deflate")]
    #[test]
    fn what_a_slice_decompresses_is_work() {
        use crate::protocol::deflate::DeflateConfig;
        use crate::protocol::{Input, OpCode, SentHeader, WebSocket};

        // The bug: the loop read the clock after twenty slices of one account, each of which had decompressed 512 KiB.
        let config = Config {
            deflate: Some(DeflateConfig::default()),
            ..Config::default()
        };
        let mut env = Env::new(config, Time::default());
        let compression = env.protocol.compression.as_mut().expect("configured");
        let codec = compression.alone(15);
        let payload = compression
            .compress_alone(&[0; INFLATED_SHARE], 15)
            .expect("compressible");
        let header = SentHeader::compressed(OpCode::Binary, payload.len());
        let mut frame = Vec::from(header.encode().as_slice());
        frame.extend_from_slice(&payload);
        let mut socket = WebSocket::connect(Time::default(), Some(codec), |_| {});

        env.begin_slice(AccountId::SERVER, CLIENT_SHARE);
        let received = socket.receive(
            env.now,
            &mut Input::new(&mut frame),
            &mut env.protocol,
            &mut Vec::new(),
        );
        assert_eq!(
            received.expect("a message").as_message().as_bytes().len(),
            INFLATED_SHARE
        );
        assert!(!env.budget.must_settle());
        env.count_decompressed();
        assert!(env.budget.must_settle());
    }
}
