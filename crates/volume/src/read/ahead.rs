//! Reads ahead of sequential readers of a volume.
//!
//! Without it a drive is idle while its data is checked and sent, as the host and the drive take
//! turns. So the next blocks are requested from the drive in advance.
//!
//! - READ-AHEAD-1: what was read ahead is returned only if no change of the map touched its blocks since, and
//!   the map says of them what it said then: a read that begins now would find the same blocks.
//! - READ-AHEAD-2: a failed prefetch is no error: the reader of the blocks reads them itself.
//! - READ-AHEAD-3: it takes no more than [`PIECES_MAX`] and [`BLOCKS_MAX`] of a shard, and is dropped if it
//!   is not used for a while. What is read in vain is a quarter at most of what a reader has read
//!   in order since (`streams.rs`).
//!
//! Only drives are read ahead of: a device in memory is looked at where it lies.

mod streams;

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use io_traits::Device;
use situations::{Situation, situation_if};
use units::LbaRange;

use super::spans::{Fetched, cost_of, fetch_runs};
use super::{Found, look_up, runs_of};
use crate::sabotage::{Sabotage, broken};
use crate::shard::Inner;
use crate::state::VolumeState;
use streams::Streams;

/// Requests to read ahead that a shard has at a time, done or not: few of all that a drive is given.
const PIECES_MAX: u32 = 32;
/// Blocks that these read: 8 MiB.
const BLOCKS_MAX: u64 = 2048;
/// A request that takes the drive more reads than this is not read ahead.
const READS_MAX: usize = 4;

/// The prefetch budget of a shard.
pub(crate) struct Room {
    pieces: Cell<u32>,
    blocks: Cell<u64>,
}

impl Room {
    /// `None`: the device lies in memory.
    pub(crate) fn of<D: Device>(device: &D) -> Option<Rc<Self>> {
        let room = Self { pieces: Cell::new(PIECES_MAX), blocks: Cell::new(BLOCKS_MAX) };
        (!device.limits().pins).then(|| Rc::new(room))
    }

    /// Returns whether prefetched data waits for its reader.
    pub(crate) fn is_in_use(&self) -> bool {
        self.pieces.get() < PIECES_MAX
    }

    fn take(self: &Rc<Self>, blocks: u64) -> Option<Share> {
        let pieces = self.pieces.get().checked_sub(1)?;
        self.blocks.set(self.blocks.get().checked_sub(blocks)?);
        self.pieces.set(pieces);
        Some(Share { room: self.clone(), blocks })
    }
}

/// Gives its room back when dropped.
struct Share {
    room: Rc<Room>,
    blocks: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.pieces.set(self.room.pieces.get() + 1);
        self.room.blocks.set(self.room.blocks.get() + self.blocks);
    }
}

/// The runs of a request, as the device gave them or will.
enum Runs {
    Done(Vec<Fetched>),
    /// On their way, whether this is polled or not: they began at once ([`Device::has_room`]).
    Coming(Pin<Box<dyn Future<Output = Vec<Fetched>>>>),
}

/// Data prefetched for one request.
struct Piece {
    range: LbaRange,
    /// The map's answer at that time.
    found: Found,
    runs: Runs,
    /// Times that [`Ahead::age`] has passed it by.
    age: u8,
    _share: Share,
}

/// Data prefetched for the readers of a volume.
#[derive(Default)]
pub(crate) struct Ahead {
    streams: Streams,
    pieces: Vec<Piece>,
}

impl Ahead {
    /// The map changed in `range` (READ-AHEAD-1).
    pub(crate) fn forget(&mut self, range: LbaRange) {
        if !broken(Sabotage::KeepReadAhead) {
            let is_dropped = || self.pieces.iter().any(|piece| piece.range.overlaps(range));
            situation_if(Situation::ReadAheadIsForgotten, is_dropped);
            self.drop_if(|piece| piece.range.overlaps(range));
        }
    }

