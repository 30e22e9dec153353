//! Changes to the records of volumes.
//!
//! - VOLUME-RECORD-1: a change is made to what etcd holds, not to what the view shows: it reads the record, and its transaction
//!   compares that this is still so. What comes late, or once more, overwrites nothing newer.
//! - VOLUME-RECORD-2: what lies before etcd may repeat a request that was carried out, and give the second answer. A change that
//!   finds its own work is done.
//! - VOLUME-RECORD-3: where another device holds a volume of the same id, too, and has the record, that record and its name stay
//!   as they are.
//! - VOLUME-RECORD-4: nor does what comes late make again what was removed since: a key that is gone compares like one that never
//!   was. So each change of a device writes `changed/DEVICE`, too, and compares that this is as the change before left it. The
//!   key is under the session's lease: what was asked for in a former session has no effect anyway (SESSION-5).

use crate::{Compare, KeyValue, Op, document};

use super::{CLAIM_ROUNDS, Node};
use crate::VolumeRecord;
use crate::World;
use crate::sabotage::{Sabotage, broken};
use crate::store::Store;
use crate::{Admit, DirectoryError};

/// A volume in etcd.
struct Stored {
    /// When its record was changed last; 0 if it has none.
    revision: i64,
    /// `None` if there is none, or none that is understood: then the device is right.
    record: Option<VolumeRecord>,
    /// The key of its name, with the id that it maps to.
    name: Option<KeyValue>,
}

impl Stored {
    /// Returns true if the record belongs to a device other than `volume`'s (VOLUME-RECORD-3).
    fn is_elsewhere(&self, volume: &VolumeRecord) -> bool {
        self.record.as_ref().is_some_and(|record| record.device != volume.device)
    }

    /// Returns true if the name is `volume`'s.
    fn is_named(&self, volume: &VolumeRecord) -> bool {
        self.name.as_ref().is_some_and(|name| name.value == document(&volume.id))
    }
}

impl<W: World> Node<W> {
    /// Takes the volume's name and makes its record, if `admit` has nothing against it.
    ///
    /// # Errors
    /// The name is taken, the change is not admitted, the device is not this host's, or etcd does not answer.
    pub async fn reserve(
        &self,
        volume: VolumeRecord,
        admit: Option<Admit>,
    ) -> Result<(), DirectoryError> {
        let (name, key) = (self.keys.name(&volume.name), self.keys.volume(volume.id));
        for _ in 0..CLAIM_ROUNDS {
            let mut compare = vec![Compare::ModRevision(key.clone(), 0)];
            if !broken(Sabotage::TakeAnyName) {
                compare.push(Compare::ModRevision(name.clone(), 0));
            }
            let mut then = vec![
                Op::Put { key: name.clone(), value: document(&volume.id), lease: None },
                self.put_volume(&volume),
            ];
            then.extend(self.recount(&volume));
            compare.extend(self.judge(&volume, admit.as_ref()).await?);
            if self.change(volume.device, compare, &then).await? {
                return Ok(());
            }
            let stored = self.stored(&volume).await?;
            if stored.is_named(&volume) && stored.record.as_ref() == Some(&volume) {
                // VOLUME-RECORD-2.
                return Ok(());
            }
            if stored.name.is_some() {
                return Err(DirectoryError::NameTaken { name: volume.name });
            }
        }
        Err(all_the_time(&volume))
    }

    /// Changes a volume's record, if `admit` has nothing against it.
    ///
    /// # Errors
    /// As for [`Node::reserve`].
    pub async fn update(
        &self,
        volume: VolumeRecord,
        admit: Option<Admit>,
    ) -> Result<(), DirectoryError> {
        for round in 0..CLAIM_ROUNDS {
            let stored = self.stored(&volume).await?;
            if round > 0 && stored.record.as_ref() == Some(&volume) {
                // VOLUME-RECORD-2.
                return Ok(());
            }
            if stored.is_elsewhere(&volume) {
                return match admit {
                    None => self.change(volume.device, Vec::new(), &[]).await.map(drop),
                    Some(_) => Err(counted_elsewhere(&volume)),
                };
            }
            let key = self.keys.volume(volume.id);
            let mut compare = vec![Compare::ModRevision(key, stored.revision)];
            compare.extend(self.judge(&volume, admit.as_ref()).await?);
            let counts_alike = stored.record.is_some_and(|record| record.counts_as(&volume));
            let mut then = vec![self.put_volume(&volume)];
            then.extend(self.recount(&volume).filter(|_| !counts_alike));
            if self.change(volume.device, compare, &then).await? {
                return Ok(());
            }
        }
        Err(all_the_time(&volume))
    }

    /// Removes a volume's record, and gives up its name.
    ///
    /// # Errors
    /// As for [`Node::reserve`].
    pub async fn forget(&self, volume: VolumeRecord) -> Result<(), DirectoryError> {
        for _ in 0..CLAIM_ROUNDS {
            let stored = self.stored(&volume).await?;
            let (mut compare, mut then) = (Vec::new(), Vec::new());
            // Of what is gone nothing is left to be done (VOLUME-RECORD-2).
            if stored.revision != 0 && !stored.is_elsewhere(&volume) {
                let key = self.keys.volume(volume.id);
                compare.push(Compare::ModRevision(key.clone(), stored.revision));
                then.push(Op::Delete(key));
                then.extend(self.recount(&volume));
            }
            let is_named = stored.is_named(&volume) && !broken(Sabotage::KeepName);
            if is_named && !stored.is_elsewhere(&volume) {
                let name = self.keys.name(&volume.name);
                compare.push(Compare::Value(name.clone(), document(&volume.id)));
                then.push(Op::Delete(name));
            }
            if self.change(volume.device, compare, &then).await? {
                return Ok(());
            }
        }
        Err(all_the_time(&volume))
    }

    /// The records of a volume in etcd, which the view may not show yet.
    async fn stored(&self, volume: &VolumeRecord) -> Result<Stored, DirectoryError> {
        let connection = self.connection()?;
        let keys = [self.keys.volume(volume.id), self.keys.name(&volume.name)];
        let read = connection.store.txn(&[], &keys.map(Op::Get), &[]).await;
        let read = read.map_err(|error| self.failed(error))?;
        let mut read = read.read.into_iter();
        let (Some(record), Some(name)) = (read.next(), read.next()) else {
            let reason = "the volume's record was not read".to_owned();
            return Err(DirectoryError::Unreachable { reason });
        };
        let revision = record.as_ref().map_or(0, |kv| kv.mod_revision);
        let record = record.and_then(|kv| serde_json::from_slice(&kv.value).ok());
        Ok(Stored { revision, record, name })
    }

    pub(super) fn put_volume(&self, volume: &VolumeRecord) -> Op {
        Op::Put { key: self.keys.volume(volume.id), value: document(volume), lease: None }
    }
}

fn all_the_time(volume: &VolumeRecord) -> DirectoryError {
    let what = match &volume.owner {
        Some(owner) => format!("the volumes of {owner} change"),
        None => format!("the record of the volume {} changes", volume.name),
    };
    DirectoryError::Unreachable { reason: format!("{what} all the time") }
}

/// The error for a volume whose record belongs to another device: what it gains here would not be counted.
fn counted_elsewhere(volume: &VolumeRecord) -> DirectoryError {
    let detail = format!(
        "a volume of the id {} lies on another device, too, and what that one has is counted",
        volume.id
    );
    DirectoryError::NotAdmitted { detail }
}
