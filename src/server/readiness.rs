//! The readiness of watched file descriptors.

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

/// The readiness of a watched file descriptor.
///
/// Readiness is edge-triggered. Read or write until `WouldBlock`, or request another call with [`Context::again`](crate::Context::again).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Reading will not block: there is data, end of file or an error.
    pub readable: bool,
    /// Writing will not block: there is room or an error.
    pub writable: bool,
}
