//! Parts of blocks, and which blocks hold data: for protocols that count in bytes or in smaller blocks.

use std::ops::Range;

use io_traits::{Buffer, Device};
use units::{BLOCK_SIZE, Lba, LbaRange};

use crate::blocks::{Blocks, first_difference};
use crate::locks::{RangeGuard, lock};
use crate::read::Source;
use crate::sabotage::{Sabotage, broken};
use crate::state::VolumeState;
use crate::{CompareError, ReadData, Volume, VolumeError, WRITE_BLOCKS_MAX};
use block_map::Missing;

/// Blocks that are looked at in one step, between which others run.
const LOOK_BLOCKS_MAX: u64 = 4096;
/// Blocks that hold data and are looked at for one answer: what is left is asked for again.
const LOOK_TOTAL_MAX: u64 = 16 * LOOK_BLOCKS_MAX;

/// Consecutive blocks that hold data, or that do not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct VolumeExtent {
    /// The blocks.
    pub blocks: u64,
    /// They hold data; others read as zeroes and take no space.
    pub is_mapped: bool,
}

impl<D: Device> Volume<D> {
    /// Writes the bytes `part` of `buffer`, whose blocks stand for those from `lba` on: the rest of these blocks, and the
    /// metadata of all, stay as they are. Nothing comes between. At most [`crate::WRITE_BLOCKS_MAX`] blocks. Durable when
    /// it returns.
    ///
    /// # Errors
    /// As [`Volume::read`] and [`Volume::write`]. Panics if `part` lies outside of the buffer.
    pub async fn write_part(
        &self,
        lba: Lba,
        mut buffer: Buffer,
        part: Range<usize>,
    ) -> Result<(), VolumeError> {
        assert!(part.start <= part.end && part.end <= buffer.len_bytes(), "a part of the buffer");
        if part.is_empty() {
            return Ok(());
        }
        let range = self.range_of_buffer(lba, &buffer)?;
        if broken(Sabotage::FillUnlocked) {
            self.fill_ends(range, &mut buffer, part).await?;
            let guard = lock(&self.state().locks, range).await;
            return self.write_filled(guard, range, buffer, Box::default()).await;
        }
        let guard = lock(&self.state().locks, range).await;
        self.check(range)?;
        let metadata = if self.metadata_size().is_none() {
            self.fill_ends(range, &mut buffer, part).await?;
            Box::default()
        } else {
            let found = self.read_whole(range).await?;
            fill_around(&found, &mut buffer, 0, &part);
            found.metadata
        };
        self.write_filled(guard, range, buffer, metadata).await
    }

    /// Compares bytes with `expected`, from byte `skip` of the block `lba` on. Where they differ is counted from the first of
    /// them. Metadata is not compared.
    ///
    /// # Errors
    /// They differ, or as [`Volume::read`].
    pub async fn compare_part(
        &self,
        lba: Lba,
        skip: usize,
        expected: &[u8],
    ) -> Result<(), CompareError> {
        if expected.is_empty() {
            return Ok(());
        }
        let range = LbaRange::new(lba, (skip + expected.len()).div_ceil(BLOCK_SIZE) as u64);
        self.check(range)?;
        let found = self.read_whole(range).await?;
        compare_slices(&found, skip, expected)
    }

    /// Compares bytes with `expected`, as [`Volume::compare_part`] does, and, if they are equal, writes the bytes `part` of
    /// `buffer` there, as [`Volume::write_part`] does; nothing comes between. Both have the same length.
    ///
    /// # Errors
    /// They differ, or as [`Volume::read`] and [`Volume::write`]. Panics if `part` lies outside of the buffer, or has another
    /// length than `expected`.
    pub async fn compare_and_write_part(
        &self,
        lba: Lba,
        expected: &[u8],
        mut buffer: Buffer,
        part: Range<usize>,
    ) -> Result<(), CompareError> {
        assert_eq!(part.len(), expected.len(), "as many bytes");
        assert!(part.end <= buffer.len_bytes(), "a part of the buffer");
        if part.is_empty() {
            return Ok(());
        }
        let range = self.range_of_buffer(lba, &buffer)?;
        let guard = lock(&self.state().locks, range).await;
        self.check(range)?;
        let found = self.read_whole(range).await?;
        compare_slices(&found, part.start, expected)?;
        fill_around(&found, &mut buffer, 0, &part);
        // The write may take long, and what is pinned would be so for as long.
        let ReadData { metadata, pieces, .. } = found;
        drop(pieces);
        let written = self.write_filled(guard, range, buffer, metadata).await;
        written.map_err(CompareError::Write)
    }

    /// The blocks for which those of `buffer` stand from `lba` on.
    fn range_of_buffer(&self, lba: Lba, buffer: &Buffer) -> Result<LbaRange, VolumeError> {
        let range = LbaRange::new(lba, buffer.len_blocks() as u64);
        if range.blocks > WRITE_BLOCKS_MAX {
            return Err(VolumeError::Length { len_bytes: buffer.len_bytes() });
        }
        self.check(range)?;
        Ok(range)
    }

    /// Writes whole blocks, in which what is to stay has been filled in.
    async fn write_filled(
        &self,
        guard: RangeGuard,
        range: LbaRange,
        buffer: Buffer,
        metadata: Box<[u8]>,
    ) -> Result<(), VolumeError> {
        let data = buffer.into_slice();
        let crcs = checksum::crc32c_of_blocks(data.as_bytes()).collect();
        let written = self.write_locked(guard, range, Blocks { data, metadata }, crcs).await;
        self.counted(written)
    }

