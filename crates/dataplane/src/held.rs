//! A device whose shards are closed for a moment and come back in the same process: it has grown.
//!
//! - HELD-1: while a device is held, requests to its volumes and commands for their reservations wait, and hosts stay connected.
//!   None is carried out by a shard that is closed.
//! - HELD-2: shards are closed when no request is under way any more, and with a checkpoint: all that was acknowledged is in it,
//!   and nothing is on its way to the device.
//! - HELD-3: volumes go on with what is known of them in memory alone, such as reservations that end with the server's power.
//! - HELD-4: a shard that cannot be read back has failed, and is brought back as any other (SHARD-2). What waited goes on
//!   meanwhile, and is told so.
//! - HELD-5: once the device is let go of, no further shard is closed for the sake of that hold: hosts use those that are left.

use std::cell::Cell;
use std::collections::BTreeSet;

use io_traits::{Device, World};
use local_sync::{Notify, first_of};
use units::{DeviceIndex, ShardIndex};
use uuid::Uuid;
use volume::{Shard, VolumeError};

use crate::core::Core;
use crate::session::Link;

/// Lets requests pass to a device, unless it is held.
#[derive(Default)]
pub(crate) struct Passage {
    is_held: Cell<bool>,
    /// Number of holds so far.
    holds: Cell<u64>,
    /// Requests that passed and have not ended.
    inside: Cell<u64>,
    /// One of both is another than before, and requests or the core wait for that.
    changed: Notify,
}

/// Counts a request until it is dropped.
pub(crate) struct Inside<'a>(&'a Passage);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Passage {
    /// Lets a request pass; `None` if the device is held.
    pub(crate) fn pass_at_once(&self) -> Option<Inside<'_>> {
        self.enter().then(|| Inside(self))
    }

    /// As [`Passage::pass_at_once`], for a caller that calls [`Passage::leave`] when the request is done.
    pub(crate) fn enter(&self) -> bool {
        let passes = !self.is_held.get();
        self.inside.set(self.inside.get() + u64::from(passes));
        passes
    }

    /// A request that passed is done.
    pub(crate) fn leave(&self) {
        let left = self.inside.get() - 1;
        self.inside.set(left);
        if left == 0 && self.is_held.get() {
            self.changed.notify_all();
        }
    }

    /// Lets a request pass as soon as the device is not held; `None` if its session ends before.
    pub(crate) async fn pass(&self, link: &Link) -> Option<Inside<'_>> {
        match self.pass_at_once() {
            Some(inside) => Some(inside),
            // By itself: requests that need not wait stay small.
            None => Box::pin(self.wait(link)).await,
        }
    }

    /// The same for a command that no session can take back.
    pub(crate) async fn pass_alone(&self) -> Inside<'_> {
        loop {
            match self.pass_at_once() {
                Some(inside) => return inside,
                None => self.changed.notified().await,
            }
        }
    }

    async fn wait(&self, link: &Link) -> Option<Inside<'_>> {
        while link.is_open() {
            match self.pass_at_once() {
                Some(inside) => return Some(inside),
                None => drop(first_of(self.changed.notified(), link.closed().notified()).await),
            }
        }
        None
    }

    /// Lets nothing pass from now on. Returns the number of this hold.
    fn hold(&self) -> u64 {
        self.is_held.set(true);
        self.holds.set(self.holds.get() + 1);
        self.holds.get()
    }

    /// Lets what waits pass.
    pub(crate) fn release(&self) {
        self.is_held.set(false);
        self.changed.notify_all();
    }

    pub(crate) fn is_held(&self) -> bool {
        self.is_held.get()
    }

    /// Returns true until the hold of this number is released.
    fn is_held_by(&self, hold: u64) -> bool {
        self.is_held.get() && self.holds.get() == hold
    }

    /// Waits until nothing is inside; `false` if the hold was released before.
    async fn emptied(&self, hold: u64) -> bool {
        loop {
            let changed = self.changed.notified();
            if !self.is_held_by(hold) || self.inside.get() == 0 {
                return self.is_held_by(hold);
            }
            changed.await;
        }
    }
}

