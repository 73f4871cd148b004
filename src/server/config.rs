//! The settings of a server.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::time::Duration;

use super::access::{Access, Peers, Scope};
use super::address::Listen;
use super::id::MAX_SLOTS;
use super::observe::exposition::Metrics;
use super::observe::status::StatusFields;
use super::resume::token::is_node_name;
use super::stream::Stream;
#[cfg(feature = "tls")]
use super::tls::TlsConfig;
use super::tls::TlsStream;
#[cfg(feature = "deflate")]
use crate::protocol::deflate::DeflateConfig;
use crate::protocol::http::{MAX_HEADERS, is_token_byte};
use crate::protocol::{Limits, Timeouts};
use crate::record::record;

/// The settings of a server.
///
/// Like the settings of the services, it is made by `new` from what has no default, and every other setting is a field.
/// [`Server::bind`](crate::Server::bind) checks it.
///
/// ```
/// use std::time::Duration;
///
/// use outrigger::Config;
///
/// let mut config = Config::new("127.0.0.1:0".parse()?);
/// config.max_clients = 100;
/// config.timeouts.idle = Some(Duration::from_secs(300));
/// config.validate()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The addresses to listen on.
    pub listen: Vec<Listen>,
    /// Whether other processes may listen on the same TCP ports (`SO_REUSEPORT`). The kernel distributes connections
    /// among the processes.
    pub reuse_port: bool,
    /// Proxies that must begin each connection with a PROXY protocol header, version 1 or 2. The server accepts the
    /// header from no other peer.
    pub proxies: Vec<Peers>,
    /// HTTP proxies that say for which client a request is, with `X-Forwarded-For` or `Forwarded` (RFC 7239). The list is read from
    /// the right, and the first address that is not of a trusted proxy is that of the client. It replaces the address of the
    /// connection in [`Context::remote`](crate::Context::remote), logs and limits, for this request. If the two fields name
    /// different clients, neither is used.
    ///
    /// A proxy is recognized by the address of its connection. One whose connection begins with a PROXY protocol header is not
    /// trusted, because such a proxy does not look at requests. Neither the user of a proxy's unix socket nor the certificate
    /// of a proxy identifies its clients.
    pub trusted_proxies: Vec<Peers>,
    /// The request header in which a trusted proxy names the user that it has authenticated, in up to 255 bytes. The client is
    /// then [`Principal::Proxied`](crate::Principal::Proxied), and needs no token. A value that is empty, repeated or not plain
    /// text gets 400. The header of any other peer is ignored, but a service finds it in the request: take the user from
    /// [`Context::principal`](crate::Context::principal). Requires [`Config::trusted_proxies`].
    pub auth_header: Option<String>,
    /// What the users of [`Config::auth_header`] may do.
    pub auth_scope: Scope,
    /// Which clients may connect.
    pub access: Access,
    /// The beginning of all paths, such as `/tools/outrigger`, if a proxy passes on the paths below it unchanged. Requests outside get
    /// 404, except for probes. Services see paths without it. Empty: there is none.
    pub base_path: String,
    /// The maximum number of connected clients, at most 1,048,575. Further handshakes get 503. As many connections
    /// again may be in their handshake; beyond that, connections wait in the kernel's queue.
    pub max_clients: usize,
    /// The maximum number of clients of one IP address; `None` means no limit. Further handshakes get 503.
    pub max_clients_per_address: Option<usize>,
    /// The maximum number of clients and pending calls of one [person](crate::Principal::is_person); `None` means no limit. Further
    /// handshakes and calls get 503.
    pub max_clients_per_principal: Option<usize>,
    /// The maximum number of topics in all. [`Context::subscribe`](crate::Context::subscribe) fails beyond it.
    pub max_topics: usize,
    /// The maximum number of topics of one client.
    pub max_topics_per_client: usize,
    /// A cookie, `NAME=VALUE`, to set with each 101 response, by which a load balancer can route the client back to this
    /// server.
    pub affinity_cookie: Option<String>,
    /// The name of this server among several: letters, digits, `-`, `_` and `.`, at most 64. It is part of the tokens of
    /// resumable connections, so that load balancers can read it. If another server gets such a token, it answers 421.
    pub node: Option<String>,
    /// Limits on what a client can make its connection hold.
    pub limits: Limits,
    /// The maximum length of a client's message that a service parses as JSON or writes as JSON, in bytes. A prompt of the Agent
    /// Client Protocol may be as long as [`Limits::max_message`].
    pub max_json: usize,
    /// How messages are compressed for clients that offer permessage-deflate; `None` means not at all.
    #[cfg(feature = "deflate")]
    pub deflate: Option<DeflateConfig>,
    /// The maximum bytes of unread output that are buffered for one client. A message that would exceed it ends the
    /// connection with [`Cause::SlowConsumer`](crate::Cause::SlowConsumer), unless less than
    /// [`Config::soft_outbound`] is waiting. So the buffer is at most the larger of this limit and one message more
    /// than the soft limit.
    pub max_outbound: usize,
    /// While more bytes of output than this are unread, the client's input is not read. It must not exceed
    /// [`Config::max_outbound`].
    pub soft_outbound: usize,
    /// The maximum memory, in bytes, that clients can make the server hold: messages that have not ended, unread output, messages
    /// that are kept for resumable clients, bodies of calls, and [what services hold](crate::Report::held). Compressors have
    /// a limit of their own. Near this limit, the largest client of the principal for which the server holds most ends with
    /// [`Cause::Memory`](crate::Cause::Memory). `None` means no limit.
    pub memory: Option<usize>,
    /// How long a connection may take for each step.
    pub timeouts: Timeouts,
    /// The maximum number of messages per second from one client, with a burst of one second's worth; `None` means no
    /// limit.
    pub rate_limit: Option<NonZeroU32>,
    /// The maximum bytes that are read from one client in one turn of the loop. This is the size of the only read buffer.
    pub turn_bytes: usize,
    /// The maximum number of connections that are accepted from one listener in one turn of the loop.
    pub turn_accepts: usize,
    /// How clients can resume their connections after a cut; `None` means not at all.
    pub resume: Option<ResumeConfig>,
    /// The TLS settings: the certificate of the server, and the CAs of client certificates. `None` means that no connection
    /// uses TLS.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsConfig>,
    /// How long a stopping server waits for the CLOSE of its clients, and then again for its service.
    pub drain_timeout: Duration,
    /// Adds metrics of the program around the server to the answer of `/metrics`.
    pub extra_metrics: Option<fn(&mut Metrics)>,
    /// Adds fields about the program around the server to `health` in the answer of `/status?health=1`.
    pub extra_health: Option<fn() -> StatusFields>,
}

