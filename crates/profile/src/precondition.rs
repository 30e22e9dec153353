//! Brings drives into the state in which they are measured: all blocks written, then random writes until their latency is
//! steady. What the drives held is lost.
//!
//! The order is that of SNIA's performance test specification: twice the capacity in sequence by 128 KiB, then rounds of
//! random writes of 4 KiB. Nothing here runs unless a caller makes a [`Preconditioning`]; see PROFILE-1.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use random::Rng;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, fstat, open, seek};
use rustix::io::{Errno, pwrite};

use crate::clock;
use crate::drive::BLOCK;
use crate::steady::Window;

/// Length of a write in sequence.
const CHUNK: usize = 128 << 10;
/// Passes over the whole drive.
const PASSES: u64 = 2;
/// Rounds after which a drive is taken as it is.
pub const ROUNDS_MAX: usize = 25;
/// Time between two looks at the progress.
const LOOK: Duration = Duration::from_millis(100);

/// Drives that are to be overwritten.
#[derive(Clone, Debug)]
pub struct Preconditioning {
    /// Their paths.
    pub drives: Vec<PathBuf>,
    /// The part of each from its beginning; all if absent.
    pub size: Option<u64>,
    /// Length of a round.
    pub round: Duration,
    /// Seed of places and contents.
    pub seed: u64,
    /// Ends it early once it is true.
    pub stop: Arc<AtomicBool>,
}

/// A drive that was overwritten.
#[derive(Clone, Debug, PartialEq)]
pub struct Preconditioned {
    /// Its path.
    pub path: PathBuf,
    /// False if it was ended early.
    pub is_overwritten: bool,
    /// Mean latency of the writes of each round, in ns.
    pub rounds_ns: Vec<f64>,
    /// The last rounds, if there were enough.
    pub window: Option<Window>,
}

/// A drive that cannot be overwritten, or not to the end.
#[derive(Debug, thiserror::Error)]
pub enum PreconditionError {
    /// It cannot be opened for writing.
    #[error("{} cannot be opened for writing: {error}", .path.display())]
    Open {
        /// The drive.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// It is mounted, part of an array, or served.
    #[error("{} is in use: it is mounted, part of another device, or served", .path.display())]
    InUse {
        /// The drive.
        path: PathBuf,
    },
    /// It is neither a block device nor a file with a block.
    #[error("{} is neither a block device nor a file of 4 KiB or more", .path.display())]
    NoDrive {
        /// The drive.
        path: PathBuf,
    },
    /// A write failed.
    #[error("{} cannot be written at {offset}: {error}", .path.display())]
    Write {
        /// The drive.
        path: PathBuf,
        /// The place in bytes.
        offset: u64,
        /// The error.
        error: io::Error,
    },
    /// The kernel starts no thread.
    #[error("no thread can be started: {0}")]
    Thread(io::Error),
}

impl Preconditioning {
    /// Overwrites the drives, all at once. All are opened before anything is written. `tell` gets the bytes that were
    /// written in sequence, and those that are to be.
    ///
    /// # Errors
    /// A drive cannot be used, which is found before the first write, or failed.
    pub fn run(
        &self,
        mut tell: impl FnMut(u64, u64),
    ) -> Result<Vec<Preconditioned>, PreconditionError> {
        let opened = self.drives.iter().map(|path| Target::open(path, self.size));
        let targets = opened.collect::<Result<Vec<Target>, _>>()?;
        let all = targets.iter().map(|target| target.bytes * PASSES).sum();
        let written = Arc::new(AtomicU64::new(0));
        let failed = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (index, target) in targets.into_iter().enumerate() {
            let (plan, count, end) = (self.clone(), written.clone(), failed.clone());
            let work = move || {
                let outcome = target.overwrite(&plan, index as u64, &count, &end);
                end.fetch_or(outcome.is_err(), Ordering::Relaxed);
                outcome
            };
            let thread = std::thread::Builder::new().name(format!("precondition-{index}"));
            match thread.spawn(work) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // The threads before it must not go on behind the caller's back.
                    failed.store(true, Ordering::Relaxed);
                    threads.into_iter().for_each(|thread| drop(thread.join()));
                    return Err(PreconditionError::Thread(error));
                }
            }
        }
        while threads.iter().any(|thread| !thread.is_finished()) {
            tell(written.load(Ordering::Relaxed), all);
            std::thread::sleep(LOOK);
        }
        let join = |thread: std::thread::JoinHandle<_>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    }
}

