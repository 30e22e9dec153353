//! The devices of a server, opened together.
//!
//! - DEVICE-SET-1: what is refused is refused before anything is changed, on any of them: all that is there is
//!   opened and looked at, then files are made that are not, and then what is blank is formatted.
//! - DEVICE-SET-2: files made in vain are removed.
//! - DEVICE-SET-3: a device is given once, by whatever name, and so is what is on it: a copy of a device is
//!   refused beside it.
//! - DEVICE-SET-4: a device that is absent (not there, or it does not work) keeps the others from nothing, unless no other
//!   is there, or one is to be formatted: with what is set up for the first time nothing is missing.
//! - DEVICE-SET-5: a device that belongs to a cluster is served by hosts of that cluster only (CLAIM-6).
//! - DEVICE-SET-6: the contents of a device of a cluster are examined when it is this host's, whatever was seen before:
//!   until then another host may have served it, and used shards of it that were not used then. The contents
//!   of a shard that is not read back would be lost.
//! - DEVICE-SET-7: a device of a cluster carries this host's claim before anything of it is served (CLAIM-9).

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use device::kind::{Backing, DeviceSource, DeviceSpec, FileSpec, Opened};
use directory::Mark;
use local_devices::belonging;
use local_devices::contents::{self, Contents, Look};
use local_devices::owner::{self, Owner};
use local_devices::remembered;
use local_devices::storage::{self, Made, RELEASE_TIMEOUT};
use process_limits::threads;
use reactor::OwnedDevice;
use typed_index_collections::TiVec;
use units::{BLOCK_SIZE, ByteLen, DeviceIndex};
use user_messages::Failure;
use user_messages::output::Voice;
use user_messages::shell;
use uuid::Uuid;
use volume::Superblock;

use super::membership::Claimed;
use super::{ServeConfig, preflight};

/// A device that is ours, and can be recovered.
pub(super) struct OpenDevice {
    /// As the API calls it.
    pub(super) name: String,
    pub(super) source: DeviceSource,
    pub(super) superblock: Superblock,
    /// Shards that were ever used.
    pub(super) active: Vec<u16>,
    /// The mark of the last claim of its cluster, if it carries one.
    pub(super) mark: Option<Mark>,
    pub(super) volatile_cache: Option<bool>,
    /// The mark that keeps other servers off.
    pub(super) owner: Option<Owner>,
}

/// The contents of a device when it is this host's (DEVICE-SET-6).
pub(super) struct Settled {
    superblock: Superblock,
    active: Vec<u16>,
}

impl OpenDevice {
    /// Records on the device, which is this host's, its cluster and the claim (DEVICE-SET-7), and examines it again
    /// (DEVICE-SET-6): for a thread that may have to wait. `None` if no other host can ever have it. The result is for
    /// [`OpenDevice::settle`].
    pub(super) fn settling(
        &self,
        device: &DeviceSpec,
        claimed: Option<Claimed>,
    ) -> Option<impl FnOnce() -> Result<Settled, Failure> + Send + use<>> {
        let (opened, spec, claimed) = (self.source.file()?, device.file()?, claimed?);
        let (opened, path, before) = (opened.clone(), spec.path.clone(), self.superblock);
        Some(move || -> Result<Settled, Failure> {
            contents::look_again(&path, &opened, &before)?;
            let superblock = belonging::join(&path, &opened, claimed.cluster)?;
            belonging::leave_mark(&path, &opened, &superblock, &claimed.mark)?;
            let active = contents::active_shards(&path, &opened, &superblock)?;
            Ok(Settled { superblock, active })
        })
    }

    /// Takes for its own what was found.
    pub(super) fn settle(&mut self, Settled { superblock, active }: Settled) {
        (self.superblock, self.active) = (superblock, active);
    }

    /// Holds space back below a device, and marks one that belongs to no cluster as this process's, before anything of it is
    /// written; for a thread that may have to wait.
    pub(super) fn owning(
        &self,
        device: &DeviceSpec,
    ) -> Option<impl FnOnce() -> Result<Owner, Failure> + Send + use<>> {
        let (opened, spec) = (self.source.file()?.clone(), device.file()?.clone());
        let superblock = self.superblock;
        Some(move || {
            hold_space(&spec, &opened);
            Owner::take(&spec.path, &opened, &superblock)
        })
    }

