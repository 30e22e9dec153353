//! The contents that a volume may have.

/// The contents of all blocks, each with its metadata behind its data.
#[derive(Clone, Debug)]
pub struct Image {
    each: usize,
    blocks: Vec<Block>,
}

#[derive(Clone, Debug)]
struct Block {
    /// The content of the block if no command is unanswered.
    now: Vec<u8>,
    /// The contents that commands which were never answered may have given it.
    maybe: Vec<Vec<u8>>,
}

impl Image {
    /// `count` blocks of `each` bytes, all zeroes.
    #[must_use]
    pub fn new(count: usize, each: usize) -> Self {
        let block = Block { now: vec![0; each], maybe: Vec::new() };
        Self { each, blocks: vec![block; count] }
    }

    /// Blocks of the volume.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Contents of `count` blocks from `start`, if no command is unanswered there.
    #[must_use]
    pub fn bytes(&self, start: usize, count: usize) -> Vec<u8> {
        self.blocks[start..start + count].iter().flat_map(|block| block.now.clone()).collect()
    }

    /// The first of the blocks from `start` that must not hold what `bytes` says.
    #[must_use]
    pub fn first_wrong(&self, start: usize, bytes: &[u8]) -> Option<usize> {
        let found = bytes.chunks(self.each).enumerate();
        found.map(|(n, bytes)| (start + n, bytes)).find_map(|(n, bytes)| {
            let block = &self.blocks[n];
            let is_right = block.now == bytes || block.maybe.iter().any(|maybe| maybe == bytes);
            (!is_right).then_some(n)
        })
    }

    pub(crate) fn write(&mut self, start: usize, bytes: &[u8]) {
        for (block, bytes) in self.blocks[start..].iter_mut().zip(bytes.chunks(self.each)) {
            block.now = bytes.to_vec();
        }
    }

    /// The command that would write this was never answered.
    pub(crate) fn may_write(&mut self, start: usize, bytes: &[u8]) {
        for (block, bytes) in self.blocks[start..].iter_mut().zip(bytes.chunks(self.each)) {
            block.maybe.push(bytes.to_vec());
        }
    }
}
