//! Cost of a request in the scheduler, by policy and number of volumes.

use std::hint::black_box;
use std::time::Instant as Clock;

use report::{Align, Spread, Table};
use schedule::{
    CostModel, Direction, Dispatch, POLICIES, Quota, Request, Scheduler, SchedulerConfig,
};
use serde::Serialize;
use units::{Duration, Instant};

/// Runs of a case, and requests in each: short, so that on a busy machine some of them have the
/// processor to themselves.
const FULL: (usize, u64) = (61, 60_000);
const QUICK: (usize, u64) = (5, 10_000);
/// The most volumes of a core that are measured.
pub(super) const FLOWS_MAX: u32 = 1_000;

/// Requests a second: one each 500 ns.
const REQUESTS: f64 = 2e6;

/// Nanoseconds for each request from `enqueue` to `complete`, each flow having two outstanding. The
/// flows are promised `promised` a second together.
fn request_ns(policy: usize, flows: u32, requests: u64, promised: f64) -> f64 {
    let rate = 1e9;
    let config = SchedulerConfig {
        policy: POLICIES[policy],
        cost_model: CostModel::Separate,
        ceiling: Quota { per_second: [rate; 2] },
        window_blocks: [64; 2],
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
                scheduler.complete(flow, done);
                scheduler.enqueue(flow, black_box(request(n)), (), now);
            }
            Dispatch::WaitUntil(at) => now = at,
            Dispatch::Full | Dispatch::Idle => unreachable!("all complete at once, all wait"),
        }
    }
    start.elapsed().as_nanos() as f64 / requests as f64
}

/// Nanoseconds for each flow to be given another quota, all of them having a request that waits.
fn plan_ns(policy: usize, flows: u32) -> f64 {
    let quota = |rate: f64| Quota { per_second: [rate / f64::from(flows); 2] };
    let config = SchedulerConfig {
        policy: POLICIES[policy],
        cost_model: CostModel::Separate,
        ceiling: Quota { per_second: [1e4; 2] },
        window_blocks: [64; 2],
    };
    let mut scheduler = Scheduler::new(config, Instant(0));
    let ids: Vec<_> = (0..flows).map(|_| scheduler.add_flow(quota(1e4), Instant(0))).collect();
    let request = Request { direction: Direction::Read, blocks: 8 };
    for flow in ids.iter().cycle().take(4 * ids.len()) {
        scheduler.enqueue(*flow, request, (), Instant(0));
    }
    // What may leave at once leaves; the rest waits for its time.
    while let Dispatch::Issue { flow, request, .. } = scheduler.dispatch(Instant(0)) {
        scheduler.complete(flow, request);
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

/// Costs of requests under a policy, nanoseconds of each run.
#[derive(Debug, Serialize)]
pub(super) struct Cost {
    pub(super) policy: &'static str,
    pub(super) flows: u32,
    /// Within what is promised.
    pub(super) request_ns: Vec<f64>,
    /// Beyond it, so that what is spare is given out.
    pub(super) beyond_quota_ns: Vec<f64>,
    /// Another quota for a volume, all volumes getting one.
    pub(super) plan_ns: Vec<f64>,
}

/// Measures all policies.
pub(super) fn measure(is_quick: bool) -> Vec<Cost> {
    let (runs, requests) = if is_quick { QUICK } else { FULL };
    let mut costs = Vec::new();
    for (policy, kind) in POLICIES.iter().enumerate() {
        for flows in [1, 10, 100, FLOWS_MAX] {
            let all = |promised: f64| {
                (0..runs).map(|_| request_ns(policy, flows, requests, promised)).collect()
            };
            costs.push(Cost {
                policy: kind.name,
                flows,
                request_ns: all(1e9),
                beyond_quota_ns: all(REQUESTS / 4.0),
                plan_ns: (0..runs).map(|_| plan_ns(policy, flows)).collect(),
            });
        }
    }
    costs
}

/// The costs, for people.
pub(super) fn table(costs: &[Cost]) -> Table {
    let columns = [
        ("policy", Align::Left),
        ("volumes", Align::Right),
        ("a request, ns", Align::Right),
        ("beyond its quota, ns", Align::Right),
        ("a new quota, ns", Align::Right),
    ];
    let mut table = Table::new(&columns);
    let shown = |values: &[f64]| {
        let show = |spread: Spread| spread.show(|ns| format!("{ns:.0}"));
        Spread::of(values).map_or("–".to_owned(), show)
    };
    for cost in costs {
        table.row([
            cost.policy.to_owned(),
            cost.flows.to_string(),
            shown(&cost.request_ns),
            shown(&cost.beyond_quota_ns),
            shown(&cost.plan_ns),
        ]);
    }
    table
}
