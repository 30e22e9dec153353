//! Entries of a journal record: one change each.
//!
//! ```text
//! 0      1       2        4        8         12     16      24
//! +------+-------+--------+--------+---------+------+-------+----------------------------------+
//! | kind | flags | length | blocks | subject | rsvd | value | write: runs, 8 B each; then CRCs, |
//! |                                                         | then metadata of the blocks      |
//! +------+-------+--------+--------+---------+------+-------+----------------------------------+
//! ```
//! `subject` is the volume number, or the extent for [`Entry::Reserve`]. `value` is an address or a
//! size in blocks, `blocks` the low half of a number of blocks and `rsvd` its high half.

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::mem::size_of;

use units::{Lba, LbaRange, MetadataSize, PbaRange, Slo};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::mapping::{pack_run, unpack_run};
use crate::metadata::{metadata_code, metadata_size};
use crate::slo::PackedSlo;
use crate::{ACCESS_BYTES_MAX, DecodeError, KEY_LIMIT, NAME_BYTES_MAX, VOLUME_BLOCKS_MAX};

const KIND_WRITE: u8 = 1;
const KIND_UNMAP: u8 = 2;
const KIND_RESERVE: u8 = 3;
const KIND_CREATE: u8 = 4;
const KIND_RESIZE: u8 = 5;
const KIND_DELETE: u8 = 6;
const KIND_SET_SLO: u8 = 7;
const KIND_SET_ACCESS: u8 = 8;
const FLAG_TRUSTED: u8 = 1;
const FLAG_SLO: u8 = 1;
/// Bits of a write that have no meaning.
const WRITE_FLAGS_RESERVED: u8 = 0b1110;
/// Position of the bits in the flags of a write that hold the metadata size of its blocks.
const METADATA_SHIFT: u32 = 4;
const SLO_SIZE: usize = size_of::<PackedSlo>();
/// Most blocks of one write, hence the atomic size: 8 MiB.
pub const WRITE_BLOCKS_MAX: u64 = 2048;

/// Head of an entry, format 1.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EntryHeader {
    /// 0: which change.
    kind: u8,
    /// 1: write: bit 0: the data was known good, do not verify it; bits 7:4: metadata of each block,
    /// as in a descriptor. Create: bit 0: an SLO follows the UUID. Set SLO: its kind.
    flags: u8,
    /// 2..4: write: number of runs; create: bytes of the name; set access: bytes of it.
    length: U16,
    /// 4..8: number of blocks, low half; create: bytes of the access, which follows the name.
    blocks: U32,
    /// 8..12: volume or extent.
    subject: U32,
    /// 12..16: number of blocks, high half.
    blocks_high: U32,
    /// 16..24: first block, or size, or the first number of an SLO, whose second is `blocks`.
    value: U64,
}

const HEADER_SIZE: usize = size_of::<EntryHeader>();
const _: () = assert!(HEADER_SIZE == 24);

/// One change to a shard.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Entry<'a> {
    /// Blocks of a volume lie somewhere new.
    Write {
        /// Volume number.
        volume: u32,
        /// First block.
        lba: Lba,
        /// True if the data was on the media before the entry was made, so that it is not compared
        /// with the checksums on replay.
        trusted: bool,
        /// Locations of the blocks, in order.
        runs: Cow<'a, [PbaRange]>,
        /// CRC-32C of each block.
        crcs: Cow<'a, [u32]>,
        /// Metadata of each block, one after the other.
        metadata: Cow<'a, [u8]>,
    },
    /// Blocks of a volume lie nowhere.
    Unmap {
        /// Volume number.
        volume: u32,
        /// The blocks.
        range: LbaRange,
    },
    /// The shard owns one more extent.
    Reserve {
        /// The extent.
        extent: u32,
    },
    /// There is a new volume.
    Create {
        /// Volume number.
        volume: u32,
        /// Identity.
        uuid: Uuid,
        /// Size in blocks.
        blocks: u64,
        /// The service level objective.
        slo: Slo,
        /// Name for people.
        name: Cow<'a, str>,
        /// The access list; opaque here.
        access: Cow<'a, [u8]>,
    },
    /// A volume has a new size.
    Resize {
        /// Volume number.
        volume: u32,
        /// Size in blocks.
        blocks: u64,
    },
    /// A volume is promised something else.
    SetSlo {
        /// Volume number.
        volume: u32,
        /// The new service level objective.
        slo: Slo,
    },
    /// Others may open a volume.
    SetAccess {
        /// Volume number.
        volume: u32,
        /// The new access list; opaque here.
        access: Cow<'a, [u8]>,
    },
    /// A volume is gone.
    Delete {
        /// Volume number.
        volume: u32,
    },
}

