//! Wakes the loop from other threads.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mio::{Registry, Waker};

use super::id::WAKER;

/// Wakes the loop once, however often it rings before the loop has answered.
#[derive(Clone)]
pub(super) struct Bell(Arc<Shared>);

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
    pub(super) fn new(registry: &Registry) -> io::Result<Self> {
        let waker = Waker::new(registry, WAKER)?;
        let rung = AtomicBool::new(false);
        Ok(Self(Arc::new(Shared { waker, rung })))
    }

    pub(super) fn ring(&self) {
        if !self.0.rung.swap(true, Ordering::AcqRel)
            && let Err(error) = self.0.waker.wake()
        {
            log::error!("cannot wake the loop: {error}");
        }
    }

    /// Begins to answer. Call it before looking at what other threads have sent: what they send later rings again.
    pub(super) fn answer(&self) {
        self.0.rung.swap(false, Ordering::AcqRel);
    }
}
