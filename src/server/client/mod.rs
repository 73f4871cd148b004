//! One client, and all operations on it.
//!
//! A [`Client`] is what the service knows: an id, a path, counters. It owns a [`Wire`], its connection, and, if it is resumable, a
//! [`Delivery`], which it keeps when the wire is cut. The event loop calls the methods of the client, which read, write, answer
//! HTTP and close. They take [`Env`], the state that all clients of a loop share. They do not call services and do not
//! remove the client. Instead, they queue news for the loop.
//!
//! Queries of the protocol state are methods of [`Protocol`]. Queries of the socket, of the queues and of what is kept across a cut are
//! methods of the wire. Whatever sends, or changes the client, is a method of the client.

mod broadcast;
mod cuts;
mod delivery;
mod handshake;
mod heartbeat;
mod http;
mod inbound;
mod input;
mod lifecycle;
mod membership;
mod outbound;
mod outbox;
mod outgoing;
mod output;
mod portable;
mod protocol;
mod rare;
mod resumable;
mod upstream;
mod wire;
mod writing;

use std::sync::Arc;
use std::time::Duration;

pub(super) use self::broadcast::{Batches, Broadcast};
pub(super) use self::delivery::{Delivery, WrongCount};
pub(super) use self::handshake::Handshake;
pub(super) use self::heartbeat::is_heartbeat_name;
pub(super) use self::inbound::SHORT_READ;
pub(super) use self::input::{Inbound, Input, Read, ReadGate, Why};
pub use self::membership::Keep;
pub(super) use self::membership::{Membership, Memberships, TopicId};
pub(super) use self::rare::Join;
pub(super) use self::upstream::Upstream;
use self::wire::Flags;
pub(super) use self::wire::Wire;
use super::address::Remote;
use super::env::{Env, News};
use super::event_loop::scheduler::Work;
use super::event_loop::wheel::Link;
use super::id::{ClientId, ServiceId};
use super::observe::counters::Traffic;
use super::stream::Stream;
use crate::protocol::Time;
use crate::record::record;

/// A client as its service knows it. A resumable one survives the end of its [`Wire`].
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    /// What the handshake has said; `None` before the upgrade. Clients that have said the same share it.
    pub(super) handshake: Option<Arc<Handshake>>,
    pub(super) traffic: Traffic,
    /// The connection. Its box of rare state also holds the [`Delivery`], which stays with the client when wires are exchanged.
    pub(super) wire: Wire,
    /// When the WebSocket was opened, in hundredths of a second since the loop started. They last 497 days.
    opened: u32,
    /// The position in the timer wheel.
    pub(super) timer: Link,
    /// The service of the last request.
    pub(super) service_id: ServiceId,
    flags: Flags<ClientFlag>,
}

record!(Client {
    id,
    handshake,
    traffic,
    wire,
    opened,
    timer = Link::default(),
    service_id,
    flags,
});

/// A boolean property of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum ClientFlag {
    /// The service has called `set_held`: messages from this client wait.
    Held = 1,
    /// The client is in the queue of readable clients.
    Queued = 1 << 1,
}

impl From<ClientFlag> for u8 {
    fn from(flag: ClientFlag) -> Self {
        flag as Self
    }
}

/// A point in time in hundredths of a second, modulo 2^32.
fn hundredths(time: Time) -> u32 {
    (time.as_millis() / 10) as u32
}

/// What the log says of a client that ends, besides the reason.
pub(super) struct ClientEnd {
    pub(super) handshake: Option<Arc<Handshake>>,
    pub(super) remote: Remote,
    pub(super) duration: Duration,
    /// The ids of the trace and of the span in which the client began.
    pub(super) trace: Option<(String, String)>,
}

impl ClientEnd {
    /// Takes the handshake, which a client that has ended does not need.
    pub(super) fn of(client: &mut Client, now: Time) -> Self {
        Self {
            handshake: client.handshake.take(),
            remote: client.wire.remote,
            duration: client.open_for(now),
            trace: client.wire.trace_ids(),
        }
    }
}

impl Client {
    /// A client that has just connected.
    pub(super) fn new(id: ClientId, stream: Stream, remote: Remote, now: Time) -> Self {
        Self {
            id,
            handshake: None,
            traffic: Traffic::default(),
            wire: Wire::new(stream, remote, now),
            opened: 0,
            timer: Link::default(),
            service_id: ServiceId::ALL,
            flags: Flags::default(),
        }
    }

    /// Records that the WebSocket is open.
    fn set_opened(&mut self, now: Time) {
        self.opened = hundredths(now);
    }

    /// How long the WebSocket has been open, without the time before the upgrade.
    pub(super) fn open_for(&self, now: Time) -> Duration {
        Duration::from_millis(u64::from(hundredths(now).wrapping_sub(self.opened)) * 10)
    }

    /// The path of the handshake. Empty before the upgrade.
    pub(super) fn path(&self) -> &str {
        self.handshake.as_ref().map_or("", |one| &one.path)
    }

    /// Queues the client for reading if there may be input.
    pub(super) fn read_again(&mut self, env: &mut Env) {
        if self.wire.has_input() && !self.flags.set(ClientFlag::Queued, true) {
            env.scheduler.push(self.wire.account, Work::Read(self.id));
        }
    }

    /// Asks the loop to remove the client. The state of the connection does not change.
    pub(super) fn request_removal(&self, env: &mut Env) {
        env.push_news(self.id, News::Closing);
    }
}

/// The maximum size of a client in the registry, in bytes, in a release build: ten thousand idle clients take 1.7 MB. With TLS
/// it is 8 bytes larger, for the pointer to the session, which is elsewhere.
#[cfg(any(test, not(any(fuzzing, debug_assertions))))]
const ENTRY: usize = if cfg!(feature = "tls") { 168 } else { 160 };

// The socket of a debug build is larger.
#[cfg(not(any(test, fuzzing, debug_assertions)))]
const _: () = assert!(size_of::<Client>() <= ENTRY);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_small() {
        // A new field shows here.
        assert!(
            size_of::<Client>() <= ENTRY + 24,
            "{} (the stream of a test build is 20 bytes larger, which makes 24 with padding)",
            size_of::<Client>()
        );
    }
}
