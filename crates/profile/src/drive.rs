//! A drive, opened for direct reads alone, or reached by other means.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, SeekFrom, fstat, open, seek};
use rustix::io::{Errno, pread};

use crate::reader::{Read, Reader};

/// Length of a read, and the alignment of all.
pub(crate) const BLOCK: usize = 4096;
/// Sectors in which the kernel counts the space that a file has.
const SECTOR: u64 = 512;
/// Major number of loop devices.
const LOOP_MAJOR: u32 = 7;

/// A drive or file that can be read.
#[derive(Debug)]
pub struct Drive {
    path: PathBuf,
    way: Way,
    bytes: u64,
    model: Option<String>,
    notes: Vec<String>,
}

/// The way to a drive.
#[derive(Debug)]
enum Way {
    File(OwnedFd),
    Other(Box<dyn Source>),
}

/// A drive that is no file of this host, such as a volume of a Flash server.
pub trait Source: fmt::Debug + Send + Sync {
    /// Reads by `reader` until its end. The thread that calls this is pinned, and has its priority.
    ///
    /// # Errors
    /// The drive cannot be reached.
    fn run(&self, reader: Reader) -> io::Result<Read>;
}

/// A drive that cannot be profiled.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// It cannot be opened.
    #[error("{} cannot be opened: {error}", .path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// It is something else.
    #[error("{} is neither a block device nor a file", .path.display())]
    NoDrive {
        /// The path.
        path: PathBuf,
    },
    /// Its file system has no direct reads.
    #[error("{} cannot be read past the page cache: its file system refuses O_DIRECT", .path.display())]
    NoDirect {
        /// The path.
        path: PathBuf,
    },
    /// It is too small.
    #[error("{} has {bytes} bytes: less than was asked for, or less than a block of 4 KiB", .path.display())]
    Small {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
}

impl Drive {
    /// Opens `path` for reading. `size`: the part from the beginning that is read; all if absent.
    pub fn open(path: &Path, size: Option<u64>) -> Result<Self, DriveError> {
        let owned = || path.to_owned();
        let opened = |error: Errno| DriveError::Open { path: owned(), error: error.into() };
        // A first look without O_DIRECT, since what is no drive refuses it for other reasons.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let looked = open(path, flags, Mode::empty()).map_err(opened)?;
        let stat = fstat(&looked).map_err(opened)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::BlockDevice | FileType::RegularFile) {
            return Err(DriveError::NoDrive { path: owned() });
        }
        drop(looked);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT;
        let file = open(path, flags, Mode::empty()).map_err(|error| match error {
            Errno::INVAL => DriveError::NoDirect { path: owned() },
            error => opened(error),
        })?;
        let there = seek(&file, SeekFrom::End(0)).map_err(opened)?;
        let bytes = size.unwrap_or(there);
        if bytes > there || bytes < BLOCK as u64 {
            return Err(DriveError::Small { path: owned(), bytes: there });
        }
        let is_file = kind == FileType::RegularFile;
        let mut notes = Vec::new();
        if is_file && stat.st_blocks as u64 * SECTOR < stat.st_size as u64 {
            notes.push(format!(
                "{}: the file has holes, which are read without the drive",
                path.display()
            ));
        }
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        if !is_file && major == LOOP_MAJOR {
            let note = "a loop device: its time as a drive includes a worker of the kernel";
            notes.push(format!("{}: {note}", path.display()));
        }
        let model = if is_file { None } else { model(major, minor) };
        let (way, bytes) = (Way::File(file), bytes - bytes % BLOCK as u64);
        Ok(Self { path: owned(), way, bytes, model, notes })
    }

    /// The drive called `name` that `source` reads.
    #[must_use]
    pub fn other(name: &str, bytes: u64, source: Box<dyn Source>) -> Self {
        let (path, way) = (PathBuf::from(name), Way::Other(source));
        Self { path, way, bytes: bytes - bytes % BLOCK as u64, model: None, notes: Vec::new() }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the part that is read.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its model, if the kernel knows it.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Remarks that belong to its figures.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// True if it is no block device or file of this host.
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self.way, Way::Other(_))
    }

    /// Reads by `reader` until its end.
    pub(crate) fn run(&self, reader: Reader) -> io::Result<Read> {
        let file = match &self.way {
            Way::File(file) => file,
            Way::Other(source) => return source.run(reader),
        };
        let mut memory = vec![0u8; 2 * BLOCK];
        let begin = memory.as_ptr().align_offset(BLOCK);
        let block = &mut memory[begin..begin + BLOCK];
        Ok(reader.run_at_once(|offset| match pread(file, &mut *block, offset) {
            Ok(len) if len == block.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error.into()),
        }))
    }
}

fn model(major: u32, minor: u32) -> Option<String> {
    let device = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    // Of a partition, the drive is one folder up.
    let places = [device.join("device/model"), device.join("../device/model")];
    let text = places.iter().find_map(|place| std::fs::read_to_string(place).ok())?;
    Some(text.trim().to_owned()).filter(|model| !model.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_drive_is_refused_by_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("short");
        std::fs::write(&path, [0; 100]).unwrap();
        let refused = |path: &Path, size| Drive::open(path, size).unwrap_err().to_string();
        assert!(refused(folder.path(), None).contains("neither a block device nor a file"));
        assert!(refused(Path::new("/dev/null"), None).contains("neither a block device"));
        assert!(refused(&folder.path().join("absent"), None).contains("cannot be opened"));
        let short = refused(&path, None);
        assert!(short.contains("100 bytes") || short.contains("O_DIRECT"), "{short}");
    }
}
