//! Table 1: what four key-value stores ask of Flash, made by the load generator and given to a drive.

use load::{Kind, Profile};
use report::{Align, Bar, BarChart, BarSeries, CategoryChart, CategorySeries, Mark, Panel, Table};
use ssd_model::{Model, Params, Preset};
use units::{BLOCK_SIZE, Instant, Lba, LbaRange, Pba, PbaRange};

use crate::{Finding, Options, Outcome, Progress, ReproduceError};

/// The paper's drive, and the size whose requests it gets.
const DRIVE_BYTES: u64 = 400_000_000_000;
const SECONDS: f64 = 300.0;
const SECONDS_MIN: f64 = 60.0;
/// Blocks that a drive takes at once: 128 KiB.
const PIECE_BLOCKS: u64 = 32;
/// Least latency that the applications are held to, "5 to 10 ms".
const GOAL_MS: f64 = 5.0;

/// Parts by which rates may be off in a run of minutes: those of reads from their bounds, and that of writes.
const READS_OFF: f64 = 0.1;
const WRITES_OFF: f64 = 0.15;

/// Measurements of one workload, for each TB.
pub(super) struct Row {
    pub(super) profile: Profile,
    /// Reads in the second with the fewest and with the most of them, without the busiest 2 %.
    pub(super) reads: (f64, f64),
    pub(super) read_bytes: f64,
    pub(super) writes: f64,
    pub(super) write_bytes: f64,
    pub(super) p95_read_ms: f64,
    pub(super) p99_read_ms: f64,
    /// Parts by which chance may have the rates of reads and of writes off.
    pub(super) off: [f64; 2],
}

/// Runs `table-1`.
pub(crate) fn run(options: &Options, progress: Progress<'_>) -> Result<Outcome, ReproduceError> {
    let (mut rows, mut bursting) = (Vec::new(), 0.0);
    for profile in Profile::ALL {
        let (row, bursts) = measure(profile, options)?;
        rows.push(row);
        bursting += bursts;
        progress(rows.len() as f64 / Profile::ALL.len() as f64);
    }
    let panels =
        panels(&rows, "latency of reads from a modelled P3600 of 400 GB, full of one workload");
    let mut findings: Vec<Finding> = rows.iter().map(rates).collect();
    findings.push(Finding {
        what: "workload C at 75 000 reads/s".into(),
        paper: "1 % of the time".into(),
        here: format!("{:.1} %", bursting * 100.0),
        agrees: near(bursting, 0.01, 0.3),
    });
    findings.push(latency(&rows, "95 % of reads, if 400 GB of each are on a drive"));
    let title = "EuroSys'16, table 1: requests of key-value stores";
    let why = "B and C write 700 and 1 000 MB/s for each TB in bursts, more than a P3600 of 400 GB takes: such \
        stores share a drive with those that write less.";
    Ok(Outcome::new(title, &panels, table(&rows), findings)?.because(why))
}

/// The rates of reads beside the paper's, and their latencies.
pub(super) fn panels(rows: &[Row], caption: &str) -> [Panel; 2] {
    let bar = |low: f64, high: f64| {
        Some(Bar { value: (low + high) / 2e3, low: low / 1e3, high: high / 1e3 })
    };
    let rates = Panel::Bars(BarChart {
        caption: "reads for each TB: mean, lowest and highest second".into(),
        y_label: "thousand reads/s".into(),
        groups: rows.iter().map(|row| row.profile.name.to_uppercase()).collect(),
        series: vec![
            BarSeries {
                name: "paper".into(),
                bars: (rows.iter().map(|row| row.profile.reads_per_tb))
                    .map(|(low, high)| bar(low, high))
                    .collect(),
            },
            BarSeries {
                name: "here".into(),
                bars: rows.iter().map(|row| bar(row.reads.0, row.reads.1)).collect(),
            },
        ],
        y_format: |value| format!("{value:.1}"),
    });
    let latency = |name: &str, ms: fn(&Row) -> f64| CategorySeries {
        name: name.into(),
        values: rows.iter().map(|row| ms(row) * 1e6).collect(),
    };
    let goal = Mark { name: "goal: 5 ms".into(), category: 1, value: GOAL_MS * 1e6 };
    let latencies = Panel::Category(CategoryChart {
        caption: caption.into(),
        y_label: "latency".into(),
        categories: rows.iter().map(|row| row.profile.name.to_uppercase()).collect(),
        series: vec![
            latency("95 % of reads", |row| row.p95_read_ms),
            latency("99 % of reads", |row| row.p99_read_ms),
        ],
        marks: vec![goal],
        y_format: report::duration_ns,
    });
    [rates, latencies]
}

