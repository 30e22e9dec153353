//! What is done to bitmaps besides handing blocks out: making them anew.

use layout::Mapping;
use units::{Pba, PbaRange};

use super::room::Free;
use super::{Extent, Pool};

impl Pool {
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
        for pba in used {
            self.commit(PbaRange::new(pba, 1));
        }
    }
}
