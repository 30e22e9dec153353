//! The figures of `/v1/stats` and `/v1/server` in the text form of Prometheus (exposition format 0.0.4).

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use crate::gate::Counts;
use crate::{
    Core, CoreStats, Device, DeviceHealth, DeviceStats, Latency, NoticeKind, ProtocolStats,
    ScrubStats, Server, ServerNoticeKind, Stats, TenantQuota, VolumeStats, WindowStats,
};

const NANOS_PER_SECOND: f64 = 1e9;
const BLOCK_BYTES: u64 = 4096;
const READ_BYTES: &str = "Bytes read, and those compared or checked for hosts.";
const WRITTEN_BYTES: &str =
    "Bytes written, and a block for each range that was deallocated or zeroed.";

/// The media type of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Metrics, one family after the other.
#[derive(Default)]
struct Text(String);

/// Label names and values as they stand between braces; empty for none. Made once for all samples of a thing: of
/// ten thousand volumes there are many samples.
#[derive(Clone, Default)]
struct Labels(String);

impl Labels {
    fn new(labels: &[(&str, &dyn Display)]) -> Self {
        labels.iter().fold(Self::default(), |all, (label, value)| all.and(label, value))
    }

    /// These and one more.
    fn and(mut self, label: &str, value: impl Display) -> Self {
        let comma = if self.0.is_empty() { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(self.0, "{comma}{label}=\"");
        let start = self.0.len();
        let _ = write!(self.0, "{value}");
        if self.0[start..].contains(['\\', '"', '\n']) {
            let value = self.0.split_off(start);
            self.0 += &value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        }
        self.0.push('"');
        self
    }
}

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, Labels(labels): &Labels, value: impl Display) {
        let _ = match labels.is_empty() {
            true => writeln!(self.0, "{name} {value}"),
            false => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    /// A family with a sample for each of `all`, and their labels.
    fn each<T, V: Display>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        all: &[(Labels, &T)],
        value: impl Fn(&T) -> V,
    ) {
        if !all.is_empty() {
            self.family(name, kind, help);
        }
        for (labels, one) in all {
            self.sample(name, labels, value(one));
        }
    }
}

/// All metrics of a server, whose API counted this.
pub(crate) fn text(
    server: &Server,
    stats: &Stats,
    tenants: &[TenantQuota],
    counts: &Counts,
) -> String {
    let mut text = Text::default();
    text.family("farflash_build_info", "gauge", "The release that runs.");
    let version = Labels::new(&[("version", &server.version)]);
    text.sample("farflash_build_info", &version, 1);
    text.family("farflash_uptime_seconds", "gauge", "Seconds since the server started.");
    text.sample("farflash_uptime_seconds", &Labels::default(), server.uptime_seconds);
    let help = "Lines of the log that were left out, because earlier ones had not been read.";
    text.family("farflash_log_lines_left_out_total", "counter", help);
    text.sample("farflash_log_lines_left_out_total", &Labels::default(), server.log_lines_left_out);
    server_notices(&mut text, server);
    if server.directory.address.is_some() {
        let help = "1 while the directory of the service can be asked; without it nothing changes.";
        text.family("farflash_directory_connected", "gauge", help);
        let connected = u8::from(server.directory.cut_off.is_none());
        text.sample("farflash_directory_connected", &Labels::default(), connected);
    }
    if server.directory.fence_after_seconds.is_some() {
        let help = "1 while no volume is served until the directory confirms what is this host's.";
        text.family("farflash_fenced", "gauge", help);
        let fenced = u8::from(server.directory.is_fenced);
        text.sample("farflash_fenced", &Labels::default(), fenced);
    }
    let name = "farflash_api_authentication_failures_total";
    text.family(name, "counter", "Requests to the API without a known token.");
    text.sample(name, &Labels::default(), counts.unauthenticated());
    let help =
        "Requests answered 429: too many changes of their caller were refused, or under way.";
    text.family("farflash_api_put_off_total", "counter", help);
    text.sample("farflash_api_put_off_total", &Labels::default(), counts.put_off());
    cores(&mut text, &server.cores);
    core_stats(&mut text, &stats.cores);
    devices(&mut text, &server.devices, stats);
    volumes(&mut text, &stats.volumes);
    volume_latencies(&mut text, stats);
    quotas(&mut text, tenants);
    text.0
}

