//! Ranges of bytes, as requests for blocks.
//!
//! A request of NBD becomes requests of the core, one after the other. A write of up to [`WRITE_BLOCKS_MAX`] blocks is one,
//! and takes effect as a whole, wherever it begins and ends; of a longer one each part does.

use std::ops::Range;

use dataplane::{PartPayload, Payload, Request, Share};
use io_traits::{Buffer, BufferSlice};
use units::{BLOCK_SIZE, Lba, LbaRange};
use volume::WRITE_BLOCKS_MAX;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Blocks of zeroes that are written at a time where zeroes are to take space.
pub(crate) const ZERO_BLOCKS: u64 = 256;

/// A request of a client that was submitted.
pub(crate) struct Work {
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    /// It changes bytes.
    pub(crate) changes: bool,
    pub(crate) reply: Reply,
    pub(crate) rest: Rest,
    /// Memory that is charged until the end of the request.
    pub(crate) _share: Option<Share>,
}

/// The form of the answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Reply {
    /// That it is done.
    Done,
    /// Bytes.
    Data {
        /// Bytes before them in their first block.
        skip: usize,
        /// Their number.
        len_bytes: usize,
    },
    /// Extents.
    Status {
        /// Bytes before them in their first block.
        skip: u64,
        /// The length of the range.
        len_bytes: u64,
        /// Only the first is wanted.
        one: bool,
    },
}

/// The rest of a request.
pub(crate) enum Rest {
    /// Nothing.
    Nothing,
    /// Bytes to be stored.
    Data(Data),
    /// Bytes to be made zeroes.
    Zeroes(Zeroes),
}

/// Bytes to be stored.
pub(crate) struct Data {
    /// Whole blocks.
    pub(crate) blocks: BufferSlice,
    /// The first of them.
    pub(crate) first: Lba,
    /// The bytes of them that are left to be stored.
    pub(crate) part: Range<usize>,
    /// Blocks have metadata, which is to stay.
    pub(crate) has_metadata: bool,
}

/// Bytes to be made zeroes.
pub(crate) struct Zeroes {
    /// Those that are left, from the start of the export on.
    pub(crate) bytes: Range<u64>,
    /// They take space.
    pub(crate) takes_space: bool,
    /// Parts of blocks are left as they are.
    pub(crate) whole_blocks_only: bool,
    pub(crate) has_metadata: bool,
    /// [`ZERO_BLOCKS`] of zeroes.
    pub(crate) zeroes: BufferSlice,
}

impl Rest {
    /// Takes out the next request of the core.
    pub(crate) fn next(&mut self) -> Option<Request> {
        match self {
            Self::Nothing => None,
            Self::Data(data) => data.next(),
            Self::Zeroes(zeroes) => zeroes.next(),
        }
    }
}

impl Data {
    fn next(&mut self) -> Option<Request> {
        if self.part.is_empty() {
            return None;
        }
        let first = self.part.start / BLOCK_SIZE;
        let last = self.part.end.div_ceil(BLOCK_SIZE).min(first + WRITE_BLOCKS_MAX as usize);
        let end = self.part.end.min(last * BLOCK_SIZE);
        let part = self.part.start - first * BLOCK_SIZE..end - first * BLOCK_SIZE;
        self.part.start = end;
        let count = last - first;
        let range = LbaRange::new(self.first.plus(first as u64), count as u64);
        let blocks = self.blocks.blocks(first, count);
        if part == (0..count * BLOCK_SIZE) && !self.has_metadata {
            let data = Payload { data: blocks, crcs: None, share: None };
            return Some(Request::Write { range, data: Box::new(data) });
        }
        let buffer = Buffer::from_bytes(blocks.as_bytes());
        let data = Box::new(PartPayload { buffer, part, share: None });
        Some(Request::WritePart { range, data })
    }
}

impl Zeroes {
    fn next(&mut self) -> Option<Request> {
        loop {
            let Range { start, end } = self.bytes.clone();
            if start >= end {
                return None;
            }
            let (first, skip) = (start / BLOCK, start % BLOCK);
            let whole = (end / BLOCK).saturating_sub(first);
            if skip > 0 || whole == 0 {
                let part_end = end.min((first + 1) * BLOCK);
                self.bytes.start = part_end;
                if self.whole_blocks_only {
                    continue;
                }
                let part = skip as usize..(part_end - first * BLOCK) as usize;
                let data = PartPayload { buffer: Buffer::zeroed(1), part, share: None };
                let range = LbaRange::new(Lba(first), 1);
                return Some(Request::WritePart { range, data: Box::new(data) });
            }
            let count = if self.takes_space { whole.min(ZERO_BLOCKS) } else { whole };
            self.bytes.start = (first + count) * BLOCK;
            return Some(self.of_blocks(LbaRange::new(Lba(first), count)));
        }
    }

