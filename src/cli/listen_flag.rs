//! A value of `--listen`.

use std::os::fd::RawFd;

use crate::Listen;

/// A value of `--listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenFlag {
    Address(Listen),
    /// A socket that this process was started with, and whether its connections use TLS, if the flag says so. Reading the
    /// flag does not take it over, because the flags are read again on SIGHUP.
    Descriptor(RawFd, Option<bool>),
}
