//! Bounds the memory of maps: loads and evicts nodes, and makes requests wait.
//!
//! Nodes are brought in when they are missed. Where there is a limit, others go for them
//! (`evict.rs`).
//! - PAGING-1: nodes in memory, with those that changes under way may add, take no more than the limit.
//!   Half of it is for what cannot go: dirty nodes, those that the running checkpoint writes, and
//!   what changes under way may make dirty. A quarter is for what reads bring in at once.
//! - PAGING-2: a request that needs more than its part has it when it is alone there, so that every
//!   request gets on, whatever the limit is.
//! - PAGING-3: a change claims its nodes before it brings any in, a read its part, and neither claims
//!   twice: no waiting task holds memory that others wait for. The reclaimer waits for checkpoints
//!   only.
//! - PAGING-4: a node is read once for all tasks that miss it, and once more if the data does not match.
//!   A damaged node is an error for these tasks only.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use io_traits::Device;
use layout::{BITMAP_SLOTS, DecodeError, Mapping};
use local_sync::{Notify, Permit, Semaphore};
use situations::{Situation, situation, situation_if};
use smallvec::SmallVec;
use units::{BLOCK_SIZE, Lba, LbaRange};

use super::nodes::{LoadError, decode_node, read_block};
use super::{Inner, Shard, SpaceEffect};
use crate::sabotage::{Sabotage, broken, tries};
use crate::state::{Pin, VolumeState};
use crate::{MapMemory, VolumeError};
use block_map::{Missing, NODE_BYTES_MAX, Sweep, Tree};

/// Nodes on the way to a leaf, and one more leaf, since a range begins somewhere.
const PATH_NODES: u64 = 5;

/// Attempts to read a node that someone waits for, before it counts as damaged.
const NODE_LOAD_TRIES: u32 = 2;

/// The memory of a shard's maps.
pub(super) struct Paging {
    limit: Option<u64>,
    /// Position of the clock's hand: volume and key.
    hand: Cell<(u32, u64)>,
    /// Nodes being read (PAGING-4).
    incoming: RefCell<Vec<Rc<Incoming>>>,
    /// Nodes for reads that miss some (PAGING-1).
    reads: Semaphore,
    /// Nodes that changes under way claim.
    claimed: Cell<u64>,
    /// Changes that wait for their claim, one at a time.
    waiting: Cell<u32>,
    admission_queue: Semaphore,
    /// Claims or dirty nodes are fewer.
    freed: Notify,
    hits: Cell<u64>,
    loads: Cell<u64>,
    evictions: Cell<u64>,
}

/// A node being read.
struct Incoming {
    tree: Tree,
    pointer: Mapping,
    arrived: Notify,
    error: RefCell<Option<LoadError>>,
}

/// Nodes that a change may make dirty or bring in. Given back when dropped.
pub(crate) struct Claim {
    paging: Rc<Paging>,
    nodes: u64,
    _pins: SmallVec<[Pin; 1]>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.paging.claimed.set(self.paging.claimed.get() - self.nodes);
        self.paging.notify();
    }
}

impl Paging {
    pub(super) fn new(limit: Option<u64>) -> Self {
        let nodes = limit.map_or(0, |limit| limit / NODE_BYTES_MAX);
        Self {
            limit,
            hand: Cell::default(),
            incoming: RefCell::default(),
            reads: Semaphore::new((nodes / 4).max(1)),
            claimed: Cell::new(0),
            waiting: Cell::new(0),
            admission_queue: Semaphore::new(1),
            freed: Notify::new(),
            hits: Cell::new(0),
            loads: Cell::new(0),
            evictions: Cell::new(0),
        }
    }

    /// Returns whether changes wait for memory that none of those under way will give back, but
    /// only a checkpoint.
    pub(super) fn is_stuck(&self) -> bool {
        self.waiting.get() > 0 && self.claimed.get() == 0
    }

    /// Changes may have to wait for less.
    pub(super) fn notify(&self) {
        if self.waiting.get() > 0 {
            self.freed.notify_all();
        }
    }
}

/// Takes the incoming node off the list, whatever became of it, and lets the others look again.
struct Arrival<'a> {
    paging: &'a Paging,
    incoming: Rc<Incoming>,
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.paging.incoming.borrow_mut().retain(|other| !Rc::ptr_eq(other, &self.incoming));
        if !broken(Sabotage::LoseWaiter) {
            self.incoming.arrived.notify_all();
        }
    }
}

/// A read that may miss nodes. What it brings in stays until it is dropped.
pub(crate) struct Visit<'a, D: Device> {
    inner: &'a Inner<D>,
    state: &'a VolumeState,
    range: LbaRange,
    held: Option<(Permit, Pin)>,
}

impl<D: Device> Visit<'_, D> {
    /// Brings a missing node in. The caller looks again.
    pub(crate) async fn load(&mut self, missing: Missing) -> Result<(), VolumeError> {
        let paging = &self.inner.paging;
        if let Some(limit) = paging.limit
            && self.held.is_none()
        {
            let most = (limit / NODE_BYTES_MAX / 4).max(1);
            let nodes = (self.range.blocks / self.state.leaf_entries_low() + PATH_NODES).min(most);
            let permit = paging.reads.acquire(nodes).await;
            let pin = self.state.pin(self.range.start.0, self.range.end().0);
            self.held = Some((permit, pin));
            return Ok(());
        }
        self.inner.load(self.state, missing).await
    }
}

