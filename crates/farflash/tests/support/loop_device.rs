//! A file as a block device.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device that goes with this.
pub struct LoopDevice(pub PathBuf);

impl LoopDevice {
    /// `None`, and a word of it, where none can be made.
    pub fn on(file: &Path) -> Option<Self> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        let Some(made) = made.ok().filter(|made| made.status.success()) else {
            eprintln!("no loop device can be made here");
            return None;
        };
        Some(Self(String::from_utf8(made.stdout).unwrap().trim().into()))
    }

    /// What is read from now on is read from the file.
    pub fn forget_what_was_read(&self) {
        assert!(
            Command::new("blockdev").arg("--flushbufs").arg(&self.0).status().unwrap().success()
        );
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
