//! Flushes of a shard, and the conclusions drawn from their outcomes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};

use io_traits::{Device, DeviceError};
use situations::{Situation, situation};

use super::Inner;
use super::checkpoint::CheckpointError;
use crate::JournalLoss;
use crate::io::IoSlot;
use crate::sabotage::{Sabotage, broken};
use space::Turn;

/// Why a flush says nothing.
#[derive(Clone, Copy, Debug)]
pub(super) enum FlushError {
    /// The device failed it.
    Device(DeviceError),
    /// The device failed one of another shard, or an earlier one.
    Others,
}

impl From<FlushError> for JournalLoss {
    fn from(error: FlushError) -> Self {
        match error {
            FlushError::Device(error) => Self::Flush(error),
            FlushError::Others => Self::FlushOfOthers,
        }
    }
}

impl From<FlushError> for CheckpointError {
    fn from(error: FlushError) -> Self {
        match error {
            FlushError::Device(error) => Self::Device(error),
            FlushError::Others => Self::Lost,
        }
    }
}

/// The flushes that the journal waits for.
pub(super) struct Flusher {
    slot: Box<dyn IoSlot>,
    /// The one under way, if it is this shard that makes it.
    turn: Option<Turn>,
    /// The number of a flush, and the last record that it covers. No more than the one under way and the next.
    asked: VecDeque<(u64, u64)>,
    /// The error of this shard's last flush, if it failed.
    error: Option<DeviceError>,
}

impl Flusher {
    pub(super) fn new(slot: Box<dyn IoSlot>) -> Self {
        Self { slot, turn: None, asked: VecDeque::new(), error: None }
    }

    /// Returns whether it has nothing on its way, and waits for nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.turn.is_none() && self.asked.is_empty()
    }
}

impl<D: Device> Inner<D> {
    /// Flushes, where a completed write needs that to be durable.
    pub(super) async fn flush_if_volatile(&self) -> Result<(), FlushError> {
        if !self.volatile {
            return Ok(());
        }
        let flushes = self.extents.flushes();
        let number = flushes.next();
        if let Some(turn) = poll_fn(|context| flushes.poll_turn(number, context)).await {
            let flushed = self.device.flush().await;
            turn.end(flushed.is_ok());
            flushed.map_err(FlushError::Device)?;
        } else {
            situation(Situation::FlushIsShared);
        }
        self.flushes_are_sound()
    }

    /// Judges flushes that have ended: they count for nothing if one of the device has failed since
    /// this shard was recovered (COMMIT-5).
    fn flushes_are_sound(&self) -> Result<(), FlushError> {
        let has_failed = self.extents.flushes().failures() != self.flush_failures;
        if has_failed && !broken(Sabotage::FlushAlone) { Err(FlushError::Others) } else { Ok(()) }
    }

    /// A flush covers all records that are complete when it begins (COMMIT-1). Returns whether anything went
    /// on.
    pub(super) fn poll_flush(&self, context: &mut Context<'_>, flusher: &mut Flusher) -> bool {
        let mut progress = false;
        loop {
            progress |= self.poll_own_flush(context, flusher) | self.take_flushed(flusher);
            self.ask_for_flush(flusher);
            let next = flusher.asked.front().filter(|_| flusher.turn.is_none());
            let Some((number, _)) = next else { return progress };
            match self.extents.flushes().poll_turn(*number, context) {
                Poll::Pending => {
                    situation(Situation::FlushAwaitsAnother);
                    return progress;
                }
                Poll::Ready(turn) if turn.is_some() => {
                    flusher.slot.start_flush();
                    flusher.turn = turn;
                }
                // It ended meanwhile.
                Poll::Ready(_) => situation(Situation::FlushIsShared),
            }
            progress = true;
        }
    }

    fn poll_own_flush(&self, context: &mut Context<'_>, flusher: &mut Flusher) -> bool {
        if flusher.turn.is_none() {
            return false;
        }
        let Poll::Ready(flushed) = flusher.slot.poll(context) else { return false };
        let turn = flusher.turn.take().expect("just seen");
        flusher.error = flushed.err();
        turn.end(flushed.is_ok() || broken(Sabotage::IgnoreFlushError));
        true
    }

    /// Takes note of flushes that have ended, of this shard or others.
    fn take_flushed(&self, flusher: &mut Flusher) -> bool {
        let flushes = self.extents.flushes();
        let mut progress = false;
        while let Some(&(number, through)) = flusher.asked.front()
            && flushes.has_ended(number)
        {
            flusher.asked.pop_front();
            progress = true;
            match self.flushes_are_sound() {
                Ok(()) => self.journal.borrow_mut().flushed = through,
                Err(error) => {
                    let own = flusher.error.take().map(JournalLoss::Flush);
                    situation(match own {
                        Some(_) => Situation::FlushFails,
                        None => Situation::SharedFlushFails,
                    });
                    self.lose_journal(own.unwrap_or_else(|| error.into()));
                }
            }
        }
        if self.journal.borrow().is_lost() {
            flusher.asked.clear();
        }
        progress
    }

    /// Has the next flush to begin cover what is complete.
    fn ask_for_flush(&self, flusher: &mut Flusher) {
        let journal = self.journal.borrow();
        let known = flusher.asked.back().map_or(journal.flushed, |(_, through)| *through);
        let Some(through) = journal.complete_through().filter(|through| *through > known) else {
            return;
        };
        let number = self.extents.flushes().next();
        match flusher.asked.back_mut() {
            Some(last) if last.0 == number => last.1 = through,
            _ => flusher.asked.push_back((number, through)),
        }
    }
}
