//! `farflash-sim`: runs seeds of the simulator.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use sim::Trace;
use simulate::{Count, Crashes, Outcome, Seam, Soak, Summary, Workload, run, table};
use situations::Situation;

/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);

/// Runs the production engine and data plane in a simulated world, one world for each seed.
#[derive(Debug, Parser)]
#[command(name = "farflash-sim", version)]
struct Args {
    /// Run this seed alone.
    #[arg(long, conflicts_with_all = ["seeds", "minutes"])]
    seed: Option<u64>,
    /// Run the seeds from A up to, and without, B.
    #[arg(long, value_name = "A..B", value_parser = parse_range)]
    seeds: Option<(u64, u64)>,
    /// Run seeds for so many minutes; until stopped (Ctrl-C) if nothing is said.
    #[arg(long)]
    minutes: Option<f64>,
    /// Crash every short program at every event of the disk, and run no seed.
    #[arg(long, conflicts_with_all = ["seed", "seeds", "minutes", "workload"])]
    programs: bool,
    /// The workload of all runs, instead of the one that each seed chooses.
    #[arg(long, value_parser = parse_workload)]
    workload: Option<Workload>,
    /// Print every event of the run.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Seeds or programs at a time; one for each processor if not said.
    #[arg(long)]
    threads: Option<usize>,
    /// Print the table of situations as docs/simulation.md has it, with what these seeds reach.
    #[arg(long, requires = "seeds")]
    situations: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn threads(&self) -> usize {
        let processors = || thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(processors)
    }
}

fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let parsed = text.split_once("..").and_then(|(from, to)| {
        let (from, to) = (from.parse().ok()?, to.parse().ok()?);
        (from < to).then_some((from, to))
    });
    parsed.ok_or_else(|| "two numbers are wanted, as in 0..1000".into())
}

fn parse_workload(text: &str) -> Result<Workload, String> {
    let names = Workload::ALL.map(|(name, _)| name).join(", ");
    Workload::named(text).ok_or_else(|| format!("one of {names} is wanted"))
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(seed) = args.seed {
        return run_one(&args, seed);
    }
    if args.programs {
        return crash_programs(&args);
    }
    // A panic of the code under test is a finding, and told with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    run_many(&args)
}

/// Crashes every short program everywhere; status 1 if one finds something or they are stopped.
fn crash_programs(args: &Args) -> ExitCode {
    let (programs, stop) = (Crashes::all(), stopped_by_signals());
    let total = programs.count();
    let last = std::sync::Mutex::new(Instant::now());
    let outcome = programs.run(args.threads(), &stop, |done| {
        let mut last = last.lock().expect("no holder panics");
        if last.elapsed() >= PROGRESS {
            *last = Instant::now();
            eprintln!("farflash-sim: {done} of {total} programs");
        }
    });
    let stopped = stop.load(Ordering::Relaxed);
    match &outcome {
        Err(finding) => println!("{finding}"),
        Ok(_) if stopped => println!("stopped"),
        Ok(survivors) if args.json => {
            println!("{}", json!({ "programs": total, "survivors": survivors }));
        }
        Ok(survivors) => println!("{total} programs are sound: {survivors} survivors looked at"),
    }
    exit_code(outcome.is_ok() && !stopped)
}

fn run_one(args: &Args, seed: u64) -> ExitCode {
    let trace = match args.trace {
        true => Trace::printing(|line| println!("{line}")),
        false => Trace::default(),
    };
    let outcome = run(seed, args.workload, Seam::Honest, &trace);
    match args.json {
        true => println!("{}", outcome_json(&outcome)),
        false => println!("{}", outcome_text(&outcome)),
    }
    exit_code(outcome.failure.is_none())
}

fn exit_code(sound: bool) -> ExitCode {
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_many(args: &Args) -> ExitCode {
    let (from, to) = args.seeds.unwrap_or((first_seed(), u64::MAX));
    let soak = Soak {
        seeds: from..to,
        workload: args.workload,
        threads: args.threads(),
        failures_max: 10,
    };
    let stop = stopped_by_signals();
    let began = Instant::now();
    let last = std::sync::Mutex::new((began, 0_u64));
    eprintln!("farflash-sim: seeds from {from}");
    let summary = soak.run(&stop, |outcome| {
        if outcome.failure.is_some() {
            eprintln!("{}", outcome_text(outcome));
        }
        if args.minutes.is_some_and(|m| began.elapsed().as_secs_f64() > m * 60.0) {
            stop.store(true, Ordering::Relaxed);
        }
        let mut last = last.lock().expect("no holder panics");
        last.1 += 1;
        if last.0.elapsed() >= PROGRESS {
            last.0 = Instant::now();
            eprintln!("farflash-sim: {} seeds, {:.0} an hour", last.1, rate(last.1, began));
        }
    });
    match args.situations {
        true => print!("{}", table(&summary.reached, summary.seeds)),
        false => report(args, &summary, began),
    }
    exit_code(summary.failures.is_empty())
}

/// The status of a program that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// Returns what is set by SIGINT and SIGTERM: the seeds under way are finished, and the result is printed. A second signal ends
/// the program.
fn stopped_by_signals() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: what is asked first finds the flag as it was before the signal.
        let second = flag::register_conditional_shutdown(signal, INTERRUPTED, stop.clone());
        let first = flag::register(signal, stop.clone());
        second.and(first).expect("both signals may be handled");
    }
    stop
}