    /// Fills in what is not written of the first block and of the last one.
    async fn fill_ends(
        &self,
        range: LbaRange,
        buffer: &mut Buffer,
        part: Range<usize>,
    ) -> Result<(), VolumeError> {
        let last = buffer.len_blocks() - 1;
        let is_first_whole = part.start == 0 && (last > 0 || part.end == BLOCK_SIZE);
        let is_last_whole = part.end == buffer.len_bytes();
        if !is_first_whole {
            let found = self.read_whole(LbaRange::new(range.start, 1)).await?;
            fill_around(&found, buffer, 0, &part);
        }
        if !is_last_whole && (last > 0 || is_first_whole) && !broken(Sabotage::FillFirstOnly) {
            let lba = range.start.plus(last as u64);
            let found = self.read_whole(LbaRange::new(lba, 1)).await?;
            fill_around(&found, buffer, last * BLOCK_SIZE, &part);
        }
        Ok(())
    }

    async fn read_whole(&self, range: LbaRange) -> Result<ReadData, VolumeError> {
        let found = Box::pin(self.inner().read_range(self.state(), range, Source::Device)).await;
        self.counted_read(found, range.blocks)
    }

    /// Tells which of the blocks from the start of `range` on hold data: at least one extent, and at most `extents_max`. They
    /// may end before `range` does. Neighbours differ.
    ///
    /// # Errors
    /// Out of range, empty, or the map cannot be read.
    pub async fn extents(
        &self,
        range: LbaRange,
        extents_max: usize,
    ) -> Result<Vec<VolumeExtent>, VolumeError> {
        self.check(range)?;
        if range.blocks == 0 {
            return Err(VolumeError::Length { len_bytes: 0 });
        }
        let (mut extents, mut at, mut looked_at) = (Extents::default(), range.start, 0);
        while at < range.end() && looked_at < LOOK_TOTAL_MAX && extents.has_room(extents_max) {
            let rest = LbaRange::new(at, range.end().0 - at.0);
            let (part, is_mapped) = self.next_extent(rest).await?;
            extents.push(part, is_mapped);
            looked_at += if is_mapped { part } else { 1 };
            at = at.plus(part);
        }
        extents.0.truncate(extents_max.max(1));
        Ok(extents.0)
    }

    /// The first blocks of `range` of which the same is true, and whether they hold data.
    async fn next_extent(&self, range: LbaRange) -> Result<(u64, bool), VolumeError> {
        let inner = self.inner();
        let mut visit = None;
        loop {
            match look(self.state(), range) {
                Ok(found) => return Ok(found),
                Err(missing) => {
                    let visit = visit.get_or_insert_with(|| inner.visit(self.state(), range));
                    Box::pin(visit.load(missing)).await?;
                }
            }
        }
    }
}

/// Compares the bytes that were found from `skip` on with those that were expected.
fn compare_slices(found: &ReadData, skip: usize, expected: &[u8]) -> Result<(), CompareError> {
    let mut at = 0;
    for slice in found.slices(skip..skip + expected.len()) {
        let slice = slice.as_bytes();
        if let Some(offset) = first_difference(slice, &expected[at..at + slice.len()]) {
            return Err(CompareError::Miscompare { offset_bytes: (at + offset) as u64 });
        }
        at += slice.len();
    }
    Ok(())
}

/// Copies what was found into the blocks of `buffer` from `at` on, but for the bytes `part` of the buffer.
fn fill_around(found: &ReadData, buffer: &mut Buffer, mut at: usize, part: &Range<usize>) {
    let bytes = buffer.as_mut_bytes();
    for piece in &found.pieces {
        let piece = piece.as_bytes();
        let end = at + piece.len();
        let before = at..part.start.clamp(at, end);
        let behind = part.end.clamp(at, end)..end;
        for kept in [before, behind] {
            bytes[kept.clone()].copy_from_slice(&piece[kept.start - at..kept.end - at]);
        }
        at = end;
    }
}

/// Extents of which neighbours differ.
#[derive(Default)]
struct Extents(Vec<VolumeExtent>);

impl Extents {
    /// Returns whether there is room for another: the last one may still grow.
    fn has_room(&self, max: usize) -> bool {
        self.0.len() <= max
    }

    fn push(&mut self, blocks: u64, is_mapped: bool) {
        match self.0.last_mut() {
            Some(last) if last.is_mapped == is_mapped => last.blocks += blocks,
            _ => self.0.push(VolumeExtent { blocks, is_mapped }),
        }
    }
}

/// The first blocks of `range` of which the same is true, as far as one step looks.
fn look(state: &VolumeState, range: LbaRange) -> Result<(u64, bool), Missing> {
    let start = range.start;
    // A pending unmap is not looked up: it holds nothing any more.
    let pending = state.pending_unmap_in(range);
    let live_end = match pending {
        Some(pending) if pending.start == start => return Ok((pending.blocks, false)),
        Some(pending) => pending.start,
        None => range.end(),
    };
    let map = state.map.borrow();
    let Some(first) = map.first_key(start.0, live_end.0)? else {
        return Ok((live_end.0 - start.0, false));
    };
    if first > start.0 {
        return Ok((first - start.0, false));
    }
    let end = live_end.0.min(start.0 + LOOK_BLOCKS_MAX);
    let mut next = start.0;
    map.for_each(start.0, end, |key, _| next += u64::from(key == next))?;
    Ok((next - start.0, true))
}
