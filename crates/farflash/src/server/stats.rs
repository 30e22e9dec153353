//! What volumes and devices do, collected from the cores.

use control::{DeviceStats, MapStats, ServiceError, Stats, VolumeStats, WindowStats};
use dataplane::{CoreStats, VolumeFlow, VolumeStatus};

use volume::MapMemory;

use super::message::CoreMessage;
use super::service::{CoreLink, State};
use super::sharing::slo_document;

impl State {
    pub(super) async fn stats(&self) -> Result<Stats, ServiceError> {
        let sharing = self.shared(|shared| shared.document());
        let name = self.shared(|shared| shared.name().to_owned());
        let (mut windows, mut maps, mut volumes) = (Vec::new(), Vec::new(), Vec::new());
        for link in &self.cores {
            let (flows, core) = link.ask(|answer| CoreMessage::Flows { answer }).await?;
            let window = core.window;
            maps.push(map_stats(link, &core));
            let states = link.ask(|answer| CoreMessage::ListVolumes { answer }).await?;
            windows.push(WindowStats {
                core: link.cpu,
                window_blocks: window.window_blocks.map(u64::from),
                in_use_blocks: window.in_use_blocks,
                queued: window.queued,
            });
            let has_ceiling = sharing.ceiling.is_some();
            // Between the two answers a volume may come or go; it is then left out.
            volumes.extend(states.iter().filter_map(|state| {
                let place = flows.binary_search_by_key(&state.uuid, |flow| flow.uuid).ok()?;
                Some(volume_stats(link, &name, state, &flows[place], has_ceiling))
            }));
        }
        volumes.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        let time_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(Stats { time_ns, devices: vec![DeviceStats { name, sharing, windows, maps }], volumes })
    }
}

fn map_stats(link: &CoreLink, core: &CoreStats) -> MapStats {
    let sum = |figure: fn(&MapMemory) -> u64| core.maps.iter().map(figure).sum();
    MapStats {
        core: link.cpu,
        limit_bytes: core.maps.iter().map(|map| map.limit_bytes).sum(),
        resident_bytes: sum(|map| map.resident_bytes),
        device_bytes: sum(|map| map.device_bytes),
        loads: sum(|map| map.loads),
        evictions: sum(|map| map.evictions),
    }
}

fn volume_stats(
    link: &CoreLink,
    device: &str,
    state: &VolumeStatus,
    flow: &VolumeFlow,
    has_ceiling: bool,
) -> VolumeStats {
    let VolumeFlow { quota, stats, .. } = flow;
    let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let promised = |class: usize| has_ceiling.then_some(quota.per_second[class]);
    VolumeStats {
        id: state.uuid,
        name: state.name.clone(),
        device: device.to_owned(),
        core: link.cpu,
        slo: slo_document(state.slo),
        promised_reads_per_second: promised(0),
        promised_writes_per_second: promised(1),
        queued: stats.queued,
        in_flight: stats.in_flight,
        requests: stats.completed,
        read_blocks: stats.issued_blocks[0],
        written_blocks: stats.issued_blocks[1],
        waited_ns: nanos(stats.waited),
        served_ns: nanos(stats.served),
    }
}
