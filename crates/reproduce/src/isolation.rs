//! Promises to volumes that share a drive, and their actual rates: in no paper, but figure 13 of Decibel leads one
//! to expect them.

use hdrhistogram::Histogram;
use report::{Align, Bar, BarChart, BarSeries, Panel, Table};
use schedule::{Ceiling, PolicyKind, Slo};
use ssd_model::{Load, Model, Pattern, Preset, closed_loop};
use units::{Duration, Instant};

use crate::bench::{Bench, Client, Depth, Device, Got, UNBOUNDED};
use crate::{Finding, Options, Outcome, Progress, ReproduceError};

/// 800 GB.
const BLOCKS: u64 = 800_000_000_000 / 4096;
/// Rate of the modelled drive for 70/30 with a hundred requests under way, and its latency then.
const CEILING: Ceiling = Ceiling { reads_per_second: 133_000, writes_per_second: 57_000 };
const LATENCY: Duration = Duration::from_micros(500);
const AT_CEILING: u32 = 100;
const TIME: Duration = Duration::from_secs(20);
const TIME_MIN: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_secs(1);
/// Any second is any ten of these in a row.
const STEP: Duration = Duration::from_millis(100);
const STEPS_A_SECOND: usize = 10;
const COUNTS: [usize; 6] = [2, 4, 8, 16, 32, 64];
const WEIGHTS: [u32; 4] = [1, 2, 4, 8];
/// Share of the ceiling for a volume among so many that take all they can get.
const SMALL_PART: f64 = 0.01;
const CROWD: usize = 63;
/// Requests of a reader, of one block each.
const READER: Depth = Depth::Apart { reads: 8, writes: 0 };
/// Requests of a writer at full burst, of 128 KiB each.
const WRITER: Depth = Depth::Apart { reads: 0, writes: 128 };
const WRITER_BLOCKS: u32 = 32;
/// Runs in all, to tell how far it is.
const RUNS: f64 = (COUNTS.len() + 1 + 1 + 5) as f64;

/// The results of tenants in a run.
struct Course {
    /// Blocks of each tenant in each step.
    steps: Vec<Vec<u64>>,
    got: Vec<Got>,
}

struct Equal {
    tenants: usize,
    /// Least fairness index of any second.
    least_jain: f64,
    /// Least and most of the whole run, in parts of an equal share.
    least: f64,
    most: f64,
}

struct Small {
    part: f64,
    p99_us: f64,
}

/// A reader, and what is beside it.
struct Beside {
    name: &'static str,
    p99_us: f64,
    reads_per_second: f64,
}

pub(crate) fn run(options: &Options, progress: Progress<'_>) -> Result<Outcome, ReproduceError> {
    let mut done = 0.0;
    let mut tell = || {
        done += 1.0 / RUNS;
        progress(f64::min(done, 1.0));
    };
    let mut equal = Vec::new();
    for tenants in COUNTS {
        equal.push(equal_shares(options, tenants)?);
        tell();
    }
    let weighted = weighted_shares(options)?;
    tell();
    let small = small_promise(options)?;
    tell();
    let mut beside = Vec::new();
    for (name, policy, latency, depths) in [
        ("alone", "drr", LATENCY, &[READER][..]),
        ("no scheduler", "fcfs", UNBOUNDED, &[READER, WRITER]),
        ("fcfs", "fcfs", LATENCY, &[READER, WRITER]),
        ("drr", "drr", LATENCY, &[READER, WRITER]),
    ] {
        beside.push(reader_beside(options, name, policy, latency, depths)?);
        tell();
    }
    beside.push(drive_at_ceiling(options)?);
    tell();
    let title = "Isolation: shares, promises and tails on a modelled P3700";
    let panels = [equal_panel(&equal), weighted_panel(&weighted), beside_panel(&beside)];
    let table = table(&equal, &weighted, &small, &beside);
    Outcome::new(title, &panels, table, findings(&equal, &weighted, &small, &beside))
}

