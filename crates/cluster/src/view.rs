//! The known state of the cluster: the records, as last seen, and what follows from them.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use crate::node::decode;
use crate::{ClaimRecord, DirectoryError, GrantsRecord, HostRecord, VolumeRecord};

/// The records of the cluster as last seen. A snapshot: it does not change under its reader.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Hosts whose lease lives.
    pub hosts: BTreeMap<Uuid, Arc<HostRecord>>,
    /// The claim of each device, by device, be its host alive or not.
    pub claims: BTreeMap<Uuid, Arc<ClaimRecord>>,
    /// The volumes of all hosts.
    pub volumes: BTreeMap<Uuid, Arc<VolumeRecord>>,
    /// The volume of each name.
    pub names: BTreeMap<String, Uuid>,
    /// The division of each owner's quota, for owners whose quota hosts divide.
    pub grants: BTreeMap<String, Arc<GrantsRecord>>,
    /// Why the directory cannot be asked now, if it cannot: this is then how things were before.
    pub cut_off: Option<Arc<str>>,
}

/// Why a volume cannot be reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reach {
    /// It can.
    Online,
    /// Its host is gone.
    HostLost,
    /// Its host lives, but does not serve its device.
    DeviceMissing,
}

impl View {
    /// Returns whether the volume's host lives and serves its device.
    #[must_use]
    pub fn reach(&self, volume: &VolumeRecord) -> Reach {
        let Some(host) = self.hosts.get(&volume.host) else { return Reach::HostLost };
        let serves = host.devices.iter().any(|device| device.id == volume.device);
        let claims = self.claims.get(&volume.device).is_some_and(|claim| claim.host == host.id);
        if serves && claims { Reach::Online } else { Reach::DeviceMissing }
    }

    /// The volume of this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Arc<VolumeRecord>> {
        self.volumes.get(self.names.get(name)?)
    }

    /// The name and labels of a host, also of one that is gone, as far as its claims tell.
    #[must_use]
    pub fn whereabouts(&self, host: Uuid) -> Option<(&str, &BTreeMap<String, String>)> {
        if let Some(host) = self.hosts.get(&host) {
            return Some((&host.name, &host.labels));
        }
        let claim = self.claims.values().find(|claim| claim.host == host)?;
        Some((&claim.host_name, &claim.labels))
    }

    /// Takes in a key with its value, or one that is gone.
    pub fn apply(&mut self, prefix: &str, key: &str, value: Option<&[u8]>) {
        let Some((kind, name)) = key.strip_prefix(prefix).and_then(|rest| rest.split_once('/'))
        else {
            return;
        };
        let done = match kind {
            "hosts" => put(&mut self.hosts, Uuid::try_parse(name).ok(), key, value),
            "devices" => put(&mut self.claims, Uuid::try_parse(name).ok(), key, value),
            "volumes" => put(&mut self.volumes, Uuid::try_parse(name).ok(), key, value),
            "names" => match value.map(|value| decode::<Uuid>(key, value)).transpose() {
                Ok(Some(id)) => {
                    self.names.insert(name.to_owned(), id);
                    Ok(())
                }
                Ok(None) => {
                    self.names.remove(name);
                    Ok(())
                }
                Err(error) => Err(error),
            },
            "grants" => {
                value.map(|value| decode(key, value)).transpose().map(|grants| match grants {
                    Some(grants) => drop(self.grants.insert(name.to_owned(), Arc::new(grants))),
                    None => drop(self.grants.remove(name)),
                })
            }
            _ => Ok(()),
        };
        if let Err(error) = done {
            // Of a newer release, perhaps. What it is about is not known here.
            tracing::warn!("a record is left out: {error}");
        }
    }
}

fn put<T: for<'de> serde::Deserialize<'de>>(
    map: &mut BTreeMap<Uuid, Arc<T>>,
    id: Option<Uuid>,
    key: &str,
    value: Option<&[u8]>,
) -> Result<(), DirectoryError> {
    let Some(id) = id else {
        return Err(DirectoryError::Foreign { what: format!("the key {key} in etcd names no id") });
    };
    match value {
        Some(value) => drop(map.insert(id, Arc::new(decode(key, value)?))),
        None => drop(map.remove(&id)),
    }
    Ok(())
}
