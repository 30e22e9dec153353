//! Checks at the end of a scrub, while the shard is in use, that each owned block has one owner and
//! is in use, that each block in use has an owner, and that counts are right.
//!
//! - ACCOUNT-1: a leaf is taken down at one instant: what it names then is in use then, without exception.
//! - ACCOUNT-2: what is freed before its turn is not met, and what is freed behind it leaves the
//!   inventory.
//! - ACCOUNT-3: what then is in doubt (`inventory.rs`) is asked for a second time: only owners found then
//!   count.
//! - ACCOUNT-4: a block that is named and free is in use from then on, so that it is not handed out.
//!   Nothing else is changed: the right owner of a block with two owners is unknown, and blocks
//!   without an owner are left to `fsck`.
//! - ACCOUNT-5: where anything cannot be read, what it names is unknown: no block is said to have no owner
//!   then.
//! - ACCOUNT-6: of two scrubs at once the one that came to this later goes on, and answers for both.

use space::Owner;
use std::cell::RefCell;
use std::rc::Rc;

use io_traits::{Device, DeviceError};
use local_sync::yield_now;
use units::{Lba, Pba, PbaRange};

use super::Inner;
use super::refused::SCRUB_TICKS_MAX;
use super::scrub::{Damaged, ScrubStep, Structure};
use crate::VolumeError;
use crate::state::VolumeState;
use block_map::LeafBody;
use space::{Doubt, Inventory, Owners};

/// The cost of a leaf for the pacing of a scrub, in blocks read: some ten microseconds of the
/// processor.
const LEAF_BLOCKS: u64 = 32;
/// Extents looked at in one step: 4 KiB each.
const EXTENTS_PER_STEP: usize = 32;
/// A leaf that comes into memory and goes again while it is read, so often.
const TRIES_MAX: u32 = 8;

/// Progress of the check of a shard's accounts.
#[derive(Debug)]
pub(super) struct Accounts {
    inventory: Rc<RefCell<Inventory>>,
    stage: Stage,
    /// True if all owners of blocks were read (ACCOUNT-5).
    is_complete: bool,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Maps(Place),
    Tables,
    Extents { from: u32 },
    Doubts(Place),
    Verdict,
    Over,
}

/// A place in the maps of all volumes: the leaf of the keys from `at` on of the volume with this number, or the first
/// one of the next volume if there is none with it.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    number: u32,
    at: u64,
}

/// The outcome of a leaf.
enum Leaf {
    /// So many entries from where it was asked for, and where to go on.
    Seen { entries: u64, end: u64 },
    /// It cannot be read. Where to go on, if that is known.
    Unreadable { end: Option<u64> },
}

impl Accounts {
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }
}

impl<D: Device> Inner<D> {
    pub(super) fn begin_accounts(&self) -> Accounts {
        let inventory = self.pool.borrow_mut().begin_inventory();
        let is_complete = !self.hides_blocks();
        Accounts { inventory, stage: Stage::Maps(Place::default()), is_complete }
    }

    pub(super) async fn account_step(
        &self,
        accounts: &mut Accounts,
        step: &mut ScrubStep,
    ) -> Result<(), VolumeError> {
        if !self.pool.borrow().has_inventory(&accounts.inventory) {
            accounts.stage = Stage::Over;
        }
        accounts.stage = match accounts.stage {
            Stage::Maps(place) => {
                let visit =
                    async |state: &_, at| self.account_leaf(state, at, accounts, step).await;
                self.visit_leaf(place, visit).await?.map_or(Stage::Tables, Stage::Maps)
            }
            Stage::Tables => {
                self.no_checkpoint(SCRUB_TICKS_MAX).await?;
                let mut inventory = accounts.inventory.borrow_mut();
                self.for_each_other_owner(|pba, _| inventory.see(pba));
                self.for_each_retired(|pba| inventory.excuse(pba));
                Stage::Extents { from: 0 }
            }
            Stage::Extents { from } => match self.account_extents(from, accounts, step) {
                Some(from) => Stage::Extents { from },
                None if accounts.inventory.borrow().has_doubts() => Stage::Doubts(Place::default()),
                None => Stage::Over,
            },
            Stage::Doubts(place) => {
                let visit = async |state: &_, at| self.ask_leaf(state, at, accounts, step).await;
                self.visit_leaf(place, visit).await?.map_or(Stage::Verdict, Stage::Doubts)
            }
            Stage::Verdict => {
                self.no_checkpoint(SCRUB_TICKS_MAX).await?;
                let mut inventory = accounts.inventory.borrow_mut();
                self.for_each_other_owner(|pba, owner| inventory.note_owner(pba, owner));
                let doubts = inventory.take_doubts();
                drop(inventory);
                if self.pool.borrow().has_inventory(&accounts.inventory) {
                    self.judge(doubts, accounts.is_complete, step);
                }
                Stage::Over
            }
            Stage::Over => Stage::Over,
        };
        // A device that answers at once must not keep the core from its requests.
        yield_now().await;
        Ok(())
    }

