//! CRC-32C, one byte at a time (RFC 3720, appendix B.4; NVMe over TCP, clause 3.3.1).

/// The Castagnoli polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82F6_3B78;

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
}

/// CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut register = u32::MAX;
    for byte in bytes {
        register = TABLE[(register as u8 ^ byte) as usize] ^ register >> 8;
    }
    !register
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, appendix B.4: the sums as numbers, whose bytes go out lowest first.
    #[test]
    fn the_examples_of_the_rfc_hold() {
        assert_eq!(crc32c(&[0; 32]).to_le_bytes(), [0xAA, 0x36, 0x91, 0x8A]);
        assert_eq!(crc32c(&[0xFF; 32]).to_le_bytes(), [0x43, 0xAB, 0xA8, 0x62]);
        let up: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&up).to_le_bytes(), [0x4E, 0x79, 0xDD, 0x46]);
        let down: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc32c(&down).to_le_bytes(), [0x5C, 0xDB, 0x3F, 0x11]);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }
}
