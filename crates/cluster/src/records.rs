//! Records of the directory. They hold no secret: any client of etcd may read them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Claim, Mark, Term};

/// A host that serves, as long as its lease lives.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HostRecord {
    /// Its id: the same after a restart.
    pub id: Uuid,
    /// Its name, unique among the hosts that live.
    pub name: String,
    /// The process: another after a restart.
    pub session: Uuid,
    /// The boot of the machine that the process runs in (`Identity::boot` of crate `directory`): another after a reboot.
    pub boot: String,
    /// The release that runs.
    pub version: String,
    /// The address at which other hosts reach its API.
    pub api: SocketAddr,
    /// The certificate that its API shows (DER in Base64); with none the API is not encrypted. Other hosts
    /// take no other for it.
    #[serde(default)]
    pub api_certificate: Option<String>,
    /// The address at which it answers NVMe discovery apart from its portals, if it does.
    pub discovery: Option<SocketAddr>,
    /// Its labels: parts that it shares with other hosts and may fail with, such as `rack` = `r1`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Further addresses at which clients reach its portals, beside that of each.
    #[serde(default)]
    pub portals_also: Vec<IpAddr>,
    /// Time without the directory after which it stops serving, in milliseconds; nothing if it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence_after_ms: Option<u64>,
    /// Its data cores.
    #[serde(default)]
    pub cores: Vec<CoreRecord>,
    /// Its devices.
    #[serde(default)]
    pub devices: Vec<DeviceRecord>,
}

impl HostRecord {
    /// Returns the addresses at which clients reach `portal`, which is one of its cores'.
    #[must_use]
    pub fn addresses_of(&self, portal: SocketAddr) -> Vec<SocketAddr> {
        let also = self.portals_also.iter().map(|&address| SocketAddr::new(address, portal.port()));
        std::iter::once(portal).chain(also).collect()
    }
}

/// A data core of a host.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CoreRecord {
    /// The CPU.
    pub core: u32,
    /// The address that clients connect to.
    pub portal: SocketAddr,
}

/// A device of a host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DeviceRecord {
    /// Its id, which it carries.
    pub id: Uuid,
    /// Its name at the host.
    pub name: String,
    /// Its model, if it is a drive that reports one.
    #[serde(default)]
    pub model: Option<String>,
    /// Its serial number, if it is a drive that reports one.
    #[serde(default)]
    pub serial: Option<String>,
    /// Its health: `good`, `degraded` or `failed`.
    #[serde(default)]
    pub health: Option<String>,
}

/// The claim of the host that serves a device. It outlives the host: no lapse of time passes a device to another host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ClaimRecord {
    /// The host.
    pub host: Uuid,
    /// Its name.
    pub host_name: String,
    /// Its process.
    pub session: Uuid,
    /// Its labels: where the device is, also when the host is gone.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The device's name at the host.
    pub device_name: String,
    /// True if the contents of the device end with the host.
    #[serde(default)]
    pub volatile: bool,
    /// The device's model, if it is a drive that reports one: known also when the host is gone.
    #[serde(default)]
    pub model: Option<String>,
    /// Its serial number, likewise.
    #[serde(default)]
    pub serial: Option<String>,
    /// The boot of the machine that the process runs in (`Identity::boot` of crate `directory`). Empty in claims of older
    /// releases, as are the addresses below.
    #[serde(default)]
    pub boot: String,
    /// The address of its API, which tells whether it serves the device.
    #[serde(default)]
    pub api: Option<SocketAddr>,
    /// The certificate that its API shows (DER in Base64), if that is encrypted.
    #[serde(default)]
    pub api_certificate: Option<String>,
    /// The portals of its cores, at which it can be seen to serve.
    #[serde(default)]
    pub portals: Vec<SocketAddr>,
    /// Time without the directory after which the process stops serving, in milliseconds; nothing if it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence_after_ms: Option<u64>,
    /// Counts the claims of the device (CLAIM-9); 0 in those of releases that did not.
    #[serde(default)]
    pub number: u64,
}

