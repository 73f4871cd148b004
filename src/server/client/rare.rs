//! State that few connections have. All of it is behind one pointer, which is empty in the others.

use std::sync::Arc;

use super::delivery::Delivery;
use super::membership::Memberships;
use super::output::Output;
use crate::protocol::http::TraceParent;
use crate::record::record;
use crate::server::address::Remote;
use crate::server::id::ClientId;

/// What only some connections have.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// Output that the socket has not taken.
    pub(super) output: Output,
    /// Input that was read but not handled yet.
    pub(super) unread: Vec<u8>,
    pub(super) forwarding: Option<Box<Forwarding>>,
    /// The trace of the last request.
    pub(super) trace: Option<Box<TraceParent>>,
    /// Set while this connection is about to continue another client.
    pub(super) join: Option<Join>,
    /// What the client keeps across its connections. It is here so that a client has one pointer only, and stays with the client
    /// when the wires are exchanged.
    pub(super) delivery: Option<Box<Delivery>>,
    /// The name of the heartbeat of this connection, if the client asked for one.
    pub(super) heartbeat: Option<Box<str>>,
    /// The topics of the client. They stay with the client, too.
    pub(super) memberships: Memberships,
}

record!(Rare {
    output,
    unread,
    forwarding,
    trace,
    // A connection is handed over in the turn in which it asks for it.
    join = None,
    delivery,
    heartbeat,
    // The topics have a record of their own.
    memberships = Memberships::default(),
});

impl Rare {
    /// Whether there is no reason to keep the box.
    pub(super) fn is_empty(&self) -> bool {
        let is_empty = self.forwarding.is_none() && self.trace.is_none();
        self.is_quiet() && is_empty && self.memberships.is_empty()
    }

    /// Takes what stays with the client from the box of its old connection, of which no further input is handled.
    pub(super) fn take_client_state(&mut self, old: &mut Self) {
        self.delivery = old.delivery.take();
        self.memberships = std::mem::take(&mut old.memberships);
        self.join = None;
        old.unread = Vec::new();
        // Each of them was queued under the id of the other client.
        (self.output.dirty, old.output.dirty) = (false, false);
    }

    /// The memory that is held, in bytes.
    pub(super) fn held(&self) -> usize {
        let delivery = self.delivery.as_ref();
        let outbox = delivery.map_or(0, |one| one.outbox.memory());
        self.output.held() + self.unread.capacity() + outbox + self.memberships.held()
    }

    /// Whether nothing is queued in either direction, no message is kept until it is confirmed, and none can be a heartbeat.
    pub(super) fn is_quiet(&self) -> bool {
        let is_idle = self.output.is_idle() && self.unread.is_empty();
        is_idle && self.delivery.is_none() && self.join.is_none() && self.heartbeat.is_none()
    }
}

/// The state of a connection from a trusted proxy, from `accept` to its end. The connection carries requests of any client, so
/// neither the user of a unix socket nor the certificate of the proxy identifies them, even if a request has none of the
/// fields that proxies set: some proxies let a client remove them.
///
/// A connection with a PROXY protocol header has no such state. The proxy that sends the header does not look at requests, so
/// it passes on forged fields.
#[derive(Debug)]
pub(crate) struct Forwarding {
    /// The address of the proxy.
    pub(super) peer: Remote,
    /// The user that the proxy has named in the last request.
    pub(super) user: Option<Arc<str>>,
}

record!(Forwarding { peer, user });

/// The request of a new connection to be handed to an earlier client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Join {
    pub(crate) target: ClientId,
    /// The number of messages that the client has received.
    pub(crate) received: u64,
}
