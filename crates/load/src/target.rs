//! What load can be put on.

use std::future::Future;

use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceGeometry};
use units::{BLOCK_SIZE, LbaRange, Pba, PbaRange};

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
    geometry: DeviceGeometry,
}

impl<D: Device> DeviceTarget<D> {
    /// All of `device`.
    pub fn new(device: D) -> Self {
        let geometry = device.geometry();
        Self { device, geometry }
    }
}

impl<D: Device> Target for DeviceTarget<D> {
    type Data = Buffer;
    type Error = DeviceError;

    fn blocks(&self) -> u64 {
        self.geometry.blocks
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
