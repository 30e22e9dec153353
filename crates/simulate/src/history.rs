//! History of the requests to a volume: their times and outcomes.
//!
//! Moments count events of the harness, not time: of any two, one is earlier, across restarts.

use std::collections::BTreeMap;

use units::LbaRange;

use crate::content::{Shown, Tag};

/// A point in the order of events.
pub(crate) type Moment = u64;

/// Outcome of a change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    /// It was not answered (yet): it takes effect before it ends, or never.
    Open,
    /// It took effect between its beginning and its end.
    Done,
    /// It never takes effect.
    Refused,
}

/// A change of blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    /// Tag of the change, which its contents carry.
    pub tag: Tag,
    /// The blocks.
    pub range: LbaRange,
    /// Leaves zeroes.
    pub zero: bool,
    /// When it was issued.
    pub invoked: Moment,
    /// When it was answered, or the power went.
    pub ended: Option<Moment>,
    /// Outcome of the change.
    pub fate: Fate,
    /// The disk damaged some of it: the next crash may undo all of it.
    pub harmed: bool,
    /// A start may have undone it.
    pub shaken: bool,
}

impl Change {
    /// Returns true if the change touches the block.
    #[must_use]
    pub(crate) fn covers(&self, lba: u64) -> bool {
        self.range.start.0 <= lba && lba < self.range.start.0 + self.range.blocks
    }

    /// Returns true if it took effect, if ever, before `moment`.
    #[must_use]
    pub(crate) fn is_over_before(&self, moment: Moment) -> bool {
        self.ended.is_some_and(|ended| ended < moment)
    }

    /// Returns true if it certainly took effect before `moment`, and holds.
    #[must_use]
    pub(crate) fn is_certain_before(&self, moment: Moment) -> bool {
        self.fate == Fate::Done && !self.shaken && self.is_over_before(moment)
    }
}

/// The result of a read, or of a comparison, for one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    /// The block.
    pub lba: u64,
    /// The content that it showed.
    pub shown: Shown,
    /// It showed anything but that.
    pub differs: bool,
    /// When the reader began.
    pub invoked: Moment,
    /// When it was answered.
    pub ended: Moment,
}

/// Changes of more blocks are kept apart, since they concern every block.
const NARROW_BLOCKS_MAX: u64 = 64;

/// All that was asked of a volume.
#[derive(Debug, Default)]
pub(crate) struct History {
    changes: Vec<Change>,
    /// Narrow changes by block.
    narrow: Vec<Vec<u32>>,
    wide: Vec<u32>,
    observations: Vec<Observation>,
    /// Contents that a comparison that writes expects before it.
    expected: BTreeMap<Tag, Vec<Shown>>,
    /// Index of each change.
    places: BTreeMap<Tag, u32>,
}

impl History {
    /// Notes that a change is issued.
    pub(crate) fn begin(&mut self, tag: Tag, range: LbaRange, zero: bool, invoked: Moment) {
        let place = u32::try_from(self.changes.len()).expect("a run is not that long");
        self.changes.push(Change {
            tag,
            range,
            zero,
            invoked,
            ended: None,
            fate: Fate::Open,
            harmed: false,
            shaken: false,
        });
        self.places.insert(tag, place);
        if range.blocks > NARROW_BLOCKS_MAX {
            self.wide.push(place);
            return;
        }
        let end = usize::try_from(range.end().0).expect("simulated volumes are small");
        if self.narrow.len() < end {
            self.narrow.resize(end, Vec::new());
        }
        let start = usize::try_from(range.start.0).expect("simulated volumes are small");
        self.narrow[start..end].iter_mut().for_each(|block| block.push(place));
    }

    /// Notes that a change happens only if `expected` is there before.
    pub(crate) fn expect(&mut self, tag: Tag, expected: Vec<Shown>) {
        self.expected.insert(tag, expected);
    }

    /// Returns the content that block `lba` must have before the change.
    #[must_use]
    pub(crate) fn expected(&self, change: &Change, lba: u64) -> Option<Shown> {
        let place = usize::try_from(lba - change.range.start.0).ok()?;
        self.expected.get(&change.tag)?.get(place).copied()
    }

    /// Blocks that a comparison that writes was answered to have found as expected; some more than once.
    pub(crate) fn swapped(&self) -> impl Iterator<Item = u64> {
        let swaps = self.expected.keys().filter_map(|tag| self.get(*tag));
        let done = swaps.filter(|change| change.fate == Fate::Done);
        done.flat_map(|change| change.range.start.0..change.range.end().0)
    }

    /// Returns the content of a block as far as it is known.
    #[must_use]
    pub(crate) fn guess(&self, lba: u64) -> Shown {
        let done = self.of_block(lba).filter(|change| change.fate == Fate::Done);
        match done.max_by_key(|change| change.ended) {
            Some(change) if !change.zero => Shown::Tag(change.tag),
            _ => Shown::Zero,
        }
    }

