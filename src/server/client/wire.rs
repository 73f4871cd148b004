//! The connection of a client: its socket, its protocol ([`Protocol`]), and what is queued in either direction ([`Rare`]).
//!
//! A resumable [`Client`](super::Client) survives a cut. Its wire then stays without a socket (`Protocol::Detached`), until the client
//! takes over the wire of a new connection. [`Rare`] also stores the client's [`Delivery`], to save a pointer in every client;
//! `Client::swap_wires` moves it along.

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::delivery::Delivery;
use super::input::{Inbound, Input, Read};
use super::membership::Memberships;
use super::output::Output;
use super::protocol::Protocol;
use super::rare::{Forwarding, Join, Rare};
use crate::protocol::client::{ExchangeEvent, HandshakeError};
use crate::protocol::http::{HttpConnection, HttpEvent, TraceParent};
use crate::protocol::{Cause, CloseReason, NextStep, Request, Time};
use crate::record::record;
use crate::server::access::CredentialId;
use crate::server::address::Remote;
use crate::server::env::Env;
use crate::server::event_loop::scheduler::AccountId;
use crate::server::id::ClientId;
use crate::server::outgoing::{ConnectError, Phase};
use crate::server::stream::Stream;
use crate::server::tls::{PeerCertificate, Scratch, TlsStream};

/// The factor by which the output limit is higher for a client that keeps reading.
const STEADY_FACTOR: usize = 4;

/// A client keeps reading if it has accepted output within this time.
const STEADY: Duration = Duration::from_secs(5);

/// A set of boolean properties, one bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flags<F>(u8, PhantomData<F>);

/// A boolean property of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Flag {
    /// The socket may have more to read.
    Readable = 1,
    /// The peer has half-closed the connection, so end of file follows even after a short read.
    HungUp = 1 << 1,
    /// The last read ended inside a long message.
    SendsLong = 1 << 2,
    /// The connection is counted for its address.
    Counted = 1 << 3,
    /// The last request was authenticated, or the server requires no token.
    Trusted = 1 << 4,
    /// The client is checked out and being read. Its output goes to the loop's write buffer.
    Reading = 1 << 5,
    /// Something may be queued or kept, so each message takes the slow path. See [`Wire::is_quiet`].
    Busy = 1 << 6,
}

impl From<Flag> for u8 {
    fn from(flag: Flag) -> Self {
        flag as Self
    }
}

impl<F> Default for Flags<F> {
    fn default() -> Self {
        Self(0, PhantomData)
    }
}

impl<F: Into<u8>> Flags<F> {
    #[inline]
    pub(super) fn has(self, flag: F) -> bool {
        self.0 & flag.into() != 0
    }

    /// Sets or clears a flag and returns what it was.
    #[inline]
    pub(super) fn set(&mut self, flag: F, on: bool) -> bool {
        let (flag, before) = (flag.into(), self.0);
        self.0 = if on { before | flag } else { before & !flag };
        before & flag != 0
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) protocol: Protocol,
    pub(super) rare: Option<Box<Rare>>,
    pub(super) stream: Stream,
    /// The low bits of [`Wire::delivered`] when progress was last measured.
    delivered_mark: u32,
    /// Who pays for the work that the connection causes.
    pub(crate) account: AccountId,
    pub(crate) remote: Remote,
    /// The token of the last request.
    pub(crate) credential: Option<CredentialId>,
    pub(super) flags: Flags<Flag>,
}

record!(Wire {
    protocol,
    rare,
    stream,
    delivered_mark,
    // The next process has accounts of its own.
    account = AccountId::SERVER,
    remote,
    credential,
    flags,
});

record!(impl<F: Sized> Flags<F> as u16, |flags| flags.0.into(), |bits| {
    Some(Self(u8::try_from(bits).ok()?, PhantomData))
});

impl Wire {
    /// A connection that waits for its first request.
    pub(super) fn new(stream: Stream, remote: Remote, now: Time) -> Self {
        Self {
            protocol: Protocol::Http(HttpConnection::new(now)),
            rare: None,
            stream,
            delivered_mark: 0,
            account: AccountId::SERVER,
            remote,
            credential: None,
            flags: Flags::default(),
        }
    }