    /// Visits the leaf at a place: `visit` returns where in the volume to go on, if anything of it is left. Returns where
    /// to go on among all; nowhere if no volume is left.
    async fn visit_leaf(
        &self,
        Place { number, at }: Place,
        visit: impl AsyncFnOnce(&VolumeState, u64) -> Result<Option<u64>, VolumeError>,
    ) -> Result<Option<Place>, VolumeError> {
        let state = self.volumes.first_from(number);
        let Some(state) = state else { return Ok(None) };
        let at = if state.number == number { at } else { 0 };
        Ok(Some(match visit(&state, at).await? {
            Some(at) => Place { number: state.number, at },
            None => Place { number: state.number.saturating_add(1), at: 0 },
        }))
    }

    /// Takes down the leaf of the keys from `at` on. Returns where to go on.
    async fn account_leaf(
        &self,
        state: &VolumeState,
        at: u64,
        accounts: &mut Accounts,
        step: &mut ScrubStep,
    ) -> Result<Option<u64>, VolumeError> {
        if at == 0 {
            state.map.borrow_mut().begin_count();
        }
        let mut misfits = Vec::new();
        let inventory = accounts.inventory.clone();
        let leaf = self.see_leaf(state, at, step, |pba, owner| {
            if !self.may_be_named(pba) {
                misfits.push((pba, Structure::Outside, owner));
            } else if !self.is_in_use(pba) {
                misfits.push((pba, Structure::Free, owner));
                self.pool.borrow_mut().keep(pba);
            } else {
                inventory.borrow_mut().see(pba);
            }
        });
        let leaf = leaf.await?;
        let told = misfits.into_iter().map(|(pba, what, owner)| self.misfit(pba, what, owner));
        step.damaged.extend(told);
        // ACCOUNT-6: nor is anything counted for it.
        if !self.pool.borrow().has_inventory(&inventory) {
            return Ok(None);
        }
        match leaf {
            // Nothing has come between that and this.
            Leaf::Seen { entries, end } => {
                let mut map = state.map.borrow_mut();
                map.count_to(end, entries);
                if end < u64::MAX {
                    return Ok(Some(end));
                }
                let kept = map.entries();
                if map.end_count().is_some_and(|counted| counted != kept) {
                    let (pba, volume) = (state.descriptor.get(), state.number);
                    let owner = Owner::Descriptor { volume };
                    let pba = pba.unwrap_or(Pba(0));
                    step.damaged.push(self.misfit(pba, Structure::Count, owner));
                }
                Ok(None)
            }
            Leaf::Unreadable { end } => {
                accounts.is_complete = false;
                // Counted no more.
                state.map.borrow_mut().end_count();
                Ok(end)
            }
        }
    }

    /// Notes the owners of doubtful blocks in the leaf of the keys from `at` on. Returns the key to
    /// continue at.
    async fn ask_leaf(
        &self,
        state: &VolumeState,
        at: u64,
        accounts: &mut Accounts,
        step: &mut ScrubStep,
    ) -> Result<Option<u64>, VolumeError> {
        let inventory = accounts.inventory.clone();
        let leaf = self.see_leaf(state, at, step, |pba, owner| {
            inventory.borrow_mut().note_owner(pba, owner);
        });
        match leaf.await? {
            Leaf::Seen { end, .. } => Ok((end < u64::MAX).then_some(end)),
            Leaf::Unreadable { end } => {
                accounts.is_complete = false;
                Ok(end)
            }
        }
    }

