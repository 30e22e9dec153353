//! Messages of the control side to a data core, and the answers.

use std::collections::BTreeSet;
use std::fmt;

use access::Access;
use dataplane::{
    Allotment, ChangeError, CoreStats, Loss, RecordingCommand, RecordingError, RecordingStatus,
    VolumeFlow, VolumeStatus,
};
use device::kind::DeviceSource;
use device::layer::Fence;
use nvme_frontend::NvmeStats;
use nvme_wire::log::FailureDomain;
use reactor::OwnedDevice;
use schedule::{Quota, SchedulerConfig};
use tokio::sync::oneshot;
use units::{CoreIndex, DeviceIndex, Slo};
use uuid::Uuid;
use volume::{CutOff, ExtentAllocator, OpenError, Superblock, Terms, VolumeError, VolumeSpec};

use crate::front_ends::Announcement;
use crate::scrubber::{ScrubCounts, ScrubReport};

/// Volumes that a core describes in one step. Between two it serves requests: to describe ten thousand takes
/// milliseconds, and any tenant may ask for a list.
pub const VOLUMES_AT_ONCE: usize = 128;

/// The way back for an answer. It may be used on any thread.
pub type Answer<T> = oneshot::Sender<T>;

/// The settings of a core: its part of the device, and the rates that its volumes may count on.
pub type CoreShare = (Option<SchedulerConfig>, Vec<(Uuid, Quota)>);

/// A core's shard of a device failed, and has come back. What was answered with an error may have taken
/// effect: what its volumes are is to be asked again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Returned {
    /// Index of the core.
    pub core: CoreIndex,
    /// Number of the device.
    pub device: DeviceIndex,
    /// Volumes of the shard that were lost meanwhile.
    pub lost: BTreeSet<Uuid>,
}

/// A device that was reopened.
#[derive(Clone, Debug)]
pub struct NewWay {
    /// The file or drive.
    pub opened: OwnedDevice,
    /// The number by which its fence knows the device.
    pub number: u32,
}

/// A core's part of a device.
pub struct Part {
    /// Makes the device for a core.
    pub source: DeviceSource,
    /// The device's first block.
    pub superblock: Superblock,
    /// Extents, which all cores share.
    pub extents: ExtentAllocator,
    /// Shards of this core: the first takes new volumes.
    pub shards: Vec<u16>,
    /// True for a device with a cache that a power cut empties; nothing if the device itself is to be asked.
    pub volatile_cache: Option<bool>,
    /// Ends all requests at once.
    pub fence: Fence,
}

/// A device that a core is to take its part of, step by step, each when all cores have done the one before
/// (`crates/server/src/taking.rs`). Where a way back closes instead, the core lets go of what it has.
pub struct TakeUp {
    /// Number of the device.
    pub device: DeviceIndex,
    /// The part.
    pub part: Part,
    /// Told the volumes when all shards of this core are read back; nothing is written yet.
    pub recovered: Answer<Result<Vec<Uuid>, OpenError>>,
    /// Comes when what was read back may be made durable.
    pub confirm: oneshot::Receiver<()>,
    /// Told when it is durable.
    pub confirmed: Answer<Result<(), OpenError>>,
    /// Comes when the shards may be written.
    pub start: oneshot::Receiver<()>,
    /// Told when they may be written.
    pub started: Answer<Result<(), OpenError>>,
    /// Comes when hosts may find the volumes.
    pub serve: oneshot::Receiver<()>,
    /// Told when hosts may.
    pub serving: Answer<()>,
}

impl fmt::Debug for TakeUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakeUp").field("device", &self.device).finish_non_exhaustive()
    }
}

