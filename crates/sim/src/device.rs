//! A simulated disk with a volatile cache.
//!
//! - A write is seen by later reads when it completes, and may survive a crash from the moment it was
//!   issued: each of its 512-byte sectors on its own, by chance.
//! - After a flush that began behind its completion, it survives for certain.
//! - A crash ends the disk: what was waiting never completes. [`SimDevice::after_crash`] is the disk
//!   that the next boot finds.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, pending};
use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceGeometry};
use units::{BLOCK_SIZE, Duration, Pba, PbaRange};

use crate::{Rng, SimWorld};

const SECTOR_BYTES: usize = 512;
const READ_MIN: Duration = Duration::from_micros(10);
const READ_MAX: Duration = Duration::from_micros(120);
const WRITE_MIN: Duration = Duration::from_micros(8);
const WRITE_MAX: Duration = Duration::from_micros(300);
const FLUSH_MIN: Duration = Duration::from_micros(20);
const FLUSH_MAX: Duration = Duration::from_micros(1_000);

type BlockBytes = Box<[u8; BLOCK_SIZE]>;

/// What may go wrong, each once in so many requests on average; zero is never.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceFaults {
    /// A read fails with an I/O error.
    pub read_error_one_in: u64,
    /// A write fails with an I/O error; any of its sectors may have been written.
    pub write_error_one_in: u64,
}

struct Disk {
    blocks: u64,
    /// What is on the medium for certain. Blocks that are not here read as zeroes.
    durable: BTreeMap<u64, BlockBytes>,
    /// Writes that no flush covers yet, in the order of issue: completed or not.
    unflushed: BTreeMap<u64, Unflushed>,
    next_write: u64,
    /// Blocks whose next reads fail.
    unreadable: BTreeSet<u64>,
}

struct Unflushed {
    start: u64,
    bytes: Vec<u8>,
    completed: bool,
}