/// Returns the first seed of a run without a range: another one each time, and printed.
fn first_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs() << 20)
}

fn rate(seeds: u64, began: Instant) -> f64 {
    seeds as f64 * 3600.0 / began.elapsed().as_secs_f64()
}

fn report(args: &Args, summary: &Summary, began: Instant) {
    let counts = summary.counts;
    let per_hour = rate(summary.seeds, began);
    if args.json {
        let failures: Vec<_> = summary.failures.iter().map(outcome_json).collect();
        let report = json!({
            "seeds": summary.seeds,
            "seeds_per_hour": per_hour,
            "requests": counts.requests,
            "blocks_checked": counts.blocks_checked,
            "boots": counts.boots,
            "crashes": counts.crashes,
            "damaged": counts.damaged,
            "broken": counts.broken,
            "unchecked": counts.unchecked,
            "situations": situations_json(summary),
            "never_reached": summary.reached.never().map(Situation::name).collect::<Vec<_>>(),
            "failures": failures,
        });
        return println!("{report}");
    }
    println!(
        "{} seeds, {per_hour:.0} an hour: {} requests, {} starts, {} power cuts, {} blocks damaged, \
         {} blocks checked; {} failed",
        summary.seeds,
        counts.requests,
        counts.boots,
        counts.crashes,
        counts.damaged,
        counts.blocks_checked,
        summary.failures.len(),
    );
    summary.failures.iter().for_each(|outcome| println!("{}", outcome_text(outcome)));
    print!("{}", situations_text(summary));
}

fn situations_json(summary: &Summary) -> serde_json::Value {
    let counted = |situation: &Situation| {
        let Count { seeds, times, example } = summary.reached.of(*situation);
        let again = example.map(|(of, seed)| json!({ "workload": of.name(), "seed": seed }));
        (situation.name().to_owned(), json!({ "seeds": seeds, "times": times, "first": again }))
    };
    Situation::ALL.iter().map(counted).collect::<serde_json::Map<_, _>>().into()
}

/// Returns the number of times that each situation was reached, and those that were never reached.
fn situations_text(summary: &Summary) -> String {
    let mut text = String::from("situations: seeds that reached each, and how often\n");
    for situation in Situation::ALL {
        let Count { seeds, times, .. } = summary.reached.of(*situation);
        if seeds > 0 {
            text += &format!("{seeds:>9} {times:>11}  {}\n", situation.name());
        }
    }
    let never: Vec<_> = summary.reached.never().collect();
    text += &format!("never reached: {} of {}\n", never.len(), Situation::ALL.len());
    for situation in never {
        let (name, workload) = (situation.name(), situation.workload());
        text += &format!("  {name} ({workload}): {}\n", situation.text());
    }
    text
}

fn outcome_text(outcome: &Outcome) -> String {
    let (seed, name) = (outcome.seed, outcome.workload.name());
    let counts = outcome.counts;
    match &outcome.failure {
        Some(failure) => {
            format!(
                "seed {seed}: {failure}\n  again: farflash-sim --seed {seed} --workload {name} --trace"
            )
        }
        None => format!(
            "seed {seed} ({name}) is sound: {} requests, {} starts, {} power cuts, trace {:016x}",
            counts.requests, counts.boots, counts.crashes, outcome.hash
        ),
    }
}

fn outcome_json(outcome: &Outcome) -> serde_json::Value {
    json!({
        "seed": outcome.seed,
        "workload": outcome.workload.name(),
        "failure": outcome.failure,
        "requests": outcome.counts.requests,
        "boots": outcome.counts.boots,
        "crashes": outcome.counts.crashes,
        "trace": format!("{:016x}", outcome.hash),
        "events": outcome.events,
    })
}
