//! Policies: whose request leaves next. One file each; a row in [`POLICIES`] makes one known.

mod drr;
mod fcfs;
mod sts;

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use units::Instant;

/// A flow: the requests of one volume on one core. Numbers are reused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct FlowId(pub u32);

/// The decision of a policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// The request that this flow offered leaves now.
    Flow(FlowId),
    /// None may leave before this instant, unless another is offered.
    WaitUntil(Instant),
    /// No request is offered.
    Nothing,
}

/// Decides which flow's request leaves next, of one class of requests. Rates are in blocks a second,
/// costs in 1/[`UNITS_PER_BLOCK`](crate::UNITS_PER_BLOCK) of a block.
///
/// The caller promises:
/// - a flow is set before it offers, and offers one request at a time: its oldest. It offers the next
///   when [`Policy::next`] has taken that one;
/// - `now` never goes back.
///
/// The policy promises:
/// - POLICY-1: [`Policy::next`] names a flow once for each request that it offered, and no other flow;
/// - POLICY-2: while requests are offered it names a flow, or an instant in the future at which it will name
///   one: nothing waits for ever, and no flow is asked in vain again and again;
/// - POLICY-3: a call costs the same however many flows there are, but for a logarithm.
pub trait Policy {
    /// Makes a flow known, or changes its quota. What it has offered stays offered.
    fn set_flow(&mut self, flow: FlowId, quota: f64, now: Instant);

    /// Forgets a flow and what it has offered.
    fn remove_flow(&mut self, flow: FlowId);

    /// Changes what all flows together may take.
    fn set_ceiling(&mut self, ceiling: f64, now: Instant);

    /// `flow`'s oldest request waits, and costs `units`. `arrival` counts all requests of the class in the
    /// order of their coming, also those that wait behind others of their flow.
    fn offer(&mut self, flow: FlowId, units: u64, arrival: u64, now: Instant);

    /// Takes the request that leaves next.
    fn next(&mut self, now: Instant) -> Next;

    /// Counts a request of `flow` as taken, if it may leave at once; no request waits. A shorter way than to
    /// offer it and to ask for the next. A policy without such a way returns false.
    fn take_at_once(&mut self, flow: FlowId, units: u64, now: Instant) -> bool;
}

/// A policy as users choose it.
#[derive(Clone, Copy)]
pub struct PolicyKind {
    /// The name.
    pub name: &'static str,
    /// In one line, what it does.
    pub about: &'static str,
    /// True if a flow gets its quota whatever others ask for. The tests of the contract hold it to that.
    pub isolates: bool,
    /// Makes one without flows, for requests of one class that together may have this rate.
    pub make: fn(f64, Instant) -> Box<dyn Policy>,
}

/// All policies; the first is the default.
pub const POLICIES: &[PolicyKind] = &[
    PolicyKind {
        name: "drr",
        about: "deficit round robin: each its share, and what others leave",
        isolates: true,
        make: |ceiling, now| Box::new(drr::DeficitRoundRobin::new(ceiling, now)),
    },
    PolicyKind {
        name: "sts",
        about: "strict time sharing: each its share and never more",
        isolates: true,
        make: |_, now| Box::new(sts::StrictTimeSharing::new(now)),
    },
    PolicyKind {
        name: "fcfs",
        about: "first come, first served, reads and writes apart: no isolation",
        isolates: false,
        make: |_, _| Box::new(fcfs::FirstComeFirstServed::default()),
    },
];

impl Default for PolicyKind {
    fn default() -> Self {
        POLICIES[0]
    }
}

impl PartialEq for PolicyKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The names of all policies, for people.
#[must_use]
pub fn policy_names() -> String {
    POLICIES.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ")
}

/// There is no policy of this name.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("there is no policy \"{name}\"; choose one of {}", policy_names())]
pub struct UnknownPolicy {
    /// The name that was asked for.
    pub name: String,
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = POLICIES.iter().find(|policy| policy.name == name);
        found.copied().ok_or_else(|| UnknownPolicy { name: name.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UNITS_PER_BLOCK;

    #[test]
    fn a_policy_is_found_by_its_name_and_is_equal_to_itself_alone() {
        for (number, policy) in POLICIES.iter().enumerate() {
            assert_eq!(policy.name.parse::<PolicyKind>().as_ref(), Ok(policy));
            for (other, kind) in POLICIES.iter().enumerate() {
                assert_eq!(policy == kind, number == other, "{policy} and {kind}");
            }
        }
        assert_eq!(PolicyKind::default(), POLICIES[0]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_those_that_there_are() {
        assert_eq!(policy_names(), "drr, sts, fcfs");
        let error = "lifo".parse::<PolicyKind>().expect_err("there is none");
        let message = "there is no policy \"lifo\"; choose one of drr, sts, fcfs";
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn what_a_quota_pays_for_leaves_at_once() {
        for policy in POLICIES {
            let mut made = (policy.make)(1_000.0, Instant(0));
            made.set_flow(FlowId(0), 1_000.0, Instant(0));
            let now = Instant(1_000_000_000);
            assert!(made.take_at_once(FlowId(0), UNITS_PER_BLOCK, now), "{policy}");
            assert_eq!(made.next(now), Next::Nothing, "{policy}: it was taken");
        }
    }
}
