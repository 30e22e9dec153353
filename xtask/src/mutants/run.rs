//! A run: crate by crate, the mutants that are not decided yet.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::code::Code;
use super::deadline::Deadline;
use super::decided::{Content, Decided, Verdict, hash};
use super::list::{self, Mutant};
use super::options::Options;
use super::page;
use super::plan::{PLANS, Plan};
use super::pool;
use super::reach::Reach;
use super::results::{Results, Row};
use super::simulated::Simulator;
use super::slow;
use super::tree::{Built, Tree};
use super::trial::{Limits, Outcome, Trial, exactly};

/// Between two lines that say how far a crate is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(20);

/// One crate on its way.
struct Crate<'a> {
    plan: &'a Plan,
    root: &'a Path,
    /// Directory of what the run leaves on the machine: the copy, its build, the verdicts.
    work: &'a Path,
    options: &'a Options,
    decided: &'a Decided,
    deadline: Deadline,
    mutants: Vec<Mutant>,
    contents: BTreeMap<String, Content>,
}

/// Runs what `options` ask for. Returns false where a change has mutants that survive.
pub(super) fn run(root: &Path, options: &Options) -> io::Result<bool> {
    let root = &root.canonicalize()?;
    let work = &root.join("target/mutants");
    fs::create_dir_all(work)?;
    // Two runs would change the copy under each other.
    let lock = fs::File::create(work.join("lock"))?;
    lock.try_lock().map_err(|_| io::Error::other("another run is under way in target/mutants"))?;
    let decided = Decided::open(&work.join("decided.txt"), options.keep_caught)?;
    let deadline = Deadline::after(options.time);
    let diff = options.diff.as_deref().map(|base| write_diff(root, work, base)).transpose()?;
    let mut total = Row::default();
    for plan in PLANS {
        let package = plan.package.to_owned();
        if !options.packages.is_empty() && !options.packages.contains(&package) {
            continue;
        }
        let mut mutants = list::list(root, plan.package, diff.as_deref())?;
        mutants.retain(|mutant| {
            options.files.is_empty() || options.files.iter().any(|part| mutant.file.contains(part))
        });
        let contents = contents(root, plan, &mutants)?;
        let each =
            Crate { plan, root, work, options, decided: &decided, deadline, mutants, contents };
        total.add("", &each.run()?);
    }
    if options.diff.is_none() {
        page::write(root)?;
        return Ok(true);
    }
    println!("in all: {total}");
    if total.not_run > 0 {
        println!("{} mutants were not got to", total.not_run);
    }
    Ok(total.missed.is_empty())
}

fn write_diff(root: &Path, work: &Path, base: &str) -> io::Result<PathBuf> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["diff", "--merge-base", base, "--", "crates"])
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let path = work.join("change.diff");
    fs::write(&path, output.stdout)?;
    Ok(path)
}

/// Hashes what the verdicts of a crate depend on.
fn contents(root: &Path, plan: &Plan, mutants: &[Mutant]) -> io::Result<BTreeMap<String, Content>> {
    let mut files = Vec::new();
    rust_files(&root.join("crates").join(plan.package), &mut files)?;
    files.sort();
    let mut tests = 0;
    for file in &files {
        let text = fs::read_to_string(file)?;
        if text.contains("#[test]") {
            tests = code(&text, file)?.hash(tests);
        }
    }
    let mut out = BTreeMap::new();
    for mutant in mutants {
        if !out.contains_key(&mutant.file) {
            let path = root.join(&mutant.file);
            let source = code(&fs::read_to_string(&path)?, &path)?.hash(0);
            out.insert(mutant.file.clone(), Content { source, tests });
        }
    }
    Ok(out)
}

fn code(text: &str, path: &Path) -> io::Result<Code> {
    Code::parse(text).map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
}

fn rust_files(directory: &Path, out: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, out)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
    Ok(())
}

/// The tests of a mutant, in this order: those of its crate, and the simulator.
type Tests<'a> = (&'a Built, &'a Reach, Option<&'a Simulator<'a>>);

/// The verdicts so far of a crate's mutants, by their index.
type Verdicts = Mutex<BTreeMap<usize, Verdict>>;