    /// Refuses a device on which no volumes were found, in the place of another one that had some (REMEMBERED-3); for a
    /// thread that may have to wait.
    pub(super) fn refusing_emptied(
        &self,
        device: &DeviceSpec,
    ) -> impl FnOnce() -> Result<(), Failure> + Send + use<> {
        let (path, device) = (device.file().map(|spec| spec.path.clone()), self.superblock.uuid);
        move || path.map_or(Ok(()), |path| remembered::refuse_empty(&path, device))
    }

    /// Does that at the start.
    pub(super) fn own_in_time(
        &mut self,
        config: &ServeConfig,
        number: DeviceIndex,
    ) -> Result<(), Failure> {
        let device = &config.devices[number].device;
        if let (Some(owning), Some(spec)) = (self.owning(device), device.file()) {
            let limit = config.device_timeout * 2 + owner::WATCH;
            self.owner = Some(in_time(spec, limit, owning)?);
        }
        Ok(())
    }

    /// Does both at the start.
    pub(super) fn settle_in_time(
        &mut self,
        config: &ServeConfig,
        number: DeviceIndex,
        claimed: Option<Claimed>,
    ) -> Result<(), Failure> {
        let device = &config.devices[number].device;
        if let (Some(settling), Some(spec)) = (self.settling(device, claimed), device.file()) {
            self.settle(in_time(spec, config.device_timeout * 2, settling)?);
        }
        Ok(())
    }
}

/// The contents of a device, before anything is changed.
enum Looked {
    Ours(DeviceSource, Superblock, Vec<u16>, Option<Mark>),
    Blank(OwnedDevice),
    /// A file that is to be made.
    ToMake(Made),
    /// It cannot be had for now (DEVICE-SET-4).
    Absent(Failure),
}

/// The identity of a device: two names with the same identity are the same device.
#[derive(Eq, Ord, PartialEq, PartialOrd)]
enum Identity {
    File { file_system: u64, inode: u64 },
    BlockDevice { number: u64 },
    NotThere(PathBuf),
}

/// Refuses devices that are given more than once (DEVICE-SET-3). Nothing is opened.
pub(super) fn check_distinct(config: &ServeConfig) -> Result<(), Failure> {
    let mut seen: BTreeMap<Identity, &FileSpec> = BTreeMap::new();
    for shared in &config.devices {
        let Some(spec) = shared.device.file() else { continue };
        let Some(identity) = identity(&spec.path) else { continue };
        let Some(other) = seen.insert(identity, spec) else { continue };
        let (one, another) = (other.path.display(), spec.path.display());
        let what = if other.path == spec.path {
            format!("the device file:{one} is given twice")
        } else {
            format!("file:{one} and file:{another} are the same device")
        };
        return Err(Failure::usage(what, "give --device once for each device"));
    }
    Ok(())
}

/// Returns the identity of the device at `path`; `None` if it cannot be found out: opening it will tell why.
fn identity(path: &Path) -> Option<Identity> {
    match std::fs::metadata(path) {
        Ok(file) if file.file_type().is_block_device() => {
            Some(Identity::BlockDevice { number: file.rdev() })
        }
        Ok(file) => Some(Identity::File { file_system: file.dev(), inode: file.ino() }),
        Err(_) => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            // Where not even a directory is, the same words are the same place.
            let parent = parent.canonicalize().or_else(|_| std::path::absolute(parent)).ok()?;
            Some(Identity::NotThere(parent.join(path.file_name()?)))
        }
    }
}

