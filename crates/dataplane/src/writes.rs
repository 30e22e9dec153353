//! Writes that have to wait for nothing but their journal record: carried out without a task, as reads of one block are
//! (READ-3).
//!
//! - WRITE-1: such a write holds what a task would hold: its turn at the device, its place in the passage, its place among
//!   the requests that were checked for reservations. All of it goes back before the write is answered, or when its shard
//!   goes.
//! - WRITE-2: all that has to wait becomes a task, which finds out for itself what it waits for, or what is wrong.

use std::rc::Rc;

use io_traits::{Device, World};
use reservation::Access;
use schedule::Direction;
use units::{BLOCK_SIZE, LbaRange};
use volume::{Unattended, VolumeError};

use crate::execute::Job;
use crate::export::Export;
use crate::gate::Turn;
use crate::memory::Share;
use crate::request::{IoError, Payload};
use crate::reservations::Parity;

/// The places that a write holds (WRITE-1).
struct Places<W: World, D: Device> {
    export: Rc<Export<W, D>>,
    turn: Turn,
    parity: Parity,
}

impl<W: World, D: Device> Drop for Places<W, D> {
    fn drop(&mut self) {
        let Self { export, turn, parity } = self;
        export.lane.end(*turn);
        export.reservations.end_change(*parity);
        export.lane.passage().leave();
    }
}

/// A write under way.
struct Write<W: World, D: Device> {
    job: Job<W, D>,
    places: Places<W, D>,
    share: Option<Share>,
}

impl<W: World, D: Device> Write<W, D> {
    fn end(self, outcome: Result<(), VolumeError>) {
        let Self { job, places, share } = self;
        drop((share, places));
        job.end(outcome.map_err(IoError::from));
    }
}

impl<W: World, D: Device> Job<W, D> {
    /// Carries out a write, or returns it if it may have to wait (WRITE-2).
    pub(crate) fn write_at_once(
        self,
        range: LbaRange,
        data: Box<Payload>,
    ) -> Result<(), (Self, Box<Payload>)> {
        let blocks = data.data.len_bytes() / BLOCK_SIZE;
        let is_whole = data.data.len_bytes().is_multiple_of(BLOCK_SIZE)
            && blocks as u64 == range.blocks
            && data.crcs.as_ref().is_none_or(|crcs| crcs.len() == blocks);
        let held = match self.check(Access::Write) {
            Ok(()) if is_whole => self.export.with_volume(|volume| volume.hold_write(range)),
            _ => None,
        };
        let Some(held) = held else { return Err((self, data)) };
        let Some(places) = Places::take(&self.export, range.blocks) else {
            return Err((self, data));
        };
        let Payload { data, crcs, share } = *data;
        let write = Write { job: self, places, share };
        let tell = Box::new(move |outcome| write.end(outcome));
        held.write(Unattended { data, crcs, tell });
        Ok(())
    }
}

impl<W: World, D: Device> Places<W, D> {
    /// Takes all of them, if none has to be waited for.
    fn take(export: &Rc<Export<W, D>>, blocks: u64) -> Option<Self> {
        let (lane, passage) = (&export.lane, export.lane.passage());
        if !passage.enter() {
            return None;
        }
        let Some(turn) = lane.begin_at_once(Direction::Write, blocks) else {
            passage.leave();
            return None;
        };
        let parity = export.reservations.begin_change();
        Some(Self { export: export.clone(), turn, parity })
    }
}
