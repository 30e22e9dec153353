//! A volume as a file of bytes.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;

use client::Swap;

use crate::{Error, ErrorKind, Volume};

/// Times that a part of a block is tried to be changed while others change the same block.
const SWAPS_MAX: usize = 10_000;

/// A volume as a seekable file of bytes, as long as the volume.
///
/// Whole blocks are read and written as they are. A part of a block is changed by reading the block and
/// replacing it by compare-and-swap, again if another has changed it in between: so writers of different
/// bytes of one block, in whatever processes, do not undo each other's writes. Each block of a write is
/// changed at once; a write of several blocks with parts at its ends is not atomic as a whole.
///
/// A volume whose blocks have metadata is no file of bytes: what is read or written is refused
/// ([`Error::MetadataLeftOut`]).
///
/// Nothing is cached: wrap it in [`std::io::BufReader`] or [`std::io::BufWriter`] for short requests.
#[derive(Clone, Debug)]
pub struct VolumeFile {
    volume: Volume,
    position: u64,
}

impl VolumeFile {
    /// `volume` as a file, at its beginning.
    #[must_use]
    pub fn new(volume: Volume) -> Self {
        Self { volume, position: 0 }
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }
}

impl Volume {
    /// Reads at most `len` bytes from any `offset`: as many as there are up to the volume's end. `each`
    /// gets them in order with their place from the start, and can end it early.
    pub fn read_bytes_with(
        &self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(usize, &[u8]) -> ControlFlow<()>,
    ) -> Result<usize, Error> {
        let left = self.size()?.saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(len);
        if len == 0 {
            return Ok(0);
        }
        let block = u64::from(self.block_size());
        let start = offset - offset % block;
        let end = (offset + len as u64).next_multiple_of(block);
        let before = usize::try_from(offset - start).expect("less than a block");
        let span = usize::try_from(end - start).map_err(|_| too_long(offset, len))?;
        self.read_with(start, span, |at, bytes| {
            // What of the wanted bytes, `before..before + len`, is in this piece.
            let (from, to) = (before.max(at), (before + len).min(at + bytes.len()));
            if from >= to {
                return ControlFlow::Continue(());
            }
            each(from - before, &bytes[from - at..to - at])
        })?;
        Ok(len)
    }

    /// Writes at most `len` bytes to any `offset`: as many as fit before the volume's end. `fill` puts
    /// them into the pieces that it is handed with their place from the start. See [`VolumeFile`] for
    /// what happens at the ends.
    pub fn write_bytes_with(
        &self,
        offset: u64,
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<usize, Error> {
        let left = self.size()?.saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(len);
        let block = self.block_size() as usize;
        let in_block = |at: usize| {
            usize::try_from((offset + at as u64) % block as u64).expect("less than a block")
        };
        let mut at = 0;
        while at < len {
            let (skip, rest) = (in_block(at), len - at);
            let here = offset + at as u64;
            if skip > 0 || rest < block {
                let part = rest.min(block - skip);
                let mut bytes = vec![0; part];
                fill(at, &mut bytes);
                self.change_part(here - skip as u64, skip, &bytes)?;
                at += part;
            } else {
                let whole = rest - rest % block;
                self.write_with(here, whole, |from, to| fill(at + from, to))?;
                at += whole;
            }
        }
        Ok(len)
    }

    /// Puts `bytes` to `skip` in the block at `offset`, and leaves the rest of it as it is.
    fn change_part(&self, offset: u64, skip: usize, bytes: &[u8]) -> Result<(), Error> {
        let mut old = vec![0; self.block_size() as usize];
        let mut unknown = 0;
        for _ in 0..SWAPS_MAX {
            self.read_at(&mut old, offset)?;
            let mut new = old.clone();
            new[skip..skip + bytes.len()].copy_from_slice(bytes);
            match self.compare_and_swap(offset, &old, &new) {
                Ok(Swap::Done) => return Ok(()),
                Ok(Swap::Differs { .. }) => {}
                // Whether done or not: to do it again has the same effect on these bytes.
                Err(Error::OutcomeUnknown(_)) if unknown + 1 < client::SENDS_MAX => unknown += 1,
                Err(error) => return Err(error),
            }
        }
        Err(Error::Contended { offset })
    }
}

fn too_long(offset: u64, len: usize) -> Error {
    Error::OutOfRange { offset, len: len as u64 }
}

impl Read for VolumeFile {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let len = self.volume.read_bytes_with(self.position, to.len(), |at, bytes| {
            to[at..at + bytes.len()].copy_from_slice(bytes);
            ControlFlow::Continue(())
        })?;
        self.position += len as u64;
        Ok(len)
    }
}

impl Write for VolumeFile {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let fill = |at: usize, to: &mut [u8]| to.copy_from_slice(&data[at..at + to.len()]);
        let len = self.volume.write_bytes_with(self.position, data.len(), fill)?;
        if len == 0 && !data.is_empty() {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the volume ends here"));
        }
        self.position += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(self.volume.flush()?)
    }
}

impl Seek for VolumeFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, by) = match to {
            SeekFrom::Start(position) => (position, 0),
            SeekFrom::Current(by) => (self.position, by),
            SeekFrom::End(by) => (self.volume.size()?, by),
        };
        let target = base.checked_add_signed(by);
        self.position = target.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "a position before the beginning")
        })?;
        Ok(self.position)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::InvalidArgument => io::ErrorKind::InvalidInput,
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
            ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
            ErrorKind::Unreachable | ErrorKind::Untrusted | ErrorKind::Unproven => {
                io::ErrorKind::NotConnected
            }
            ErrorKind::NoSpace => io::ErrorKind::StorageFull,
            ErrorKind::Damaged => io::ErrorKind::InvalidData,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::Busy | ErrorKind::InUse => io::ErrorKind::ResourceBusy,
            ErrorKind::OutcomeUnknown
            | ErrorKind::Changed
            | ErrorKind::Closed
            | ErrorKind::Failed => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
