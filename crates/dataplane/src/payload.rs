//! Blocks with metadata: hosts send the metadata of each block behind its data, in the engine both lie apart.

use checksum::crc32c_copy;
use io_traits::Buffer;
use units::{BLOCK_SIZE, MetadataSize};
use volume::{Blocks, Crcs};

/// Takes whole blocks apart, and their checksums. Panics if `bytes` are not whole blocks.
pub(crate) fn split(bytes: &[u8], size: MetadataSize) -> (Blocks, Crcs) {
    let each = BLOCK_SIZE + size.bytes();
    let count = bytes.len() / each;
    assert_eq!(count * each, bytes.len(), "front ends check the length with the request");
    let mut data = Buffer::new(count);
    let mut metadata = Vec::with_capacity(count * size.bytes());
    let mut crcs = Crcs::new();
    for (block, target) in
        bytes.chunks_exact(each).zip(data.as_mut_bytes().chunks_exact_mut(BLOCK_SIZE))
    {
        let (of_data, of_metadata) = block.split_at(BLOCK_SIZE);
        crcs.push(crc32c_copy(of_data, target));
        metadata.extend_from_slice(of_metadata);
    }
    (Blocks { data: data.into_slice(), metadata: metadata.into() }, crcs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_are_taken_apart_keep_their_data_metadata_and_checksums() {
        for size in MetadataSize::ALL.into_iter().filter(|size| !size.is_none()) {
            let each = BLOCK_SIZE + size.bytes();
            let bytes: Vec<u8> = (0..3 * each).map(|n| (n / 7) as u8).collect();
            let (blocks, crcs) = split(&bytes, size);
            for n in 0..3 {
                let (data, metadata) = bytes[n * each..(n + 1) * each].split_at(BLOCK_SIZE);
                assert_eq!(blocks.data.blocks(n, 1).as_bytes(), data);
                assert_eq!(&blocks.metadata[n * size.bytes()..][..size.bytes()], metadata);
                assert_eq!(crcs[n], checksum::crc32c(data));
            }
        }
    }
}
