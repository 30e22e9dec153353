//! Reads the two superblocks of a device and chooses between them.
//!
//! - SUPERBLOCK-1: a place is read again before it counts as damaged or unreadable (COPY-1).
//! - SUPERBLOCK-2: the first one counts wherever it is sealed, with what the last one says of a cluster (CLUSTER-2).
//!   What it says and this program does not understand counts, too: then the last one was left
//!   behind by the program that wrote the first.
//! - SUPERBLOCK-3: the last one counts alone only where it lies in the last block of the device that it
//!   describes. Else it was left behind by a format of another size.
//! - SUPERBLOCK-4: a copy is rewritten only where nothing sealed lies and nothing that others would know as
//!   theirs, and only as its twin is on the device. So nothing that a copy says of a cluster is
//!   ever taken back.

use std::cell::Cell;

use io_traits::{Buffer, BufferSlice, Device, DeviceError};
use layout::{DecodeError, Superblock};
use units::Pba;

use crate::OpenError;
use crate::copies;
use crate::format::foreign_signature;

/// The content of a superblock's place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Copy {
    Whole(Superblock),
    /// Nothing of ours, or nothing that this program understands.
    Damaged(DecodeError),
    Unreadable(DeviceError),
}

impl Copy {
    pub(crate) fn whole(&self) -> Option<Superblock> {
        match self {
            Self::Whole(superblock) => Some(*superblock),
            Self::Damaged(_) | Self::Unreadable(_) => None,
        }
    }

    /// Returns whether the copy is as a program wrote it, understood or not.
    pub(crate) fn is_sealed(&self) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::Damaged(error) => is_sealed(*error),
            Self::Unreadable(_) => false,
        }
    }
}

/// Both superblocks of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copies {
    pub(crate) head: Copy,
    pub(crate) tail: Copy,
    pub(crate) places: [Pba; 2],
    /// Blocks that the device has.
    blocks: u64,
}

impl Copies {
    /// Reads both. The last one lies where the first one says, or else in the last block.
    ///
    /// # Errors
    /// The device fails in another way than that it cannot read a block.
    pub(crate) async fn read<D: Device>(device: &D) -> Result<Self, DeviceError> {
        let blocks = device.limits().blocks;
        let head = read_copy(device, Pba(0)).await?;
        let formatted =
            head.whole().map(|head| head.blocks).filter(|formatted| *formatted <= blocks);
        let places = Superblock::places(formatted.unwrap_or(blocks).max(1));
        let tail = read_copy(device, places[1]).await?;
        Ok(Self { head, tail, places, blocks })
    }

    /// The last one, if it may count without the first (SUPERBLOCK-3).
    pub(crate) fn fitting_tail(&self) -> Option<Superblock> {
        self.tail.whole().filter(|tail| tail.blocks == self.blocks)
    }

    /// Returns the superblock that counts (SUPERBLOCK-2, SUPERBLOCK-3).
    ///
    /// # Errors
    /// Neither copy counts, or the device has shrunk.
    pub(crate) fn counting(&self) -> Result<Superblock, OpenError> {
        match (self.head, self.tail) {
            (Copy::Whole(head), _) if head.blocks > self.blocks => {
                Err(OpenError::Truncated { formatted: head.blocks, found: self.blocks })
            }
            (Copy::Whole(head), tail) => Ok(match tail {
                Copy::Whole(tail) => head.or_in_cluster(tail),
                // Damaged, it says nothing: of a device that was served for a cluster the first one names it, too
                // (CLUSTER-1).
                Copy::Damaged(_) | Copy::Unreadable(_) => head,
            }),
            (Copy::Damaged(error), _) if self.head.is_sealed() => Err(OpenError::Superblock(error)),
            (head, tail) => self.fitting_tail().ok_or(match (head, tail) {
                (Copy::Unreadable(error), _) | (_, Copy::Unreadable(error)) => error.into(),
                (Copy::Damaged(error), _) => OpenError::Superblock(error),
                (Copy::Whole(_), _) => unreachable!("seen above"),
            }),
        }
    }

    /// Returns the place without a whole superblock, if the other one is whole.
    pub(crate) fn damaged(&self) -> Option<Pba> {
        match (self.head.whole(), self.tail.whole()) {
            (Some(_), None) => Some(self.places[1]),
            (None, Some(_)) if self.fitting_tail().is_some() => Some(self.places[0]),
            _ => None,
        }
    }
}

/// Reads the copy at `place` (SUPERBLOCK-1).
///
/// # Errors
/// The device fails in another way than that it cannot read the block.
pub(crate) async fn read_copy<D: Device>(device: &D, place: Pba) -> Result<Copy, DeviceError> {
    // What one read finds sealed is sealed, though another failed.
    let sealed = Cell::new(None);
    let decode = |block: &[u8]| {
        Superblock::decode(block)
            .inspect_err(|error| sealed.set(is_sealed(*error).then_some(*error).or(sealed.get())))
    };
    Ok(match copies::read_copy(device, place, decode).await? {
        copies::Copy::Whole { value, .. } => Copy::Whole(value),
        copies::Copy::Blank => Copy::Damaged(DecodeError::Magic),
        copies::Copy::Damaged(error) => Copy::Damaged(error),
        copies::Copy::Unreadable(error) => match sealed.get() {
            Some(sealed) => Copy::Damaged(sealed),
            None => Copy::Unreadable(error),
        },
    })
}

/// Returns whether a block that is not understood is as a program wrote it.
fn is_sealed(error: DecodeError) -> bool {
    matches!(error, DecodeError::Version(_) | DecodeError::Unknown(_) | DecodeError::Field(_))
}

/// Reads the superblock of a formatted device, from whichever copy is whole. If both are, and one names a cluster, that
/// one counts (CLUSTER-2). Whether the start has become someone else's is for [`crate::probe`] to tell.
///
/// # Errors
/// There is none, the device has shrunk, or it cannot be read.
pub async fn read_superblock<D: Device>(device: &D) -> Result<Superblock, OpenError> {
    Copies::read(device).await?.counting()
}

/// Rewrites the copy that is not whole, if there is one, from its twin (SUPERBLOCK-4), which is `known`
/// except for the cluster. Returns whether it was written: it is for the caller to flush.
///
/// # Errors
/// The device fails.
pub(crate) async fn mend<D: Device>(device: &D, known: &Superblock) -> Result<bool, DeviceError> {
    let copies = Copies::read(device).await?;
    let Some(place) = copies.damaged() else { return Ok(false) };
    let (damaged, twin) = if place == copies.places[0] {
        (copies.head, copies.tail)
    } else {
        (copies.tail, copies.head)
    };
    let is_known = |twin: &Superblock| Superblock { cluster: known.cluster, ..*twin } == *known;
    let Some(twin) = twin.whole().filter(is_known) else { return Ok(false) };
    if damaged.is_sealed() {
        return Ok(false);
    }
    if let Ok(block) = device.read(place, Buffer::new(1)).await
        && foreign_signature(block.as_bytes()).is_some()
    {
        return Ok(false);
    }
    device.write(place, encoded(&twin)).await?;
    Ok(true)
}

/// Writes one copy, durably.
pub(crate) async fn write<D: Device>(
    device: &D,
    superblock: &Superblock,
    place: Pba,
) -> Result<(), DeviceError> {
    device.write(place, encoded(superblock)).await?;
    device.flush().await
}

fn encoded(superblock: &Superblock) -> BufferSlice {
    let mut block = Buffer::new(1);
    superblock.encode(block.as_mut_bytes());
    block.into_slice()
}
