//! Ends service when this host's tenure ends (CLAIM-7): it stops serving until the directory
//! confirms which devices are its own.
//!
//! - SERVER-TENURE-1: at the end hosts are cut off, by the cores themselves when a command comes (SUSPENDED-3), or
//!   from here, whichever notices first. A moment later requests to devices end, by their fences
//!   (`device::layer`).
//! - SERVER-TENURE-2: hosts are let in again when the directory has said what is held, behind all that was lost.
//! - SERVER-TENURE-3: what the audit log says of it is said afterwards: neither waits for that. Each change is there, in their
//!   order, before a server ends that was told to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use control::{Audit, Deed};
use data_core::CoreMessage;
use directory::{BootClock as _, BootTime, Term};
use serde_json::json;
use tokio::task::JoinHandle;

use super::directory::Known;
use super::state::State;

/// Longest time between two looks: what sleeps is not woken by a machine that was suspended.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest time that a server waits at its end until all of them are recorded.
const RECORDED_WITHIN: Duration = Duration::from_secs(20);
/// Shortest time between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Looks whether the tenure is over, for as long as the server runs, if it ever may be. What `audit` has to say of it is
/// said when the task ends, for which [`end`] waits.
pub(super) fn start(state: &Arc<State>, audit: Option<Audit>) -> Option<JoinHandle<()>> {
    let term = state.membership.tenure.term()?;
    let watching = state.clone();
    state.tasks.keep("lease of devices", move || watch(watching.clone()));
    let (audit, changes) = (audit?, state.fencing.changes.begin());
    let state = state.clone();
    Some(tokio::task::spawn_blocking(move || {
        for is_fenced in changes {
            // If it cannot be written the log says so.
            let deed = state.deed(term, is_fenced);
            let _ = audit.begin(deed).and_then(|begun| begun.end(None));
        }
    }))
}

/// Waits until what changed is recorded (SERVER-TENURE-3), when nothing is served any more.
pub(super) async fn end(state: &State, recording: Option<JoinHandle<()>>) {
    state.fencing.changes.end();
    if let Some(recording) = recording {
        // A file that hangs keeps no server.
        let _ = tokio::time::timeout(RECORDED_WITHIN, recording).await;
    }
}

/// The state of the fence: hosts are cut off until the directory confirms which devices are this host's.
#[derive(Default)]
pub(super) struct Fencing {
    is_fenced: AtomicBool,
    changes: Changes,
}

/// SERVER-TENURE-3: the changes, for the task that records them, if there is one.
#[derive(Default)]
struct Changes(Mutex<Option<mpsc::Sender<bool>>>);

impl Changes {
    fn begin(&self) -> mpsc::Receiver<bool> {
        let (sender, receiver) = mpsc::channel();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    fn say(&self, is_fenced: bool) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*sender {
            // The receiver ends only after this.
            let _ = sender.send(is_fenced);
        }
    }

    /// No more are recorded.
    fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

async fn watch(state: Arc<State>) {
    let tenure = state.membership.tenure.clone();
    while let (Some(stops_at), Some(term)) = (tenure.stops_at(), tenure.term()) {
        if tenure.is_over(BootTime::now) {
            state.stop_serving(term, tenure.has_lost());
        }
        let left = stops_at - BootTime::now();
        tokio::time::sleep(left.clamp(PAUSE, LOOK_EVERY)).await;
    }
}

impl State {
    /// Returns true if hosts are cut off until the directory confirms which devices are this host's.
    pub(super) fn is_fenced(&self) -> bool {
        self.fencing.is_fenced.load(Ordering::Relaxed)
    }

    /// SERVER-TENURE-1. Says why: it `has_lost` something, or time is over.
    fn stop_serving(&self, term: Term, has_lost: bool) {
        if self.fencing.is_fenced.swap(true, Ordering::Relaxed) {
            return;
        }
        self.fencing.changes.say(true);
        self.cores.tell(|| CoreMessage::Suspend);
        self.tell_of_absence();
        for core in self.cores.keys() {
            for device in self.devices.keys() {
                let places = self.directory(|directory| directory.places_on(core, device));
                places.into_iter().for_each(|place| self.withdraw(place.id));
            }
        }
        let after = term.ends_after();
        match has_lost {
            true => tracing::error!(
                "fenced: a device is not this host's any more, as the directory says; no volume is served until \
                 it says which still are"
            ),
            false => tracing::error!(
                after_seconds = after.as_secs(),
                "fenced: the directory has not confirmed for so long that the devices are this host's; no \
                 volume is served until it does"
            ),
        }
    }

    /// SERVER-TENURE-2: what was not lost is this host's, as the directory was asked at `asked`.
    pub(super) async fn serve_again(&self, asked: BootTime) {
        if !self.membership.tenure.renew(asked, BootTime::now()) {
            return;
        }
        let was_fenced = self.fencing.is_fenced.swap(false, Ordering::Relaxed);
        // Also those that have noticed by themselves.
        self.cores.tell(|| CoreMessage::Resume);
        if !was_fenced {
            return;
        }
        self.fencing.changes.say(false);
        self.tell_of_absence();
        tracing::warn!("the directory confirms it: what is still this host's is served again");
        for (core, link) in self.cores.iter_enumerated() {
            // One that has ended serves nothing.
            let volumes = link.volumes().await.unwrap_or_default();
            let kept = volumes.iter().filter(|volume| !self.is_abandoned(volume.device));
            for volume in kept {
                if let Some(access) = &volume.access {
                    self.announce(Known::of(core, volume).place, volume, access);
                }
            }
        }
    }

    /// SERVER-TENURE-3.
    fn deed(&self, term: Term, is_fenced: bool) -> Deed {
        let devices: Vec<&str> = self.devices.iter().map(|device| device.name()).collect();
        Deed {
            by: "fence-after",
            what: if is_fenced { "FENCE" } else { "SERVE" },
            to: self.membership.address.clone().unwrap_or_default(),
            change: json!({
                "host": self.membership.name,
                "devices": devices,
                "fence_after_seconds": term.ends_after().as_secs(),
            }),
        }
    }
}
