//! Devices as subcommands use them: opened, made, formatted, checked. Errors come out ready to print. What lies on them
//! `contents.rs` tells.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use device::MemDevice;
use device::kind::{AnyDevice, Attach, DeviceSource, DeviceSpec, FileSpec, KindError, Opened};
use device::layer::Fence;
use io_traits::{Buffer, Device};
use process_limits::threads;
use reactor::{CoreConfig, FileDevice, Handle, OpenError, OpenOptions, OwnedDevice, SetupError};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use units::{BLOCK_SIZE, ByteLen};
use user_messages::Failure;
use user_messages::output::{self, Voice};
use uuid::Uuid;
use volume::{FormatOptions, FsckOptions, FsckReport, Repaired, Superblock};

use crate::not_opened::{LATER_RELEASE, NO_ANSWER, RAISE_FILE_SIZE, refused, remedy_of};
use crate::owner;

/// Opens the file or block device of `spec` and locks it.
pub fn open(spec: &FileSpec, voice: Voice) -> Result<OwnedDevice, Failure> {
    open_with(spec, false, voice)
}

/// As [`open`], and nothing can be written.
pub fn open_read_only(spec: &FileSpec, voice: Voice) -> Result<OwnedDevice, Failure> {
    open_with(spec, true, voice)
}

/// Returns true if an open device can still be read: one superblock is enough.
pub fn is_readable(device: &OwnedDevice) -> Result<bool, Failure> {
    on_device(device, |device| async move {
        for place in Superblock::places(device.limits().blocks.max(1)) {
            if device.read(place, Buffer::new(1)).await.is_ok() {
                return true;
            }
        }
        false
    })
}

/// Opens and locks it without waiting for the process that has it.
pub fn open_now(spec: &FileSpec) -> Result<OwnedDevice, OpenError> {
    OwnedDevice::open(&spec.path, options(spec, false))
}

/// The same, for a device that was not there, or did not work, so far.
pub fn open_late(spec: &FileSpec) -> Result<OwnedDevice, Failure> {
    open_now(spec)
        .map_err(|error| refused(&error, spec.size))
        .and_then(|device| sized(spec, device))
}

/// The failure for a device that does not answer in time.
pub fn hangs(spec: &FileSpec) -> Failure {
    Failure::absence(format!("{} does not answer", spec.path.display()), NO_ANSWER)
}

fn options(spec: &FileSpec, read_only: bool) -> OpenOptions {
    OpenOptions { flush: spec.flush, read_only }
}

fn open_with(spec: &FileSpec, read_only: bool, voice: Voice) -> Result<OwnedDevice, Failure> {
    let options = options(spec, read_only);
    let opened = open_patiently(&spec.path, options, voice);
    let device = opened.map_err(|error| refused(&error, spec.size))?;
    owner::refuse_if_owned(&spec.path, &device)?;
    sized(spec, device)
}

/// Refuses a file of `bytes` that this process may not write to its end. A limit that it may raise itself is raised.
fn check_file_size(path: &Path, bytes: u64) -> Result<(), Failure> {
    let limit = getrlimit(Resource::Fsize);
    let is_drive = std::fs::metadata(path).is_ok_and(|it| !it.is_file());
    if is_drive || limit.current.is_none_or(|current| current >= bytes) {
        return Ok(());
    }
    if limit.maximum.is_none_or(|maximum| maximum >= bytes)
        && setrlimit(Resource::Fsize, Rlimit { current: limit.maximum, ..limit }).is_ok()
    {
        return Ok(());
    }
    let allowed = ByteLen(limit.maximum.unwrap_or(0));
    Err(Failure::runtime(
        format!(
            "{} has {}, and this process may write files of {allowed}",
            path.display(),
            ByteLen(bytes)
        ),
        RAISE_FILE_SIZE,
    ))
}

