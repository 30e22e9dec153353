//! Measurements of each figure; their outcomes are made where those in simulated time are.

use std::time::Instant;

use load::Profile;
use reproduce::eurosys::real_time::sharing::{self, Shared, Tenants};
use reproduce::eurosys::real_time::steps::{self, STEPS, TENANTS};
use reproduce::eurosys::real_time::sweep::{self, BUSY_TURNS, Place, SETS};
use reproduce::eurosys::real_time::table::{self, SIZE_BYTES, Served};
use reproduce::eurosys::real_time::{self, Rate};
use reproduce::{Outcome, Progress};
use user_messages::Failure;

use super::load::{Bench, GETS, Load, cpu_ns, finished};
use super::not_shown;
use super::world::World;

/// Measured times of a round and way, of which `--time` is a part: of single gets, and of a rate in a search; of a rate that is
/// looked at by itself; of reads from a drive; and of a row of the table, whose bursts come each ten seconds.
const SECONDS: f64 = 60.0;
const RATE_SECONDS: f64 = 20.0;
const READ_SECONDS: f64 = 10.0;
const ROW_SECONDS: f64 = 200.0;
/// Rounds, in each of which both ways are measured.
const UNLOADED_ROUNDS: usize = 5;
const ROUNDS: usize = 3;
const SWEEP_ROUNDS: usize = 2;
/// Part of the lower of both ways' rates at which latencies are compared.
const HALF: f64 = 0.5;
/// Part of its own peak that each datastore behind one core asks for: together they leave room on the machine's CPUs.
const PART_OF_PEAK: f64 = 0.25;
/// Size of the volume of each host of figure 3, and of that of table 1.
const READ_BYTES: u64 = 128 << 20;
const TABLE_BYTES: u64 = 1 << 30;
/// Requests outstanding at the drive alone.
const DRIVE_DEPTH: &str = "256";
const TABLE_DEPTH: &str = "128";

/// Measures all ways, beginning with another one in each round.
fn in_turn<T: Copy + Default, const N: usize>(
    round: usize,
    measure: impl Fn(usize) -> Result<T, Failure>,
) -> Result<[T; N], Failure> {
    let mut measured = [T::default(); N];
    for turn in 0..N {
        let way = (turn + round) % N;
        measured[way] = measure(way)?;
    }
    Ok(measured)
}

/// Measures all ways in each round.
fn by_turns<T: Copy + Default, const N: usize>(
    rounds: usize,
    progress: Progress<'_>,
    measure: impl Fn(usize) -> Result<T, Failure>,
) -> Result<Vec<[T; N]>, Failure> {
    let mut all = Vec::new();
    for round in 0..rounds {
        all.push(in_turn(round, &measure)?);
        progress((round + 1) as f64 / rounds as f64);
    }
    Ok(all)
}

/// 4a: gets one at a time.
pub(super) fn unloaded(
    world: &mut World,
    load: &Load<'_>,
    progress: Progress<'_>,
) -> Result<Outcome, Failure> {
    let measure = |way| load.latencies(world.addresses(way)[0], load.seconds(SECONDS));
    let outcome = if world.has_beside() {
        real_time::unloaded(&by_turns::<_, 3>(UNLOADED_ROUNDS, progress, measure)?)
    } else {
        real_time::unloaded(&by_turns::<_, 2>(UNLOADED_ROUNDS, progress, measure)?)
    };
    outcome.map_err(|error| not_shown(&error))
}

/// 4b: the peak.
pub(super) fn peak(
    world: &mut World,
    load: &Load<'_>,
    progress: Progress<'_>,
) -> Result<Outcome, Failure> {
    let measure = |way| load.peak(world.addresses(way)[0], load.seconds(SECONDS));
    let outcome = if world.has_beside() {
        real_time::peaks(&by_turns::<_, 3>(ROUNDS, progress, measure)?)
    } else {
        real_time::peaks(&by_turns::<_, 2>(ROUNDS, progress, measure)?)
    };
    outcome.map_err(|error| not_shown(&error))
}

/// The rate of a datastore of each way, by turns.
fn place(
    world: &World,
    load: &Load<'_>,
    (x, gets): (f64, f64),
    progress: Progress<'_>,
) -> Result<Place, Failure> {
    let rate = |way| {
        let rates = load.closed(&world.addresses(way)[..1], gets, load.seconds(RATE_SECONDS))?;
        Ok(rates[0].per_second)
    };
    Ok(Place { x, rounds: by_turns(SWEEP_ROUNDS, progress, rate)? })
}

/// 6a: queries that compute more.
pub(super) fn busy(
    world: &mut World,
    load: &Load<'_>,
    progress: Progress<'_>,
) -> Result<Outcome, Failure> {
    let mut places = Vec::new();
    for turns in BUSY_TURNS {
        world.serve(turns)?;
        places.push(place(world, load, (turns as f64, 1.0), &mut |_| ())?);
        progress(places.len() as f64 / BUSY_TURNS.len() as f64);
    }
    sweep::busy(&places).map_err(|error| not_shown(&error))
}

