//! Devices that are absent when the server starts: not there, or they do not work. The others are served, and
//! these as soon as they are there, without a restart.
//!
//! - ABSENT-1: a device that comes late is checked as at the start: it is ours, of no other cluster, no copy, locked, claimed,
//!   and read back by all cores before it is written. What is wrong with it is its trouble, and it is looked again. Nothing blank is
//!   formatted.
//! - ABSENT-2: where no directory knows the names of its volumes, no name is free while it is absent: no volume is made,
//!   and one that is not found here is not said not to be.
//! - ABSENT-3: should a name be another's all the same when the device comes, both volumes are served, each by its id;
//!   the log says so, and DIRECTORY-2 which of them the name leads to.
//! - ABSENT-4: while a device is absent, or the host is fenced, cores tell hosts that they refuse to retry (ADMISSION-8): their
//!   volume may be on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use control::{ServiceError, VolumeKey};
use data_core::CoreMessage;
use units::DeviceIndex;
use user_messages::Failure;
use uuid::Uuid;

use super::core_thread::one_is_a_copy;
use super::device_set::{self, OpenDevice};
use super::documents::not_found;
use super::replug::{self, Drive, LOOK_EVERY, aside};
use super::state::State;
use super::taking::Taking;
use super::{ServeConfig, core_ended};

/// Pause after something was there and could not be served: to open and read it is work, also for a sick drive.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The failure of a device that the server does without: if it is absent, with a note that this is for now.
pub(super) fn for_now(failure: Failure) -> Failure {
    match failure.is_absence() {
        true => failure.advising(
            "see that it is plugged in and its path is right, and what the kernel's log (dmesg) says; it is \
             served as soon as it is there and works",
        ),
        false => failure,
    }
}

/// Looks for absent devices, by their numbers, until they are there.
pub(super) fn start(
    state: &Arc<State>,
    config: &ServeConfig,
    absent: impl Iterator<Item = DeviceIndex>,
) {
    let config = Arc::new(config.clone());
    for device in absent {
        let (keeping, config) = (state.clone(), config.clone());
        let name = format!("look for {}", state.devices[device].name());
        state.tasks.keep(&name, move || look_for(keeping.clone(), config.clone(), device));
    }
}

async fn look_for(state: Arc<State>, config: Arc<ServeConfig>, device: DeviceIndex) {
    let mut pause = LOOK_EVERY;
    loop {
        tokio::time::sleep(pause).await;
        if state.is_abandoned(device) || !state.opening.is_open() {
            return;
        }
        let (looking, cluster) = (config.clone(), state.membership.directory.cluster());
        let look = move || device_set::open_late(&looking, device, cluster);
        let taken = match aside(&state, device, look).await {
            Err(failure) => {
                pause = if failure.is_absence() { LOOK_EVERY } else { LOOK_AGAIN };
                Err(failure)
            }
            Ok(opened) => {
                pause = LOOK_AGAIN;
                state.take_up_late(&config, device, opened).await
            }
        };
        match taken {
            Ok(drive) => return replug::keep_looking(&state, device, drive),
            Err(failure) => state.devices[device].set_trouble(Some(&for_now(failure))),
        }
    }
}

impl State {
    /// Returns true if a device was absent when the server started, and still is.
    pub(super) fn is_absent(&self, device: DeviceIndex) -> bool {
        self.devices[device].is_absent()
    }

    /// Notes that the server starts without a device, and why.
    pub(super) fn is_without(&self, device: DeviceIndex, failure: &Failure) {
        self.devices[device].set_absent(true);
        self.devices[device].set_trouble(Some(failure));
    }

    /// Tells the cores whether volumes may come with a device that is absent (ABSENT-4).
    pub(super) fn tell_of_absence(&self) {
        let mut devices = self.devices.keys();
        let is_to_come = |device: DeviceIndex| {
            (self.is_absent(device) || self.is_fenced()) && !self.is_abandoned(device)
        };
        let may_come = devices.any(is_to_come);
        self.cores.tell(|| CoreMessage::AwaitVolumes { may_come });
    }

    /// The error for requests about a device that is absent.
    pub(super) fn away(&self, device: DeviceIndex) -> ServiceError {
        let name = self.devices[device].name();
        let trouble = self.devices[device].trouble().unwrap_or_default();
        ServiceError::DeviceAway { detail: format!("the device {name} is away: {trouble}") }
    }