/// The device, if it has the size that was given, and can be written to its end.
fn sized(spec: &FileSpec, device: OwnedDevice) -> Result<OwnedDevice, Failure> {
    let bytes = device.limits().blocks * BLOCK_SIZE as u64;
    check_file_size(&spec.path, bytes)?;
    if let Some(size) = spec.size
        && size.0 != bytes
    {
        let path = spec.path.display();
        return Err(Failure::runtime(
            format!("{path} has {}, not the {size} of size=", ByteLen(bytes)),
            "leave size= out: it is the size at which a file is created",
        ));
    }
    Ok(device)
}

/// Time for which opening a device or port that is in use is retried. The kernel gives back what a killed
/// server had only when the last of its I/O is done, which is after the process has ended.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two tries.
pub const RELEASE_POLL: Duration = Duration::from_millis(20);

fn open_patiently(
    path: &Path,
    options: OpenOptions,
    voice: Voice,
) -> Result<OwnedDevice, OpenError> {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    let mut said = false;
    loop {
        match OwnedDevice::open(path, options) {
            Err(OpenError::InUse { .. }) if Instant::now() < deadline => {
                if !std::mem::replace(&mut said, true) {
                    voice.say(&format!("waiting for {}, which is in use", path.display()));
                }
                std::thread::sleep(RELEASE_POLL);
            }
            opened => return opened,
        }
    }
}

/// Refuses a path at which nothing is; `remedy` says what is to be there.
pub fn check_is_there(path: &Path, remedy: &str) -> Result<(), Failure> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Failure::runtime(format!("{} does not exist", path.display()), remedy))
        }
        // What else is wrong, opening it tells.
        _ => Ok(()),
    }
}

/// The changes that gave a device its place, to be undone if it is not used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Made {
    /// It was there.
    Nothing,
    /// There was no file.
    File,
    /// There was an empty file.
    Size,
}

impl Made {
    /// Takes it back. What is in use by another by now stays as it is; and the error that led here
    /// is the one to tell, not one from here.
    pub fn undo(self, path: &Path) {
        let Ok(file) = std::fs::OpenOptions::new().write(true).open(path) else { return };
        if self == Self::Nothing || flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
        {
            return;
        }
        let _ = match self {
            Self::File => std::fs::remove_file(path),
            Self::Size | Self::Nothing => file.set_len(0),
        };
    }
}

/// Creates the file of `spec` at its size if nothing is there, or gives an empty file that size; it
/// will be served by `cores`. What can be refused is refused before.
pub fn create_if_missing(spec: &FileSpec, cores: usize) -> Result<Made, Failure> {
    let Some(size) = spec.size else { return Ok(Made::Nothing) };
    let made = to_make(spec);
    if made != Made::Nothing {
        check_size(spec, size, cores)?;
        make(spec, made)?;
    }
    Ok(made)
}

/// The changes needed to give the file of `spec` its size, if a size is given.
pub fn to_make(spec: &FileSpec) -> Made {
    match std::fs::metadata(&spec.path) {
        _ if spec.size.is_none() => Made::Nothing,
        Err(error) if error.kind() == ErrorKind::NotFound => Made::File,
        Ok(file) if file.is_file() && file.len() == 0 => Made::Size,
        // What else is wrong, opening it tells.
        _ => Made::Nothing,
    }
}

/// Does it.
pub fn make(spec: &FileSpec, made: Made) -> Result<(), Failure> {
    let Some(size) = spec.size else { return Ok(()) };
    if made != Made::Nothing {
        check_file_size(&spec.path, size.0)?;
    }
    match made {
        Made::Nothing => Ok(()),
        Made::File => {
            let created = reactor::create_sparse(&spec.path, size.0);
            created.map_err(|error| refused(&error, spec.size))
        }
        Made::Size => give_size(&spec.path, size).map_err(|error| {
            if error.kind() == ErrorKind::WouldBlock {
                return refused(&OpenError::InUse { path: spec.path.clone() }, spec.size);
            }
            let what = format!("{} cannot be given a size: {error}", spec.path.display());
            Failure::runtime(what, "make it writable, or name another --device")
        }),
    }
}

