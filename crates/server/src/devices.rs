//! Requests of the API about devices and the server itself.

use std::time::Instant;

use control::{
    ChangeDevice, Core, DamagedPlace, Device, DeviceHealth, ProtocolStats, Scrub, ScrubRequest,
    ScrubState, Server, ServiceError,
};
use data_core::{CoreMessage, Scrubbing};
use dataplane::{CoreStats, DeviceStats, FrontendStats, ShardFailure};
use units::{BLOCK_SIZE, DeviceIndex};
use volume::Damaged;

use super::lines;
use super::state::State;

/// Default rate of a scrub: a small part of a drive's.
const SCRUB_BYTES_PER_SECOND: u64 = 200 << 20;

fn protocol_stats(stats: &FrontendStats) -> ProtocolStats {
    ProtocolStats {
        protocol: stats.protocol.to_owned(),
        connections: stats.connections,
        connections_let_in: stats.connections_let_in,
        connected: stats.connected,
        refused: stats.refused,
        read_bytes: stats.read_bytes,
        written_bytes: stats.written_bytes,
    }
}

impl State {
    pub(super) async fn change_device(
        &self,
        name: &str,
        change: &ChangeDevice,
    ) -> Result<Device, ServiceError> {
        let number = self.device_named(name)?;
        let device = &self.devices[number];
        device.shared(|shared| shared.change(change))?;
        self.share_out(number);
        let sharing = device.shared(|shared| shared.document());
        let ceiling = sharing.ceiling;
        tracing::info!(
            device = name,
            policy = sharing.policy,
            reads_per_second = ceiling.map(|ceiling| ceiling.reads_per_second),
            writes_per_second = ceiling.map(|ceiling| ceiling.writes_per_second),
            latency_target_us = ceiling.map(|ceiling| ceiling.latency_target_us),
            "device shared"
        );
        let server = self.server().await?;
        server.devices.into_iter().nth(number.0).ok_or(ServiceError::Unavailable)
    }

    pub(super) async fn server(&self) -> Result<Server, ServiceError> {
        let mut cores = Vec::new();
        let mut all = Vec::new();
        for link in self.cores.iter() {
            let (stats, _) = link.ask(|answer| CoreMessage::Stats { answer }).await?;
            cores.push(Core {
                core: link.cpu,
                portal: link.portal(),
                volumes: stats.volumes as u64,
                connections: stats.connections as u64,
                protocols: stats.front_ends.iter().map(protocol_stats).collect(),
            });
            all.push(stats);
        }
        Ok(Server {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.opening.uptime().as_secs(),
            authentication: self.tokens.are_required,
            log_lines_left_out: crate::logging::lines_left_out() + lines::left_out(),
            directory: self.directory_status(),
            notices: self.server_notices(),
            task_failures: self.tasks.panics(),
            cores,
            devices: self.devices.keys().map(|device| self.device_document(device, &all)).collect(),
        })
    }

    pub(super) async fn scrub(
        &self,
        device: DeviceIndex,
        request: ScrubRequest,
    ) -> Result<Scrub, ServiceError> {
        let served = &self.devices[device];
        let cores = self.cores.len() as u64;
        let change = match request {
            ScrubRequest::Show => None,
            ScrubRequest::Start(_) if self.is_absent(device) => return Err(self.away(device)),
            ScrubRequest::Start(start) => {
                let rate = start.bytes_per_second.unwrap_or(SCRUB_BYTES_PER_SECOND);
                tracing::info!(device = served.name(), bytes_per_second = rate, "scrub begun");
                Some(Some(rate / cores))
            }
            ScrubRequest::Stop => Some(None),
        };
        let plan = served.scrub_plan();
        let mut scrub = Scrub {
            every_seconds: plan.map(|plan| plan.every.as_secs()),
            next_in_seconds: plan
                .map(|plan| plan.next.saturating_duration_since(Instant::now()).as_secs()),
            state: ScrubState::Idle,
            checked_bytes: 0,
            total_bytes: 0,
            damaged: 0,
            places: Vec::new(),
        };
        for core in self.cores.iter() {
            let report = core.ask(|answer| CoreMessage::Scrub { device, change, answer }).await?;
            scrub.state = scrub.state.max(scrub_state(report.state));
            scrub.checked_bytes += report.checked_blocks * BLOCK_SIZE as u64;
            scrub.total_bytes += report.total_blocks * BLOCK_SIZE as u64;
            scrub.damaged += report.damaged;
            scrub.places.extend(report.places.iter().map(place_document));
        }
        Ok(scrub)
    }

