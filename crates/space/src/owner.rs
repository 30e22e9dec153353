//! The owner of a block.

use std::fmt;

/// The owner of a block.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Owner {
    /// A tenant's block.
    Data {
        /// Volume number.
        volume: u32,
        /// The block's address in the volume.
        lba: u64,
    },
    /// A node of a volume's map.
    Node {
        /// Volume number.
        volume: u32,
    },
    /// A volume's descriptor.
    Descriptor {
        /// Volume number.
        volume: u32,
    },
    /// A node of the extent table or the volume table.
    Table,
    /// The journal.
    Journal,
    /// A bitmap slot.
    Bitmap,
}

impl Owner {
    /// The volume that it is of.
    #[must_use]
    pub fn volume(self) -> Option<u32> {
        match self {
            Self::Data { volume, .. } | Self::Node { volume } | Self::Descriptor { volume } => {
                Some(volume)
            }
            Self::Table | Self::Journal | Self::Bitmap => None,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data { volume, lba } => write!(f, "block {lba} of volume {volume}"),
            Self::Node { volume } => write!(f, "the map of volume {volume}"),
            Self::Descriptor { volume } => write!(f, "the descriptor of volume {volume}"),
            Self::Table => f.write_str("the extent or volume table"),
            Self::Journal => f.write_str("the journal"),
            Self::Bitmap => f.write_str("the bitmaps"),
        }
    }
}
