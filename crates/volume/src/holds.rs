//! Holds of an operation, taken before it is queued and kept until it is over.
//!
//! One order for all operations, in which no two wait for one another for ever. Each step waits only for
//! operations that have taken the later ones, or for checkpoints, which need none of it:
//!
//! 1. the range of blocks that it changes, or the terms of the volume,
//! 2. a place among the volume's pending unmaps,
//! 3. memory for the map's nodes on its way, which are then read,
//! 4. the volume's allowance of space, which nothing waits for,
//! 5. blocks on the device for nodes that it makes dirty,
//! 6. blocks for its data, which are there by then: nothing waits for them either.

use local_sync::Permit;

use crate::allowance::Taken;
use crate::locks::RangeGuard;
use crate::shard::Claim;

/// Holds of the steps 1 to 5. Each is added behind those before it.
#[derive(Default)]
pub(crate) struct Holds {
    node_blocks: u64,
    // Dropped in this order: from the last to the first.
    allowance: Option<Taken>,
    node_memory: Option<Claim>,
    unmap_place: Option<Permit>,
    range: Option<RangeGuard>,
}

impl Holds {
    /// Holds of an operation on this range, which is locked.
    pub(crate) fn range(range: RangeGuard) -> Self {
        Self { range: Some(range), ..Self::default() }
    }

    /// Holds of the creation of a volume, which has no range yet.
    pub(crate) fn node_blocks_only(blocks: u64) -> Self {
        Self { node_blocks: blocks, ..Self::default() }
    }

    /// A place among pending unmaps is held as well.
    pub(crate) fn and_unmap_place(self, place: Permit) -> Self {
        let holds_later = self.node_memory.is_some() || self.allowance.is_some();
        assert!(!holds_later && self.node_blocks == 0, "the second to be taken");
        Self { unmap_place: Some(place), ..self }
    }

    /// Memory for map nodes is held as well, where it has a bound.
    #[inline]
    pub(crate) fn and_node_memory(self, claim: Option<Claim>) -> Self {
        assert!(self.allowance.is_none() && self.node_blocks == 0, "before blocks on the device");
        Self { node_memory: claim, ..self }
    }

    /// Blocks of the volume's allowance are held as well, where it has one.
    #[inline]
    pub(crate) fn and_allowance(self, taken: Option<Taken>) -> Self {
        assert!(self.node_blocks == 0, "before blocks on the device");
        Self { allowance: taken, ..self }
    }

    /// Blocks set aside for map nodes are held as well.
    #[inline]
    pub(crate) fn and_node_blocks(self, blocks: u64) -> Self {
        assert!(self.range.is_some(), "behind the range");
        Self { node_blocks: blocks, ..self }
    }

    /// Takes the blocks out, to be given back.
    pub(crate) fn take_node_blocks(&mut self) -> u64 {
        std::mem::take(&mut self.node_blocks)
    }

    /// Takes what was taken of the allowance out.
    pub(crate) fn take_allowance(&mut self) -> Option<Taken> {
        self.allowance.take()
    }

    /// Takes the place out: the pending unmap keeps it from here on.
    pub(crate) fn take_unmap_place(&mut self) -> Option<Permit> {
        self.unmap_place.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_given_back_once() {
        let mut holds = Holds::node_blocks_only(3);
        assert_eq!((holds.take_node_blocks(), holds.take_node_blocks()), (3, 0));
    }

    #[test]
    #[should_panic(expected = "before blocks on the device")]
    fn memory_is_not_waited_for_with_blocks_in_hand() {
        let _ = Holds::node_blocks_only(1).and_node_memory(None);
    }
}