    /// An error of the socket, or the end of its input, has ended the attempt.
    pub(super) fn abandon_attempt(&mut self, reason: &CloseReason) {
        let tls = self.tls();
        let failed = tls.is_some_and(TlsStream::has_failed_handshake);
        if let Some(outgoing) = self.protocol.outgoing_mut() {
            let error = if reason.cause == Cause::Shutdown {
                ConnectError::Cancelled
            } else if failed {
                ConnectError::Tls {
                    message: reason.reason.to_string(),
                    is_certificate: false,
                }
            } else {
                if reason.cause == Cause::Eof
                    && let Some(requesting) = outgoing.response()
                {
                    let end = requesting.exchange.handle_end();
                    requesting.is_ended = matches!(end, Some(ExchangeEvent::End { .. }));
                }
                let lost = outgoing.lost(&reason.reason);
                outgoing.end_of_input(lost)
            };
            outgoing.fail(error);
        }
    }

    /// Whether the client is unauthenticated, not upgraded, and has no pending call.
    pub(crate) fn is_stranger(&self) -> bool {
        let is_idle = self
            .protocol
            .http()
            .is_some_and(|http| !http.is_unanswered());
        is_idle && !self.flags.has(Flag::Trusted)
    }

    /// Records the properties of a request that its answer depends on. `origin` is the origin of the page that may read
    /// the answer.
    pub(crate) fn begin_request(
        &mut self,
        request: &Request<'_>,
        origin: Option<&str>,
        is_last: bool,
    ) {
        if let Some(http) = self.protocol.http_mut() {
            http.begin_request(request, origin);
            if is_last {
                http.end_keep_alive();
            }
        }
    }

    /// Records whether a request was authenticated. An unauthenticated connection is not kept alive for further
    /// requests.
    pub(crate) fn set_trusted(&mut self, trusted: bool) {
        self.flags.set(Flag::Trusted, trusted);
        if !trusted && let Some(http) = self.protocol.http_mut() {
            http.end_keep_alive();
        }
    }

