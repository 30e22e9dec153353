//! The figures of `/v1/stats` and `/v1/server` in the text form of Prometheus (exposition format 0.0.4).

use std::fmt::{Display, Write};

use crate::{Core, CoreStats, Device, DeviceHealth, Latency, Server, Stats, VolumeStats};

const NANOS_PER_SECOND: f64 = 1e9;
const BLOCK_BYTES: u64 = 4096;

/// The media type of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Metrics, one family after the other.
#[derive(Default)]
struct Text(String);

/// Label names and values.
type Labels<'a> = [(&'a str, &'a str)];

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &Labels<'_>, value: impl Display) {
        self.0.push_str(name);
        for (index, (label, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let open = if index == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{open}{label}=\"{value}\"");
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{close} {value}");
    }

    /// A family with a sample for each of `all`, and their labels.
    fn each<T, V: Display>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        all: &[(Vec<(&str, &str)>, &T)],
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

/// All metrics of a server.
pub(crate) fn text(server: &Server, stats: &Stats) -> String {
    let mut text = Text::default();
    text.family("farflash_build_info", "gauge", "The release that runs.");
    text.sample("farflash_build_info", &[("version", &server.version)], 1);
    text.family("farflash_uptime_seconds", "gauge", "Seconds since the server started.");
    text.sample("farflash_uptime_seconds", &[], server.uptime_seconds);
    cores(&mut text, &server.cores);
    core_stats(&mut text, &stats.cores);
    devices(&mut text, &server.devices, stats);
    volumes(&mut text, &stats.volumes);
    latencies(&mut text, stats);
    text.0
}

fn cores(text: &mut Text, cores: &[Core]) {
    let names: Vec<String> = cores.iter().map(|core| core.core.to_string()).collect();
    let all: Vec<_> = cores
        .iter()
        .zip(&names)
        .map(|(core, name)| (vec![("core", name.as_str())], core))
        .collect();
    let help = ("farflash_core_connections", "gauge", "Connections open on the core's portal.");
    text.each(help, &all, |core| core.connections);
    let help = ("farflash_core_volumes", "gauge", "Volumes that the core serves.");
    text.each(help, &all, |core| core.volumes);
}

fn core_stats(text: &mut Text, cores: &[CoreStats]) {
    let names: Vec<String> = cores.iter().map(|core| core.core.to_string()).collect();
    let all: Vec<_> = cores
        .iter()
        .zip(&names)
        .map(|(core, name)| (vec![("core", name.as_str())], core))
        .collect();
    let help = ("farflash_core_request_memory_bytes", "gauge", "Memory of requests' data.");
    text.each(help, &all, |core| core.request_memory_bytes);
    let help = (
        "farflash_core_authentication_failures_total",
        "counter",
        "Authentications of hosts that failed.",
    );
    text.each(help, &all, |core| core.authentication_failures);
}

fn devices(text: &mut Text, devices: &[Device], stats: &Stats) {
    let all: Vec<_> =
        devices.iter().map(|device| (vec![("device", device.name.as_str())], device)).collect();
    let help = ("farflash_device_capacity_bytes", "gauge", "Bytes that volumes can hold.");
    text.each(help, &all, |device| device.capacity_bytes);
    let help = ("farflash_device_free_bytes", "gauge", "Bytes that no volume holds.");
    text.each(help, &all, |device| device.free_bytes);
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
    let cores = |device: &crate::DeviceStats| -> Vec<String> {
        device.windows.iter().map(|window| window.core.to_string()).collect()
    };
    let names: Vec<Vec<String>> = stats.devices.iter().map(cores).collect();
    let (mut windows, mut maps) = (Vec::new(), Vec::new());
    for (device, names) in stats.devices.iter().zip(&names) {
        for ((window, map), name) in device.windows.iter().zip(&device.maps).zip(names) {
            let labels = vec![("device", device.name.as_str()), ("core", name.as_str())];
            windows.push((labels.clone(), window));
            maps.push((labels, map));
        }
    }
    let labels = |device: &'_ crate::DeviceStats| device.name.clone();
    let owned: Vec<String> = stats.devices.iter().map(labels).collect();
    let all: Vec<_> = stats
        .devices
        .iter()
        .zip(&owned)
        .map(|(device, name)| (vec![("device", name.as_str())], device))
        .collect();
    let help = (
        "farflash_device_media_errors_total",
        "counter",
        "Blocks found damaged, of whatever kind and each once, and requests that the device failed.",
    );
    text.each(help, &all, |device| device.media_errors);
    let help = ("farflash_device_journal_used_ratio", "gauge", "How full the journal is.");
    text.each(help, &windows, |window| window.journal_used);
    let directed: Vec<_> = windows
        .iter()
        .flat_map(|(labels, window)| {
            [("read", &window.reads), ("write", &window.writes)]
                .map(|(name, part)| ([&labels[..], &[("direction", name)]].concat(), part))
        })
        .collect();
    let help = ("farflash_device_in_use_blocks", "gauge", "Blocks under way at the device.");
    text.each(help, &directed, |window| window.in_use_blocks);
    let help = ("farflash_device_queued_requests", "gauge", "Requests that wait for their turn.");
    text.each(help, &directed, |window| window.queued);
    let help = ("farflash_map_resident_bytes", "gauge", "Memory that the maps of volumes take.");
    text.each(help, &maps, |map| map.resident_bytes);
    let help = ("farflash_map_loads_total", "counter", "Nodes of maps read from the device.");
    text.each(help, &maps, |map| map.loads);
}