impl<D: Device> Shard<D> {
    /// Returns the memory that the maps of the shard's volumes take.
    #[must_use]
    pub fn map_memory(&self) -> MapMemory {
        let inner = &self.inner;
        let capacity = self.capacity();
        let slots = inner.pool.borrow().owned().len() as u64 * u64::from(BITMAP_SLOTS);
        let volumes = inner.volumes.all().len() as u64;
        let others = inner.journal_area().blocks + slots + volumes;
        MapMemory {
            limit_bytes: inner.paging.limit,
            resident_bytes: inner.counters.resident.get(),
            resident_bytes_max: inner.counters.resident_max.get(),
            device_bytes: capacity.metadata.saturating_sub(others) * BLOCK_SIZE as u64,
            hits: inner.paging.hits.get(),
            loads: inner.paging.loads.get(),
            evictions: inner.paging.evictions.get(),
        }
    }
}

/// Counts a waiting task.
struct Waiting<'a>(&'a Cell<u32>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<D: Device> Inner<D> {
    /// Returns whether nodes may go.
    #[inline]
    pub(crate) fn is_paged(&self) -> bool {
        self.paging.limit.is_some()
    }

    /// A request found all that it wanted of a map in memory.
    #[inline]
    pub(crate) fn note_hit(&self) {
        self.paging.hits.set(self.paging.hits.get() + 1);
    }

    pub(crate) fn visit<'a>(&'a self, state: &'a VolumeState, range: LbaRange) -> Visit<'a, D> {
        Visit { inner: self, state, range, held: None }
    }

    /// Claims what a change of `ranges` needs in memory (PAGING-3), where there is a limit.
    pub(crate) async fn claim(
        &self,
        state: &VolumeState,
        ranges: &[LbaRange],
        effect: SpaceEffect,
    ) -> Result<Option<Claim>, VolumeError> {
        if !self.is_paged() {
            return Ok(None);
        }
        let nodes = nodes_to_claim(state, ranges);
        self.wait_for_claim(nodes, effect).await?;
        Ok(Some(self.claim_now(state, ranges, nodes)))
    }

    /// Claims what a write of `range` needs in memory, where there is a limit. `Err`: it would have to wait.
    pub(crate) fn try_claim(
        &self,
        state: &VolumeState,
        range: LbaRange,
    ) -> Result<Option<Claim>, ()> {
        if !self.is_paged() {
            return Ok(None);
        }
        let nodes = nodes_to_claim(state, &[range]);
        if self.paging.waiting.get() > 0 || !self.may_claim(nodes, false) {
            return Err(());
        }
        Ok(Some(self.claim_now(state, &[range], nodes)))
    }

    fn claim_now(&self, state: &VolumeState, ranges: &[LbaRange], nodes: u64) -> Claim {
        let paging = self.paging.clone();
        paging.claimed.set(paging.claimed.get() + nodes);
        let pin = |range: &LbaRange| state.pin(range.start.0, range.end().0);
        let claim = Claim { paging, nodes, _pins: ranges.iter().map(pin).collect() };
        self.make_room(0);
        claim
    }

    async fn wait_for_claim(&self, nodes: u64, effect: SpaceEffect) -> Result<(), VolumeError> {
        let paging = &self.paging;
        let reclaims = effect == SpaceEffect::Reclaiming;
        if (paging.waiting.get() == 0 || reclaims) && self.may_claim(nodes, reclaims) {
            return Ok(());
        }
        situation(Situation::ChangeAwaitsMemory);
        paging.waiting.set(paging.waiting.get() + 1);
        let _waiting = Waiting(&paging.waiting);
        let _turn = if reclaims { None } else { Some(paging.admission_queue.acquire(1).await) };
        loop {
            let freed = paging.freed.notified();
            if self.may_claim(nodes, reclaims) {
                return Ok(());
            }
            if self.journal.borrow().is_lost() {
                return Err(self.loss_error());
            }
            if self.life.has_ended() {
                return Err(VolumeError::ShutDown);
            }
            freed.await;
        }
    }

    /// Returns whether `nodes` more may become dirty (PAGING-1, PAGING-2). A checkpoint begins before they
    /// may not.
    fn may_claim(&self, nodes: u64, reclaims: bool) -> bool {
        let Some(limit) = self.paging.limit else { return true };
        let most = limit / NODE_BYTES_MAX / 2;
        let live = self.counters.live.get();
        let claimed = if reclaims { 0 } else { self.paging.claimed.get() };
        let taken = live + self.counters.writing.get() + claimed;
        if live > 0 && live + claimed + nodes > most / 2 {
            situation(Situation::CheckpointForMemory);
            self.suggest_checkpoint();
        }
        situation_if(Situation::ChangeExceedsMemory, || taken == 0 && nodes > most);
        taken == 0 || taken + nodes <= most
    }

