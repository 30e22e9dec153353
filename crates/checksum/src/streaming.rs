//! Copies that leave the caches as they are.

/// Copies `source` to `target`, whose bytes are not read soon: they go to memory without being
/// fetched from it first, and displace nothing in the caches. A store to a cache line that is in no
/// cache would fetch it, only to overwrite it.
///
/// Panics if they differ in length.
pub fn copy_to_memory(source: &[u8], target: &mut [u8]) {
    assert_eq!(source.len(), target.len(), "a copy has the length of its source");
    #[cfg(target_arch = "x86_64")]
    if target.as_ptr().cast::<Vector>().is_aligned() {
        Streamed { source, target }.all();
        return;
    }
    target.copy_from_slice(source);
}

/// As [`copy_to_memory`], and returns the CRC-32C of `source`: in lanes cheaper than one after the other.
///
/// Panics if they differ in length.
#[must_use]
pub fn crc32c_copy_to_memory(source: &[u8], target: &mut [u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if !crate::folds::are_possible()
        && crate::lanes::are_possible()
        && source.len() == target.len()
        && target.as_ptr().cast::<Vector>().is_aligned()
    {
        let mut copied = Streamed { source, target };
        // SAFETY: they are possible.
        let register = unsafe { crate::lanes::update_beside(!0, source, &mut copied) };
        copied.all();
        return !register;
    }
    copy_to_memory(source, target);
    crate::crc32c(source)
}

#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::{__m128i as Vector, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

#[cfg(target_arch = "x86_64")]
use crate::prefetch::{Beside, CACHE_LINE};

#[cfg(target_arch = "x86_64")]
const VECTOR: usize = size_of::<Vector>();

/// The rest of a copy to a target that is aligned to a vector, and as long as its source.
#[cfg(target_arch = "x86_64")]
struct Streamed<'a> {
    source: &'a [u8],
    target: &'a mut [u8],
}

#[cfg(target_arch = "x86_64")]
impl Streamed<'_> {
    /// Copies what is left.
    fn all(mut self) {
        self.some(self.source.len() / VECTOR * VECTOR);
        self.target.copy_from_slice(self.source);
        // SAFETY: part of x86-64. Stores of this kind are not ordered by the release of a lock, so that others could see
        // it without them.
        unsafe { _mm_sfence() };
    }

    /// Copies the first `len` bytes of what is left, whole vectors.
    #[inline]
    fn some(&mut self, len: usize) {
        let (source, source_left) = self.source.split_at(len);
        let (target, target_left) = std::mem::take(&mut self.target).split_at_mut(len);
        assert!(target.as_ptr().cast::<Vector>().is_aligned());
        for (source, target) in source.chunks_exact(VECTOR).zip(target.chunks_exact_mut(VECTOR)) {
            // SAFETY: both are a vector long, a load needs no alignment, and multiples of a vector behind an aligned
            // address are aligned. SSE2 is part of x86-64.
            unsafe {
                let vector = _mm_loadu_si128(source.as_ptr().cast());
                _mm_stream_si128(target.as_mut_ptr().cast(), vector);
            }
        }
        (self.source, self.target) = (source_left, target_left);
    }
}

#[cfg(target_arch = "x86_64")]
impl Beside for Streamed<'_> {
    #[inline]
    fn lines(&mut self, most: usize) {
        self.some((self.source.len() / CACHE_LINE).min(most) * CACHE_LINE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method: all short lengths and some longer ones, from and to all places within two vectors.
    #[test]
    fn what_arrives_is_what_was_sent_and_nothing_beside_it() {
        let source: Vec<u8> = (0..512u32).map(|byte| (byte % 251) as u8 ^ 0x5a).collect();
        for len in (0..64).chain([255, 256, 257, 300, 400]) {
            for (from, to) in (0..32).flat_map(|from| (0..32).map(move |to| (from, to))) {
                let mut target = [0; 512];
                copy_to_memory(&source[from..from + len], &mut target[to..to + len]);
                assert_eq!(target[to..to + len], source[from..from + len]);
                assert!(target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0));
            }
        }
    }

    /// Method: lengths around the ends of lanes and blocks, to aligned and unaligned places.
    #[test]
    fn the_sum_is_that_of_the_source_and_all_of_it_arrives() {
        let source: Vec<u8> = (0..9_000u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
        let lengths = (0..40).chain(490..530).chain([1000, 4079, 4080, 4081, 4096, 8160, 8192]);
        for (len, to) in lengths.flat_map(|len| [0, 1, 16, 64].map(|to| (len, to))) {
            let mut memory = vec![0xA5; 9_200];
            let start = memory.as_ptr().align_offset(64) + to;
            let part = &source[7..7 + len];
            let sum = crc32c_copy_to_memory(part, &mut memory[start..start + len]);
            assert_eq!(sum, crate::crc32c(part), "{len} bytes to {to}");
            assert!(memory[start..start + len] == *part, "{len} bytes to {to}");
            let beside = memory[..start].iter().chain(&memory[start + len..]);
            assert!(beside.copied().all(|byte| byte == 0xA5), "{len} bytes to {to}");
        }
    }
}
