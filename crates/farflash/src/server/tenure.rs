//! What this host does when its tenure ends (F7 of `directory`): it stops to serve until it is known again what is its own.
//!
//! - K1: when it is over hosts are cut off, by the cores themselves when a command comes (U3 of `dataplane`), or from here,
//!   whoever notices first. A moment later requests to devices end, by their fences (`fence.rs`).
//! - K2: hosts are let in again when the directory has said what is held, behind all that was lost.
//! - K3: what the audit log says of it is said afterwards: neither waits for that.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::{Audit, Deed};
use directory::{BootTime, Term};
use serde_json::json;

use super::directory::Known;
use super::message::CoreMessage;
use super::state::State;

/// Longest time between two looks: what sleeps is not woken by a machine that was suspended.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// And the shortest.
const PAUSE: Duration = Duration::from_millis(20);

/// Looks whether the tenure is over, for as long as the server runs, if it ever may be.
pub(super) fn start(state: &Arc<State>, audit: Option<Audit>) {
    if state.membership.tenure.term().is_some() {
        tokio::spawn(watch(state.clone(), audit));
    }
}

async fn watch(state: Arc<State>, audit: Option<Audit>) {
    let tenure = state.membership.tenure.clone();
    let mut was_fenced = false;
    while let (Some(stops_at), Some(term)) = (tenure.stops_at(), tenure.term()) {
        if tenure.is_over(BootTime::now) {
            state.stop_serving(term);
        }
        let is_fenced = state.is_fenced();
        if is_fenced != was_fenced {
            was_fenced = is_fenced;
            state.record_fence(audit.clone(), term, is_fenced);
        }
        let left = stops_at - BootTime::now();
        tokio::time::sleep(left.clamp(PAUSE, LOOK_EVERY)).await;
    }
}

impl State {
    /// Whether hosts are cut off because the directory was away for too long.
    pub(super) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Relaxed)
    }

    /// K1.
    fn stop_serving(&self, term: Term) {
        if self.fenced.swap(true, Ordering::Relaxed) {
            return;
        }
        self.tell_cores(|| CoreMessage::Suspend);
        self.tell_of_absence();
        for core in 0..self.cores.len() {
            for device in 0..self.devices.len() {
                let places = self.directory(|directory| directory.places_on(core, device));
                places.into_iter().for_each(|place| self.withdraw(place.id));
            }
        }
        let after = term.ends_after();
        tracing::error!(
            ?after,
            "fenced: the directory has not confirmed for so long that the devices are this host's; no \
             volume is served until it does"
        );
    }

    /// K2: what was not lost is this host's, as the directory was asked at `asked`.
    pub(super) async fn serve_again(&self, asked: BootTime) {
        if !self.membership.tenure.renew(asked, BootTime::now()) {
            return;
        }
        let was_fenced = self.fenced.swap(false, Ordering::Relaxed);
        // Also those that have noticed by themselves.
        self.tell_cores(|| CoreMessage::Resume);
        if !was_fenced {
            return;
        }
        self.tell_of_absence();
        tracing::warn!("the directory confirms it: what is still this host's is served again");
        for (core, link) in self.cores.iter().enumerate() {
            // One that has ended serves nothing.
            let volumes = link.volumes().await.unwrap_or_default();
            let kept = volumes.iter().filter(|volume| !self.is_abandoned(volume.device));
            for volume in kept {
                if let Some(access) = &volume.access {
                    self.announce(Known::of(core, volume).place, &access.restrictions);
                }
            }
        }
    }

    fn tell_cores(&self, message: impl Fn() -> CoreMessage) {
        for core in &self.cores {
            // One that has ended serves nothing.
            let _ = core.mailbox.send(message());
        }
    }

    /// K3.
    fn record_fence(&self, audit: Option<Audit>, term: Term, is_fenced: bool) {
        let Some(audit) = audit else { return };
        let devices: Vec<String> = self.devices.iter().map(|device| device.name.clone()).collect();
        let deed = Deed {
            by: "fence-after",
            what: if is_fenced { "FENCE" } else { "SERVE" },
            to: self.membership.address.clone().unwrap_or_default(),
            change: json!({
                "host": self.host_name,
                "devices": devices,
                "fence_after_seconds": term.ends_after().as_secs(),
            }),
        };
        // If it cannot be written the log says so.
        tokio::task::spawn_blocking(move || audit.begin(deed).and_then(|begun| begun.end(None)));
    }
}