/// Usage and quotas of tenants: used on this host, allowed on all hosts. An unbounded quota has no sample.
fn quotas(text: &mut Text, tenants: &[TenantQuota]) {
    let labels: Vec<Labels> =
        tenants.iter().map(|tenant| Labels::new(&[("tenant", &tenant.tenant)])).collect();
    let parts: Vec<_> = tenants.iter().map(TenantQuota::parts).collect();
    for number in 0..parts.first().map_or(0, |parts| parts.len()) {
        let name = format!("farflash_tenant_{}", parts[0][number].0);
        text.family(&name, "gauge", "What the tenant's volumes on this host have of its quota.");
        for (labels, parts) in labels.iter().zip(&parts) {
            text.sample(&name, labels, parts[number].1.used);
        }
        let limit = format!("{name}_limit");
        text.family(&limit, "gauge", "What the tenant's volumes on all hosts may have.");
        for (labels, parts) in labels.iter().zip(&parts) {
            if let Some(bound) = parts[number].1.limit {
                text.sample(&limit, labels, bound);
            }
        }
    }
}

fn cores(text: &mut Text, cores: &[Core]) {
    let all: Vec<_> =
        cores.iter().map(|core| (Labels::new(&[("core", &core.core)]), core)).collect();
    let help = ("farflash_core_connections", "gauge", "Connections open, by any protocol.");
    text.each(help, &all, |core| core.connections);
    let help = ("farflash_core_volumes", "gauge", "Volumes that the core serves.");
    text.each(help, &all, |core| core.volumes);
    protocols(text, cores);
}

/// Metrics of each front end, by protocol.
fn protocols(text: &mut Text, cores: &[Core]) {
    let of_cores = cores.iter().flat_map(|core| core.protocols.iter().map(move |one| (core, one)));
    let labels = |core: &Core, one: &ProtocolStats| {
        Labels::new(&[("core", &core.core), ("protocol", &one.protocol)])
    };
    let all: Vec<_> = of_cores.map(|(core, one)| (labels(core, one), one)).collect();
    let help = ("farflash_protocol_connections", "gauge", "Connections open, by protocol.");
    text.each(help, &all, |one| one.connections);
    let help =
        ("farflash_protocol_connections_let_in", "gauge", "Connections that have a volume open.");
    text.each(help, &all, |one| one.connections_let_in);
    let help = ("farflash_protocol_connections_total", "counter", "Connections, by protocol.");
    text.each(help, &all, |one| one.connected);
    let help = (
        "farflash_protocol_refused_total",
        "counter",
        "Clients that were told that they may not open what they asked for.",
    );
    text.each(help, &all, |one| one.refused);
    let help = ("farflash_protocol_read_bytes_total", "counter", "Bytes of the blocks read.");
    text.each(help, &all, |one| one.read_bytes);
    let help = ("farflash_protocol_written_bytes_total", "counter", "Bytes written.");
    text.each(help, &all, |one| one.written_bytes);
}

