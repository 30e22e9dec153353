//! Why a device is not opened: what to say, and whether it is a mistake or an absence.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use io_traits::{DeviceError, ERRNO_FILE_SIZE, ERRNOS_READ_ONLY};
use reactor::OpenError;
use rustix::io::Errno;
use units::ByteLen;
use user_messages::Failure;
use user_messages::shell;

use device::kind::written_size;

/// Why a device that was open cannot be opened again.
pub fn away(error: &OpenError) -> Failure {
    match error {
        OpenError::Missing { path } => {
            let what = format!("{} is not there", path.display());
            Failure::runtime(what, "plug the drive in again; its path has to be the same")
        }
        error => refused(error, None),
    }
}

/// Returns true if a device cannot be had for now, without a mistake of the user that named it.
fn is_absence(error: &OpenError) -> bool {
    match error {
        OpenError::Missing { .. } => true,
        OpenError::System { errno, .. } => matches!(
            *errno,
            Errno::IO
                | Errno::NODEV
                | Errno::NXIO
                | Errno::NOMEDIUM
                | Errno::REMOTEIO
                | Errno::TIMEDOUT
                | Errno::SHUTDOWN
                | Errno::STALE
                | Errno::NOTCONN
        ),
        // A drive that has given up may still have a name, and no capacity.
        OpenError::TooSmall { path, bytes: 0 } => is_drive(path),
        OpenError::Exists { .. }
        | OpenError::Permission { .. }
        | OpenError::InUse { .. }
        | OpenError::ReadOnly { .. }
        | OpenError::WrongKind { .. }
        | OpenError::TooSmall { .. }
        | OpenError::SectorSize { .. }
        | OpenError::BadSize { .. } => false,
    }
}

/// Returns true if `path` is a block device.
fn is_drive(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|it| it.file_type().is_block_device())
}

/// A size for a file of which none was given.
const SIZE_EXAMPLE: ByteLen = ByteLen(8 << 30);

/// The command that makes a file of the `size` that was given.
fn format_command(path: &Path, size: Option<ByteLen>) -> String {
    let size = written_size(size.unwrap_or(SIZE_EXAMPLE));
    format!("`farflash format --device {},size={size}`", shell::device(path))
}

/// Advice for a device without room. Only a file can be made again.
fn too_small(path: &Path, size: Option<ByteLen>, is_drive: bool) -> String {
    if is_drive {
        return "see that the drive is attached and works, or name another --device".to_owned();
    }
    format!("remove it, then {}", format_command(path, size))
}

/// Advice for a device that fails requests.
pub const NO_ANSWER: &str = "look at the kernel's log (dmesg)";

/// Advice about a device that takes no writes at all.
pub const MAKE_WRITABLE: &str = "make it writable (`blockdev --setrw`, or mount its file system again, after a look at why it is \
                             read-only: `dmesg`), or name another --device";

/// Advice about a file that is larger than this process may write.
pub const RAISE_FILE_SIZE: &str = "raise the limit on the size of files (ulimit -f, a unit's LimitFSIZE=, a container's \
                                          --ulimit fsize=)";

/// Advice about a device with a volume that this release does not know.
pub const LATER_RELEASE: &str = "serve and check the device with the release of farflash that made the volume, or a later one; this \
                                 one has changed none of its volumes";

/// As [`remedy_of`], by the number of the error.
pub fn remedy_of_errno(errno: Errno) -> &'static str {
    let range = units::PbaRange::new(units::Pba(0), 1);
    remedy_of(&DeviceError::Io { range, errno: errno.raw_os_error() })
}

/// Advice for a device that is open and failed a request.
pub fn remedy_of(error: &DeviceError) -> &'static str {
    match error {
        DeviceError::NoSpace { .. } => "make room in the file system that it lies in",
        DeviceError::Io { errno, .. } if ERRNOS_READ_ONLY.contains(errno) => MAKE_WRITABLE,
        DeviceError::Io { errno: ERRNO_FILE_SIZE, .. } => RAISE_FILE_SIZE,
        DeviceError::Io { .. }
        | DeviceError::OutOfRange { .. }
        | DeviceError::Pinned { .. }
        | DeviceError::Gone => NO_ANSWER,
    }
}

/// A device that is open does not work for now: what to say of it.
pub fn failing(what: impl Into<String>, error: &volume::OpenError) -> Failure {
    let remedy = match error {
        volume::OpenError::Device(error) => remedy_of(error),
        _ => NO_ANSWER,
    };
    Failure::absence(what, remedy)
}

