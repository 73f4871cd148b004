//! A connection that comes directly from a trusted HTTP proxy.

use std::sync::Arc;

use super::{Client, Remote};

/// The state of a connection from a trusted proxy, from `accept` to its end. The connection carries requests of any client, so
/// neither the user of a unix socket nor the certificate of the proxy stands for them, even if a request has none of the
/// fields that proxies set: some proxies let a client remove them.
///
/// A connection with a PROXY protocol header has no such state. The proxy that sends the header does not look at requests, so
/// it passes on forged fields.
#[derive(Debug)]
pub(super) struct Forwarding {
    /// The address of the proxy.
    peer: Remote,
    /// The user that the proxy has named in the last request.
    user: Option<Arc<str>>,
}

impl Client {
    /// Marks a new connection as one of a trusted proxy.
    pub(in crate::server) fn expect_forwarded_requests(&mut self) {
        let (peer, user) = (self.remote, None);
        self.backlog.get_or_insert_default().forwarding = Some(Box::new(Forwarding { peer, user }));
    }

    fn forwarding(&self) -> Option<&Forwarding> {
        self.backlog.as_ref()?.forwarding.as_deref()
    }

    fn forwarding_mut(&mut self) -> Option<&mut Forwarding> {
        self.backlog.as_mut()?.forwarding.as_deref_mut()
    }

    /// Whether the connection comes from a trusted proxy. A client that was cut keeps what is known about its last
    /// connection.
    pub(in crate::server) fn is_from_trusted_proxy(&self) -> bool {
        self.forwarding().is_some()
    }

    /// The user that a trusted proxy has named in the last request.
    pub(in crate::server) fn forwarded_user(&self) -> Option<&Arc<str>> {
        self.forwarding()?.user.as_ref()
    }

    /// Forgets the user of the last request. Returns the address of the proxy; `None` if the connection does not come from a
    /// trusted proxy.
    pub(in crate::server) fn begin_forwarded_request(&mut self) -> Option<Remote> {
        let forwarding = self.forwarding_mut()?;
        forwarding.user = None;
        Some(forwarding.peer)
    }

    /// Sets the user that the trusted proxy has named.
    pub(in crate::server) fn set_forwarded_user(&mut self, user: Option<Arc<str>>) {
        if let Some(forwarding) = self.forwarding_mut() {
            forwarding.user = user;
        }
    }
}
