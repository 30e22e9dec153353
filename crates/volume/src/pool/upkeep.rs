//! What is done to bitmaps besides handing blocks out: making them anew, and discarding what is free.

use layout::{BITMAP_SLOTS, Mapping};
use units::{Pba, PbaRange};

use super::{Extent, Pool};

impl Pool {
    /// Takes up to `count` free blocks that lie together, at least `least` of them, are free in the
    /// last checkpoint, too, and were not discarded since they were freed. The search goes on from
    /// extent to extent at `place`, and ends where it began.
    pub(crate) fn take_stale(
        &mut self,
        place: &mut usize,
        least: u32,
        count: u32,
    ) -> Option<PbaRange> {
        for _ in 0..self.owned.len() {
            *place %= self.owned.len();
            let index = self.owned[*place] as usize;
            let extent = self.extents[index].as_deref_mut().expect("owned");
            let mut at = BITMAP_SLOTS;
            while at < extent.blocks {
                let bit = extent.stale.next(true, at, extent.blocks);
                let stale = extent.stale.next(false, bit, extent.blocks.min(bit + count));
                let end = extent.durable.next(true, bit, stale);
                if end - bit >= least {
                    let taken = self.take_apart(index, bit, end - bit);
                    return Some(taken);
                }
                at = end.max(bit + 1);
            }
            *place += 1;
        }
        None
    }

    /// Takes blocks for a moment: the place from which blocks are handed out stays.
    fn take_apart(&mut self, index: usize, bit: u32, count: u32) -> PbaRange {
        let extent = self.extents[index].as_deref_mut().expect("owned");
        for bit in bit..bit + count {
            assert!(extent.busy.set(bit), "only free blocks are stale");
            extent.stale.clear(bit);
        }
        extent.free -= count;
        self.free -= u64::from(count);
        PbaRange::new(extent.start.plus(u64::from(bit)), u64::from(count))
    }

    /// Blocks that were discarded are free again.
    pub(crate) fn release_discarded(&mut self, range: PbaRange) {
        for block in 0..range.blocks {
            let pba = range.start.plus(block);
            self.release(pba);
            if let Some((extent, bit)) = self.locate(pba) {
                extent.stale.clear(bit);
            }
        }
    }

    /// Where the bitmaps of the last checkpoint lie.
    pub(crate) fn bitmaps(&self) -> impl Iterator<Item = Mapping> {
        self.extents.iter().flatten().filter_map(|extent| extent.on_disk)
    }

    /// The bitmap on the device is not what it should be.
    pub(crate) fn set_changed(&mut self, index: u32) {
        if let Some(extent) = &mut self.extents[index as usize] {
            extent.changed = true;
        }
    }

    /// Makes the bitmaps anew: `used` is all that is in use.
    pub(crate) fn rebuild(&mut self, used: impl Iterator<Item = Pba>) {
        let (mut free, mut committed) = (0, 0);
        for extent in self.extents.iter_mut().flatten() {
            let on_disk = extent.on_disk;
            let range = PbaRange::new(extent.start, u64::from(extent.blocks));
            **extent = Extent::new(range, None);
            extent.on_disk = on_disk;
            extent.owned_durably = true;
            free += u64::from(extent.free);
            committed += u64::from(extent.committed.count());
        }
        (self.free, self.committed) = (free, committed);
        self.empty.clear();
        for pba in used {
            self.commit(PbaRange::new(pba, 1));
        }
    }
}