impl Crate<'_> {
    /// Decides what is open, and writes the results. Returns the sum over all files.
    fn run(&self) -> io::Result<Row> {
        let committed = Results::load(self.root)?;
        let mut verdicts = BTreeMap::new();
        let mut open = Vec::new();
        for (index, mutant) in self.mutants.iter().enumerate() {
            match self.known(mutant, &committed) {
                _ if mutant.argued => {}
                Some(verdict) => drop(verdicts.insert(index, verdict)),
                None if self.is_left_out(mutant) => {}
                None => open.push(index),
            }
        }
        let package = self.plan.package;
        println!("{package}: {} mutants, {} to run", self.mutants.len(), open.len());
        self.choose(&mut open);
        if self.deadline.has_passed() {
            open.clear();
        }
        let verdicts = Mutex::new(verdicts);
        let facts = if open.is_empty() { None } else { self.decide_in_time(&open, &verdicts)? };
        let verdicts = verdicts.into_inner().expect("no worker panics");
        self.finish(committed, &verdicts, facts)
    }

    /// Like [`Crate::decide`]; `None` if the time was over before the first mutant was tried.
    fn decide_in_time(&self, open: &[usize], verdicts: &Verdicts) -> io::Result<Option<String>> {
        match self.decide(open, verdicts) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                println!("{}: the time is over before the mutants are built", self.plan.package);
                Ok(None)
            }
            outcome => outcome.map(Some),
        }
    }

    fn is_left_out(&self, mutant: &Mutant) -> bool {
        let mut parts = self.plan.skip_files.iter();
        !self.options.all_tests && parts.any(|part| mutant.file.contains(part))
    }

    /// Returns what earlier runs found, here or, by the committed results, elsewhere.
    fn known(&self, mutant: &Mutant, committed: &Results) -> Option<Verdict> {
        let content = self.contents[&mutant.file];
        if let Some(verdict) = self.decided.verdict(mutant, content) {
            return Some(verdict);
        }
        let row = committed.rows.get(&mutant.file)?;
        if row.source != content.source || row.not_run > 0 {
            return None;
        }
        let missed = row.missed.contains(&mutant.place);
        match (missed, row.tests == content.tests) {
            (true, true) => Some(Verdict::Missed),
            // It may be one that does not compile: the results count those, and do not name them.
            (false, same) if same || self.options.keep_caught => Some(Verdict::Caught),
            _ => None,
        }
    }

    /// Keeps what belongs to the shard and the sample.
    fn choose(&self, open: &mut Vec<usize>) {
        let shard = self.options.shard;
        let drawn = |index: &usize| hash(self.mutants[*index].name.as_bytes(), self.options.seed);
        open.retain(|index| {
            hash(self.mutants[*index].name.as_bytes(), 0) % shard.count == shard.index
        });
        if let Some(size) = self.options.sample {
            open.sort_by_key(drawn);
            open.truncate(size);
        }
    }

    /// Builds, measures the tests, and tries every mutant of `open`. Returns the facts of the run.
    fn decide(&self, open: &[usize], verdicts: &Verdicts) -> io::Result<String> {
        let package = self.plan.package;
        let start = Instant::now();
        let tree = Tree::prepare(self.root, self.work)?;
        let mutants: Vec<Mutant> = open.iter().map(|index| self.mutants[*index].clone()).collect();
        let built = tree.build(package, &mutants, self.deadline)?;
        let build = start.elapsed();
        for number in &built.unviable {
            self.record(open[*number as usize - 1], Verdict::Unviable, verdicts)?;
        }
        println!(
            "{package}: built in {:.0} s; {} do not compile, {} left to cargo-mutants",
            build.as_secs_f64(),
            built.unviable.len(),
            built.left.len()
        );
        let scratch = &self.work.join("scratch");
        let reach =
            Reach::measure(self.plan, &built.programs, scratch, self.options, self.deadline)?;
        for reason in &reach.left_out {
            println!("{package}: left out: {reason}");
        }
        let (count, seconds) = reach.size();
        println!(
            "{package}: {count} tests, which take {:.1} s of the processor",
            seconds.as_secs_f64()
        );
        let trials = Instant::now();
        let simulator = Simulator::build(&tree, self.plan, scratch, self.deadline)?;
        let tests = (&built, &reach, simulator.as_ref());
        let survivors = self.try_all(open, tests, scratch, verdicts)?;
        let slow: Vec<usize> =
            survivors.into_iter().chain(numbers(&built.left)).map(|at| open[at]).collect();
        let pace = trials.elapsed().as_secs_f64() / open.len() as f64;
        self.try_slowly(&tree, &slow, verdicts)?;
        Ok(format!(
            "mutants={} build={:.0}s tests={count} tests_take={:.1}s each={pace:.2}s cargo_mutants={}",
            open.len(),
            build.as_secs_f64(),
            seconds.as_secs_f64(),
            slow.len()
        ))
    }

    /// Tries the mutants of one build. Returns those for cargo-mutants: they survived, but may have been off.
    fn try_all(
        &self,
        open: &[usize],
        tests: Tests<'_>,
        scratch: &Path,
        verdicts: &Verdicts,
    ) -> io::Result<Vec<usize>> {
        let built = tests.0;
        let numbers: Vec<(u32, usize)> = built.functions.iter().map(|(a, b)| (*a, *b)).collect();
        let progress = Mutex::new(Progress::new(self.plan.package, numbers.len()));
        let doubtful = Mutex::new(Vec::new());
        pool::map(self.options.jobs, &numbers, |worker, (number, function)| {
            let scratch = scratch.join(worker.to_string());
            let Some(verdict) = self.try_one(*number, *function, tests, &scratch)? else {
                return Ok(());
            };
            let at = *number as usize - 1;
            if verdict == Verdict::Missed && built.constant.contains(number) {
                doubtful.lock().expect("no worker panics").push(at);
            } else {
                self.record(open[at], verdict, verdicts)?;
            }
            progress.lock().expect("no worker panics").step();
            Ok(())
        })?;
        Ok(doubtful.into_inner().expect("no worker panics"))
    }

    /// Returns nothing if the time is over before a mutant is decided.
    fn try_one(
        &self,
        number: u32,
        function: usize,
        (built, reach, simulator): Tests<'_>,
        scratch: &Path,
    ) -> io::Result<Option<Verdict>> {
        for batch in reach.batches(function) {
            if self.deadline.has_passed() {
                return Ok(None);
            }
            let mut limits = Limits::of(batch.usual);
            limits.wall = self.deadline.within(limits.wall);
            let trial = Trial {
                program: &built.programs[batch.program],
                arguments: &exactly(&batch.tests),
                mutant: number,
                limits,
                scratch,
                reached: None,
            };
            match trial.run(self.plan.environment)? {
                Outcome::Passed => {}
                Outcome::Failed(test) => {
                    test.into_iter().for_each(|test| reach.note_caught(batch.program, test));
                    return Ok(Some(Verdict::Caught));
                }
                Outcome::TimedOut if self.deadline.has_passed() => return Ok(None),
                Outcome::TimedOut => return Ok(Some(Verdict::TimedOut)),
            }
        }
        match simulator {
            Some(simulator) => simulator.decide(number, scratch, self.deadline),
            None => Ok(Some(Verdict::Missed)),
        }
    }

    /// Lets cargo-mutants decide, which builds once for each.
    fn try_slowly(&self, tree: &Tree, slow: &[usize], verdicts: &Verdicts) -> io::Result<()> {
        // The copy without its mutants.
        let restored = Tree::prepare(self.root, self.work)?;
        assert_eq!(restored.root, tree.root, "there is one copy");
        if slow.is_empty() || self.options.quick {
            return Ok(());
        }
        println!("{}: {} through cargo-mutants", self.plan.package, slow.len());
        for index in slow {
            match slow::run(tree, self.plan, &self.mutants[*index], self.deadline) {
                Ok(verdict) => self.record(*index, verdict, verdicts)?,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn record(&self, index: usize, verdict: Verdict, verdicts: &Verdicts) -> io::Result<()> {
        let mutant = &self.mutants[index];
        if verdict == Verdict::Missed {
            println!("missed: {}", mutant.name);
        }
        verdicts.lock().expect("no worker panics").insert(index, verdict);
        self.decided.record(mutant, self.contents[&mutant.file], verdict)
    }

    /// Puts the verdicts into the results, and says what survives.
    fn finish(
        &self,
        mut results: Results,
        verdicts: &BTreeMap<usize, Verdict>,
        facts: Option<String>,
    ) -> io::Result<Row> {
        let mut by_file: BTreeMap<&str, Vec<(&Mutant, Option<Verdict>)>> = BTreeMap::new();
        for (index, mutant) in self.mutants.iter().enumerate() {
            by_file.entry(&mutant.file).or_default().push((mutant, verdicts.get(&index).copied()));
        }
        let mut total = Row::default();
        let package = self.plan.package;
        if self.options.files.is_empty() && self.options.diff.is_none() {
            results.rows.retain(|file, _| {
                Results::package(file) != package || by_file.contains_key(file.as_str())
            });
        }
        for (file, verdicts) in by_file {
            let mut row = Row::count(&verdicts, self.contents[file]);
            if let Some(before) = results.rows.get(file) {
                row.keep_apart(before);
            }
            total.add(file, &row);
            results.rows.insert(file.to_owned(), row);
        }
        println!("{package}: {total}");
        if self.options.diff.is_some() {
            for name in &total.missed {
                println!("survives: {name}");
            }
            return Ok(total);
        }
        if let Some(facts) = facts {
            results.runs.insert(package.to_owned(), facts);
        }
        results.save(self.root)?;
        Ok(total)
    }
}

fn numbers(set: &std::collections::BTreeSet<u32>) -> impl Iterator<Item = usize> {
    set.iter().map(|number| *number as usize - 1)
}

/// Progress of a crate, printed now and then.
struct Progress {
    package: &'static str,
    total: usize,
    done: usize,
    start: Instant,
    said: Instant,
}

impl Progress {
    fn new(package: &'static str, total: usize) -> Self {
        Self { package, total, done: 0, start: Instant::now(), said: Instant::now() }
    }

    fn step(&mut self) {
        self.done += 1;
        if self.said.elapsed() >= PROGRESS_INTERVAL {
            self.said = Instant::now();
            let each = self.start.elapsed().as_secs_f64() / self.done as f64;
            let left = each * (self.total - self.done) as f64;
            println!(
                "{}: {} of {}, {each:.2} s each, about {left:.0} s to go",
                self.package, self.done, self.total
            );
        }
    }
}
