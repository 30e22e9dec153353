//! To which cluster a device belongs (CLAIM-6), and by which of its hosts it was claimed last (CLAIM-9): whether a server may
//! have it, and what becomes of that.

use std::path::Path;

use directory::Mark;
use io_traits::DeviceError;
use reactor::OwnedDevice;
use user_messages::Failure;
use user_messages::shell;
use uuid::Uuid;
use volume::{ClaimMark, HOST_NAME_BYTES_MAX, Superblock};

use crate::not_opened::{failing, is_failing};
use crate::storage::on_device;

/// Refuses the device at `path` unless a host of `cluster` may serve it; without one, a host that is a service by itself.
pub fn check(path: &Path, superblock: &Superblock, cluster: Option<Uuid>) -> Result<(), Failure> {
    let Some(owner) = superblock.cluster.filter(|owner| Some(*owner) != cluster) else {
        return Ok(());
    };
    let (device, path) = (shell::device(path), path.display());
    let what = match cluster {
        None => format!("{path} belongs to the cluster {owner}, whose hosts may be serving it"),
        Some(other) => format!(
            "{path} belongs to the cluster {owner}, whose hosts may be serving it; the one of --directory is {other}"
        ),
    };
    Err(Failure::runtime(
        what,
        format!(
            "give the --directory of its own cluster (in etcd, /farflash/NAME/cluster has the id of each); or, if \
             that is gone for good, `farflash leave-cluster --device {device}`: by it you assert that none \
             of its hosts serves this device or a copy of it"
        ),
    ))
}

/// Has the device at `path` say, durably, that it belongs to `cluster`. Returns what is then on it.
pub fn join(path: &Path, device: &OwnedDevice, cluster: Uuid) -> Result<Superblock, Failure> {
    let joined =
        on_device(
            device,
            move |device| async move { volume::join_cluster(&device, cluster).await },
        )?;
    let joined = joined.map_err(|error| not_written(path, &error))?;
    // Another cluster may have been quicker.
    check(path, &joined, Some(cluster)).map(|()| joined)
}

/// The mark that the device at `path` carries of the last claim of its cluster.
pub fn mark(
    path: &Path,
    device: &OwnedDevice,
    superblock: &Superblock,
) -> Result<Option<Mark>, Failure> {
    let superblock = *superblock;
    let read = on_device(device, move |device| async move {
        volume::read_claim_mark(&device, &superblock).await
    })?;
    let read = read.map_err(|error| not_marked(path, error))?;
    Ok(read.map(carried))
}

/// Has the device at `path`, which is the cluster's as `superblock` says, carry the claim of `own`, durably.
pub fn leave_mark(
    path: &Path,
    device: &OwnedDevice,
    superblock: &Superblock,
    own: &Mark,
) -> Result<(), Failure> {
    let (superblock, mark) = (*superblock, claim_mark(superblock, own));
    let wanted = mark.clone();
    let found = on_device(device, move |device| async move {
        volume::write_claim_mark(&device, &superblock, &wanted).await
    })?;
    match found.map_err(|error| not_marked(path, error))? {
        Some(found) if found == mark => Ok(()),
        // Another way to it was quicker, whose cluster knows of another claim.
        Some(found) => Err(Failure::runtime(
            format!(
                "{} was claimed by host {} just now, of which the directory here does not know",
                path.display(),
                found.host_name
            ),
            "let one of both hosts serve it; when etcd was restored from a backup, start no host until all that run are connected",
        )),
        None => Err(Failure::runtime(
            format!("{} does not hold what was written to it", path.display()),
            "replace the drive, or leave the device out",
        )),
    }
}

/// The mark of a claim, as the device whose superblock this is has it.
fn claim_mark(superblock: &Superblock, own: &Mark) -> ClaimMark {
    let Mark { number, host, host_name } = own.clone();
    let mut end = host_name.len().min(HOST_NAME_BYTES_MAX);
    while !host_name.is_char_boundary(end) {
        end -= 1;
    }
    ClaimMark {
        device: superblock.uuid,
        cluster: superblock.cluster.unwrap_or_default(),
        number,
        host,
        host_name: host_name[..end].to_owned(),
    }
}

/// A mark, as the directory knows it.
fn carried(mark: ClaimMark) -> Mark {
    Mark { number: mark.number, host: mark.host, host_name: mark.host_name }
}

fn not_marked(path: &Path, error: DeviceError) -> Failure {
    let what = format!("{}: the mark of its last claim cannot be read or written", path.display());
    failing(format!("{what}: {error}"), &volume::OpenError::from(error))
}

/// Has it belong to no cluster. Returns the one that it belonged to.
pub fn leave(path: &Path, device: &OwnedDevice) -> Result<Option<Uuid>, Failure> {
    let left = on_device(device, |device| async move { volume::leave_cluster(&device).await })?;
    left.map_err(|error| not_written(path, &error))
}

fn not_written(path: &Path, error: &volume::OpenError) -> Failure {
    let what = format!("{} cannot be told to which cluster it belongs: {error}", path.display());
    match error {
        _ if is_failing(error) => failing(what, error),
        volume::OpenError::Truncated { .. } => {
            Failure::runtime(what, "give the device its former size back")
        }
        _ => Failure::runtime(what, "name a device that `farflash format` has prepared"),
    }
}
