//! The documents about shared devices: promises, ceilings, and the shares of volumes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// The service level that a device promises a volume, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Slo {
    /// A part of what is not promised by rate, in proportion to the weights of all such volumes. At
    /// least 1; a volume for which nothing is said has 100.
    Share(u32),
    /// So many blocks a second. The device needs a ceiling for it.
    Rate {
        /// Blocks read a second.
        #[serde(default)]
        reads_per_second: u64,
        /// Blocks written a second.
        #[serde(default)]
        writes_per_second: u64,
    },
}

impl fmt::Display for Slo {
    /// In a few words, as `share 100`, for people and logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(weight) => write!(f, "share {weight}"),
            Self::Rate { reads_per_second, writes_per_second } => {
                write!(f, "{reads_per_second} r/s {writes_per_second} w/s")
            }
        }
    }
}

impl Default for Slo {
    fn default() -> Self {
        Self::Share(100)
    }
}

/// The most that a device is asked for, so that it answers in time.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Ceiling {
    /// Blocks of 4 KiB read a second.
    pub reads_per_second: u64,
    /// Blocks of 4 KiB written a second.
    pub writes_per_second: u64,
    /// The latency at which it does so; with the rates it says how many requests are under way.
    pub latency_target_us: u64,
}

/// The way in which volumes share a device.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Sharing {
    /// The policy that selects the next request: `drr`, `sts` or `fcfs`.
    #[schema(example = "drr")]
    pub policy: String,
    /// The most that the device is asked for; without it requests go as they come, and no rate can be
    /// promised.
    pub ceiling: Option<Ceiling>,
    /// Cost of a write in thousandths of a read, if both share the ceiling of the reads.
    #[serde(default)]
    pub write_cost_per_mille: Option<u32>,
    /// Blocks read a second that can still be promised.
    pub unpromised_reads_per_second: Option<u64>,
    /// Blocks written a second that can still be promised.
    pub unpromised_writes_per_second: Option<u64>,
}

/// Asks for a device to be shared in another way. What is left out stays as it is; all of it holds
/// until the server ends.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeDevice {
    /// Blocks of 4 KiB read a second at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub reads_per_second: Option<u64>,
    /// Blocks of 4 KiB written a second at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub writes_per_second: Option<u64>,
    /// The latency at which it does so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub latency_target_us: Option<u64>,
    /// `drr`, `sts` or `fcfs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Cost of a write in thousandths of a read: both then share the ceiling of the reads. Zero: reads and
    /// writes have ceilings of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_cost_per_mille: Option<u32>,
    /// Takes the ceiling away.
    #[serde(default)]
    pub no_ceiling: bool,
}

/// The activity of volumes and devices. Counters count from the start of the server: two answers make rates.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct Stats {
    /// When the answer was made, in nanoseconds since the server started.
    pub time_ns: u64,
    /// The devices.
    pub devices: Vec<DeviceStats>,
    /// Upper ends of the ranges of latencies, in microseconds. What took longer is in one more.
    #[serde(default)]
    pub latency_bounds_us: Vec<u64>,
    /// The data cores.
    #[serde(default)]
    pub cores: Vec<CoreStats>,
    /// The volumes, by name.
    pub volumes: Vec<VolumeStats>,
}

/// The activity of a data core.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct CoreStats {
    /// The CPU.
    pub core: u32,
    /// Memory that the data of requests takes.
    pub request_memory_bytes: u64,
    /// Connections of hosts that were closed as they came, for want of places.
    #[serde(default)]
    pub connections_refused: u64,
    /// Connections of hosts that there may be.
    #[serde(default)]
    pub connections_max: u64,
    /// Connections of hosts that were let into a volume. The others are those of strangers, and on their way out.
    #[serde(default)]
    pub connections_let_in: u64,
    /// Authentications of hosts that failed.
    pub authentication_failures: u64,
    /// Authentications that were asked of hosts, which left without: those without a token do.
    #[serde(default)]
    pub authentications_unfinished: u64,
    /// Connects of hosts that were put off, after such failures.
    #[serde(default)]
    pub connects_put_off: u64,
    /// Commands that were answered with an error, but for those of I/O queues, by the name of its NVMe status.
    #[serde(default)]
    pub errors: BTreeMap<String, u64>,
}

/// Latencies of requests, including the wait for their turn at the device.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct Latency {
    /// Requests in each range; the ranges are those of [`Stats::latency_bounds_us`].
    pub counts: Vec<u64>,
    /// Their times together.
    pub sum_ns: u64,
}

