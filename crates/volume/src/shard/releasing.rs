//! Blocks that come back: what no map names any more at once, what only the last root needed when the next one is
//! durable (CHECKPOINT-2). The latter step by step: a deleted volume or a large map leave more than a request should
//! wait for.

use std::cell::Cell;

use io_traits::Device;
use local_sync::yield_now;
use units::{Pba, PbaRange};

use super::Inner;

/// Words of bitmaps that a step changes: some ten microseconds.
const WORDS_PER_STEP: u64 = 512;
/// Blocks of a word.
const WORD_BLOCKS: u64 = u64::BITS as u64;

impl<D: Device> Inner<D> {
    /// Blocks are no longer named by any map: they are reused as soon as no read uses them. Those
    /// that lie together come back together, so that one request's blocks are seen to be a hole for
    /// another such request.
    pub(super) fn free_blocks(&self, blocks: impl Iterator<Item = Pba>) {
        let mut pool = self.pool.borrow_mut();
        let mut epochs = self.epochs.borrow_mut();
        let mut free = |run: PbaRange| {
            pool.uncommit(run);
            epochs.free(run, |run| pool.release(run));
        };
        let mut run: Option<PbaRange> = None;
        for pba in blocks {
            match &mut run {
                Some(run) if run.end() == pba => run.blocks += 1,
                _ => run.replace(PbaRange::new(pba, 1)).into_iter().for_each(&mut free),
            }
        }
        run.into_iter().for_each(free);
    }

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