/// Opens all devices, checks that they are ours and that a host of `cluster` may serve them, and makes those so for which that was asked. In the place of one
/// that is absent is what there is to say of it (DEVICE-SET-4).
pub(super) fn open(
    config: &ServeConfig,
    cluster: Option<Uuid>,
) -> Result<TiVec<DeviceIndex, Result<OpenDevice, Failure>>, Failure> {
    check_memory(config)?;
    // Dropped last: a file that is open counts as another's.
    let mut made = MadeFiles::default();
    let mut all = Vec::new();
    for shared in &config.devices {
        all.push(match look(&shared.device, config) {
            Err(failure) if failure.is_absence() => Looked::Absent(failure),
            looked => looked?,
        });
    }
    check_copies(config, &all)?;
    check_clusters(config, &all, cluster)?;
    check_absent(&mut all)?;
    for (looked, shared) in all.iter_mut().zip(&config.devices) {
        if let (Looked::ToMake(how), Some(spec)) = (&looked, shared.device.file()) {
            storage::make(spec, *how)?;
            made.0.push((*how, &spec.path));
            let device = storage::open(spec, Voice::Log)?;
            warn_of(spec, &device);
            *looked = Looked::Blank(device);
        }
    }
    for (looked, shared) in all.iter_mut().zip(&config.devices) {
        if let (Looked::Blank(device), Some(spec)) = (&looked, shared.device.file()) {
            let superblock = storage::format(&spec.path, device)?;
            tracing::info!(device = %spec.path.display(), "formatted");
            made.0.retain(|(_, path)| **path != spec.path);
            let active = contents::active_shards(&spec.path, device, &superblock)?;
            let source = source_of(&shared.device, Opened::File(device.clone()))?;
            *looked = Looked::Ours(source, superblock, active, None);
        }
    }
    let opened = all.into_iter().zip(config.device_names()).zip(&config.devices);
    let opened = opened.map(|((looked, name), shared)| match looked {
        Looked::Ours(source, superblock, active, mark) => {
            let volatile_cache = volatile_cache(&shared.device);
            Ok(OpenDevice { name, source, superblock, active, mark, volatile_cache, owner: None })
        }
        Looked::Absent(failure) => Err(failure),
        Looked::Blank(_) | Looked::ToMake(_) => {
            unreachable!("what is missing was made, and what is blank was formatted")
        }
    });
    Ok(opened.collect())
}

/// Time between two looks for a device for which the start waits.
const WAIT_STEP: Duration = Duration::from_millis(200);

/// Calls [`open`], and waits as long as the configuration says for a device without which the server cannot start (DEVICE-SET-4).
pub(super) fn open_patiently(
    config: &ServeConfig,
    cluster: Option<Uuid>,
) -> Result<TiVec<DeviceIndex, Result<OpenDevice, Failure>>, Failure> {
    let deadline = Instant::now() + config.device_wait;
    let mut is_told = false;
    loop {
        match open(config, cluster) {
            Err(failure) if failure.is_absence() && Instant::now() < deadline => {
                if !std::mem::replace(&mut is_told, true) {
                    let limit = config.device_wait.as_secs();
                    tracing::warn!(
                        limit_seconds = limit,
                        "waiting for a device: {}",
                        failure.in_one_line()
                    );
                }
                std::thread::sleep(WAIT_STEP);
            }
            opened => return opened,
        }
    }
}

/// Opens a device that was absent so far, and checks that it is ours, and its cluster. Nothing is written to it, and a blank one
/// is not formatted.
pub(super) fn open_late(
    config: &ServeConfig,
    number: DeviceIndex,
    cluster: Option<Uuid>,
) -> Result<OpenDevice, Failure> {
    let device = &config.devices[number].device;
    let spec = device.file().expect("memory is never absent");
    let opened = storage::open_late(spec)?;
    let looked = look_at(device, spec, opened, config.cores.len(), Look::Samples)?;
    let Looked::Ours(source, superblock, active, mark) = looked else {
        unreachable!("what is there is ours, or refused");
    };
    belonging::check(&spec.path, &superblock, cluster)?;
    let name = config.device_names().swap_remove(number.0);
    let volatile_cache = volatile_cache(device);
    Ok(OpenDevice { name, source, superblock, active, mark, volatile_cache, owner: None })
}

fn volatile_cache(device: &DeviceSpec) -> Option<bool> {
    device.file().and_then(FileSpec::volatile_cache)
}

/// The device of its backing, which is open.
fn source_of(device: &DeviceSpec, backing: Opened) -> Result<DeviceSource, Failure> {
    device.open(backing).map_err(storage::not_as_described)
}

