//! Reads new settings on SIGHUP. A thread reads them, because a file on a network file system may block.

use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::bell::Bell;
use super::policy::Access;
use super::signals::Signals;
#[cfg(feature = "tls")]
use super::tls::TlsConfig;

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
}

/// Returns the new settings.
pub(super) type MakeReload = Box<dyn FnMut() -> Reload + Send>;

/// SIGHUP, and the function that then returns new settings. At most one thread runs it at a time.
pub(super) struct Reloading {
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
    pub(super) fn new(signals: Signals, make: MakeReload, bell: Bell) -> Self {
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
    pub(super) fn handle_signal(&mut self) {
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
        if thread.spawn(read.clone()).is_err() {
            read();
        }
    }

    /// Takes new settings that were read since the bell rang.
    pub(super) fn take(&mut self) -> Option<Reload> {
        let reload = self.done.try_recv().ok()?;
        self.is_reading = false;
        self.begin();
        Some(reload)
    }
}