    fn device_document(&self, number: DeviceIndex, cores: &[CoreStats]) -> Device {
        let space = Space::of(number, cores);
        let media_errors = parts_of(number, cores).any(|part| part.media_errors > 0);
        let trouble = self.devices[number].trouble();
        let failure = failure_of(number, cores);
        let health = match failure.is_some() || trouble.is_some() {
            true => DeviceHealth::Failed,
            false if media_errors => DeviceHealth::Degraded,
            false => DeviceHealth::Good,
        };
        let block = BLOCK_SIZE as u64;
        Device {
            name: self.devices[number].name().to_owned(),
            capacity_bytes: space.total_blocks * block,
            free_bytes: space.free_blocks * block,
            health,
            trouble,
            is_abandoned: self.is_abandoned(number),
            failure: failure.map(ToString::to_string),
            notices: self.devices[number].notices(),
            volatile_write_cache: parts_of(number, cores).any(|part| part.flushes),
            sharing: self.devices[number].shared(|shared| shared.document()),
        }
    }
}

/// Returns each core's statistics of a device.
fn parts_of(device: DeviceIndex, cores: &[CoreStats]) -> impl Iterator<Item = &DeviceStats> {
    cores.iter().filter_map(move |core| core.devices.get(device))
}

/// Why a part of a device takes no changes, as the first core says that has one.
fn failure_of(device: DeviceIndex, cores: &[CoreStats]) -> Option<&ShardFailure> {
    parts_of(device, cores).find_map(|part| part.failure.as_ref())
}

/// The space of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub(super) total_blocks: u64,
    /// Blocks that no volume holds.
    pub(super) free_blocks: u64,
    /// True if a part of it takes no changes.
    pub(super) failed: bool,
}

impl Space {
    pub(super) fn of(device: DeviceIndex, cores: &[CoreStats]) -> Self {
        let shards = || parts_of(device, cores).flat_map(|part| &part.capacity);
        // Cores are asked one after the other, and extents come to be theirs meanwhile: the least that one of them has
        // seen that no shard owns counts none twice.
        let unreserved = shards().map(|shard| shard.device_unreserved).min();
        let free: u64 = shards().map(|shard| shard.free).sum();
        Self {
            total_blocks: shards().next().map_or(0, |shard| shard.device_total),
            free_blocks: free + unreserved.unwrap_or(0),
            failed: failure_of(device, cores).is_some(),
        }
    }
}

fn place_document(place: &Damaged) -> DamagedPlace {
    DamagedPlace {
        what: place.structure.to_string(),
        at_byte: place.pba.0 * BLOCK_SIZE as u64,
        volume: place.volume.as_ref().map(|(id, _)| *id),
        volume_name: place.volume.as_ref().map(|(_, name)| name.clone()),
        volume_byte: place.lba.map(|lba| lba.0.saturating_mul(BLOCK_SIZE as u64)),
    }
}

/// The state of a core's scrub in the API.
fn scrub_state(state: Scrubbing) -> ScrubState {
    match state {
        Scrubbing::Idle => ScrubState::Idle,
        Scrubbing::Done => ScrubState::Done,
        Scrubbing::Stopped => ScrubState::Stopped,
        Scrubbing::Failed => ScrubState::Failed,
        Scrubbing::Running => ScrubState::Running,
    }
}

#[cfg(test)]
mod tests {
    use volume::Capacity;

    use super::*;

    /// The second core is asked when it has just reserved 20 blocks.
    #[test]
    fn what_changes_hands_between_two_answers_is_not_counted_twice() {
        let core = |free, device_unreserved| {
            let capacity =
                Capacity { device_total: 100, free, device_unreserved, ..Capacity::default() };
            let part = DeviceStats { capacity: vec![capacity], ..DeviceStats::default() };
            CoreStats { devices: vec![part].into(), ..CoreStats::default() }
        };
        assert_eq!(Space::of(DeviceIndex(0), &[core(10, 90), core(20, 70)]).free_blocks, 100);
        assert_eq!(Space::of(DeviceIndex(0), &[]).free_blocks, 0);
    }
}
