//! A drive that was unplugged and is back: reopened by its path, without a restart.
//!
//! The server's handle of a drive stays dead when the drive goes, also if the same one is plugged in again:
//! to the kernel that is a new one.
//!
//! - REPLUG-1: a handle that still answers is kept. Its shards are read back by that handle.
//! - REPLUG-2: at the path is the device that was served, by its superblock, and it is locked as at the start. Another
//!   one is left alone; log, status and API say so, and it is looked again.
//! - REPLUG-3: the old handle is shut for all cores before the first shard is read back by the new one.
//! - REPLUG-4: a drive that another host has claimed meanwhile, as its mark says (CLAIM-9), is that
//!   host's: the mark is read before the drive is used again, and every [`MARK_LOOKS`] looks while it is
//!   served, since two hosts may reach it.

use std::sync::Arc;
use std::time::Duration;

use data_core::{CoreMessage, NewWay};
use device::kind::{DeviceSpec, FileSpec};
use device::layer::Fence;
use directory::Mark;
use local_devices::belonging;
use local_devices::contents;
use local_devices::owner::{Owner, RENEW_EVERY, Renewal, whose};
use local_devices::remembered::{self, Noted};
use local_devices::storage;
use reactor::OwnedDevice;
use typed_index_collections::TiVec;
use units::DeviceIndex;
use user_messages::Failure;
use volume::Superblock;

use super::conditions;
use super::device_set::OpenDevice;
use super::growing;
use super::state::State;

/// Interval at which failures are looked for, and a drive that is away.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Every so many looks it is looked whose claim a drive carries: two blocks are read, every 5 s.
const MARK_LOOKS: u32 = 5;

/// Every so many looks the mark is renewed that keeps other servers off.
const RENEWAL_LOOKS: u32 = (RENEW_EVERY.as_secs() / LOOK_EVERY.as_secs()) as u32;

/// Every so many looks another number of volumes is noted.
const NOTE_LOOKS: u32 = 60;

/// A file or drive that is served.
pub(super) struct Drive {
    pub(super) spec: FileSpec,
    pub(super) opened: OwnedDevice,
    pub(super) superblock: Superblock,
    /// False if it was about to grow, and could not be read since then.
    pub(super) is_size_known: bool,
    pub(super) fence: Fence,
    /// The mark that keeps other servers off.
    owner: Option<Owner>,
    note: Note,
}

/// The note of how many volumes lie on a drive (REMEMBERED-2).
#[derive(Clone, Copy, Default)]
struct Note {
    /// As it was written; `None`: not yet.
    volumes: Option<usize>,
    has_failed: bool,
}

impl Note {
    /// Returns true if it is to be written, at a look of this number: whether there are volumes is noted at once, and how many
    /// now and then.
    fn is_due(self, volumes: usize, looks: u32) -> bool {
        match self.volumes {
            None => true,
            Some(before) if before == volumes => false,
            Some(before) => before == 0 || volumes == 0 || looks.is_multiple_of(NOTE_LOOKS),
        }
    }
}

/// The state of a drive that failed requests.
enum Found {
    /// It answers by the handle that is open (REPLUG-1).
    Well,
    /// It does not, but its path could be opened again.
    Reopened(OwnedDevice),
    /// It does not, and nor does the path.
    Away(Failure),
}

impl Drive {
    /// `None` for what cannot be unplugged.
    pub(super) fn of(device: OpenDevice, spec: &DeviceSpec, fence: Fence) -> Option<Self> {
        let OpenDevice { source, superblock, owner, .. } = device;
        let (opened, spec) = (source.file()?.clone(), spec.file()?.clone());
        let (note, is_size_known) = (Note::default(), true);
        Some(Self { spec, opened, superblock, is_size_known, fence, owner, note })
    }

    /// The mark that it carries of the last claim of its cluster; `None` if that cannot be read.
    fn mark(&self) -> Option<Mark> {
        belonging::mark(&self.spec.path, &self.opened, &self.superblock).ok().flatten()
    }

    /// Looks how large it is, if that is not known.
    pub(super) fn find_size(&mut self) {
        if self.is_size_known {
            return;
        }
        let before = self.superblock;
        if let Ok(found) = storage::superblock(&self.spec.path, &self.opened)
            && found.uuid == before.uuid
        {
            self.superblock = Superblock { blocks: found.blocks, ..before };
            self.is_size_known = true;
        }
    }

    /// Notes how many volumes lie on it.
    fn note(&mut self, volumes: usize) {
        let noted = Noted { device: self.superblock.uuid, volumes };
        match remembered::note(&self.spec.path, noted) {
            Ok(()) => self.note = Note { volumes: Some(volumes), has_failed: false },
            Err(error) => {
                if !std::mem::replace(&mut self.note.has_failed, true) {
                    tracing::warn!(
                        device = %self.spec.path.display(),
                        %error,
                        "it cannot be noted in $STATE_DIRECTORY that volumes lie on the device: make room there, and let this user write"
                    );
                }
            }
        }
    }

    fn look(&self) -> Found {
        match storage::is_readable(&self.opened) {
            Ok(true) => return Found::Well,
            Ok(false) => {}
            Err(failure) => return Found::Away(failure),
        }
        match contents::open_again(&self.spec, &self.superblock) {
            Ok(opened) => {
                // Where there is none, the next look says so.
                let _ = opened.hold_space();
                Found::Reopened(opened)
            }
            // What could not be had is ours.
            Err(_) if self.opened.is_at(&self.spec.path) => {
                let what = format!("{} fails what is asked of it", self.spec.path.display());
                Found::Away(Failure::runtime(what, "look at the kernel's log (dmesg)"))
            }
            Err(failure) => Found::Away(failure),
        }
    }
}

