//! Recordings of the requests that hosts send to a volume: a client's requests about them, and their state.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// Longest recording: a day.
pub const RECORDING_SECONDS_MAX: u32 = 24 * 3600;
/// Requests that are kept until they are fetched, if nothing else is said: for a quarter of a second of 260 000 a second.
const BUFFER_DEFAULT: u32 = 1 << 16;
/// The same, at most.
pub const RECORDING_BUFFER_MAX: u32 = 1 << 18;

/// Requests that are fetched at once, at most.
pub const RECORDING_FETCH_MAX: usize = 8192;
/// Time after which a recording ends that its client does not ask for.
pub const RECORDING_UNASKED_MAX: Duration = Duration::from_secs(10);

/// Asks for a recording.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartRecording {
    /// Its time. It ends earlier if its client does not ask for it for 10 seconds, and with the volume.
    #[schema(minimum = 1, maximum = 86400)]
    pub seconds: u32,
    /// Requests that are kept until they are fetched; by default 65536. They take 24 bytes each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 262144)]
    pub buffer_requests: Option<u32>,
}

impl StartRecording {
    /// Requests that are kept until they are fetched.
    #[must_use]
    pub fn buffer(self) -> u32 {
        self.buffer_requests.unwrap_or(BUFFER_DEFAULT)
    }

    /// The field that is out of bounds, with these, if one is.
    pub(crate) fn fault(self) -> Option<String> {
        let is_within = |max: u32, value: u32| (1..=max).contains(&value);
        if !is_within(RECORDING_SECONDS_MAX, self.seconds) {
            return Some(format!("`seconds` is not from 1 to {RECORDING_SECONDS_MAX}"));
        }
        let is_buffer = is_within(RECORDING_BUFFER_MAX, self.buffer());
        (!is_buffer).then(|| format!("`buffer_requests` is not from 1 to {RECORDING_BUFFER_MAX}"))
    }
}

/// A request about a recording of a volume.
#[derive(Clone, Copy, Debug)]
pub enum RecordingRequest {
    /// Begin one.
    Start(StartRecording),
    /// Return the requests from number `first` on, and forget those before.
    Fetch {
        /// The recording.
        id: Uuid,
        /// Number of requests that the client has.
        first: u64,
    },
    /// End it, and forget what was not fetched.
    End {
        /// The recording.
        id: Uuid,
    },
}

/// A recording of the requests that hosts send to a volume.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Recording {
    /// Its id.
    pub id: Uuid,
    /// The id of the volume.
    pub volume: Uuid,
    /// Its time.
    pub seconds: u32,
    /// True if it has ended: no request is added any more.
    pub is_over: bool,
    /// Requests in it, those that were fetched included.
    pub recorded: u64,
    /// Requests that are not in it because as many as are kept were not fetched.
    pub left_out: u64,
    /// Requests that are not in it because they read or write no blocks of the volume, such as deallocations.
    pub others: u64,
    /// Number of the first of `requests`, from 0.
    pub first: u64,
    /// The requests from there on, 8192 at most, in the order in which they came.
    pub requests: Vec<RecordedRequest>,
}

/// A request of a host.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct RecordedRequest {
    /// Nanoseconds from the start of the recording until it had come, with its data if it writes.
    pub at_ns: u64,
    /// A comparison is a read, and a write if data is written behind it.
    pub kind: RecordedKind,
    /// First byte, of whole blocks of 4 KiB.
    pub offset_bytes: u64,
    /// Bytes.
    pub length_bytes: u64,
}

/// The kind of a request that is recorded.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecordedKind {
    /// It reads.
    Read,
    /// It writes.
    Write,
}
