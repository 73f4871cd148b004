//! File descriptors and timers of the service, in the same loop.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry};
use slab::Slab;

use super::id::{SourceId, TimerId};
use super::service::Readiness;
use crate::protocol::Time;

/// A watched file descriptor.
#[derive(Debug)]
struct Source {
    fd: RawFd,
    serial: u64,
}

/// All that the service watches and waits for.
#[derive(Debug, Default)]
pub(super) struct Sources {
    sources: Slab<Source>,
    last_serial: u64,
    /// Sources that asked for another turn, with what they asked for.
    again: Vec<(SourceId, Readiness)>,
    timers: BTreeSet<(Time, TimerId)>,
    last_timer: u64,
}

impl Sources {
    pub(super) fn watch(
        &mut self,
        registry: &Registry,
        fd: impl AsFd,
        interest: Interest,
    ) -> io::Result<SourceId> {
        let fd = fd.as_fd().as_raw_fd();
        let entry = self.sources.vacant_entry();
        let id = SourceId::new(entry.key(), self.last_serial + 1);
        registry.register(&mut SourceFd(&fd), id.token(), interest)?;
        self.last_serial += 1;
        entry.insert(Source {
            fd,
            serial: id.serial(),
        });
        Ok(id)
    }

    pub(super) fn unwatch(&mut self, registry: &Registry, id: SourceId) {
        if self.is_watched(id) {
            let source = self.sources.remove(id.slot());
            if let Err(error) = registry.deregister(&mut SourceFd(&source.fd)) {
                log::debug!("deregistering a file descriptor failed: {error}");
            }
        }
    }

    /// Whether an event for `id` is meant for a source that still exists.
    pub(super) fn is_watched(&self, id: SourceId) -> bool {
        self.sources
            .get(id.slot())
            .is_some_and(|source| source.serial == id.serial())
    }

    pub(super) fn again(&mut self, id: SourceId, readiness: Readiness) {
        self.again.push((id, readiness));
    }

    pub(super) fn take_again(&mut self) -> Vec<(SourceId, Readiness)> {
        std::mem::take(&mut self.again)
    }

    pub(super) fn set_timer(&mut self, now: Time, after: Duration) -> TimerId {
        self.last_timer += 1;
        let id = TimerId(self.last_timer);
        // Not in the present turn, which would never end with a timer that sets itself again.
        let due = now + after.max(Duration::from_millis(1));
        self.timers.insert((due, id));
        id
    }

    pub(super) fn cancel_timer(&mut self, id: TimerId) {
        self.timers.retain(|(_, timer)| *timer != id);
    }

    /// The next timer that has run out.
    pub(super) fn pop_timer(&mut self, now: Time) -> Option<TimerId> {
        let &(due, id) = self.timers.first()?;
        (due <= now).then(|| {
            self.timers.pop_first();
            id
        })
    }

    /// When a source or a timer wants a turn.
    pub(super) fn next_turn(&self) -> Option<Time> {
        if !self.again.is_empty() {
            return Some(Time::default());
        }
        self.timers.first().map(|(due, _)| *due)
    }
}
