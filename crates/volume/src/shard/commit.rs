//! From a queued operation to one that took effect.
//!
//! ```text
//!  submit ──> queue ──> record in flight ──> settled: applied to the map, answered
//!    └──────> data in flight ──────────────────┘
//! ```
//! - COMMIT-1: an operation takes effect when its record, every earlier record, and the data of them all
//!   are on the media: after the flush behind these completions, where the device needs one.
//! - COMMIT-2: operations take effect in the order of their records, each in one synchronous step.
//! - COMMIT-3: a write whose data failed never takes effect. If its entry is on its way already, a later
//!   entry restores what was there; until that is durable its blocks and its range stay taken.
//! - COMMIT-4: nothing is acknowledged once a record or a flush has failed: what the media hold is unknown
//!   until they are read back.
//! - COMMIT-5: a flush that fails concerns all shards of the device, whichever asked for it: it should have covered what they
//!   had written, too, and a later one that succeeds says nothing of that. So shards share flushes, and what comes of one is
//!   known to all before the next begins (`flushes.rs`).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use io_traits::{Buffer, BufferSlice, Device, DeviceError};
use layout::{RECORD_ENTRIES_MAX, RECORD_HEADER_SIZE, RecordHead, record_blocks, seal_record};
use situations::{Situation, situation, situation_if};
use smallvec::SmallVec;
use units::PbaRange;

use super::Inner;
use super::flush::Flusher;
use crate::io::IoSlot;
use crate::journal::{Place, RECORDS_UNSETTLED_MAX};
use crate::ops::{Change, Crcs, Op, OpId, Told};
use crate::sabotage::{Sabotage, broken};
use crate::volume::aligned;
use crate::{JournalLoss, VolumeError};

/// Data writes under way.
pub(crate) type Slots = SmallVec<[Box<dyn IoSlot>; 1]>;

/// The data of a write: what of it is under way, and what went wrong with the rest.
struct StartedData {
    slots: Slots,
    error: Option<DeviceError>,
}

/// Data writes without a request that waits for them: the committer sees them through.
pub(super) struct DetachedWrite {
    id: OpId,
    slots: Slots,
    error: Option<DeviceError>,
}

/// Waits for an operation to take effect, and drives its data writes meanwhile.
pub(crate) struct Submitted<'a, D: Device> {
    inner: &'a Inner<D>,
    id: OpId,
    slots: Slots,
    error: Option<DeviceError>,
    finished: bool,
}

/// A journal write lane, and the record in it.
struct Lane {
    slot: Box<dyn IoSlot>,
    sequence: Option<u64>,
}

/// Drops the calls that are to tell outcomes when the committer is dropped before its end: such a call may own the shard, and
/// both would stay for ever.
struct Unheard<'a, D: Device>(&'a Inner<D>);

impl<D: Device> Drop for Unheard<'_, D> {
    fn drop(&mut self) {
        let told: Vec<Told> = {
            let mut ops = self.0.ops.borrow_mut();
            ops.iter_mut().filter_map(|(_, op)| op.told.take()).collect()
        };
        // Behind the borrow, as it may drop what the engine knows nothing of.
        drop(told);
    }
}

