//! What a request costs in the scheduler, by policy and number of flows. Also a smoke test: without
//! `--bench` each case runs a few requests only.

use std::hint::black_box;
use std::time::Instant as Clock;

use schedule::{
    CostModel, Direction, Dispatch, POLICIES, Quota, Request, Scheduler, SchedulerConfig,
};
use units::{Duration, Instant};

/// Runs of which the median counts.
const RUNS: usize = 5;

/// Nanoseconds for each request from `enqueue` to `complete`, each flow having two outstanding.
fn measure(policy: usize, flows: u32, requests: u64) -> f64 {
    let rate = 1e9;
    let config = SchedulerConfig {
        policy: POLICIES[policy],
        cost_model: CostModel::Separate,
        ceiling: Quota { per_second: [rate; 2] },
        window_blocks: 64,
    };
    let mut now = Instant(0);
    let mut scheduler = Scheduler::new(config, now);
    let quota = Quota { per_second: [rate / f64::from(flows); 2] };
    let request = |n: u64| Request {
        direction: if n.is_multiple_of(3) { Direction::Write } else { Direction::Read },
        blocks: 1,
    };
    let ids: Vec<_> = (0..flows).map(|_| scheduler.add_flow(quota, now)).collect();
    for (n, flow) in ids.iter().chain(&ids).enumerate() {
        scheduler.enqueue(*flow, request(n as u64), (), now);
    }
    let start = Clock::now();
    for n in 0..requests {
        now = now + Duration::from_nanos(500);
        match scheduler.dispatch(now) {
            Dispatch::Issue { flow, request: done, .. } => {
                scheduler.complete(flow, done, Duration::ZERO);
                scheduler.enqueue(flow, black_box(request(n)), (), now);
            }
            Dispatch::WaitUntil(at) => now = at,
            Dispatch::Full | Dispatch::Idle => unreachable!("all complete at once, all wait"),
        }
    }
    start.elapsed().as_nanos() as f64 / requests as f64
}

fn main() {
    let requests = if std::env::args().any(|arg| arg == "--bench") { 2_000_000 } else { 2_000 };
    println!("{:8} {:>6} {:>12}", "policy", "flows", "ns/request");
    for (policy, kind) in POLICIES.iter().enumerate() {
        for flows in [1, 10, 100, 1_000] {
            let mut runs: Vec<f64> = (0..RUNS).map(|_| measure(policy, flows, requests)).collect();
            runs.sort_by(f64::total_cmp);
            println!("{:8} {flows:>6} {:>12.1}", kind.name, runs[RUNS / 2]);
        }
    }
}
