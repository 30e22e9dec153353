//! Attributes of a block device's queue, and the files below loop devices, from sysfs.

use std::fs;
use std::path::Path;

use rustix::fs::{Mode, OFlags, Stat, open, stat};
use rustix::io::Errno;

/// Mount point of sysfs.
const SYS: &str = "/sys";

/// A block device as the kernel describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockDevice<'a> {
    /// The directory that is `/sys`.
    sys: &'a Path,
    /// Its major and minor number.
    number: (u32, u32),
}

impl BlockDevice<'static> {
    /// The device with this major and minor number.
    pub(crate) fn new(number: (u32, u32)) -> Self {
        Self { sys: Path::new(SYS), number }
    }
}

impl BlockDevice<'_> {
    /// Returns true if the drive may have a cache that loses writes with the power; also if the kernel reports
    /// nothing about it.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        self.attribute("write_cache").as_deref() != Some("write through")
    }

    /// Returns true if it takes discards.
    pub(crate) fn discards(&self) -> bool {
        self.attribute("discard_max_bytes").is_some_and(|bytes| bytes != "0")
    }

    /// Returns true if the kernel takes no writes for it.
    pub(crate) fn is_read_only(&self) -> bool {
        let (major, minor) = self.number;
        let place = self.sys.join(format!("dev/block/{major}:{minor}/ro"));
        fs::read_to_string(place).is_ok_and(|value| value.trim() == "1")
    }

    /// An attribute of its queue. A partition has its drive's, one directory up.
    fn attribute(&self, name: &str) -> Option<String> {
        let (major, minor) = self.number;
        let device = self.sys.join(format!("dev/block/{major}:{minor}"));
        [device.join("queue"), device.join("../queue")]
            .iter()
            .find_map(|queue| fs::read_to_string(queue.join(name)).ok())
            .map(|value| value.trim().to_owned())
    }
}

/// Returns true if a loop device over the file, or a partition of it, is in use: mounted, or served. The file itself has no lock
/// then. What this process may not find out is not in use.
pub(crate) fn is_used_by_loop_device(file: &Stat) -> bool {
    let Ok(devices) = fs::read_dir(Path::new(SYS).join("block")) else { return false };
    devices.flatten().any(|device| {
        let backing = fs::read_to_string(device.path().join("loop/backing_file"));
        let identity = |found: &Stat| (found.st_dev, found.st_ino);
        let is_over_it = backing.is_ok_and(|path| {
            stat(path.trim_end_matches('\n')).is_ok_and(|found| identity(&found) == identity(file))
        });
        is_over_it && is_claimed(&Path::new("/dev").join(device.file_name()))
    })
}

/// Returns true if another process or the kernel has a block device, or a part of it, for itself.
fn is_claimed(device: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    matches!(open(device, flags, Mode::empty()), Err(Errno::BUSY))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const DISK: (u32, u32) = (259, 0);
    const PARTITION: (u32, u32) = (259, 3);

    /// A directory that stands for `/sys`, with a drive that has these attributes and a partition.
    fn sys(attributes: &[(&str, &str)]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().expect("a temporary directory");
        let drive = sys.path().join("devices/pci0000:00/nvme/nvme0/nvme0n1");
        fs::create_dir_all(drive.join("nvme0n1p3")).expect("writable");
        fs::create_dir(drive.join("queue")).expect("writable");
        fs::create_dir_all(sys.path().join("dev/block")).expect("writable");
        for (name, value) in attributes {
            fs::write(drive.join("queue").join(name), format!("{value}\n")).expect("writable");
        }
        for ((major, minor), place) in [(DISK, "nvme0n1"), (PARTITION, "nvme0n1/nvme0n1p3")] {
            let target = format!("../../devices/pci0000:00/nvme/nvme0/{place}");
            let link = sys.path().join(format!("dev/block/{major}:{minor}"));
            symlink(target, link).expect("writable");
        }
        sys
    }

    /// A drive and its partition, which has no queue of its own, answer alike.
    #[test]
    fn a_drive_and_its_partition_have_the_attributes_of_the_drive() {
        for (cache, volatile) in
            [("write through", false), ("write back", true), ("something new", true)]
        {
            for (bytes, discards) in [("0", false), ("2199023255040", true)] {
                let sys = sys(&[("write_cache", cache), ("discard_max_bytes", bytes)]);
                for number in [DISK, PARTITION] {
                    let device = BlockDevice { sys: sys.path(), number };
                    let found = (device.has_volatile_cache(), device.discards());
                    assert_eq!(found, (volatile, discards), "{number:?} of {cache}, {bytes}");
                }
            }
        }
    }

    /// Writes to a drive that the kernel reports nothing about are flushed, and nothing is discarded.
    #[test]
    fn a_drive_without_attributes_is_flushed() {
        let sys = sys(&[]);
        for number in [DISK, PARTITION, (8, 0)] {
            let device = BlockDevice { sys: sys.path(), number };
            assert_eq!((device.has_volatile_cache(), device.discards()), (true, false));
        }
    }
}
