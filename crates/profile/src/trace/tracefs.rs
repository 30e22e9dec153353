//! One instance of the kernel's tracer.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::decode::{Decoder, EVENTS, EventSpec};
use super::format::{Format, FormatError};
use super::kept::Kept;
use super::page::Page;

/// Buffer of a CPU, and of all together.
const BUFFER_KIB: usize = 8 << 10;
const BUFFERS_KIB: usize = 512 << 10;
/// Larger than any page of the buffer.
const READ_LEN: usize = 64 << 10;
/// Instances of ours begin so; the process number follows.
const PREFIX: &str = "farflash-profile-";

/// The tracer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TracerError {
    /// The kernel's trace files cannot be reached.
    #[error("the kernel's tracer needs root (CAP_SYS_ADMIN): {0}")]
    Refused(std::io::Error),
    /// The kernel has no tracer.
    #[error("this kernel has no tracefs: {0}")]
    NoTracefs(std::io::Error),
    /// An event is missing.
    #[error("this kernel has no event {0}")]
    NoEvent(&'static str),
    /// A file could not be used.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
    /// A description of an event cannot be read.
    #[error("{path}: {error}")]
    Format {
        /// The event.
        path: &'static str,
        /// The error.
        error: FormatError,
    },
}

/// A tracer that runs. Its instance is removed when it is dropped.
#[derive(Debug)]
pub struct Tracer {
    instance: PathBuf,
    pipes: Vec<(u32, File)>,
    /// Events that this kernel does not have.
    missing: Vec<&'static str>,
    /// The mount, if it is ours alone.
    _mount: Option<OwnedFd>,
}

impl Tracer {
    /// Starts an instance, and prepares for what it writes.
    pub fn start() -> Result<(Self, Decoder), TracerError> {
        let (root, mount) = tracefs()?;
        remove_abandoned(&root.join("instances"));
        let instance = root.join("instances").join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&instance).map_err(|error| refused_or(&instance, error))?;
        let mut tracer = Self { instance, pipes: Vec::new(), missing: Vec::new(), _mount: mount };
        let decoder = tracer.prepare()?;
        Ok((tracer, decoder))
    }

    /// Events that this kernel does not have, and without which some causes cannot be seen.
    #[must_use]
    pub fn missing(&self) -> &[&'static str] {
        &self.missing
    }

    fn prepare(&mut self) -> Result<Decoder, TracerError> {
        self.write("tracing_on", "0")?;
        self.write("trace_clock", "mono")?;
        let cpus = cpus(&self.instance)?;
        let kib = BUFFER_KIB.min(BUFFERS_KIB / cpus.len().max(1)).max(256);
        self.write("buffer_size_kb", &kib.to_string())?;
        let mut formats = Vec::new();
        for spec in EVENTS {
            match self.switch_on(spec)? {
                Some(format) => formats.push((*spec, format)),
                None => self.missing.push(spec.path),
            }
        }
        let (decoder, left_out) = Decoder::new(&formats);
        self.missing.extend(left_out);
        let is_needed =
            |path: &&&str| EVENTS.iter().any(|spec| spec.path == **path && spec.is_needed);
        if let Some(path) = self.missing.iter().find(is_needed) {
            return Err(TracerError::NoEvent(path));
        }
        for cpu in cpus {
            let path = self.instance.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
            let flags = OFlags::NONBLOCK.bits() as i32;
            let file = OpenOptions::new().read(true).custom_flags(flags).open(&path);
            self.pipes.push((cpu, file.map_err(|error| TracerError::Io { path, error })?));
        }
        self.write("tracing_on", "1")?;
        Ok(decoder)
    }

    fn switch_on(&self, spec: &EventSpec) -> Result<Option<Format>, TracerError> {
        let folder = self.instance.join("events").join(spec.path);
        let Ok(text) = fs::read_to_string(folder.join("format")) else { return Ok(None) };
        let format =
            Format::parse(&text).map_err(|error| TracerError::Format { path: spec.path, error })?;
        self.write(&format!("events/{}/enable", spec.path), "1")?;
        Ok(Some(format))
    }

    fn write(&self, file: &str, text: &str) -> Result<(), TracerError> {
        let path = self.instance.join(file);
        fs::write(&path, text).map_err(|error| TracerError::Io { path, error })
    }

    /// Moves all that was traced until now into `kept`.
    pub fn drain(&mut self, kept: &mut Kept) {
        let mut buffer = vec![0; READ_LEN];
        for (cpu, pipe) in &mut self.pipes {
            // An error is the end of what there is: nothing more comes now, and lost pages show by their flags.
            while let Ok(len) = pipe.read(&mut buffer)
                && len > 0
            {
                if let Some(page) = Page::new(&buffer[..len]) {
                    kept.push(*cpu, page);
                }
            }
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.pipes.clear();
        // If it cannot be removed now, the next run removes it.
        let _ = fs::remove_dir(&self.instance);
    }
}

/// The mounted tracefs; or one that is mounted for this process alone and leaves no trace behind.
fn tracefs() -> Result<(PathBuf, Option<OwnedFd>), TracerError> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounted = mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (place, kind) = (words.nth(1)?, words.next()?);
        (kind == "tracefs").then(|| PathBuf::from(place))
    });
    if let Some(root) = mounted {
        return Ok((root, None));
    }
    let made = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC).and_then(|context| {
        fsconfig_create(&context)?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    });
    match made {
        Ok(mount) => {
            Ok((PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd())), Some(mount)))
        }
        Err(rustix::io::Errno::PERM) => Err(TracerError::Refused(rustix::io::Errno::PERM.into())),
        Err(error) => Err(TracerError::NoTracefs(error.into())),
    }
}

fn refused_or(path: &Path, error: std::io::Error) -> TracerError {
    match error.kind() {
        ErrorKind::PermissionDenied => TracerError::Refused(error),
        _ => TracerError::Io { path: path.to_owned(), error },
    }
}

/// Removes instances of processes that ended without doing so.
fn remove_abandoned(instances: &Path) {
    let Ok(entries) = fs::read_dir(instances) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn cpus(instance: &Path) -> Result<Vec<u32>, TracerError> {
    let path = instance.join("per_cpu");
    let entries = fs::read_dir(&path).map_err(|error| refused_or(&path, error))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut cpus: Vec<u32> =
        names.filter_map(|name| name.strip_prefix("cpu")?.parse().ok()).collect();
    cpus.sort_unstable();
    Ok(cpus)
}
