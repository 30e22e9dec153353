//! Bitmaps as a checkpoint writes them: those of one instant, with the blocks that the checkpoint takes for itself.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use layout::{BITMAP_SLOTS, Mapping};
use units::{Pba, PbaRange};

use super::{Pool, ReturnableExtents, Returned};
use crate::bits::Bits;

/// Bitmaps as they were at a snapshot, while the checkpoint's own blocks are added.
pub struct SpaceSnapshot {
    /// Those that the shard keeps, by number.
    pub extents: BTreeMap<u32, ExtentSnapshot>,
    /// Blocks for the checkpoint's own use. Only blocks that are free at the snapshot will do: one
    /// freed later is still in use in the snapshot's bitmaps, and replay will free it.
    pub set_aside: VecDeque<PbaRange>,
    /// Extents that the checkpoint gives back.
    pub returned: Vec<Returned>,
}

/// The bitmap of an extent at a snapshot.
pub struct ExtentSnapshot {
    /// Blocks in use.
    pub bits: Rc<Bits>,
    /// True if the last checkpoint had others.
    pub changed: bool,
    /// The first block of the extent.
    pub start: Pba,
    /// Location of the last checkpoint's bitmap.
    pub on_disk: Option<Mapping>,
}

impl ExtentSnapshot {
    /// The bitmap slot that the last checkpoint does not use.
    #[must_use]
    pub fn next_slot(&self) -> Pba {
        match self.on_disk {
            Some(place) if place.pba == self.start => self.start.plus(u64::from(BITMAP_SLOTS) - 1),
            _ => self.start,
        }
    }
}

impl Pool {
    /// The bitmaps as of now, with `blocks` blocks set aside. Extents that can be spared leave the pool at
    /// once, and the device's allocator gets them when the checkpoint is durable.
    pub fn snapshot(&mut self, blocks: u64, spares: ReturnableExtents) -> SpaceSnapshot {
        let returned = self.take_spares(spares);
        let extents = self.owned.iter().map(|&index| (index, self.snapshot_of(index))).collect();
        for &index in &self.owned {
            if let Some(extent) = &mut self.extents[index as usize] {
                extent.changed = false;
            }
        }
        let blocks = u32::try_from(blocks.min(self.free())).unwrap_or(u32::MAX);
        let set_aside =
            self.alloc_set_aside(blocks).into_iter().filter(|run| run.blocks > 0).collect();
        SpaceSnapshot { extents, set_aside, returned }
    }

    fn snapshot_of(&self, index: u32) -> ExtentSnapshot {
        let extent = self.extent(index);
        ExtentSnapshot {
            bits: extent.committed.clone(),
            changed: extent.changed,
            start: extent.start,
            on_disk: extent.on_disk,
        }
    }

    /// Takes `count` of the blocks set aside for the checkpoint behind `snapshot`, in one run if they
    /// lie together: they are in use both in its bitmaps and in today's.
    pub fn alloc_metadata(&mut self, snapshot: &mut SpaceSnapshot, count: u64) -> Option<PbaRange> {
        let reserve = &mut snapshot.set_aside;
        let front = reserve.front_mut()?;
        let run = PbaRange::new(front.start, count.min(front.blocks));
        *front = PbaRange::new(run.end(), front.blocks - run.blocks);
        if front.blocks == 0 {
            reserve.pop_front();
        }
        self.commit_metadata(snapshot, run);
        Some(run)
    }

    /// Gives back what the checkpoint did not use.
    pub fn release_set_aside(&mut self, snapshot: &mut SpaceSnapshot) {
        snapshot.set_aside.drain(..).for_each(|run| self.release(run));
    }

    fn commit_metadata(&mut self, snapshot: &mut SpaceSnapshot, run: PbaRange) {
        let (index, first) = self.superblock.locate(run.start).expect("just handed out");
        let entry = snapshot.extents.get_mut(&index).expect("set aside at the snapshot");
        let bits = Rc::make_mut(&mut entry.bits);
        for bit in first..first + u32::try_from(run.blocks).expect("within an extent") {
            assert!(bits.set(bit), "a free block is not committed");
        }
        entry.changed = true;
        assert!(self.commit(run) == run.blocks, "a free block is not committed");
    }

    /// A block of an earlier checkpoint that the one behind `snapshot` no longer needs. The caller
    /// releases it when that is durable.
    pub fn uncommit_metadata(&mut self, snapshot: &mut SpaceSnapshot, pba: Pba) {
        self.uncommit(PbaRange::new(pba, 1));
        if let Some((index, bit)) = self.superblock.locate(pba)
            && let Some(entry) = snapshot.extents.get_mut(&index)
            && Rc::make_mut(&mut entry.bits).clear(bit)
        {
            entry.changed = true;
        }
    }

    /// Notes where a bitmap was written, and what it says.
    pub fn set_on_disk(&mut self, index: u32, place: Mapping, written: &Rc<Bits>) {
        if let Some(extent) = &mut self.extents[index as usize] {
            extent.on_disk = Some(place);
            extent.changed = *extent.committed != **written;
            extent.durable = written.clone();
            self.note_stale(index);
        }
    }
}