/// Gives an empty file its size, unless another owns it.
fn give_size(path: &Path, size: ByteLen) -> std::io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    if file.metadata()?.len() == 0 { file.set_len(size.0) } else { Ok(()) }
}

/// A device of `size` can be formatted, and served by `cores`.
pub fn check_size(spec: &FileSpec, size: ByteLen, cores: usize) -> Result<(), Failure> {
    let blocks = size.0 / BLOCK_SIZE as u64;
    let Some(superblock) = Superblock::for_device(Uuid::nil(), blocks) else {
        return Err(not_formatted(&spec.path, &volume::FormatError::Size { blocks }));
    };
    let path = spec.path.display();
    let slots = superblock.shard_slots;
    if cores > usize::from(slots) {
        let what = format!("{path} would be served by at most {slots} cores, not {cores}");
        return Err(Failure::usage(what, "name fewer cores with --cores"));
    }
    if (superblock.extent_count() as usize) < cores * EXTENTS_PER_CORE {
        let what = format!("{path} would be too small, with {size}, for {cores} cores");
        return Err(Failure::usage(what, "name fewer cores with --cores, or a larger size="));
    }
    Ok(())
}

/// Extents that a core takes of a new device: one for its journal, and one for the rest.
const EXTENTS_PER_CORE: usize = 2;

/// The failure for a device that cannot be as its specification describes it.
pub fn not_as_described(error: KindError) -> Failure {
    let KindError { what, remedy, is_usage } = error;
    if is_usage { Failure::usage(what, remedy) } else { Failure::runtime(what, remedy) }
}

/// An unformatted device over `size` bytes of memory.
pub fn unformatted(spec: &DeviceSpec, size: ByteLen) -> Result<DeviceSource, Failure> {
    let memory = MemDevice::new(size.0 / BLOCK_SIZE as u64)
        .map_err(|error| Failure::runtime(error.to_string(), "try a smaller size"))?;
    spec.open(Opened::Memory(memory)).map_err(not_as_described)
}

/// The device for the only core that uses it, which nothing takes away.
pub fn attach_alone(source: &DeviceSource, handle: &Handle) -> AnyDevice {
    source.attach(&Attach { handle, fence: &Fence::default(), timeout: Duration::MAX })
}

/// A formatted device of `len` bytes in memory.
pub fn memory(len: ByteLen) -> Result<(MemDevice, Superblock), Failure> {
    let blocks = len.0 / BLOCK_SIZE as u64;
    let device = MemDevice::new(blocks).map_err(|error| {
        Failure::runtime(error.to_string(), "give --device mem: a smaller size")
    })?;
    let formatted = {
        let device = device.attach();
        let options = FormatOptions { uuid: Uuid::new_v4() };
        on_core(move |_| async move { volume::format(&device, &options).await })?
    };
    let superblock = formatted.map_err(|error| {
        let what = format!("a device of {len} in memory cannot be formatted: {error}");
        Failure::runtime(what, "give --device mem: another size")
    })?;
    Ok((device, superblock))
}

/// Runs `work` on this thread, as on a core.
fn on_core<T: 'static, F: Future<Output = T> + 'static>(
    work: impl FnOnce(Handle) -> F,
) -> Result<T, Failure> {
    let config =
        CoreConfig { name: "farflash".to_owned(), has_files: true, ..CoreConfig::default() };
    reactor::run_on_current_thread(&config, work).map_err(|error| no_core(&error))
}

/// Runs `work` on a file device, on this thread.
pub fn on_device<T: 'static, F: Future<Output = T> + 'static>(
    device: &OwnedDevice,
    work: impl FnOnce(FileDevice) -> F,
) -> Result<T, Failure> {
    on_core(|handle| work(device.attach(&handle)))
}

