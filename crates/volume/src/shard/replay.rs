//! Replay: the journal's records since the last checkpoint take effect again.
//!
//! - REPLAY-1: replay ends at the first record that is not the valid continuation (`records.rs`, JOURNAL-2).
//! - REPLAY-2: writes of records that no later record calls settled are compared (`compare.rs`)
//!   with their checksums, and skipped if they differ, each time that they are read: then they were
//!   never acknowledged (JOURNAL-3). What of them cannot be read is taken to be there.
//! - REPLAY-3: a write that a later entry overlaps needs no comparing: the range lock kept the later one
//!   back until the earlier one had taken effect. Its blocks may have been reused since.
//! - REPLAY-4: a block that a write names is in no map, or the write changes nothing. The choice of
//!   deallocations that are deferred is this program's, and not part of the format.
//! - REPLAY-5: a record takes effect as soon as a later one calls it settled, so that only those are held
//!   that REPLAY-2 is about. If the journal turns out to be damaged behind it, nothing of all that is
//!   used.
//! - REPLAY-6: a write that was skipped did take effect if a later one names a block that it frees:
//!   blocks are used again only after that. What is not there of its data has rotted since, and is
//!   an error for its reader. It stands beside or behind a write that failed and is not undone,
//!   which keeps `settled` below it.
//! - REPLAY-7: nor is a write compared of which the last record says that it took effect, though it is
//!   not settled (JOURNAL-6).

use std::collections::VecDeque;
use std::rc::Rc;

use io_traits::Device;
use layout::{DecodeError, Entry, KEY_LIMIT, Mapping, ReplayPoint, Root, WRITE_BLOCKS_MAX};
use local_sync::Permit;
use situations::{Situation, situation, situation_if};
use units::{Lba, LbaRange, Pba, PbaRange};

use super::compare::unfinished_writes;
use super::records::{Placed, Reader};
use super::repersist::Unflushed;
use super::{Inner, Loss};
use crate::journal::Journal;
use crate::sabotage::{Sabotage, broken};
use crate::state::VolumeState;
use crate::{OpenError, VolumeSpec};

/// Deallocations of more blocks leave a pending unmap. Those that undo a failed write are no larger.
const AT_ONCE_MAX: u64 = WRITE_BLOCKS_MAX;

/// Makes the shard what its journal says.
pub(super) async fn replay<D: Device>(inner: &Inner<D>, root: &Root) -> Result<(), OpenError> {
    let mut reader = Reader::new(inner, root);
    let (first, last) = (inner.superblock.data_start(), inner.superblock.data_end());
    let area = root.journal;
    if area.blocks == 0 || area.start < first || area.end() > last {
        return Err(inner.damaged("root", root.journal.start, DecodeError::Field("journal")));
    }
    let mut repeated = Vec::new();
    let unsettled = replay_settled(&mut reader, &mut repeated).await?;
    let is_cut = inner.read_back.losses().iter().any(|loss| matches!(loss, Loss::Journal { .. }));
    // LOSS-3.
    let skipped = if is_cut { Vec::new() } else { unfinished_writes(inner, &unsettled).await? };
    // Behind a cut nothing is to be what it was.
    inner.read_back.set_unflushed((!is_cut).then(|| Unflushed::of(root, &unsettled)));
    if broken(Sabotage::ReplayRepeatsResizes) {
        repeated.extend(unsettled.iter().flat_map(resizes));
    }
    let mut passed_over = Vec::new();
    for (number, Placed { record, .. }) in unsettled.into_iter().enumerate() {
        for (place, entry) in record.entries.into_iter().enumerate() {
            if skipped.contains(&(number, place)) {
                situation(Situation::ReplaySkipsWrite);
                passed_over.push(entry);
                continue;
            }
            inner.replay_what_frees(&mut passed_over, &entry).await?;
            inner.replay_entry(entry).await?;
        }
    }
    for entry in repeated {
        inner.replay_entry(entry).await?;
    }
    let mut incarnation = root.incarnation;
    if is_cut && !broken(Sabotage::CutStaysBehind) {
        let newest = reader.newest().await?;
        incarnation = incarnation.max(newest.incarnation);
        // The slot of the next root must not be that of this one.
        let ahead = newest.generation.saturating_sub(root.generation).min(1 << 62);
        let mut tables = inner.tables.borrow_mut();
        tables.generation = tables.generation.saturating_add(ahead.next_multiple_of(2));
    }
    let journal = Journal::new(root.journal, incarnation + 1, reader.at);
    inner.journal.replace(journal);
    Ok(())
}

