//! Resolves host names on threads of their own, because the system's resolver blocks.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::server::handle::Handle;
use crate::server::id::ClientId;

/// The maximum number of threads. A resolver that gets no answer may block for a minute.
const MAX_THREADS: usize = 8;

/// The stack of a thread, in bytes.
const STACK: usize = 256 << 10;

/// Resolves host names, and reports the addresses to the loop.
#[derive(Clone, Debug)]
pub(in crate::server) struct Resolver {
    handle: Handle,
    threads: Arc<AtomicUsize>,
}

/// Counts a thread while it runs.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Resolver {
    pub(in crate::server) fn new(handle: Handle) -> Self {
        Self {
            handle,
            threads: Arc::default(),
        }
    }

    /// Resolves a name for the attempt of a connection.
    ///
    /// # Errors
    ///
    /// Too many names are being resolved, or no thread can be started.
    pub(super) fn resolve(
        &self,
        id: ClientId,
        attempt: u32,
        host: String,
        port: u16,
    ) -> io::Result<()> {
        let running = Running(Arc::clone(&self.threads));
        if self.threads.fetch_add(1, Ordering::AcqRel) >= MAX_THREADS {
            return Err(io::Error::other("the system's resolver does not answer"));
        }
        let handle = self.handle.clone();
        let thread = thread::Builder::new()
            .name("resolver".to_owned())
            .stack_size(STACK);
        thread.spawn(move || {
            let found = (host.as_str(), port)
                .to_socket_addrs()
                .map(Iterator::collect);
            drop(running);
            // If the loop has ended, nobody waits for the addresses.
            let _ = handle.resolved(id, attempt, found);
        })?;
        Ok(())
    }
}

/// The addresses of a host, or why there are none.
pub(in crate::server) type Resolved = io::Result<Vec<SocketAddr>>;
