//! Limits the work of a slice: the part of a client's or a program's input that is handled before the loop looks for others.
//!
//! A unit of work is about a microsecond. Services and clients count units for what a few bytes can cause: calls, broadcasts,
//! parsed messages. The [scheduler](super::scheduler) charges the time that a slice really took.

use super::clock::Nanos;

/// The maximum work for a client in one slice.
pub(crate) const CLIENT_SHARE: u32 = 200;

/// The maximum work for a descriptor of a service in one slice. It is larger, because what it causes is written once for all.
pub(super) const SOURCE_SHARE: u32 = 1000;

/// The work of a slice besides what is counted.
const SLICE: u32 = 10;

/// The bytes that are handled in one unit.
const BYTES: usize = 256;

/// The work after which the clock is read, so that slices with less need no reading of their own.
const UNSETTLED: u32 = 200;

/// The cost of answering a call, besides the length of the answer.
pub(crate) const CALL: usize = 10;

/// The cost of starting a program.
pub(crate) const START: usize = 1000;

/// The cost of a write to a socket.
pub(crate) const WRITE: usize = 5;

/// Work done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Budget {
    /// The work in this slice.
    work: u32,
    /// The maximum work of this slice.
    share: u32,
    /// The work since the clock was read.
    unsettled: u32,
    /// All work since the current account is charged.
    effort: u32,
    /// Whether the share is used up, or messages may have to be held back for another reason.
    has_exceptions: bool,
}

impl Budget {
    /// Begins a slice.
    pub(crate) fn begin(&mut self, share: u32, may_hold: bool) {
        self.work = 0;
        self.share = share;
        self.add(SLICE);
        self.has_exceptions = may_hold;
    }

    /// Records that messages of the current client may have to be held back.
    pub(crate) fn add_exception(&mut self) {
        self.has_exceptions = true;
    }

    /// Whether an uncompressed message of the current client may have to be held back.
    #[inline(always)]
    pub(crate) fn has_exceptions(self) -> bool {
        self.has_exceptions
    }

    /// Counts work.
    pub(crate) fn spend(&mut self, units: usize) {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        self.work = self.work.saturating_add(units);
        self.add(units);
        self.has_exceptions |= self.is_spent();
    }

    /// Counts bytes that were read, or that a whole message has. They do not count for the share, because reads have limits of
    /// their own.
    #[inline]
    pub(crate) fn read(&mut self, bytes: usize) {
        self.add((bytes / BYTES) as u32);
    }

    #[inline]
    fn add(&mut self, units: u32) {
        self.unsettled = self.unsettled.saturating_add(units);
        self.effort = self.effort.saturating_add(units);
    }

    /// Whether the share of this slice is used up.
    #[inline]
    pub(crate) fn is_spent(self) -> bool {
        self.work >= self.share
    }

    /// Whether the clock must be read before the next slice.
    #[inline]
    pub(crate) fn must_settle(self) -> bool {
        self.unsettled >= UNSETTLED
    }

    /// The longest time, in nanoseconds, that the work since the current account is charged can have taken: fifty times what it
    /// usually takes.
    pub(crate) fn plausible_time(self) -> Nanos {
        const UNIT: Nanos = 50_000;
        (Nanos::from(self.effort) + Nanos::from(SLICE)) * UNIT
    }

    /// Another account is charged from now on.
    pub(crate) fn switch(&mut self) {
        self.effort = 0;
    }

    /// The clock was read.
    pub(crate) fn settle(&mut self) {
        self.unsettled = 0;
    }
}
