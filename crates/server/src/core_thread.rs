//! The data cores from outside: threads started, parts of the devices handed out, and ended.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use data_core::{CoreMessage, Discovery, Ending, Returned, Returns, Seat};
use local_devices::storage;
use reactor::{CoreThread, mailbox};
use tokio::sync::{mpsc, oneshot};
use typed_index_collections::{TiSlice, TiVec};
use units::{CoreIndex, DeviceIndex};
use user_messages::Failure;
use uuid::Uuid;

use super::cores::CoreLink;
use super::device_set::{self, OpenDevice};
use super::lines::Lines;
use super::membership::Membership;
use super::replug::Drive;
use super::taking::Taking;
use super::{ServeConfig, absent, core_ended, nbd_tls, preflight};

/// The data cores.
pub(super) struct CoreThreads {
    threads: Vec<CoreThread<()>>,
    /// Writes what they say of their connections.
    lines: Lines,
    links: TiVec<CoreIndex, CoreLink>,
    /// The address at which discovery is answered apart from the portals.
    discovery: Option<SocketAddr>,
    /// Shards that came back on their own.
    returns: Option<mpsc::UnboundedReceiver<Returned>>,
    /// The files and drives, by number, for the task that looks after them.
    drives: TiVec<DeviceIndex, Option<Drive>>,
    /// The devices that are absent, by number, and why.
    absent: BTreeMap<DeviceIndex, Failure>,
    /// Closes when a core ends.
    ends: mpsc::Receiver<()>,
}

impl CoreThreads {
    /// Starts a thread on each core and opens its portal. No device is touched.
    pub(super) fn start(config: &ServeConfig, portals: &[SocketAddr]) -> Result<Self, Failure> {
        let mut places = preflight::places(config)?.into_iter();
        let nbd_tls = config.nbd_tls.as_deref().map(nbd_tls::Certificates::open).transpose()?;
        let (end, ends) = mpsc::channel(1);
        let (returned, returns) = mpsc::unbounded_channel();
        let lines = Lines::start()?;
        let (threads, links, discovery) = (Vec::new(), TiVec::new(), None);
        let (returns, drives, absent) = (Some(returns), TiVec::new(), BTreeMap::new());
        let mut cores = Self { threads, lines, links, discovery, returns, drives, absent, ends };
        for (&cpu, &portal) in config.cores.iter().zip(portals) {
            let (sender, receiver) = mailbox();
            let (bound, listening) = oneshot::channel();
            // The first core answers discovery apart from its portal, if that is wanted.
            let first = cores.links.is_empty();
            let discovery = if first { config.discovery } else { Discovery::Off };
            let lines = cores.lines.sender();
            let seat = Seat {
                cpu,
                listen: portal,
                discovery,
                places: places.next().unwrap_or_default(),
                nbd_tls: nbd_tls.as_ref().map(nbd_tls::Certificates::tls),
                advertise: config.advertise.clone(),
                bound,
                devices: config.devices.len(),
                mailbox: receiver,
                connections_max: config.connections_max as usize,
                memory_bytes: config.core_memory.0,
                map_memory: config.map_memory,
                device_timeout: config.device_timeout,
                authentication: config.authentication.clone(),
                tenure: config.cluster.tenure.clone(),
                returned: Returns { core: cores.links.next_key(), told: returned.clone() },
                lines: Box::new(move |line| lines.send(line)),
                ending: Ending(end.clone()),
            };
            let thread = data_core::start(seat).map_err(|error| storage::no_core(&error))?;
            cores.threads.push(thread);
            let bound = listening.blocking_recv().map_err(|_| core_ended())?;
            let bound = bound?;
            cores.discovery = cores.discovery.or(bound.discovery);
            cores.links.push(CoreLink {
                cpu,
                local: bound.local,
                portal: bound.portal,
                places: bound.places,
                nbd_tls: nbd_tls.clone(),
                mailbox: sender,
            });
        }
        Ok(cores)
    }

