//! CRC-32C (Castagnoli), the one checksum of farflash: NVMe/TCP header and data digests, the
//! checksum beside every block pointer, and the seal of every on-disk structure.
//!
//! Because a block's stored checksum and the digest of a one-block PDU are the same number, it is
//! computed once. [`append_block`] extends that to PDUs of many blocks without touching the data.
//!
//! Absent from this crate: I/O, allocation.

mod prefetch;
mod shift;
mod streaming;

#[cfg(target_arch = "x86_64")]
mod folds;
#[cfg(target_arch = "x86_64")]
mod lanes;

pub use prefetch::{Lines, prefetch};
pub use streaming::{copy_to_memory, crc32c_copy_to_memory};

use shift::{ShiftTable, shift, shift_table};

/// Bytes whose checksum [`append_block`] can append: one block.
const BLOCK_SIZE: usize = 4096;
/// Bytes that the C library copies without the string instructions, which take many times as long
/// where source and target lie unluckily to each other.
const COPY_PIECE: usize = 1024;

/// CRC-32C of `bytes`, as NVMe, iSCSI and RFC 3720 define it (reflected, inverted at both ends).
#[inline]
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    !update(!0, bytes)
}

/// CRC-32C of `bytes`, while `next`, of which it will be asked next and which is no longer, is
/// brought into the processor's second-level cache: memory is nearly as slow as the sum, and so
/// both take little longer than one.
///
/// Without lanes (`lanes.rs`), a `next` that directly follows `bytes` is not prefetched: the processor
/// does that for a sequential reader. Nothing is prefetched for much less than a block.
#[inline]
#[must_use]
pub fn crc32c_ahead(bytes: &[u8], next: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if folds::are_possible() {
        let is_foreseen = next.as_ptr() == bytes.as_ptr_range().end;
        let lines = if is_foreseen { Lines::NONE } else { Lines::of(next) };
        // SAFETY: they are possible.
        return !unsafe { folds::update(!0, bytes, lines) };
    } else if lanes::are_possible() {
        // SAFETY: they are possible.
        return !unsafe { lanes::update(!0, bytes, Lines::of(next)) };
    }
    let _ = next;
    crc32c(bytes)
}

/// The register after `bytes`, by the fastest way that there is.
#[inline]
fn update(register: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if folds::are_possible() {
        // SAFETY: they are possible.
        return unsafe { folds::update(register, bytes, Lines::NONE) };
    } else if lanes::are_possible() {
        // SAFETY: they are possible.
        return unsafe { lanes::update(register, bytes, Lines::NONE) };
    }
    update_portably(register, bytes)
}

/// The register after `source`, which is copied to `target`, of the same length.
#[inline]
fn update_and_copy(register: u32, source: &[u8], target: &mut [u8]) -> u32 {
    assert_eq!(source.len(), target.len(), "a copy has the length of its source");
    #[cfg(target_arch = "x86_64")]
    if folds::are_possible() {
        // SAFETY: they are possible.
        return unsafe { folds::update_and_copy(register, source, target) };
    } else if lanes::are_possible() {
        // SAFETY: they are possible.
        return unsafe { lanes::update_and_copy(register, source, target) };
    }
    copy(source, target);
    update_portably(register, target)
}

fn update_portably(register: u32, bytes: &[u8]) -> u32 {
    let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
    let mut digest = crc_fast::Digest::new_with_init_state(algorithm, u64::from(register));
    digest.update(bytes);
    !u32::try_from(digest.finalize()).expect("a 32-bit checksum")
}

/// Each whole block in `bytes` with the one after it, which is `next` for the last: what [`crc32c_ahead`] takes.
pub fn blocks_with_next<'a>(
    bytes: &'a [u8],
    next: &'a [u8],
) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    let blocks = bytes.chunks_exact(BLOCK_SIZE);
    let after = blocks.clone().skip(1).chain([next]);
    blocks.zip(after)
}

/// CRC-32C of each whole block in `bytes`, which need not be in a cache.
pub fn crc32c_of_blocks(bytes: &[u8]) -> impl Iterator<Item = u32> {
    blocks_with_next(bytes, &[]).map(|(block, next)| crc32c_ahead(block, next))
}

/// Copies `source` to `target`, and returns its CRC-32C: cheaper than one after the other.
///
/// Panics if they differ in length.
#[must_use]
pub fn crc32c_copy(source: &[u8], target: &mut [u8]) -> u32 {
    let mut digest = Crc32c::new();
    digest.update_and_copy(source, target);
    digest.value()
}

/// Copies `source` to `target`, at the same speed however they lie to each other in memory.
///
/// Panics if they differ in length.
pub fn copy(source: &[u8], target: &mut [u8]) {
    assert_eq!(source.len(), target.len(), "a copy has the length of its source");
    for (source, target) in source.chunks(COPY_PIECE).zip(target.chunks_mut(COPY_PIECE)) {
        target.copy_from_slice(source);
    }
}

/// A checksum over bytes that come in pieces.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c {
    /// The checksum so far, inverted.
    register: u32,
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// The checksum of no bytes yet.
    #[must_use]
    pub fn new() -> Self {
        Self { register: !0 }
    }

    /// Takes in the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.register = update(self.register, bytes);
    }

    /// Takes in the next piece and copies it to `target`. Panics if they differ in length.
    pub fn update_and_copy(&mut self, source: &[u8], target: &mut [u8]) {
        self.register = update_and_copy(self.register, source, target);
    }

    /// Takes in a block whose own checksum is known.
    pub fn append_block(&mut self, block: u32) {
        self.register = !append_block(self.value(), block);
    }

    /// CRC-32C of all pieces so far.
    #[must_use]
    pub fn value(&self) -> u32 {
        !self.register
    }
}

