//! Extended LBAs: on the wire the metadata of each block follows its data, in the engine both lie apart.

use checksum::{Crc32c, crc32c_copy};
use io_traits::{Buffer, Device, World};
use nvme_target::sabotage::{Sabotage, broken};
use nvme_target::{Outbox, SlotId};
use units::{BLOCK_SIZE, LbaRange, MetadataSize};
use volume::{Blocks, ReadData};

use crate::connection::Connection;
use crate::incoming::Crcs;
use crate::memory::{Share, footprint};

/// Bytes of `range` as they are transferred.
pub(crate) fn transfer_bytes(range: LbaRange, metadata: MetadataSize) -> usize {
    let blocks = usize::try_from(range.blocks).expect("bounded by MDTS");
    blocks * (BLOCK_SIZE + metadata.bytes())
}

/// Takes whole blocks apart, and their checksums. Panics if `bytes` are not whole blocks.
pub(crate) fn split(bytes: &[u8], size: MetadataSize) -> (Blocks, Crcs) {
    let each = BLOCK_SIZE + size.bytes();
    let count = bytes.len() / each;
    assert_eq!(count * each, bytes.len(), "the length was checked with the command");
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

/// The blocks that came in a buffer: taken apart only if they have metadata.
pub(crate) fn blocks_of(buffer: Buffer, len_bytes: usize, metadata: MetadataSize) -> Blocks {
    if metadata.is_none() {
        buffer.into_slice().into()
    } else {
        split(&buffer.as_bytes()[..len_bytes], metadata).0
    }
}

/// Memory for data that is taken apart: both forms are there for a while.
pub(crate) fn footprint_of(len_bytes: usize, metadata: MetadataSize) -> i64 {
    if metadata.is_none() { footprint(len_bytes) } else { 2 * footprint(len_bytes) }
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
            let append = |out: &mut crate::outbox::Filling<'_>| {
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
    use super::*;

    #[test]
    fn what_is_taken_apart_has_the_digest_of_what_came() {
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
            let pieces = [blocks.data].into_iter().collect();
            let crcs = crcs.into_iter().collect();
            let read = ReadData { pieces, crcs, metadata: blocks.metadata };
            assert_eq!(digest(&read), checksum::crc32c(&bytes));
        }
    }
}
