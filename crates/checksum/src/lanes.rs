//! CRC-32C with the processor's own instruction, in three lanes.
//!
//! The instruction takes eight bytes in three cycles, but starts one in each: so three parts of the
//! bytes are summed side by side, and then joined by what zeroes in place of the later parts would
//! have made of the earlier sums. Copying on the way costs next to nothing, as the loop waits for
//! the sums alone.
//!
//! On processors without AVX-512 this is nearly twice as fast as carry-less multiplication; for those
//! with it there is `folds.rs`, for all but short stretches.

use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

use crate::prefetch::{Beside, CACHE_LINE, Lines};
use crate::shift::{ShiftTable, shift, shift_table};

/// Bytes in each of three lanes: three nearly fill a block of 4 KiB.
const LONG: usize = 1360;
/// The same for what is left over.
const SHORT: usize = 168;

static LONG_ONCE: ShiftTable = shift_table(LONG);
static LONG_TWICE: ShiftTable = shift_table(2 * LONG);
static SHORT_ONCE: ShiftTable = shift_table(SHORT);
static SHORT_TWICE: ShiftTable = shift_table(2 * SHORT);

/// Returns whether the processor supports lanes.
#[inline]
pub(crate) fn are_possible() -> bool {
    is_x86_feature_detected!("sse4.2")
}

/// The register after `bytes`, while `lines` are fetched: at most as many as are summed in lanes. The processor has
/// SSE 4.2.
#[target_feature(enable = "sse4.2")]
pub(crate) fn update(register: u32, bytes: &[u8], mut lines: Lines) -> u32 {
    update_beside(register, bytes, &mut lines)
}

/// The register after `bytes`, while other work is done: for at most as many lines as are summed in lanes. The processor has
/// SSE 4.2.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(crate) fn update_beside(mut register: u32, bytes: &[u8], work: &mut impl Beside) -> u32 {
    let (long, rest) = bytes.as_chunks::<{ 3 * LONG }>();
    for run in long {
        register = three::<LONG>(register, run, (&LONG_ONCE, &LONG_TWICE), work);
    }
    let (short, rest) = rest.as_chunks::<{ 3 * SHORT }>();
    for run in short {
        register = three::<SHORT>(register, run, (&SHORT_ONCE, &SHORT_TWICE), work);
    }
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        register = next(register, *word);
    }
    rest.iter().fold(register, |register, byte| _mm_crc32_u8(register, *byte))
}

/// The register after `source`, which is copied to `target`, of the same length. The processor has
/// SSE 4.2.
#[target_feature(enable = "sse4.2")]
pub(crate) fn update_and_copy(mut register: u32, source: &[u8], target: &mut [u8]) -> u32 {
    let (long, source) = source.as_chunks::<{ 3 * LONG }>();
    let (long_target, target) = target.split_at_mut(long.len() * 3 * LONG);
    for (run, target) in long.iter().zip(long_target.as_chunks_mut::<{ 3 * LONG }>().0) {
        register = three_and_copy(register, run, target);
    }
    // What is left is less than a block: copying it by itself does no harm.
    target.copy_from_slice(source);
    update(register, source, Lines::NONE)
}

#[inline]
#[target_feature(enable = "sse4.2")]
fn next(register: u32, word: [u8; 8]) -> u32 {
    // The instruction leaves the upper half zero.
    _mm_crc32_u64(u64::from(register), u64::from_le_bytes(word)) as u32
}

/// Sums three lanes side by side; for each line that is summed there is one of the other work.
#[inline]
#[target_feature(enable = "sse4.2")]
fn three<const LANE: usize>(
    register: u32,
    run: &[u8],
    (once, twice): (&ShiftTable, &ShiftTable),
    work: &mut impl Beside,
) -> u32 {
    let (first, rest) = run.split_at(LANE);
    let (second, third) = rest.split_at(LANE);
    let (mut a, mut b, mut c) = (register, 0, 0);
    let parts =
        first.chunks(CACHE_LINE).zip(second.chunks(CACHE_LINE)).zip(third.chunks(CACHE_LINE));
    for ((first, second), third) in parts {
        work.lines(3);
        let words = first.as_chunks().0.iter().zip(second.as_chunks().0).zip(third.as_chunks().0);
        for ((first, second), third) in words {
            a = next(a, *first);
            b = next(b, *second);
            c = next(c, *third);
        }
    }
    shift(twice, a) ^ shift(once, b) ^ c
}

#[inline]
#[target_feature(enable = "sse4.2")]
fn three_and_copy(register: u32, run: &[u8; 3 * LONG], target: &mut [u8; 3 * LONG]) -> u32 {
    let (first, rest) = run.split_at(LONG);
    let (second, third) = rest.split_at(LONG);
    let (first_target, rest) = target.split_at_mut(LONG);
    let (second_target, third_target) = rest.split_at_mut(LONG);
    let (mut a, mut b, mut c) = (register, 0, 0);
    let firsts = first.as_chunks().0.iter().zip(first_target.as_chunks_mut().0);
    let seconds = second.as_chunks().0.iter().zip(second_target.as_chunks_mut().0);
    let thirds = third.as_chunks().0.iter().zip(third_target.as_chunks_mut().0);
    for ((first, second), third) in firsts.zip(seconds).zip(thirds) {
        *first.1 = *first.0;
        *second.1 = *second.0;
        *third.1 = *third.0;
        a = next(a, *first.0);
        b = next(b, *second.0);
        c = next(c, *third.0);
    }
    shift(&LONG_TWICE, a) ^ shift(&LONG_ONCE, b) ^ c
}
