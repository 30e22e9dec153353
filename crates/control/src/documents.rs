//! The documents that clients send and get.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{
    DirectoryStatus, MetadataBytes, NbdClients, Restrictions, SectorBytes, ServerNotice, Sharing,
    Slo, VolumeName, VolumeSize, VolumeState,
};

/// Asks for a new volume.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name, unique in the service. Not in the form of a UUID.
    #[schema(value_type = String, pattern = "^[a-z0-9][a-z0-9._-]{0,62}$", example = "db-1")]
    pub name: VolumeName,
    /// Its size as hosts see it; space is used only as it is written. A multiple of 4096.
    #[schema(value_type = u64, minimum = 4096, maximum = 9223372036854775808u64, multiple_of = 4096)]
    pub size_bytes: VolumeSize,
    /// The core that is to serve it; by default the one with the fewest volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<u32>,
    /// The device that is to hold it, as `GET /v1/devices` names it; by default the one with the most
    /// free space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The host that is to have it, or a label that its host must have; by default the one that is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "rack=r1")]
    pub on: Option<String>,
    /// The service level that it is promised by its device; by default a share of 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo: Option<Slo>,
    /// Conditions that hosts must meet to open it, besides knowing its token; by default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restrictions: Option<Restrictions>,
    /// Bytes of metadata that each block of 4096 has beside its data, for life; by default none. Hosts transfer it
    /// behind each block's data (NVMe extended LBA); the Linux kernel has no block device for such a volume.
    #[schema(inline)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_bytes: Option<MetadataBytes>,
    /// Bytes of a logical block, as hosts address the volume, for life: 512 or 4096; by default 4096. With 512 hosts are told that
    /// physical blocks have 4096 bytes; what is no whole one of these is read before it is written. Such a volume
    /// has no metadata.
    #[schema(inline)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sector_bytes: Option<SectorBytes>,
    /// The tenant whose it is to be; a tenant's own volumes are his without saying so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,62}$")]
    pub owner: Option<String>,
}

impl CreateVolume {
    /// A volume of which nothing else is said.
    #[must_use]
    pub fn new(name: VolumeName, size_bytes: VolumeSize) -> Self {
        Self {
            name,
            size_bytes,
            core: None,
            device: None,
            on: None,
            slo: None,
            restrictions: None,
            metadata_bytes: None,
            sector_bytes: None,
            owner: None,
        }
    }
}

/// Asks for another size, or another promise: one of them.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeVolume {
    /// The new size. What lies beyond a smaller one is lost at once. A multiple of 4096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, minimum = 4096, maximum = 9223372036854775808u64, multiple_of = 4096)]
    pub size_bytes: Option<VolumeSize>,
    /// The new service level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo: Option<Slo>,
    /// With a smaller size: data may be lost, and hosts have the volume open. Without this a volume that holds data, or that a
    /// host has open, is not made smaller.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lose_data: bool,
    /// With a size: change it only if the volume has this one now. So of two changes at once none undoes the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_size_bytes: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// Another size for a volume, and what is to be so for that.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Resizing {
    /// The new size.
    pub size: VolumeSize,
    /// Data may be lost.
    pub lose_data: bool,
    /// The size that the volume has to have.
    pub if_size_bytes: Option<u64>,
}

