//! Memory fetched ahead of its use.

/// Bytes that the processor fetches at a time.
pub(crate) const CACHE_LINE: usize = 64;
/// Lines of which a processor keeps track at a time (16 or 24 in the first level), but for those that it fetches by
/// itself. It drops some of what is asked for beyond that, or stands still. A block less its first line is four times as
/// many.
const LINES_AT_ONCE: usize = 16;

/// Asks the processor to bring the line at `address` into its second-level cache. Reads nothing.
///
/// The first-level cache would be too small for what is asked for at a time.
#[inline]
fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch is defined for any address, and changes nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks the processor to bring `value`, which is small, into its second-level cache. Reads nothing.
#[inline]
pub fn prefetch<T: ?Sized>(value: &T) {
    let mut lines = Lines::of_bytes(std::ptr::from_ref(value).cast(), size_of_val(value));
    lines.fetch(usize::MAX);
}

/// Memory to be brought into the processor's second-level cache, some lines now, some later. A hint: nothing is read,
/// and the memory may be gone meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    next: *const u8,
    left: usize,
}

impl Lines {
    /// Those in which `bytes` lie, which are not looked at.
    #[must_use]
    pub fn of(bytes: *const [u8]) -> Self {
        Self::of_bytes(bytes.cast(), bytes.len())
    }

    fn of_bytes(start: *const u8, len: usize) -> Self {
        let within_line = start.addr() % CACHE_LINE;
        let left = if len == 0 { 0 } else { (within_line + len).div_ceil(CACHE_LINE) };
        Self { next: start.wrapping_sub(within_line), left }
    }

    /// None.
    pub const NONE: Self = Self { next: std::ptr::null(), left: 0 };

    /// Returns whether all were asked for.
    #[must_use]
    pub fn are_all_asked(&self) -> bool {
        self.left == 0
    }

    /// Asks for the first line: of several stretches one after the other, so that their addresses are translated
    /// at the same time.
    #[inline]
    pub fn fetch_first(&mut self) {
        self.fetch(1);
    }

    /// Asks for as many of them as the processor takes at a time. Between two calls there should be work for a
    /// tenth of a microsecond.
    #[inline]
    pub fn fetch_some(&mut self) {
        self.fetch(LINES_AT_ONCE);
    }

    /// Asks for the next of them.
    #[inline]
    pub(crate) fn fetch(&mut self, most: usize) {
        let count = self.left.min(most);
        for _ in 0..count {
            prefetch_line(self.next);
            self.next = self.next.wrapping_add(CACHE_LINE);
        }
        self.left -= count;
    }
}

impl Beside for Lines {
    #[inline]
    fn lines(&mut self, most: usize) {
        self.fetch(most);
    }
}

/// Work for the load and store units beside a sum, line by line.
pub(crate) trait Beside {
    /// Does the work of the next lines, at most so many.
    fn lines(&mut self, most: usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_are_asked_for_in_parts() {
        let bytes = vec![0; 8192];
        let start = bytes.as_ptr().align_offset(CACHE_LINE);
        let parts = |range: std::ops::Range<usize>| {
            let mut lines = Lines::of(&bytes[start..][range]);
            let mut parts = 0;
            while !lines.are_all_asked() {
                lines.fetch_some();
                parts += 1;
            }
            parts
        };
        assert_eq!(parts(0..4096 - CACHE_LINE), 4);
        assert_eq!(parts(1..4096 - CACHE_LINE + 1), 4);
        assert_eq!(parts(0..4096), 4);
        assert_eq!(parts(63..65), 1);
        assert_eq!(parts(0..0), 0);
        let mut lines = Lines::of(&bytes[start..][..65]);
        lines.fetch_first();
        assert!(!lines.are_all_asked());
        lines.fetch_first();
        assert!(lines.are_all_asked());
    }
}
