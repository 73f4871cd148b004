//! TLS 1.2 and 1.3 (RFC 5246, RFC 8446) for the connections of a listener and for outgoing ones, with rustls.
//!
//! A [`TlsStream`] is the byte stream of a connection: it decrypts what its socket receives and encrypts what is written. A
//! client reads, writes and closes it as it does a plain socket. All streams of a loop share the buffers in [`Scratch`],
//! so an idle stream holds only the state of its session.

mod certificates;
mod client;
mod config;
#[cfg(any(test, fuzzing))]
mod pair;
mod renewal;
mod session;
#[cfg(any(test, fuzzing))]
pub(crate) mod simulation;
mod stream;
#[cfg(test)]
mod tests;
mod trust;

pub(super) use self::certificates::PeerCertificate;
pub use self::certificates::TlsIdentity;
pub use self::client::ClientTls;
pub use self::config::{TlsConfig, TlsError};
pub(super) use self::stream::{Scratch, TlsStream};
pub(super) use self::trust::UNTRUSTED;
