//! Messages between a coordinator and its agents: JSON, checked before anything is done with it.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::engine::{INTERVAL_DIGITS, INTERVALS_MAX, Interval, Record};
use crate::latency::{DIGITS, Latencies};
use crate::run::{Job, Measured, Part, Setup, SetupError};

/// The version of these messages. `Hello` stays as it is in all.
pub(crate) const VERSION: u32 = 2;
/// Characters of an error that are told.
const ERROR_LEN_MAX: usize = 1000;
/// Agents of a run at most.
pub(crate) const AGENTS_MAX: usize = 1000;

/// A message of the coordinator.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum ToAgent {
    /// The first message.
    Hello { version: u32, token: String },
    /// A question for the agent's clock.
    Clock {},
    /// The load that the agent is to make.
    Plan(Box<Plan>),
    /// The time to start at, on the agent's clock.
    Start { at_ns: u64 },
}

/// A message of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum FromAgent {
    /// The token is right.
    Welcome {},
    /// The agent does nothing for this coordinator.
    Refused { reason: String },
    /// Nanoseconds on the agent's clock.
    Clock { ns: u64 },
    /// All connections to the server are made.
    Connected {},
    /// The work goes on.
    Alive {},
    /// The work cannot be done.
    Failed { error: String },
    /// The work is done.
    Measured(Box<Measurements>),
}

/// The load of one agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    pub(crate) job: Job,
    pub(crate) part: Part,
    pub(crate) setup: Setup,
}

/// A message that is refused.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// No message.
    #[error("what came is no message of this version: {0}")]
    Malformed(serde_json::Error),
    /// A plan that cannot be carried out.
    #[error("the plan cannot be carried out: {0}")]
    Plan(SetupError),
    /// Measurements that no run has.
    #[error("the measurements contradict themselves: {0}")]
    Measurements(&'static str),
}

impl Plan {
    fn check(&self) -> Result<(), MessageError> {
        self.setup.check().map_err(MessageError::Plan)?;
        if self.part.of > AGENTS_MAX || self.part.index >= self.part.of {
            return Err(MessageError::Plan(SetupError::OutOfRange("the agent's number")));
        }
        Ok(())
    }
}

/// A message that is checked when it is decoded.
pub(crate) trait Message: Serialize + DeserializeOwned {
    /// Checks what single fields do not say.
    fn check(&self) -> Result<(), MessageError>;

    fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let message: Self = serde_json::from_slice(bytes).map_err(MessageError::Malformed)?;
        message.check()?;
        Ok(message)
    }

    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and texts always encode")
    }
}

impl Message for ToAgent {
    fn check(&self) -> Result<(), MessageError> {
        match self {
            Self::Plan(plan) => plan.check(),
            Self::Hello { .. } | Self::Clock {} | Self::Start { .. } => Ok(()),
        }
    }
}

impl Message for FromAgent {
    fn check(&self) -> Result<(), MessageError> {
        match self {
            Self::Measured(measurements) => measurements.measured().map(|_| ()),
            _ => Ok(()),
        }
    }
}

/// An error, cut to a length that can be told.
pub(crate) fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(ERROR_LEN_MAX).collect()
}

/// Counts, each with a latency in nanoseconds (AGENT-3).
type Counts = Vec<(u64, u64)>;

/// Measurements as they are sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measurements {
    reads: Counts,
    writes: Counts,
    lateness: Counts,
    missing: u64,
    errors: u64,
    unanswered: u64,
    intervals: Vec<IntervalCounts>,
    first_error: Option<String>,
    overloaded: bool,
    #[serde(with = "crate::exact")]
    busiest: f64,
    stalled: Duration,
    end: Duration,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IntervalCounts {
    done: u64,
    errors: u64,
    latencies: Counts,
}

impl From<&Measured> for Measurements {
    fn from(measured: &Measured) -> Self {
        let record = &measured.record;
        let interval = |interval: &Interval| IntervalCounts {
            done: interval.done,
            errors: interval.errors,
            latencies: interval.latencies.counts(),
        };
        Self {
            reads: record.reads.counts(),
            writes: record.writes.counts(),
            lateness: record.lateness.counts(),
            missing: record.missing,
            errors: record.errors,
            unanswered: record.unanswered,
            intervals: record.intervals.iter().map(interval).collect(),
            first_error: measured.first_error.as_deref().map(cut),
            overloaded: measured.overloaded,
            busiest: measured.busiest,
            stalled: measured.stalled,
            end: measured.end,
        }
    }
}

