//! What a flush is worth.

use io_traits::{Device, DeviceError};

use super::Inner;
use super::checkpoint::CheckpointError;
use crate::sabotage::{Sabotage, broken};

/// Why a flush says nothing.
#[derive(Clone, Copy, Debug)]
pub(super) enum FlushError {
    /// The device failed it.
    Device(DeviceError),
    /// The device failed one of another shard, or an earlier one.
    Others,
}

impl From<FlushError> for CheckpointError {
    fn from(error: FlushError) -> Self {
        match error {
            FlushError::Device(error) => Self::Device(error),
            FlushError::Others => Self::Lost,
        }
    }
}

impl<D: Device> Inner<D> {
    /// Flushes, where a completed write needs that to be durable.
    pub(super) async fn flush_if_volatile(&self) -> Result<(), FlushError> {
        if self.volatile { self.flush_outcome(self.device.flush().await) } else { Ok(()) }
    }

    /// What a flush that this shard asked for is worth: nothing if one of the device has failed since it was read back (C5).
    pub(super) fn flush_outcome(&self, flushed: Result<(), DeviceError>) -> Result<(), FlushError> {
        if flushed.is_err() {
            self.extents.note_flush_failure();
        }
        flushed.map_err(FlushError::Device)?;
        let others_failed = self.extents.flush_failures() != self.flush_failures;
        if others_failed && !broken(Sabotage::FlushAlone) {
            return Err(FlushError::Others);
        }
        Ok(())
    }
}