/// The failure if the reactor does not start.
pub fn no_core(error: &reactor::StartError) -> Failure {
    let remedy = match error {
        reactor::StartError::NoSuchCpu { .. } => "name other cores with --cores".to_owned(),
        reactor::StartError::Thread { .. } | reactor::StartError::Ring(SetupError::Workers) => {
            threads::remedy()
        }
        reactor::StartError::Ring(error) => error.remedy().to_owned(),
    };
    Failure::runtime(error.to_string(), remedy)
}

/// Formats a device. All that was on it is lost.
pub fn format(path: &Path, device: &OwnedDevice) -> Result<Superblock, Failure> {
    let options = FormatOptions { uuid: Uuid::new_v4() };
    on_device(device, |device| async move { volume::format(&device, &options).await })?
        .map_err(|error| not_formatted(path, &error))
}

fn not_formatted(path: &Path, error: &volume::FormatError) -> Failure {
    let remedy = match error {
        volume::FormatError::Size { .. } => "name a larger or smaller device, or size=",
        volume::FormatError::Device(error) => remedy_of(error),
    };
    Failure::runtime(format!("{} cannot be formatted: {error}", path.display()), remedy)
}

/// Gives a device all that its file or drive has; its superblock from before, and the one that it has now.
pub fn grow(path: &Path, device: &OwnedDevice) -> Result<(Superblock, Superblock), Failure> {
    grow_by(path, device, |device| device)
}

/// As [`grow`], by a way that `way_to` makes.
pub fn grow_by<D: Device + 'static>(
    path: &Path,
    device: &OwnedDevice,
    way_to: impl FnOnce(FileDevice) -> D,
) -> Result<(Superblock, Superblock), Failure> {
    check_file_size(path, device.limits().blocks * BLOCK_SIZE as u64)?;
    let grown = on_device(device, |device| {
        let device = way_to(device);
        async move { volume::grow(&device).await }
    })?;
    grown.map_err(|error| match error {
        volume::OpenError::Root(_) => Failure::runtime(
            format!("{} does not grow: {error}", path.display()),
            "mend it with `farflash fsck --repair`, or serve it once, then try again",
        ),
        error => not_checked(path, &error),
    })
}

/// The superblock of a device, as it is now.
pub fn superblock(path: &Path, device: &OwnedDevice) -> Result<Superblock, Failure> {
    let read = on_device(device, |device| async move { volume::read_superblock(&device).await })?;
    read.map_err(|error| not_checked(path, &error))
}

/// Checks a device; `read_data`: its tenants' data, too.
pub fn check(path: &Path, device: &OwnedDevice, read_data: bool) -> Result<FsckReport, Failure> {
    let passed = output::progress(&format!("checking {}", path.display()));
    let options = FsckOptions { read_data };
    let checked =
        on_device(
            device,
            move |device| async move { volume::fsck(&device, options, passed).await },
        )?;
    checked.map_err(|error| not_checked(path, &error))
}

/// Mends a device.
pub fn repair(
    path: &Path,
    device: &OwnedDevice,
    accept_data_loss: bool,
) -> Result<Repaired, Failure> {
    let passed = output::progress(&format!("repairing {}", path.display()));
    let repaired = on_device(device, move |device| async move {
        volume::repair(&device, accept_data_loss, passed).await
    })?;
    repaired.map_err(|error| not_checked(path, &error))
}

fn not_checked(path: &Path, error: &volume::OpenError) -> Failure {
    let remedy = match error {
        volume::OpenError::Superblock(_) => {
            "name a device that `farflash format` has prepared, or restore it from a copy"
        }
        volume::OpenError::Truncated { .. } => "give the device its former size back",
        volume::OpenError::Device(error) => remedy_of(error),
        volume::OpenError::Later { .. } => LATER_RELEASE,
        _ => "restore the device from a copy",
    };
    Failure::runtime(format!("{}: {error}", path.display()), remedy)
}
