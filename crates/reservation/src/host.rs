//! Hosts that can register.

use alloc::string::String;

/// Most bytes of an iSCSI name (RFC 7143, clause 4.2.7.1).
pub const ISCSI_NAME_BYTES_MAX: usize = 223;

/// A host, as its protocol tells it from others.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Host {
    /// An NVMe host, by its Host Identifier.
    Nvme([u8; 16]),
    /// An iSCSI initiator port.
    Iscsi {
        /// The initiator's name, at most [`ISCSI_NAME_BYTES_MAX`] bytes.
        name: String,
        /// The initiator's part of the session identifier.
        isid: [u8; 6],
    },
}

/// The parameters of FNV-1a with 128 bits.
const FNV_OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const FNV_PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

impl Host {
    /// Returns 16 bytes that stand for the host where a protocol has no room for more. Only those of NVMe hosts are their
    /// identity; no rule depends on the others.
    #[must_use]
    pub fn short_id(&self) -> [u8; 16] {
        match self {
            Self::Nvme(id) => *id,
            Self::Iscsi { name, isid } => {
                let bytes = name.bytes().chain([0]).chain(*isid);
                let add = |hash: u128, byte| (hash ^ u128::from(byte)).wrapping_mul(FNV_PRIME);
                bytes.fold(FNV_OFFSET, add).to_be_bytes()
            }
        }
    }
}
