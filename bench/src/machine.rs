//! The machine of a benchmark, and the load of other processes.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use report::Spread;
use serde::Serialize;

use crate::idle::Idle;
use crate::process::run;

/// Time for which the load of other processes is measured beforehand.
const LOOKING: Duration = Duration::from_secs(1);
/// Pages that benchmarks themselves write: those of another one do not make another program.
const PAGES: &str = ":(exclude)docs/benchmark*.md";

/// Further facts about a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Facts {
    pub(crate) commit: String,
    pub(crate) kernel: String,
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    /// Round trips between the server's CPU and the client's, in a comparison of more than one.
    pub(crate) cpu_round_trip_ns: Option<Spread>,
    /// Congestion control of TCP connections, on both ends.
    pub(crate) congestion_control: String,
    /// CPUs that others kept busy before anything was measured; `None` if that could not be found out.
    pub(crate) busy_cpus: Option<f64>,
    pub(crate) startup_ms: f64,
    pub(crate) idle: Idle,
    pub(crate) resident_idle_bytes: u64,
    pub(crate) resident_written_bytes: u64,
}

/// Returns the facts that are known beforehand.
pub(crate) fn machine() -> Facts {
    let first = |text: String| text.lines().next().unwrap_or_default().trim().to_owned();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Facts {
        commit: commit().unwrap_or_else(|_| "unknown".to_owned()),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").map(first).unwrap_or_default(),
        cpu: model.map_or("unknown", |(_, name)| name).to_owned(),
        cpus: reactor::allowed_cpus().len(),
        congestion_control: fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")
            .map(first)
            .unwrap_or_default(),
        busy_cpus: busy_cpus().ok(),
        ..Facts::default()
    }
}

/// The commit, and whether there is more.
fn commit() -> Result<String> {
    let commit = run(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]))?;
    let more = run(Command::new("git").args(["status", "--porcelain", "--", ":/", PAGES]))?;
    let dirty = if more.trim().is_empty() { "" } else { "-dirty" };
    Ok(format!("{}{dirty}", commit.trim()))
}

/// CPUs that are busy while this process sleeps. The load average would tell of the benchmark before this one, too.
fn busy_cpus() -> Result<f64> {
    let before = Times::now()?;
    thread::sleep(LOOKING);
    Ok(Times::now()?.busy_since(&before))
}

/// Times of all CPUs since the machine started, in a unit that cancels.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    busy: f64,
    all: f64,
    cpus: f64,
}

impl Times {
    fn now() -> Result<Self> {
        Self::parse(&fs::read_to_string("/proc/stat")?).context("a malformed /proc/stat")
    }

    /// proc(5): user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    fn parse(text: &str) -> Option<Self> {
        let all = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let each: Vec<f64> =
            all.split_whitespace().take(8).map(|time| time.parse().ok()).collect::<Option<_>>()?;
        let idle = each.get(3)? + each.get(4)?;
        let sum: f64 = each.iter().sum();
        let is_cpu = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
        let cpus = text.lines().filter(is_cpu).count();
        Some(Self { busy: sum - idle, all: sum, cpus: cpus as f64 })
    }

    /// CPUs that were busy on average.
    fn busy_since(&self, before: &Self) -> f64 {
        let all = self.all - before.all;
        if all > 0.0 { (self.busy - before.busy) / all * self.cpus } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_idle_nor_waiting_is_busy() {
        let before = "cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 1\ncpu1 1 1\nintr 5\n";
        let after = "cpu  40 0 20 120 20 0 0 0 0 0\ncpu0 1 1\ncpu1 1 1\nintr 9\n";
        let [before, after] = [before, after].map(|text| Times::parse(text).expect("well formed"));
        assert_eq!(after.busy_since(&before), 0.8);
        assert_eq!(before.busy_since(&before), 0.0);
        assert_eq!(Times::parse("cpu  1 2 x"), None);
        assert_eq!(Times::parse(""), None);
    }

    /// This machine.
    #[test]
    fn the_commit_and_what_others_do_are_found_out() {
        let facts = machine();
        let busy = facts.busy_cpus.expect("there is a /proc");
        assert!((0.0..=facts.cpus as f64 * 2.0 + 1.0).contains(&busy), "{busy}");
    }
}
