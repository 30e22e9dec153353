//! What the control side says to a data core, and what it hears back.

use access::Access;
use dataplane::{CoreStats, DiscoveryRecord, VolumeFlow, VolumeStatus};
use tokio::sync::oneshot;
use units::Slo;
use uuid::Uuid;
use volume::{Terms, VolumeError, VolumeSpec};

use super::scrubber::ScrubReport;
use super::sharing::CoreShare;

/// The way back for an answer. It may be used on any thread.
pub(crate) type Answer<T> = oneshot::Sender<T>;

/// What a data core is asked to do. It answers each message once, or drops the way back and ends.
#[derive(Debug)]
pub(crate) enum CoreMessage {
    /// Make a volume.
    CreateVolume {
        spec: VolumeSpec,
        terms: Terms,
        answer: Answer<Result<VolumeStatus, VolumeError>>,
    },
    /// Say which volumes there are.
    ListVolumes { answer: Answer<Vec<VolumeStatus>> },
    /// Say how one volume is.
    ShowVolume { id: Uuid, answer: Answer<Option<VolumeStatus>> },
    /// Change a volume's size, and tell connected hosts.
    ResizeVolume { id: Uuid, blocks: u64, answer: Answer<Result<VolumeStatus, VolumeError>> },
    /// Change what a volume is promised.
    SetSlo { id: Uuid, slo: Slo, answer: Answer<Result<VolumeStatus, VolumeError>> },
    /// Change who may open a volume; with `cut` also those who have it open have to come again.
    SetAccess {
        id: Uuid,
        access: Access,
        cut: bool,
        answer: Answer<Result<VolumeStatus, VolumeError>>,
    },
    /// Share the device so from now on.
    Schedule { share: CoreShare },
    /// Say what the volumes do, and how the core is.
    Flows { answer: Answer<(Vec<VolumeFlow>, CoreStats)> },
    /// Delete a volume, and cut off connected hosts.
    DeleteVolume { id: Uuid, answer: Answer<Result<(), VolumeError>> },
    /// Let hosts find a volume of any core.
    Announce { record: DiscoveryRecord },
    /// Let hosts find it no more.
    Withdraw { id: Uuid },
    /// Begin a scrub at so many bytes a second (`Some(Some)`), end it (`Some(None)`), or say how far
    /// it is.
    Scrub { change: Option<Option<u64>>, answer: Answer<ScrubReport> },
    /// Say how the core is.
    Stats { answer: Answer<CoreStats> },
    /// Finish what is in flight, write a checkpoint, and end.
    Shutdown { answer: Answer<Result<(), VolumeError>> },
}
