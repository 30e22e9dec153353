//! The data that the host owes, and its progress with that.
//!
//! - OWED-1: time is counted from the last byte of what is owed, however long the whole takes: a host may be one of many
//!   on a slow network.
//! - OWED-2: data for an R2T is owed in the order in which it was asked for. A host that sends other data first may do so
//!   only as far as it can have queued that before it saw the R2T: as many PDUs as the queue has entries. Bytes of later ones
//!   are no progress, so no traffic hides an R2T that the host neglects.

use alloc::collections::VecDeque;

use units::Instant;

/// An R2T that is outstanding, or that is over behind one that is outstanding.
struct Asked {
    number: u64,
    is_over: bool,
}

/// The data that the host owes.
pub(super) struct Owed {
    /// Numbers of R2Ts, rising; the first one is outstanding.
    asked: VecDeque<Asked>,
    asked_so_far: u64,
    /// Entries of the queue.
    entries: u16,
    /// PDUs that may still come before data of the oldest R2T.
    ahead_left: u16,
    /// Bytes of the PDU in progress are progress with the oldest R2T.
    is_progress: bool,
    last_byte: Instant,
    /// When the oldest R2T made progress, or became the oldest.
    last_progress: Instant,
    progress_bytes: u64,
}

impl Owed {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            asked: VecDeque::new(),
            asked_so_far: 0,
            entries: 1,
            ahead_left: 1,
            is_progress: true,
            last_byte: now,
            last_progress: now,
            progress_bytes: 0,
        }
    }

    /// The queue has so many entries.
    pub(super) fn set_entries(&mut self, entries: u16) {
        self.entries = entries;
    }

    /// An R2T is sent. Returns its number.
    pub(super) fn ask(&mut self, now: Instant) -> u64 {
        self.asked_so_far += 1;
        let number = self.asked_so_far;
        self.asked.push_back(Asked { number, is_over: false });
        if self.asked.len() == 1 {
            self.begin_oldest(now);
        }
        number
    }

    /// All that the R2T `number` asked for has come.
    pub(super) fn end(&mut self, now: Instant, number: u64) {
        if let Ok(at) = self.asked.binary_search_by_key(&number, |asked| asked.number) {
            self.asked[at].is_over = true;
        }
        let mut has_another = false;
        while self.asked.front().is_some_and(|asked| asked.is_over) {
            self.asked.pop_front();
            has_another = true;
        }
        if has_another {
            self.begin_oldest(now);
        }
    }

    fn begin_oldest(&mut self, now: Instant) {
        self.last_progress = now;
        self.ahead_left = self.entries;
    }

    /// A PDU begins, with data for the R2T `number` or with something else.
    pub(super) fn begin_pdu(&mut self, number: Option<u64>) {
        let Some(oldest) = self.asked.front().map(|asked| asked.number) else {
            self.is_progress = true;
            return;
        };
        let is_of_oldest = number == Some(oldest);
        self.is_progress = is_of_oldest || self.ahead_left > 0;
        self.ahead_left = self.ahead_left.saturating_sub(u16::from(!is_of_oldest));
    }

    /// `count` bytes of the PDU in progress have come.
    pub(super) fn on_bytes(&mut self, now: Instant, count: usize) {
        self.last_byte = now;
        if self.is_progress || self.asked.is_empty() {
            self.last_progress = now;
            self.progress_bytes += count as u64;
        }
    }

    /// When the last byte came.
    pub(super) fn last_byte(&self) -> Instant {
        self.last_byte
    }

    /// When the oldest R2T made progress, if one is outstanding.
    pub(super) fn r2t_since(&self) -> Option<Instant> {
        (!self.asked.is_empty()).then_some(self.last_progress)
    }

    /// Bytes so far that were progress with what was owed.
    pub(super) fn progress_bytes(&self) -> u64 {
        self.progress_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OWED-2: one PDU may come first, since the queue has one entry.
    #[test]
    fn bytes_of_what_is_owed_are_progress() {
        let now = Instant(1);
        let mut owed = Owed::new(now);
        owed.on_bytes(now, 10);
        owed.on_bytes(now, 5);
        assert_eq!(owed.progress_bytes(), 15, "nothing is owed yet, so all is progress");
        let number = owed.ask(now);
        owed.begin_pdu(None);
        owed.on_bytes(now, 3);
        assert_eq!(owed.progress_bytes(), 18);
        owed.begin_pdu(None);
        owed.on_bytes(now, 7);
        assert_eq!(owed.progress_bytes(), 18, "the second PDU is too many");
        owed.begin_pdu(Some(number));
        owed.on_bytes(now, 2);
        assert_eq!(owed.progress_bytes(), 20);
    }
}
