//! The problems that a device can have, and their repairs.

use std::fmt;

use layout::DecodeError;
use units::Pba;
use uuid::Uuid;

use crate::check::MAPPED_BLOCKS;
use crate::shard::Loss;
use crate::{Finding, OpenError, VolumeError};

/// Something that is not as it should be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fault {
    /// Its location, if it has a single one.
    pub pba: Option<Pba>,
    /// In which shard.
    pub shard: Option<u16>,
    /// In which volume.
    pub volume: Option<(Uuid, String)>,
    /// The problem.
    pub problem: Problem,
}

/// A problem.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Problem {
    /// One of the two superblocks is damaged.
    Superblock(DecodeError),
    /// A copy of a shard's root is damaged. `twin`: the other one is whole.
    Root {
        /// True if the other copy is whole.
        twin: bool,
    },
    /// A copy of a shard's root cannot be read, and the journal continues from a newer root than
    /// all others. That root is lost unless the copy can be read later (FSCK-5).
    NewestRoot,
    /// A bitmap is damaged; what it said follows from the maps.
    Bitmap {
        /// The extent.
        extent: u32,
    },
    /// The table of the shard's extents is damaged; what it said follows from the maps.
    Extents,
    /// Something is damaged that follows from nothing else.
    Lost(Loss),
    /// The shard cannot be opened.
    Unopened(OpenError),
    /// Something in it does not fit.
    Check(Finding),
}

/// A repair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Repair {
    /// Rewrite the superblock from its other copy.
    Superblock,
    /// Rewrite the root's copy from the other one.
    Root,
    /// Give the root up that cannot be read, and go on from the one before. Needs consent.
    GoBack,
    /// Rebuild the bitmaps from the maps.
    Bitmaps,
    /// Rebuild the table of extents, and the bitmaps, from the maps.
    Extents,
    /// Recount the mapped blocks of the volume.
    Counts,
    /// Take the unreadable node out of the map: what it described reads as zeroes afterwards. Needs
    /// consent.
    GiveUpNode,
    /// Take out volumes of which nothing can be found any more. Needs consent.
    GiveUpVolume,
    /// Let the journal end before the damaged record: changes from there on are lost. Needs consent.
    CutJournal,
}

impl Repair {
    /// Returns whether the repair loses data that hosts have written, and so needs consent.
    #[must_use]
    pub fn loses_data(self) -> bool {
        match self {
            Self::Superblock | Self::Root | Self::Bitmaps | Self::Extents | Self::Counts => false,
            Self::GoBack | Self::GiveUpNode | Self::GiveUpVolume | Self::CutJournal => true,
        }
    }
}

impl Problem {
    /// Returns the repair that [`repair`](super::repair) would make.
    #[must_use]
    pub fn repair(&self) -> Option<Repair> {
        match self {
            Self::Superblock(_) => Some(Repair::Superblock),
            Self::Root { twin: true } => Some(Repair::Root),
            Self::NewestRoot => Some(Repair::GoBack),
            Self::Bitmap { .. }
            | Self::Check(Finding::Leaked { .. } | Finding::NotInUse { .. }) => {
                Some(Repair::Bitmaps)
            }
            Self::Extents => Some(Repair::Extents),
            Self::Check(Finding::Count { what: MAPPED_BLOCKS, .. }) => Some(Repair::Counts),
            Self::Lost(Loss::Node { .. })
            | Self::Check(Finding::Unreadable(VolumeError::CorruptMap { .. })) => {
                Some(Repair::GiveUpNode)
            }
            Self::Lost(Loss::Volume { .. } | Loss::Volumes { .. }) => Some(Repair::GiveUpVolume),
            Self::Lost(Loss::Journal { .. }) => Some(Repair::CutJournal),
            Self::Root { .. } | Self::Unopened(_) | Self::Check(_) => None,
        }
    }

    /// Returns whether more than a tenant's block is damaged and no repair exists. A damaged root
    /// is overwritten by the next checkpoint but one; a shard without another root is a problem of
    /// its own.
    #[must_use]
    pub fn is_beyond_repair(&self) -> bool {
        let is_other = matches!(
            self,
            Self::Check(Finding::Unreadable(_) | Finding::LeftOut { .. }) | Self::Root { .. }
        );
        self.repair().is_none() && !is_other
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock(error) => write!(f, "superblock: {error}"),
            Self::Root { twin: true } => write!(f, "a copy of the root is damaged"),
            Self::Root { .. } => write!(
                f,
                "both copies of a root are damaged: a server goes on from the other root, and rewrites this one"
            ),
            Self::NewestRoot => {
                write!(f, "the newest root cannot be read: copied to a sound device it may be")
            }
            Self::Bitmap { extent } => write!(f, "the bitmap of extent {extent} is damaged"),
            Self::Extents => write!(f, "the table of extents is damaged"),
            Self::Lost(loss) => loss.fmt(f),
            Self::Unopened(error) => error.fmt(f),
            Self::Check(finding) => finding.fmt(f),
        }
    }
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Superblock => "rewrite the superblock from its other copy",
            Self::Root => "rewrite the copy of the root from the other one",
            Self::GoBack => {
                "give it up and go on from the root before: later changes are lost then"
            }
            Self::Bitmaps => "rebuild the bitmaps from the maps",
            Self::Extents => "rebuild the table of extents and the bitmaps from the maps",
            Self::Counts => "recount the mapped blocks of the volume",
            Self::GiveUpNode => {
                "take the unreadable node out of the map: its blocks read as zeroes then"
            }
            Self::GiveUpVolume => "take out the volumes of which nothing can be found any more",
            Self::CutJournal => {
                "let the journal end before the damaged record: later changes are lost then"
            }
        })
    }
}
