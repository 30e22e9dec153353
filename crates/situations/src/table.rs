//! The table of all situations, and of the phases that the power may cut into.

/// The share of runs that reach a situation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Share {
    /// So many that those of the tests do.
    Often,
    /// So few that only runs of one workload may be counted on to.
    Seldom,
}

macro_rules! share {
    (often) => {
        Share::Often
    };
    (seldom) => {
        Share::Seldom
    };
}

macro_rules! situations {
    ($($name:ident, $share:ident in $workload:literal: $text:literal;)*) => {
        /// A state or an event that few runs come to.
        #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
        pub enum Situation {
            $(#[doc = $text] $name,)*
        }

        impl Situation {
            /// All of them, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// Returns its description, in one line.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Returns the share of runs that reach it.
            #[must_use]
            pub const fn share(self) -> Share {
                match self { $(Self::$name => share!($share),)* }
            }

            /// The workload of the simulator that reaches it soonest.
            #[must_use]
            pub const fn workload(self) -> &'static str {
                match self { $(Self::$name => $workload,)* }
            }
        }
    };
}

macro_rules! phases {
    ($($name:ident$(: $cut:ident)?;)*) => {
        /// A stretch of work that has a beginning and an end.
        #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
        pub enum Phase {
            $(#[doc = stringify!($name)] $name,)*
        }

        impl Phase {
            /// Returns the situation that stands for a power cut meanwhile, if that is counted.
            #[must_use]
            pub const fn cut(self) -> Option<Situation> {
                #[allow(unreachable_patterns, reason = "phases without a cut have but one arm")]
                match self {
                    $($(Self::$name => Some(Situation::$cut),)?)*
                    _ => None,
                }
            }
        }
    };
}

phases! {
    Replay: CutInReplay;
    Confirmation: CutInConfirmation;
    FirstCheckpoint: CutInFirstCheckpoint;
    Repair: CutInRepair;
    Checkpoint: CutInCheckpoint;
    RootWrite: CutInRootWrite;
    Reclaiming: CutInReclaiming;
    Return: CutInReturn;
    Shrinking: CutInShrinking;
    Founding: CutInFounding;
    CompareAndWrite: CutInCompareAndWrite;
    ThreeLevels;
}

situations! {
    // What the power cuts into.
    CutInReplay, often in "crash": "the power goes while a journal is replayed";
    CutInConfirmation, often in "starts": "the power goes while what a start is built on is made durable";
    CutInFirstCheckpoint, often in "crash": "the power goes in the first checkpoint of a start";
    CutInRepair, often in "repair": "the power goes in a repair";
    CutInCheckpoint, often in "crash": "the power goes in a checkpoint";
    CutInRootWrite, often in "crash": "the power goes while a root is written";
    CutInReclaiming, often in "churn": "the power goes while blocks of a large deallocation are taken out of a map";
    CutInReturn, seldom in "broken": "the power goes while a failed shard is brought back";
    CutInShrinking, often in "churn": "the power goes while a volume is made smaller";
    CutInFounding, seldom in "crash": "the power goes while a volume is created by a checkpoint";
    CutInCompareAndWrite, seldom in "plane": "the power goes while a comparison and the write behind it are carried out";

    // Maps.
    LeafSplitsInThreeLevels, often in "tall": "a leaf is split in a map of three levels";
    InnerNodeSplits, often in "tall": "an inner node is split";
    LeavesShareInThreeLevels, seldom in "tall": "a full leaf gives entries to its neighbour in a map of three levels";
    LeafGoesInThreeLevels, often in "tall": "a leaf loses its last entry in a map of three levels";
    LeavesMergeInThreeLevels, often in "tall": "two leaves become one in a map of three levels";
    LeavesFoldInThreeLevels, seldom in "tall": "leaves become one fewer in a map of three levels";
    InnerNodesMerge, often in "tall": "two inner nodes become one";
    InnerNodeGoes, often in "tall": "an inner node loses its last child";
    RootGivesWay, often in "tall": "a root with one child gives way to it";
    AbsentChildKept, often in "tall": "a node goes whose neighbours cannot answer for its keys, since they are not in memory";
    AbsentChildFilled, seldom in "tall": "a key comes to where a node has gone and no neighbour took its keys";
    RunAcrossLeaf, often in "crash": "a run of blocks begins in one leaf and ends in another";
    RunAcrossInnerNode, often in "tall": "a run of blocks begins below one inner node and ends below another";
    RunEndsAtNextLeaf, often in "tall": "a run is appended to a leaf up to where the keys of the next one begin";
    RangeAcrossInnerNode, often in "tall": "a range that is looked up begins below one inner node and ends below another";
    NodeChangedUnderCheckpoint, often in "crash": "a node is changed of which a checkpoint writes the older version";
    NodeGivenUp, often in "corrupt": "a node that cannot be read is taken out of its map";
    HealedNodeRewritten, seldom in "corrupt": "a damaged node is rewritten from memory";

    // Memory of maps.
    InnerNodeEvicted, often in "tall": "an inner node is evicted";
    PinnedNodeStays, often in "paged": "eviction passes over a node that a request under way relies on";
    NodeAwaitedByTwo, often in "paged": "two requests wait for one node";
    NodeReadAgain, often in "corrupt": "a node that is not what it should be is read again";
    ChangeAwaitsMemory, often in "paged": "a change waits for memory of maps";
    ChangeExceedsMemory, often in "paged": "a change that is alone has more than its part of the memory of maps";
    CheckpointForMemory, often in "paged": "a checkpoint is wanted since dirty nodes fill the memory of maps";

    // The journal.
    DataFailsBehindRecord, often in "errors": "the data of a write fails when its entry is on its way";
    CheckpointBesideUndoing, seldom in "errors": "a checkpoint is taken while a failed write is not undone";
    RequestAbandoned, often in "links": "a write is given up by its caller and finished by the engine";
    JournalIsFull, seldom in "long": "a record waits for a checkpoint to make room";
    JournalWraps, often in "long": "a record goes to the start of the ring";
    JournalWrapsUnderCheckpoint, seldom in "long": "a record goes to the start of the ring while a checkpoint is under way";
    RecordSaysSettled, often in "crash": "a record is made that only says that all data is on the media";
    RecordWriteFails, often in "errors": "the journal is lost since a record cannot be written";
    FlushFails, often in "errors": "the journal is lost since a flush of its shard failed";
    SharedFlushFails, seldom in "errors": "the journal is lost since a flush of another shard failed";
    FlushIsShared, often in "churn": "a shard has what it wrote covered by a flush of another";
    FlushAwaitsAnother, often in "crash": "a flush waits for the end of the one under way";
    JournalPassesOver, seldom in "broken": "the journal goes on behind blocks that were refused";

    // Checkpoints.
    CheckpointLosesVolume, often in "churn": "a checkpoint takes a volume out of which nothing is left";
    CheckpointFoundsVolume, often in "crash": "a volume begins with a checkpoint";
    CheckpointReturnsExtents, often in "churn": "a checkpoint gives extents back";
    CheckpointTouchesMoreExtents, often in "churn": "the nodes of the extent table make further bitmaps change";
    CheckpointUnprovenByFlush, seldom in "errors": "a checkpoint ends before its root since the journal was lost meanwhile";
    CheckpointTriedAgain, often in "errors": "a block of a checkpoint is refused and tried again";
    CheckpointHeldUp, seldom in "broken": "a checkpoint waits for the device to take a block";
    CheckpointGivenUp, seldom in "broken": "a checkpoint ends since the device takes no block of it";
    RootCopyRefused, seldom in "errors": "one copy of a root is refused, and the other written";
    ExtentTakenInRootWrite, seldom in "starts": "a shard takes an extent while another writes a root";

    // Refused blocks.
    BlockIsBanned, seldom in "broken": "a block is refused twice and not handed out again";
    BannedBlocksReleased, seldom in "broken": "refused blocks are handed out again";
    StartMadeAgain, seldom in "broken": "a start whose checkpoint was refused is made once more";

    // Space.
    RequestAwaitsSpace, often in "full": "a request waits for requests under way to give blocks back";
    RequestAwaitsCheckpoint, often in "full": "a request waits for a checkpoint to give blocks back";
    RequestAwaitsReclaimer, seldom in "full": "a request waits for a large deallocation to give blocks back";
    RequestAwaitsExtent, seldom in "full": "a request waits for another shard to give an extent back";
    PoolIsFull, often in "full": "a request finds no space";
    FragmentedWrite, often in "full": "a write lies in several runs";
    FreedWhileRead, often in "reuse": "blocks are freed while a read may look at them";
    BlocksAreLent, often in "reuse": "blocks are looked at where they lie";
    WriteWithoutTask, often in "plane": "a write is told when it is durable, and no task waits for it";
    ReceivedDataIsKept, often in "plane": "data stays where it was received until it is written";
    KeptDataIsCopied, seldom in "plane": "data that was to stay where it was received has to wait";

    // Large deallocations.
    RangeIsDead, often in "churn": "a large deallocation leaves its range dead";
    WriteIntoDeadRange, often in "crash": "a write meets a dead range";
    DeadRangeIsSplit, often in "crash": "a dead range becomes two";
    DeadRangeIsStuck, seldom in "corrupt": "a dead range stays since its map is damaged";
    ReclaimerFails, seldom in "errors": "the reclaimer cannot go on and tries again later";
    DeletedVolumeIsGone, often in "churn": "nothing is left of a deleted volume";

    // Discards.
    DiscardFails, often in "errors": "a discard fails";
    DiscardAwaitsRoom, often in "full": "nothing is discarded since free blocks are few";

    // Starts.
    StartIsClean, often in "crash": "a start finds nothing to replay";
    StartFromOlderRoot, often in "starts": "a start may go back to an older root";
    RootSlotIsLost, often in "corrupt": "both copies of a root are damaged";
    ReplayWraps, seldom in "long": "replay goes on at the start of the ring";
    ReplaySkipsWrite, often in "crash": "replay leaves out a write whose data did not reach the media";
    ReplaySkipsLaterRun, seldom in "full": "replay leaves out a write of which only a later run is missing";
    ReplayFinishesDeadRange, seldom in "full": "replay takes a dead range out of a map, since a write has one of its blocks";
    ReplayUndoes, seldom in "errors": "replay undoes a write whose data failed";
    ReplayShrinks, often in "churn": "replay makes a volume smaller";
    ReplayChangesTerms, often in "plane": "replay changes what a volume is promised";
    ReplayChangesAccess, often in "control": "replay changes who may open a volume";
    CheckpointWritesReplayedTerms, often in "control": "the first checkpoint of a start writes a descriptor that replay changed";
    ReplayCreates, often in "churn": "replay creates a volume";
    ReplayDeletes, often in "churn": "replay deletes a volume";
    ReplayReserves, often in "churn": "replay takes an extent";
    ReplayIntoThreeLevels, often in "tall": "replay changes a map of three levels";
    RecordReadAgain, seldom in "corrupt": "a record is the continuation of the journal only when it is read again";
    RecordIsMissing, often in "corrupt": "a later record proves that one is missing";
    JournalIsCut, often in "repair": "a journal is cut off where a record is damaged";
    DataReadAgain, seldom in "corrupt": "data is what a record says only when it is read again";
    BlockReadAgain, often in "corrupt": "a bitmap or a descriptor is what is meant only when it is read again";
    DescriptorIsLost, seldom in "corrupt": "a volume is lost with its descriptor";
    LostVolumePassedOver, often in "repair": "records of a lost volume are passed over";
    TableNodeGivenUp, seldom in "repair": "a damaged node of the volume table is given up";
    ReplayGivesNodeUp, seldom in "repair": "a repair gives up a node that replay needs";
    BitmapRebuilt, often in "corrupt": "a bitmap is rebuilt from the maps";
    ExtentTableRebuilt, seldom in "repair": "the table of extents is rebuilt from the maps";
    ExtentsLeftToOthers, seldom in "trade": "a shard that goes back leaves extents to others";
    DataMadeDurableOnceMore, often in "errors": "a start writes data once more that no flush covers";
    ConfirmationFails, seldom in "errors": "what a start is built on cannot be made durable";

    // Failed shards.
    ShardComesBack, seldom in "broken": "a failed shard is brought back";
    ReturnFails, seldom in "broken": "a failed shard is brought back in vain";

    // Damage.
    HealedTable, seldom in "corrupt": "a damaged node of a table or a descriptor is rewritten";
    HealedBitmap, seldom in "corrupt": "a damaged bitmap is rewritten";
    ScrubAwaitsCheckpoint, often in "crash": "a scrub waits for the checkpoint under way";
    BlockReadAgainIsSound, often in "corrupt": "a block is sound only when it is read again";
    BlockIsDamaged, often in "corrupt": "a block is damaged also when it is read again";

    // Reading ahead.
    ReadAheadIsUsed, often in "crash": "a read has its blocks from what was read ahead";
    ReadAheadIsForgotten, often in "crash": "a change drops what was read ahead of its blocks";
    ReadAheadHasFailed, seldom in "errors": "what was read ahead has failed, and is read again";

    // Locks.
    WriteAwaitsRange, often in "crash": "a write waits for its range";
    CompareAndWriteAwaitsRange, often in "crash": "a compare-and-write waits for its range";
    CompareAndWriteDiffers, often in "crash": "a compare-and-write finds something else";
    ShrinkAwaitsRequests, often in "churn": "a smaller size waits for a request behind the new end";
    // Hosts and connections.
    ConnectionEndsUnderRequests, seldom in "links": "a connection ends while requests of it are under way";
    ConnectionEndsUnderData, seldom in "links": "a connection ends while data of a write is on its way to the server";
    FusedPairSeparated, seldom in "links": "a connection ends between the halves of a fused pair";
    FusedPairDiffers, often in "plane": "a fused pair finds something else";
    RequestRepeated, often in "links": "a host sends a request again on another connection";
    ReconnectFails, seldom in "links": "an attempt to connect again fails";
    VolumeDeletedUnderRequests, seldom in "plane": "a volume is deleted while hosts have requests of it under way";
    RequestAwaitsTurn, often in "plane": "a request waits for its turn at the device";
    RequestAwaitsBuffers, seldom in "plane": "a request waits for memory for its data";
    ShardReturnsUnderHosts, seldom in "plane-faults": "a failed shard is brought back while hosts are connected";

    RequestBehindShrink, often in "churn": "a request that waited for its range is behind the new end";
    DeletionAwaitsRequests, often in "churn": "a deletion waits for requests under way";
}