/// Looks after drives, by their numbers, for as long as the server runs.
pub(super) fn start(state: &Arc<State>, drives: TiVec<DeviceIndex, Option<Drive>>) {
    for (device, drive) in drives.into_iter_enumerated() {
        if let Some(drive) = drive {
            keep_looking(state, device, drive);
        }
    }
}

/// Looks after a drive from now on.
pub(super) fn keep_looking(state: &Arc<State>, device: DeviceIndex, drive: Drive) {
    let name = format!("care for {}", state.devices[device].name());
    state.tasks.keep_once(&name, look_after(state.clone(), device, drive));
}

/// Looks after a drive for as long as the server runs, or the drive is this host's.
async fn look_after(state: Arc<State>, device: DeviceIndex, mut drive: Drive) {
    let mut is_away = false;
    for looks in 1_u32.. {
        tokio::time::sleep(LOOK_EVERY).await;
        if drive.fence.is_shut() {
            return;
        }
        if !is_away {
            drive = look_at_conditions(&state, device, drive, looks).await;
            if looks.is_multiple_of(RENEWAL_LOOKS) {
                let Some(same) = renew_mark(&state, device, drive).await else { return };
                drive = same;
            }
            let Some(same) = growing::answer_asks(&state, device, drive).await else { return };
            drive = same;
        }
        if !drive.fence.take_ails() && !is_away {
            if looks.is_multiple_of(MARK_LOOKS) && drive.superblock.cluster.is_some() {
                let Some(same) = still_own(&state, device, drive).await else { return };
                drive = same;
            }
            continue;
        }
        let (same, found) = look_aside(&state, device, drive).await;
        drive = same;
        if !matches!(found, Found::Well) {
            // They are looked at again when it is back.
            state.devices[device].set_notices(Vec::new());
        }
        is_away = match found {
            Found::Well => {
                state.devices[device].set_trouble(None);
                false
            }
            Found::Away(failure) => {
                state.devices[device].set_trouble(Some(&failure));
                true
            }
            Found::Reopened(opened) => {
                let reopened = Drive { opened, ..drive };
                let Some(reopened) = still_own(&state, device, reopened).await else { return };
                drive = reopened;
                let Some(number) = drive.fence.renew() else { return };
                let way = NewWay { opened: drive.opened.clone(), number };
                state.cores.tell(|| CoreMessage::Renew { device, way: way.clone() });
                let name = state.devices[device].name();
                tracing::warn!(device = name, "reopened: its old handle is dead");
                state.devices[device].set_trouble(None);
                false
            }
        };
    }
}

/// The drive, unless it carries another host's claim, which is then acted upon (REPLUG-4).
async fn still_own(state: &State, device: DeviceIndex, drive: Drive) -> Option<Drive> {
    let (drive, mark) = aside(state, device, move || {
        let mark = drive.mark();
        (drive, mark)
    })
    .await;
    let is_lost = mark.is_some_and(|mark| state.membership.has_lost(device, &mark));
    (!is_lost).then_some(drive)
}

/// The drive, unless another process has it, which is then acted upon (DEVICE-OWNER-4).
pub(super) async fn renew_mark(
    state: &State,
    device: DeviceIndex,
    mut drive: Drive,
) -> Option<Drive> {
    let (drive, renewal) = aside(state, device, move || {
        // A mark is a write as any other (FENCE-1, FENCE-3).
        let owner = drive.owner.as_mut().filter(|_| drive.fence.is_open());
        let renewal = owner.map(|owner| owner.renew(&drive.opened));
        (drive, renewal)
    })
    .await;
    let Some(Renewal::Lost(mark)) = renewal else { return Some(drive) };
    drive.fence.shut();
    let what =
        format!("{} is not served here any more: {}", drive.spec.path.display(), whose(&mark));
    let remedy = "leave the device to one of both servers; `farflash fsck` tells whether anything of it is damaged";
    state.devices[device].set_trouble(Some(&Failure::runtime(what, remedy)));
    state.cut_off(device);
    None
}

/// The drive, whose conditions are known then.
async fn look_at_conditions(
    state: &State,
    device: DeviceIndex,
    mut drive: Drive,
    looks: u32,
) -> Drive {
    let volumes = state.directory(|directory| directory.volumes_on(device));
    let (drive, seen) = aside(state, device, move || {
        if drive.note.is_due(volumes, looks) {
            drive.note(volumes);
        }
        drive.find_size();
        let mut seen = conditions::look(&drive.spec.path, &drive.opened, &drive.superblock);
        if drive.owner.as_ref().is_some_and(|owner| !owner.keeps_others_off()) {
            seen.push(conditions::unmarked(&drive.spec.path));
        }
        (drive, seen)
    })
    .await;
    state.devices[device].set_notices(seen);
    drive
}

async fn look_aside(state: &State, device: DeviceIndex, drive: Drive) -> (Drive, Found) {
    aside(state, device, move || {
        let found = drive.look();
        (drive, found)
    })
    .await
}

/// Looks on the thread of the device, since one that hangs holds up what asks it: also the end of the process,
/// where the runtime waits for its threads.
pub(super) async fn aside<T: Send + 'static>(
    state: &State,
    device: DeviceIndex,
    look: impl FnOnce() -> T + Send + 'static,
) -> T {
    let aside = state.devices[device].aside();
    let looked = aside.expect("a file or drive has a thread").run(look).await;
    // What was looked at is gone with the panic: the task ends with it, and is told of.
    looked.expect("looking does not panic")
}
