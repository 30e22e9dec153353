//! The file while it is attached.

use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use fuser::{BackgroundSession, Config, INodeNo, MountOption, Notifier, Session};

use crate::backing::{Attend, Backing};
use crate::engine::{Engine, Trouble};
use crate::file::File;
use crate::fs::{REQUEST_BYTES_MAX, VolumeFs};
use crate::ring::{NoRing, Served};
use crate::window::{Limits, Progress};

/// Threads that read requests from the kernel: the second starts requests while the first is woken or copies.
const THREADS: usize = 2;

/// Options of a file.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bounds of what is under way.
    pub limits: Limits,
    /// User and group that own the file.
    pub owner: (u32, u32),
    /// Now: the file's time.
    pub time: SystemTime,
    /// Source that the list of mounts shows.
    pub source: String,
}

/// Why a volume cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The longest request does not fit.
    #[error("{given} bytes of memory are less than one request of {REQUEST_BYTES_MAX} bytes takes")]
    Memory {
        /// The memory given.
        given: usize,
    },
    /// The kernel or `fusermount3` refused.
    #[error("the file system cannot be mounted: {0}")]
    Mount(io::Error),
}

/// An attached volume. It goes with this, if no process uses it.
pub struct Mounted<B> {
    session: BackgroundSession,
    engine: Arc<Engine<B>>,
    requests: Result<Served, NoRing>,
}

/// Mounts `backing`, of `size` bytes, over the file at `path`. `on_trouble` is told of requests that fail, on the
/// thread that carries out requests.
pub fn mount<B: Backing + Attend>(
    backing: B,
    size: u64,
    path: &Path,
    options: Options,
    on_trouble: impl Fn(&Trouble) + Send + Sync + 'static,
) -> Result<Mounted<B>, MountError> {
    let Options { limits, owner, time, source } = options;
    if limits.bytes < REQUEST_BYTES_MAX as usize {
        return Err(MountError::Memory { given: limits.bytes });
    }
    let block = backing.block_size();
    let engine = Engine::new(backing, size, limits, Box::new(on_trouble));
    let file = Arc::new(File { engine: engine.clone(), owner, time });
    let ring = Arc::new(Mutex::new(Err(NoRing::NotOffered)));
    let fs = VolumeFs { file: file.clone(), limits, block, ring: ring.clone() };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(source),
        MountOption::DefaultPermissions,
        MountOption::NoExec,
        MountOption::NoAtime,
    ];
    config.n_threads = Some(THREADS);
    let session = Session::new(fs, path, &config).map_err(MountError::Mount)?;
    let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
    let requests = match mem::replace(&mut *ring, Err(NoRing::NotOffered)) {
        Ok(ring) => {
            let device = session.as_fd().try_clone_to_owned().map_err(MountError::Mount)?;
            // Until the kernel has the slots it holds requests back.
            let served = ring.serve(device, file);
            Ok(served.map_err(|error| MountError::Mount(io::Error::other(error)))?)
        }
        Err(why) => Err(why),
    };
    // With a ring its threads get what the kernel sends by `/dev/fuse` alone: it is of no concern here.
    let session = session.spawn().map_err(MountError::Mount)?;
    Ok(Mounted { session, engine, requests })
}

impl<B: Backing> Mounted<B> {
    /// A handle to it for other threads.
    #[must_use]
    pub fn handle(&self) -> Handle<B> {
        Handle {
            engine: self.engine.clone(),
            notifier: self.session.notifier(),
            ring: self.requests.as_ref().ok().cloned(),
        }
    }

    /// Returns why its requests come by `/dev/fuse`, if not by io_uring.
    #[must_use]
    pub fn no_ring(&self) -> Option<&NoRing> {
        self.requests.as_ref().err()
    }

    /// Waits until it is unmounted.
    pub fn wait(self) -> io::Result<()> {
        self.session.join()
    }
}

/// A way to an attached volume. Cheap to clone.
pub struct Handle<B> {
    engine: Arc<Engine<B>>,
    notifier: Notifier,
    ring: Option<Served>,
}

impl<B> Clone for Handle<B> {
    fn clone(&self) -> Self {
        let Self { engine, notifier, ring } = self;
        Self { engine: engine.clone(), notifier: notifier.clone(), ring: ring.clone() }
    }
}

impl<B: Backing> Handle<B> {
    /// Takes over the size that the volume has now; true if it is another. The kernel is told of it.
    pub fn resize(&self, size: u64) -> io::Result<bool> {
        if !self.engine.resize(size) {
            return Ok(false);
        }
        // A negative offset: attributes only. No data is in the page cache.
        self.notifier.inval_inode(INodeNo::ROOT, -1, 0).map(|()| true)
    }

    /// Counts of requests.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.engine.progress()
    }

    /// Returns the kernel's error number if it did not take the memory for requests by io_uring that it had offered. They
    /// come by `/dev/fuse` then.
    #[must_use]
    pub fn ring_failure(&self) -> Option<i32> {
        self.ring.as_ref().and_then(Served::failure)
    }
}
