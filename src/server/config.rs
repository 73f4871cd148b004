//! What a server is told before it starts.

use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::time::Duration;

use super::id::MAX_SLOTS;
use super::listener::{Listen, Peers};
use super::policy::Access;
#[cfg(feature = "deflate")]
use crate::protocol::deflate::DeflateConfig;
use crate::protocol::{Limits, Timeouts};

/// The settings of a server. `Config::default()` listens on `127.0.0.1:7070`.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: Vec<Listen>,
    /// Whether other processes may listen on the same TCP ports (`SO_REUSEPORT`): the kernel deals connections out.
    pub reuse_port: bool,
    /// Proxies that say with the PROXY protocol, version 1 or 2, for whom each of their connections is. From these it has
    /// to come, and from nobody else is it taken.
    pub proxies: Vec<Peers>,
    /// Whom to let in.
    pub access: Access,
    /// The most clients that are connected at once, at most 1,048,575. Further handshakes are answered with 503. As
    /// many connections again may be in their handshake; beyond that, connections wait in the kernel's queue.
    pub max_clients: usize,
    /// The most clients of one IP address; `None` for no limit. Further ones are answered with 503.
    pub max_clients_per_address: Option<usize>,
    /// A cookie, `NAME=VALUE`, that is set with each 101: a load balancer sends who has it back here.
    pub affinity_cookie: Option<String>,
    /// What a client may make its connection hold.
    pub limits: Limits,
    /// How messages are compressed with clients that offer permessage-deflate; `None` for not at all.
    #[cfg(feature = "deflate")]
    pub deflate: Option<DeflateConfig>,
    /// The most bytes of unread output that are held for one client. A message that would exceed it ends the
    /// connection as [`Cause::SlowConsumer`](crate::Cause::SlowConsumer), unless less than
    /// [`Config::soft_outbound`] is waiting: what is held is at most the larger of this limit and one message more
    /// than the soft limit.
    pub max_outbound: usize,
    /// Bytes of unread output over which a client's own input is not read until it has drained.
    pub soft_outbound: usize,
    /// How long a connection may take for each thing.
    pub timeouts: Timeouts,
    /// The most messages per second from one client, with one second's worth of burst; `None` for no limit.
    pub rate_limit: Option<NonZeroU32>,
    /// The most bytes that are read from one client in one turn of the loop, which is the size of the one read buffer.
    pub turn_bytes: usize,
    /// The most connections that are taken from one listener in one turn of the loop.
    pub turn_accepts: usize,
    /// How long a stopping server waits for its clients' CLOSE, and then once more for its service.
    pub drain_timeout: Duration,
}

impl Config {
    /// The default for [`Config::max_clients`].
    pub const MAX_CLIENTS: usize = 10_000;
    /// The default for [`Config::max_outbound`]: 8 MiB.
    pub const MAX_OUTBOUND: usize = 8 << 20;
    /// The default for [`Config::soft_outbound`]: 256 KiB.
    pub const SOFT_OUTBOUND: usize = 256 << 10;

    /// The default for [`Config::turn_bytes`]: 512 KiB.
    pub const TURN_BYTES: usize = 512 << 10;
    /// The default for [`Config::turn_accepts`].
    pub const TURN_ACCEPTS: usize = 256;

    /// The most connections of any kind, handshakes included.
    pub(super) fn max_connections(&self) -> usize {
        self.max_clients.saturating_mul(2).clamp(1, MAX_SLOTS - 1)
    }
}

const _: () =
    assert!(Config::SOFT_OUTBOUND < Config::MAX_OUTBOUND && Config::MAX_CLIENTS < MAX_SLOTS);

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![(Ipv4Addr::LOCALHOST, 7070).into()],
            reuse_port: false,
            proxies: Vec::new(),
            access: Access::default(),
            max_clients: Self::MAX_CLIENTS,
            max_clients_per_address: None,
            affinity_cookie: None,
            limits: Limits::default(),
            #[cfg(feature = "deflate")]
            deflate: None,
            max_outbound: Self::MAX_OUTBOUND,
            soft_outbound: Self::SOFT_OUTBOUND,
            timeouts: Timeouts::default(),
            rate_limit: None,
            turn_bytes: Self::TURN_BYTES,
            turn_accepts: Self::TURN_ACCEPTS,
            drain_timeout: Duration::from_secs(10),
        }
    }
}