fn core_stats(text: &mut Text, cores: &[CoreStats]) {
    let all: Vec<_> =
        cores.iter().map(|core| (Labels::new(&[("core", &core.core)]), core)).collect();
    let help = ("farflash_core_request_memory_bytes", "gauge", "Memory of requests' data.");
    text.each(help, &all, |core| core.request_memory_bytes);
    let help = ("farflash_core_connections_max", "gauge", "Connections that there may be.");
    text.each(help, &all, |core| core.connections_max);
    let help = ("farflash_core_connections_let_in", "gauge", "Connections let into a volume.");
    text.each(help, &all, |core| core.connections_let_in);
    let help = (
        "farflash_core_authentication_failures_total",
        "counter",
        "Authentications of hosts that failed.",
    );
    text.each(help, &all, |core| core.authentication_failures);
    let help = (
        "farflash_core_authentications_unfinished_total",
        "counter",
        "Authentications that were asked of hosts, which left without.",
    );
    text.each(help, &all, |core| core.authentications_unfinished);
    let help = (
        "farflash_core_connections_refused_total",
        "counter",
        "Connections of hosts closed as they came, for want of places.",
    );
    text.each(help, &all, |core| core.connections_refused);
    let help = (
        "farflash_core_connects_put_off_total",
        "counter",
        "Connects of hosts put off, after authentications that failed.",
    );
    text.each(help, &all, |core| core.connects_put_off);
    let help = (
        "farflash_core_errors_total",
        "Commands answered with an error, but for those of I/O queues, by NVMe status.",
    );
    errors(text, help, all.iter().map(|(labels, core)| (labels, &core.errors)));
}

/// Conditions of the server, each kind, so that an alert can rely on a value.
fn server_notices(text: &mut Text, server: &Server) {
    let help = "1 while a condition of the server of this kind holds, such as an audit log on a full disk.";
    text.family("farflash_notice", "gauge", help);
    for kind in ServerNoticeKind::ALL {
        let holds = server.notices.iter().any(|notice| notice.kind == kind);
        let labels = Labels::new(&[("kind", &kind.name())]);
        text.sample("farflash_notice", &labels, u8::from(holds));
    }
    let help =
        "Tasks that have to live as long as the server, and failed by a fault of the program.";
    text.family("farflash_task_failures_total", "counter", help);
    text.sample("farflash_task_failures_total", &Labels::default(), server.task_failures);
}

/// Conditions of devices, each kind for each device, so that an alert can rely on a value.
fn notices(text: &mut Text, devices: &[Device]) {
    let mut all = Vec::new();
    for device in devices {
        for kind in NoticeKind::ALL {
            let labels = Labels::new(&[("device", &device.name)]).and("kind", kind.name());
            all.push((labels, device.notices.iter().any(|notice| notice.kind == kind)));
        }
    }
    let all: Vec<_> = all.iter().map(|(labels, holds)| (labels.clone(), holds)).collect();
    let help = (
        "farflash_device_notice",
        "gauge",
        "1 while a condition of this kind holds, such as a full file system below.",
    );
    text.each(help, &all, |holds| u8::from(*holds));
}

/// The sizes of the volumes on each device, together.
fn provisioned(text: &mut Text, devices: &[(Labels, &Device)], volumes: &[VolumeStats]) {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for volume in volumes {
        let sum = sums.entry(&volume.device).or_default();
        *sum = sum.saturating_add(volume.size_bytes);
    }
    let help = (
        "farflash_device_provisioned_bytes",
        "gauge",
        "The sizes of all volumes on the device together.",
    );
    text.each(help, devices, |device| sums.get(&*device.name).copied().unwrap_or(0));
}

