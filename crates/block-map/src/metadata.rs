//! Metadata of blocks, as the leaves of a map have it.

use units::MetadataSize;

use super::capacity::leaf_capacity;
use super::leaf::{WIDTH_LEAST, grown};

/// Metadata of the blocks that a leaf leads to, in the order of its keys.
#[derive(Clone, Debug)]
pub(super) struct Metadata {
    pub(super) size: MetadataSize,
    pub(super) bytes: Vec<u8>,
}

impl Metadata {
    pub(super) fn new(size: MetadataSize, bytes: &[u8]) -> Option<Box<Self>> {
        (!size.is_none()).then(|| Box::new(Self { size, bytes: bytes.to_vec() }))
    }

    pub(super) fn get(&self, index: usize) -> &[u8] {
        &self.bytes[index * self.size.bytes()..][..self.size.bytes()]
    }

    /// Sets those of one or more blocks from the one at `index` on.
    pub(super) fn set_all(&mut self, index: usize, of_blocks: &[u8]) {
        let at = index * self.size.bytes();
        self.bytes[at..at + of_blocks.len()].copy_from_slice(of_blocks);
    }

    /// Adds those of one or more blocks behind the last.
    pub(super) fn append(&mut self, of_blocks: &[u8]) {
        self.make_room(of_blocks.len() / self.size.bytes());
        self.bytes.extend_from_slice(of_blocks);
    }

    fn make_room(&mut self, blocks: usize) {
        let (each, most) = (self.size.bytes(), leaf_capacity(WIDTH_LEAST, self.size));
        while self.bytes.len() + blocks * each > self.bytes.capacity() {
            let wanted = grown(self.bytes.capacity() / each, most) * each;
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
    }

    pub(super) fn insert(&mut self, index: usize, of_block: &[u8]) {
        let each = self.size.bytes();
        assert_eq!(of_block.len(), each, "each block has its metadata");
        self.make_room(1);
        let at = index * each;
        self.bytes.splice(at..at, of_block.iter().copied());
    }

    pub(super) fn split_off(&mut self, index: usize) -> Box<Self> {
        let bytes = self.bytes.split_off(index * self.size.bytes());
        self.bytes.shrink_to_fit();
        Box::new(Self { size: self.size, bytes })
    }
}
