//! A device of any kind, so that one core can serve several kinds.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use dataplane::Watched;
use device::{MemDevice, ModelDevice};
use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceGeometry};
use pin_project_lite::pin_project;
use reactor::{FileDevice, Handle};
use units::{Pba, PbaRange};

use super::fence::Fenced;

/// A device of any kind. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(super) enum AnyDevice {
    /// Behind the fence, too, when its turn has come: what waits for room passed the one before that.
    File(Watched<Fenced<FileDevice>, Handle>),
    Memory(MemDevice),
    Model(ModelDevice<MemDevice, Handle>),
}

impl AnyDevice {
    /// A file or drive by another way; `None` for what has only one.
    pub(super) fn renewed(&self, file: Fenced<FileDevice>) -> Option<Self> {
        match self {
            Self::File(device) => Some(Self::File(device.renewed(file))),
            Self::Memory(_) | Self::Model(_) => None,
        }
    }
}

pin_project! {
    /// A request to one of them. An `async` block would keep room for it twice, and with it every command.
    #[project = Projected]
    enum Request<F, M, S> {
        File { #[pin] request: F },
        Memory { #[pin] request: M },
        Model { #[pin] request: S },
    }
}

impl<T, F, M, S> Future for Request<F, M, S>
where
    F: Future<Output = T>,
    M: Future<Output = T>,
    S: Future<Output = T>,
{
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match self.project() {
            Projected::File { request } => request.poll(context),
            Projected::Memory { request } => request.poll(context),
            Projected::Model { request } => request.poll(context),
        }
    }
}

impl Device for AnyDevice {
    fn geometry(&self) -> DeviceGeometry {
        match self {
            Self::File(device) => device.geometry(),
            Self::Memory(device) => device.geometry(),
            Self::Model(device) => device.geometry(),
        }
    }

    fn will_read(&self, range: PbaRange, fetch: impl FnMut(*const [u8])) {
        match self {
            Self::File(device) => device.will_read(range, fetch),
            Self::Memory(device) => device.will_read(range, fetch),
            Self::Model(device) => device.will_read(range, fetch),
        }
    }

    fn pins(&self) -> bool {
        match self {
            Self::File(device) => device.pins(),
            Self::Memory(device) => device.pins(),
            Self::Model(device) => device.pins(),
        }
    }

    fn pin(&self, range: PbaRange) -> Option<BufferSlice> {
        match self {
            Self::File(device) => device.pin(range),
            Self::Memory(device) => device.pin(range),
            Self::Model(device) => device.pin(range),
        }
    }

    fn has_room(&self) -> bool {
        match self {
            Self::File(device) => device.has_room(),
            Self::Memory(device) => device.has_room(),
            Self::Model(device) => device.has_room(),
        }
    }

    fn read(
        &self,
        pba: Pba,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        match self {
            Self::File(device) => Request::File { request: device.read(pba, buffer) },
            Self::Memory(device) => Request::Memory { request: device.read(pba, buffer) },
            Self::Model(device) => Request::Model { request: device.read(pba, buffer) },
        }
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        match self {
            Self::File(device) => Request::File { request: device.write(pba, data) },
            Self::Memory(device) => Request::Memory { request: device.write(pba, data) },
            Self::Model(device) => Request::Model { request: device.write(pba, data) },
        }
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        match self {
            Self::File(device) => Request::File { request: device.flush() },
            Self::Memory(device) => Request::Memory { request: device.flush() },
            Self::Model(device) => Request::Model { request: device.flush() },
        }
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        match self {
            Self::File(device) => Request::File { request: device.discard(range) },
            Self::Memory(device) => Request::Memory { request: device.discard(range) },
            Self::Model(device) => Request::Model { request: device.discard(range) },
        }
    }

    fn allocate(&self, range: PbaRange) -> impl Future<Output = ()> + 'static {
        match self {
            Self::File(device) => Request::File { request: device.allocate(range) },
            Self::Memory(device) => Request::Memory { request: device.allocate(range) },
            Self::Model(device) => Request::Model { request: device.allocate(range) },
        }
    }

    fn is_full_below(&self) -> bool {
        match self {
            Self::File(device) => device.is_full_below(),
            Self::Memory(_) | Self::Model(_) => false,
        }
    }

    fn needs_space_below(&self) {
        if let Self::File(device) = self {
            device.needs_space_below();
        }
    }
}
