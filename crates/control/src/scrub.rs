//! Scrubs of a device: what is asked, and how far one is.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// Asks for a scrub.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartScrub {
    /// Bytes read a second at most; by default 200 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 4096)]
    pub bytes_per_second: Option<u64>,
}

/// The slowest scrub reads a block a second.
pub(crate) const SCRUB_RATE_MIN: u64 = 4096;

/// A request about a device's scrub.
#[derive(Clone, Copy, Debug)]
pub enum ScrubRequest {
    /// Say how far it is.
    Show,
    /// Begin one; one that runs is restarted.
    Start(StartScrub),
    /// End the one that runs.
    Stop,
}

/// The progress of a scrub.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Scrub {
    /// The state of the scrub.
    pub state: ScrubState,
    /// Bytes read.
    pub checked_bytes: u64,
    /// Bytes in use when it began.
    pub total_bytes: u64,
    /// Blocks found damaged.
    pub damaged: u64,
    /// The first thousand of them, each once.
    pub places: Vec<DamagedPlace>,
    /// Seconds from one scheduled scrub to the next; absent if none is scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<u64>,
    /// When the next one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_in_seconds: Option<u64>,
}

/// The state of a scrub.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ScrubState {
    /// There was none since the server started.
    #[default]
    Idle,
    /// It has read all.
    Done,
    /// It was stopped.
    Stopped,
    /// The device stopped answering.
    Failed,
    /// It reads.
    Running,
}

impl ScrubState {
    /// The name in the API and in the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Running => "running",
        }
    }
}

/// A damaged block.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct DamagedPlace {
    /// The kind of block, such as `data`, `node` or `bitmap`.
    pub what: String,
    /// Byte offset on the device.
    pub at_byte: u64,
    /// The volume that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<Uuid>,
    /// That volume's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_name: Option<String>,
    /// Byte offset in the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_byte: Option<u64>,
}
