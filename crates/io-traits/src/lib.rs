//! The seams between logic and world. Production implements them with `reactor`, tests and the
//! simulator with `sim`; everything between runs unchanged on both.
//!
//! - [`Device`]: blocks at rest. [`Stream`] and [`Network`]: bytes in flight. [`Clock`]: time.
//!   [`Spawn`]: more tasks on this core. [`World`]: the last four together.
//! - [`Buffer`] and [`BufferSlice`] carry blocks, [`SendBatch`] carries replies. All are handed over
//!   by value: the kernel may still own one after the future that asked for the I/O is dropped.
//!
//! One core is one thread, so nothing here is `Send`.

mod batch;
mod buffer;
mod device;
mod landing;
mod stream;
mod world;

pub use batch::{Segment, SendBatch};
pub use buffer::{Block, Buffer, BufferSlice, buffer_footprint_bytes, pool_bytes_retained};
pub use device::{Device, DeviceError, DeviceLimits, ERRNO_FILE_SIZE, ERRNOS_READ_ONLY};
pub use landing::Landing;
pub use stream::{Landed, Listener, Network, NetworkError, Stream, StreamError};
pub use world::{Clock, Entropy, Offload, Spawn, World};
