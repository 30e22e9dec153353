//! Rebuilds and checks bitmaps.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use layout::Mapping;
use units::{Pba, PbaRange};

use super::room::Free;
use super::{Extent, Pool};
use crate::inventory::Inventory;

impl Pool {
    /// Returns the locations of the last checkpoint's bitmaps.
    pub fn bitmaps(&self) -> impl Iterator<Item = Mapping> {
        self.extents.iter().flatten().filter_map(|extent| extent.on_disk)
    }

    /// The bitmap on the device is not what it should be.
    pub fn set_changed(&mut self, index: u32) {
        if let Some(extent) = &mut self.extents[index as usize] {
            extent.changed = true;
        }
    }

    /// Rebuilds the bitmaps: `used` is all that is in use.
    pub fn rebuild(&mut self, used: impl Iterator<Item = Pba>) {
        let (mut free, mut committed) = (Free::default(), 0);
        for extent in self.extents.iter_mut().flatten() {
            let on_disk = extent.on_disk;
            let range = PbaRange::new(extent.start, u64::from(extent.blocks));
            **extent = Extent::new(range, None);
            extent.on_disk = on_disk;
            extent.owned_durably = true;
            free.add(extent);
            committed += u64::from(extent.committed.count());
        }
        (self.free, self.committed) = (free, committed);
        self.empty.clear();
        self.recent.clear();
        self.unsearched.clear();
        self.left_in_round = 0;
        for pba in used {
            self.commit(PbaRange::new(pba, 1));
        }
        self.withheld.clear();
        std::mem::take(&mut self.banned).into_iter().for_each(|pba| self.ban(pba));
    }

    /// Begins an inventory of what is in use. It is told what no longer is, until it is dropped or another one begins.
    pub fn begin_inventory(&mut self) -> Rc<RefCell<Inventory>> {
        let in_use = self.owned.iter().map(|&index| (index, self.extent(index).committed.clone()));
        let inventory = Inventory::new(self.superblock, in_use.collect());
        let inventory = Rc::new(RefCell::new(inventory));
        self.inventory = Some(Rc::downgrade(&inventory));
        inventory
    }

    /// Returns whether this inventory is the one in progress.
    pub fn has_inventory(&self, inventory: &Rc<RefCell<Inventory>>) -> bool {
        self.inventory
            .as_ref()
            .is_some_and(|told| std::ptr::eq(told.as_ptr(), Rc::as_ptr(inventory)))
    }

    #[cold]
    pub(super) fn tell_inventory(&mut self, pba: Pba) {
        match self.inventory.as_ref().and_then(Weak::upgrade) {
            Some(inventory) => inventory.borrow_mut().free(pba),
            None => self.inventory = None,
        }
    }

    /// Marks an owned block as in use, unless it was just handed out.
    pub fn keep(&mut self, pba: Pba) {
        if self.locate(pba).is_some_and(|(extent, bit)| !extent.busy.get(bit)) {
            self.commit(PbaRange::new(pba, 1));
        }
    }

    /// Free blocks of an extent, as kept and as found. None is found where a block is in use that could be handed out
    /// (POOL-1).
    pub fn recount_extent(&self, index: u32) -> Option<(u32, u32)> {
        let extent = self.extents[index as usize].as_deref()?;
        let is_sound = extent.committed.is_within(&extent.busy);
        let found = extent.blocks - extent.busy.count_below(extent.blocks);
        Some((extent.free, if is_sound { found } else { 0 }))
    }
}
