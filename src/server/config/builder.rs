//! Builds a [`Config`].

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Config, ConfigError, ResumeConfig};
#[cfg(feature = "deflate")]
use crate::protocol::deflate::DeflateConfig;
use crate::protocol::{Limits, Timeouts};
use crate::server::{Access, Listen, Metrics, Peers, ProtectedResource, Scope};

/// Builds a [`Config`]. Settings that are not given have their defaults.
#[derive(Clone, Debug, Default)]
#[must_use = "call `build` to get the configuration"]
pub struct ConfigBuilder {
    config: Config,
    /// The addresses that replace the default.
    listen: Vec<Listen>,
}

impl ConfigBuilder {
    /// Adds an address to listen on. The first one replaces the default address.
    pub fn listen(mut self, address: Listen) -> Self {
        self.listen.push(address);
        self
    }

    /// Lets other processes listen on the same TCP ports: [`Config::reuse_port`].
    pub fn reuse_port(mut self) -> Self {
        self.config.reuse_port = true;
        self
    }

    /// Adds proxies that use the PROXY protocol: [`Config::proxies`].
    pub fn proxy(mut self, peers: Peers) -> Self {
        self.config.proxies.push(peers);
        self
    }

    /// Adds proxies that say for which client a request is: [`Config::trusted_proxies`].
    pub fn trusted_proxy(mut self, peers: Peers) -> Self {
        self.config.trusted_proxies.push(peers);
        self
    }

    /// Sets the header in which trusted proxies name the user, and what users may do: [`Config::auth_header`] and
    /// [`Config::auth_scope`].
    pub fn auth_header(mut self, name: impl Into<String>, scope: Scope) -> Self {
        self.config.auth_header = Some(name.into());
        self.config.auth_scope = scope;
        self
    }

    /// Sets which clients may connect: [`Config::access`].
    pub fn access(mut self, access: Access) -> Self {
        self.config.access = access;
        self
    }

    /// Sets where clients of OAuth learn how to get a token: [`Access::protected_resource`]. Call it after
    /// [`ConfigBuilder::access`].
    pub fn protected_resource(mut self, resource: impl Into<Option<ProtectedResource>>) -> Self {
        self.config.access.protected_resource = resource.into();
        self
    }

    /// Adds metrics to the answer of `/metrics`: [`Config::extra_metrics`].
    pub fn extra_metrics(mut self, add: fn(&mut Metrics)) -> Self {
        self.config.extra_metrics = Some(add);
        self
    }

    /// Sets [`Config::max_clients`].
    pub fn max_clients(mut self, clients: usize) -> Self {
        self.config.max_clients = clients;
        self
    }

    /// Sets [`Config::max_clients_per_address`].
    pub fn max_clients_per_address(mut self, clients: usize) -> Self {
        self.config.max_clients_per_address = Some(clients);
        self
    }

    /// Sets how clients can resume their connections after a cut, or that they cannot: [`Config::resume`].
    pub fn resume(mut self, resume: impl Into<Option<ResumeConfig>>) -> Self {
        self.config.resume = resume.into();
        self
    }

    /// Sets [`Config::tls`]. All TCP addresses then use TLS, unless [`Listen::with_tls`] says otherwise.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: crate::TlsConfig) -> Self {
        self.config.tls = Some(tls);
        self
    }

    /// Sets [`Config::affinity_cookie`].
    pub fn affinity_cookie(mut self, cookie: impl Into<String>) -> Self {
        self.config.affinity_cookie = Some(cookie.into());
        self
    }

    /// Sets [`Config::node`].
    pub fn node(mut self, name: impl Into<String>) -> Self {
        self.config.node = Some(name.into());
        self
    }

    /// Sets [`Config::limits`].
    pub fn limits(mut self, limits: Limits) -> Self {
        self.config.limits = limits;
        self
    }

    /// Sets the maximum length of a message: [`Limits::max_message`].
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.config.limits.max_message = bytes;
        self
    }

    /// Sets [`Config::max_json`].
    pub fn max_json(mut self, bytes: usize) -> Self {
        self.config.max_json = bytes;
        self
    }

    /// Compresses messages: [`Config::deflate`].
    #[cfg(feature = "deflate")]
    pub fn deflate(mut self, deflate: DeflateConfig) -> Self {
        self.config.deflate = Some(deflate);
        self
    }

    /// Sets [`Config::max_outbound`], and lowers [`Config::soft_outbound`] to it if necessary.
    pub fn max_outbound(mut self, bytes: usize) -> Self {
        self.config.max_outbound = bytes;
        self.config.soft_outbound = self.config.soft_outbound.min(bytes);
        self
    }

    /// Sets [`Config::soft_outbound`].
    pub fn soft_outbound(mut self, bytes: usize) -> Self {
        self.config.soft_outbound = bytes;
        self
    }

    /// Sets [`Config::timeouts`].
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.config.timeouts = timeouts;
        self
    }

    /// Closes clients that are idle for this time: [`Timeouts::idle`].
    pub fn idle_timeout(mut self, time: Duration) -> Self {
        self.config.timeouts.idle = Some(time);
        self
    }

    /// Sets [`Config::max_clients_per_principal`].
    pub fn max_clients_per_principal(mut self, clients: usize) -> Self {
        self.config.max_clients_per_principal = Some(clients);
        self
    }

    /// Sets [`Config::memory`].
    pub fn memory(mut self, bytes: usize) -> Self {
        self.config.memory = Some(bytes);
        self
    }

    /// Sets [`Config::rate_limit`].
    pub fn rate_limit(mut self, messages_per_second: NonZeroU32) -> Self {
        self.config.rate_limit = Some(messages_per_second);
        self
    }

    /// Sets [`Config::turn_bytes`].
    pub fn turn_bytes(mut self, bytes: usize) -> Self {
        self.config.turn_bytes = bytes;
        self
    }

    /// Sets [`Config::turn_accepts`].
    pub fn turn_accepts(mut self, connections: usize) -> Self {
        self.config.turn_accepts = connections;
        self
    }

    /// Sets [`Config::drain_timeout`].
    pub fn drain_timeout(mut self, time: Duration) -> Self {
        self.config.drain_timeout = time;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// The first setting that is not valid.
    pub fn build(self) -> Result<Config, ConfigError> {
        let mut config = self.config;
        if !self.listen.is_empty() {
            config.listen = self.listen;
        }
        config.validate()?;
        Ok(config)
    }
}
