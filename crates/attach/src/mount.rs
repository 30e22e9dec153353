//! The file while it is attached.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{BackgroundSession, Config, INodeNo, MountOption, Notifier, Session};

use crate::backing::Backing;
use crate::engine::{Engine, Trouble};
use crate::fs::{REQUEST_BYTES_MAX, VolumeFs};
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
}

/// Mounts `backing`, of `size` bytes, over the file at `path`. `on_trouble` is told of requests that fail, on the
/// thread that carries out requests.
pub fn mount<B: Backing>(
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
    let engine = Engine::new(backing, size, limits, Box::new(on_trouble));
    let background = u16::try_from(limits.requests).unwrap_or(u16::MAX);
    let fs = VolumeFs { engine: engine.clone(), owner, time, background };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(source),
        MountOption::DefaultPermissions,
        MountOption::NoExec,
        MountOption::NoAtime,
    ];
    config.n_threads = Some(THREADS);
    let session = Session::new(fs, path, &config).and_then(Session::spawn);
    Ok(Mounted { session: session.map_err(MountError::Mount)?, engine })
}

impl<B: Backing> Mounted<B> {
    /// A handle to it for other threads.
    #[must_use]
    pub fn handle(&self) -> Handle<B> {
        Handle { engine: self.engine.clone(), notifier: self.session.notifier() }
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
}

impl<B> Clone for Handle<B> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone(), notifier: self.notifier.clone() }
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
}
