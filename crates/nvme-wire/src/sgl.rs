//! SGL descriptors: where a command's data is (Base, clause 4.3.2; TCP, clause 3.5).

use core::mem::size_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A 16-byte SGL descriptor. NVMe/TCP uses two forms: data in the capsule at an offset, and data
/// that the transport moves.
#[derive(
    Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SglDescriptor {
    /// 0..8: address, or offset into the capsule's data.
    pub address: U64,
    /// 8..12: length in bytes.
    pub length: U32,
    /// 12..15: reserved (a key in keyed descriptors).
    pub reserved: [u8; 3],
    /// 15: SGL Identifier: type in bits 7:4, subtype in bits 3:0.
    pub identifier: u8,
}

const _: () = assert!(size_of::<SglDescriptor>() == 16);

/// The meaning of an SGL descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SglForm {
    /// Data Block with subtype Offset (01h): data inside the capsule.
    InCapsule {
        /// Offset from the start of in-capsule data.
        offset: u64,
        /// Number of bytes.
        length: u32,
    },
    /// Transport SGL Data Block (5Ah): moved by R2T and H2CData, or C2HData.
    Transport {
        /// Number of bytes.
        length: u32,
    },
    /// A descriptor that exists but that NVMe/TCP does not use.
    Other {
        /// The SGL Identifier.
        identifier: u8,
    },
}

impl SglDescriptor {
    /// Data Block with subtype Address.
    pub const DATA_BLOCK_ADDRESS: u8 = 0x00;
    /// Data Block with subtype Offset.
    pub const DATA_BLOCK_OFFSET: u8 = 0x01;
    /// Keyed Data Block with subtype Address (RDMA).
    pub const KEYED_DATA_BLOCK: u8 = 0x40;
    /// Transport Data Block with subtype Transport.
    pub const TRANSPORT_DATA_BLOCK: u8 = 0x5A;
    /// Byte offset of DPTR in a submission queue entry.
    pub const OFFSET_IN_SQE: u8 = 24;

    /// No data: sixteen zero bytes.
    pub const NONE: Self =
        Self { address: U64::ZERO, length: U32::ZERO, reserved: [0; 3], identifier: 0 };

    /// `length` bytes of in-capsule data from its start.
    #[must_use]
    pub fn in_capsule(length: u32) -> Self {
        Self { length: length.into(), identifier: Self::DATA_BLOCK_OFFSET, ..Self::NONE }
    }

    /// `length` bytes that the transport moves.
    #[must_use]
    pub fn transport(length: u32) -> Self {
        Self { length: length.into(), identifier: Self::TRANSPORT_DATA_BLOCK, ..Self::NONE }
    }

    /// The meaning of the descriptor.
    #[must_use]
    pub fn form(&self) -> SglForm {
        let length = self.length.get();
        match self.identifier {
            Self::DATA_BLOCK_OFFSET => SglForm::InCapsule { offset: self.address.get(), length },
            Self::TRANSPORT_DATA_BLOCK => SglForm::Transport { length },
            identifier => SglForm::Other { identifier },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_match_the_golden_bytes() {
        let in_capsule = SglDescriptor::in_capsule(0x1000);
        #[rustfmt::skip]
        assert_eq!(in_capsule.as_bytes(), [
            0, 0, 0, 0, 0, 0, 0, 0,  0x00, 0x10, 0, 0,  0, 0, 0, 0x01,
        ]);
        assert_eq!(in_capsule.form(), SglForm::InCapsule { offset: 0, length: 0x1000 });
        let transport = SglDescriptor::transport(0x2000);
        #[rustfmt::skip]
        assert_eq!(transport.as_bytes(), [
            0, 0, 0, 0, 0, 0, 0, 0,  0x00, 0x20, 0, 0,  0, 0, 0, 0x5A,
        ]);
        assert_eq!(transport.form(), SglForm::Transport { length: 0x2000 });
    }
}
