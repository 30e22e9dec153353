//! The journal's ring and the records in it, without the I/O. JOURNAL-1 to JOURNAL-7 are in `layout`.
//!
//! Positions count blocks since the shard's first record and never wrap; the block of the ring is
//! the remainder. `head` is where replay would begin, `tail` where the next record goes.
//!
//! A block that the device refuses is passed over by a checkpoint that finds the journal without a record on its way: it says
//! where the journal goes on, and until it is durable nothing is written there.

use std::collections::{BTreeSet, VecDeque};

use layout::{RECORD_BLOCKS_MAX, ReplayPoint};
use situations::{Situation, situation_if};
use units::{Pba, PbaRange};

use crate::JournalLoss;
use crate::ops::OpId;
use crate::sabotage::{Sabotage, broken};

/// Most records that are not settled: bounds what recovery verifies.
pub(crate) const RECORDS_UNSETTLED_MAX: usize = 64;

#[cfg(feature = "small-structures")]
pub(crate) use short::ring_blocks;
#[cfg(feature = "small-structures")]
pub use short::set_journal_blocks;

/// Returns the blocks of a new journal, of which its extent has room for `most`.
#[cfg(not(feature = "small-structures"))]
pub(crate) const fn ring_blocks(most: u32) -> u32 {
    most
}

#[cfg(feature = "small-structures")]
mod short {
    use std::cell::Cell;

    use layout::RECORD_BLOCKS_MAX;

    thread_local! {
        static CHOSEN: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// Sets the blocks of the journals that this thread creates from now on, at least two of the
    /// longest records and at most what their extent has room for, which `None` stands for.
    pub fn set_journal_blocks(blocks: Option<u32>) {
        CHOSEN.set(blocks);
    }

    pub(crate) fn ring_blocks(most: u32) -> u32 {
        CHOSEN.get().map_or(most, |chosen| chosen.clamp(2 * u32::from(RECORD_BLOCKS_MAX), most))
    }
}

/// A record on its way.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) sequence: u64,
    start: u64,
    previous_crc: u32,
    pub(crate) ops: Vec<OpId>,
    pub(crate) written: bool,
    /// Operations in it whose data is on its way.
    pub(crate) data_pending: u32,
}

/// The position of a new record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    start: u64,
    /// The block of the ring.
    at: u64,
    pub(crate) pba: Pba,
    pub(crate) sequence: u64,
    pub(crate) previous_crc: u32,
}

impl Place {
    /// Returns whether the position is the start of the ring.
    pub(crate) fn is_at_start(&self) -> bool {
        self.at == 0
    }
}

#[derive(Debug)]
pub(crate) struct Journal {
    area: PbaRange,
    head: u64,
    tail: u64,
    next_sequence: u64,
    previous_crc: u32,
    pub(crate) incarnation: u64,
    /// Operations in no record yet.
    pub(crate) queue: VecDeque<OpId>,
    pub(crate) in_flight: VecDeque<InFlight>,
    /// Last record that took effect.
    applied: u64,
    /// Records with an operation that failed and is not undone yet: `settled` stays below.
    holds: Vec<u64>,
    /// Last record whose data, and itself, are known to be on the media.
    pub(crate) flushed: u64,
    /// The last position up to which a record or a durable checkpoint says that data is on the
    /// media.
    advertised: u64,
    /// Last record with an operation in it.
    last_filled: u64,
    /// A record is wanted that says what is settled, and nothing else.
    pub(crate) say_settled: bool,
    /// Nothing can be written any more, and why.
    lost: Option<JournalLoss>,
    /// Blocks of the ring that the device refuses, by their distance from its start.
    refused: BTreeSet<u64>,
    /// The tail is where no root leads to yet.
    has_gap: bool,
    spare: Vec<Vec<OpId>>,
}

impl Journal {
    /// An empty journal that goes on at `replay`.
    pub(crate) fn new(area: PbaRange, incarnation: u64, replay: ReplayPoint) -> Self {
        let at = u64::from(replay.position);
        let applied = replay.sequence - 1;
        Self {
            area,
            head: at,
            tail: at,
            next_sequence: replay.sequence,
            previous_crc: replay.previous_crc,
            incarnation,
            queue: VecDeque::new(),
            in_flight: VecDeque::new(),
            applied,
            holds: Vec::new(),
            flushed: applied,
            advertised: applied,
            last_filled: applied,
            say_settled: false,
            lost: None,
            refused: BTreeSet::new(),
            has_gap: false,
            spare: Vec::new(),
        }
    }

