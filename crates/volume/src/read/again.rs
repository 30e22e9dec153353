//! Reads blocks again that do not match.
//!
//! The caller holds the read guard of the first read: the block is still the one that the map
//! named.

use io_traits::{Buffer, BufferSlice, Device};
use layout::Mapping;
use situations::{Situation, situation};
use units::{BLOCK_SIZE, Lba};

use super::{ReadData, check_block};
use crate::VolumeError;
use crate::sabotage::{Sabotage, broken};
use crate::shard::Inner;
use crate::state::VolumeState;

/// A block that is not what it should be.
pub(super) struct Wrong {
    pub(super) lba: Lba,
    pub(super) mapping: Mapping,
    pub(super) computed: u32,
}

/// The position of a block in the data read.
pub(super) struct Place {
    pub(super) piece: usize,
    /// The index of the block in the piece.
    pub(super) index: usize,
}

impl<D: Device> Inner<D> {
    /// The block meant, if a second read gives it; else it is damaged.
    pub(super) async fn read_again(
        &self,
        state: &VolumeState,
        wrong: Wrong,
    ) -> Result<BufferSlice, VolumeError> {
        if broken(Sabotage::ServeByOneRead) {
            return Err(self.found_damaged(state, &wrong));
        }
        let Wrong { lba, mapping, .. } = wrong;
        let block = self.device.read(mapping.pba, Buffer::new(1)).await?;
        match check_block(lba, mapping, block.as_bytes(), &[]) {
            Ok(_) => {
                situation(Situation::BlockReadAgainIsSound);
                Ok(block.into_slice())
            }
            Err(wrong) => {
                situation(Situation::BlockIsDamaged);
                Err(self.found_damaged(state, &wrong))
            }
        }
    }

    /// Puts blocks in the place of those that are wrong.
    pub(super) async fn replace(
        &self,
        state: &VolumeState,
        data: &mut ReadData,
        wrong: Vec<(Wrong, Place)>,
    ) -> Result<(), VolumeError> {
        for (wrong, Place { piece, index }) in wrong {
            let block = self.read_again(state, wrong).await?;
            let mut blocks = Buffer::from_bytes(data.pieces[piece].as_bytes());
            let place = index * BLOCK_SIZE..(index + 1) * BLOCK_SIZE;
            blocks.as_mut_bytes()[place].copy_from_slice(block.as_bytes());
            data.pieces[piece] = blocks.into_slice();
        }
        Ok(())
    }
}
