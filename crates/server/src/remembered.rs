//! Devices that held volumes, remembered in the service's own directory: a blank device at such a path is no new one.
//!
//! - K1: before `--format-if-blank` formats a device, its path is looked up here. If volumes lay there, the start is refused: the
//!   file system is not mounted, or another drive is in the place. `farflash format` is how a person says that it is a new one.
//! - K2: a device is noted a moment after its first volume was made, and stays noted.
//!
//! The directory is that of the service manager (`$STATE_DIRECTORY`). A server without one remembers nothing.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use user_messages::Failure;
use user_messages::shell;
use uuid::Uuid;

/// The file of that directory.
const FILE: &str = "devices.json";

/// The devices, by their paths.
type Devices = BTreeMap<PathBuf, Uuid>;

/// Held while the file is read and written again: each device has a thread that notes it.
static WRITING: Mutex<()> = Mutex::new(());

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

/// Replaces the file as a whole, durably.
fn write(file: &Path, devices: &Devices) -> io::Result<()> {
    let new = file.with_extension("new");
    let mut written = File::create(&new)?;
    written.write_all(&serde_json::to_vec_pretty(devices)?)?;
    written.sync_all()?;
    std::fs::rename(&new, file)?;
    File::open(file.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// The path by which a device is remembered, whatever the directory in which the server was started.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Notes that volumes lie on a device (K2). May wait for the file system.
pub(super) fn note(path: &Path, device: Uuid) -> io::Result<()> {
    place().map_or(Ok(()), |file| note_in(&file, path, device))
}

fn note_in(file: &Path, path: &Path, device: Uuid) -> io::Result<()> {
    let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut devices = read(file)?;
    match devices.insert(absolute(path), device) {
        Some(before) if before == device => Ok(()),
        _ => write(file, &devices),
    }
}

/// Refuses to format a blank device at the path of one that held volumes (K1).
pub(super) fn refuse_blank(path: &Path) -> Result<(), Failure> {
    place().map_or(Ok(()), |file| refuse_blank_in(&file, path))
}

fn refuse_blank_in(file: &Path, path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let devices = read(file).map_err(|error| {
        let file_shown = file.display();
        Failure::runtime(
            format!("it cannot be found out whether volumes lay on {shown}: {file_shown} cannot be read: {error}"),
            format!(
                "mend or remove {file_shown}, or format the device with `farflash format --device {}`",
                shell::device(path)
            ),
        )
    })?;
    let Some(device) = devices.get(&absolute(path)) else { return Ok(()) };
    Err(Failure::runtime(
        format!(
            "{shown} is blank, and the farflash device {device} with volumes was served from there"
        ),
        format!(
            "see that its file system is mounted, and its drive in place; only if the volumes are to be gone, begin with \
             `farflash format --device {}`",
            shell::device(path)
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_device_in_the_place_of_one_with_volumes_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join(FILE);
        let refused = |path: &str| refuse_blank_in(&file, Path::new(path)).err();
        assert!(refused("/srv/a").is_none(), "nothing is known yet");
        let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
        note_in(&file, Path::new("/srv/my a"), first).expect("noted");
        note_in(&file, Path::new("/srv/b"), first).expect("noted");
        note_in(&file, Path::new("/srv/b"), second).expect("another one in its place");
        let refusal = refused("/srv/my a").expect("refused").to_string();
        for part in
            ["/srv/my a is blank", &first.to_string(), "mounted", "--device 'file:/srv/my a'`"]
        {
            assert!(refusal.contains(part), "{part}: {refusal}");
        }
        assert!(refused("/srv/b").is_some_and(|it| it.to_string().contains(&second.to_string())));
        assert!(refused("/srv/c").is_none());
        std::fs::write(&file, "{").expect("damaged");
        let refusal = refused("/srv/c").expect("it is not known").to_string();
        assert!(refusal.contains("mend or remove"), "{refusal}");
    }
}
