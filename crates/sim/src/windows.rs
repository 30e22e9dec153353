//! Rates and promises over every window of a run, for tests of what shares a device.
//!
//! Nothing here knows a scheduler: what may be taken, and what is kept, is computed a second time from what
//! `docs/policies.md` promises.
//!
//! - WINDOW-1: in no window does a device take more than its ceiling, and what may come together.
//! - WINDOW-2: where a policy gives no more than quotas, no volume takes more than its own in any window, and what may
//!   come together.
//! - WINDOW-3: a request leaves when a device of its own, which has the rate of its volume's quota, would have done it, but
//!   for [`LATE_S`] and [`LATE_REQUESTS`]. So a volume that always waits gets its quota in every window, and one that asks
//!   for less waits for a bounded time.
//! - WINDOW-4: while requests wait and may go, the device takes its ceiling in every window, but for what may come
//!   together; the quotas of the volumes that wait, where a policy gives no more.
//! - WINDOW-5: of two volumes that wait all the time, in any window each gets as much of its quota as the other, but for
//!   what may come together, also where the device does less than its ceiling. Not where a policy gives no more than
//!   quotas: there they take turns at a device that is slower than quotas say.

use std::collections::{BTreeMap, VecDeque};

use units::Instant;

/// WINDOW-3: the time that turns take.
const LATE_S: f64 = 0.002;
/// WINDOW-3: the part of the largest request that others have in their turns.
const LATE_REQUESTS: f64 = 0.1;
/// Costs are rounded.
const ROUNDED: f64 = 1.0;
/// WINDOW-4: without quotas and ceilings nothing may wait for time. As a rate, in blocks a second.
const AT_ONCE: f64 = 1e12;

/// Blocks for which slow rates are kept longer than fast ones.
const CARRIED_BLOCKS: f64 = 32.0;

/// Time for which the unused part of a rate is kept, which bounds what may come together.
#[derive(Clone, Copy, Debug)]
struct Carried {
    /// For all rates.
    least_s: f64,
    /// For slow rates, as long as that is less than 32 blocks.
    most_s: f64,
}

impl Carried {
    /// Blocks that are kept of `rate` blocks a second.
    fn blocks(self, rate: f64) -> f64 {
        (self.least_s * rate).max((self.most_s * rate).min(CARRIED_BLOCKS)).max(1.0)
    }
}

/// The promises of a policy in `docs/policies.md`.
#[derive(Clone, Copy, Debug)]
struct Promised {
    /// Unused quota that is kept; `None`: there are no quotas.
    quota: Option<Carried>,
    /// Unused ceiling that is kept; `None`: quotas alone bound what the device takes.
    ceiling: Option<Carried>,
    /// A volume gets no more than its quota.
    is_strict: bool,
}

impl Promised {
    /// The promises of the policy with this name.
    ///
    /// # Panics
    /// It is not known here: a test must not pass over a policy.
    fn of(policy: &str) -> Self {
        let carried = |least_ms: f64, most_ms: f64| {
            Some(Carried { least_s: least_ms / 1e3, most_s: most_ms / 1e3 })
        };
        let (quota, ceiling) = match policy {
            "drr" => (carried(10.0, 100.0), carried(1.0, 20.0)),
            "sts" => (carried(0.1, 100.0), None),
            "fcfs" => (None, None),
            other => panic!("sim::Promised lacks what docs/policies.md promises of {other}"),
        };
        Self { quota, ceiling, is_strict: quota.is_some() && ceiling.is_none() }
    }
}

/// The largest excess of what was taken over what was allowed, among all windows that end now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Excess {
    /// Taken, less what was allowed.
    balance: f64,
    /// The least that `balance` was.
    least: f64,
}

impl Excess {
    /// So much more may be taken.
    pub fn allow(&mut self, amount: f64) {
        self.balance -= amount;
        self.least = self.least.min(self.balance);
    }

    /// So much is taken.
    pub fn take(&mut self, amount: f64) {
        self.balance += amount;
    }