    /// That of a shard of which nothing is known yet.
    pub(crate) fn nowhere() -> Self {
        let replay = ReplayPoint { sequence: 1, position: 0, previous_crc: 0 };
        Self::new(PbaRange::new(Pba(0), 1), 0, replay)
    }

    pub(crate) fn area(&self) -> PbaRange {
        self.area
    }

    /// Returns whether the journal can no longer be written.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Why nothing can be written any more, if so.
    pub(crate) fn loss(&self) -> Option<JournalLoss> {
        self.lost
    }

    /// Nothing is written from now on. The first reason is the one.
    pub(crate) fn lose(&mut self, why: JournalLoss) {
        self.lost.get_or_insert(why);
    }

    /// Blocks between head and tail.
    pub(crate) fn used(&self) -> u64 {
        self.tail - self.head
    }

    pub(crate) fn is_half_full(&self) -> bool {
        self.used() * 2 >= self.area.blocks
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_empty() && self.holds.is_empty()
    }

    /// Returns whether recovery would compare data that is known to be on the media.
    pub(crate) fn is_settled_unknown(&self) -> bool {
        self.last_filled > self.advertised
    }

    /// The position up to which the next record says that data is on the media.
    pub(crate) fn settled(&self) -> u64 {
        self.holds.iter().map(|hold| hold - 1).fold(self.applied, u64::min)
    }

    /// The last record that took effect, and which of those behind what is settled have a write that failed and is not undone:
    /// JOURNAL-6.
    pub(crate) fn effects(&self) -> (u64, u64) {
        let behind = |hold: &u64| u32::try_from(hold - self.settled() - 1).unwrap_or(u32::MAX);
        let bits = self.holds.iter().map(|hold| 1_u64.unbounded_shl(behind(hold)));
        (self.applied, bits.fold(0, |failed, bit| failed | bit))
    }

    /// Keeps off `refused` blocks from now on, and off those that the next record could lie on at once: nothing in the ring is
    /// needed any more, and the checkpoint that comes says where it goes on. If a quarter is refused, nothing helps.
    pub(crate) fn keep_off(&mut self, refused: &BTreeSet<Pba>) {
        assert!(self.used() == 0 && self.in_flight.is_empty(), "an empty journal");
        let area = self.area;
        let in_ring = refused.range(area.start..area.end()).map(|pba| pba.0 - area.start.0);
        self.refused = in_ring.collect();
        if self.refused.len() as u64 > area.blocks / 4 {
            self.refused.clear();
        }
        self.pass_over();
        self.head = self.tail;
    }

    /// Moves the tail behind refused blocks that the next record could lie on, if no record is on its way. The checkpoint
    /// whose snapshot this begins says so.
    pub(crate) fn pass_over(&mut self) {
        if self.refused.is_empty() || !self.in_flight.is_empty() {
            return;
        }
        let (blocks, longest) = (self.area.blocks, u64::from(RECORD_BLOCKS_MAX));
        let before = self.tail;
        // Once around, no further: at each refused block, and at the end of the ring.
        for _ in 0..self.refused.len() + 2 {
            let at = self.tail % blocks;
            let wraps = at + longest > blocks;
            self.tail += match self.refused.range(at..at + longest).next_back() {
                Some(last) => last + 1 - at,
                None if wraps && self.refuses(0, longest) => blocks - at,
                None => break,
            };
        }
        self.has_gap = self.tail != before;
        situation_if(Situation::JournalPassesOver, || self.has_gap);
    }

    fn refuses(&self, at: u64, blocks: u64) -> bool {
        !self.refused.is_empty() && self.refused.range(at..at + blocks).next().is_some()
    }

