//! Counters of a client.

/// Sums over all queues since the client was made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Commands that ended, well or not.
    pub completed: u64,
    /// Commands among these that the target failed.
    pub failed: u64,
    /// Bytes received as data.
    pub bytes_received: u64,
    /// Bytes sent as data.
    pub bytes_sent: u64,
    /// Commands sent again after a transient error, damaged data or a reconnect.
    pub repeated: u64,
    /// Data digests that did not match.
    pub damaged: u64,
    /// Batches handed to the network.
    pub sends: u64,
    /// Chunks taken from the network.
    pub receives: u64,
    /// Times that the connections were made again, all queues together.
    pub reconnects: u64,
}

impl Counters {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            completed: self.completed + other.completed,
            failed: self.failed + other.failed,
            bytes_received: self.bytes_received + other.bytes_received,
            bytes_sent: self.bytes_sent + other.bytes_sent,
            repeated: self.repeated + other.repeated,
            damaged: self.damaged + other.damaged,
            sends: self.sends + other.sends,
            receives: self.receives + other.receives,
            reconnects: self.reconnects + other.reconnects,
        }
    }
}
