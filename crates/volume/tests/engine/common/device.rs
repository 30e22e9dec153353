//! A device in memory that loses power and fails on demand.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceLimits};
use units::{BLOCK_SIZE, Pba, PbaRange};
use volume::Superblock;

use super::Random;

pub const SECTOR_SIZE: usize = 512;

type Block = Rc<[u8; BLOCK_SIZE]>;

thread_local! {
    static ZERO: Block = Rc::new([0; BLOCK_SIZE]);
}

#[derive(Clone)]
enum Request {
    Read(Pba, usize),
    Write(Pba, Vec<Block>),
    Flush,
    Discard(PbaRange),
}

struct Pending {
    request: Request,
    /// Writes in the cache when a flush began.
    cached: u64,
    waker: Option<Waker>,
    done: Option<Result<Vec<Block>, DeviceError>>,
    /// The caller has not received the outcome yet.
    is_untold: bool,
}

/// Requests that fail, by script.
#[derive(Default)]
pub struct Faults {
    /// Writes to these blocks fail, as often as said.
    pub write_errors: BTreeMap<u64, u32>,
    /// Reads of these blocks fail, as often as said.
    pub read_errors: BTreeMap<u64, u32>,
    /// Reads of these blocks give wrong bytes, as often as said.
    pub garbled_reads: BTreeMap<u64, u32>,
    /// The next reads that begin at each of these blocks give what lies at others, one after the other.
    pub astray_reads: BTreeMap<u64, VecDeque<u64>>,
    /// Writes to these blocks succeed and have no effect, as often as said.
    pub lost_writes: BTreeMap<u64, u32>,
    /// The next write that begins at each of these blocks goes to another one.
    pub astray_writes: BTreeMap<u64, u64>,
    /// So many succeed before.
    pub reads_spared: BTreeMap<u64, u32>,
    /// Flushes fail: what they should have covered is seen by reads, and gone after a crash, whatever later ones say.
    pub flush_errors: u32,
    /// So many succeed before.
    pub flushes_spared: u32,
    /// A failed flush is reported only when nothing else can proceed, as on a slow core.
    pub failed_flushes_told_last: bool,
    /// Flushes do not complete, but so many before.
    pub flushes_before_held: Option<u32>,
    pub discard_errors: u32,
    /// Discards do not complete.
    pub holds_discards: bool,
    /// True if it supports no discards.
    pub has_no_discards: bool,
    /// Writes to these blocks do not complete.
    pub held: BTreeSet<u64>,
    /// Reads of these blocks do not complete.
    pub held_reads: BTreeSet<u64>,
    /// True if it has no room for background requests.
    pub is_busy: bool,
    /// True if it lies in memory, and other writers write to all of it whenever a block is to be
    /// pinned.
    pub is_memory: bool,
    /// Writes outside the first shard's journal complete at once, if that is how they are asked for.
    pub writes_at_once: Option<Superblock>,
    /// Writes to blocks that hold nothing fail: those of a sparse file on a full file system.
    pub is_full: bool,
    /// It says that there is no space below.
    pub says_full: bool,
}

struct Disk {
    blocks: u64,
    volatile: bool,
    /// The data that a read returns.
    current: BTreeMap<u64, Block>,
    /// The data that certainly survives a crash.
    durable: BTreeMap<u64, Block>,
    /// Completed and not flushed, by number.
    cache: VecDeque<(u64, u64, Block)>,
    next_cached: u64,
    pending: BTreeMap<u64, Pending>,
    next_request: u64,
    faults: Faults,
    /// Writes and flushes that completed.
    completed: u64,
    /// Blocks written, each as often as it was; and which.
    written: u64,
    places: BTreeSet<u64>,
    /// Blocks discarded, each as often as it was; and which, and not written since.
    discarded: u64,
    blank: BTreeSet<u64>,
    reads: u64,
    /// Blocks that they read.
    blocks_read: u64,
}

/// A device in memory. Requests wait until the executor completes them.
#[derive(Clone)]
pub struct TestDevice {
    disk: Rc<RefCell<Disk>>,
}

impl TestDevice {
    pub fn new(blocks: u64, volatile: bool) -> Self {
        let disk = Disk {
            blocks,
            volatile,
            current: BTreeMap::new(),
            durable: BTreeMap::new(),
            cache: VecDeque::new(),
            next_cached: 0,
            pending: BTreeMap::new(),
            next_request: 0,
            faults: Faults::default(),
            completed: 0,
            written: 0,
            places: BTreeSet::new(),
            discarded: 0,
            blank: BTreeSet::new(),
            reads: 0,
            blocks_read: 0,
        };
        Self { disk: Rc::new(RefCell::new(disk)) }
    }

