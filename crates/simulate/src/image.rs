//! Could a reader have seen these blocks at one instant?
//!
//! An image is what a read of many blocks showed, or all of a volume after a crash. It is possible if
//! there is an order of the changes such that
//! - IMAGE-1: changes that did not overlap in time are in the order of time;
//! - IMAGE-2: each change is there as a whole: one that shows in one block comes, in every block that
//!   it covers, before what that block shows;
//! - IMAGE-3: every change that was acknowledged before the reader began comes before what is shown.
//!
//! The order exists if "comes before" has no circle. Zeroes do not tell which change left them; for
//! those, any one that would do is enough.

use std::collections::{BTreeMap, BTreeSet};

use crate::content::{Shown, Tag};
use crate::history::{Change, Fate, History, Moment};

/// Checks the blocks from `start` on, read between `invoked` and `ended`.
///
/// # Errors
/// What is impossible about them.
pub(crate) fn check(
    history: &History,
    start: u64,
    shown: &[Shown],
    (invoked, ended): (Moment, Moment),
) -> Result<(), String> {
    let image = Image { history, start, shown, invoked, ended };
    let visible = image.visible()?;
    let mut order = Order::default();
    for (lba, shown) in (start..).zip(shown) {
        match shown {
            Shown::Tag(tag) => image.check_write(lba, *tag, &visible, &mut order)?,
            Shown::Zero => image.check_zero(lba, &visible, &mut order)?,
            Shown::Foreign => {
                return Err(format!("block {lba} holds data that was not written there"));
            }
            Shown::Unknown => {}
        }
    }
    order.check()
}

struct Image<'a> {
    history: &'a History,
    start: u64,
    shown: &'a [Shown],
    invoked: Moment,
    ended: Moment,
}

impl Image<'_> {
    /// The writes that show.
    fn visible(&self) -> Result<BTreeSet<Tag>, String> {
        let mut visible = BTreeSet::new();
        for (lba, shown) in (self.start..).zip(self.shown) {
            let Shown::Tag(tag) = shown else { continue };
            let change = self.history.get(*tag);
            match change {
                None => return Err(format!("block {lba} holds write {tag} of another volume")),
                Some(change) if !change.covers(lba) || change.zero => {
                    return Err(format!("block {lba} holds write {tag}, which did not cover it"));
                }
                Some(Change { fate: Fate::Refused, .. }) => {
                    return Err(format!("block {lba} holds write {tag}, which was refused"));
                }
                Some(change) if change.invoked > self.ended => {
                    return Err(format!("block {lba} holds write {tag} of the future"));
                }
                Some(_) => visible.insert(*tag),
            };
        }
        Ok(visible)
    }

    /// The changes of a block that must come before what it shows (IMAGE-2, IMAGE-3).
    fn before(&self, lba: u64, visible: &BTreeSet<Tag>) -> impl Iterator<Item = &Change> {
        let must = |c: &&Change| c.is_certain_before(self.invoked) || visible.contains(&c.tag);
        self.history.of_block(lba).filter(move |change| must(change))
    }

    fn check_write(
        &self,
        lba: u64,
        tag: Tag,
        visible: &BTreeSet<Tag>,
        order: &mut Order,
    ) -> Result<(), String> {
        let last = self.history.get(tag).expect("it is visible");
        for earlier in self.before(lba, visible).filter(|change| change.tag != tag) {
            if last.is_over_before(earlier.invoked) {
                let whose = if earlier.is_certain_before(self.invoked) {
                    "was acknowledged"
                } else {
                    "shows in another block"
                };
                return Err(format!(
                    "block {lba} holds write {tag}, but the later {} {whose}",
                    earlier.tag
                ));
            }
            order.add(earlier, last);
        }
        Ok(())
    }

    fn check_zero(
        &self,
        lba: u64,
        visible: &BTreeSet<Tag>,
        order: &mut Order,
    ) -> Result<(), String> {
        let writes: Vec<&Change> = self.before(lba, visible).filter(|c| !c.zero).collect();
        let Some(newest) = writes.iter().max_by_key(|change| change.invoked) else {
            return Ok(());
        };
        let possible = |zero: &&Change| {
            zero.zero
                && zero.fate != Fate::Refused
                && zero.invoked <= self.ended
                && !writes.iter().any(|write| zero.is_over_before(write.invoked))
                && self.is_whole(zero)
        };
        let mut causes = self.history.of_block(lba).filter(possible);
        let Some(cause) = causes.next() else {
            return Err(format!("block {lba} is empty, but write {} was there", newest.tag));
        };
        if causes.next().is_none() {
            writes.iter().for_each(|write| order.add(write, cause));
        }
        Ok(())
    }

    /// Returns true if no block of the change shows data from before it (IMAGE-2).
    fn is_whole(&self, zero: &Change) -> bool {
        let from = zero.range.start.0.max(self.start);
        let to = (zero.range.start.0 + zero.range.blocks).min(self.start + self.shown.len() as u64);
        (from..to).all(|lba| match self.shown[(lba - self.start) as usize] {
            Shown::Tag(tag) => {
                self.history.get(tag).is_some_and(|write| !write.is_over_before(zero.invoked))
            }
            _ => true,
        })
    }
}

