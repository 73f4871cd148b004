//! What a client does before it passes to the program that replaces this one, and after it. Its record is in `mod.rs`.

use super::protocol::Protocol;
use super::wire::Flag;
use super::{Client, ClientFlag};
use crate::protocol::{CloseReason, WebSocket};
use crate::server::env::Env;
use crate::server::event_loop::scheduler::AccountId;

impl Client {
    /// Compresses every message that waits for it, because another process cannot continue a compressor, and keeps what it needs to
    /// continue the decompressor.
    pub(crate) fn finish_output(&mut self, env: &mut Env) {
        env.batches.complete();
        let (protocol, mut compression) =
            (&mut self.wire.protocol, env.protocol.compression.as_mut());
        let mut codec = protocol.websocket_mut().and_then(WebSocket::codec);
        if let (Some(codec), Some(compression)) = (&mut codec, &mut compression) {
            codec.keep_window(compression);
        }
        let Some(rare) = self.wire.rare.as_deref_mut() else {
            return;
        };
        if let Err(error) = rare.output.finish(codec, compression, &env.batches) {
            let reason = CloseReason::write_error(&std::io::Error::other(error));
            self.end(env, reason);
        }
    }

    /// Ends the client for good, and leaves its connection to `rest`, which has no client: with CLOSE behind all queued output. The
    /// connection stays until the peer has closed its side.
    pub(crate) fn part(
        &mut self,
        env: &mut Env,
        poll: &mio::Registry,
        rest: &mut Self,
        reason: CloseReason,
    ) {
        if self.wire.has_newest() {
            self.send_last_newest(env);
        }
        self.finish_output(env);
        // Without events, the connection closes after its time limit.
        let _ = self.swap_wires(poll, rest);
        if let Some(old) = rest.wire.rare.as_deref_mut() {
            old.heartbeat = None;
            self.wire.queues_mut().trace = old.trace.take();
        }
        if let Some(socket) = rest.end_wire(env, reason) {
            self.wire.protocol = Protocol::WebSocket(socket);
        }
        rest.wire.shrink();
        self.wire.queues_mut().delivery = None;
        self.request_removal(env);
    }

    /// Adapts a client that another loop has saved. Returns whether it can go on: this loop can compress for it, if it must.
    pub(crate) fn become_restored(&mut self, env: &mut Env) -> bool {
        self.flags.set(ClientFlag::Queued, false);
        self.wire.set_reading(false);
        self.wire.shrink();
        if self.wire.flags.set(Flag::Counted, false) {
            self.wire.count_for_address(env);
        }
        if self.wire.is_admitted() || self.wire.protocol.is_unanswered() {
            env.addresses.add_client(self.wire.remote.ip());
        }
        if let Some(limits) = env.config.resume
            && let Some(delivery) = self.wire.delivery_mut()
        {
            delivery.limits = limits;
        }
        env.memory.add(self.wire.holds());
        let Protocol::WebSocket(socket) = &mut self.wire.protocol else {
            return true;
        };
        match (socket.codec(), &env.protocol.compression) {
            (Some(codec), Some(compression)) => {
                compression.adopt(codec);
                true
            }
            (codec, _) => codec.is_none(),
        }
    }

    /// Continues what the other loop was doing: reading, writing and closing.
    pub(crate) fn continue_work(&mut self, env: &mut Env) {
        debug_assert!(self.wire.is_ours() || self.wire.account != AccountId::SERVER);
        self.read_again(env);
        if self.wire.queued() > 0 || self.wire.has_unsent() || self.wire.has_newest() {
            self.write_later(env);
        }
        self.settle(env);
    }
}
