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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Claim, DeviceRecord, GrantRecord, document};

    const PREFIX: &str = "/c/";

    fn host(n: u128, devices: &[u128]) -> HostRecord {
        let device = |id: &u128| DeviceRecord {
            id: Uuid::from_u128(*id),
            name: String::new(),
            model: None,
            serial: None,
            health: None,
        };
        let text = format!(
            r#"{{"id":"{0}","name":"h{n}","session":"{0}","boot":"b","version":"0","api":"[::1]:1","discovery":null}}"#,
            Uuid::from_u128(n)
        );
        let host: HostRecord = serde_json::from_str(&text).expect("a host");
        let labels = BTreeMap::from([("rack".to_owned(), format!("r{n}"))]);
        HostRecord { devices: devices.iter().map(device).collect(), labels, ..host }
    }

    fn claim_of(host: &HostRecord) -> ClaimRecord {
        ClaimRecord::of(host, Claim::default())
    }

    fn volume(n: u128, host: u128, device: u128) -> VolumeRecord {
        let text = format!(
            r#"{{"id":"{}","name":"v{n}","size_bytes":4096,"host":"{}","device":"{}","core":0,
            "portal":"[::1]:4420","state":"ready","restrictions":null}}"#,
            Uuid::from_u128(n),
            Uuid::from_u128(host),
            Uuid::from_u128(device)
        );
        serde_json::from_str(&text).expect("a volume")
    }

    fn put(view: &mut View, kind: &str, name: &str, value: &impl serde::Serialize) {
        view.apply(PREFIX, &format!("{PREFIX}{kind}/{name}"), Some(&document(value)));
    }

    fn id(n: u128) -> String {
        Uuid::from_u128(n).to_string()
    }

    #[test]
    fn a_volume_is_reached_if_its_host_lives_and_serves_its_device() {
        let mut view = View::default();
        let (served, other) = (volume(7, 1, 5), volume(8, 1, 6));
        assert_eq!(view.reach(&served), Reach::HostLost);
        put(&mut view, "hosts", &id(1), &host(1, &[5]));
        assert_eq!(view.reach(&served), Reach::DeviceMissing, "it has no claim");
        put(&mut view, "devices", &id(5), &claim_of(&host(2, &[])));
        assert_eq!(view.reach(&served), Reach::DeviceMissing, "another host has the claim");
        put(&mut view, "devices", &id(5), &claim_of(&host(1, &[])));
        put(&mut view, "devices", &id(6), &claim_of(&host(1, &[])));
        assert_eq!(view.reach(&served), Reach::Online);
        assert_eq!(view.reach(&other), Reach::DeviceMissing, "its host does not serve it");
    }

    #[test]
    fn the_whereabouts_of_a_host_are_known_while_it_lives_or_has_a_claim() {
        let mut view = View::default();
        let known = |view: &View, n: u128| {
            let found = view.whereabouts(Uuid::from_u128(n));
            found.map(|(name, labels)| (name.to_owned(), labels["rack"].clone()))
        };
        put(&mut view, "hosts", &id(1), &host(1, &[]));
        put(&mut view, "devices", &id(5), &claim_of(&host(2, &[])));
        put(&mut view, "devices", &id(6), &claim_of(&host(3, &[])));
        for n in 1..=3 {
            assert_eq!(known(&view, n), Some((format!("h{n}"), format!("r{n}"))));
        }
        assert_eq!(known(&view, 4), None);
    }

    /// Each kind of key is taken in, and taken out again; what is not understood changes nothing.
    #[test]
    fn a_view_is_what_its_keys_say() {
        let mut view = View::default();
        let part = GrantRecord { blocks: 3, session: Uuid::from_u128(1), is_short: false };
        let grants = GrantsRecord { hosts: BTreeMap::from([(Uuid::from_u128(1), part)]) };
        put(&mut view, "hosts", &id(1), &host(1, &[]));
        put(&mut view, "devices", &id(5), &claim_of(&host(1, &[])));
        put(&mut view, "volumes", &id(7), &volume(7, 1, 5));
        put(&mut view, "names", "v7", &Uuid::from_u128(7));
        put(&mut view, "names", "lost", &Uuid::from_u128(8));
        put(&mut view, "grants", "t", &grants);
        put(&mut view, "tenants", "t", &1);
        view.apply("/other/", "/c/names/more", Some(&document(&Uuid::from_u128(7))));
        let understood = |view: &View| {
            let View { hosts, claims, volumes, names, grants, cut_off: _ } = view;
            [hosts.len(), claims.len(), volumes.len(), names.len(), grants.len()]
        };
        assert_eq!(understood(&view), [1, 1, 1, 2, 1]);
        assert_eq!(view.named("v7").map(|volume| volume.id), Some(Uuid::from_u128(7)));
        assert!(view.named("lost").is_none() && view.named("v8").is_none());
        assert_eq!(*view.grants["t"], grants);
        for kind in ["hosts", "devices", "volumes", "names", "grants"] {
            view.apply(PREFIX, &format!("{PREFIX}{kind}/?"), Some(b"?"));
        }
        assert_eq!(understood(&view), [1, 1, 1, 2, 1]);
        let keys =
            [("hosts", id(1)), ("devices", id(5)), ("volumes", id(7)), ("names", "v7".into())];
        for (kind, name) in keys {
            view.apply(PREFIX, &format!("{PREFIX}{kind}/{name}"), None);
        }
        view.apply(PREFIX, "/c/grants/t", None);
        assert_eq!(understood(&view), [0, 0, 0, 1, 0]);
    }
}