/// Bytes of an SLO in a create entry: the default needs none.
fn slo_len(slo: Slo) -> usize {
    if slo == Slo::default() { 0 } else { SLO_SIZE }
}

/// Bytes that `len` bytes take with zeroes behind them.
const fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// Bytes of a write entry.
#[must_use]
pub const fn write_entry_len(runs: usize, blocks: usize, metadata_len: usize) -> usize {
    HEADER_SIZE + runs * 8 + blocks * 4 + metadata_len
}

/// Metadata of each of `blocks` blocks that have `len` bytes of it. Panics if there is no such.
fn size_of_each(len: usize, blocks: usize) -> MetadataSize {
    let each = if len == 0 { 0 } else { len / blocks.max(1) };
    let size = MetadataSize::from_bytes(each as u64).filter(|size| size.bytes() * blocks == len);
    size.expect("each block has as much metadata, of a size that there is")
}

impl Entry<'_> {
    /// Bytes that the entry takes in a record.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Write { runs, crcs, metadata, .. } => {
                write_entry_len(runs.len(), crcs.len(), metadata.len())
            }
            Self::Create { slo, name, access, .. } => {
                let texts = padded(name.len()) + padded(access.len());
                HEADER_SIZE + 16 + slo_len(*slo) + texts
            }
            Self::SetAccess { access, .. } => HEADER_SIZE + padded(access.len()),
            _ => HEADER_SIZE,
        }
    }

    /// Writes the entry to the start of `bytes` and returns its length. Panics if it does not fit.
    pub fn encode(&self, bytes: &mut [u8]) -> usize {
        let len = self.len_bytes();
        let (head, body) = bytes[..len].split_at_mut(HEADER_SIZE);
        head.copy_from_slice(self.header().as_bytes());
        match self {
            Self::Write { runs, crcs, metadata, .. } => {
                let (run_bytes, rest) = body.split_at_mut(runs.len() * 8);
                let (crc_bytes, metadata_bytes) = rest.split_at_mut(crcs.len() * 4);
                metadata_bytes.copy_from_slice(metadata);
                for (place, run) in run_bytes.chunks_exact_mut(8).zip(runs.iter()) {
                    place.copy_from_slice(&pack_run(*run).to_le_bytes());
                }
                for (place, crc) in crc_bytes.chunks_exact_mut(4).zip(crcs.iter()) {
                    place.copy_from_slice(&crc.to_le_bytes());
                }
            }
            Self::Create { uuid, slo, name, access, .. } => {
                body.fill(0);
                let (id, rest) = body.split_at_mut(16);
                id.copy_from_slice(uuid.as_bytes());
                let (promise, rest) = rest.split_at_mut(slo_len(*slo));
                promise.copy_from_slice(&PackedSlo::from(*slo).as_bytes()[..promise.len()]);
                rest[..name.len()].copy_from_slice(name.as_bytes());
                rest[padded(name.len())..][..access.len()].copy_from_slice(access);
            }
            Self::SetAccess { access, .. } => {
                body.fill(0);
                body[..access.len()].copy_from_slice(access);
            }
            _ => {}
        }
        len
    }

    fn header(&self) -> EntryHeader {
        let (kind, flags, length, blocks, subject, value) = match self {
            Self::Write { volume, lba, trusted, runs, crcs, metadata } => {
                let size = metadata_code(size_of_each(metadata.len(), crcs.len()));
                let flags = if *trusted { FLAG_TRUSTED } else { 0 } | size << METADATA_SHIFT;
                (KIND_WRITE, flags, runs.len(), crcs.len() as u64, *volume, lba.0)
            }
            Self::Unmap { volume, range } => {
                (KIND_UNMAP, 0, 0, range.blocks, *volume, range.start.0)
            }
            Self::Reserve { extent } => (KIND_RESERVE, 0, 0, 0, *extent, 0),
            Self::Create { volume, blocks, slo, name, access, .. } => {
                let flags = if slo_len(*slo) > 0 { FLAG_SLO } else { 0 };
                (KIND_CREATE, flags, name.len(), access.len() as u64, *volume, *blocks)
            }
            Self::Resize { volume, blocks } => (KIND_RESIZE, 0, 0, 0, *volume, *blocks),
            Self::SetSlo { volume, slo } => {
                let (kind, first, second) = PackedSlo::from(*slo).parts();
                (KIND_SET_SLO, kind, 0, second, *volume, first)
            }
            Self::SetAccess { volume, access } => (KIND_SET_ACCESS, 0, access.len(), 0, *volume, 0),
            Self::Delete { volume } => (KIND_DELETE, 0, 0, 0, *volume, 0),
        };
        EntryHeader {
            kind,
            flags,
            length: u16::try_from(length).expect("a bounded number of runs").into(),
            blocks: U32::new((blocks & 0xFFFF_FFFF) as u32),
            subject: subject.into(),
            blocks_high: U32::new((blocks >> 32) as u32),
            value: value.into(),
        }
    }
}

