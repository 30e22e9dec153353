//! Limits on the resources that a client can hold in the API, and on its waits.

use std::time::Duration;

/// Bounds of the API. The defaults suit a server that is managed by people and their scripts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections served at a time. `crowd.rs` decides which one makes room for another, and how many wait.
    pub connections_max: usize,
    /// Bytes of a request's body. The largest valid one is far below.
    pub body_bytes_max: usize,
    /// Bytes of a request's head.
    pub head_bytes_max: usize,
    /// From the first byte of a request's body to its answer.
    pub request_timeout: Duration,
    /// From a connection's start, or the end of its last answer, to the end of the next head. It
    /// bounds how long a connection can be held open without a request. Less while others wait (`crowd.rs`).
    pub head_timeout: Duration,
    /// Time that a client may leave an answer waiting without taking a fair part of it. Less while all
    /// connections are in use.
    pub write_timeout: Duration,
    /// From a connection's start until it is closed behind the request that it has begun. A client
    /// that asks again connects again.
    pub connection_time: Duration,
    /// Longest wait for requests in flight when the server stops.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 256,
            body_bytes_max: 64 << 10,
            head_bytes_max: 16 << 10,
            request_timeout: Duration::from_secs(30),
            head_timeout: Duration::from_secs(15),
            write_timeout: Duration::from_secs(10),
            connection_time: Duration::from_secs(120),
            drain_timeout: Duration::from_secs(5),
        }
    }
}