/// A volume.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Volume {
    /// Its id for life, on every host and path.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// The NVMe qualified name of its subsystem.
    pub nqn: String,
    /// Its size as hosts see it.
    pub size_bytes: u64,
    /// Bytes of metadata that each block has beside its data.
    #[serde(default)]
    pub metadata_bytes: u32,
    /// Bytes of a logical block, as hosts address it.
    #[serde(default)]
    #[schema(value_type = u32)]
    pub sector_bytes: SectorBytes,
    /// Bytes of the device that it holds.
    pub allocated_bytes: u64,
    /// The address to which hosts connect, as `ip:port`.
    #[schema(value_type = String, example = "192.0.2.7:4420")]
    pub address: SocketAddr,
    /// The portal that serves it.
    pub portal: Portal,
    /// The device that holds it.
    pub device: String,
    /// The known properties of that device.
    #[serde(default)]
    pub drive: Drive,
    /// The service level that its device promises it.
    #[serde(default)]
    pub slo: Slo,
    /// Conditions that hosts must meet to open it, besides knowing its token.
    #[serde(default)]
    pub restrictions: Restrictions,
    /// Clients that may open it by NBD.
    #[serde(default)]
    pub nbd: NbdClients,
    /// The URIs by which they do, one for each way; none if no client may, or the server does not serve NBD.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nbd_uris: Vec<String>,
    /// The commands with which a Linux host connects it by NBD, one for each way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nbd_connect: Vec<String>,
    /// The commands, a line each, with which a Linux host connects it by iSCSI; none if the server does not serve it by iSCSI.
    /// If initiators authenticate, the first lines set the CHAP secrets. In an answer with new tokens they contain the secrets;
    /// in all others they compute them from the files `$TOKEN_FILE` and `$CONTROLLER_TOKEN_FILE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iscsi_connect: Option<String>,
    /// Those of the interfaces in `restrictions` that its host does not have now, if there are any: no host
    /// gets in by them until they exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent_interfaces: Vec<String>,
    /// Until when a token that was replaced still opens it, if one does: in seconds since 1970 UTC, by its host's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_until: Option<u64>,
    /// For how many seconds more it does, whatever that clock says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds_left: Option<u64>,
    /// The tenant whose it is, if it is one's.
    #[serde(default)]
    pub owner: Option<String>,
    /// The command with which a Linux host connects it. Where it has to authenticate, a comment at the end says where the
    /// command reads the volume's token; there is none among its arguments, which every user of a machine can read.
    pub connect: String,
    /// The state of the volume.
    #[serde(default)]
    pub state: VolumeState,
    /// The reason why hosts cannot open it, if there is one.
    #[serde(default)]
    pub trouble: Option<String>,
    /// The name of the host that serves it.
    #[serde(default)]
    pub host: String,
    /// Failure domains that its host shares with other hosts, such as the rack.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Data that a smaller size cut off, only in the answer to the change that made the volume smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_off: Option<CutOff>,
}

/// Says which volume it is: the commands that connect it may have secrets in them.
impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = f.debug_struct("Volume");
        said.field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

/// Data that was written behind the new end of a volume, and is gone.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct CutOff {
    /// Bytes that were cut off.
    pub bytes: u64,
    /// True if there may have been more, because they were not counted to the end: not all of a large map is
    /// examined, nor the parts of it that cannot be read.
    pub at_least: bool,
}

/// The known properties of a volume's device.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Drive {
    /// Its id, which it carries.
    #[serde(default)]
    pub id: Uuid,
    /// The maker's name for it, if it is a drive that reports one.
    #[serde(default)]
    pub model: Option<String>,
    /// Its serial number, if it is a drive that says so.
    #[serde(default)]
    pub serial: Option<String>,
    /// Its health: `good`, `degraded` or `failed`, as of the last ten seconds; absent while its host is
    /// gone.
    #[serde(default)]
    pub health: Option<String>,
}

/// All volumes, by name.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct VolumeList {
    /// The volumes.
    pub volumes: Vec<Volume>,
}

/// One core's listening socket.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Portal {
    /// The address to which hosts connect, as `ip:port`.
    #[schema(value_type = String, example = "192.0.2.7:4420")]
    pub address: SocketAddr,
    /// The CPU that serves it.
    pub core: u32,
}

/// The state of a server.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Server {
    /// The release that runs.
    pub version: String,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// True if hosts have to know a volume's token to open it.
    #[serde(default)]
    pub authentication: bool,
    /// Lines of its log that were left out because earlier ones had not been read.
    #[serde(default)]
    pub log_lines_left_out: u64,
    /// The state of the directory, by which the host agrees with other hosts.
    #[serde(default)]
    pub directory: DirectoryStatus,
    /// Conditions of the server itself that an operator has to know, if there are any. Those of one device are among its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<ServerNotice>,
    /// Tasks of the server that failed by a fault of the program since it started.
    #[serde(default)]
    pub task_failures: u64,
    /// Its data cores.
    pub cores: Vec<Core>,
    /// Its devices.
    pub devices: Vec<Device>,
}

/// A data core.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Core {
    /// The CPU.
    pub core: u32,
    /// Its portal.
    pub portal: Portal,
    /// Volumes that it serves.
    pub volumes: u64,
    /// Connections that are open, by any protocol.
    pub connections: u64,
    /// Figures of each protocol that had a connection.
    #[serde(default)]
    pub protocols: Vec<ProtocolStats>,
}

