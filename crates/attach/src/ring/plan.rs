//! The slots of a ring, by what the kernel demands and what the operator allows.

use crate::window::Limits;

/// Slots of each queue, where the bounds allow that many. A request waits for a slot of the CPU that it was made on.
const DEPTH_MAX: usize = 32;
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
    /// slots together are within `limits` (RING-2). `None` if there cannot be one for each queue.
    pub(crate) fn within(limits: Limits, queues: usize, block: usize) -> Option<Self> {
        let queues = queues.max(1);
        REQUEST_BYTES.into_iter().find_map(|request_bytes| {
            // The bytes of a request may begin and end within blocks.
            let slot_bytes = request_bytes + 2 * block;
            let by_bytes = limits.bytes / (queues * slot_bytes);
            let depth = DEPTH_MAX.min(limits.requests / queues).min(by_bytes);
            (depth > 0).then_some(Self {
                queues: u16::try_from(queues).ok()?,
                depth: depth as u16,
                request_bytes: request_bytes as u32,
            })
        })
    }

    /// Returns the memory with which there is a plan for so many queues.
    pub(crate) fn bytes_min(queues: usize, block: usize) -> usize {
        queues.max(1) * (REQUEST_BYTES[REQUEST_BYTES.len() - 1] + 2 * block)
    }
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
        assert_eq!(plan(4, 64 * MIB, 2), Some((2, 1024)));
        assert_eq!(plan(1, 64 * MIB, 2), None, "a queue without a slot");
        assert_eq!(plan(128, 64 * MIB, 64), Some((1, 512)));
        assert_eq!(plan(1024, 64 * MIB, 256), Some((1, 128)));
        assert_eq!(plan(4096, 64 * MIB, 1024), None);
        for (requests, bytes, queues) in [(128, 64 * MIB, 2), (100, 33 * MIB, 7), (999, MIB, 1)] {
            let limits = Limits { requests, bytes };
            let Some(plan) = Plan::within(limits, queues, BLOCK) else { continue };
            let slots = usize::from(plan.queues) * usize::from(plan.depth);
            assert!(slots <= requests, "{plan:?}");
            let least = Limits { requests, bytes: Plan::bytes_min(queues, BLOCK) };
            assert!(Plan::within(least, queues, BLOCK).is_some());
            assert!(slots * (plan.request_bytes as usize + 2 * BLOCK) <= bytes, "{plan:?}");
        }
    }
}
