//! Layers: devices before another device, one file for each.

mod fault;
mod fence;
mod timeout;

pub use fault::{Effect, Faulty, Rule, Verb};
pub use fence::{Fence, Fenced};
pub use timeout::TimeoutDevice;