struct State {
    disk: RefCell<Disk>,
    faults: Cell<DeviceFaults>,
    rng: RefCell<Rng>,
    /// Counts requests, so that a test can crash at each in turn.
    requests: Cell<u64>,
    crash_at_request: Cell<u64>,
    crashed: Cell<bool>,
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
        let disk = Disk {
            blocks,
            durable: BTreeMap::new(),
            unflushed: BTreeMap::new(),
            next_write: 0,
            unreadable: BTreeSet::new(),
        };
        Self::with_disk(world, disk)
    }

    fn with_disk(world: &SimWorld, disk: Disk) -> Self {
        let state = State {
            disk: RefCell::new(disk),
            faults: Cell::default(),
            rng: RefCell::new(world.draw(Rng::fork)),
            requests: Cell::new(0),
            crash_at_request: Cell::new(u64::MAX),
            crashed: Cell::new(false),
        };
        Self { world: world.clone(), state: Rc::new(state) }
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

    /// Whether the disk has crashed.
    #[must_use]
    pub fn has_crashed(&self) -> bool {
        self.state.crashed.get()
    }

    /// Cuts the power now.
    pub fn crash(&self) {
        self.state.crashed.set(true);
    }

    /// The disk as the next boot finds it, in the world of that boot.
    #[must_use]
    pub fn after_crash(&self, world: &SimWorld) -> Self {
        self.crash();
        let disk = self.state.disk.borrow();
        let mut durable = disk.durable.clone();
        let mut rng = self.state.rng.borrow_mut();
        for write in disk.unflushed.values() {
            for (n, sector) in write.bytes.chunks(SECTOR_BYTES).enumerate() {
                if rng.one_in(2) {
                    store_sector(&mut durable, write.start, n, sector);
                }
            }
        }
        let survivor = Disk {
            blocks: disk.blocks,
            durable,
            unflushed: BTreeMap::new(),
            next_write: 0,
            unreadable: disk.unreadable.clone(),
        };
        Self::with_disk(world, survivor)
    }

    /// Flips one bit at rest.
    pub fn flip_bit(&self, pba: Pba, bit: usize) {
        self.settle();
        let mut disk = self.state.disk.borrow_mut();
        let block = disk.durable.entry(pba.0).or_insert_with(|| Box::new([0; BLOCK_SIZE]));
        block[bit / 8 % BLOCK_SIZE] ^= 1 << (bit % 8);
    }

    /// Makes every read of this block fail until it is written again.
    pub fn make_unreadable(&self, pba: Pba) {
        self.state.disk.borrow_mut().unreadable.insert(pba.0);
    }

    /// The blocks that hold anything but zeroes, in order.
    #[must_use]
    pub fn written_blocks(&self) -> Vec<Pba> {
        self.settle();
        self.state.disk.borrow().durable.keys().map(|block| Pba(*block)).collect()
    }

    /// Moves every completed write to the medium.
    fn settle(&self) {
        let disk = &mut *self.state.disk.borrow_mut();
        let completed: Vec<u64> =
            disk.unflushed.iter().filter(|(_, w)| w.completed).map(|(n, _)| *n).collect();
        for number in completed {
            disk.make_durable(number);
        }
    }

    /// Counts a request; never returns if the power is gone.
    async fn admit(&self) {
        let number = self.state.requests.get();
        self.state.requests.set(number + 1);
        if number >= self.state.crash_at_request.get() {
            self.crash();
        }
        self.wait_for_power().await;
    }

    async fn wait_for_power(&self) {
        if self.state.crashed.get() {
            pending::<()>().await;
        }
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

    fn fails(&self, one_in: u64) -> bool {
        self.state.rng.borrow_mut().one_in(one_in)
    }
}

impl Disk {
    fn make_durable(&mut self, number: u64) {
        let write = self.unflushed.remove(&number).expect("a write that is unflushed");
        for (n, sector) in write.bytes.chunks(SECTOR_BYTES).enumerate() {
            store_sector(&mut self.durable, write.start, n, sector);
        }
    }

    fn read_block(&self, block: u64, out: &mut [u8]) {
        match self.durable.get(&block) {
            Some(bytes) => out.copy_from_slice(&**bytes),
            None => out.fill(0),
        }
        for write in self.unflushed.values().filter(|write| write.completed) {
            let blocks = (write.bytes.len() / BLOCK_SIZE) as u64;
            if (write.start..write.start + blocks).contains(&block) {
                let at = (block - write.start) as usize * BLOCK_SIZE;
                out.copy_from_slice(&write.bytes[at..at + BLOCK_SIZE]);
            }
        }
    }
}

fn store_sector(medium: &mut BTreeMap<u64, BlockBytes>, start: u64, sector: usize, bytes: &[u8]) {
    let at = sector * SECTOR_BYTES;
    let block = start + (at / BLOCK_SIZE) as u64;
    let target = medium.entry(block).or_insert_with(|| Box::new([0; BLOCK_SIZE]));
    target[at % BLOCK_SIZE..][..bytes.len()].copy_from_slice(bytes);
}

impl Device for SimDevice {
    fn geometry(&self) -> DeviceGeometry {
        let blocks = self.state.disk.borrow().blocks;
        DeviceGeometry { blocks, volatile_cache: true, discards: true }
    }

    fn read(
        &self,
        pba: Pba,
        mut buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        let device = self.clone();
        async move {
            device.admit().await;
            let range = PbaRange::new(pba, buffer.len_blocks() as u64);
            device.check_range(range)?;
            device.delay(READ_MIN, READ_MAX).await;
            if device.fails(device.state.faults.get().read_error_one_in) {
                return Err(DeviceError::Io { range, errno: 5 });
            }
            let disk = device.state.disk.borrow();
            for (n, out) in buffer.as_mut_bytes().chunks_mut(BLOCK_SIZE).enumerate() {
                let block = pba.0 + n as u64;
                if disk.unreadable.contains(&block) {
                    return Err(DeviceError::Io { range: PbaRange::new(Pba(block), 1), errno: 5 });
                }
                disk.read_block(block, out);
            }
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
            device.admit().await;
            assert!(data.len_bytes().is_multiple_of(BLOCK_SIZE), "whole blocks only");
            let range = PbaRange::new(pba, (data.len_bytes() / BLOCK_SIZE) as u64);
            device.check_range(range)?;
            let number = {
                let disk = &mut *device.state.disk.borrow_mut();
                disk.next_write += 1;
                let bytes = data.as_bytes().to_vec();
                let write = Unflushed { start: pba.0, bytes, completed: false };
                disk.unflushed.insert(disk.next_write, write);
                (pba.0..range.end().0).for_each(|block| {
                    disk.unreadable.remove(&block);
                });
                disk.next_write
            };
            device.delay(WRITE_MIN, WRITE_MAX).await;
            let mut disk = device.state.disk.borrow_mut();
            if device.fails(device.state.faults.get().write_error_one_in) {
                let write = disk.unflushed.remove(&number).expect("still under way");
                let mut rng = device.state.rng.borrow_mut();
                for (n, sector) in write.bytes.chunks(SECTOR_BYTES).enumerate() {
                    if rng.one_in(2) {
                        store_sector(&mut disk.durable, write.start, n, sector);
                    }
                }
                return Err(DeviceError::Io { range, errno: 5 });
            }
            disk.unflushed.get_mut(&number).expect("still under way").completed = true;
            Ok(())
        }
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let device = self.clone();
        async move {
            device.admit().await;
            let covered: Vec<u64> = {
                let disk = device.state.disk.borrow();
                disk.unflushed.iter().filter(|(_, w)| w.completed).map(|(n, _)| *n).collect()
            };
            device.delay(FLUSH_MIN, FLUSH_MAX).await;
            let mut disk = device.state.disk.borrow_mut();
            for number in covered {
                // Another flush may have been quicker.
                if disk.unflushed.contains_key(&number) {
                    disk.make_durable(number);
                }
            }
            Ok(())
        }
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let device = self.clone();
        async move {
            device.admit().await;
            device.check_range(range)?;
            device.delay(WRITE_MIN, WRITE_MAX).await;
            // What a discard leaves behind is unspecified; garbage finds more bugs than zeroes.
            let garbage = vec![0xD5; BLOCK_SIZE];
            let mut disk = device.state.disk.borrow_mut();
            for block in range.start.0..range.end().0 {
                store_sector(&mut disk.durable, block, 0, &garbage[..SECTOR_BYTES]);
            }
            Ok(())
        }
    }
}
