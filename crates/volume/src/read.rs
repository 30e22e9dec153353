//! Reads, and the checks of their data.
//!
//! A block that is not what it should be is read once more, by itself, before that is an error and
//! counts: the read may have gone astray, and the block be sound. Only where it lies in memory, and
//! nothing was read, the first look decides.

mod again;
mod ahead;
mod spans;

use std::ops::Range;
use std::rc::Rc;

use checksum::Lines;
use io_traits::{Buffer, BufferSlice, Device, DeviceError};
use layout::Mapping;
use smallvec::SmallVec;
use units::{BLOCK_SIZE, Lba, LbaRange, PbaRange};

use crate::VolumeError;
use crate::sabotage::{Sabotage, broken};
use crate::shard::Inner;
use crate::state::VolumeState;
use again::{Place, Wrong};
pub(crate) use ahead::{Ahead, Room};
use block_map::Missing;

/// Blocks of zeroes that a thread keeps for reads of unwritten space.
const ZEROES_BLOCKS: usize = 32;

thread_local! {
    static ZEROES: BufferSlice = Buffer::zeroed(ZEROES_BLOCKS).into_slice();
    static ZERO_CRC: u32 = checksum::crc32c(&[0; BLOCK_SIZE]);
}

/// The blocks of a read, in order, with the checksum of each.
///
/// Every block was checked against its checksum, so a data digest can be made of these
/// (`checksum::append_block`) without touching the data.
#[derive(Clone, Debug, Default)]
pub struct ReadData {
    /// The data: each piece a whole number of blocks.
    pub pieces: SmallVec<[BufferSlice; 1]>,
    /// CRC-32C of each block.
    pub crcs: SmallVec<[u32; 1]>,
    /// Metadata of each block, one after the other, if the volume's blocks have some. Zeroes where nothing
    /// was written.
    pub metadata: Box<[u8]>,
}

impl ReadData {
    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.crcs.len() * BLOCK_SIZE
    }

    /// All bytes in one piece; copies.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len_bytes());
        for piece in &self.pieces {
            bytes.extend_from_slice(piece.as_bytes());
        }
        bytes
    }

    /// The bytes `part` of the data, as slices of its pieces.
    pub fn slices(&self, part: Range<usize>) -> impl Iterator<Item = BufferSlice> {
        let mut at = 0;
        self.pieces.iter().filter_map(move |piece| {
            let (start, end) = (at, at + piece.len_bytes());
            at = end;
            let (from, to) = (part.start.max(start), part.end.min(end));
            (from < to).then(|| piece.slice(from - start..to - start))
        })
    }

    /// Appends `count` blocks of zeroes, which take no memory of their own.
    pub(crate) fn push_zeroes(&mut self, count: usize) {
        let crc = ZERO_CRC.with(|crc| *crc);
        self.crcs.extend(std::iter::repeat_n(crc, count));
        let mut rest = count;
        while rest > 0 {
            let part = rest.min(ZEROES_BLOCKS);
            self.pieces.push(ZEROES.with(|zeroes| zeroes.blocks(0, part)));
            rest -= part;
        }
    }
}

/// Blocks of a read that lie together.
#[derive(Eq, PartialEq)]
enum Piece {
    Zeroes(usize),
    Run(PbaRange),
}

/// The sources that a read may take its blocks from.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// The device, as it is now.
    Device,
    /// Also from what was read ahead of it.
    Ahead,
}

type Pieces = SmallVec<[Piece; 4]>;

/// The map's answer for a range.
#[derive(Default)]
struct Found {
    pieces: Pieces,
    /// The checksum of each block; unspecified for unwritten blocks.
    crcs: SmallVec<[u32; 4]>,
    metadata: Vec<u8>,
}

impl Found {
    /// Returns whether both have the same blocks in the same places, with the same checksums: a
    /// place may be reused.
    fn is_where(&self, other: &Self) -> bool {
        self.pieces == other.pieces && self.crcs == other.crcs
    }

    fn push_zeroes(&mut self, count: u64, each: usize) {
        let count = usize::try_from(count).expect("bounded by memory");
        self.crcs.extend(std::iter::repeat_n(0, count));
        self.metadata.resize(self.metadata.len() + count * each, 0);
        match self.pieces.last_mut() {
            _ if count == 0 => {}
            Some(Piece::Zeroes(before)) => *before += count,
            _ => self.pieces.push(Piece::Zeroes(count)),
        }
    }
}

