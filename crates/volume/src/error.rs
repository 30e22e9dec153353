//! The errors of the engine, and what the caller can do about each.

use io_traits::DeviceError;
use layout::DecodeError;
use space::ClaimError;
use units::{Lba, LbaRange, Pba};
use uuid::Uuid;

/// Why a volume refused a request or failed it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum VolumeError {
    /// The host asked for what is not there. Nothing was touched.
    #[error("{range} ends beyond the volume, which has {blocks} blocks")]
    OutOfRange {
        /// The blocks asked for.
        range: LbaRange,
        /// Size of the volume.
        blocks: u64,
    },
    /// More than [`crate::WRITE_BLOCKS_MAX`] blocks in one write, or not whole blocks.
    #[error("a write of {len_bytes} bytes is not possible")]
    Length {
        /// Bytes handed in.
        len_bytes: usize,
    },
    /// The blocks come with other metadata than the volume's blocks have.
    #[error("{len_bytes} bytes of metadata where the blocks have {wanted_bytes}")]
    Metadata {
        /// Bytes handed in.
        len_bytes: usize,
        /// Bytes that so many blocks have.
        wanted_bytes: usize,
    },
    /// The device has no room. Writes may succeed again once something was deallocated; reads,
    /// overwrites and deallocations still work.
    #[error("no free space on the device")]
    PoolFull,
    /// The volume, together with those that have the same allowance, holds all that it may. Writes may
    /// succeed again once something was deallocated or more is allowed; all else still works.
    #[error("it holds all that it may")]
    AllowanceSpent,
    /// This block is lost; the rest of the volume is sound.
    #[error("{lba} at {pba}: stored checksum {stored:#010x}, computed {computed:#010x}")]
    Corrupt {
        /// The tenant's block.
        lba: Lba,
        /// Its location.
        pba: Pba,
        /// The checksum in the map.
        stored: u32,
        /// The checksum of the data read.
        computed: u32,
    },
    /// A node of the map is damaged: the blocks that it describes are lost.
    #[error("the map around {lba} is damaged at {pba}")]
    CorruptMap {
        /// The block that was asked for.
        lba: Lba,
        /// Location of the node.
        pba: Pba,
    },
    /// A volume with this identity is there already.
    #[error("volume {0} exists")]
    Exists(Uuid),
    /// The volume was deleted.
    #[error("the volume was deleted")]
    Deleted,
    /// A name of more than 255 bytes, a size beyond 2^51 blocks, or an access list that is too
    /// long.
    #[error("the volume's name, size or access is out of bounds")]
    Spec,
    /// The device failed this request. The blocks hold what they held before.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The journal can no longer be written. Reads still work; writes wait for a restart.
    #[error("the journal of the shard can no longer be written")]
    JournalLost,
    /// The shard was shut down.
    #[error("the shard is shut down")]
    ShutDown,
}

/// Why the journal of a shard can no longer be written. The shard has to be read back.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JournalLoss {
    /// The device did not take a record.
    #[error("a record of the journal could not be written: {0}")]
    Record(DeviceError),
    /// The device failed a flush, so that what it was to cover may be gone.
    #[error("a flush failed: {0}")]
    Flush(DeviceError),
    /// As [`Self::Flush`]: another shard of the device made that flush, and knows what the device said.
    #[error("a flush failed that covered another part of the device, too")]
    FlushOfOthers,
    /// The device did not take a checkpoint, without which the journal gets full.
    #[error("a checkpoint could not be written: {0}")]
    Checkpoint(DeviceError),
    /// The device has no space for a checkpoint.
    #[error("there is no space for a checkpoint")]
    CheckpointSpace,
    /// The device was reopened: handles from before fail.
    #[error("the device was reopened, and this handle is no longer valid")]
    WayGone,
}

/// Why a comparison did not succeed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CompareError {
    /// The contents differ. Nothing was changed.
    #[error("contents differ at byte {offset_bytes}")]
    Miscompare {
        /// First byte that differs, counted from the start of the request.
        offset_bytes: u64,
    },
    /// The comparison could not be made. Nothing was changed.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The contents were as expected, and what was to take their place could not be written.
    #[error("contents were as expected, but what was to take their place is not written")]
    Write(#[source] VolumeError),
}

/// Why a device was not formatted.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FormatError {
    /// Smaller than 64 MiB or larger than 4 PiB.
    #[error("a device of {blocks} blocks cannot be formatted; 64 MiB to 4 PiB can")]
    Size {
        /// Its size.
        blocks: u64,
    },
    /// The device did not take it.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Why a device or a shard was not opened. Nothing was written.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OpenError {
    /// Neither copy of the superblock can be read.
    #[error("no superblock: {0}")]
    Superblock(DecodeError),
    /// The device is smaller than when it was formatted.
    #[error("formatted with {formatted} blocks, but the device has {found}")]
    Truncated {
        /// Blocks according to the superblock.
        formatted: u64,
        /// Blocks according to the device.
        found: u64,
    },
    /// The superblock has no such shard.
    #[error("shard {0} is out of bounds")]
    NoSuchShard(u16),
    /// Both roots of a shard are damaged.
    #[error("the roots of shard {0} are damaged")]
    Root(u16),
    /// A block of the shard's own tables is damaged.
    #[error("shard {shard}: the {what} at {pba} is damaged: {error}")]
    Damaged {
        /// The shard.
        shard: u16,
        /// The structure.
        what: &'static str,
        /// Its location.
        pba: Pba,
        /// In what way.
        error: DecodeError,
    },
    /// A volume has something that only a later release of this program knows. The shard is not opened without it:
    /// what the volume holds would be lost.
    #[error(
        "shard {shard}: the volume described at {pba} is of a later release of farflash: it has {what} that this one does not know"
    )]
    Later {
        /// The shard.
        shard: u16,
        /// The volume's descriptor.
        pba: Pba,
        /// The unknown part.
        what: &'static str,
    },
    /// A journal record that must be there is not; what came after it would be lost.
    #[error("shard {shard}: journal record {sequence} is damaged")]
    Journal {
        /// The shard.
        shard: u16,
        /// The missing record.
        sequence: u64,
    },
    /// Two shards claim the same extent.
    #[error("extent {extent} is claimed by shards {first} and {second}")]
    DoubleOwner {
        /// The extent.
        extent: u32,
        /// The shard that claimed it first.
        first: u16,
        /// The shard that claims it too.
        second: u16,
    },
    /// A table of extents was rebuilt from the maps, and a second read of the same maps names
    /// blocks in extents that the table does not own: reads of the device are inconsistent. That
    /// table must not be written.
    #[error(
        "shard {0}: the device gives its maps once so and once otherwise; look at its health, then try again"
    )]
    Unsteady(u16),
    /// The device at this address is another one, or an older state of the one that went away.
    #[error("this is not the device that went away, or not as it was")]
    OtherDevice,
    /// Another process started the shard meanwhile, and perhaps others, so the owners of extents
    /// are not known here any more. All users of the device must close it, and it is opened again.
    #[error(
        "the device was served elsewhere meanwhile: start this server again, which reads all of it back"
    )]
    StartedElsewhere,
    /// A new shard finds no free extent for its journal, or a shard none for its checkpoint.
    #[error("no free extent for the shard")]
    NoExtent,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl From<ClaimError> for OpenError {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::NoExtent => Self::NoExtent,
            ClaimError::DoubleOwner { extent, first, second } => {
                Self::DoubleOwner { extent, first, second }
            }
        }
    }
}
