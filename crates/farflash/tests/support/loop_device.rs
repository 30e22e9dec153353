//! A block device over a file, which takes root.

use std::path::PathBuf;
use std::process::Command;

use super::Files;

/// A loop device that goes with this.
pub struct LoopDevice {
    path: String,
    /// What is in it.
    pub image: PathBuf,
}

impl LoopDevice {
    /// Over the new file `name`; `None` where none can be made.
    pub fn new(files: &Files, name: &str, bytes: u64) -> Option<Self> {
        let image = files.path(name);
        std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        let made = made.ok().filter(|made| made.status.success())?;
        let path = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        Some(Self { path, image })
    }

    pub fn path(&self) -> &str {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.path]).status();
    }
}
