//! Space that is left in a pool, as hosts are warned of it.

use volume::Capacity;

/// Percentage of a pool that is left, below which it is in need of an administrator.
pub const SPARE_THRESHOLD_PERCENT: u8 = 5;

/// Returns the part of the space that a shard has or may get of which nothing is used, in percent, rounded up.
#[must_use]
pub fn spare_percent(capacity: &Capacity) -> u8 {
    let free = capacity.free + capacity.device_unreserved;
    let all = (capacity.owned + capacity.device_unreserved).max(1);
    u8::try_from((free * 100).div_ceil(all).min(100)).expect("at most 100")
}
