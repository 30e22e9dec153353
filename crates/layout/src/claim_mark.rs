//! A claim mark: the last claim of the device's cluster under which the device was served.
//!
//! The hosts of a cluster agree in a directory on the host that serves a device. A directory that
//! is restored from a backup forgets claims; the device does not. Two copies lie between the roots
//! and the first extent.

use alloc::string::String;
use core::mem::{offset_of, size_of};

use units::BLOCK_SIZE;
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{COUNT_MAX, DecodeError, seal, sealed};

const CLAIM_MARK_MAGIC: [u8; 4] = *b"FCM1";
/// Longest name of a host, in bytes.
pub const HOST_NAME_BYTES_MAX: usize = 255;

/// Claim mark, format 1. Integers are little-endian; byte ranges are given per field.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ClaimMarkHeader {
    /// 0..4: `FCM1`.
    magic: [u8; 4],
    /// 4..8: CRC-32C of bytes 8..4096, padding included.
    crc32c: U32,
    /// 8..24: identity of the device.
    device: [u8; 16],
    /// 24..40: identity of the cluster.
    cluster: [u8; 16],
    /// 40..48: one more with every claim.
    number: U64,
    /// 48..64: identity of the host.
    host: [u8; 16],
    /// 64..66: bytes of the host's name, which follow.
    name_bytes: U16,
}

const _: () = {
    assert!(size_of::<ClaimMarkHeader>() == 66);
    assert!(size_of::<ClaimMarkHeader>() + HOST_NAME_BYTES_MAX <= BLOCK_SIZE);
    assert!(offset_of!(ClaimMarkHeader, number) == 40 && offset_of!(ClaimMarkHeader, host) == 48);
};

/// Under which claim a device was served last.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ClaimMark {
    /// Identity of the device. A mark of another one was left behind by an earlier format.
    pub device: Uuid,
    /// The cluster whose claim it is. If the device belongs to another one, or to none, the mark says nothing.
    pub cluster: Uuid,
    /// Counts the claims of the device in that cluster, from 1, at most [`COUNT_MAX`].
    pub number: u64,
    /// The host.
    pub host: Uuid,
    /// Its name, at most [`HOST_NAME_BYTES_MAX`] bytes: for messages only.
    pub host_name: String,
}

impl ClaimMark {
    /// Fills one block.
    ///
    /// # Panics
    /// The name is too long.
    pub fn encode(&self, block: &mut [u8]) {
        let name = self.host_name.as_bytes();
        assert!(name.len() <= HOST_NAME_BYTES_MAX, "checked by the code that made this");
        let header = ClaimMarkHeader {
            magic: CLAIM_MARK_MAGIC,
            crc32c: U32::ZERO,
            device: self.device.into_bytes(),
            cluster: self.cluster.into_bytes(),
            number: self.number.into(),
            host: self.host.into_bytes(),
            name_bytes: U16::new(u16::try_from(name.len()).expect("checked above")),
        };
        block.fill(0);
        let (head, rest) = block.split_at_mut(size_of::<ClaimMarkHeader>());
        head.copy_from_slice(header.as_bytes());
        rest[..name.len()].copy_from_slice(name);
        seal(block, 4);
    }

    /// Reads one block.
    ///
    /// # Errors
    /// No claim mark, or a damaged one.
    pub fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let (header, rest) =
            ClaimMarkHeader::ref_from_prefix(block).map_err(|_| DecodeError::Short)?;
        if header.magic != CLAIM_MARK_MAGIC {
            return Err(DecodeError::Magic);
        }
        if !sealed(block, 4) {
            return Err(DecodeError::Checksum);
        }
        if !(1..=COUNT_MAX).contains(&header.number.get()) {
            return Err(DecodeError::Field("claim mark number"));
        }
        let bytes = usize::from(header.name_bytes.get());
        let name = rest.get(..bytes).filter(|_| bytes <= HOST_NAME_BYTES_MAX);
        let name = name.and_then(|name| core::str::from_utf8(name).ok());
        Ok(Self {
            device: Uuid::from_bytes(header.device),
            cluster: Uuid::from_bytes(header.cluster),
            number: header.number.get(),
            host: Uuid::from_bytes(header.host),
            host_name: name.ok_or(DecodeError::Field("claim mark host name"))?.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> ClaimMark {
        ClaimMark {
            device: Uuid::from_bytes([1; 16]),
            cluster: Uuid::from_bytes([2; 16]),
            number: 0x0102_0304,
            host: Uuid::from_bytes([3; 16]),
            host_name: "flash-1".into(),
        }
    }

    #[test]
    fn a_claim_mark_has_its_bytes_where_the_format_has_them_and_notices_a_flipped_bit() {
        let mut block = vec![0xA5; BLOCK_SIZE];
        mark().encode(&mut block);
        assert_eq!(block[..4], *b"FCM1");
        assert_eq!((&block[8..24], &block[24..40]), (&[1; 16][..], &[2; 16][..]));
        assert_eq!((&block[40..48], &block[48..64]), (&[4, 3, 2, 1, 0, 0, 0, 0][..], &[3; 16][..]));
        assert_eq!((&block[64..66], &block[66..73]), (&[7, 0][..], &b"flash-1"[..]));
        assert!(block[73..].iter().all(|byte| *byte == 0));
        assert_eq!(ClaimMark::decode(&block), Ok(mark()));
        for byte in 0..BLOCK_SIZE {
            block[byte] ^= 0x10;
            assert!(ClaimMark::decode(&block).is_err(), "byte {byte}");
            block[byte] ^= 0x10;
        }
    }

    /// A mark with impossible values is refused, however well it is sealed.
    #[test]
    fn a_claim_mark_that_cannot_be_is_refused() {
        let refused = |at: usize, bytes: &[u8]| {
            let mut block = vec![0; BLOCK_SIZE];
            mark().encode(&mut block);
            block[at..at + bytes.len()].copy_from_slice(bytes);
            seal(&mut block, 4);
            ClaimMark::decode(&block)
        };
        let (number, name) =
            (DecodeError::Field("claim mark number"), DecodeError::Field("claim mark host name"));
        assert_eq!(refused(40, &[0; 8]), Err(number));
        assert_eq!(refused(40, &[0xFF; 8]), Err(number));
        assert_eq!(refused(64, &[0, 1]), Err(name), "256 bytes");
        assert_eq!(refused(64, &[0xFF, 0xFF]), Err(name), "beyond the block");
        assert_eq!(refused(66, &[0xFF]), Err(name), "not UTF-8");
        assert_eq!(ClaimMark::decode(&[0; 65]), Err(DecodeError::Short));
        assert_eq!(ClaimMark::decode(&[0; BLOCK_SIZE]), Err(DecodeError::Magic));
    }
}
