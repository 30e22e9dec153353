//! A control group of a test, which takes root.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::waiting::until;

/// A control group that goes with this.
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Makes one below the root of the hierarchy that has `controller`; `None` where none can be made.
    pub fn new(controller: &str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let root = hierarchy(controller)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = root.join(format!("farflash-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&directory).ok()?;
        let group = Self(directory);
        group.0.join("cgroup.procs").exists().then_some(group)
    }

    /// Sets a limit, if the group has it under this name.
    pub fn set(&self, file: &str, value: &str) -> bool {
        let path = self.0.join(file);
        path.exists() && std::fs::write(path, value).is_ok()
    }

    /// Words for `sh` by which it joins the group and becomes what follows.
    pub fn join(&self) -> [String; 3] {
        let script = "echo $$ >\"$0/cgroup.procs\" && exec \"$@\"";
        ["-c".to_owned(), script.to_owned(), self.0.to_str().unwrap().to_owned()]
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // What was killed leaves it in its own time.
        until("the control group is empty", || {
            let removed = std::fs::remove_dir(&self.0);
            removed.is_ok() || std::thread::panicking()
        });
    }
}

/// Finds where the hierarchy that has a controller is mounted.
fn hierarchy(controller: &str) -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut found = mounts.lines().filter_map(|line| {
        let (before, behind) = line.split_once(" - ")?;
        let at = PathBuf::from(before.split(' ').nth(4)?);
        let mut behind = behind.split(' ');
        match behind.next()? {
            "cgroup" => {
                let mut options = behind.nth(1)?.split(',');
                options.any(|option| option == controller).then_some(at)
            }
            "cgroup2" => {
                let has = std::fs::read_to_string(at.join("cgroup.controllers")).ok()?;
                let _ = std::fs::write(at.join("cgroup.subtree_control"), format!("+{controller}"));
                has.split_whitespace().any(|name| name == controller).then_some(at)
            }
            _ => None,
        }
    });
    found.next()
}
