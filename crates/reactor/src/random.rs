//! Bytes that nobody can foresee, from the operating system.
//!
//! A core asks for some hundred at a time: a host that authenticates needs four times a few of them, and each question
//! costs a system call.

use std::cell::RefCell;

use io_traits::Entropy;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::handle::Handle;

/// Bytes that are asked for at a time.
const STOCK_BYTES: usize = 1024;

/// Bytes that were drawn and not yet handed out. Each is handed out once, and forgotten with that.
#[derive(Default)]
pub(crate) struct RandomBytes {
    left: RefCell<Vec<u8>>,
}

impl RandomBytes {
    fn fill(&self, bytes: &mut [u8]) {
        if bytes.len() > STOCK_BYTES {
            return draw(bytes);
        }
        let mut left = self.left.borrow_mut();
        if left.len() < bytes.len() {
            left.resize(STOCK_BYTES, 0);
            draw(&mut left);
        }
        let rest = left.len() - bytes.len();
        let given = &mut left[rest..];
        bytes.copy_from_slice(given);
        given.fill(0);
        left.truncate(rest);
    }
}

fn draw(bytes: &mut [u8]) {
    let mut drawn = 0;
    while drawn < bytes.len() {
        // It can be interrupted while the kernel has no entropy yet, just after boot.
        drawn += getrandom(&mut bytes[drawn..], GetRandomFlags::empty()).unwrap_or(0);
    }
}

impl Entropy for Handle {
    fn fill_random(&self, bytes: &mut [u8]) {
        self.core.random.fill(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_byte_is_handed_out_twice_nor_kept() {
        let random = RandomBytes::default();
        let mut seen = HashSet::new();
        for len in [16, 48, STOCK_BYTES, STOCK_BYTES + 1, 17].repeat(100) {
            let mut bytes = vec![0; len];
            random.fill(&mut bytes);
            assert!(bytes.chunks_exact(16).all(|bytes| seen.insert(bytes.to_vec())));
            let mut left = random.left.borrow_mut();
            let len = left.len();
            let capacity = left.capacity();
            left.resize(capacity, 0);
            assert!(left[len..].iter().all(|byte| *byte == 0));
            left.truncate(len);
        }
    }
}
