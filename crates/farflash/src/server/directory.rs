//! Which volumes there are, and which core holds each.
//!
//! - D1: a volume is known by its id. A name only leads to an id, so that no request which names an
//!   id can reach another volume.
//! - D2: should a device hold two volumes of one name, the name leads to the one with the lower id. The
//!   other is reached by its id, and by the name when the first is gone.

use std::collections::{BTreeMap, BTreeSet};

use control::{Caller, VolumeKey};
use uuid::Uuid;

/// Where a volume is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Place {
    pub(super) id: Uuid,
    /// Index of its core.
    pub(super) core: usize,
}

#[derive(Debug)]
struct Entry {
    name: String,
    core: usize,
    /// The tenant whose it is.
    owner: Option<String>,
}

/// The volumes of all cores.
#[derive(Debug, Default)]
pub(super) struct Directory {
    volumes: BTreeMap<Uuid, Entry>,
    by_name: BTreeSet<(String, Uuid)>,
}

impl Directory {
    /// Adds a volume. Another of the same name, if there is one (D2).
    pub(super) fn insert(
        &mut self,
        name: &str,
        place: Place,
        owner: Option<String>,
    ) -> Option<Uuid> {
        let Place { id, core } = place;
        let other = self.named(name);
        self.volumes.insert(id, Entry { name: name.to_owned(), core, owner });
        self.by_name.insert((name.to_owned(), id));
        other.filter(|other| *other != id)
    }

    pub(super) fn remove(&mut self, id: Uuid) {
        if let Some(Entry { name, .. }) = self.volumes.remove(&id) {
            self.by_name.remove(&(name, id));
        }
    }

    fn named(&self, name: &str) -> Option<Uuid> {
        let (found, id) = self.by_name.range((name.to_owned(), Uuid::nil())..).next()?;
        (found == name).then_some(*id)
    }

    /// Where the volume is, if `caller` may know.
    pub(super) fn find(&self, caller: &Caller, key: &VolumeKey) -> Option<Place> {
        let id = match key {
            VolumeKey::Id(id) => *id,
            VolumeKey::Name(name) => self.named(name.as_str())?,
        };
        let entry = self.volumes.get(&id)?;
        caller.may_use(entry.owner.as_deref()).then_some(Place { id, core: entry.core })
    }

    pub(super) fn has_name(&self, name: &str) -> bool {
        self.named(name).is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.volumes.len()
    }

    /// All volumes, by name.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        self.by_name.iter().filter_map(|(_, id)| {
            self.volumes.get(id).map(|entry| Place { id: *id, core: entry.core })
        })
    }

    /// The core with the fewest volumes, the first of several.
    pub(super) fn emptiest_core(&self, cores: usize) -> usize {
        let mut volumes = vec![0_usize; cores];
        for place in self.places() {
            volumes[place.core] += 1;
        }
        (0..cores).min_by_key(|core| volumes[*core]).unwrap_or(0)
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

    fn found(directory: &Directory, key: &VolumeKey) -> Option<Uuid> {
        directory.find(&operator(), key).map(|place| place.id)
    }

    #[test]
    fn an_id_never_leads_to_another_volume_of_the_same_name() {
        let mut directory = Directory::default();
        assert_eq!(directory.insert("a", Place { id: FIRST, core: 0 }, None), None);
        assert_eq!(directory.insert("a", Place { id: SECOND, core: 1 }, None), Some(FIRST));
        assert_eq!(directory.len(), 2);
        assert_eq!(found(&directory, &VolumeKey::Id(FIRST)), Some(FIRST));
        assert_eq!(
            directory.find(&operator(), &VolumeKey::Id(SECOND)),
            Some(Place { id: SECOND, core: 1 }),
            "the second volume keeps its own id and core"
        );
        assert_eq!(found(&directory, &name("a")), Some(FIRST));
    }

    #[test]
    fn deleting_one_of_two_volumes_of_a_name_leaves_the_other_within_reach() {
        for (gone, left) in [(FIRST, SECOND), (SECOND, FIRST)] {
            let mut directory = Directory::default();
            directory.insert("a", Place { id: FIRST, core: 0 }, None);
            directory.insert("a", Place { id: SECOND, core: 1 }, None);
            directory.remove(gone);
            assert_eq!(found(&directory, &VolumeKey::Id(gone)), None);
            assert_eq!(found(&directory, &VolumeKey::Id(left)), Some(left));
            assert_eq!(found(&directory, &name("a")), Some(left));
            directory.remove(left);
            assert!(!directory.has_name("a"));
            assert_eq!(directory.len(), 0);
        }
    }

    #[test]
    fn new_volumes_go_where_the_fewest_are() {
        let mut directory = Directory::default();
        assert_eq!(directory.emptiest_core(2), 0);
        directory.insert("a", Place { id: FIRST, core: 0 }, None);
        assert_eq!(directory.emptiest_core(2), 1);
    }
}
