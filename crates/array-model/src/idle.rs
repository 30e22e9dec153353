//! Idle states of a CPU, and the governor that chooses one.

/// A state: the time to leave it, and the shortest stay that is worth it.
struct State {
    leave_ns: u64,
    stay_ns: u64,
}

/// C1, C1E, C3 and C6 of Ivy Bridge EP, by `ivt_cstates` of the kernel's `drivers/idle/intel_idle.c`.
const STATES: [State; 4] = [
    State { leave_ns: 1_000, stay_ns: 1_000 },
    State { leave_ns: 10_000, stay_ns: 80_000 },
    State { leave_ns: 59_000, stay_ns: 156_000 },
    State { leave_ns: 82_000, stay_ns: 300_000 },
];
/// Idle times that the governor remembers, as the kernel's `menu` does.
const REMEMBERED: usize = 8;

/// Chooses a state by the last idle times, of which the longest is left out as an outlier.
#[derive(Clone, Debug)]
pub(crate) struct Governor {
    last_ns: [u64; REMEMBERED],
    next: usize,
    sum_ns: u64,
}

impl Governor {
    /// A CPU that has long been idle between the system's own rare events.
    pub(crate) fn new() -> Self {
        let long_ns = STATES[3].stay_ns;
        Self { last_ns: [long_ns; REMEMBERED], next: 0, sum_ns: long_ns * REMEMBERED as u64 }
    }

    /// The CPU is woken after `idle_ns`: the time it takes to leave its state, which it chose when it became idle.
    #[inline]
    pub(crate) fn wake(&mut self, idle_ns: u64) -> u64 {
        let predicted_ns = self.predict();
        let leave_ns = STATES.iter().rev().find(|state| state.stay_ns <= predicted_ns);
        self.sum_ns = self.sum_ns - self.last_ns[self.next] + idle_ns;
        self.last_ns[self.next] = idle_ns;
        self.next = (self.next + 1) % REMEMBERED;
        leave_ns.map_or(0, |state| state.leave_ns)
    }

    fn predict(&self) -> u64 {
        let mean_ns = self.sum_ns / REMEMBERED as u64;
        // Without the longest it is shorter still.
        if mean_ns < STATES[1].stay_ns {
            return mean_ns.max(STATES[0].stay_ns);
        }
        let longest_ns = self.last_ns.into_iter().max().unwrap_or(0);
        (self.sum_ns - longest_ns) / (REMEMBERED as u64 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_deepen_with_the_idle_times_and_one_outlier_changes_nothing() {
        let mut governor = Governor::new();
        let mut settle = |idle_ns: u64| (0..10).map(|_| governor.wake(idle_ns)).last();
        assert_eq!(settle(25_000), Some(1_000));
        assert_eq!(settle(100_000), Some(10_000));
        assert_eq!(settle(200_000), Some(59_000));
        assert_eq!(settle(1_000_000), Some(82_000));
        assert_eq!(settle(25_000), Some(1_000));
        assert_eq!(governor.wake(600_000), 1_000);
        assert_eq!(governor.wake(25_000), 1_000, "the outlier is left out");
        governor.wake(600_000);
        assert_eq!(governor.wake(25_000), 10_000, "two are a pattern");
    }
}