fn devices(text: &mut Text, devices: &[Device], stats: &Stats) {
    let all: Vec<_> =
        devices.iter().map(|device| (Labels::new(&[("device", &device.name)]), device)).collect();
    let help = ("farflash_device_capacity_bytes", "gauge", "Bytes that volumes can hold.");
    text.each(help, &all, |device| device.capacity_bytes);
    let help = ("farflash_device_free_bytes", "gauge", "Bytes that no volume holds.");
    text.each(help, &all, |device| device.free_bytes);
    provisioned(text, &all, &stats.volumes);
    let help = (
        "farflash_device_volatile_write_cache",
        "gauge",
        "1 if writes wait for a flush of the device.",
    );
    text.each(help, &all, |device| u8::from(device.volatile_write_cache));
    let help = (
        "farflash_device_health",
        "gauge",
        "0 good, 1 damage or errors found, 2 takes no changes.",
    );
    text.each(help, &all, |device| match device.health {
        DeviceHealth::Good => 0,
        DeviceHealth::Degraded => 1,
        DeviceHealth::Failed => 2,
    });
    let help = (
        "farflash_device_away",
        "gauge",
        "1 if the device cannot be used: it is away, or another one is in its place.",
    );
    text.each(help, &all, |device| u8::from(device.trouble.is_some()));
    notices(text, devices);
    let (mut all, mut windows, mut maps) = (Vec::new(), Vec::new(), Vec::new());
    for device in &stats.devices {
        let labels = Labels::new(&[("device", &device.name)]);
        for (window, map) in device.windows.iter().zip(&device.maps) {
            let labels = labels.clone().and("core", window.core);
            windows.push((labels.clone(), window));
            maps.push((labels, map));
        }
        all.push((labels, device));
    }
    let help = (
        "farflash_device_media_errors_total",
        "counter",
        "Blocks found damaged, of whatever kind and each once, and requests that the device failed.",
    );
    text.each(help, &all, |device| device.media_errors);
    scrubs(text, &all);
    let help = ("farflash_device_journal_used_ratio", "gauge", "How full the journal is.");
    text.each(help, &windows, |window| window.journal_used);
    let directed: Vec<_> = windows
        .iter()
        .flat_map(|(labels, window)| by_direction(labels, &window.reads, &window.writes))
        .collect();
    let help = ("farflash_device_in_use_blocks", "gauge", "Blocks under way at the device.");
    text.each(help, &directed, |window| window.in_use_blocks);
    let help = ("farflash_device_queued_requests", "gauge", "Requests that wait for their turn.");
    text.each(help, &directed, |window| window.queued);
    let help = ("farflash_map_resident_bytes", "gauge", "Memory that the maps of volumes take.");
    text.each(help, &maps, |map| map.resident_bytes);
    let help =
        ("farflash_map_hits_total", "counter", "Look-ups of requests in maps that needed no read.");
    text.each(help, &maps, |map| map.hits);
    let help = ("farflash_map_loads_total", "counter", "Nodes of maps read from the device.");
    text.each(help, &maps, |map| map.loads);
    let help =
        ("farflash_map_evictions_total", "counter", "Nodes of maps that gave way to others.");
    text.each(help, &maps, |map| map.evictions);
    flows(text, &windows, &stats.latency_bounds_us);
}

/// Counters and rates of devices, by core: the sum by `core` is the work of that core.
fn flows(text: &mut Text, windows: &[(Labels, &WindowStats)], bounds_us: &[u64]) {
    let help = ("farflash_device_requests_total", "counter", "Requests done.");
    text.each(help, windows, |window| window.flow.requests);
    let help = ("farflash_device_read_bytes_total", "counter", READ_BYTES);
    text.each(help, windows, |window| window.flow.read_blocks.saturating_mul(BLOCK_BYTES));
    let help = ("farflash_device_written_bytes_total", "counter", WRITTEN_BYTES);
    text.each(help, windows, |window| window.flow.written_blocks.saturating_mul(BLOCK_BYTES));
    let help =
        ("farflash_device_waited_seconds_total", "counter", "Time requests waited their turn.");
    text.each(help, windows, |window| window.flow.waited_ns as f64 / NANOS_PER_SECOND);
    let help =
        ("farflash_device_served_seconds_total", "counter", "Time requests took behind that.");
    text.each(help, windows, |window| window.flow.served_ns as f64 / NANOS_PER_SECOND);
    let help = ("farflash_device_in_flight_requests", "gauge", "Requests at engine and device.");
    text.each(help, windows, |window| window.flow.in_flight);
    let ways = windows.iter().flat_map(|(labels, window)| {
        by_direction(labels, &window.read_latency, &window.write_latency)
    });
    latencies(text, "farflash_device_latency_seconds", bounds_us, ways);
    let help = (
        "farflash_device_errors_total",
        "Commands of I/O queues answered with an error, by NVMe status.",
    );
    errors(text, help, windows.iter().map(|(labels, window)| (labels, &window.errors)));
}

