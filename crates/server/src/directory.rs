//! The volumes of this host: the place of each, and its part in quotas.
//!
//! - DIRECTORY-1: a volume is known by its id. A name only leads to an id, so that no request which
//!   names an id can reach another volume.
//! - DIRECTORY-2: should there be two volumes of one name, the name leads to the one with the lower id.
//!   The other is reached by its id, and by the name when the first is gone.
//! - DIRECTORY-3: a volume that is being made has its name and counts, but is not found.
//! - DIRECTORY-4: a change counts from before it is made, so that changes at the same time together keep
//!   the quota.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use control::{Caller, ServiceError, Slo, VolumeKey, VolumeName};
use dataplane::VolumeStatus;
use typed_index_collections::TiVec;
use units::{BLOCK_SIZE, CoreIndex, DeviceIndex};
use uuid::Uuid;

use super::quota;
use super::sharing::slo_document;

/// Volumes of a server at most: what the directory and the answers of the API are made for.
const VOLUMES_MAX: usize = 65_536;

/// The place of a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Place {
    pub(super) id: Uuid,
    /// Index of its core.
    pub(super) core: CoreIndex,
    /// Number of its device.
    pub(super) device: DeviceIndex,
}

/// The part of a volume in its tenant's quota.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Extent {
    pub(super) size_bytes: u64,
    pub(super) slo: Slo,
}

/// The known state of a volume.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) name: String,
    pub(super) place: Place,
    /// The tenant whose it is.
    pub(super) owner: Option<String>,
    pub(super) extent: Extent,
}

impl Known {
    /// As core number `core` says.
    pub(super) fn of(core: CoreIndex, volume: &VolumeStatus) -> Self {
        let size_bytes = volume.blocks * BLOCK_SIZE as u64;
        Self {
            name: volume.name.clone(),
            place: Place { id: volume.uuid, core, device: volume.device },
            owner: volume.access.as_ref().and_then(|access| access.owner.clone()),
            extent: Extent { size_bytes, slo: slo_document(volume.slo) },
        }
    }
}

#[derive(Debug)]
struct Entry {
    volume: Known,
    /// True if it is more than a plan (DIRECTORY-3).
    is_made: bool,
}

/// The volumes of all cores.
#[derive(Debug, Default)]
pub(super) struct Directory {
    volumes: BTreeMap<Uuid, Entry>,
    by_name: BTreeSet<(String, Uuid)>,
}

/// A directory that several threads use.
#[derive(Debug)]
pub(super) struct SharedDirectory(Mutex<Directory>);

impl SharedDirectory {
    pub(super) fn new(directory: Directory) -> Self {
        Self(Mutex::new(directory))
    }

