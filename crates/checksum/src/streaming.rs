//! A copy that leaves the caches as they are.

/// Copies `source` to `target`, whose bytes are not read soon: they go to memory without being
/// fetched from it first, and displace nothing in the caches. A store to a cache line that is in no
/// cache would fetch it, only to overwrite it.
///
/// Panics if they differ in length.
pub fn copy_to_memory(source: &[u8], target: &mut [u8]) {
    assert_eq!(source.len(), target.len(), "a copy has the length of its source");
    #[cfg(target_arch = "x86_64")]
    if target.as_ptr().cast::<Vector>().is_aligned() {
        let whole = source.len() / VECTOR * VECTOR;
        stream(&source[..whole], &mut target[..whole]);
        target[whole..].copy_from_slice(&source[whole..]);
        return;
    }
    target.copy_from_slice(source);
}

#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::{__m128i as Vector, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

#[cfg(target_arch = "x86_64")]
const VECTOR: usize = size_of::<Vector>();

/// `target` is aligned to a vector; both have the same length, a multiple of it.
#[cfg(target_arch = "x86_64")]
fn stream(source: &[u8], target: &mut [u8]) {
    assert!(target.as_ptr().cast::<Vector>().is_aligned());
    for (source, target) in source.chunks_exact(VECTOR).zip(target.chunks_exact_mut(VECTOR)) {
        // SAFETY: both are a vector long, a load needs no alignment, and multiples of a vector behind an aligned
        // address are aligned. SSE2 is part of x86-64.
        unsafe {
            let vector = _mm_loadu_si128(source.as_ptr().cast());
            _mm_stream_si128(target.as_mut_ptr().cast(), vector);
        }
    }
    // SAFETY: part of x86-64. Stores of this kind are not ordered by the release of a lock, so that others could see
    // it without them.
    unsafe { _mm_sfence() };
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
}
