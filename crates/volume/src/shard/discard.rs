//! Telling the device which blocks are free, in the background.
//!
//! - DISCARD-1: a block is discarded only if neither the last durable root nor the present has it in
//!   use, and no read can have found it. It is not handed out meanwhile.
//! - DISCARD-2: so many blocks for each tick, and none while free ones are few: requests come first.
//! - DISCARD-3: what could not be discarded is tried again, ever more seldom while the device fails.
//! - DISCARD-4: extents that are empty stay with the shard until they are discarded, if they are not
//!   needed elsewhere before. What is free in a shard's extents at its start is discarded once
//!   more: so nothing is forgotten at a restart but what was given back undiscarded.

use io_traits::{Device, DeviceError};
use local_sync::yield_now;
use situations::{Situation, situation, situation_if};

use super::Inner;
use crate::sabotage::{Sabotage, broken};
use space::{RUN_BLOCKS_MIN, Search};

/// Blocks discarded for each tick: a few hundred MiB a second, if there are four.
const BLOCKS_PER_TICK: u64 = 16_384;
/// Blocks discarded with one request.
const RUN_BLOCKS_MAX: u32 = 4096;
/// Steps of the search for each tick.
const STEPS_PER_TICK: u32 = 64;
/// Ticks between two attempts while the device fails, at most: a minute, if there are four a second.
const PAUSE_TICKS_MAX: u32 = 256;

impl<D: Device> Inner<D> {
    /// Discards what was freed, until told to stop.
    pub(super) async fn run_discarder(&self) {
        if !self.device.limits().discards {
            return;
        }
        let mut pause_ticks = 1;
        loop {
            for _ in 0..pause_ticks {
                self.ticked.notified().await;
                if self.is_discarder_done() {
                    return;
                }
            }
            let discarded = self.discard_some().await;
            // A request to stop was not noticed meanwhile.
            if self.is_discarder_done() {
                return;
            }
            // DISCARD-3.
            pause_ticks = match discarded {
                Ok(()) => 1,
                Err(_) => PAUSE_TICKS_MAX.min(pause_ticks * 2),
            };
        }
    }

    fn is_discarder_done(&self) -> bool {
        self.life.is_stopping() || self.journal.borrow().is_lost()
    }

    /// Discards as much as one tick allows.
    async fn discard_some(&self) -> Result<(), DeviceError> {
        let (mut left, mut steps) = (BLOCKS_PER_TICK, STEPS_PER_TICK);
        self.pool.borrow_mut().begin_round();
        while left > 0 && steps > 0 && !self.is_discarder_done() {
            // DISCARD-2.
            let claimed = self.least_floor() + self.counters.live.get();
            let room = self.pool.borrow().free().saturating_sub(claimed) / 2;
            let most = u32::try_from(room).unwrap_or(u32::MAX).min(RUN_BLOCKS_MAX);
            if most < RUN_BLOCKS_MIN || self.admission.is_awaited() {
                situation(Situation::DiscardAwaitsRoom);
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
            self.discarding.set(true);
            let discarded = self.device.discard(run).await;
            self.discarding.set(false);
            situation_if(Situation::DiscardFails, || discarded.is_err());
            if discarded.is_err() && broken(Sabotage::LoseUndiscarded) {
                return discarded;
            }
            self.pool.borrow_mut().release_taken(run, discarded.is_err());
            self.notify_space();
            discarded?;
            left = left.saturating_sub(run.blocks);
            // A device that answers at once must not keep the core from its requests.
            yield_now().await;
        }
        Ok(())
    }
}
