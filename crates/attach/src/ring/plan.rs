//! The slots of a ring, by what the kernel demands and what the operator allows.

use crate::window::Limits;

/// Slots of each queue, where the bounds allow that many.
const DEPTH_MAX: usize = 32;
/// Slots that each queue has at least. A request waits for a slot of the CPU that it was made on, and all requests may
/// be made on one: by the thread of a loop device, say.
const DEPTH_MIN: usize = 8;
/// As long as requests are at all: as much as the kernel sends at once unless its limits were raised, and as much as a
/// farflash server writes atomically.
const REQUEST_BYTES: [usize; 4] = [1 << 20, 512 << 10, 256 << 10, 128 << 10];

/// The size of a ring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Plan {
    /// One for each CPU that the kernel may ever use.
    pub(crate) queues: u16,
    /// Slots of each.
    pub(crate) depth: u16,
    /// Bytes of the longest request, for which each slot has room.
    pub(crate) request_bytes: u32,
}

impl Plan {
    /// Returns the plan for so many queues: requests as long as can be, and then as many slots as can be, so that all
    /// slots together are within `limits` (RING-2). `None` if there cannot be enough for each queue.
    pub(crate) fn within(limits: Limits, queues: usize, block: usize) -> Option<Self> {
        let queues = queues.max(1);
        REQUEST_BYTES.into_iter().find_map(|request_bytes| {
            let by_bytes = limits.bytes / (queues * slot_bytes(request_bytes, block));
            let depth = DEPTH_MAX.min(limits.requests / queues).min(by_bytes);
            (depth >= DEPTH_MIN).then_some(Self {
                queues: u16::try_from(queues).ok()?,
                depth: depth as u16,
                request_bytes: request_bytes as u32,
            })
        })
    }

    /// Returns the smallest bounds within which there is a plan for so many queues.
    pub(crate) fn least(queues: usize, block: usize) -> Limits {
        let requests = queues.max(1) * DEPTH_MIN;
        Limits {
            requests,
            bytes: requests * slot_bytes(REQUEST_BYTES[REQUEST_BYTES.len() - 1], block),
        }
    }
}

/// Returns the bytes that a request takes of the window: it may begin and end within blocks.
fn slot_bytes(request_bytes: usize, block: usize) -> usize {
    request_bytes + 2 * block
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const BLOCK: usize = 4096;

    fn plan(requests: usize, bytes: usize, queues: usize) -> Option<(u16, usize)> {
        let plan = Plan::within(Limits { requests, bytes }, queues, BLOCK)?;
        assert_eq!(usize::from(plan.queues), queues);
        Some((plan.depth, plan.request_bytes as usize >> 10))
    }

    #[test]
    fn slots_are_within_the_bounds_of_what_is_under_way() {
        assert_eq!(plan(128, 64 * MIB, 2), Some((31, 1024)));
        assert_eq!(plan(128, 256 * MIB, 2), Some((32, 1024)));
        assert_eq!(plan(16, 64 * MIB, 2), Some((8, 1024)));
        assert_eq!(plan(15, 64 * MIB, 2), None, "seven for each queue");
        assert_eq!(plan(128, 64 * MIB, 16), Some((8, 256)));
        assert_eq!(plan(4096, 64 * MIB, 32), Some((15, 128)));
        assert_eq!(plan(4096, 64 * MIB, 64), None);
        for (requests, bytes, queues) in [(128, 64 * MIB, 2), (100, 33 * MIB, 7), (999, MIB, 1)] {
            let limits = Limits { requests, bytes };
            let Some(plan) = Plan::within(limits, queues, BLOCK) else { continue };
            let slots = usize::from(plan.queues) * usize::from(plan.depth);
            assert!(slots <= requests, "{plan:?}");
            assert!(slots * (plan.request_bytes as usize + 2 * BLOCK) <= bytes, "{plan:?}");
        }
        for queues in [1, 2, 64, 1000] {
            let least = Plan::least(queues, BLOCK);
            assert!(Plan::within(least, queues, BLOCK).is_some());
            let (less, fewer) = (least.bytes - 1, least.requests - 1);
            assert_eq!(Plan::within(Limits { bytes: less, ..least }, queues, BLOCK), None);
            assert_eq!(Plan::within(Limits { requests: fewer, ..least }, queues, BLOCK), None);
        }
    }
}
