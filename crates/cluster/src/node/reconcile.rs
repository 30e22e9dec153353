//! Records compared with what a device holds.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Compare, KeyValue, Op, document};
use uuid::Uuid;

use super::{Node, TXN_OPS_MAX, decode};
use crate::VolumeRecord;
use crate::World;
use crate::store::Store;
use crate::{Conflict, DirectoryError};

/// Attempts while others change what was read.
const ROUNDS: u32 = 8;

/// The records of volumes in etcd.
struct Stored {
    volumes: BTreeMap<Uuid, VolumeRecord>,
    /// When what is under each key of a volume was changed last, be it understood or not.
    revisions: BTreeMap<String, i64>,
    names: BTreeMap<String, Uuid>,
}

/// One record, and its name: changed together.
#[derive(Default)]
struct Step {
    compare: Vec<Compare>,
    ops: Vec<Op>,
    /// The tenant's key with its value, if the change affects what the tenant's volumes count
    /// (QUOTA-1).
    recount: Option<Op>,
}

/// The changes to be made for all of a device.
struct Plan {
    steps: Vec<Step>,
    conflicts: Vec<Conflict>,
    /// True if names of volumes that are gone are wanted by others that are there.
    frees_names: bool,
}

impl<W: World> Node<W> {
    /// Makes the records of a device those of `volumes`, which are all that it holds.
    ///
    /// # Errors
    /// The device is not this host's, or etcd does not answer.
    pub async fn reconcile(
        &self,
        device: Uuid,
        volumes: Vec<VolumeRecord>,
    ) -> Result<Vec<Conflict>, DirectoryError> {
        for _ in 0..ROUNDS {
            let stored = read(self).await?;
            let Plan { steps, conflicts, frees_names } = plan(self, device, &volumes, &stored);
            if carry_out(self, device, steps).await? && !frees_names {
                return Ok(conflicts);
            }
        }
        let reason = "the records of its volumes change all the time".to_owned();
        Err(DirectoryError::Unreachable { reason })
    }
}

async fn read<W: World>(node: &Node<W>) -> Result<Stored, DirectoryError> {
    let store = node.connection()?.store;
    let prefix = format!("{}volumes/", node.keys.prefix);
    let (records, _) = store.range(&prefix).await.map_err(|error| node.failed(error))?;
    let (mut volumes, mut revisions) = (BTreeMap::new(), BTreeMap::new());
    for KeyValue { key, value, mod_revision, .. } in records {
        // Of a newer release, perhaps, and of another host. If the volume is here, the device is right.
        match decode::<VolumeRecord>(&key, &value) {
            Ok(record) => drop(volumes.insert(record.id, record)),
            Err(error) => tracing::warn!("a record is left out: {error}"),
        }
        revisions.insert(key, mod_revision);
    }
    let prefix = format!("{}names/", node.keys.prefix);
    let (records, _) = store.range(&prefix).await.map_err(|error| node.failed(error))?;
    let mut names = BTreeMap::new();
    for KeyValue { key, value, .. } in records {
        // The owner is unknown, and it is not this host.
        let holder = decode(&key, &value).unwrap_or_default();
        names.insert(key[prefix.len()..].to_owned(), holder);
    }
    Ok(Stored { volumes, revisions, names })
}

impl Stored {
    /// That a volume's record is as it was read (VOLUME-RECORD-1).
    fn is_unchanged(&self, key: String) -> Compare {
        let revision = self.revisions.get(&key).copied().unwrap_or(0);
        Compare::ModRevision(key, revision)
    }
}

/// The changes after which the records of `device` are `held`, and the conflicts that remain.
fn plan<W: World>(node: &Node<W>, device: Uuid, held: &[VolumeRecord], stored: &Stored) -> Plan {
    let (mut steps, mut conflicts, mut frees_names) = (Vec::new(), Vec::new(), false);
    let ids: BTreeSet<Uuid> = held.iter().map(|volume| volume.id).collect();
    let is_gone = |v: &VolumeRecord| v.device == device && !ids.contains(&v.id);
    let mut given = BTreeSet::new();
    for gone in stored.volumes.values().filter(|volume| is_gone(volume)) {
        let name = node.keys.name(&gone.name);
        let key = node.keys.volume(gone.id);
        let compare = vec![stored.is_unchanged(key.clone())];
        let mut step = Step { compare, ops: vec![Op::Delete(key)], recount: node.recount(gone) };
        if stored.names.get(&gone.name) == Some(&gone.id) {
            step.compare.push(Compare::Value(name.clone(), document(&gone.id)));
            step.ops.push(Op::Delete(name));
        }
        steps.push(step);
    }
    for volume in held {
        let before = stored.volumes.get(&volume.id);
        if let Some(before) = before.filter(|before| before.device != device) {
            conflicts.push(Conflict::Volume { id: volume.id, device: before.device });
            continue;
        }
        let mut step = Step::default();
        if before != Some(volume) {
            step.compare.push(stored.is_unchanged(node.keys.volume(volume.id)));
            step.ops.push(node.put_volume(volume));
            let counts_alike = before.is_some_and(|before| before.counts_as(volume));
            step.recount = node.recount(volume).filter(|_| !counts_alike);
        }
        match stored.names.get(&volume.name) {
            Some(holder) if *holder == volume.id => {}
            // Names that become free are free in the next round only: a transaction changes a key once.
            Some(holder) if stored.volumes.get(holder).is_some_and(is_gone) => frees_names = true,
            Some(holder) => {
                let (id, name, holder) = (volume.id, volume.name.clone(), *holder);
                conflicts.push(Conflict::Name { id, name, holder });
            }
            // A device may hold two volumes of a name: the first has it.
            None if given.insert(volume.name.clone()) => {
                let key = node.keys.name(&volume.name);
                step.compare.push(Compare::ModRevision(key.clone(), 0));
                step.ops.push(Op::Put { key, value: document(&volume.id), lease: None });
            }
            None => {}
        }
        steps.push(step);
    }
    Plan { steps, conflicts, frees_names }
}

/// `false`: something was not as it was read.
async fn carry_out<W: World>(
    node: &Node<W>,
    device: Uuid,
    steps: Vec<Step>,
) -> Result<bool, DirectoryError> {
    let mut batch = Batch::default();
    for step in steps {
        if batch.len() + step.ops.len() + usize::from(step.recount.is_some()) > TXN_OPS_MAX
            && !std::mem::take(&mut batch).carry_out(node, device).await?
        {
            return Ok(false);
        }
        batch.compare.extend(step.compare);
        batch.ops.extend(step.ops);
        // A transaction changes a key once.
        if let Some(Op::Put { key, value, .. }) = step.recount {
            batch.tenants.insert(key, value);
        }
    }
    batch.carry_out(node, device).await
}

/// Steps that make one transaction.
#[derive(Default)]
struct Batch {
    compare: Vec<Compare>,
    ops: Vec<Op>,
    tenants: BTreeMap<String, Vec<u8>>,
}

impl Batch {
    fn len(&self) -> usize {
        self.ops.len() + self.tenants.len()
    }

    async fn carry_out<W: World>(
        self,
        node: &Node<W>,
        device: Uuid,
    ) -> Result<bool, DirectoryError> {
        let tenants = self.tenants.into_iter();
        let tenants = tenants.map(|(key, value)| Op::Put { key, value, lease: None });
        let ops: Vec<Op> = self.ops.into_iter().chain(tenants).collect();
        node.change(device, self.compare, &ops).await
    }
}
