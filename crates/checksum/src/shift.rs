//! Advances a checksum over zero bytes: multiplication by a power of x, as tables.

const POLYNOMIAL_REFLECTED: u32 = 0x82F6_3B78;

/// `table[i][b]`: what byte `i` of a checksum register, with value `b`, becomes later.
pub(crate) type ShiftTable = [[u32; 256]; 4];

/// Multiplies `register` by the power of x of `table`.
#[inline]
pub(crate) fn shift(table: &ShiftTable, register: u32) -> u32 {
    let [b0, b1, b2, b3] = register.to_le_bytes();
    table[0][b0 as usize] ^ table[1][b1 as usize] ^ table[2][b2 as usize] ^ table[3][b3 as usize]
}

/// Returns the remainder of x^exponent, reflected as in a register.
pub(crate) const fn power(exponent: usize) -> u32 {
    // x^0, and from there one zero bit after the other.
    let mut register = 1 << 31;
    let mut bit = 0;
    while bit < exponent {
        let carry = register & 1;
        register >>= 1;
        if carry != 0 {
            register ^= POLYNOMIAL_REFLECTED;
        }
        bit += 1;
    }
    register
}

/// The table for `bytes` zero bytes: multiplication by x^(8·bytes), which is linear.
pub(crate) const fn shift_table(bytes: usize) -> ShiftTable {
    // Square and multiply on 32 x 32 matrices over GF(2), from "one zero bit".
    let mut square = [0u32; 32];
    let mut product = [0u32; 32];
    let mut bit = 0;
    while bit < 32 {
        square[bit] = if bit == 0 { POLYNOMIAL_REFLECTED } else { 1 << (bit - 1) };
        product[bit] = 1 << bit;
        bit += 1;
    }
    let mut exponent = bytes * 8;
    while exponent > 0 {
        if exponent & 1 != 0 {
            product = multiply(&square, &product);
        }
        square = multiply(&square, &square);
        exponent >>= 1;
    }
    let mut table = [[0u32; 256]; 4];
    let mut byte = 0;
    while byte < 4 {
        let mut value = 0;
        while value < 256 {
            table[byte][value] = apply(&product, (value as u32) << (8 * byte));
            value += 1;
        }
        byte += 1;
    }
    table
}

const fn multiply(left: &[u32; 32], right: &[u32; 32]) -> [u32; 32] {
    let mut product = [0u32; 32];
    let mut column = 0;
    while column < 32 {
        product[column] = apply(left, right[column]);
        column += 1;
    }
    product
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

    /// Two ways to a power of x: bit by bit, and by the matrices of the tables. The ways to sum that need them are not
    /// possible on every processor.
    #[test]
    fn powers_are_those_of_the_tables() {
        assert_eq!([power(0), power(1), power(31)], [1 << 31, 1 << 30, 1]);
        assert_eq!(power(32), POLYNOMIAL_REFLECTED);
        for bytes in [0, 1, 3, 4, 5, 64, 168, 256, 1360, 4096] {
            assert_eq!(power(8 * bytes), shift(&shift_table(bytes), 1 << 31), "{bytes} bytes");
        }
    }

    /// A table does to a register what so many zero bytes do, one bit after the other.
    #[test]
    fn a_table_stands_for_zero_bytes() {
        for bytes in [0, 1, 2, 5, 64, 168, 1360, 4096] {
            let table = shift_table(bytes);
            for register in [0, 1, 1 << 31, 0x0102_0304, 0xDEAD_BEEF, u32::MAX] {
                let expected = (0..8 * bytes).fold(register, |register: u32, _| {
                    (register >> 1) ^ ((register & 1) * POLYNOMIAL_REFLECTED)
                });
                assert_eq!(shift(&table, register), expected, "{register:#x} over {bytes} bytes");
            }
        }
    }
}