    /// The device as the next boot finds it: of what was not flushed, or not completed, every sector
    /// survives or not by a coin.
    pub fn after_crash(&self, random: &mut Random) -> Self {
        let disk = self.disk.borrow();
        let survivor = Self::new(disk.blocks, disk.volatile);
        let mut media = disk.durable.clone();
        let cached = disk.cache.iter().map(|(_, pba, block)| (*pba, block.clone()));
        let flying =
            disk.pending.values().filter(|p| p.done.is_none()).filter_map(|pending| match &pending
                .request
            {
                Request::Write(pba, blocks) => Some((pba.0, blocks.clone())),
                _ => None,
            });
        let flying = flying.flat_map(|(pba, blocks)| (pba..).zip(blocks));
        for (pba, block) in cached.chain(flying) {
            let mut torn = media.get(&pba).map_or([0; BLOCK_SIZE], |old| **old);
            // Often all or nothing, else sector by sector.
            let mode = random.below(4);
            for sector in 0..BLOCK_SIZE / SECTOR_SIZE {
                let survives = match mode {
                    0 => false,
                    1 => true,
                    _ => random.below(2) == 0,
                };
                if survives {
                    let bytes = sector * SECTOR_SIZE..(sector + 1) * SECTOR_SIZE;
                    torn[bytes.clone()].copy_from_slice(&block[bytes]);
                }
            }
            media.insert(pba, Rc::new(torn));
        }
        {
            let mut fresh = survivor.disk.borrow_mut();
            fresh.set_media(media);
            fresh.blank = disk.blank.clone();
        }
        survivor
    }