    /// The excess.
    #[must_use]
    pub fn now(&self) -> f64 {
        self.balance - self.least
    }
}

/// One volume's requests before a device of its own that has the rate of the volume's quota. A request that leaves
/// no later than that device would have done it has had its share, however the volume's requests come.
#[derive(Clone, Debug, Default)]
struct OwnDevice {
    /// Work that the device could have done.
    could: f64,
    /// The value of `could` at which all requests are completed.
    last: f64,
    /// The values of `could` at which the requests that wait are completed.
    waiting: VecDeque<f64>,
}

impl OwnDevice {
    /// The device had time for so much.
    fn pass(&mut self, amount: f64) {
        self.could += amount;
    }

    /// A request comes.
    fn arrive(&mut self, amount: f64) {
        self.last = self.last.max(self.could) + amount;
        self.waiting.push_back(self.last);
    }

    /// The oldest request leaves.
    ///
    /// # Panics
    /// None waits.
    fn leave(&mut self) {
        self.waiting.pop_front().expect("a request that leaves has come");
    }

    /// Returns the work that the device could have done since it completed the oldest request. Below zero, it has
    /// not completed it.
    fn late(&self) -> Option<f64> {
        self.waiting.front().map(|done| self.could - done)
    }

    /// Returns true if a request waits.
    fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// A volume as it is judged.
#[derive(Debug, Default)]
struct Flow {
    quota: f64,
    /// The highest that `quota` was: what was overdrawn then is paid later.
    quota_max: f64,
    own: OwnDevice,
    taken: Excess,
}

/// Checks the requests of one kind in one core against the promises of the policy. Costs are in blocks.
#[derive(Debug)]
pub struct Judge {
    promised: Promised,
    now: Instant,
    ceiling: f64,
    flows: BTreeMap<u32, Flow>,
    taken: Excess,
    lack: Excess,
    /// Excess of the first volume over the second, in seconds of its quota, while both wait (WINDOW-5).
    apart: BTreeMap<(u32, u32), Excess>,
    /// Until when those that wait may not go, in the policy's words; until something happens, if `None`.
    idle_until: Option<Instant>,
    is_idle: bool,
    /// True if only the time in which the device was idle counts against a request (WINDOW-3); the rest may go to other
    /// work.
    is_shared: bool,
    largest: f64,
    /// The most that ceiling and quotas together may have kept.
    kept: f64,
    /// Kept quota of all volumes that were added.
    brought: f64,
    /// Work that quotas allowed beyond the ceiling; it waits until the ceiling has allowed it, too.
    beyond: f64,
    /// The part of the tolerance of WINDOW-1 to WINDOW-5 that was needed.
    pub needed: [f64; 5],
}

impl Judge {
    /// Starts with a core without volumes.
    #[must_use]
    pub fn new(policy: &str, ceiling: f64, now: Instant) -> Self {
        let mut judge = Self {
            promised: Promised::of(policy),
            now,
            ceiling: 0.0,
            flows: BTreeMap::new(),
            taken: Excess::default(),
            lack: Excess::default(),
            apart: BTreeMap::new(),
            idle_until: None,
            is_idle: false,
            is_shared: false,
            largest: 1.0,
            kept: 0.0,
            brought: 0.0,
            beyond: 0.0,
            needed: [0.0; 5],
        };
        judge.set_ceiling(ceiling);
        judge
    }

    /// The same before a device that is busy with other things, or slower than its ceiling says (WINDOW-3).
    #[must_use]
    pub fn of_shared(policy: &str, ceiling: f64, now: Instant) -> Self {
        Self { is_shared: true, ..Self::new(policy, ceiling, now) }
    }

    /// Returns the work allowed in a second: quotas may be a little more than the ceiling, where each has a
    /// minimum.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.flows.values().map(|flow| flow.quota).sum::<f64>().max(self.ceiling)
    }

    /// Returns the work that may come together.
    #[must_use]
    pub fn burst(&self) -> f64 {
        self.kept + self.brought
    }

