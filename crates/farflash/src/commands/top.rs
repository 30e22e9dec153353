//! `farflash top`: what volumes and devices do, live.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use control::{Slo, Stats, VolumeStats};
use report::{Align, Table};
use serde::Serialize;

use super::api::ApiArgs;
use super::volume::slo_text;
use crate::failure::Failure;
use crate::output;

pub(super) const EXAMPLES: &str = "\
PROMISED is what a volume can count on under the device's ceiling, in blocks of 4 KiB a second; GOT is
what it got of that, in percent. WAIT is the time before a request's turn, SERVICE the time behind it.

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
    devices: Vec<control::DeviceStats>,
    volumes: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    core: u32,
    slo: Slo,
    requests_per_second: f64,
    reads_per_second: f64,
    writes_per_second: f64,
    promised_reads_per_second: Option<f64>,
    promised_writes_per_second: Option<f64>,
    /// Blocks of both kinds, in percent of what is promised.
    got_percent: Option<f64>,
    queued: u64,
    in_flight: u64,
    wait_us: f64,
    service_us: f64,
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
            Row::new(old, now, seconds)
        };
        let volumes = after.volumes.iter().map(row).collect();
        Self { seconds, devices: after.devices.clone(), volumes }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for device in &self.devices {
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
            for window in &device.windows {
                if let Some(blocks) = window.window_blocks {
                    text += &format!(
                        "  core {}: {} of {blocks} blocks under way, {} requests wait\n",
                        window.core, window.in_use_blocks, window.queued
                    );
                }
            }
        }
        text + &self.table().to_text()
    }

    fn table(&self) -> Table {
        let columns = [
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
        let mut table = Table::new(&columns);
        for row in &self.volumes {
            let promised = match (row.promised_reads_per_second, row.promised_writes_per_second) {
                (Some(reads), Some(writes)) => format!("{reads:.0}+{writes:.0}"),
                _ => "-".to_owned(),
            };
            table.row([
                row.name.clone(),
                row.core.to_string(),
                slo_text(row.slo),
                format!("{:.0}", row.requests_per_second),
                format!("{:.0}", row.reads_per_second),
                format!("{:.0}", row.writes_per_second),
                promised,
                row.got_percent.map_or("-".to_owned(), |percent| format!("{percent:.0} %")),
                row.queued.to_string(),
                row.in_flight.to_string(),
                format!("{:.0} us", row.wait_us),
                format!("{:.0} us", row.service_us),
            ]);
        }
        table
    }
}

impl Row {
    fn new(old: Option<&VolumeStats>, now: &VolumeStats, seconds: f64) -> Self {
        let since =
            |count: fn(&VolumeStats) -> u64| count(now).saturating_sub(old.map_or(0, count)) as f64;
        let requests = since(|stats| stats.requests);
        let each_us = |total_ns: f64| if requests > 0.0 { total_ns / requests / 1e3 } else { 0.0 };
        let (reads, writes) = (since(|stats| stats.read_blocks), since(|s| s.written_blocks));
        let promised = now.promised_reads_per_second.zip(now.promised_writes_per_second);
        let promised = promised.map(|(reads, writes)| reads + writes).filter(|sum| *sum > 0.0);
        Self {
            name: now.name.clone(),
            core: now.core,
            slo: now.slo,
            requests_per_second: requests / seconds,
            reads_per_second: reads / seconds,
            writes_per_second: writes / seconds,
            promised_reads_per_second: now.promised_reads_per_second,
            promised_writes_per_second: now.promised_writes_per_second,
            got_percent: promised.map(|promised| (reads + writes) / seconds / promised * 100.0),
            queued: now.queued,
            in_flight: now.in_flight,
            wait_us: each_us(since(|stats| stats.waited_ns)),
            service_us: each_us(since(|stats| stats.served_ns)),
        }
    }
}