    /// Opens the devices, checks that they are ours (or makes them so, where that was asked for), claims
    /// them, and has the cores take them up. One that is absent, or turns out to be, is left out as long as
    /// another is there.
    pub(super) fn open(
        &mut self,
        config: &ServeConfig,
        membership: &mut Membership,
    ) -> Result<(), Failure> {
        let mut devices = BTreeMap::new();
        let cluster = membership.directory.cluster();
        for (number, device) in device_set::open_patiently(config, cluster)?.into_iter_enumerated()
        {
            match device {
                Ok(device) => drop(devices.insert(number, device)),
                Err(failure) => drop(self.absent.insert(number, failure)),
            }
        }
        let runtime = tokio::runtime::Handle::current();
        // Before anything of theirs is written, and before a volume is served.
        runtime.block_on(membership.claim(config, &devices, config.cluster.take_over.as_ref()))?;
        self.settle(config, &mut devices, membership)?;
        for device in devices.values() {
            let shards = device.active.len();
            tracing::info!(device = device.name, shards, "recovering");
        }
        runtime.block_on(self.take_up(config, &mut devices, membership))?;
        runtime.block_on(membership.describe_devices(config, &devices))?;
        let drives = config.devices.iter_enumerated().map(|(number, shared)| {
            let fence = membership.devices[number].fence.clone();
            Drive::of(devices.remove(&number)?, &shared.device, fence)
        });
        self.drives = drives.collect();
        let absent = std::mem::take(&mut self.absent).into_iter();
        self.absent = absent.map(|(number, failure)| (number, absent::for_now(failure))).collect();
        Ok(())
    }

    /// The files and drives, by number; once.
    pub(super) fn drives(&mut self) -> TiVec<DeviceIndex, Option<Drive>> {
        std::mem::take(&mut self.drives)
    }

    /// The devices that are absent, and why; once.
    pub(super) fn absent(&mut self) -> BTreeMap<DeviceIndex, Failure> {
        std::mem::take(&mut self.absent)
    }

    /// Has the cores take up the devices together: nothing is written before all are read back, and none is served
    /// before all can be. Those that cannot be had leave `devices`.
    async fn take_up(
        &mut self,
        config: &ServeConfig,
        devices: &mut BTreeMap<DeviceIndex, OpenDevice>,
        membership: &Membership,
    ) -> Result<(), Failure> {
        let mut takings = BTreeMap::new();
        for (&number, device) in &*devices {
            let fence = &membership.devices[number].fence;
            takings.insert(number, Taking::begin(&self.links, number, device, fence)?);
        }
        let mut found = Vec::new();
        for (number, taking) in &mut takings {
            let device = &devices[number];
            let mut volumes = taking.volumes(&device.name).await;
            if volumes.as_ref().is_ok_and(Vec::is_empty) {
                let refusing = device.refusing_emptied(&config.devices[*number].device);
                volumes = refusing().map(|()| Vec::new());
            }
            match volumes {
                Ok(volumes) => found.extend(volumes.into_iter().map(|id| (id, *number))),
                Err(failure) => self.leave_out(*number, failure)?,
            }
        }
        takings.retain(|number, _| !self.absent.contains_key(number));
        if let Some((id, one, other)) = in_two_places(found) {
            return Err(one_is_a_copy(id, &devices[&one].name, &devices[&other].name));
        }
        for (number, taking) in &mut takings {
            if let Err(failure) = taking.start(&devices[number].name).await {
                self.leave_out(*number, failure)?;
            }
        }
        takings.retain(|number, _| !self.absent.contains_key(number));
        devices.retain(|number, _| takings.contains_key(number));
        if devices.is_empty()
            && let Some(failure) = self.absent.values().next()
        {
            return Err(failure.clone());
        }
        for taking in takings.into_values() {
            taking.serve().await?;
        }
        Ok(())
    }