    fn of_blocks(&self, range: LbaRange) -> Request {
        if !self.takes_space {
            return Request::WriteZeroes(range);
        }
        let blocks = self.zeroes.blocks(0, range.blocks as usize);
        if self.has_metadata {
            let part = 0..blocks.len_bytes();
            let buffer = Buffer::from_bytes(blocks.as_bytes());
            let data = Box::new(PartPayload { buffer, part, share: None });
            return Request::WritePart { range, data };
        }
        let data = Payload { data: blocks, crcs: None, share: None };
        Request::Write { range, data: Box::new(data) }
    }
}

/// The blocks that `len_bytes` bytes from `offset` on touch, and how many bytes of the first one lie before them.
pub(crate) fn blocks_of(offset: u64, len_bytes: u64) -> (LbaRange, u64) {
    let first = offset / BLOCK;
    let end = (offset + len_bytes).div_ceil(BLOCK);
    (LbaRange::new(Lba(first), end - first), offset % BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The requests of `rest`, as text: kind, first block, count, and the part of the bytes.
    fn all(mut rest: Rest) -> Vec<String> {
        std::iter::from_fn(|| rest.next())
            .map(|request| match request {
                Request::Write { range, .. } => format!("write {} {}", range.start.0, range.blocks),
                Request::WriteZeroes(range) => format!("zero {} {}", range.start.0, range.blocks),
                Request::WritePart { range, data } => {
                    let PartPayload { part, .. } = *data;
                    format!("part {} {} {part:?}", range.start.0, range.blocks)
                }
                _ => panic!("of another kind"),
            })
            .collect()
    }

    fn data(offset: u64, len_bytes: usize, has_metadata: bool) -> Vec<String> {
        let (range, skip) = blocks_of(offset, len_bytes as u64);
        let blocks = Buffer::zeroed(range.blocks as usize).into_slice();
        let part = skip as usize..skip as usize + len_bytes;
        all(Rest::Data(Data { blocks, first: range.start, part, has_metadata }))
    }

    fn zeroes(bytes: Range<u64>, takes_space: bool, whole_blocks_only: bool) -> Vec<String> {
        let zeroes = Buffer::zeroed(ZERO_BLOCKS as usize).into_slice();
        let has_metadata = false;
        all(Rest::Zeroes(Zeroes { bytes, takes_space, whole_blocks_only, has_metadata, zeroes }))
    }

    #[test]
    fn a_write_is_one_request_of_blocks_or_of_a_part_of_them() {
        assert_eq!(data(8192, 8192, false), ["write 2 2"]);
        assert_eq!(data(8192, 8192, true), ["part 2 2 0..8192"]);
        assert_eq!(data(8193, 1, false), ["part 2 1 1..2"]);
        assert_eq!(data(8191, 2, false), ["part 1 2 4095..4097"]);
        assert_eq!(data(0, 0, false), [""; 0]);
    }

    #[test]
    fn a_long_write_is_cut_at_blocks() {
        let max = WRITE_BLOCKS_MAX as usize;
        let long = data(4096, (max + 1) * BLOCK_SIZE, false);
        assert_eq!(long, [format!("write 1 {max}"), format!("write {} 1", max + 1)]);
        let skewed = data(1, max * BLOCK_SIZE, false);
        let end = max * BLOCK_SIZE;
        assert_eq!(skewed, [format!("part 0 {max} 1..{end}"), format!("part {max} 1 0..1")]);
    }

    #[test]
    fn zeroes_are_whole_blocks_between_parts() {
        assert_eq!(zeroes(0..8192, false, false), ["zero 0 2"]);
        let skewed = ["part 0 1 1..4096", "zero 1 2", "part 3 1 0..5"];
        assert_eq!(zeroes(1..3 * 4096 + 5, false, false), skewed);
        assert_eq!(zeroes(1..3 * 4096 + 5, false, true), ["zero 1 2"]);
        assert_eq!(zeroes(5..7, false, false), ["part 0 1 5..7"]);
        assert_eq!(zeroes(5..7, false, true), [""; 0]);
        assert_eq!(zeroes(0..4096 * 257, true, false), ["write 0 256", "write 256 1"]);
    }
}
