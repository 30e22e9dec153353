//! The documents about a service of several hosts.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{Portal, Volume};

/// The state of a volume: if hosts can open it, and if not, why.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// Its host serves it.
    #[default]
    Online,
    /// Its host is gone, or does not serve its device. What is told of it is what was last known.
    Unreachable,
}

/// The state of a host within the service.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// It does.
    Online,
    /// It was not heard of for longer than its lease, and has not given back its devices.
    Lost,
}

/// A host of the service.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Host {
    /// Its id: the same after a restart.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// The state of the host.
    pub state: HostState,
    /// True for the host that answers this request.
    pub is_this: bool,
    /// The release that it runs, if it is online.
    pub version: Option<String>,
    /// The address of its API, if it is online.
    #[schema(value_type = Option<String>, example = "192.0.2.7:7420")]
    pub api: Option<SocketAddr>,
    /// The address at which it answers NVMe discovery apart from its portals, if it does.
    #[schema(value_type = Option<String>, example = "192.0.2.7:8009")]
    pub discovery: Option<SocketAddr>,
    /// Failure domains that it shares with other hosts, such as a rack.
    pub labels: BTreeMap<String, String>,
    /// Seconds without the directory after which it stops serving, if it ever does.
    #[serde(default)]
    pub fence_after_seconds: Option<u64>,
    /// Its data cores.
    pub cores: Vec<Portal>,
    /// Its devices, and those that it has not given back.
    pub devices: Vec<HostDevice>,
    /// Volumes on them.
    pub volumes: u64,
}

/// A device of a host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct HostDevice {
    /// Its id, which it carries.
    pub id: Uuid,
    /// Its name at the host.
    pub name: String,
    /// The maker's name for it, if it is a drive that reports one.
    pub model: Option<String>,
    /// Its serial number, if it is a drive that says so.
    pub serial: Option<String>,
    /// Its health, `good`, `degraded` or `failed`, if its host is online and serves it.
    pub health: Option<String>,
}

/// The host that answers, and if it serves the requested device.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Serving {
    /// The id of the host that answers: the same after a restart.
    pub host: Uuid,
    /// True if it serves the device.
    pub serves: bool,
}

/// The state of the directory, as a host sees it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct DirectoryStatus {
    /// The address of the directory; absent if the host is a service by itself.
    pub address: Option<String>,
    /// Why it cannot be asked now, if it cannot. Changes are refused meanwhile, and what is told of
    /// other hosts is what was last known.
    pub cut_off: Option<String>,
    /// Seconds without the directory after which the host stops serving, if it ever does.
    #[serde(default)]
    pub fence_after_seconds: Option<u64>,
    /// True if it has stopped: no volume is served until the directory confirms again that its devices are
    /// its own.
    #[serde(default)]
    pub is_fenced: bool,
}

/// All hosts, by name.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct HostList {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The state of the directory.
    pub directory: DirectoryStatus,
}

/// Another host, which may be asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OtherHost {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// Its API.
    pub api: SocketAddr,
    /// The certificate that its API shows (DER in Base64); with none it is not encrypted.
    pub api_certificate: Option<String>,
}

/// The host at which the subject of a request is found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Location {
    /// Here; or nowhere, which is said here.
    Here,
    /// At another host.
    There {
        /// The host.
        host: OtherHost,
        /// The known state of the volume, if the request is about one.
        known: Option<Box<Volume>>,
    },
    /// At a host that is gone.
    Lost(Box<Volume>),
}