impl ClaimRecord {
    /// Returns the mark of this claim that the device is to carry (CLAIM-9).
    pub fn mark(&self) -> Mark {
        Mark { number: self.number, host: self.host, host_name: self.host_name.clone() }
    }

    /// Returns the time for which the process serves without the directory, if it stops then.
    #[must_use]
    pub fn fence(&self) -> Option<Term> {
        self.fence_after_ms.map(|after| Term::new(Duration::from_millis(after)))
    }

    /// The claim of `host` to a device, not counted yet.
    pub fn of(host: &HostRecord, claim: Claim) -> Self {
        let Claim { device: _, name: device_name, volatile, model, serial, belongs: _, mark: _ } =
            claim;
        Self {
            host: host.id,
            host_name: host.name.clone(),
            session: host.session,
            labels: host.labels.clone(),
            device_name,
            volatile,
            model,
            serial,
            boot: host.boot.clone(),
            api: Some(host.api),
            api_certificate: host.api_certificate.clone(),
            portals: host.cores.iter().map(|core| core.portal).collect(),
            fence_after_ms: host.fence_after_ms,
            number: 0,
        }
    }
}

/// The stage of a volume's creation.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// Its name is taken; it is not on its device yet.
    Creating,
    /// It is on its device.
    Ready,
}

/// A volume: its place, and the clients that may find it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct VolumeRecord {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// The tenant whose it is, if it is one's.
    #[serde(default)]
    pub owner: Option<String>,
    /// Its size.
    pub size_bytes: u64,
    /// The size of a logical block, as hosts address it. Records of releases that knew no other size do not have it.
    #[serde(default = "sector_bytes_default")]
    pub sector_bytes: u64,
    /// The host that serves it.
    pub host: Uuid,
    /// The device that it lies on.
    pub device: Uuid,
    /// The CPU that serves it.
    pub core: u32,
    /// The address that clients connect to.
    pub portal: SocketAddr,
    /// Its stage: it can be opened when it is ready.
    pub state: VolumeState,
    /// Its SLO, as the API describes it.
    #[serde(default)]
    pub promise: serde_json::Value,
    /// The clients that may open it by NBD.
    #[serde(default)]
    pub nbd: NbdRecord,
    /// The address that iSCSI initiators connect to, if it is served to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iscsi: Option<SocketAddr>,
    /// The clients that may find it; with `None`, which stands for what cannot be read, no client may.
    pub restrictions: Option<RestrictionsRecord>,
}

const fn sector_bytes_default() -> u64 {
    4096
}

impl VolumeRecord {
    /// Returns whether it counts for its tenant as `other` does.
    pub fn counts_as(&self, other: &Self) -> bool {
        let counted =
            |record: &Self| (record.owner.clone(), record.size_bytes, record.promise.clone());
        counted(self) == counted(other)
    }
}

/// The division of an owner's quota of blocks among hosts.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct GrantsRecord {
    /// The part of each host.
    #[serde(default)]
    pub hosts: BTreeMap<Uuid, GrantRecord>,
}

/// The part of an owner's quota that its volumes on a host may hold. It outlives the host, as its devices do.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct GrantRecord {
    /// Blocks of 4 KiB.
    pub blocks: u64,
    /// The process that wrote this.
    pub session: Uuid,
    /// True if nearly all of it is used, and nothing was free.
    #[serde(default)]
    pub is_short: bool,
}

/// The conditions on a client that may find a volume. An empty list restricts nothing.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct RestrictionsRecord {
    /// NVMe qualified names of hosts, and names of iSCSI initiators.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Networks that they come from.
    #[serde(default)]
    pub networks: Vec<String>,
    /// Interfaces of the serving host that they come by.
    #[serde(default)]
    pub interfaces: Vec<String>,
}