/// The resizes in a record: for a mutant.
fn resizes(placed: &Placed) -> impl Iterator<Item = Entry<'static>> {
    let entries = placed.record.entries.iter();
    entries.filter(|entry| matches!(entry, Entry::Resize { .. })).cloned()
}

/// Replays what a later record calls settled (REPLAY-5), from the replay point on. Returns the rest. With consent the
/// journal ends where a record is damaged (LOSS-2).
async fn replay_settled<D: Device>(
    reader: &mut Reader<'_, D>,
    repeated: &mut Vec<Entry<'static>>,
) -> Result<Vec<Placed>, OpenError> {
    let (inner, area) = (reader.inner, reader.root.journal);
    let cut = |error: OpenError, at: &ReplayPoint| match error {
        OpenError::Journal { sequence, .. } if inner.read_back.allows_data_loss() => {
            let pba = area.start.plus(u64::from(at.position));
            situation(Situation::JournalIsCut);
            inner.lose(Loss::Journal { sequence, pba });
            Ok(())
        }
        error => Err(error),
    };
    let mut unsettled: VecDeque<Placed> = VecDeque::new();
    let (mut blocks, mut settled) = (0, 0);
    loop {
        let placed = match reader.next().await {
            Ok(None) => break,
            Ok(Some(placed)) => placed,
            Err(error) => {
                cut(error, &reader.at)?;
                return Ok(unsettled.into());
            }
        };
        blocks += u64::from(placed.record.blocks);
        if blocks > area.blocks {
            break;
        }
        inner.read_back.note_replay();
        settled = settled.max(placed.record.head.settled);
        unsettled.push_back(placed);
        while unsettled.front().is_some_and(|first| first.record.head.sequence <= settled) {
            let first = unsettled.pop_front().expect("just seen");
            if broken(Sabotage::ReplayRepeatsResizes) {
                repeated.extend(resizes(&first));
            }
            for entry in first.record.entries {
                inner.replay_entry(entry).await?;
            }
        }
        if broken(Sabotage::ReplayTwoRecords) && blocks >= 2 {
            break;
        }
    }
    if let Err(error) = reader.look_behind().await {
        cut(error, &reader.at)?;
    }
    Ok(unsettled.into())
}

