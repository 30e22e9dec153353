//! The root from which a shard is read back, and whether there ever was one.

use io_traits::Device;
use layout::{DecodeError, Root, Superblock};

use crate::OpenError;
use crate::copies::{Copy, read_copy};
use crate::io::join_all;

/// The shards that were ever started: all of them must be recovered before one is started.
///
/// One whose roots are damaged is among them: only who recovers it is told.
///
/// # Errors
/// The device fails in another way than that it cannot read a block.
pub async fn active_shards<D: Device>(
    device: &D,
    superblock: &Superblock,
) -> Result<Vec<u16>, OpenError> {
    let roots = (0..superblock.shard_slots).map(|shard| read_root(device, superblock, shard));
    let mut active = Vec::new();
    for (shard, root) in (0..).zip(join_all(roots).await) {
        match root {
            Ok(Some(_)) | Err(OpenError::Root(_)) => active.push(shard),
            Ok(None) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(active)
}

/// The newest valid root; `None` if the shard was never used.
pub(super) async fn read_root<D: Device>(
    device: &D,
    superblock: &Superblock,
    shard: u16,
) -> Result<Option<Root>, OpenError> {
    let mut newest: Option<Root> = None;
    // A slot whose second copy was never written never held a durable root, whatever the first is.
    let mut blank = [false; 2];
    for parity in [0, 1] {
        for place in superblock.root_places(shard, parity) {
            let decode = |block: &[u8]| decode_meant(block, superblock, shard, parity);
            match read_copy(device, place, decode).await? {
                Copy::Blank => blank[usize::from(parity == 1)] = true,
                Copy::Whole { value, .. }
                    if newest.is_none_or(|it| it.generation < value.generation) =>
                {
                    newest = Some(value);
                }
                Copy::Whole { .. } | Copy::Damaged(_) | Copy::Unreadable => {}
            }
        }
    }
    match newest {
        None if blank != [true; 2] => Err(OpenError::Root(shard)),
        newest => Ok(newest),
    }
}

/// A root of the slot for generations of this parity. A read that went astray may give another's.
pub(crate) fn decode_meant(
    block: &[u8],
    superblock: &Superblock,
    shard: u16,
    parity: u64,
) -> Result<Root, DecodeError> {
    let root = Root::decode(block)?;
    let is_meant =
        root.device == superblock.uuid && root.shard == shard && root.generation % 2 == parity;
    if is_meant { Ok(root) } else { Err(DecodeError::Field("place of the root")) }
}
