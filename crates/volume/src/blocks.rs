//! Blocks as they are handed in, and compared with those found.

use io_traits::BufferSlice;
use units::{BLOCK_SIZE, MetadataSize};

use crate::sabotage::{Sabotage, broken};
use crate::{CompareError, ReadData};

/// Whole blocks, and the metadata of each where the volume's blocks have some.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// The data.
    pub data: BufferSlice,
    /// Metadata of each block, one after the other.
    pub metadata: Box<[u8]>,
}

impl From<BufferSlice> for Blocks {
    /// Blocks without metadata.
    fn from(data: BufferSlice) -> Self {
        Self { data, metadata: Box::default() }
    }
}

/// Returns the first offset at which two runs of bytes differ.
pub(crate) fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b { None } else { a.iter().zip(b).position(|(a, b)| a != b) }
}

pub(crate) fn compare_bytes(
    found: &ReadData,
    expected: &Blocks,
    metadata: MetadataSize,
) -> Result<(), CompareError> {
    let mut at = 0;
    let mut differs = None;
    for piece in &found.pieces {
        let piece = piece.as_bytes();
        let wanted = &expected.data.as_bytes()[at..at + piece.len()];
        differs = first_difference(piece, wanted).map(|offset| at + offset);
        if differs.is_some() {
            break;
        }
        at += piece.len();
    }
    let each = metadata.bytes();
    let in_data = differs.map(|at| at + at / BLOCK_SIZE * each);
    let in_metadata = first_difference(&found.metadata, &expected.metadata)
        .filter(|_| !broken(Sabotage::CompareDataOnly))
        .map(|at| at + (at / each.max(1) + 1) * BLOCK_SIZE);
    match in_data.into_iter().chain(in_metadata).min() {
        Some(offset) => Err(CompareError::Miscompare { offset_bytes: offset as u64 }),
        None => Ok(()),
    }
}
