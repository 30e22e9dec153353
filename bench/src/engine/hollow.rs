//! A large device of which only the engine's own blocks take memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::rc::Rc;

use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceLimits};
use units::{BLOCK_SIZE, Pba, PbaRange};

/// The byte of which every block of a tenant is full. No block of the engine begins like this: its nodes and
/// records begin with letters, and the first two bits of a bitmap are set.
pub(super) const TENANT: u8 = 0xA5;
const TENANT_HEAD: [u8; 8] = [TENANT; 8];

/// A device in memory that does not keep tenants' blocks, since it knows them. Cheap to clone; all
/// clones are the same.
#[derive(Clone)]
pub(super) struct HollowDevice {
    blocks: u64,
    /// Blocks of the engine. A block that is not here is a tenant's, or was never written: it reads as the former.
    kept: Rc<RefCell<BTreeMap<u64, Box<[u8]>>>>,
}

impl HollowDevice {
    pub(super) fn new(bytes: u64) -> Self {
        Self { blocks: bytes / BLOCK_SIZE as u64, kept: Rc::default() }
    }

    /// Bytes of the engine's blocks.
    pub(super) fn kept_bytes(&self) -> u64 {
        (self.kept.borrow().len() * BLOCK_SIZE) as u64
    }

    fn fill(&self, pba: Pba, bytes: &mut [u8]) {
        let kept = self.kept.borrow();
        for (index, block) in bytes.chunks_exact_mut(BLOCK_SIZE).enumerate() {
            match kept.get(&(pba.0 + index as u64)) {
                Some(stored) => block.copy_from_slice(stored),
                None => block.fill(TENANT),
            }
        }
    }

    fn store(&self, pba: Pba, bytes: &[u8]) {
        let mut kept = self.kept.borrow_mut();
        for (index, block) in bytes.chunks_exact(BLOCK_SIZE).enumerate() {
            let at = pba.0 + index as u64;
            if block.starts_with(&TENANT_HEAD) {
                kept.remove(&at);
            } else {
                kept.insert(at, block.into());
            }
        }
    }
}

impl Device for HollowDevice {
    fn limits(&self) -> DeviceLimits {
        DeviceLimits { blocks: self.blocks, volatile_cache: false, discards: false, pins: false }
    }

    fn read(
        &self,
        pba: Pba,
        mut buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        self.fill(pba, buffer.as_mut_bytes());
        ready(Ok(buffer))
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.store(pba, data.as_bytes());
        ready(Ok(()))
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        ready(Ok(()))
    }

    fn discard(&self, _: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        ready(Ok(()))
    }
}
