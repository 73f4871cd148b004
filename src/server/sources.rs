//! File descriptors and timers of the service, in the same loop.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry};
use slab::Slab;

use super::id::{ServiceId, SourceId, TimerId};
use super::service::Readiness;
use crate::protocol::Time;

/// A watched file descriptor.
#[derive(Debug)]
struct Source {
    fd: RawFd,
    serial: u64,
    service_id: ServiceId,
}

/// All that the service watches and waits for.
#[derive(Debug, Default)]
pub(super) struct Sources {
    sources: Slab<Source>,
    last_serial: u64,
    /// Sources that asked for another turn, with what they asked for.
    again: Vec<(SourceId, Readiness)>,
    timers: BTreeSet<(Time, TimerId, ServiceId)>,
    last_timer: u64,
}

impl Sources {
    pub(super) fn watch(
        &mut self,
        registry: &Registry,
        service_id: ServiceId,
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
            service_id,
        });
        Ok(id)
    }

    pub(super) fn unwatch(&mut self, registry: &Registry, id: SourceId) {
        if self.service_id(id).is_some() {
            let source = self.sources.remove(id.slot());
            if let Err(error) = registry.deregister(&mut SourceFd(&source.fd)) {
                log::debug!("deregistering a file descriptor failed: {error}");
            }
        }
    }

    /// Whose source it is, if it still exists: an event for `id` may come late.
    pub(super) fn service_id(&self, id: SourceId) -> Option<ServiceId> {
        self.sources
            .get(id.slot())
            .filter(|source| source.serial == id.serial())
            .map(|source| source.service_id)
    }

    pub(super) fn again(&mut self, id: SourceId, readiness: Readiness) {
        self.again.push((id, readiness));
    }

    pub(super) fn take_again(&mut self) -> Vec<(SourceId, Readiness)> {
        std::mem::take(&mut self.again)
    }

    pub(super) fn set_timer(
        &mut self,
        service_id: ServiceId,
        now: Time,
        after: Duration,
    ) -> TimerId {
        self.last_timer += 1;
        let id = TimerId(self.last_timer);
        // Not in the present turn, which would never end with a timer that sets itself again.
        let due = now + after.max(Duration::from_millis(1));
        self.timers.insert((due, id, service_id));
        id
    }

    pub(super) fn cancel_timer(&mut self, id: TimerId) {
        self.timers.retain(|(_, timer, _)| *timer != id);
    }

    /// The next timer that has run out, and whose it is.
    pub(super) fn pop_timer(&mut self, now: Time) -> Option<(TimerId, ServiceId)> {
        let &(due, id, service_id) = self.timers.first()?;
        (due <= now).then(|| {
            self.timers.pop_first();
            (id, service_id)
        })
    }

    /// When a source or a timer wants a turn.
    pub(super) fn next_turn(&self) -> Option<Time> {
        if !self.again.is_empty() {
            return Some(Time::default());
        }
        self.timers.first().map(|(due, ..)| *due)
    }
}