impl<D: Device> Inner<D> {
    /// Reads one block: the case that must be fast.
    pub(crate) async fn read_block(
        self: &Rc<Self>,
        state: &VolumeState,
        lba: Lba,
    ) -> Result<ReadData, VolumeError> {
        let mut visit = None;
        let mapping = loop {
            match state.mapping_of(lba) {
                Ok(Some(mapping)) => break mapping,
                Ok(None) => {
                    self.note_hit_unless(visit.is_some());
                    let mut data = ReadData::default();
                    data.push_zeroes(1);
                    return Ok(data);
                }
                Err(missing) => {
                    let range = LbaRange::new(lba, 1);
                    let visit = visit.get_or_insert_with(|| self.visit(state, range));
                    Box::pin(visit.load(missing)).await?;
                }
            }
        };
        self.note_hit_unless(visit.is_some());
        let run = PbaRange::new(mapping.pba, 1);
        if let Some(pinned) = self.pin(run) {
            return self.checked(state, lba, mapping, pinned);
        }
        let _reading = self.begin_read();
        drop(visit.take());
        let mut block = self.device.read(run.start, Buffer::new(1)).await?.into_slice();
        if let Err(wrong) = check_block(lba, mapping, block.as_bytes(), &[]) {
            block = Box::pin(self.read_again(state, wrong)).await?;
        }
        let mut data = ReadData::default();
        data.crcs.push(mapping.crc);
        data.pieces.push(block);
        Ok(data)
    }

    /// Checks `block`, which was read for `lba`, and returns it as the data of a read.
    pub(crate) fn checked(
        &self,
        state: &VolumeState,
        lba: Lba,
        mapping: Mapping,
        block: BufferSlice,
    ) -> Result<ReadData, VolumeError> {
        let mut data = ReadData::default();
        let crc = check_block(lba, mapping, block.as_bytes(), &[]);
        data.crcs.push(crc.map_err(|wrong| self.found_damaged(state, &wrong))?);
        data.pieces.push(block);
        Ok(data)
    }

    /// Reads any number of blocks: all are looked up at one instant, then read together.
    pub(crate) async fn read_range(
        self: &Rc<Self>,
        state: &VolumeState,
        range: LbaRange,
        source: Source,
    ) -> Result<ReadData, VolumeError> {
        let mut visit = None;
        let (found, _reading) = loop {
            match look_up(state, range) {
                Ok(found) => break (found, self.begin_read()),
                Err(missing) => {
                    let visit = visit.get_or_insert_with(|| self.visit(state, range));
                    Box::pin(visit.load(missing)).await?;
                }
            }
        };
        self.note_hit_unless(visit.is_some());
        drop(visit);
        let ahead = match source {
            Source::Device => None,
            Source::Ahead => self.take_ahead(state, range, &found),
        };
        let ahead = match ahead {
            Some(ahead) => ahead.await,
            None => None,
        };
        let read: SmallVec<[_; 1]> = if let Some(read) = ahead {
            read.into()
        } else if let [Piece::Run(run)] = found.pieces.as_slice() {
            SmallVec::from_buf([self.read_run(*run).await])
        } else {
            // Apart, lest every read be as large as this one.
            Box::pin(self.read_runs(runs_of(&found.pieces))).await.into()
        };
        let (mut data, wrong) = check_all(range.start, found, read)?;
        if !wrong.is_empty() {
            Box::pin(self.replace(state, &mut data, wrong)).await?;
        }
        Ok(data)
    }

    fn note_hit_unless(&self, has_missed: bool) {
        if !has_missed {
            self.note_hit();
        }
    }

    /// Reads a run that the map has just led to, where it lies if that is in memory.
    fn read_run(
        self: &Rc<Self>,
        run: PbaRange,
    ) -> impl Future<Output = Result<BufferSlice, DeviceError>> {
        let blocks = usize::try_from(run.blocks).expect("bounded by memory");
        let read = match self.pin(run) {
            Some(pinned) => Ok(pinned),
            None => Err(self.device.read(run.start, Buffer::new(blocks))),
        };
        async move {
            match read {
                Ok(pinned) => Ok(pinned),
                Err(read) => Ok(read.await?.into_slice()),
            }
        }
    }

