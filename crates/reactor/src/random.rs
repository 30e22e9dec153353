//! Unpredictable bytes from the operating system.
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
    stock: RefCell<Stock>,
}

struct Stock {
    bytes: [u8; STOCK_BYTES],
    /// Number of `bytes`, from the start, that are still to be handed out. The others are zeroes.
    left: usize,
}

impl Default for Stock {
    fn default() -> Self {
        Self { bytes: [0; STOCK_BYTES], left: 0 }
    }
}

impl RandomBytes {
    fn fill(&self, bytes: &mut [u8]) {
        if bytes.len() > STOCK_BYTES {
            return draw(bytes);
        }
        let Stock { bytes: stock, left } = &mut *self.stock.borrow_mut();
        if *left < bytes.len() {
            draw(stock);
            *left = STOCK_BYTES;
        }
        let rest = *left - bytes.len();
        let given = &mut stock[rest..*left];
        bytes.copy_from_slice(given);
        given.fill(0);
        *left = rest;
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
    use crate::{CoreConfig, run_on_current_thread};

    #[test]
    fn no_byte_is_handed_out_twice_nor_kept() {
        let random = RandomBytes::default();
        let mut seen = HashSet::new();
        for len in [16, 48, STOCK_BYTES, STOCK_BYTES + 1, 17].repeat(100) {
            let mut bytes = vec![0; len];
            random.fill(&mut bytes);
            assert!(bytes.chunks_exact(16).all(|bytes| seen.insert(bytes.to_vec())));
            let stock = random.stock.borrow();
            assert!(stock.bytes[stock.left..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn cores_and_questions_get_bytes_of_their_own() {
        let ask = || {
            let main = |handle: Handle| async move {
                let (mut a, mut b) = ([0; 48], [0; 48]);
                handle.fill_random(&mut a);
                handle.fill_random(&mut b);
                [a, b]
            };
            run_on_current_thread(&CoreConfig::default(), main).expect("this host has io_uring")
        };
        let answers: HashSet<_> = [ask(), ask()].into_iter().flatten().collect();
        assert_eq!(answers.len(), 4);
    }
}
