//! `farflash top`: what volumes and devices do, live.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use control::{FlowStats, Slo, Stats, VolumeStats};
use report::{Align, Table};
use serde::Serialize;

use super::api::ApiArgs;
use crate::failure::Failure;
use crate::output;

pub(super) const EXAMPLES: &str = "\
PROMISED is what a volume can count on under the device's ceiling, in blocks of 4 KiB read and written a \
second; GOT is what it got of either, in percent. INSIDE are the blocks that it has under way. WAIT is the \
time before a request's turn, SERVICE the time behind it.

Examples:
  farflash top
  farflash top --once --json | jq '.volumes[] | {name, reads_per_second}'";

/// Puts the cursor at the top left and clears what is below.
const HOME: &str = "\x1b[H\x1b[J";

#[derive(Debug, Args)]
pub(crate) struct Top {
    #[command(flatten)]
    api: ApiArgs,
    /// Seconds between two looks
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    interval: f64,
    /// Print one interval and end; so it is, too, where the output is no terminal
    #[arg(long)]
    once: bool,
    /// Print JSON, a line for each interval
    #[arg(long)]
    json: bool,
}

/// What happened between two looks.
#[derive(Debug, Serialize)]
struct Interval {
    seconds: f64,
    devices: Vec<DeviceRow>,
    volumes: Vec<Row>,
}

/// A device: how it is now, and what it did.
#[derive(Debug, Serialize)]
struct DeviceRow {
    #[serde(flatten)]
    now: control::DeviceStats,
    #[serde(flatten)]
    rates: Rates,
}

/// What requests did, each second and each.
#[derive(Debug, Serialize)]
struct Rates {
    requests_per_second: f64,
    reads_per_second: f64,
    writes_per_second: f64,
    wait_us: f64,
    service_us: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    device: String,
    core: u32,
    slo: Slo,
    #[serde(flatten)]
    rates: Rates,
    promised_reads_per_second: Option<f64>,
    promised_writes_per_second: Option<f64>,
    /// Blocks read, in percent of what is promised; with a write cost all that counts as reads.
    got_reads_percent: Option<f64>,
    /// Blocks written, in percent of what is promised.
    got_writes_percent: Option<f64>,
    queued: u64,
    in_flight: u64,
    in_flight_read_blocks: u64,
    in_flight_written_blocks: u64,
}

impl Top {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if !(0.1..=3600.0).contains(&self.interval) {
            return Err(Failure::usage(
                "--interval is no time to wait",
                "give 0.1 to 3600 seconds",
            ));
        }
        let client = self.api.client()?;
        let is_live = std::io::stdout().is_terminal() && !self.once;
        let mut before = client.stats()?;
        loop {
            std::thread::sleep(Duration::from_secs_f64(self.interval));
            let after = client.stats()?;
            let view = Interval::new(&before, &after);
            output::print("look with `farflash top --once`", |out| match (self.json, is_live) {
                (true, _) => writeln!(out, "{}", serde_json::to_string(&view)?),
                (false, true) => write!(out, "{HOME}{}", view.text()),
                (false, false) => write!(out, "{}", view.text()),
            })?;
            if !is_live && (self.once || !self.json) {
                return Ok(());
            }
            before = after;
        }
    }
}

impl Interval {
    fn new(before: &Stats, after: &Stats) -> Self {
        let seconds = after.time_ns.saturating_sub(before.time_ns).max(1) as f64 / 1e9;
        let row = |now: &VolumeStats| {
            let old = before.volumes.iter().find(|old| old.id == now.id);
            let device = after.devices.iter().find(|device| device.name == now.device);
            let write_cost = device.and_then(|device| device.sharing.write_cost_per_mille);
            Row::new(old, now, write_cost, seconds)
        };
        let device = |now: &control::DeviceStats| {
            let old = before.devices.iter().find(|old| old.name == now.name);
            DeviceRow {
                rates: Rates::new(old.map(|old| old.flow), now.flow, seconds),
                now: now.clone(),
            }
        };
        let volumes = after.volumes.iter().map(row).collect();
        Self { seconds, devices: after.devices.iter().map(device).collect(), volumes }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for DeviceRow { now: device, rates } in &self.devices {
            let ceiling = device.sharing.ceiling.map_or("no ceiling".to_owned(), |ceiling| {
                format!(
                    "ceiling {} r/s {} w/s at {}, {}",
                    ceiling.reads_per_second,
                    ceiling.writes_per_second,
                    report::duration_ns(ceiling.latency_target_us as f64 * 1e3),
                    device.sharing.policy
                )
            });
            text += &format!("{}: {ceiling}\n", device.name);
            text += &format!(
                "  {:.0} r/s {:.0} w/s, wait {:.0} µs, service {:.0} µs\n",
                rates.reads_per_second, rates.writes_per_second, rates.wait_us, rates.service_us
            );
            for window in &device.windows {
                for (what, part) in [("read", window.reads), ("written", window.writes)] {
                    // With a write cost there is one window for all.
                    if let Some(blocks) = part.window_blocks.filter(|blocks| *blocks > 0) {
                        text += &format!(
                            "  core {}: {} of {blocks} blocks being {what}, {} requests wait\n",
                            window.core, part.in_use_blocks, part.queued
                        );
                    }
                }
            }
        }
        text + &self.table().to_text()
    }

