//! A device that was made larger takes up what it has now while it is served.
//!
//! - GROW-LIVE-1: hosts see a pause: their requests wait until all shards are back, or until it is clear that the shards cannot
//!   be closed in time ([`CLOSE_LIMIT`]).
//! - GROW-LIVE-2: before the device is changed, all its shards on all cores are closed, and the way by which they wrote is shut.
//!   The device has the old size or the new one at any moment (GROW-1), and shards that are read back find out which.
//! - GROW-LIVE-3: the mark that keeps other servers off is renewed meanwhile (DEVICE-OWNER-1).
//! - GROW-LIVE-4: no other change to what lies on the device is under way (SERVICE-1).

use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use control::{GrownDevice, ServiceError};
use data_core::{Answer, CoreMessage, NewWay};
use local_devices::owner::{RENEW_EVERY, WATCH};
use local_devices::storage;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use units::{BLOCK_SIZE, ByteLen, DeviceIndex};
use volume::GROW_BLOCKS_MIN;

use super::replug::{Drive, aside, renew_mark};
use super::state::State;

/// The time for which hosts wait for what is under way to end, and for the last checkpoints.
const CLOSE_LIMIT: Duration = Duration::from_secs(4);
// GROW-LIVE-3: it passes without a renewal.
const _: () = assert!(CLOSE_LIMIT.as_millis() < WATCH.as_millis());
/// The time for which other changes to the device are waited for.
const CHANGES_LIMIT: Duration = Duration::from_secs(1);
/// The time after which the caller is told that the device does not answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Requests to take up what a device has now, for the task that cares for it.
#[derive(Default)]
pub(super) struct Asks(Mutex<Vec<oneshot::Sender<Outcome>>>);

/// Blocks before and after, or why nothing was changed.
type Outcome = Result<[u64; 2], ServiceError>;

impl Asks {
    fn add(&self) -> oneshot::Receiver<Outcome> {
        let (sender, answered) = oneshot::channel();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        answered
    }

    /// Those that are still waited for.
    fn take(&self) -> Vec<oneshot::Sender<Outcome>> {
        let mut asks = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        asks.retain(|ask| !ask.is_closed());
        asks
    }
}

impl State {
    /// Has a device take up what its file or drive has now.
    pub(super) async fn grow_device(&self, name: &str) -> Result<GrownDevice, ServiceError> {
        let device = self.device_named(name)?;
        if self.is_absent(device) {
            return Err(self.away(device));
        }
        let served = &self.devices[device];
        if served.aside().is_none() {
            let detail = format!("{name} lies in memory and has the size that it was given");
            return Err(ServiceError::Setting { detail });
        }
        let answered = timeout(ANSWER_LIMIT, served.grow_asks().add()).await;
        let [before, after] = match answered {
            Ok(Ok(outcome)) => outcome?,
            Ok(Err(_)) => return Err(ServiceError::Unavailable),
            Err(_) if self.is_abandoned(device) => {
                return Err(not_grown("it is another host's now"));
            }
            Err(_) => {
                return Err(match self.devices[device].trouble() {
                    Some(_) => self.away(device),
                    None => not_grown("it does not answer in time"),
                });
            }
        };
        let [before_bytes, after_bytes] = [before, after].map(|blocks| blocks * BLOCK_SIZE as u64);
        Ok(GrownDevice { name: name.to_owned(), before_bytes, after_bytes })
    }
}

fn not_grown(why: &str) -> ServiceError {
    ServiceError::Device { detail: format!("it takes up nothing for now: {why}") }
}

/// The drive, after what was asked of it; `None` if it is another's by now.
pub(super) async fn answer_asks(state: &State, device: DeviceIndex, drive: Drive) -> Option<Drive> {
    let asks = state.devices[device].grow_asks().take();
    if asks.is_empty() {
        return Some(drive);
    }
    let (drive, outcome) = grow(state, device, drive).await;
    for ask in asks {
        // One that is not waited for any more is told nothing.
        let _ = ask.send(outcome.clone());
    }
    drive
}

