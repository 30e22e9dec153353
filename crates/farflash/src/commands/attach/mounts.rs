//! Mounts of attached volumes, and what uses them: loop devices and processes.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use user_messages::Failure;
use user_messages::output::note;
use user_messages::shell;

/// Source of mounts of ours, before the volume's name.
pub(crate) const SOURCE: &str = "farflash:";
/// Users that a refusal names.
const NAMED_MAX: usize = 3;

/// Something that is mounted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Mount {
    pub(crate) source: String,
}

impl Mount {
    /// Returns true if it is an attached volume.
    pub(crate) fn is_ours(&self) -> bool {
        self.source.starts_with(SOURCE)
    }
}

/// Returns what is mounted at this very path.
pub(crate) fn mount_at(path: &Path) -> Option<Mount> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mount_in(&table, path)
}

fn mount_in(table: &str, path: &Path) -> Option<Mount> {
    // The last one covers the others.
    table.lines().rev().find_map(|line| {
        let (before, behind) = line.split_once(" - ")?;
        let point = unescaped(before.split(' ').nth(4)?);
        let source = unescaped(behind.split(' ').nth(1)?);
        (point == path).then(|| Mount { source: source.to_string_lossy().into_owned() })
    })
}

/// Undoes the escapes of the table of mounts: a backslash and three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, behind @ ..] = rest {
        let code = behind.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Returns true if the process that served the file is gone.
pub(crate) fn is_dead(path: &Path) -> bool {
    fs::File::open(path).is_err_and(|error| error.kind() == ErrorKind::NotConnected)
}

/// Unmounts what is at `path`; `lazily` also if it is in use.
pub(crate) fn unmount(path: &Path, lazily: bool) -> io::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags) {
        Err(Errno::PERM) => unmount_as_user(path, lazily),
        outcome => Ok(outcome?),
    }
}

/// Clears away what a killed process left at `path`: the mount, if it is there. Loop devices that still use it are named.
pub(crate) fn clear_dead(path: &Path) -> Result<(), Failure> {
    let (shown, devices) = (path.display(), loop_devices_on(path));
    if mount_at(path).is_some_and(|mount| mount.is_ours()) {
        unmount(path, true).map_err(|error| {
            let what = format!("the dead mount at {shown} cannot be taken away: {error}");
            Failure::runtime(what, format!("as root, run `umount -l {}`", shell::path(path)))
        })?;
        note(&format!("the process that served {shown} was killed; its mount is taken away"));
    }
    for device in devices {
        note(&format!("{device} still uses it, and every request fails: {}", let_go(&device)));
    }
    Ok(())
}

fn unmount_as_user(path: &Path, lazily: bool) -> io::Result<()> {
    let flags = if lazily { "-uz" } else { "-u" };
    let output = Command::new("fusermount3").arg(flags).arg("--").arg(path).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let kind =
        if said.contains("busy") { ErrorKind::ResourceBusy } else { ErrorKind::PermissionDenied };
    Err(io::Error::new(kind, said))
}

/// Loop devices over the file at `path`.
pub(crate) fn loop_devices_on(path: &Path) -> Vec<String> {
    let Ok(blocks) = fs::read_dir("/sys/block") else { return Vec::new() };
    let backed = |name: &String| {
        let file = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        file.is_ok_and(|file| Path::new(file.trim_end_matches('\n')) == path)
    };
    let names =
        blocks.map_while(Result::ok).map(|it| it.file_name().to_string_lossy().into_owned());
    let mut devices: Vec<String> =
        names.filter(backed).map(|name| format!("/dev/{name}")).collect();
    devices.sort();
    devices
}

/// Processes that have the file at `path` open, as people know them.
fn processes_on(path: &Path) -> Vec<String> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = processes.map_while(Result::ok).filter_map(|process| {
        process.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
    });
    let has_it_open = |number: &u32| {
        let files = fs::read_dir(format!("/proc/{number}/fd")).into_iter().flatten();
        let mut files = files.map_while(Result::ok);
        files.any(|file| fs::read_link(file.path()).is_ok_and(|open| open == path))
    };
    let named = |number: u32| {
        let name = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
        format!("{} (process {number})", name.trim())
    };
    numbers.filter(has_it_open).map(named).collect()
}