/// Lets clients run against the drive, after a while in which all settles.
fn course(
    options: &Options,
    (name, latency): (&str, Duration),
    clients: &[Client],
) -> Result<Course, ReproduceError> {
    let params = Preset::P3700.params();
    let device = Device { params, blocks: BLOCKS, ceiling: CEILING, latency };
    let policy: PolicyKind = name.parse().expect("a known policy");
    let mut bench = Bench::new(&device, policy, clients, options.seed)?;
    bench.run_until(Instant(0) + WARM_UP);
    let mut got: Vec<Option<Got>> = vec![None; clients.len()];
    (0..clients.len()).for_each(|client| drop(bench.take_got(client)));
    let mut steps = Vec::new();
    let end = bench.now() + TIME.mul_f64(options.time).max(TIME_MIN);
    while bench.now() < end {
        bench.run_until(bench.now() + STEP);
        let of_step = got.iter_mut().enumerate().map(|(client, sum)| {
            let got = bench.take_got(client);
            let blocks = got.blocks;
            match sum {
                None => *sum = Some(got),
                Some(sum) => sum.add(&got),
            }
            blocks
        });
        steps.push(of_step.collect());
    }
    Ok(Course { steps, got: got.into_iter().flatten().collect() })
}

impl Course {
    fn seconds(&self) -> f64 {
        self.steps.len() as f64 * STEP.as_secs_f64()
    }

    /// Blocks of each tenant.
    fn sums(steps: &[Vec<u64>]) -> Vec<f64> {
        let tenants = 0..steps[0].len();
        tenants.map(|tenant| steps.iter().map(|step| step[tenant] as f64).sum()).collect()
    }
}

/// Jain's index: 1 if all are equal.
fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    sum * sum / (values.len() as f64 * squares)
}

fn p99_us(latencies: &Histogram<u64>) -> f64 {
    latencies.value_at_quantile(0.99) as f64 / 1e3
}

fn mixed(requests: u32) -> Depth {
    Depth::Mixed { requests, reads_percent: 70 }
}

fn equal_shares(options: &Options, tenants: usize) -> Result<Equal, ReproduceError> {
    let client = |n: usize| {
        let blocks = [1, 4, 16, 2, 8][n % 5];
        Client { slo: Slo::default(), depth: mixed([128, 64, 96][n % 3]), blocks: [blocks; 2] }
    };
    let clients: Vec<Client> = (0..tenants).map(client).collect();
    let course = course(options, ("drr", LATENCY), &clients)?;
    let of_second = course.steps.windows(STEPS_A_SECOND).map(|steps| jain(&Course::sums(steps)));
    let sums = Course::sums(&course.steps);
    let mean = sums.iter().sum::<f64>() / tenants as f64;
    Ok(Equal {
        tenants,
        least_jain: of_second.fold(1.0, f64::min),
        least: sums.iter().copied().fold(f64::MAX, f64::min) / mean,
        most: sums.iter().copied().fold(0.0, f64::max) / mean,
    })
}

/// Returns the rate of each weight, in parts of its fair share.
fn weighted_shares(options: &Options) -> Result<Vec<f64>, ReproduceError> {
    let client = |weight| Client { slo: Slo::Share { weight }, depth: mixed(128), blocks: [1, 1] };
    let course = course(options, ("drr", LATENCY), &WEIGHTS.map(client))?;
    let sums = Course::sums(&course.steps);
    let worth = sums.iter().sum::<f64>() / f64::from(WEIGHTS.iter().sum::<u32>());
    Ok(sums.iter().zip(WEIGHTS).map(|(sum, weight)| sum / (worth * f64::from(weight))).collect())
}