    /// Looks at the devices again when they are this host's, and has them say so, before anything of them is
    /// served. Those that cannot leave `devices`.
    fn settle(
        &mut self,
        config: &ServeConfig,
        devices: &mut BTreeMap<DeviceIndex, OpenDevice>,
        membership: &Membership,
    ) -> Result<(), Failure> {
        for (number, device) in &mut *devices {
            let settled = device.settle_in_time(config, *number, membership.claimed(*number));
            let owned = settled.and_then(|()| device.own_in_time(config, *number));
            if let Err(failure) = owned {
                self.leave_out(*number, failure)?;
            }
        }
        devices.retain(|number, _| !self.absent.contains_key(number));
        Ok(())
    }

    /// Does without a device if it is absent, needs a later release, or is not the one that was there.
    fn leave_out(&mut self, number: DeviceIndex, failure: Failure) -> Result<(), Failure> {
        if !failure.spares_others() {
            return Err(failure);
        }
        self.absent.insert(number, failure);
        Ok(())
    }

    /// Returns the receiver of shards that come back on their own; once.
    pub(super) fn returns(&mut self) -> Option<mpsc::UnboundedReceiver<Returned>> {
        self.returns.take()
    }

    /// The address at which discovery is answered apart from the portals, if there is one.
    pub(super) fn discovery(&self) -> Option<SocketAddr> {
        self.discovery
    }

    pub(super) fn links(&self) -> &TiSlice<CoreIndex, CoreLink> {
        &self.links
    }

    /// Waits for a core to end.
    pub(super) async fn ended(&mut self) {
        self.ends.recv().await;
    }

    /// Lets every core finish what is in flight, write a checkpoint, and end. Says what of this went
    /// wrong; if nothing did, no request to a device is under way any more.
    pub(super) async fn shut_down(self) -> Result<(), String> {
        let mut result = Ok(());
        let asked = self.links.iter().map(|link| {
            let (answer, answered) = oneshot::channel();
            // A core that is gone has nothing to finish.
            let _ = link.mailbox.send(CoreMessage::Shutdown { answer });
            answered
        });
        let asked: Vec<_> = asked.collect();
        for answered in asked {
            if let Ok(Err(error)) = answered.await {
                tracing::error!(%error, "no last checkpoint; the next start replays the journal");
                result = result.and(Err(format!("the last checkpoint failed: {error}")));
            }
        }
        // The threads end now; waiting for them lets the device be closed in good order.
        for thread in self.threads {
            let ended = tokio::task::spawn_blocking(move || thread.end()).await;
            let wrong = match ended {
                Ok(Ok(ended)) if ended.is_settled => continue,
                // A core that serves nothing waits for no request, and its hosts do not either.
                Ok(Ok(_)) => "the kernel still has a request that changes a device",
                _ => "a data core has panicked",
            };
            tracing::error!("{wrong}");
            result = result.and(Err(wrong.to_owned()));
        }
        self.links.iter().for_each(|link| data_core::forget(&link.places));
        // If it panicked, the result of the cores is the same.
        let _ = tokio::task::spawn_blocking(move || self.lines.end()).await;
        result
    }
}

/// A volume that is on two devices, and these.
fn in_two_places(found: Vec<(Uuid, DeviceIndex)>) -> Option<(Uuid, DeviceIndex, DeviceIndex)> {
    let mut places = BTreeMap::new();
    for (id, device) in found {
        match places.insert(id, device) {
            Some(other) if other != device => {
                return Some((id, other.min(device), other.max(device)));
            }
            _ => {}
        }
    }
    None
}

/// The failure for a volume that is on two devices.
pub(super) fn one_is_a_copy(id: Uuid, one: &str, other: &str) -> Failure {
    Failure::runtime(
        format!("the volume {id} is on {one} and on {other}: one is a copy of the other"),
        "give --device for one of them only",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_on_one_device() {
        let found = |id: u128, device| (Uuid::from_u128(id), DeviceIndex(device));
        let sound = [found(1, 0), found(2, 1), found(3, 0)];
        assert_eq!(in_two_places(sound.to_vec()), None);
        let copied = sound.into_iter().chain([found(3, 2)]).collect();
        assert_eq!(
            in_two_places(copied),
            Some((Uuid::from_u128(3), DeviceIndex(0), DeviceIndex(2)))
        );
    }
}
