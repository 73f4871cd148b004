//! The frames of a message that many clients get.

use std::sync::Arc;

use crate::protocol::deflate::{Compression, SLICE};
use crate::protocol::{Message, SentHeader, WebSocket};

/// The frames of a broadcast: one uncompressed, and one for each compression window that a client has negotiated.
/// Clients share them.
#[derive(Debug)]
pub(in crate::server) struct Broadcast<'a> {
    pub(super) message: Message<'a>,
    plain: Arc<[u8]>,
    /// The compressed frames by the bits of their window. `None` if compression does not make the message smaller.
    compressed: Vec<(u8, Option<Arc<[u8]>>)>,
}

impl<'a> Broadcast<'a> {
    pub(in crate::server) fn new(message: Message<'a>) -> Self {
        let payload = message.as_bytes();
        let header = SentHeader::new(message.opcode(), payload.len());
        Self {
            message,
            plain: [header.encode().as_slice(), payload].concat().into(),
            compressed: Vec::new(),
        }
    }

    /// The frame for a client. `is_behind` says that a message waits to be compressed for it.
    pub(super) fn frame(
        &mut self,
        socket: &mut WebSocket,
        compression: &mut Option<Compression>,
        is_behind: bool,
    ) -> &Arc<[u8]> {
        let (Some(codec), Some(compression)) = (socket.codec(), compression) else {
            return &self.plain;
        };
        // Compressing a long message would block the loop, and a message that waits to be compressed must be compressed
        // first.
        if is_behind || self.message.as_bytes().len() > SLICE {
            return &self.plain;
        }
        let window = codec.window();
        let known = self.compressed.iter().position(|(bits, _)| *bits == window);
        let at = known.unwrap_or_else(|| {
            let payload = self.message.as_bytes();
            let frame = compression.compress_alone(payload, window).map(|bytes| {
                let header = SentHeader::compressed(self.message.opcode(), bytes.len());
                let frame = [header.encode().as_slice(), &bytes].concat().into();
                compression.give_back(bytes);
                frame
            });
            self.compressed.push((window, frame));
            self.compressed.len() - 1
        });
        match &self.compressed[at].1 {
            Some(frame) => {
                codec.note_alone();
                frame
            }
            None => &self.plain,
        }
    }
}
