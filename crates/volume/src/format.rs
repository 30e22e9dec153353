//! Making a device ours, and finding out whose it is.

use io_traits::{Buffer, Device, DeviceError};
use layout::{DecodeError, Root, SUPERBLOCK_MAGIC, Superblock};
use units::{BLOCK_SIZE, Pba};
use uuid::Uuid;

use crate::superblocks::{Copies, Copy};
use crate::{FormatError, grow};

/// Options for formatting a device.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Identity of the device, drawn by the caller: never the same twice, since it tells records
    /// of this life of the device from those of an earlier one.
    pub uuid: Uuid,
}

/// The contents of a device.
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
    /// Ours, and something else begins where it begins: someone has made the device theirs, or a write went astray. Nothing
    /// is to be written before it is known which.
    Overwritten {
        /// The format that the start looks like.
        by: &'static str,
        /// The last superblock, which is whole.
        superblock: Superblock,
    },
    /// Ours once, and something else begins where it begins. No superblock is where it is looked for, as on a device that
    /// has grown, but roots are.
    Traces {
        /// The format that the start looks like.
        by: &'static str,
    },
    /// Someone else's.
    Foreign(&'static str),
}

/// Signatures by which others' devices are told: name, byte offset, bytes.
const SIGNATURES: [(&str, usize, &[u8]); 20] = [
    ("XFS file system", 0, b"XFSB"),
    ("LUKS volume", 0, b"LUKS\xBA\xBE"),
    ("qcow2 image", 0, b"QFI\xFB"),
    ("SquashFS file system", 0, b"hsqs"),
    ("Ceph BlueStore device", 0, b"bluestore block device\n"),
    ("SPDK blobstore", 0, b"SPDKBLOB"),
    ("Linux RAID member", 0, b"\xFC\x4E\x2B\xA9"),
    ("GPT partition table", 512, b"EFI PART"),
    ("LVM physical volume", 512, b"LABELONE"),
    ("F2FS file system", 1024, b"\x10\x20\xF5\xF2"),
    ("ext2, ext3 or ext4 file system", 1080, b"\x53\xEF"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("Linux RAID member", 4096, b"\xFC\x4E\x2B\xA9"),
    ("GPT partition table", 4096, b"EFI PART"),
    ("bcache device or bcachefs file system", 4120, b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA"),
    ("ISO 9660 file system", 0x8001, b"CD001"),
    ("JFS file system", 0x8000, b"JFS1"),
    ("ReiserFS file system", 0x1_0034, b"ReIsEr"),
    ("btrfs file system", 0x1_0040, b"_BHRfS_M"),
    // The last, since other formats may carry one for programs that know nothing else.
    ("MBR partition table", 510, b"\x55\xAA"),
];
/// From this generation on zeroes in the place of a root are damage: else the power would have gone while
/// each of the roots that belong there was written, and each time without this copy.
pub(crate) const ROOTS_WRITTEN: u64 = 16;
/// Blocks read at the start, enough for every signature.
const HEAD_BLOCKS: u64 = 32;
/// Position of the device's identity in a superblock.
const UUID_AT: std::ops::Range<usize> = 16..32;
/// Name for data without a known signature.
const UNKNOWN: &str = "unknown data";
/// Single blocks looked at in the rest of the device.
const SAMPLES: u64 = 256;

/// Returns the foreign format that a device beginning with `head` has. The first blocks suffice.
pub(crate) fn foreign_signature(head: &[u8]) -> Option<&'static str> {
    let found = |(_, at, bytes): &&(&str, usize, &[u8])| {
        head.get(*at..).is_some_and(|head| head.starts_with(bytes))
    };
    SIGNATURES.iter().find(found).map(|(name, ..)| *name)
}

/// Finds out what lies on `device`, without changing it.
///
/// A device is ours if its first superblock is whole. Else its last one may say so, unless the start looks like someone
/// else's.
///
/// # Errors
/// The device cannot be read, as far as it takes to tell.
pub async fn probe<D: Device>(device: &D) -> Result<Probe, DeviceError> {
    if device.limits().blocks == 0 {
        return Ok(Probe::Blank);
    }
    let copies = Copies::read(device).await?;
    match copies.head {
        // If the device has shrunk, opening it reports that.
        Copy::Whole(head) => return Ok(Probe::Farflash(copies.counting().unwrap_or(head))),
        Copy::Damaged(DecodeError::Version(version)) => return Ok(Probe::OtherVersion(version)),
        Copy::Damaged(error) if copies.head.is_sealed() => return Ok(Probe::Damaged(error)),
        Copy::Damaged(_) | Copy::Unreadable(_) => {}
    }
    let head = Head::read(device).await?;
    let signature = foreign_signature(&head.bytes);
    if let Some(superblock) = copies.fitting_tail() {
        return Ok(match signature {
            Some(by) => Probe::Overwritten { by, superblock },
            None if is_left_as_it_was(device, &head, &superblock).await? => {
                Probe::Farflash(superblock)
            }
            None => Probe::Overwritten { by: UNKNOWN, superblock },
        });
    }
    // Neither superblock is where it is looked for, but roots may be: it is damaged, or has grown.
    let is_trace = grow::traces(device).await?.is_some();
    if let Some(name) = signature {
        return Ok(match is_trace {
            true => Probe::Traces { by: name },
            false => Probe::Foreign(name),
        });
    }
    match copies.tail {
        Copy::Damaged(DecodeError::Version(version)) => return Ok(Probe::OtherVersion(version)),
        Copy::Unreadable(error) => return Err(error),
        Copy::Whole(_) | Copy::Damaged(_) => {}
    }
    if let Some(error) = head.error {
        return Err(error);
    }
    for copy in [copies.head, copies.tail] {
        if let Copy::Damaged(error) = copy
            && error != DecodeError::Magic
        {
            return Ok(Probe::Damaged(error));
        }
    }
    if is_trace {
        return Ok(Probe::Damaged(DecodeError::Magic));
    }
    let is_blank = is_zero(&head.bytes) && is_blank_in_samples(device).await?;
    Ok(if is_blank { Probe::Blank } else { Probe::Foreign(UNKNOWN) })
}

/// The start of a device.
struct Head {
    /// Zeroes in the place of what cannot be read.
    bytes: Vec<u8>,
    /// Why something cannot.
    error: Option<DeviceError>,
}

impl Head {
    async fn read<D: Device>(device: &D) -> Result<Self, DeviceError> {
        let count = device.limits().blocks.min(HEAD_BLOCKS);
        let mut head = Self { bytes: Vec::new(), error: None };
        // One by one: what is beside a block that cannot be read may tell enough.
        for pba in (0..count).map(Pba) {
            match device.read(pba, Buffer::new(1)).await {
                Ok(block) => head.bytes.extend_from_slice(block.as_bytes()),
                Err(error @ DeviceError::Io { .. }) => {
                    head.bytes.resize(head.bytes.len() + BLOCK_SIZE, 0);
                    head.error = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(head)
    }
}

/// Returns whether the start of a device whose last superblock is whole was not overwritten: the
/// rest of the first superblock agrees, or most of the shard roots behind it are this device's.
async fn is_left_as_it_was<D: Device>(
    device: &D,
    head: &Head,
    superblock: &Superblock,
) -> Result<bool, DeviceError> {
    let block = &head.bytes[..BLOCK_SIZE];
    if block.starts_with(&SUPERBLOCK_MAGIC)
        || block[UUID_AT].starts_with(superblock.uuid.as_bytes())
    {
        return Ok(true);
    }
    let (mut ours, mut others) = (0, 0);
    for shard in 0..superblock.shard_slots {
        for place in [0, 1].map(|parity| superblock.root_places(shard, parity)[0]) {
            let root = match device.read(place, Buffer::new(1)).await {
                Ok(root) => root,
                Err(DeviceError::Io { .. }) => continue,
                Err(error) => return Err(error),
            };
            match Root::decode(root.as_bytes()) {
                Ok(root) if root.device == superblock.uuid => ours += 1,
                _ if is_zero(root.as_bytes()) => {}
                _ => others += 1,
            }
        }
    }
    // Without roots of either kind, only an empty or unreadable first block counts as not
    // overwritten.
    Ok(ours > others || (others == 0 && is_zero(block)))
}

/// Returns whether all samples behind the start are zeroes.
async fn is_blank_in_samples<D: Device>(device: &D) -> Result<bool, DeviceError> {
    let blocks = device.limits().blocks;
    let samples = SAMPLES.min(blocks);
    let place = |sample: u64| u128::from(blocks) * u128::from(sample) / u128::from(samples);
    let places = (0..samples).map(|sample| u64::try_from(place(sample)).expect("less than blocks"));
    for pba in places.chain([blocks - 1]).map(Pba) {
        if !is_zero(device.read(pba, Buffer::new(1)).await?.as_bytes()) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Makes `device` ours: all that was on it is lost.
///
/// # Errors
/// Its size is out of bounds, or it cannot be written.
pub async fn format<D: Device>(
    device: &D,
    options: &FormatOptions,
) -> Result<Superblock, FormatError> {
    let blocks = device.limits().blocks;
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
    let blocks = device.limits().blocks;
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
