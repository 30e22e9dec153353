//! What only the last root needed comes back when the next one is durable (K2), step by step: a deleted volume or a
//! large map leave more than a request should wait for.

use std::cell::Cell;

use io_traits::Device;
use local_sync::yield_now;
use units::PbaRange;

use super::Inner;

/// Words of bitmaps that a step changes: some ten microseconds.
const WORDS_PER_STEP: u64 = 512;
/// Blocks of a word.
const WORD_BLOCKS: u64 = u64::BITS as u64;

impl<D: Device> Inner<D> {
    /// Gives back `runs`, which no root leads to. `left` counts their blocks down.
    pub(super) async fn release_in_steps(
        &self,
        runs: impl Iterator<Item = PbaRange>,
        left: &Cell<u64>,
    ) {
        let mut words = 0;
        for run in runs {
            if words >= WORDS_PER_STEP {
                words = 0;
                self.notify_space();
                yield_now().await;
            }
            words += run.blocks.div_ceil(WORD_BLOCKS);
            left.set(left.get() - run.blocks);
            let mut pool = self.pool.borrow_mut();
            self.epochs.borrow_mut().free(run, |run| pool.release(run));
        }
    }
}
