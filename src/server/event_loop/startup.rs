//! How a server begins: it binds its addresses and installs signal handlers.

use std::any::Any;
use std::io;

use mio::Poll;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::Server;
use super::clock::Clock;
use super::wakeup::{Bell, Reloading, Signals};
use crate::server::Reload;
use crate::server::address::ListenAddress;
use crate::server::config::Config;
use crate::server::context::Context;
use crate::server::core::Core;
use crate::server::error::Error;
use crate::server::handle::Inbox;
use crate::server::id::{CHILDREN, RELOAD, SIGNALS, ServiceId};
use crate::server::listener::{Listener, PassedListener, Reserve};
use crate::server::outgoing::Resolver;
use crate::server::service::Service;
use crate::sys::{Reaper, become_subreaper, kill_orphans, raise_descriptor_limit};

/// The descriptors that the process needs besides those of clients: standard streams, the loop, listeners, and pipes of
/// the service.
const SPARE_DESCRIPTORS: u64 = 64;

/// Kills adopted orphans, and everything that descends from them, when it is dropped.
///
/// Drop it after the service that [`Server::run`] returns, because the programs of the service may leave orphans.
#[derive(Debug)]
#[must_use = "the orphans are killed when this is dropped"]
pub struct AdoptedOrphans(());

impl Drop for AdoptedOrphans {
    fn drop(&mut self) {
        kill_orphans();
    }
}

impl<S: Service> Server<S> {
    /// Binds the addresses of a configuration. Connections wait in the kernel's queue until [`Server::run`].
    ///
    /// ```
    /// use outrigger::{ClientId, Config, Context, Request, Server, Service};
    ///
    /// struct Greeter;
    ///
    /// impl Service for Greeter {
    ///     fn connected(&mut self, ctx: &mut Context, client: ClientId, _: &Request<'_>) {
    ///         ctx.send(client, outrigger::Message::Text("hello"));
    ///     }
    /// }
    ///
    /// let config = Config::new("127.0.0.1:0".parse()?);
    /// let mut server = Server::bind(config, Greeter)?;
    /// server.stop_on_signals()?;
    /// # server.handle().stop()?;
    /// server.run()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if a setting is not valid, [`Error::Listen`] if an address cannot be bound, and
    /// [`Error::System`] if the system is out of resources.
    pub fn bind(config: Config, service: S) -> Result<Self, Error> {
        Self::bind_with(config, service, |_| None, Err)
    }

    /// As [`Server::bind`], with the sockets that `passed` returns for the names of addresses. `handle` handles the failure of an
    /// address, which is then left out, or returns it.
    pub(crate) fn bind_with(
        mut config: Config,
        service: S,
        mut passed: impl FnMut(&str) -> Option<PassedListener>,
        handle: impl Fn(Error) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        config.validate()?;
        let poll = Poll::new().map_err(Error::system("create the event loop"))?;
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for listen in std::mem::take(&mut config.listen) {
            let index = listeners.len();
            let name = listen.to_string();
            let tls = config.uses_tls(&listen);
            let (share, passed) = (config.reuse_port, passed(&name));
            let bound = Listener::bind(poll.registry(), listen, share, tls, index, passed);
            let (listener, mut address) = match bound {
                Ok(bound) => bound,
                Err(source) => {
                    let address = name;
                    handle(Error::Listen { address, source })?;
                    continue;
                }
            };
            listeners.push(listener);
            if config.has_shared_sockets() {
                address.share();
            }
            addresses.push(address);
        }
        let wanted = config.max_clients as u64 + SPARE_DESCRIPTORS;
        let limit = raise_descriptor_limit();
        if limit < wanted {
            let clients = config.max_clients;
            log::warn!("{clients} clients need {wanted} open files, but the limit is {limit}");
        }
        Self::new(poll, config, listeners, addresses, service)
            .map_err(Error::system("create the event loop"))
    }

    /// Creates a loop that listens on no address, for a service that only opens connections
    /// ([`Context::connect`](crate::Context::connect)). The field `listen` of the configuration is ignored.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if a setting is not valid, and [`Error::System`] if the system is out of resources.
    pub fn without_listeners(mut config: Config, service: S) -> Result<Self, Error> {
        config.listen.clear();
        config.validate_without_listeners()?;
        let poll = Poll::new().map_err(Error::system("create the event loop"))?;
        Self::new(poll, config, Vec::new(), Vec::new(), service)
            .map_err(Error::system("create the event loop"))
    }