    /// Lets one request complete, whichever the seed says. Returns whether there was one.
    pub fn complete_one(&self, random: &mut Random) -> bool {
        let waker = {
            let mut disk = self.disk.borrow_mut();
            let held = |pending: &Pending| match &pending.request {
                Request::Write(pba, blocks) => {
                    let range = pba.0..pba.0 + blocks.len() as u64;
                    disk.faults.held.range(range).next().is_some()
                }
                Request::Read(pba, count) => {
                    let range = pba.0..pba.0 + *count as u64;
                    disk.faults.held_reads.range(range).next().is_some()
                }
                Request::Flush => disk.faults.flushes_before_held == Some(0),
                Request::Discard(_) => disk.faults.holds_discards,
            };
            let open = disk.pending.iter().filter(|(_, p)| p.done.is_none() && !held(p));
            let open: Vec<u64> = open.map(|(id, _)| *id).collect();
            if open.is_empty() {
                let Some(untold) = disk.pending.values_mut().find(|p| p.is_untold) else {
                    return false;
                };
                untold.is_untold = false;
                untold.waker.take()
            } else {
                let id = open[random.below(open.len() as u64) as usize];
                disk.complete(id)
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Lets all requests complete that are under way. Returns how many these were.
    pub fn complete_all(&self, random: &mut Random) -> usize {
        let open = self.disk.borrow().pending.values().filter(|p| p.done.is_none()).count();
        for _ in 0..open {
            self.complete_one(random);
        }
        open
    }

    /// Writes under way outside the journal of the first shard: the first block of each.
    pub fn pending_data(&self, superblock: &Superblock) -> Vec<Pba> {
        let journal = journal_of(superblock);
        let disk = self.disk.borrow();
        let writes = disk.pending.values().filter(|pending| pending.done.is_none());
        let places = writes.filter_map(|pending| match &pending.request {
            Request::Write(pba, _) => Some(*pba),
            _ => None,
        });
        places.filter(|pba| !journal.contains(&pba.0)).collect()
    }

    /// The device as the next process finds it: what had completed is there, flushed or not, and nothing is under way.
    pub fn after_process_end(&self) -> Self {
        let disk = self.disk.borrow();
        let survivor = Self::new(disk.blocks, disk.volatile);
        {
            let mut fresh = survivor.disk.borrow_mut();
            fresh.current = disk.current.clone();
            fresh.durable = disk.durable.clone();
            fresh.cache = disk.cache.clone();
            fresh.next_cached = disk.next_cached;
        }
        survivor
    }

    /// The device as the next boot finds it when all that was under way is there.
    pub fn after_crash_without_loss(&self) -> Self {
        let disk = self.disk.borrow();
        let survivor = Self::new(disk.blocks, disk.volatile);
        let mut media = disk.current.clone();
        for pending in disk.pending.values().filter(|pending| pending.done.is_none()) {
            let Request::Write(pba, blocks) = &pending.request else { continue };
            media.extend((pba.0..).zip(blocks.iter().cloned()));
        }
        survivor.disk.borrow_mut().set_media(media);
        survivor
    }

    /// The device as the next boot finds it behind a power cut that leaves anything in the blocks of writes that had not
    /// completed, and nothing of what was not flushed.
    pub fn after_garbling_crash(&self) -> Self {
        let disk = self.disk.borrow();
        let survivor = Self::new(disk.blocks, disk.volatile);
        let mut media = disk.durable.clone();
        for pending in disk.pending.values().filter(|pending| pending.done.is_none()) {
            let Request::Write(pba, blocks) = &pending.request else { continue };
            let garbage: Block = Rc::new([0xA5; BLOCK_SIZE]);
            media.extend((pba.0..).zip(blocks).map(|(pba, _)| (pba, garbage.clone())));
        }
        survivor.disk.borrow_mut().set_media(media);
        survivor
    }

    /// Makes it larger.
    pub fn enlarge(&self, blocks: u64) {
        self.disk.borrow_mut().blocks = blocks;
    }

    /// Writes and flushes completed so far.
    pub fn completed(&self) -> u64 {
        self.disk.borrow().completed
    }

    /// Read requests completed so far.
    pub fn reads(&self) -> u64 {
        self.disk.borrow().reads
    }

    /// Blocks that they read, each as often as it was.
    pub fn blocks_read(&self) -> u64 {
        self.disk.borrow().blocks_read
    }

    /// Blocks that discards under way are to discard.
    pub fn blocks_being_discarded(&self) -> u64 {
        let disk = self.disk.borrow();
        let open = disk.pending.values().filter(|pending| pending.done.is_none());
        open.map(|pending| match &pending.request {
            Request::Discard(range) => range.blocks,
            _ => 0,
        })
        .sum()
    }

    pub fn blocks_discarded(&self) -> u64 {
        self.disk.borrow().discarded
    }

    /// Returns whether the block was not written since it was discarded.
    pub fn is_blank(&self, pba: Pba) -> bool {
        self.disk.borrow().blank.contains(&pba.0)
    }

    pub fn blocks_written(&self) -> u64 {
        self.disk.borrow().written
    }

    /// Returns the number of blocks outside the journal that were written at least once.
    pub fn places_written(&self, superblock: &Superblock) -> u64 {
        let journal = journal_of(superblock);
        let disk = self.disk.borrow();
        disk.places.iter().filter(|pba| !journal.contains(pba)).count() as u64
    }

    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.disk.borrow_mut().faults);
    }

    /// Flips one bit on the media.
    pub fn flip(&self, pba: Pba, byte: usize) {
        let disk = self.disk.borrow();
        let mut block = disk.current.get(&pba.0).map_or([0; BLOCK_SIZE], |block| **block);
        block[byte] ^= 4;
        drop(disk);
        self.put(pba, block);
    }

    /// Puts a block on the media.
    pub fn put(&self, pba: Pba, block: [u8; BLOCK_SIZE]) {
        let (mut disk, block) = (self.disk.borrow_mut(), Rc::new(block));
        disk.current.insert(pba.0, block.clone());
        disk.durable.insert(pba.0, block);
    }

    /// Makes a block of the media read as zeroes.
    pub fn wipe(&self, pba: Pba) {
        let mut disk = self.disk.borrow_mut();
        disk.current.remove(&pba.0);
        disk.durable.remove(&pba.0);
    }

    /// The blocks that hold exactly `bytes`.
    pub fn find(&self, bytes: &[u8]) -> Vec<Pba> {
        let disk = self.disk.borrow();
        disk.current.iter().filter(|(_, b)| b[..] == *bytes).map(|(pba, _)| Pba(*pba)).collect()
    }

    /// The blocks of which `is_wanted` says so.
    pub fn find_by(&self, is_wanted: impl Fn(&[u8]) -> bool) -> Vec<Pba> {
        let disk = self.disk.borrow();
        disk.current.iter().filter(|(_, b)| is_wanted(&b[..])).map(|(pba, _)| Pba(*pba)).collect()
    }

    pub fn block(&self, pba: Pba) -> [u8; BLOCK_SIZE] {
        self.disk.borrow().current.get(&pba.0).map_or([0; BLOCK_SIZE], |block| **block)
    }

    fn submit(&self, request: Request) -> TestRequest {
        let mut disk = self.disk.borrow_mut();
        let id = disk.next_request;
        disk.next_request += 1;
        let cached = disk.next_cached;
        let pending = Pending { request, cached, waker: None, done: None, is_untold: false };
        disk.pending.insert(id, pending);
        TestRequest { disk: self.disk.clone(), id }
    }
}

/// The blocks of the first shard's journal.
pub fn journal_of(superblock: &Superblock) -> std::ops::Range<u64> {
    let start = superblock.extent(0).start.0 + 2;
    start..start + u64::from(superblock.journal_blocks)
}

/// Returns the rest of a script for `pba`, if any.
fn some_left(script: &mut BTreeMap<u64, u32>, pba: Pba) -> Option<&mut u32> {
    script.get_mut(&pba.0).filter(|left| **left > 0)
}

impl Disk {
    /// All that is there is on the media.
    fn set_media(&mut self, media: BTreeMap<u64, Block>) {
        self.current = media.clone();
        self.durable = media;
    }