    /// Notes what came of it.
    pub(crate) fn end(&mut self, tag: Tag, fate: Fate, ended: Moment) {
        let change = self.get_mut(tag).expect("it was begun");
        change.fate = fate;
        // An open change that the harness gave up on may still take effect.
        change.ended = (fate != Fate::Open).then_some(ended);
    }

    /// Everything that runs is gone: what was open took effect by now, or never does.
    pub(crate) fn close(&mut self, now: Moment) {
        for change in &mut self.changes {
            change.ended.get_or_insert(now);
            change.shaken |= change.harmed;
        }
    }

    /// Notes what a read showed.
    pub(crate) fn observe(&mut self, observation: Observation) {
        self.observations.push(observation);
    }

    /// Returns the results of reads.
    #[must_use]
    pub(crate) fn observations(&self) -> &[Observation] {
        &self.observations
    }

    /// The change with this tag.
    #[must_use]
    pub(crate) fn get(&self, tag: Tag) -> Option<&Change> {
        self.places.get(&tag).map(|place| &self.changes[*place as usize])
    }

    /// The same, to be changed.
    pub(crate) fn get_mut(&mut self, tag: Tag) -> Option<&mut Change> {
        self.places.get(&tag).map(|place| &mut self.changes[*place as usize])
    }

    /// Returns true if a change that was not answered may be the present content of some block of the range.
    pub(crate) fn is_open(&self, range: LbaRange, now: Moment) -> bool {
        let is_replaced = |change: &Change, lba| {
            self.of_block(lba)
                .any(|later| later.is_certain_before(now) && change.is_over_before(later.invoked))
        };
        (range.start.0..range.start.0 + range.blocks).any(|lba| {
            let mut open = self.of_block(lba).filter(|change| change.fate == Fate::Open);
            open.any(|change| !is_replaced(change, lba))
        })
    }

    /// The next start may undo what was not over before `moment`; and of the writes that were not over before `compared`
    /// those that such a change covers, as the blocks that it freed may be another's: then they do not have their checksum.
    pub(crate) fn undo_since(&mut self, moment: Moment, compared: Moment) {
        for change in self.changes.iter_mut().filter(|change| !change.is_over_before(moment)) {
            change.shaken = true;
        }
        let overlap = |a: LbaRange, b: LbaRange| a.start < b.end() && b.start < a.end();
        let mut left: Vec<usize> = (0..self.changes.len()).collect();
        left.retain(|at| {
            let change = &self.changes[*at];
            !change.zero && !change.shaken && !change.is_over_before(compared)
        });
        // What an undone write covers may be undone in turn. Later ones come first.
        while let Some(place) = left.iter().rposition(|at| {
            let before = &self.changes[*at];
            let covers = |later: &Change| overlap(before.range, later.range);
            self.changes[*at + 1..].iter().any(|later| later.shaken && covers(later))
        }) {
            let at = left.remove(place);
            self.changes[at].shaken = true;
        }
    }

    /// Returns true if a start may have undone a change of the block that was not replaced before `moment`.
    pub(crate) fn is_shaken(&self, lba: u64, moment: Moment) -> bool {
        let is_replaced = |change: &Change| {
            self.of_block(lba).any(|later| {
                later.is_certain_before(moment) && change.is_over_before(later.invoked)
            })
        };
        let mut shaken = self.of_block(lba).filter(|change| change.shaken);
        shaken.any(|change| !is_replaced(change))
    }

    /// The changes that cover a block, in the order of issue where they are narrow.
    pub(crate) fn of_block(&self, lba: u64) -> impl Iterator<Item = &Change> {
        let narrow = usize::try_from(lba).ok().and_then(|lba| self.narrow.get(lba));
        let narrow = narrow.into_iter().flatten();
        let all = narrow.chain(&self.wide).map(|place| &self.changes[*place as usize]);
        all.filter(move |change| change.covers(lba))
    }
}

#[cfg(test)]
mod tests {
    use units::Lba;

    use super::*;

    /// Writes by tag: first block, blocks, beginning, end.
    fn undone(writes: &[(Tag, u64, u64, Moment, Moment)], compared: Moment) -> Vec<Tag> {
        let mut history = History::default();
        for (tag, start, blocks, invoked, ended) in writes.iter().copied() {
            history.begin(tag, LbaRange::new(Lba(start), blocks), false, invoked);
            history.end(tag, Fate::Done, ended);
        }
        history.undo_since(10, compared);
        history.changes.iter().filter(|change| change.shaken).map(|change| change.tag).collect()
    }

    #[test]
    fn a_start_undoes_what_came_since_a_record_and_what_that_covers_unless_it_is_settled() {
        let writes = [(1, 0, 4, 1, 2), (2, 3, 4, 3, 4), (3, 30, 4, 5, 6), (4, 6, 1, 7, 12)];
        assert_eq!(undone(&writes, 10), [4], "all before is settled");
        assert_eq!(
            undone(&writes, 3),
            [2, 4],
            "the first is settled, and nothing covers the third"
        );
        assert_eq!(undone(&writes, 0), [1, 2, 4], "what the undone one covers is undone in turn");
    }
}