impl Config {
    /// The default of [`Config::max_clients`].
    pub const MAX_CLIENTS: usize = 10_000;
    /// The default of [`Config::max_topics`].
    pub const MAX_TOPICS: usize = 100_000;
    /// The default of [`Config::max_topics_per_client`].
    pub const MAX_TOPICS_PER_CLIENT: usize = 1000;
    /// The default of [`Config::max_json`]: 4 MiB.
    pub const MAX_JSON: usize = 4 << 20;
    /// The default of [`Config::max_outbound`]: 8 MiB.
    pub const MAX_OUTBOUND: usize = 8 << 20;
    /// The default of [`Config::soft_outbound`]: 256 KiB.
    pub const SOFT_OUTBOUND: usize = 256 << 10;
    /// The default of [`Config::turn_bytes`]: 512 KiB.
    pub const TURN_BYTES: usize = 512 << 10;
    /// The default of [`Config::turn_accepts`].
    pub const TURN_ACCEPTS: usize = 64;

    /// The minimum of [`Config::memory`]: 1 MiB.
    pub const MIN_MEMORY: usize = 1 << 20;

    /// The default settings of a server that listens on this address.
    #[must_use]
    pub fn new(listen: Listen) -> Self {
        Self {
            listen: vec![listen],
            ..Self::default()
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// The first setting that is not valid.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.listen.is_empty() {
            return Err(ConfigError {
                setting: "listen",
                problem: "at least one address is required",
            });
        }
        self.validate_without_listeners()
    }

