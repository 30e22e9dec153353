//! Inserts the blocks of one write into a map, a leaf at a time instead of one descent per block.

use layout::Mapping;
use situations::{Situation, situation_if};
use units::Pba;

use super::Map;
use super::leaf::RunPart;
use super::node::{Body, Child, Node};
use crate::sabotage::{Sabotage, broken};

/// Blocks that lie behind each other, for keys that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Location of its first block.
    pub start: Pba,
    /// The checksum of each block.
    pub crcs: &'a [u32],
    /// The metadata of each block, one after the other.
    pub metadata: &'a [u8],
}

impl Run<'_> {
    /// All but the first `count` blocks.
    fn behind(self, count: usize) -> Self {
        Self {
            start: self.start.plus(count as u64),
            crcs: &self.crcs[count..],
            metadata: &self.metadata[count * self.metadata_each()..],
        }
    }

    /// Returns whether blocks from `key` on go to keys from `end` on, too.
    fn ends_behind(self, key: u64, end: u64) -> bool {
        self.crcs.len() as u64 > end - key
    }

    /// Bytes of metadata that each block has.
    fn metadata_each(self) -> usize {
        self.metadata.len() / self.crcs.len()
    }
}

impl Map {
    /// Makes the keys from `key` on lead to the blocks of `run`, in order. `replaced` is told what they led to before. The
    /// paths to all of them are loaded.
    pub fn insert_run(&mut self, key: u64, run: Run<'_>, mut replaced: impl FnMut(Mapping)) {
        let (mut key, mut run) = (key, run);
        while let Some(crc) = run.crcs.first() {
            let part = self.put_into_leaf(key, run, &mut replaced);
            let taken = match part.replaced + part.added {
                0 => {
                    let mapping = Mapping { pba: run.start, crc: *crc };
                    let of_block = &run.metadata[..run.metadata_each()];
                    let old = self.insert_with_metadata(key, mapping, of_block);
                    old.into_iter().for_each(&mut replaced);
                    1
                }
                taken => {
                    if !broken(Sabotage::RunCountsNothing) {
                        self.entries += part.added as u64;
                    }
                    self.note_inserts(key + part.replaced as u64, part.added as u64);
                    taken
                }
            };
            key += taken as u64;
            run = run.behind(taken);
        }
    }

    /// Puts what the leaf for `key` takes without a split into it: as many blocks as it says, or none.
    fn put_into_leaf(
        &mut self,
        key: u64,
        run: Run<'_>,
        replaced: &mut impl FnMut(Mapping),
    ) -> RunPart {
        let mut next = self.root.as_mut().and_then(Child::node_mut);
        let mut span = (0, u64::MAX);
        while let Some(node) = next {
            next = match &mut Node::make_mut(node, &self.counters).body {
                Body::Leaf(leaf) => {
                    situation_if(Situation::RunAcrossLeaf, || run.ends_behind(key, span.1));
                    return leaf.put_run(key, span.1, run, replaced);
                }
                Body::Inner(inner) => {
                    let index = inner.find(key);
                    if broken(Sabotage::RunForgetsParent) {
                        span = (0, u64::MAX);
                    }
                    span = inner.span(index, span);
                    let goes_on = || inner.level > 1 && run.ends_behind(key, span.1);
                    situation_if(Situation::RunAcrossInnerNode, goes_on);
                    inner.children.get_mut()[index].node_mut()
                }
            };
        }
        RunPart::default()
    }
}
