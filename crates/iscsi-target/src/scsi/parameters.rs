//! Parameter lists.

use alloc::vec::Vec;

use iscsi_wire::Sense;

use super::{Extent, UNMAP_RANGES_MAX, Unit};

/// Reads the ranges of an UNMAP (SBC-3, clause 5.28).
///
/// # Errors
/// The list is cut short, has too many ranges, or one lies beyond the end.
pub fn unmap_ranges(bytes: &[u8], unit: &Unit<'_>) -> Result<Vec<Extent>, Sense> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let header = bytes.get(..8).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let whole = len / 16 * 16;
    let list = bytes.get(8..8 + whole).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    if whole / 16 > usize::from(UNMAP_RANGES_MAX) {
        return Err(Sense::invalid_parameter(2));
    }
    let mut ranges = Vec::new();
    for range in list.chunks_exact(16) {
        let (lba, rest) = range.split_first_chunk::<8>().expect("sixteen bytes");
        let (blocks, _) = rest.split_first_chunk::<4>().expect("eight bytes");
        let (lba, blocks) = (u64::from_be_bytes(*lba), u32::from_be_bytes(*blocks));
        ranges.push(super::in_range(lba, blocks, unit)?);
    }
    ranges.retain(|range| range.blocks > 0);
    Ok(ranges)
}
