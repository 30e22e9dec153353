//! Reads of blocks that are available without waiting, in stages.
//!
//! A read of one block waits for memory several times: for the leaf of the map, the keys there if
//! they have gaps, its entry, the block; each time also for the walk through page tables that leads
//! there, which in a virtual machine is longer still. A caller with several such reads takes each
//! step for all of them, so that the processor waits for all at once: [`Volume::prefetch_stage1`],
//! [`Volume::prefetch_stage2`], [`Volume::prefetch_stage3`], [`Volume::locate`], [`Located::pin`],
//! [`Volume::read_pinned`].

use std::rc::Rc;

use io_traits::{BufferSlice, Device};
use layout::Mapping;
use units::{Lba, LbaRange, PbaRange};

use crate::shard::{Inner, ReadGuard};
use crate::{ReadData, Volume, VolumeError};

/// A block that the map has led to. It is not reused until this is dropped.
pub struct Located<D: Device> {
    lba: Lba,
    mapping: Mapping,
    reading: ReadGuard<D, Rc<Inner<D>>>,
}

/// A block that the map has led to, where it lies. It is not reused until this, and the data read from it, is dropped.
pub struct Pinned {
    lba: Lba,
    mapping: Mapping,
    block: BufferSlice,
}

impl<D: Device> Located<D> {
    /// `None`: the device does not lend it, and it has to be read by [`Volume::read`].
    #[must_use]
    pub fn pin(self) -> Option<Pinned> {
        let Self { lba, mapping, reading } = self;
        let block = reading.pin(PbaRange::new(mapping.pba, 1)).ok()?;
        Some(Pinned { lba, mapping, block })
    }
}

impl<D: Device> Volume<D> {
    /// Says that [`Volume::prefetch_stage2`] will soon be told of the block at `lba`: a hint to the processor. So many
    /// blocks can be told of first, and the processor waits for the memory of all of them at once.
    pub fn prefetch_stage1(&self, lba: Lba) {
        self.state().map.borrow().will_search(lba.0);
    }

    /// Says that it will soon be asked where the block at `lba` lies: a hint to the processor.
    ///
    /// `true`: there are gaps around it, so that keys have to be searched, which are on their way only now. Then
    /// [`Volume::prefetch_stage3`] goes on, after all blocks were told of.
    pub fn prefetch_stage2(&self, lba: Lba) -> bool {
        self.state().map.borrow().will_get(lba.0)
    }

    /// Says the same once more, when what has to be searched may have come.
    pub fn prefetch_stage3(&self, lba: Lba) {
        self.state().map.borrow().will_get_searched(lba.0);
    }

    /// Begins to read the block at `lba`. If it lies in memory, `fetch` is shown where,
    /// to have it brought into the processor's caches.
    ///
    /// `None`: it has to be read by [`Volume::read`], because something has to be waited for, or is special about it.
    pub fn locate(&self, lba: Lba, fetch: impl FnMut(*const [u8])) -> Option<Located<D>> {
        let state = self.state();
        if !state.metadata.is_none() || self.check(LbaRange::new(lba, 1)).is_err() {
            return None;
        }
        let mapping = state.mapping_of(lba).ok()??;
        let inner = self.inner();
        inner.device.will_read(PbaRange::new(mapping.pba, 1), fetch);
        Some(Located { lba, mapping, reading: inner.begin_long_read() })
    }

    /// Reads a block of this volume that was found, as [`Volume::read`] does.
    ///
    /// # Errors
    /// Corrupt.
    pub fn read_pinned(&self, pinned: Pinned) -> Result<ReadData, VolumeError> {
        let Pinned { lba, mapping, block } = pinned;
        // A block that was located but not pinned is looked up again by its reader.
        self.inner().note_hit();
        self.counted_read(self.inner().checked(self.state(), lba, mapping, block), 1)
    }
}
