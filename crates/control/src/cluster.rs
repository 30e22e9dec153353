//! The documents about a service of several hosts.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{Portal, Volume};

/// Whether a volume can be opened.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// Its host serves it.
    #[default]
    Online,
    /// Its host is gone, or does not serve its device. What is told of it is what was last known.
    Unreachable,
}

/// Whether a host takes part.
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
    /// Whether it takes part.
    pub state: HostState,
    /// Whether it is the one that answers.
    pub is_this: bool,
    /// The release that it runs, if it is online.
    pub version: Option<String>,
    /// Where its API is, if it is online.
    #[schema(value_type = Option<String>, example = "192.0.2.7:7420")]
    pub api: Option<SocketAddr>,
    /// Where it answers NVMe discovery apart from its portals, if it does.
    #[schema(value_type = Option<String>, example = "192.0.2.7:8009")]
    pub discovery: Option<SocketAddr>,
    /// What it shares with other hosts and may fail with them.
    pub labels: BTreeMap<String, String>,
    /// After how many seconds without the directory it stops to serve, if it ever does.
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
    /// What its maker calls it, if it is a drive that says so.
    pub model: Option<String>,
    /// Its serial number, if it is a drive that says so.
    pub serial: Option<String>,
    /// Whether it works, `good`, `degraded` or `failed`, if its host is online and serves it.
    pub health: Option<String>,
}

/// Who answers, and whether it serves the device that was asked about.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Serving {
    /// The id of the host that answers: the same after a restart.
    pub host: Uuid,
    /// Whether it serves the device.
    pub serves: bool,
}

/// How hosts agree.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct DirectoryStatus {
    /// Where the directory is; nowhere, if the host is a service by itself.
    pub address: Option<String>,
    /// Why it cannot be asked now, if it cannot. Changes are refused meanwhile, and what is told of
    /// other hosts is what was last known.
    pub cut_off: Option<String>,
    /// After how many seconds without the directory the host stops to serve, if it ever does.
    #[serde(default)]
    pub fence_after_seconds: Option<u64>,
    /// Whether it has: no volume is served until the directory says again that its devices are its own.
    #[serde(default)]
    pub is_fenced: bool,
}

/// All hosts, by name.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct HostList {
    /// The hosts.
    pub hosts: Vec<Host>,
    /// How they agree.
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

/// Where what a request is about is to be found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Location {
    /// Here; or nowhere, which is said here.
    Here,
    /// At another host.
    There {
        /// The host.
        host: OtherHost,
        /// What is known of the volume here, if the request is about one.
        known: Option<Box<Volume>>,
    },
    /// At a host that is gone.
    Lost(Box<Volume>),
}
