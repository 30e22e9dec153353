//! The exports of a server, as every core of it knows them.

use std::collections::BTreeMap;

use access::Access;
use uuid::Uuid;

/// The place where a volume is served.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ExportPlace {
    /// By this core.
    Here,
    /// By another core, whose address for the volume this is.
    Elsewhere {
        /// Its URIs, as text for people.
        uri: String,
    },
}

/// A volume that some clients may open by NBD.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ExportRecord {
    /// The volume. Its text is a name of the export, too.
    pub uuid: Uuid,
    /// The name of the volume.
    pub name: String,
    /// The place where it is served.
    pub place: ExportPlace,
    /// The clients that may open it. Tokens are of no use here, and need not be there.
    pub access: Access,
}

/// All exports, by identity and by name. Of several volumes of one name the name leads to the one with the lowest identity.
#[derive(Default)]
pub(crate) struct Exports {
    records: BTreeMap<Uuid, ExportRecord>,
    names: BTreeMap<(String, Uuid), ()>,
}

impl Exports {
    pub(crate) fn insert(&mut self, record: ExportRecord) {
        self.remove(record.uuid);
        self.names.insert((record.name.clone(), record.uuid), ());
        self.records.insert(record.uuid, record);
    }

    pub(crate) fn remove(&mut self, uuid: Uuid) {
        if let Some(record) = self.records.remove(&uuid) {
            self.names.remove(&(record.name, uuid));
        }
    }

    /// The export that a client calls `name`.
    pub(crate) fn find(&self, name: &str) -> Option<&ExportRecord> {
        if let Ok(uuid) = Uuid::try_parse(name) {
            return self.records.get(&uuid);
        }
        let from = (name.to_owned(), Uuid::nil());
        let ((found, uuid), ()) = self.names.range(from..).next()?;
        (found == name).then(|| &self.records[uuid])
    }

    /// Those of this core, by name.
    pub(crate) fn here(&self) -> impl Iterator<Item = &ExportRecord> {
        let all = self.names.keys().map(|(_, uuid)| &self.records[uuid]);
        all.filter(|record| record.place == ExportPlace::Here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(uuid: u128, name: &str) -> ExportRecord {
        let (uuid, name) = (Uuid::from_u128(uuid), name.to_owned());
        ExportRecord { uuid, name, place: ExportPlace::Here, access: Access::default() }
    }

    #[test]
    fn exports_are_found_by_name_and_identity_until_they_go() {
        let mut exports = Exports::default();
        exports.insert(record(2, "b"));
        exports.insert(record(1, "c"));
        exports.insert(record(3, "b"));
        let found = |exports: &Exports, name: &str| exports.find(name).map(|it| it.uuid.as_u128());
        assert_eq!(found(&exports, "b"), Some(2));
        assert_eq!(found(&exports, &Uuid::from_u128(3).to_string()), Some(3));
        assert_eq!(found(&exports, "a"), None);
        exports.insert(record(2, "d"));
        assert_eq!((found(&exports, "b"), found(&exports, "d")), (Some(3), Some(2)));
        let names: Vec<&str> = exports.here().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["b", "c", "d"]);
        exports.remove(Uuid::from_u128(3));
        assert_eq!(found(&exports, "b"), None);
    }
}
