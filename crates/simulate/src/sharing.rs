//! Ceilings, policies and promises that change under load, and what must hold of them at rest.

use std::rc::Rc;

use schedule::{CostModel, Quota, SchedulerConfig};
use sim::Rng;
use units::DeviceIndex;
use uuid::Uuid;

use crate::model::VolumeModel;
use crate::rig::Rig;
use crate::watched::watched_policies;

/// Blocks a second of the lowest and of the highest ceiling: requests wait under the one, not under
/// the other.
const RATES: (u64, u64) = (300, 100_000);
/// Blocks of the narrowest and the widest window; a request of the largest size fits into any.
const WINDOWS: (u64, u64) = (256, 1024);

impl Rig {
    /// Shares the device in another way, drawn by chance. A bare engine has nothing to share.
    pub(crate) fn share(&self, rng: &mut Rng, volumes: &[Rc<VolumeModel>]) {
        let Some(core) = self.core() else { return };
        if rng.one_in(4) {
            return core.schedule(DeviceIndex(0), None, &[]);
        }
        let rate = rng.between(RATES.0, RATES.1) as f64;
        let cost_model = match rng.one_in(2) {
            true => CostModel::Separate,
            false => CostModel::WriteCosts { per_mille: rng.between(500, 6_000) as u32 },
        };
        let policies = watched_policies();
        let config = SchedulerConfig {
            policy: policies[rng.below(policies.len() as u64) as usize],
            cost_model,
            ceiling: schedule::Quota { per_second: [rate, rate / 2.0] },
            window_blocks: [(); 2].map(|()| rng.between(WINDOWS.0, WINDOWS.1) as u32),
        };
        let usable: Vec<_> = volumes.iter().filter(|volume| volume.is_usable()).collect();
        // A large request takes its time at the lowest rate: not more of it, however many volumes there are.
        let least = if usable.len() > 2 { 10 } else { 1 };
        let quotas: Vec<_> = usable
            .iter()
            .map(|volume| {
                let part = rng.between(least, 100) as f64 / 100.0 / usable.len() as f64;
                (volume.uuid(), Quota { per_second: [rate * part, rate * part / 2.0] })
            })
            .collect();
        core.schedule(DeviceIndex(0), Some(config), &quotas);
    }

    /// Returns the leftovers in a queue when no request waits; `None` if there are none, as it should be.
    pub(crate) fn left_in_line(&self) -> Option<String> {
        let core = self.core()?;
        for device in core.stats().devices {
            let window = device.window;
            if (window.in_use_blocks, window.queued) != ([0; 2], [0; 2]) {
                return Some(format!("at rest the scheduler has {window:?}"));
            }
        }
        let left = core.flows_from(Uuid::nil(), usize::MAX).into_iter().find(|flow| {
            let flow = &flow.done.flow;
            (flow.queued, flow.in_flight, flow.in_flight_blocks) != (0, 0, [0; 2])
        });
        left.map(|flow| format!("at rest a volume has {:?}", flow.done.flow))
    }
}