    /// Returns the position of the next record, of `blocks` blocks; `None` until a checkpoint makes
    /// room.
    pub(crate) fn place(&self, blocks: u64) -> Option<Place> {
        let at = self.tail % self.area.blocks;
        let skip = if at + blocks > self.area.blocks { self.area.blocks - at } else { 0 };
        let start = self.tail + skip;
        let at = start % self.area.blocks;
        if self.has_gap || self.refuses(at, blocks) {
            return None;
        }
        (start + blocks - self.head <= self.area.blocks).then(|| Place {
            start,
            at,
            pba: self.area.start.plus(at),
            sequence: self.next_sequence,
            previous_crc: self.previous_crc,
        })
    }

    /// A record was made and goes to `place`.
    pub(crate) fn push(
        &mut self,
        place: Place,
        blocks: u64,
        crc: u32,
        ops: Vec<OpId>,
        data_pending: u32,
    ) {
        self.tail = place.start + blocks;
        self.next_sequence += 1;
        self.previous_crc = crc;
        self.advertised = self.settled();
        self.say_settled = false;
        if !ops.is_empty() {
            self.last_filled = place.sequence;
        }
        self.in_flight.push_back(InFlight {
            sequence: place.sequence,
            start: place.start,
            previous_crc: place.previous_crc,
            ops,
            written: false,
            data_pending,
        });
    }

    pub(crate) fn in_flight_mut(&mut self, sequence: u64) -> Option<&mut InFlight> {
        let first = self.in_flight.front()?.sequence;
        let index = usize::try_from(sequence.checked_sub(first)?).ok()?;
        self.in_flight.get_mut(index)
    }

    /// Last record of the unbroken row of complete ones, all written and all their data, too.
    pub(crate) fn complete_through(&self) -> Option<u64> {
        let complete = |record: &&InFlight| record.written && record.data_pending == 0;
        self.in_flight.iter().take_while(complete).last().map(|record| record.sequence)
    }

    /// Takes out the oldest record if it is complete and, where that is needed, flushed.
    pub(crate) fn pop_settled(&mut self, needs_flush: bool) -> Option<Vec<OpId>> {
        let front = self.in_flight.front()?;
        let written = front.written || broken(Sabotage::AckBeforeRecord);
        let data_written = front.data_pending == 0 || broken(Sabotage::AckBeforeData);
        if !written || !data_written {
            return None;
        }
        let flushed = self.flushed >= front.sequence
            || [Sabotage::SkipFlush, Sabotage::AckBeforeRecord, Sabotage::AckBeforeData]
                .into_iter()
                .any(broken);
        if needs_flush && !flushed {
            return None;
        }
        let record = self.in_flight.pop_front()?;
        self.applied = record.sequence;
        Some(record.ops)
    }

    pub(crate) fn hold(&mut self, sequence: u64) {
        self.holds.push(sequence);
    }

    /// Returns whether a write that failed is not undone yet.
    pub(crate) fn has_holds(&self) -> bool {
        !self.holds.is_empty()
    }

    pub(crate) fn unhold(&mut self, sequence: u64) {
        if let Some(place) = self.holds.iter().position(|hold| *hold == sequence) {
            self.holds.swap_remove(place);
        }
    }

    /// The point where replay must begin if everything applied by now is in a checkpoint, and the
    /// position to hand to [`Journal::truncate`] when that is durable.
    pub(crate) fn replay_point(&self) -> (ReplayPoint, u64) {
        let (sequence, start, previous_crc) = match self.in_flight.front() {
            Some(record) => (record.sequence, record.start, record.previous_crc),
            None => (self.next_sequence, self.tail, self.previous_crc),
        };
        let position = start % self.area.blocks;
        let position = u32::try_from(position).expect("a journal has less than 2^32 blocks");
        (ReplayPoint { sequence, position, previous_crc }, start)
    }

    /// A checkpoint is durable: its replay begins at `head`, with record `sequence`.
    pub(crate) fn truncate(&mut self, head: u64, sequence: u64) {
        self.head = head;
        self.has_gap = false;
        self.advertised = self.advertised.max(sequence - 1);
    }

