//! Limits of the control groups that this process is in, as a container runtime or service manager sets them.
//!
//! A limit of any ancestor holds, too. What lies above the root of a container cannot be seen there; memory of cgroup v1
//! is the exception, where the kernel tells the smallest of all.

use std::fs;
use std::path::{Path, PathBuf};

/// A limit, and the file that has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limit {
    /// The most that is allowed.
    pub value: u64,
    /// The file that says so.
    pub file: PathBuf,
}

/// Values from here on are cgroup v1's way to say that memory has no limit.
const UNLIMITED_V1: u64 = 1 << 62;

/// The smallest limit on memory, in bytes.
pub fn memory() -> Option<Limit> {
    Groups::of_this_process().memory()
}

/// The smallest limit on processes and threads together.
pub fn tasks() -> Option<Limit> {
    Groups::of_this_process().tasks()
}

/// The groups of a process, one in each hierarchy.
#[derive(Debug, Default)]
struct Groups(Vec<Group>);

#[derive(Debug, Eq, PartialEq)]
struct Group {
    /// The controllers of a hierarchy of cgroup v1; none for that of v2.
    controllers: Vec<String>,
    directory: PathBuf,
    /// The root of the hierarchy, as far as it can be seen.
    top: PathBuf,
}

impl Groups {
    fn of_this_process() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
    }

    /// Reads `/proc/PID/cgroup` and `/proc/PID/mountinfo`.
    fn parse(cgroup: &str, mountinfo: &str) -> Self {
        let groups = cgroup.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let controllers: Vec<String> =
                controllers.split(',').filter(|it| !it.is_empty()).map(str::to_owned).collect();
            let mount =
                mountinfo.lines().filter_map(Mount::parse).find(|it| it.has(&controllers))?;
            let below = Path::new(path).strip_prefix(&mount.root).unwrap_or(Path::new(""));
            // A path above the root of a namespace is shown with dots.
            let is_plain = |part| matches!(part, std::path::Component::Normal(_));
            let below = if below.components().all(is_plain) { below } else { Path::new("") };
            Some(Group { controllers, directory: mount.at.join(below), top: mount.at })
        });
        Self(groups.collect())
    }

    fn memory(&self) -> Option<Limit> {
        let v1 = self.with("memory").into_iter().flat_map(|group| {
            let limits = group.limits("memory.limit_in_bytes");
            limits.chain(group.hierarchical()).filter(|limit| limit.value < UNLIMITED_V1)
        });
        let v2 = self
            .v2()
            .into_iter()
            .flat_map(|group| group.limits("memory.max").chain(group.limits("memory.high")));
        v1.chain(v2).min_by_key(|limit| limit.value)
    }

    fn tasks(&self) -> Option<Limit> {
        let groups = self.with("pids").into_iter().chain(self.v2());
        groups.flat_map(|group| group.limits("pids.max")).min_by_key(|limit| limit.value)
    }

    fn with(&self, controller: &str) -> Option<&Group> {
        self.0.iter().find(|group| group.controllers.iter().any(|it| it == controller))
    }

    fn v2(&self) -> Option<&Group> {
        self.0.iter().find(|group| group.controllers.is_empty())
    }
}

impl Group {
    /// The limits in `file` of the group and its ancestors. What is no number is none.
    fn limits<'a>(&'a self, file: &'a str) -> impl Iterator<Item = Limit> + 'a {
        let ancestors = self.directory.ancestors().take_while(|it| it.starts_with(&self.top));
        ancestors.filter_map(move |directory| {
            let file = directory.join(file);
            let value = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
            Some(Limit { value, file })
        })
    }

    /// The smallest limit of all ancestors of cgroup v1, also of those above the root of a container.
    fn hierarchical(&self) -> Option<Limit> {
        let file = self.directory.join("memory.stat");
        let text = fs::read_to_string(&file).ok()?;
        let value =
            text.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit "))?;
        Some(Limit { value: value.trim().parse().ok()?, file })
    }
}

/// The mount of a hierarchy.
struct Mount {
    /// The group that is its root there.
    root: PathBuf,
    at: PathBuf,
    kind: String,
    options: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (before, behind) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut behind = behind.split(' ');
        Some(Self {
            root: before.next()?.into(),
            at: before.next()?.into(),
            kind: behind.next()?.to_owned(),
            options: behind.nth(1).unwrap_or_default().to_owned(),
        })
    }

    fn has(&self, controllers: &[String]) -> bool {
        match controllers {
            [] => self.kind == "cgroup2",
            all => {
                self.kind == "cgroup"
                    && self.options.split(',').any(|it| all.iter().any(|c| c == it))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(root: &str, at: &Path, kind: &str, options: &str) -> String {
        format!(
            "30 23 0:26 {root} {} rw,nosuid shared:9 - {kind} none rw,{options}\n",
            at.display()
        )
    }

    fn write(directory: &Path, file: &str, text: &str) {
        fs::create_dir_all(directory).expect("a directory");
        fs::write(directory.join(file), text).expect("written");
    }

    #[test]
    fn the_smallest_limit_of_a_group_and_its_ancestors_counts() {
        let directory = tempfile::tempdir().expect("a directory");
        let (v1, v2) = (directory.path().join("memory"), directory.path().join("unified"));
        let mounts = mount("/", &v1, "cgroup", "memory") + &mount("/", &v2, "cgroup2", "");
        let groups = || Groups::parse("4:memory:/a/b/c\n0::/x/y/z\n", &mounts);
        assert_eq!(groups().memory(), None);
        write(&v1.join("a/b/c"), "memory.limit_in_bytes", "9223372036854771712\n");
        write(&v2.join("x/y/z"), "memory.max", "max\n");
        assert_eq!(groups().memory(), None, "that is how both say that there is none");
        write(&v1.join("a"), "memory.limit_in_bytes", "300\n");
        assert_eq!(groups().memory().map(|limit| limit.value), Some(300), "of an ancestor");
        write(&v2.join("x"), "memory.max", "200\n");
        assert_eq!(groups().memory().map(|limit| limit.value), Some(200), "of v2");
        write(&v1.join("a/b/c"), "memory.stat", "cache 7\nhierarchical_memory_limit 100\n");
        assert_eq!(groups().memory().map(|limit| limit.value), Some(100), "of who cannot be seen");
        write(&v2.join("x/y"), "memory.high", "50\n");
        let found = groups().memory();
        assert_eq!(found, Some(Limit { value: 50, file: v2.join("x/y/memory.high") }));
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = directory.path();
        write(at, "pids.max", "20\n");
        write(at, "memory.max", "1000\n");
        // With a namespace of its own; without; and in a group beside the one that is its root.
        for (cgroup, root) in [
            ("0::/\n", "/"),
            ("0::/docker/1\n", "/docker/1"),
            ("0::/../2\n", "/"),
            ("0::/d/2\n", "/d/1"),
        ] {
            let groups = Groups::parse(cgroup, &mount(root, at, "cgroup2", "nsdelegate"));
            assert_eq!(groups.tasks().map(|limit| limit.value), Some(20), "{cgroup}");
            assert_eq!(groups.memory().map(|limit| limit.value), Some(1000), "{cgroup}");
        }
        assert!(Groups::parse("0::/\n", "").tasks().is_none(), "nothing is mounted");
    }
}
