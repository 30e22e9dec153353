//! The process that serves a device: its mark on the device, and whether it lives.
//!
//! A lock on a file or block device excludes another server that opens the same one. It says nothing to a server that
//! reaches the same blocks otherwise: by a loop device over the file, by the disk of a partition, from another machine.
//!
//! - DEVICE-OWNER-1: before a server writes to a device that belongs to no cluster, it marks the device as its own, and renews
//!   the mark every few seconds. (In a cluster, claims say which host serves a device.)
//! - DEVICE-OWNER-2: a mark whose owner is known to be dead says nothing, and is replaced at once: a process of this boot and of
//!   this namespace that has ended.
//! - DEVICE-OWNER-3: of any other owner it is watched whether the mark is renewed, for [`WATCH`]: then the device is refused. If
//!   it is not, the owner was of another boot or machine and is gone, or this is a copy of the device that it serves.
//! - DEVICE-OWNER-4: a server that finds another owner's mark stops serving the device at once.
//! - DEVICE-OWNER-5: an owner that is stopped renews nothing, and would go on; it is refused as one that lives.
//! - DEVICE-OWNER-6: a renewal keeps the time of day with the device, so that a grace that is over is not reopened by a clock
//!   that is set back while no server runs (`reactor::not_before`). In a cluster the mark is written for that alone, and refuses
//!   nothing.
//! - DEVICE-OWNER-7: a device that takes no mark at the start, since there is no space for it, is served, and marked by the first
//!   renewal that finds space. That no mark keeps other servers off is told until then.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use io_traits::Buffer;
use reactor::OwnedDevice;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use user_messages::Failure;
use uuid::Uuid;
use volume::{HOST_NAME_BYTES_MAX, OwnerMark, Superblock};

/// Between two renewals.
pub const RENEW_EVERY: Duration = Duration::from_secs(2);
/// The time for which a mark is watched before its owner counts as gone: two renewals may come late.
pub const WATCH: Duration = Duration::from_secs(6);
/// After so many renewals that failed in turn, others take the owner for gone.
const FAILURES_TOLD: u32 = (WATCH.as_secs() / RENEW_EVERY.as_secs()) as u32;
/// Between two looks at it.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// By less than this a clock may be corrected without a word.
const CLOCK_STEP: Duration = Duration::from_secs(60);
/// After this time a mark that was written is looked at once more: of two that came at once, one sees the other's.
const SETTLE: Duration = Duration::from_millis(50);

/// This process, as the owner of one device.
#[derive(Clone, Debug)]
pub struct Owner {
    mark: OwnerMark,
    /// Claims say which host serves the device (DEVICE-OWNER-6).
    is_in_cluster: bool,
    /// The mark that was there before, of an owner that is gone, until this one's is written (DEVICE-OWNER-7).
    before: Option<OwnerMark>,
    /// Renewals that failed since the last one that did not.
    failures: u32,
}

/// The outcome of a renewal.
#[derive(Debug)]
pub enum Renewal {
    /// The device has the mark of this process.
    Done,
    /// The device did not take it; others see to that.
    Failed,
    /// Another process has the device (DEVICE-OWNER-4).
    Lost(Box<OwnerMark>),
}

impl Owner {
    /// Marks the device as this process's (DEVICE-OWNER-1), now or later (DEVICE-OWNER-7).
    pub fn take(
        path: &Path,
        device: &OwnedDevice,
        superblock: &Superblock,
    ) -> Result<Self, Failure> {
        let is_in_cluster = superblock.cluster.is_some();
        if !is_in_cluster {
            refuse_if_owned(path, device)?;
        }
        let before = read_any(device).filter(|before| before.device == superblock.uuid);
        if let Some(before) = &before {
            tell_of_clock(reactor::not_before(Duration::from_secs(before.seconds)));
        }
        let mut own = Self { mark: own_mark(superblock.uuid), is_in_cluster, before, failures: 0 };
        if is_in_cluster {
            // Nothing relies on it: the first renewal that succeeds is early enough.
            return Ok(own);
        }
        match own.write(device) {
            Err(Errno::NOSPC | Errno::DQUOT) => {
                own.failures = FAILURES_TOLD;
                return Ok(own);
            }
            Err(errno) => {
                let what = format!("{} cannot be written: {errno}", path.display());
                return Err(Failure::absence(what, crate::not_opened::remedy_of_errno(errno)));
            }
            Ok(()) => {}
        }
        std::thread::sleep(SETTLE);
        match read(device) {
            Some(found) if found.instance != own.mark.instance => Err(owned(path, &found)),
            _ => Ok(own),
        }
    }

    /// Returns false if no mark keeps other servers off: it was not written (DEVICE-OWNER-7), or not renewed for so long that
    /// they take this one for gone.
    pub fn keeps_others_off(&self) -> bool {
        self.is_in_cluster || self.failures < FAILURES_TOLD
    }

    /// Says once more that this process serves the device, and that it did so until now.
    pub fn renew(&mut self, device: &OwnedDevice) -> Renewal {
        if !self.is_in_cluster
            && let Some(found) = read(device)
            && found.device == self.mark.device
            && found.instance != self.mark.instance
            && self.before.as_ref() != Some(&found)
            // An old state of the device was copied over it: that is no owner.
            && state_of(&found) != Process::Dead
        {
            return Renewal::Lost(Box::new(found));
        }
        self.mark.renewals += 1;
        self.mark.seconds = reactor::unix_time().as_secs();
        match self.write(device) {
            Ok(()) => {
                self.failures = 0;
                Renewal::Done
            }
            Err(_) => {
                self.failures = self.failures.saturating_add(1);
                Renewal::Failed
            }
        }
    }