fn volumes(text: &mut Text, volumes: &[VolumeStats]) {
    let names: Vec<[String; 2]> =
        volumes.iter().map(|volume| [volume.id.to_string(), volume.core.to_string()]).collect();
    let labels = |volume: &'_ VolumeStats, [id, core]: &'_ [String; 2]| {
        let (name, device) = (volume.name.clone(), volume.device.clone());
        [("volume", name), ("id", id.clone()), ("device", device), ("core", core.clone())]
    };
    let owned: Vec<_> =
        volumes.iter().zip(&names).map(|(volume, names)| labels(volume, names)).collect();
    let all: Vec<_> = volumes
        .iter()
        .zip(&owned)
        .map(|(volume, labels)| (labels.iter().map(|(k, v)| (*k, v.as_str())).collect(), volume))
        .collect();
    let help = ("farflash_volume_requests_total", "counter", "Requests done.");
    text.each(help, &all, |volume| volume.flow.requests);
    let help = ("farflash_volume_read_bytes_total", "counter", "Bytes read.");
    text.each(help, &all, |volume| volume.flow.read_blocks.saturating_mul(BLOCK_BYTES));
    let help = ("farflash_volume_written_bytes_total", "counter", "Bytes written.");
    text.each(help, &all, |volume| volume.flow.written_blocks.saturating_mul(BLOCK_BYTES));
    let help =
        ("farflash_volume_waited_seconds_total", "counter", "Time requests waited their turn.");
    text.each(help, &all, |volume| volume.flow.waited_ns as f64 / NANOS_PER_SECOND);
    let help =
        ("farflash_volume_served_seconds_total", "counter", "Time requests took behind that.");
    text.each(help, &all, |volume| volume.flow.served_ns as f64 / NANOS_PER_SECOND);
    let help = ("farflash_volume_queued_requests", "gauge", "Requests that wait for their turn.");
    text.each(help, &all, |volume| volume.flow.queued);
    let help = ("farflash_volume_in_flight_requests", "gauge", "Requests at engine and device.");
    text.each(help, &all, |volume| volume.flow.in_flight);
}

/// Histograms of volumes that had requests: of one that had none it says nothing, since ranges without
/// requests take as much space as others.
fn latencies(text: &mut Text, stats: &Stats) {
    let name = "farflash_volume_latency_seconds";
    text.family(name, "histogram", "Time of requests, the wait for their turn in it.");
    let (bucket, sum, count) = ([name, "_bucket"], [name, "_sum"], [name, "_count"]);
    let [bucket, sum, count] = [bucket, sum, count].map(|parts| parts.concat());
    let seconds = |bound_us: &u64| format!("{}", *bound_us as f64 / 1e6);
    let bounds: Vec<String> = stats.latency_bounds_us.iter().map(seconds).collect();
    for volume in &stats.volumes {
        let (id, core) = (volume.id.to_string(), volume.core.to_string());
        let ways = [("read", &volume.read_latency), ("write", &volume.write_latency)];
        for (direction, Latency { counts, sum_ns }) in ways {
            let total: u64 = counts.iter().sum();
            if total == 0 {
                continue;
            }
            let mut labels = vec![
                ("volume", volume.name.as_str()),
                ("id", &id),
                ("device", &volume.device),
                ("core", &core),
                ("direction", direction),
            ];
            let mut below = 0;
            for (bound, requests) in bounds.iter().zip(counts) {
                below += requests;
                labels.push(("le", bound));
                text.sample(&bucket, &labels, below);
                labels.pop();
            }
            labels.push(("le", "+Inf"));
            text.sample(&bucket, &labels, total);
            labels.pop();
            text.sample(&sum, &labels, *sum_ns as f64 / NANOS_PER_SECOND);
            text.sample(&count, &labels, total);
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
        text.sample("a_total", &[("x", "a\"b\\c\nd"), ("y", "")], 1.5);
        text.sample("b", &[], 2);
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
            cores: Vec::new(),
            devices: Vec::new(),
        };
        let volume = |number: u128| VolumeStats {
            id: uuid::Uuid::from_u128(number),
            name: format!("v{number}"),
            device: "mem:1GiB".to_owned(),
            core: 3,
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
            read_latency: Latency { counts: vec![1, 2, 4], sum_ns: 2_500_000_000 },
            write_latency: Latency { counts: vec![0; 3], sum_ns: 0 },
        };
        let volumes = vec![volume(1), volume(2)];
        let (devices, cores) = (Vec::new(), Vec::new());
        let latency_bounds_us = vec![50, 1_000_000];
        let text = text(&server, &Stats { time_ns: 1, devices, latency_bounds_us, cores, volumes });
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
        let labels = labels.replace('}', ",direction=\"read\"");
        for (le, below) in [("0.00005", 1), ("1", 3), ("+Inf", 7)] {
            let sample =
                format!("farflash_volume_latency_seconds_bucket{labels},le=\"{le}\"}} {below}\n");
            assert!(text.contains(&sample), "{sample}{text}");
        }
        assert!(text.contains(&format!("farflash_volume_latency_seconds_sum{labels}}} 2.5\n")));
        assert!(!text.contains("direction=\"write\""), "no request, no series");
    }
}
