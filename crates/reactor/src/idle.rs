//! Time to poll for work before sleeping.
//!
//! Going to sleep and being woken costs 30 to 85 µs; polling costs a CPU. So a core polls as long as
//! it pays: it doubles its patience whenever a little more of it would have saved the sleep, up to a
//! limit, and halves it whenever even the limit would not have.

use std::time::Duration;

/// Patience after the first sleep that polling would have saved.
const FIRST: Duration = Duration::from_micros(20);
/// Less patience than this is none.
const LEAST: Duration = Duration::from_micros(10);

/// Policy by which a core waits for work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IdlePolicy {
    /// Polls as long as that has paid off lately, and sleeps otherwise.
    Adaptive {
        /// Polls no longer than this before it sleeps.
        spin_max: Duration,
    },
    /// Sleeps as soon as there is nothing to do.
    Sleep,
    /// Never sleeps. For measurements.
    Spin,
}

impl Default for IdlePolicy {
    /// Adaptive, up to 500 µs; no polling at all on a machine with one CPU, where it would only keep the process
    /// that has the work from running.
    fn default() -> Self {
        if has_one_cpu() {
            Self::Sleep
        } else {
            Self::Adaptive { spin_max: Duration::from_micros(500) }
        }
    }
}

/// Counts the CPUs of the machine, not of this process: the peer may well run on a CPU that this process may not
/// use.
fn has_one_cpu() -> bool {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
    online.is_ok_and(|cpus| !cpus.contains(['-', ',']))
}

/// The patience of one core.
#[derive(Debug)]
pub(crate) struct Patience {
    policy: IdlePolicy,
    now: Duration,
}

impl Patience {
    pub(crate) fn new(policy: IdlePolicy) -> Self {
        Self { policy, now: Duration::ZERO }
    }

    /// Returns the time to poll now.
    pub(crate) fn spin(&self) -> Duration {
        match self.policy {
            IdlePolicy::Adaptive { .. } => self.now,
            IdlePolicy::Sleep => Duration::ZERO,
            IdlePolicy::Spin => Duration::MAX,
        }
    }

    /// Returns false for a core that never sleeps, whatever else wants its CPU.
    pub(crate) fn may_sleep(&self) -> bool {
        self.policy != IdlePolicy::Spin
    }

    /// Work came after `idle` without any, and the core slept for a part of that.
    pub(crate) fn on_slept(&mut self, idle: Duration) {
        let IdlePolicy::Adaptive { spin_max } = self.policy else { return };
        if idle <= spin_max {
            self.now = (self.now * 2).clamp(FIRST.min(spin_max), spin_max);
        } else {
            self.now /= 2;
            if self.now < LEAST {
                self.now = Duration::ZERO;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(500);

    fn patience() -> Patience {
        Patience::new(IdlePolicy::Adaptive { spin_max: MAX })
    }

    #[test]
    fn short_gaps_make_patient_up_to_the_limit() {
        let mut patience = patience();
        assert_eq!(patience.spin(), Duration::ZERO);
        for _ in 0..10 {
            patience.on_slept(Duration::from_micros(200));
        }
        assert_eq!(patience.spin(), MAX);
    }

    #[test]
    fn long_gaps_take_it_away_again() {
        let mut patience = patience();
        (0..10).for_each(|_| patience.on_slept(Duration::from_micros(200)));
        (0..6).for_each(|_| patience.on_slept(Duration::from_millis(20)));
        assert_eq!(patience.spin(), Duration::ZERO);
    }
}