/// Each core reads its part of a device.
fn scrubs(text: &mut Text, devices: &[(Labels, &DeviceStats)]) {
    let help =
        ("farflash_device_scrub_parts_running", "gauge", "Cores that scrub their parts of it.");
    text.each(help, devices, |device| device.scrubs.running);
    let name = "farflash_device_scrub_parts_total";
    text.family(name, "counter", "Scrubs of a core's part of the device that have ended.");
    for (labels, device) in devices {
        let ScrubStats { done, stopped, failed, .. } = device.scrubs;
        for (outcome, count) in [("done", done), ("stopped", stopped), ("failed", failed)] {
            text.sample(name, &labels.clone().and("outcome", outcome), count);
        }
    }
    let name = "farflash_device_scrub_damaged_total";
    text.family(name, "counter", "What scrubs found damaged; each scrub counts it again.");
    for (labels, device) in devices {
        for (what, count) in &device.scrubs.damaged {
            text.sample(name, &labels.clone().and("what", what), count);
        }
    }
}

fn labels_of(volume: &VolumeStats) -> Labels {
    let VolumeStats { name, id, device, core, .. } = volume;
    Labels::new(&[("volume", name), ("id", id), ("device", device), ("core", core)])
}

fn volumes(text: &mut Text, volumes: &[VolumeStats]) {
    let all: Vec<_> = volumes.iter().map(|volume| (labels_of(volume), volume)).collect();
    let help = ("farflash_volume_size_bytes", "gauge", "Bytes of the volume as hosts see it.");
    text.each(help, &all, |volume| volume.size_bytes);
    let help =
        ("farflash_volume_allocated_bytes", "gauge", "Bytes of the device that the volume holds.");
    text.each(help, &all, |volume| volume.allocated_bytes);
    let help = ("farflash_volume_requests_total", "counter", "Requests done.");
    text.each(help, &all, |volume| volume.flow.requests);
    let help = ("farflash_volume_read_bytes_total", "counter", READ_BYTES);
    text.each(help, &all, |volume| volume.flow.read_blocks.saturating_mul(BLOCK_BYTES));
    let help = ("farflash_volume_written_bytes_total", "counter", WRITTEN_BYTES);
    text.each(help, &all, |volume| volume.flow.written_blocks.saturating_mul(BLOCK_BYTES));
    let help =
        ("farflash_volume_waited_seconds_total", "counter", "Time requests waited their turn.");
    text.each(help, &all, |volume| volume.flow.waited_ns as f64 / NANOS_PER_SECOND);
    let help =
        ("farflash_volume_served_seconds_total", "counter", "Time requests took behind that.");
    text.each(help, &all, |volume| volume.flow.served_ns as f64 / NANOS_PER_SECOND);
    let help = (
        "farflash_volume_media_errors_total",
        "counter",
        "Blocks found damaged, of the volume and of what all of its device rest on, and its requests that the device failed.",
    );
    text.each(help, &all, |volume| volume.media_errors);
    let help = (
        "farflash_volume_errors_total",
        "counter",
        "Commands of I/O queues answered with an error.",
    );
    text.each(help, &all, |volume| volume.errors.values().sum::<u64>());
    let help = ("farflash_volume_queued_requests", "gauge", "Requests that wait for their turn.");
    text.each(help, &all, |volume| volume.flow.queued);
    let help = ("farflash_volume_in_flight_requests", "gauge", "Requests at engine and device.");
    text.each(help, &all, |volume| volume.flow.in_flight);
    let help = ("farflash_volume_connections", "gauge", "Connections of the volume's hosts.");
    text.each(help, &all, |volume| volume.connections);
}

