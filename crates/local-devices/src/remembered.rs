//! Devices that hold volumes, remembered in the server's own directory: neither a blank device nor an empty one is taken for them.
//!
//! - REMEMBERED-1: before `--format-if-blank` formats a device, its path is looked up here. If volumes lay there, the start is
//!   refused: the file system is not mounted, or another drive is in the place.
//! - REMEMBERED-2: a device is noted a moment after its first volume was made, and stays noted until its last one is deleted.
//! - REMEMBERED-3: a formatted device without volumes is not served from a path at which another one with volumes was.
//! - REMEMBERED-4: `farflash format` forgets the device at its path: by that a person says that the volumes may be gone. It looks
//!   in the directory that it is given, and else in that of the package.
//!
//! The directory is that of the service manager (`$STATE_DIRECTORY`). A server without one remembers nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use user_messages::Failure;
use user_messages::output::counted;
use user_messages::shell;
use uuid::Uuid;

/// The file of that directory.
const FILE: &str = "devices.json";
/// The directory of the package's service.
const OF_PACKAGE: &str = "/var/lib/farflash";

/// A device that is noted.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Noted {
    /// Its id.
    pub device: Uuid,
    /// The volumes that lay on it a while ago; more than none.
    pub volumes: usize,
}

/// The devices, by their paths.
type Devices = BTreeMap<PathBuf, Noted>;

/// The file, if the server has a directory of its own.
fn place() -> Option<PathBuf> {
    let directories = std::env::var_os("STATE_DIRECTORY")?;
    // Several are separated as those of a search path.
    let first = std::env::split_paths(&directories).next()?;
    first.is_absolute().then(|| first.join(FILE))
}

fn read(file: &Path) -> io::Result<Devices> {
    match std::fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Devices::default()),
        Err(error) => Err(error),
    }
}

/// Replaces the file as a whole, durably. It belongs to the owner of its directory, the server's user, also if another writes it.
fn write(file: &Path, directory: &File, devices: &Devices) -> io::Result<()> {
    let new = file.with_extension("new");
    let mut written = File::create(&new)?;
    let owner = directory.metadata()?;
    if owner.uid() != written.metadata()?.uid() {
        fchown(&written, Some(owner.uid()), Some(owner.gid()))?;
    }
    written.write_all(&serde_json::to_vec_pretty(devices)?)?;
    written.sync_all()?;
    std::fs::rename(&new, file)?;
    directory.sync_all()
}

/// Changes what is noted, while no other thread or process does. `change` returns what it changed.
fn change<T>(file: &Path, change: impl FnOnce(&mut Devices) -> Option<T>) -> io::Result<Option<T>> {
    let directory = File::open(file.parent().unwrap_or(Path::new("/")))?;
    flock(&directory, FlockOperation::LockExclusive)?;
    let mut devices = read(file)?;
    let changed = change(&mut devices);
    if changed.is_some() {
        write(file, &directory, &devices)?;
    }
    Ok(changed)
}

/// The path by which a device is remembered, whatever the directory in which the server was started.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Notes how many volumes lie on a device (REMEMBERED-2). May wait for the file system.
pub fn note(path: &Path, noted: Noted) -> io::Result<()> {
    place().map_or(Ok(()), |file| note_in(&file, path, noted))
}

fn note_in(file: &Path, path: &Path, noted: Noted) -> io::Result<()> {
    let path = absolute(path);
    let changed = change(file, |devices| {
        let before = devices.get(&path).copied();
        match (before, noted.volumes) {
            (Some(before), 0) if before.device == noted.device => drop(devices.remove(&path)),
            (_, 0) => return None,
            (before, _) if before == Some(noted) => return None,
            _ => drop(devices.insert(path, noted)),
        }
        Some(())
    });
    changed.map(drop)
}

/// Forgets the device at a path that is formatted again (REMEMBERED-4). Returns it.
pub fn forget(path: &Path) -> io::Result<Option<Noted>> {
    match place() {
        Some(file) => forget_in(&file, path),
        None => match forget_in(&Path::new(OF_PACKAGE).join(FILE), path) {
            // The package is not installed, or another user formats a device of its own.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
            {
                Ok(None)
            }
            forgotten => forgotten,
        },
    }
}

fn forget_in(file: &Path, path: &Path) -> io::Result<Option<Noted>> {
    if !file.try_exists()? {
        return Ok(None);
    }
    // A drive has several names.
    let target = path.canonicalize().ok();
    let is_same = |noted: &Path| {
        noted == absolute(path) || target.is_some() && noted.canonicalize().ok() == target
    };
    change(file, |devices| {
        let paths: Vec<_> = devices.keys().filter(|noted| is_same(noted)).cloned().collect();
        paths.into_iter().filter_map(|path| devices.remove(&path)).last()
    })
}

/// Refuses to format a blank device at the path of one that held volumes (REMEMBERED-1).
pub fn refuse_blank(path: &Path) -> Result<(), Failure> {
    place().map_or(Ok(()), |file| refuse_blank_in(&file, path))
}

fn refuse_blank_in(file: &Path, path: &Path) -> Result<(), Failure> {
    let found = read(file).map_err(|error| not_known(file, path, &error))?;
    let Some(noted) = found.get(&absolute(path)) else { return Ok(()) };
    Err(Failure::runtime(
        format!("{} is blank, and {noted} was served from there", path.display()),
        format!(
            "{IN_PLACE}; only if the volumes are to be gone, begin with `farflash format --device {}`",
            shell::device(path)
        ),
    ))
}

