//! Memory fetched ahead of its use.

/// Bytes that the processor fetches at a time.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;

/// Asks the processor to bring `value` into its second-level cache. Reads nothing.
///
/// The first-level cache would be too small for what is asked for at a time, and the processor keeps track
/// of few fetches into it: it stands still when there are more.
#[inline]
pub fn prefetch<T: ?Sized>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let start = std::ptr::from_ref(value).cast::<i8>();
        let within_line = start.addr() % CACHE_LINE;
        for offset in (0..within_line + size_of_val(value)).step_by(CACHE_LINE) {
            // SAFETY: a prefetch is defined for any address, and changes nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(offset)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
