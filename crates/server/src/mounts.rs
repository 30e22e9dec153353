//! Mount points: the directory at which the file system of a file is mounted.
//!
//! - MOUNT-1: of the mounts of the file's file system it is that whose mount point is the longest beginning of the path, and of
//!   several at one point the last. A bind mount has the same file system as where it comes from, so that its device alone does
//!   not tell both apart.
//! - MOUNT-2: where no mount has the device of the file (btrfs gives each subvolume one of its own), the mount point alone
//!   counts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// The directory at which the file system of `path` is mounted. What lies at the path may be gone, and its directory counts then.
pub(super) fn mount_of(path: &Path) -> Option<PathBuf> {
    let parent = || path.parent().and_then(|parent| parent.canonicalize().ok());
    let whole = path.canonicalize().ok().or_else(parent)?;
    let device = std::fs::metadata(&whole).ok()?.dev();
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    choose(&table, &whole, (major(device), minor(device)))
}

/// Chooses from a table as `/proc/PID/mountinfo` has it (MOUNT-1, MOUNT-2).
fn choose(table: &[u8], path: &Path, device: (u32, u32)) -> Option<PathBuf> {
    let lines = table.split(|byte| *byte == b'\n').filter_map(Mount::parse);
    let above: Vec<Mount> = lines.filter(|mount| path.starts_with(&mount.point)).collect();
    let has_device = above.iter().any(|mount| mount.device == device);
    let may_be = above.into_iter().filter(|mount| !has_device || mount.device == device);
    // Of equal ones the last is taken.
    may_be.map(|mount| mount.point).max_by_key(|point| point.as_os_str().len())
}

struct Mount {
    device: (u32, u32),
    point: PathBuf,
}

impl Mount {
    /// Reads a line: number, parent's number, device, root, mount point, and more.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let device = std::str::from_utf8(fields.next()?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let point = OsString::from_vec(unescaped(fields.nth(1)?));
        Some(Self { device: (major.parse().ok()?, minor.parse().ok()?), point: point.into() })
    }
}

/// The kernel writes space, tab, line feed and backslash as a backslash and three octal digits.
fn unescaped(mut text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    while let Some((&byte, rest)) = text.split_first() {
        text = rest;
        match rest {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', behind @ ..] if byte == b'\\' => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                text = behind;
            }
            _ => plain.push(byte),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw - proc proc rw
30 22 8:2 / /srv rw - xfs /dev/sdb rw
31 30 8:1 /var/data /srv/data rw - ext4 /dev/sda1 rw
32 22 8:3 / /srv/my\\040files\\134\\011 rw - ext4 /dev/sdc rw
33 22 0:44 /sub /btrfs rw - btrfs /dev/sdd rw
34 22 8:5 / /hidden/below rw - ext4 /dev/sde rw
35 22 8:6 / /hidden rw - ext4 /dev/sdf rw
36 37 8:7 / /moved/in rw - ext4 /dev/sdg rw
37 22 8:7 /other /moved rw - ext4 /dev/sdg rw
a torn line
";

    fn chosen(path: &str, device: (u32, u32)) -> String {
        let chosen = choose(TABLE, Path::new(path), device).expect("something is mounted");
        chosen.to_str().expect("plain").to_owned()
    }

    #[test]
    fn a_file_lies_at_the_nearest_mount_of_its_file_system() {
        assert_eq!(chosen("/home/a", (8, 1)), "/");
        assert_eq!(chosen("/srv/a", (8, 2)), "/srv");
        assert_eq!(chosen("/srv/database", (8, 2)), "/srv", "a name that begins like another");
        assert_eq!(chosen("/srv/database", (8, 1)), "/", "the same, of a bind mount");
        assert_eq!(chosen("/srv/data/a", (8, 1)), "/srv/data", "a bind mount");
        assert_eq!(chosen("/moved/in/a", (8, 7)), "/moved/in", "not the last one");
        assert_eq!(chosen("/srv/my files\\\t/a", (8, 3)), "/srv/my files\\\t");
        assert_eq!(chosen("/hidden/below/a", (8, 6)), "/hidden", "the mount below is covered");
        assert_eq!(chosen("/btrfs/a", (0, 77)), "/btrfs", "a subvolume");
        assert_eq!(choose(b"", Path::new("/a"), (8, 1)), None);
    }

    #[test]
    fn what_the_kernel_escapes_is_plain_again() {
        assert_eq!(unescaped(b"a\\040b\\011\\012\\134040"), b"a b\t\n\\040");
        for odd in [&b"a\\"[..], b"\\04", b"\\048", b"\\400"] {
            assert_eq!(unescaped(odd), odd, "no escape");
        }
    }

    /// The file system of `/proc` is mounted there on every machine.
    #[test]
    fn a_mount_of_this_machine_is_found() {
        assert_eq!(mount_of(Path::new("/proc/self/status")), Some("/proc".into()));
    }
}
