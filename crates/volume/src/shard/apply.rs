//! Applies durable operations, and undoes failed ones. COMMIT-1 to COMMIT-4 are in `commit.rs`.

use std::rc::Rc;

use io_traits::Device;
use layout::{Entry, KEY_LIMIT};
use situations::{Situation, situation, situation_if};
use smallvec::SmallVec;
use units::{Lba, LbaRange, Pba, PbaRange};

use super::{Inner, detached};
use crate::VolumeError;
use crate::ops::{Change, Crcs, OpId};
use crate::sabotage::{Sabotage, broken};
use crate::state::VolumeState;
use block_map::Run;
use space::Runs;

/// Deallocations of more blocks give their space back in the background.
pub(crate) const UNMAP_AT_ONCE_MAX: u64 = 1024;

impl<D: Device> Inner<D> {
    pub(super) fn apply(&self, id: OpId) {
        let (change, volume) = {
            let mut ops = self.ops.borrow_mut();
            let op = &mut ops[id];
            if op.data_error.is_some() {
                drop(ops);
                return match broken(Sabotage::SkipRestore) {
                    true => self.give_up_write(id),
                    false => self.restore(id),
                };
            }
            // What is put in its place is never looked at: the operation is finished below.
            let change = std::mem::replace(&mut op.change, Change::Create);
            (change, op.volume.clone())
        };
        let volume = volume.as_ref();
        let state = || volume.expect("the change is one of a volume");
        match change {
            Change::Write { lba, runs, crcs, metadata } => {
                self.apply_write(state(), lba, &runs, (&crcs, &metadata));
            }
            Change::Unmap { range } => self.apply_unmap(id, state(), range),
            Change::UnmapAll { ranges } => {
                ranges.iter().for_each(|range| self.unmap_now(state(), *range));
            }
            Change::Reserve { extent } => self.pool.borrow_mut().set_owned_durably(extent),
            Change::Create => {
                self.volumes.insert(state().clone());
            }
            Change::Resize { blocks } => {
                state().blocks.set(blocks);
                if !broken(Sabotage::ShrinkKeepsBlocks) {
                    let range = LbaRange::new(Lba(blocks), KEY_LIMIT - 1 - blocks);
                    self.apply_unmap(id, state(), range);
                }
            }
            Change::SetSlo { slo } => state().slo.set(slo),
            Change::SetAccess { access } => state().set_access(access),
            Change::Delete => {
                state().deleted.set(true);
                self.defer_unmap(id, state(), LbaRange::new(Lba(0), KEY_LIMIT - 1));
            }
            Change::Restore { failed, record, .. } => {
                self.journal.borrow_mut().unhold(record);
                self.give_up_write(failed);
            }
        }
        self.finish(id, Ok(()));
    }

    fn apply_write(
        &self,
        state: &VolumeState,
        lba: Lba,
        runs: &Runs,
        (crcs, metadata): (&Crcs, &[u8]),
    ) {
        state.ahead.borrow_mut().forget(LbaRange::new(lba, crcs.len() as u64));
        situation_if(Situation::FragmentedWrite, || runs.len() > 1);
        let mut map = state.map.borrow_mut();
        let mut overwritten: SmallVec<[Pba; 32]> = SmallVec::new();
        let (mut key, mut crcs, mut metadata) = (lba.0, crcs.as_slice(), metadata);
        for run in runs {
            self.pool.borrow_mut().commit(*run);
            let blocks = usize::try_from(run.blocks).expect("bounded by one write");
            let (mut of_run, mut metadata_of_run);
            (of_run, crcs) = crcs.split_at(blocks);
            (metadata_of_run, metadata) = metadata.split_at(blocks * state.metadata.bytes());
            if broken(Sabotage::ShortApply) && key + run.blocks > lba.0 + 1 && crcs.is_empty() {
                of_run = &of_run[..blocks - 1];
                metadata_of_run = &metadata_of_run[..of_run.len() * state.metadata.bytes()];
            }
            let run = Run { start: run.start, crcs: of_run, metadata: metadata_of_run };
            map.insert_run(key, run, |old| {
                if !broken(Sabotage::LeakOverwritten) {
                    overwritten.push(old.pba);
                }
            });
            key += blocks as u64;
        }
        self.admission.note_added((key - lba.0).saturating_sub(overwritten.len() as u64));
        self.free_blocks(overwritten.into_iter());
    }

