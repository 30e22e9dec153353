//! Ranges of bytes as whole blocks.
//!
//! ```text
//!  block   |---------|---------|---------|---------|
//!  bytes        [=========================)
//!          <----- span: start, len -------->
//!          |skip|                         |tail|
//!          edge                      edge: of each, the bytes to keep
//! ```

use std::ops::Range;

/// A block of which a write has only a part.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Edge {
    /// Offset of the block in the volume.
    pub(crate) offset: u64,
    /// Offset of the block in the span.
    pub(crate) at: usize,
    /// Bytes of the block, before and behind those written, that stay what they are.
    pub(crate) keep: [Range<usize>; 2],
}

impl Edge {
    /// Copies what stays from `block` into the span's bytes.
    pub(crate) fn fill(&self, block: &[u8], span: &mut [u8]) {
        for keep in &self.keep {
            let to = self.at + keep.start..self.at + keep.end;
            span[to].copy_from_slice(&block[keep.clone()]);
        }
    }
}

/// The whole blocks that hold a range of bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Span {
    /// Offset of the first block.
    pub(crate) start: u64,
    /// Bytes of all blocks.
    pub(crate) len: usize,
    /// Bytes before the range.
    pub(crate) skip: usize,
    /// The blocks that are not wholly within the range: none, one or two.
    pub(crate) edges: Vec<Edge>,
}

impl Span {
    /// The blocks of `len` bytes at `offset`. Neither their end nor that of the last block is beyond 2^64.
    pub(crate) fn of(offset: u64, len: usize, block: usize) -> Self {
        let unit = block as u64;
        let start = offset - offset % unit;
        let end = offset + len as u64;
        let stop = end.next_multiple_of(unit).max(start);
        let bytes = |from: u64, to: u64| usize::try_from(to - from).expect("as long as a request");
        let (skip, tail, whole) = (bytes(start, offset), bytes(end, stop), bytes(start, stop));
        let edge = |at: usize, before: usize, behind: usize| Edge {
            offset: start + at as u64,
            at,
            keep: [0..before, block - behind..block],
        };
        let edges = match whole / block {
            _ if len == 0 => Vec::new(),
            1 if skip + tail > 0 => vec![edge(0, skip, tail)],
            1 => Vec::new(),
            _ => {
                let head = (skip > 0).then(|| edge(0, skip, 0));
                head.into_iter().chain((tail > 0).then(|| edge(whole - block, 0, tail))).collect()
            }
        };
        Self { start, len: if len == 0 { 0 } else { whole }, skip, edges }
    }
}

/// A part of a range that is to read as zeroes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Part {
    /// Whole blocks.
    Blocks { offset: u64, len: u64 },
    /// Bytes within one block.
    Bytes { offset: u64, len: usize },
}

/// Cuts a range that is to read as zeroes into whole blocks and what is left at its ends.
pub(crate) fn parts(offset: u64, len: u64, block: usize) -> Vec<Part> {
    let unit = block as u64;
    let end = offset + len;
    let (first, last) = (offset.next_multiple_of(unit), end - end % unit);
    let bytes = |from: u64, to: u64| {
        let len = usize::try_from(to - from).expect("less than a block");
        (len > 0).then_some(Part::Bytes { offset: from, len })
    };
    if first > last {
        return bytes(offset, end).into_iter().collect();
    }
    let blocks = (first < last).then(|| Part::Blocks { offset: first, len: last - first });
    [bytes(offset, first), blocks, bytes(last, end)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCK: usize = 16;

    #[test]
    fn whole_blocks_have_no_edges() {
        let span = Span::of(32, 48, BLOCK);
        assert_eq!(span, Span { start: 32, len: 48, skip: 0, edges: Vec::new() });
        assert_eq!(Span::of(33, 0, BLOCK).len, 0);
    }

    #[test]
    fn a_write_within_one_block_has_one_edge_that_keeps_both_sides() {
        let span = Span::of(35, 4, BLOCK);
        let edges = vec![Edge { offset: 32, at: 0, keep: [0..3, 7..16] }];
        assert_eq!(span, Span { start: 32, len: 16, skip: 3, edges });
    }

    #[test]
    fn ranges_without_a_whole_block_have_no_blocks_to_clear() {
        let bytes = |offset, len| Part::Bytes { offset, len };
        assert_eq!(parts(33, 4, BLOCK), [bytes(33, 4)]);
        assert_eq!(parts(40, 16, BLOCK), [bytes(40, 8), bytes(48, 8)]);
        assert_eq!(parts(16, 16, BLOCK), [Part::Blocks { offset: 16, len: 16 }]);
        assert_eq!(parts(16, 0, BLOCK), []);
    }

    fn range() -> impl Strategy<Value = (usize, usize)> {
        (0_usize..200, 0_usize..120)
    }

    proptest! {
        /// A write of the span, whose edges were filled from the volume, changes the range and nothing else.
        #[test]
        fn what_is_around_a_write_stays((offset, len) in range()) {
            let before: Vec<u8> = (0..400).map(|at| (at % 251) as u8).collect();
            let span = Span::of(offset as u64, len, BLOCK);
            let mut bytes = vec![0; span.len];
            bytes[span.skip.min(span.len)..][..len].fill(0xff);
            for edge in &span.edges {
                prop_assert!(edge.offset.is_multiple_of(BLOCK as u64));
                let block = &before[edge.offset as usize..][..BLOCK];
                edge.fill(block, &mut bytes);
            }
            let mut after = before.clone();
            after[span.start as usize..][..span.len].copy_from_slice(&bytes);
            let mut expected = before;
            expected[offset..offset + len].fill(0xff);
            prop_assert_eq!(after, expected);
            prop_assert!(span.start.is_multiple_of(BLOCK as u64) && span.len.is_multiple_of(BLOCK));
        }

        /// The parts are the range, each byte once; blocks are whole, and the others within one.
        #[test]
        fn parts_cover_the_range_once((offset, len) in range()) {
            let mut at = offset as u64;
            for part in parts(offset as u64, len as u64, BLOCK) {
                let unit = BLOCK as u64;
                let (from, len) = match part {
                    Part::Blocks { offset, len } => {
                        prop_assert!(len > 0 && offset.is_multiple_of(unit) && len.is_multiple_of(unit));
                        (offset, len)
                    }
                    Part::Bytes { offset, len } => {
                        prop_assert!(len > 0 && len < BLOCK);
                        prop_assert_eq!(offset / unit, (offset + len as u64 - 1) / unit);
                        (offset, len as u64)
                    }
                };
                prop_assert_eq!(from, at);
                at += len;
            }
            prop_assert_eq!(at, (offset + len) as u64);
        }
    }
}
