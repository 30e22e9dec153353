//! A device that was made larger: its superblocks and roots move to the new end, and its last superblock is
//! found where it lies.
//!
//! - GROW-1: the first superblock, which says how large the device is, is written last: until then all that it leads to
//!   is as it was, and afterwards all that it leads to is durable. So the device has the old size or the new one
//!   wherever a power cut falls.
//! - GROW-2: a last superblock is taken for this device's only if roots at the start of the device have its identity, and
//!   if it lies in the last block of the size that it names.

use io_traits::{Buffer, Device, DeviceError};
use layout::{Root, Superblock};
use units::Pba;
use uuid::Uuid;

use crate::OpenError;
use crate::copies::{self, Copy};
use crate::format::is_zero;
use crate::superblocks::{Copies, write};

/// The least by which a device grows, in blocks: what lies at its end must not lie where it lay before.
pub const GROW_BLOCKS_MIN: u64 = 256;
/// Devices have whole MiB as a rule: their last blocks are looked at first.
const LIKELY_STEP: u64 = 256;
/// Blocks read at once in a search.
const SEARCH_BLOCKS: u64 = 256;

/// Gives a device that no server uses all the blocks that it has now; returns its superblock from before, and the one that
/// it has now. Nothing is written if it has not grown by [`GROW_BLOCKS_MIN`].
///
/// # Errors
/// It is no device of ours, one of its roots cannot be read, or it cannot be written.
pub async fn grow<D: Device>(device: &D) -> Result<(Superblock, Superblock), OpenError> {
    let copies = Copies::read(device).await?;
    let before = copies.counting()?;
    let found = device.limits().blocks;
    if found < before.blocks + GROW_BLOCKS_MIN {
        return Ok((before, before));
    }
    let after = Superblock { blocks: found, ..before };
    for shard in 0..before.shard_slots {
        for generation in [0, 1] {
            let [_, place] = after.root_places(shard, generation);
            let root = root_of(device, &before, shard, generation).await?;
            device.write(place, root.into_slice()).await?;
        }
    }
    device.flush().await?;
    let [first, last] = Superblock::places(after.blocks);
    write(device, &after, last).await?;
    // GROW-1: either size has both of its superblocks, wherever a power cut falls.
    device.flush().await?;
    write(device, &after, first).await?;
    device.flush().await?;
    let [_, stale] = Superblock::places(before.blocks);
    device.write(stale, Buffer::zeroed(1).into_slice()).await?;
    device.flush().await?;
    Ok((before, after))
}

/// The block of a root's slot, as it is: of two copies the one that is whole and newer.
async fn root_of<D: Device>(
    device: &D,
    superblock: &Superblock,
    shard: u16,
    generation: u64,
) -> Result<Buffer, OpenError> {
    let mut best: Option<(u64, Buffer)> = None;
    for place in superblock.root_places(shard, generation) {
        let found = copies::read_copy(device, place, Root::decode).await?;
        let (rank, bytes) = match &found {
            Copy::Whole { value, block } if value.device == superblock.uuid => {
                (2 + value.generation, Some(block.as_bytes()))
            }
            Copy::Blank => (1, None),
            // Something that is damaged must not look as if it was never written.
            Copy::Whole { .. } | Copy::Damaged(_) | Copy::Unreadable(_) => {
                return Err(OpenError::Root(shard));
            }
        };
        if best.as_ref().is_none_or(|(found, _)| rank > *found) {
            best = Some((rank, bytes.map_or_else(|| Buffer::zeroed(1), Buffer::from_bytes)));
        }
    }
    best.map(|(_, block)| block).ok_or(OpenError::Root(shard))
}

/// The identity of the device whose roots lie at the start, if any does. It is a trace of a device of ours, whatever
/// became of its superblocks.
///
/// # Errors
/// The device fails in another way than that it cannot read a block.
pub(crate) async fn traces<D: Device>(device: &D) -> Result<Option<Uuid>, DeviceError> {
    // Behind them lie the marks.
    for place in
        (1..Superblock::OWNER_MARK.0 - 1).map(Pba).filter(|place| place.0 < device.limits().blocks)
    {
        match device.read(place, Buffer::new(1)).await {
            Ok(block) if is_zero(block.as_bytes()) => {}
            Ok(block) => {
                if let Ok(root) = Root::decode(block.as_bytes()) {
                    return Ok(Some(root.device));
                }
            }
            Err(DeviceError::Io { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Looks for the last superblock of a device whose first one is damaged, wherever it lies (GROW-2): the device may have
/// grown since it was formatted. `passed` is told how many blocks lie behind, of how many.
///
/// # Errors
/// The device fails in another way than that it cannot read a block.
pub async fn find_superblock<D: Device>(
    device: &D,
    mut passed: impl FnMut(u64, u64),
) -> Result<Option<Superblock>, DeviceError> {
    // What a program wrote that is not understood here stays.
    if Copies::read(device).await?.head.is_sealed() {
        return Ok(None);
    }
    let Some(uuid) = traces(device).await? else { return Ok(None) };
    let blocks = device.limits().blocks;
    let fits = |block: &[u8], pba: u64| {
        let found = Superblock::decode(block).ok()?;
        (found.uuid == uuid && found.blocks == pba + 1).then_some(found)
    };
    let mut end = blocks / LIKELY_STEP * LIKELY_STEP;
    while end > 0 {
        if let Ok(block) = device.read(Pba(end - 1), Buffer::new(1)).await
            && let Some(found) = fits(block.as_bytes(), end - 1)
        {
            return Ok(Some(found));
        }
        end -= LIKELY_STEP;
    }
    let mut end = blocks;
    while end > 0 {
        let start = end.saturating_sub(SEARCH_BLOCKS);
        let count = usize::try_from(end - start).expect("few");
        if let Ok(read) = device.read(Pba(start), Buffer::new(count)).await {
            for (at, block) in read.as_bytes().chunks_exact(units::BLOCK_SIZE).enumerate().rev() {
                if let Some(found) = fits(block, start + at as u64) {
                    return Ok(Some(found));
                }
            }
        }
        passed(blocks - start, blocks);
        end = start;
    }
    Ok(None)
}

/// Rebuilds the first superblock of a device from a last one that [`find_superblock`] has found.
///
/// # Errors
/// The device cannot be written.
pub async fn restore_superblock<D: Device>(
    device: &D,
    superblock: &Superblock,
) -> Result<(), DeviceError> {
    let [first, _] = Superblock::places(superblock.blocks);
    write(device, superblock, first).await
}
