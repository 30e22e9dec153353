//! Devices as subcommands use them: opened, looked at, formatted. Errors come out ready to print.

use std::path::Path;
use std::time::{Duration, Instant};

use device::MemDevice;
use reactor::{CoreConfig, FileDevice, FlushPolicy, Handle, OpenError, OpenOptions, OwnedDevice};
use units::{BLOCK_SIZE, ByteLen};
use uuid::Uuid;
use volume::{FormatOptions, Probe, Superblock};

use crate::blank;
use crate::device_spec::{FileSpec, FlushMode};
use crate::failure::Failure;

/// Opens the file or block device of `spec` and locks it.
pub(crate) fn open(spec: &FileSpec) -> Result<OwnedDevice, Failure> {
    let flush = match spec.flush {
        FlushMode::Auto => FlushPolicy::Auto,
        FlushMode::Always => FlushPolicy::Always,
        FlushMode::Never => FlushPolicy::Never,
    };
    let options = OpenOptions { flush, read_only: false };
    let device = open_patiently(&spec.path, options).map_err(|error| refused(&error))?;
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

fn open_patiently(path: &Path, options: OpenOptions) -> Result<OwnedDevice, OpenError> {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    loop {
        match OwnedDevice::open(path, options) {
            Err(OpenError::InUse { .. }) if Instant::now() < deadline => {
                std::thread::sleep(RELEASE_POLL);
            }
            opened => return opened,
        }
    }
}

/// Creates the file of `spec` at its size if nothing is there, or gives an empty file that size.
/// Whether it did.
pub(crate) fn create_if_missing(spec: &FileSpec) -> Result<bool, Failure> {
    let Some(size) = spec.size else { return Ok(false) };
    match std::fs::metadata(&spec.path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            reactor::create_sparse(&spec.path, size.0).map_err(|error| refused(&error))?;
            Ok(true)
        }
        Ok(file) if file.is_file() && file.len() == 0 => {
            let sized = std::fs::OpenOptions::new().write(true).open(&spec.path);
            sized.and_then(|file| file.set_len(size.0)).map_err(|error| {
                let what = format!("{} cannot be given a size: {error}", spec.path.display());
                Failure::runtime(what, "make it writable, or name another --device")
            })?;
            Ok(true)
        }
        // What else is wrong, opening it tells.
        _ => Ok(false),
    }
}

fn refused(error: &OpenError) -> Failure {
    let remedy = match error {
        OpenError::Missing { path } => {
            let path = path.display();
            format!("create it with `farflash format --device file:{path},size=8GiB`")
        }
        OpenError::Exists { .. } => "leave size= out to use what is there".to_owned(),
        OpenError::Permission { .. } => {
            "run as its owner, change its mode, or name another --device".to_owned()
        }
        OpenError::InUse { .. } => {
            "stop the other server, or unmount it, or name another --device".to_owned()
        }
        OpenError::ReadOnly { .. } => "make it writable, or name another --device".to_owned(),
        OpenError::WrongKind { .. } => {
            "name a regular file or a block device with --device file:PATH".to_owned()
        }
        OpenError::TooSmall { path, .. } => {
            let path = path.display();
            format!("remove it, then `farflash format --device file:{path},size=8GiB`")
        }
        OpenError::SectorSize { .. } => {
            "format the drive with sectors of 512 or 4096 bytes, or name another --device"
                .to_owned()
        }
        OpenError::BadSize { .. } => "give size= a multiple of 4096, such as 8GiB".to_owned(),
        OpenError::System { .. } => "name another --device, or mend the cause".to_owned(),
    };
    // The error itself ends with advice of its own, in the words of the library.
    let what = error.to_string();
    let what = what.split("; ").next().unwrap_or_default();
    Failure::runtime(what, remedy)
}

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
fn on_device<T: 'static, F: Future<Output = T> + 'static>(
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
    Ours,
    /// Something that must not be lost, in the words of a message.
    Other(String),
}

/// Finds out what lies on a device, without changing it.
pub(crate) fn contents(path: &Path, device: &OwnedDevice) -> Result<Contents, Failure> {
    let unreadable = |error: &dyn std::fmt::Display| {
        let what = format!("{} cannot be read: {error}", path.display());
        Failure::runtime(what, "look at the kernel's log (dmesg), or name another --device")
    };
    let probed = on_device(device, |device| async move { volume::probe(&device).await })?;
    Ok(match probed.map_err(|error| unreadable(&error))? {
        Probe::Farflash(_) => Contents::Ours,
        Probe::Blank => match blank::first_data(path).map_err(|error| unreadable(&error))? {
            None => Contents::Blank,
            Some(at) => Contents::Other(format!("something else (unknown data at byte {at})")),
        },
        Probe::OtherVersion(version) => Contents::Other(format!(
            "a farflash format of version {version}, which this program does not know"
        )),
        Probe::Damaged(error) => Contents::Other(format!("a damaged farflash format ({error})")),
        Probe::Foreign(what) => Contents::Other(format!("something else ({what})")),
    })
}

/// Formats a device. All that was on it is lost.
pub(crate) fn format(path: &Path, device: &OwnedDevice) -> Result<(), Failure> {
    let options = FormatOptions { uuid: Uuid::new_v4() };
    on_device(device, |device| async move { volume::format(&device, &options).await })?
        .map(drop)
        .map_err(|error| {
            let remedy = match error {
                volume::FormatError::Size { .. } => "name a larger or smaller device, or size=",
                volume::FormatError::Device(_) => "look at the kernel's log (dmesg)",
            };
            Failure::runtime(format!("{} cannot be formatted: {error}", path.display()), remedy)
        })
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
        let remedy = match error {
            volume::OpenError::Truncated { .. } => "give the device its former size back",
            _ => "restore the device from a copy; this start has written nothing to it",
        };
        Failure::runtime(format!("{} cannot be opened: {error}", path.display()), remedy)
    })
}
