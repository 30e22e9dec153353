//! Files below a root: `/`, or a tree that was copied from another machine.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use crate::programs::{Absent, Live, Programs};

/// Most bytes of a setting or of a list of interrupts that are read.
const READ_MAX: u64 = 4 << 20;

/// Finds a file without opening it.
const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

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
    pub(crate) fn new(path: &str, error: io::Error) -> Self {
        Self { path: path.to_owned(), error }
    }

    /// The path and the kernel's error in one line.
    #[must_use]
    pub fn with_cause(&self) -> String {
        format!("{}: {}", self.path, self.error)
    }
}

/// The number of writes that are left before all fail, as if the process had been killed: for tests.
#[derive(Clone, Debug, Default)]
pub struct WriteLimit(Option<Arc<AtomicU64>>);

impl WriteLimit {
    /// A limit of `writes`.
    #[must_use]
    pub fn new(writes: u64) -> Self {
        Self(Some(Arc::new(AtomicU64::new(writes))))
    }

    /// Takes one write. The first one that is over the limit is torn: `tear` makes a part of it.
    pub(crate) fn take(&self, tear: impl FnOnce()) -> io::Result<()> {
        let Some(left) = &self.0 else { return Ok(()) };
        match left.load(Ordering::Relaxed) {
            u64::MAX => {}
            0 => {
                left.store(u64::MAX, Ordering::Relaxed);
                tear();
            }
            more => {
                left.store(more - 1, Ordering::Relaxed);
                return Ok(());
            }
        }
        Err(io::Error::other("the limit of writes is reached"))
    }

    /// True if a write was refused.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        self.0.as_ref().is_some_and(|left| left.load(Ordering::Relaxed) == u64::MAX)
    }
}

/// A directory that stands for `/`, and the programs of that machine.
#[derive(Clone, Debug)]
pub struct Root {
    path: PathBuf,
    /// The directory, if it is there.
    directory: Option<Arc<OwnedFd>>,
    writes: WriteLimit,
    programs: Arc<dyn Programs>,
}

/// A file or directory that was found: its path is good while this lives.
struct Found {
    path: PathBuf,
    _descriptor: Option<OwnedFd>,
}