    /// Has nodes go until there is room for `bytes` more.
    fn make_room(&self, bytes: u64) {
        let Some(limit) = self.paging.limit else { return };
        let claimed = self.paging.claimed.get() * NODE_BYTES_MAX;
        let wanted = (self.counters.resident.get() + claimed + bytes).saturating_sub(limit);
        if wanted == 0 {
            return;
        }
        let mut sweep = Sweep::new(wanted);
        let volumes = self.volumes.all();
        let mut hand = self.paging.hand.get();
        // Twice around, and the rest of where it begins (EVICT-3).
        for _ in 0..2 * volumes.len() + 3 {
            let Some((&number, state)) = volumes.range(hand.0..).next() else {
                hand = (0, 0);
                continue;
            };
            let from = if number == hand.0 { hand.1 } else { 0 };
            let pinned = |low, high| state.pins.overlap(low, high);
            let Ok(mut map) = state.map.try_borrow_mut() else { break };
            match map.sweep(from, &mut sweep, &pinned) {
                Some(next) => hand = (number, next),
                None => hand = (number.saturating_add(1), 0),
            }
            if sweep.is_over() {
                break;
            }
        }
        self.paging.hand.set(hand);
        self.paging.evictions.set(self.paging.evictions.get() + sweep.nodes);
    }

    /// Reads a node that a volume's map misses, or waits for the task that already reads it (PAGING-4).
    /// The caller looks it up again.
    pub(crate) async fn load(
        &self,
        state: &VolumeState,
        missing: Missing,
    ) -> Result<(), VolumeError> {
        let tree = state.map.borrow().tree();
        // What leads to the node stays.
        let _pin = self.is_paged().then(|| state.pin(missing.key, missing.key.saturating_add(1)));
        let known = self.incoming(tree, missing.pointer);
        if let Some(incoming) = known {
            situation(Situation::NodeAwaitedByTwo);
            incoming.arrived.notified().await;
            let error = incoming.error.borrow().clone();
            return match error {
                Some(error) => Err(self.excused(load_error(&error, missing))),
                None => Ok(()),
            };
        }
        let incoming = Rc::new(Incoming {
            tree,
            pointer: missing.pointer,
            arrived: Notify::new(),
            error: RefCell::default(),
        });
        self.paging.incoming.borrow_mut().push(incoming.clone());
        let _arrival = Arrival { paging: &self.paging, incoming: incoming.clone() };
        self.paging.loads.set(self.paging.loads.get() + 1);
        let _reading = self.begin_read();
        let mut left = tries(NODE_LOAD_TRIES, Sabotage::ServeByOneRead);
        let loaded = loop {
            let block = read_block(&self.device, missing).await;
            self.make_room(NODE_BYTES_MAX);
            left -= 1;
            match block.and_then(|block| decode_node(&block, tree, missing, &self.counters)) {
                Err(LoadError::Decode(_)) if left > 0 => situation(Situation::NodeReadAgain),
                loaded => break loaded,
            }
        };
        let mut map = state.map.borrow_mut();
        let error = match loaded {
            Ok(node) if map.fits(missing, &node) => {
                map.attach(missing, node);
                return Ok(());
            }
            // It may have moved since.
            _ if !map.is_missing(missing) => return Ok(()),
            Ok(_) => LoadError::Decode(DecodeError::Field("node keys")),
            Err(error) => error,
        };
        incoming.error.replace(Some(error.clone()));
        let error = self.excused(load_error(&error, missing));
        self.note_damage(state, &error);
        Err(error)
    }

    fn incoming(&self, tree: Tree, pointer: Mapping) -> Option<Rc<Incoming>> {
        let incoming = self.paging.incoming.borrow();
        incoming.iter().find(|other| other.tree == tree && other.pointer == pointer).cloned()
    }

    /// Loads what a change of `range` needs in memory.
    pub(crate) async fn preload(
        &self,
        state: &VolumeState,
        range: LbaRange,
    ) -> Result<(), VolumeError> {
        let end = range.start.0.saturating_add(range.blocks);
        let mut is_hit = true;
        loop {
            let touched = state.map.borrow().touch_if_may_miss(range.start.0, end);
            let Err(missing) = touched else { break };
            is_hit = false;
            // By itself: a change whose nodes are there need not have room for it.
            Box::pin(self.load(state, missing)).await?;
        }
        if is_hit {
            self.note_hit();
        }
        Ok(())
    }
}

/// Nodes that a change of `ranges` may make dirty or bring in.
fn nodes_to_claim(state: &VolumeState, ranges: &[LbaRange]) -> u64 {
    let height = state.map.borrow().height();
    let leaves = |range: &LbaRange| range.blocks / state.leaf_entries_low() + 4;
    ranges.iter().map(leaves).sum::<u64>() + height + 1
}

pub(super) fn load_error(error: &LoadError, missing: Missing) -> VolumeError {
    match error {
        LoadError::Device(error) => (*error).into(),
        LoadError::Decode(_) => {
            VolumeError::CorruptMap { lba: Lba(missing.key), pba: missing.pointer.pba }
        }
    }
}
