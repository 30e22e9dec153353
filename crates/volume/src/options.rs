//! Options that the caller chooses, and figures that the engine reports.

use units::{MetadataSize, SectorSize, Slo};
use uuid::Uuid;

pub use layout::WRITE_BLOCKS_MAX;

/// Options of a shard.
#[derive(Clone, Copy, Debug)]
pub struct ShardOptions {
    /// Journal records that may be on their way to the device at once: 1 to 8.
    pub records_in_flight: usize,
    /// Says if the device loses completed writes with the power until flushed; `None` asks the
    /// device. Only an operator with better knowledge overrides it.
    pub volatile_cache: Option<bool>,
    /// Bytes of memory that the maps of the shard's volumes may take; `None`: as much as they need. Less
    /// than a single request needs is exceeded by that request.
    pub map_memory: Option<u64>,
    /// A number that no tenant can know, drawn by the caller. A shard without one adopts it for
    /// life: blocks that a tenant forges then do not pass for records of its journal. 0 means none,
    /// where no tenant is hostile.
    pub secret: u64,
}

impl Default for ShardOptions {
    fn default() -> Self {
        Self { records_in_flight: 4, volatile_cache: None, map_memory: None, secret: 0 }
    }
}

/// A volume to be created.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VolumeSpec {
    /// Identity, drawn by the caller.
    pub uuid: Uuid,
    /// A name for people: at most 255 bytes. Its uniqueness is the caller's business.
    pub name: String,
    /// Size in blocks. Takes no space until written.
    pub blocks: u64,
}

/// The terms of a new volume, besides its name and size. The engine only stores the first two and the
/// last; its callers enforce them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Terms {
    /// The service level objective.
    pub slo: Slo,
    /// The access list: at most [`layout::ACCESS_BYTES_MAX`] bytes, opaque to the engine.
    pub access: Vec<u8>,
    /// Metadata of each block, for life.
    pub metadata: MetadataSize,
    /// Logical blocks, as hosts address it, for life. Those of 512 bytes have no metadata.
    pub sector: SectorSize,
}

impl From<Slo> for Terms {
    /// Terms with an objective and without an access list.
    fn from(slo: Slo) -> Self {
        Self { slo, ..Self::default() }
    }
}

/// Space of a device as one shard sees it, in blocks.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Capacity {
    /// All blocks of all extents of the device.
    pub device_total: u64,
    /// Blocks in extents that no shard owns.
    pub device_unreserved: u64,
    /// Blocks of the extents of this shard.
    pub owned: u64,
    /// Blocks of this shard that nothing occupies.
    pub free: u64,
    /// Blocks of this shard that hold tenant data.
    pub data: u64,
    /// Blocks of this shard that hold map nodes, bitmaps, descriptors and the journal.
    pub metadata: u64,
}

/// Memory that the maps of a shard's volumes take.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MapMemory {
    /// Bytes of memory that they may take; `None`: as much as they need.
    pub limit_bytes: Option<u64>,
    /// Bytes of memory that they take.
    pub resident_bytes: u64,
    /// The most that they took since the start.
    pub resident_bytes_max: u64,
    /// Bytes that they take on the device, with those of the tables.
    pub device_bytes: u64,
    /// Look-ups of requests that found all that they wanted in memory, since the start.
    pub hits: u64,
    /// Nodes read since the start.
    pub loads: u64,
    /// Nodes that gave way to others since the start.
    pub evictions: u64,
}

/// Counters of a volume since its shard was first opened. They continue when the shard returns
/// after a failure.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct VolumeStats {
    /// Reads that succeeded, and comparisons, whatever these found.
    pub reads: u64,
    /// Blocks of these, and of what was [verified](crate::Volume::verify).
    pub blocks_read: u64,
    /// Writes that succeeded, those behind a comparison included.
    pub writes: u64,
    /// Blocks that they carried.
    pub blocks_written: u64,
    /// Blocks of its data and its map that were found damaged, each once.
    pub damaged_blocks: u64,
    /// Damaged map nodes of deallocated space that were given up: the blocks that they named stay in
    /// use until a check of the whole device.
    pub lost_nodes: u64,
    /// Requests that the device failed.
    pub device_errors: u64,
}
