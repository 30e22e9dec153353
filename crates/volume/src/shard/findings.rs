//! Damage found by any path: counted once for each place, and reported once.
//!
//! - FINDING-1: a place counts when it is first found to be damaged, however often it is read later, and
//!   by a request, a scrub or a start. For a volume that includes its data and its map.
//! - FINDING-2: it is handed out once, for the log, however many hosts read it again and again.
//! - FINDING-3: a shard remembers so many places. Further ones are neither counted nor reported: the
//!   operator has plenty of reports by then.
//! - FINDING-4: what was found, or refused, and what volumes have counted outlives a failure of the shard
//!   and its return.
//! - FINDING-5: a volume that a return costs is told by its name, and is not taken for one that was
//!   deleted.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use io_traits::{Device, DeviceError};
use units::{Lba, Pba};
use uuid::Uuid;

use super::refused::Refused;
use super::{Damaged, Inner, Shard, Structure};
use crate::VolumeError;
use crate::state::VolumeState;
use crate::superblocks::Copies;

/// Places remembered (FINDING-3): a few hundred KiB.
const PLACES_MAX: usize = 10_000;

/// A place and what was there. What takes a damaged block's place is another matter.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Place {
    pba: Pba,
    volume: Option<Uuid>,
    /// Not of a node: that is met from any of its blocks.
    lba: Option<Lba>,
}

/// The findings of a shard.
#[derive(Debug, Default)]
pub(super) struct Findings {
    places: RefCell<BTreeSet<Place>>,
    /// Their number by volume, and without one.
    counts: RefCell<BTreeMap<Option<Uuid>, u64>>,
    /// Findings that were not handed out yet (FINDING-2).
    untold: RefCell<Vec<Damaged>>,
    /// Requests that the device failed.
    device_errors: Cell<u64>,
    pub(super) refused: Refused,
    /// Volumes that the last return could not read back (FINDING-5).
    lost: RefCell<BTreeSet<Uuid>>,
}

impl Findings {
    /// Counts a place, unless it is known. Returns whether it is new.
    fn count(&self, place: Place) -> bool {
        let mut places = self.places.borrow_mut();
        if places.len() >= PLACES_MAX || !places.insert(place) {
            return false;
        }
        *self.counts.borrow_mut().entry(place.volume).or_default() += 1;
        true
    }

    /// Notes a damaged block.
    pub(super) fn note(&self, found: &Damaged) {
        let lba = found.lba.filter(|_| found.structure != Structure::Node);
        let volume = found.volume.as_ref().map(|(uuid, _)| *uuid);
        if self.count(Place { pba: found.pba, volume, lba }) {
            self.untold.borrow_mut().push(found.clone());
        }
    }

    /// Notes a block of no volume that the code that opens the shard reports by itself.
    pub(super) fn note_told(&self, pba: Pba) {
        self.count(Place { pba, volume: None, lba: None });
    }

    /// Notes the volumes that a return costs (FINDING-5), each with where its descriptor is damaged, which counts
    /// already.
    pub(super) fn note_lost<'a>(&self, lost: impl Iterator<Item = (&'a Rc<VolumeState>, Pba)>) {
        self.lost.borrow_mut().clear();
        for (state, pba) in lost {
            self.lost.borrow_mut().insert(state.uuid);
            let (structure, volume) = (Structure::Table, Some((state.uuid, state.name.clone())));
            self.untold.borrow_mut().push(Damaged { pba, structure, volume, lba: None });
        }
    }

    /// Counts a request that the device failed.
    pub(super) fn count_device_error(&self) {
        self.device_errors.set(self.device_errors.get() + 1);
    }

    fn of(&self, volume: Option<Uuid>) -> u64 {
        self.counts.borrow().get(&volume).copied().unwrap_or_default()
    }
}

impl<D: Device> Inner<D> {
    /// Notes what an error says of a block of a volume.
    pub(crate) fn note_damage(&self, state: &VolumeState, error: &VolumeError) {
        let (pba, lba, structure) = match *error {
            VolumeError::Corrupt { pba, lba, .. } => (pba, lba, Structure::Data),
            VolumeError::CorruptMap { pba, lba } => (pba, lba, Structure::Node),
            _ => return,
        };
        let volume = Some((state.uuid, state.name.clone()));
        self.findings.note(&Damaged { pba, structure, volume, lba: Some(lba) });
    }

    /// Notes a damaged superblock: until it is rewritten the device depends on the other one alone.
    pub(super) async fn note_superblocks(&self) -> Result<(), DeviceError> {
        if let Some(pba) = Copies::read(&self.device).await?.damaged() {
            let structure = Structure::Superblock;
            self.findings.note(&Damaged { pba, structure, volume: None, lba: None });
        }
        Ok(())
    }

    /// Notes how a request of a volume ended.
    #[inline]
    pub(crate) fn note_outcome(&self, state: &VolumeState, error: Option<&VolumeError>) {
        if let Some(VolumeError::Device(_)) = error {
            state.count(|stats| stats.device_errors += 1);
            self.findings.count_device_error();
        }
    }

    /// Blocks of a volume that were found damaged, of its data and its map.
    pub(crate) fn damaged_blocks(&self, volume: Uuid) -> u64 {
        self.findings.of(Some(volume))
    }

    /// The same of what all volumes rest on: superblocks, roots, tables, bitmaps.
    pub(crate) fn damaged_structures(&self) -> u64 {
        self.findings.of(None)
    }
}

impl<D: Device> Shard<D> {
    /// Damaged blocks found since the shard was first opened, each once, and requests that the device failed.
    #[must_use]
    pub fn media_errors(&self) -> u64 {
        let findings = &self.inner.findings;
        findings.places.borrow().len() as u64 + findings.device_errors.get()
    }

    /// Volumes that were there before the shard returned, and that it could not read back (FINDING-5).
    #[must_use]
    pub fn lost_volumes(&self) -> BTreeSet<Uuid> {
        self.inner.findings.lost.borrow().clone()
    }

    /// Takes the damaged blocks that were not reported so far (FINDING-2).
    #[must_use]
    pub fn take_findings(&self) -> Vec<Damaged> {
        self.inner.findings.untold.take()
    }
}