    /// Returns true if the policy bounds what is taken (WINDOW-1).
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.promised.quota.is_some()
    }

    fn kept_of_ceiling(&self) -> f64 {
        self.promised.ceiling.map_or(0.0, |kept| kept.blocks(self.ceiling)) + self.largest
    }

    /// With the request that goes beyond, and one that has waited for the device: meanwhile its quota came in.
    fn kept_of_quota(&self, quota: f64) -> f64 {
        self.promised.quota.map_or(0.0, |kept| kept.blocks(quota)) + 2.0 * self.largest
    }

    fn note_kept(&mut self) {
        let quotas = self.flows.values().map(|flow| self.kept_of_quota(flow.quota));
        self.kept = self.kept.max(quotas.sum::<f64>() + self.kept_of_ceiling());
    }

    /// Changes the ceiling.
    pub fn set_ceiling(&mut self, ceiling: f64) {
        self.ceiling = ceiling;
        self.note_kept();
    }

    /// Adds a volume, or changes its quota.
    pub fn set_flow(&mut self, flow: u32, quota: f64) {
        let is_new = !self.flows.contains_key(&flow);
        self.restart_comparison(flow);
        let this = self.flows.entry(flow).or_default();
        (this.quota, this.quota_max) = (quota, quota.max(this.quota_max));
        if is_new {
            self.brought += self.kept_of_quota(quota);
        }
        self.note_kept();
    }

    /// Removes a volume, and what waits there.
    pub fn remove_flow(&mut self, flow: u32) {
        self.flows.remove(&flow);
        self.restart_comparison(flow);
        if !self.flows.values().any(|flow| flow.own.waits()) {
            self.busy();
        }
    }

    fn restart_comparison(&mut self, flow: u32) {
        self.apart.retain(|(a, b), _| *a != flow && *b != flow);
    }

    /// Lets time pass.
    pub fn pass_to(&mut self, now: Instant) {
        let seconds = |until: Instant| until.0.saturating_sub(self.now.0) as f64 / 1e9;
        let passed = seconds(now);
        let idle = match self.is_idle {
            true => seconds(self.idle_until.map_or(now, |until| until.min(now))),
            false => 0.0,
        };
        self.now = self.now.max(now);
        self.taken.allow(passed * self.rate());
        self.beyond += passed * (self.rate() - self.ceiling);
        let against = if self.is_shared { idle } else { passed };
        let mut waiting = 0.0;
        for flow in self.flows.values_mut() {
            flow.taken.allow(passed * flow.quota);
            flow.own.pass(against * flow.quota);
            if flow.own.waits() {
                waiting += flow.quota;
            }
        }
        self.lack.take(
            idle * match self.promised {
                Promised { ceiling: Some(_), .. } => self.ceiling,
                Promised { quota: Some(_), .. } => waiting,
                _ => AT_ONCE,
            },
        );
    }

    /// A request comes.
    pub fn arrive(&mut self, flow: u32, blocks: f64) {
        if blocks > self.largest {
            self.largest = blocks;
            self.note_kept();
        }
        self.flow(flow).own.arrive(blocks);
    }

    /// The oldest request of a volume leaves.
    pub fn leave(&mut self, flow: u32, blocks: f64) {
        let this = self.flow(flow);
        this.own.leave();
        this.taken.take(blocks);
        let (waits, seconds) = (this.own.waits(), blocks / this.quota);
        self.taken.take(blocks);
        self.lack.allow(blocks);
        if !waits {
            return self.restart_comparison(flow);
        }
        let others = self.flows.iter().filter(|(other, this)| **other != flow && this.own.waits());
        for (other, _) in others {
            self.apart.entry((flow, *other)).or_default().take(seconds);
            self.apart.entry((*other, flow)).or_default().allow(seconds);
        }
    }

    fn flow(&mut self, flow: u32) -> &mut Flow {
        self.flows.get_mut(&flow).expect("a volume that was added")
    }

    /// From now on requests wait though there is room (WINDOW-4), because the policy said so: until then at most.
    pub fn idle(&mut self, until: Option<Instant>) {
        (self.is_idle, self.idle_until) = (true, until);
    }

    /// From now on none waits, or all wait for the device.
    pub fn busy(&mut self) {
        self.is_idle = false;
        if !self.flows.values().any(|flow| flow.own.waits()) {
            self.lack = Excess::default();
        }
    }

    /// Checks that all promises were kept.
    ///
    /// # Errors
    /// What is not.
    pub fn check(&mut self) -> Result<(), String> {
        let burst = self.burst() + ROUNDED;
        if self.is_bounded() {
            let taken = self.taken.now();
            self.note(0, taken / burst);
            if taken > burst {
                return Err(format!(
                    "WINDOW-1: {taken:.1} blocks beyond the ceiling, of {burst:.1}"
                ));
            }
        }
        let (lack, burst) = (self.lack.now(), burst + self.beyond);
        self.note(3, lack / burst);
        if lack > burst {
            return Err(format!("WINDOW-4: {lack:.1} blocks of the ceiling unused, of {burst:.1}"));
        }
        if !self.is_bounded() {
            return Ok(());
        }
        let flows: Vec<u32> = self.flows.keys().copied().collect();
        flows.into_iter().try_for_each(|flow| self.check_flow(flow))?;
        if self.promised.is_strict {
            return Ok(());
        }
        self.check_apart()
    }

    /// WINDOW-5.
    fn check_apart(&mut self) -> Result<(), String> {
        let seconds = |flow: u32| {
            let quota = self.flows[&flow].quota;
            self.kept_of_quota(quota) / quota
        };
        let apart = self.apart.iter().map(|((a, b), apart)| {
            let (apart, most) = (apart.now(), seconds(*a) + seconds(*b));
            (apart / most, *a, *b, apart, most)
        });
        let worst = apart.max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((part, a, b, apart, most)) = worst else { return Ok(()) };
        self.note(4, part);
        if apart > most {
            return Err(format!(
                "WINDOW-5: volume {a} got what its quota gives in {apart:.3} s more than volume {b}, \
                 of {most:.3} s"
            ));
        }
        Ok(())
    }

    /// WINDOW-2, WINDOW-3.
    fn check_flow(&mut self, number: u32) -> Result<(), String> {
        let flow = &self.flows[&number];
        let (quota, taken) = (flow.quota_max, flow.taken.now());
        // An epoch may have begun just before the window.
        let burst = self.kept_of_quota(quota) + quota * 1e-4 + ROUNDED;
        let late = flow.own.late().unwrap_or(f64::MIN);
        let late_max = quota * LATE_S + self.largest * LATE_REQUESTS + ROUNDED;
        if self.promised.is_strict {
            self.note(1, taken / burst);
            if taken > burst {
                return Err(format!(
                    "WINDOW-2: volume {number} has {taken:.1} blocks beyond its quota, of {burst:.1}"
                ));
            }
        }
        self.note(2, late / late_max);
        if late > late_max {
            return Err(format!(
                "WINDOW-3: volume {number} waits for what {late:.1} blocks of its quota would do, \
                 of {late_max:.1}"
            ));
        }
        Ok(())
    }

    fn note(&mut self, promise: usize, part: f64) {
        self.needed[promise] = self.needed[promise].max(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_window_counts_wherever_it_begins() {
        let mut excess = Excess::default();
        excess.take(3.0);
        assert_eq!(excess.now(), 3.0);
        excess.allow(10.0);
        assert_eq!(excess.now(), 0.0, "what was not used is gone");
        excess.take(4.0);
        excess.allow(1.0);
        excess.take(2.0);
        assert_eq!(excess.now(), 5.0);
    }

    #[test]
    fn a_device_of_ones_own_works_while_there_is_work() {
        let mut own = OwnDevice::default();
        own.pass(5.0);
        own.arrive(2.0);
        own.arrive(1.0);
        assert_eq!(own.late(), Some(-2.0));
        own.pass(4.0);
        assert_eq!(own.late(), Some(2.0));
        own.leave();
        assert_eq!(own.late(), Some(1.0));
        own.leave();
        assert!(!own.waits());
    }
}