/// The clients that may open a volume by NBD, and its addresses for them.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct NbdRecord {
    /// Networks that they come from.
    #[serde(default)]
    pub networks: Vec<String>,
    /// Domain names that their certificates have.
    #[serde(default)]
    pub certificates: Vec<String>,
    /// True if programs on its host may, by the unix socket.
    #[serde(default)]
    pub unix: bool,
    /// Its URIs for clients that come by a network; empty if none may.
    #[serde(default)]
    pub uris: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of volumes outlive releases, too.
    #[test]
    fn volumes_of_other_releases_are_read() {
        let old = r#"{"id":"00000000-0000-0000-0000-000000000001","name":"a","size_bytes":4096,
            "host":"00000000-0000-0000-0000-000000000002","device":"00000000-0000-0000-0000-000000000003",
            "core":0,"portal":"192.0.2.1:4420","state":"ready","restrictions":null}"#;
        let volume: VolumeRecord = serde_json::from_str(old).expect("a volume");
        assert_eq!((volume.sector_bytes, volume.nbd), (4096, NbdRecord::default()));
        let newer = old.replace(
            "\"core\"",
            "\"sector_bytes\":512,\"more\":1,\"nbd\":{\"unix\":true},\"core\"",
        );
        let volume: VolumeRecord = serde_json::from_str(&newer).expect("a volume");
        assert_eq!((volume.sector_bytes, volume.nbd.unix), (512, true));
    }

    /// Clients reach a portal at its own address, and at each further one of the host by the same port.
    #[test]
    fn a_portal_is_reached_at_all_addresses_of_its_host() {
        let text = r#"{"id":"00000000-0000-0000-0000-000000000001","name":"a",
            "session":"00000000-0000-0000-0000-000000000002","boot":"b","version":"0","api":"[::1]:1",
            "discovery":null,"portals_also":["192.0.2.7","2001:db8::7"]}"#;
        let host: HostRecord = serde_json::from_str(text).expect("a host");
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let expected = ["192.0.2.1:4420", "192.0.2.7:4420", "[2001:db8::7]:4420"].map(address);
        assert_eq!(host.addresses_of(expected[0]), expected);
    }

    /// Claims outlive releases: one that names no addresses is read, and so is one that says more than is known here.
    #[test]
    fn claims_of_other_releases_are_read() {
        let old = r#"{"host":"00000000-0000-0000-0000-000000000001","host_name":"a",
            "session":"00000000-0000-0000-0000-000000000002","labels":{"rack":"r1"},
            "device_name":"file:/a","volatile":false}"#;
        let claim: ClaimRecord = serde_json::from_str(old).expect("a claim");
        assert_eq!((claim.host_name.as_str(), claim.api), ("a", None));
        assert!(claim.portals.is_empty() && claim.boot.is_empty());
        assert_eq!((claim.fence(), claim.model, claim.serial), (None, None, None));
        assert_eq!(claim.number, 0);
        let newer =
            old.replace("\"volatile\"", "\"portals\":[\"[::1]:4420\"],\"more\":1,\"volatile\"");
        let claim: ClaimRecord = serde_json::from_str(&newer).expect("a claim");
        assert_eq!(claim.portals, ["[::1]:4420".parse().expect("an address")]);
    }

    /// A tenant's quotas are charged by its name, the size of the volume, and the SLO.
    #[test]
    fn a_volume_counts_as_another_if_its_tenant_is_asked_for_the_same() {
        let text = r#"{"id":"00000000-0000-0000-0000-000000000001","name":"a","owner":"t",
            "size_bytes":4096,"host":"00000000-0000-0000-0000-000000000002",
            "device":"00000000-0000-0000-0000-000000000003","core":0,"portal":"[::1]:4420",
            "state":"ready","promise":{"weight":1},"restrictions":null}"#;
        let volume = |from: &str, to: &str| {
            serde_json::from_str::<VolumeRecord>(&text.replace(from, to)).expect("a volume")
        };
        let known = volume("none", "none");
        for (from, to) in [("\"a\"", "\"b\""), ("ready", "creating"), ("4420", "4421")] {
            assert!(volume(from, to).counts_as(&known), "{to}");
        }
        for (from, to) in [("\"t\"", "\"u\""), ("4096", "8192"), ("\"weight\":1", "\"weight\":2")] {
            assert!(!volume(from, to).counts_as(&known), "{to}");
        }
    }
}