impl Entry<'static> {
    /// Reads the entry at the start of `bytes`, and returns what follows it.
    ///
    /// # Errors
    /// The bytes are no entry.
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let (header, rest) = EntryHeader::ref_from_prefix(bytes).map_err(|_| DecodeError::Short)?;
        let subject = header.subject.get();
        let value = header.value.get();
        let blocks = u64::from(header.blocks.get()) | u64::from(header.blocks_high.get()) << 32;
        let reserved = match header.kind {
            KIND_WRITE => WRITE_FLAGS_RESERVED,
            KIND_CREATE => !FLAG_SLO,
            // The kind of an SLO, which its own decoder checks.
            KIND_SET_SLO => 0,
            _ => !0,
        };
        if header.flags & reserved != 0 {
            return Err(DecodeError::Field("entry flags"));
        }
        match header.kind {
            KIND_WRITE => decode_write(header, blocks, rest),
            KIND_UNMAP => {
                let range = checked_range(Lba(value), blocks)?;
                Ok((Self::Unmap { volume: subject, range }, rest))
            }
            KIND_RESERVE => Ok((Self::Reserve { extent: subject }, rest)),
            KIND_CREATE => decode_create(header, blocks, rest),
            KIND_RESIZE if value <= VOLUME_BLOCKS_MAX => {
                Ok((Self::Resize { volume: subject, blocks: value }, rest))
            }
            KIND_SET_SLO => {
                let slo = PackedSlo::new(header.flags, value, blocks).unpack()?;
                Ok((Self::SetSlo { volume: subject, slo }, rest))
            }
            KIND_SET_ACCESS => {
                let len = usize::from(header.length.get());
                let (access, rest) = take_access(len, rest)?;
                Ok((Self::SetAccess { volume: subject, access }, rest))
            }
            KIND_DELETE => Ok((Self::Delete { volume: subject }, rest)),
            _ => Err(DecodeError::Field("entry kind or size")),
        }
    }
}

fn checked_range(start: Lba, blocks: u64) -> Result<LbaRange, DecodeError> {
    match start.checked_add(blocks) {
        Some(end) if end.0 < KEY_LIMIT => Ok(LbaRange::new(start, blocks)),
        _ => Err(DecodeError::Field("entry range")),
    }
}

fn decode_write<'b>(
    header: &EntryHeader,
    blocks: u64,
    rest: &'b [u8],
) -> Result<(Entry<'static>, &'b [u8]), DecodeError> {
    let range = checked_range(Lba(header.value.get()), blocks)?;
    if !(1..=WRITE_BLOCKS_MAX).contains(&blocks) {
        return Err(DecodeError::Field("entry block count"));
    }
    let run_len = usize::from(header.length.get()) * 8;
    let count = usize::try_from(blocks).expect("bounded above");
    let metadata_len = count * metadata_size(header.flags >> METADATA_SHIFT)?.bytes();
    let (run_bytes, rest) = rest.split_at_checked(run_len).ok_or(DecodeError::Short)?;
    let (crc_bytes, rest) = rest.split_at_checked(count * 4).ok_or(DecodeError::Short)?;
    let (metadata, rest) = rest.split_at_checked(metadata_len).ok_or(DecodeError::Short)?;
    let runs: Vec<PbaRange> = run_bytes
        .chunks_exact(8)
        .map(|run| unpack_run(u64::from_le_bytes(run.try_into().expect("eight bytes"))))
        .collect();
    if runs.iter().map(|run| run.blocks).sum::<u64>() != blocks {
        return Err(DecodeError::Field("entry runs"));
    }
    let crcs: Vec<u32> = crc_bytes
        .chunks_exact(4)
        .map(|crc| u32::from_le_bytes(crc.try_into().expect("four bytes")))
        .collect();
    let entry = Entry::Write {
        volume: header.subject.get(),
        lba: range.start,
        trusted: header.flags & FLAG_TRUSTED != 0,
        runs: runs.into(),
        crcs: crcs.into(),
        metadata: Cow::Owned(metadata.into()),
    };
    Ok((entry, rest))
}

