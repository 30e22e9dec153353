//! Record of writes, which tells the contents that reads must find.
//!
//! - LOAD-JOURNAL-1: at most one write of a block is in flight, so writes of a block have an order:
//!   their sequence numbers, from 1.
//! - LOAD-JOURNAL-2: a block may hold any write from the last one acknowledged before the read began
//!   to the last one begun before it ended. What failed may or may not have happened.
//! - LOAD-JOURNAL-3: where no write was acknowledged, anything may lie that was there before: zeroes
//!   or foreign blocks, but no block of this journal from elsewhere.

use units::{Lba, LbaRange};

use crate::stamp::{Found, Stamp, inspect};

/// Blocks that a journal can cover: 256 GiB, whose records take 768 MiB.
const BLOCKS_MAX: u64 = 1 << 26;
/// Mismatches that are kept; the rest is counted.
const MISMATCHES_MAX: usize = 16;

/// The range is too large for a record of each block.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("checking {0} blocks needs too much memory; give a range of at most {BLOCKS_MAX} blocks")]
pub struct JournalTooLarge(pub u64);

/// A block that should have held something else.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Mismatch {
    /// An acknowledged write is gone.
    #[error("{lba}: write {found} is there, write {acknowledged} was acknowledged")]
    Lost {
        /// The block.
        lba: Lba,
        /// Number of the write that was found, 0 for zeroes.
        found: u32,
        /// Number of the write that was acknowledged.
        acknowledged: u32,
    },
    /// A write that was not begun. The record or the device is wrong.
    #[error("{lba}: write {found} is there, only {begun} were begun")]
    FromTheFuture {
        /// The block.
        lba: Lba,
        /// Number of the write that was found.
        found: u32,
        /// The last that was begun.
        begun: u32,
    },
    /// A block from another place.
    #[error("{lba}: the block of {found} is there")]
    Misplaced {
        /// The block.
        lba: Lba,
        /// The block that the content belongs to.
        found: Lba,
    },
    /// Parts of the block are something else.
    #[error("{lba}: the block is damaged or torn")]
    Damaged {
        /// The block.
        lba: Lba,
    },
    /// Nothing that this journal's load wrote.
    #[error("{lba}: foreign data is there, write {acknowledged} was acknowledged")]
    Foreign {
        /// The block.
        lba: Lba,
        /// Number of the write that was acknowledged.
        acknowledged: u32,
    },
}

/// Record of one block. LOAD-JOURNAL-1: a write is in flight if `in_flight`.
#[derive(Clone, Copy, Default)]
struct Record {
    acknowledged: u32,
    begun: u32,
    in_flight: bool,
}

/// Writes that may be read from a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Expected {
    acknowledged: u32,
}

/// Record of the writes to a range of blocks.
pub struct Journal {
    range: LbaRange,
    seed: u64,
    records: Vec<Record>,
    checked: u64,
    mismatches: Vec<Mismatch>,
    mismatch_count: u64,
}

impl Journal {
    /// An empty journal of `range`. Two journals of one target need different seeds.
    pub fn new(range: LbaRange, seed: u64) -> Result<Self, JournalTooLarge> {
        let blocks = usize::try_from(range.blocks).ok().filter(|_| range.blocks <= BLOCKS_MAX);
        let blocks = blocks.ok_or(JournalTooLarge(range.blocks))?;
        Ok(Self {
            range,
            seed,
            records: vec![Record::default(); blocks],
            checked: 0,
            mismatches: Vec::new(),
            mismatch_count: 0,
        })
    }

    /// The range that it covers.
    #[must_use]
    pub fn range(&self) -> LbaRange {
        self.range
    }

    /// Blocks with an acknowledged write.
    #[must_use]
    pub fn blocks_written(&self) -> u64 {
        self.records.iter().filter(|record| record.acknowledged > 0).count() as u64
    }

    /// Blocks that were compared with the journal so far.
    #[must_use]
    pub fn blocks_checked(&self) -> u64 {
        self.checked
    }

    /// The first blocks that did not hold what they should.
    #[must_use]
    pub fn mismatches(&self) -> &[Mismatch] {
        &self.mismatches
    }

    /// Number of blocks found that did not hold what they should.
    #[must_use]
    pub fn mismatch_count(&self) -> u64 {
        self.mismatch_count
    }

    fn index(&self, lba: Lba) -> usize {
        usize::try_from(lba.0 - self.range.start.0).expect("within the range")
    }

    fn run(&self, range: LbaRange) -> std::ops::Range<usize> {
        let start = self.index(range.start);
        start..start + usize::try_from(range.blocks).expect("within the range")
    }

    /// Begins a write and fills its data, or returns `false` if one of the blocks is busy.
    pub(crate) fn begin_write(&mut self, range: LbaRange, data: &mut [u8]) -> bool {
        let run = self.run(range);
        if self.records[run.clone()].iter().any(|record| record.in_flight) {
            return false;
        }
        let blocks = data.chunks_exact_mut(units::BLOCK_SIZE);
        for ((offset, record), block) in (0..).zip(&mut self.records[run]).zip(blocks) {
            record.in_flight = true;
            record.begun += 1;
            let lba = range.start.plus(offset);
            Stamp { lba, sequence: record.begun, seed: self.seed }.fill(block);
        }
        true
    }

    /// Ends a write.
    pub(crate) fn end_write(&mut self, range: LbaRange, acknowledged: bool) {
        let run = self.run(range);
        for record in &mut self.records[run] {
            record.in_flight = false;
            if acknowledged {
                record.acknowledged = record.begun;
            }
        }
    }

    /// Returns true if a write of one of the blocks was begun.
    pub(crate) fn touched(&self, range: LbaRange) -> bool {
        self.records[self.run(range)].iter().any(|record| record.begun > 0)
    }

