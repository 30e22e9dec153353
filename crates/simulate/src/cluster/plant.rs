//! The world outside of all processes: devices, and the knowledge of clients and operators.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{Admit, Claim, Mark, NbdRecord, View, VolumeRecord, VolumeState};
use uuid::Uuid;

/// The tenant whose quotas are checked.
pub(super) const TENANT: &str = "t";
/// Bytes that its volumes may have together.
pub(super) const QUOTA_BYTES: u64 = 100;
/// Blocks that hosts may grant it together.
pub(super) const QUOTA_BLOCKS: u64 = 1000;

/// A device that several hosts reach.
#[derive(Debug, Default)]
pub(super) struct SharedDevice {
    pub id: Uuid,
    /// Machines that reach it.
    pub reached_from: Vec<usize>,
    /// Set if it belongs to the cluster (CLAIM-6).
    pub belongs: bool,
    pub mark: Option<Mark>,
    pub volumes: BTreeMap<Uuid, VolumeRecord>,
}

/// Devices, and what is known of them.
#[derive(Debug, Default)]
pub(super) struct Plant {
    pub devices: RefCell<Vec<SharedDevice>>,
    /// Volumes whose creation was acknowledged, and that no client deletes, by name.
    names: RefCell<BTreeMap<String, Uuid>>,
    /// Set when etcd was restored: it may have forgotten names and quotas.
    pub was_restored: std::cell::Cell<bool>,
    finding: RefCell<Option<String>>,
}

impl Plant {
    /// Notes what is wrong, if it is the first.
    pub(super) fn find(&self, what: String) {
        self.finding.borrow_mut().get_or_insert(what);
    }

    pub(super) fn finding(&self) -> Option<String> {
        self.finding.borrow().clone()
    }

    fn with<T>(&self, device: Uuid, look: impl FnOnce(&mut SharedDevice) -> T) -> T {
        let mut devices = self.devices.borrow_mut();
        look(devices.iter_mut().find(|known| known.id == device).expect("a device that there is"))
    }

    /// Returns the claim of a device as it says of itself.
    pub(super) fn claim_of(&self, device: Uuid) -> Claim {
        self.with(device, |it| Claim {
            device,
            name: "shared".to_owned(),
            belongs: it.belongs,
            mark: it.mark.clone(),
            ..Claim::default()
        })
    }

    /// Has a device carry a mark. `false`: it carries a later one.
    pub(super) fn leave_mark(&self, device: Uuid, mark: &Mark) -> bool {
        self.with(device, |it| {
            let is_later = |found: &Mark| found != mark && found.number >= mark.number;
            if it.mark.as_ref().is_some_and(is_later) {
                return false;
            }
            it.belongs = true;
            it.mark = Some(mark.clone());
            true
        })
    }

    /// A request to a device is done: no other host may have served it meanwhile.
    pub(super) fn acknowledge(&self, device: Uuid, (host, number): (Uuid, u64)) {
        let mark = self.with(device, |it| it.mark.clone());
        if mark.as_ref().is_none_or(|mark| (mark.host, mark.number) != (host, number)) {
            self.find(format!("acknowledged by {host} on {device} which carries {mark:?}"));
        }
    }

    pub(super) fn volume(
        &self,
        id: Uuid,
        name: String,
        size_bytes: u64,
        (device, host): (Uuid, Uuid),
    ) -> VolumeRecord {
        VolumeRecord {
            id,
            name,
            owner: Some(TENANT.to_owned()),
            size_bytes,
            sector_bytes: 4096,
            host,
            device,
            core: 0,
            portal: ([192, 0, 2, 1], 4420).into(),
            state: VolumeState::Ready,
            promise: serde_json::Value::Null,
            nbd: NbdRecord::default(),
            iscsi: None,
            restrictions: None,
        }
    }

    /// Admits a volume if the tenant's volumes stay within the quota.
    pub(super) fn admit(&self, volume: &VolumeRecord) -> Admit {
        let (id, size) = (volume.id, volume.size_bytes);
        Arc::new(move |view: &View| {
            let others = view.volumes.values().filter(|other| other.id != id);
            let sum: u64 = others.map(|other| other.size_bytes).sum();
            if sum + size <= QUOTA_BYTES { Ok(()) } else { Err("too much".to_owned()) }
        })
    }

    /// Returns the volumes of a device as its host tells them.
    pub(super) fn volumes_of(&self, device: Uuid, host: Uuid) -> Vec<VolumeRecord> {
        self.with(device, |it| {
            let volumes = it.volumes.values();
            volumes.map(|volume| VolumeRecord { host, ..volume.clone() }).collect()
        })
    }

    pub(super) fn put(&self, device: Uuid, volume: VolumeRecord) {
        self.with(device, |it| drop(it.volumes.insert(volume.id, volume)));
    }

    /// Removes a volume from its device.
    pub(super) fn take(&self, device: Uuid, id: Uuid) -> Option<VolumeRecord> {
        let volume = self.with(device, |it| it.volumes.remove(&id))?;
        self.names.borrow_mut().retain(|_, known| *known != id);
        Some(volume)
    }

    /// A creation is acknowledged.
    pub(super) fn created(&self, volume: &VolumeRecord) {
        let before = self.names.borrow_mut().insert(volume.name.clone(), volume.id);
        if let Some(before) = before.filter(|_| !self.was_restored.get()) {
            let (id, name) = (volume.id, &volume.name);
            self.find(format!("the name {name} is that of {before}, and {id} got it"));
        }
    }
}
