//! CRC-32C by carry-less multiplication of 64 bytes at a time.
//!
//! The bytes are a polynomial, and what matters of it is its remainder. So a stretch of it can be moved back over the
//! bytes behind it, if it is multiplied by the remainder of that power of x: four stretches of 64 bytes are moved
//! over 256 bytes at a time, then over each other, and what the instruction for CRC-32C makes of the last 64
//! bytes is the sum.
//!
//! The bytes are read from the first to the last, which the processor foresees, and copying on the way takes half as long
//! again as the sum.

use core::arch::x86_64::{
    __m512i, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_set_epi64x, _mm512_broadcast_i32x4,
    _mm512_clmulepi64_epi128, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_ternarylogic_epi64,
    _mm512_xor_si512, _mm512_zextsi128_si512,
};

use crate::lanes;
use crate::prefetch::Lines;
use crate::shift::power;

/// Bytes in a vector.
const VECTOR: usize = 64;
/// Vectors that are folded side by side: the multiplication takes so long.
const STRANDS: usize = 4;
/// Bytes in a step.
const STEP: usize = STRANDS * VECTOR;
/// Fewer bytes are not worth it.
const LEN_MIN: usize = 2 * STEP;

type Step = [[u8; VECTOR]; STRANDS];

/// Returns the factors that move the lower and the upper half of 16 bytes over `bytes`: the powers
/// of x for that distance, less the shift that reflected factors of 32 and 64 bits add.
const fn factors(bytes: usize) -> [u32; 2] {
    [power(8 * bytes + 31), power(8 * bytes - 33)]
}

const OVER_STEP: [u32; 2] = factors(STEP);
const OVER_VECTOR: [u32; 2] = factors(VECTOR);

/// Returns whether the processor supports folding.
#[inline]
pub(crate) fn are_possible() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("sse4.2")
}

/// The register after `bytes`, while `lines` are fetched: at most as many as are folded. Only where they
/// [`are_possible`].
#[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
pub(crate) fn update(register: u32, bytes: &[u8], mut lines: Lines) -> u32 {
    if bytes.len() < LEN_MIN {
        return lanes::update(register, bytes, lines);
    }
    let (steps, rest) = steps_of(bytes);
    let register = fold(register, steps, |_, _, _| lines.fetch(1));
    lanes::update(register, rest, Lines::NONE)
}

/// The register after `source`, which is copied to `target`, of the same length. Only where they [`are_possible`].
#[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
pub(crate) fn update_and_copy(register: u32, source: &[u8], target: &mut [u8]) -> u32 {
    if source.len() < LEN_MIN {
        target.copy_from_slice(source);
        return lanes::update(register, source, Lines::NONE);
    }
    let (steps, rest) = steps_of(source);
    let (target, rest_target) = target.split_at_mut(steps.len() * STEP);
    let (vectors, _) = target.as_chunks_mut::<VECTOR>();
    let (targets, _) = vectors.as_chunks_mut::<STRANDS>();
    assert_eq!(targets.len(), steps.len(), "a copy has the length of its source");
    let register = fold(register, steps, |step, strand, vector| {
        // SAFETY: a vector long, and no alignment is needed.
        unsafe { _mm512_storeu_si512(targets[step][strand].as_mut_ptr().cast(), vector) };
    });
    rest_target.copy_from_slice(rest);
    lanes::update(register, rest, Lines::NONE)
}

fn steps_of(bytes: &[u8]) -> (&[Step], &[u8]) {
    let (whole, rest) = bytes.split_at(bytes.len() / STEP * STEP);
    let (vectors, _) = whole.as_chunks::<VECTOR>();
    (vectors.as_chunks::<STRANDS>().0, rest)
}

/// The register after all of `steps`, at least one; each vector is shown to `see` with its place.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
fn fold(register: u32, steps: &[Step], mut see: impl FnMut(usize, usize, __m512i)) -> u32 {
    let (first, others) = steps.split_first().expect("at least one step");
    let mut strands = first.map(|vector| load(&vector));
    (0..STRANDS).for_each(|strand| see(0, strand, strands[strand]));
    // The register so far belongs to the first bytes.
    let before = _mm_cvtsi32_si128(register.cast_signed());
    strands[0] = _mm512_xor_si512(strands[0], _mm512_zextsi128_si512(before));
    let over_step = twice(OVER_STEP);
    for (index, step) in others.iter().enumerate() {
        for strand in 0..STRANDS {
            let vector = load(&step[strand]);
            see(index + 1, strand, vector);
            strands[strand] = over(strands[strand], over_step, vector);
        }
    }
    let over_vector = twice(OVER_VECTOR);
    let last = strands.into_iter().reduce(|sum, strand| over(sum, over_vector, strand));
    let mut bytes = [0; VECTOR];
    // SAFETY: a vector long, and no alignment is needed.
    unsafe {
        _mm512_storeu_si512(bytes.as_mut_ptr().cast(), last.expect("there are several strands"));
    }
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    // The instruction leaves the upper half zero.
    words.fold(0, |register, word| _mm_crc32_u64(register, word)) as u32
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; VECTOR]) -> __m512i {
    // SAFETY: a vector long, and no alignment is needed.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// The factors, for each 16 bytes of a vector.
#[inline]
#[target_feature(enable = "avx512f")]
fn twice([lower, upper]: [u32; 2]) -> __m512i {
    _mm512_broadcast_i32x4(_mm_set_epi64x(i64::from(upper), i64::from(lower)))
}

/// `moved` by `factors`, on top of `onto`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn over(moved: __m512i, factors: __m512i, onto: __m512i) -> __m512i {
    /// Truth table of the exclusive or of three.
    const XOR: i32 = 0x96;
    let lower = _mm512_clmulepi64_epi128::<0x00>(moved, factors);
    let upper = _mm512_clmulepi64_epi128::<0x11>(moved, factors);
    _mm512_ternarylogic_epi64::<XOR>(lower, upper, onto)
}
