//! A volume in memory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use layout::{Descriptor, Mapping, PENDING_UNMAPS_MAX};
use local_sync::{Permit, Semaphore};
use situations::{Situation, situation};
use units::{Lba, LbaRange, MetadataSize, Pba, SectorSize, Slo};
use uuid::Uuid;

use crate::allowance::Allowance;
use crate::described::{Changed, Described};
use crate::locks::RangeLocks;
use crate::read::Ahead;
use crate::sabotage::{Sabotage, broken};
use crate::{VolumeSpec, VolumeStats};
use block_map::{Map, Missing, NodeCounters, Tree, is_small, leaf_capacity};

/// Entries of a leaf that is filled at its worst: bounds the nodes that a range takes.
const LEAF_ENTRIES_LOW: u64 = 127;
/// The most leaves that a deallocation at once meets.
const UNMAP_LEAVES: u64 = 64;

/// A range that is deallocated and not yet taken out of the map.
pub(crate) struct PendingUnmap {
    pub(crate) range: LbaRange,
    /// The map is damaged where the range begins, and what else the damaged node held is not
    /// deallocated: the range stays as it is.
    pub(crate) stuck: bool,
    /// Gives its place back when the range is gone.
    _permit: Option<Permit>,
}

/// Keys that requests under way rely on (EVICT-2), each (start, end).
#[derive(Debug, Default)]
pub(crate) struct Pins(RefCell<Vec<(u64, u64)>>);

/// Keeps nodes in memory, until dropped.
#[derive(Debug)]
pub(crate) struct Pin {
    pins: Rc<Pins>,
    range: (u64, u64),
}

impl Pins {
    pub(crate) fn overlap(&self, low: u64, high: u64) -> bool {
        self.0.borrow().iter().any(|(start, end)| *start < high && low < *end)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.pins.0.borrow_mut();
        let place = pins.iter().position(|range| *range == self.range);
        pins.swap_remove(place.expect("it was put there"));
    }
}

/// The state of a volume in its shard.
pub(crate) struct VolumeState {
    pub(crate) number: u32,
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
    pub(crate) blocks: Described<u64>,
    /// Metadata of each block.
    pub(crate) metadata: MetadataSize,
    /// Logical blocks, as hosts address it.
    pub(crate) sector: SectorSize,
    pub(crate) slo: Described<Slo>,
    /// The access list; opaque here.
    access: RefCell<Rc<[u8]>>,
    pub(crate) map: RefCell<Map>,
    pub(crate) locks: Rc<RefCell<RangeLocks>>,
    pub(crate) ahead: RefCell<Ahead>,
    pub(crate) pins: Rc<Pins>,
    /// Deallocated ranges that the map still names: they read as zeroes. They are disjoint.
    pending_unmaps: RefCell<Vec<PendingUnmap>>,
    /// Bounds the pending unmaps, those to come included.
    pub(crate) pending_unmap_permits: Semaphore,
    /// The allowance that bounds its growth besides its size, if any.
    pub(crate) allowance: RefCell<Option<Rc<Allowance>>>,
    pub(crate) deleted: Described<bool>,
    /// Set if the last checkpoint's descriptor is out of date, besides the map.
    changed: Changed,
    /// Location of the last checkpoint's descriptor.
    pub(crate) descriptor: Cell<Option<Pba>>,
    pub(crate) stats: Cell<VolumeStats>,
}

impl VolumeState {
    pub(crate) fn new(
        number: u32,
        spec: VolumeSpec,
        (metadata, sector): (MetadataSize, SectorSize),
        counters: Rc<NodeCounters>,
    ) -> Self {
        let VolumeSpec { uuid, name, blocks } = spec;
        let changed = Changed::default();
        changed.mark();
        Self {
            number,
            uuid,
            name,
            blocks: Described::new(blocks, &changed),
            metadata,
            sector,
            slo: Described::new(Slo::default(), &changed),
            access: RefCell::new(Rc::default()),
            map: RefCell::new(Map::new(Tree { number, metadata }, counters)),
            locks: Rc::default(),
            ahead: RefCell::default(),
            pins: Rc::default(),
            pending_unmaps: RefCell::default(),
            pending_unmap_permits: Semaphore::new(PENDING_UNMAPS_MAX as u64),
            allowance: RefCell::default(),
            deleted: Described::new(false, &changed),
            changed,
            descriptor: Cell::new(None),
            stats: Cell::default(),
        }
    }