async fn grow(state: &State, device: DeviceIndex, drive: Drive) -> (Option<Drive>, Outcome) {
    let before = drive.superblock.blocks;
    // GROW-LIVE-4.
    let _alone = match timeout(CHANGES_LIMIT, state.alone_on(device)).await {
        Ok(Ok(alone)) => alone,
        Ok(Err(error)) => return (Some(drive), Err(error)),
        Err(_) => return (Some(drive), Err(not_grown("another change to it is under way"))),
    };
    let (drive, larger) = aside(state, device, move || {
        let larger = drive.opened.at_size_now();
        (drive, larger)
    })
    .await;
    if larger.limits().blocks < before + GROW_BLOCKS_MIN {
        return (Some(drive), Ok([before, before]));
    }
    let is_lost = || Err(not_grown("another process has it"));
    let Some(drive) = renew_mark(state, device, drive).await else { return (None, is_lost()) };
    tracing::info!(device = state.devices[device].name(), "is about to grow: hosts wait");
    let (drive, outcome) = match close_all(state, device).await {
        Err(error) => (reopen(state, device, drive, None).await, Err(error)),
        Ok(()) => {
            let Some(drive) = renew_mark(state, device, drive).await else {
                return (None, is_lost());
            };
            // Shut, it is another host's, and its volumes are gone from here.
            let Some(number) = drive.fence.renew() else { return (Some(drive), is_lost()) };
            let way = NewWay { opened: larger, number };
            let (drive, grown) = enlarge(state, device, drive, &way).await;
            (reopen(state, device, drive, Some(way)).await, grown)
        }
    };
    tell(state, device, &outcome);
    (drive, outcome)
}

fn tell(state: &State, device: DeviceIndex, outcome: &Outcome) {
    let device = state.devices[device].name();
    match outcome {
        Ok([before, after]) => {
            let [before, after] = [before, after].map(|it| ByteLen(it * BLOCK_SIZE as u64));
            tracing::info!(device, %before, %after, "has grown");
        }
        Err(error) => tracing::error!(device, %error, "has not grown"),
    }
}

/// Has the device use what it has now (GROW-LIVE-2).
async fn enlarge(
    state: &State,
    device: DeviceIndex,
    mut drive: Drive,
    way: &NewWay,
) -> (Drive, Outcome) {
    drive.opened = way.opened.clone();
    aside(state, device, move || {
        let (path, fence) = (&drive.spec.path, &drive.fence);
        let grown = storage::grow_by(path, &drive.opened, |file| fence.newest(file));
        let outcome = match grown {
            Ok((before, after)) => Ok([before.blocks, after.blocks]),
            Err(failure) => Err(not_grown(&failure.in_one_line())),
        };
        drive.is_size_known = false;
        drive.find_size();
        // What was held back behind the former end is a part of the device now; the next look tries again.
        let _ = drive.opened.hold_space();
        (drive, outcome)
    })
    .await
}

/// Asks all cores, and returns what their answers come by.
fn ask_all<T>(
    state: &State,
    mut message: impl FnMut(Answer<T>) -> CoreMessage,
) -> Vec<oneshot::Receiver<T>> {
    let ask = |core: &super::cores::CoreLink| {
        let (answer, answered) = oneshot::channel();
        // Of a core that has ended the way back closes.
        let _ = core.mailbox.send(message(answer));
        answered
    };
    state.cores.iter().map(ask).collect()
}

/// Has all shards of the device closed (GROW-LIVE-1).
async fn close_all(state: &State, device: DeviceIndex) -> Result<(), ServiceError> {
    let closing = ask_all(state, |answer| CoreMessage::CloseDevice { device, answer });
    let all = async {
        for closed in closing {
            let closed = closed.await.map_err(|_| ServiceError::Unavailable)?;
            closed
                .map_err(|error| not_grown(&format!("a part of it takes no changes: {error}")))?;
        }
        Ok(())
    };
    let in_time = timeout(CLOSE_LIMIT, all).await;
    in_time.unwrap_or_else(|_| Err(not_grown("what is under way does not end in time")))
}

/// Has all shards taken into use again, and the mark renewed meanwhile (GROW-LIVE-3).
async fn reopen(
    state: &State,
    device: DeviceIndex,
    mut drive: Drive,
    way: Option<NewWay>,
) -> Option<Drive> {
    let reopening = ask_all(state, |answer| {
        let way = way.clone();
        CoreMessage::ReopenDevice { device, way, answer }
    });
    let mut all = pin!(async {
        for reopened in reopening {
            // What is not back says so, and is brought back as any other.
            let _ = reopened.await;
        }
    });
    loop {
        tokio::select! {
            () = &mut all => return Some(drive),
            () = sleep(RENEW_EVERY) => drive = renew_mark(state, device, drive).await?,
        }
    }
}
