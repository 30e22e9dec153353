//! Devices as subcommands use them: opened, looked at, formatted. Errors come out ready to print.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use device::MemDevice;
use io_traits::{Buffer, Device};
use reactor::{CoreConfig, FileDevice, FlushPolicy, Handle, OpenError, OpenOptions, OwnedDevice};
use rustix::fs::{FlockOperation, flock};
use units::{BLOCK_SIZE, ByteLen, Lba, LbaRange};
use uuid::Uuid;
use volume::{FormatOptions, FsckOptions, FsckReport, Probe, Repaired, Superblock};

use crate::blank;
use crate::device_spec::{FileSpec, FlushMode};
use crate::failure::Failure;
use crate::not_opened::{away, is_failing, refused};
use crate::output::{self, Voice};

/// Opens the file or block device of `spec` and locks it.
pub(crate) fn open(spec: &FileSpec, voice: Voice) -> Result<OwnedDevice, Failure> {
    open_with(spec, false, voice)
}

/// As [`open`], and nothing can be written.
pub(crate) fn open_read_only(spec: &FileSpec, voice: Voice) -> Result<OwnedDevice, Failure> {
    open_with(spec, true, voice)
}

/// Opens and locks, by its path, the device that has this superblock and that was open before. Any other one is
/// an error, and nothing is written.
pub(crate) fn open_again(spec: &FileSpec, superblock: &Superblock) -> Result<OwnedDevice, Failure> {
    let device = open_now(spec).map_err(|error| away(&error))?;
    // It may have been elsewhere meanwhile.
    refuse_overwritten(&spec.path, &device)?;
    let found = on_device(&device, |device| async move { volume::read_superblock(&device).await })?;
    let path = spec.path.display();
    let (before, remedy) = (superblock.uuid, "put back the one that was served from there");
    match found {
        Ok(found) if found == *superblock => Ok(device),
        Ok(found) if found.uuid == before => {
            let what = format!("{path} was given to another cluster, or out of its own");
            Err(Failure::runtime(
                what,
                "stop this server, and see which host serves the device now",
            ))
        }
        Ok(found) => {
            let other = found.uuid;
            let what = format!("at {path} is another device: its id is {other}, not {before}");
            Err(Failure::runtime(what, remedy))
        }
        Err(volume::OpenError::Superblock(error)) => {
            let what = format!("at {path} is something else than the device {before}: {error}");
            Err(Failure::runtime(what, remedy))
        }
        Err(error) => {
            let what = format!("{path} does not work: {error}");
            Err(Failure::runtime(what, "look at the kernel's log (dmesg)"))
        }
    }
}

/// Whether what is open of a device can still be read: one superblock is enough.
pub(crate) fn is_readable(device: &OwnedDevice) -> Result<bool, Failure> {
    on_device(device, |device| async move {
        for place in Superblock::places(device.geometry().blocks.max(1)) {
            if device.read(place, Buffer::new(1)).await.is_ok() {
                return true;
            }
        }
        false
    })
}

/// What to do about a device that fails what is asked of it.
pub(crate) const NO_ANSWER: &str = "look at the kernel's log (dmesg)";

/// Opens and locks it without waiting for whoever has it.
fn open_now(spec: &FileSpec) -> Result<OwnedDevice, OpenError> {
    OwnedDevice::open(&spec.path, options(spec, false))
}

/// The same, for a device that was not there, or did not work, so far.
pub(crate) fn open_late(spec: &FileSpec) -> Result<OwnedDevice, Failure> {
    open_now(spec).map_err(|error| refused(&error)).and_then(|device| sized(spec, device))
}

/// What to say of a device that does not answer in time.
pub(crate) fn hangs(spec: &FileSpec) -> Failure {
    Failure::absence(format!("{} does not answer", spec.path.display()), NO_ANSWER)
}

fn options(spec: &FileSpec, read_only: bool) -> OpenOptions {
    let flush = match spec.flush {
        FlushMode::Auto => FlushPolicy::Auto,
        FlushMode::Always => FlushPolicy::Always,
        FlushMode::Never => FlushPolicy::Never,
    };
    OpenOptions { flush, read_only }
}

fn open_with(spec: &FileSpec, read_only: bool, voice: Voice) -> Result<OwnedDevice, Failure> {
    let options = options(spec, read_only);
    let device = open_patiently(&spec.path, options, voice).map_err(|error| refused(&error))?;
    sized(spec, device)
}

