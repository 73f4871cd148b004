//! How a server begins: its sockets, and the signals that it listens for.

use std::io;

use mio::Poll;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::Access;
use super::clock::Clock;
use super::config::Config;
use super::context::Context;
use super::core::Core;
use super::event_loop::Server;
use super::handle::Commands;
use super::id::{CHILDREN, RELOAD, SIGNALS};
use super::listener::{Listen, ListenAddress, Listener, Peers};
use super::service::Service;
use super::signals::Signals;
use crate::sys::{
    InheritedSocket, Reaper, become_subreaper, raise_descriptor_limit, take_inherited_socket,
};

/// Descriptors needed beside those of clients: standard streams, the loop's own, listeners, pipes of a service.
const SPARE_DESCRIPTORS: u64 = 64;

impl<S: Service> Server<S> {
    /// Binds the addresses of `config`. Connections wait in the kernel's queue until [`Server::run`].
    ///
    /// # Errors
    ///
    /// An address that cannot be bound, named in the error, or a kernel that is out of descriptors.
    pub fn bind(config: Config, service: S) -> io::Result<Self> {
        // Before anything is opened here: a number that was wrong would be one of ours later.
        let mut inherited = take_inherited(&config.listen)?;
        let poll = Poll::new()?;
        let mut listeners = Vec::new();
        let mut listen = Vec::new();
        for (index, wanted) in config.listen.iter().enumerate() {
            let (listener, address) = Listener::bind(
                poll.registry(),
                wanted,
                inherited[index].take(),
                config.reuse_port,
                index,
            )
            .map_err(|error| cannot_listen(wanted, &error))?;
            listeners.push(listener);
            listen.push(match address {
                ListenAddress::Unix(path) if config.proxies.contains(&Peers::Unix) => {
                    ListenAddress::SharedUnix(path)
                }
                address => address,
            });
        }
        let wanted = config.max_clients as u64 + SPARE_DESCRIPTORS;
        let descriptors = raise_descriptor_limit();
        if descriptors < wanted {
            log::warn!(
                "{} clients need {wanted} open files, the limit is {descriptors}",
                config.max_clients
            );
        }
        Self::new(poll, config, listeners, listen, service)
    }

    pub(super) fn new(
        poll: Poll,
        config: Config,
        listeners: Vec<Listener>,
        listen: Vec<ListenAddress>,
        service: S,
    ) -> io::Result<Self> {
        let clock = Clock::start();
        let buffer = vec![0; config.turn_bytes.max(1)].into_boxed_slice();
        let registry = poll.registry().try_clone()?;
        Ok(Self {
            commands: Commands::new(&registry)?,
            ctx: Context {
                core: Core::new(config, registry, listen, clock.now()),
            },
            service,
            listeners,
            signals: None,
            reload: None,
            children: None,
            reaper: Reaper::default(),
            started: false,
            signalled: None,
            accept_again: None,
            clock,
            buffer,
            poll,
        })
    }

    /// Has SIGTERM, SIGINT and SIGQUIT, and with `hangup` SIGHUP, stop the server as [`Handle::stop`](crate::Handle::stop) does; a second one
    /// ends it at once.
    pub fn stop_on_signals(&mut self, hangup: bool) -> io::Result<()> {
        let signals = [SIGTERM, SIGINT, SIGQUIT, SIGHUP];
        let signals = if hangup { &signals[..] } else { &signals[..3] };
        self.signals = Some(Signals::new(self.poll.registry(), SIGNALS, signals)?);
        Ok(())
    }

    /// Has SIGHUP call a function whose result is whom the server lets in from then on; `None` leaves that as it is.
    /// Clients that are connected stay.
    pub fn reload_on_hangup(
        &mut self,
        make: impl FnMut() -> Option<Access> + Send + 'static,
    ) -> io::Result<()> {
        let signals = Signals::new(self.poll.registry(), RELOAD, &[SIGHUP])?;
        self.reload = Some((signals, Box::new(make)));
        Ok(())
    }

    /// Makes this process the parent of whatever the programs that it starts leave behind (on Linux), so that nothing
    /// of them survives it: orphans get TERM when the server stops, and [`kill_orphans`](crate::kill_orphans) is to be
    /// called in the end. For a process that has no other children than its service's.
    pub fn adopt_orphans(&mut self) -> io::Result<()> {
        become_subreaper()?;
        self.children = Some(Signals::new(self.poll.registry(), CHILDREN, &[SIGCHLD])?);
        Ok(())
    }
}

/// Takes over the sockets that this process was given, each once.
fn take_inherited(listen: &[Listen]) -> io::Result<Vec<Option<InheritedSocket>>> {
    let mut taken = Vec::new();
    for (index, wanted) in listen.iter().enumerate() {
        let Listen::Inherited(number) = wanted else {
            taken.push(None);
            continue;
        };
        if listen[..index].contains(wanted) {
            let twice = io::Error::new(io::ErrorKind::InvalidInput, "it is named twice");
            return Err(cannot_listen(wanted, &twice));
        }
        let socket = take_inherited_socket(*number);
        taken.push(Some(socket.map_err(|error| cannot_listen(wanted, &error))?));
    }
    Ok(taken)
}

fn cannot_listen(wanted: &Listen, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot listen on {wanted}: {error}"))
}