    /// Calls `visit` for all that the leaf of the keys from `at` on names, and for the nodes that are met there for the
    /// first time: as it is at the instant when this is ready (ACCOUNT-1).
    async fn see_leaf(
        &self,
        state: &VolumeState,
        at: u64,
        step: &mut ScrubStep,
        mut visit: impl FnMut(Pba, Owner),
    ) -> Result<Leaf, VolumeError> {
        let volume = state.number;
        let _pin = self.is_paged().then(|| state.pin(at, at.saturating_add(1)));
        // What is on the device is kept there meanwhile.
        let _reading = self.begin_read();
        step.cost += LEAF_BLOCKS;
        let (mut read, mut tries) = (None, 0);
        loop {
            let site = state.map.borrow().leaf_at(at);
            let site = match site {
                Ok(site) => site,
                Err(missing) => match self.load(state, missing).await {
                    Ok(()) => continue,
                    Err(VolumeError::Device(DeviceError::Io { .. }))
                    | Err(VolumeError::CorruptMap { .. }) => {
                        let bounds = state.map.borrow().bounds(missing);
                        let end = bounds.map(|(_, high)| high);
                        let end = end.filter(|high| *high > at && *high < u64::MAX);
                        return Ok(Leaf::Unreadable { end });
                    }
                    Err(error) => return Err(error),
                },
            };
            let end = site.end;
            let entries = match site.leaf {
                LeafBody::Absent => Vec::new(),
                LeafBody::InMemory(entries) => entries,
                LeafBody::OnDisk(pointer) => match read.take() {
                    Some((of, entries)) if of == pointer => {
                        visit(pointer.pba, Owner::Node { volume });
                        entries
                    }
                    _ => {
                        tries += 1;
                        let entries = self.leaf_on_disk(state, pointer).await?;
                        let Some(entries) = entries.filter(|_| tries <= TRIES_MAX) else {
                            let end = Some(end).filter(|end| *end < u64::MAX);
                            return Ok(Leaf::Unreadable { end });
                        };
                        read = Some((pointer, entries));
                        continue;
                    }
                },
            };
            site.locations.into_iter().for_each(|pba| visit(pba, Owner::Node { volume }));
            for (lba, mapping) in &entries {
                visit(mapping.pba, Owner::Data { volume, lba: *lba });
            }
            // Leaves share what they hold: of keys before `at` it may have some that were met in another one.
            let entries = entries.iter().filter(|(lba, _)| *lba >= at).count() as u64;
            return Ok(Leaf::Seen { entries, end });
        }
    }

    /// Doubts what was not seen of some extents from `from` on, and checks their counts. Returns where to go on.
    fn account_extents(
        &self,
        mut from: u32,
        accounts: &Accounts,
        step: &mut ScrubStep,
    ) -> Option<u32> {
        let (journal, pool) = (self.journal_area(), self.pool.borrow());
        let mut inventory = accounts.inventory.borrow_mut();
        step.cost += LEAF_BLOCKS;
        for _ in 0..EXTENTS_PER_STEP {
            let index = inventory.next_extent(from)?;
            inventory.doubt_unseen(index, journal);
            if pool.recount_extent(index).is_some_and(|(kept, found)| kept != found) {
                let pba = self.superblock.extent(index).start;
                let structure = Structure::Count;
                step.damaged.push(Damaged { pba, structure, volume: None, lba: None });
            }
            from = index + 1;
        }
        Some(from)
    }

    /// Judges the doubts that are left when all owners were asked (ACCOUNT-3).
    fn judge(
        &self,
        doubts: impl IntoIterator<Item = (Pba, (Doubt, Owners))>,
        is_complete: bool,
        step: &mut ScrubStep,
    ) {
        let mut ownerless = Vec::new();
        for (pba, (doubt, owners)) in doubts {
            if owners.len() > 1 {
                let told = owners.iter().map(|owner| self.misfit(pba, Structure::Shared, *owner));
                step.damaged.extend(told);
            } else if doubt == Doubt::Unseen && owners.is_empty() && is_complete {
                ownerless.push(pba);
            }
        }
        if ownerless.is_empty() {
            return;
        }
        // Nodes in memory may have escaped both times. That takes a look at all of them.
        for state in self.states() {
            state.map.borrow().for_each_place(|pba| {
                if let Ok(index) = ownerless.binary_search(&pba) {
                    ownerless.remove(index);
                }
            });
        }
        let told = ownerless.into_iter().map(|pba| {
            let structure = Structure::Leaked;
            Damaged { pba, structure, volume: None, lba: None }
        });
        step.damaged.extend(told);
    }

    /// Returns whether a map may lead to the block.
    fn may_be_named(&self, pba: Pba) -> bool {
        let journal = self.journal_area();
        let range = PbaRange::new(pba, 1);
        !(journal.start..journal.end()).contains(&pba) && self.pool.borrow().contains(range)
    }

    /// Calls `visit` for each block that something names which is no map of a volume. No checkpoint is under way.
    fn for_each_other_owner(&self, mut visit: impl FnMut(Pba, Owner)) {
        for state in self.states() {
            if let Some(pba) = state.descriptor.get() {
                visit(pba, Owner::Descriptor { volume: state.number });
            }
        }
        self.for_each_table_place(|pba| visit(pba, Owner::Table));
    }

    /// Visits the locations of nodes that have left their trees, until the next checkpoint.
    fn for_each_retired(&self, mut visit: impl FnMut(Pba)) {
        for state in self.states() {
            state.map.borrow().retired_places().for_each(&mut visit);
        }
    }

    fn misfit(&self, pba: Pba, structure: Structure, owner: Owner) -> Damaged {
        let lba = match owner {
            Owner::Data { lba, .. } => Some(Lba(lba)),
            _ => None,
        };
        let states = self.states().into_iter();
        let mut states = states.filter(|state| Some(state.number) == owner.volume());
        let volume = states.next().map(|state| (state.uuid, state.name.clone()));
        Damaged { pba, structure, volume, lba }
    }
}
