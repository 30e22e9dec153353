//! Devices over temporary files.

use std::fs;
use std::io::{PipeReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use io_traits::{Buffer, Device, DeviceError};
use rustix::fs::{OFlags, fcntl_setfl};
use units::{BLOCK_SIZE, Pba, PbaRange};
use uring::{Fd, ReadWindow};

use super::{poll_once_and_drop, run};
use crate::space_below::SpaceBelow;
use crate::storage::File;
use crate::{
    CoreConfig, DeviceWarning, FileDevice, FlushPolicy, OpenError, OpenOptions, OwnedDevice,
    create_sparse, spawn_thread,
};
use test_support::skipped::skipped;

const BLOCKS: u64 = 1024;

/// A file of its own for a test, removed afterwards.
struct TempFile(PathBuf);

impl TempFile {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("farflash-reactor-test-{}-{n}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn sparse() -> Self {
        let file = Self::new();
        create_sparse(&file.0, BLOCKS * BLOCK_SIZE as u64).expect("creates");
        file
    }

    fn open(&self) -> OwnedDevice {
        OwnedDevice::open(&self.0, OpenOptions::default()).expect("opens")
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn filled(blocks: usize, byte: u8) -> Buffer {
    let mut buffer = Buffer::new(blocks);
    buffer.as_mut_bytes().fill(byte);
    buffer
}

#[test]
fn what_was_written_is_read_back_and_a_hole_reads_as_zeroes() {
    let file = TempFile::sparse();
    let owned = file.open();
    run(move |handle| async move {
        let device = owned.attach(&handle);
        assert_eq!(device.limits().blocks, BLOCKS);
        assert!(device.limits().volatile_cache && device.limits().discards);
        let unwritten = device.read(Pba(7), filled(2, 1)).await.expect("reads");
        assert!(unwritten.as_bytes().iter().all(|byte| *byte == 0));
        let data = filled(8, 0xA5).into_slice();
        let writes: Vec<_> = (0..32).map(|n| device.write(Pba(n * 8), data.clone())).collect();
        for write in writes {
            write.await.expect("writes");
        }
        device.flush().await.expect("flushes");
        let read = device.read(Pba(BLOCKS / 8), Buffer::new(128)).await.expect("reads");
        assert!(read.as_bytes().iter().all(|byte| *byte == 0xA5));
        device.discard(PbaRange::new(Pba(0), BLOCKS / 4)).await.expect("discards");
        let read = device.read(Pba(3), Buffer::new(4)).await.expect("reads");
        assert!(read.as_bytes().iter().all(|byte| *byte == 0));
        let nothing = device.read(Pba(0), Buffer::new(0)).await.expect("reads nothing");
        assert_eq!(nothing.len_bytes(), 0);
    });
    assert_eq!(fs::metadata(&file.0).expect("is there").size(), BLOCKS * BLOCK_SIZE as u64);
}

#[test]
fn a_request_beyond_the_end_is_refused() {
    let file = TempFile::sparse();
    let owned = file.open();
    run(move |handle| async move {
        let device = owned.attach(&handle);
        let last = Pba(BLOCKS - 1);
        device.write(last, filled(1, 1).into_slice()).await.expect("the last block");
        let range = PbaRange::new(last, 2);
        let out_of_range = Some(DeviceError::OutOfRange { range });
        assert_eq!(device.write(last, filled(2, 1).into_slice()).await.err(), out_of_range);
        assert_eq!(device.read(last, Buffer::new(2)).await.err(), out_of_range);
        assert_eq!(device.discard(range).await.err(), out_of_range);
        assert!(device.read(Pba(u64::MAX), Buffer::new(1)).await.is_err());
    });
}

#[test]
fn a_file_that_shrinks_under_the_server_is_an_io_error() {
    let file = TempFile::sparse();
    let owned = file.open();
    let other = fs::OpenOptions::new().write(true).open(&file.0).expect("opens");
    other.set_len(BLOCK_SIZE as u64).expect("shrinks");
    run(move |handle| async move {
        let device = owned.attach(&handle);
        let range = PbaRange::new(Pba(5), 1);
        let error = device.read(Pba(5), Buffer::new(1)).await.err();
        assert_eq!(error, Some(DeviceError::Io { range, errno: 5 }));
    });
}

/// Method: a core ends whose device is a pipe that is full. Another thread makes room, or none does.
#[test]
fn a_core_says_whether_its_devices_are_settled_when_it_has_ended() {
    for is_emptied in [true, false] {
        let (read, mut write) = std::io::pipe().expect("a pipe");
        fcntl_setfl(&write, OFlags::NONBLOCK).expect("a flag");
        let full = std::iter::from_fn(|| write.write(&[1; BLOCK_SIZE]).ok()).sum::<usize>();
        fcntl_setfl(&write, OFlags::empty()).expect("a flag");
        let file = TempFile::sparse();
        let owned = file.open();
        let core = spawn_thread(CoreConfig::default(), move |handle| async move {
            let limits = owned.attach(&handle).limits();
            let (fd, window) = (Fd::new(OwnedFd::from(write)), ReadWindow::default());
            let space = Arc::new(SpaceBelow::new(true, limits.blocks));
            let device =
                FileDevice::new(handle.core.ring.clone(), File { fd, limits, window, space });
            drop(device.write(Pba(0), filled(1, 2).into_slice()));
        });
        let core = core.expect("a core starts");
        let empty = move |mut read: PipeReader| {
            let mut contents = vec![0; full + BLOCK_SIZE];
            read.read_exact(&mut contents).expect("reads");
            contents
        };
        let (emptied, _open) = match is_emptied {
            true => (Some(std::thread::spawn(move || empty(read))), None),
            false => (None, Some(read)),
        };
        assert_eq!(core.end().expect("no panic").is_settled, is_emptied);
        if let Some(emptied) = emptied {
            assert!(emptied.join().expect("no panic").ends_with(&[2; BLOCK_SIZE]));
        }
    }
}

#[test]
fn a_dropped_write_is_still_done() {
    let file = TempFile::sparse();
    let owned = file.open();
    run(move |handle| async move {
        let device = owned.attach(&handle);
        for n in 0..64 {
            let write = device.write(Pba(n), filled(1, n as u8 + 1).into_slice());
            assert!(poll_once_and_drop(write).await.is_none());
        }
        drop(device);
    });
    let bytes = fs::read(&file.0).expect("reads");
    for n in 0..64 {
        assert_eq!(bytes[n * BLOCK_SIZE], n as u8 + 1, "the core waits for what is in flight");
    }
}

#[test]
fn a_second_server_is_kept_out_until_the_first_is_gone() {
    let file = TempFile::sparse();
    let owned = file.open();
    let in_use = |options| match OwnedDevice::open(&file.0, options) {
        Err(OpenError::InUse { path }) => path == file.0,
        _ => false,
    };
    assert!(in_use(OpenOptions::default()));
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    assert!(in_use(read_only));
    drop(owned);
    let reader = OwnedDevice::open(&file.0, read_only).expect("opens");
    OwnedDevice::open(&file.0, read_only).expect("readers share");
    assert!(in_use(OpenOptions::default()));
    drop(reader);
    file.open();
}

#[test]
fn what_is_open_is_told_from_what_took_its_place() {
    let file = TempFile::sparse();
    let owned = file.open();
    assert!(owned.is_at(&file.0));
    let other = TempFile::sparse();
    assert!(!owned.is_at(&other.0));
    fs::rename(&other.0, &file.0).expect("replaces it");
    assert!(!owned.is_at(&file.0) && !owned.is_at(&other.0), "also where nothing is");
    assert!(file.open().is_at(&file.0));
}

#[test]
fn what_cannot_be_a_device_is_refused_with_the_reason() {
    let open = |path: &Path| OwnedDevice::open(path, OpenOptions::default()).expect_err("refused");
    let missing = PathBuf::from("/nonexistent/device");
    assert_eq!(open(&missing), OpenError::Missing { path: missing });
    let directory = std::env::temp_dir();
    assert_eq!(open(&directory), OpenError::WrongKind { path: directory });
    let file = TempFile::new();
    fs::write(&file.0, b"short").expect("writes");
    assert_eq!(open(&file.0), OpenError::TooSmall { path: file.0.clone(), bytes: 5 });
    let exists = create_sparse(&file.0, 4096).err();
    assert_eq!(exists, Some(OpenError::Exists { path: file.0.clone() }));
    let bad = create_sparse(&file.0, 4097).err();
    assert_eq!(bad, Some(OpenError::BadSize { path: file.0.clone(), bytes: 4097 }));
}

#[test]
fn the_end_of_a_file_that_is_no_whole_block_is_left_alone_with_a_warning() {
    let file = TempFile::new();
    fs::write(&file.0, vec![0; 2 * BLOCK_SIZE + 100]).expect("writes");
    let owned = file.open();
    assert_eq!(owned.limits().blocks, 2);
    assert!(owned.warnings().contains(&DeviceWarning::PartialBlock { bytes: 100 }));
}

#[test]
fn the_flush_policy_decides_over_the_device() {
    let file = TempFile::sparse();
    let options = OpenOptions { flush: FlushPolicy::Never, ..OpenOptions::default() };
    let owned = OwnedDevice::open(&file.0, options).expect("opens");
    assert!(!owned.limits().volatile_cache);
    run(move |handle| async move { owned.attach(&handle).flush().await.expect("nothing to do") });
}

#[test]
fn cores_share_a_device() {
    let file = TempFile::sparse();
    let owned = file.open();
    let cores: Vec<_> = (0..2)
        .map(|core| {
            let owned = owned.clone();
            let start = spawn_thread(CoreConfig::default(), move |handle| async move {
                let device = owned.attach(&handle);
                let data = filled(1, core + 1).into_slice();
                device.write(Pba(u64::from(core)), data).await.expect("writes");
            });
            start.expect("starts")
        })
        .collect();
    cores.into_iter().for_each(|core| core.join().expect("no panic"));
    run(move |handle| async move {
        let device = owned.attach(&handle);
        let read = device.read(Pba(0), Buffer::new(2)).await.expect("reads");
        assert_eq!((read.as_bytes()[0], read.as_bytes()[BLOCK_SIZE]), (1, 2));
    });
}

/// A loop device over a file, taken down when dropped.
struct LoopDevice {
    path: PathBuf,
    file: PathBuf,
}

impl LoopDevice {
    /// `None` where this process may not make one.
    fn new(len: u64) -> Option<Self> {
        let name = format!("farflash-loop-test-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        create_sparse(&file, len).expect("creates");
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        let path = made
            .ok()
            .filter(|made| made.status.success())
            .map(|made| PathBuf::from(String::from_utf8(made.stdout).expect("a path").trim()));
        if path.is_none() {
            std::fs::remove_file(&file).expect("removes");
        }
        path.map(|path| Self { path, file })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
        let _ = std::fs::remove_file(&self.file);
    }
}

#[test]
fn a_block_device_is_read_written_discarded_and_locked() {
    let Some(device) = LoopDevice::new(8 << 20) else {
        return skipped("this process may not make a loop device");
    };
    let path = device.path.clone();
    let owned = OwnedDevice::open(&path, OpenOptions::default()).expect("opens");
    let again = OwnedDevice::open(&path, OpenOptions::default()).err();
    assert_eq!(again, Some(OpenError::InUse { path: path.clone() }));
    run(move |handle| async move {
        let device = owned.attach(&handle);
        let last = Pba(device.limits().blocks - 1);
        for pba in [Pba(0), last] {
            device.write(pba, filled(1, 0x5A).into_slice()).await.expect("writes");
            device.flush().await.expect("flushes");
            let read = device.read(pba, Buffer::new(1)).await.expect("reads");
            assert!(read.as_bytes().iter().all(|byte| *byte == 0x5A));
        }
        let all = PbaRange::new(Pba(0), device.limits().blocks);
        device.discard(all).await.expect("discards");
        device.read(last, Buffer::new(1)).await.expect("still reads");
    });
}
