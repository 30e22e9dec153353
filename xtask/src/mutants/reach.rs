//! Maps tests to the functions that they reach: each test is run by itself, once, without a mutant.
//!
//! A mutant is then tried with the tests that reach its function: first those that caught most for what they cost, then the
//! quick ones. One that no test reaches is not caught, and needs no run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::deadline::Deadline;
use super::options::Options;
use super::plan::Plan;
use super::pool;
use super::tree::Program;
use super::trial::{self, Limits, Outcome, Trial, exactly};

/// Tests of one program that run in one process, and the time that they take without a mutant.
#[derive(Clone, Debug, Default)]
pub(super) struct Batch {
    pub(super) program: usize,
    pub(super) tests: Vec<String>,
    pub(super) usual: Duration,
}

/// One test with what it reaches.
#[derive(Clone, Debug)]
struct Test {
    program: usize,
    name: String,
    /// By the clock.
    usual: Duration,
    /// Processor time.
    cost: Duration,
    functions: BTreeSet<usize>,
}

/// All tests that take part, those first that cost least.
#[derive(Debug, Default)]
pub(super) struct Reach {
    tests: Vec<Test>,
    /// Mutants that each test caught, by program and name.
    caught: Mutex<BTreeMap<(usize, String), u32>>,
    /// For the tests of one mutant: of the processor.
    budget: Duration,
    /// Tests that fail or take too long without any mutant, with the reason.
    pub(super) left_out: Vec<String>,
}

/// The first batch costs this much; each further one twice as much as that before.
const FIRST_BATCH: Duration = Duration::from_millis(250);

impl Reach {
    /// Runs every test of `programs` that `plan` does not leave out.
    pub(super) fn measure(
        plan: &Plan,
        programs: &[Program],
        scratch: &Path,
        options: &Options,
        deadline: Deadline,
    ) -> io::Result<Self> {
        let mut tests = Vec::new();
        for (index, program) in programs.iter().enumerate() {
            if options.all_tests || !plan.skip_programs.contains(&program.name.as_str()) {
                tests.extend(names(program)?.into_iter().map(|name| (index, name)));
            }
        }
        tests.retain(|(_, name)| !plan.skip_tests.iter().any(|skipped| name.contains(skipped)));
        let results = pool::map(options.jobs, &tests, |worker, (program, name)| {
            deadline.check()?;
            run_alone(plan, &programs[*program], *program, name, &scratch.join(worker.to_string()))
        })?;
        let budget = Duration::from_secs_f64(plan.budget_seconds);
        let mut reach = Self { budget, ..Self::default() };
        for result in results {
            match result {
                Ok(test) => reach.tests.push(test),
                Err(reason) => reach.left_out.push(reason),
            }
        }
        reach.tests.sort_by_key(|test| test.cost);
        Ok(reach)
    }

    /// Returns the number of tests, and what all of them cost.
    pub(super) fn size(&self) -> (usize, Duration) {
        (self.tests.len(), self.tests.iter().map(|test| test.cost).sum())
    }

    /// Returns the tests that reach `function`, in the order in which they are run: as many as the budget pays for.
    pub(super) fn batches(&self, function: usize) -> Vec<Batch> {
        let mut out: Vec<Batch> = Vec::new();
        let mut open: BTreeMap<usize, Batch> = BTreeMap::new();
        let (mut limit, mut filled, mut spent) = (FIRST_BATCH, Duration::ZERO, Duration::ZERO);
        for test in self.in_order(function) {
            if spent > self.budget {
                break;
            }
            if filled > Duration::ZERO && filled + test.cost > limit {
                out.extend(std::mem::take(&mut open).into_values());
                filled = Duration::ZERO;
                limit *= 2;
            }
            filled += test.cost;
            spent += test.cost;
            let batch = open.entry(test.program).or_default();
            batch.program = test.program;
            batch.tests.push(test.name.clone());
            batch.usual += test.usual;
        }
        out.extend(open.into_values());
        out
    }

    /// The tests that reach `function`, the most promising first: by mutants caught for each second, then by cost.
    fn in_order(&self, function: usize) -> Vec<&Test> {
        let caught = self.caught.lock().expect("no worker panics");
        let worth = |test: &Test| {
            let mutants = caught.get(&(test.program, test.name.clone())).copied().unwrap_or(0);
            f64::from(mutants) / test.cost.as_secs_f64().max(0.01)
        };
        let reaching = self.tests.iter().filter(|test| test.functions.contains(&function));
        let mut out: Vec<(f64, &Test)> = reaching.map(|test| (worth(test), test)).collect();
        // Stable: those that caught nothing stay in order of cost.
        out.sort_by(|a, b| b.0.total_cmp(&a.0));
        out.into_iter().map(|(_, test)| test).collect()
    }

    /// Notes that a test caught a mutant.
    pub(super) fn note_caught(&self, program: usize, test: String) {
        *self.caught.lock().expect("no worker panics").entry((program, test)).or_default() += 1;
    }
}

fn run_alone(
    plan: &Plan,
    program: &Program,
    index: usize,
    name: &str,
    scratch: &Path,
) -> io::Result<Result<Test, String>> {
    let reached = scratch.with_extension("reached");
    drop(fs::remove_file(&reached));
    let trial = Trial {
        program,
        arguments: &exactly(&[name.to_owned()]),
        mutant: 0,
        // What else the machine does takes time, too.
        limits: Limits {
            wall: Duration::from_secs(30 + 30 * plan.test_seconds_max),
            processor_seconds: plan.test_seconds_max,
        },
        scratch,
        reached: Some(&reached),
    };
    let start = Instant::now();
    let outcome = trial.run(plan.environment)?;
    let usual = start.elapsed();
    let label = format!("{}: {name}", program.name);
    Ok(match outcome {
        Outcome::Passed => {
            let functions = fs::read_to_string(&reached).unwrap_or_default();
            let functions = functions.lines().filter_map(|line| line.parse().ok()).collect();
            let cost = trial::processor_time(&reached);
            Ok(Test { program: index, name: name.to_owned(), usual, cost, functions })
        }
        Outcome::Failed(_) => Err(format!("{label} fails without a mutant")),
        Outcome::TimedOut => Err(format!("{label} takes over {} s", plan.test_seconds_max)),
    })
}

fn names(program: &Program) -> io::Result<Vec<String>> {
    let output = Command::new(&program.executable)
        .current_dir(&program.directory)
        .args(["--list", "--format", "terse"])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}
