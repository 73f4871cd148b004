//! Delivers signals as events of the loop.

use std::io::{self, Read};
use std::os::unix::net;

use mio::net::UnixStream;
use mio::{Interest, Registry, Token};
use signal_hook::low_level::pipe;

/// A pipe that receives one byte for each signal.
#[derive(Debug)]
pub(super) struct Signals {
    pipe: UnixStream,
    sender: net::UnixStream,
}

impl Signals {
    /// Handles these signals. They become events with this token.
    pub(super) fn new(registry: &Registry, token: Token, signals: &[i32]) -> io::Result<Self> {
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
    pub(super) fn add(&self, signals: &[i32]) -> io::Result<()> {
        for &signal in signals {
            // The signal handler writes to a clone, which does not block.
            pipe::register(signal, self.sender.try_clone()?)?;
        }
        Ok(())
    }

    /// The number of signals since the last call.
    pub(super) fn take(&mut self) -> usize {
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
