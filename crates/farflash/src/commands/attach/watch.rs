//! Notes of a process that serves a file: the server does not answer, it answers again, requests failed.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use attach::{Progress, Trouble};
use user_messages::output::note;

/// Requests that are not answered for so long are worth a note.
const SILENCE: Duration = Duration::from_secs(5);
/// Failed requests have a note so often, with their number.
const TROUBLE_EVERY: Duration = Duration::from_secs(60);
/// Notes of failed requests of a process: a bound for its log.
const TROUBLES_MAX: u32 = 1000;

/// A change of the state of requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    /// None was answered for this long.
    Waiting(Duration),
    /// They are answered again, after this long.
    Answered(Duration),
}

/// Sees from counts of requests that the server does not answer.
#[derive(Debug, Default)]
pub(super) struct Watch {
    ended: u64,
    silent_since: Option<Instant>,
    is_told: bool,
}

impl Watch {
    pub(super) fn look(&mut self, now: Instant, progress: Progress) -> Option<Change> {
        let is_silent = progress.outstanding > 0 && progress.ended == self.ended;
        self.ended = progress.ended;
        if is_silent {
            let since = *self.silent_since.get_or_insert(now);
            let lasts = now.saturating_duration_since(since);
            let tells = lasts >= SILENCE && !self.is_told;
            self.is_told |= tells;
            return tells.then_some(Change::Waiting(lasts));
        }
        let since = self.silent_since.take()?;
        let was_told = std::mem::take(&mut self.is_told);
        was_told.then(|| Change::Answered(now.saturating_duration_since(since)))
    }
}

/// Writes notes of failed requests, not of each.
#[derive(Debug, Default)]
pub(super) struct Troubles(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    last: Option<Instant>,
    left_out: u64,
    notes: u32,
}

impl Troubles {
    pub(super) fn tell(&self, now: Instant, trouble: &Trouble) {
        if let Some(text) = self.text(now, trouble) {
            note(&text);
        }
    }

    fn text(&self, now: Instant, trouble: &Trouble) -> Option<String> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due =
            told.last.is_none_or(|last| now.saturating_duration_since(last) >= TROUBLE_EVERY);
        if !is_due || told.notes >= TROUBLES_MAX {
            told.left_out += 1;
            return None;
        }
        told.last = Some(now);
        told.notes += 1;
        Some(match std::mem::take(&mut told.left_out) {
            0 => trouble.to_string(),
            more => format!("{trouble}; {more} more requests failed since the last note"),
        })
    }
}

#[cfg(test)]
mod tests {
    use farflash_client::Error;

    use super::*;

    #[test]
    fn silence_is_told_once_and_so_is_its_end() {
        let (start, mut watch) = (Instant::now(), Watch::default());
        let mut look = |seconds: u64, outstanding: usize, ended: u64| {
            let now = start + Duration::from_secs(seconds);
            watch.look(now, Progress { outstanding, ended })
        };
        let seconds = Duration::from_secs;
        // Nothing is asked for, or all is answered.
        assert_eq!([look(0, 0, 0), look(9, 0, 0), look(10, 2, 5)], [None; 3]);
        assert_eq!([look(11, 2, 5), look(15, 2, 5)], [None; 2]);
        assert_eq!(look(16, 2, 5), Some(Change::Waiting(seconds(5))));
        assert_eq!(look(17, 3, 5), None);
        assert_eq!(look(20, 3, 6), Some(Change::Answered(seconds(9))));
        assert_eq!(look(21, 3, 7), None);
        // A short silence is not worth a word.
        assert_eq!([look(22, 3, 7), look(24, 3, 8)], [None; 2]);
    }

    #[test]
    fn failed_requests_are_counted_between_notes() {
        let (start, troubles) = (Instant::now(), Troubles::default());
        let trouble = Trouble { request: "read", offset: 5, error: Error::Closed };
        let text = |seconds: u64| troubles.text(start + Duration::from_secs(seconds), &trouble);
        assert_eq!(text(0).as_deref(), Some("a read at byte 5 failed: the volume is closed"));
        assert_eq!((text(1), text(59)), (None, None));
        assert!(text(60).expect("a note").ends_with("2 more requests failed since the last note"));
    }
}
