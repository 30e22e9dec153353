//! A device of any kind, so that one core can serve several kinds.

use std::future::Future;

use dataplane::Watched;
use device::{MemDevice, ModelDevice};
use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceGeometry};
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

/// A request to one of them that has begun.
enum Begun<F, M, S> {
    File(F),
    Memory(M),
    Model(S),
}

impl<F, M, S> Begun<F, M, S> {
    async fn done<T>(self) -> T
    where
        F: Future<Output = T>,
        M: Future<Output = T>,
        S: Future<Output = T>,
    {
        match self {
            Self::File(request) => request.await,
            Self::Memory(request) => request.await,
            Self::Model(request) => request.await,
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
        let begun = match self {
            Self::File(device) => Begun::File(device.read(pba, buffer)),
            Self::Memory(device) => Begun::Memory(device.read(pba, buffer)),
            Self::Model(device) => Begun::Model(device.read(pba, buffer)),
        };
        begun.done()
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let begun = match self {
            Self::File(device) => Begun::File(device.write(pba, data)),
            Self::Memory(device) => Begun::Memory(device.write(pba, data)),
            Self::Model(device) => Begun::Model(device.write(pba, data)),
        };
        begun.done()
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let begun = match self {
            Self::File(device) => Begun::File(device.flush()),
            Self::Memory(device) => Begun::Memory(device.flush()),
            Self::Model(device) => Begun::Model(device.flush()),
        };
        begun.done()
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let begun = match self {
            Self::File(device) => Begun::File(device.discard(range)),
            Self::Memory(device) => Begun::Memory(device.discard(range)),
            Self::Model(device) => Begun::Model(device.discard(range)),
        };
        begun.done()
    }
}
