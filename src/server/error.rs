//! The errors of a server.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use super::config::ConfigError;
use crate::record::RecordError;

/// Why a server could not be set up, or had to stop.
///
/// ```
/// use outrigger::{Config, Error, Server, Service};
///
/// struct Silent;
/// impl Service for Silent {}
///
/// let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let mut config = Config::default();
/// config.listen = vec![taken.local_addr()?.into()];
/// match Server::bind(config, Silent) {
///     Err(Error::Listen { address, source }) => {
///         assert_eq!(address, taken.local_addr()?.to_string());
///         assert_eq!(source.kind(), std::io::ErrorKind::AddrInUse);
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A setting is not valid.
    Config(ConfigError),
    /// The server cannot listen on an address.
    Listen {
        /// The address.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The service failed to start, for the reason that [`Service::failure`](crate::Service::failure) gives.
    Service(String),
    /// The state of the program that this one replaces cannot be read.
    State(RecordError),
    /// A system call failed.
    System {
        /// What the server was doing.
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: a system call failed.
    pub(super) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(_) => f.write_str("invalid configuration"),
            Self::Listen { address, .. } => write!(f, "cannot listen on {address}"),
            Self::Service(failure) => f.write_str(failure),
            Self::State(_) => f.write_str("cannot continue with the state of the program before"),
            Self::System { action, .. } => write!(f, "cannot {action}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::State(error) => Some(error),
            Self::Listen { source, .. } | Self::System { source, .. } => Some(source),
            Self::Service(_) => None,
        }
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<Error> for io::Error {
    /// Keeps the kind of a system error, so that `main` can return `io::Result`.
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Config(_) => io::ErrorKind::InvalidInput,
            Error::Listen { source, .. } | Error::System { source, .. } => source.kind(),
            Error::State(_) => io::ErrorKind::InvalidData,
            Error::Service(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Why a client could not be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The client does not exist, or has disconnected.
    Gone,
    /// The client is being closed.
    Closing,
    /// The client has exceeded the limit of unread output and is being closed.
    SlowConsumer,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "unknown client",
            Self::Closing => "the client is being closed",
            Self::SlowConsumer => "the client reads too slowly",
        })
    }
}

impl StdError for SendError {}