/// Figures of one protocol on a core.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct ProtocolStats {
    /// `nvme`, `nbd` or `iscsi`.
    pub protocol: String,
    /// Connections that are open.
    pub connections: u64,
    /// Those of them that have a volume open.
    pub connections_let_in: u64,
    /// Connections so far.
    pub connected: u64,
    /// Clients that were told that they may not open what they asked for, so far.
    pub refused: u64,
    /// Bytes of the blocks that were read so far.
    pub read_bytes: u64,
    /// Bytes that were written so far.
    pub written_bytes: u64,
}

/// A device.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Device {
    /// As it was given to the server, such as `file:/srv/flash.img`.
    pub name: String,
    /// Bytes that volumes can hold in total.
    pub capacity_bytes: u64,
    /// Bytes that no volume holds.
    pub free_bytes: u64,
    /// The health of the device.
    pub health: DeviceHealth,
    /// The fault that keeps it from being used, and what to do about it: its drive is missing, or another
    /// one is in its place. It is used again automatically when its drive is back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// True if another process or host has it now: this server is done with it until it is started again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_abandoned: bool,
    /// Why a part of it takes no changes, and why it could not be read back so far. It is tried again and again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Conditions that an operator has to know of, while it is served.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<DeviceNotice>,
    /// True if it has a volatile write cache, as detected or as configured: writes are then acknowledged
    /// after a flush. The hosts' writes are durable either way.
    pub volatile_write_cache: bool,
    /// The way in which volumes share it.
    pub sharing: Sharing,
}

/// A condition of a device that is served.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct DeviceNotice {
    /// Its kind.
    pub kind: NoticeKind,
    /// The condition, and what to do about it.
    pub text: String,
}

/// Kinds of conditions of a device.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    /// The file system or pool below it has no space: writes are refused, and all else goes on.
    NoSpaceBelow,
    /// No path leads to its file any more: what is written is lost when the server ends.
    FileGone,
    /// At its path is another file now.
    FileReplaced,
    /// Its file or drive is shorter than it was: a part of it cannot be read.
    Shortened,
    /// Its drive or file system takes no writes any more.
    ReadOnly,
    /// This process may not write the file to its end.
    FileSizeLimit,
    /// The mark that keeps other servers off it cannot be written.
    Unmarked,
    /// Its file or drive is larger than what is used of it.
    UnusedSpace,
}

impl NoticeKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::NoSpaceBelow,
        Self::FileGone,
        Self::FileReplaced,
        Self::Shortened,
        Self::ReadOnly,
        Self::FileSizeLimit,
        Self::Unmarked,
        Self::UnusedSpace,
    ];

    /// As it is called in documents and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSpaceBelow => "no_space_below",
            Self::FileGone => "file_gone",
            Self::FileReplaced => "file_replaced",
            Self::Shortened => "shortened",
            Self::ReadOnly => "read_only",
            Self::FileSizeLimit => "file_size_limit",
            Self::Unmarked => "unmarked",
            Self::UnusedSpace => "unused_space",
        }
    }

    /// Returns true if something has to be done about it.
    #[must_use]
    pub fn is_wrong(self) -> bool {
        self != Self::UnusedSpace
    }
}

/// A device that has taken up what its file or drive has.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct GrownDevice {
    /// Its name.
    pub name: String,
    /// Bytes of the device before.
    pub before_bytes: u64,
    /// Bytes of the device now: as before if there was nothing to take up.
    pub after_bytes: u64,
}

/// All devices.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct DeviceList {
    /// The devices.
    pub devices: Vec<Device>,
}

/// The health of a device.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceHealth {
    /// As far as is known.
    Good,
    /// It works, but blocks were found damaged or requests failed since the server started.
    Degraded,
    /// A change to a volume could not be made durable, or the device is away: nothing is written until it works again,
    /// which the server sees by itself.
    Failed,
}

/// The NVMe qualified name of the volume `id`.
#[must_use]
pub fn nqn(id: Uuid) -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{}", id.hyphenated())
}

/// The command with which a Linux host connects the subsystem `nqn` at `address`. Where it has to
/// authenticate, nvme-cli takes the volume's token from the file that the command names.
#[must_use]
pub fn connect_line(nqn: &str, address: SocketAddr, authenticates: bool) -> String {
    let secret = match authenticates {
        true => {
            " --config /etc/nvme/config.json  # its token: \"dhchap_key\" of this port in there"
        }
        false => "",
    };
    format!("nvme connect -t tcp -a {} -s {} -n {nqn}{secret}", address.ip(), address.port())
}