    pub(crate) fn spare_list(&mut self) -> Vec<OpId> {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn recycle(&mut self, mut list: Vec<OpId>) {
        list.clear();
        self.spare.push(list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(position: u32) -> Journal {
        let replay = ReplayPoint { sequence: 1, position, previous_crc: 0 };
        Journal::new(PbaRange::new(Pba(100), 10), 1, replay)
    }

    fn push(journal: &mut Journal, blocks: u64) -> Option<Pba> {
        let place = journal.place(blocks)?;
        journal.push(place, blocks, 7, Vec::new(), 0);
        Some(place.pba)
    }

    #[test]
    fn records_do_not_wrap_and_never_overwrite_what_replay_needs() {
        let mut journal = journal(6);
        assert_eq!(push(&mut journal, 3), Some(Pba(106)));
        assert_eq!(push(&mut journal, 2), Some(Pba(100)), "would not fit before the end");
        assert_eq!(push(&mut journal, 4), Some(Pba(102)));
        assert_eq!(push(&mut journal, 1), None, "full up to the head");
        let (replay, head) = journal.replay_point();
        assert_eq!((replay.sequence, replay.position, head), (1, 6, 6));
        for record in &mut journal.in_flight {
            record.written = true;
        }
        assert!(journal.pop_settled(false).is_some());
        let (replay, head) = journal.replay_point();
        assert_eq!((replay.sequence, replay.position, replay.previous_crc), (2, 0, 7));
        journal.truncate(head, replay.sequence);
        assert_eq!(push(&mut journal, 4), Some(Pba(106)));
        assert_eq!(push(&mut journal, 1), None);
    }

    /// Laps of a ring of which blocks are refused, at its ends and within: no record lies on one, and each gap is one that a
    /// checkpoint tells of.
    #[test]
    fn records_keep_off_refused_blocks() {
        let area = PbaRange::new(Pba(100), 4096);
        for refused in [vec![0], vec![4095], vec![63, 64, 2000], vec![0, 1, 70, 4030, 4095]] {
            let refused: BTreeSet<Pba> = refused.into_iter().map(|at| Pba(100 + at)).collect();
            let replay = ReplayPoint { sequence: 1, position: 0, previous_crc: 0 };
            let mut journal = Journal::new(area, 1, replay);
            journal.keep_off(&refused);
            let (mut blocks, mut checkpoints, mut expected) = (0, 0, None);
            for size in (1..=u64::from(RECORD_BLOCKS_MAX)).cycle().take(3000) {
                while journal.place(size).is_none() {
                    for record in &mut journal.in_flight {
                        record.written = true;
                    }
                    while journal.pop_settled(false).is_some() {}
                    journal.pass_over();
                    let (replay, head) = journal.replay_point();
                    if journal.has_gap {
                        assert_eq!(journal.place(1).map(|place| place.pba), None);
                    }
                    journal.truncate(head, replay.sequence);
                    expected = Some(u64::from(replay.position));
                    checkpoints += 1;
                }
                let pba = push(&mut journal, size).expect("there is a place");
                let end = pba.plus(size);
                assert!(refused.range(pba..end).next().is_none() && end <= area.end());
                let at = pba.0 - 100;
                assert!(expected.is_none_or(|expected| [0, expected].contains(&at)), "JOURNAL-3");
                expected = Some(at + size);
                blocks += size;
            }
            assert!(blocks > 20 * 4096 && checkpoints < 200, "{blocks} {checkpoints}");
        }
    }

    #[test]
    fn settled_stays_below_a_record_that_is_not_undone() {
        let mut journal = journal(0);
        for _ in 0..3 {
            push(&mut journal, 1);
        }
        for record in &mut journal.in_flight {
            record.written = true;
        }
        journal.in_flight[2].data_pending = 1;
        assert_eq!(journal.complete_through(), Some(2));
        while journal.pop_settled(false).is_some() {}
        assert_eq!(journal.settled(), 2);
        assert_eq!(journal.effects(), (2, 0));
        journal.hold(2);
        assert_eq!((journal.settled(), journal.effects()), (1, (2, 1)));
        journal.hold(1);
        assert_eq!((journal.settled(), journal.effects()), (0, (2, 0b11)));
        journal.unhold(1);
        journal.unhold(2);
        assert_eq!((journal.settled(), journal.effects()), (2, (2, 0)));
    }
}
