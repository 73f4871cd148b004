//! File descriptors that services watch.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry};
use slab::Slab;

use super::id::{ServiceId, SourceId};
use super::service::Readiness;

/// A watched file descriptor.
#[derive(Debug)]
struct Source {
    fd: RawFd,
    serial: u64,
    service_id: ServiceId,
}

/// Every file descriptor that a service watches.
#[derive(Debug, Default)]
pub(super) struct Sources {
    sources: Slab<Source>,
    last_serial: u64,
    /// The sources for which to call `ready` again, with the readiness to report.
    again: Vec<(SourceId, Readiness)>,
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

    /// The service that watches a source. `None` if the source is no longer watched: a late event can have its id.
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

    /// Whether `ready` must be called again for a source.
    pub(super) fn has_work(&self) -> bool {
        !self.again.is_empty()
    }
}
