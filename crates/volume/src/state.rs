//! A volume in memory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use layout::{DEAD_RANGES_MAX, Descriptor, Mapping};
use local_sync::Semaphore;
use units::{Lba, LbaRange, Pba};
use uuid::Uuid;

use crate::VolumeStats;
use crate::locks::RangeLocks;
use crate::map::{Dirty, Map};

/// What a shard keeps of a volume.
pub(crate) struct VolumeState {
    pub(crate) number: u32,
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
    pub(crate) blocks: Cell<u64>,
    pub(crate) map: RefCell<Map>,
    pub(crate) locks: Rc<RefCell<RangeLocks>>,
    /// Deallocated ranges that the map still names: they read as zeroes.
    pub(crate) dead: RefCell<Vec<LbaRange>>,
    /// Bounds the dead ranges, those to come included.
    pub(crate) dead_permits: Semaphore,
    pub(crate) deleted: Cell<bool>,
    /// Whether the last checkpoint's descriptor is out of date, besides the map.
    pub(crate) changed: Cell<bool>,
    /// Where the last checkpoint's descriptor lies.
    pub(crate) descriptor: Cell<Option<Pba>>,
    pub(crate) stats: Cell<VolumeStats>,
}

impl VolumeState {
    pub(crate) fn new(
        number: u32,
        uuid: Uuid,
        name: String,
        blocks: u64,
        dirty: Rc<Dirty>,
    ) -> Self {
        Self {
            number,
            uuid,
            name,
            blocks: Cell::new(blocks),
            map: RefCell::new(Map::new(number, dirty)),
            locks: Rc::default(),
            dead: RefCell::default(),
            dead_permits: Semaphore::new(DEAD_RANGES_MAX as u64),
            deleted: Cell::new(false),
            changed: Cell::new(true),
            descriptor: Cell::new(None),
            stats: Cell::default(),
        }
    }

    /// A volume as a checkpoint left it.
    pub(crate) fn from_descriptor(found: Descriptor, at: Pba, dirty: Rc<Dirty>) -> Self {
        let Descriptor { number, uuid, name, blocks, mapped, deleted, map, dead } = found;
        let state = Self::new(number, uuid, name, blocks, dirty.clone());
        if let Some(root) = map {
            state.map.replace(Map::on_disk(number, root, mapped, dirty));
        }
        state.dead.replace(dead);
        state.deleted.set(deleted);
        state.changed.set(false);
        state.descriptor.set(Some(at));
        state
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut VolumeStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    /// Whether the block was deallocated, whatever the map says.
    pub(crate) fn is_dead(&self, lba: Lba) -> bool {
        self.dead.borrow().iter().any(|range| range.contains(lba))
    }

    /// The dead range that begins at `start` now begins at `at`, or is gone.
    pub(crate) fn shrink_dead(&self, start: Lba, at: Lba) {
        let mut dead = self.dead.borrow_mut();
        if let Some(place) = dead.iter().position(|range| range.start == start) {
            let end = dead[place].end();
            if at >= end {
                dead.swap_remove(place);
            } else {
                dead[place] = LbaRange::new(at, end.0 - at.0);
            }
            self.changed.set(true);
        }
    }

    /// What a checkpoint writes, but for the map's root.
    pub(crate) fn describe(&self, map: Option<Mapping>, mapped: u64) -> Descriptor {
        Descriptor {
            number: self.number,
            uuid: self.uuid,
            name: self.name.clone(),
            blocks: self.blocks.get(),
            mapped,
            deleted: self.deleted.get(),
            map,
            dead: self.dead.borrow().clone(),
        }
    }
}