    /// Checks the settings of a server that listens on no address.
    pub(super) fn validate_without_listeners(&self) -> Result<(), ConfigError> {
        let wrong = |setting, problem| Err(ConfigError { setting, problem });
        if self.listen.iter().any(|listen| self.uses_tls(listen)) && !self.has_tls() {
            return wrong("listen", "an address uses TLS, but tls is not set");
        }
        if self.max_clients == 0 || self.max_clients >= MAX_SLOTS {
            return wrong("max_clients", "must be from 1 to 1048575");
        }
        if self.max_clients_per_address == Some(0) {
            return wrong("max_clients_per_address", "must be at least 1");
        }
        if self.max_clients_per_principal == Some(0) {
            return wrong("max_clients_per_principal", "must be at least 1");
        }
        if !self.base_path.is_empty() && !is_base_path(&self.base_path) {
            return wrong("base_path", "must have the form /NAME or /NAME/NAME");
        }
        let is_field_name = |name: &str| !name.is_empty() && name.bytes().all(is_token_byte);
        if !self.auth_header.as_deref().is_none_or(is_field_name) {
            return wrong("auth_header", "must be the name of a header");
        }
        if self.auth_header.is_some() && self.trusted_proxies.is_empty() {
            return wrong("auth_header", "requires trusted_proxies");
        }
        let is_token_header = |name: &String| {
            let token_header = self.access.token_header.as_ref();
            token_header.is_some_and(|token| token.eq_ignore_ascii_case(name))
                || name.eq_ignore_ascii_case("authorization")
        };
        if self.auth_header.as_ref().is_some_and(is_token_header) {
            return wrong("auth_header", "is a header that carries the token");
        }
        if self.limits.max_headers > MAX_HEADERS {
            return wrong("limits.max_headers", "exceeds the maximum of the parser");
        }
        if self.soft_outbound > self.max_outbound {
            return wrong("soft_outbound", "must not exceed max_outbound");
        }
        if self.memory.is_some_and(|bytes| bytes < Self::MIN_MEMORY) {
            return wrong("memory", "must be at least 1 MiB");
        }
        if self.turn_bytes == 0 {
            return wrong("turn_bytes", "must be at least 1");
        }
        if self.turn_accepts == 0 {
            return wrong("turn_accepts", "must be at least 1");
        }
        let is_cookie = |cookie: &str| {
            let named = cookie
                .split_once('=')
                .is_some_and(|(name, _)| !name.is_empty());
            named
                && cookie
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && !b";,\"\\".contains(&byte))
        };
        if !self.affinity_cookie.as_deref().is_none_or(is_cookie) {
            return wrong("affinity_cookie", "must have the form NAME=VALUE");
        }
        if !self.node.as_deref().is_none_or(is_node_name) {
            return wrong("node", "must consist of letters, digits, '-', '_' and '.'");
        }
        Ok(())
    }

    /// Whether proxies pass on the requests of others through unix sockets.
    pub(super) fn has_shared_sockets(&self) -> bool {
        self.proxies.contains(&Peers::Unix) || self.trusted_proxies.contains(&Peers::Unix)
    }

    /// Whether there is a certificate for TLS.
    pub(super) fn has_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    /// Whether connections to an address use TLS.
    pub(super) fn uses_tls(&self, listen: &Listen) -> bool {
        listen.uses_tls(self.has_tls())
    }

    /// Whether a client with a certificate needs no token.
    pub(super) fn is_client_auth_enough(&self) -> bool {
        #[cfg(feature = "tls")]
        return self
            .tls
            .as_ref()
            .is_some_and(TlsConfig::is_client_auth_enough);
        #[cfg(not(feature = "tls"))]
        false
    }

    /// Whether the certificate of a client, or its absence, is accepted.
    pub(super) fn accepts_client(&self, stream: &TlsStream) -> bool {
        #[cfg(feature = "tls")]
        return self
            .tls
            .as_ref()
            .is_none_or(|tls| stream.is_accepted_by(tls));
        #[cfg(not(feature = "tls"))]
        match *stream {}
    }

    /// Wraps a connection in TLS. With `is_proxied`, a PROXY protocol header comes first.
    pub(super) fn encrypt(&self, stream: Stream, is_proxied: bool) -> io::Result<Stream> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return TlsStream::new(stream, tls, is_proxied).map(Stream::Tls);
        }
        let _ = (stream, is_proxied);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The maximum number of connections of any kind, including handshakes.
    pub(super) fn max_connections(&self) -> usize {
        self.max_clients.saturating_mul(2).clamp(1, MAX_SLOTS - 1)
    }
}

const _: () =
    assert!(Config::SOFT_OUTBOUND < Config::MAX_OUTBOUND && Config::MAX_CLIENTS < MAX_SLOTS);