/// The device, if it has the size that was given.
fn sized(spec: &FileSpec, device: OwnedDevice) -> Result<OwnedDevice, Failure> {
    let bytes = device.geometry().blocks * BLOCK_SIZE as u64;
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

/// How long a device or port that is in use is tried again. The kernel gives back what a killed
/// server had only when the last of its I/O is done, which is after the process has ended.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two tries.
pub(crate) const RELEASE_POLL: Duration = Duration::from_millis(20);

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

/// What was done to give a device its place, to be undone if nothing comes of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Made {
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
    pub(crate) fn undo(self, path: &Path) {
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
pub(crate) fn create_if_missing(spec: &FileSpec, cores: usize) -> Result<Made, Failure> {
    let Some(size) = spec.size else { return Ok(Made::Nothing) };
    let made = to_make(spec);
    if made != Made::Nothing {
        check_size(spec, size, cores)?;
        make(spec, made)?;
    }
    Ok(made)
}

/// What is to be done to give the file of `spec` its size, if that is given.
pub(crate) fn to_make(spec: &FileSpec) -> Made {
    match std::fs::metadata(&spec.path) {
        _ if spec.size.is_none() => Made::Nothing,
        Err(error) if error.kind() == ErrorKind::NotFound => Made::File,
        Ok(file) if file.is_file() && file.len() == 0 => Made::Size,
        // What else is wrong, opening it tells.
        _ => Made::Nothing,
    }
}

/// Does it.
pub(crate) fn make(spec: &FileSpec, made: Made) -> Result<(), Failure> {
    let Some(size) = spec.size else { return Ok(()) };
    match made {
        Made::Nothing => Ok(()),
        Made::File => reactor::create_sparse(&spec.path, size.0).map_err(|error| refused(&error)),
        Made::Size => give_size(&spec.path, size).map_err(|error| {
            if error.kind() == ErrorKind::WouldBlock {
                return refused(&OpenError::InUse { path: spec.path.clone() });
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
pub(crate) fn check_size(spec: &FileSpec, size: ByteLen, cores: usize) -> Result<(), Failure> {
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

/// What a core takes of a new device: an extent for its journal, and one for the rest.
const EXTENTS_PER_CORE: usize = 2;

/// A formatted device of `len` bytes in memory.
pub(crate) fn memory(len: ByteLen) -> Result<(MemDevice, Superblock), Failure> {
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
    let config = CoreConfig { name: "farflash".to_owned(), ..CoreConfig::default() };
    reactor::run_on_current_thread(&config, work).map_err(|error| no_core(&error))
}

/// Runs `work` on a file device, on this thread.
pub(crate) fn on_device<T: 'static, F: Future<Output = T> + 'static>(
    device: &OwnedDevice,
    work: impl FnOnce(FileDevice) -> F,
) -> Result<T, Failure> {
    on_core(|handle| work(device.attach(&handle)))
}

/// What to say when the reactor does not start.
pub(crate) fn no_core(error: &reactor::StartError) -> Failure {
    let remedy = match error {
        reactor::StartError::NoSuchCpu { .. } => "name other cores with --cores",
        reactor::StartError::Ring(_) => {
            "allow io_uring (sysctl kernel.io_uring_disabled=0) and enough locked memory"
        }
        reactor::StartError::Thread { .. } => "raise the limit on processes (ulimit -u)",
    };
    Failure::runtime(error.to_string(), remedy)
}

/// What lies on a device.
pub(crate) enum Contents {
    /// Nothing, as far as was looked.
    Blank,
    /// A format that this program serves.
    Ours(Superblock),
    /// A format of ours that is not served as it is: what it is, and what to do.
    NotServed { what: String, remedy: String },
    /// Something that must not be lost, in the words of a message.
    Other(String),
}

/// Of a format whose start someone else has taken: what the device holds, and what to do.
fn overwritten(path: &Path, by: &str, superblock: &Superblock) -> (String, String) {
    let (id, path) = (superblock.uuid, path.display());
    let what = format!("something else ({by}), and before that held the farflash device {id}");
    let remedy = format!(
        "name another --device; or, if what is at its start now may go and the farflash device is wanted, \
         `farflash fsck --device file:{path} --force` tells what is left of it, and --repair as well makes it one again"
    );
    (what, remedy)
}

/// Refuses a device whose start someone else has taken: who knows better says so with --force.
pub(crate) fn refuse_overwritten(path: &Path, device: &OwnedDevice) -> Result<(), Failure> {
    let probed = on_device(device, |device| async move { volume::probe(&device).await })?;
    let Ok(Probe::Overwritten { by, superblock }) = probed else { return Ok(()) };
    let (what, remedy) = overwritten(path, by, &superblock);
    Err(Failure::runtime(format!("{} holds {what}", path.display()), remedy))
}

/// How closely a device is looked at before it counts as blank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Look {
    /// All of it is read, but for what a sparse file says was never written.
    Everywhere,
    /// Its beginning, its end, and places between.
    Samples,
}

/// Finds out what lies on a device, without changing it.
pub(crate) fn contents(
    path: &Path,
    device: &OwnedDevice,
    look: Look,
    voice: Voice,
) -> Result<Contents, Failure> {
    let unreadable = |error: &dyn std::fmt::Display| {
        let what = format!("{} cannot be read: {error}", path.display());
        Failure::absence(what, "look at the kernel's log (dmesg), or name another --device")
    };
    let probed = on_device(device, |device| async move { volume::probe(&device).await })?;
    Ok(match probed.map_err(|error| unreadable(&error))? {
        Probe::Farflash(superblock) => Contents::Ours(superblock),
        Probe::Blank if look == Look::Samples => Contents::Blank,
        Probe::Blank => {
            let passed =
                voice.progress(&format!("reading {} to see that it is blank", path.display()));
            let file_len = blank::file_len(path).map_err(|error| unreadable(&error))?;
            let first = if let Some(len) = file_len {
                blank::first_in_file(path, 0..len, passed).map_err(|error| unreadable(&error))?
            } else {
                let all = LbaRange::new(Lba(0), device.geometry().blocks);
                let first = on_device(device, move |device| async move {
                    blank::first_on_device(&device, all, passed).await
                })?;
                first.map_err(|error| unreadable(&error))?
            };
            first.map_or(Contents::Blank, |at| {
                Contents::Other(format!("something else (unknown data at byte {at})"))
            })
        }
        Probe::OtherVersion(version) => Contents::NotServed {
            what: format!(
                "a farflash format of version {version}, which this program does not know"
            ),
            remedy: "serve it with the program that made it, or a later one".to_owned(),
        },
        Probe::Damaged(error) => Contents::NotServed {
            what: format!("a damaged farflash format ({error})"),
            remedy: "restore it from a copy, or name another --device".to_owned(),
        },
        Probe::Overwritten { by, superblock } => {
            let (what, remedy) = overwritten(path, by, &superblock);
            Contents::NotServed { what, remedy }
        }
        Probe::Foreign(what) => Contents::Other(format!("something else ({what})")),
    })
}

/// Formats a device. All that was on it is lost.
pub(crate) fn format(path: &Path, device: &OwnedDevice) -> Result<(), Failure> {
    let options = FormatOptions { uuid: Uuid::new_v4() };
    on_device(device, |device| async move { volume::format(&device, &options).await })?
        .map(drop)
        .map_err(|error| not_formatted(path, &error))
}

fn not_formatted(path: &Path, error: &volume::FormatError) -> Failure {
    let remedy = match error {
        volume::FormatError::Size { .. } => "name a larger or smaller device, or size=",
        volume::FormatError::Device(_) => "look at the kernel's log (dmesg)",
    };
    Failure::runtime(format!("{} cannot be formatted: {error}", path.display()), remedy)
}

/// Checks a device; `read_data`: its tenants' data, too.
pub(crate) fn check(
    path: &Path,
    device: &OwnedDevice,
    read_data: bool,
) -> Result<FsckReport, Failure> {
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
pub(crate) fn repair(
    path: &Path,
    device: &OwnedDevice,
    accept_data_loss: bool,
) -> Result<Repaired, Failure> {
    let repaired =
        on_device(
            device,
            move |device| async move { volume::repair(&device, accept_data_loss).await },
        )?;
    repaired.map_err(|error| not_checked(path, &error))
}

fn not_checked(path: &Path, error: &volume::OpenError) -> Failure {
    let remedy = match error {
        volume::OpenError::Superblock(_) => {
            "name a device that `farflash format` has prepared, or restore it from a copy"
        }
        volume::OpenError::Truncated { .. } => "give the device its former size back",
        volume::OpenError::Device(_) => "look at the kernel's log (dmesg)",
        _ => "restore the device from a copy",
    };
    Failure::runtime(format!("{}: {error}", path.display()), remedy)
}

/// The superblock of a formatted device, and the shards that were ever used.
pub(crate) fn inspect(
    path: &Path,
    device: &OwnedDevice,
) -> Result<(Superblock, Vec<u16>), Failure> {
    let inspected = on_device(device, |device| async move {
        let superblock = volume::read_superblock(&device).await?;
        let active = volume::active_shards(&device, &superblock).await?;
        Ok((superblock, active))
    })?;
    inspected.map_err(|error: volume::OpenError| {
        let what = format!("{} cannot be opened: {error}", path.display());
        match error {
            _ if is_failing(&error) => Failure::absence(what, NO_ANSWER),
            volume::OpenError::Truncated { .. } => {
                Failure::runtime(what, "give the device its former size back")
            }
            _ => Failure::runtime(
                what,
                "restore the device from a copy; this start has written nothing to it",
            ),
        }
    })
}