impl Measurements {
    /// Checks them, and makes of them what was measured.
    pub(crate) fn measured(&self) -> Result<Measured, MessageError> {
        let wrong = MessageError::Measurements;
        let latencies = |digits, counts: &Counts| {
            Latencies::from_counts(digits, counts).ok_or(wrong("counts of latencies"))
        };
        // Bounds the memory of histograms. A run has one interval more if its length is no multiple.
        if self.intervals.len() > INTERVALS_MAX as usize + 1 {
            return Err(wrong("more intervals than a run has"));
        }
        let interval = |interval: &IntervalCounts| {
            let latencies = latencies(INTERVAL_DIGITS, &interval.latencies)?;
            bounded([interval.done, interval.errors])?;
            Ok(Interval { done: interval.done, errors: interval.errors, latencies })
        };
        bounded([self.missing, self.errors, self.unanswered])?;
        let record = Record {
            reads: latencies(DIGITS, &self.reads)?,
            writes: latencies(DIGITS, &self.writes)?,
            lateness: latencies(DIGITS, &self.lateness)?,
            missing: self.missing,
            errors: self.errors,
            unanswered: self.unanswered,
            intervals: self.intervals.iter().map(interval).collect::<Result<_, MessageError>>()?,
        };
        if self.unanswered > record.reads.count() + record.writes.count() {
            return Err(wrong("more requests without an answer than requests"));
        }
        if !(0.0..=1e3).contains(&self.busiest) {
            return Err(wrong("the share of a CPU"));
        }
        Ok(Measured {
            record,
            first_error: self.first_error.as_deref().map(cut),
            overloaded: self.overloaded,
            busiest: self.busiest,
            stalled: self.stalled,
            end: self.end,
        })
    }
}