    pub(super) fn with<T>(&self, look: impl FnOnce(&mut Directory) -> T) -> T {
        // A panic elsewhere leaves the directory whole: each change is one insert or remove.
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Directory {
    /// Adds a volume that is there, or updates it. Returns another one of the same name, if there is one
    /// (DIRECTORY-2).
    pub(super) fn insert(&mut self, volume: Known) -> Option<Uuid> {
        self.add(Entry { volume, is_made: true })
    }

    fn add(&mut self, entry: Entry) -> Option<Uuid> {
        let (id, name) = (entry.volume.place.id, entry.volume.name.clone());
        self.remove(id);
        let other = self.named(&name);
        self.volumes.insert(id, entry);
        self.by_name.insert((name, id));
        other
    }

    /// Sets a place aside for a volume that `caller` is about to make (DIRECTORY-3, DIRECTORY-4).
    pub(super) fn reserve(
        &mut self,
        caller: &Caller,
        name: &VolumeName,
        volume: Known,
    ) -> Result<(), ServiceError> {
        if self.named(name.as_str()).is_some() {
            return Err(ServiceError::NameTaken { name: name.clone() });
        }
        if self.volumes.len() >= VOLUMES_MAX {
            return Err(ServiceError::TooManyVolumes { max: VOLUMES_MAX as u64 });
        }
        self.check_quota(caller, None, volume.extent)?;
        self.add(Entry { volume, is_made: false });
        Ok(())
    }

    /// The number of volumes on a device.
    pub(super) fn volumes_on(&self, device: DeviceIndex) -> usize {
        let lies_there = |it: &&Entry| it.is_made && it.volume.place.device == device;
        self.volumes.values().filter(lies_there).count()
    }

    /// The volume is there.
    pub(super) fn is_made(&mut self, id: Uuid) {
        if let Some(entry) = self.volumes.get_mut(&id) {
            entry.is_made = true;
        }
    }

    /// The volume is not going to be made, if it is not.
    pub(super) fn give_up(&mut self, id: Uuid) {
        if self.volumes.get(&id).is_some_and(|entry| !entry.is_made) {
            self.remove(id);
        }
    }

    /// Counts a change that `caller` is about to make to a volume (DIRECTORY-4); what it counted for
    /// before.
    pub(super) fn change(
        &mut self,
        caller: &Caller,
        id: Uuid,
        change: impl FnOnce(&mut Extent),
    ) -> Result<Extent, ServiceError> {
        let entry = self.volumes.get(&id);
        let before = entry.map(|entry| entry.volume.extent);
        let before = before.ok_or_else(|| ServiceError::NotFound { volume: id.to_string() })?;
        let mut after = before;
        change(&mut after);
        self.check_quota(caller, Some(id), after)?;
        self.set_extent(id, after);
        Ok(before)
    }

    pub(super) fn set_extent(&mut self, id: Uuid, extent: Extent) {
        if let Some(entry) = self.volumes.get_mut(&id) {
            entry.volume.extent = extent;
        }
    }

    /// Refuses what would be more than `caller` may have, if that is a tenant.
    fn check_quota(
        &self,
        caller: &Caller,
        id: Option<Uuid>,
        extent: Extent,
    ) -> Result<(), ServiceError> {
        let Caller::Tenant(tenant) = caller else { return Ok(()) };
        quota::check(tenant, &self.extents_of(&tenant.name), id, extent)
    }

    /// The volumes of `owner` and their parts in its quota, including those that are being made.
    pub(super) fn extents_of(&self, owner: &str) -> Vec<(Uuid, Extent)> {
        let entries = self.volumes.values();
        let own = entries.filter(|entry| entry.volume.owner.as_deref() == Some(owner));
        own.map(|entry| (entry.volume.place.id, entry.volume.extent)).collect()
    }

    pub(super) fn remove(&mut self, id: Uuid) {
        if let Some(Entry { volume, .. }) = self.volumes.remove(&id) {
            self.by_name.remove(&(volume.name, id));
        }
    }

    fn named(&self, name: &str) -> Option<Uuid> {
        let (found, id) = self.by_name.range((name.to_owned(), Uuid::nil())..).next()?;
        (found == name).then_some(*id)
    }

    /// Returns the place of the volume, if `caller` may know it.
    pub(super) fn find(&self, caller: &Caller, key: &VolumeKey) -> Option<Place> {
        let id = match key {
            VolumeKey::Id(id) => *id,
            VolumeKey::Name(name) => self.named(name.as_str())?,
        };
        let Entry { volume, is_made } = self.volumes.get(&id)?;
        (*is_made && caller.may_use(volume.owner.as_deref())).then_some(volume.place)
    }

    pub(super) fn has(&self, id: Uuid) -> bool {
        self.volumes.contains_key(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.volumes.len()
    }

    /// The volumes that `caller` may know.
    pub(super) fn places_of(&self, caller: &Caller) -> Vec<Place> {
        let made = self.volumes.values().filter(|entry| entry.is_made);
        let own = made.filter(|entry| caller.may_use(entry.volume.owner.as_deref()));
        own.map(|entry| entry.volume.place).collect()
    }

    /// The volumes that a core has on a device.
    pub(super) fn places_on(&self, core: CoreIndex, device: DeviceIndex) -> Vec<Place> {
        let made = self.volumes.values().filter(|entry| entry.is_made);
        let places = made.map(|entry| entry.volume.place);
        places.filter(|place| (place.core, place.device) == (core, device)).collect()
    }

    /// The core with the fewest volumes, the first of several.
    pub(super) fn emptiest_core(&self, cores: usize) -> CoreIndex {
        let mut volumes: TiVec<CoreIndex, usize> = TiVec::from(vec![0; cores]);
        for entry in self.volumes.values() {
            volumes[entry.volume.place.core] += 1;
        }
        volumes.keys().min_by_key(|core| volumes[*core]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Uuid = Uuid::from_u128(1);
    const SECOND: Uuid = Uuid::from_u128(2);

    fn operator() -> Caller {
        Caller::Operator("ops".into())
    }

    fn name(text: &str) -> VolumeKey {
        VolumeKey::Name(text.parse().expect("a name"))
    }

    fn known(name: &str, id: Uuid, core: usize) -> Known {
        let extent = Extent { size_bytes: 4096, slo: Slo::Share(1) };
        let place = Place { id, core: CoreIndex(core), device: DeviceIndex(0) };
        Known { name: name.to_owned(), place, owner: None, extent }
    }

    fn found(directory: &Directory, key: &VolumeKey) -> Option<Uuid> {
        directory.find(&operator(), key).map(|place| place.id)
    }

    #[test]
    fn an_id_never_leads_to_another_volume_of_the_same_name() {
        let mut directory = Directory::default();
        assert_eq!(directory.insert(known("a", FIRST, 0)), None);
        assert_eq!(directory.insert(known("a", SECOND, 1)), Some(FIRST));
        assert_eq!(directory.len(), 2);
        assert_eq!(found(&directory, &VolumeKey::Id(FIRST)), Some(FIRST));
        assert_eq!(
            directory.find(&operator(), &VolumeKey::Id(SECOND)),
            Some(Place { id: SECOND, core: CoreIndex(1), device: DeviceIndex(0) }),
            "the second volume keeps its own id and core"
        );
        assert_eq!(found(&directory, &name("a")), Some(FIRST));
    }

    #[test]
    fn deleting_one_of_two_volumes_of_a_name_leaves_the_other_within_reach() {
        for (gone, left) in [(FIRST, SECOND), (SECOND, FIRST)] {
            let mut directory = Directory::default();
            directory.insert(known("a", FIRST, 0));
            directory.insert(known("a", SECOND, 1));
            directory.remove(gone);
            assert_eq!(found(&directory, &VolumeKey::Id(gone)), None);
            assert_eq!(found(&directory, &VolumeKey::Id(left)), Some(left));
            assert_eq!(found(&directory, &name("a")), Some(left));
            directory.remove(left);
            assert_eq!(directory.named("a"), None);
            assert_eq!(directory.len(), 0);
        }
    }

    #[test]
    fn new_volumes_go_where_the_fewest_are() {
        let mut directory = Directory::default();
        assert_eq!(directory.emptiest_core(2), CoreIndex(0));
        directory.insert(known("a", FIRST, 0));
        assert_eq!(directory.emptiest_core(2), CoreIndex(1));
    }

    /// DIRECTORY-3 and DIRECTORY-4.
    #[test]
    fn what_is_being_made_counts_and_is_not_found() {
        let quota = control::Quota { provisioned_bytes: Some(8192), ..control::Quota::default() };
        let acme = control::Tenant { name: "acme".to_owned(), quota };
        let caller = Caller::Tenant(acme.into());
        let own = |name: &str, id| Known { owner: Some("acme".to_owned()), ..known(name, id, 0) };
        let mut directory = Directory::default();
        let a = "a".parse().expect("a name");
        let b = "b".parse().expect("a name");
        directory.reserve(&caller, &a, own("a", FIRST)).expect("room");
        assert_eq!(found(&directory, &name("a")), None);
        let taken = directory.reserve(&operator(), &a, own("a", SECOND)).expect_err("taken");
        assert!(matches!(taken, ServiceError::NameTaken { .. }));
        directory.is_made(FIRST);
        assert_eq!(found(&directory, &name("a")), Some(FIRST));
        let before = directory.change(&caller, FIRST, |extent| extent.size_bytes = 8192);
        let before = before.expect("all of the quota");
        let over = directory.reserve(&caller, &b, own("b", SECOND)).expect_err("too much");
        assert!(matches!(over, ServiceError::Quota { .. }));
        directory.set_extent(FIRST, before);
        directory.reserve(&caller, &b, own("b", SECOND)).expect("room again");
        directory.change(&caller, FIRST, |extent| extent.size_bytes = 8192).expect_err("too much");
        directory.give_up(SECOND);
        directory.give_up(FIRST);
        assert_eq!(directory.len(), 1, "only what is not made is given up");
    }
}
