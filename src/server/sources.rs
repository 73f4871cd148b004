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
    /// The readiness to report when `ready` is called again, if it is to be called.
    again: Option<Readiness>,
}

/// Every file descriptor that a service watches.
#[derive(Debug, Default)]
pub(super) struct Sources {
    sources: Slab<Source>,
    last_serial: u64,
    /// The sources for which to call `ready` again. Each is here at most once, so that a service that asks many times
    /// in a turn does not multiply its work.
    again: Vec<SourceId>,
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
            again: None,
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
        let source = self.sources.get(id.slot());
        let source = source.filter(|source| source.serial == id.serial());
        source.map(|source| source.service_id)
    }

    fn get_mut(&mut self, id: SourceId) -> Option<&mut Source> {
        let source = self.sources.get_mut(id.slot());
        source.filter(|source| source.serial == id.serial())
    }

    /// Asks for another call of `ready`. The readiness is added to that of an earlier request. Does nothing if the source
    /// is not watched.
    pub(super) fn again(&mut self, id: SourceId, readiness: Readiness) {
        let Some(source) = self.get_mut(id) else {
            return;
        };
        match &mut source.again {
            Some(asked) => {
                asked.readable |= readiness.readable;
                asked.writable |= readiness.writable;
            }
            None => {
                source.again = Some(readiness);
                self.again.push(id);
            }
        }
    }

    /// The sources for which to call `ready` again, with the readiness to report.
    pub(super) fn take_again(&mut self) -> Vec<(SourceId, Readiness)> {
        let ids = std::mem::take(&mut self.again);
        let take = |id| Some((id, self.get_mut(id)?.again.take()?));
        ids.into_iter().filter_map(take).collect()
    }

    /// Whether `ready` must be called again for a source.
    pub(super) fn has_work(&self) -> bool {
        !self.again.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// The bug: a source was called as often as it had asked, and each call asked again.
    #[test]
    fn a_source_that_asks_twice_is_called_once() -> io::Result<()> {
        let poll = mio::Poll::new()?;
        let (socket, _peer) = UnixStream::pair()?;
        let mut sources = Sources::default();
        let id = sources.watch(poll.registry(), ServiceId::ALL, &socket, Interest::READABLE)?;
        let readable = Readiness {
            readable: true,
            writable: false,
        };
        let writable = Readiness {
            readable: false,
            writable: true,
        };
        for readiness in [readable, Readiness::default(), writable, readable] {
            sources.again(id, readiness);
        }
        let both = Readiness {
            readable: true,
            writable: true,
        };
        assert_eq!(sources.take_again(), [(id, both)]);
        assert_eq!(sources.take_again(), []);
        sources.again(id, Readiness::default());
        assert_eq!(sources.take_again(), [(id, Readiness::default())]);
        sources.again(id, readable);
        sources.unwatch(poll.registry(), id);
        sources.again(id, readable);
        assert_eq!(sources.take_again(), []);
        Ok(())
    }
}
