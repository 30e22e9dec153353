//! The root from which a shard is read back.

use io_traits::{Buffer, Device, DeviceError};
use layout::{Root, Superblock};
use units::Pba;

use crate::OpenError;
use crate::sabotage::{Sabotage, tries};

/// Attempts to read a copy: without the newest root the journal would look damaged.
const ROOT_READ_TRIES: u32 = 3;

/// What lies in the place of a copy.
enum Copy {
    Blank,
    Root(Root),
    Damaged,
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
        // A read that went astray may give the other slot's.
        let is_meant = |root: &Root| {
            root.device == superblock.uuid && root.shard == shard && root.generation % 2 == parity
        };
        for place in superblock.root_places(shard, parity) {
            match read_copy(device, place, is_meant).await {
                Copy::Blank => blank[usize::from(parity == 1)] = true,
                Copy::Root(root) if newest.is_none_or(|it| it.generation < root.generation) => {
                    newest = Some(root);
                }
                Copy::Root(_) | Copy::Damaged => {}
            }
        }
    }
    match newest {
        None if blank != [true; 2] => Err(OpenError::Root(shard)),
        newest => Ok(newest),
    }
}

/// A copy, if it can be read at last; else what the last attempt gave.
async fn read_copy<D: Device>(device: &D, place: Pba, is_meant: impl Fn(&Root) -> bool) -> Copy {
    let mut copy = Copy::Damaged;
    for _ in 0..tries(ROOT_READ_TRIES, Sabotage::RecoverByOneRead) {
        copy = match device.read(place, Buffer::new(1)).await {
            Ok(block) => match Root::decode(block.as_bytes()) {
                Ok(root) if is_meant(&root) => return Copy::Root(root),
                Err(_) if block.as_bytes().iter().all(|byte| *byte == 0) => Copy::Blank,
                Ok(_) | Err(_) => Copy::Damaged,
            },
            Err(DeviceError::Io { .. }) => Copy::Damaged,
            Err(_) => return Copy::Damaged,
        };
    }
    copy
}
