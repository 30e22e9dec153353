//! Does not compile if one of its dependencies, at any depth, links the standard library.
//!
//! This crate brings a panic handler of its own. `std` has one, too, and the compiler allows only
//! one: a clock, a socket or a thread that creeps into these crates or below them ends the build
//! with a duplicate `panic_impl`. It works on every target, so no bare-metal one need be installed.
//!
//! `layout`, `nvme-target` and `nvme-initiator` are `no_std` themselves, but the checksum crate below
//! them finds out at run time what the processor can do, for which it uses `std`.

#![no_std]

extern crate alloc;

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;

pub use nbd_server;
pub use nbd_wire;
pub use nvme_wire;
pub use units;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}

/// An allocator that has nothing: the code is compiled, not run.
struct NoMemory;

// SAFETY: null says that there is no memory; nothing is ever handed out or taken back.
unsafe impl GlobalAlloc for NoMemory {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: NoMemory = NoMemory;
