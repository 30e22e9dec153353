//! Telling the device which blocks are free, in the background.
//!
//! - T1: a block is discarded only if neither the last durable root nor the present has it in use, and
//!   no read can have found it. Nobody gets it meanwhile.
//! - T2: so many blocks for each tick, and none while free ones are few: requests
//!   come first.

use io_traits::Device;

use super::Inner;
use crate::io::yield_now;
use crate::pool::{RUN_BLOCKS_MIN, Search};

/// Blocks discarded for each tick: a few hundred MiB a second, if there are four.
const BLOCKS_PER_TICK: u64 = 16_384;
/// Blocks discarded with one request.
const RUN_BLOCKS_MAX: u32 = 4096;
/// Steps of the search for each tick.
const STEPS_PER_TICK: u32 = 64;

impl<D: Device> Inner<D> {
    /// Discards what was freed, until told to stop or the device cannot.
    pub(super) async fn run_discarder(&self) {
        if !self.device.geometry().discards {
            return;
        }
        loop {
            self.ticked.notified().await;
            let (mut left, mut steps) = (BLOCKS_PER_TICK, STEPS_PER_TICK);
            while left > 0 && steps > 0 {
                if self.stopping.get() || self.journal.borrow().lost {
                    return;
                }
                // T2.
                let claimed = self.least_floor() + self.tally.live.get();
                let room = self.pool.borrow().free().saturating_sub(claimed) / 2;
                let most = u32::try_from(room).unwrap_or(u32::MAX).min(RUN_BLOCKS_MAX);
                if most < RUN_BLOCKS_MIN || self.waiting_for_space.get() > 0 {
                    break;
                }
                let found = self.pool.borrow_mut().search_stale(most);
                let run = match found {
                    Search::Found(run) => run,
                    Search::Unfinished => {
                        steps -= 1;
                        yield_now().await;
                        continue;
                    }
                    Search::Done => break,
                };
                let discarded = self.device.discard(run).await;
                self.pool.borrow_mut().release_discarded(run);
                self.notify_space();
                if discarded.is_err() {
                    return;
                }
                left = left.saturating_sub(run.blocks);
            }
        }
    }
}
