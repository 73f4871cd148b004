//! New addresses: the rehearsal opens their sockets, and sends them to the program before, which passes them on with its own.
//!
//! A socket of that program that the next one does not need may be in the way, as that of 127.0.0.1:7070 is of 0.0.0.0:7070. Then the
//! new address is opened just before the program is replaced, when the old socket has stopped listening.

use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;

use super::state::Agreement;
use crate::record::record;
use crate::server::address::{Listen, ListenAddress, Place};
use crate::server::error::Error;
use crate::server::event_loop::Server;
use crate::server::listener::{Listener, PassedListener};
use crate::server::service::Service;

/// An address that cannot be opened as long as another socket has its port.
#[derive(Debug)]
pub(super) struct Occupied {
    /// The configured listen address.
    name: String,
    address: SocketAddr,
    /// Whether other processes may listen on the same port.
    share: bool,
}

record!(Occupied {
    name,
    address,
    share,
});

impl Occupied {
    fn failure(&self, error: &io::Error) -> String {
        format!("cannot listen on {}: {error}", self.name)
    }
}

impl Agreement {
    /// Provides for an address of the configuration, in the rehearsal. `passed` is the socket that the program before has for it.
    pub(super) fn provide(
        &mut self,
        listen: Listen,
        share: bool,
        passed: Option<PassedListener>,
    ) -> Result<ListenAddress, Error> {
        if let Some(passed) = passed {
            self.kept.push(passed.name().to_owned());
            return Ok(passed.address());
        }
        let (name, place) = (listen.to_string(), listen.place.clone());
        match (PassedListener::open(listen, share), place) {
            (Ok(opened), _) => {
                let address = opened.address();
                self.opened.push(opened);
                Ok(address)
            }
            (Err(error), Place::Tcp(address)) if error.kind() == io::ErrorKind::AddrInUse => {
                self.occupied.push(Occupied {
                    name,
                    address,
                    share,
                });
                Ok(ListenAddress::of_tcp(address))
            }
            (Err(source), _) => Err(Error::Listen {
                address: name,
                source,
            }),
        }
    }

    /// The listeners that the next program does not need and that have this port. The service manager listens on the same sockets
    /// as this program, so these go on.
    fn in_the_way<'a>(
        &self,
        listeners: &'a mut [Listener],
        port: u16,
    ) -> impl Iterator<Item = &'a mut Listener> {
        listeners.iter_mut().filter(move |one| {
            let is_kept = self.kept.iter().any(|kept| kept == one.name());
            one.port() == Some(port) && !is_kept && !one.is_inherited()
        })
    }

    /// Fails if an address is occupied by another process.
    pub(super) fn check_addresses(&self, listeners: &mut [Listener]) -> Result<(), String> {
        for one in &self.occupied {
            if self
                .in_the_way(listeners, one.address.port())
                .next()
                .is_none()
            {
                return Err(one.failure(&Errno::ADDRINUSE.into()));
            }
        }
        Ok(())
    }

    /// Opens the addresses that are occupied by sockets of this program. These stop listening.
    fn take_over(&mut self, listeners: &mut [Listener]) -> Result<(), String> {
        for one in &self.occupied {
            let failed = |error| one.failure(&error);
            for listener in self.in_the_way(listeners, one.address.port()) {
                listener.stop().map_err(failed)?;
            }
            let opened = PassedListener::open(Listen::tcp(one.address), one.share);
            let opened = opened.map_err(failed)?;
            self.opened.push(opened.named(one.name.clone()));
        }
        Ok(())
    }
}

impl<S: Service> Server<S> {
    /// Opens the addresses of which the sockets of this program are in the way. Call [`Server::listen_again`] if that, or the
    /// replacement, fails.
    pub(super) fn take_over_addresses(&mut self) -> Result<(), String> {
        let listeners = &mut self.listeners;
        let upgrading = self.upgrading.as_mut();
        upgrading.map_or(Ok(()), |one| one.agreement.take_over(listeners))
    }

    /// Closes the sockets that were opened for the next program, and listens on those again that were in their way.
    pub(super) fn listen_again(&mut self) {
        if let Some(upgrading) = &mut self.upgrading {
            upgrading.agreement = Agreement::default();
        }
        for listener in &mut self.listeners {
            if let Err(error) = listener.listen_again() {
                log::error!("cannot listen on {} again: {error}", listener.name());
            }
        }
    }
}
