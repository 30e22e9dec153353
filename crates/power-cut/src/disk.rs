//! The disk as a process sees it: a file system with one file, whose power goes at a given request.
//!
//! - CUT-DISK-1: from the cut on, nothing that arrives reaches the disk, and nothing is answered as
//!   done.
//! - CUT-DISK-2: a write is under way for as long as it takes to be answered, some for a while, so that
//!   a flush that does not wait for it may leave it out.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags,
    ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session,
    TimeOrNow, WriteFlags,
};

use crate::cache::{Cache, Covered, Image, Loss, Survival};
use crate::random::Random;
use crate::supply::{Power, Supply};

/// The name of the file.
const NAME: &str = "disk";
const FILE: INodeNo = INodeNo(2);
/// Requests that the disk works on at a time.
const THREADS: usize = 6;
/// The kernel keeps what it knows of names and attributes; nothing else changes them.
const TTL: Duration = Duration::from_secs(3600);
/// The longest that a slow write or flush takes.
const SLOW_MICROS: u64 = 1_500;
/// `O_DIRECT` on this architecture.
const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 16;
/// The copies of superblock and roots lie this close to the ends of a disk.
const ENDS: usize = 1 << 20;

/// The way of a write from the process to the disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Access {
    /// Past the page cache.
    Direct,
    /// Into the page cache, which writes back what it likes, and what a sync asks for.
    Cached,
    /// As the process opens it.
    AsOpened,
}

/// Ways in which a disk lies about flushes, to show that it would be noticed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Lie {
    /// It does not.
    #[default]
    None,
    /// No flush does anything, as if the server called `sync_file_range`.
    SkipFlush,
    /// One flush in eight does nothing.
    SkipSomeFlushes,
    /// Flushes leave out the ends of the disk, where superblocks and roots lie.
    SpareEnds,
    /// Flushes leave out all but the ends.
    EndsOnly,
    /// Flushes of all devices but the first do nothing.
    FirstDeviceOnly,
    /// None of the disk: the server is told never to flush (`flush=never`).
    NeverAsked,
}

/// The reply to a request that waits while the disk is silent.
enum Held {
    Data(ReplyData),
    Write(ReplyWrite),
    Empty(ReplyEmpty),
}

impl Held {
    fn fail(self) {
        match self {
            Self::Data(reply) => reply.error(Errno::EIO),
            Self::Write(reply) => reply.error(Errno::EIO),
            Self::Empty(reply) => reply.error(Errno::EIO),
        }
    }
}

struct Platter {
    cache: Cache,
    power: Power,
    held: Vec<Held>,
    random: Random,
    lie: Lie,
    number: usize,
    flushes: u64,
}

#[derive(Clone)]
struct Files {
    platter: Arc<Mutex<Platter>>,
    supply: Supply,
    access: Access,
}

impl Files {
    fn lock(&self) -> MutexGuard<'_, Platter> {
        self.platter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o755, 0),
            FILE => (FileType::RegularFile, 0o600, self.lock().cache.len() as u64),
            _ => return None,
        };
        let time = SystemTime::UNIX_EPOCH;
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    /// A change of bytes arrives. What is on its way when the power goes is there, or not.
    fn change(
        &self,
        held: Held,
        make: impl FnOnce(&mut Cache) -> crate::cache::Order,
    ) -> Option<Held> {
        let mut platter = self.lock();
        let (power, goes_now) = self.supply.arrives(false);
        if power != Power::On {
            if goes_now && platter.random.chance(50) {
                make(&mut platter.cache);
            }
            platter.refuse(power, held);
            return None;
        }
        let order = make(&mut platter.cache);
        let pause = platter.random.slow(10);
        if let Some(pause) = pause {
            drop(platter);
            thread::sleep(pause);
            platter = self.lock();
        }
        if self.supply.is_off() {
            platter.refuse(self.supply.arrives(false).0, held);
            return None;
        }
        platter.cache.answered(order);
        Some(held)
    }

    fn flush_all(&self, reply: ReplyEmpty) {
        let mut platter = self.lock();
        let (power, goes_now) = self.supply.arrives(false);
        if power != Power::On && !goes_now {
            return platter.refuse(power, Held::Empty(reply));
        }
        let covered = platter.flush_begins();
        if let Some(pause) = platter.random.slow(25).filter(|_| !goes_now) {
            drop(platter);
            thread::sleep(pause);
            platter = self.lock();
        }
        let is_off = goes_now || self.supply.is_off();
        // One that is under way at the cut may have got as far as that.
        if !is_off || platter.random.chance(30) {
            platter.cache.end_flush(&covered);
        }
        if is_off {
            let power = self.supply.arrives(false).0;
            return platter.refuse(power, Held::Empty(reply));
        }
        // Answered under the lock: the power is on until then (CUT-DISK-1).
        reply.ok();
    }
}

