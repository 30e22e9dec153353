//! The sharing of a device: its ceiling, the promises of its volumes, and the consequences for each core.
//!
//! - PROMISE-1: what is promised fits below the ceiling. A change that would break this is refused.
//! - PROMISE-2: should a server start with a lower ceiling than its volumes were promised, they all get
//!   the same part of it, and the log says so: a device that is slower than it was must still be served.

use std::collections::BTreeMap;

use control::{ChangeDevice, ServiceError};
use data_core::CoreShare;
use local_devices::sharing_spec::SharingSpec;
use schedule::{
    AdmissionError, Ceiling, CorePart, CostModel, PolicyKind, Promise, SchedulerConfig, Slo, plan,
};
use typed_index_collections::TiVec;
use units::{CoreIndex, Duration};
use uuid::Uuid;

/// A device and its promises.
#[derive(Clone, Debug)]
pub(super) struct SharedDevice {
    name: String,
    spec: SharingSpec,
    cores: usize,
    promises: BTreeMap<Uuid, Promise>,
}

impl SharedDevice {
    pub(super) fn new(name: String, spec: SharingSpec, cores: usize) -> Self {
        Self { name, spec, cores, promises: BTreeMap::new() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// A volume that was there before, whatever it was promised (PROMISE-2).
    pub(super) fn admit_known(&mut self, id: Uuid, promise: Promise) {
        self.promises.insert(id, promise);
    }

    /// Promises a volume something, if that is possible (PROMISE-1).
    pub(super) fn admit(&mut self, id: Uuid, promise: Promise) -> Result<(), ServiceError> {
        let Some(ceiling) = self.spec.ceiling else {
            return match promise.slo {
                Slo::Share { weight: 0 } => Err(refused(&AdmissionError::NoWeight)),
                Slo::Share { .. } => {
                    self.promises.insert(id, promise);
                    Ok(())
                }
                Slo::Rate { .. } => Err(ServiceError::NoCeiling { device: self.name.clone() }),
            };
        };
        let others = self.promises.iter().filter(|(other, _)| **other != id);
        let all: Vec<Promise> = others.map(|(_, promise)| *promise).chain([promise]).collect();
        plan(ceiling, self.spec.latency, self.spec.cost_model, &all, self.cores)
            .map_err(|e| refused(&e))?;
        self.promises.insert(id, promise);
        Ok(())
    }

    pub(super) fn remove(&mut self, id: Uuid) {
        self.promises.remove(&id);
    }

    pub(super) fn promise(&self, id: Uuid) -> Option<Promise> {
        self.promises.get(&id).copied()
    }

    /// Shares the device in another way, if its promises allow it (PROMISE-1).
    pub(super) fn change(&mut self, change: &ChangeDevice) -> Result<(), ServiceError> {
        let setting = |detail: &str| ServiceError::Setting { detail: detail.to_owned() };
        let mut spec = self.spec;
        if let Some(policy) = &change.policy {
            spec.policy = policy
                .parse::<PolicyKind>()
                .map_err(|error| ServiceError::Setting { detail: error.to_string() })?;
        }
        if let Some(latency) = change.latency_target_us {
            if !(1..=10_000_000).contains(&latency) {
                return Err(setting("`latency_target_us` must be from 1 to 10000000"));
            }
            spec.latency = Duration::from_micros(latency);
        }
        spec.cost_model = match change.write_cost_per_mille {
            None => spec.cost_model,
            Some(0) => CostModel::Separate,
            Some(per_mille @ 1..=1_000_000) => CostModel::WriteCosts { per_mille },
            Some(_) => return Err(setting("`write_cost_per_mille` must be at most 1000000")),
        };
        let sides = (change.reads_per_second, change.writes_per_second);
        match sides {
            (None, None) if change.no_ceiling => {
                let has_rates = |p: &Promise| matches!(p.slo, Slo::Rate { .. });
                if self.promises.values().any(has_rates) {
                    return Err(setting(
                        "volumes are promised rates, which only a device with a ceiling can keep",
                    ));
                }
                spec.ceiling = None;
            }
            (None, None) => {}
            _ if change.no_ceiling => {
                return Err(setting("`no_ceiling` and a rate contradict each other"));
            }
            (reads, writes) => {
                let old = spec.ceiling;
                let reads = reads.or(old.map(|old| old.reads_per_second));
                let writes = writes.or(old.map(|old| old.writes_per_second));
                let (Some(reads_per_second @ 1..), Some(writes_per_second @ 1..)) = (reads, writes)
                else {
                    return Err(setting(
                        "a ceiling has two sides: give both `reads_per_second` and \
                         `writes_per_second`, at least 1 each",
                    ));
                };
                let ceiling = Ceiling { reads_per_second, writes_per_second };
                spec.ceiling = Some(ceiling);
            }
        }
        if let Some(ceiling) = spec.ceiling {
            let all: Vec<Promise> = self.promises.values().copied().collect();
            // Volumes may have been promised more than a device can do that is slower now (PROMISE-2).
            let asks_for_less = change.reads_per_second.is_some()
                || change.writes_per_second.is_some()
                || change.write_cost_per_mille.is_some();
            if asks_for_less {
                plan(ceiling, spec.latency, spec.cost_model, &all, self.cores)
                    .map_err(|e| refused(&e))?;
            }
        }
        self.spec = spec;
        Ok(())
    }

    /// The settings for each core.
    pub(super) fn core_shares(&self) -> TiVec<CoreIndex, CoreShare> {
        let Some(ceiling) = self.spec.ceiling else {
            return vec![(None, Vec::new()); self.cores].into();
        };
        let promises: Vec<Promise> = self.fitting(ceiling);
        let cost_model = self.spec.cost_model;
        let plan = plan(ceiling, self.spec.latency, cost_model, &promises, self.cores)
            .expect("promises were made to fit");
        let config = |part: &Option<CorePart>| {
            // A core without volumes has nothing to schedule; the next plan gives it its part.
            let CorePart { ceiling, window_blocks } = (*part)?;
            let policy = self.spec.policy;
            Some(SchedulerConfig { policy, cost_model, ceiling, window_blocks })
        };
        let mut shares: TiVec<CoreIndex, CoreShare> =
            plan.cores.iter().map(|part| (config(part), Vec::new())).collect();
        for ((id, promise), quota) in self.promises.iter().zip(&plan.quotas) {
            shares[promise.core].1.push((*id, *quota));
        }
        shares
    }

    /// The promises, cut down to the ceiling if they are beyond it (PROMISE-2).
    fn fitting(&self, ceiling: Ceiling) -> Vec<Promise> {
        let all: Vec<Promise> = self.promises.values().copied().collect();
        let [reads, writes] = self.promised();
        let part = |ceiling: u64, sum: u64| (ceiling as f64 / sum.max(1) as f64).min(1.0);
        let (reads, writes) =
            (part(ceiling.reads_per_second, reads), part(ceiling.writes_per_second, writes));
        if reads >= 1.0 && writes >= 1.0 {
            return all;
        }
        tracing::warn!(
            device = self.name,
            "volumes are promised more than the ceiling of the device; all get less"
        );
        // In one currency the writes shrink with the reads, in which they are counted.
        let writes = match self.spec.cost_model {
            CostModel::Separate => writes,
            CostModel::WriteCosts { .. } => reads,
        };
        let cut = |rate: u64, part: f64| (rate as f64 * part) as u64;
        let cut = |promise: Promise| match promise.slo {
            Slo::Share { .. } => promise,
            Slo::Rate { reads_per_second, writes_per_second } => {
                let slo = match (cut(reads_per_second, reads), cut(writes_per_second, writes)) {
                    (0, 0) => Slo::Share { weight: 1 },
                    (reads_per_second, writes_per_second) => {
                        Slo::Rate { reads_per_second, writes_per_second }
                    }
                };
                Promise { slo, ..promise }
            }
        };
        all.into_iter().map(cut).collect()
    }

    /// Reads and writes a second that are promised, as they come off the ceiling.
    fn promised(&self) -> [u64; 2] {
        let rates = self.promises.values().filter_map(|promise| match promise.slo {
            Slo::Share { .. } => None,
            Slo::Rate { reads_per_second, writes_per_second } => {
                Some([reads_per_second, writes_per_second])
            }
        });
        let [reads, writes] =
            rates.fold([0_u64; 2], |[a, b], [c, d]| [a.saturating_add(c), b.saturating_add(d)]);
        match self.spec.cost_model {
            CostModel::Separate => [reads, writes],
            CostModel::WriteCosts { per_mille } => {
                let writes = writes.saturating_mul(per_mille.into()).div_ceil(1000);
                [reads.saturating_add(writes), 0]
            }
        }
    }

    pub(super) fn document(&self) -> control::Sharing {
        let [reads, writes] = self.promised();
        let left = |ceiling: fn(&Ceiling) -> u64, promised: u64| {
            self.spec.ceiling.as_ref().map(|all| ceiling(all).saturating_sub(promised))
        };
        control::Sharing {
            policy: self.spec.policy.name.to_owned(),
            ceiling: self.spec.ceiling.map(|ceiling| control::Ceiling {
                reads_per_second: ceiling.reads_per_second,
                writes_per_second: ceiling.writes_per_second,
                latency_target_us: u64::try_from(self.spec.latency.as_micros()).unwrap_or(u64::MAX),
            }),
            write_cost_per_mille: match self.spec.cost_model {
                CostModel::Separate => None,
                CostModel::WriteCosts { per_mille } => Some(per_mille),
            },
            unpromised_reads_per_second: left(|all| all.reads_per_second, reads),
            // In one currency there are only reads.
            unpromised_writes_per_second: left(|all| all.writes_per_second, writes)
                .filter(|_| self.spec.cost_model == CostModel::Separate),
        }
    }
}

fn refused(error: &AdmissionError) -> ServiceError {
    match error {
        AdmissionError::TooMuch { .. } => ServiceError::Promise { detail: error.to_string() },
        AdmissionError::NoWeight | AdmissionError::NoRate => {
            ServiceError::Setting { detail: error.to_string() }
        }
    }
}

/// The promise as the API has it.
pub(super) fn slo_document(slo: Slo) -> control::Slo {
    match slo {
        Slo::Share { weight } => control::Slo::Share(weight),
        Slo::Rate { reads_per_second, writes_per_second } => {
            control::Slo::Rate { reads_per_second, writes_per_second }
        }
    }
}

/// The promise that the API asks for.
pub(super) fn slo_of(document: control::Slo) -> Slo {
    match document {
        control::Slo::Share(weight) => Slo::Share { weight },
        control::Slo::Rate { reads_per_second, writes_per_second } => {
            Slo::Rate { reads_per_second, writes_per_second }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(ceiling: Option<Ceiling>) -> SharedDevice {
        let spec = SharingSpec { ceiling, ..SharingSpec::default() };
        SharedDevice::new("mem:1GiB".to_owned(), spec, 2)
    }

    const CEILING: Ceiling = Ceiling { reads_per_second: 1000, writes_per_second: 500 };

    fn rate(core: usize, reads_per_second: u64, writes_per_second: u64) -> Promise {
        Promise { core: CoreIndex(core), slo: Slo::Rate { reads_per_second, writes_per_second } }
    }

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    #[test]
    fn too_much_is_refused_and_leaves_what_was_there() {
        let mut shared = device(Some(CEILING));
        shared.admit(id(1), rate(0, 800, 0)).expect("fits");
        let error = shared.admit(id(2), rate(1, 300, 0)).expect_err("too much").to_string();
        assert!(error.contains("200 reads a second left"), "{error}");
        // The same volume may ask for more than is left beside its own.
        shared.admit(id(1), rate(0, 1000, 0)).expect("fits");
        let lower = ChangeDevice { reads_per_second: Some(999), ..ChangeDevice::default() };
        shared.change(&lower).expect_err("promised");
        assert_eq!(shared.document().unpromised_reads_per_second, Some(0));
        assert_eq!(shared.document().unpromised_writes_per_second, Some(500));
    }

    #[test]
    fn rates_need_a_ceiling() {
        let mut shared = device(None);
        let error = shared.admit(id(1), rate(0, 1, 1)).expect_err("no ceiling");
        assert_eq!(error, ServiceError::NoCeiling { device: "mem:1GiB".to_owned() });
        shared.admit(id(1), Promise { core: CoreIndex(0), slo: Slo::default() }).expect("a share");
        assert!(shared.core_shares().iter().all(|(config, _)| config.is_none()));
        let half = ChangeDevice { reads_per_second: Some(9), ..ChangeDevice::default() };
        shared.change(&half).expect_err("half a ceiling");
        let whole = ChangeDevice { writes_per_second: Some(9), ..half };
        shared.change(&whole).expect("whole");
        shared.admit(id(2), rate(1, 1, 1)).expect("fits");
        let none = ChangeDevice { no_ceiling: true, ..ChangeDevice::default() };
        shared.change(&none).expect_err("a rate is promised");
    }

    #[test]
    fn a_write_can_be_worth_several_reads() {
        let mut shared = device(Some(CEILING));
        shared.admit(id(1), rate(0, 400, 200)).expect("fits");
        let cost = |per_mille| ChangeDevice {
            write_cost_per_mille: Some(per_mille),
            ..ChangeDevice::default()
        };
        shared.change(&cost(4_000)).expect_err("400 + 4 × 200 are more than 1000");
        shared.change(&cost(2_000)).expect("fits");
        let document = shared.document();
        assert_eq!(document.write_cost_per_mille, Some(2_000));
        assert_eq!(document.unpromised_reads_per_second, Some(200));
        assert_eq!(document.unpromised_writes_per_second, None);
        let (config, quotas) = &shared.core_shares().raw[0];
        assert_eq!(quotas[0].1.per_second, [800.0, 0.0]);
        let config = config.as_ref().expect("a ceiling");
        assert_eq!(config.cost_model, CostModel::WriteCosts { per_mille: 2_000 });
        shared.change(&cost(0)).expect("apart again");
        assert_eq!(shared.document().unpromised_writes_per_second, Some(300));
    }

    /// PROMISE-2.
    #[test]
    fn a_slower_device_gives_all_the_same_part() {
        let mut shared = device(Some(CEILING));
        shared.admit_known(id(1), rate(0, 3000, 100));
        shared.admit_known(id(2), rate(1, 1000, 100));
        let shares = shared.core_shares();
        let quota = |core| shares[CoreIndex(core)].1[0].1.per_second;
        assert_eq!((quota(0), quota(1)), ([750.0, 100.0], [250.0, 100.0]));
    }
}
