//! What wakes the loop besides its sockets and timers: other threads that ring a [`Bell`], signals, and settings that a thread has
//! read after SIGHUP.

use std::any::Any;
use std::fmt;
use std::io::{self, Read};
use std::os::unix::net;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use mio::net::UnixStream;
use mio::{Interest, Registry, Token, Waker};
use signal_hook::low_level::pipe;

use crate::server::access::Access;
use crate::server::id::WAKER;
#[cfg(feature = "tls")]
use crate::server::tls::TlsConfig;
use crate::sys::start_thread;

/// Wakes the loop once, however often it rings before the loop has answered.
#[derive(Clone)]
pub(crate) struct Bell(Arc<Shared>);

struct Shared {
    waker: Waker,
    rung: AtomicBool,
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").finish_non_exhaustive()
    }
}

impl Bell {
    /// Creates the bell of a loop.
    pub(crate) fn new(registry: &Registry) -> io::Result<Self> {
        let waker = Waker::new(registry, WAKER)?;
        let rung = AtomicBool::new(false);
        Ok(Self(Arc::new(Shared { waker, rung })))
    }

    pub(crate) fn ring(&self) {
        if !self.0.rung.swap(true, Ordering::AcqRel)
            && let Err(error) = self.0.waker.wake()
        {
            log::error!("cannot wake the loop: {error}");
        }
    }

    /// Begins to answer. Call it before looking at what other threads have sent: what they send later rings again.
    pub(crate) fn answer(&self) {
        self.0.rung.swap(false, Ordering::AcqRel);
    }
}

/// A pipe that receives one byte for each signal.
#[derive(Debug)]
pub(crate) struct Signals {
    pipe: UnixStream,
    sender: net::UnixStream,
}

impl Signals {
    /// Handles these signals. They become events with this token.
    pub(crate) fn new(registry: &Registry, token: Token, signals: &[i32]) -> io::Result<Self> {
        let (receiver, sender) = net::UnixStream::pair()?;
        receiver.set_nonblocking(true)?;
        sender.set_nonblocking(true)?;
        let mut pipe = UnixStream::from_std(receiver);
        registry.register(&mut pipe, token, Interest::READABLE)?;
        let this = Self { pipe, sender };
        this.add(signals)?;
        Ok(this)
    }

    /// Handles further signals.
    pub(crate) fn add(&self, signals: &[i32]) -> io::Result<()> {
        for &signal in signals {
            // The signal handler writes to a clone, which does not block.
            pipe::register(signal, self.sender.try_clone()?)?;
        }
        Ok(())
    }

    /// The number of signals since the last call.
    pub(crate) fn take(&mut self) -> usize {
        let mut bytes = [0; 64];
        let mut count = 0;
        loop {
            match self.pipe.read(&mut bytes) {
                Ok(0) => return count,
                Ok(read) => count += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return count,
            }
        }
    }
}

/// The settings that a running server can replace. A field that is `None` leaves its settings unchanged.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Reload {
    /// Which clients may connect. Clients stay connected, except those whose token is no longer in [`Access::tokens`] or
    /// has a lower scope there. They get CLOSE 1008, with [`Cause::Revoked`](crate::Cause::Revoked).
    pub access: Option<Access>,
    /// The certificates for new connections. Clients whose certificate is no longer accepted get CLOSE 1008, with
    /// [`Cause::Revoked`](crate::Cause::Revoked). It is ignored if the server was started without TLS.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsConfig>,
    /// A value that is dropped once these settings are in force, or when newer ones have replaced them.
    pub until_applied: Option<Arc<dyn Any + Send + Sync>>,
}

/// Returns the new settings.
type MakeReload = Box<dyn FnMut() -> Reload + Send>;

/// SIGHUP, and the function that then returns new settings. At most one thread runs it at a time.
pub(crate) struct Reloading {
    signals: Signals,
    make: Arc<Mutex<MakeReload>>,
    /// Whether a thread runs it.
    is_reading: bool,
    /// Whether SIGHUP has arrived while a thread was reading. What it reads may be older.
    is_outdated: bool,
    sender: Sender<Reload>,
    done: Receiver<Reload>,
    bell: Bell,
}

impl fmt::Debug for Reloading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloading").finish_non_exhaustive()
    }
}

impl Reloading {
    pub(crate) fn new(signals: Signals, make: MakeReload, bell: Bell) -> Self {
        let (sender, done) = mpsc::channel();
        Self {
            signals,
            make: Arc::new(Mutex::new(make)),
            is_reading: false,
            is_outdated: false,
            sender,
            done,
            bell,
        }
    }

    /// Handles SIGHUP, if it has arrived: begins to read, or reads again after the present reading.
    pub(crate) fn handle_signal(&mut self) {
        if self.signals.take() > 0 {
            self.is_outdated = true;
            self.begin();
        }
    }

    /// Begins to read if that is wanted and no thread is reading.
    fn begin(&mut self) {
        if !self.is_outdated || self.is_reading {
            return;
        }
        (self.is_outdated, self.is_reading) = (false, true);
        let (make, sender, bell) = (
            Arc::clone(&self.make),
            self.sender.clone(),
            self.bell.clone(),
        );
        let read = move || {
            let mut make = make.lock().unwrap_or_else(PoisonError::into_inner);
            // If the loop has ended, nobody waits for the settings.
            let _ = sender.send(make());
            bell.ring();
        };
        let thread = thread::Builder::new().name("reload".to_owned());
        if start_thread(thread, read.clone()).is_err() {
            read();
        }
    }

    /// Takes new settings that were read since the bell rang.
    pub(crate) fn take(&mut self) -> Option<Reload> {
        let reload = self.done.try_recv().ok()?;
        self.is_reading = false;
        self.begin();
        Some(reload)
    }
}
