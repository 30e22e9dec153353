//! The contents of a device, and the check that it is the intended one.

use std::path::Path;

use reactor::OwnedDevice;
use units::{BLOCK_SIZE, ByteLen, Lba, LbaRange};
use user_messages::Failure;
use user_messages::output::{self, Voice};
use user_messages::shell;
use volume::{DecodeError, Probe, Superblock};

use crate::blank;
use crate::not_opened::{away, failing, is_failing};
use crate::storage::{on_device, open_now};
use device::kind::FileSpec;

/// The contents of a device.
pub enum Contents {
    /// Nothing, as far as was looked.
    Blank,
    /// A format that this program serves.
    Ours(Superblock),
    /// A format of ours that is not served as it is: what it is, and what to do.
    NotServed {
        /// The contents.
        what: String,
        /// Advice.
        remedy: String,
    },
    /// Something that must not be lost, in the words of a message.
    Other(String),
}

/// Advice for the use of a device that holds something. The way to destroy that is not said in passing: a device that looks
/// unknown, or like another format, may have been one of ours.
pub const GIVE_UP: &str =
    "name another --device. How to give up what is there is in `farflash format --help`";

/// For a format whose start other software has overwritten: the contents of the device, and advice.
fn overwritten(path: &Path, by: &str, superblock: &Superblock) -> (String, String) {
    let (id, device) = (superblock.uuid, shell::device(path));
    let what = format!("something else ({by}), and before that held the farflash device {id}");
    let remedy = format!(
        "name another --device; or, if what is at its start now may go and the farflash device is wanted, \
         `farflash fsck --device {device} --force` tells what is left of it, and --repair as well makes it one again"
    );
    (what, remedy)
}

/// Advice about a format that this release does not know.
const NOT_KNOWN: &str =
    "serve it with the program that made it, or a later one, or name another --device";

fn holds_other(path: &Path, by: &str, superblock: &Superblock) -> Failure {
    let (what, remedy) = overwritten(path, by, superblock);
    Failure::runtime(format!("{} holds {what}", path.display()), remedy)
}

fn see_what_is_left(path: &Path) -> String {
    format!(
        "see what `farflash fsck --device {}` finds of it; restore it from a copy if that is nothing, or name another \
         --device",
        shell::device(path)
    )
}

/// Refuses a device whose start other software has overwritten. An operator that knows better uses --force.
pub fn refuse_overwritten(path: &Path, device: &OwnedDevice) -> Result<(), Failure> {
    let probed = on_device(device, |device| async move { volume::probe(&device).await })?;
    let Ok(Probe::Overwritten { by, superblock }) = probed else { return Ok(()) };
    Err(holds_other(path, by, &superblock))
}

/// Looks for the last superblock of a device whose first one is damaged, and which has grown: `mends`, the first one is
/// rebuilt from it. A start that looks like another format is only written over if that `is_forced`.
pub fn find_superblock(
    path: &Path,
    device: &OwnedDevice,
    mends: bool,
    is_forced: bool,
) -> Result<(), Failure> {
    let probed = on_device(device, |device| async move { volume::probe(&device).await })?;
    let kept = match probed {
        Ok(Probe::Traces { by }) if !is_forced => Some(by),
        Ok(Probe::Damaged(_) | Probe::Traces { .. }) => None,
        _ => return Ok(()),
    };
    let passed = output::progress(&format!("looking for a superblock on {}", path.display()));
    let found = on_device(device, move |device| async move {
        let found = volume::find_superblock(&device, passed).await?;
        if let Some(superblock) = found.filter(|_| mends && kept.is_none()) {
            volume::restore_superblock(&device, &superblock).await?;
        }
        Ok(found)
    })?;
    let failed = |error: io_traits::DeviceError| {
        Failure::runtime(
            format!("{} cannot be searched: {error}", path.display()),
            crate::not_opened::remedy_of(&error),
        )
    };
    let Some(superblock) = found.map_err(failed)? else { return Ok(()) };
    if let Some(by) = kept {
        return Err(holds_other(path, by, &superblock));
    }
    let (at, device) =
        (ByteLen((superblock.blocks - 1) * BLOCK_SIZE as u64).0, shell::device(path));
    let path = path.display();
    let what = format!("the first superblock of {path} is damaged; the last one lies at byte {at}");
    if mends {
        output::note(&format!("{what}: the first one was rebuilt from it"));
        return Ok(());
    }
    Err(Failure::runtime(
        format!("{what}, since the device has grown"),
        format!("rebuild the first one from it with `farflash fsck --device {device} --repair`"),
    ))
}

/// The part of a device that is examined before it counts as blank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Look {
    /// All of it is read, but for what a sparse file says was never written.
    Everywhere,
    /// Its beginning, its end, and places between.
    Samples,
}