    /// A volume as a checkpoint left it.
    pub(crate) fn from_descriptor(found: Descriptor, at: Pba, counters: Rc<NodeCounters>) -> Self {
        let Descriptor { number, uuid, name, blocks, metadata, sector, .. } = found;
        let Descriptor { mapped, deleted, slo, access, map, pending_unmaps, .. } = found;
        let spec = VolumeSpec { uuid, name, blocks };
        let state = Self::new(number, spec, (metadata, sector), counters.clone());
        if let Some(root) = map {
            state.map.replace(Map::on_disk(state.tree(), root, mapped, counters));
        }
        for range in pending_unmaps {
            state.defer_unmap(range, state.pending_unmap_permits.try_acquire(1));
        }
        state.slo.set(slo);
        state.set_access(access.into());
        state.deleted.set(deleted);
        state.changed.take();
        state.descriptor.set(Some(at));
        state
    }

    /// Returns the access list.
    pub(crate) fn access(&self) -> Rc<[u8]> {
        self.access.borrow().clone()
    }

    /// Replaces the access list.
    pub(crate) fn set_access(&self, access: Rc<[u8]>) {
        self.access.replace(access);
        self.changed.mark();
    }

    /// Returns the note that the last checkpoint's descriptor is out of date.
    pub(crate) fn changed(&self) -> &Changed {
        &self.changed
    }

    pub(crate) fn tree(&self) -> Tree {
        Tree { number: self.number, metadata: self.metadata }
    }

    /// Entries of a leaf of the map that is filled at its worst.
    #[inline]
    pub(crate) fn leaf_entries_low(&self) -> u64 {
        match self.metadata {
            MetadataSize::None if !is_small() => LEAF_ENTRIES_LOW,
            size => (leaf_capacity(7, size) as u64 / 4).max(1),
        }
    }

    /// The most leaves that a deallocation at once meets, of so many blocks.
    pub(crate) fn unmap_leaves(&self, blocks: u64) -> u64 {
        if is_small() {
            return blocks;
        }
        let most = match self.metadata {
            MetadataSize::Bytes64 => 2 * UNMAP_LEAVES,
            _ => UNMAP_LEAVES,
        };
        blocks.min(most)
    }