    fn complete(&mut self, id: u64) -> Option<Waker> {
        let pending = self.pending.get(&id).expect("pending");
        let (request, cached) = (pending.request.clone(), pending.cached);
        let is_flush = matches!(request, Request::Flush);
        let result = self.perform(request, cached);
        let pending = self.pending.get_mut(&id).expect("pending");
        pending.is_untold = is_flush && result.is_err() && self.faults.failed_flushes_told_last;
        pending.done = Some(result);
        if pending.is_untold { None } else { pending.waker.take() }
    }

    fn perform(&mut self, request: Request, cached: u64) -> Result<Vec<Block>, DeviceError> {
        match request {
            Request::Read(pba, count) => {
                self.reads += 1;
                self.blocks_read += count as u64;
                let zero: Block = ZERO.with(Rc::clone);
                let block = |pba| self.current.get(&pba).unwrap_or(&zero).clone();
                let astray = self.faults.astray_reads.get_mut(&pba.0).and_then(VecDeque::pop_front);
                let start = astray.unwrap_or(pba.0);
                let mut blocks: Vec<Block> = (start..start + count as u64).map(block).collect();
                if let Some(left) = some_left(&mut self.faults.reads_spared, pba) {
                    *left -= 1;
                    return Ok(blocks);
                }
                self.fail(pba, count, |faults| &mut faults.read_errors)?;
                if let Some(left) = some_left(&mut self.faults.garbled_reads, pba) {
                    *left -= 1;
                    Rc::make_mut(&mut blocks[0])[70] ^= 1;
                }
                Ok(blocks)
            }
            Request::Write(pba, blocks) => {
                self.completed += 1;
                self.fail(pba, blocks.len(), |faults| &mut faults.write_errors)?;
                let range = PbaRange::new(pba, blocks.len() as u64);
                let has_room = |pba| self.current.contains_key(&pba);
                if self.faults.is_full && !(pba.0..range.end().0).all(has_room) {
                    return Err(DeviceError::NoSpace { range });
                }
                self.written += blocks.len() as u64;
                if let Some(left) = some_left(&mut self.faults.lost_writes, pba) {
                    *left -= 1;
                    return Ok(Vec::new());
                }
                let pba = self.faults.astray_writes.remove(&pba.0).map_or(pba, Pba);
                for (pba, block) in (pba.0..).zip(blocks) {
                    self.blank.remove(&pba);
                    self.places.insert(pba);
                    self.current.insert(pba, block.clone());
                    if self.volatile {
                        self.cache.push_back((self.next_cached, pba, block));
                        self.next_cached += 1;
                    } else {
                        self.durable.insert(pba, block);
                    }
                }
                Ok(Vec::new())
            }
            Request::Flush => {
                self.completed += 1;
                let before_held = &mut self.faults.flushes_before_held;
                *before_held = before_held.map(|left| left.saturating_sub(1));
                if self.faults.flushes_spared > 0 {
                    self.faults.flushes_spared -= 1;
                } else if self.faults.flush_errors > 0 {
                    self.faults.flush_errors -= 1;
                    self.cache.retain(|(number, ..)| *number >= cached);
                    return Err(DeviceError::Gone);
                }
                while self.cache.front().is_some_and(|(number, ..)| *number < cached) {
                    let (_, pba, block) = self.cache.pop_front().expect("just seen");
                    self.durable.insert(pba, block);
                }
                Ok(Vec::new())
            }
            // Discarded data is unspecified: code that still needed it reads garbage.
            Request::Discard(range) => {
                if self.faults.discard_errors > 0 {
                    self.faults.discard_errors -= 1;
                    return Err(DeviceError::Io { range, errno: 5 });
                }
                self.discarded += range.blocks;
                self.blank.extend(range.start.0..range.end().0);
                let spoilt: Block = Rc::new([0xDD; BLOCK_SIZE]);
                for pba in range.start.0..range.end().0 {
                    self.current.insert(pba, spoilt.clone());
                    self.durable.insert(pba, spoilt.clone());
                    self.cache.retain(|(_, cached, _)| *cached != pba);
                }
                Ok(Vec::new())
            }
        }
    }

