//! Making a device ours, and finding out whose it is.

use io_traits::{Buffer, Device, DeviceError};
use layout::{DecodeError, Root, SUPERBLOCK_MAGIC, Superblock};
use units::{BLOCK_SIZE, Pba};
use uuid::Uuid;

use crate::{FormatError, OpenError};

/// How a device is formatted.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Identity of the device, drawn by the caller: never the same twice, since it tells records
    /// of this life of the device from those of an earlier one.
    pub uuid: Uuid,
}

/// What lies on a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Probe {
    /// All zeroes where it was looked: the first 128 KiB, the last block and 256 blocks in between.
    /// That all of it is zeroes only a complete scan can tell, which is the caller's to make.
    Blank,
    /// Ours.
    Farflash(Superblock),
    /// Ours, but made by another version of the program.
    OtherVersion(u32),
    /// Ours, but neither superblock is whole.
    Damaged(DecodeError),
    /// Someone else's.
    Foreign(&'static str),
}

/// Signatures by which others' devices are told: name, byte offset, bytes.
const SIGNATURES: [(&str, usize, &[u8]); 10] = [
    ("XFS file system", 0, b"XFSB"),
    ("LUKS volume", 0, b"LUKS\xBA\xBE"),
    ("qcow2 image", 0, b"QFI\xFB"),
    ("GPT partition table", 512, b"EFI PART"),
    ("LVM physical volume", 512, b"LABELONE"),
    ("ext2, ext3 or ext4 file system", 1080, b"\x53\xEF"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("Linux RAID member", 4096, b"\xFC\x4E\x2B\xA9"),
    ("btrfs file system", 0x1_0040, b"_BHRfS_M"),
    ("MBR partition table", 510, b"\x55\xAA"),
];
/// From this generation on zeroes in the place of a root are damage: else the power would have gone while
/// each of the roots that belong there was written, and each time without this copy.
pub(crate) const ROOTS_WRITTEN: u64 = 16;
/// Blocks read at the start, enough for every signature.
const HEAD_BLOCKS: usize = 32;
/// Single blocks looked at in the rest of the device.
const SAMPLES: u64 = 256;

/// Finds out what lies on `device`, without changing it.
///
/// # Errors
/// The device cannot be read.
pub async fn probe<D: Device>(device: &D) -> Result<Probe, DeviceError> {
    let blocks = device.geometry().blocks;
    let head_blocks = HEAD_BLOCKS.min(usize::try_from(blocks).unwrap_or(HEAD_BLOCKS));
    if head_blocks == 0 {
        return Ok(Probe::Blank);
    }
    let head = device.read(Pba(0), Buffer::new(head_blocks)).await?;
    let tail = device.read(Pba(blocks - 1), Buffer::new(1)).await?;
    let decoded = [&head.as_bytes()[..BLOCK_SIZE], tail.as_bytes()].map(Superblock::decode);
    // The tail alone proves nothing while the head is someone else's: it may be left over.
    let head_bytes = &head.as_bytes()[..BLOCK_SIZE];
    let ours = head_bytes.starts_with(&SUPERBLOCK_MAGIC);
    let tail_counts = ours || head_bytes.iter().all(|byte| *byte == 0);
    if let [Ok(head), Ok(tail)] = decoded {
        return Ok(Probe::Farflash(head.or_in_cluster(tail)));
    }
    for copy in decoded.iter().take(if tail_counts { 2 } else { 1 }) {
        match copy {
            Ok(superblock) => return Ok(Probe::Farflash(*superblock)),
            Err(DecodeError::Version(version)) => return Ok(Probe::OtherVersion(*version)),
            Err(_) => {}
        }
    }
    let counted = decoded.into_iter().take(if tail_counts { 2 } else { 1 });
    if let Some(Err(error)) = counted.into_iter().find(|copy| *copy != Err(DecodeError::Magic)) {
        return Ok(Probe::Damaged(error));
    }
    let found = |(_, at, bytes): &&(&str, usize, &[u8])| head.as_bytes()[*at..].starts_with(bytes);
    if head_blocks == HEAD_BLOCKS
        && let Some((name, ..)) = SIGNATURES.iter().find(found)
    {
        return Ok(Probe::Foreign(name));
    }
    let zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if !zero(head.as_bytes()) || !zero(tail.as_bytes()) {
        return Ok(Probe::Foreign("unknown data"));
    }
    for sample in 0..SAMPLES.min(blocks) {
        let pba = u128::from(blocks) * u128::from(sample) / u128::from(SAMPLES.min(blocks));
        let pba = Pba(u64::try_from(pba).expect("less than blocks"));
        if !zero(device.read(pba, Buffer::new(1)).await?.as_bytes()) {
            return Ok(Probe::Foreign("unknown data"));
        }
    }
    Ok(Probe::Blank)
}

/// Makes `device` ours: all that was on it is lost.
///
/// # Errors
/// Its size is out of bounds, or it cannot be written.
pub async fn format<D: Device>(
    device: &D,
    options: &FormatOptions,
) -> Result<Superblock, FormatError> {
    let blocks = device.geometry().blocks;
    let superblock =
        Superblock::for_device(options.uuid, blocks).ok_or(FormatError::Size { blocks })?;
    write_format(device, superblock).await
}

/// As [`format()`], with extents of a size other than the device's would have: a power of two of 1 024
/// to 32 768 blocks. Many small extents show in a test what takes a large device else.
///
/// # Errors
/// As [`format()`].
pub async fn format_with_extents<D: Device>(
    device: &D,
    options: &FormatOptions,
    extent_blocks: u32,
) -> Result<Superblock, FormatError> {
    let blocks = device.geometry().blocks;
    let superblock = Superblock::with_extents(options.uuid, blocks, extent_blocks)
        .ok_or(FormatError::Size { blocks })?;
    write_format(device, superblock).await
}

async fn write_format<D: Device>(
    device: &D,
    superblock: Superblock,
) -> Result<Superblock, FormatError> {
    let blocks = superblock.blocks;
    for shard in 0..superblock.shard_slots {
        for place in [0, 1].into_iter().flat_map(|g| superblock.root_places(shard, g)) {
            device.write(place, Buffer::zeroed(1).into_slice()).await?;
        }
    }
    // Half a format must not look like a whole one with foreign roots.
    device.flush().await?;
    let mut block = Buffer::new(1);
    superblock.encode(block.as_mut_bytes());
    let block = block.into_slice();
    for place in Superblock::places(blocks) {
        device.write(place, block.clone()).await?;
    }
    device.flush().await?;
    Ok(superblock)
}

/// Reads the superblock of a formatted device, from whichever copy is whole. If both are, and one names a cluster, that
/// one counts (C2 of `cluster.rs`).
///
/// # Errors
/// There is none, the device has shrunk, or it cannot be read.
pub async fn read_superblock<D: Device>(device: &D) -> Result<Superblock, OpenError> {
    let found = device.geometry().blocks;
    let mut first_error = DecodeError::Short;
    for (copy, place) in Superblock::places(found.max(1)).into_iter().enumerate() {
        let decoded = match device.read(place, Buffer::new(1)).await {
            Ok(block) => Superblock::decode(block.as_bytes()),
            Err(error) if copy == 1 => return Err(error.into()),
            Err(_) => continue,
        };
        match decoded {
            Ok(superblock) if superblock.blocks > found => {
                return Err(OpenError::Truncated { formatted: superblock.blocks, found });
            }
            Ok(superblock) if copy == 0 => return Ok(or_as_twin(device, superblock).await),
            Ok(superblock) => return Ok(superblock),
            Err(error) if copy == 0 => first_error = error,
            Err(_) => {}
        }
    }
    Err(OpenError::Superblock(first_error))
}

/// What counts of the first superblock and the last, of which the first is whole.
async fn or_as_twin<D: Device>(device: &D, head: Superblock) -> Superblock {
    let [_, place] = Superblock::places(head.blocks);
    let twin = device.read(place, Buffer::new(1)).await;
    match twin.map(|block| Superblock::decode(block.as_bytes())) {
        Ok(Ok(twin)) => head.or_in_cluster(twin),
        // Damaged, it says nothing: of a device that was served for a cluster the first one names it, too (C1).
        Ok(Err(_)) | Err(_) => head,
    }
}

/// The shards that were ever started: all of them must be recovered before one is started.
///
/// # Errors
/// The device cannot be read.
pub async fn active_shards<D: Device>(
    device: &D,
    superblock: &Superblock,
) -> Result<Vec<u16>, OpenError> {
    let mut active = Vec::new();
    for shard in 0..superblock.shard_slots {
        // As when the shard is recovered: a slot with a copy of zeroes and no root is blank.
        let (mut blank, mut valid) = ([false; 2], false);
        let places = [0, 1].into_iter().flat_map(|parity| superblock.root_places(shard, parity));
        for (copy, place) in places.enumerate() {
            let Ok(block) = device.read(place, Buffer::new(1)).await else { continue };
            blank[copy / 2] |= block.as_bytes().iter().all(|byte| *byte == 0);
            valid |= Root::decode(block.as_bytes()).is_ok();
        }
        if valid || blank != [true; 2] {
            active.push(shard);
        }
    }
    Ok(active)
}
