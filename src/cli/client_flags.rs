//! The values of the flags of a client.

#[cfg(feature = "tls")]
use std::path::PathBuf;
use std::time::Duration;

use crate::service::Framing;
use crate::{Target, Token};

/// The values of the flags of a client.
#[derive(Debug)]
pub(crate) struct ClientSettings {
    /// The URL, once it is parsed.
    pub(crate) target: Option<Target>,
    /// The token of `--token-file` or of the environment.
    pub(crate) token: Option<Token>,
    /// Header fields of the handshake.
    pub(crate) fields: Vec<(String, String)>,
    #[cfg(feature = "tls")]
    pub(crate) tls: ClientTlsFlags,
    /// How long one attempt to connect may take.
    pub(crate) connect_timeout: Duration,
    /// How long to try before giving up.
    pub(crate) give_up: Option<Duration>,
    /// How messages are separated on the standard streams.
    pub(crate) framing: Framing,
    /// How long to wait for answers at the end.
    pub(crate) linger: Duration,
    /// The character that begins an escape of `attach`.
    pub(crate) escape: Option<u8>,
}

/// The values of a client's flags for TLS.
#[cfg(feature = "tls")]
#[derive(Debug, Default)]
pub(crate) struct ClientTlsFlags {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) fingerprint: Option<String>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            target: None,
            token: None,
            fields: Vec::new(),
            #[cfg(feature = "tls")]
            tls: ClientTlsFlags::default(),
            connect_timeout: Duration::from_secs(10),
            give_up: Some(Duration::from_secs(3600)),
            framing: Framing::Lines,
            linger: Duration::from_secs(5),
            escape: Some(b'~'),
        }
    }
}