    /// Notes that a block is damaged. Returns the error for its reader.
    fn found_damaged(&self, state: &VolumeState, wrong: &Wrong) -> VolumeError {
        let Wrong { lba, mapping: Mapping { pba, crc: stored }, computed } = *wrong;
        let error = self.excused(VolumeError::Corrupt { lba, pba, stored, computed });
        self.note_damage(state, &error);
        error
    }
}

/// Checks the blocks from `start` on, which the map gave as `found` and whose runs gave `read`.
/// Returns the data, and the blocks that do not match.
fn check_all(
    start: Lba,
    found: Found,
    read: SmallVec<[Result<BufferSlice, DeviceError>; 1]>,
) -> Result<(ReadData, Vec<(Wrong, Place)>), VolumeError> {
    let Found { pieces, crcs, metadata } = found;
    if read.len() > 1 {
        let first_blocks = read.iter().flatten().map(first_block);
        first_blocks.for_each(|block| Lines::of(block).fetch_first());
    }
    let mut read = read.into_iter().peekable();
    let mut data = ReadData { metadata: metadata.into_boxed_slice(), ..ReadData::default() };
    let mut wrong = Vec::new();
    for piece in &pieces {
        match piece {
            Piece::Zeroes(count) => data.push_zeroes(*count),
            Piece::Run(run) => {
                let blocks = read.next().expect("one for each run")?;
                let behind = read.peek().and_then(|next| next.as_ref().ok());
                let behind = behind.map_or(&[][..], first_block);
                let each = checksum::blocks_with_next(blocks.as_bytes(), behind);
                for (index, (block, next)) in each.enumerate() {
                    let at = data.crcs.len();
                    let mapping = Mapping { pba: run.start.plus(index as u64), crc: crcs[at] };
                    let lba = start.plus(at as u64);
                    if let Err(found) = check_block(lba, mapping, block, next) {
                        wrong.push((found, Place { piece: data.pieces.len(), index }));
                    }
                    data.crcs.push(mapping.crc);
                }
                data.pieces.push(blocks);
            }
        }
    }
    Ok((data, wrong))
}

/// Compares a block with its checksum, and returns that. Meanwhile `next` is fetched, if that pays.
fn check_block(lba: Lba, mapping: Mapping, block: &[u8], next: &[u8]) -> Result<u32, Wrong> {
    if broken(Sabotage::SkipReadChecksum) {
        return Ok(mapping.crc);
    }
    let computed = checksum::crc32c_ahead(block, next);
    if computed == mapping.crc { Ok(computed) } else { Err(Wrong { lba, mapping, computed }) }
}

fn first_block(run: &BufferSlice) -> &[u8] {
    &run.as_bytes()[..BLOCK_SIZE]
}

fn runs_of(pieces: &Pieces) -> Vec<PbaRange> {
    let run = |piece: &Piece| match piece {
        Piece::Zeroes(_) => None,
        Piece::Run(run) => Some(*run),
    };
    pieces.iter().filter_map(run).collect()
}

/// Looks up the locations, checksums and metadata of the blocks in `range`, in one step.
fn look_up(state: &VolumeState, range: LbaRange) -> Result<Found, Missing> {
    let mut found = Found::default();
    let each = state.metadata.bytes();
    let mut next = range.start.0;
    let (mut at, end) = (range.start, range.end());
    while at < end {
        // A pending unmap is not looked up: its part of the map may even be damaged.
        let pending = state.pending_unmap_in(LbaRange::new(at, end.0 - at.0));
        let pending = pending.filter(|_| !broken(Sabotage::ReadDead));
        let live_end = pending.map_or(end, |pending| pending.start);
        state.map.borrow().for_each_with_metadata(at.0, live_end.0, |key, mapping, metadata| {
            found.push_zeroes(key - next, each);
            next = key + 1;
            found.crcs.push(mapping.crc);
            found.metadata.extend_from_slice(metadata);
            match found.pieces.last_mut() {
                Some(Piece::Run(run)) if run.end() == mapping.pba => run.blocks += 1,
                _ => found.pieces.push(Piece::Run(PbaRange::new(mapping.pba, 1))),
            }
        })?;
        at = pending.map_or(end, LbaRange::end);
    }
    found.push_zeroes(range.end().0 - next, each);
    if broken(Sabotage::ShiftMetadata) && range.blocks > 1 {
        found.metadata.rotate_right(each);
    }
    Ok(found)
}
