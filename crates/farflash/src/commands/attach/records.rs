//! The list of what is attached: a record for each volume, in a directory.
//!
//! - RECORD-1: the process that serves a file holds the lock of its record. The kernel releases it however the process
//!   ends, so a record without a lock is one of a process that was killed.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use user_messages::Failure;

/// The directory of root. That of a server's unit goes when the server stops.
const OF_ROOT: &str = "/run/farflash-attach";
/// Below the directory; no volume has a name that begins with a dot.
const RECORDS: &str = ".attached";
/// Times that a lock is tried for. A command that lists records holds one for a moment.
const LOCK_TRIES: u32 = 30;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// More is no record.
const RECORD_BYTES_MAX: u64 = 64 << 10;

#[derive(Clone, Debug, Args)]
pub(crate) struct StateArgs {
    /// Directory of the list of what is attached, and of files without a --path
    /// [default: /run/farflash-attach for root, otherwise $XDG_RUNTIME_DIR/farflash-attach]
    #[arg(long, env = "FARFLASH_ATTACH_DIR", value_name = "DIRECTORY")]
    state_dir: Option<PathBuf>,
}

impl StateArgs {
    pub(crate) fn directory(&self) -> Result<StateDirectory, Failure> {
        if let Some(given) = &self.state_dir {
            return Ok(StateDirectory(given.clone()));
        }
        if rustix::process::geteuid().is_root() {
            return Ok(StateDirectory(PathBuf::from(OF_ROOT)));
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty());
        runtime.map(|base| StateDirectory(Path::new(&base).join("farflash-attach"))).ok_or_else(
            || {
                let what = "there is no directory for the list of what is attached: \
                            XDG_RUNTIME_DIR is not set";
                Failure::usage(what, "set it, or name a directory of yours with --state-dir")
            },
        )
    }
}

/// An attached volume, as other commands find it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Record {
    /// The name by which it was attached.
    pub(crate) volume: String,
    /// Its id, for life.
    pub(crate) id: String,
    pub(crate) path: PathBuf,
    pub(crate) process: u32,
    pub(crate) size_bytes: u64,
    /// The file below the mount was made for it.
    pub(crate) made_file: bool,
    /// Since when requests wait for the server, in seconds since 1970.
    pub(crate) waits_since: Option<u64>,
    /// Requests come from the kernel by io_uring, and not by /dev/fuse.
    #[serde(default)]
    pub(crate) by_ring: bool,
}

/// A record, and whether a process serves its file.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) record: Record,
    pub(crate) is_alive: bool,
    file: PathBuf,
}

impl Entry {
    /// Returns true if this is what a person means by `given`, a name, an id or an absolute path.
    pub(crate) fn is(&self, given: &str, path: Option<&Path>) -> bool {
        let Record { volume, id, path: own, .. } = &self.record;
        volume == given || id == given || path == Some(own)
    }

    /// Forgets it. The file that was made for it goes, too, if it is no mount.
    pub(crate) fn forget(&self) {
        self.record.remove_file();
        let _ = fs::remove_file(&self.file);
        let _ = fs::remove_file(self.file.with_extension("log"));
    }

    /// Returns true if a process serves it now.
    pub(crate) fn is_served(&self) -> bool {
        File::open(&self.file).is_ok_and(|file| is_locked(&file))
    }
}

