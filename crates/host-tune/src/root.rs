//! Files below a root: `/`, or a tree that was copied from another machine.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

/// Most bytes of a setting or of a list of interrupts that are read.
const READ_MAX: u64 = 4 << 20;

/// A file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be read or written")]
pub struct RootError {
    /// The path below the root.
    pub path: String,
    /// The kernel's error.
    #[source]
    pub error: io::Error,
}

impl RootError {
    /// The path and the kernel's error in one line.
    #[must_use]
    pub fn with_cause(&self) -> String {
        format!("{}: {}", self.path, self.error)
    }
}

/// A directory that stands for `/`.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// The tree at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// True if this is the running machine.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// The place of `path`, which is absolute, below this root. Symbolic links of a copied tree are
    /// followed by the kernel as they are; absolute ones lead out of it and are not used by settings.
    #[must_use]
    pub fn at(&self, path: &str) -> PathBuf {
        let below =
            Path::new(path).components().filter(|part| matches!(part, Component::Normal(_)));
        self.0.join(below.collect::<PathBuf>())
    }

    /// Reads a file as it is.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, RootError> {
        let failed = |error| RootError { path: path.to_owned(), error };
        let file = File::open(self.at(path)).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(READ_MAX).read_to_end(&mut bytes).map_err(failed)?;
        Ok(bytes)
    }

    /// Reads a file as text without the line feed at its end; `None` if it cannot be read.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        let bytes = self.read(path).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\0', ' ']).to_owned())
    }

    /// The number in a file.
    #[must_use]
    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.trim().parse().ok()
    }

    /// Writes `bytes` in one call, as sysfs wants it. The file must be there.
    ///
    /// # Errors
    /// The kernel's, which for a setting says why it is refused.
    pub fn write(&self, path: &str, bytes: &[u8]) -> Result<(), RootError> {
        let failed = |error| RootError { path: path.to_owned(), error };
        let place = self.at(path);
        let is_kernels = is_kernels(&place);
        let mut options = OpenOptions::new();
        options.write(true).truncate(!is_kernels);
        let mut file = options.open(place).map_err(failed)?;
        file.write_all(bytes).map_err(failed)?;
        if !is_kernels {
            file.sync_all().map_err(failed)?;
        }
        Ok(())
    }

    /// True if the kernel makes the contents of `path` up, so that what is read is not what was written.
    #[must_use]
    pub fn is_kernels(&self, path: &str) -> bool {
        is_kernels(&self.at(path))
    }

    /// True if there is something at `path`.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    /// Names in a directory, sorted by number where they end in one; none if it cannot be read.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_by_key(|name| natural(name));
        names
    }

    /// The last part of what the symbolic link at `path` names.
    #[must_use]
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.at(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }
}

fn is_kernels(place: &Path) -> bool {
    const SYSFS: i64 = 0x6265_6572;
    const PROC: i64 = 0x9fa0;
    rustix::fs::statfs(place).is_ok_and(|fs| [SYSFS, PROC].contains(&fs.f_type))
}

/// `nvme10n1` comes behind `nvme9n1`.
fn natural(name: &str) -> (String, u64, String) {
    let digits = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
    let (head, rest) = name.split_at(digits);
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    (head.to_owned(), rest[..end].parse().unwrap_or(0), rest[end..].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_the_root_and_names_are_in_the_order_of_numbers() {
        let tree = tempfile::tempdir().expect("a directory");
        let root = Root::new(tree.path());
        assert_eq!(root.at("/sys/../../etc/passwd"), tree.path().join("sys/etc/passwd"));
        for name in ["cpu10", "cpu9", "cpu1"] {
            fs::create_dir_all(root.at(&format!("/cpus/{name}"))).expect("made");
        }
        assert_eq!(root.names("/cpus"), ["cpu1", "cpu9", "cpu10"]);
        assert!(root.names("/absent").is_empty());
    }

    #[test]
    fn a_file_must_be_there_to_be_written() {
        let tree = tempfile::tempdir().expect("a directory");
        let root = Root::new(tree.path());
        let error = root.write("/value", b"1").expect_err("absent");
        assert_eq!((error.path.as_str(), error.error.kind()), ("/value", io::ErrorKind::NotFound));
        fs::write(root.at("/value"), "1000\n").expect("written");
        root.write("/value", b"1").expect("there");
        assert_eq!(root.read("/value").expect("there"), b"1");
    }
}
