//! The volumes of a shard, from the request that creates one until nothing of it is left.

use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use uuid::Uuid;

use crate::state::VolumeState;

/// Volumes by their numbers, which are given once.
pub(crate) struct Catalog {
    volumes: RefCell<BTreeMap<u32, Rc<VolumeState>>>,
    /// Identities whose creation is under way.
    creating: RefCell<Vec<Uuid>>,
    /// Volumes that are there when the next checkpoint is durable.
    by_checkpoint: RefCell<Vec<Rc<VolumeState>>>,
    /// Volumes of which only blocks on the device are left, for the next checkpoint to free.
    gone: RefCell<Vec<Rc<VolumeState>>>,
    next_number: Cell<u32>,
}

/// Keeps an identity from being taken twice, for as long as its creation is waited for.
pub(super) struct Creating<'a> {
    catalog: &'a Catalog,
    uuid: Uuid,
}

impl Catalog {
    pub(super) fn new() -> Self {
        Self {
            volumes: RefCell::default(),
            creating: RefCell::default(),
            by_checkpoint: RefCell::default(),
            gone: RefCell::default(),
            next_number: Cell::new(1),
        }
    }

    /// Volumes that are there, in the order of their numbers.
    pub(crate) fn all(&self) -> Ref<'_, BTreeMap<u32, Rc<VolumeState>>> {
        self.volumes.borrow()
    }

    pub(super) fn get(&self, number: u32) -> Option<Rc<VolumeState>> {
        self.volumes.borrow().get(&number).cloned()
    }

    /// The first volume that has this number or a higher one.
    pub(super) fn first_from(&self, number: u32) -> Option<Rc<VolumeState>> {
        self.volumes.borrow().range(number..).next().map(|(_, state)| state.clone())
    }

    /// The volume is there.
    pub(super) fn insert(&self, state: Rc<VolumeState>) {
        self.volumes.borrow_mut().insert(state.number, state);
    }

    /// A deleted volume's last block has left its map.
    pub(super) fn has_gone(&self, state: &Rc<VolumeState>) {
        self.volumes.borrow_mut().remove(&state.number);
        self.gone.borrow_mut().push(state.clone());
    }

    /// Hands those over to a checkpoint.
    pub(super) fn take_gone(&self) -> Vec<Rc<VolumeState>> {
        self.gone.take()
    }

    /// Volumes whose creation waits for a checkpoint.
    pub(super) fn by_checkpoint(&self) -> Vec<Rc<VolumeState>> {
        self.by_checkpoint.borrow().clone()
    }

    /// The next checkpoint creates the volume.
    pub(super) fn create_by_checkpoint(&self, state: Rc<VolumeState>) {
        self.by_checkpoint.borrow_mut().push(state);
    }

    /// The checkpoint that creates the volume is durable.
    pub(super) fn is_created(&self, state: Rc<VolumeState>) {
        self.by_checkpoint.borrow_mut().retain(|other| !Rc::ptr_eq(other, &state));
        self.insert(state);
    }

    /// Volumes that take a place in the next checkpoint's table.
    pub(super) fn count_for_tables(&self) -> usize {
        self.volumes.borrow().len() + self.by_checkpoint.borrow().len() + self.gone.borrow().len()
    }

    /// All volumes of which anything is left, those first that are there.
    pub(super) fn all_left(&self) -> Vec<Rc<VolumeState>> {
        self.volumes.borrow().values().chain(&*self.gone.borrow()).cloned().collect()
    }

    /// Takes the identity for a creation; `None` if one is under way.
    pub(super) fn begin_creation(&self, uuid: Uuid) -> Option<Creating<'_>> {
        let is_taken = self.creating.borrow().contains(&uuid)
            || self.by_checkpoint.borrow().iter().any(|state| state.uuid == uuid);
        if is_taken {
            return None;
        }
        self.creating.borrow_mut().push(uuid);
        Some(Creating { catalog: self, uuid })
    }

    /// The number that the next volume gets.
    pub(super) fn next_number(&self) -> u32 {
        self.next_number.get()
    }

    /// Gives a number; `None` if all are given.
    pub(super) fn take_number(&self) -> Option<u32> {
        let number = self.next_number.get();
        self.next_number.set(number.checked_add(1)?);
        Some(number)
    }

    /// Numbers below `next` have been given.
    pub(super) fn pass_numbers(&self, next: u32) {
        self.next_number.set(self.next_number.get().max(next));
    }
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        self.catalog.creating.borrow_mut().retain(|uuid| *uuid != self.uuid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_created_once_at_a_time() {
        let catalog = Catalog::new();
        let [first, second] = [1, 2].map(Uuid::from_u128);
        let creating = catalog.begin_creation(first).expect("it is free");
        assert!(catalog.begin_creation(first).is_none());
        drop(catalog.begin_creation(second).expect("another one"));
        drop(creating);
        assert!(catalog.begin_creation(first).is_some(), "its creation is over");
    }

    #[test]
    fn a_number_is_given_once() {
        let catalog = Catalog::new();
        assert_eq!(catalog.take_number(), Some(1));
        catalog.pass_numbers(7);
        catalog.pass_numbers(3);
        assert_eq!((catalog.take_number(), catalog.next_number()), (Some(7), 8));
        catalog.pass_numbers(u32::MAX);
        assert_eq!(catalog.take_number(), None);
    }
}