impl Random {
    /// Returns how long a request takes, if it is one of `percent` slow ones.
    fn slow(&mut self, percent: u64) -> Option<Duration> {
        let micros = self.below(SLOW_MICROS);
        self.chance(percent).then(|| Duration::from_micros(micros))
    }
}

impl Platter {
    fn refuse(&mut self, power: Power, held: Held) {
        // A request that was told to stop waiting must not wait again.
        match (power, self.power) {
            (Power::Silent, Power::On) => self.held.push(held),
            _ => held.fail(),
        }
    }

    fn flush_begins(&mut self) -> Covered {
        self.flushes += 1;
        let mut covered = self.cache.begin_flush(&mut self.random);
        let end = self.cache.len() - ENDS;
        let at_ends = move |from: usize, to: usize| to <= ENDS || from >= end;
        match self.lie {
            Lie::None | Lie::NeverAsked => {}
            Lie::SkipFlush => covered.retain(&self.cache, |_, _| false),
            Lie::SkipSomeFlushes => {
                let skips = self.random.chance(12);
                covered.retain(&self.cache, |_, _| !skips);
            }
            Lie::SpareEnds => covered.retain(&self.cache, |from, to| !at_ends(from, to)),
            Lie::EndsOnly => covered.retain(&self.cache, at_ends),
            Lie::FirstDeviceOnly => {
                let is_first = self.number == 0;
                covered.retain(&self.cache, |_, _| is_first);
            }
        }
        covered
    }
}