/// Refuses counts of which a sum over all agents could overflow.
fn bounded<const N: usize>(counts: [u64; N]) -> Result<(), MessageError> {
    match counts.iter().all(|count| *count <= 1 << 48) {
        true => Ok(()),
        false => Err(MessageError::Measurements("a count")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::outcome::summarise;
    use crate::run::Loop;
    use crate::sizes::Sizes;
    use crate::{Popularity, Workload, WriteCommand};

    fn setup(rate: f64, read_share: f64) -> Setup {
        Setup {
            address: "[::1]:6379".parse().expect("an address"),
            tls: None,
            password: Some("secret".to_owned()),
            threads: 2,
            connections: 3,
            depth: 4,
            pace: Loop::Open { rate, arrivals: crate::Arrivals::Poisson },
            warm_up: Duration::from_millis(1500),
            duration: Duration::from_secs(10),
            drain: Duration::from_secs(10),
            probe_rate: 0.0,
            workload: Workload {
                keys: u64::MAX,
                key_sizes: Sizes::Uniform(17, 21),
                value_sizes: Sizes::Pareto(15.0, 214.476, 0.348_238),
                popularity: Popularity::Zipf(0.99),
                read_share,
                write: WriteCommand::Append,
                seed: u64::MAX,
            },
        }
    }

    fn measured(latencies: &[(u64, bool)]) -> Measured {
        let mut record = Record::new();
        for (ns, is_read) in latencies {
            let (latency, second) = (Duration::from_nanos(*ns), (ns % 3) as usize);
            if *is_read { &mut record.reads } else { &mut record.writes }.record(latency);
            record.lateness.record(latency / 7);
            let interval = record.interval(second);
            interval.done += 1;
            interval.latencies.record(latency);
            record.missing += ns % 2;
        }
        let end = Duration::from_secs(10);
        let stalled = Duration::from_secs(2);
        Measured { record, first_error: None, overloaded: false, busiest: 0.5, stalled, end }
    }

    fn sent(measured: &Measured) -> Measured {
        let message = FromAgent::Measured(Box::new(measured.into())).encode();
        match FromAgent::decode(&message).expect("it was encoded here") {
            FromAgent::Measured(measurements) => measurements.measured().expect("it was checked"),
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        /// AGENT-3: what four agents measured, sent and added up, is what one process measured that had all of it.
        #[test]
        fn four_agents_are_as_one(
            latencies in prop::collection::vec((0u64..8_000_000_000_000, any::<bool>()), 0..400),
        ) {
            let setup = setup(1000.0, 0.9);
            let whole = summarise(&setup, &[measured(&latencies)], None);
            let quarter = |n: usize| latencies.iter().skip(n).step_by(4).copied().collect::<Vec<_>>();
            let parts: Vec<Measured> = (0..4).map(|n| sent(&measured(&quarter(n)))).collect();
            let merged = summarise(&setup, &parts, None);
            prop_assert_eq!(serde_json::to_string(&whole).ok(), serde_json::to_string(&merged).ok());
            prop_assert_eq!(whole.read_latencies.counts(), merged.read_latencies.counts());
            prop_assert_eq!(whole.write_latencies.counts(), merged.write_latencies.counts());
        }

        /// A plan arrives as it was sent, to the last bit of its numbers.
        #[test]
        fn plans_arrive_as_they_were_sent(rate in 1e-3..1e9f64, share in 0.0..=1.0f64) {
            let setup = setup(rate, share);
            let plan = Plan { job: Job::Run, part: Part { index: 1, of: 2 }, setup: setup.clone() };
            let message = ToAgent::decode(&ToAgent::Plan(Box::new(plan)).encode()).expect("a plan");
            let ToAgent::Plan(plan) = message else { panic!("{message:?}") };
            prop_assert_eq!(&plan.setup.workload, &setup.workload);
            prop_assert_eq!(plan.setup.pace, setup.pace);
            prop_assert_eq!((plan.setup.window(), plan.part), (setup.window(), Part { index: 1, of: 2 }));
        }
    }

    #[test]
    fn plans_that_no_coordinator_makes_are_refused() {
        let plan = |setup, part| {
            let plan = Plan { job: Job::Run, part, setup };
            ToAgent::decode(&ToAgent::Plan(Box::new(plan)).encode()).map(|_| ())
        };
        let good = setup(10.0, 0.5);
        assert!(plan(good.clone(), Part::WHOLE).is_ok());
        let workload = |workload| Setup { workload, ..good.clone() };
        let bad = [
            Setup { threads: 0, ..good.clone() },
            Setup { connections: 1 << 40, ..good.clone() },
            Setup { depth: 0, ..good.clone() },
            Setup { duration: Duration::ZERO, ..good.clone() },
            Setup { warm_up: Duration::MAX, ..good.clone() },
            Setup {
                pace: Loop::Open { rate: f64::NAN, arrivals: crate::Arrivals::Uniform },
                ..good.clone()
            },
            workload(Workload { keys: 0, ..good.workload.clone() }),
            workload(Workload { value_sizes: Sizes::Fixed(u32::MAX), ..good.workload.clone() }),
            workload(Workload { key_sizes: Sizes::Uniform(20, 10), ..good.workload.clone() }),
        ];
        for setup in bad {
            assert!(plan(setup.clone(), Part::WHOLE).is_err(), "{setup:?}");
        }
        for (index, of) in [(0, 0), (1, 1), (0, AGENTS_MAX + 1)] {
            assert!(plan(good.clone(), Part { index, of }).is_err(), "{index} of {of}");
        }
    }

    #[test]
    fn measurements_that_contradict_themselves_are_refused() {
        let good = Measurements::from(&measured(&[(1000, true), (5_000_000, false)]));
        assert!(good.measured().is_ok());
        let interval = IntervalCounts { done: 0, errors: 0, latencies: Vec::new() };
        let bad = [
            Measurements { unanswered: 3, ..good.clone() },
            Measurements { reads: vec![(1, u64::MAX), (2, u64::MAX)], ..good.clone() },
            Measurements { reads: vec![(u64::MAX, 1)], ..good.clone() },
            Measurements { busiest: f64::INFINITY, ..good.clone() },
            Measurements { missing: u64::MAX, ..good.clone() },
            Measurements { intervals: vec![interval; INTERVALS_MAX as usize + 2], ..good.clone() },
        ];
        for measurements in bad {
            assert!(measurements.measured().is_err(), "{measurements:?}");
        }
    }
}
