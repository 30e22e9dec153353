//! A simulated disk, by default with a volatile cache.
//!
//! - A write is seen by later reads when it completes, and may survive a crash from the moment it was
//!   issued: each of its 512-byte sectors on its own, by chance.
//! - After a flush that began behind its completion, it survives for certain; without a volatile
//!   cache, when it completes.
//! - Without a volatile cache it is as memory is: blocks can be looked at where they lie, now and then, and must not be
//!   written to meanwhile.
//! - A crash ends the disk: what was waiting never completes. [`SimDevice::after_crash`] is the disk
//!   that the next boot finds.
//!
//! `disk.rs`: medium and cache, without time. `reads.rs`: what a read gives. `faults.rs`: what may go wrong.
//! `defects.rs`: what is wrong for good. `triggers.rs`: what goes wrong when certain blocks are written. `at_rest.rs`: what is done
//! without a request.

mod at_rest;
mod defects;
mod disk;
mod faults;
mod pins;
mod reads;
mod triggers;

use std::cell::{Cell, RefCell};
use std::future::{Future, pending};
use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Clock, Device, DeviceError, DeviceLimits};
use units::{BLOCK_SIZE, Duration, Pba, PbaRange};

use crate::{Rng, SimWorld};
pub use defects::Defect;
use disk::Disk;
pub use faults::{Damage, DamageKind, DeviceFaults, Survival};
use pins::Pins;
use reads::Astray;
use triggers::Triggers;

const READ_MIN: Duration = Duration::from_micros(10);
const READ_MAX: Duration = Duration::from_micros(120);
const WRITE_MIN: Duration = Duration::from_micros(8);
const WRITE_MAX: Duration = Duration::from_micros(300);
const FLUSH_MIN: Duration = Duration::from_micros(20);
const FLUSH_MAX: Duration = Duration::from_micros(1_000);
/// Factor by which a slow request takes longer.
const SLOWER: u32 = 1000;
/// Limit of the delay until a failed flush is reported, as a multiple of the length of a flush.
const LATE: u32 = 4;
/// Interval at which a stuck request checks whether it may go on.
const STUCK_POLL: Duration = Duration::from_millis(10);
/// Largest distance of a near miss of a misdirected request; others miss by any distance.
const NEAR_MISS_BLOCKS: u64 = 16;
/// Error number of an I/O error in Linux.
const EIO: i32 = 5;

struct State {
    disk: RefCell<Disk>,
    volatile: Cell<bool>,
    discards: Cell<bool>,
    faults: Cell<DeviceFaults>,
    rng: RefCell<Rng>,
    /// Counts requests, so that a test can crash at each in turn.
    requests: Cell<u64>,
    crash_at_request: Cell<u64>,
    /// Counts requests and completions.
    events: Cell<u64>,
    crash_at_event: Cell<u64>,
    crashed: Cell<bool>,
    gone: Cell<bool>,
    /// Number of times that stuck requests were released.
    releases: Cell<u64>,
    damage: RefCell<Vec<Damage>>,
    astray: Astray,
    pins: Pins,
    triggers: Triggers,
}

/// A disk in a simulation. Cheap to clone; all clones are the same disk.
#[derive(Clone)]
pub struct SimDevice {
    world: SimWorld,
    state: Rc<State>,
}

impl SimDevice {
    /// An empty disk of `blocks` blocks.
    #[must_use]
    pub fn new(world: &SimWorld, blocks: u64) -> Self {
        Self::with_disk(world, Disk::new(blocks))
    }

    fn with_disk(world: &SimWorld, disk: Disk) -> Self {
        let state = State {
            disk: RefCell::new(disk),
            volatile: Cell::new(true),
            discards: Cell::new(true),
            faults: Cell::default(),
            rng: RefCell::new(world.draw(Rng::fork)),
            requests: Cell::new(0),
            crash_at_request: Cell::new(u64::MAX),
            events: Cell::new(0),
            crash_at_event: Cell::new(u64::MAX),
            crashed: Cell::new(false),
            gone: Cell::new(false),
            releases: Cell::new(0),
            damage: RefCell::default(),
            astray: Astray::default(),
            pins: Pins::default(),
            triggers: Triggers::default(),
        };
        Self { world: world.clone(), state: Rc::new(state) }
    }

    /// The same disk without a volatile cache, or with one.
    #[must_use]
    pub fn with_volatile_cache(self, volatile: bool) -> Self {
        self.state.volatile.set(volatile);
        self
    }

    /// The same disk, which is told what is free, or not.
    #[must_use]
    pub fn with_discards(self, discards: bool) -> Self {
        self.state.discards.set(discards);
        self
    }

    /// Changes what may go wrong from now on.
    pub fn set_faults(&self, faults: DeviceFaults) {
        self.state.faults.set(faults);
    }