    /// Parses input before the upgrade, up to the next event.
    pub(super) fn receive_head<'a>(
        &mut self,
        env: &Env,
        input: &mut Input<'a>,
    ) -> Option<Inbound<'a>> {
        match &mut self.protocol {
            Protocol::Http(http) => {
                let event = http.receive(env.now, input, &env.protocol.limits)?;
                if let (HttpEvent::Proxied(_), Some(tls)) = (&event, self.stream.tls_mut()) {
                    // The handshake follows, and some of it may have been read.
                    self.flags.set(Flag::Readable, true);
                    tls.begin_handshake(input.take(input.len()));
                }
                Some(Inbound::Http(event))
            }
            Protocol::Outgoing(outgoing) => {
                let max_head = env.protocol.limits.max_head;
                let is_idle = outgoing.phase == Phase::Idle;
                if let Some(requesting) = outgoing.response() {
                    if is_idle && !input.is_empty() {
                        input.clear();
                        let why = HandshakeError::Invalid("the server sent data unasked");
                        return Some(Inbound::Exchange(ExchangeEvent::Failed(why)));
                    }
                    let event = requesting.exchange.receive(input, max_head)?;
                    return Some(Inbound::Exchange(event));
                }
                let event = outgoing.handshake.receive(input, max_head)?;
                Some(Inbound::Response(event))
            }
            Protocol::WebSocket(_) | Protocol::Detached(_) => None,
        }
    }

    /// The next step of closing, once all output is written.
    pub(super) fn next_step(&self) -> NextStep {
        match &self.protocol {
            Protocol::Http(http) => http.next_step(),
            Protocol::WebSocket(socket) => socket.next_step(),
            Protocol::Outgoing(_) => NextStep::Continue,
            Protocol::Detached(_) => {
                let delivery = self.rare.as_ref().and_then(|rare| rare.delivery.as_ref());
                match delivery.and_then(|one| one.ended.as_ref()) {
                    Some(_) => NextStep::Close,
                    None => NextStep::Continue,
                }
            }
        }
    }

    // The client.

    /// The name in the certificate of the client. A client that was cut keeps it.
    pub(crate) fn certificate_name(&self) -> Option<Arc<str>> {
        let name = self.tls().and_then(TlsStream::peer);
        let kept = || self.delivery()?.certificate();
        name.or_else(|| kept().map(PeerCertificate::name)).cloned()
    }

    /// Whether the client has come through a listener, and its service has seen it.
    pub(crate) fn is_admitted(&self) -> bool {
        self.protocol.was_open() && !self.is_ours()
    }

    /// Whether the service can send messages to the client.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        match &self.protocol {
            Protocol::WebSocket(socket) if socket.is_open() => {
                !self.delivery().is_some_and(Delivery::is_closing)
            }
            Protocol::WebSocket(_) => self.takes_messages(),
            Protocol::Detached(_) => self.takes_messages(),
            Protocol::Http(_) | Protocol::Outgoing(_) => false,
        }
    }

    // What is queued.

    /// Whether a message can be passed on without further checks: nothing is queued in either direction, and no message is kept
    /// until it is confirmed. This is a test of one flag, because it runs for each message: [`Wire::queues_mut`] sets the
    /// flag, and [`Wire::shrink`] clears it.
    #[inline(always)]
    pub(super) fn is_quiet(&self) -> bool {
        let is_quiet = !self.flags.has(Flag::Busy);
        debug_assert!(!is_quiet || self.rare.as_ref().is_none_or(|rare| rare.is_quiet()));
        is_quiet
    }

    /// What is queued or kept, if anything is.
    #[inline]
    fn queues(&self) -> Option<&Rare> {
        self.rare.as_deref().filter(|_| !self.is_quiet())
    }

    /// What is queued or kept, to add to it. The next message takes the slow path.
    pub(super) fn queues_mut(&mut self) -> &mut Rare {
        self.flags.set(Flag::Busy, true);
        self.rare.get_or_insert_default()
    }

    /// The output that the socket has not taken, if there is any.
    pub(super) fn output(&self) -> Option<&Output> {
        Some(&self.queues()?.output)
    }

    pub(super) fn output_mut(&mut self) -> &mut Output {
        &mut self.queues_mut().output
    }

    /// The number of bytes of output that wait for the socket.
    pub(crate) fn queued(&self) -> usize {
        self.output().map_or(0, Output::queued) + self.stream.sealed()
    }

    /// Whether input is held back until the output has drained.
    pub(super) fn is_congested(&self) -> bool {
        self.output().is_some_and(|output| output.congested)
    }

    /// Whether a message waits to be compressed, so that nothing else may be compressed before it.
    pub(super) fn has_squeeze(&self) -> bool {
        self.output().is_some_and(Output::has_squeeze)
    }

    /// Whether input that was read waits to be handled.
    pub(crate) fn has_unread(&self) -> bool {
        self.queues().is_some_and(|rare| !rare.unread.is_empty())
    }

    /// Moves the kept input to the front of `buffer` and returns its length.
    pub(crate) fn take_unread(&mut self, buffer: &mut [u8]) -> usize {
        let Some(rare) = self.rare.as_deref_mut() else {
            return 0;
        };
        let unread = std::mem::take(&mut rare.unread);
        self.shrink();
        buffer[..unread.len()].copy_from_slice(&unread);
        unread.len()
    }

    /// Keeps input that was read and must wait.
    pub(crate) fn keep_unread(&mut self, input: &[u8]) {
        let rare = self.queues_mut();
        debug_assert!(rare.unread.is_empty());
        rare.unread = input.to_vec();
    }

    /// The topics of the client, if it is in any.
    pub(crate) fn memberships(&self) -> Option<&Memberships> {
        let memberships = &self.rare.as_ref()?.memberships;
        (!memberships.is_empty()).then_some(memberships)
    }

    /// The topics of the client, to change them. Call [`Wire::shrink`] if there may be none afterwards.
    pub(crate) fn memberships_mut(&mut self) -> &mut Memberships {
        &mut self.rare.get_or_insert_default().memberships
    }

    /// Whether a message waits that the client gets when it can take it.
    pub(super) fn has_newest(&self) -> bool {
        let rare = self.rare.as_ref();
        rare.is_some_and(|rare| rare.memberships.has_newest())
    }

    /// Notes whether something is still queued or kept, and drops the box if nothing is in it.
    pub(crate) fn shrink(&mut self) {
        self.rare.take_if(|rare| rare.is_empty());
        let is_quiet = self.rare.as_ref().is_none_or(|rare| rare.is_quiet());
        self.flags.set(Flag::Busy, !is_quiet);
    }

    /// Whether the client is checked out and being read.
    #[inline]
    pub(super) fn is_reading(&self) -> bool {
        self.flags.has(Flag::Reading)
    }

    /// Marks the client as checked out of its slot, or as back in it.
    pub(crate) fn set_reading(&mut self, reading: bool) {
        self.flags.set(Flag::Reading, reading);
    }

    /// Whether a message of `size` bytes may be queued without checking whether the client keeps reading.
    pub(crate) fn fits(&self, env: &Env, size: usize) -> bool {
        let fits = self.waiting(env) <= env.config.soft_outbound
            || self.fits_within(env, size, env.config.max_outbound);
        fits && self.may_keep(size)
    }

    /// Whether another `size` bytes may be queued. The limit is higher for a client that keeps reading. `sent` bytes were sent so
    /// far.
    pub(super) fn has_room(&mut self, env: &Env, size: usize, sent: u64) -> bool {
        if self.fits(env, size) {
            return true;
        }
        let most = STEADY_FACTOR.saturating_mul(env.config.max_outbound);
        if !self.may_keep(size) || !self.fits_within(env, size, most) {
            return false;
        }
        let delivered = self.delivered(sent);
        let rare = self.rare.as_deref_mut();
        rare.is_none_or(|rare| rare.output.takes_steadily(delivered, env.now, STEADY))
    }

    /// Whether another `size` bytes may be queued that the socket has not been offered yet. The limit applies to what the socket does
    /// not take.
    pub(super) fn has_room_at_first(&self, env: &Env, size: usize) -> bool {
        let most = STEADY_FACTOR.saturating_mul(env.config.max_outbound);
        let is_blocked = self.output().is_some_and(|output| output.blocked);
        !is_blocked && self.may_keep(size) && self.fits_within(env, size, most)
    }

    /// Whether a message of `size` bytes may be kept until the client confirms it.
    pub(super) fn may_keep(&self, size: usize) -> bool {
        let delivery = self.rare.as_ref().and_then(|rare| rare.delivery.as_ref());
        delivery.is_none_or(|one| one.may_keep(size))
    }

    /// Whether the output stays within `most` bytes if `size` bytes are added. The longest message does not count, so
    /// that one message always fits.
    fn fits_within(&self, env: &Env, size: usize, most: usize) -> bool {
        let largest = self.output().map_or(0, Output::largest);
        let total = self.waiting(env) + size;
        let largest = largest
            .min(env.config.limits.max_message)
            .max(size)
            .min(total);
        total - largest <= most
    }

    /// The number of queued bytes. While the client is read, this includes the write buffer.
    fn waiting(&self, env: &Env) -> usize {
        let gathered = if self.is_reading() {
            env.output.len()
        } else {
            0
        };
        gathered + self.queued()
    }

    /// Whether there may be input: in the socket, read already, or being decompressed.
    #[inline]
    pub(crate) fn has_input(&self) -> bool {
        self.is_readable() || self.has_unread() || self.protocol.is_inflating()
    }

    /// The memory that is held for the connection and its client, in bytes: what their end would free.
    pub(crate) fn holds(&self) -> usize {
        let rare = self.rare.as_ref().map_or(0, |rare| rare.held());
        self.protocol.held() + rare + self.tls().map_or(0, TlsStream::held)
    }

    // What the last request has said.

    /// What is known of a connection from a trusted proxy. A client that was cut keeps what is known about its last connection.
    pub(crate) fn forwarding(&self) -> Option<&Forwarding> {
        self.rare.as_ref()?.forwarding.as_deref()
    }

    /// Forgets the client that the last request came from. Returns the address of the trusted proxy, if there is one.
    pub(crate) fn begin_forwarded_request(&mut self) -> Option<Remote> {
        let forwarding = self.rare.as_mut()?.forwarding.as_deref_mut()?;
        forwarding.user = None;
        self.remote = forwarding.peer;
        Some(forwarding.peer)
    }

    /// Sets the user that the trusted proxy has named.
    pub(crate) fn set_forwarded_user(&mut self, user: Option<Arc<str>>) {
        if let Some(rare) = &mut self.rare
            && let Some(forwarding) = &mut rare.forwarding
        {
            forwarding.user = user;
        }
    }

    /// The user that a trusted proxy has named in the last request.
    pub(crate) fn forwarded_user(&self) -> Option<&Arc<str>> {
        self.forwarding()?.user.as_ref()
    }

    /// Marks a new connection as one of a trusted proxy.
    pub(crate) fn expect_forwarded_requests(&mut self) {
        let (peer, user) = (self.remote, None);
        self.rare.get_or_insert_default().forwarding = Some(Box::new(Forwarding { peer, user }));
    }

    /// Keeps the trace of a request until the next one.
    pub(crate) fn set_trace(&mut self, trace: Option<TraceParent>) {
        if let Some(trace) = trace {
            self.rare.get_or_insert_default().trace = Some(Box::new(trace));
        } else if let Some(rare) = &mut self.rare {
            rare.trace = None;
            self.shrink();
        }
    }

    /// The ids of the trace of the last request, for the log: of the trace, and of the span that made the request.
    pub(crate) fn trace_ids(&self) -> Option<(String, String)> {
        let trace = self.rare.as_ref()?.trace.as_deref()?;
        Some((trace.trace_id(), trace.parent_id()))
    }

    /// Makes this connection continue an earlier client when it has been read.
    pub(crate) fn join_later(&mut self, join: Join) {
        self.queues_mut().join = Some(join);
    }

    /// The client that this connection is to be handed to.
    #[inline]
    pub(crate) fn joins(&self) -> Option<Join> {
        self.queues()?.join
    }

    // The socket.

    /// The TLS stream, if the connection uses TLS.
    pub(crate) fn tls(&self) -> Option<&TlsStream> {
        self.stream.tls()
    }

    /// The certificate that the peer has presented.
    pub(super) fn certificate(&self) -> Option<Box<PeerCertificate>> {
        self.tls()?.certificate().map(Box::new)
    }

    /// Whether the TLS handshake is in progress.
    pub(crate) fn is_tls_handshaking(&self) -> bool {
        self.tls().is_some_and(TlsStream::is_handshaking)
    }

    /// Whether the socket may have more to read.
    #[inline]
    pub(crate) fn is_readable(&self) -> bool {
        self.flags.has(Flag::Readable)
    }

    /// Whether the peer has half-closed the connection and the end of file has not been read.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.flags.has(Flag::HungUp)
    }

    /// Records that the socket became readable, and whether the peer has half-closed the connection.
    pub(crate) fn handle_readable(&mut self, hung_up: bool) {
        self.flags.set(Flag::Readable, true);
        if hung_up {
            self.flags.set(Flag::HungUp, true);
        }
    }

    /// Records that the end of file was read.
    pub(super) fn handle_end(&mut self) -> Read {
        self.flags.set(Flag::Readable, false);
        self.flags.set(Flag::HungUp, false);
        Read::End
    }

    /// Whether the connection is counted for its address.
    pub(crate) fn is_counted(&self) -> bool {
        self.flags.has(Flag::Counted)
    }

    /// Whether a socket that was asked to connect is connected. `None` if that is not known yet.
    pub(crate) fn is_established(&self) -> Option<io::Result<()>> {
        self.stream.is_established()
    }

    /// Registers the socket for events, once for the lifetime of the connection.
    pub(crate) fn register(&mut self, id: ClientId, poll: &mio::Registry) -> io::Result<()> {
        self.stream.register(poll, id.token())
    }

    /// Deregisters the socket. Over TLS, sends close_notify first if all output was written.
    pub(crate) fn hang_up(&mut self, id: ClientId, scratch: &mut Scratch, poll: &mio::Registry) {
        if self.queued() == 0
            && let Some(tls) = self.stream.tls_mut()
        {
            tls.close(scratch);
        }
        if let Err(error) = self.stream.deregister(poll) {
            log::debug!("{id} deregistering failed: {error}");
        }
    }

    /// Closes the socket, and drops what was read from it and what is queued for it. What the client keeps stays.
    pub(crate) fn close_socket(
        &mut self,
        id: ClientId,
        scratch: &mut Scratch,
        poll: &mio::Registry,
    ) {
        self.hang_up(id, scratch, poll);
        self.stream = Stream::Closed;
        if let Some(rare) = self.rare.as_deref_mut() {
            (rare.output, rare.unread, rare.join) = Default::default();
        }
        self.shrink();
        for flag in [Flag::Readable, Flag::HungUp, Flag::SendsLong] {
            self.flags.set(flag, false);
        }
    }

    /// The connection in memory, if it is one.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn memory_stream(
        &self,
    ) -> Option<&crate::server::simulation::memory_stream::MemoryStream> {
        match &self.stream {
            Stream::Memory(stream) => Some(stream),
            _ => None,
        }
    }

    // Progress.

    /// Of `sent` bytes, the number that the peer's kernel has acknowledged, as far as this kernel reports it. For a unix socket
    /// the number includes overhead, so only compare two values.
    pub(super) fn delivered(&self, sent: u64) -> u64 {
        let unsent = self.stream.unsent_len().unwrap_or(0) as u64;
        sent.wrapping_sub(unsent)
    }

    /// Whether the peer's kernel has acknowledged all output.
    pub(super) fn is_delivered(&self) -> bool {
        self.queued() == 0 && self.stream.unsent_len().unwrap_or(0) == 0
    }

    /// Begins to measure progress. `sent` bytes were sent so far.
    pub(super) fn mark_delivered(&mut self, sent: u64) {
        self.delivered_mark = self.delivered(sent) as u32;
    }

    /// The number of bytes that the peer's kernel has acknowledged since progress was last measured. Bytes in this
    /// kernel's send buffer do not count, because the buffer may grow while the peer reads nothing.
    pub(super) fn measure_progress(&mut self, sent: u64) -> u32 {
        let before = self.delivered_mark;
        self.mark_delivered(sent);
        let taken = self.delivered_mark.wrapping_sub(before) as i32;
        taken.max(0) as u32
    }

    /// Counts a call that is given to the service.
    pub(crate) fn count_call(&self, env: &mut Env) {
        env.calls += 1;
        env.addresses.add_client(self.remote.ip());
    }

    /// Counts the end of a call: it was completely answered, or its caller is gone.
    pub(crate) fn uncount_call(&self, env: &mut Env) {
        env.calls = env.calls.saturating_sub(1);
        env.addresses.remove_client(self.remote.ip());
    }

    /// Counts messages against the rate limit. Returns whether they exceed it.
    #[cold]
    pub(super) fn is_over_rate(&mut self, env: &Env, count: u32) -> bool {
        let (Protocol::WebSocket(socket), Some(rate)) = (&mut self.protocol, env.config.rate_limit)
        else {
            return false;
        };
        socket.is_over_rate(rate, count, env.now)
    }

    /// Counts the connection for its address, which has just become known. Returns the number of connections of the
    /// address.
    pub(crate) fn count_for_address(&mut self, env: &mut Env) -> usize {
        if self.remote.is_unix() {
            return 0;
        }
        let was_counted = self.flags.set(Flag::Counted, true);
        debug_assert!(!was_counted);
        env.addresses.add_connection(self.remote.ip())
    }

    /// Whether the client needs no token: the mode of a unix socket has admitted it, or its certificate, or a trusted proxy names
    /// its user.
    pub(crate) fn needs_no_token(&self, env: &Env) -> bool {
        if self.forwarding().is_some() {
            return self.forwarded_user().is_some();
        }
        let config = &env.config;
        let has_certificate = || self.tls().is_some_and(|tls| tls.peer().is_some());
        self.remote.user().is_some() || (config.is_client_auth_enough() && has_certificate())
    }
}
