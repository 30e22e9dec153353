//! Properties of a cluster that hold after each step, and at its end.

use std::collections::{BTreeMap, BTreeSet};

use cluster::{GrantsRecord, VolumeRecord, VolumeState};
use uuid::Uuid;

use super::Cluster;
use super::network::lock;
use super::plant::{QUOTA_BLOCKS, QUOTA_BYTES, TENANT};

impl Cluster {
    /// Checks what is true at each moment.
    pub(super) fn check_step(&mut self) {
        let mut serving: BTreeMap<Uuid, u64> = BTreeMap::new();
        let mut bounds = 0;
        for (id, process) in &self.processes {
            let program = &process.program;
            bounds += program.bound.get();
            for device in program.serves() {
                if program.may_begin(device).is_none() {
                    continue;
                }
                if let Some(other) = serving.insert(device, *id) {
                    self.plant.find(format!("{device} is served by processes {other} and {id}"));
                }
            }
        }
        if self.plant.was_restored.get() {
            return;
        }
        if bounds > QUOTA_BLOCKS {
            self.plant.find(format!("hosts let the tenant hold {bounds} blocks of {QUOTA_BLOCKS}"));
        }
        let at = {
            let hub = lock(&self.hub);
            (hub.etcd.changes(), hub.etcd.revision())
        };
        if std::mem::replace(&mut self.checked_at, at) != at
            && let Err(what) = self.check_records()
        {
            self.plant.find(what);
        }
    }

    fn records(&self) -> Vec<VolumeRecord> {
        let hub = lock(&self.hub);
        let records = hub.etcd.range("/c/volumes/");
        records.filter_map(|kv| serde_json::from_slice(&kv.value).ok()).collect()
    }

    fn names(&self) -> BTreeMap<String, Uuid> {
        let hub = lock(&self.hub);
        let name = |key: &str| key["/c/names/".len()..].to_owned();
        let names = hub.etcd.range("/c/names/");
        names
            .filter_map(|kv| Some((name(&kv.key), serde_json::from_slice(&kv.value).ok()?)))
            .collect()
    }

    /// One name, one volume; quotas hold.
    fn check_records(&self) -> Result<(), String> {
        let (records, names) = (self.records(), self.names());
        let sum: u64 = records.iter().map(|volume| volume.size_bytes).sum();
        if sum > QUOTA_BYTES {
            return Err(format!("the tenant has {sum} bytes of {QUOTA_BYTES}"));
        }
        for volume in &records {
            if names.get(&volume.name) != Some(&volume.id) {
                let (id, name) = (volume.id, &volume.name);
                return Err(format!("volume {id} has a record, and not the name {name}"));
            }
        }
        let ids: BTreeSet<Uuid> = records.iter().map(|volume| volume.id).collect();
        if let Some((name, id)) = names.iter().find(|(_, id)| !ids.contains(*id)) {
            return Err(format!("the name {name} is that of {id}, which has no record"));
        }
        let granted = lock(&self.hub).etcd.get(&format!("/c/grants/{TENANT}")).cloned();
        let granted = granted.and_then(|kv| serde_json::from_slice::<GrantsRecord>(&kv.value).ok());
        let granted = granted.unwrap_or_default();
        let sum: u64 = granted.hosts.values().map(|grant| grant.blocks).sum();
        if sum > QUOTA_BLOCKS {
            return Err(format!("hosts are granted {sum} blocks of {QUOTA_BLOCKS}"));
        }
        Ok(())
    }

    /// Checks that a cluster which was left alone is healthy.
    pub(super) fn check_health(&self) -> Result<(), String> {
        for (id, process) in &self.processes {
            let program = &process.program;
            if !program.node.is_connected() {
                return Err(format!("process {id} is not connected"));
            }
            if !program.serves_hosts() {
                return Err(format!("process {id} lets no host in"));
            }
            let (view, names) = (program.node.view(), self.names());
            let ids = |volumes: Vec<VolumeRecord>| -> BTreeSet<Uuid> {
                volumes.into_iter().map(|volume| volume.id).collect()
            };
            let seen = view.volumes.keys().copied().collect::<BTreeSet<_>>();
            if seen != ids(self.records()) || view.names != names {
                return Err(format!("the view of process {id} is not what etcd holds"));
            }
        }
        self.check_devices()
    }

    fn check_devices(&self) -> Result<(), String> {
        let (records, names) = (self.records(), self.names());
        for device in self.plant.devices.borrow().iter() {
            let serves = |id: &u64| self.processes[id].program.may_begin(device.id).is_some();
            let Some(holder) = self.processes.keys().copied().find(serves) else {
                return Err(format!("{} is served by no host", device.id));
            };
            let host = self.processes[&holder].program.record.id;
            let of_device = records.iter().filter(|volume| volume.device == device.id);
            let of_device: BTreeMap<Uuid, &VolumeRecord> =
                of_device.map(|volume| (volume.id, volume)).collect();
            let held: Vec<&Uuid> = device.volumes.keys().collect();
            if of_device.keys().collect::<Vec<_>>() != held {
                return Err(format!("{} holds {held:?}, and has other records", device.id));
            }
            for volume in of_device.values() {
                if volume.host != host || volume.state != VolumeState::Ready {
                    return Err(format!("the record of {} is old", volume.id));
                }
                let owner = names.get(&volume.name);
                // A name that another volume had in the backup is free when that one is gone, and is not asked for once more.
                if owner.is_none() && self.plant.was_restored.get() {
                    continue;
                }
                if owner.is_none_or(|owner| {
                    *owner != volume.id && !records.iter().any(|other| other.id == *owner)
                }) {
                    return Err(format!("the name {} leads nowhere", volume.name));
                }
            }
        }
        Ok(())
    }
}