    fn write(&mut self, device: &OwnedDevice) -> Result<(), Errno> {
        let mut block = Buffer::new(1);
        self.mark.encode(block.as_mut_bytes());
        device.write_block(Superblock::OWNER_MARK, &block)?;
        self.before = None;
        Ok(())
    }
}

/// Says that the clock was set back while no server ran.
fn tell_of_clock(behind: Duration) {
    if behind > CLOCK_STEP {
        tracing::warn!(
            seconds = behind.as_secs(),
            "the clock of this machine was set back since the device was last served: until it catches up, replaced tokens \
             are counted by the time that was seen before"
        );
    }
}

/// Refuses a device that another process serves, by whatever path (DEVICE-OWNER-2, DEVICE-OWNER-3).
pub fn refuse_if_owned(path: &Path, device: &OwnedDevice) -> Result<(), Failure> {
    let Some(first) = read(device) else { return Ok(()) };
    let lives = match state_of(&first) {
        Process::Dead => return Ok(()),
        Process::Stopped => true,
        Process::Alive | Process::Unknown => is_renewed(device, &first),
    };
    if lives { Err(owned(path, &first)) } else { Ok(()) }
}

/// Watches a mark (DEVICE-OWNER-3).
fn is_renewed(device: &OwnedDevice, first: &OwnerMark) -> bool {
    let deadline = Instant::now() + WATCH;
    while Instant::now() < deadline {
        std::thread::sleep(LOOK_PAUSE);
        if read(device).is_some_and(|found| found != *first) {
            return true;
        }
    }
    false
}

fn read_any(device: &OwnedDevice) -> Option<OwnerMark> {
    let block = device.read_block(Superblock::OWNER_MARK).ok()?;
    OwnerMark::decode(block.as_bytes()).ok()
}

/// The mark of the device, if it has one that is of this device.
fn read(device: &OwnedDevice) -> Option<OwnerMark> {
    let mark = read_any(device)?;
    let start = device.read_block(Superblock::places(1)[0]).ok();
    let superblock = start.and_then(|start| Superblock::decode(start.as_bytes()).ok());
    // Of a device whose start is damaged the mark speaks all the same.
    let is_of_this = superblock.is_none_or(|superblock| superblock.uuid == mark.device);
    // In a cluster claims count (DEVICE-OWNER-6).
    let is_in_cluster = superblock.is_some_and(|superblock| superblock.cluster.is_some());
    (is_of_this && !is_in_cluster).then_some(mark)
}

/// The state of an owner's process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Process {
    Dead,
    Alive,
    /// By a signal, or a debugger (DEVICE-OWNER-5).
    Stopped,
    /// It is of another boot, machine or namespace.
    Unknown,
}

/// The boot of this machine, and the namespace of this process's number: neither changes while the process lives.
fn here() -> (Uuid, u64) {
    static HERE: OnceLock<(Uuid, u64)> = OnceLock::new();
    *HERE.get_or_init(|| {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino());
        (boot.trim().parse().unwrap_or_default(), namespace)
    })
}

fn state_of(mark: &OwnerMark) -> Process {
    let own = here();
    if (mark.boot, mark.namespace) != own || mark.boot.is_nil() {
        return Process::Unknown;
    }
    let Some(pid) = i32::try_from(mark.pid).ok().and_then(Pid::from_raw) else {
        return Process::Unknown;
    };
    if test_kill_process(pid) == Err(Errno::SRCH) {
        return Process::Dead;
    }
    match stat_of(&mark.pid.to_string()) {
        // Another process has the number now.
        Some((_, began)) if began != mark.began => Process::Dead,
        // It has ended, and its parent has not asked for its exit code yet: what it had open is closed.
        Some(('Z' | 'X', _)) => Process::Dead,
        Some(('T' | 't', _)) => Process::Stopped,
        _ => Process::Alive,
    }
}

/// State and beginning of a process.
fn stat_of(pid: &str) -> Option<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; fields are counted behind it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// The mark of this process.
fn own_mark(device: Uuid) -> OwnerMark {
    let (boot, namespace) = here();
    let mut host_name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    while host_name.len() > HOST_NAME_BYTES_MAX {
        host_name.pop();
    }
    OwnerMark {
        device,
        instance: Uuid::new_v4(),
        renewals: 0,
        boot,
        pid: std::process::id().into(),
        began: stat_of("self").map_or(0, |(_, began)| began),
        namespace,
        seconds: reactor::unix_time().as_secs(),
        host_name,
    }
}

fn owned(path: &Path, mark: &OwnerMark) -> Failure {
    Failure::runtime(
        format!("{} is in use: {}", path.display(), whose(mark)),
        "stop that process first; it reaches the same device by another path, or from another machine",
    )
}

/// The owner, in the words of a message.
pub fn whose(mark: &OwnerMark) -> String {
    format!("process {} on the machine {} serves it", mark.pid, mark.host_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This process lives; one with its number that began at another time is dead; of another boot nothing is known.
    #[test]
    fn a_dead_owner_is_told_from_a_living_one() {
        let own = own_mark(Uuid::nil());
        assert_eq!(state_of(&own), Process::Alive);
        assert_eq!(state_of(&OwnerMark { began: own.began + 1, ..own.clone() }), Process::Dead);
        let elsewhere = OwnerMark { boot: Uuid::from_u128(7), ..own.clone() };
        assert_eq!(state_of(&elsewhere), Process::Unknown);
        let inside = OwnerMark { namespace: own.namespace + 1, ..own.clone() };
        assert_eq!(state_of(&inside), Process::Unknown);
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let pid = child.id().into();
        child.wait().expect("it ends");
        assert_eq!(state_of(&OwnerMark { pid, ..own }), Process::Dead);
    }
}
