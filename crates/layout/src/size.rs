//! The space that farflash takes of a device.

use units::{BLOCK_SIZE, ByteLen};

/// Bytes by which a device must be larger than `capacity` so that this much tenant data fits,
/// spread over `shards` shards: superblocks, roots, journals, bitmaps, maps at their sparsest and
/// the reserve that lets a full device be overwritten.
#[must_use]
pub fn overhead(capacity: ByteLen, shards: u16) -> ByteLen {
    let block = BLOCK_SIZE as u64;
    let shards = u64::from(shards.max(1));
    let fixed = (4 << 20) + shards * (8 << 20);
    // Journal and a spare extent per shard are each 1/64 of the device, at most 128 MiB.
    let extent = (capacity.0 / 64).clamp(4 << 20, 128 << 20) * 2;
    let maps = capacity.0 / 100;
    let total = fixed + shards * 3 * extent + maps;
    ByteLen(total.next_multiple_of(block))
}
