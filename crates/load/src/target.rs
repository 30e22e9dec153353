//! Targets of load.

use std::future::Future;

use client::Volume;
use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceLimits, World};
use units::{BLOCK_SIZE, Lba, LbaRange, Pba, PbaRange};

/// A run of blocks that can be read and written. Cheap to clone; all clones are the same target.
///
/// Requests run concurrently. A completed write is seen by every read that begins later.
pub trait Target: Clone + 'static {
    /// Why a request failed.
    type Error: std::error::Error + 'static;
    /// The data of a read.
    type Data: 'static;

    /// Size in 4 KiB blocks.
    fn blocks(&self) -> u64;

    /// Blocks of the largest request that it takes at once.
    fn request_blocks_max(&self) -> u32 {
        u32::MAX
    }

    /// Reads `range`.
    fn read(
        &self,
        range: LbaRange,
    ) -> impl Future<Output = Result<Self::Data, Self::Error>> + 'static;

    /// Writes `data`, as long as `range`, to `range`.
    fn write(
        &self,
        range: LbaRange,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), Self::Error>> + 'static;

    /// Makes completed writes durable.
    fn flush(&self) -> impl Future<Output = Result<(), Self::Error>> + 'static;

    /// Block `index` of the data of a read, 4 KiB.
    fn block(data: &Self::Data, index: usize) -> &[u8];
}

/// A device on this host, used without a network in between.
#[derive(Clone, Debug)]
pub struct DeviceTarget<D> {
    device: D,
    limits: DeviceLimits,
}

impl<D: Device> DeviceTarget<D> {
    /// All of `device`.
    pub fn new(device: D) -> Self {
        let limits = device.limits();
        Self { device, limits }
    }
}

impl<D: Device> Target for DeviceTarget<D> {
    type Data = Buffer;
    type Error = DeviceError;

    fn blocks(&self) -> u64 {
        self.limits.blocks
    }

    fn read(&self, range: LbaRange) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        let device = self.device.clone();
        async move {
            let blocks = usize::try_from(range.blocks).map_err(|_| out_of_range(range))?;
            device.read(Pba(range.start.0), Buffer::new(blocks)).await
        }
    }

    fn write(
        &self,
        range: LbaRange,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.device.write(Pba(range.start.0), data)
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.device.flush()
    }

    fn block(data: &Buffer, index: usize) -> &[u8] {
        &data.as_bytes()[index * BLOCK_SIZE..][..BLOCK_SIZE]
    }
}

fn out_of_range(range: LbaRange) -> DeviceError {
    DeviceError::OutOfRange { range: PbaRange::new(Pba(range.start.0), range.blocks) }
}

/// The volume's blocks are not 512, 1024, 2048 or 4096 bytes long.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("blocks of {0} bytes do not fit into 4 KiB evenly")]
pub struct UnusualBlockSize(pub u32);

/// A volume over NVMe/TCP.
pub struct VolumeTarget<W: World> {
    volume: Volume<W>,
    /// Blocks of the volume in one of ours.
    factor: u32,
}

impl<W: World> VolumeTarget<W> {
    /// All of `volume`.
    pub fn new(volume: Volume<W>) -> Result<Self, UnusualBlockSize> {
        let block_size = volume.block_size();
        let our_size = u32::try_from(BLOCK_SIZE).expect("4096");
        if block_size == 0 || !our_size.is_multiple_of(block_size) {
            return Err(UnusualBlockSize(block_size));
        }
        Ok(Self { volume, factor: our_size / block_size })
    }

    /// 4 KiB blocks that hold data, as the target says.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn used_blocks(&self) -> Result<u64, client::Error> {
        Ok(self.volume.used_blocks().await?.div_ceil(u64::from(self.factor)))
    }

    fn lba(&self, range: LbaRange) -> Lba {
        Lba(range.start.0 * u64::from(self.factor))
    }
}

impl<W: World> Clone for VolumeTarget<W> {
    fn clone(&self) -> Self {
        Self { volume: self.volume.clone(), factor: self.factor }
    }
}

impl<W: World> Target for VolumeTarget<W> {
    type Data = Buffer;
    type Error = client::Error;

    fn blocks(&self) -> u64 {
        self.volume.capacity() / u64::from(self.factor)
    }

    fn request_blocks_max(&self) -> u32 {
        self.volume.max_transfer_blocks() / self.factor
    }

    fn read(
        &self,
        range: LbaRange,
    ) -> impl Future<Output = Result<Buffer, client::Error>> + 'static {
        let (volume, lba) = (self.volume.clone(), self.lba(range));
        // Too many for the type are too many for the target, which says so.
        let blocks = range.blocks.saturating_mul(u64::from(self.factor));
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        async move { volume.read(lba, blocks).await }
    }

    fn write(
        &self,
        range: LbaRange,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), client::Error>> + 'static {
        let (volume, lba) = (self.volume.clone(), self.lba(range));
        async move { volume.write(lba, data).await }
    }

    fn flush(&self) -> impl Future<Output = Result<(), client::Error>> + 'static {
        let volume = self.volume.clone();
        async move { volume.flush().await }
    }

    fn block(data: &Buffer, index: usize) -> &[u8] {
        &data.as_bytes()[index * BLOCK_SIZE..][..BLOCK_SIZE]
    }
}