/// 6b: more sets.
pub(super) fn sets(
    world: &mut World,
    load: &Load<'_>,
    progress: Progress<'_>,
) -> Result<Outcome, Failure> {
    let mut places = Vec::new();
    for sets in SETS {
        places.push(place(world, load, (sets * 100.0, 1.0 - sets), &mut |_| ())?);
        progress(places.len() as f64 / SETS.len() as f64);
    }
    sweep::sets(&places).map_err(|error| not_shown(&error))
}

/// 5: a datastore by steps of tuning.
pub(super) fn tuning(
    world: &mut World,
    load: &Load<'_>,
    progress: Progress<'_>,
) -> Result<Outcome, Failure> {
    let mut all: [Vec<Rate>; STEPS.len()] = Default::default();
    let mut local = Vec::new();
    for (index, (step, rounds)) in STEPS.iter().zip(&mut all).enumerate() {
        world.attach_again(step.network, step.outstanding)?;
        // Local Flash is measured beside each step, so that what the machine does besides comes to all.
        for addresses in [world.addresses(1), world.addresses(0), world.addresses(1)] {
            let is_local = addresses == world.addresses(0);
            let rate = load.closed(&addresses, GETS, load.seconds(RATE_SECONDS))?[0];
            if is_local { local.push(rate) } else { rounds.push(rate) }
        }
        progress((index + 1) as f64 / STEPS.len() as f64);
    }
    steps::queries(&all, &local).map_err(|error| not_shown(&error))
}

fn bench(
    world: &World,
    load: &Load<'_>,
    targets: &[String],
    options: &[&str],
) -> Result<Vec<Bench>, Failure> {
    load.go_on()?;
    let start = |target: &String| {
        world.start(
            &[["bench", "--json", "--quiet", "--target", target].as_slice(), options].concat(),
        )
    };
    let children: Vec<_> = targets.iter().map(start).collect::<Result<_, _>>()?;
    children.into_iter().map(finished).collect()
}

/// Writes all of each target, so that every read is one of its drive.
fn written(world: &World, load: &Load<'_>, targets: &[String], bytes: u64) -> Result<(), Failure> {
    let bytes = bytes.to_string();
    let write = ["--rw", "write", "--bs", "128KiB", "--qd", "4", "--overwrite", "--bytes", &bytes];
    for target in targets {
        bench(world, load, std::slice::from_ref(target), &write)?;
    }
    Ok(())
}

fn random_reads<'a>(depth: &'a str, seconds: &'a str) -> [&'a str; 6] {
    ["--rw", "randread", "--qd", depth, "--seconds", seconds]
}

/// 3: reads by hosts and step of tuning.
pub(super) fn reads(
    world: &mut World,
    load: &Load<'_>,
    progress: Progress<'_>,
) -> Result<Outcome, Failure> {
    let hosts = TENANTS.into_iter().max().unwrap_or(1);
    let volumes = (0..hosts).map(|host| world.volume(&format!("host-{host}"), READ_BYTES));
    let volumes = volumes.collect::<Result<Vec<_>, _>>()?;
    let targets: Vec<String> = volumes.iter().map(|volume| volume.target()).collect();
    written(world, load, &targets, READ_BYTES)?;
    let seconds = load.seconds(READ_SECONDS).as_secs_f64().to_string();
    // Without a server nothing was written; the model does not care.
    let alone = format!("{},seed={}", super::world::MODELLED, load.seed);
    let drive = bench(world, load, &[alone], &random_reads(DRIVE_DEPTH, &seconds))?[0].iops;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let mut rates = steps::Reads::default();
        for (index, (step, rates)) in STEPS.iter().zip(&mut rates).enumerate() {
            world.change(step.network)?;
            let depth = step.outstanding.to_string();
            let options = random_reads(&depth, &seconds);
            for (rate, tenants) in rates.iter_mut().zip(TENANTS) {
                let done = bench(world, load, &targets[..tenants], &options)?;
                *rate = done.iter().map(|bench| bench.iops).sum();
            }
            let done = round * STEPS.len() + index + 1;
            progress(done as f64 / (ROUNDS * STEPS.len()) as f64);
        }
        rounds.push(rates);
    }
    steps::reads(&rounds, drive).map_err(|error| not_shown(&error))
}

/// 7a and 7b: datastores that share a Flash server.
pub(super) fn shared(
    world: &mut World,
    load: &Load<'_>,
    progress: Progress<'_>,
) -> Result<Outcome, Failure> {
    let duration = load.seconds(RATE_SECONDS);
    let servers = world.addresses(1).len();
    let mut rounds = Vec::new();
    for round in 0..SWEEP_ROUNDS {
        let mut measured = Shared::default();
        for (count, rates) in [(1, &mut measured.alone), (servers, &mut measured.together)] {
            let stores = |way: usize| world.addresses(way)[..count].to_vec();
            let peaks: [_; 2] = in_turn(round, |way| {
                Ok(Rate::together(&load.closed(&stores(way), GETS, duration)?))
            })?;
            let lower = peaks[0].per_second.min(peaks[1].per_second) / count as f64;
            let calm: [_; 2] = in_turn(round, |way| {
                Ok(Rate::together(&load.at_rate(&stores(way), HALF * lower, duration)?))
            })?;
            for ((rate, peak), calm) in rates.iter_mut().zip(peaks).zip(calm) {
                *rate = Rate { per_second: peak.per_second, ..calm };
            }
        }
        rounds.push(measured);
        progress(rounds.len() as f64 / SWEEP_ROUNDS as f64);
    }
    sharing::shared(servers, &rounds).map_err(|error| not_shown(&error))
}