/// Refuses to serve a device without volumes from the path of another one that held some (REMEMBERED-3).
pub fn refuse_empty(path: &Path, device: Uuid) -> Result<(), Failure> {
    place().map_or(Ok(()), |file| refuse_empty_in(&file, path, device))
}

fn refuse_empty_in(file: &Path, path: &Path, device: Uuid) -> Result<(), Failure> {
    let found = read(file).map_err(|error| not_known(file, path, &error))?;
    match found.get(&absolute(path)) {
        Some(noted) if noted.device != device => Err(Failure::of_one_device(
            format!(
                "{} is the farflash device {device}, which is empty, and {noted} was served from there",
                path.display()
            ),
            format!(
                "{IN_PLACE}; only if the volumes are to be gone, remove the note of them: `rm {}`; devices that are served \
                 are noted again",
                shell::path(file)
            ),
        )),
        _ => Ok(()),
    }
}

/// Advice for a device that is not the one that was there.
const IN_PLACE: &str = "see that its file system is mounted, and its drive in place";

impl fmt::Display for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, volumes } = self;
        write!(f, "the farflash device {device} with {}", counted(*volumes as u64, "volume"))
    }
}

fn not_known(file: &Path, path: &Path, error: &io::Error) -> Failure {
    let (path, shown) = (path.display(), file.display());
    Failure::of_one_device(
        format!(
            "it cannot be found out whether volumes lay on {path}: {shown} cannot be read: {error}"
        ),
        format!("mend or remove {shown}: devices that are served are noted again"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(device: u128, volumes: usize) -> Noted {
        Noted { device: Uuid::from_u128(device), volumes }
    }

    #[test]
    fn a_blank_device_in_the_place_of_one_with_volumes_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join(FILE);
        let refused = |path: &str| refuse_blank_in(&file, Path::new(path)).err();
        assert!(refused("/srv/a").is_none(), "nothing is known yet");
        let (first, second) = (noted(1, 1), noted(2, 3));
        note_in(&file, Path::new("/srv/my a"), first).expect("noted");
        note_in(&file, Path::new("/srv/b"), first).expect("noted");
        note_in(&file, Path::new("/srv/b"), second).expect("another one in its place");
        let refusal = refused("/srv/my a").expect("refused").to_string();
        let id = first.device.to_string();
        for part in
            ["/srv/my a is blank", &id, "1 volume ", "mounted", "--device 'file:/srv/my a'`"]
        {
            assert!(refusal.contains(part), "{part}: {refusal}");
        }
        let id = format!("{} with 3 volumes ", second.device);
        assert!(refused("/srv/b").is_some_and(|it| it.to_string().contains(&id)));
        assert!(refused("/srv/c").is_none());
        std::fs::write(&file, "{").expect("damaged");
        let refusal = refused("/srv/c").expect("it is not known").to_string();
        assert!(refusal.contains("mend or remove"), "{refusal}");
    }

    #[test]
    fn an_empty_device_is_refused_only_in_the_place_of_another_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("my notes").join(FILE);
        let refused =
            |path, device| refuse_empty_in(&file, Path::new(path), Uuid::from_u128(device)).err();
        assert!(refused("/srv/a", 1).is_none(), "nothing is known yet");
        std::fs::create_dir(directory.path().join("my notes")).expect("a directory");
        note_in(&file, Path::new("/srv/a"), noted(1, 2)).expect("noted");
        assert!(refused("/srv/a", 1).is_none(), "its volumes were deleted a moment ago");
        assert!(refused("/srv/b", 1).is_none());
        let refusal = refused("/srv/a", 7).expect("another one");
        assert!(refusal.spares_others(), "other devices are served");
        let said = refusal.to_string();
        let [before, now] = [1, 7].map(|id| Uuid::from_u128(id).to_string());
        let command = format!("`rm {}`", shell::path(&file));
        for part in ["/srv/a is", &before, &now, "with 2 volumes", "mounted", &command] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(!said.contains("--force") && !said.contains("farflash format"), "{said}");
    }

    #[test]
    fn a_device_is_noted_until_its_last_volume_is_deleted() {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, path) = (directory.path().join(FILE), Path::new("/srv/a"));
        note_in(&file, path, noted(1, 0)).expect("nothing to note");
        assert!(!file.exists());
        for volumes in [1, 5] {
            note_in(&file, path, noted(1, volumes)).expect("noted");
            assert_eq!(read(&file).expect("noted")[path], noted(1, volumes));
        }
        note_in(&file, path, noted(2, 0)).expect("another one is empty");
        assert_eq!(read(&file).expect("noted")[path], noted(1, 5));
        note_in(&file, path, noted(1, 0)).expect("the last one was deleted");
        assert!(read(&file).expect("noted").is_empty());
    }

    /// The drive was noted by another of its names.
    #[test]
    fn a_device_that_is_formatted_is_forgotten_by_all_its_names() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join(FILE);
        let [drive, link] = ["drive", "link"].map(|name| directory.path().join(name));
        assert_eq!(forget_in(&file, &drive).expect("nothing is noted"), None);
        std::fs::write(&drive, "").expect("a file");
        std::os::unix::fs::symlink(&drive, &link).expect("a link");
        for path in [&link, &drive, Path::new("/srv/b")] {
            note_in(&file, path, noted(1, 2)).expect("noted");
        }
        assert_eq!(forget_in(&file, &drive).expect("forgotten"), Some(noted(1, 2)));
        let left: Vec<_> = read(&file).expect("noted").into_keys().collect();
        assert_eq!(left, [Path::new("/srv/b")]);
    }
}
