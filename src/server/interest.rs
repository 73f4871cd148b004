//! The operations on a watched file descriptor whose readiness a service wants to know.

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
    pub(super) fn to_mio(self) -> mio::Interest {
        match self {
            Self::Readable => mio::Interest::READABLE,
            Self::Writable => mio::Interest::WRITABLE,
            Self::Both => mio::Interest::READABLE | mio::Interest::WRITABLE,
        }
    }
}