/// Also returns the part of tenths of a second with more than half of the burst's reads; without bursts there are none.
fn measure(profile: Profile, options: &Options) -> Result<(Row, f64), ReproduceError> {
    let seconds = (SECONDS * options.time).max(SECONDS_MIN).floor();
    let end_ns = (seconds * 1e9) as u64;
    let blocks = DRIVE_BYTES / BLOCK_SIZE as u64;
    // The past of a drive that such stores write.
    let params = Params { random: 0.0, ..Preset::P3600.params() };
    let mut drive = Model::new(&params, blocks, options.seed)?;
    let range = LbaRange::new(Lba(0), blocks);
    let mut tenths = vec![0_u64; (seconds * 10.0) as usize];
    let (mut bytes, mut counts) = ([0_u64; 2], [0_u64; 2]);
    let mut latencies_ns = Vec::new();
    for request in profile.requests(range, DRIVE_BYTES as f64, options.seed) {
        if request.at_ns >= end_ns {
            break;
        }
        let now = Instant(request.at_ns);
        let size = u64::from(request.blocks);
        let pieces = (0..size.div_ceil(PIECE_BLOCKS)).map(|piece| {
            let first = piece * PIECE_BLOCKS;
            PbaRange::new(Pba(request.start.0 + first), PIECE_BLOCKS.min(size - first))
        });
        let is_write = request.kind == Kind::Write;
        let issue = |piece| {
            if is_write { drive.write(now, piece) } else { drive.read(now, piece) }
        };
        let done = pieces.map(issue).max().expect("a request has blocks");
        counts[usize::from(is_write)] += 1;
        bytes[usize::from(is_write)] += size * BLOCK_SIZE as u64;
        if !is_write {
            tenths[(request.at_ns / 100_000_000) as usize] += 1;
            latencies_ns.push(done.0 - now.0);
        }
    }
    latencies_ns.sort_unstable();
    let quantile_ms = |quantile: f64| {
        latencies_ns[((latencies_ns.len() - 1) as f64 * quantile) as usize] as f64 / 1e6
    };
    let per_tb = 1e12 / DRIVE_BYTES as f64;
    let mut by_second: Vec<u64> = tenths.chunks(10).map(|second| second.iter().sum()).collect();
    by_second.sort_unstable();
    // A burst lifts one second in ten; it is looked at by itself.
    let most = by_second[if profile.burst_per_tb.is_some() {
        by_second.len() * 8 / 10
    } else {
        by_second.len() - 1
    }];
    let burst = profile.burst_per_tb.map_or(f64::INFINITY, |rate| rate / per_tb / 10.0);
    let busy: f64 = tenths
        .iter()
        .map(|count| (*count as f64 / burst).min(1.0))
        .filter(|part| *part > 0.1)
        .sum();
    let row = Row {
        profile,
        reads: (by_second[0] as f64 * per_tb, most as f64 * per_tb),
        read_bytes: bytes[0] as f64 / counts[0].max(1) as f64,
        writes: counts[1] as f64 / seconds * per_tb,
        write_bytes: bytes[1] as f64 / counts[1].max(1) as f64,
        p95_read_ms: quantile_ms(0.95),
        p99_read_ms: quantile_ms(0.99),
        off: [READS_OFF, WRITES_OFF],
    };
    Ok((row, busy / tenths.len() as f64))
}

pub(super) fn table(rows: &[Row]) -> Table {
    let numbers = [
        "lowest reads/s/TB",
        "highest",
        "bytes of a read",
        "writes/s/TB",
        "bytes of a write",
        "95 % of reads ms",
        "99 % ms",
    ];
    let columns: Vec<_> = std::iter::once(("workload", Align::Left))
        .chain(numbers.map(|name| (name, Align::Right)))
        .collect();
    let mut table = Table::new(&columns);
    for row in rows {
        table.row([
            row.profile.name.to_uppercase(),
            format!("{:.0}", row.reads.0),
            format!("{:.0}", row.reads.1),
            format!("{:.0}", row.read_bytes),
            format!("{:.0}", row.writes),
            format!("{:.0}", row.write_bytes),
            format!("{:.2}", row.p95_read_ms),
            format!("{:.2}", row.p99_read_ms),
        ]);
    }
    table
}

fn near(value: f64, wanted: f64, part: f64) -> bool {
    (value / wanted - 1.0).abs() <= part
}

/// Rates and sizes of a workload, beside those of the table.
pub(super) fn rates(row: &Row) -> Finding {
    let Profile { name, reads_per_tb: (low, high), read_bytes, .. } = row.profile;
    let (writes, write_bytes) = (row.profile.writes_per_tb, row.profile.write_bytes);
    let [reads_off, writes_off] = row.off;
    Finding {
        what: format!("workload {}, for each TB", name.to_uppercase()),
        paper: format!(
            "{low:.0} to {high:.0} reads/s of {:.0} kB, {writes:.0} writes/s of {:.0} kB",
            read_bytes / 1e3,
            write_bytes / 1e3
        ),
        here: format!(
            "{:.0} to {:.0} of {:.1} kB, {:.0} of {:.0} kB",
            row.reads.0,
            row.reads.1,
            row.read_bytes / 1e3,
            row.writes,
            row.write_bytes / 1e3
        ),
        agrees: near(row.read_bytes, read_bytes, 0.02)
            && near(row.write_bytes, write_bytes, 0.02)
            && near(row.writes, writes, writes_off)
            && row.reads.0 > (1.0 - reads_off) * low
            && row.reads.1 < (1.0 + reads_off) * high,
    }
}

/// Workloads whose reads take longer than their applications have for a query.
pub(super) fn latency(rows: &[Row], what: &str) -> Finding {
    let slow: Vec<String> = rows
        .iter()
        .filter(|row| row.p95_read_ms > GOAL_MS)
        .map(|row| row.profile.name.to_uppercase())
        .collect();
    Finding {
        what: what.into(),
        paper: "goal: at most 5 ms for all; the applications have 5 to 10 ms for a query".into(),
        here: match slow.as_slice() {
            [] => "all".into(),
            slow => format!("not {}", slow.join(" and ")),
        },
        agrees: slow.is_empty(),
    }
}