/// The failure for a device with a volume of a later release.
pub fn of_later_release(what: impl Into<String>) -> Failure {
    Failure::of_one_device(what, LATER_RELEASE)
}

/// Returns true if a device that is open does not work for now.
pub fn is_failing(error: &volume::OpenError) -> bool {
    match error {
        volume::OpenError::Device(error) => match error {
            DeviceError::Io { .. } | DeviceError::NoSpace { .. } | DeviceError::Gone => true,
            DeviceError::OutOfRange { .. } | DeviceError::Pinned { .. } => false,
        },
        _ => false,
    }
}

/// The failure for a device that was not opened. `size` is the value of `size=`, if it is given.
pub fn refused(error: &OpenError, size: Option<ByteLen>) -> Failure {
    let new = if is_absence(error) { Failure::absence } else { Failure::runtime };
    if let OpenError::Missing { path } = error
        && let Some(directory) = path.parent()
        && !directory.as_os_str().is_empty()
        && !directory.exists()
    {
        let word = shell::path(directory);
        return new(
            format!("there is no directory {}", directory.display()),
            format!("make it (`mkdir -p {word}`), or name another --device"),
        );
    }
    let remedy = match error {
        OpenError::Missing { path } => {
            let command = format_command(path, size);
            format!(
                "see that its file system is mounted; if it never was there, create it with {command}"
            )
        }
        OpenError::Exists { .. } => "leave size= out to use what is there".to_owned(),
        OpenError::Permission { .. } => {
            "run as its owner, change its mode, or name another --device".to_owned()
        }
        OpenError::InUse { .. } => {
            "stop the other server, or unmount it, or name another --device".to_owned()
        }
        OpenError::ReadOnly { .. } => MAKE_WRITABLE.to_owned(),
        OpenError::WrongKind { .. } => {
            "name a regular file or a block device with --device file:PATH".to_owned()
        }
        OpenError::TooSmall { path, .. } => too_small(path, size, is_drive(path)),
        OpenError::SectorSize { .. } => {
            "format the drive with sectors of 512 or 4096 bytes, or name another --device"
                .to_owned()
        }
        OpenError::BadSize { .. } => "give size= a multiple of 4096, such as 8GiB".to_owned(),
        OpenError::System { errno: Errno::FBIG, .. } => {
            "give a smaller size=: that is more than the file system lets a file have".to_owned()
        }
        OpenError::System { .. } => "name another --device, or mend the cause".to_owned(),
    };
    // The error itself ends with advice of its own, in the words of the library.
    let what = error.to_string();
    let what = what.split("; ").next().unwrap_or_default();
    new(what.to_owned(), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drive that fails is the kernel's to explain, a full file system is the operator's to clear.
    #[test]
    fn a_file_without_room_is_no_failing_drive() {
        let range = units::PbaRange::new(units::Pba(0), 1);
        let full = volume::OpenError::Device(DeviceError::NoSpace { range });
        let broken = volume::OpenError::Device(DeviceError::Io { range, errno: 5 });
        let said = |error: &volume::OpenError| failing("it", error).to_string();
        assert!(said(&full).contains("make room in the file system"), "{}", said(&full));
        assert!(said(&broken).contains(NO_ANSWER), "{}", said(&broken));
        let limited = volume::OpenError::Device(DeviceError::Io { range, errno: ERRNO_FILE_SIZE });
        let said = said(&limited);
        assert!(
            said.contains("limit on the size of files") && said.contains("LimitFSIZE="),
            "{said}"
        );
        assert!(!said.contains("make room") && !said.contains(NO_ANSWER), "{said}");
    }

    /// A drive or a mount that takes no writes is not the kernel's to explain alone.
    #[test]
    fn a_device_that_is_read_only_is_called_so() {
        let range = units::PbaRange::new(units::Pba(1), 1);
        for errno in ERRNOS_READ_ONLY {
            let error = DeviceError::Io { range, errno };
            assert!(error.to_string().contains("the device is read-only"), "{error}");
            assert_eq!(remedy_of(&error), MAKE_WRITABLE);
            assert_eq!(remedy_of_errno(Errno::from_raw_os_error(errno)), MAKE_WRITABLE);
        }
    }

    /// A loop device without a file, a reader without a card: the user is not told to remove that.
    #[test]
    fn a_drive_without_room_is_not_to_be_removed() {
        let advice = |is_drive| too_small(Path::new("/dev/loop0"), None, is_drive);
        assert!(advice(false).contains("remove it, then `farflash format"));
        assert!(advice(true).contains("attached") && !advice(true).contains("remove"));
    }
}
