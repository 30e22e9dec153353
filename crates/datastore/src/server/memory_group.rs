//! A control group of the server's own, whose limit bounds its memory together with the kernel's page cache of its data.
//!
//! The group is made below that of the process, so limits of a container or a service manager hold as before. With cgroup v2 that
//! takes a group that has no other processes: the kernel allows processes in the leaves only. A group whose server was killed stays,
//! without processes, and the next server removes it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Names of groups begin with that, and end with the number of the process.
const PREFIX: &str = "farflash-datastore-";

/// The group that this process is in. It moves out, and the group is removed, when this is dropped.
#[derive(Debug)]
pub(crate) struct MemoryGroup {
    directory: PathBuf,
    parent: PathBuf,
    is_v2: bool,
}

impl MemoryGroup {
    /// Makes a group with this limit, and moves the process there.
    pub(super) fn enter(limit: u64) -> io::Result<Self> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let own = own_group(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        let (parent, is_v2) = own.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                "this process is in no group of that controller",
            )
        })?;
        remove_stale(&parent);
        let directory = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&directory)?;
        // Dropped, and with it removed, if anything fails.
        let group = Self { directory, parent, is_v2 };
        if is_v2 {
            group.join(&group.directory)?;
            fs::write(group.parent.join("cgroup.subtree_control"), "+memory")?;
            fs::write(group.directory.join("memory.max"), limit.to_string())?;
        } else {
            fs::write(group.directory.join("memory.limit_in_bytes"), limit.to_string())?;
            group.join(&group.directory)?;
        }
        Ok(group)
    }

    fn join(&self, group: &Path) -> io::Result<()> {
        fs::write(group.join("cgroup.procs"), std::process::id().to_string())
    }

    /// The group's directory.
    pub(super) fn path(&self) -> &Path {
        &self.directory
    }

    /// Memory of its processes, and page cache.
    pub(super) fn used(&self) -> Option<u64> {
        let file = if self.is_v2 { "memory.current" } else { "memory.usage_in_bytes" };
        fs::read_to_string(self.directory.join(file)).ok()?.trim().parse().ok()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        if self.is_v2 {
            // Else the parent takes no process. It fails where other groups need it, which is as it was.
            let _ = fs::write(self.parent.join("cgroup.subtree_control"), "-memory");
        }
        let _ = self.join(&self.parent);
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Removes groups whose server was killed; the kernel keeps those that have processes.
fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The directory of this process's group in the hierarchy that has memory, and whether that is of cgroup v2. The arguments are
/// `/proc/PID/cgroup` and `/proc/PID/mountinfo`.
fn own_group(cgroup: &str, mountinfo: &str) -> Option<(PathBuf, bool)> {
    let group_of = |is_v2: bool| {
        cgroup.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let has = controllers.split(',').any(|controller| controller == "memory");
            (if is_v2 { controllers.is_empty() } else { has }).then_some(path)
        })
    };
    let mount_of = |is_v2: bool| {
        mountinfo.lines().find_map(|line| {
            let (before, behind) = line.split_once(" - ")?;
            let mut before = before.split(' ').skip(3);
            let (root, at) = (before.next()?, before.next()?);
            let mut behind = behind.split(' ');
            let kind = behind.next()?;
            let has = behind.nth(1)?.split(',').any(|option| option == "memory");
            (if is_v2 { kind == "cgroup2" } else { kind == "cgroup" && has }).then_some((root, at))
        })
    };
    // Where both are mounted, a controller is in one of them only: in that of v1 if its hierarchy exists.
    [false, true].into_iter().find_map(|is_v2| {
        let (path, (root, at)) = (group_of(is_v2)?, mount_of(is_v2)?);
        let below = Path::new(path).strip_prefix(root).ok()?;
        Some((Path::new(at).join(below), is_v2))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_the_process_is_found() {
        let v1 = "30 23 0:26 / /cg/memory rw shared:9 - cgroup none rw,memory\n";
        let v2 = "31 23 0:27 / /cg/unified rw shared:9 - cgroup2 none rw,nsdelegate\n";
        let found = |cgroup, mounts: &str| {
            own_group(cgroup, mounts).map(|(path, is_v2)| (path.display().to_string(), is_v2))
        };
        let both = format!("{v1}{v2}");
        assert_eq!(found("4:memory:/a/b\n0::/x\n", &both), Some(("/cg/memory/a/b".into(), false)));
        assert_eq!(found("0::/x/y\n", v2), Some(("/cg/unified/x/y".into(), true)));
        // A container sees its group as the root.
        let container = "31 23 0:27 /docker/1 /cg rw - cgroup2 none rw\n";
        assert_eq!(found("0::/docker/1\n", container), Some(("/cg/".into(), true)));
        assert_eq!(found("0::/docker/2\n", container), None);
        assert_eq!(found("0::/x\n", ""), None);
    }
}