/// Histograms of volumes that had requests: of one that had none it says nothing, since ranges without
/// requests take as much space as others.
fn volume_latencies(text: &mut Text, stats: &Stats) {
    let all = stats.volumes.iter().flat_map(|volume| {
        let used = |latency: &Latency| latency.counts.iter().any(|count| *count > 0);
        let ways = by_direction(&labels_of(volume), &volume.read_latency, &volume.write_latency);
        ways.into_iter().filter(move |(_, latency)| used(latency))
    });
    latencies(text, "farflash_volume_latency_seconds", &stats.latency_bounds_us, all);
}

fn by_direction<'a, T>(labels: &Labels, read: &'a T, write: &'a T) -> [(Labels, &'a T); 2] {
    [("read", read), ("write", write)]
        .map(|(name, part)| (labels.clone().and("direction", name), part))
}

/// A family of histograms.
fn latencies<'a>(
    text: &mut Text,
    name: &str,
    bounds_us: &[u64],
    all: impl Iterator<Item = (Labels, &'a Latency)>,
) {
    text.family(name, "histogram", "Time of requests, the wait for their turn in it.");
    let (bucket, sum, count) = ([name, "_bucket"], [name, "_sum"], [name, "_count"]);
    let [bucket, sum, count] = [bucket, sum, count].map(|parts| parts.concat());
    let seconds = |bound_us: &u64| format!("{}", *bound_us as f64 / 1e6);
    let bounds: Vec<String> = bounds_us.iter().map(seconds).collect();
    for (labels, Latency { counts, sum_ns }) in all {
        let (mut below, total) = (0, counts.iter().sum::<u64>());
        for (bound, requests) in bounds.iter().zip(counts) {
            below += requests;
            text.sample(&bucket, &labels.clone().and("le", bound), below);
        }
        text.sample(&bucket, &labels.clone().and("le", "+Inf"), total);
        text.sample(&sum, &labels, *sum_ns as f64 / NANOS_PER_SECOND);
        text.sample(&count, &labels, total);
    }
}

