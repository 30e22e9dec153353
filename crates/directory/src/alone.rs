//! The directory of a single host: nothing to install, and nothing stored.
//!
//! All that it would store lies on the host's devices already, and is read from there at each start.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use uuid::Uuid;

use crate::View;
use crate::{Admit, Claim, Conflict, Directory, DirectoryError, Event, Mark, Regrant, Reply, Word};
use crate::{ClaimRecord, HostRecord, VolumeRecord};

/// A host that is a service by itself, without a cluster. Its claims exclude no other host: it may serve only
/// devices that belong to no cluster (CLAIM-6).
pub struct Alone {
    state: Mutex<(HostRecord, Arc<View>)>,
    generation: watch::Sender<u64>,
}

impl Alone {
    /// The service that consists of `host`.
    #[must_use]
    pub fn new(host: HostRecord) -> Self {
        let mut view = View::default();
        view.hosts.insert(host.id, Arc::new(host.clone()));
        Self { state: Mutex::new((host, Arc::new(view))), generation: watch::Sender::new(0) }
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut HostRecord, &mut View) -> Result<T, DirectoryError>,
    ) -> Reply<'_, T>
    where
        T: Send + 'static,
    {
        let changed = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let (host, view) = &mut *state;
            change(host, Arc::make_mut(view))
        };
        self.generation.send_modify(|generation| *generation += 1);
        Box::pin(std::future::ready(changed))
    }
}

fn insert(view: &mut View, volume: VolumeRecord) {
    view.names.entry(volume.name.clone()).or_insert(volume.id);
    view.volumes.insert(volume.id, Arc::new(volume));
}

fn update(view: &mut View, volume: VolumeRecord) {
    if !is_elsewhere(view, &volume) {
        view.volumes.insert(volume.id, Arc::new(volume));
    }
}

fn remove(view: &mut View, id: Uuid) {
    if let Some(volume) = view.volumes.remove(&id)
        && view.names.get(&volume.name) == Some(&id)
    {
        view.names.remove(&volume.name);
    }
}

/// Returns true if the record with `volume`'s id belongs to a device other than `volume`'s.
fn is_elsewhere(view: &View, volume: &VolumeRecord) -> bool {
    view.volumes.get(&volume.id).is_some_and(|record| record.device != volume.device)
}

fn held(view: &View, device: Uuid) -> Result<(), DirectoryError> {
    let holder = "(none)".to_owned();
    view.claims.contains_key(&device).then_some(()).ok_or(DirectoryError::Fenced { holder })
}

fn judge(view: &View, admit: Option<&Admit>) -> Result<(), DirectoryError> {
    let judged = admit.map_or(Ok(()), |admit| admit(view));
    judged.map_err(|detail| DirectoryError::NotAdmitted { detail })
}

impl Directory for Alone {
    fn cluster(&self) -> Option<Uuid> {
        None
    }

    fn view(&self) -> Arc<View> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    fn event(&self) -> Pin<Box<dyn Future<Output = Event> + Send + '_>> {
        // No other host can take a claim from this one.
        Box::pin(std::future::pending())
    }

    fn describe(&self, described: HostRecord) -> Reply<'_, ()> {
        self.change(|host, view| {
            view.hosts.insert(described.id, Arc::new(described.clone()));
            *host = described;
            Ok(())
        })
    }

    fn claim(&self, claim: Claim) -> Reply<'_, Mark> {
        self.change(|host, view| {
            let device = claim.device;
            let record = ClaimRecord::of(host, claim);
            let mark = record.mark();
            view.claims.insert(device, Arc::new(record));
            Ok(mark)
        })
    }

    fn take_over(&self, claim: Claim, _word: Word) -> Reply<'_, Mark> {
        // No other host can hold the claim.
        self.claim(claim)
    }

    fn lost(&self, _device: Uuid, _own: &Mark, _holder: String) {
        unreachable!("a device of no cluster carries no mark")
    }

    fn check(&self, device: Uuid) -> Reply<'_, ()> {
        let view = self.view();
        Box::pin(std::future::ready(held(&view, device)))
    }

    fn catch_up<'a>(&'a self, _owner: &'a str) -> Reply<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn reserve_if(&self, volume: VolumeRecord, admit: Option<Admit>) -> Reply<'_, ()> {
        self.change(|_, view| {
            held(view, volume.device)?;
            judge(view, admit.as_ref())?;
            if view.names.contains_key(&volume.name) {
                return Err(DirectoryError::NameTaken { name: volume.name });
            }
            insert(view, volume);
            Ok(())
        })
    }

    fn update_if(&self, volume: VolumeRecord, admit: Option<Admit>) -> Reply<'_, ()> {
        self.change(|_, view| {
            held(view, volume.device)?;
            judge(view, admit.as_ref())?;
            update(view, volume);
            Ok(())
        })
    }

    fn update(&self, volume: VolumeRecord) -> Reply<'_, ()> {
        self.change(|_, view| {
            held(view, volume.device)?;
            update(view, volume);
            Ok(())
        })
    }

    fn forget(&self, volume: VolumeRecord) -> Reply<'_, ()> {
        self.change(|_, view| {
            held(view, volume.device)?;
            if !is_elsewhere(view, &volume) {
                remove(view, volume.id);
            }
            Ok(())
        })
    }

    fn reconcile(&self, device: Uuid, volumes: Vec<VolumeRecord>) -> Reply<'_, Vec<Conflict>> {
        self.change(|_, view| {
            held(view, device)?;
            let listed: Vec<Uuid> = volumes.iter().map(|volume| volume.id).collect();
            let old =
                view.volumes.values().filter(|v| v.device == device && !listed.contains(&v.id));
            let gone: Vec<Uuid> = old.map(|volume| volume.id).collect();
            gone.into_iter().for_each(|id| remove(view, id));
            let mut conflicts = Vec::new();
            for volume in volumes {
                if let Some(other) = view.volumes.get(&volume.id).filter(|v| v.device != device) {
                    conflicts.push(Conflict::Volume { id: volume.id, device: other.device });
                    continue;
                }
                let (id, name) = (volume.id, volume.name.clone());
                insert(view, volume);
                match view.names.get(&name) {
                    Some(holder) if *holder != id => {
                        conflicts.push(Conflict::Name { id, name, holder: *holder });
                    }
                    _ => {}
                }
            }
            Ok(conflicts)
        })
    }

    fn regrant(&self, change: Regrant) -> Reply<'_, bool> {
        self.change(|_, view| {
            let Regrant { owner, before, after, gone } = change;
            let found = view.grants.get(&owner).map(|grants| **grants == before);
            let is_as_said = found.unwrap_or(before.hosts.is_empty());
            let changes = is_as_said && gone.iter().all(|host| !view.hosts.contains_key(host));
            if changes {
                view.grants.insert(owner, Arc::new(after));
            }
            Ok(changes)
        })
    }

    fn forget_device(&self, claim: Claim, _word: Word) -> Reply<'_, ()> {
        self.change(|_, view| {
            let volumes = view.volumes.values().filter(|volume| volume.device == claim.device);
            let gone: Vec<Uuid> = volumes.map(|volume| volume.id).collect();
            gone.into_iter().for_each(|id| remove(view, id));
            view.claims.remove(&claim.device);
            Ok(())
        })
    }

    fn leave(&self) -> Reply<'_, ()> {
        self.change(|_, view| {
            *view = View::default();
            Ok(())
        })
    }
}