fn small_promise(options: &Options) -> Result<Small, ReproduceError> {
    let part = |ceiling: u64| (ceiling as f64 * SMALL_PART) as u64;
    let [reads_per_second, writes_per_second] =
        [CEILING.reads_per_second, CEILING.writes_per_second].map(part);
    let greedy = Client { slo: Slo::default(), depth: mixed(64), blocks: [1, 1] };
    let mut clients = vec![greedy; CROWD];
    clients.push(Client { slo: Slo::Rate { reads_per_second, writes_per_second }, ..greedy });
    // Always asks for both: a promise of reads is no consolation for writes.
    clients[CROWD].depth = Depth::Apart { reads: 4, writes: 2 };
    let course = course(options, ("drr", LATENCY), &clients)?;
    let got = &course.got[CROWD];
    let promised = [reads_per_second, writes_per_second].map(|rate| rate as f64 * course.seconds());
    let part = |kind: usize| got.requests[kind] as f64 / promised[kind];
    Ok(Small { part: part(0).min(part(1)), p99_us: p99_us(&got.latencies[0]) })
}

fn reader_beside(
    options: &Options,
    name: &'static str,
    policy: &str,
    latency: Duration,
    depths: &[Depth],
) -> Result<Beside, ReproduceError> {
    let client =
        |depth: &Depth| Client { slo: Slo::default(), depth: *depth, blocks: [1, WRITER_BLOCKS] };
    let clients: Vec<Client> = depths.iter().map(client).collect();
    let course = course(options, (policy, latency), &clients)?;
    let reads = &course.got[0];
    let reads_per_second = reads.requests[0] as f64 / course.seconds();
    Ok(Beside { name, p99_us: p99_us(&reads.latencies[0]), reads_per_second })
}

/// Returns the latency of reads on the drive itself when it does as much as its ceiling.
fn drive_at_ceiling(options: &Options) -> Result<Beside, ReproduceError> {
    let mut model = Model::new(&Preset::P3700.params(), BLOCKS, options.seed)?;
    let load = Load {
        depth: AT_CEILING,
        read_share: 0.7,
        request_blocks: 1,
        blocks: BLOCKS,
        pattern: Pattern::Random,
        seed: options.seed,
    };
    let time = TIME.mul_f64(options.time).max(TIME_MIN);
    let measured = closed_loop(&mut model, load, Instant(0), WARM_UP, time);
    Ok(Beside {
        name: "drive at its ceiling",
        p99_us: measured.reads.quantile(0.99).as_secs_f64() * 1e6,
        reads_per_second: measured.reads.count() as f64 / time.as_secs_f64(),
    })
}

fn bars(values: impl IntoIterator<Item = f64>) -> Vec<Option<Bar>> {
    values.into_iter().map(|value| Some(Bar { value, low: value, high: value })).collect()
}

fn percent(value: f64) -> String {
    format!("{value:.0} %")
}

fn equal_panel(equal: &[Equal]) -> Panel {
    let bar = |equal: &Equal| {
        let [low, high] = [equal.least, equal.most].map(|part| part * 100.0);
        Some(Bar { value: 100.0, low, high })
    };
    Panel::Bars(BarChart {
        caption: "equal shares, mixed block sizes and depths, drr".into(),
        y_label: "of an equal share".into(),
        groups: equal.iter().map(|equal| format!("{} tenants", equal.tenants)).collect(),
        series: vec![BarSeries {
            name: "all, from the least to the most".into(),
            bars: equal.iter().map(bar).collect(),
        }],
        y_format: percent,
    })
}

fn weighted_panel(weighted: &[f64]) -> Panel {
    Panel::Bars(BarChart {
        caption: "weights 1:2:4:8, drr".into(),
        y_label: "of what it is worth".into(),
        groups: WEIGHTS.iter().map(|weight| format!("weight {weight}")).collect(),
        series: vec![BarSeries {
            name: "received".into(),
            bars: bars(weighted.iter().map(|part| part * 100.0)),
        }],
        y_format: percent,
    })
}