    /// Keeps in memory what leads to the keys in `start..end`, as far as it is or gets there.
    pub(crate) fn pin(&self, start: u64, end: u64) -> Pin {
        let range = (start, end);
        self.pins.0.borrow_mut().push(range);
        Pin { pins: self.pins.clone(), range }
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut VolumeStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    /// Counts a write of so many blocks that succeeded.
    pub(crate) fn count_write(&self, blocks: u64) {
        self.count(|stats| {
            stats.writes += 1;
            stats.blocks_written += blocks;
        });
    }

    /// Returns whether the map still has entries of deallocated blocks.
    pub(crate) fn has_pending_unmaps(&self) -> bool {
        !self.pending_unmaps.borrow().is_empty()
    }

    /// Returns whether the block is deallocated, whatever the map says.
    pub(crate) fn is_unmap_pending(&self, lba: Lba) -> bool {
        self.pending_unmaps.borrow().iter().any(|pending| pending.range.contains(lba))
    }

    /// Returns the mapping of the block at `lba`, if it was written.
    pub(crate) fn mapping_of(&self, lba: Lba) -> Result<Option<Mapping>, Missing> {
        // A pending unmap is not looked up: its part of the map may even be damaged.
        let pending = self.is_unmap_pending(lba) && !broken(Sabotage::ReadDead);
        if pending { Ok(None) } else { self.map.borrow().get(lba.0) }
    }

    /// Returns whether every block of `range` has a pending unmap.
    pub(crate) fn is_unmap_pending_for_all(&self, range: LbaRange) -> bool {
        let pending = self.pending_unmaps.borrow();
        let mut parts: Vec<LbaRange> = pending.iter().map(|pending| pending.range).collect();
        parts.sort_unstable_by_key(|part| part.start);
        let mut at = range.start;
        for part in parts {
            if part.contains(at) {
                at = part.end();
            }
        }
        at >= range.end()
    }

    /// The first part of `range` with a pending unmap.
    pub(crate) fn pending_unmap_in(&self, range: LbaRange) -> Option<LbaRange> {
        let pending = self.pending_unmaps.borrow();
        let overlaps =
            pending.iter().map(|pending| pending.range).filter(|pending| pending.overlaps(range));
        let first = overlaps.min_by_key(|pending| pending.start)?;
        let start = first.start.max(range.start);
        Some(LbaRange::new(start, first.end().min(range.end()).0 - start.0))
    }

    /// The shortest pending unmap that can be taken out of the map.
    pub(crate) fn shortest_pending_unmap(&self) -> Option<LbaRange> {
        let pending = self.pending_unmaps.borrow();
        let open = pending.iter().filter(|pending| !pending.stuck).map(|pending| pending.range);
        open.min_by_key(|range| range.blocks)
    }

    /// The range is deallocated, with `permit` for one pending unmap more.
    pub(crate) fn defer_unmap(&self, range: LbaRange, permit: Option<Permit>) {
        self.ahead.borrow_mut().forget(range);
        let mut pending = self.pending_unmaps.borrow_mut();
        let within = |outer: LbaRange, inner: LbaRange| {
            outer.start <= inner.start && inner.end() <= outer.end()
        };
        self.changed.mark();
        if range.blocks == 0 || pending.iter().any(|pending| within(pending.range, range)) {
            return;
        }
        pending.retain(|pending| !within(range, pending.range));
        for pending in pending.iter_mut().filter(|pending| pending.range.overlaps(range)) {
            let (start, end) = (pending.range.start, pending.range.end());
            pending.range = if start < range.start {
                LbaRange::new(start, range.start.0 - start.0)
            } else {
                LbaRange::new(range.end(), end.0 - range.end().0)
            };
        }
        pending.push(PendingUnmap { range, stuck: false, _permit: permit });
    }

    /// Returns whether [`VolumeState::clear_unmap`] would leave one pending unmap more.
    pub(crate) fn splits(&self, range: LbaRange) -> bool {
        let pending = self.pending_unmaps.borrow();
        pending.iter().any(|d| d.range.start < range.start && range.end() < d.range.end())
    }

    /// The map no longer names anything of `range`. Uses `permit` if that splits a pending unmap.
    pub(crate) fn clear_unmap(&self, range: LbaRange, permit: &mut Option<Permit>) {
        let mut pending = self.pending_unmaps.borrow_mut();
        let mut upper = None;
        for place in (0..pending.len()).rev() {
            let found = pending[place].range;
            if !found.overlaps(range) {
                continue;
            }
            let below = range.start.0.saturating_sub(found.start.0);
            let above = found.end().0.saturating_sub(range.end().0);
            let above_range = LbaRange::new(range.end(), above);
            match (below, above) {
                (0, 0) => drop(pending.swap_remove(place)),
                (0, _) => pending[place].range = above_range,
                (_, 0) => pending[place].range.blocks = below,
                (..) => {
                    pending[place].range.blocks = below;
                    upper = Some(above_range);
                }
            }
            self.changed.mark();
        }
        if let Some(range) = upper {
            situation(Situation::DeadRangeIsSplit);
            pending.push(PendingUnmap { range, stuck: false, _permit: permit.take() });
        }
    }

    /// The map is damaged where the pending unmap at `start` begins, and up to `end`.
    pub(crate) fn set_stuck(&self, start: Lba, end: Lba) {
        let mut pending = self.pending_unmaps.borrow_mut();
        let Some(found) = pending.iter_mut().find(|pending| pending.range.start == start) else {
            return;
        };
        found.stuck = true;
        let (was, permit) = (found.range, self.pending_unmap_permits.try_acquire(1));
        if end < was.end() && permit.is_some() {
            found.range.blocks = end.0 - start.0;
            let range = LbaRange::new(end, was.end().0 - end.0);
            pending.push(PendingUnmap { range, stuck: false, _permit: permit });
            self.changed.mark();
        }
    }

    /// Makes the descriptor that a checkpoint writes, with the given map root.
    pub(crate) fn describe(&self, map: Option<Mapping>, mapped: u64) -> Descriptor {
        Descriptor {
            number: self.number,
            uuid: self.uuid,
            name: self.name.clone(),
            blocks: self.blocks.get(),
            metadata: self.metadata,
            sector: self.sector,
            mapped,
            deleted: self.deleted.get(),
            slo: self.slo.get(),
            access: self.access.borrow().to_vec(),
            map,
            pending_unmaps: self
                .pending_unmaps
                .borrow()
                .iter()
                .map(|pending| pending.range)
                .collect(),
        }
    }
}