    fn apply_unmap(&self, id: OpId, state: &Rc<VolumeState>, range: LbaRange) {
        if range.blocks <= UNMAP_AT_ONCE_MAX {
            self.unmap_now(state, range);
        } else if state.map.borrow().first_key(range.start.0, range.end().0) != Ok(None) {
            self.defer_unmap(id, state, range);
        }
    }

    fn unmap_now(&self, state: &VolumeState, range: LbaRange) {
        state.ahead.borrow_mut().forget(range);
        let (mut at, end) = (range.start.0, range.end().0);
        let mut removed = Vec::new();
        while at < end {
            let next = state.map.borrow_mut().remove_some(at, end, &mut removed);
            at = next.expect("NODE-4: the range was loaded before it was queued, and stays so");
        }
        self.admission.note_deallocated(removed.len() as u64);
        self.free_blocks(removed.iter().map(|(_, old)| old.pba));
    }

    /// The range reads as zeroes from now on; its blocks come back in the background.
    fn defer_unmap(&self, id: OpId, state: &Rc<VolumeState>, range: LbaRange) {
        let permit = self.ops.borrow_mut()[id].holds.take_unmap_place();
        assert!(permit.is_some(), "the number of pending unmaps is bounded");
        situation(Situation::RangeIsDead);
        state.defer_unmap(range, permit);
        self.reclaim(state);
    }

    /// Queues what undoes a failed write whose entry is on its way (COMMIT-3).
    fn restore(&self, id: OpId) {
        let (record, entries) = {
            let ops = self.ops.borrow();
            let op = &ops[id];
            let Change::Write { lba, crcs, .. } = &op.change else {
                unreachable!("only writes have data that fails")
            };
            let range = LbaRange::new(*lba, crcs.len() as u64);
            let state = op.volume.as_ref().expect("a write is one of a volume");
            (op.record.expect("it was in a record"), entries_as_mapped(state, range))
        };
        situation(Situation::DataFailsBehindRecord);
        self.journal.borrow_mut().hold(record);
        self.enqueue(detached(Change::Restore { failed: id, record, entries }));
    }

    /// A write that will never take effect: its blocks are free again, its caller learns why.
    pub(super) fn give_up_write(&self, id: OpId) {
        let (runs, error) = {
            let mut ops = self.ops.borrow_mut();
            let op = &mut ops[id];
            let Change::Write { runs, .. } = &mut op.change else {
                unreachable!("only writes have data that fails")
            };
            (std::mem::take(runs), op.data_error)
        };
        let mut pool = self.pool.borrow_mut();
        runs.into_iter().for_each(|run| pool.release(run));
        drop(pool);
        let error = error.expect("the data failed");
        self.finish(id, Err(VolumeError::Device(error)));
    }
}

/// Entries that make `range` again what the map says.
fn entries_as_mapped(state: &VolumeState, range: LbaRange) -> Vec<Entry<'static>> {
    let mut entries = vec![Entry::Unmap { volume: state.number, range }];
    let map = state.map.borrow();
    let (start, end) = (range.start.0, range.end().0);
    let visited = map.for_each_with_metadata(start, end, |key, mapping, metadata| {
        entries.push(Entry::Write {
            volume: state.number,
            lba: Lba(key),
            trusted: true,
            runs: vec![PbaRange::new(mapping.pba, 1)].into(),
            crcs: vec![mapping.crc].into(),
            metadata: metadata.to_vec().into(),
        });
    });
    visited.expect("NODE-4: the range was loaded before it was queued, and stays so");
    entries
}
