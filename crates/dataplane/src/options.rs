//! Options of a core.

/// Options of a core that hold for all protocols.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// The name of the core in the log: its CPU.
    pub core: u32,
    /// Connections at a time; more are closed as they come.
    pub connections_max: usize,
    /// Memory for the data of requests.
    pub memory_bytes: u64,
    /// Memory for the data of one connection's requests; at least two of the largest transfers.
    pub window_bytes: u64,
}

impl Default for CoreOptions {
    fn default() -> Self {
        Self { core: 0, connections_max: 1200, memory_bytes: 256 << 20, window_bytes: 16 << 20 }
    }
}
