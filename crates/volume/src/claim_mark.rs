//! The mark that the last claim of a device left on it. It names the host of the cluster that
//! served the device last.
//!
//! The directory says which host serves a device, but may be restored from a backup that is older
//! than the mark.
//!
//! - CLAIM-MARK-1: a mark says something only of the device and the cluster that it names, which are those of
//!   the superblock. So it ends when the device is formatted or leaves its cluster.
//! - CLAIM-MARK-2: of two copies the one with the higher number counts. They are written one after the other,
//!   with a flush behind each: whenever the power goes, the mark is the one before or the new one.
//!   One copy is enough, where the place of the other takes no writes.
//! - CLAIM-MARK-3: no mark is replaced by one of a lower number, nor by another one of the same, as far as
//!   the writer can see: a device has no compare-and-swap. The writer reads the mark back at the
//!   end.
//!
//! Copies that are damaged say nothing, as those of a device that was never marked: then the
//! directory alone counts.

use io_traits::{Buffer, Device, DeviceError};
use layout::{ClaimMark, DecodeError, Superblock};
use units::Pba;

use crate::copies::{self, Copy};

/// Reads the mark of the device with this superblock; `None` if there is none.
///
/// # Errors
/// The device fails in another way than that it cannot read a block.
pub async fn read_claim_mark<D: Device>(
    device: &D,
    superblock: &Superblock,
) -> Result<Option<ClaimMark>, DeviceError> {
    let mut newest: Option<ClaimMark> = None;
    for place in superblock.claim_mark_places() {
        let found = read_mark(device, superblock, place).await?;
        let is_newer =
            |found: &ClaimMark| newest.as_ref().is_none_or(|it| it.number < found.number);
        newest = found.filter(is_newer).or(newest);
    }
    Ok(newest)
}

/// Marks the device, durably, unless it has a mark that is not older (CLAIM-MARK-3). What is then on the device is returned,
/// and is to be looked at: only if it is `mark` is the device marked.
///
/// # Errors
/// The device fails, or takes neither copy.
pub async fn write_claim_mark<D: Device>(
    device: &D,
    superblock: &Superblock,
    mark: &ClaimMark,
) -> Result<Option<ClaimMark>, DeviceError> {
    let found = read_claim_mark(device, superblock).await?;
    if found.as_ref().is_some_and(|found| found != mark && found.number >= mark.number) {
        return Ok(found);
    }
    let mut failed = [None; 2];
    for (place, failed) in superblock.claim_mark_places().into_iter().zip(&mut failed) {
        *failed = write(device, mark, place).await.err();
    }
    if let [Some(error), Some(_)] = failed {
        return Err(error);
    }
    read_claim_mark(device, superblock).await
}

/// The mark in one place (CLAIM-MARK-1).
async fn read_mark<D: Device>(
    device: &D,
    superblock: &Superblock,
    place: Pba,
) -> Result<Option<ClaimMark>, DeviceError> {
    let of_this = |mark: &ClaimMark| {
        mark.device == superblock.uuid && Some(mark.cluster) == superblock.cluster
    };
    let decode = |block: &[u8]| {
        let mark = ClaimMark::decode(block)?;
        if of_this(&mark) {
            Ok(mark)
        } else {
            Err(DecodeError::Field("claim mark of another device"))
        }
    };
    Ok(match copies::read_copy(device, place, decode).await? {
        Copy::Whole { value, .. } => Some(value),
        Copy::Blank | Copy::Damaged(_) | Copy::Unreadable(_) => None,
    })
}

async fn write<D: Device>(device: &D, mark: &ClaimMark, place: Pba) -> Result<(), DeviceError> {
    let mut block = Buffer::new(1);
    mark.encode(block.as_mut_bytes());
    device.write(place, block.into_slice()).await?;
    device.flush().await
}