/// A drive that is open for writing, by this process alone.
struct Target {
    path: PathBuf,
    file: OwnedFd,
    bytes: u64,
}

impl Target {
    fn open(path: &Path, size: Option<u64>) -> Result<Self, PreconditionError> {
        let owned = || path.to_owned();
        let failed = |error: Errno| match error {
            Errno::BUSY => PreconditionError::InUse { path: owned() },
            error => PreconditionError::Open { path: owned(), error: error.into() },
        };
        // Without O_CREAT, O_EXCL asks the kernel whether a block device has another user. Files know no such thing.
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::DIRECT | OFlags::EXCL;
        let file = open(path, flags, Mode::empty()).map_err(failed)?;
        let stat = fstat(&file).map_err(failed)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let there = seek(&file, SeekFrom::End(0)).map_err(failed)?;
        let bytes = size.map_or(there, |size| size.min(there)) / BLOCK as u64 * BLOCK as u64;
        if !matches!(kind, FileType::BlockDevice | FileType::RegularFile) || bytes == 0 {
            return Err(PreconditionError::NoDrive { path: owned() });
        }
        Ok(Self { path: owned(), file, bytes })
    }

    fn overwrite(
        &self,
        plan: &Preconditioning,
        index: u64,
        written: &AtomicU64,
        failed: &AtomicBool,
    ) -> Result<Preconditioned, PreconditionError> {
        let mut rng = Rng::of_stream(plan.seed, index);
        let mut memory = vec![0u8; CHUNK + BLOCK];
        let begin = memory.as_ptr().align_offset(BLOCK);
        let chunk = &mut memory[begin..begin + CHUNK];
        // Drives that compress must not find anything to compress.
        chunk
            .chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
        let is_over = || plan.stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed);
        for _ in 0..PASSES {
            let mut offset = 0;
            while offset < self.bytes && !is_over() {
                let length = (self.bytes - offset).min(CHUNK as u64);
                self.write(&chunk[..length as usize], offset)?;
                offset += length;
                written.fetch_add(length, Ordering::Relaxed);
            }
        }
        let is_overwritten = !is_over();
        let mut rounds_ns = Vec::new();
        let mut window = None;
        while rounds_ns.len() < ROUNDS_MAX && !is_over() {
            let (mut count, mut sum_ns) = (0u64, 0u64);
            let end_ns = clock::now_ns() + plan.round.as_nanos() as u64;
            while (count == 0 || clock::now_ns() < end_ns) && !is_over() {
                let offset = rng.below(self.bytes / BLOCK as u64) * BLOCK as u64;
                let before_ns = clock::now_ns();
                self.write(&chunk[..BLOCK], offset)?;
                sum_ns += clock::now_ns() - before_ns;
                count += 1;
            }
            rounds_ns.push(sum_ns as f64 / count.max(1) as f64);
            window = Window::last(&rounds_ns);
            if window.is_some_and(|window| window.is_steady()) {
                break;
            }
        }
        Ok(Preconditioned { path: self.path.clone(), is_overwritten, rounds_ns, window })
    }

    fn write(&self, mut bytes: &[u8], mut offset: u64) -> Result<(), PreconditionError> {
        let failed = |offset, error: io::Error| PreconditionError::Write {
            path: self.path.clone(),
            offset,
            error,
        };
        while !bytes.is_empty() {
            match pwrite(&self.file, bytes, offset) {
                Ok(0) => return Err(failed(offset, io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    bytes = &bytes[count..];
                    offset += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(offset, error.into())),
            }
        }
        Ok(())
    }
}

impl Preconditioned {
    /// Its outcome in words.
    #[must_use]
    pub fn note(&self) -> String {
        let path = self.path.display();
        let rounds = self.rounds_ns.len();
        match self.window {
            _ if !self.is_overwritten => format!("{path}: NOT overwritten to its end"),
            Some(window) if window.is_steady() => format!(
                "{path}: overwritten, and steady after {rounds} rounds of random writes (range {:.0} %, drift {:.0} %)",
                window.range * 100.0,
                window.drift.abs() * 100.0
            ),
            _ => format!(
                "{path}: overwritten, but NOT steady after {rounds} rounds of random writes"
            ),
        }
    }
}