fn beside_panel(beside: &[Beside]) -> Panel {
    Panel::Bars(BarChart {
        caption: "99 % of a reader's requests, beside a writer at full burst".into(),
        y_label: "µs".into(),
        groups: beside.iter().map(|case| format!("{}: {:.0} µs", case.name, case.p99_us)).collect(),
        series: vec![BarSeries {
            name: "99 % of reads".into(),
            bars: bars(beside.iter().map(|case| case.p99_us)),
        }],
        y_format: |value| format!("{value:.0}"),
    })
}

fn table(equal: &[Equal], weighted: &[f64], small: &Small, beside: &[Beside]) -> Table {
    let mut table = Table::new(&[
        ("experiment", Align::Left),
        ("case", Align::Left),
        ("measure", Align::Left),
        ("value", Align::Right),
    ]);
    let mut row = |experiment: &str, case: String, measure: &str, value: f64, digits: usize| {
        let value = format!("{value:.digits$}");
        table.row([experiment.to_owned(), case, measure.to_owned(), value]);
    };
    for case in equal {
        let tenants = || format!("{} tenants", case.tenants);
        row("equal shares", tenants(), "least Jain's index of any second", case.least_jain, 5);
        row("equal shares", tenants(), "least part of an equal share", case.least, 4);
        row("equal shares", tenants(), "largest part of an equal share", case.most, 4);
    }
    for (weight, part) in WEIGHTS.iter().zip(weighted) {
        row("weights", format!("weight {weight}"), "part of what it is worth", *part, 4);
    }
    let crowd = || format!("1 % beside {CROWD} greedy");
    row("small promise", crowd(), "part of the promise", small.part, 4);
    row("small promise", crowd(), "99 % of reads, µs", small.p99_us, 1);
    for case in beside {
        row("reader and writer", case.name.to_owned(), "99 % of reads, µs", case.p99_us, 1);
        row("reader and writer", case.name.to_owned(), "reads/s", case.reads_per_second, 0);
    }
    table
}

fn findings(equal: &[Equal], weighted: &[f64], small: &Small, beside: &[Beside]) -> Vec<Finding> {
    let least = equal.iter().map(|case| case.least_jain).fold(1.0, f64::min);
    let worst = weighted.iter().map(|part| (part - 1.0).abs()).fold(0.0, f64::max) * 100.0;
    let p99 =
        |name: &str| beside.iter().find(|case| case.name == name).expect("it was measured").p99_us;
    let (drr, own) = (p99("drr"), p99("drive at its ceiling"));
    vec![
        Finding {
            what: "equal shares of 2 to 64 tenants, mixed block sizes and depths".into(),
            paper: "goal: Jain's index of 0.99 in any second".into(),
            here: format!("at least {least:.4}"),
            agrees: least >= 0.99,
        },
        Finding {
            what: "weights of 1:2:4:8".into(),
            paper: "goal: each within 3 %".into(),
            here: format!("at most {worst:.2} % off"),
            agrees: worst <= 3.0,
        },
        Finding {
            what: format!("1 % beside {CROWD} greedy tenants"),
            paper: "goal: it gets what it is promised".into(),
            here: format!(
                "{:.1} % of the promise, of reads or writes; 99 % of its reads take {:.0} µs",
                small.part * 100.0,
                small.p99_us
            ),
            agrees: small.part >= 0.99,
        },
        Finding {
            what: "a reader beside a writer at full burst, under drr".into(),
            paper: "goal: no slower than the drive itself is at its ceiling".into(),
            here: format!(
                "99 % of reads take {drr:.0} µs, {own:.0} µs of the drive at its ceiling; \
                 {:.0} µs alone, {:.0} µs under fcfs, {:.0} µs without a scheduler",
                p99("alone"),
                p99("fcfs"),
                p99("no scheduler")
            ),
            agrees: drr <= own && drr < p99("fcfs"),
        },
    ]
}
