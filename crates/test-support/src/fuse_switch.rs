//! The kernel's switch for FUSE over io_uring, which is one for the whole machine.

use std::cell::Cell;
use std::fs::{self, File};

use crate::skipped::skipped;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Held by the one test that has set the switch. Tests for which either way is right go on meanwhile.
const LOCK: &str = "/run/lock/farflash-test-fuse-ring";

thread_local! {
    static EXPECTED: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// The switch in one position; back in that from before when this is dropped.
pub struct FuseSwitch {
    before: String,
    _lock: File,
}

impl FuseSwitch {
    /// `None`: the kernel has no such switch, or it takes root; the test is skipped.
    ///
    /// # Panics
    /// It is there and cannot be set.
    #[must_use]
    pub fn set(on: bool) -> Option<Self> {
        let Ok(lock) = File::create(LOCK) else {
            skipped("to switch io_uring for FUSE on takes root");
            return None;
        };
        lock.lock().expect("the lock is waited for");
        let Ok(before) = fs::read_to_string(SWITCH) else {
            skipped("this kernel has no io_uring for FUSE (6.14)");
            return None;
        };
        fs::write(SWITCH, if on { "Y" } else { "N" }).expect("root may set it");
        EXPECTED.set(Some(if on { "io_uring" } else { "/dev/fuse" }));
        Some(Self { before, _lock: lock })
    }

    /// Returns the way on which requests come by what this thread has switched.
    #[must_use]
    pub fn expected_way() -> Option<&'static str> {
        EXPECTED.get()
    }
}

impl Drop for FuseSwitch {
    fn drop(&mut self) {
        EXPECTED.set(None);
        let _ = fs::write(SWITCH, &self.before);
    }
}