    fn fail(
        &mut self,
        pba: Pba,
        count: usize,
        list: impl FnOnce(&mut Faults) -> &mut BTreeMap<u64, u32>,
    ) -> Result<(), DeviceError> {
        let range = PbaRange::new(pba, count as u64);
        let list = list(&mut self.faults);
        let hit = list.range_mut(pba.0..pba.0 + count as u64).find(|(_, left)| **left > 0);
        match hit {
            Some((_, left)) => {
                *left -= 1;
                Err(DeviceError::Io { range, errno: 5 })
            }
            None => Ok(()),
        }
    }
}

struct TestRequest {
    disk: Rc<RefCell<Disk>>,
    id: u64,
}

impl Future for TestRequest {
    type Output = Result<Vec<Block>, DeviceError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut disk = self.disk.borrow_mut();
        let pending = disk.pending.get_mut(&self.id).expect("polled once after it is done");
        match pending.done.take_if(|_| !pending.is_untold) {
            Some(result) => {
                disk.pending.remove(&self.id);
                Poll::Ready(result)
            }
            None => {
                pending.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

fn write_of(pba: Pba, data: &BufferSlice) -> Request {
    let blocks = data.as_bytes().chunks_exact(BLOCK_SIZE);
    let shared = |block: &[u8]| match block.iter().all(|byte| *byte == 0) {
        true => ZERO.with(Rc::clone),
        false => Rc::new(block.try_into().expect("a block")),
    };
    Request::Write(pba, blocks.map(shared).collect())
}

impl Device for TestDevice {
    fn limits(&self) -> DeviceLimits {
        let disk = self.disk.borrow();
        DeviceLimits {
            blocks: disk.blocks,
            volatile_cache: disk.volatile,
            discards: !disk.faults.has_no_discards,
            pins: disk.faults.is_memory,
        }
    }

    fn has_room(&self) -> bool {
        !self.disk.borrow().faults.is_busy
    }

    fn is_full_below(&self) -> bool {
        self.disk.borrow().faults.says_full
    }

    fn read(
        &self,
        pba: Pba,
        mut buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        let blocks = self.limits().blocks;
        let range = PbaRange::new(pba, buffer.len_blocks() as u64);
        let inside = range.checked_end().is_some_and(|end| end.0 <= blocks);
        let request = inside.then(|| self.submit(Request::Read(pba, buffer.len_blocks())));
        async move {
            let blocks = request.ok_or(DeviceError::OutOfRange { range })?.await?;
            for (place, block) in buffer.as_mut_bytes().chunks_exact_mut(BLOCK_SIZE).zip(blocks) {
                place.copy_from_slice(&block[..]);
            }
            Ok(buffer)
        }
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let range = PbaRange::new(pba, (data.len_bytes() / BLOCK_SIZE) as u64);
        assert!(data.len_bytes().is_multiple_of(BLOCK_SIZE) && range.blocks > 0);
        assert!(data.as_bytes().as_ptr().addr().is_multiple_of(BLOCK_SIZE));
        let inside = range.checked_end().is_some_and(|end| end.0 <= self.limits().blocks);
        let request = inside.then(|| self.submit(write_of(pba, &data)));
        async move {
            request.ok_or(DeviceError::OutOfRange { range })?.await?;
            Ok(())
        }
    }

    fn write_at_once(
        &self,
        pba: Pba,
        data: &BufferSlice,
        _crc: Option<&mut dyn FnMut(u32)>,
    ) -> Option<Result<(), DeviceError>> {
        let superblock = {
            let faults = &self.disk.borrow().faults;
            faults.writes_at_once.filter(|_| !faults.held.contains(&pba.0))?
        };
        if journal_of(&superblock).contains(&pba.0) {
            return None;
        }
        let request = self.submit(write_of(pba, data));
        let mut disk = self.disk.borrow_mut();
        disk.complete(request.id);
        let pending = disk.pending.remove(&request.id).expect("just put there");
        pending.done.map(|done| done.map(drop))
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let request = self.submit(Request::Flush);
        async move { request.await.map(drop) }
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let request = self.submit(Request::Discard(range));
        async move { request.await.map(drop) }
    }
}
