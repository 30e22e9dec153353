//! Conditions of a device that is served, looked at every second: space below it, the path and the size of its file.
//!
//! - CONDITION-1: a condition is told in the log when it begins and when it ends, in the status of the device while it holds,
//!   and by a metric.
//! - CONDITION-2: a file that its path does not reach is served on: if no other one does, that is the only way to its data.

use std::path::Path;

use control::{DeviceNotice, NoticeKind};
use local_devices::not_opened::MAKE_WRITABLE;
use reactor::{OpenFile, OwnedDevice, PathState};
use rustix::process::{Resource, getrlimit};
use units::{BLOCK_SIZE, ByteLen};
use user_messages::shell;
use volume::{GROW_BLOCKS_MIN, Superblock};

use super::mounts;
use super::served_device::ServedDevice;
use super::state::State;

/// Looks at a device; may wait for its file system.
pub(super) fn look(
    path: &Path,
    device: &OwnedDevice,
    superblock: &Superblock,
) -> Vec<DeviceNotice> {
    let mut notices = Vec::new();
    let mut add = |kind, text| notices.push(DeviceNotice { kind, text });
    if device.look_after_space() {
        add(NoticeKind::NoSpaceBelow, no_space(path));
    }
    if let Some((kind, text)) = device.path_state(path).and_then(|file| path_lost(path, &file)) {
        add(kind, text);
    }
    size(path, device, superblock, &mut add);
    if device.is_read_only_now() {
        let shown = path.display();
        add(
            NoticeKind::ReadOnly,
            format!("{shown} is read-only, so that writes fail: {MAKE_WRITABLE}"),
        );
    }
    if let Some(text) = file_size_limit(path, device, superblock) {
        add(NoticeKind::FileSizeLimit, text);
    }
    notices
}

/// Says that no mark keeps other servers off (DEVICE-OWNER-7).
pub(super) fn unmarked(path: &Path) -> DeviceNotice {
    let text = format!(
        "the mark that keeps other servers off {} cannot be written: do not open the device by another path, or from another \
         machine; it is tried again, and written as soon as there is space for it",
        path.display()
    );
    DeviceNotice { kind: NoticeKind::Unmarked, text }
}

/// Says that the path does not lead to the file that is served, if that is so, and how its data is kept.
fn path_lost(path: &Path, file: &OpenFile) -> Option<(NoticeKind, String)> {
    let shown = path.display();
    let open = format!("/proc/{}/fd/{}", std::process::id(), file.descriptor);
    let save = format!(
        "leave this server running, stop the hosts' writes, and copy the data on this machine with \
         `cp --sparse=always {open} COPY`; then serve COPY instead"
    );
    let has_name = file.links > 0;
    let (kind, text) = match (file.state, has_name) {
        (PathState::Same, _) => return None,
        (PathState::Missing, true) => (
            NoticeKind::FileGone,
            format!(
                "{shown} was moved away while it is served: move the file back; {}",
                where_it_is(path, file)
            ),
        ),
        (PathState::Missing, false) => (
            NoticeKind::FileGone,
            format!(
                "{shown} was deleted while it is served, and is gone when this server ends: {save}"
            ),
        ),
        (PathState::Other, true) => (
            NoticeKind::FileReplaced,
            format!(
                "{shown} is another file now, which the next start would serve, while the one from before is served, and kept under \
                 another name: {}; stop this server, move the file at {shown} away and that one there, and start again",
                where_it_is(path, file)
            ),
        ),
        (PathState::Other, false) => (
            NoticeKind::FileReplaced,
            format!(
                "{shown} is another file now, while the one from before is served, which is gone when this server ends: {save}"
            ),
        ),
    };
    Some((kind, text))
}

/// Says where the file that is served lies, which has a name.
fn where_it_is(path: &Path, file: &OpenFile) -> String {
    let OpenFile { name, inode, .. } = file;
    match name {
        Some(name) => format!("it is {} now", name.display()),
        None => {
            let mount = mounts::mount_of(path).unwrap_or_else(|| "/".into());
            format!("`find {} -xdev -inum {inode}` tells where it is", shell::path(&mount))
        }
    }
}

/// Compares the size with what is used of it.
fn size(
    path: &Path,
    device: &OwnedDevice,
    superblock: &Superblock,
    add: &mut impl FnMut(NoticeKind, String),
) {
    let Some(bytes) = device.bytes_now() else { return };
    let (used, shown) = (superblock.blocks * BLOCK_SIZE as u64, path.display());
    if bytes < used {
        let argument = shell::device(path);
        let lost = ByteLen(used - bytes);
        add(
            NoticeKind::Shortened,
            format!(
                "{shown} was cut off by {lost} while it is served: what lay there is lost, and reads of it fail; stop \
                 the server, make the file {used} bytes long again, and run `farflash fsck --device {argument}`"
            ),
        );
    } else if let Some(unused) = superblock.room_to_grow(bytes / BLOCK_SIZE as u64)
        && unused >= GROW_BLOCKS_MIN
    {
        let unused = ByteLen(unused * BLOCK_SIZE as u64);
        add(
            NoticeKind::UnusedSpace,
            format!(
                "{unused} of {shown} are unused: it has grown since it was formatted; `farflash device grow {}` uses all of it",
                shell::device(path)
            ),
        );
    }
}

/// Says that this process may not write the file to its end, if that is so. Another process may change the limit at any time
/// (`prlimit --pid`), and this one is not told: so the limit is looked at each time, which is a system call that touches neither the
/// device nor its file system.
fn file_size_limit(path: &Path, device: &OwnedDevice, superblock: &Superblock) -> Option<String> {
    if !device.is_file() {
        return None;
    }
    let limit = getrlimit(Resource::Fsize).current?;
    (limit < superblock.blocks * BLOCK_SIZE as u64).then(|| {
        format!(
            "this process may write files of {}, and {} is larger: writes beyond fail; raise the limit \
             (`prlimit --fsize=unlimited --pid {}`; ulimit -f, a unit's LimitFSIZE=)",
            ByteLen(limit),
            path.display(),
            std::process::id()
        )
    })
}

/// Says which file system is full, if it is one.
fn no_space(path: &Path) -> String {
    let mount = mounts::mount_of(path);
    let mount = mount.as_deref().unwrap_or(path).display();
    format!(
        "no space in the file system at {mount}: writes are refused, reads and deallocations go on; make room there, or \
         deallocate or delete something here"
    )
}

impl State {
    /// The files whose data is gone when this process ends, and how to save it (CONDITION-2).
    pub(super) fn lost_at_the_end(&self) -> Option<String> {
        let lost = |notice: &DeviceNotice| {
            matches!(notice.kind, NoticeKind::FileGone | NoticeKind::FileReplaced)
        };
        let all = self.devices.iter().flat_map(ServedDevice::notices);
        all.filter(lost).map(|notice| notice.text).next()
    }
}