impl<W: World, D: Device> Core<W, D> {
    /// Has requests to a device wait, and closes its shards when those under way have ended (HELD-1, HELD-2). In any case
    /// [`Core::reopen_device`] is to follow, which also ends this before its end.
    ///
    /// # Errors
    /// A shard has failed, or fails now, or the core serves nothing for now: the device is not to be changed.
    pub async fn close_device(&self, device: DeviceIndex) -> Result<(), VolumeError> {
        let shards = self.shards_on(device);
        let may_be_closed =
            || !self.is_draining() && !self.is_suspended() && !shards.iter().any(Shard::is_failed);
        if shards.is_empty() || !may_be_closed() {
            return Err(VolumeError::ShutDown);
        }
        let gate = self.gate(device);
        let hold = gate.passage().hold();
        if !gate.passage().emptied(hold).await || !may_be_closed() {
            return Err(VolumeError::ShutDown);
        }
        for shard in &shards {
            shard.close().await?;
            // HELD-5.
            if !gate.passage().is_held_by(hold) {
                return Err(VolumeError::ShutDown);
            }
        }
        Ok(())
    }

    /// Takes the shards of a device that was closed into use again, by `way` if the device is larger now or may be, and lets
    /// requests go on. Returns whether all of them are back (HELD-4).
    pub async fn reopen_device(&self, device: DeviceIndex, way: Option<D>) -> bool {
        if let Some(way) = way {
            self.state.care.set_way(device, way);
            self.shards_on(device).first().into_iter().for_each(Shard::may_have_grown);
        }
        let numbers: Vec<ShardIndex> = {
            let shards = self.state.shards.borrow();
            shards.keys().filter(|number| shards[*number].device == device).collect()
        };
        let mut are_back = true;
        for number in numbers {
            are_back &= self.reopen_closed(number).await;
        }
        self.gate(device).passage().release();
        are_back
    }

    async fn reopen_closed(&self, number: ShardIndex) -> bool {
        let closed = self.shard(number);
        if !closed.is_closing() {
            return true;
        }
        let reopened = match self.way_of(number) {
            Some(way) => closed.reopen_on(way.device).await,
            None => closed.reopen().await,
        };
        match reopened {
            // Its loops would not be ended.
            Ok(_) if self.is_draining() || self.is_abandoned(number) => false,
            Ok(shard) => {
                match !closed.is_failed() && volumes_of(&closed) == volumes_of(&shard) {
                    true => self.go_on_with(number, &shard),
                    false => self.take_in_returned(number, &shard),
                }
                true
            }
            Err(error) => {
                tracing::error!(shard = closed.index(), %error, "is not back");
                self.state.care.attempt_failed(number, error);
                closed.give_up();
                false
            }
        }
    }

    /// HELD-3.
    fn go_on_with(&self, number: ShardIndex, shard: &Shard<D>) {
        for volume in shard.volumes() {
            if let Some(export) = self.export(volume.uuid()) {
                export.go_on_with(volume);
                self.bound_by_allowance(&export);
            }
        }
        self.put_in_place(number, shard);
    }

    /// Lets go of what waits, as the core ends.
    pub(crate) fn release_devices(&self) {
        let shards = self.state.shards.borrow();
        let devices: BTreeSet<DeviceIndex> = shards.iter().map(|shard| shard.device).collect();
        drop(shards);
        devices.into_iter().for_each(|device| self.gate(device).passage().release());
    }

    pub(crate) fn is_held(&self, number: ShardIndex) -> bool {
        let device = self.state.shards.borrow()[number].device;
        self.gate(device).passage().is_held()
    }
}

fn volumes_of<D: Device>(shard: &Shard<D>) -> BTreeSet<Uuid> {
    shard.volumes().iter().map(volume::Volume::uuid).collect()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// HELD-1 and HELD-2: it is empty when the last of those inside has ended, and what came since then waits.
    #[test]
    fn a_passage_that_is_held_empties_and_lets_nothing_in() {
        let passage = Passage::default();
        let [first, second] = [(); 2].map(|()| passage.pass_at_once().expect("it is open"));
        let hold = passage.hold();
        assert!(passage.pass_at_once().is_none());
        let (mut emptied, mut waits) = (pin!(passage.emptied(hold)), pin!(passage.pass_alone()));
        drop(first);
        assert!(poll(emptied.as_mut()).is_pending() && poll(waits.as_mut()).is_pending());
        drop(second);
        assert_eq!(poll(emptied.as_mut()), Poll::Ready(true));
        assert!(poll(waits.as_mut()).is_pending());
        passage.release();
        assert!(poll(waits.as_mut()).is_ready());
    }

    #[test]
    fn a_passage_that_is_released_is_not_waited_for() {
        let passage = Passage::default();
        let _inside = passage.pass_at_once();
        let hold = passage.hold();
        let mut emptied = pin!(passage.emptied(hold));
        assert!(poll(emptied.as_mut()).is_pending());
        passage.release();
        // Another hold is another matter.
        passage.hold();
        assert_eq!(poll(emptied.as_mut()), Poll::Ready(false));
    }
}
