//! Replay: the journal's records since the last checkpoint take effect again.
//!
//! - P1: replay ends at the first record that is not the valid continuation (J2).
//! - P2: writes of records that no later record calls settled are compared with their checksums, and
//!   skipped if they differ: then they were never acknowledged (J3).
//! - P3: a write that a later entry overlaps needs no comparing: the range lock kept the later one
//!   back until the earlier one had taken effect. Its blocks may have been reused since.
//! - P4: a block that a write names is in no map, or the write changes nothing. Which deallocations
//!   are left dead, to be finished later, is this program's choice and no matter of the format.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;

use io_traits::{Buffer, Device, DeviceError};
use layout::{
    DecodeError, Entry, KEY_LIMIT, Mapping, RECORD_BLOCKS_MAX, Record, ReplayPoint, Root,
    WRITE_BLOCKS_MAX,
};
use local_sync::Permit;
use units::{BLOCK_SIZE, Lba, LbaRange, Pba, PbaRange};

use super::Inner;
use crate::OpenError;
use crate::journal::Journal;
use crate::sabotage::{Sabotage, broken};
use crate::state::VolumeState;

/// What Linux calls an I/O error.
const EIO: i32 = 5;

/// Deallocations of more blocks leave a dead range. Those that undo a failed write are no larger.
const AT_ONCE_MAX: u64 = WRITE_BLOCKS_MAX;
/// Attempts to read data before it counts as unreadable.
const READ_TRIES: u32 = 3;

/// Makes the shard what its journal says.
pub(super) async fn replay<D: Device>(inner: &Inner<D>, root: &Root) -> Result<(), OpenError> {
    let mut reader = Reader { inner, root, window: None, unreadable: Vec::new(), at: root.replay };
    let (first, last) = (inner.superblock.data_start(), inner.superblock.data_end());
    let area = root.journal;
    if area.blocks == 0 || area.start < first || area.end() > last {
        return Err(inner.damaged("root", root.journal.start, DecodeError::Field("journal")));
    }
    let mut records = Vec::new();
    let mut blocks = 0;
    while let Some(record) = reader.next().await? {
        blocks += u64::from(record.blocks);
        if blocks > root.journal.blocks {
            break;
        }
        records.push(record);
        if broken(Sabotage::ReplayTwoRecords) && records.len() == 2 {
            break;
        }
    }
    reader.look_behind().await?;
    let skipped = unfinished_writes(inner, &records).await?;
    for (number, record) in records.into_iter().enumerate() {
        for (place, entry) in record.entries.into_iter().enumerate() {
            if !skipped.contains(&(number, place)) {
                inner.replay_entry(entry).await?;
            }
        }
    }
    let journal = Journal::new(root.journal, root.incarnation + 1, reader.at);
    inner.journal.replace(journal);
    Ok(())
}

/// Reads the journal record by record.
struct Reader<'a, D: Device> {
    inner: &'a Inner<D>,
    root: &'a Root,
    /// Blocks read ahead, and where in the journal they begin.
    window: Option<(u64, Buffer)>,
    /// Blocks of the window that cannot be read, and are zeroes in it.
    unreadable: Vec<u64>,
    /// What the next record must be.
    at: ReplayPoint,
}

