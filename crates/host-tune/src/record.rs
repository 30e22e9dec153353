//! The record of old values: what undo gives back.
//!
//! One JSON object a line, written and flushed before the setting is. A line that a crash has torn is
//! the last one, and its setting was not written yet.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::proposal::Form;
use crate::root::WriteLimit;

/// An old value.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The setting's name.
    pub setting: String,
    /// The part of the machine.
    pub subject: String,
    /// The path of its file, or the key of what has none.
    pub path: String,
    /// The notation of its file.
    pub form: Form,
    /// The bytes of the file before; `None` if there was none.
    pub before: Option<Vec<u8>>,
    /// The value that was applied.
    pub applied: String,
    /// The boot in which it was applied, if the machine tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// Milliseconds since that boot by which the value must be confirmed; `None` if it need not be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_by: Option<u64>,
}

impl Saved {
    /// True if the value was to be confirmed until `now`, in milliseconds since the boot, and was not.
    #[must_use]
    pub fn is_unconfirmed_at(&self, now: u64) -> bool {
        self.confirm_by.is_some_and(|by| by <= now)
    }

    /// True if a reboot between then and `boot` has taken the value back.
    #[must_use]
    pub fn is_of_earlier_boot(&self, boot: Option<&str>) -> bool {
        let is_volatile = self.form.is_of_program()
            || ["/sys/", "/proc/"].iter().any(|top| self.path.starts_with(top));
        is_volatile && self.boot.is_some() && boot.is_some() && self.boot.as_deref() != boot
    }
}

/// A record that cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It cannot be read or written.
    #[error("the record {} cannot be used", path.display())]
    Io {
        /// The record's file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        error: io::Error,
    },
    /// The process that undoes what is not confirmed could not be started, so nothing was changed.
    #[error("nothing was changed, as no process could be started that would undo it")]
    Guard {
        /// Why.
        #[source]
        error: io::Error,
    },
    /// Its content is not a record's, other than by a torn last line.
    #[error("{}, line {line}, is no record of old values: {error}", path.display())]
    Content {
        /// The record's file.
        path: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// The parser's words.
        error: String,
    },
}

/// The old values of one machine, in the order in which they were saved.
///
/// While it is open, no other process changes it: the directory that it is in is locked.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    saved: Vec<Saved>,
    writes: WriteLimit,
    lock: Option<File>,
}