impl<D: Device> Inner<D> {
    /// Replays those of the writes that were passed over that free blocks which `entry` names (REPLAY-6).
    async fn replay_what_frees(
        &self,
        passed_over: &mut Vec<Entry<'static>>,
        entry: &Entry<'_>,
    ) -> Result<(), OpenError> {
        let Entry::Write { runs, .. } = entry else { return Ok(()) };
        let mut blocks = runs.iter().flat_map(|run| (0..run.blocks).map(|b| run.start.plus(b)));
        let is_in_use = |pba| self.pool.borrow_mut().is_committed(pba);
        if passed_over.is_empty() || !blocks.any(is_in_use) {
            return Ok(());
        }
        let mut index = 0;
        while index < passed_over.len() {
            if self.overwrites(&passed_over[index], runs).await? {
                self.replay_entry(passed_over.remove(index)).await?;
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    /// Returns whether a write replaces blocks in `runs`.
    async fn overwrites(&self, entry: &Entry<'_>, runs: &[PbaRange]) -> Result<bool, OpenError> {
        let Entry::Write { volume, lba, crcs, .. } = entry else { return Ok(false) };
        let Some(state) = self.replay_volume(*volume)? else { return Ok(false) };
        let range = LbaRange::new(*lba, crcs.len() as u64);
        let _pin = self.is_paged().then(|| state.pin(range.start.0, range.end().0));
        while let Err(error) = self.preload(&state, range).await {
            self.go_on_without(&state, &error)?;
        }
        let map = state.map.borrow();
        let mut mapped = (range.start.0..range.end().0).filter_map(|key| map.get(key).ok()?);
        let is_named =
            |mapping: Mapping| runs.iter().any(|run| (run.start..run.end()).contains(&mapping.pba));
        Ok(mapped.any(is_named))
    }

    // tidy: allow(function-length) one flat match over the entries
    async fn replay_entry(&self, entry: Entry<'static>) -> Result<(), OpenError> {
        match entry {
            Entry::Write { volume, lba, trusted, runs, crcs, metadata } => {
                situation_if(Situation::ReplayUndoes, || trusted);
                let Some(state) = self.replay_volume(volume)? else { return Ok(()) };
                self.replay_write(&state, lba, &runs, (&crcs, &metadata)).await
            }
            Entry::Unmap { .. } if broken(Sabotage::ReplaySkipsUnmaps) => Ok(()),
            Entry::Unmap { volume, range } => {
                let Some(state) = self.replay_volume(volume)? else { return Ok(()) };
                self.replay_unmap(&state, range).await
            }
            Entry::Reserve { extent } => self.replay_reserve(extent),
            Entry::Create { .. } if broken(Sabotage::ReplaySkipsCreates) => Ok(()),
            Entry::Create { volume, uuid, blocks, slo, name, access } => {
                if self.volumes.all().contains_key(&volume) {
                    let area = self.journal.borrow().area();
                    let error = DecodeError::Field("volume number");
                    return Err(self.damaged("journal entry", area.start, error));
                }
                let counters = self.counters.clone();
                let spec = VolumeSpec { uuid, name: name.into_owned(), blocks };
                situation(Situation::ReplayCreates);
                // One with metadata, or with sectors of 512 bytes, has no such entry: a checkpoint brings it.
                let state = VolumeState::new(volume, spec, Default::default(), counters);
                if !broken(Sabotage::ReplayForgetsTerms) {
                    state.slo.set(slo);
                    state.set_access(access.as_ref().into());
                }
                self.volumes.insert(Rc::new(state));
                self.volumes.pass_numbers(volume.saturating_add(1));
                Ok(())
            }
            Entry::Resize { .. } if broken(Sabotage::ReplaySkipsResizes) => Ok(()),
            Entry::Resize { volume, blocks } => {
                let Some(state) = self.replay_volume(volume)? else { return Ok(()) };
                let changed = state.changed();
                let old = changed
                    .marked_unless(Sabotage::ReplayedSizeUnmarked, || state.blocks.replace(blocks));
                if blocks < old {
                    situation(Situation::ReplayShrinks);
                    let range = LbaRange::new(Lba(blocks), KEY_LIMIT - 1 - blocks);
                    return self.replay_unmap(&state, range).await;
                }
                Ok(())
            }
            Entry::SetSlo { .. } if broken(Sabotage::ReplaySkipsSlo) => Ok(()),
            Entry::SetSlo { volume, slo } => {
                let Some(state) = self.replay_volume(volume)? else { return Ok(()) };
                situation(Situation::ReplayChangesTerms);
                let changed = state.changed();
                changed.marked_unless(Sabotage::ReplayedSloUnmarked, || state.slo.set(slo));
                Ok(())
            }
            Entry::SetAccess { .. } if broken(Sabotage::ReplaySkipsAccess) => Ok(()),
            Entry::SetAccess { volume, access } => {
                let Some(state) = self.replay_volume(volume)? else { return Ok(()) };
                situation(Situation::ReplayChangesAccess);
                let changed = state.changed();
                changed.marked_unless(Sabotage::ReplayedAccessUnmarked, || {
                    state.set_access(access.as_ref().into());
                });
                Ok(())
            }
            Entry::Delete { .. } if broken(Sabotage::ReplaySkipsDeletes) => Ok(()),
            Entry::Delete { volume } => {
                let Some(state) = self.replay_volume(volume)? else { return Ok(()) };
                situation(Situation::ReplayDeletes);
                state.deleted.set(true);
                self.replay_unmap(&state, LbaRange::new(Lba(0), KEY_LIMIT - 1)).await
            }
        }
    }

    /// The volume that a record concerns; `None` if it is lost (LOSS-1).
    fn replay_volume(&self, number: u32) -> Result<Option<Rc<VolumeState>>, OpenError> {
        let volume = self.volumes.get(number);
        if volume.is_some() || self.passes_over(number) {
            situation_if(Situation::LostVolumePassedOver, || volume.is_none());
            return Ok(volume);
        }
        let area = self.journal.borrow().area();
        Err(self.damaged("journal entry", area.start, DecodeError::Field("volume number")))
    }

    fn replay_reserve(&self, extent: u32) -> Result<(), OpenError> {
        let mut pool = self.pool.borrow_mut();
        if !pool.owns(extent) {
            situation(Situation::ReplayReserves);
            self.claim_extent(extent)?;
            pool.add(extent, None);
        }
        pool.set_owned_durably(extent);
        Ok(())
    }

    async fn replay_write(
        &self,
        state: &VolumeState,
        lba: Lba,
        runs: &[PbaRange],
        (crcs, metadata): (&[u32], &[u8]),
    ) -> Result<(), OpenError> {
        let range = LbaRange::new(lba, crcs.len() as u64);
        runs.iter().try_for_each(|run| self.adopt(*run))?;
        if let Some(run) = runs.iter().find(|run| !self.pool.borrow().contains(**run)) {
            return Err(self.damaged("journal entry", run.start, DecodeError::Field("run")));
        }
        let each = state.metadata.bytes();
        let fits = range.end().0 <= state.blocks.get() && metadata.len() == crcs.len() * each;
        if !fits || state.deleted.get() {
            let error = DecodeError::Field("range");
            return Err(self.damaged("journal entry", self.journal.borrow().area().start, error));
        }
        let _pin = self.is_paged().then(|| state.pin(range.start.0, range.end().0));
        while let Some(piece) = state.pending_unmap_in(range) {
            let mut permit = self.replay_permit(state, state.splits(piece)).await?;
            self.remove_now(state, piece).await?;
            state.clear_unmap(piece, &mut permit);
        }
        while let Err(error) = self.preload(state, range).await {
            self.go_on_without(state, &error)?;
        }
        situation_if(Situation::ReplayIntoThreeLevels, || state.map.borrow().height() > 2);
        let blocks = runs.iter().flat_map(|run| (0..run.blocks).map(|b| run.start.plus(b)));
        let (mut metadata, none) = (metadata, [0; 64]);
        for ((pba, crc), key) in blocks.zip(crcs).zip(lba.0..) {
            let (mut of_block, others) = metadata.split_at(each);
            metadata = others;
            if broken(Sabotage::ReplayDropsMetadata) {
                of_block = &none[..each];
            }
            if self.pool.borrow_mut().is_committed(pba) {
                self.vacate(state, key, pba).await?;
            }
            let mapping = Mapping { pba, crc: *crc };
            let old = state.map.borrow_mut().insert_with_metadata(key, mapping, of_block);
            if old.is_none_or(|old| old.pba != pba) {
                self.pool.borrow_mut().commit(PbaRange::new(pba, 1));
                self.free_blocks(old.into_iter().map(|old| old.pba));
            }
        }
        Ok(())
    }

    /// A write names a block that is in use. Unless the block is what `key` leads to already, some
    /// pending unmap's map must still name it, and that range is finished first (REPLAY-4).
    async fn vacate(&self, state: &VolumeState, key: u64, pba: Pba) -> Result<(), OpenError> {
        let own = |found: Option<Mapping>| found.is_some_and(|found| found.pba == pba);
        if state.map.borrow().get(key).is_ok_and(own) {
            return Ok(());
        }
        let volumes: Vec<Rc<VolumeState>> = self.volumes.all().values().cloned().collect();
        situation(Situation::ReplayFinishesDeadRange);
        for state in volumes {
            self.finish_pending_unmaps(&state).await?;
        }
        // What is lost may have freed it.
        if self.pool.borrow_mut().is_committed(pba) && !self.hides_blocks() {
            return Err(self.damaged("journal entry", pba, DecodeError::Field("block in use")));
        }
        Ok(())
    }

    async fn replay_unmap(&self, state: &VolumeState, range: LbaRange) -> Result<(), OpenError> {
        if range.blocks <= AT_ONCE_MAX {
            return self.remove_now(state, range).await;
        }
        if !state.map.borrow().is_empty() || state.deleted.get() {
            let permit = self.replay_permit(state, true).await?;
            state.defer_unmap(range, permit);
        }
        Ok(())
    }

    /// Makes room for one more pending unmap, if that is needed.
    async fn replay_permit(
        &self,
        state: &VolumeState,
        needed: bool,
    ) -> Result<Option<Permit>, OpenError> {
        if !needed {
            return Ok(None);
        }
        loop {
            let permit = state.pending_unmap_permits.try_acquire(1);
            let Some(range) = state.shortest_pending_unmap().filter(|_| permit.is_none()) else {
                return Ok(permit);
            };
            self.remove_now(state, range).await?;
            state.clear_unmap(range, &mut None);
        }
    }

    /// Takes a range out of the map, however long that takes.
    async fn remove_now(&self, state: &VolumeState, range: LbaRange) -> Result<(), OpenError> {
        let (mut at, end) = (range.start.0, range.end().0);
        let mut removed: Vec<(u64, Mapping)> = Vec::new();
        let mut _pin = None;
        while at < end {
            let next = state.map.borrow_mut().remove_some(at, end, &mut removed);
            match next {
                Ok(next) => at = next,
                Err(missing) => {
                    _pin = self.is_paged().then(|| state.pin(at, missing.key.saturating_add(1)));
                    if let Err(error) = self.load(state, missing).await {
                        self.go_on_without(state, &error)?;
                    }
                }
            }
            self.free_blocks(removed.drain(..).map(|(_, old)| old.pba));
        }
        Ok(())
    }

    /// Takes all pending unmaps out of the map.
    async fn finish_pending_unmaps(&self, state: &VolumeState) -> Result<(), OpenError> {
        while let Some(range) = state.shortest_pending_unmap() {
            self.remove_now(state, range).await?;
            state.clear_unmap(range, &mut None);
        }
        Ok(())
    }
}
