//! Reads one of two copies of a block and judges it.
//!
//! - COPY-1: it counts as zeroes when [`READS_ENOUGH`] reads gave them, and as damaged when so many
//!   gave anything else, whichever comes first. So one read that fails, or fetches what lies
//!   elsewhere, makes no shard look as if it was never used, beside a damaged copy neither: others
//!   would get its extents. Nor does it make what was never written look damaged.

use io_traits::{Buffer, BufferSlice, Device, DeviceError};
use layout::DecodeError;
use units::Pba;

use crate::format::is_zero;
use crate::sabotage::{Sabotage, tries};

/// Reads that decide what a place holds.
const READS_ENOUGH: u32 = 3;

/// The judgement.
pub(crate) enum Copy<T> {
    /// The expected content.
    Whole { value: T, block: BufferSlice },
    /// Zeroes: perhaps it was never written.
    Blank,
    /// Anything else.
    Damaged(DecodeError),
    /// Perhaps what is meant, which some read would give: one that was to decide failed.
    Unreadable(DeviceError),
}

/// Reads a copy, of which `decode` tells whether it is the one that is meant. If any read gives that, it is there.
///
/// # Errors
/// The device fails in another way than that it cannot read the block.
pub(crate) async fn read_copy<D: Device, T>(
    device: &D,
    place: Pba,
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
) -> Result<Copy<T>, DeviceError> {
    let enough = tries(READS_ENOUGH, Sabotage::RecoverByOneRead);
    let zeroes_enough = tries(enough, Sabotage::BlankByOneRead);
    let (mut zeroes, mut others, mut failed) = (0, 0, None);
    loop {
        let fault = match device.read(place, Buffer::new(1)).await {
            Ok(block) => match decode(block.as_bytes()) {
                Ok(value) => return Ok(Copy::Whole { value, block: block.into_slice() }),
                Err(_) if is_zero(block.as_bytes()) => {
                    zeroes += 1;
                    if zeroes == zeroes_enough {
                        return Ok(Copy::Blank);
                    }
                    continue;
                }
                Err(error) => Copy::Damaged(error),
            },
            Err(error @ DeviceError::Io { .. }) => {
                failed = Some(error);
                Copy::Unreadable(error)
            }
            Err(error) => return Err(error),
        };
        others += 1;
        if others == enough {
            return Ok(failed.map_or(fault, Copy::Unreadable));
        }
    }
}
