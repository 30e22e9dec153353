//! Whether a file holds anything but zeroes.
//!
//! The engine's probe samples a device, as it must where reading all of it takes hours. A file tells
//! which parts of it were ever written, so that all of a sparse one can be read.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use rustix::io::Errno;

/// Bytes read at most. Beyond them the probe's samples must do.
const SCANNED_BYTES_MAX: u64 = 4 << 30;
const CHUNK_LEN: usize = 1 << 20;

/// The place of the first byte that is not zero in a regular file; `None` if there is none, or if
/// `path` is no regular file.
pub(crate) fn first_data(path: &Path) -> io::Result<Option<u64>> {
    let mut file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut chunk = vec![0; CHUNK_LEN];
    let (mut at, mut scanned) = (0, 0);
    while scanned < SCANNED_BYTES_MAX {
        let Some(start) = seek(&file, rustix::fs::SeekFrom::Data(at))? else { return Ok(None) };
        let Some(end) = seek(&file, rustix::fs::SeekFrom::Hole(start))? else { return Ok(None) };
        at = start;
        file.seek(SeekFrom::Start(start))?;
        while at < end && scanned < SCANNED_BYTES_MAX {
            let want = usize::try_from(end - at).unwrap_or(CHUNK_LEN).min(CHUNK_LEN);
            let got = file.read(&mut chunk[..want])?;
            if got == 0 {
                return Ok(None);
            }
            if let Some(offset) = chunk[..got].iter().position(|byte| *byte != 0) {
                return Ok(Some(at + offset as u64));
            }
            at += got as u64;
            scanned += got as u64;
        }
    }
    Ok(None)
}

/// Where the next written or unwritten part begins; `None` behind the last.
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

    use super::*;

    #[test]
    fn one_byte_in_a_large_sparse_file_is_found() {
        let directory = tempfile::tempdir().expect("a place for files");
        let path = directory.path().join("a");
        let file = File::create(&path).expect("created");
        file.set_len(1 << 40).expect("sized");
        assert_eq!(first_data(&path).expect("readable"), None);
        // Written, but zero: still blank.
        file.write_all_at(&[0; 10_000], 5 << 30).expect("written");
        assert_eq!(first_data(&path).expect("readable"), None);
        let place = (700 << 30) + 12_345;
        file.write_all_at(&[7], place).expect("written");
        assert_eq!(first_data(&path).expect("readable"), Some(place));
    }
}
