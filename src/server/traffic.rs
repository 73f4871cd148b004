//! What a connection has carried.

/// The number of bytes and messages that a connection has carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Bytes read from the socket.
    pub bytes_in: u64,
    /// Bytes written to the socket.
    pub bytes_out: u64,
    /// Data messages received.
    pub messages_in: u64,
    /// Data messages sent, including those that are still queued.
    pub messages_out: u64,
}

impl Traffic {
    /// Adds the traffic of another connection.
    pub(super) fn add(&mut self, other: Self) {
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.messages_in += other.messages_in;
        self.messages_out += other.messages_out;
    }
}
