//! A file as a block device, which takes root.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Files;

/// A loop device that goes with this.
pub struct LoopDevice {
    path: String,
    /// The file below it.
    pub image: PathBuf,
}

impl LoopDevice {
    /// Over the new file `name`; `None` where none can be made.
    #[allow(dead_code, reason = "not all tests make their file so")]
    pub fn new(files: &Files, name: &str, bytes: u64) -> Option<Self> {
        let image = files.path(name);
        std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        Self::on(&image)
    }

    /// Over a file that is there; `None` where none can be made.
    pub fn on(image: &Path) -> Option<Self> {
        Self::with(image, "--partscan")
    }

    /// Over a file that is there, past the page cache and with many requests at a time; `None` where none can be made.
    #[allow(dead_code, reason = "not all tests need it")]
    pub fn directly_on(image: &Path) -> Option<Self> {
        Self::with(image, "--direct-io=on")
    }

    fn with(image: &Path, option: &str) -> Option<Self> {
        let made = Command::new("losetup").args(["--find", "--show", option]).arg(image).output();
        let made = made.ok().filter(|made| made.status.success())?;
        let path = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        // The kernel keeps that a device was made read-only when its file goes.
        let made_writable = Command::new("blockdev").args(["--setrw", &path]).status();
        assert!(made_writable.unwrap().success());
        Some(Self { path, image: image.to_owned() })
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Makes the file larger, and the device with it.
    #[allow(dead_code, reason = "not all tests need it")]
    pub fn grow(&self, bytes: u64) {
        let file = std::fs::File::options().write(true).open(&self.image).unwrap();
        file.set_len(bytes).unwrap();
        let grown = Command::new("losetup").args(["--set-capacity", &self.path]).status();
        assert!(grown.unwrap().success());
    }

    /// Later reads are read from the file.
    #[allow(dead_code, reason = "not all tests need it")]
    pub fn forget_what_was_read(&self) {
        let flushed = Command::new("blockdev").arg("--flushbufs").arg(&self.path).status();
        assert!(flushed.unwrap().success());
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("blockdev").args(["--setrw", &self.path]).status();
        let _ = Command::new("losetup").args(["--detach", &self.path]).status();
    }
}