/// The access of `len` bytes at the start of `bytes`, and what follows its padding.
fn take_access(len: usize, bytes: &[u8]) -> Result<(Cow<'static, [u8]>, &[u8]), DecodeError> {
    if len > ACCESS_BYTES_MAX {
        return Err(DecodeError::Field("access length"));
    }
    let (access, rest) = bytes.split_at_checked(padded(len)).ok_or(DecodeError::Short)?;
    Ok((Cow::Owned(access[..len].into()), rest))
}

fn decode_create<'b>(
    header: &EntryHeader,
    access_len: u64,
    rest: &'b [u8],
) -> Result<(Entry<'static>, &'b [u8]), DecodeError> {
    let name_len = usize::from(header.length.get());
    let blocks = header.value.get();
    if name_len > NAME_BYTES_MAX || blocks > VOLUME_BLOCKS_MAX {
        return Err(DecodeError::Field("volume name or size"));
    }
    let has_slo = header.flags & FLAG_SLO != 0;
    let fixed = 16 + if has_slo { SLO_SIZE } else { 0 };
    let body = rest.get(..fixed + padded(name_len)).ok_or(DecodeError::Short)?;
    let uuid = Uuid::from_slice(&body[..16]).expect("sixteen bytes");
    let slo = match PackedSlo::ref_from_prefix(&body[16..]) {
        Ok((slo, _)) if has_slo => slo.unpack()?,
        _ => Slo::default(),
    };
    let name = core::str::from_utf8(&body[fixed..fixed + name_len])
        .map_err(|_| DecodeError::Field("volume name"))?;
    let name = Cow::Owned(name.into());
    let access_len = usize::try_from(access_len).unwrap_or(usize::MAX);
    let (access, behind) = take_access(access_len, &rest[body.len()..])?;
    let entry = Entry::Create { volume: header.subject.get(), uuid, blocks, slo, name, access };
    Ok((entry, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A create entry of the default promise and of no access is as short as can be.
    #[test]
    fn only_what_was_chosen_takes_space() {
        let create = |slo, access: &'static [u8]| Entry::Create {
            volume: 1,
            uuid: Uuid::from_u128(2),
            blocks: 3,
            slo,
            name: "four".into(),
            access: access.into(),
        };
        let chosen = Slo::Share { weight: 7 };
        for (slo, access, len) in
            [(Slo::default(), &[][..], 44), (chosen, &[], 68), (chosen, &[1, 2, 3, 4, 5], 76)]
        {
            let mut bytes = [0xA5; 80];
            assert_eq!(create(slo, access).encode(&mut bytes), len);
            let (decoded, rest) = Entry::decode(&bytes).expect("an entry");
            assert_eq!((decoded, rest.len()), (create(slo, access), 80 - len));
        }
    }

    /// A flag of a later program is refused, not left out.
    #[test]
    fn unknown_flags_are_refused() {
        let range = LbaRange::new(Lba(1), 1);
        let create = Entry::Create {
            volume: 1,
            uuid: Uuid::from_u128(2),
            blocks: 3,
            slo: Slo::default(),
            name: "four".into(),
            access: Cow::Borrowed(&[]),
        };
        let write = Entry::Write {
            volume: 1,
            lba: range.start,
            trusted: false,
            runs: alloc::vec![PbaRange::new(units::Pba(9), 1)].into(),
            crcs: alloc::vec![5].into(),
            metadata: Cow::Borrowed(&[]),
        };
        let entries = [
            (write, 0b1111_0001),
            (Entry::Unmap { volume: 1, range }, 0),
            (Entry::Reserve { extent: 1 }, 0),
            (create, 1),
            (Entry::Resize { volume: 1, blocks: 2 }, 0),
            (Entry::SetAccess { volume: 1, access: Cow::Borrowed(&[]) }, 0),
            (Entry::Delete { volume: 1 }, 0),
        ];
        for (entry, known) in entries {
            let mut bytes = [0; 80];
            entry.encode(&mut bytes);
            assert_eq!(Entry::decode(&bytes).expect("an entry").0, entry);
            for flag in (0..8).map(|bit| 1 << bit).filter(|flag| known & flag == 0) {
                bytes[1] = flag;
                let refused = Err(DecodeError::Field("entry flags"));
                assert_eq!(Entry::decode(&bytes), refused, "{flag:#x} in {entry:?}");
            }
        }
    }

    #[test]
    fn an_access_beyond_its_bound_is_refused() {
        for (len, outcome) in [(ACCESS_BYTES_MAX, true), (ACCESS_BYTES_MAX + 1, false)] {
            let entry = Entry::SetAccess { volume: 3, access: alloc::vec![7; len].into() };
            let mut bytes = alloc::vec![0xA5; entry.len_bytes()];
            entry.encode(&mut bytes);
            assert_eq!(Entry::decode(&bytes) == Ok((entry, &[][..])), outcome);
        }
    }
}