    /// Crashes when the request with this number is issued; the first is 0.
    pub fn crash_at_request(&self, number: u64) {
        self.state.crash_at_request.set(number);
    }

    /// Requests so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.state.requests.get()
    }

    /// Crashes at the event with this number, before it has any effect. Events are requests and
    /// their completions, so that this reaches every state that the disk passes through.
    pub fn crash_at_event(&self, number: u64) {
        self.state.crash_at_event.set(number);
    }

    /// Requests and completions so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.state.events.get()
    }

    /// Returns true if the disk has crashed.
    #[must_use]
    pub fn has_crashed(&self) -> bool {
        self.state.crashed.get()
    }

    /// Cuts the power now.
    pub fn crash(&self) {
        if !self.state.crashed.replace(true) {
            situations::power_goes();
            self.world.note(format_args!("disk: crash"));
        }
    }

    /// Sets whether the disk is gone: every request then fails as [`DeviceError::Gone`].
    pub fn set_gone(&self, gone: bool) {
        self.state.gone.set(gone);
        self.world.note(format_args!("disk: {}", if gone { "gone" } else { "back" }));
    }

    /// Returns the number of the disk's state: equal numbers mean equal chances after a crash.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.state.disk.borrow().version
    }

    /// Returns true if a crash could have more than one outcome.
    #[must_use]
    pub fn has_unflushed(&self) -> bool {
        self.state.disk.borrow().has_unflushed()
    }

    /// Lets stuck requests go on.
    pub fn release_stuck(&self) {
        self.state.releases.set(self.state.releases.get() + 1);
    }

    /// Returns the damage since the last call.
    #[must_use]
    pub fn take_damage(&self) -> Vec<Damage> {
        self.state.damage.take()
    }

    /// The disk as the next boot finds it, in the world of that boot: of what was not flushed, each
    /// sector survives or not by chance.
    #[must_use]
    pub fn after_crash(&self, world: &SimWorld) -> Self {
        self.after_crash_with(world, Survival::Sectors)
    }

    /// As [`SimDevice::after_crash`], with another chance of survival.
    #[must_use]
    pub fn after_crash_with(&self, world: &SimWorld, survival: Survival) -> Self {
        self.crash();
        let mut rng = self.state.rng.borrow_mut();
        let survivor = self.state.disk.borrow().after_crash(survival, &mut rng);
        let (volatile, discards) = (self.state.volatile.get(), self.state.discards.get());
        Self::with_disk(world, survivor).with_volatile_cache(volatile).with_discards(discards)
    }

    /// Counts a request; never returns if the power is gone.
    async fn admit(&self) -> Result<(), DeviceError> {
        self.count_request();
        self.wait_for_power().await;
        if self.state.gone.get() {
            self.delay(READ_MIN, READ_MAX).await;
            return Err(DeviceError::Gone);
        }
        self.rot();
        Ok(())
    }

    fn count_request(&self) {
        let number = self.state.requests.get();
        self.state.requests.set(number + 1);
        if number >= self.state.crash_at_request.get() {
            self.crash();
        }
        self.count_event();
    }

    fn count_event(&self) {
        let number = self.state.events.get();
        self.state.events.set(number + 1);
        if number >= self.state.crash_at_event.get() {
            self.crash();
        }
    }

    async fn wait_for_power(&self) {
        if self.state.crashed.get() {
            pending::<()>().await;
        }
    }

    /// The time that a request takes. The disk may go meanwhile.
    async fn work(&self, low: Duration, high: Duration) -> Result<(), DeviceError> {
        let faults = self.state.faults.get();
        if self.chance(faults.stuck_one_in) {
            self.world.note(format_args!("disk: stuck"));
            let releases = self.state.releases.get();
            while self.state.releases.get() == releases {
                self.world.sleep_until(self.world.now() + STUCK_POLL).await;
            }
        }
        let times = if self.chance(faults.slow_one_in) { SLOWER } else { 1 };
        self.delay(low * times, high * times).await;
        self.count_event();
        self.wait_for_power().await;
        if self.state.gone.get() { Err(DeviceError::Gone) } else { Ok(()) }
    }

    async fn delay(&self, low: Duration, high: Duration) {
        self.world.delay(low, high).await;
        self.wait_for_power().await;
    }

    fn check_range(&self, range: PbaRange) -> Result<(), DeviceError> {
        let blocks = self.state.disk.borrow().blocks;
        match range.checked_end() {
            Some(end) if end.0 <= blocks => Ok(()),
            _ => Err(DeviceError::OutOfRange { range }),
        }
    }

    fn chance(&self, one_in: u64) -> bool {
        self.state.rng.borrow_mut().one_in(one_in)
    }

    /// Flips a bit somewhere, now and then.
    fn rot(&self) {
        if !self.chance(self.state.faults.get().rot_one_in) {
            return;
        }
        let mut disk = self.state.disk.borrow_mut();
        let mut rng = self.state.rng.borrow_mut();
        let count = disk.written_blocks().len() as u64;
        if count == 0 {
            return;
        }
        let place = rng.below(count) as usize;
        let block = disk.written_blocks().nth(place).expect("below the count");
        let bit = rng.below(BLOCK_SIZE as u64 * 8) as usize;
        let intended = disk.flip_bit(block, bit);
        self.damaged(DamageKind::Rot, Pba(block), intended);
    }

    fn damaged(&self, kind: DamageKind, pba: Pba, intended: Vec<u8>) {
        self.world.note(format_args!("disk: {kind:?} at {}", pba.0));
        self.state.damage.borrow_mut().push(Damage { kind, pba, intended });
    }

    /// Returns the start of the range that a misdirected request for `range` reaches.
    fn elsewhere(&self, range: PbaRange) -> u64 {
        let last = self.state.disk.borrow().blocks - range.blocks;
        let mut rng = self.state.rng.borrow_mut();
        let near = rng.one_in(2);
        let low = if near { range.start.0.saturating_sub(NEAR_MISS_BLOCKS) } else { 0 };
        let high = if near { (range.start.0 + NEAR_MISS_BLOCKS).min(last) } else { last };
        rng.between(low.min(high), high)
    }

    /// Carries out a write that took its time.
    fn finish_write(&self, number: u64, pba: Pba, data: &BufferSlice) -> Result<(), DeviceError> {
        let faults = self.state.faults.get();
        let range = data_range(pba, data);
        let mut disk = self.state.disk.borrow_mut();
        let is_refused = !disk.defects.can_write_all(range);
        if is_refused || self.chance(faults.write_error_one_in) {
            self.world.note(format_args!("disk: write error at {}", pba.0));
            disk.tear_write(number, &mut self.state.rng.borrow_mut());
            return Err(DeviceError::Io { range, errno: EIO });
        }
        if self.chance(faults.no_space_one_in) {
            self.world.note(format_args!("disk: no space at {}", pba.0));
            disk.cancel_write(number);
            return Err(DeviceError::NoSpace { range });
        }
        let lost = self.chance(faults.lost_write_one_in);
        let volatile = self.state.volatile.get();
        if !lost && !self.chance(faults.misdirected_write_one_in) {
            disk.complete_write(number, volatile);
            return Ok(());
        }
        disk.cancel_write(number);
        let kind = if lost { DamageKind::LostWrite } else { DamageKind::MisdirectedWrite };
        for (block, bytes) in (pba.0..).zip(data.as_bytes().chunks(BLOCK_SIZE)) {
            self.damaged(kind, Pba(block), bytes.to_vec());
        }
        if !lost {
            drop(disk);
            let target = self.elsewhere(range);
            disk = self.state.disk.borrow_mut();
            for block in target..target + range.blocks {
                let before = std::iter::once(disk.block(block)).chain(disk.under_way(block));
                before.for_each(|bytes| self.damaged(DamageKind::Overwritten, Pba(block), bytes));
            }
            let number = disk.begin_write(target, data.as_bytes());
            disk.complete_write(number, volatile);
        }
        Ok(())
    }

    /// Fails a flush that took its time. Its caller gets the error later, as on a core that is busy.
    async fn fail_flush(&self, covered: Vec<u64>) -> DeviceError {
        self.world.note(format_args!("disk: flush error"));
        let blocks = {
            let mut disk = self.state.disk.borrow_mut();
            disk.fail_flush(covered, &mut self.state.rng.borrow_mut());
            disk.blocks
        };
        self.delay(FLUSH_MAX, FLUSH_MAX * LATE).await;
        DeviceError::Io { range: PbaRange::new(Pba(0), blocks), errno: EIO }
    }

    /// Returns true if a flush fails that should have covered these writes, and covers none of them.
    fn fails_all(&self, covered: &[u64]) -> bool {
        let mut disk = self.state.disk.borrow_mut();
        let fails = self.state.triggers.fails_flush(disk.blocks_of(covered));
        if fails {
            disk.doom(covered);
        }
        fails
    }

    /// Carries out a discard that took its time.
    fn finish_discard(&self, range: PbaRange) -> Result<(), DeviceError> {
        let mut disk = self.state.disk.borrow_mut();
        let is_refused = !disk.defects.can_write_all(range);
        let fails = is_refused || self.chance(self.state.faults.get().discard_error_one_in);
        let done = match fails {
            true => self.state.rng.borrow_mut().below(range.blocks + 1),
            false => range.blocks,
        };
        // What a discard leaves behind is unspecified; garbage finds more bugs than zeroes.
        disk.spoil(range.start.0..range.start.0 + done);
        if fails {
            self.world.note(format_args!("disk: discard error behind {done}"));
            return Err(DeviceError::Io { range, errno: EIO });
        }
        Ok(())
    }
}