/// Requests to a data core. It answers each message once, or drops the channel for the answer and ends.
#[derive(Debug)]
#[expect(
    missing_docs,
    reason = "fields are what the message says, and the way back for its answer"
)]
pub enum CoreMessage {
    /// Take a part of a device and serve it.
    TakeUp(Box<TakeUp>),
    /// Make a volume on a device.
    CreateVolume {
        device: DeviceIndex,
        spec: VolumeSpec,
        terms: Terms,
        answer: Answer<Result<VolumeStatus, VolumeError>>,
    },
    /// Say which volumes there are, [`VOLUMES_AT_ONCE`] by identity from `first` on.
    ListVolumes { first: Uuid, answer: Answer<Vec<VolumeStatus>> },
    /// Say how those of some volumes are that there are: [`VOLUMES_AT_ONCE`] at most.
    ShowVolumes { ids: Vec<Uuid>, answer: Answer<Vec<VolumeStatus>> },
    /// Say how one volume is.
    ShowVolume { id: Uuid, answer: Answer<Option<VolumeStatus>> },
    /// Change a volume's size, and tell connected hosts.
    ResizeVolume {
        id: Uuid,
        blocks: u64,
        loss: Loss,
        answer: Answer<Result<(VolumeStatus, Option<CutOff>), ChangeError>>,
    },
    /// Change what a volume is promised.
    SetSlo { id: Uuid, slo: Slo, answer: Answer<Result<VolumeStatus, VolumeError>> },
    /// Change the hosts that may open a volume; with `cut` also those that have it open have to connect
    /// again.
    SetAccess {
        id: Uuid,
        access: Access,
        cut: bool,
        answer: Answer<Result<VolumeStatus, VolumeError>>,
    },
    /// Share a device so from now on.
    Schedule { device: DeviceIndex, share: CoreShare },
    /// Say how the volumes are and what they do, [`VOLUMES_AT_ONCE`] by identity from `first` on.
    Flows { first: Uuid, answer: Answer<Vec<(VolumeStatus, VolumeFlow)>> },
    /// Begin, fetch or end a recording of a volume's requests.
    Record {
        volume: Uuid,
        command: RecordingCommand,
        answer: Answer<Result<RecordingStatus, RecordingError>>,
    },
    /// Delete a volume, and cut off connected hosts.
    DeleteVolume { id: Uuid, loss: Loss, answer: Answer<Result<(), ChangeError>> },
    /// Serve a device no more: it is another's.
    Abandon { device: DeviceIndex },
    /// Serve no volume until [`CoreMessage::Resume`]: whose the devices are is not known.
    Suspend,
    /// Serve them again.
    Resume,
    /// Use a device by another way, since the old one is dead.
    Renew { device: DeviceIndex, way: NewWay },
    /// Have requests to a device wait, and close its shards. [`CoreMessage::ReopenDevice`] follows in any case.
    CloseDevice { device: DeviceIndex, answer: Answer<Result<(), VolumeError>> },
    /// Take them into use again, by a way to a device that may be larger, and say whether all are back.
    ReopenDevice { device: DeviceIndex, way: Option<NewWay>, answer: Answer<bool> },
    /// Tell hosts that ask where a device is.
    Place { device: DeviceIndex, domain: Box<FailureDomain> },
    /// Let hosts find a volume of any core, here or elsewhere.
    Announce(Box<Announcement>),
    /// Let hosts find it no more.
    Withdraw { id: Uuid },
    /// Begin a scrub of a device at so many bytes a second (`Some(Some)`), end it (`Some(None)`), or say
    /// how far it is.
    Scrub { device: DeviceIndex, change: Option<Option<u64>>, answer: Answer<ScrubReport> },
    /// Say what came of its scrubs, by device.
    ScrubCounts { answer: Answer<Vec<ScrubCounts>> },
    /// Bound the space of the volumes of these tenants, too, which are numbered in this order behind those
    /// before.
    BoundTenants { owners: Vec<String> },
    /// Say how many blocks the volumes of some tenants may hold, and hear what those of all do.
    Allot { limits: Vec<(usize, u64)>, answer: Answer<Vec<Allotment>> },
    /// Know whether volumes may come that are not here: a device is absent.
    AwaitVolumes { may_come: bool },
    /// Let hosts in.
    Admit,
    /// Say how the core is.
    Stats { answer: Answer<(CoreStats, NvmeStats)> },
    /// Say how many connections were refused.
    Refused { answer: Answer<u64> },
    /// Finish what is in flight, write a checkpoint, and end.
    Shutdown { answer: Answer<Result<(), VolumeError>> },
}
