//! The record of old values: what undo gives back.
//!
//! One JSON object a line, written and flushed before the setting is. A line that a crash has torn is
//! the last one, and its setting was not written yet.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::proposal::Form;

/// An old value.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The setting's name.
    pub setting: String,
    /// The part of the machine.
    pub subject: String,
    /// The path of its file.
    pub path: String,
    /// The notation of its file.
    pub form: Form,
    /// The bytes of the file before.
    pub before: Vec<u8>,
    /// The value that was applied.
    pub applied: String,
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
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    saved: Vec<Saved>,
}

impl Record {
    /// Opens the record at `path`, which need not be there yet.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(RecordError::Io { path: path.to_owned(), error }),
        };
        let mut saved = Vec::new();
        for (number, line) in text.split_inclusive('\n').enumerate() {
            match serde_json::from_str(line) {
                Ok(one) => saved.push(one),
                Err(_) if !line.ends_with('\n') => {}
                Err(error) => {
                    let (path, error) = (path.to_owned(), error.to_string());
                    return Err(RecordError::Content { path, line: number + 1, error });
                }
            }
        }
        Ok(Self { path: path.to_owned(), saved })
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

    /// Saves an old value durably (TUNE-1). The first value of a path stays: it is the one from before
    /// any apply.
    ///
    /// # Errors
    /// It cannot be written. Then the setting must not be.
    pub fn save(&mut self, saved: Saved) -> Result<(), RecordError> {
        match self.saved.iter_mut().find(|known| known.path == saved.path) {
            Some(known) => known.applied = saved.applied,
            None => self.saved.push(saved),
        }
        self.store()
    }

    /// Forgets the value of `path`, which is back (TUNE-2).
    ///
    /// # Errors
    /// It cannot be written.
    pub fn forget(&mut self, path: &str) -> Result<(), RecordError> {
        self.saved.retain(|saved| saved.path != path);
        self.store()
    }

    /// Replaces the file as a whole.
    fn store(&self) -> Result<(), RecordError> {
        let stored = || -> io::Result<()> {
            let directory = self.path.parent().filter(|path| !path.as_os_str().is_empty());
            let directory = directory.unwrap_or(Path::new("."));
            fs::create_dir_all(directory)?;
            if self.saved.is_empty() {
                fs::remove_file(&self.path).or_else(|error| match error.kind() {
                    io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })?;
                return File::open(directory)?.sync_all();
            }
            let draft = self.path.with_extension("new");
            let mut file = File::create(&draft)?;
            for saved in &self.saved {
                let line = serde_json::to_string(saved).map_err(io::Error::other)?;
                file.write_all(format!("{line}\n").as_bytes())?;
            }
            file.sync_all()?;
            fs::rename(&draft, &self.path)?;
            File::open(directory)?.sync_all()
        };
        stored().map_err(|error| RecordError::Io { path: self.path.clone(), error })
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
            before: before.to_vec(),
            applied: applied.into(),
        }
    }

    #[test]
    fn the_first_value_of_a_path_is_kept_until_it_is_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state/tune.jsonl");
        let mut record = Record::open(&path).expect("none yet");
        record.save(saved("/a", b"\xff old\n", "1")).expect("saved");
        record.save(saved("/a", b"1\n", "2")).expect("saved");
        record.save(saved("/b", b"x", "1")).expect("saved");
        let again = Record::open(&path).expect("a record");
        assert_eq!(again.of("/a"), Some(&saved("/a", b"\xff old\n", "2")));
        record.forget("/a").expect("forgotten");
        record.forget("/b").expect("forgotten");
        assert!(!path.exists(), "nothing to give back leaves no file");
        assert!(Record::open(&path).expect("none").saved().is_empty());
    }

    #[test]
    fn a_torn_last_line_is_passed_over_and_any_other_damage_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tune.jsonl");
        let line = serde_json::to_string(&saved("/a", b"1", "2")).expect("JSON");
        fs::write(&path, format!("{line}\n{}", &line[..20])).expect("written");
        assert_eq!(Record::open(&path).expect("a record").saved().len(), 1);
        fs::write(&path, format!("{}\n{line}\n", &line[..20])).expect("written");
        let error = Record::open(&path).expect_err("damaged").to_string();
        assert!(error.contains("line 1"), "{error}");
    }
}