impl<D: Device> Reader<'_, D> {
    /// The next record, if there is one (P1).
    async fn next(&mut self) -> Result<Option<Record>, OpenError> {
        let position = u64::from(self.at.position);
        let mut found = None;
        for start in [position, 0] {
            if start >= self.root.journal.blocks {
                continue;
            }
            let record = self.record_at(start).await?;
            // What cannot be read may be the record that is wanted.
            if self.unreadable.contains(&start) {
                let range = PbaRange::new(self.root.journal.start.plus(start), 1);
                return Err(DeviceError::Io { range, errno: EIO }.into());
            }
            found = record.filter(|r| self.continues(r)).map(|r| (start, r));
            if found.is_some() {
                break;
            }
        }
        let Some((start, record)) = found else { return Ok(None) };
        if record.head.generation > self.root.generation {
            return Err(self.missing());
        }
        let end = start + u64::from(record.blocks);
        self.at = ReplayPoint {
            sequence: self.at.sequence + 1,
            position: u32::try_from(end % self.root.journal.blocks).expect("less than 2^32"),
            previous_crc: record.crc,
        };
        Ok(Some(record))
    }

    fn missing(&self) -> OpenError {
        OpenError::Journal { shard: self.root.shard, sequence: self.at.sequence }
    }

    fn is_ours(&self, record: &Record) -> bool {
        record.head.device == self.root.device && record.head.shard == self.root.shard
    }

    fn continues(&self, record: &Record) -> bool {
        self.is_ours(record)
            && record.head.incarnation == self.root.incarnation
            && record.head.sequence == self.at.sequence
            && record.head.previous_crc == self.at.previous_crc
    }

    /// The record that begins at block `start` of the journal.
    async fn record_at(&mut self, start: u64) -> Result<Option<Record>, OpenError> {
        let blocks = match self.block_at(start, 1).await? {
            Some(block) => Record::peek_blocks(block),
            None => None,
        };
        let Some(blocks) = blocks else { return Ok(None) };
        let bytes = self.block_at(start, u64::from(blocks)).await?;
        Ok(bytes.and_then(|bytes| Record::decode(bytes).ok()))
    }

    /// `count` blocks of the journal, if they lie before its end.
    async fn block_at(&mut self, start: u64, count: u64) -> Result<Option<&[u8]>, OpenError> {
        let area = self.root.journal;
        if start + count > area.blocks {
            return Ok(None);
        }
        let inside = |(from, buffer): &(u64, Buffer)| {
            start >= *from && start + count <= *from + buffer.len_blocks() as u64
        };
        if !self.window.as_ref().is_some_and(inside) {
            let blocks = u64::from(RECORD_BLOCKS_MAX).min(area.blocks - start);
            let buffer = Buffer::new(usize::try_from(blocks).expect("at most a record"));
            self.unreadable.clear();
            let buffer = match self.inner.device.read(area.start.plus(start), buffer).await {
                Ok(buffer) => buffer,
                Err(DeviceError::Io { .. }) => self.read_singly(start, blocks).await?,
                Err(error) => return Err(error.into()),
            };
            self.window = Some((start, buffer));
        }
        let (from, buffer) = self.window.as_ref().expect("just read");
        let first = usize::try_from(start - from).expect("inside the window") * BLOCK_SIZE;
        let len = usize::try_from(count).expect("inside the window") * BLOCK_SIZE;
        Ok(Some(&buffer.as_bytes()[first..first + len]))
    }

    /// Reads blocks one by one; those that cannot be read are zeroes.
    async fn read_singly(&mut self, start: u64, blocks: u64) -> Result<Buffer, OpenError> {
        let mut all = Buffer::zeroed(usize::try_from(blocks).expect("at most a record"));
        for (place, at) in all.as_mut_bytes().chunks_exact_mut(BLOCK_SIZE).zip(start..) {
            let pba = self.root.journal.start.plus(at);
            match self.inner.device.read(pba, Buffer::new(1)).await {
                Ok(block) => place.copy_from_slice(block.as_bytes()),
                Err(DeviceError::Io { .. }) => self.unreadable.push(at),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(all)
    }

    /// A later record that calls the missing one settled proves that it was there: what follows
    /// cannot be replayed without it.
    async fn look_behind(&mut self) -> Result<(), OpenError> {
        let blocks = self.root.journal.blocks;
        for step in 0..blocks {
            let start = (u64::from(self.at.position) + step) % blocks;
            let Some(record) = self.record_at(start).await? else { continue };
            let head = &record.head;
            let proof = match head.incarnation.cmp(&self.root.incarnation) {
                Ordering::Less => false,
                Ordering::Equal => head.settled >= self.at.sequence,
                Ordering::Greater => true,
            };
            // Or it builds on a newer root, which is gone.
            if self.is_ours(&record) && (proof || head.generation > self.root.generation) {
                return Err(self.missing());
            }
        }
        Ok(())
    }
}

/// Ranges by volume: those that later entries touch.
#[derive(Default)]
struct Touched(BTreeMap<(u32, u64), u64>);

impl Touched {
    fn overlaps(&self, volume: u32, range: LbaRange) -> bool {
        let end = range.end().0;
        let before = self.0.range((volume, 0)..(volume, end)).next_back();
        before.is_some_and(|(_, known_end)| *known_end > range.start.0)
    }

    fn add(&mut self, volume: u32, range: LbaRange) {
        let (mut start, mut end) = (range.start.0, range.end().0);
        while let Some((&(_, s), &e)) = self.0.range((volume, 0)..=(volume, end)).next_back()
            && e >= start
        {
            start = start.min(s);
            end = end.max(e);
            self.0.remove(&(volume, s));
        }
        self.0.insert((volume, start), end);
    }
}

/// The writes, by record and entry, whose data did not reach the media (P2, P3).
async fn unfinished_writes<D: Device>(
    inner: &Inner<D>,
    records: &[Record],
) -> Result<Vec<(usize, usize)>, OpenError> {
    let settled = records.iter().map(|record| record.head.settled).max().unwrap_or(0);
    let mut touched = Touched::default();
    let mut skipped = Vec::new();
    let unsettled = records.iter().enumerate().rev();
    for (number, record) in unsettled.take_while(|(_, record)| record.head.sequence > settled) {
        for (place, entry) in record.entries.iter().enumerate().rev() {
            match entry {
                Entry::Write { volume, lba, trusted, runs, crcs } => {
                    let range = LbaRange::new(*lba, crcs.len() as u64);
                    if !trusted
                        && !touched.overlaps(*volume, range)
                        && !data_matches(inner, runs, crcs).await?
                    {
                        skipped.push((number, place));
                    }
                    touched.add(*volume, range);
                }
                Entry::Unmap { volume, range } if range.blocks > 0 => touched.add(*volume, *range),
                Entry::Resize { volume, blocks } => {
                    touched.add(*volume, LbaRange::new(Lba(*blocks), KEY_LIMIT - blocks));
                }
                Entry::Delete { volume } => {
                    touched.add(*volume, LbaRange::new(Lba(0), KEY_LIMIT));
                }
                Entry::Unmap { .. }
                | Entry::Reserve { .. }
                | Entry::Create { .. }
                | Entry::SetSlo { .. }
                | Entry::SetAccess { .. } => {}
            }
        }
    }
    Ok(skipped)
}

async fn data_matches<D: Device>(
    inner: &Inner<D>,
    runs: &[PbaRange],
    crcs: &[u32],
) -> Result<bool, OpenError> {
    if broken(Sabotage::ReplayTrustsData) {
        return Ok(true);
    }
    let mut crcs = crcs.iter();
    for run in runs {
        if run.checked_end().is_none_or(|end| end.0 > inner.superblock.blocks) {
            return Ok(false);
        }
        let blocks = usize::try_from(run.blocks).expect("bounded by one write");
        let mut data = inner.device.read(run.start, Buffer::new(blocks)).await;
        for _ in 1..READ_TRIES {
            if data.is_err() {
                data = inner.device.read(run.start, Buffer::new(blocks)).await;
            }
        }
        let data = match data {
            Ok(data) => data,
            // Perhaps it was acknowledged: then whoever reads it must learn that it is lost, and not
            // get what was there before.
            Err(DeviceError::Io { .. }) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        for block in data.as_bytes().chunks_exact(BLOCK_SIZE) {
            if crcs.next() != Some(&checksum::crc32c(block)) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

impl<D: Device> Inner<D> {
    async fn replay_entry(&self, entry: Entry<'static>) -> Result<(), OpenError> {
        match entry {
            Entry::Write { volume, lba, runs, crcs, .. } => {
                let state = self.replay_volume(volume)?;
                self.replay_write(&state, lba, &runs, &crcs).await
            }
            Entry::Unmap { .. } if broken(Sabotage::ReplaySkipsUnmaps) => Ok(()),
            Entry::Unmap { volume, range } => {
                let state = self.replay_volume(volume)?;
                self.replay_unmap(&state, range).await
            }
            Entry::Reserve { extent } => self.replay_reserve(extent),
            Entry::Create { volume, uuid, blocks, slo, name, access } => {
                if self.volumes.borrow().contains_key(&volume) {
                    let area = self.journal.borrow().area();
                    let error = DecodeError::Field("volume number");
                    return Err(self.damaged("journal entry", area.start, error));
                }
                let tally = self.tally.clone();
                let state = VolumeState::new(volume, uuid, name.into_owned(), blocks, tally);
                state.slo.set(slo);
                state.access.replace(access.as_ref().into());
                self.volumes.borrow_mut().insert(volume, Rc::new(state));
                self.next_volume.set(self.next_volume.get().max(volume.saturating_add(1)));
                Ok(())
            }
            Entry::Resize { volume, blocks } => {
                let state = self.replay_volume(volume)?;
                let old = state.blocks.replace(blocks);
                state.changed.set(true);
                if blocks < old {
                    let range = LbaRange::new(Lba(blocks), KEY_LIMIT - 1 - blocks);
                    return self.replay_unmap(&state, range).await;
                }
                Ok(())
            }
            Entry::SetSlo { volume, slo } => {
                let state = self.replay_volume(volume)?;
                state.slo.set(slo);
                state.changed.set(true);
                Ok(())
            }
            Entry::SetAccess { volume, access } => {
                let state = self.replay_volume(volume)?;
                state.access.replace(access.as_ref().into());
                state.changed.set(true);
                Ok(())
            }
            Entry::Delete { .. } if broken(Sabotage::ReplaySkipsDeletes) => Ok(()),
            Entry::Delete { volume } => {
                let state = self.replay_volume(volume)?;
                state.deleted.set(true);
                self.replay_unmap(&state, LbaRange::new(Lba(0), KEY_LIMIT - 1)).await
            }
        }
    }

    fn replay_volume(&self, number: u32) -> Result<Rc<VolumeState>, OpenError> {
        let volume = self.volumes.borrow().get(&number).cloned();
        let area = self.journal.borrow().area();
        volume.ok_or_else(|| {
            self.damaged("journal entry", area.start, DecodeError::Field("volume number"))
        })
    }

    fn replay_reserve(&self, extent: u32) -> Result<(), OpenError> {
        let mut pool = self.pool.borrow_mut();
        if !pool.owns(extent) {
            self.extents.claim(extent, self.index)?;
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
        crcs: &[u32],
    ) -> Result<(), OpenError> {
        let range = LbaRange::new(lba, crcs.len() as u64);
        if let Some(run) = runs.iter().find(|run| !self.pool.borrow().contains(**run)) {
            return Err(self.damaged("journal entry", run.start, DecodeError::Field("run")));
        }
        if range.end().0 > state.blocks.get() || state.deleted.get() {
            let error = DecodeError::Field("range");
            return Err(self.damaged("journal entry", self.journal.borrow().area().start, error));
        }
        let _pin = self.is_paged().then(|| state.pin(range.start.0, range.end().0));
        while let Some(piece) = state.dead_in(range) {
            let mut permit = self.replay_permit(state, state.splits(piece)).await?;
            self.remove_now(state, piece).await?;
            state.revive(piece, &mut permit);
        }
        self.preload(state, range).await.map_err(|error| self.replay_error(&error))?;
        let blocks = runs.iter().flat_map(|run| (0..run.blocks).map(|b| run.start.plus(b)));
        for ((pba, crc), key) in blocks.zip(crcs).zip(lba.0..) {
            if self.pool.borrow_mut().is_committed(pba) {
                self.vacate(state, key, pba).await?;
            }
            let old = state.map.borrow_mut().insert(key, Mapping { pba, crc: *crc });
            if old.is_none_or(|old| old.pba != pba) {
                self.pool.borrow_mut().commit(PbaRange::new(pba, 1));
                old.into_iter().for_each(|old| self.free_block(old.pba));
            }
        }
        Ok(())
    }

    /// A write names a block that is in use. Unless the block is what `key` leads to already, some
    /// dead range's map must still name it, and that range is finished first (P4).
    async fn vacate(&self, state: &VolumeState, key: u64, pba: Pba) -> Result<(), OpenError> {
        let own = |found: Option<Mapping>| found.is_some_and(|found| found.pba == pba);
        if state.map.borrow().get(key).is_ok_and(own) {
            return Ok(());
        }
        let volumes: Vec<Rc<VolumeState>> = self.volumes.borrow().values().cloned().collect();
        for state in volumes {
            self.finish_dead(&state).await?;
        }
        if self.pool.borrow_mut().is_committed(pba) {
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
            state.bury(range, permit);
        }
        Ok(())
    }

    /// Makes room for one more dead range, if that is needed.
    async fn replay_permit(
        &self,
        state: &VolumeState,
        needed: bool,
    ) -> Result<Option<Permit>, OpenError> {
        if !needed {
            return Ok(None);
        }
        loop {
            let permit = state.dead_permits.try_acquire(1);
            let Some(range) = state.shortest_dead().filter(|_| permit.is_none()) else {
                return Ok(permit);
            };
            self.remove_now(state, range).await?;
            state.revive(range, &mut None);
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
                    let loaded = self.load(state, missing).await;
                    loaded.map_err(|error| self.replay_error(&error))?;
                }
            }
            removed.drain(..).for_each(|(_, old)| self.free_block(old.pba));
        }
        Ok(())
    }

    /// Takes all dead ranges out of the map.
    async fn finish_dead(&self, state: &VolumeState) -> Result<(), OpenError> {
        while let Some(range) = state.shortest_dead() {
            self.remove_now(state, range).await?;
            state.revive(range, &mut None);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_ranges_merge_and_are_found_by_volume() {
        let mut touched = Touched::default();
        for (start, blocks) in [(10, 5), (20, 5), (14, 7), (40, 1)] {
            touched.add(1, LbaRange::new(Lba(start), blocks));
        }
        assert_eq!(touched.0.len(), 2);
        let overlaps =
            |volume, start, blocks| touched.overlaps(volume, LbaRange::new(Lba(start), blocks));
        assert!(overlaps(1, 0, 11) && overlaps(1, 24, 1) && overlaps(1, 0, 100));
        assert!(!overlaps(1, 25, 15) && !overlaps(1, 0, 10) && !overlaps(2, 0, 100));
    }
}