impl Root {
    /// The tree at `path`. It has no programs unless it is the running machine.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let programs: Arc<dyn Programs> =
            if path == Path::new("/") { Arc::new(Live) } else { Arc::new(Absent) };
        let directory = rustix::fs::openat(CWD, &path, PLACE, Mode::empty()).ok().map(Arc::new);
        Self { path, directory, writes: WriteLimit::default(), programs }
    }

    /// The same with other programs.
    #[must_use]
    pub fn with_programs(self, programs: Arc<dyn Programs>) -> Self {
        Self { programs, ..self }
    }

    /// The same with a limit of writes.
    #[must_use]
    pub fn with_limit(self, writes: WriteLimit) -> Self {
        Self { writes, ..self }
    }

    /// The limit of writes.
    #[must_use]
    pub fn limit(&self) -> &WriteLimit {
        &self.writes
    }

    /// True if this is the running machine.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.path == Path::new("/")
    }

    /// Runs a program of this machine and returns its output.
    ///
    /// # Errors
    /// There is no such program, or it failed: then the error has its first line.
    pub fn run(&self, program: &str, arguments: &[&str]) -> io::Result<String> {
        self.programs.run(program, arguments)
    }

    /// The place of `path`, which is absolute, below this root. Links are not looked at.
    #[must_use]
    pub fn at(&self, path: &str) -> PathBuf {
        let below =
            Path::new(path).components().filter(|part| matches!(part, Component::Normal(_)));
        self.path.join(below.collect::<PathBuf>())
    }

    /// Finds `path`. Links of a copied tree are followed as if the tree were `/`: none leads out of it.
    fn find(&self, path: &str) -> io::Result<Found> {
        if self.is_live() {
            return Ok(Found { path: self.at(path), _descriptor: None });
        }
        let root = self.directory.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let below = self.at(path);
        let below = below.strip_prefix(&self.path).unwrap_or(&below);
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        let found = retry(|| openat2(root, below, PLACE, Mode::empty(), ResolveFlags::IN_ROOT))?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
        Ok(Found { path, _descriptor: Some(found) })
    }

    /// Finds the directory that `path` is in, and the name in it.
    fn find_in_parent(&self, path: &str) -> io::Result<(Found, PathBuf)> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("/", path));
        let parent = self.find(if parent.is_empty() { "/" } else { parent })?;
        let place = parent.path.join(name);
        Ok((parent, place))
    }

    /// Reads a file as it is.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, RootError> {
        let read = || {
            let found = self.find(path)?;
            let mut bytes = Vec::new();
            File::open(&found.path)?.take(READ_MAX).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|error| RootError::new(path, error))
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
        let write = || {
            let found = self.find(path)?;
            let is_kernels = is_kernels(&found.path);
            let mut options = OpenOptions::new();
            options.write(true).truncate(!is_kernels);
            self.write_with(&options, &found.path, bytes, !is_kernels)
        };
        write().map_err(|error| RootError::new(path, error))
    }

    /// Writes `bytes` to a file that need not be there. Its directory must be.
    ///
    /// # Errors
    /// The kernel's.
    pub fn put(&self, path: &str, bytes: &[u8]) -> Result<(), RootError> {
        let put = || {
            let (_parent, place) = self.find_in_parent(path)?;
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true);
            options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
            self.write_with(&options, &place, bytes, true)
        };
        put().map_err(|error| RootError::new(path, error))
    }

    fn write_with(
        &self,
        options: &OpenOptions,
        place: &Path,
        bytes: &[u8],
        is_flushed: bool,
    ) -> io::Result<()> {
        self.writes.take(|| {
            let file = options.open(place);
            let _ = file.and_then(|mut file| file.write_all(&bytes[..bytes.len() / 2]));
        })?;
        let mut file = options.open(place)?;
        file.write_all(bytes)?;
        if is_flushed { file.sync_all() } else { Ok(()) }
    }

    /// Makes a directory in one that is there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn make_directory(&self, path: &str) -> Result<(), RootError> {
        self.in_parent(path, |place| fs::create_dir(place))
    }

    /// Makes a symbolic link to `target`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn link(&self, path: &str, target: &str) -> Result<(), RootError> {
        self.in_parent(path, |place| symlink(target, place))
    }

    /// Removes a file, a link, or an empty directory.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self, path: &str) -> Result<(), RootError> {
        self.in_parent(path, |place| match fs::symlink_metadata(place)?.is_dir() {
            true => fs::remove_dir(place),
            false => fs::remove_file(place),
        })
    }

    fn in_parent(
        &self,
        path: &str,
        change: impl Fn(&Path) -> io::Result<()>,
    ) -> Result<(), RootError> {
        let changed = || {
            let (parent, place) = self.find_in_parent(path)?;
            self.writes.take(|| ())?;
            change(&place)?;
            File::open(&parent.path)?.sync_all()
        };
        changed().map_err(|error| RootError::new(path, error))
    }

    /// True if the kernel makes the contents of `path` up, so that what is read is not what was written.
    #[must_use]
    pub fn is_kernels(&self, path: &str) -> bool {
        self.find(path).is_ok_and(|found| is_kernels(&found.path))
    }

    /// True if there is something at `path`.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.find(path).is_ok_and(|found| found.path.exists())
    }

    /// Names in a directory, sorted by number where they end in one; none if it cannot be read.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(found) = self.find(path) else { return Vec::new() };
        let entries = fs::read_dir(&found.path).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_by_key(|name| natural(name));
        names
    }

    /// The text of the symbolic link at `path`.
    #[must_use]
    pub fn link_target(&self, path: &str) -> Option<OsString> {
        let (_parent, place) = self.find_in_parent(path).ok()?;
        Some(fs::read_link(place).ok()?.into_os_string())
    }

    /// The last part of what the symbolic link at `path` names.
    #[must_use]
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = self.link_target(path)?;
        Some(Path::new(&target).file_name()?.to_string_lossy().into_owned())
    }

    /// The path of the file itself where `path` leads through symbolic links.
    #[must_use]
    pub fn real(&self, path: &str) -> Option<PathBuf> {
        let found = self.find(path).ok()?;
        if self.is_live() {
            fs::canonicalize(found.path).ok()
        } else {
            fs::read_link(found.path).ok()
        }
    }
}

/// Looks again if the kernel could not tell where a `..` leads, as another process renamed or mounted something.
fn retry<T>(look: impl Fn() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    const TRIES: u32 = 10_000;
    let tries = (0..TRIES).map(|_| look());
    let mut decided = tries.skip_while(|found| matches!(found, Err(rustix::io::Errno::AGAIN)));
    decided.next().unwrap_or(Err(rustix::io::Errno::AGAIN))
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

    /// A tree of another machine has absolute links, and links with more `..` than the tree is deep.
    #[test]
    fn no_link_of_a_copied_tree_leads_out_of_it() {
        let outside = tempfile::tempdir().expect("a directory");
        let tree = outside.path().join("tree");
        fs::create_dir_all(tree.join("sys")).expect("made");
        fs::write(outside.path().join("value"), "outside").expect("written");
        fs::write(tree.join("value"), "inside").expect("written");
        let absolute = outside.path().join("value");
        symlink(&absolute, tree.join("sys/absolute")).expect("linked");
        symlink("../../value", tree.join("sys/up")).expect("linked");
        let root = Root::new(&tree);
        assert!(!root.has("/sys/absolute"));
        assert_eq!(root.text("/sys/up").as_deref(), Some("inside"));
        root.write("/sys/up", b"written").expect("inside");
        root.put("/sys/absolute/value", b"written").expect_err("outside");
        assert_eq!(fs::read(absolute).expect("there"), b"outside");
        assert_eq!(root.real("/sys/up"), fs::canonicalize(tree.join("value")).ok());
    }
}
