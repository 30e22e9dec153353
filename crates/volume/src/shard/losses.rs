//! Damage that cannot be rebuilt from other data, and what is lost with it.
//!
//! - LOSS-1: a damaged descriptor costs its volume and nothing else. The shard is opened without
//!   it; its blocks stay in use, and records of the journal that concern it are passed over. If
//!   there were any, what leads to the descriptor is spoilt, so that an older state of the volume
//!   never comes back.
//! - LOSS-2: what costs acknowledged changes of volumes that are there keeps the shard from being
//!   opened, unless the caller consents, as a repair does. That is a damaged record of the journal,
//!   a damaged node of the volume table, and a damaged node of a map that records lead to.
//! - LOSS-3: of a journal that is cut off, all that is left is taken to be on the media. What is
//!   not is then an error for its reader, and not an older state.

use std::fmt;

use io_traits::Device;
use layout::Mapping;
use situations::{Situation, situation};
use units::{Lba, Pba};

use super::Inner;
use crate::state::VolumeState;
use crate::{OpenError, VolumeError};

/// Lost data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Loss {
    /// A volume: its descriptor is damaged.
    Volume {
        /// Its number.
        number: u32,
        /// Location of the descriptor.
        pba: Pba,
    },
    /// The volumes of a damaged node of the volume table.
    Volumes {
        /// Location of the node.
        pba: Pba,
    },
    /// The part of a volume's map below a damaged node to which the journal leads.
    Node {
        /// Number of the volume.
        volume: u32,
        /// A block that the node describes, or would.
        lba: Lba,
        /// Location of the node.
        pba: Pba,
    },
    /// The changes from a damaged record of the journal on.
    Journal {
        /// The record.
        sequence: u64,
        /// Its expected location.
        pba: Pba,
    },
}

impl Loss {
    /// Returns the location of the damage.
    #[must_use]
    pub fn pba(&self) -> Pba {
        match self {
            Self::Volume { pba, .. }
            | Self::Volumes { pba }
            | Self::Node { pba, .. }
            | Self::Journal { pba, .. } => *pba,
        }
    }

    /// Returns whether blocks of unknown owners stay in use.
    fn hides_blocks(&self) -> bool {
        !matches!(self, Self::Journal { .. })
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume { number, pba } => {
                write!(f, "the descriptor of volume {number} at {pba} is damaged")
            }
            Self::Volumes { pba } => write!(f, "the node of the volume table at {pba} is damaged"),
            Self::Node { volume, lba, pba } => {
                write!(f, "the map node of volume {volume}, {lba}, at {pba} is damaged")
            }
            Self::Journal { sequence, pba } => {
                write!(f, "journal record {sequence} at {pba} is damaged")
            }
        }
    }
}

impl<D: Device> Inner<D> {
    /// Returns whether blocks of unknown owners are in use.
    pub(crate) fn hides_blocks(&self) -> bool {
        self.read_back.losses().iter().any(Loss::hides_blocks)
    }

    pub(super) fn lose(&self, loss: Loss) {
        self.findings.note_told(loss.pba());
        self.read_back.note_loss(loss);
    }

    /// Returns whether a record concerns a volume that is lost, and is passed over (LOSS-1).
    pub(super) fn passes_over(&self, number: u32) -> bool {
        let is_lost = self.read_back.losses().iter().any(|loss| match loss {
            Loss::Volume { number: lost, .. } => *lost == number,
            Loss::Volumes { .. } => true,
            Loss::Node { .. } | Loss::Journal { .. } => false,
        });
        if is_lost {
            self.read_back.pass_over(number);
        }
        is_lost
    }

    /// The journal was replayed: volumes that it would have changed do not come back (LOSS-1).
    pub(super) fn invalidate_lost_descriptors(&self) {
        let mut tables = self.tables.borrow_mut();
        for number in self.read_back.passed_over().iter().map(|number| u64::from(*number)) {
            let found = tables.volumes.get(number).expect("the volume table is in memory");
            if let Some(Mapping { pba, crc }) = found {
                tables.volumes.insert(number, Mapping { pba, crc: !crc });
            }
        }
    }

    /// Replay needs a node that is damaged. With consent the map goes on without it (LOSS-2).
    pub(super) fn go_on_without(
        &self,
        state: &VolumeState,
        error: &VolumeError,
    ) -> Result<(), OpenError> {
        if self.read_back.allows_data_loss()
            && let VolumeError::CorruptMap { lba, pba } = *error
        {
            let missing = state.map.borrow().get(lba.0).err();
            if let Some(missing) = missing.filter(|missing| missing.pointer.pba == pba) {
                situation(Situation::ReplayGivesNodeUp);
                state.map.borrow_mut().give_up(missing);
                self.lose(Loss::Node { volume: state.number, lba, pba });
                return Ok(());
            }
        }
        Err(self.replay_error(error))
    }
}