impl Record {
    /// Opens the record at `path`, which need not be there yet. Waits for other processes that have it open.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn open(path: &Path, writes: &WriteLimit) -> Result<Self, RecordError> {
        let (path, writes) = (path.to_owned(), writes.clone());
        let mut record = Self { path, saved: Vec::new(), writes, lock: None };
        if let Err(error) = record.lock()
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(record.unusable(error));
        }
        if record.lock.is_some() {
            // A draft of a process that was killed.
            let _ = fs::remove_file(record.draft());
        }
        let text = match fs::read_to_string(&record.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(record.unusable(error)),
        };
        for (number, line) in text.split_inclusive('\n').enumerate() {
            match serde_json::from_str(line) {
                Ok(one) => record.saved.push(one),
                Err(_) if !line.ends_with('\n') => {}
                Err(error) => {
                    let (path, error) = (record.path, error.to_string());
                    return Err(RecordError::Content { path, line: number + 1, error });
                }
            }
        }
        Ok(record)
    }

    fn unusable(&self, error: io::Error) -> RecordError {
        RecordError::Io { path: self.path.clone(), error }
    }

    fn directory(&self) -> &Path {
        let directory = self.path.parent().filter(|path| !path.as_os_str().is_empty());
        directory.unwrap_or(Path::new("."))
    }

    fn draft(&self) -> PathBuf {
        self.path.with_extension("new")
    }

    /// Locks the directory, once. A file to lock would be one more that undo has to remove.
    fn lock(&mut self) -> io::Result<()> {
        if self.lock.is_some() {
            return Ok(());
        }
        let directory = File::open(self.directory())?;
        rustix::io::retry_on_intr(|| flock(&directory, FlockOperation::LockExclusive))?;
        self.lock = Some(directory);
        Ok(())
    }

    /// Old values, in the order in which they were saved.
    #[must_use]
    pub fn saved(&self) -> &[Saved] {
        &self.saved
    }

    /// The old value of `path`.
    #[must_use]
    pub fn of(&self, path: &str) -> Option<&Saved> {
        self.saved.iter().find(|saved| saved.path == path)
    }

    /// Saves old values durably (TUNE-1). The first value of a path stays: it is the one from before
    /// any apply.
    ///
    /// # Errors
    /// They cannot be written. Then no setting must be.
    pub fn save(&mut self, all: Vec<Saved>) -> Result<(), RecordError> {
        for saved in all {
            match self.saved.iter_mut().find(|known| known.path == saved.path) {
                Some(known) => *known = Saved { before: known.before.take(), ..saved },
                None => self.saved.push(saved),
            }
        }
        self.store()
    }

    /// Forgets the values of `paths`, which are back (TUNE-2).
    ///
    /// # Errors
    /// It cannot be written.
    pub fn forget(&mut self, paths: &BTreeSet<String>) -> Result<(), RecordError> {
        self.saved.retain(|saved| !paths.contains(&saved.path));
        self.store()
    }

    /// Changes what is saved with `change`, durably.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn change(&mut self, change: impl FnMut(&mut Saved)) -> Result<(), RecordError> {
        self.saved.iter_mut().for_each(change);
        self.store()
    }

    /// Replaces the file as a whole.
    fn store(&mut self) -> Result<(), RecordError> {
        self.try_store().map_err(|error| self.unusable(error))
    }

    fn try_store(&mut self) -> io::Result<()> {
        fs::create_dir_all(self.directory())?;
        self.lock()?;
        let draft = self.draft();
        if self.saved.is_empty() {
            self.writes.take(|| ())?;
            remove_if_there(&draft)?;
            remove_if_there(&self.path)?;
            return File::open(self.directory())?.sync_all();
        }
        let mut text = String::new();
        for saved in &self.saved {
            text.push_str(&serde_json::to_string(saved).map_err(io::Error::other)?);
            text.push('\n');
        }
        self.writes.take(|| drop(fs::write(&draft, &text[..text.len() / 2])))?;
        let mut file = File::create(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        self.writes.take(|| ())?;
        fs::rename(&draft, &self.path)?;
        File::open(self.directory())?.sync_all()
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(path: &str, before: &[u8], applied: &str) -> Saved {
        Saved {
            setting: "governor".into(),
            subject: "cpu0".into(),
            path: path.into(),
            form: Form::Plain,
            before: Some(before.to_vec()),
            applied: applied.into(),
            boot: None,
            confirm_by: None,
        }
    }

    fn open(path: &Path) -> Result<Record, RecordError> {
        Record::open(path, &WriteLimit::default())
    }

    #[test]
    fn the_first_value_of_a_path_is_kept_until_it_is_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state/tune.jsonl");
        let mut record = open(&path).expect("none yet");
        record.save(vec![saved("/a", b"\xff old\n", "1")]).expect("saved");
        record.save(vec![saved("/a", b"1\n", "2"), saved("/b", b"x", "1")]).expect("saved");
        drop(record);
        let mut record = open(&path).expect("a record");
        assert_eq!(record.of("/a"), Some(&saved("/a", b"\xff old\n", "2")));
        record.forget(&["/a".to_owned(), "/b".to_owned()].into()).expect("forgotten");
        drop(record);
        assert!(!path.exists(), "nothing to give back leaves no file");
        assert!(open(&path).expect("none").saved().is_empty());
    }

    #[test]
    fn a_torn_last_line_is_passed_over_and_any_other_damage_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tune.jsonl");
        let line = serde_json::to_string(&saved("/a", b"1", "2")).expect("JSON");
        fs::write(&path, format!("{line}\n{}", &line[..20])).expect("written");
        assert_eq!(open(&path).expect("a record").saved().len(), 1);
        fs::write(&path, format!("{}\n{line}\n", &line[..20])).expect("written");
        let error = open(&path).expect_err("damaged").to_string();
        assert!(error.contains("line 1"), "{error}");
    }

    #[test]
    fn a_reboot_takes_back_what_the_kernel_keeps_and_nothing_else() {
        let of =
            |path: &str, form| Saved { form, boot: Some("one".into()), ..saved(path, b"", "") };
        let after = Some("two");
        assert!(of("/sys/class/net/eth0/mtu", Form::Plain).is_of_earlier_boot(after));
        assert!(of("ethtool:eth0:feature:tso", Form::Feature).is_of_earlier_boot(after));
        assert!(!of("/etc/default/grub.d/farflash.cfg", Form::Document).is_of_earlier_boot(after));
        assert!(!of("/sys/class/net/eth0/mtu", Form::Plain).is_of_earlier_boot(Some("one")));
        assert!(!of("/sys/class/net/eth0/mtu", Form::Plain).is_of_earlier_boot(None));
    }
}