/// A family of counts by what was answered. There are as many names as the specification has.
fn errors<'a>(
    text: &mut Text,
    (name, help): (&str, &str),
    all: impl Iterator<Item = (&'a Labels, &'a BTreeMap<String, u64>)>,
) {
    text.family(name, "counter", help);
    for (labels, errors) in all {
        for (status, count) in errors {
            text.sample(name, &labels.clone().and("status", status), count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_the_form_of_the_format() {
        let mut text = Text::default();
        text.family("a_total", "counter", "Help.");
        text.sample("a_total", &Labels::new(&[("x", &"a\"b\\c\nd"), ("y", &"")]), 1.5);
        text.sample("b", &Labels::default(), 2);
        let expected = "# HELP a_total Help.\n# TYPE a_total counter\n\
                        a_total{x=\"a\\\"b\\\\c\\nd\",y=\"\"} 1.5\nb 2\n";
        assert_eq!(text.0, expected);
    }

    /// No name comes twice with the same labels, and each belongs to the family above it.
    #[test]
    fn a_family_is_whole_and_samples_are_unlike() {
        let server = Server {
            version: "1".to_owned(),
            uptime_seconds: 2,
            authentication: true,
            log_lines_left_out: 0,
            notices: vec![crate::ServerNotice {
                kind: ServerNoticeKind::Fence,
                text: "no volume is served".to_owned(),
            }],
            task_failures: 0,
            directory: crate::DirectoryStatus::default(),
            cores: Vec::new(),
            devices: Vec::new(),
        };
        let volume = |number: u128| VolumeStats {
            id: uuid::Uuid::from_u128(number),
            name: format!("v{number}"),
            device: "mem:1GiB".to_owned(),
            core: 3,
            size_bytes: 8192,
            allocated_bytes: 4096,
            slo: crate::Slo::Share(1),
            promised_reads_per_second: None,
            promised_writes_per_second: None,
            flow: crate::FlowStats {
                queued: 1,
                requests: 3,
                read_blocks: 4,
                served_ns: 1_500_000_000,
                ..crate::FlowStats::default()
            },
            connections: 1,
            read_latency: Latency { counts: vec![1, 2, 4], sum_ns: 2_500_000_000 },
            write_latency: Latency { counts: vec![0; 3], sum_ns: 0 },
            media_errors: 9,
            errors: [("Capacity Exceeded".to_owned(), 2), ("Write Fault".to_owned(), 3)].into(),
        };
        let bounded = |used, limit| crate::Use { used, limit };
        let tenant = |name: &str| TenantQuota {
            tenant: name.to_owned(),
            volumes: bounded(1, Some(2)),
            provisioned_bytes: bounded(3, None),
            allocated_bytes: bounded(4, Some(5)),
            share: bounded(6, None),
            reads_per_second: bounded(0, Some(0)),
            writes_per_second: bounded(0, Some(7)),
        };
        let volumes = vec![volume(1), volume(2)];
        let (devices, cores) = (Vec::new(), Vec::new());
        let latency_bounds_us = vec![50, 1_000_000];
        let stats = Stats { time_ns: 1, devices, latency_bounds_us, cores, volumes };
        let counts = Counts::default();
        (0..8).for_each(|_| counts.note_unauthenticated());
        (0..3).for_each(|_| counts.note_put_off());
        let text = text(&server, &stats, &[tenant("acme"), tenant("b")], &counts);
        let (mut family, mut seen) = (String::new(), std::collections::BTreeSet::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().unwrap_or_default().to_owned();
            } else if !line.starts_with('#') {
                let (series, _) = line.rsplit_once(' ').expect("a value");
                let name = series.split('{').next().unwrap_or_default();
                let parts = ["", "_bucket", "_sum", "_count"];
                assert!(parts.iter().any(|part| name == format!("{family}{part}")), "{name}");
                assert!(seen.insert(series.to_owned()), "{series} twice");
            }
        }
        let id = "00000000-0000-0000-0000-000000000002";
        let labels = format!("{{volume=\"v2\",id=\"{id}\",device=\"mem:1GiB\",core=\"3\"}}");
        assert!(text.contains(&format!("farflash_volume_read_bytes_total{labels} 16384\n")));
        assert!(text.contains(&format!("farflash_volume_served_seconds_total{labels} 1.5\n")));
        assert!(text.contains(&format!("farflash_volume_size_bytes{labels} 8192\n")));
        assert!(text.contains(&format!("farflash_volume_allocated_bytes{labels} 4096\n")));
        let labels = labels.replace('}', ",direction=\"read\"");
        for (le, below) in [("0.00005", 1), ("1", 3), ("+Inf", 7)] {
            let sample =
                format!("farflash_volume_latency_seconds_bucket{labels},le=\"{le}\"}} {below}\n");
            assert!(text.contains(&sample), "{sample}{text}");
        }
        assert!(text.contains(&format!("farflash_volume_latency_seconds_sum{labels}}} 2.5\n")));
        assert!(!text.contains("direction=\"write\""), "no request, no series");
        let labels = labels.replace(",direction=\"read\"", "}");
        assert!(text.contains(&format!("farflash_volume_errors_total{labels} 5\n")));
        for sample in [
            "farflash_api_authentication_failures_total 8\n",
            "farflash_api_put_off_total 3\n",
            "farflash_notice{kind=\"fence\"} 1\n",
            "farflash_notice{kind=\"audit_log\"} 0\n",
            "farflash_tenant_allocated_bytes{tenant=\"b\"} 4\n",
            "farflash_tenant_allocated_bytes_limit{tenant=\"b\"} 5\n",
            "farflash_tenant_provisioned_bytes{tenant=\"acme\"} 3\n",
        ] {
            assert!(text.contains(sample), "{sample}{text}");
        }
        assert!(!text.contains("farflash_tenant_provisioned_bytes_limit{"), "it has none");
        assert!(text.contains("farflash_volume_media_errors_total{volume=\"v1\""));
    }
}
