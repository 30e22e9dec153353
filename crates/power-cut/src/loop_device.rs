//! A file as a block device.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device, which goes with its last user: also if this process is killed.
pub(crate) struct LoopDevice {
    path: PathBuf,
    _open: File,
}

impl LoopDevice {
    pub(crate) fn on(file: &Path, is_direct: bool) -> io::Result<Self> {
        let direct = if is_direct { "--direct-io=on" } else { "--direct-io=off" };
        let made = Command::new("losetup").args(["--find", "--show", direct]).arg(file).output()?;
        if !made.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&made.stderr).into_owned()));
        }
        let path = PathBuf::from(String::from_utf8_lossy(&made.stdout).trim());
        let open = File::open(&path)?;
        // It is in use, so this takes effect when it no longer is.
        let detached = Command::new("losetup").arg("--detach").arg(&path).status()?;
        if !detached.success() {
            return Err(io::Error::other("losetup --detach failed"));
        }
        Ok(Self { path, _open: open })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