impl Filesystem for Files {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = InitFlags::FUSE_ASYNC_DIO;
        if self.access != Access::Direct {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        let _ = config.add_capabilities(wanted);
        let _ = config.set_max_background(128);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE).filter(|_| parent == INodeNo::ROOT && name == NAME) {
            Some(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Takes times, which the kernel keeps, and no other size.
    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.attributes(inode) {
            Some(attributes) if size.is_none_or(|size| size == attributes.size) => {
                reply.attr(&TTL, &attributes);
            }
            _ => reply.error(Errno::EINVAL),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.access {
            Access::Cached if flags.0 & O_DIRECT != 0 => reply.error(Errno::EINVAL),
            Access::Direct => {
                let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
                reply.opened(FileHandle(0), direct);
            }
            Access::Cached | Access::AsOpened => {
                reply.opened(FileHandle(0), FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
            }
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut platter = self.lock();
        match self.supply.arrives(true).0 {
            Power::On => reply.data(platter.cache.read(offset as usize, len as usize)),
            power => platter.refuse(power, Held::Data(reply)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let end = offset + data.len() as u64;
        if end > self.lock().cache.len() as u64 {
            return reply.error(Errno::ENOSPC);
        }
        let done = self.change(Held::Write(reply), |cache| cache.write(offset as usize, data));
        if let Some(Held::Write(reply)) = done {
            reply.written(data.len() as u32);
        }
    }

    /// Closing a file makes nothing durable.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.flush_all(reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let bytes = self.lock().cache.len() as u64;
        let fits = offset.checked_add(len).is_some_and(|end| end <= bytes);
        if mode & (PUNCH_HOLE | ZERO_RANGE) == 0 || !fits {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let zero = |cache: &mut Cache| cache.zero(offset as usize, len as usize);
        if let Some(Held::Empty(reply)) = self.change(Held::Empty(reply), zero) {
            reply.ok();
        }
    }
}

/// A disk, which is mounted while there is a process that uses it.
pub(crate) struct Disk {
    platter: Arc<Mutex<Platter>>,
    supply: Supply,
    mounted: Option<(PathBuf, BackgroundSession)>,
}

impl Disk {
    /// A disk of zeroes; `number` tells it from others of its machine.
    pub(crate) fn new(number: usize, bytes: usize, supply: Supply, random: Random) -> Self {
        let lie = Lie::None;
        let cache = Cache::new(bytes);
        let platter =
            Platter { cache, power: Power::On, held: Vec::new(), random, lie, number, flushes: 0 };
        Self { platter: Arc::new(Mutex::new(platter)), supply, mounted: None }
    }

    fn lock(&self) -> MutexGuard<'_, Platter> {
        self.platter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it lie about flushes from now on.
    pub(crate) fn lie(&self, lie: Lie) {
        self.lock().lie = lie;
    }

    /// Mounts it at a directory; the path of the file.
    pub(crate) fn mount(&mut self, at: &Path, access: Access) -> io::Result<PathBuf> {
        let platter = self.platter.clone();
        self.lock().power = Power::On;
        let files = Files { platter, supply: self.supply.clone(), access };
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("farflash-power-cut".to_owned())];
        config.n_threads = Some(THREADS);
        let session = Session::new(files, at, &config)?.spawn()?;
        self.mounted = Some((at.to_owned(), session));
        Ok(at.join(NAME))
    }

    /// Fails what waits for the disk, and what comes from now on.
    pub(crate) fn let_go(&self) {
        let held = {
            let mut platter = self.lock();
            platter.power = Power::Failing;
            std::mem::take(&mut platter.held)
        };
        held.into_iter().for_each(Held::fail);
    }

    /// Unmounts it, when no process uses it any more. What the page cache had not written is gone.
    pub(crate) fn unmount(&mut self) -> io::Result<()> {
        const PATIENCE: Duration = Duration::from_secs(30);
        let Some((at, session)) = self.mounted.take() else { return Ok(()) };
        let deadline = Instant::now() + PATIENCE;
        // A process that was killed lets go of its files a moment later.
        loop {
            let unmounted = Command::new("umount").arg(&at).output()?;
            if unmounted.status.success() {
                break;
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(
                    String::from_utf8_lossy(&unmounted.stderr).into_owned(),
                ));
            }
            thread::sleep(Duration::from_millis(5));
        }
        session.join()
    }

    /// Has the disk forget what no flush covered.
    pub(crate) fn forget(&self, rule: Survival) -> Loss {
        let mut platter = self.lock();
        let mut random = platter.random.fork();
        platter.cache.cut(rule, &mut random)
    }

    /// Flushes since the disk was made.
    pub(crate) fn flushes(&self) -> u64 {
        self.lock().flushes
    }

    /// Returns the content after a cut.
    pub(crate) fn durable(&self) -> Image {
        self.lock().cache.durable()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::supply::Plan;
    use test_support::skipped::skipped;

    const BYTES: usize = 1 << 20;
    const BLOCK: usize = 4096;

    fn byte_at(disk: &Disk, block: usize) -> u8 {
        disk.durable().byte(block * BLOCK)
    }

    /// Method: one block is written and synced, one is written, and the power goes.
    #[test]
    fn a_cut_takes_what_was_not_synced_past_or_through_the_page_cache() {
        if let Some(why) = crate::why_not() {
            return skipped(why);
        }
        for access in [Access::Direct, Access::Cached] {
            let directory = tempfile::tempdir().unwrap();
            let supply = Supply::default();
            let mut disk = Disk::new(0, BYTES, supply.clone(), Random::new(1));
            let path = disk.mount(directory.path(), access).unwrap();
            let file = File::options().read(true).write(true).open(path).unwrap();
            file.write_all_at(&[1; BLOCK], 0).unwrap();
            file.sync_data().unwrap();
            file.write_all_at(&[2; BLOCK], BLOCK as u64).unwrap();
            assert_eq!((byte_at(&disk, 0), byte_at(&disk, 1)), (1, 0), "{access:?}");
            supply.arm(Some(Plan { requests: 0, count_reads: false, silently: false }));
            let written = file.write_all_at(&[3; BLOCK], 0).and_then(|()| file.sync_data());
            assert!(written.is_err() && supply.is_off(), "{access:?}");
            drop(file);
            disk.unmount().unwrap();
            disk.forget(Survival::Nothing);
            assert_eq!((byte_at(&disk, 0), byte_at(&disk, 1)), (1, 0), "{access:?}");
        }
    }

    /// Method: the same sync on a disk that lies.
    #[test]
    fn a_disk_that_lies_keeps_nothing() {
        if let Some(why) = crate::why_not() {
            return skipped(why);
        }
        let directory = tempfile::tempdir().unwrap();
        let mut disk = Disk::new(0, BYTES, Supply::default(), Random::new(1));
        disk.lie(Lie::SkipFlush);
        let path = disk.mount(directory.path(), Access::Direct).unwrap();
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&[1; BLOCK], 0).unwrap();
        file.sync_data().unwrap();
        drop(file);
        disk.unmount().unwrap();
        disk.forget(Survival::Nothing);
        assert_eq!(byte_at(&disk, 0), 0);
    }
}
