//! File descriptors that services watch, and their readiness.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use mio::Registry;
use mio::unix::SourceFd;
use slab::Slab;

use super::scheduler::AccountId;
use crate::server::id::{ServiceId, SourceId};
use crate::sys::is_unread;

/// What a service wants to do with a file descriptor: [`Context::watch`](crate::Context::watch) reports when it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Read from it.
    Readable,
    /// Write to it.
    Writable,
    /// Read from it and write to it.
    Both,
}

impl Interest {
    pub(crate) fn to_mio(self) -> mio::Interest {
        match self {
            Self::Readable => mio::Interest::READABLE,
            Self::Writable => mio::Interest::WRITABLE,
            Self::Both => mio::Interest::READABLE | mio::Interest::WRITABLE,
        }
    }
}

/// The readiness of a watched file descriptor.
///
/// Readiness is edge-triggered. Read or write until `WouldBlock`, or request another call with [`Context::again`](crate::Context::again).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Reading will not block: there is data, end of file or an error.
    pub readable: bool,
    /// Writing will not block: there is room or an error.
    pub writable: bool,
}

/// A watched file descriptor.
#[derive(Debug)]
struct Source {
    fd: RawFd,
    serial: u64,
    service_id: ServiceId,
    /// The account charged for work on this descriptor: the one that was current when the watch began.
    account: AccountId,
    /// The readiness to report when `ready` is called again, if it is to be called.
    again: Option<Readiness>,
}

/// Every file descriptor that a service watches.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    sources: Slab<Source>,
    last_serial: u64,
}

impl Sources {
    pub(crate) fn watch(
        &mut self,
        registry: &Registry,
        (service_id, account): (ServiceId, AccountId),
        fd: impl AsFd,
        interest: mio::Interest,
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
            account,
            again: None,
        });
        Ok(id)
    }

    /// Stops watching. Returns the account of the source; `None` if it was not watched.
    pub(crate) fn unwatch(&mut self, registry: &Registry, id: SourceId) -> Option<AccountId> {
        self.owner(id)?;
        let source = self.sources.remove(id.slot());
        if let Err(error) = registry.deregister(&mut SourceFd(&source.fd)) {
            log::debug!("deregistering a file descriptor failed: {error}");
        }
        Some(source.account)
    }

    /// Whether there are bytes in the pipes of these services that nobody has read.
    pub(crate) fn have_unread(&self, services: &[ServiceId]) -> bool {
        let mut sources = self.sources.iter().map(|(_, source)| source);
        sources.any(|source| services.contains(&source.service_id) && is_unread(source.fd))
    }

    /// The number of sources.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn len(&self) -> usize {
        self.sources.len()
    }

    /// The ids of all sources.
    pub(crate) fn ids(&self) -> Vec<SourceId> {
        let sources = self.sources.iter();
        let ids = sources.map(|(slot, source)| SourceId::new(slot, source.serial));
        ids.collect()
    }

    /// The service that watches a source, and who pays for it. `None` if the source is no longer watched.
    pub(crate) fn owner(&self, id: SourceId) -> Option<(ServiceId, AccountId)> {
        let source = self.sources.get(id.slot());
        let source = source.filter(|source| source.serial == id.serial());
        source.map(|source| (source.service_id, source.account))
    }

    fn get_mut(&mut self, id: SourceId) -> Option<&mut Source> {
        let source = self.sources.get_mut(id.slot());
        source.filter(|source| source.serial == id.serial())
    }

    /// Asks for a call of `ready`. The readiness is added to that of an earlier request. Returns the account of the source if it
    /// must be queued: not if it is not watched or is queued already, so that a service that asks many times in a turn does not
    /// multiply its work.
    #[must_use]
    pub(crate) fn again(&mut self, id: SourceId, readiness: Readiness) -> Option<AccountId> {
        let source = self.get_mut(id)?;
        if let Some(asked) = &mut source.again {
            asked.readable |= readiness.readable;
            asked.writable |= readiness.writable;
            return None;
        }
        source.again = Some(readiness);
        Some(source.account)
    }

    /// Takes the readiness to report for a source; `None` if `ready` need not be called.
    pub(super) fn take_again(&mut self, id: SourceId) -> Option<Readiness> {
        self.get_mut(id)?.again.take()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The bug: a source was called as often as it had asked, and each call asked again.
    #[test]
    fn a_source_that_asks_twice_is_called_once() -> io::Result<()> {
        let poll = mio::Poll::new()?;
        let (socket, _peer) = UnixStream::pair()?;
        let mut sources = Sources::default();
        let owner = (ServiceId::ALL, AccountId::SERVER);
        let id = sources.watch(poll.registry(), owner, &socket, mio::Interest::READABLE)?;
        let readable = Readiness {
            readable: true,
            writable: false,
        };
        let writable = Readiness {
            readable: false,
            writable: true,
        };
        let asked = [readable, Readiness::default(), writable, readable];
        let queued = asked.map(|readiness| sources.again(id, readiness));
        assert_eq!(queued, [Some(AccountId::SERVER), None, None, None]);
        let both = Readiness {
            readable: true,
            writable: true,
        };
        assert_eq!(sources.take_again(id), Some(both));
        assert_eq!(sources.take_again(id), None);
        assert!(sources.again(id, Readiness::default()).is_some());
        assert_eq!(sources.take_again(id), Some(Readiness::default()));
        assert!(sources.again(id, readable).is_some());
        assert_eq!(
            sources.unwatch(poll.registry(), id),
            Some(AccountId::SERVER)
        );
        assert_eq!(sources.again(id, readable), None);
        assert_eq!(sources.take_again(id), None);
        Ok(())
    }
}
