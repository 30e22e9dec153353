//! Journal records: the only way in which a change becomes durable between checkpoints.
//!
//! ```text
//! 0       4        8          16            24       40        48    52     54       56      60
//! +-------+--------+----------+-------------+--------+---------+-----+-------+--------+-------+
//! | magic | crc32c | sequence | incarnation | device | settled | prev| shard | blocks | count |
//! +-------+--------+----------+-------------+--------+---------+-----+-------+--------+-------+
//! 60 entries_len   64 generation   72 entries, one after the other; zeroes
//! the last 24 bytes of the last block: secret, applied, failed
//! ```
//! - JOURNAL-1: a record lies in the block behind its predecessor, or, if it would not fit before the end
//!   of the journal, in block 0.
//! - JOURNAL-2: record `n + 1` carries the checksum of record `n` and the same incarnation, so a stale
//!   record is never taken for the continuation.
//! - JOURNAL-3: data and record are written together. `settled` says up to which record all data is known
//!   to be on the media; only the writes of later ones are compared with their checksums on replay.
//! - JOURNAL-4: all entries of a record count, or none.
//! - JOURNAL-5: `generation` is that of the last durable root when the record was made, so that a record
//!   tells whether the newest root was lost.
//! - JOURNAL-6: a write that failed keeps `settled` below it until it is undone. `applied` and `failed`
//!   say what is known meanwhile: records up to the former are durable, with all their data but
//!   that of writes in those that the latter names. Zeroes say nothing. A record whose entries
//!   reach into the last bytes has none of it.
//! - JOURNAL-7: `secret` is that of the root, which no tenant knows. Blocks of the journal may hold bytes
//!   that a tenant chose: metadata or checksums of its blocks within a record, or data that lay
//!   there before. The tenant could make them look like records.

use core::mem::{offset_of, size_of};

use alloc::vec::Vec;
use units::BLOCK_SIZE;
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{DecodeError, Entry, seal, sealed};

const RECORD_MAGIC: [u8; 4] = *b"FJR1";
/// Most blocks of a record: 256 KiB.
pub const RECORD_BLOCKS_MAX: u16 = 64;

/// Head of a record, format 1.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordHeader {
    /// 0..4: `FJR1`.
    magic: [u8; 4],
    /// 4..8: CRC-32C of all that follows, padding included.
    crc32c: U32,
    /// 8..16: JOURNAL-2: one more than its predecessor.
    sequence: U64,
    /// 16..24: JOURNAL-2: which start of the shard wrote it.
    incarnation: U64,
    /// 24..40: identity of the device.
    device: [u8; 16],
    /// 40..48: JOURNAL-3: data of records up to this sequence is on the media.
    settled: U64,
    /// 48..52: JOURNAL-2: checksum of the record before.
    previous_crc: U32,
    /// 52..54: which shard.
    shard: U16,
    /// 54..56: blocks of the record.
    blocks: U16,
    /// 56..60: number of entries.
    count: U32,
    /// 60..64: bytes of entries.
    entries_len: U32,
    /// 64..72: JOURNAL-5: generation of the last durable root.
    generation: U64,
}

/// A record's statements on those before it, in the last bytes of its last block (JOURNAL-6, JOURNAL-7).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordTail {
    /// The secret that only records of the shard have.
    secret: U64,
    /// Records up to this one are durable.
    applied: U64,
    /// Bit `n`: record `settled + 1 + n` has a write that failed and is not undone.
    failed: U64,
}

/// Bytes before the first entry.
pub const RECORD_HEADER_SIZE: usize = size_of::<RecordHeader>();
const TAIL_SIZE: usize = size_of::<RecordTail>();
/// Most bytes of entries of a record.
pub const RECORD_ENTRIES_MAX: usize =
    RECORD_BLOCKS_MAX as usize * BLOCK_SIZE - RECORD_HEADER_SIZE - TAIL_SIZE;
const _: () = {
    assert!(TAIL_SIZE == 24 && offset_of!(RecordTail, failed) == 16);
    assert!(RECORD_HEADER_SIZE == 72 && offset_of!(RecordHeader, generation) == 64);
    assert!(offset_of!(RecordHeader, settled) == 40 && offset_of!(RecordHeader, count) == 56);
};

