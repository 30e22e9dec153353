//! Commands for logical blocks, as requests for the blocks that these lie in.
//!
//! A logical block of 4096 bytes is a block. A command for logical blocks of 512 bytes may begin and end within a block: its
//! write is one change all the same, and keeps the rest of its first block and of its last one.

use std::ops::Range;

use io_traits::{Buffer, Device};
use units::{BLOCK_SIZE, Lba, LbaRange, SectorSize};
use volume::{Volume, VolumeError};

use crate::memory::Share;
use crate::request::{BlockPart, PartPayload, Payload, Request};
use crate::sabotage::{Sabotage, broken};

/// Returns whether `part` is all of the blocks `range`.
fn is_all(range: LbaRange, part: &Range<usize>) -> bool {
    *part == (0..range.blocks as usize * BLOCK_SIZE)
}

/// The data that came for the bytes `part` of the blocks `range`, where these are.
fn placed(range: LbaRange, part: Range<usize>, payload: Payload) -> Box<PartPayload> {
    let mut buffer = Buffer::new(range.blocks as usize);
    buffer.as_mut_bytes()[part.clone()].copy_from_slice(payload.data.as_bytes());
    Box::new(PartPayload { buffer, part, share: payload.share })
}

/// Requests for logical blocks.
impl Request {
    /// Returns the logical blocks, at the place in the data that [`SectorSize::blocks_of`] tells.
    #[must_use]
    pub fn read(sector: SectorSize, range: LbaRange) -> Self {
        Self::Read(sector.blocks_of(range).0)
    }

    /// Reads and checks the logical blocks.
    #[must_use]
    pub fn verify(sector: SectorSize, range: LbaRange) -> Self {
        Self::Verify(sector.blocks_of(range).0)
    }

    /// Stores the logical blocks, which `data` is as many of.
    #[must_use]
    pub fn write(sector: SectorSize, range: LbaRange, data: Box<Payload>) -> Self {
        let (range, part) = sector.blocks_of(range);
        if is_all(range, &part) {
            return Self::Write { range, data };
        }
        Self::WritePart { range, data: placed(range, part, *data) }
    }

    /// Compares the logical blocks with `expected`.
    #[must_use]
    pub fn compare(sector: SectorSize, range: LbaRange, expected: Box<Payload>) -> Self {
        let (range, part) = sector.blocks_of(range);
        if is_all(range, &part) {
            return Self::Compare { range, expected };
        }
        Self::ComparePart { range, skip: part.start, expected }
    }

    /// Compares the logical blocks with `expected`, and stores `data` in their place if they are equal.
    #[must_use]
    pub fn compare_and_write(
        sector: SectorSize,
        range: LbaRange,
        expected: Box<Payload>,
        data: Box<Payload>,
    ) -> Self {
        let (range, part) = sector.blocks_of(range);
        if is_all(range, &part) {
            return Self::CompareAndWrite { range, expected, data };
        }
        Self::CompareAndWritePart { range, expected, data: placed(range, part, *data) }
    }

    /// Makes the logical blocks read as zeroes.
    #[must_use]
    pub fn write_zeroes(sector: SectorSize, range: LbaRange) -> Self {
        let (whole, ends) = split(sector, range);
        match whole {
            Some(range) if ends.is_empty() => Self::WriteZeroes(range),
            _ => Self::UnmapParts { ranges: whole.into_iter().collect(), ends, share: None },
        }
    }

    /// Deallocates the logical blocks: they read as zeroes from then on, also those that are a part of a block.
    #[must_use]
    pub fn unmap(sector: SectorSize, ranges: Vec<LbaRange>, share: Option<Share>) -> Self {
        if sector == SectorSize::Bytes4096 {
            return Self::Unmap { ranges, share };
        }
        // Ranges that touch within a block are whole blocks together.
        let ranges = volume::joined(&ranges);
        let (mut all, mut all_ends) = (Vec::with_capacity(ranges.len()), Vec::new());
        for range in ranges {
            let (whole, ends) = split(sector, range);
            all.extend(whole);
            all_ends.extend(ends);
        }
        match all_ends.is_empty() {
            true => Self::Unmap { ranges: all, share },
            false => Self::UnmapParts { ranges: all, ends: all_ends, share },
        }
    }
}

/// The blocks that lie wholly in the logical blocks `range`, and the parts of blocks before and behind them.
fn split(sector: SectorSize, range: LbaRange) -> (Option<LbaRange>, Vec<BlockPart>) {
    let (blocks, part) = sector.blocks_of(range);
    let whole = sector.whole_blocks_of(range);
    if range.blocks == 0 || whole == Some(blocks) {
        return (whole, Vec::new());
    }
    let (first, last) = (blocks.start, Lba(blocks.end().0 - 1));
    let end = part.end - (blocks.blocks as usize - 1) * BLOCK_SIZE;
    if first == last {
        return (whole, vec![BlockPart { lba: first, part: part.start..end }]);
    }
    let head = BlockPart { lba: first, part: part.start..BLOCK_SIZE };
    let tail = BlockPart { lba: last, part: 0..end };
    let is_part = |end: &BlockPart| end.part.len() < BLOCK_SIZE;
    (whole, [head, tail].into_iter().filter(is_part).collect())
}