    /// Returns the writes that a read that begins now may find, block by block.
    pub(crate) fn begin_read(&self, range: LbaRange) -> Vec<Expected> {
        let records = &self.records[self.run(range)];
        records.iter().map(|record| Expected { acknowledged: record.acknowledged }).collect()
    }

    /// Compares a block with what it may be (LOAD-JOURNAL-2). Returns whether it is.
    pub(crate) fn check(&mut self, lba: Lba, expected: Expected, block: &[u8]) -> bool {
        self.checked += 1;
        let begun = self.records[self.index(lba)].begun;
        let Some(mismatch) = self.compare(lba, expected.acknowledged, begun, block) else {
            return true;
        };
        self.mismatch_count += 1;
        if self.mismatches.len() < MISMATCHES_MAX {
            self.mismatches.push(mismatch);
        }
        false
    }

    fn compare(&self, lba: Lba, acknowledged: u32, begun: u32, block: &[u8]) -> Option<Mismatch> {
        let lost = |found| Mismatch::Lost { lba, found, acknowledged };
        match inspect(block) {
            Found::Zeroes => (acknowledged > 0).then(|| lost(0)),
            Found::Whole(stamp) | Found::Damaged(stamp) if stamp.seed != self.seed => {
                (acknowledged > 0).then_some(Mismatch::Foreign { lba, acknowledged })
            }
            Found::Foreign => (acknowledged > 0).then_some(Mismatch::Foreign { lba, acknowledged }),
            Found::Damaged(_) => Some(Mismatch::Damaged { lba }),
            Found::Whole(stamp) if stamp.lba != lba => {
                Some(Mismatch::Misplaced { lba, found: stamp.lba })
            }
            Found::Whole(Stamp { sequence, .. }) if sequence < acknowledged => Some(lost(sequence)),
            Found::Whole(Stamp { sequence: found, .. }) if found > begun => {
                Some(Mismatch::FromTheFuture { lba, found, begun })
            }
            Found::Whole(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use units::BLOCK_SIZE;

    use super::*;

    const RANGE: LbaRange = LbaRange::new(Lba(8), 4);
    const ONE: LbaRange = LbaRange::new(Lba(9), 1);

    fn write(journal: &mut Journal, range: LbaRange, acknowledged: bool) -> Vec<u8> {
        let mut data = vec![0; BLOCK_SIZE * range.blocks as usize];
        assert!(journal.begin_write(range, &mut data));
        journal.end_write(range, acknowledged);
        data
    }

    fn read(journal: &mut Journal, block: &[u8]) -> Option<Mismatch> {
        let expected = journal.begin_read(ONE)[0];
        let before = journal.mismatches().len();
        let fits = journal.check(ONE.start, expected, block);
        assert_eq!(fits, journal.mismatches().len() == before);
        journal.mismatches().get(before).copied()
    }

    /// LOAD-JOURNAL-2: what is acknowledged must be there, what failed may be.
    #[test]
    fn only_writes_from_the_last_acknowledged_one_on_are_accepted() {
        let mut journal = Journal::new(RANGE, 1).expect("small");
        let first = write(&mut journal, ONE, true);
        assert_eq!(read(&mut journal, &first), None);
        let second = write(&mut journal, ONE, false);
        assert_eq!(read(&mut journal, &first), None);
        assert_eq!(read(&mut journal, &second), None);
        let third = write(&mut journal, ONE, true);
        assert_eq!(read(&mut journal, &third), None);
        let lba = ONE.start;
        let lost = Mismatch::Lost { lba, found: 2, acknowledged: 3 };
        assert_eq!(read(&mut journal, &second), Some(lost));
        let lost = Mismatch::Lost { lba, found: 0, acknowledged: 3 };
        assert_eq!(read(&mut journal, &[0; BLOCK_SIZE]), Some(lost));
    }

    #[test]
    fn torn_misplaced_and_foreign_blocks_are_told_apart() {
        let mut journal = Journal::new(RANGE, 1).expect("small");
        let mut other = Journal::new(RANGE, 2).expect("small");
        let all = write(&mut journal, RANGE, true);
        let foreign = write(&mut other, ONE, true);
        let (lba, own) = (ONE.start, &all[BLOCK_SIZE..2 * BLOCK_SIZE]);
        assert_eq!(read(&mut journal, own), None);
        let misplaced = Mismatch::Misplaced { lba, found: Lba(8) };
        assert_eq!(read(&mut journal, &all[..BLOCK_SIZE]), Some(misplaced));
        let foreign_found = Mismatch::Foreign { lba, acknowledged: 1 };
        assert_eq!(read(&mut journal, &foreign), Some(foreign_found));
        let torn = [&own[..2048], &foreign[2048..]].concat();
        assert_eq!(read(&mut journal, &torn), Some(Mismatch::Damaged { lba }));
    }

    /// LOAD-JOURNAL-3: before the first write anything may lie there.
    #[test]
    fn unwritten_blocks_may_hold_anything_old() {
        let mut journal = Journal::new(RANGE, 1).expect("small");
        assert_eq!(read(&mut journal, &[0; BLOCK_SIZE]), None);
        assert_eq!(read(&mut journal, &[7; BLOCK_SIZE]), None);
    }

    /// LOAD-JOURNAL-1.
    #[test]
    fn a_block_in_flight_takes_no_second_write() {
        let mut journal = Journal::new(RANGE, 1).expect("small");
        let mut data = vec![0; BLOCK_SIZE];
        assert!(journal.begin_write(ONE, &mut data));
        assert!(!journal.begin_write(ONE, &mut data));
        journal.end_write(ONE, true);
        assert!(journal.begin_write(ONE, &mut data));
    }
}
