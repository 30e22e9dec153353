//! One volume.

use io_traits::{BufferSlice, Device};
use units::{Lba, LbaRange};
use uuid::Uuid;

use crate::shard::Shard;
use crate::{CompareError, ReadData, VolumeError, VolumeStats};

/// A thin volume. A cheap handle; clones are the same volume.
///
/// - Requests run concurrently. One that succeeded is seen by every later one.
/// - Writes, unmaps and compare-and-writes that overlap take effect one after the other, in the
///   order in which they were first polled, each as a whole. A read sees each of them wholly or not
///   at all.
/// - What was acknowledged survives a crash; what was not is there wholly or not at all.
/// - A future dropped half way leaves its request to finish by itself.
pub struct Volume<D: Device> {
    shard: Shard<D>,
}

impl<D: Device> Clone for Volume<D> {
    fn clone(&self) -> Self {
        Self { shard: self.shard.clone() }
    }
}

impl<D: Device> Volume<D> {
    /// Identity.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        Uuid::nil()
    }

    /// Name for people.
    #[must_use]
    pub fn name(&self) -> String {
        String::new()
    }

    /// Size in blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        0
    }

    /// Blocks that hold data.
    #[must_use]
    pub fn mapped_blocks(&self) -> u64 {
        0
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> VolumeStats {
        VolumeStats::default()
    }

    /// The shard it lies in.
    #[must_use]
    pub fn shard(&self) -> &Shard<D> {
        &self.shard
    }

    /// Reads blocks, each checked against its checksum. Unwritten ones are zeroes.
    ///
    /// # Errors
    /// Out of range, corrupt, or the device failed.
    pub async fn read(&self, range: LbaRange) -> Result<ReadData, VolumeError> {
        Err(VolumeError::OutOfRange { range, blocks: self.blocks() })
    }

    /// Reads and checks blocks, and returns nothing of them.
    ///
    /// # Errors
    /// As [`Volume::read`].
    pub async fn verify(&self, range: LbaRange) -> Result<(), VolumeError> {
        self.read(range).await.map(drop)
    }

    /// Writes whole blocks from `lba` on, atomically, up to [`crate::WRITE_BLOCKS_MAX`] of them.
    /// Durable when it returns. `crcs`: CRC-32C of each block, if the caller has verified them.
    ///
    /// # Errors
    /// Out of range, no space, the device failed, or the journal is lost.
    pub async fn write(
        &self,
        lba: Lba,
        data: BufferSlice,
        crcs: Option<&[u32]>,
    ) -> Result<(), VolumeError> {
        let _ = (lba, data, crcs);
        Err(VolumeError::Deleted)
    }

    /// Deallocates blocks, atomically, however many: they read as zeroes. Durable when it returns;
    /// for large ranges the space comes back in the background.
    ///
    /// # Errors
    /// Out of range, or the journal is lost.
    pub async fn unmap(&self, range: LbaRange) -> Result<(), VolumeError> {
        let _ = range;
        Err(VolumeError::Deleted)
    }

    /// Every acknowledged write is durable already: does nothing.
    ///
    /// # Errors
    /// None today.
    pub async fn flush(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    /// Compares blocks with `data`.
    ///
    /// # Errors
    /// They differ, or as [`Volume::read`].
    pub async fn compare(&self, lba: Lba, data: BufferSlice) -> Result<(), CompareError> {
        let _ = (lba, data);
        Ok(())
    }

    /// Compares blocks with `expected` and, if they are equal, writes `data` there; nothing comes
    /// between. Both have the same length.
    ///
    /// # Errors
    /// They differ, or as [`Volume::read`] and [`Volume::write`].
    pub async fn compare_and_write(
        &self,
        lba: Lba,
        expected: BufferSlice,
        data: BufferSlice,
    ) -> Result<(), CompareError> {
        let _ = (lba, expected, data);
        Ok(())
    }

    /// Grows or shrinks the volume. What lies beyond the new end is gone for good.
    ///
    /// # Errors
    /// The size is out of bounds, or the journal is lost.
    pub async fn resize(&self, blocks: u64) -> Result<(), VolumeError> {
        let _ = blocks;
        Err(VolumeError::Deleted)
    }
}
