//! Counts of each front end of a core.

use std::cell::Cell;

use units::BLOCK_SIZE;

use crate::request::Request;

/// Figures of one front end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FrontendStats {
    /// Its protocol.
    pub protocol: &'static str,
    /// Connections that are open.
    pub connections: u64,
    /// Those of them that were let in to a volume.
    pub connections_let_in: u64,
    /// Connections so far.
    pub connected: u64,
    /// Clients that were told that they may not open what they asked for, so far.
    pub refused: u64,
    /// Bytes of the blocks that were read so far.
    pub read_bytes: u64,
    /// Bytes that were written so far.
    pub written_bytes: u64,
}

/// The counts of one front end.
pub(crate) struct FrontendCounts(Cell<FrontendStats>);

impl FrontendCounts {
    pub(crate) fn new(protocol: &'static str) -> Self {
        Self(Cell::new(FrontendStats {
            protocol,
            connections: 0,
            connections_let_in: 0,
            connected: 0,
            refused: 0,
            read_bytes: 0,
            written_bytes: 0,
        }))
    }

    pub(crate) fn stats(&self) -> FrontendStats {
        self.0.get()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut FrontendStats)) {
        let mut stats = self.0.get();
        change(&mut stats);
        self.0.set(stats);
    }

    /// Counts what a request moves.
    pub(crate) fn count(&self, request: &Request) {
        let blocks = |count: u64| count.saturating_mul(BLOCK_SIZE as u64);
        let (read, written) = match request {
            Request::Read(range) => (blocks(range.blocks), 0),
            Request::Write { range, .. } | Request::CompareAndWrite { range, .. } => {
                (0, blocks(range.blocks))
            }
            Request::WritePart { data, .. } | Request::CompareAndWritePart { data, .. } => {
                (0, data.part.len() as u64)
            }
            _ => return,
        };
        self.change(|stats| {
            stats.read_bytes += read;
            stats.written_bytes += written;
        });
    }
}