impl<D: Device> Inner<D> {
    /// Queues an operation without data.
    pub(crate) fn submit(&self, op: Op) -> Submitted<'_, D> {
        let id = self.enqueue(op);
        Submitted { inner: self, id, slots: Slots::new(), error: None, finished: false }
    }

    /// Queues a write and starts its data.
    pub(crate) fn submit_write(&self, op: Op, data: &BufferSlice) -> Submitted<'_, D> {
        let (id, StartedData { slots, error }) = self.start_write(op, data);
        Submitted { inner: self, id, slots, error, finished: false }
    }

    /// As [`Inner::submit_write`], for an operation whose outcome is told.
    pub(crate) fn begin_write(&self, op: Op, data: &BufferSlice) {
        let (id, StartedData { slots, error }) =
            self.start_write(Op { detached: true, ..op }, data);
        if !slots.is_empty() {
            self.committer.detach(DetachedWrite { id, slots, error });
        }
    }

    fn start_write(&self, mut op: Op, data: &BufferSlice) -> (OpId, StartedData) {
        let Change::Write { runs, crcs, .. } = &mut op.change else {
            unreachable!("only writes have data")
        };
        // A shard that was given up begins nothing on the device: its successor may be at work there.
        let runs = if self.takes_records() { runs.as_slice() } else { &[] };
        let started = self.start_data(runs, crcs, data);
        op.data_pending = !started.slots.is_empty();
        let refused = started.error.filter(|_| !op.data_pending);
        op.data_error = refused;
        let id = self.enqueue(op);
        if let Some(error) = refused {
            self.data_was_refused(error);
        }
        (id, started)
    }

    /// Writes data, or begins to where that takes time. Checksums are taken on the way if there are none.
    fn start_data(&self, runs: &[PbaRange], crcs: &mut Crcs, data: &BufferSlice) -> StartedData {
        let mut started = StartedData { slots: Slots::new(), error: None };
        let (mut first, are_wanted) = (0, crcs.is_empty());
        for run in runs {
            let count = usize::try_from(run.blocks).expect("bounded by one write");
            let data = data.blocks(first, count);
            first += count;
            let mut take = |crc| crcs.push(crc);
            let take: Option<&mut dyn FnMut(u32)> = if are_wanted { Some(&mut take) } else { None };
            let written = self.device.write_at_once(run.start, &data, take);
            if crcs.len() < first {
                // Some were told if it has failed.
                crcs.truncate(first - count);
                crcs.extend(checksum::crc32c_of_blocks(data.as_bytes()));
            }
            match written {
                Some(Err(error)) if !broken(Sabotage::IgnoreDataError) => {
                    started.error.get_or_insert(error);
                }
                Some(_) => {}
                None => {
                    let mut slot = self.take_slot();
                    slot.start_write(run.start, aligned(data.unpinned()));
                    started.slots.push(slot);
                }
            }
        }
        started
    }

    /// Returns whether what is queued can become durable.
    fn takes_records(&self) -> bool {
        !self.journal.borrow().is_lost() && !self.life.has_committer_ended()
    }

    pub(super) fn enqueue(&self, op: Op) -> OpId {
        let id = self.ops.borrow_mut().insert(op);
        self.committer.begin_operation();
        let lost = {
            let mut journal = self.journal.borrow_mut();
            journal.queue.push_back(id);
            journal.is_lost()
        };
        if lost {
            self.tell_of_loss();
        } else if self.life.has_committer_ended() {
            // It waited for space, and meanwhile the shard was shut down.
            self.journal.borrow_mut().queue.clear();
            self.finish(id, Err(VolumeError::ShutDown));
        } else {
            self.committer.wake();
        }
        id
    }

    /// The data of an operation is on the media, or cannot be brought there.
    fn data_done(&self, id: OpId, error: Option<DeviceError>) {
        if let Some(error) = error {
            self.data_was_refused(error);
        }
        let record = {
            let mut ops = self.ops.borrow_mut();
            let op = &mut ops[id];
            op.data_pending = false;
            op.data_error = error;
            op.record.filter(|_| op.outcome.is_none())
        };
        let Some(sequence) = record else { return };
        let complete = {
            let mut journal = self.journal.borrow_mut();
            let Some(record) = journal.in_flight_mut(sequence) else { return };
            record.data_pending -= 1;
            record.data_pending == 0 && record.written
        };
        if complete && self.volatile {
            self.committer.wake();
        } else if complete {
            self.settle();
        }
    }

    pub(super) async fn run_committer(&self) {
        let lane = || Lane { slot: self.take_slot(), sequence: None };
        let _unheard = Unheard(self);
        let count = self.options.records_in_flight.clamp(1, 8);
        let mut lanes: Vec<Lane> = (0..count).map(|_| lane()).collect();
        let mut flusher = Flusher::new(self.take_slot());
        std::future::poll_fn(|context| self.poll_committer(context, &mut lanes, &mut flusher))
            .await;
        self.life.end_committer();
        self.background.notify_all();
    }

    fn poll_committer(
        &self,
        context: &mut Context<'_>,
        lanes: &mut [Lane],
        flusher: &mut Flusher,
    ) -> Poll<()> {
        self.committer.runs(context);
        loop {
            let mut progress = self.poll_lanes(context, lanes);
            progress |= self.poll_detached_writes(context);
            progress |= self.volatile && self.poll_flush(context, flusher);
            self.settle();
            for lane in lanes.iter_mut().filter(|lane| lane.sequence.is_none()) {
                let Some((place, record)) = self.form_record() else { break };
                lane.slot.start_write(place.pba, record);
                lane.sequence = Some(place.sequence);
                progress = true;
            }
            if !progress {
                break;
            }
        }
        let busy = lanes.iter().any(|l| l.sequence.is_some()) || !flusher.is_idle();
        let journal = self.journal.borrow();
        let idle = (journal.is_idle() && self.ops.borrow().is_empty()) || journal.is_lost();
        let detached_writes = self.committer.has_detached();
        if self.life.is_stopping() && idle && !busy && !detached_writes {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn poll_lanes(&self, context: &mut Context<'_>, lanes: &mut [Lane]) -> bool {
        let mut progress = false;
        for lane in lanes {
            let Some(sequence) = lane.sequence else { continue };
            let Poll::Ready(written) = lane.slot.poll(context) else { continue };
            lane.sequence = None;
            progress = true;
            match written {
                Err(error) if !broken(Sabotage::IgnoreRecordError) => {
                    self.findings.refused.note(error);
                    situation(Situation::RecordWriteFails);
                    self.lose_journal(JournalLoss::Record(error));
                }
                _ => {
                    if let Some(record) = self.journal.borrow_mut().in_flight_mut(sequence) {
                        record.written = true;
                    }
                }
            }
        }
        progress
    }

    /// Behind the committer's end: sees through what requests had begun on the device.
    pub(super) fn poll_leftovers(&self, context: &mut Context<'_>) -> Poll<()> {
        self.committer.runs(context);
        while self.poll_detached_writes(context) {}
        let quiet = self.ops.borrow().is_empty() && !self.committer.has_detached();
        if quiet && self.life.is_quiet() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn poll_detached_writes(&self, context: &mut Context<'_>) -> bool {
        let mut detached_writes = self.committer.take_detached();
        if detached_writes.is_empty() {
            return false;
        }
        let before = detached_writes.len();
        let mut waiting = Vec::new();
        for mut write in detached_writes.drain(..) {
            self.poll_slots(context, &mut write.slots, &mut write.error);
            if write.slots.is_empty() {
                self.data_done(write.id, write.error);
                self.forget_if_detached(write.id);
            } else {
                waiting.push(write);
            }
        }
        let progress = waiting.len() < before;
        self.committer.put_back_detached(waiting);
        progress
    }

    fn poll_slots(
        &self,
        context: &mut Context<'_>,
        slots: &mut Slots,
        error: &mut Option<DeviceError>,
    ) {
        let mut index = 0;
        while index < slots.len() {
            match slots[index].poll(context) {
                Poll::Pending => index += 1,
                Poll::Ready(done) => {
                    if let Err(failed) = done
                        && !broken(Sabotage::IgnoreDataError)
                    {
                        error.get_or_insert(failed);
                    }
                    self.committer.return_slot(slots.swap_remove(index));
                }
            }
        }
    }

    /// Puts as much of the queue as fits into one record.
    fn form_record(&self) -> Option<(Place, BufferSlice)> {
        self.drop_failed_from_queue();
        let mut journal = self.journal.borrow_mut();
        if journal.is_lost()
            || (journal.queue.is_empty() && !journal.say_settled)
            || journal.in_flight.len() >= RECORDS_UNSETTLED_MAX
        {
            return None;
        }
        let mut ops = self.ops.borrow_mut();
        let (mut len, mut taken) = (0, 0);
        for id in &journal.queue {
            let more = ops[*id].len_bytes();
            if len + more > RECORD_ENTRIES_MAX {
                break;
            }
            len += more;
            taken += 1;
        }
        let blocks = record_blocks(len);
        let Some(place) = journal.place(blocks as u64) else {
            situation(Situation::JournalIsFull);
            self.suggest_checkpoint();
            return None;
        };
        let mut buffer = Buffer::new(blocks);
        let bytes = buffer.as_mut_bytes();
        let (mut at, mut count, mut data_pending) = (RECORD_HEADER_SIZE, 0, 0);
        let mut list = journal.spare_list();
        for id in journal.queue.drain(..taken) {
            let op = &mut ops[id];
            let skip = broken(Sabotage::SkipEntries) && place.sequence.is_multiple_of(4);
            let (entries, entries_len) = if skip { (0, 0) } else { op.encode(&mut bytes[at..]) };
            at += entries_len;
            count += entries;
            data_pending += u32::from(op.data_pending);
            op.record = Some(place.sequence);
            list.push(id);
        }
        let (applied, failed) = journal.effects();
        let head = RecordHead {
            sequence: place.sequence,
            incarnation: journal.incarnation,
            device: self.superblock.uuid,
            shard: self.index,
            settled: match broken(Sabotage::SettleTooMuch) {
                true => place.sequence - 1,
                false => journal.settled(),
            },
            previous_crc: place.previous_crc,
            generation: self.generation.get(),
            applied,
            failed,
            secret: self.secret.get(),
        };
        let crc = seal_record(bytes, &head, count, len);
        self.note_record(place, taken == 0);
        journal.push(place, blocks as u64, crc, list, data_pending);
        if journal.is_half_full() {
            self.suggest_checkpoint();
        }
        Some((place, buffer.into_slice()))
    }

    fn note_record(&self, place: Place, is_empty: bool) {
        situation_if(Situation::RecordSaysSettled, || is_empty);
        if place.is_at_start() && place.sequence > 1 {
            situation(Situation::JournalWraps);
            let is_under_way = || self.checkpoints.is_under_way();
            situation_if(Situation::JournalWrapsUnderCheckpoint, is_under_way);
        }
    }

    /// Writes whose data failed before their entry was on its way need no undoing (COMMIT-3).
    fn drop_failed_from_queue(&self) {
        loop {
            let failed = {
                let mut journal = self.journal.borrow_mut();
                let ops = self.ops.borrow();
                let place = journal.queue.iter().position(|id| ops[*id].data_error.is_some());
                place.and_then(|place| journal.queue.remove(place))
            };
            let Some(id) = failed else { return };
            self.give_up_write(id);
        }
    }

    /// Lets take effect what may (COMMIT-1, COMMIT-2).
    fn settle(&self) {
        let mut any = false;
        loop {
            let settled = self.journal.borrow_mut().pop_settled(self.volatile);
            let Some(list) = settled else { break };
            for id in &list {
                self.apply(*id);
            }
            self.journal.borrow_mut().recycle(list);
            any = true;
        }
        if any && (self.life.is_stopping() || !self.journal.borrow().queue.is_empty()) {
            self.committer.wake();
        }
    }

    /// Ends the operation: tasks that wait for it or for its range continue.
    pub(super) fn finish(&self, id: OpId, outcome: Result<(), VolumeError>) {
        let (holds, waker, told) = {
            let mut ops = self.ops.borrow_mut();
            let op = &mut ops[id];
            let told = op.told.take().map(|told| (told, op.volume.clone(), outcome.clone()));
            if op.outcome.replace(outcome).is_none() {
                self.committer.finish_operation();
            }
            self.admission.give_back(op.holds.take_node_blocks());
            (std::mem::take(&mut op.holds), op.waker.take(), told)
        };
        drop(holds);
        self.notify_space();
        if let Some(waker) = waker {
            waker.wake();
        }
        self.forget_if_detached(id);
        if let Some((Told { blocks, tell }, volume, outcome)) = told {
            let volume = volume.expect("a write is one of a volume");
            if outcome.is_ok() {
                volume.count_write(blocks);
            }
            self.note_outcome(&volume, outcome.as_ref().err());
            tell(outcome);
        }
    }

    fn forget_if_detached(&self, id: OpId) {
        let mut ops = self.ops.borrow_mut();
        let over = ops.get(id).is_some_and(|op| op.detached && op.outcome.is_some());
        if over && !ops[id].data_pending {
            ops.remove(id);
            if ops.is_empty() && self.life.is_stopping() {
                drop(ops);
                self.committer.wake();
            }
        }
    }

    /// COMMIT-4: nothing is written any more. The first reason is the one.
    pub(super) fn lose_journal(&self, why: JournalLoss) {
        self.journal.borrow_mut().lose(why);
        self.tell_of_loss();
    }

    /// COMMIT-4: tells all tasks that wait for the journal, and queues nothing more.
    fn tell_of_loss(&self) {
        {
            let mut journal = self.journal.borrow_mut();
            journal.queue.clear();
            journal.in_flight.clear();
        }
        let waiting: Vec<OpId> = {
            let ops = self.ops.borrow();
            ops.iter().filter(|(_, op)| op.outcome.is_none()).map(|(id, _)| id).collect()
        };
        // Whatever the reason: a record that is on its way may be found when the shard is read back.
        for id in waiting {
            let is_open = self.ops.borrow().get(id).is_some_and(|op| op.outcome.is_none());
            if is_open {
                self.finish(id, Err(VolumeError::JournalLost));
            }
        }
        self.checkpoints.notify();
        self.background.notify_all();
        self.paging.notify();
        self.notify_space();
    }
}

impl<D: Device> Future for Submitted<'_, D> {
    type Output = Result<(), VolumeError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !this.slots.is_empty() {
            this.inner.poll_slots(context, &mut this.slots, &mut this.error);
            if this.slots.is_empty() {
                this.inner.data_done(this.id, this.error);
            }
        }
        let mut ops = this.inner.ops.borrow_mut();
        let op = &mut ops[this.id];
        if this.slots.is_empty() && op.outcome.is_some() {
            this.finished = true;
            let op = ops.remove(this.id);
            if this.inner.life.is_stopping() {
                drop(ops);
                this.inner.committer.wake();
            }
            return Poll::Ready(op.outcome.expect("just seen"));
        }
        match &mut op.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl<D: Device> Drop for Submitted<'_, D> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        self.inner.ops.borrow_mut()[self.id].detached = true;
        if self.slots.is_empty() {
            self.inner.forget_if_detached(self.id);
        } else {
            situation(Situation::RequestAbandoned);
            let (id, error) = (self.id, self.error);
            let slots = std::mem::take(&mut self.slots);
            self.inner.committer.detach(DetachedWrite { id, slots, error });
        }
    }
}
