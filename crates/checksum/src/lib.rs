//! CRC-32C (Castagnoli), the one checksum of farflash: NVMe/TCP header and data digests, the
//! checksum beside every block pointer, and the seal of every on-disk structure.
//!
//! Because a block's stored checksum and the digest of a one-block PDU are the same number, it is
//! computed once. [`append_block`] extends that to PDUs of many blocks without touching the data.
//!
//! Absent from this crate: I/O, allocation.

/// Bytes whose checksum [`append_block`] can append: one block.
const BLOCK_SIZE: usize = 4096;

/// CRC-32C of `bytes`, as NVMe, iSCSI and RFC 3720 define it (reflected, inverted at both ends).
#[inline]
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// A checksum over bytes that come in pieces.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c {
    digest: crc_fast::Digest,
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
        Self { digest: crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi) }
    }

    /// Takes in the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    /// CRC-32C of all pieces so far.
    #[must_use]
    pub fn value(&self) -> u32 {
        u32::try_from(self.digest.finalize()).expect("a 32-bit checksum")
    }
}

/// CRC-32C of `a` followed by one block, from the CRC-32C of `a` and of the block alone.
///
/// Appending 4096 bytes multiplies the checksum so far, as a polynomial over GF(2), by x^(8·4096):
/// a linear map, looked up byte by byte.
#[inline]
#[must_use]
pub fn append_block(a: u32, block: u32) -> u32 {
    let [b0, b1, b2, b3] = a.to_le_bytes();
    SHIFT_BLOCK[0][b0 as usize]
        ^ SHIFT_BLOCK[1][b1 as usize]
        ^ SHIFT_BLOCK[2][b2 as usize]
        ^ SHIFT_BLOCK[3][b3 as usize]
        ^ block
}

/// `SHIFT_BLOCK[i][b]`: what byte `i` of a checksum, with value `b`, becomes a block later.
static SHIFT_BLOCK: [[u32; 256]; 4] = shift_block_table();

const POLYNOMIAL_REFLECTED: u32 = 0x82F6_3B78;

/// Multiplies by x^(8·4096) by feeding 4096 zero bytes, bit by bit, for each basis bit.
const fn shift_block_table() -> [[u32; 256]; 4] {
    let mut basis = [0u32; 32];
    // Repeated squaring on the 32 x 32 matrix of "one zero bit" gives 2^15 zero bits = 4096 bytes.
    let mut bit = 0;
    while bit < 32 {
        basis[bit] = if bit == 0 { POLYNOMIAL_REFLECTED } else { 1 << (bit - 1) };
        bit += 1;
    }
    let mut doublings = 0;
    while doublings < (BLOCK_SIZE * 8).trailing_zeros() {
        let mut squared = [0u32; 32];
        let mut column = 0;
        while column < 32 {
            squared[column] = apply(&basis, basis[column]);
            column += 1;
        }
        basis = squared;
        doublings += 1;
    }
    let mut table = [[0u32; 256]; 4];
    let mut byte = 0;
    while byte < 4 {
        let mut value = 0;
        while value < 256 {
            table[byte][value] = apply(&basis, (value as u32) << (8 * byte));
            value += 1;
        }
        byte += 1;
    }
    table
}

const fn apply(matrix: &[u32; 32], vector: u32) -> u32 {
    let mut sum = 0;
    let mut bit = 0;
    while bit < 32 {
        if vector & (1 << bit) != 0 {
            sum ^= matrix[bit];
        }
        bit += 1;
    }
    sum
}

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

    #[test]
    fn pieces_sum_to_the_whole() {
        let bytes: Vec<u8> = (0..10_000u32).map(|i| (i * 7 >> 2) as u8).collect();
        for cut in [0, 1, 63, 64, 4096, 9_999, 10_000] {
            let mut pieces = Crc32c::new();
            pieces.update(&bytes[..cut]);
            pieces.update(&bytes[cut..]);
            assert_eq!(pieces.value(), crc32c(&bytes), "cut at {cut}");
        }
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
