//! An owner mark: the process that serves a device now. It renews the mark, so that another one that
//! opens the same device by another path (a loop device, a partition's disk, another machine) sees
//! that the device is in use, which a lock on a file cannot tell it.

use alloc::string::String;
use core::mem::{offset_of, size_of};

use units::BLOCK_SIZE;
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{DecodeError, HOST_NAME_BYTES_MAX, seal, sealed};

const OWNER_MARK_MAGIC: [u8; 4] = *b"FOM1";

/// Owner mark, format 1. Integers are little-endian; byte ranges are given per field.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct OwnerMarkHeader {
    /// 0..4: `FOM1`.
    magic: [u8; 4],
    /// 4..8: CRC-32C of bytes 8..4096, padding included.
    crc32c: U32,
    /// 8..24: identity of the device.
    device: [u8; 16],
    /// 24..40: identity of the owner, new with every start.
    instance: [u8; 16],
    /// 40..48: one more with every renewal.
    renewals: U64,
    /// 48..64: the boot of the machine that the owner runs on.
    boot: [u8; 16],
    /// 64..72: its process there.
    pid: U64,
    /// 72..80: when that process began, in clock ticks since the boot.
    began: U64,
    /// 80..88: the namespace in which the process has that number.
    namespace: U64,
    /// 88..96: time of day of the renewal, in seconds since 1970 UTC.
    seconds: U64,
    /// 96..98: bytes of the machine's name, which follow.
    name_bytes: U16,
}

const _: () = {
    assert!(size_of::<OwnerMarkHeader>() == 98);
    assert!(size_of::<OwnerMarkHeader>() + HOST_NAME_BYTES_MAX <= BLOCK_SIZE);
    assert!(offset_of!(OwnerMarkHeader, boot) == 48 && offset_of!(OwnerMarkHeader, pid) == 64);
};

/// The process that serves a device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OwnerMark {
    /// Identity of the device. A mark of another one was left behind by an earlier format.
    pub device: Uuid,
    /// Identity of the owner, new with every start.
    pub instance: Uuid,
    /// Counts the renewals.
    pub renewals: u64,
    /// The boot of its machine.
    pub boot: Uuid,
    /// Its process there.
    pub pid: u64,
    /// When that process began, in clock ticks since the boot.
    pub began: u64,
    /// The namespace in which the process has that number.
    pub namespace: u64,
    /// Time of day of the renewal, in seconds since 1970 UTC.
    pub seconds: u64,
    /// The name of its machine, at most [`HOST_NAME_BYTES_MAX`] bytes: for messages only.
    pub host_name: String,
}

impl OwnerMark {
    /// Fills one block.
    ///
    /// # Panics
    /// The name is too long.
    pub fn encode(&self, block: &mut [u8]) {
        let name = self.host_name.as_bytes();
        assert!(name.len() <= HOST_NAME_BYTES_MAX, "checked by the code that made this");
        let header = OwnerMarkHeader {
            magic: OWNER_MARK_MAGIC,
            crc32c: U32::ZERO,
            device: self.device.into_bytes(),
            instance: self.instance.into_bytes(),
            renewals: self.renewals.into(),
            boot: self.boot.into_bytes(),
            pid: self.pid.into(),
            began: self.began.into(),
            namespace: self.namespace.into(),
            seconds: self.seconds.into(),
            name_bytes: U16::new(u16::try_from(name.len()).expect("checked above")),
        };
        block.fill(0);
        let (head, rest) = block.split_at_mut(size_of::<OwnerMarkHeader>());
        head.copy_from_slice(header.as_bytes());
        rest[..name.len()].copy_from_slice(name);
        seal(block, 4);
    }

    /// Reads one block.
    ///
    /// # Errors
    /// No owner mark, or a damaged one.
    pub fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let (header, rest) =
            OwnerMarkHeader::ref_from_prefix(block).map_err(|_| DecodeError::Short)?;
        if header.magic != OWNER_MARK_MAGIC {
            return Err(DecodeError::Magic);
        }
        if !sealed(block, 4) {
            return Err(DecodeError::Checksum);
        }
        let bytes = usize::from(header.name_bytes.get());
        let name = rest.get(..bytes).filter(|_| bytes <= HOST_NAME_BYTES_MAX);
        let name = name.and_then(|name| core::str::from_utf8(name).ok());
        Ok(Self {
            device: Uuid::from_bytes(header.device),
            instance: Uuid::from_bytes(header.instance),
            renewals: header.renewals.get(),
            boot: Uuid::from_bytes(header.boot),
            pid: header.pid.get(),
            began: header.began.get(),
            namespace: header.namespace.get(),
            seconds: header.seconds.get(),
            host_name: name.ok_or(DecodeError::Field("owner mark host name"))?.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> OwnerMark {
        OwnerMark {
            device: Uuid::from_bytes([1; 16]),
            instance: Uuid::from_bytes([2; 16]),
            renewals: 0x0102_0304,
            boot: Uuid::from_bytes([3; 16]),
            pid: 0x0506,
            began: 0x0708,
            namespace: 0x090a,
            seconds: 0x0b0c,
            host_name: "flash-1".into(),
        }
    }

    #[test]
    fn an_owner_mark_has_its_bytes_where_the_format_has_them_and_notices_a_flipped_bit() {
        let mut block = [0xff; BLOCK_SIZE];
        mark().encode(&mut block);
        assert_eq!(block[..4], *b"FOM1");
        assert_eq!((block[8], block[24], block[40], block[48]), (1, 2, 4, 3));
        assert_eq!((block[64], block[72], block[80], block[88], block[96]), (6, 8, 10, 12, 7));
        assert_eq!(block[98..105], *b"flash-1");
        assert!(block[105..].iter().all(|byte| *byte == 0));
        assert_eq!(OwnerMark::decode(&block), Ok(mark()));
        for at in [0, 4, 8, 40, 98, 4095] {
            block[at] ^= 1;
            assert!(OwnerMark::decode(&block).is_err(), "byte {at}");
            block[at] ^= 1;
        }
    }

    #[test]
    fn a_name_that_does_not_fit_is_damage() {
        let mut block = [0; BLOCK_SIZE];
        mark().encode(&mut block);
        block[96..98].copy_from_slice(&256_u16.to_le_bytes());
        seal(&mut block, 4);
        assert_eq!(OwnerMark::decode(&block), Err(DecodeError::Field("owner mark host name")));
    }
}
