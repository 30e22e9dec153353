//! A file system that hangs when told to, and one in memory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

/// A small ext4 of its own, which can be made to hang: on a loop device, which takes root.
pub struct FileSystem(PathBuf);

impl FileSystem {
    /// At `mount` in a directory of the test; `None` where nothing can be mounted.
    pub fn new(files: &Path) -> Option<Self> {
        Self::made_by("mkfs.ext4", files, 400 << 20)
    }

    /// The same, of a few MiB, and of a kind that cannot reserve space.
    #[allow(dead_code, reason = "not all tests need it")]
    pub fn without_fallocate(files: &Path) -> Option<Self> {
        Self::made_by("mkfs.ext2", files, 4 << 20)
    }

    fn made_by(mkfs: &str, files: &Path, bytes: u64) -> Option<Self> {
        let (image, mount) = (files.join("image"), files.join("mount"));
        std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        std::fs::create_dir(&mount).unwrap();
        let done = |command: &str, words: &[&std::ffi::OsStr]| {
            let outcome = Command::new(command).args(words).output();
            outcome.is_ok_and(|outcome| outcome.status.success())
        };
        let made = done(mkfs, &["-q".as_ref(), image.as_os_str()])
            && done(
                "mount",
                &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), mount.as_os_str()],
            );
        made.then_some(Self(mount))
    }

    /// Writes wait for as long as the returned value lives.
    pub fn hang(&self) -> Hanging<'_> {
        let status = Command::new("fsfreeze").arg("--freeze").arg(&self.0).status();
        assert!(status.unwrap().success());
        Hanging(self)
    }

    /// It does not hang for longer than that, so that what waits for it in vain ends, and can be seen to have waited; as
    /// long as the answer lives.
    pub fn hang_at_most(&self, limit: Duration) -> Limit {
        let (mount, (ends, end)) = (self.0.clone(), mpsc::channel());
        std::thread::spawn(move || {
            if end.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = Command::new("fsfreeze").arg("--unfreeze").arg(mount).status();
            }
        });
        Limit(ends)
    }
}

/// The end of a limit to what hangs.
pub struct Limit(
    #[expect(dead_code, reason = "its end says that the limit is over")] mpsc::Sender<()>,
);

/// Something that hangs. A process that waits for it cannot even be killed.
pub struct Hanging<'a>(&'a FileSystem);

impl Drop for Hanging<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(&self.0.0).status();
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

/// A file system in memory, which takes root.
pub struct InMemory(PathBuf);

impl InMemory {
    /// Mounts one of a size, such as `64k`, at a directory; `None` where nothing can be mounted.
    pub fn at(mount: &Path, size: &str) -> Option<Self> {
        let options = format!("size={size}");
        let mut command = Command::new("mount");
        let status = command.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(mount).status();
        status.is_ok_and(|status| status.success()).then(|| Self(mount.to_owned()))
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

/// A directory that is mounted in another place, too, as long as this lives.
pub struct BindMount(PathBuf);

impl BindMount {
    /// `options` are those of the mount, such as `ro`; `None` where nothing can be mounted.
    pub fn new(of: &Path, at: &Path, options: &str) -> Option<Self> {
        let mount = |words: &[&str], paths: &[&Path]| {
            let status = Command::new("mount").args(words).args(paths).status();
            status.is_ok_and(|status| status.success())
        };
        let made = mount(&["--bind"], &[of, at]).then(|| Self(at.to_owned()))?;
        let remount = format!("remount,bind,{options}");
        mount(&["-o", &remount], &[at]).then_some(made)
    }
}

impl Drop for BindMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}
