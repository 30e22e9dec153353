//! What a request costs in the scheduler, by policy and number of flows. Also a smoke test: without
//! `--bench` each case runs a few requests only.

use std::hint::black_box;
use std::time::Instant as Clock;

use schedule::{
    CostModel, Direction, Dispatch, POLICIES, Quota, Request, Scheduler, SchedulerConfig,
};
use units::{Duration, Instant};

/// Short runs, so that on a busy machine some of them have the processor to themselves.
const RUNS: usize = 61;

/// Requests a second: one each 500 ns.
const REQUESTS: f64 = 2e6;

/// Nanoseconds for each request from `enqueue` to `complete`, each flow having two outstanding. The
/// flows are promised `promised` a second together.
fn measure(policy: usize, flows: u32, requests: u64, promised: f64) -> f64 {
    let rate = 1e9;
    let config = SchedulerConfig {
        policy: POLICIES[policy],
        cost_model: CostModel::Separate,
        ceiling: Quota { per_second: [rate; 2] },
        window_blocks: 64,
    };
    let mut now = Instant(0);
    let mut scheduler = Scheduler::new(config, now);
    let quota = Quota { per_second: [promised / f64::from(flows); 2] };
    let request = |n: u64| Request {
        direction: if n.is_multiple_of(3) { Direction::Write } else { Direction::Read },
        blocks: 1,
    };
    let ids: Vec<_> = (0..flows).map(|_| scheduler.add_flow(quota, now)).collect();
    for (n, flow) in ids.iter().chain(&ids).enumerate() {
        scheduler.enqueue(*flow, request(n as u64), (), now);
    }
    let mut start = Clock::now();
    for n in 0..requests + requests / 4 {
        // The first find caches cold.
        if n == requests / 4 {
            start = Clock::now();
        }
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

/// Nanoseconds for each flow to be given another quota, all of them having a request that waits.
fn measure_plan(policy: usize, flows: u32) -> f64 {
    let quota = |rate: f64| Quota { per_second: [rate / f64::from(flows); 2] };
    let config = SchedulerConfig {
        policy: POLICIES[policy],
        cost_model: CostModel::Separate,
        ceiling: Quota { per_second: [1e4; 2] },
        window_blocks: 64,
    };
    let mut scheduler = Scheduler::new(config, Instant(0));
    let ids: Vec<_> = (0..flows).map(|_| scheduler.add_flow(quota(1e4), Instant(0))).collect();
    let request = Request { direction: Direction::Read, blocks: 8 };
    for flow in ids.iter().cycle().take(4 * ids.len()) {
        scheduler.enqueue(*flow, request, (), Instant(0));
    }
    // What may leave at once leaves; the rest waits for its time.
    while let Dispatch::Issue { flow, request, .. } = scheduler.dispatch(Instant(0)) {
        scheduler.complete(flow, request, Duration::ZERO);
    }
    let plans = 1 + 10_000 / flows;
    let start = Clock::now();
    for plan in 0..plans {
        for flow in &ids {
            scheduler.set_quota(*flow, quota(f64::from(10_000 + plan % 2)), Instant(1));
        }
        black_box(scheduler.dispatch(Instant(1)));
    }
    start.elapsed().as_nanos() as f64 / f64::from(plans * flows)
}

/// `--bench` measures; the name of a policy and a number of flows restrict it to these.
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let requests = if args.iter().any(|arg| arg == "--bench") { 60_000 } else { 1_000 };
    let wanted = |name: &str| args.iter().any(|arg| arg == name);
    let only_policy = POLICIES.iter().any(|policy| wanted(policy.name));
    let only_flows = args.iter().any(|arg| arg.parse::<u32>().is_ok());
    println!(
        "{:8} {:>6} {:>12} {:>12} {:>17} {:>14}",
        "policy", "flows", "request, ns", "(median)", "beyond quota, ns", "new quota, ns"
    );
    for (policy, kind) in POLICIES.iter().enumerate() {
        for flows in [1, 10, 100, 1_000] {
            if only_policy && !wanted(kind.name) || only_flows && !wanted(&flows.to_string()) {
                continue;
            }
            let runs = |promised: f64| {
                let mut runs: Vec<f64> =
                    (0..RUNS).map(|_| measure(policy, flows, requests, promised)).collect();
                runs.sort_by(f64::total_cmp);
                [runs[0], runs[RUNS / 2]]
            };
            let ([best, median], [beyond, _]) = (runs(1e9), runs(REQUESTS / 4.0));
            let plan = (0..RUNS).map(|_| measure_plan(policy, flows)).fold(f64::MAX, f64::min);
            let name = kind.name;
            println!("{name:8} {flows:>6} {best:>12.1} {median:>12.1} {beyond:>17.1} {plan:>14.1}");
        }
    }
}
