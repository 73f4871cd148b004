//! Signals as events of the loop.

use std::io::{self, Read};
use std::os::unix::net;

use mio::net::UnixStream;
use mio::{Interest, Registry, Token};
use signal_hook::low_level::pipe;

/// A pipe that receives a byte for each signal.
#[derive(Debug)]
pub(super) struct Signals {
    pipe: UnixStream,
}

impl Signals {
    /// Takes over these signals. They become events with this token.
    pub(super) fn new(registry: &Registry, token: Token, signals: &[i32]) -> io::Result<Self> {
        let (receiver, sender) = net::UnixStream::pair()?;
        receiver.set_nonblocking(true)?;
        sender.set_nonblocking(true)?;
        for &signal in signals {
            // The sending end stays with the signal handler, which must not block.
            pipe::register(signal, sender.try_clone()?)?;
        }
        let mut pipe = UnixStream::from_std(receiver);
        registry.register(&mut pipe, token, Interest::READABLE)?;
        Ok(Self { pipe })
    }

    /// How many signals came since the last call.
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