/// The order of changes.
#[derive(Default)]
struct Order {
    /// Changes by tag: when they began and ended.
    nodes: BTreeMap<Tag, (Moment, Moment)>,
    edges: BTreeMap<Tag, BTreeSet<Tag>>,
}

impl Order {
    fn add(&mut self, earlier: &Change, later: &Change) {
        for change in [earlier, later] {
            self.nodes.insert(change.tag, (change.invoked, change.ended.unwrap_or(Moment::MAX)));
        }
        self.edges.entry(earlier.tag).or_default().insert(later.tag);
    }

    /// There is no circle.
    ///
    /// Method: take away, again and again, a change that nothing comes before. Of those that are left
    /// none began after the end of another that is left if its beginning is no later than the
    /// earliest end.
    fn check(&self) -> Result<(), String> {
        let mut left: BTreeMap<Tag, usize> = self.nodes.keys().map(|tag| (*tag, 0)).collect();
        for later in self.edges.values().flatten() {
            *left.get_mut(later).expect("a node") += 1;
        }
        let mut ends: BTreeSet<(Moment, Tag)> =
            self.nodes.iter().map(|(tag, (_, ended))| (*ended, *tag)).collect();
        let mut ready: BTreeSet<(Moment, Tag)> = BTreeSet::new();
        for (tag, count) in &left {
            if *count == 0 {
                ready.insert((self.nodes[tag].0, *tag));
            }
        }
        while let Some((began, tag)) = ready.pop_first() {
            let earliest_end = ends.iter().find(|(_, other)| *other != tag).map(|(end, _)| *end);
            if earliest_end.is_some_and(|end| end < began) {
                ready.insert((began, tag));
                break;
            }
            ends.remove(&(self.nodes[&tag].1, tag));
            left.remove(&tag);
            for later in self.edges.get(&tag).into_iter().flatten() {
                let count = left.get_mut(later).expect("it comes later");
                *count -= 1;
                if *count == 0 {
                    ready.insert((self.nodes[later].0, *later));
                }
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        let tags: Vec<Tag> = left.into_keys().collect();
        Err(format!("the changes {tags:?} each show before another of them"))
    }
}

#[cfg(test)]
mod tests {
    use units::{Lba, LbaRange};

    use super::*;

    /// Tag, first block, blocks, whether it leaves zeroes, beginning, end.
    type Line = (Tag, u64, u64, bool, Moment, Option<Moment>);

    fn history(changes: &[Line]) -> History {
        let mut history = History::default();
        for (tag, start, blocks, zero, invoked, ended) in changes.iter().copied() {
            history.begin(tag, LbaRange::new(Lba(start), blocks), zero, invoked);
            if let Some(ended) = ended {
                history.end(tag, Fate::Done, ended);
            }
        }
        history
    }

    fn image(history: &History, tags: &[Tag]) -> Result<(), String> {
        let shown = |tag: &Tag| if *tag == 0 { Shown::Zero } else { Shown::Tag(*tag) };
        check(history, 0, &tags.iter().map(shown).collect::<Vec<_>>(), (100, 101))
    }

    #[test]
    fn an_acknowledged_write_must_show_wholly_and_an_open_one_may() {
        let history = history(&[(1, 0, 3, false, 1, Some(2)), (2, 0, 2, false, 3, None)]);
        assert!(image(&history, &[1, 1, 1]).is_ok());
        assert!(image(&history, &[2, 2, 1]).is_ok());
        assert!(image(&history, &[2, 1, 1]).is_err(), "torn");
        assert!(image(&history, &[0, 1, 1]).is_err(), "lost");
        assert!(image(&history, &[1, 1, 2]).is_err(), "not covered");
        assert!(image(&history, &[1, 1, 9]).is_err(), "never written");
    }

    #[test]
    fn a_deallocation_shows_wholly_or_not_at_all() {
        let history = history(&[(1, 0, 3, false, 1, Some(2)), (2, 0, 3, true, 3, None)]);
        assert!(image(&history, &[1, 1, 1]).is_ok());
        assert!(image(&history, &[0, 0, 0]).is_ok());
        assert!(image(&history, &[0, 1, 1]).is_err());
    }

    /// Two open writes that overlap in two blocks each come last in one of them.
    #[test]
    fn two_writes_do_not_mix() {
        let history = history(&[(1, 0, 2, false, 1, None), (2, 0, 2, false, 2, None)]);
        assert!(image(&history, &[1, 1]).is_ok());
        assert!(image(&history, &[2, 2]).is_ok());
        assert!(image(&history, &[1, 2]).is_err());
    }

    /// A circle through time: 1 before 2 by a block, 2 before 3 by time, 3 before 1 by a block.
    #[test]
    fn a_circle_through_time_is_found() {
        let history = history(&[
            (1, 0, 2, false, 1, Some(50)),
            (2, 0, 1, false, 2, Some(10)),
            (3, 1, 1, false, 20, Some(30)),
        ]);
        assert!(image(&history, &[1, 1]).is_ok());
        assert!(image(&history, &[1, 3]).is_ok());
        assert!(image(&history, &[2, 3]).is_ok());
        assert!(image(&history, &[2, 1]).is_err(), "1 is before 2, which is before 3");
    }
}
