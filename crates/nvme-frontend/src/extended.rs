//! Extended LBAs: on the wire the metadata of each block follows its data, in the engine both lie apart.

use checksum::Crc32c;
use dataplane::{Share, footprint};
use io_traits::{Device, World};
use nvme_target::sabotage::{Sabotage, broken};
use nvme_target::{Outbox, SlotId};
use units::{BLOCK_SIZE, MetadataSize, SectorSize};
use volume::ReadData;

use crate::connection::{Connection, Out};

/// Memory for data that is taken apart, or put into the blocks of which it is a part: both forms are there for a while.
pub(crate) fn footprint_of(len_bytes: usize, metadata: MetadataSize, sector: SectorSize) -> i64 {
    match (metadata, sector) {
        (MetadataSize::None, SectorSize::Bytes4096) => footprint(len_bytes),
        (_, SectorSize::Bytes4096) => 2 * footprint(len_bytes),
        // With the rest of the first block and of the last one.
        (_, SectorSize::Bytes512) => footprint(len_bytes) + footprint(len_bytes + 2 * BLOCK_SIZE),
    }
}

/// The digest of all of it, from the checksums of the blocks.
fn digest(data: &ReadData) -> u32 {
    let each = data.metadata.len() / data.crcs.len();
    let mut digest = Crc32c::new();
    for (crc, metadata) in data.crcs.iter().zip(data.metadata.chunks_exact(each)) {
        if broken(Sabotage::DigestOfMetadataFirst) {
            digest.update(metadata);
        }
        digest.append_block(*crc);
        if !broken(Sabotage::DigestWithoutMetadata) && !broken(Sabotage::DigestOfMetadataFirst) {
            digest.update(metadata);
        }
    }
    digest.value()
}

impl<W: World, D: Device> Connection<W, D> {
    /// Answers a read of blocks with metadata. Their data is not copied.
    pub(crate) fn complete_extended_read(&self, slot: SlotId, data: &ReadData, share: Share) {
        let len_bytes = data.len_bytes() + data.metadata.len();
        let len_bytes = u32::try_from(len_bytes).expect("bounded by MDTS");
        self.reply(|transport, out| {
            let append = |out: &mut Out<'_, '_>| {
                let each = data.metadata.len() / data.crcs.len();
                let mut metadata = data.metadata.chunks_exact(each);
                for piece in &data.pieces {
                    for block in 0..piece.len_bytes() / BLOCK_SIZE {
                        out.data(piece.blocks(block, 1));
                        out.bytes(metadata.next().expect("each block has its metadata"));
                    }
                }
                out.hold(share);
            };
            transport.complete_with_data(slot, len_bytes, || digest(data), out, append);
        });
    }
}

#[cfg(test)]
mod tests {
    use checksum::crc32c;
    use io_traits::Buffer;

    use super::*;

    #[test]
    fn the_digest_is_that_of_data_and_metadata_as_they_are_sent() {
        for size in MetadataSize::ALL.into_iter().filter(|size| !size.is_none()) {
            let each = BLOCK_SIZE + size.bytes();
            let bytes: Vec<u8> = (0..3 * each).map(|n| (n / 7) as u8).collect();
            let parts = || bytes.chunks_exact(each).map(|block| block.split_at(BLOCK_SIZE));
            let data: Vec<u8> = parts().flat_map(|(data, _)| data).copied().collect();
            let metadata: Vec<u8> = parts().flat_map(|(_, metadata)| metadata).copied().collect();
            let pieces = [Buffer::from_bytes(&data).into_slice()].into_iter().collect();
            let crcs = parts().map(|(data, _)| crc32c(data)).collect();
            let read = ReadData { pieces, crcs, metadata: metadata.into() };
            assert_eq!(digest(&read), crc32c(&bytes));
        }
    }
}
