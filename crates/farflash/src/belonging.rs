//! To which cluster a device belongs (F6 of `directory`): whether a server may have it, and what becomes of that.

use std::path::Path;

use reactor::OwnedDevice;
use uuid::Uuid;
use volume::Superblock;

use crate::failure::Failure;
use crate::not_opened::{failing, is_failing};
use crate::storage::on_device;

/// Refuses the device at `path` unless a host of `cluster` may serve it; without one, a host that is a service by itself.
pub(crate) fn check(
    path: &Path,
    superblock: &Superblock,
    cluster: Option<Uuid>,
) -> Result<(), Failure> {
    let Some(owner) = superblock.cluster.filter(|owner| Some(*owner) != cluster) else {
        return Ok(());
    };
    let path = path.display();
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
             that is gone for good, `farflash leave-cluster --device file:{path}`: by it you assert that none \
             of its hosts serves this device or a copy of it"
        ),
    ))
}

/// Has the device at `path` say, durably, that it belongs to `cluster`. Returns what is then on it.
pub(crate) fn join(
    path: &Path,
    device: &OwnedDevice,
    cluster: Uuid,
) -> Result<Superblock, Failure> {
    let joined =
        on_device(
            device,
            move |device| async move { volume::join_cluster(&device, cluster).await },
        )?;
    let joined = joined.map_err(|error| not_written(path, &error))?;
    // Another cluster may have been quicker.
    check(path, &joined, Some(cluster)).map(|()| joined)
}

/// Has it belong to no cluster. Returns the one that it belonged to.
pub(crate) fn leave(path: &Path, device: &OwnedDevice) -> Result<Option<Uuid>, Failure> {
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