/// Refuses to start without a device if no other is there, or one is to be formatted (DEVICE-SET-4).
fn check_absent(all: &mut [Looked]) -> Result<(), Failure> {
    let is_there = |looked: &Looked| matches!(looked, Looked::Ours(..));
    let is_new = |looked: &Looked| matches!(looked, Looked::Blank(_) | Looked::ToMake(_));
    if all.iter().any(is_there) && !all.iter().any(is_new) {
        return Ok(());
    }
    for looked in all {
        if let Looked::Absent(failure) = looked {
            return Err(failure.clone());
        }
    }
    Ok(())
}

/// Files that were made, and go again when this is dropped (DEVICE-SET-2).
#[derive(Default)]
struct MadeFiles<'a>(Vec<(Made, &'a Path)>);

impl Drop for MadeFiles<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|(made, path)| made.undo(path));
    }
}

/// Finds out what a device is; memory is made at once, which changes nothing for anybody.
fn look(device: &DeviceSpec, config: &ServeConfig) -> Result<Looked, Failure> {
    let cores = config.cores.len();
    match device.backing() {
        Backing::File(spec) => look_at_file(device, spec, config),
        Backing::Memory(size) => {
            let (memory, superblock) = storage::memory(memory_len(size, cores)?)?;
            check_cores(device, &superblock, cores)?;
            let source = source_of(device, Opened::Memory(memory))?;
            Ok(Looked::Ours(source, superblock, Vec::new(), None))
        }
    }
}

fn look_at_file(
    device: &DeviceSpec,
    spec: &FileSpec,
    config: &ServeConfig,
) -> Result<Looked, Failure> {
    let (cores, format_if_blank) = (config.cores.len(), config.format_if_blank);
    if let Some(size) = spec.size.filter(|_| format_if_blank && config.create) {
        match storage::to_make(spec) {
            Made::Nothing => {}
            how => {
                remembered::refuse_blank(&spec.path)?;
                storage::check_size(spec, size, cores)?;
                return Ok(Looked::ToMake(how));
            }
        }
    }
    if !format_if_blank {
        let limit = config.device_timeout * 2 + RELEASE_TIMEOUT + owner::WATCH;
        let (device, of) = (device.clone(), spec.clone());
        let look =
            move || look_at(&device, &of, storage::open(&of, Voice::Log)?, cores, Look::Samples);
        return in_time(spec, limit, look);
    }
    // What may be going to be formatted is read to its end, which takes what it takes.
    let opened = storage::open(spec, Voice::Log)?;
    let looked = look_at(device, spec, opened, cores, Look::Everywhere)?;
    if let Looked::Blank(device) = &looked {
        remembered::refuse_blank(&spec.path)?;
        let size = ByteLen(device.limits().blocks * BLOCK_SIZE as u64);
        storage::check_size(spec, size, cores)?;
    }
    Ok(looked)
}

/// Runs `look` on a thread of its own, with a time limit: a device that hangs holds up the thread that asks
/// it, and must not hold up the start.
fn in_time<T: Send + 'static>(
    spec: &FileSpec,
    limit: Duration,
    look: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let (sender, looked) = mpsc::channel();
    let thread = std::thread::Builder::new().name("look".to_owned()).spawn(move || {
        // The receiver has gone if it took too long.
        let _ = sender.send(look());
    });
    thread.map_err(|error| threads::none(&error))?;
    looked.recv_timeout(limit).unwrap_or_else(|_| Err(storage::hangs(spec)))
}