/// The activity of a device.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct DeviceStats {
    /// As it was given to the server.
    pub name: String,
    /// The way in which volumes share it.
    pub sharing: Sharing,
    /// The windows of the cores.
    pub windows: Vec<WindowStats>,
    /// Counters and rates of all its volumes, also those that are gone.
    #[serde(default)]
    pub flow: FlowStats,
    /// Memory of the maps of volumes, by core.
    pub maps: Vec<MapStats>,
    /// Blocks found damaged, of whatever kind and each once, and requests that the device failed.
    #[serde(default)]
    pub media_errors: u64,
    /// Its scrubs.
    #[serde(default)]
    pub scrubs: ScrubStats,
}

/// Scrubs of a device. Each core reads its part of it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct ScrubStats {
    /// Parts that are read now.
    pub running: u64,
    /// Parts that were read to their end.
    pub done: u64,
    /// Parts that were stopped, or restarted.
    pub stopped: u64,
    /// Parts at which the device stopped answering.
    pub failed: u64,
    /// Damaged blocks by their kind, such as `data`, `node` or `bitmap`; each scrub counts them again.
    pub damaged: BTreeMap<String, u64>,
}

/// Memory of the maps of a core's volumes: the location and checksum of each block.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct MapStats {
    /// The CPU.
    pub core: u32,
    /// Bytes of memory that they may take; nothing if they may take all they need.
    pub limit_bytes: Option<u64>,
    /// Bytes of memory that they take.
    pub resident_bytes: u64,
    /// Bytes that they take on the device.
    pub device_bytes: u64,
    /// Look-ups of requests that found all that they wanted in memory.
    #[serde(default)]
    pub hits: u64,
    /// Nodes read from the device.
    pub loads: u64,
    /// Nodes that gave way to others in memory.
    pub evictions: u64,
}

/// The windows and counters of a core at a device.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct WindowStats {
    /// The CPU.
    pub core: u32,
    /// The window for reads.
    #[serde(default)]
    pub reads: Window,
    /// The window for writes. With a write cost all is counted among the reads.
    #[serde(default)]
    pub writes: Window,
    /// Fill level of the core's journal, from 0 to 1.
    #[serde(default)]
    pub journal_used: f64,
    /// Counters and rates of the core's volumes on the device, also those that are gone.
    #[serde(default)]
    pub flow: FlowStats,
    /// Latency of their reads.
    #[serde(default)]
    pub read_latency: Latency,
    /// Latency of their writes.
    #[serde(default)]
    pub write_latency: Latency,
    /// Their commands that were answered with an error, by the name of its NVMe status.
    #[serde(default)]
    pub errors: BTreeMap<String, u64>,
}

/// Requests that may be, and are, under way at a device.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct Window {
    /// Blocks that may be under way, and more while there are fewer of the other kind; nothing without
    /// a ceiling.
    pub window_blocks: Option<u64>,
    /// Blocks that are.
    pub in_use_blocks: u64,
    /// Requests that wait.
    pub queued: u64,
}

/// Counters and rates of requests.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct FlowStats {
    /// Requests that wait for their turn.
    pub queued: u64,
    /// Requests at the engine and the device.
    pub in_flight: u64,
    /// Blocks of these that are read.
    #[serde(default)]
    pub in_flight_read_blocks: u64,
    /// Blocks of these that are written.
    #[serde(default)]
    pub in_flight_written_blocks: u64,
    /// Requests done.
    pub requests: u64,
    /// Blocks read, and those compared or checked for hosts.
    pub read_blocks: u64,
    /// Blocks written, and one for each range that was deallocated or zeroed.
    pub written_blocks: u64,
    /// Time that requests waited for their turn, all together.
    pub waited_ns: u64,
    /// Time that requests took behind that, all together.
    pub served_ns: u64,
}

/// The activity of a volume.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, ToSchema)]
pub struct VolumeStats {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// The device that holds it.
    pub device: String,
    /// The CPU that serves it.
    pub core: u32,
    /// Its size as hosts see it.
    #[serde(default)]
    pub size_bytes: u64,
    /// Bytes of the device that it holds.
    #[serde(default)]
    pub allocated_bytes: u64,
    /// The service level that it is promised.
    pub slo: Slo,
    /// Blocks read a second that follow from that; nothing without a ceiling.
    pub promised_reads_per_second: Option<f64>,
    /// Blocks written a second that follow from that; nothing without a ceiling.
    pub promised_writes_per_second: Option<f64>,
    /// Counters and rates of its requests.
    #[serde(flatten)]
    pub flow: FlowStats,
    /// Connections of its hosts.
    #[serde(default)]
    pub connections: u64,
    /// Latency of reads.
    #[serde(default)]
    pub read_latency: Latency,
    /// Latency of writes.
    #[serde(default)]
    pub write_latency: Latency,
    /// Blocks found damaged, of the volume and of what all volumes of its device rest on, each once, and requests of the
    /// volume that the device failed.
    #[serde(default)]
    pub media_errors: u64,
    /// Commands of its I/O queues that were answered with an error, by the name of its NVMe status.
    #[serde(default)]
    pub errors: BTreeMap<String, u64>,
}
