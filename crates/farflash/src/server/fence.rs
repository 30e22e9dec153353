//! A gate before a device that can be shut for good.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceGeometry};
use units::{Pba, PbaRange};

/// Shuts a device for all cores. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Fence(Arc<AtomicBool>);

impl Fence {
    /// From now on no request begins.
    pub(super) fn shut(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_shut(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A device behind a fence.
#[derive(Clone)]
pub(super) struct Fenced<D> {
    device: D,
    fence: Fence,
}

impl<D: Device> Fenced<D> {
    pub(super) fn new(device: D, fence: Fence) -> Self {
        Self { device, fence }
    }

    /// The device, if requests may begin.
    fn open(&self) -> Option<&D> {
        (!self.fence.is_shut()).then_some(&self.device)
    }
}

async fn done<T>(
    begun: Option<impl Future<Output = Result<T, DeviceError>>>,
) -> Result<T, DeviceError> {
    match begun {
        Some(request) => request.await,
        None => Err(DeviceError::Gone),
    }
}

impl<D: Device> Device for Fenced<D> {
    fn geometry(&self) -> DeviceGeometry {
        self.device.geometry()
    }

    fn will_read(&self, range: PbaRange) {
        if let Some(device) = self.open() {
            device.will_read(range);
        }
    }

    fn pin(&self, range: PbaRange) -> Option<BufferSlice> {
        self.open().and_then(|device| device.pin(range))
    }

    fn read(
        &self,
        pba: Pba,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        done(self.open().map(|device| device.read(pba, buffer)))
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        done(self.open().map(|device| device.write(pba, data)))
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        done(self.open().map(|device| device.flush()))
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        done(self.open().map(|device| device.discard(range)))
    }
}