/// The contents of a file or drive that is open; a blank one is refused unless all of it was examined.
fn look_at(
    named: &DeviceSpec,
    spec: &FileSpec,
    device: OwnedDevice,
    cores: usize,
    look: Look,
) -> Result<Looked, Failure> {
    let path = spec.path.display();
    match contents::look_at(&spec.path, &device, look, Voice::Log)? {
        Contents::Ours(superblock) => {
            let active = contents::active_shards(&spec.path, &device, &superblock)?;
            check_cores(named, &superblock, cores)?;
            warn_of(spec, &device);
            let mark = belonging::mark(&spec.path, &device, &superblock)?;
            let source = source_of(named, Opened::File(device))?;
            Ok(Looked::Ours(source, superblock, active, mark))
        }
        Contents::Blank if look == Look::Everywhere => {
            warn_of(spec, &device);
            Ok(Looked::Blank(device))
        }
        Contents::Blank => Err(Failure::runtime(
            format!("{path} is not formatted"),
            format!(
                "run `farflash format --device {}`, or add --format-if-blank",
                shell::device(&spec.path)
            ),
        )),
        Contents::NotServed { what, remedy } => {
            Err(Failure::runtime(format!("{path} holds {what}"), remedy))
        }
        Contents::Other(occupant) => {
            Err(Failure::runtime(format!("{path} holds {occupant}"), contents::GIVE_UP))
        }
    }
}

/// Holds space back in the file system for what gives space back there when it is full.
fn hold_space(spec: &FileSpec, device: &OwnedDevice) {
    if !device.hold_space() {
        tracing::warn!(
            device = %spec.path.display(),
            "no space left in the file system that it lies in: writes are refused until there is some"
        );
    }
}

/// Says what an operator should know of a device that is about to be served.
fn warn_of(spec: &FileSpec, device: &OwnedDevice) {
    for warning in device.warnings() {
        tracing::warn!(device = %spec.path.display(), "{warning}");
    }
}

fn check_cores(device: &DeviceSpec, superblock: &Superblock, cores: usize) -> Result<(), Failure> {
    let max = superblock.shard_slots;
    if cores > usize::from(max) {
        let what = format!("{device}: it serves at most {max} cores");
        return Err(Failure::usage(what, "name fewer cores with --cores"));
    }
    Ok(())
}

/// Refuses a device and its copy side by side (DEVICE-SET-3): their volumes would be the same to hosts.
fn check_copies(config: &ServeConfig, all: &[Looked]) -> Result<(), Failure> {
    let mut seen = BTreeMap::new();
    for (looked, shared) in all.iter().zip(&config.devices) {
        let Looked::Ours(_, superblock, ..) = looked else { continue };
        if let Some(other) = seen.insert(superblock.uuid, &shared.device) {
            let (id, device) = (superblock.uuid, &shared.device);
            return Err(Failure::runtime(
                format!("{other} and {device} are one device and its copy: both have the id {id}"),
                "give --device for one of them only",
            ));
        }
    }
    Ok(())
}

/// Refuses a device that belongs to a cluster of which this host is not (DEVICE-SET-5).
fn check_clusters(
    config: &ServeConfig,
    all: &[Looked],
    cluster: Option<Uuid>,
) -> Result<(), Failure> {
    for (looked, shared) in all.iter().zip(&config.devices) {
        if let (Looked::Ours(_, superblock, ..), Some(spec)) = (looked, shared.device.file()) {
            belonging::check(&spec.path, superblock, cluster)?;
        }
    }
    Ok(())
}

/// There is memory for all devices that are in memory.
fn check_memory(config: &ServeConfig) -> Result<(), Failure> {
    let mut sum: u64 = 0;
    for shared in &config.devices {
        let Backing::Memory(size) = shared.device.backing() else { continue };
        sum = sum.saturating_add(memory_len(size, config.cores.len())?.0);
    }
    if sum > 0 { preflight::check_memory(ByteLen(sum)) } else { Ok(()) }
}

/// Length of a memory device that takes `size` of tenant data.
fn memory_len(size: ByteLen, cores: usize) -> Result<ByteLen, Failure> {
    /// The least that the engine formats.
    const LEAST: ByteLen = ByteLen(64 << 20);
    // The overhead is a few hundredths; far larger sizes must not overflow on the way.
    if size.0 > 1 << 60 {
        let what = format!("a device in memory cannot have {size}");
        return Err(Failure::usage(what, "give --device mem: a smaller size"));
    }
    let cores = u16::try_from(cores).unwrap_or(u16::MAX);
    Ok(ByteLen(size.0 + volume::overhead(size, cores).0).max(LEAST))
}