    fn table(&self) -> Table {
        let has_several = self.devices.len() > 1;
        let mut columns = vec![
            ("VOLUME", Align::Left),
            ("CORE", Align::Right),
            ("SLO", Align::Left),
            ("REQ/S", Align::Right),
            ("READ/S", Align::Right),
            ("WRITE/S", Align::Right),
            ("PROMISED", Align::Right),
            ("GOT", Align::Right),
            ("QUEUED", Align::Right),
            ("INSIDE", Align::Right),
            ("WAIT", Align::Right),
            ("SERVICE", Align::Right),
        ];
        columns.extend(has_several.then_some(("DEVICE", Align::Left)));
        let mut table = Table::new(&columns);
        for row in &self.volumes {
            let promised = match (row.promised_reads_per_second, row.promised_writes_per_second) {
                (Some(reads), Some(writes)) if writes > 0.0 => format!("{reads:.0}+{writes:.0}"),
                (Some(reads), _) => format!("{reads:.0}"),
                _ => "-".to_owned(),
            };
            let device = has_several.then(|| row.device.clone());
            let cells = [
                row.name.clone(),
                row.core.to_string(),
                row.slo.to_string(),
                format!("{:.0}", row.rates.requests_per_second),
                format!("{:.0}", row.rates.reads_per_second),
                format!("{:.0}", row.rates.writes_per_second),
                promised,
                row.got_text(),
                row.queued.to_string(),
                format!("{}+{}", row.in_flight_read_blocks, row.in_flight_written_blocks),
                format!("{:.0} µs", row.rates.wait_us),
                format!("{:.0} µs", row.rates.service_us),
            ];
            table.row(cells.into_iter().chain(device));
        }
        table
    }
}

impl Rates {
    fn new(old: Option<FlowStats>, now: FlowStats, seconds: f64) -> Self {
        let old = old.unwrap_or_default();
        let since = |count: fn(&FlowStats) -> u64| count(&now).saturating_sub(count(&old)) as f64;
        let requests = since(|stats| stats.requests);
        let each_us = |total_ns: f64| if requests > 0.0 { total_ns / requests / 1e3 } else { 0.0 };
        Self {
            requests_per_second: requests / seconds,
            reads_per_second: since(|stats| stats.read_blocks) / seconds,
            writes_per_second: since(|stats| stats.written_blocks) / seconds,
            wait_us: each_us(since(|stats| stats.waited_ns)),
            service_us: each_us(since(|stats| stats.served_ns)),
        }
    }
}

impl Row {
    fn new(
        old: Option<&VolumeStats>,
        now: &VolumeStats,
        write_cost_per_mille: Option<u32>,
        seconds: f64,
    ) -> Self {
        let rates = Rates::new(old.map(|old| old.flow), now.flow, seconds);
        let (reads, writes) = (rates.reads_per_second, rates.writes_per_second);
        // What is counted as reads, and as writes.
        let (reads, writes) = match write_cost_per_mille {
            None => (reads, Some(writes)),
            Some(cost) => (reads + writes * f64::from(cost) / 1000.0, None),
        };
        let part = |got: f64, promised: Option<f64>| {
            promised.filter(|rate| *rate > 0.0).map(|rate| got / rate * 100.0)
        };
        Self {
            name: now.name.clone(),
            device: now.device.clone(),
            core: now.core,
            slo: now.slo,
            rates,
            promised_reads_per_second: now.promised_reads_per_second,
            promised_writes_per_second: now.promised_writes_per_second,
            got_reads_percent: part(reads, now.promised_reads_per_second),
            got_writes_percent: writes.and_then(|got| part(got, now.promised_writes_per_second)),
            queued: now.flow.queued,
            in_flight: now.flow.in_flight,
            in_flight_read_blocks: now.flow.in_flight_read_blocks,
            in_flight_written_blocks: now.flow.in_flight_written_blocks,
        }
    }

    fn got_text(&self) -> String {
        let text = |percent: Option<f64>| percent.map_or("-".to_owned(), |p| format!("{p:.0}"));
        match (self.got_reads_percent, self.got_writes_percent) {
            (None, None) => "-".to_owned(),
            (reads, writes) => format!("{}+{} %", text(reads), text(writes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(flow: FlowStats) -> VolumeStats {
        VolumeStats {
            id: uuid::Uuid::from_u128(1),
            name: "a".to_owned(),
            device: "mem:".to_owned(),
            core: 0,
            slo: Slo::Share(100),
            promised_reads_per_second: Some(1000.0),
            promised_writes_per_second: Some(500.0),
            flow,
            connections: 0,
            read_latency: control::Latency::default(),
            write_latency: control::Latency::default(),
            media_errors: 0,
            errors: std::collections::BTreeMap::new(),
        }
    }

    #[test]
    fn what_was_got_is_held_against_the_promise_of_its_kind() {
        let old = FlowStats { read_blocks: 100, written_blocks: 10, ..FlowStats::default() };
        let now = FlowStats { read_blocks: 2100, written_blocks: 260, ..FlowStats::default() };
        let row = |cost| Row::new(Some(&volume(old)), &volume(now), cost, 2.0);
        assert_eq!(row(None).got_text(), "100+25 %");
        // 1000 reads a second, and 125 writes that cost four of them each.
        assert_eq!(row(Some(4000)).got_text(), "150+- %");
    }
}