/// Finds out what lies on a device, without changing it.
pub fn look_at(
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
                let all = LbaRange::new(Lba(0), device.limits().blocks);
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
            remedy: NOT_KNOWN.to_owned(),
        },
        Probe::Damaged(error @ DecodeError::Unknown(_)) => Contents::NotServed {
            what: format!("a farflash format with {error}"),
            remedy: NOT_KNOWN.to_owned(),
        },
        Probe::Damaged(error) => Contents::NotServed {
            what: format!("a damaged farflash format ({error})"),
            remedy: see_what_is_left(path),
        },
        Probe::Overwritten { by, superblock } => {
            let (what, remedy) = overwritten(path, by, &superblock);
            Contents::NotServed { what, remedy }
        }
        Probe::Traces { by } => Contents::NotServed {
            what: format!("a damaged farflash format, whose start is something else ({by})"),
            remedy: see_what_is_left(path),
        },
        Probe::Foreign(what) => Contents::Other(format!("something else ({what})")),
    })
}

/// Opens and locks, by its path, the device that has this superblock and that was open before. Any other one is
/// an error, and nothing is written.
pub fn open_again(spec: &FileSpec, superblock: &Superblock) -> Result<OwnedDevice, Failure> {
    let device = open_now(spec).map_err(|error| away(&error))?;
    let (path, before) = (spec.path.display(), superblock.uuid);
    let put_back =
        |what: String| Failure::runtime(what, "put back the one that was served from there");
    // It may have been elsewhere meanwhile.
    match look_at(&spec.path, &device, Look::Samples, Voice::Log)? {
        Contents::Ours(found) if found == *superblock => {
            check_has_all(&spec.path, &device, superblock)?;
            Ok(device)
        }
        Contents::Ours(found) if found.uuid == before => Err(Failure::runtime(
            format!("{path} was given to another cluster, or out of its own"),
            "stop this server, and see which host serves the device now",
        )),
        Contents::Ours(found) => {
            let other = found.uuid;
            Err(put_back(format!("at {path} is another device: its id is {other}, not {before}")))
        }
        Contents::NotServed { what, remedy } => {
            Err(Failure::runtime(format!("{path} holds {what}"), remedy))
        }
        Contents::Blank => Err(put_back(format!("at {path} is nothing, not the device {before}"))),
        Contents::Other(occupant) => {
            Err(put_back(format!("at {path} is {occupant}, not the device {before}")))
        }
    }
}

/// Refuses a device that is not the one that was looked at before, whichever cluster it belongs to.
pub fn look_again(path: &Path, device: &OwnedDevice, before: &Superblock) -> Result<(), Failure> {
    match look_at(path, device, Look::Samples, Voice::Log)? {
        Contents::Ours(found) if Superblock { cluster: before.cluster, ..found } == *before => {
            Ok(())
        }
        _ => Err(Failure::runtime(
            format!("{} was formatted again, or overwritten, while it was claimed", path.display()),
            "start this server again: it says what is there, and serves it if it is a farflash device",
        )),
    }
}

/// The shards of a formatted device that were ever used.
pub fn active_shards(
    path: &Path,
    device: &OwnedDevice,
    superblock: &Superblock,
) -> Result<Vec<u16>, Failure> {
    check_has_all(path, device, superblock)?;
    let superblock = *superblock;
    let active = on_device(device, move |device| async move {
        volume::active_shards(&device, &superblock).await
    })?;
    active.map_err(|error| {
        let what = format!("{} cannot be opened: {error}", path.display());
        match is_failing(&error) {
            true => failing(what, &error),
            false => Failure::runtime(
                what,
                "restore the device from a copy; this start has written nothing to it",
            ),
        }
    })
}

/// Refuses a device that has fewer blocks than were formatted.
fn check_has_all(
    path: &Path,
    device: &OwnedDevice,
    superblock: &Superblock,
) -> Result<(), Failure> {
    let (formatted, found) = (superblock.blocks, device.limits().blocks);
    if formatted <= found {
        return Ok(());
    }
    let error = volume::OpenError::Truncated { formatted, found };
    let what = format!("{} cannot be opened: {error}", path.display());
    Err(Failure::runtime(what, "give the device its former size back"))
}

#[cfg(test)]
mod tests {
    use units::ByteLen;

    use super::*;
    use crate::storage;
    use reactor::FlushPolicy;

    /// Method: a file is the drive; it is cut off, and then another one is formatted in its place.
    #[test]
    fn a_drive_is_opened_again_if_it_is_the_one_that_was_there_and_whole() {
        let files = tempfile::tempdir().expect("a directory");
        let path = files.path().join("drive");
        let size = Some(ByteLen(256 << 20));
        let spec = FileSpec { path: path.clone(), size, flush: FlushPolicy::Auto };
        storage::make(&spec, storage::to_make(&spec)).expect("a file");
        let format = || {
            let device = storage::open(&spec, Voice::Log).expect("no process has it");
            storage::format(&path, &device).expect("formatted")
        };
        let superblock = format();
        let again = || open_again(&spec, &superblock).map_err(|failure| failure.in_one_line());
        drop(again().expect("the same"));
        let file = std::fs::File::options().write(true).open(&path).expect("a file");
        file.set_len(128 << 20).expect("shorter");
        let refused = again().expect_err("a part of it");
        assert!(refused.contains("its former size"), "{refused}");
        file.set_len(256 << 20).expect("longer");
        format();
        let refused = again().expect_err("another one");
        assert!(refused.contains("is another device"), "{refused}");
    }
}
