//! A disk that takes its time.

use std::cell::Cell;
use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Clock, Device, DeviceError, DeviceLimits};
use sim::{SimDevice, SimWorld};
use units::{Duration, Pba, PbaRange};

/// A disk whose writes and flushes take longer.
#[derive(Clone)]
pub(crate) struct SlowDevice {
    pub(crate) world: SimWorld,
    pub(crate) device: SimDevice,
    pub(crate) write: Duration,
    pub(crate) flush: Duration,
    /// Number of flushes.
    pub(crate) flushes: Rc<Cell<u64>>,
}

impl Device for SlowDevice {
    fn limits(&self) -> DeviceLimits {
        DeviceLimits { pins: false, ..self.device.limits() }
    }

    fn read(
        &self,
        pba: Pba,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        let this = self.clone();
        async move { this.device.read(pba, buffer).await }
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let this = self.clone();
        async move {
            this.world.sleep_until(this.world.now() + this.write).await;
            this.device.write(pba, data).await
        }
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let this = self.clone();
        this.flushes.set(this.flushes.get() + 1);
        async move {
            this.world.sleep_until(this.world.now() + this.flush).await;
            this.device.flush().await
        }
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let this = self.clone();
        async move { this.device.discard(range).await }
    }
}