/// The settings of a server that listens on `127.0.0.1:7070`.
impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![(Ipv4Addr::LOCALHOST, 7070).into()],
            reuse_port: false,
            proxies: Vec::new(),
            trusted_proxies: Vec::new(),
            auth_header: None,
            auth_scope: Scope::All,
            access: Access::default(),
            base_path: String::new(),
            max_clients: Self::MAX_CLIENTS,
            max_clients_per_address: None,
            max_clients_per_principal: None,
            max_topics: Self::MAX_TOPICS,
            max_topics_per_client: Self::MAX_TOPICS_PER_CLIENT,
            affinity_cookie: None,
            node: None,
            limits: Limits::default(),
            max_json: Self::MAX_JSON,
            #[cfg(feature = "deflate")]
            deflate: None,
            max_outbound: Self::MAX_OUTBOUND,
            soft_outbound: Self::SOFT_OUTBOUND,
            memory: None,
            timeouts: Timeouts::default(),
            rate_limit: None,
            turn_bytes: Self::TURN_BYTES,
            turn_accepts: Self::TURN_ACCEPTS,
            resume: Some(ResumeConfig::default()),
            #[cfg(feature = "tls")]
            tls: None,
            drain_timeout: Duration::from_secs(10),
            extra_metrics: None,
            extra_health: None,
        }
    }
}

/// How clients can resume their connections after a cut.
///
/// If the TCP connection of a client that asked for this is cut, the service is not told. Messages to the client wait
/// until it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeConfig {
    /// How long a client may stay away while the service owes it nothing
    /// ([`Service::is_waiting`](crate::Service::is_waiting)).
    pub grace: Duration,
    /// How long a client may stay away in any case.
    pub limit: Duration,
    /// The maximum bytes of messages that are kept for one client until it confirms them, not counting the longest one.
    /// A message that would exceed it ends the client with [`Cause::SlowConsumer`](crate::Cause::SlowConsumer).
    pub buffer: usize,
}

record!(ResumeConfig {
    grace,
    limit,
    buffer
});

impl Default for ResumeConfig {
    /// A grace period of 5 minutes, a limit of 12 hours, and 4 MiB for each client.
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(300),
            limit: Duration::from_secs(12 * 3600),
            buffer: 4 << 20,
        }
    }
}

/// Whether a text can be the [beginning of all paths](Config::base_path).
pub(crate) fn is_base_path(text: &str) -> bool {
    let is_name = |name: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        !matches!(name, "" | "." | "..") && name.bytes().all(is_plain)
    };
    text.strip_prefix('/')
        .is_some_and(|names| names.split('/').all(is_name))
}

/// A setting of a [`Config`] that is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError {
    setting: &'static str,
    problem: &'static str,
}

impl ConfigError {
    /// The field of [`Config`].
    #[must_use]
    pub fn setting(&self) -> &'static str {
        self.setting
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.setting, self.problem)
    }
}

impl Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid() {
        assert_eq!(Config::default().validate(), Ok(()));
    }

    #[test]
    fn a_setting_that_is_not_valid_is_named() {
        type Spoil = fn(&mut Config);
        let cases: [(&str, Spoil); 15] = [
            ("base_path", |config| {
                config.base_path = "/tools/".to_owned()
            }),
            ("base_path", |config| config.base_path = "tools".to_owned()),
            ("listen", |config| config.listen.clear()),
            ("max_clients", |config| config.max_clients = 0),
            ("max_clients", |config| config.max_clients = 1 << 20),
            ("max_clients_per_address", |config| {
                config.max_clients_per_address = Some(0);
            }),
            ("auth_header", |config| {
                config.auth_header = Some("X-User".to_owned());
            }),
            ("auth_header", |config| {
                config.trusted_proxies.push(Peers::Unix);
                config.auth_header = Some("X User".to_owned());
            }),
            ("auth_header", |config| {
                config.trusted_proxies.push(Peers::Unix);
                config.auth_header = Some("Authorization".to_owned());
            }),
            ("auth_header", |config| {
                config.trusted_proxies.push(Peers::Unix);
                config.access.token_header = Some("X-User".to_owned());
                config.auth_header = Some("x-user".to_owned());
            }),
            ("soft_outbound", |config| config.max_outbound = 1024),
            ("turn_bytes", |config| config.turn_bytes = 0),
            ("turn_accepts", |config| config.turn_accepts = 0),
            ("affinity_cookie", |config| {
                config.affinity_cookie = Some("a=b\r\nSet-Cookie: c=d".to_owned());
            }),
            ("node", |config| config.node = Some("a;b".to_owned())),
        ];
        for (setting, spoil) in cases {
            let mut config = Config::default();
            spoil(&mut config);
            let error = config.validate().expect_err(setting);
            assert_eq!(error.setting(), setting);
            assert!(error.to_string().starts_with(setting));
        }
    }
}
