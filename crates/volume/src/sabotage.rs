//! Ways to break the engine on purpose, so that tests can show that they would notice.
//!
//! Without the feature `sabotage` nothing is ever broken, and the compiler removes every trace.

mutation_points::mutations! {
    if any(test, feature = "sabotage");
    /// One broken promise.
    #[cfg_attr(not(feature = "sabotage"), allow(unreachable_pub, reason = "named by tests only"))]
    pub enum Sabotage {
        /// COMMIT-1: a change takes effect while its record is on its way.
        AckBeforeRecord,
        /// COMMIT-1: a write takes effect while its data is on its way.
        AckBeforeData,
        /// COMMIT-1: nothing waits for a flush.
        SkipFlush,
        /// A flush that failed counts as done.
        IgnoreFlushError,
        /// COMMIT-5: a flush that another shard asked for, and that failed, is its own affair.
        FlushAlone,
        /// COMMIT-4: a record whose write failed counts as written.
        IgnoreRecordError,
        /// COMMIT-3: data whose write failed counts as written.
        IgnoreDataError,
        /// COMMIT-3: a failed write whose entry is on its way is not undone.
        SkipRestore,
        /// Every fourth record leaves its entries out.
        SkipEntries,
        /// JOURNAL-3: records call everything before them settled.
        SettleTooMuch,
        /// Blocks are not compared with their checksums.
        SkipReadChecksum,
        /// A lent block is reused as if it had no reader.
        PinWithoutRead,
        /// CHECKPOINT-2: nodes of the last checkpoint are free before the next is durable.
        ReuseNodes,
        /// CHECKPOINT-2: the same of inner nodes below a root alone.
        ReuseInnerNodes,
        /// NODE-1: a pointer to an inner node has another checksum than the node.
        KeepInnerChecksum,
        /// CHECKPOINT-4: extents are given back before the root without them is durable.
        ReleaseExtentsEarly,
        /// CHECKPOINT-3: the root is written with what it leads to.
        RootBeforeFlush,
        /// REPERSIST-1: a start builds on what no flush covers.
        BuildOnUnflushed,
        /// REPERSIST-5: shards are started before all of them are confirmed.
        StartOneByOne,
        /// CHECKPOINT-1: the replay point is that of the end of the checkpoint.
        LateReplayPoint,
        /// REPLAY-1: replay ends after two records.
        ReplayTwoRecords,
        /// Replay leaves deallocations out.
        ReplaySkipsUnmaps,
        /// Replay leaves deletions out.
        ReplaySkipsDeletes,
        /// Replay leaves creations out.
        ReplaySkipsCreates,
        /// A checkpoint leaves a volume in the table of which nothing else is left.
        KeepGone,
        /// REPLAY-2: replay takes all data to be there.
        ReplayTrustsData,
        /// REPLAY-2: replay compares the first run of a write and none behind it.
        CompareFirstRun,
        /// REPLAY-2: replay compares no run of a write behind one that cannot be read.
        CompareNoneBehindUnreadable,
        /// JOURNAL-2: a record of an earlier start counts as the continuation of the journal.
        TakeStaleRecord,
        /// LOSS-1: a descriptor with a checksum other than that of the pointer is taken, if it is
        /// whole.
        TakeStaleDescriptor,
        /// A bitmap with a checksum other than that of the pointer is taken.
        TakeStaleBitmap,
        /// A compare-and-write compares before it locks.
        CompareUnlocked,
        /// A compare-and-write that finds something else says so, and writes.
        MiscompareWrites,
        /// A write of a part of blocks reads the rest of them before it locks.
        FillUnlocked,
        /// A write of a part of blocks keeps the rest of its first block alone.
        FillFirstOnly,
        /// The last block of a write of several does not get into the map.
        ShortApply,
        /// Blocks that a shrunken volume loses are there again when it grows.
        ShrinkKeepsBlocks,
        /// Reads see what was deallocated and is not reclaimed.
        ReadDead,
        /// Blocks that were overwritten stay in use.
        LeakOverwritten,
        /// The blocks of a read come with the metadata of the one before.
        ShiftMetadata,
        /// Comparisons leave metadata out.
        CompareDataOnly,
        /// Replay gives the blocks of a write no metadata.
        ReplayDropsMetadata,
        /// FSCK-3: a repair leaves some blocks that maps name out of the bitmaps that it rebuilds.
        RepairFreesNamed,
        /// FSCK-2: with a volume that is lost, those behind it go.
        RepairForgetsVolume,
        /// FSCK-2: of the copies that are damaged, only the first is rewritten.
        RepairOneCopy,
        /// Copies that a repair rewrites are not flushed.
        RepairSkipsFlush,
        /// A damaged bitmap is made what the checkpoint before says, and not what the maps do.
        MendFromOldBitmap,
        /// LOSS-3: behind a cut the journal goes on as if nothing had been there.
        CutStaysBehind,
        /// REFUSED-2: data goes again and again to a block that was refused.
        BanNothing,
        /// REFUSED-2: the journal goes on where it was refused.
        JournalInsists,
        /// REFUSED-2: a start whose checkpoint is refused is not made once more.
        StartOnce,
        /// REFUSED-4: a checkpoint is not given what was refused.
        CheckpointGetsNoPardon,
        /// REFUSED-4: what gives back as much as it takes is not given what was refused.
        OverwriteGetsNoPardon,
        /// DISCARD-3: blocks that could not be discarded are leaked.
        LoseUndiscarded,
        /// A start takes what a read gives for what lies there.
        RecoverByOneRead,
        /// COPY-1: where one read gives zeroes no root was ever written.
        BlankByOneRead,
        /// BREAKING-4: nothing can be read once the journal is lost.
        ReadsEndWithJournal,
        /// Requests and scrubs take what a read gives for what lies there.
        ServeByOneRead,
        /// READ-AHEAD-1: what was read ahead is returned, whatever was written since.
        KeepReadAhead,
        /// A change of access that is replayed does not mark the descriptor.
        ReplayedAccessUnmarked,
        /// Nor does a promise.
        ReplayedSloUnmarked,
        /// Nor does a resize.
        ReplayedSizeUnmarked,
        /// Replay leaves changes of access out.
        ReplaySkipsAccess,
        /// Replay leaves promises out.
        ReplaySkipsSlo,
        /// Replay leaves resizes out.
        ReplaySkipsResizes,
        /// Replay makes resizes twice, the second time behind all that came later.
        ReplayRepeatsResizes,
        /// Replay creates volumes without their terms.
        ReplayForgetsTerms,
        /// COMMIT-1: a change of access is acknowledged while its record is on its way.
        AckAccessEarly,
        /// COMMIT-1: the same of a promise.
        AckSloEarly,
        /// CHECKPOINT-1: a change of terms during a checkpoint counts as written by it.
        UnmarkLate,
        /// A checkpoint writes no descriptor of a volume whose map has not changed.
        KeepOldDescriptor,
        /// The record of a deallocation of several ranges names only the first.
        RecordFirstRange,
        /// PAGING-4: a task that waits for a node that another task reads is not woken when it is
        /// loaded.
        LoseWaiter,
    }

    /// Breaks the engines of this thread so from now on, or no more.
    #[cfg_attr(not(feature = "sabotage"), allow(unreachable_pub, reason = "called by tests only"))]
    pub fn sabotage;
    /// Returns whether this promise is broken.
    pub(crate) fn broken;
}

/// Returns the number of reads before something counts as damaged: `count`, or one where that is
/// broken.
#[inline]
pub(crate) fn tries(count: u32, if_not: Sabotage) -> u32 {
    if broken(if_not) { 1 } else { count }
}