/// The blocks that a write of `data` to `pba` changes.
fn data_range(pba: Pba, data: &BufferSlice) -> PbaRange {
    PbaRange::new(pba, (data.len_bytes() / BLOCK_SIZE) as u64)
}

impl Device for SimDevice {
    fn limits(&self) -> DeviceLimits {
        let blocks = self.state.disk.borrow().blocks;
        let (volatile_cache, discards) = (self.state.volatile.get(), self.state.discards.get());
        // One with a volatile cache is a drive.
        DeviceLimits { blocks, volatile_cache, discards, pins: !volatile_cache }
    }

    fn pin(&self, range: PbaRange) -> Option<BufferSlice> {
        let state = &self.state;
        let ends = state.crashed.get() || state.gone.get() || !self.limits().pins;
        if ends || self.check_range(range).is_err() || self.chance(2) {
            return None;
        }
        let mut buffer = Buffer::new(usize::try_from(range.blocks).ok()?);
        // Nothing is sent for that could go astray.
        self.give(range, false, &mut buffer).ok()?;
        let pinned = state.pins.pin(range, buffer.as_bytes().to_vec());
        Some(BufferSlice::pinned(Rc::new(pinned)))
    }

    fn read(
        &self,
        pba: Pba,
        mut buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        let device = self.clone();
        async move {
            device.world.note(format_args!("disk: read {} +{}", pba.0, buffer.len_blocks()));
            device.admit().await?;
            device.check_range(PbaRange::new(pba, buffer.len_blocks() as u64))?;
            device.work(READ_MIN, READ_MAX).await?;
            device.finish_read(pba, &mut buffer)?;
            Ok(buffer)
        }
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let device = self.clone();
        async move {
            let range = data_range(pba, &data);
            device.world.note(format_args!("disk: write {} +{}", pba.0, range.blocks));
            if device.state.triggers.crashes(range) {
                device.crash();
            }
            let is_last = device.note_doom(range);
            device.admit().await?;
            assert!(data.len_bytes().is_multiple_of(BLOCK_SIZE), "whole blocks only");
            device.check_range(range)?;
            device.state.pins.assert_free(range);
            let number = device.state.disk.borrow_mut().begin_write(pba.0, data.as_bytes());
            let times = device.state.triggers.slowness(range);
            if let Err(error) = device.work(WRITE_MIN * times, WRITE_MAX * times).await {
                let mut disk = device.state.disk.borrow_mut();
                disk.tear_write(number, &mut device.state.rng.borrow_mut());
                return Err(error);
            }
            if is_last {
                device.crash();
                device.wait_for_power().await;
            }
            device.finish_write(number, pba, &data)
        }
    }

