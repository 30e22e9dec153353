//! Finds out if a device holds anything but zeroes: all of it is read.
//!
//! A file tells which of its parts were ever written, so that a sparse one is read quickly. A block
//! device cannot tell, and takes as long as it takes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use io_traits::{Buffer, Device, DeviceError};
use rustix::io::Errno;
use units::{BLOCK_SIZE, Lba, LbaRange, Pba};

/// Bytes read at once: enough to keep a drive busy.
const CHUNK_LEN: usize = 4 << 20;
static ZEROES: [u8; CHUNK_LEN] = [0; CHUNK_LEN];

/// The length of what lies at `path` if it is a regular file, which tells what was written to it.
pub fn file_len(path: &Path) -> io::Result<Option<u64>> {
    let metadata = std::fs::metadata(path)?;
    Ok(metadata.is_file().then_some(metadata.len()))
}

/// The place of the first byte within `bytes` of a regular file that is not zero. `passed` is told
/// how many bytes lie behind, of how many.
pub fn first_in_file(
    path: &Path,
    bytes: Range<u64>,
    mut passed: impl FnMut(u64, u64),
) -> io::Result<Option<u64>> {
    let mut file = File::open(path)?;
    let mut chunk = vec![0; CHUNK_LEN];
    let total = bytes.end.saturating_sub(bytes.start);
    let mut at = bytes.start;
    while at < bytes.end {
        let Some(start) = seek(&file, rustix::fs::SeekFrom::Data(at))? else { return Ok(None) };
        let Some(end) = seek(&file, rustix::fs::SeekFrom::Hole(start))? else { return Ok(None) };
        let end = end.min(bytes.end);
        at = start;
        file.seek(SeekFrom::Start(start))?;
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(CHUNK_LEN).min(CHUNK_LEN);
            let got = file.read(&mut chunk[..want])?;
            if got == 0 {
                return Ok(None);
            }
            if let Some(offset) = first_nonzero(&chunk[..got]) {
                return Ok(Some(at + offset as u64));
            }
            at += got as u64;
            passed(at - bytes.start, total);
        }
    }
    Ok(None)
}

/// The same for any device, by reading all of `range`.
pub async fn first_on_device<D: Device>(
    device: &D,
    range: LbaRange,
    mut passed: impl FnMut(u64, u64),
) -> Result<Option<u64>, DeviceError> {
    let chunk_blocks = (CHUNK_LEN / BLOCK_SIZE) as u64;
    let end = range.end();
    let mut at = range.start;
    while at < end {
        let blocks = chunk_blocks.min(end.0 - at.0);
        let buffer = Buffer::new(usize::try_from(blocks).expect("at most a chunk"));
        let read = device.read(Pba(at.0), buffer).await?;
        if let Some(offset) = first_nonzero(read.as_bytes()) {
            return Ok(Some(at.0 * BLOCK_SIZE as u64 + offset as u64));
        }
        at = Lba(at.0 + blocks);
        passed(at.0 - range.start.0, range.blocks);
    }
    Ok(None)
}

fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    // Nearly all are zero: a comparison of whole chunks is many times faster than a search.
    if bytes == &ZEROES[..bytes.len()] {
        return None;
    }
    bytes.iter().position(|byte| *byte != 0)
}

/// Returns the beginning of the next written or unwritten part; `None` behind the last.
fn seek(file: &File, to: rustix::fs::SeekFrom) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, to) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use reactor::{CoreConfig, OpenOptions, OwnedDevice};

    use super::*;

    const TIB: u64 = 1 << 40;

    #[test]
    fn one_byte_in_a_large_sparse_file_is_found() {
        let directory = tempfile::tempdir().expect("a place for files");
        let path = directory.path().join("a");
        let file = File::create(&path).expect("created");
        file.set_len(TIB).expect("sized");
        let first = |bytes| first_in_file(&path, bytes, |_, _| {}).expect("readable");
        assert_eq!(first(0..TIB), None);
        // Written, but zero: still blank.
        file.write_all_at(&[0; 10_000], 5 << 30).expect("written");
        assert_eq!(first(0..TIB), None);
        let place = (700 << 30) + 12_345;
        file.write_all_at(&[7], place).expect("written");
        assert_eq!(first(0..TIB), Some(place));
        assert_eq!(first(place..place + 1), Some(place));
        assert_eq!(first(0..place), None);
        assert_eq!(first(place + 1..TIB), None);
    }

    /// Method: one byte in a place between those that samples would look at.
    #[test]
    fn one_byte_anywhere_on_a_device_is_found() {
        const LEN: u64 = 64 << 20;
        let directory = tempfile::tempdir().expect("a place for files");
        let path = directory.path().join("a");
        let file = File::create(&path).expect("created");
        file.set_len(LEN).expect("sized");
        let first = |blocks: Range<u64>| {
            let device = OwnedDevice::open(&path, OpenOptions::default()).expect("free");
            let range = LbaRange::new(Lba(blocks.start), blocks.end - blocks.start);
            let main = |handle| async move {
                let device = device.attach(&handle);
                let mut passed = Vec::new();
                let found = first_on_device(&device, range, |done, of| passed.push((done, of)));
                let found = found.await;
                (found.expect("readable"), passed)
            };
            reactor::run_on_current_thread(&CoreConfig::default(), main).expect("a core")
        };
        let blocks = LEN / BLOCK_SIZE as u64;
        let (found, passed) = first(0..blocks);
        assert_eq!((found, passed.last()), (None, Some(&(blocks, blocks))));
        let place = (33 << 20) + 4_097;
        file.write_all_at(&[1], place).expect("written");
        assert_eq!(first(0..blocks).0, Some(place));
        assert_eq!(first(0..place / BLOCK_SIZE as u64).0, None);
    }
}