/// The head of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecordHead {
    /// One more than the record before.
    pub sequence: u64,
    /// The start of the shard that wrote it.
    pub incarnation: u64,
    /// Identity of the device.
    pub device: Uuid,
    /// The shard.
    pub shard: u16,
    /// Data of records up to this one is on the media.
    pub settled: u64,
    /// Checksum of the record before.
    pub previous_crc: u32,
    /// Generation of the last durable root when it was made.
    pub generation: u64,
    /// Records up to this one are durable (JOURNAL-6).
    pub applied: u64,
    /// Bit `n`: record `settled + 1 + n` has a write that failed and is not undone (JOURNAL-6).
    pub failed: u64,
    /// That of the root (JOURNAL-7).
    pub secret: u64,
}

impl RecordHead {
    /// Returns whether it says that an earlier record is durable.
    #[must_use]
    pub const fn proves(&self, sequence: u64) -> bool {
        sequence <= self.settled || sequence <= self.applied
    }

    /// Returns whether it says that all data of an earlier record is on the media (JOURNAL-3, JOURNAL-6).
    #[must_use]
    pub fn proves_data(&self, sequence: u64) -> bool {
        let Some(bit) = sequence.checked_sub(self.settled.saturating_add(1)) else { return true };
        let is_sound =
            |bit| u32::try_from(bit).is_ok_and(|bit| self.failed.unbounded_shr(bit) & 1 == 0);
        sequence <= self.applied && bit < u64::from(u64::BITS) && is_sound(bit)
    }
}

/// Blocks that a record with this many bytes of entries takes.
#[must_use]
pub const fn record_blocks(entries_len: usize) -> usize {
    (RECORD_HEADER_SIZE + entries_len + TAIL_SIZE).div_ceil(BLOCK_SIZE)
}

/// Completes a record whose entries already lie behind the header, and returns its checksum.
///
/// `bytes` is the whole record, [`record_blocks`] long. Panics if it is not.
pub fn seal_record(bytes: &mut [u8], head: &RecordHead, count: u32, entries_len: usize) -> u32 {
    let blocks = record_blocks(entries_len);
    assert!(bytes.len() == blocks * BLOCK_SIZE && blocks <= usize::from(RECORD_BLOCKS_MAX));
    let header = RecordHeader {
        magic: RECORD_MAGIC,
        crc32c: U32::ZERO,
        sequence: head.sequence.into(),
        incarnation: head.incarnation.into(),
        device: *head.device.as_bytes(),
        settled: head.settled.into(),
        previous_crc: head.previous_crc.into(),
        shard: head.shard.into(),
        blocks: u16::try_from(blocks).expect("bounded above").into(),
        count: count.into(),
        entries_len: u32::try_from(entries_len).expect("bounded above").into(),
        generation: head.generation.into(),
    };
    bytes[..RECORD_HEADER_SIZE].copy_from_slice(header.as_bytes());
    bytes[RECORD_HEADER_SIZE + entries_len..].fill(0);
    let tail = RecordTail {
        secret: head.secret.into(),
        applied: head.applied.into(),
        failed: head.failed.into(),
    };
    let at = bytes.len() - TAIL_SIZE;
    bytes[at..].copy_from_slice(tail.as_bytes());
    seal(bytes, 4);
    u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"))
}

/// A whole record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// Its head.
    pub head: RecordHead,
    /// Its own checksum.
    pub crc: u32,
    /// Blocks that it takes.
    pub blocks: u16,
    /// The changes, in order.
    pub entries: Vec<Entry<'static>>,
}

impl Record {
    /// Returns the number of blocks that the record beginning in this block claims to take, if it
    /// looks like one.
    #[must_use]
    pub fn peek_blocks(block: &[u8]) -> Option<u16> {
        let (header, _) = RecordHeader::ref_from_prefix(block).ok()?;
        let blocks = header.blocks.get();
        (header.magic == RECORD_MAGIC && (1..=RECORD_BLOCKS_MAX).contains(&blocks))
            .then_some(blocks)
    }

