//! A device of any kind behind one type.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceLimits};
use units::{Pba, PbaRange};

type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

/// A device of any kind. A core is compiled once for each type of device: with this one, tests share what is compiled.
#[derive(Clone)]
pub struct AnyDisk(Rc<dyn Erased>);

impl AnyDisk {
    pub fn new(device: impl Device) -> Self {
        Self(Rc::new(device))
    }
}

/// [`Device`] without types of its own.
trait Erased {
    fn limits(&self) -> DeviceLimits;
    fn will_read(&self, range: PbaRange, fetch: &mut dyn FnMut(*const [u8]));
    fn pin(&self, range: PbaRange) -> Option<BufferSlice>;
    fn has_room(&self) -> bool;
    fn read(&self, pba: Pba, buffer: Buffer) -> Boxed<Result<Buffer, DeviceError>>;
    fn write(&self, pba: Pba, data: BufferSlice) -> Boxed<Result<(), DeviceError>>;
    fn write_at_once(
        &self,
        pba: Pba,
        data: &BufferSlice,
        crc: Option<&mut dyn FnMut(u32)>,
    ) -> Option<Result<(), DeviceError>>;
    fn flush(&self) -> Boxed<Result<(), DeviceError>>;
    fn discard(&self, range: PbaRange) -> Boxed<Result<(), DeviceError>>;
    fn allocate(&self, range: PbaRange) -> Boxed<()>;
    fn is_full_below(&self) -> bool;
    fn needs_space_below(&self);
}

impl<D: Device> Erased for D {
    fn limits(&self) -> DeviceLimits {
        Device::limits(self)
    }

    fn will_read(&self, range: PbaRange, fetch: &mut dyn FnMut(*const [u8])) {
        Device::will_read(self, range, fetch);
    }

    fn pin(&self, range: PbaRange) -> Option<BufferSlice> {
        Device::pin(self, range)
    }

    fn has_room(&self) -> bool {
        Device::has_room(self)
    }

    fn read(&self, pba: Pba, buffer: Buffer) -> Boxed<Result<Buffer, DeviceError>> {
        Box::pin(Device::read(self, pba, buffer))
    }

    fn write(&self, pba: Pba, data: BufferSlice) -> Boxed<Result<(), DeviceError>> {
        Box::pin(Device::write(self, pba, data))
    }

    fn write_at_once(
        &self,
        pba: Pba,
        data: &BufferSlice,
        crc: Option<&mut dyn FnMut(u32)>,
    ) -> Option<Result<(), DeviceError>> {
        Device::write_at_once(self, pba, data, crc)
    }

    fn flush(&self) -> Boxed<Result<(), DeviceError>> {
        Box::pin(Device::flush(self))
    }

    fn discard(&self, range: PbaRange) -> Boxed<Result<(), DeviceError>> {
        Box::pin(Device::discard(self, range))
    }

    fn allocate(&self, range: PbaRange) -> Boxed<()> {
        Box::pin(Device::allocate(self, range))
    }

    fn is_full_below(&self) -> bool {
        Device::is_full_below(self)
    }

    fn needs_space_below(&self) {
        Device::needs_space_below(self);
    }
}

impl Device for AnyDisk {
    fn limits(&self) -> DeviceLimits {
        self.0.limits()
    }

    fn will_read(&self, range: PbaRange, mut fetch: impl FnMut(*const [u8])) {
        self.0.will_read(range, &mut fetch);
    }

    fn pin(&self, range: PbaRange) -> Option<BufferSlice> {
        self.0.pin(range)
    }

    fn has_room(&self) -> bool {
        self.0.has_room()
    }

    fn read(
        &self,
        pba: Pba,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        self.0.read(pba, buffer)
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.0.write(pba, data)
    }

    fn write_at_once(
        &self,
        pba: Pba,
        data: &BufferSlice,
        crc: Option<&mut dyn FnMut(u32)>,
    ) -> Option<Result<(), DeviceError>> {
        self.0.write_at_once(pba, data, crc)
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.0.flush()
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.0.discard(range)
    }

    fn allocate(&self, range: PbaRange) -> impl Future<Output = ()> + 'static {
        self.0.allocate(range)
    }

    fn is_full_below(&self) -> bool {
        self.0.is_full_below()
    }

    fn needs_space_below(&self) {
        self.0.needs_space_below();
    }
}
