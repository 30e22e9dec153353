//! The state of a core's care for its shards (`shards.rs`).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use local_sync::{Notified, Notify};
use units::{DeviceIndex, ShardIndex};
use uuid::Uuid;
use volume::OpenError;

use crate::devices::Way;

/// The action to take when a shard has come back.
pub(crate) type OnReturn = Rc<dyn Fn(ShardIndex, BTreeSet<Uuid>)>;

/// Shards that failed and devices that changed, by their numbers.
pub(crate) struct ShardCare<D> {
    /// Failed shards that are being brought back.
    reopening: RefCell<BTreeSet<ShardIndex>>,
    /// Errors of the last attempts to bring shards back.
    failed_attempts: RefCell<BTreeMap<ShardIndex, OpenError>>,
    /// Shards whose checkpoint the device refuses.
    held_up: RefCell<BTreeSet<ShardIndex>>,
    /// Devices that are another's now (SHARD-3).
    abandoned: RefCell<BTreeSet<DeviceIndex>>,
    /// The new handles of devices that were reopened (SHARD-5).
    ways: RefCell<BTreeMap<DeviceIndex, Way<D>>>,
    /// There is another.
    renewed: Notify,
    on_return: RefCell<Option<OnReturn>>,
    /// Volumes whose creation ended in an error, and that may be there all the same (SHARD-2).
    unanswered: RefCell<BTreeSet<Uuid>>,
}

impl<D> Default for ShardCare<D> {
    fn default() -> Self {
        Self {
            reopening: RefCell::default(),
            failed_attempts: RefCell::default(),
            held_up: RefCell::default(),
            abandoned: RefCell::default(),
            ways: RefCell::default(),
            renewed: Notify::new(),
            on_return: RefCell::default(),
            unanswered: RefCell::default(),
        }
    }
}

impl<D: Clone> ShardCare<D> {
    /// Returns whether the shard, which failed, is not being brought back yet: then it is from now on.
    pub(crate) fn begin_reopening(&self, shard: ShardIndex) -> bool {
        self.reopening.borrow_mut().insert(shard)
    }

    /// The shard is back, or is given up.
    pub(crate) fn end_reopening(&self, shard: ShardIndex) {
        self.reopening.borrow_mut().remove(&shard);
        self.failed_attempts.borrow_mut().remove(&shard);
    }

    pub(crate) fn attempt_failed(&self, shard: ShardIndex, error: OpenError) {
        self.failed_attempts.borrow_mut().insert(shard, error);
    }

    pub(crate) fn last_attempt(&self, shard: ShardIndex) -> Option<OpenError> {
        self.failed_attempts.borrow().get(&shard).cloned()
    }

    /// Notes whether the device refuses the shard's checkpoint. Returns whether that is news.
    pub(crate) fn note_held_up(&self, shard: ShardIndex, is_held_up: bool) -> bool {
        match is_held_up {
            true => self.held_up.borrow_mut().insert(shard),
            false => self.held_up.borrow_mut().remove(&shard),
        }
    }

    pub(crate) fn abandon(&self, device: DeviceIndex) {
        self.abandoned.borrow_mut().insert(device);
    }

    pub(crate) fn is_abandoned(&self, device: DeviceIndex) -> bool {
        self.abandoned.borrow().contains(&device)
    }

    /// The handle by which a device was reopened last.
    pub(crate) fn way(&self, device: DeviceIndex) -> Option<Way<D>> {
        self.ways.borrow().get(&device).cloned()
    }

    /// Shards that are read back from now on use this handle.
    pub(crate) fn set_way(&self, device: DeviceIndex, handle: D) {
        let mut ways = self.ways.borrow_mut();
        let number = ways.get(&device).map_or(0, |way| way.number) + 1;
        ways.insert(device, Way { device: handle, number });
    }

    /// Waits for the next [`ShardCare::tell_of_renewal`].
    pub(crate) fn renewed(&self) -> Notified {
        self.renewed.notified()
    }

    /// Those that bring shards back try at once, by the new handle.
    pub(crate) fn tell_of_renewal(&self) {
        self.renewed.notify_all();
    }

    pub(crate) fn set_on_return(&self, told: Option<OnReturn>) {
        self.on_return.replace(told);
    }

    /// Tells of a shard that is back without the volumes in `lost`.
    pub(crate) fn tell_of_return(&self, shard: ShardIndex, lost: &BTreeSet<Uuid>) {
        let told = self.on_return.borrow().clone();
        told.into_iter().for_each(|told| told(shard, lost.clone()));
    }

    /// Notes how the creation of a volume ended.
    pub(crate) fn note_creation(&self, volume: Uuid, is_in_doubt: bool) {
        match is_in_doubt {
            true => self.unanswered.borrow_mut().insert(volume),
            false => self.unanswered.borrow_mut().remove(&volume),
        };
    }

    /// Returns whether the volume's creation ended in an error. It is asked once.
    pub(crate) fn take_unanswered(&self, volume: Uuid) -> bool {
        self.unanswered.borrow_mut().remove(&volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_renewal_of_a_device_has_a_number_of_its_own() {
        let care = ShardCare::default();
        let (one, other) = (DeviceIndex(3), DeviceIndex(4));
        assert!(care.way(one).is_none());
        care.set_way(one, "first");
        care.set_way(one, "second");
        care.set_way(other, "another");
        let way = |device| care.way(device).map(|way| (way.device, way.number));
        assert_eq!((way(one), way(other)), (Some(("second", 2)), Some(("another", 1))));
    }

    #[test]
    fn a_shard_is_brought_back_once_at_a_time() {
        let (care, shard) = (ShardCare::<()>::default(), ShardIndex(1));
        assert!(care.begin_reopening(shard) && !care.begin_reopening(shard));
        care.attempt_failed(shard, OpenError::NoExtent);
        assert!(care.last_attempt(shard).is_some());
        care.end_reopening(shard);
        assert!(care.last_attempt(shard).is_none() && care.begin_reopening(shard));
    }
}
