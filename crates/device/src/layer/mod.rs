//! Layers: devices before another device, one file for each.

mod fence;
mod timeout;

pub use fence::{Fence, Fenced};
pub use timeout::TimeoutDevice;