/// CRC-32C of `a` followed by one block, from the CRC-32C of `a` and of the block alone.
///
/// Appending 4096 bytes multiplies the checksum so far, as a polynomial over GF(2), by x^(8·4096):
/// a linear map, looked up byte by byte.
#[inline]
#[must_use]
pub fn append_block(a: u32, block: u32) -> u32 {
    shift(&SHIFT_BLOCK, a) ^ block
}

static SHIFT_BLOCK: ShiftTable = shift_table(BLOCK_SIZE);

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, appendix B.4.
    #[test]
    fn known_answers() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
    }

    /// Every way to the sum agrees with the polynomial division itself.
    ///
    /// Method: all lengths around the lanes' ends, at starts of every alignment.
    #[test]
    fn every_way_gives_the_same_sum() {
        let bytes: Vec<u8> = (0..9_000u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
        let lengths = (0..40).chain(496..520).chain(4070..4110).chain([1000, 8160, 8192, 8900]);
        for (len, start) in lengths.flat_map(|len| (0..9).map(move |start| (len, start))) {
            let part = &bytes[start..start + len];
            let expected = bit_by_bit(part);
            assert_eq!(crc32c(part), expected, "{len} bytes at {start}");
            assert_eq!(crc32c_ahead(part, &bytes), expected, "{len} bytes at {start}");
            assert_eq!(crc32c_ahead(part, &[]), expected, "{len} bytes at {start}");
            let mut target = vec![0xA5; len];
            assert_eq!(crc32c_copy(part, &mut target), expected, "{len} bytes at {start}");
            assert!(target == part, "{len} bytes at {start}");
            let (first, second) = part.split_at(len / 3);
            for way in ways() {
                let sum = !way(way(!0, first), second);
                assert_eq!(sum, expected, "{len} bytes at {start}");
            }
            target.fill(0);
            copy(part, &mut target);
            assert!(target == part, "{len} bytes at {start}");
        }
    }

    type Way = fn(u32, &[u8]) -> u32;

    /// All that are possible here, also those that are not the fastest.
    fn ways() -> Vec<Way> {
        let mut ways: Vec<Way> = vec![update_portably];
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: only where they are possible.
            let in_lanes: Way =
                |register, bytes| unsafe { lanes::update(register, bytes, Lines::NONE) };
            let in_lanes_and_copied: Way = |register, bytes| {
                let mut target = vec![0; bytes.len()];
                // SAFETY: only where they are possible.
                let register = unsafe { lanes::update_and_copy(register, bytes, &mut target) };
                assert!(target == bytes, "{} bytes", bytes.len());
                register
            };
            // SAFETY: only where they are possible.
            let folded: Way =
                |register, bytes| unsafe { folds::update(register, bytes, Lines::NONE) };
            ways.extend(
                [in_lanes, in_lanes_and_copied].into_iter().filter(|_| lanes::are_possible()),
            );
            ways.extend([folded].into_iter().filter(|_| folds::are_possible()));
        }
        ways
    }

    fn bit_by_bit(bytes: &[u8]) -> u32 {
        let register = bytes.iter().fold(!0u32, |register, byte| {
            (0..8).fold(register ^ u32::from(*byte), |register, _| {
                (register >> 1) ^ if register & 1 == 0 { 0 } else { 0x82F6_3B78 }
            })
        });
        !register
    }

    #[test]
    fn pieces_sum_to_the_whole() {
        let bytes: Vec<u8> = (0..10_000u32).map(|i| ((i * 7) >> 2) as u8).collect();
        for cut in [0, 1, 63, 64, 4096, 9_999, 10_000] {
            let mut pieces = Crc32c::new();
            pieces.update(&bytes[..cut]);
            pieces.update(&bytes[cut..]);
            assert_eq!(pieces.value(), crc32c(&bytes), "cut at {cut}");
        }
    }

    #[test]
    fn blocks_whose_sums_are_known_are_taken_in_between_pieces() {
        let bytes: Vec<u8> =
            (0..2 * BLOCK_SIZE as u32 + 99).map(|i| (i.wrapping_mul(i) >> 4) as u8).collect();
        for head in [0, 1, 99] {
            let (before, rest) = bytes.split_at(head);
            let (block, after) = rest.split_at(BLOCK_SIZE);
            let mut digest = Crc32c::default();
            digest.update(before);
            digest.append_block(crc32c(block));
            digest.update(after);
            assert_eq!(digest.value(), crc32c(&bytes), "{head} bytes before the block");
        }
    }

    #[test]
    fn each_block_has_its_sum() {
        let bytes: Vec<u8> = (0..4 * BLOCK_SIZE as u32 + 7).map(|i| ((i * i) >> 5) as u8).collect();
        let expected: Vec<u32> = bytes.chunks_exact(BLOCK_SIZE).map(crc32c).collect();
        assert_eq!(crc32c_of_blocks(&bytes).collect::<Vec<_>>(), expected);
        assert_eq!(crc32c_of_blocks(&[]).count(), 0);
    }

    #[test]
    fn blocks_join_without_their_bytes() {
        let bytes: Vec<u8> =
            (0..3 * BLOCK_SIZE as u32).map(|i| (i.wrapping_mul(i) >> 5) as u8).collect();
        let joined = bytes[BLOCK_SIZE..]
            .chunks(BLOCK_SIZE)
            .fold(crc32c(&bytes[..BLOCK_SIZE]), |sum, block| append_block(sum, crc32c(block)));
        assert_eq!(joined, crc32c(&bytes));
    }
}