    /// As memory does, now and then, where nothing holds it up.
    fn write_at_once(
        &self,
        pba: Pba,
        data: &BufferSlice,
        _crc: Option<&mut dyn FnMut(u32)>,
    ) -> Option<Result<(), DeviceError>> {
        let (state, range) = (&self.state, data_range(pba, data));
        let is_held_up = state.crashed.get() || state.gone.get() || !self.limits().pins;
        if is_held_up || self.check_range(range).is_err() || self.chance(2) {
            return None;
        }
        self.world.note(format_args!("disk: write {} +{}, at once", pba.0, range.blocks));
        if state.triggers.crashes(range) {
            self.crash();
        }
        let is_last = self.note_doom(range);
        self.count_request();
        if state.crashed.get() {
            return None;
        }
        self.rot();
        state.pins.assert_free(range);
        let number = state.disk.borrow_mut().begin_write(pba.0, data.as_bytes());
        self.count_event();
        if is_last {
            self.crash();
        }
        // What the power took is asked for again, and never done.
        (!state.crashed.get()).then(|| self.finish_write(number, pba, data))
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let device = self.clone();
        async move {
            device.world.note(format_args!("disk: flush"));
            device.admit().await?;
            let covered = device.state.disk.borrow().completed();
            device.work(FLUSH_MIN, FLUSH_MAX).await?;
            if device.fails_all(&covered) {
                return Err(device.fail_flush(Vec::new()).await);
            }
            if device.chance(device.state.faults.get().flush_error_one_in) {
                return Err(device.fail_flush(covered).await);
            }
            device.state.disk.borrow_mut().flush(covered);
            Ok(())
        }
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let device = self.clone();
        async move {
            device.world.note(format_args!("disk: discard {} +{}", range.start.0, range.blocks));
            device.admit().await?;
            device.check_range(range)?;
            device.state.pins.assert_free(range);
            device.work(WRITE_MIN, WRITE_MAX).await?;
            device.finish_discard(range)
        }
    }
}
