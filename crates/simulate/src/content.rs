//! Contents of writes: every sector names its write and its location.
//!
//! ```text
//! 0       8      16       24    28       32                     512
//! +-------+------+--------+-----+--------+----------------------+
//! | magic | tag  | volume | lba | sector | a function of these  |   eight times
//! +-------+------+--------+-----+--------+----------------------+
//! ```

use io_traits::{Buffer, BufferSlice};
use units::{BLOCK_SIZE, MetadataSize, SectorSize};

const MAGIC: u64 = 0x5349_4D46_4C41_5348;
const SECTOR_BYTES: usize = 512;

/// A write: no two have the same. Zero is none.
pub(crate) type Tag = u64;

/// The content of a block, as far as it is known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Shown {
    /// Zeroes.
    Zero,
    /// The data of the write with this tag.
    Tag(Tag),
    /// Content that is no write's: torn, of another block or of another volume.
    Foreign,
    /// The block was not read, or with an error.
    Unknown,
}

fn fill(block: &mut [u8], volume: u64, lba: u64, tag: Tag) {
    for (index, sector) in (0u64..).zip(block.chunks_exact_mut(SECTOR_BYTES)) {
        let head = [MAGIC, tag, volume, lba << 8 | index];
        let mut mixed = tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ volume << 40 ^ lba << 8 ^ index;
        for (at, word) in sector.chunks_exact_mut(8).enumerate() {
            mixed = mixed.wrapping_add(0xD1B5_4A32_D192_ED03).rotate_left(7);
            let value = head.get(at).copied().unwrap_or(mixed);
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
}

fn word(block: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(block[index * 8..index * 8 + 8].try_into().expect("eight bytes"))
}

/// Returns the data of write `tag` in `blocks` blocks of `volume` from `start` on.
#[must_use]
pub(crate) fn data(volume: u64, start: u64, blocks: u64, tag: Tag) -> BufferSlice {
    data_in(SectorSize::Bytes4096, volume, (start, blocks), tag)
}

/// The same in logical blocks of another size.
#[must_use]
pub(crate) fn data_in(
    sector: SectorSize,
    volume: u64,
    (start, blocks): (u64, u64),
    tag: Tag,
) -> BufferSlice {
    let len_bytes = usize::try_from(blocks).expect("fits into memory") * sector.bytes();
    let mut buffer = Buffer::new(len_bytes.div_ceil(BLOCK_SIZE));
    let bytes = &mut buffer.as_mut_bytes()[..len_bytes];
    for (lba, block) in (start..).zip(bytes.chunks_exact_mut(sector.bytes())) {
        fill(block, volume, lba, tag);
    }
    buffer.into_slice().slice(0..len_bytes)
}

/// Returns the content of a block that shows `shown`.
#[must_use]
pub(crate) fn bytes(volume: u64, lba: u64, shown: Shown) -> Vec<u8> {
    bytes_in(SectorSize::Bytes4096, volume, lba, shown)
}

/// The same of a logical block of another size.
#[must_use]
pub(crate) fn bytes_in(sector: SectorSize, volume: u64, lba: u64, shown: Shown) -> Vec<u8> {
    let mut block = vec![0; sector.bytes()];
    if let Shown::Tag(tag) = shown {
        fill(&mut block, volume, lba, tag);
    }
    block
}

/// Returns the write that the content of block `lba` of `volume` is from.
#[must_use]
pub(crate) fn shown(volume: u64, lba: u64, block: &[u8]) -> Shown {
    if block.iter().all(|byte| *byte == 0) {
        return Shown::Zero;
    }
    match owner(block) {
        Some((v, l, tag)) if (v, l) == (volume, lba) => Shown::Tag(tag),
        _ => Shown::Foreign,
    }
}

/// The metadata that goes with these blocks: a function of the write, the volume and the block that each is of;
/// zeroes go with zeroes.
#[must_use]
pub(crate) fn metadata(data: &[u8], size: MetadataSize) -> Vec<u8> {
    let of = |block: &[u8]| {
        let mut mixed = word(block, 1) ^ word(block, 2) << 40 ^ word(block, 3) << 20;
        let mut bytes = vec![0; size.bytes()];
        if mixed != 0 {
            for word in bytes.chunks_exact_mut(8) {
                mixed = mixed.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
                word.copy_from_slice(&mixed.to_le_bytes());
            }
        }
        bytes
    };
    data.chunks_exact(BLOCK_SIZE).flat_map(of).collect()
}

/// Returns blocks as they were read; a block whose metadata does not match becomes one that no write made.
#[must_use]
pub(crate) fn with_metadata(mut data: Vec<u8>, found: &[u8], size: MetadataSize) -> Vec<u8> {
    if size.is_none() && found.is_empty() {
        return data;
    }
    let wanted = metadata(&data, size);
    for (at, block) in data.chunks_exact_mut(BLOCK_SIZE).enumerate() {
        let of_block = at * size.bytes()..(at + 1) * size.bytes();
        if found.get(of_block.clone()) != Some(&wanted[of_block]) {
            block.fill(0xFF);
        }
    }
    data
}

/// Returns true if it begins like a tenant's block.
#[must_use]
pub(crate) fn is_of_tenant(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_le_bytes())
}

/// Volume, block and write that a block, or a logical block, says it is of, if it is whole.
#[must_use]
pub(crate) fn owner(block: &[u8]) -> Option<(u64, u64, Tag)> {
    if word(block, 0) != MAGIC {
        return None;
    }
    let (tag, volume, lba) = (word(block, 1), word(block, 2), word(block, 3) >> 8);
    let sector = SectorSize::from_bytes(block.len() as u64)?;
    (bytes_in(sector, volume, lba, Shown::Tag(tag)) == block).then_some((volume, lba, tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_known_only_where_and_as_it_was_written() {
        let data = data(7, 100, 3, 42);
        let block = &data.as_bytes()[BLOCK_SIZE..2 * BLOCK_SIZE];
        assert_eq!(shown(7, 101, block), Shown::Tag(42));
        assert_eq!(shown(7, 100, block), Shown::Foreign);
        assert_eq!(shown(8, 101, block), Shown::Foreign);
        for sector in 0..8 {
            let mut torn = block.to_vec();
            torn[sector * 512..][..512].fill(0);
            assert_eq!(shown(7, 101, &torn), Shown::Foreign);
        }
        assert_eq!(shown(7, 101, &[0; BLOCK_SIZE]), Shown::Zero);
        assert_eq!(owner(block), Some((7, 101, 42)));
    }

    #[test]
    fn a_logical_block_of_512_bytes_is_one_by_itself() {
        let data = data_in(SectorSize::Bytes512, 7, (100, 11), 42);
        assert_eq!(data.len_bytes(), 11 * 512);
        for (lba, block) in (100..).zip(data.as_bytes().chunks(512)) {
            assert_eq!(shown(7, lba, block), Shown::Tag(42));
            assert_eq!(shown(7, lba + 1, block), Shown::Foreign);
        }
    }

    #[test]
    fn a_block_with_the_metadata_of_another_is_nobodys() {
        let size = MetadataSize::Bytes16;
        let data = data(7, 100, 3, 42).as_bytes().to_vec();
        let mut own = metadata(&data, size);
        assert_eq!(with_metadata(data.clone(), &own, size), data);
        own.rotate_left(16);
        let changed = with_metadata(data, &own, size);
        assert!(changed.chunks(BLOCK_SIZE).all(|block| shown(7, 101, block) == Shown::Foreign));
        let (zeroes, none) = (vec![0; BLOCK_SIZE], [0; 16]);
        assert_eq!(with_metadata(zeroes.clone(), &none, size), zeroes);
        let other = with_metadata(zeroes, &[1; 16], size);
        assert_eq!(shown(7, 0, &other), Shown::Foreign);
    }
}