    /// Reads the record at the start of `bytes`, which may go on behind it.
    ///
    /// # Errors
    /// There is no whole record: an empty place, a torn write, another structure.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (header, _) = RecordHeader::ref_from_prefix(bytes).map_err(|_| DecodeError::Short)?;
        let blocks = Self::peek_blocks(bytes).ok_or(DecodeError::Magic)?;
        let bytes = bytes.get(..usize::from(blocks) * BLOCK_SIZE).ok_or(DecodeError::Short)?;
        if !sealed(bytes, 4) {
            return Err(DecodeError::Checksum);
        }
        let entries_len = usize::try_from(header.entries_len.get()).unwrap_or(usize::MAX);
        let (mut rest, behind_entries) = bytes[RECORD_HEADER_SIZE..]
            .split_at_checked(entries_len)
            .ok_or(DecodeError::Field("record length"))?;
        let mut entries = Vec::new();
        for _ in 0..header.count.get() {
            let (entry, behind) = Entry::decode(rest)?;
            entries.push(entry);
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(DecodeError::Field("record length"));
        }
        let tail = RecordTail::read_from_suffix(behind_entries).map(|(_, tail)| tail).ok();
        let head = RecordHead {
            sequence: header.sequence.get(),
            incarnation: header.incarnation.get(),
            device: Uuid::from_bytes(header.device),
            shard: header.shard.get(),
            settled: header.settled.get(),
            previous_crc: header.previous_crc.get(),
            generation: header.generation.get(),
            applied: tail.map_or(0, |tail| tail.applied.get()),
            failed: tail.map_or(0, |tail| tail.failed.get()),
            secret: tail.map_or(0, |tail| tail.secret.get()),
        };
        Ok(Self { head, crc: header.crc32c.get(), blocks, entries })
    }
}

#[cfg(test)]
mod tests {
    use alloc::borrow::Cow;

    use units::{Lba, LbaRange, Pba, PbaRange};

    use super::*;

    fn head() -> RecordHead {
        RecordHead {
            sequence: 1,
            incarnation: 2,
            device: Uuid::from_u128(3),
            shard: 4,
            settled: 5,
            previous_crc: 6,
            generation: 7,
            applied: 8,
            failed: 9,
            secret: 10,
        }
    }

