//! `farflash top`: what volumes and devices do, or datastores, live.

mod datastores;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use control::{FlowStats, Slo, Stats, VolumeStats};
use report::{Align, Table};
use serde::Serialize;
use user_messages::Failure;
use user_messages::output;

use self::datastores::{DatastoreArgs, Datastores};
use super::api::ApiArgs;

pub(super) const EXAMPLES: &str = "\
PROMISED is what a volume can count on under the device's ceiling, in blocks of 4 KiB read and written a \
second; GOT is what it got of either, in percent. INSIDE are the blocks that it has under way. WAIT is the \
time before a request's turn, SERVICE the time behind it.

Of datastores READ and WRITE are the mean times of requests in the server, FLASH and SIZE what the device below them \
read and wrote over ten seconds.

Examples:
  farflash top
  farflash top --datastore kv-1:6379 --datastore kv-2:6379
  farflash top --once --json | jq '.volumes[] | {name, reads_per_second}'";

/// Puts the cursor at the top left and clears what is below.
const HOME: &str = "\x1b[H\x1b[J";

/// Lines beside those of devices and volumes: the head of the table, what is left out, and that of the cursor.
const LINES_BESIDE: usize = 4;

#[derive(Debug, Args)]
pub(crate) struct Top {
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    datastores: DatastoreArgs,
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

/// Changes between two samples.
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

/// Rates of requests, and means for each request.
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
        if let Some(datastores) = self.datastores.connect()? {
            return self.run_datastores(datastores);
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
                (false, true) => write!(out, "{HOME}{}", view.text(terminal_lines())),
                (false, false) => write!(out, "{}", view.text(None)),
            })?;
            if !is_live && (self.once || !self.json) {
                return Ok(());
            }
            before = after;
        }
    }
}

impl Top {
    fn run_datastores(&self, mut datastores: Datastores) -> Result<(), Failure> {
        let is_live = std::io::stdout().is_terminal() && !self.once;
        loop {
            std::thread::sleep(Duration::from_secs_f64(self.interval));
            let rows = datastores.interval()?;
            output::print("look with `farflash top --once`", |out| match (self.json, is_live) {
                (true, _) => {
                    writeln!(out, "{}", serde_json::json!({ "datastores": rows }))
                }
                (false, true) => write!(out, "{HOME}{}", datastores::text(&rows)),
                (false, false) => write!(out, "{}", datastores::text(&rows)),
            })?;
            if !is_live && (self.once || !self.json) {
                return Ok(());
            }
        }
    }
}

/// Lines of the terminal that the output goes to, if it says how many it has.
fn terminal_lines() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(size.ws_row.into()).filter(|lines| *lines > 0)
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

    /// Returns the text to print. Where only so many `lines` fit, it has the busiest volumes.
    fn text(&self, lines: Option<usize>) -> String {
        let mut text = self.devices_text();
        let room = lines.map(|lines| lines.saturating_sub(text.lines().count() + LINES_BESIDE));
        let mut rows: Vec<&Row> = self.volumes.iter().collect();
        let left_out = rows.len().saturating_sub(room.unwrap_or(rows.len()));
        if left_out > 0 {
            let rate = |row: &Row| row.rates.requests_per_second;
            rows.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
            rows.truncate(rows.len() - left_out);
        }
        text += &self.table(&rows).to_text();
        if left_out > 0 {
            let others = output::counted(left_out as u64, "volume");
            text += &format!("and {others} with no more REQ/S: `farflash top --once` shows all\n");
        }
        text
    }

    fn devices_text(&self) -> String {
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
        text
    }

    fn table(&self, rows: &[&Row]) -> Table {
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
        for row in rows {
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
            size_bytes: 8192,
            allocated_bytes: 4096,
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

    /// A terminal that is too small for all has those that do most, and nothing of it scrolls away.
    #[test]
    fn the_busiest_volumes_are_on_the_screen() {
        let row = |index: u64| {
            let flow = FlowStats { requests: index * 10, ..FlowStats::default() };
            let now = VolumeStats { name: format!("v{index}"), ..volume(flow) };
            Row::new(None, &now, None, 1.0)
        };
        let view =
            Interval { seconds: 1.0, devices: Vec::new(), volumes: (0..9).map(row).collect() };
        let names = |lines| {
            let text = view.text(lines);
            let rows = text.lines().skip(2).filter(|line| line.starts_with('v'));
            rows.map(|line| line.split(' ').next().expect("a name").to_owned()).collect::<Vec<_>>()
        };
        let all: Vec<String> = (0..9).map(|index| format!("v{index}")).collect();
        assert_eq!(names(None), all);
        assert_eq!(names(Some(13)), all);
        assert_eq!(names(Some(7)), ["v8", "v7", "v6"]);
        let text = view.text(Some(7));
        assert_eq!(text.lines().count(), 6);
        assert!(
            text.ends_with("and 6 volumes with no more REQ/S: `farflash top --once` shows all\n")
        );
        assert_eq!(view.text(Some(1)).lines().count(), 3, "also on one without room");
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