/// Makes bytes of a block zeroes, and keeps the rest of it. A block without data stays so.
pub(crate) async fn zero_part<D: Device>(
    volume: &Volume<D>,
    BlockPart { lba, part }: BlockPart,
) -> Result<(), VolumeError> {
    let extents = volume.extents(LbaRange::new(lba, 1), 1).await?;
    if extents.iter().all(|extent| !extent.is_mapped) {
        return Ok(());
    }
    let part = if broken(Sabotage::ZeroWholeBlocks) { 0..BLOCK_SIZE } else { part };
    volume.write_part(lba, Buffer::zeroed(1), part).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(sectors: u64) -> Box<Payload> {
        let bytes: Vec<u8> = (0..sectors * 512).map(|n| (n / 512 + 1) as u8).collect();
        let data = Buffer::from_bytes(&bytes).into_slice().slice(0..bytes.len());
        Box::new(Payload { data, crcs: None, share: None })
    }

    fn range(start: u64, blocks: u64) -> LbaRange {
        LbaRange::new(Lba(start), blocks)
    }

    #[test]
    fn whole_blocks_of_small_sectors_are_plain_requests() {
        let small = SectorSize::Bytes512;
        let blocks = range(1, 2);
        let write = Request::write(small, range(8, 16), data(16));
        assert!(matches!(write, Request::Write { range, .. } if range == blocks));
        let compare = Request::compare(small, range(8, 16), data(16));
        assert!(matches!(compare, Request::Compare { range, .. } if range == blocks));
        let zeroes = Request::write_zeroes(small, range(8, 16));
        assert!(matches!(zeroes, Request::WriteZeroes(range) if range == blocks));
        let pair = Request::compare_and_write(small, range(8, 16), data(16), data(16));
        assert!(matches!(pair, Request::CompareAndWrite { range, .. } if range == blocks));
    }

    #[test]
    fn parts_of_blocks_lie_where_they_belong() {
        let small = SectorSize::Bytes512;
        let Request::WritePart { range: blocks, data: part } =
            Request::write(small, range(15, 2), data(2))
        else {
            panic!("a part of two blocks");
        };
        assert_eq!((blocks, part.part.clone()), (range(1, 2), 3584..4608));
        let bytes = &part.buffer.as_bytes()[part.part];
        assert!(bytes[..512].iter().all(|byte| *byte == 1));
        assert!(bytes[512..].iter().all(|byte| *byte == 2));
        let compare = Request::compare(small, range(9, 1), data(1));
        assert!(
            matches!(compare, Request::ComparePart { range, skip: 512, .. } if range.start == Lba(1))
        );
        let pair = Request::compare_and_write(small, range(3, 1), data(1), data(1));
        let Request::CompareAndWritePart { data: part, .. } = pair else { panic!("a part") };
        assert_eq!(part.part, 1536..2048);
    }

    /// Method: single logical blocks in any order, which together are blocks, and others that are not.
    #[test]
    fn ranges_of_a_deallocation_are_whole_blocks_together() {
        let mut single: Vec<LbaRange> = (8..24).map(|start| range(start, 1)).collect();
        single.reverse();
        assert_eq!(unmapped(&single), (vec![range(1, 2)], vec![]));
        single.extend([range(30, 2), range(6, 3), range(40, 1)]);
        let ends = vec![(0, 3072..4096), (3, 3072..4096), (5, 0..512)];
        assert_eq!(unmapped(&single), (vec![range(1, 2)], ends));
    }

    /// The work of a deallocation, as text: whole blocks, and bytes of blocks.
    fn unmapped(ranges: &[LbaRange]) -> (Vec<LbaRange>, Vec<(u64, Range<usize>)>) {
        match Request::unmap(SectorSize::Bytes512, ranges.to_vec(), None) {
            Request::Unmap { ranges, .. } => (ranges, Vec::new()),
            Request::UnmapParts { ranges, ends, .. } => {
                (ranges, ends.into_iter().map(|end| (end.lba.0, end.part)).collect())
            }
            _ => panic!("of another kind"),
        }
    }

    #[test]
    fn the_ends_of_a_deallocation_are_parts_of_blocks() {
        assert_eq!(unmapped(&[range(8, 16), range(3, 0)]), (vec![range(1, 2)], vec![]));
        let ends = vec![(0, 512..4096), (12, 0..2560)];
        assert_eq!(unmapped(&[range(1, 100)]), (vec![range(1, 11)], ends.clone()));
        assert_eq!(unmapped(&[range(1, 1)]), (vec![], vec![(0, 512..1024)]));
        assert_eq!(unmapped(&[range(7, 2)]), (vec![], vec![(0, 3584..4096), (1, 0..512)]));
        assert_eq!(unmapped(&[range(0, 12)]), (vec![range(0, 1)], vec![(1, 0..2048)]));
        assert_eq!(unmapped(&[range(4, 12)]), (vec![range(1, 1)], vec![(0, 2048..4096)]));
        let zeroes = Request::write_zeroes(SectorSize::Bytes512, range(1, 100));
        assert!(matches!(zeroes, Request::UnmapParts { ends: found, .. } if found.len() == 2));
        let zeroes = Request::write_zeroes(SectorSize::Bytes4096, range(1, 100));
        assert!(matches!(zeroes, Request::WriteZeroes(found) if found == range(1, 100)));
    }
}