    fn entries() -> Vec<Entry<'static>> {
        let runs = vec![PbaRange::new(Pba((1 << 40) - 1), 1), PbaRange::new(Pba(1000), 2)];
        vec![
            Entry::Write {
                volume: 7,
                lba: Lba(1 << 50),
                trusted: false,
                runs: runs.into(),
                crcs: vec![1, 2, u32::MAX].into(),
                metadata: Cow::Borrowed(&[]),
            },
            Entry::Write {
                volume: 9,
                lba: Lba(6),
                trusted: true,
                runs: vec![PbaRange::new(Pba(8), 2)].into(),
                crcs: vec![5, 6].into(),
                metadata: (1..=32).collect(),
            },
            Entry::Unmap { volume: 7, range: LbaRange::new(Lba(9), 1 << 51) },
            Entry::Reserve { extent: 70_000 },
            Entry::Create {
                volume: 8,
                uuid: Uuid::from_u128(1 << 100),
                blocks: 1 << 51,
                slo: units::Slo::Share { weight: 3 },
                name: "volume".into(),
                access: vec![1, 2, 3].into(),
            },
            Entry::Resize { volume: 8, blocks: 0 },
            Entry::SetSlo {
                volume: 8,
                slo: units::Slo::Rate { reads_per_second: 1 << 40, writes_per_second: 1 << 33 },
            },
            Entry::SetAccess { volume: 8, access: vec![9; 77].into() },
            Entry::Delete { volume: 8 },
        ]
    }

    fn encode(entries: &[Entry]) -> Vec<u8> {
        let len: usize = entries.iter().map(Entry::len_bytes).sum();
        let mut bytes = vec![0xA5; record_blocks(len) * BLOCK_SIZE];
        let mut at = RECORD_HEADER_SIZE;
        for entry in entries {
            at += entry.encode(&mut bytes[at..]);
        }
        seal_record(&mut bytes, &head(), entries.len() as u32, len);
        bytes
    }

    #[test]
    fn a_record_survives_encode_then_decode() {
        let bytes = encode(&entries());
        let record = Record::decode(&bytes).expect("just encoded");
        assert_eq!((record.head, record.entries), (head(), entries()));
        let many = vec![entries().remove(0); 2000];
        let bytes = encode(&many);
        assert_eq!(Record::decode(&bytes).expect("just encoded").entries, many);
        assert_eq!(Record::decode(&bytes[..BLOCK_SIZE]), Err(DecodeError::Short));
    }

    /// The checksum is all that tells a torn record from a whole one, so no byte may escape it.
    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let mut bytes = encode(&entries());
        for byte in 0..bytes.len() {
            bytes[byte] ^= 0x10;
            assert!(Record::decode(&bytes).is_err(), "byte {byte}");
            bytes[byte] ^= 0x10;
        }
    }

    /// JOURNAL-6, JOURNAL-7, of records whose end is taken by entries, as other programs may write them: there is
    /// nothing else.
    #[test]
    fn what_a_record_says_of_others_lies_at_its_end() {
        let bytes = encode(&entries());
        let at = bytes.len() - 24;
        let numbers = [10_u64, 8, 9].map(u64::to_le_bytes);
        assert_eq!(bytes[at..], numbers.concat());
        let entries =
            [2048, 1924].map(|len| Entry::SetAccess { volume: 1, access: vec![9; len].into() });
        let len: usize = entries.iter().map(Entry::len_bytes).sum();
        assert_eq!((RECORD_HEADER_SIZE + len, record_blocks(len)), (BLOCK_SIZE - 4, 2));
        let mut bytes = vec![0; 2 * BLOCK_SIZE];
        let mut at = RECORD_HEADER_SIZE;
        for entry in &entries {
            at += entry.encode(&mut bytes[at..]);
        }
        seal_record(&mut bytes, &head(), 2, len);
        bytes.truncate(BLOCK_SIZE);
        bytes[54] = 1;
        seal(&mut bytes, 4);
        let record = Record::decode(&bytes).expect("whole");
        let head = record.head;
        assert_eq!((head.secret, head.applied, head.failed), (0, 0, 0));
        assert_eq!(record.entries, entries);
    }

    #[test]
    fn a_record_proves_what_it_says_of_others() {
        let head = RecordHead { settled: 10, applied: 90, failed: 0b101, ..head() };
        let durable = |sequence| head.proves(sequence);
        assert!(durable(10) && durable(11) && durable(90) && !durable(91));
        let sound: Vec<u64> = (1..200).filter(|sequence| head.proves_data(*sequence)).collect();
        let expected: Vec<u64> = (1..=10).chain([12]).chain(14..=74).collect();
        assert_eq!(sound, expected, "of what is 64 records behind nothing is said");
        let endless = RecordHead { settled: u64::MAX, ..head };
        assert!(endless.proves(u64::MAX) && endless.proves_data(u64::MAX - 1));
        let silent = RecordHead { applied: 0, failed: 0, ..head };
        assert!(silent.proves(10) && !silent.proves(11) && !silent.proves_data(11));
    }

    #[test]
    fn a_write_entry_has_the_bytes_of_the_picture() {
        let mut bytes = [0xA5; 40];
        let entry = Entry::Write {
            volume: 7,
            lba: Lba(0x1122),
            trusted: true,
            runs: vec![PbaRange::new(Pba(0x55), 1)].into(),
            crcs: vec![0xA1B2_C3D4].into(),
            metadata: Cow::Borrowed(&[]),
        };
        assert_eq!(entry.encode(&mut bytes), 36);
        assert_eq!(bytes[..8], [1, 1, 1, 0, 1, 0, 0, 0]);
        assert_eq!(bytes[8..24], [7, 0, 0, 0, 0, 0, 0, 0, 0x22, 0x11, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[24..36], [0x55, 0, 0, 0, 0, 1, 0, 0, 0xD4, 0xC3, 0xB2, 0xA1]);
    }

    #[test]
    fn metadata_of_blocks_lies_behind_their_checksums() {
        let mut bytes = [0xA5; 48];
        let entry = Entry::Write {
            volume: 7,
            lba: Lba(0),
            trusted: false,
            runs: vec![PbaRange::new(Pba(0x55), 1)].into(),
            crcs: vec![1].into(),
            metadata: vec![0x77; 8].into(),
        };
        assert_eq!((entry.encode(&mut bytes), bytes[1]), (44, 0x30));
        assert_eq!((bytes[35], bytes[36..44] == [0x77; 8], bytes[44]), (0, true, 0xA5));
        bytes[1] = 0x50;
        let unknown = Err(DecodeError::Field("metadata of blocks"));
        assert_eq!(Entry::decode(&bytes).map(drop), unknown);
    }
}