impl Record {
    /// Removes the file below the mount, if it was made for it and is as it was made.
    pub(crate) fn remove_file(&self) {
        let is_empty = || fs::metadata(&self.path).is_ok_and(|it| it.is_file() && it.len() == 0);
        if self.made_file && is_empty() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The directory of the list.
#[derive(Clone, Debug)]
pub(crate) struct StateDirectory(PathBuf);

impl StateDirectory {
    pub(crate) fn make(&self) -> Result<(), Failure> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(self.records());
        made.map_err(|error| {
            let what = format!("{} cannot be made: {error}", self.0.display());
            Failure::runtime(what, "name a directory of yours with --state-dir")
        })
    }

    /// The file of a volume for which no path was given.
    pub(crate) fn file_of(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The log of the process that serves a volume.
    pub(crate) fn log_of(&self, id: &str) -> PathBuf {
        self.records().join(file_name(id)).with_extension("log")
    }

    /// All records, by name. What cannot be read is left out: it is being written, or another user's.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let Ok(files) = fs::read_dir(self.records()) else { return Vec::new() };
        let files = files.map_while(Result::ok).map(|file| file.path());
        let records = files.filter(|file| file.extension().is_some_and(|kind| kind == "json"));
        let mut entries: Vec<Entry> = records.filter_map(entry).collect();
        entries.sort_by(|one, other| one.record.volume.cmp(&other.record.volume));
        entries
    }

    /// Takes the record of a volume: none if another process has it. What a killed process left in it is in `entries`.
    pub(crate) fn hold(&self, id: &str) -> io::Result<Option<Held>> {
        let path = self.records().join(format!("{}.json", file_name(id)));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        for _ in 0..LOCK_TRIES {
            let file = options.open(&path)?;
            match file.try_lock() {
                // A process that ended meanwhile may have removed the file that was locked.
                Ok(()) if is_at(&file, &path) => return Ok(Some(Held { file, path })),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }

    fn records(&self) -> PathBuf {
        self.0.join(RECORDS)
    }
}

/// A record that this process holds (RECORD-1).
#[derive(Debug)]
pub(crate) struct Held {
    file: File,
    path: PathBuf,
}

impl Held {
    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        let text = serde_json::to_vec(record).map_err(io::Error::other)?;
        self.file.write_all_at(&text, 0)?;
        self.file.set_len(text.len() as u64)
    }

    /// The volume is not attached any more.
    pub(crate) fn remove(self) {
        let _ = fs::remove_file(self.path.with_extension("log"));
        let _ = fs::remove_file(self.path);
    }
}

fn entry(file: PathBuf) -> Option<Entry> {
    let mut text = Vec::new();
    let opened = File::open(&file).ok()?;
    let is_alive = is_locked(&opened);
    opened.take(RECORD_BYTES_MAX).read_to_end(&mut text).ok()?;
    let record = serde_json::from_slice(&text).ok()?;
    Some(Entry { record, is_alive, file })
}

fn is_locked(file: &File) -> bool {
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(file), Ok(there)) = (file.metadata(), fs::metadata(path)) else { return false };
    (file.dev(), file.ino()) == (there.dev(), there.ino())
}

/// Returns an id as the name of a file. An id that is a whole NQN has characters that a name may not have.
fn file_name(id: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
    id.chars().map(|c| if fits(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(path: &Path) -> Record {
        Record {
            volume: "db-1".to_owned(),
            id: "6c7a9f2e".to_owned(),
            path: path.to_owned(),
            process: 7,
            size_bytes: 1 << 30,
            made_file: true,
            waits_since: None,
            by_ring: false,
        }
    }

    /// RECORD-1. Method: a record is written, its lock dropped as by a process that was killed, and taken again.
    #[test]
    fn a_record_is_alive_as_long_as_it_is_held() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory(directory.path().join("state"));
        assert!(state.entries().is_empty());
        state.make().unwrap();
        let (file, id) = (directory.path().join("file"), "6c7a9f2e");
        File::create(&file).unwrap();
        let held = state.hold(id).unwrap().expect("it is free");
        assert!(state.entries().is_empty(), "nothing is in it yet");
        held.write(&Record { volume: "a-longer-name".to_owned(), ..record(&file) }).unwrap();
        held.write(&record(&file)).unwrap();
        assert!(state.hold(id).unwrap().is_none());
        let alive = state.entries().remove(0);
        assert!(alive.is_alive && alive.is_served());
        for given in ["db-1", id] {
            assert!(alive.is(given, None), "{given}");
        }
        assert!(alive.is("file", Some(&file)) && !alive.is("db-2", Some(directory.path())));
        drop(held);
        let dead = state.entries().remove(0);
        assert!(!dead.is_alive && !dead.is_served());
        state.hold(id).unwrap().expect("it is free again");
        dead.forget();
        assert!(state.entries().is_empty() && !file.exists());
    }

    #[test]
    fn a_file_with_data_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "data").unwrap();
        record(&file).remove_file();
        assert!(file.exists());
    }
}
