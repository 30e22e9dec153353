//! The root from which a shard is read back, whether there ever was one, and how one is written (CHECKPOINT-5, CHECKPOINT-6).

use io_traits::{Buffer, BufferSlice, Device, DeviceError};
use layout::{DecodeError, Root, Superblock};
use situations::{Phase, Situation, during, situation};
use units::Pba;

use super::Inner;
use super::checkpoint::{CheckpointError, TRIES_AT_ONCE};
use crate::OpenError;
use crate::copies::{Copy, read_copy};
use crate::format::ROOTS_WRITTEN;
use crate::io::join_all;

/// The generation of a shard's first root.
const FIRST_ROOT: u64 = 1;
/// The generations of the first root of each slot.
const FIRST_ROOTS: u64 = 2;

/// The shards that were ever started: all of them must be recovered before one is started.
///
/// A shard whose roots are damaged is among them: its recovery reports the damage.
///
/// # Errors
/// The device fails in another way than that it cannot read a block.
pub async fn active_shards<D: Device>(
    device: &D,
    superblock: &Superblock,
) -> Result<Vec<u16>, OpenError> {
    let roots = (0..superblock.shard_slots).map(|shard| read_roots(device, superblock, shard));
    let mut active = Vec::new();
    for (shard, roots) in (0..).zip(join_all(roots).await) {
        match roots {
            Ok(Roots { newest: Some(_), .. }) | Err(OpenError::Root(_)) => active.push(shard),
            Ok(Roots { newest: None, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(active)
}

/// The contents of a shard's root places.
pub(super) struct Roots {
    /// The newest that is whole; `None` if the shard was never used.
    pub(super) newest: Option<Root>,
    /// Copies that are damaged, or cannot be read.
    pub(super) damaged: Vec<Pba>,
}

impl Roots {
    /// The first place of a slot of which no copy is whole, though one was written: perhaps that was the newest root, and perhaps
    /// the power went while it was written.
    pub(super) fn lost_slot(&self, superblock: &Superblock, shard: u16) -> Option<Pba> {
        let slots = [0, 1].map(|parity| superblock.root_places(shard, parity));
        let is_lost = |slot: &[Pba; 2]| slot.iter().all(|place| self.damaged.contains(place));
        slots.into_iter().find(is_lost).map(|[first, _]| first)
    }

    /// A damaged copy that may be of a newer root than all that are whole: its twin may be older, as one is that was not written.
    pub(super) fn perhaps_newest(&self, superblock: &Superblock, shard: u16) -> Option<Pba> {
        let places = places_of_next(superblock, shard, self.newest?.generation);
        places.into_iter().find(|place| self.damaged.contains(place))
    }
}

/// Returns the places of the copies of the root that follows the newest whole one.
pub(crate) fn places_of_next(superblock: &Superblock, shard: u16, newest: u64) -> [Pba; 2] {
    superblock.root_places(shard, newest.wrapping_add(1))
}

/// Reads all copies of a shard's roots.
pub(super) async fn read_roots<D: Device>(
    device: &D,
    superblock: &Superblock,
    shard: u16,
) -> Result<Roots, OpenError> {
    let mut newest: Option<Root> = None;
    let (mut zeroes, mut damaged) = (Vec::new(), Vec::new());
    // A slot whose second copy was never written never held a durable root, whatever the first is.
    let mut blank = [false; 2];
    for parity in [0, 1] {
        for place in superblock.root_places(shard, parity) {
            let decode = |block: &[u8]| decode_meant(block, superblock, shard, parity);
            match read_copy(device, place, decode).await? {
                Copy::Blank => {
                    blank[usize::from(parity == 1)] = true;
                    zeroes.push(place);
                }
                Copy::Whole { value, .. }
                    if newest.is_none_or(|it| it.generation < value.generation) =>
                {
                    newest = Some(value);
                }
                Copy::Whole { .. } => {}
                Copy::Damaged(_) | Copy::Unreadable(_) => damaged.push(place),
            }
        }
    }
    if newest.is_none() && blank != [true; 2] {
        return Err(OpenError::Root(shard));
    }
    if newest.is_some_and(|newest| newest.generation >= ROOTS_WRITTEN) {
        damaged.append(&mut zeroes);
    }
    Ok(Roots { newest, damaged })
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

impl<D: Device> Inner<D> {
    /// Writes a root, durably.
    pub(super) async fn write_root(&self, root: &Root) -> Result<(), CheckpointError> {
        let _writing = during(Phase::RootWrite);
        if root.generation == FIRST_ROOT {
            return self.write_root_singly(root).await;
        }
        let (places, block, needed) = self.root_copies(root);
        self.insist(|| self.write_copies(&places, block.clone(), needed)).await?;
        Ok(self.flush_if_volatile().await?)
    }

    /// The same, one copy after the other (CHECKPOINT-6).
    pub(super) async fn write_root_singly(&self, root: &Root) -> Result<(), CheckpointError> {
        let (places, block, _) = self.root_copies(root);
        let (mut is_written, mut refusal) = (false, None);
        for place in places {
            let Err(error) = self.write_copies(&[place], block.clone(), 1).await else {
                self.flush_if_volatile().await?;
                is_written = true;
                continue;
            };
            self.findings.count_device_error();
            // CHECKPOINT-5: one that was written before it came to refuse is not taken for one that never was.
            if root.generation <= FIRST_ROOTS && self.was_never_written(place).await? {
                return Err(error.into());
            }
            refusal = Some(error);
        }
        match refusal {
            Some(error) if !is_written => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn was_never_written(&self, place: Pba) -> Result<bool, DeviceError> {
        let copy = read_copy(&self.device, place, Root::decode).await?;
        Ok(matches!(copy, Copy::Blank))
    }

    /// Returns the places of a root's copies, their block, and how many of them are needed (CHECKPOINT-5).
    fn root_copies(&self, root: &Root) -> ([Pba; 2], BufferSlice, usize) {
        let mut block = Buffer::new(1);
        root.encode(block.as_mut_bytes());
        let places = self.superblock.root_places(self.index, root.generation);
        let needed = if root.generation <= FIRST_ROOTS { places.len() } else { 1 };
        (places, block.into_slice(), needed)
    }

    /// Writes copies of a root, of which so many are `needed` (CHECKPOINT-5).
    async fn write_copies(
        &self,
        places: &[Pba],
        block: BufferSlice,
        needed: usize,
    ) -> Result<(), DeviceError> {
        let write = async |place: Pba| {
            let mut outcome = self.device.write(place, block.clone()).await;
            for _ in 0..TRIES_AT_ONCE {
                if outcome.is_err() {
                    outcome = self.device.write(place, block.clone()).await;
                }
            }
            outcome
        };
        let outcomes = join_all(places.iter().copied().map(write)).await;
        let written = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        match outcomes.into_iter().find_map(Result::err) {
            Some(error) if written < needed => Err(error),
            Some(_) => {
                situation(Situation::RootCopyRefused);
                self.findings.count_device_error();
                Ok(())
            }
            None => Ok(()),
        }
    }
}
