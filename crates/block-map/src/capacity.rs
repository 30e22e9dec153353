//! The capacity of nodes: as many entries as fit into a block.
//!
//! Tests may have nodes take fewer (`small-structures`), so that small trees have many levels. What lies
//! on the device is the same format then: a node need not be full.

#[cfg(any(test, feature = "small-structures"))]
pub(crate) use small::inner_capacity;
#[cfg(any(test, feature = "small-structures"))]
pub use small::leaf_capacity;
#[cfg(any(test, feature = "small-structures"))]
#[cfg_attr(
    not(feature = "small-structures"),
    allow(unreachable_pub, reason = "for tests of this crate only")
)]
pub use small::{NodeCapacity, set_node_capacity};

/// Children that an inner node takes.
#[cfg(not(any(test, feature = "small-structures")))]
#[inline(always)]
pub(crate) const fn inner_capacity() -> usize {
    layout::INNER_CAPACITY
}

/// Entries that a leaf takes with keys of `width` bytes.
#[cfg(not(any(test, feature = "small-structures")))]
pub use layout::leaf_capacity;

/// Returns whether nodes take fewer entries than they have room for.
#[inline(always)]
pub fn is_small() -> bool {
    inner_capacity() < layout::INNER_CAPACITY
}

#[cfg(any(test, feature = "small-structures"))]
#[cfg_attr(
    not(feature = "small-structures"),
    allow(unreachable_pub, reason = "for tests of this crate only")
)]
mod small {
    use std::cell::Cell;

    use units::MetadataSize;

    /// The capacity of nodes, in entries.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct NodeCapacity {
        /// Entries of a leaf with the narrowest keys; with wider ones it takes fewer.
        pub leaf: usize,
        /// Children of an inner node.
        pub inner: usize,
    }

    /// Fewer than half a leaf, or half an inner node, could do with when one more comes.
    const LEAST: usize = 3;

    thread_local! {
        static CHOSEN: Cell<Option<NodeCapacity>> = const { Cell::new(None) };
    }

    /// From now on nodes of the maps of this thread take so many entries, or with `None` what they have room for.
    pub fn set_node_capacity(capacity: Option<NodeCapacity>) {
        CHOSEN.set(capacity);
    }

    pub(crate) fn inner_capacity() -> usize {
        let most = layout::INNER_CAPACITY;
        CHOSEN.get().map_or(most, |chosen| chosen.inner.clamp(LEAST, most))
    }

    /// Entries that a leaf takes with keys of `width` bytes.
    pub fn leaf_capacity(width: usize, metadata: MetadataSize) -> usize {
        let of_block = |width| layout::leaf_capacity(width, metadata);
        let most = of_block(width);
        let scaled = |chosen: NodeCapacity| chosen.leaf * most / of_block(crate::leaf::WIDTH_LEAST);
        CHOSEN.get().map_or(most, |chosen| scaled(chosen).clamp(LEAST, most))
    }
}
