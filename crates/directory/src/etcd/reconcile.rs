//! Records compared with what a device holds.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::gateway::{Compare, KeyValue, Op, TXN_OPS_MAX, document};
use super::{Shared, decode};
use crate::records::VolumeRecord;
use crate::{Conflict, DirectoryError};

/// Attempts while others change what was read.
const ROUNDS: u32 = 8;

/// What lies in etcd about volumes.
struct Stored {
    volumes: BTreeMap<Uuid, VolumeRecord>,
    names: BTreeMap<String, Uuid>,
}

/// One record, and its name: changed together.
#[derive(Default)]
struct Step {
    compare: Vec<Compare>,
    ops: Vec<Op>,
    /// What a tenant's volumes count changes (D1 of `admission.rs`): the tenant's key with its value.
    recount: Option<Op>,
}

pub(super) async fn reconcile(
    shared: &Shared,
    device: Uuid,
    volumes: Vec<VolumeRecord>,
) -> Result<Vec<Conflict>, DirectoryError> {
    for _ in 0..ROUNDS {
        let stored = read(shared).await?;
        let (steps, conflicts) = plan(shared, device, &volumes, &stored);
        if carry_out(shared, device, steps).await? {
            return Ok(conflicts);
        }
    }
    let reason = "the records of its volumes change all the time".to_owned();
    Err(DirectoryError::Unreachable { reason })
}

async fn read(shared: &Shared) -> Result<Stored, DirectoryError> {
    let gateway = shared.connection()?.gateway;
    let prefix = format!("{}volumes/", shared.keys.prefix);
    let (records, _) = gateway.range(&prefix).await.map_err(|error| shared.failed(error))?;
    let mut volumes = BTreeMap::new();
    for KeyValue { key, value, .. } in records {
        let record: VolumeRecord = decode(&key, &value)?;
        volumes.insert(record.id, record);
    }
    let prefix = format!("{}names/", shared.keys.prefix);
    let (records, _) = gateway.range(&prefix).await.map_err(|error| shared.failed(error))?;
    let mut names = BTreeMap::new();
    for KeyValue { key, value, .. } in records {
        names.insert(key[prefix.len()..].to_owned(), decode(&key, &value)?);
    }
    Ok(Stored { volumes, names })
}

/// What has to change so that the records of `device` are `held`, and what cannot.
fn plan(
    shared: &Shared,
    device: Uuid,
    held: &[VolumeRecord],
    stored: &Stored,
) -> (Vec<Step>, Vec<Conflict>) {
    let (mut steps, mut conflicts) = (Vec::new(), Vec::new());
    let ids: BTreeSet<Uuid> = held.iter().map(|volume| volume.id).collect();
    let mut given = BTreeSet::new();
    // Names that become free are free in the next round only: a transaction changes a key once.
    for gone in stored.volumes.values().filter(|v| v.device == device && !ids.contains(&v.id)) {
        let name = shared.keys.name(&gone.name);
        let ops = vec![Op::Delete(shared.keys.volume(gone.id))];
        let mut step = Step { ops, recount: shared.recount(gone), ..Step::default() };
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
            step.ops.push(shared.put_volume(volume));
            let counts_alike = before.is_some_and(|before| before.counts_as(volume));
            step.recount = shared.recount(volume).filter(|_| !counts_alike);
        }
        match stored.names.get(&volume.name) {
            Some(holder) if *holder == volume.id => {}
            Some(holder) => {
                let (id, name, holder) = (volume.id, volume.name.clone(), *holder);
                conflicts.push(Conflict::Name { id, name, holder });
            }
            // A device may hold two volumes of a name: the first has it.
            None if given.insert(volume.name.clone()) => {
                let key = shared.keys.name(&volume.name);
                step.compare.push(Compare::ModRevision(key.clone(), 0));
                step.ops.push(Op::Put { key, value: document(&volume.id), lease: None });
            }
            None => {}
        }
        steps.push(step);
    }
    (steps, conflicts)
}

/// `false`: something was not as it was read.
async fn carry_out(
    shared: &Shared,
    device: Uuid,
    steps: Vec<Step>,
) -> Result<bool, DirectoryError> {
    let mut batch = Batch::default();
    for step in steps {
        if batch.len() + step.ops.len() + usize::from(step.recount.is_some()) > TXN_OPS_MAX
            && !std::mem::take(&mut batch).carry_out(shared, device).await?
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
    batch.carry_out(shared, device).await
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

    async fn carry_out(self, shared: &Shared, device: Uuid) -> Result<bool, DirectoryError> {
        let tenants = self.tenants.into_iter();
        let tenants = tenants.map(|(key, value)| Op::Put { key, value, lease: None });
        let ops: Vec<Op> = self.ops.into_iter().chain(tenants).collect();
        shared.change(device, self.compare, &ops).await
    }
}