    /// The absent devices whose volumes are not known (ABSENT-2).
    fn unknown(&self) -> Option<String> {
        if self.membership.address.is_some() {
            return None;
        }
        let absent = self.devices.keys().filter(|device| self.is_absent(*device));
        let names: Vec<&str> = absent.map(|device| self.devices[device].name()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Refuses a new volume while it is not known whether its name is free (ABSENT-2).
    pub(super) fn names_are_known(&self) -> Result<(), ServiceError> {
        let refused = |devices| ServiceError::DeviceAway {
            detail: format!(
                "no volume can be made now: which names are taken on {devices}, which is away, is not known"
            ),
        };
        self.unknown().map_or(Ok(()), |devices| Err(refused(devices)))
    }

    /// The error for a volume that is not found here (ABSENT-2).
    pub(super) fn not_here(&self, key: &VolumeKey) -> ServiceError {
        match self.unknown() {
            None => not_found(key),
            Some(devices) => ServiceError::DeviceAway {
                detail: format!(
                    "the volume `{key}` is not here, unless on {devices}, which is away"
                ),
            },
        }
    }

    /// Takes up a device that was absent and is open now (ABSENT-1).
    async fn take_up_late(
        &self,
        config: &ServeConfig,
        device: DeviceIndex,
        opened: OpenDevice,
    ) -> Result<Drive, Failure> {
        let (id, name) = (opened.superblock.uuid, opened.name.clone());
        self.check_copy(device, id)?;
        let mut devices = BTreeMap::from([(device, opened)]);
        // An operator's word is about what is there at the start, when it is given.
        self.membership.claim(config, &devices, None).await?;
        // Two may have come at once: of them one was the first to have the claim.
        self.check_copy(device, id).inspect_err(|_| self.membership.devices[device].forget())?;
        let opened = devices.get_mut(&device).expect("put in above");
        let claimed = self.membership.claimed(device);
        if let Some(settling) = opened.settling(&config.devices[device].device, claimed) {
            let settled = aside(self, device, settling).await?;
            opened.settle(settled);
        }
        if let Some(owning) = opened.owning(&config.devices[device].device) {
            opened.owner = Some(aside(self, device, owning).await?);
        }
        let fence = self.membership.devices[device].fence.clone();
        let mut taking = Taking::begin(&self.cores, device, opened, &fence)?;
        let volumes = taking.volumes(&name).await?;
        if volumes.is_empty() {
            let refusing = opened.refusing_emptied(&config.devices[device].device);
            aside(self, device, refusing).await?;
        }
        let twice = self.directory(|directory| volumes.into_iter().find(|id| directory.has(*id)));
        if let Some(id) = twice {
            return Err(one_is_a_copy(id, &name, "another device"));
        }
        taking.start(&name).await?;
        taking.serve().await?;
        self.now_served(config, device, &devices).await.map_err(|_| core_ended())?;
        tracing::warn!(device = name, "is there: its volumes are served");
        let opened = { devices }.remove(&device).expect("put in above");
        let spec = &config.devices[device].device;
        Ok(Drive::of(opened, spec, fence).expect("only files and drives are absent"))
    }

    /// Refuses a device whose original or copy is served, or about to be.
    fn check_copy(&self, device: DeviceIndex, id: Uuid) -> Result<(), Failure> {
        let mut others = self.membership.devices.iter_enumerated();
        match others.find(|(number, own)| *number != device && own.id() == Some(id)) {
            None => Ok(()),
            Some((other, _)) => {
                let (other, name) = (self.devices[other].name(), self.devices[device].name());
                Err(Failure::runtime(
                    format!(
                        "{other} and {name} are one device and its copy: both have the id {id}"
                    ),
                    "give --device for one of them only",
                ))
            }
        }
    }

    /// Tells everybody of a device that cores serve from now on.
    async fn now_served(
        &self,
        config: &ServeConfig,
        device: DeviceIndex,
        devices: &BTreeMap<DeviceIndex, OpenDevice>,
    ) -> Result<(), ServiceError> {
        let changing = self.devices[device].alone().await;
        for core in self.cores.keys() {
            self.take_over(core, device, &BTreeSet::new()).await?;
        }
        self.share_out(device);
        self.account_for_more().await?;
        self.devices[device].set_absent(false);
        self.tell_of_absence();
        self.devices[device].set_trouble(None);
        drop(changing);
        // If the directory is away, it is told when the connection is back.
        let _ = self.membership.describe_devices(config, devices).await;
        self.place_devices();
        if let Err(error) = self.reconcile(device).await {
            tracing::warn!(
                device = self.devices[device].name(),
                "records are not compared: {error}"
            );
        }
        if self.is_abandoned(device) {
            // Lost while it was taken up, when there was nothing of it to cut off.
            self.cut_off(device);
        }
        Ok(())
    }
}
