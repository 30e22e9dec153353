//! Updates the control side when a device comes back.
//!
//! A change that was answered with an error may be in force when its shard has been read back: a size,
//! a promise, restrictions, a deletion. So its volumes are asked for again.

use std::collections::BTreeSet;

use control::ServiceError;
use data_core::Returned;
use schedule::Promise;
use tokio::sync::mpsc::UnboundedReceiver;
use units::{CoreIndex, DeviceIndex};
use uuid::Uuid;

use super::directory::Known;
use super::service::Volumes;
use super::state::State;

/// Follows what comes back, for as long as cores run.
pub(super) async fn follow(volumes: Volumes, mut returns: UnboundedReceiver<Returned>) {
    while let Some(returned) = returns.recv().await {
        // A task each: a device that hangs keeps no other waiting.
        let state = volumes.state().clone();
        tokio::spawn(async move {
            // If the core has ended there is nothing to ask.
            let _ = state.ask_again(returned).await;
        });
    }
}

impl State {
    /// Takes over what a core says of its volumes on a device.
    async fn ask_again(&self, returned: Returned) -> Result<(), ServiceError> {
        let Returned { core, device, lost } = returned;
        let alone = self.alone_on(device).await?;
        self.take_over(core, device, &lost).await?;
        self.share_out(device);
        drop(alone);
        self.reconcile(device).await
    }

    /// The same, while no other change to the device is under way; others are not told.
    pub(super) async fn take_over(
        &self,
        core: CoreIndex,
        device: DeviceIndex,
        lost: &BTreeSet<Uuid>,
    ) -> Result<(), ServiceError> {
        let mut volumes = self.cores[core].volumes().await?;
        volumes.retain(|volume| volume.device == device);
        let known = self.directory(|directory| directory.places_on(core, device));
        for place in known {
            if !volumes.iter().any(|volume| volume.uuid == place.id) {
                match lost.contains(&place.id) {
                    true => tracing::error!(id = %place.id,
                        "the volume is lost: its descriptor is damaged; its name may be used again"),
                    false => tracing::info!(id = %place.id, "the volume's deletion came true"),
                }
                self.forget(place.id, device);
            }
        }
        for volume in volumes {
            let known = Known::of(core, &volume);
            let place = known.place;
            let promise = Promise { core, slo: volume.slo };
            self.devices[device].shared(|shared| shared.admit_known(place.id, promise));
            if let Some(other) = self.directory(|directory| directory.insert(known)) {
                say_of_one_name(&volume.name, place.id, other);
            }
            match &volume.access {
                Some(access) => self.announce(place, &volume, access),
                None => self.withdraw(place.id),
            }
        }
        Ok(())
    }
}

/// Says that two volumes have one name: DIRECTORY-2 tells which of them it leads to.
pub(super) fn say_of_one_name(name: &str, one: Uuid, other: Uuid) {
    tracing::error!(name, %one, another = %other, "two volumes have one name: name them by their ids");
}