/// Takes the mount at `path` away: refused while it is used, and after `flush` has made durable what was written.
pub(crate) fn leave(
    path: &Path,
    flush: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    refuse_if_in_loop(path)?;
    flush()?;
    match unmount(path, false) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            refuse_if_in_loop(path)?;
            Err(busy(path, &processes_on(path)))
        }
        Err(error) => {
            let what = format!("{} cannot be unmounted: {error}", path.display());
            Err(Failure::runtime(what, "run this as the user that attached it, or as root"))
        }
    }
}

fn refuse_if_in_loop(path: &Path) -> Result<(), Failure> {
    let devices = loop_devices_on(path);
    let Some(device) = devices.first() else { return Ok(()) };
    let what = format!("{} is used by {}", path.display(), devices.join(", "));
    Err(Failure::runtime(what, let_go(device)))
}

/// The commands by which a loop device is let go of.
fn let_go(device: &str) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = points_of(&table, device);
    let unmounts: String =
        points.iter().map(|point| format!("umount {} && ", shell::path(point))).collect();
    format!("run `{unmounts}losetup --detach {}` first", shell::word(device))
}

/// Places at which a device is mounted; the last one first, as they have to be unmounted.
fn points_of(table: &str, device: &str) -> Vec<PathBuf> {
    let point = |line: &str| {
        let (before, behind) = line.split_once(" - ")?;
        let is_of_it = behind.split(' ').nth(1) == Some(device);
        is_of_it.then(|| before.split(' ').nth(4).map(unescaped))?
    };
    table.lines().rev().filter_map(point).collect()
}

fn busy(path: &Path, users: &[String]) -> Failure {
    let named = users.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    let more = users.len().saturating_sub(NAMED_MAX);
    let by = match (users.is_empty(), more) {
        (true, _) => "in use".to_owned(),
        (false, 0) => format!("used by {named}"),
        (false, more) => format!("used by {named} and {more} more"),
    };
    let remedy = match users.is_empty() {
        true => {
            format!("see `fuser -v {}` for what uses it, and end that first", shell::path(path))
        }
        false => "end that first".to_owned(),
    };
    Failure::runtime(format!("{} is {by}", path.display()), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 0:20 / / rw - ext4 /dev/vda rw
30 22 0:44 / /srv/my\\040db rw,nosuid shared:1 - fuse farflash:db-1 rw,user_id=0
31 22 7:1 / /srv/it's rw - ext4 /dev/loop1 rw
32 22 7:1 / /srv/b rw - ext4 /dev/loop1 rw
33 22 0:44 / /mnt rw - tmpfs none rw
34 22 0:44 / /mnt rw - fuse farflash:x rw
";

    #[test]
    fn the_topmost_mount_at_a_path_is_found() {
        let at = |path: &str| mount_in(TABLE, Path::new(path)).map(|mount| mount.source);
        assert_eq!(at("/srv/my db").as_deref(), Some("farflash:db-1"));
        assert_eq!(at("/mnt").as_deref(), Some("farflash:x"));
        assert_eq!(at("/srv/my"), None);
        assert!(mount_in(TABLE, Path::new("/mnt")).is_some_and(|mount| mount.is_ours()));
        assert!(mount_in(TABLE, Path::new("/")).is_some_and(|mount| !mount.is_ours()));
    }

    #[test]
    fn mounts_of_a_loop_device_are_to_be_undone_in_their_order() {
        let points = points_of(TABLE, "/dev/loop1");
        assert_eq!(points, [Path::new("/srv/b"), Path::new("/srv/it's")]);
        assert!(points_of(TABLE, "/dev/loop10").is_empty());
    }

    #[test]
    fn a_backslash_that_is_no_escape_stays() {
        assert_eq!(unescaped("a\\134b\\x"), Path::new("a\\b\\x"));
        assert_eq!(unescaped("\\"), Path::new("\\"));
    }

    #[test]
    fn a_refusal_names_some_of_the_users() {
        let users: Vec<String> = (1..=5).map(|number| format!("fio (process {number})")).collect();
        let failure = busy(Path::new("/srv/a"), &users).to_string();
        assert!(
            failure
                .contains("used by fio (process 1), fio (process 2), fio (process 3) and 2 more")
        );
        assert!(busy(Path::new("/srv/a b"), &[]).to_string().contains("`fuser -v '/srv/a b'`"));
    }
}
