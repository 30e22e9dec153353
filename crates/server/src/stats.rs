//! Activity of volumes and devices, collected from the cores.

use std::collections::BTreeMap;

use control::{
    CoreStats, DeviceStats, FlowStats, Latency, MapStats, ScrubStats, ServiceError, Stats,
    VolumeStats, Window, WindowStats,
};
use data_core::{CoreMessage, ScrubCounts};
use dataplane::{ErrorCounts, LATENCY_BOUNDS_US, LatencyCounts, VolumeFlow, VolumeStatus};
use units::BLOCK_SIZE;
use volume::MapMemory;

use super::cores::CoreLink;
use super::served_device::ServedDevice;
use super::sharing::slo_document;
use super::state::State;

impl State {
    pub(super) async fn stats(&self) -> Result<Stats, ServiceError> {
        let mut devices: Vec<DeviceStats> = self.devices.iter().map(device_stats).collect();
        let mut sums = vec![dataplane::FlowStats::default(); devices.len()];
        let (mut cores, mut volumes) = (Vec::new(), Vec::new());
        for link in self.cores.iter() {
            let (core, nvme) = link.ask(|answer| CoreMessage::Stats { answer }).await?;
            for ((device, sum), part) in devices.iter_mut().zip(&mut sums).zip(&core.devices) {
                sum.add(&part.done.flow);
                device.flow = flow_document(sum);
                device.windows.push(window_stats(link, part));
                device.media_errors += part.media_errors;
                device.maps.push(map_stats(link, &part.maps));
            }
            let counts = link.ask(|answer| CoreMessage::ScrubCounts { answer }).await?;
            devices.iter_mut().zip(counts).for_each(|(device, of)| add_scrubs(device, of));
            cores.push(CoreStats {
                core: link.cpu,
                connections_max: core.connections_max as u64,
                connections_let_in: core.connections_let_in as u64,
                request_memory_bytes: core.memory_used_bytes,
                connections_refused: core.connections_refused,
                authentication_failures: nvme.authentication_failures,
                authentications_unfinished: nvme.authentications_unfinished,
                connects_put_off: nvme.connects_put_off,
                errors: errors_document(&nvme.errors),
            });
            let flows = link.flows().await?;
            volumes.extend(
                flows.iter().map(|(of, flow)| volume_stats(link, &devices[of.device.0], of, flow)),
            );
        }
        volumes.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        let time_ns = u64::try_from(self.opening.uptime().as_nanos()).unwrap_or(u64::MAX);
        let latency_bounds_us = LATENCY_BOUNDS_US.to_vec();
        Ok(Stats { time_ns, devices, latency_bounds_us, cores, volumes })
    }
}

/// A device of which no core has said anything yet.
fn device_stats(device: &ServedDevice) -> DeviceStats {
    let sharing = device.shared(|shared| shared.document());
    DeviceStats {
        name: device.name().to_owned(),
        sharing,
        windows: Vec::new(),
        flow: FlowStats::default(),
        maps: Vec::new(),
        media_errors: 0,
        scrubs: ScrubStats::default(),
    }
}

/// Adds those of one core.
fn add_scrubs(device: &mut DeviceStats, counts: ScrubCounts) {
    let all = &mut device.scrubs;
    all.running += u64::from(counts.is_running);
    all.done += counts.done;
    all.stopped += counts.stopped;
    all.failed += counts.failed;
    for (structure, count) in counts.damaged {
        *all.damaged.entry(structure.to_string()).or_default() += count;
    }
}

fn window_stats(link: &CoreLink, part: &dataplane::DeviceStats) -> WindowStats {
    let window = part.window;
    let of_class = |class: usize| Window {
        window_blocks: window.window_blocks.map(|blocks| u64::from(blocks[class])),
        in_use_blocks: window.in_use_blocks[class],
        queued: window.queued[class],
    };
    WindowStats {
        core: link.cpu,
        reads: of_class(0),
        writes: of_class(1),
        journal_used: part.journal_used.iter().copied().fold(0.0, f64::max),
        flow: flow_document(&part.done.flow),
        read_latency: latency_document(&part.done.latency[0]),
        write_latency: latency_document(&part.done.latency[1]),
        errors: errors_document(&part.done.errors),
    }
}

fn map_stats(link: &CoreLink, maps: &[MapMemory]) -> MapStats {
    let sum = |figure: fn(&MapMemory) -> u64| maps.iter().map(figure).sum();
    MapStats {
        core: link.cpu,
        limit_bytes: maps.iter().map(|map| map.limit_bytes).sum(),
        resident_bytes: sum(|map| map.resident_bytes),
        device_bytes: sum(|map| map.device_bytes),
        hits: sum(|map| map.hits),
        loads: sum(|map| map.loads),
        evictions: sum(|map| map.evictions),
    }
}

fn volume_stats(
    link: &CoreLink,
    device: &DeviceStats,
    state: &VolumeStatus,
    flow: &VolumeFlow,
) -> VolumeStats {
    let VolumeFlow { quota, done, .. } = flow;
    let has_ceiling = device.sharing.ceiling.is_some();
    let promised = |class: usize| has_ceiling.then_some(quota.per_second[class]);
    VolumeStats {
        id: state.uuid,
        name: state.name.clone(),
        device: device.name.clone(),
        core: link.cpu,
        size_bytes: state.blocks * BLOCK_SIZE as u64,
        allocated_bytes: state.mapped_blocks * BLOCK_SIZE as u64,
        slo: slo_document(state.slo),
        promised_reads_per_second: promised(0),
        promised_writes_per_second: promised(1),
        flow: flow_document(&done.flow),
        read_latency: latency_document(&done.latency[0]),
        write_latency: latency_document(&done.latency[1]),
        errors: errors_document(&done.errors),
        connections: flow.connections as u64,
        media_errors: flow.media_errors,
    }
}

fn flow_document(stats: &dataplane::FlowStats) -> FlowStats {
    FlowStats {
        queued: stats.queued,
        in_flight: stats.in_flight,
        in_flight_read_blocks: stats.in_flight_blocks[0],
        in_flight_written_blocks: stats.in_flight_blocks[1],
        requests: stats.requests,
        read_blocks: stats.blocks[0],
        written_blocks: stats.blocks[1],
        waited_ns: nanos(stats.waited),
        served_ns: nanos(stats.served),
    }
}

fn latency_document(latency: &LatencyCounts) -> Latency {
    Latency { counts: latency.counts.to_vec(), sum_ns: nanos(latency.sum) }
}

fn errors_document(errors: &ErrorCounts) -> BTreeMap<String, u64> {
    errors.iter().map(|(status, count)| (status.to_owned(), count)).collect()
}

fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
