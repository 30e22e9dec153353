//! Ways to break the trees on purpose, so that tests can show that they would notice.
//!
//! Without the feature `sabotage` nothing is ever broken, and the compiler removes every trace.

mutation_points::mutations! {
    if any(test, feature = "sabotage");
    /// One broken promise.
    #[cfg_attr(not(feature = "sabotage"), allow(unreachable_pub, reason = "named by tests only"))]
    pub enum Sabotage {
        /// A node of a table with a checksum other than that of the pointer is taken, if it is one.
        TakeStaleTable,
        /// A leaf of a map with a checksum other than that of the pointer is taken, if it is one.
        TakeStaleLeaf,
        /// The same of inner nodes of maps.
        TakeStaleInner,
        /// EVICT-1: what a dirty leaf says is forgotten where memory is short.
        EvictDirty,
        /// EVICT-1: a node goes while it is on its way to its place.
        EvictUnwritten,
        /// EVICT-2: nodes go that requests under way rely on.
        EvictPinned,
        /// A node read back is not compared with its checksum.
        SkipNodeChecksum,
        /// LEAF-2: what is written over a block leaves it with the metadata that it had.
        KeepOldMetadata,
        /// A run goes on in a leaf with keys of the next inner node: the bound is that of the leaf's parent alone.
        RunForgetsParent,
        /// A run goes on in a leaf with keys of the next leaf.
        RunForgetsLeaf,
        /// A run goes to keys behind a gap as if there were none.
        RunFillsGap,
        /// The key that is the lower bound of a child is looked for in the child before it.
        FindMissesBound,
        /// A child may have the key that is the lower bound of the next one.
        SpanTakesBound,
        /// A range that ends with the first key of a child does not come to that child.
        WalkMissesBound,
        /// A removal goes on one key too late.
        RemoveSkipsKey,
        /// A removal takes the key at the end of its range, too.
        RemoveTakesEnd,
        /// The upper half of a leaf that is split loses its first entry.
        SplitLosesFirst,
        /// The bound of the upper half of a leaf that is split is one too high.
        SplitBoundTooHigh,
        /// The bound of the upper half of an inner node that is split is that of its second child.
        InnerSplitBoundTooHigh,
        /// Two inner nodes become one, and the bound of the first child of the upper one is one too high.
        MergeBoundTooHigh,
        /// Two leaves become one with the metadata of the upper one first.
        MergeSwapsMetadata,
        /// Leaves that entries were spread over keep their bounds.
        FoldKeepsBounds,
        /// A leaf that got entries of its neighbour keeps its bound.
        ShareKeepsBound,
        /// A leaf that lies in order and loses its first entries keeps where it begins.
        DrainKeepsBase,
        /// EVICT-2: keys that requests rely on below the last child of an inner node are not seen to be.
        SweepForgetsParent,
        /// A walk from leaf to leaf leaves out the rest of a tree behind an inner node.
        SiteForgetsParent,
        /// A child goes whose neighbours are not in memory, and they are taken to answer for its keys.
        VacateForgetsAbsent,
        /// NODE-3: a node that leaves the tree before its older version gets its place is forgotten.
        RetireForgetsHome,
        /// The first bound of an inner node stays when the second comes to be below it.
        FirstBoundStays,
        /// Entries that a run adds are not counted.
        RunCountsNothing,
    }

    /// Breaks the trees of this thread so from now on, or no more.
    #[cfg_attr(not(feature = "sabotage"), allow(unreachable_pub, reason = "called by tests only"))]
    pub fn sabotage;
    /// Returns whether this promise is broken.
    pub(crate) fn broken;
}
