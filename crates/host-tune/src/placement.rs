//! Placement of interrupts: EuroSys'16, section 3.3, "Interrupt affinity".
//!
//! With one tenant, interrupts of network and drives are spread over all cores. With fewer tenants
//! than cores, each tenant has a pair: its network on the first core, its drives on the second. Else
//! each tenant has one core for both.

use serde::Serialize;

use crate::cpu_set::CpuSet;

/// The device that an interrupt serves.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub enum Purpose {
    /// A queue of a network card.
    Network,
    /// A queue of a drive.
    Drive,
}

/// The CPUs that network and drive queues interrupt, each taken in turn.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct InterruptPlan {
    /// CPUs of network queues, in the order of queues.
    pub network: Vec<u32>,
    /// CPUs of drive queues, in the order of queues.
    pub drive: Vec<u32>,
    /// The rule in words.
    pub rule: &'static str,
}

/// The plan for `tenants` on `cores`. `None` without cores.
#[must_use]
pub fn place(cores: &CpuSet, tenants: u32) -> Option<InterruptPlan> {
    let all: Vec<u32> = cores.iter().collect();
    if all.is_empty() {
        return None;
    }
    let count = u32::try_from(all.len()).unwrap_or(u32::MAX);
    if tenants <= 1 {
        let rule = "one tenant: network and drive interrupts spread over all cores";
        return Some(InterruptPlan { network: all.clone(), drive: all, rule });
    }
    if tenants.saturating_mul(2) <= count {
        let pairs: Vec<&[u32]> = all.chunks_exact(2).collect();
        let network = pairs.iter().map(|pair| pair[0]).collect();
        let drive = pairs.iter().map(|pair| pair[1]).collect();
        let rule =
            "fewer tenants than cores: a pair of cores each, network on one, drives on the other";
        return Some(InterruptPlan { network, drive, rule });
    }
    let rule = "a core for each tenant: its network and its drives interrupt the same core";
    Some(InterruptPlan { network: all.clone(), drive: all, rule })
}

impl InterruptPlan {
    /// The CPU of queue number `queue` of a device for `purpose`.
    #[must_use]
    pub fn cpu(&self, purpose: Purpose, queue: usize) -> u32 {
        let cpus = match purpose {
            Purpose::Network => &self.network,
            Purpose::Drive => &self.drive,
        };
        cpus[queue % cpus.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's three cases on its six cores.
    #[test]
    fn one_three_and_six_tenants_are_placed_as_in_the_paper() {
        let cores: CpuSet = "0-5".parse().expect("a set");
        let one = place(&cores, 1).expect("cores");
        assert_eq!((one.network.len(), one.drive.len()), (6, 6));
        let three = place(&cores, 3).expect("cores");
        assert_eq!((three.network, three.drive), (vec![0, 2, 4], vec![1, 3, 5]));
        let six = place(&cores, 6).expect("cores");
        let same = (0..6).all(|n| six.cpu(Purpose::Network, n) == six.cpu(Purpose::Drive, n));
        assert!(same);
    }

    #[test]
    fn more_queues_than_cores_begin_again_and_no_cores_have_no_plan() {
        let cores: CpuSet = "4,6".parse().expect("a set");
        let plan = place(&cores, 2).expect("cores");
        assert_eq!([0, 1, 2, 3].map(|queue| plan.cpu(Purpose::Drive, queue)), [4, 6, 4, 6]);
        assert_eq!(place(&CpuSet::default(), 1), None);
    }
}
