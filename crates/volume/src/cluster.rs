//! The cluster that a device belongs to, as recorded in its superblocks.
//!
//! The hosts of one cluster agree in a directory on the host that serves a device. A host that asks
//! another directory, or none, would not see that agreement, so the device itself names its
//! cluster.
//!
//! - CLUSTER-1: nothing of a device is served for a cluster before all copies of the superblock that are
//!   whole name it durably.
//! - CLUSTER-2: of two copies the one that names a cluster counts. Until the last write is durable, a
//!   device thus belongs to the cluster that it joins or leaves, and a power cut gives it to no
//!   other cluster.
//! - CLUSTER-3: copies are written one after the other, with a flush behind each, and first those that are
//!   not whole: at any moment one is whole.
//! - CLUSTER-4: from one cluster to another a device comes by way of none only.
//!
//! A device has no compare-and-swap. Two clusters that join one that belongs to none in the same
//! moment are told apart by what is read back in the end: but not if one of them waits, between its
//! look and its write, until the other is done.

use io_traits::{Device, DeviceError};
use layout::Superblock;
use uuid::Uuid;

use crate::OpenError;
use crate::superblocks::{read_copy, read_superblock, write};

/// Makes a device one of `cluster`, unless it belongs to another (CLUSTER-4). What is then on the device is returned, and
/// is to be looked at: only if it names `cluster` does the device belong to it.
///
/// # Errors
/// It is not ours, or it cannot be read or written. It may then belong to the cluster.
pub async fn join_cluster<D: Device>(device: &D, cluster: Uuid) -> Result<Superblock, OpenError> {
    let found = read_superblock(device).await?;
    if found.cluster.is_some_and(|other| other != cluster) {
        return Ok(found);
    }
    rewrite(device, Superblock { cluster: Some(cluster), ..found }).await?;
    read_superblock(device).await
}

/// Removes a device from its cluster. The caller must know that no host of the cluster serves it.
/// Returns the cluster that it belonged to.
///
/// # Errors
/// It is not ours, or it cannot be read or written. It may then still belong to its cluster.
pub async fn leave_cluster<D: Device>(device: &D) -> Result<Option<Uuid>, OpenError> {
    let found = read_superblock(device).await?;
    rewrite(device, Superblock { cluster: None, ..found }).await?;
    Ok(found.cluster)
}

/// Makes all copies `wanted`, if one that is whole is not (CLUSTER-3).
async fn rewrite<D: Device>(device: &D, wanted: Superblock) -> Result<(), DeviceError> {
    let (mut damaged, mut stale) = (Vec::new(), Vec::new());
    for place in Superblock::places(wanted.blocks) {
        match read_copy(device, place).await?.whole() {
            Some(copy) if copy == wanted => {}
            Some(_) => stale.push(place),
            None => damaged.push(place),
        }
    }
    if stale.is_empty() {
        // They may have been written by a process that ended before its flush.
        return device.flush().await;
    }
    for place in damaged {
        // What can be neither read nor written contradicts nothing (CLUSTER-1).
        let _ = write(device, &wanted, place).await;
    }
    for place in stale {
        write(device, &wanted, place).await?;
    }
    Ok(())
}
