//! The settings of a bridge.

use std::time::Duration;

use crate::service::{Advise, Framing};
use crate::{Connect, Retry};

/// The settings of a [`Bridge`](super::Bridge).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BridgeConfig {
    /// The server to connect to.
    pub connect: Connect,
    /// How messages are separated on the standard streams.
    pub framing: Framing,
    /// Whether messages are JSON-RPC. If not, they pass through untouched.
    pub json: bool,
    /// While messages of half of this size, in bytes, wait for a connection, standard input is not read. The buffer of
    /// [`ResumeConfig`](crate::ResumeConfig) should have the same size.
    pub buffer: usize,
    /// How long to wait for answers after standard input has ended.
    pub linger: Duration,
    /// How long to begin connections that the server ends at once.
    pub give_up: Duration,
    /// What the user can do about a problem. It follows the problem in the log. The default says nothing.
    pub advise: Advise,
}

impl BridgeConfig {
    /// Carries JSON-RPC messages to and from a server.
    #[must_use]
    pub fn new(connect: Connect) -> Self {
        Self {
            connect,
            framing: Framing::Lines,
            json: true,
            buffer: 4 << 20,
            linger: Duration::from_secs(5),
            give_up: Retry::GIVE_UP,
            advise: |_| "",
        }
    }
}
