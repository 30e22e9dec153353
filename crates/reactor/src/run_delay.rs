//! Time that a thread waited for its CPU while other threads had it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use units::Instant;

/// Three numbers of the calling thread: the time that it ran and the time that it waited to run, in ns, and how often it ran (Linux,
/// Documentation/scheduler/sched-stats.rst).
const PATH: &str = "/proc/thread-self/schedstat";
/// Age of a reading after which a new one is made. A reading takes some 2 µs.
const READ_EVERY: Duration = Duration::from_millis(10);
/// Room for three numbers.
const TEXT_MAX: usize = 64;

/// The time for which a thread waited since it last looked.
#[derive(Debug)]
pub(crate) struct RunDelay {
    /// `None` where the kernel does not count.
    file: Option<File>,
    read_at: Option<Instant>,
    before: Duration,
}

impl RunDelay {
    /// That of the calling thread.
    pub(crate) fn of_this_thread() -> Self {
        Self { file: File::open(PATH).ok(), read_at: None, before: Duration::ZERO }
    }

    /// Takes a new reading to count from, if the last one is old.
    pub(crate) fn refresh(&mut self, now: Instant) {
        if self.read_at.is_some_and(|at| now.since(at) < READ_EVERY) {
            return;
        }
        self.read_at = Some(now);
        self.before = self.read().unwrap_or_default();
    }

    /// Returns how long the thread has waited since the reading; `None` if the kernel does not say.
    pub(crate) fn since_reading(&self) -> Option<Duration> {
        Some(self.read()?.saturating_sub(self.before))
    }

    fn read(&self) -> Option<Duration> {
        let mut text = [0; TEXT_MAX];
        let len = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        waited(std::str::from_utf8(&text[..len]).ok()?)
    }
}

/// The second number.
fn waited(text: &str) -> Option<Duration> {
    text.split_ascii_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_waiting_is_the_second_number() {
        assert_eq!(waited("1086447 94087 1\n"), Some(Duration::from_nanos(94_087)));
        for text in ["", "1086447", "1 -2 3", "1 x 3"] {
            assert_eq!(waited(text), None, "{text}");
        }
    }
}
