//! Blocks that fail for good, however often they are tried.

use std::collections::BTreeMap;

use units::PbaRange;

/// Operations that a device no longer does with a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Defect {
    /// Reads fail. Writes are stored, and can be read once the device is mended.
    Reads,
    /// Writes fail. The present content stays, and can be read.
    Writes,
    /// Both fail.
    Both,
}

/// All such blocks of a device. They outlast a power cut.
#[derive(Clone, Debug, Default)]
pub(super) struct Defects(BTreeMap<u64, Defect>);

impl Defects {
    pub(super) fn add(&mut self, range: PbaRange, defect: Defect) {
        self.0.extend((range.start.0..range.end().0).map(|block| (block, defect)));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn can_read(&self, block: u64) -> bool {
        !matches!(self.0.get(&block), Some(Defect::Reads | Defect::Both))
    }

    pub(super) fn can_write(&self, block: u64) -> bool {
        !matches!(self.0.get(&block), Some(Defect::Writes | Defect::Both))
    }

    pub(super) fn can_write_all(&self, range: PbaRange) -> bool {
        let mut inside = self.0.range(range.start.0..range.end().0);
        inside.all(|(_, defect)| *defect == Defect::Reads)
    }
}
