//! The devices of a core: shards and ways there, and how they are.
//!
//! - DEVICES-1: devices have nothing in common but the core's processor and memory. Each has its own gate, so
//!   that requests to one never wait behind those to another.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use io_traits::{Device, World};
use schedule::{Quota, SchedulerConfig};
use typed_index_collections::TiVec;
use units::DeviceIndex;
use uuid::Uuid;
use volume::{Capacity, JournalLoss, MapMemory, OpenError, Shard};

use crate::core::Core;
use crate::done::Done;
use crate::errors::ErrorCounts;
use crate::export::Export;
use crate::front_ends::FrontendStats;
use crate::gate::{Gate, WindowStats};

/// A shard in service.
pub(crate) struct Attached<D: Device> {
    pub(crate) shard: Shard<D>,
    /// The device it lies on.
    pub(crate) device: DeviceIndex,
}

/// The handle of a device that was reopened, in place of the one that its shards had.
#[derive(Clone)]
pub(crate) struct Way<D> {
    pub(crate) device: D,
    /// The number of times that it was reopened.
    pub(crate) number: u64,
}

/// The gates of the devices, by their numbers (DEVICES-1).
pub(crate) struct Gates<W>(RefCell<TiVec<DeviceIndex, Gate<W>>>);

impl<W> Default for Gates<W> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<W: World> Gates<W> {
    /// The gate of a device. Open to all, unless it was configured.
    pub(crate) fn get(&self, world: &W, device: DeviceIndex) -> Gate<W> {
        let mut gates = self.0.borrow_mut();
        while gates.len() <= device.0 {
            gates.push(Gate::new(world));
        }
        gates[device].clone()
    }

    /// Opens all gates: from now on no request waits.
    pub(crate) fn open(&self) {
        let gates = self.0.borrow().clone();
        gates.iter().for_each(|gate| gate.configure(None));
    }

    fn all(&self) -> TiVec<DeviceIndex, Gate<W>> {
        self.0.borrow().clone()
    }
}

/// Requests of a volume, and its share of the device.
#[derive(Clone, Debug)]
pub struct VolumeFlow {
    /// Identity.
    pub uuid: Uuid,
    /// The rate that it may count on, in blocks a second, if the device has a ceiling.
    pub quota: Quota,
    /// Its queue and what it has done.
    pub done: Done,
    /// As in its SMART log.
    pub media_errors: u64,
    /// Connections of hosts that were let in.
    pub connections: usize,
}

/// The state of a core.
#[derive(Clone, Debug, Default)]
pub struct CoreStats {
    /// Volumes that it serves.
    pub volumes: usize,
    /// Connections that are open.
    pub connections: usize,
    /// Connections that there may be.
    pub connections_max: usize,
    /// Connections that were let in to a volume.
    pub connections_let_in: usize,
    /// Memory that the data of requests takes.
    pub memory_used_bytes: u64,
    /// Connections that were closed as they came, for want of places.
    pub connections_refused: u64,
    /// Figures of each front end that had a connection.
    pub front_ends: Vec<FrontendStats>,
    /// The state of its devices, by number.
    pub devices: TiVec<DeviceIndex, DeviceStats>,
}

/// A shard takes no changes since its journal is lost.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ShardFailure {
    /// Its number on the device.
    pub shard: u16,
    /// The cause.
    pub why: JournalLoss,
    /// Why the last attempt to read it back did not succeed, if there was one.
    pub last_attempt: Option<OpenError>,
}

impl fmt::Display for ShardFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.why)?;
        match &self.last_attempt {
            Some(error) => write!(f, "; it could not be read back: {error}"),
            None => Ok(()),
        }
    }
}

/// The state of a device, as far as a core uses it.
#[derive(Clone, Debug, Default)]
pub struct DeviceStats {
    /// Space of each shard, in the order of [`Core::attach`].
    pub capacity: Vec<Capacity>,
    /// Memory of the maps of each shard, in the same order.
    pub maps: Vec<MapMemory>,
    /// Fill level of the journal of each shard, from 0 to 1, in the same order.
    pub journal_used: Vec<f64>,
    /// Blocks found damaged, each once, and requests that the device failed, since the core was made.
    pub media_errors: u64,
    /// True if writes wait for a flush: the device has a volatile write cache.
    pub flushes: bool,
    /// Why a shard, the first of them, takes no changes: nothing is written there before the device works again and
    /// the shard was read back.
    pub failure: Option<ShardFailure>,
    /// The windows before the device.
    pub window: WindowStats,
    /// Counters of all its volumes, also those that are gone.
    pub done: Done,
}

impl<W: World, D: Device> Core<W, D> {
    /// Sets this core's part of a device, and the rates that its volumes may count on; without `config` the
    /// device has no ceiling and no request waits. I/O goes on meanwhile.
    pub fn schedule(
        &self,
        device: DeviceIndex,
        config: Option<SchedulerConfig>,
        quotas: &[(Uuid, Quota)],
    ) {
        for (uuid, quota) in quotas {
            if let Some(export) = self.export(*uuid) {
                export.lane.set_quota(*quota);
            }
        }
        self.gate(device).configure(config);
    }

    /// Returns the flows of the first `max` volumes from `first` on, by identity.
    #[must_use]
    pub fn flows_from(&self, first: Uuid, max: usize) -> Vec<VolumeFlow> {
        let flow = |(uuid, export): (&Uuid, &Rc<Export<W, D>>)| VolumeFlow {
            uuid: *uuid,
            quota: export.lane.quota(),
            done: export.lane.done(),
            media_errors: export.volume().media_errors(),
            connections: self.sessions().with_crowd(|crowd| crowd.count_of(*uuid)),
        };
        self.state.exports.borrow().range(first..).take(max).map(flow).collect()
    }

    /// Returns the gate of a device.
    pub(crate) fn gate(&self, device: DeviceIndex) -> Gate<W> {
        self.state.gates.get(self.world(), device)
    }

    /// Returns the state of the core.
    #[must_use]
    pub fn stats(&self) -> CoreStats {
        let mut devices: TiVec<DeviceIndex, DeviceStats> = TiVec::new();
        let expected = ErrorCounts::expecting(self.state.expected_errors.borrow().iter().copied());
        for gate in self.state.gates.all() {
            let (window, mut done) = (gate.stats(), gate.done());
            done.errors.add(&expected);
            devices.push(DeviceStats { window, done, ..DeviceStats::default() });
        }
        for (number, Attached { shard, device }) in self.state.shards.borrow().iter_enumerated() {
            if devices.len() <= device.0 {
                devices.resize_with(device.0 + 1, DeviceStats::default);
            }
            let stats = &mut devices[*device];
            stats.capacity.push(shard.capacity());
            stats.maps.push(shard.map_memory());
            stats.journal_used.push(shard.journal_used());
            if let (None, Some(why)) = (&stats.failure, shard.journal_loss()) {
                let last_attempt = self.state.care.last_attempt(number);
                stats.failure = Some(ShardFailure { shard: shard.index(), why, last_attempt });
            }
            stats.flushes |= shard.flushes();
            stats.media_errors += shard.media_errors();
        }
        CoreStats {
            volumes: self.state.exports.borrow().len(),
            connections: self.sessions().count(),
            memory_used_bytes: self.memory_used_bytes(),
            connections_max: self.options().connections_max,
            connections_let_in: self.sessions().with_crowd(|crowd| crowd.let_in_count()),
            connections_refused: self.sessions().refused(),
            front_ends: self.sessions().front_ends(),
            devices,
        }
    }
}