/// Datastores behind one core.
pub(super) fn tenants(
    world: &mut World,
    load: &Load<'_>,
    progress: Progress<'_>,
) -> Result<Outcome, Failure> {
    let duration = load.seconds(RATE_SECONDS * 2.0);
    let (addresses, server) = (world.addresses(1), world.server());
    let measure = |all: &dyn Fn() -> Result<Vec<Rate>, Failure>| {
        let (before, begin) = (cpu_ns(server)?, Instant::now());
        let rate = Rate::together(&all()?);
        let server_cores = (cpu_ns(server)? - before) / begin.elapsed().as_nanos() as f64;
        Ok::<_, Failure>(Tenants { rate, server_cores })
    };
    let peak = measure(&|| load.closed(&addresses[..1], GETS, duration))?;
    let rate = peak.rate.per_second * PART_OF_PEAK;
    let mut by_count = Vec::new();
    for count in 1..=addresses.len() {
        by_count.push(measure(&|| load.at_rate(&addresses[..count], rate, duration))?);
        progress(count as f64 / addresses.len() as f64);
    }
    sharing::tenants(&peak, PART_OF_PEAK, &by_count).map_err(|error| not_shown(&error))
}

/// Table 1: the requests of four key-value stores.
pub(super) fn workloads(
    world: &mut World,
    load: &Load<'_>,
    progress: Progress<'_>,
) -> Result<Outcome, Failure> {
    let volume = world.volume("table", TABLE_BYTES)?;
    let targets = [volume.target()];
    written(world, load, &targets, TABLE_BYTES)?;
    let seconds = load.seconds(ROW_SECONDS).as_secs_f64().to_string();
    let (size, seed) = (SIZE_BYTES.to_string(), load.seed.to_string());
    let mut served: [Served; Profile::ALL.len()] = Default::default();
    for (index, (served, profile)) in served.iter_mut().zip(Profile::ALL).enumerate() {
        let options = ["--workload", profile.name, "--workload-size", &size, "--seed", &seed];
        let run = ["--qd", TABLE_DEPTH, "--overwrite", "--seconds", &seconds];
        let bench = &bench(world, load, &targets, &[options.as_slice(), &run].concat())?[0];
        *served = row(bench);
        progress((index + 1) as f64 / Profile::ALL.len() as f64);
    }
    table::workloads(&served).map_err(|error| not_shown(&error))
}

/// The requests of a run, of which a last second that is not whole is left out.
fn row(bench: &Bench) -> Served {
    let whole = bench.intervals.iter().filter(|interval| interval.seconds > 0.5);
    let mean = |bytes: u64, requests: u64| bytes as f64 / requests.max(1) as f64;
    let latency = bench.read.latency.as_ref();
    Served {
        reads: whole.map(|interval| interval.reads as f64 / interval.seconds).collect(),
        read_bytes: mean(bench.read.bytes, bench.read.requests),
        writes: bench.write.requests as f64,
        write_bytes: mean(bench.write.bytes, bench.write.requests),
        read_ms: [0.95, 0.99].map(|part| latency.map_or(f64::NAN, |latency| latency.ms(part))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Noise that comes and goes hits both ways alike.
    #[test]
    fn ways_are_measured_by_turns() {
        let order = RefCell::new(Vec::new());
        let measured = by_turns::<_, 2>(3, &mut |_| (), |way| {
            order.borrow_mut().push(way);
            Ok(way + 10)
        });
        assert_eq!(measured.unwrap(), [[10, 11]; 3]);
        assert_eq!(*order.borrow(), [0, 1, 1, 0, 0, 1]);
    }

    /// Rates are those of whole seconds, sizes those of all requests.
    #[test]
    fn a_row_is_read_from_the_result_of_a_run() {
        let result = r#"{ "requests": 330, "iops": 99.0,
            "read": { "requests": 300, "bytes": 3000000, "latency": { "curve": [[0.0, 1e6], [0.95, 2e6], [0.99, 4e6]] } },
            "write": { "requests": 30, "bytes": 15000000, "latency": null },
            "intervals": [
                { "seconds": 1.0, "reads": 120 }, { "seconds": 2.0, "reads": 160 }, { "seconds": 0.1, "reads": 20 }
            ] }"#;
        let served = row(&serde_json::from_str(result).unwrap());
        assert_eq!(served.reads, [120.0, 80.0]);
        assert_eq!((served.read_bytes, served.writes, served.write_bytes), (10e3, 30.0, 500e3));
        assert_eq!(served.read_ms, [2.0, 4.0]);
    }
}