    /// Drops the data that was not used since the previous call. Called once in a while.
    pub(crate) fn age(&mut self) {
        self.pieces.iter_mut().for_each(|piece| piece.age += 1);
        self.drop_if(|piece| piece.age > 1);
    }

    /// Drops all.
    pub(crate) fn clear(&mut self) {
        self.drop_if(|_| true);
    }

    /// Drops prefetched data that is useless. Readers start over, so that the waste stays a part of
    /// what they read (READ-AHEAD-3).
    fn drop_if(&mut self, is_in_vain: impl Fn(&Piece) -> bool) {
        let before = self.pieces.len();
        self.pieces.retain(|piece| !is_in_vain(piece));
        if self.pieces.len() < before {
            self.streams = Streams::default();
        }
    }

    /// Takes the data prefetched for a request for which the map says `found`.
    fn take(&mut self, range: LbaRange, found: &Found) -> Option<Runs> {
        let Some(place) = self.pieces.iter().position(|piece| piece.range == range) else {
            // Another length than was foreseen.
            self.drop_if(|piece| piece.range.overlaps(range));
            return None;
        };
        let Piece { found: then, runs, .. } = self.pieces.swap_remove(place);
        let is_same = match broken(Sabotage::KeepReadAhead) {
            true => runs_of(&then.pieces).len() == runs_of(&found.pieces).len(),
            false => then.is_where(found),
        };
        is_same.then_some(runs)
    }
}

impl<D: Device> Inner<D> {
    /// The runs of a request of which the map has just said `found`, if they were read ahead. Has what comes behind it read
    /// ahead in any case.
    pub(super) fn take_ahead(
        &self,
        state: &VolumeState,
        range: LbaRange,
        found: &Found,
    ) -> Option<impl Future<Output = Option<Vec<Fetched>>> + use<D>> {
        let room = self.room_ahead().filter(|_| range.blocks > 0)?;
        let taken = state.ahead.borrow_mut().take(range, found);
        self.read_ahead(state, range, room);
        let taken = taken?;
        Some(async move {
            let runs = match taken {
                Runs::Done(runs) => runs,
                Runs::Coming(coming) => coming.await,
            };
            let is_sound = runs.iter().all(Result::is_ok);
            situation_if(Situation::ReadAheadIsUsed, || is_sound);
            situation_if(Situation::ReadAheadHasFailed, || !is_sound);
            // READ-AHEAD-2.
            is_sound.then_some(runs)
        })
    }

    fn read_ahead(&self, state: &VolumeState, request: LbaRange, room: &Rc<Room>) {
        let mut ahead = state.ahead.borrow_mut();
        let mut wanted = ahead.streams.note(request, state.blocks.get());
        while wanted.blocks > 0 {
            let range = LbaRange::new(wanted.start, request.blocks);
            wanted = LbaRange::new(range.end(), wanted.blocks - request.blocks);
            let Some(piece) = self.start_piece(state, range, room) else { break };
            ahead.pieces.push(piece);
        }
    }

    /// `None`: there is no room, the drive has enough to do, the map is not in memory there, or the blocks lie all over the
    /// drive.
    fn start_piece(&self, state: &VolumeState, range: LbaRange, room: &Rc<Room>) -> Option<Piece> {
        let found = look_up(state, range).ok()?;
        let runs = runs_of(&found.pieces);
        let (reads, blocks) = cost_of(&runs);
        if reads > READS_MAX || !self.device.has_room() {
            return None;
        }
        let share = room.take(blocks)?;
        let mut coming: Pin<Box<dyn Future<Output = _>>> =
            Box::pin(fetch_runs(self.device.clone(), runs));
        // Its reader polls it again. Until then no task needs to know its progress.
        let runs = match coming.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(runs) => Runs::Done(runs),
            Poll::Pending => Runs::Coming(coming),
        };
        Some(Piece { range, found, runs, age: 0, _share: share })
    }
}
