//! Selects the place of a new volume: the device with the most free space, and there the core with the fewest
//! volumes.

use std::cmp::Reverse;

use control::ServiceError;
use data_core::CoreMessage;
use schedule::Promise;
use units::{CoreIndex, DeviceIndex};
use uuid::Uuid;

use super::state::State;

impl State {
    /// The devices that may hold a new volume, the best first: the one of that name, or those with the
    /// most free space. One that takes no changes comes last.
    pub(super) async fn devices_for(
        &self,
        wanted: Option<&str>,
    ) -> Result<Vec<DeviceIndex>, ServiceError> {
        if let Some(name) = wanted {
            return Ok(vec![self.device_named(name)?]);
        }
        let mut devices: Vec<DeviceIndex> = self.devices.keys().collect();
        devices.retain(|device| !self.is_absent(*device));
        if devices.iter().any(|device| !self.is_abandoned(*device)) {
            devices.retain(|device| !self.is_abandoned(*device));
        }
        if devices.len() > 1 {
            let mut stats = Vec::new();
            for core in self.cores.iter() {
                stats.push(core.ask(|answer| CoreMessage::Stats { answer }).await?.0);
            }
            devices.sort_by_key(|device| {
                let space = super::devices::Space::of(*device, &stats);
                (space.failed, Reverse(space.free_blocks), *device)
            });
        }
        Ok(devices)
    }

    /// The index of the core that runs on a CPU, or of the core with the fewest volumes.
    pub(super) fn core_for(&self, wanted: Option<u32>) -> Result<CoreIndex, ServiceError> {
        let Some(cpu) = wanted else {
            return Ok(self.directory(|directory| directory.emptiest_core(self.cores.len())));
        };
        self.cores.position(|core| core.cpu == cpu).ok_or_else(|| {
            let cores = self.cores.iter().map(|core| core.cpu).collect();
            ServiceError::UnknownCore { core: cpu, cores }
        })
    }

    /// Promises a new volume what it asks for, on the first of `devices` that can.
    pub(super) fn promise_on_one_of(
        &self,
        devices: &[DeviceIndex],
        id: Uuid,
        promise: Promise,
    ) -> Result<DeviceIndex, ServiceError> {
        let mut refused = None;
        for &device in devices {
            match self.devices[device].shared(|shared| shared.admit(id, promise)) {
                Ok(()) => return Ok(device),
                // What is wrong with the best of them is what there is to say.
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or(ServiceError::Unavailable))
    }
}
