//! The allocator of the programs: mimalloc, told to keep its huge pages whole.
//!
//! - Each request is a task of some kilobytes, and comes and goes within its core: what an allocator with a heap of its
//!   own for each thread is good at.
//! - It asks the kernel for transparent huge pages. A buffer of 128 KiB in one is a single piece of memory for a drive, and 32
//!   pieces elsewhere. By default it gives unused memory back page by page, and a huge page of which a part went comes back as
//!   small ones: reads in order from a file are then up to half as fast, as chance has it.
//!   Told to, it gives back whole huge pages alone.
//!
//! `docs/benchmarks.md` has what both bring. Absent from this crate: memory for I/O (`io_traits::Buffer`).

use std::ffi::c_long;

use libmimalloc_sys::{mi_option_get, mi_option_set_default, mi_option_t};

/// The global allocator of every program here.
pub use mimalloc::MiMalloc as Allocator;

/// Number of `mi_option_allow_thp` in mimalloc's list of options; its bindings do not name it.
const ALLOW_HUGE_PAGES: mi_option_t = 43;
/// Its value with which memory is given back by whole huge pages.
const WHOLE: c_long = 2;

/// Has memory given back by whole huge pages alone, unless the environment says otherwise (`MIMALLOC_ALLOW_THP`). To be
/// called first thing, before there is a second thread.
pub fn keep_huge_pages_whole() {
    // SAFETY: writes one of mimalloc's own variables, which is there from the start. A thread that reads it meanwhile, of
    // which there are none yet, would find the old number or the new one.
    unsafe { mi_option_set_default(ALLOW_HUGE_PAGES, WHOLE) };
}

/// Returns true if memory is given back only by whole huge pages.
#[must_use]
pub fn keeps_huge_pages_whole() -> bool {
    // SAFETY: reads one of mimalloc's own variables, which is there from the start.
    unsafe { mi_option_get(ALLOW_HUGE_PAGES) == WHOLE }
}