    pub(crate) fn new(
        poll: Poll,
        config: Config,
        listeners: Vec<Listener>,
        listen: Vec<ListenAddress>,
        service: S,
    ) -> io::Result<Self> {
        let clock = Clock::start();
        let buffer = vec![0; config.turn_bytes.max(1)].into_boxed_slice();
        let registry = poll.registry().try_clone()?;
        let bell = Bell::new(&registry)?;
        let resolver = Resolver::new(bell.clone());
        let mut core = Core::new(config, registry, resolver, listen, clock.now());
        core.routes = routes_of(&service);
        Ok(Self {
            commands: Inbox::new(bell),
            ctx: Context { core },
            service,
            listeners,
            reserve: Reserve::take(),
            signals: None,
            reload: None,
            children: None,
            reaper: Reaper::default(),
            started: false,
            signalled: None,
            until_drain: None,
            upgrading: None,
            accept_again: None,
            check_at: clock.now(),
            clock,
            buffer,
            poll,
        })
    }

    /// Drops `value` when the server begins to stop, before it stops listening. A file that tells clients where the server
    /// listens should go then, and not after the last client has gone. A second call replaces the value.
    pub fn drop_when_stopping(&mut self, value: impl Any + Send) {
        self.until_drain = Some(Box::new(value));
    }

    /// Makes SIGTERM, SIGINT and SIGQUIT stop the server as [`Handle::stop`](crate::Handle::stop) does. A second signal
    /// stops it at once.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the signal handlers cannot be installed.
    pub fn stop_on_signals(&mut self) -> Result<(), Error> {
        self.stop_on(&[SIGTERM, SIGINT, SIGQUIT])
    }

    /// Makes SIGHUP stop the server like the signals of [`Server::stop_on_signals`].
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the signal handler cannot be installed.
    pub fn stop_on_hangup(&mut self) -> Result<(), Error> {
        self.stop_on(&[SIGHUP])
    }

    fn stop_on(&mut self, numbers: &[i32]) -> Result<(), Error> {
        let added = match &self.signals {
            Some(signals) => signals.add(numbers),
            None => Signals::new(self.poll.registry(), SIGNALS, numbers)
                .map(|signals| self.signals = Some(signals)),
        };
        added.map_err(Error::system("install signal handlers"))
    }

    /// Makes SIGHUP call a function that returns new settings. A thread calls it, because reading files may block. [`Reload`]
    /// says what happens to connected clients.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the signal handler cannot be installed.
    pub fn reload_on_hangup(
        &mut self,
        reload: impl FnMut() -> Reload + Send + 'static,
    ) -> Result<(), Error> {
        let signals = Signals::new(self.poll.registry(), RELOAD, &[SIGHUP])
            .map_err(Error::system("install signal handlers"))?;
        let bell = self.commands.bell().clone();
        self.reload = Some(Reloading::new(signals, Box::new(reload), bell));
        Ok(())
    }

    /// Makes this process the parent of orphaned descendants (on Linux), so that no program of the service escapes.
    /// Orphans get TERM when the server stops, and KILL when the result is dropped. Use it only in a process whose
    /// children all belong to the service.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the system does not allow it.
    pub fn adopt_orphans(&mut self) -> Result<AdoptedOrphans, Error> {
        become_subreaper().map_err(Error::system("adopt orphaned processes"))?;
        let children = Signals::new(self.poll.registry(), CHILDREN, &[SIGCHLD])
            .map_err(Error::system("install signal handlers"))?;
        self.children = Some(children);
        Ok(AdoptedOrphans(()))
    }
}

/// The paths of the services. One that is alone has no id of its own.
fn routes_of(service: &impl Service) -> Vec<(ServiceId, Box<str>)> {
    let Some(report) = service.report() else {
        return Vec::new();
    };
    let named = |id| Some((id, report.name(id)?.into()));
    let several = (0..).map_while(|index| named(ServiceId::new(index)?));
    named(ServiceId::ALL).into_iter().chain(several).collect()
}
