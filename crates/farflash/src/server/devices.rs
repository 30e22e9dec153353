//! What the API asks about devices and the server itself.

use std::sync::PoisonError;
use std::time::Instant;

use control::{
    ChangeDevice, Core, DamagedPlace, Device, DeviceHealth, Scrub, ScrubRequest, ScrubState,
    Server, ServiceError,
};
use dataplane::CoreStats;
use units::BLOCK_SIZE;
use volume::Damaged;

use super::message::CoreMessage;
use super::service::State;

/// How fast a scrub reads if nobody says: a small part of what a drive can.
const SCRUB_BYTES_PER_SECOND: u64 = 200 << 20;

impl State {
    pub(super) async fn change_device(
        &self,
        name: String,
        change: ChangeDevice,
    ) -> Result<Device, ServiceError> {
        if name != self.device {
            let devices = vec![self.device.clone()];
            return Err(ServiceError::UnknownDevice { device: name, devices });
        }
        self.shared(|shared| shared.change(&change))?;
        self.share_out();
        let sharing = self.shared(|shared| shared.document());
        tracing::info!(device = name, policy = sharing.policy, ceiling = ?sharing.ceiling,
            "device shared");
        let server = self.server().await?;
        server.devices.into_iter().next().ok_or(ServiceError::Unavailable)
    }

    pub(super) async fn server(&self) -> Result<Server, ServiceError> {
        let mut cores = Vec::new();
        let mut all = Vec::new();
        for link in &self.cores {
            let stats = link.ask(|answer| CoreMessage::Stats { answer }).await?;
            cores.push(Core {
                core: link.cpu,
                portal: link.portal(),
                volumes: stats.volumes as u64,
                connections: stats.connections as u64,
            });
            all.push(stats);
        }
        Ok(Server {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().as_secs(),
            authentication: self.authenticates,
            cores,
            devices: vec![self.device_document(&all)],
        })
    }

    pub(super) async fn scrub(
        &self,
        device: String,
        request: ScrubRequest,
    ) -> Result<Scrub, ServiceError> {
        if device != self.device {
            let devices = vec![self.device.clone()];
            return Err(ServiceError::UnknownDevice { device, devices });
        }
        let cores = self.cores.len() as u64;
        let change = match request {
            ScrubRequest::Show => None,
            ScrubRequest::Start(start) => {
                let rate = start.bytes_per_second.unwrap_or(SCRUB_BYTES_PER_SECOND);
                tracing::info!(device, bytes_per_second = rate, "scrub begun");
                Some(Some(rate / cores))
            }
            ScrubRequest::Stop => Some(None),
        };
        let plan = *self.scrubs.lock().unwrap_or_else(PoisonError::into_inner);
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
        for core in &self.cores {
            let report = core.ask(|answer| CoreMessage::Scrub { change, answer }).await?;
            scrub.state = scrub.state.max(report.state);
            scrub.checked_bytes += report.checked_blocks * BLOCK_SIZE as u64;
            scrub.total_bytes += report.total_blocks * BLOCK_SIZE as u64;
            scrub.damaged += report.damaged;
            scrub.places.extend(report.places.iter().map(place_document));
        }
        Ok(scrub)
    }

    fn device_document(&self, cores: &[CoreStats]) -> Device {
        let block = BLOCK_SIZE as u64;
        let shards = || cores.iter().flat_map(|stats| &stats.capacity);
        let any = shards().next().copied().unwrap_or_default();
        let free: u64 = shards().map(|shard| shard.free).sum();
        let failed = cores.iter().any(|stats| stats.failed);
        let health = if failed {
            DeviceHealth::Failed
        } else if cores.iter().any(|stats| stats.media_errors > 0) {
            DeviceHealth::Degraded
        } else {
            DeviceHealth::Good
        };
        Device {
            name: self.device.clone(),
            capacity_bytes: any.device_total * block,
            free_bytes: (free + any.device_unreserved) * block,
            health,
            sharing: self.shared(|shared| shared.document()),
        }
    }
}

fn place_document(place: &Damaged) -> DamagedPlace {
    DamagedPlace {
        what: format!("{:?}", place.structure).to_lowercase(),
        at_byte: place.pba.0 * BLOCK_SIZE as u64,
        volume: place.volume.as_ref().map(|(id, _)| *id),
        volume_name: place.volume.as_ref().map(|(_, name)| name.clone()),
        volume_byte: place.lba.map(|lba| lba.0.saturating_mul(BLOCK_SIZE as u64)),
    }
}
