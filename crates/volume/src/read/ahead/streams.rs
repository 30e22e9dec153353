//! Predicts the next blocks that readers of a volume will ask for: those behind what was read in
//! order.
//!
//! Several sequential readers of a volume are told apart. What comes a little too early or too late
//! is part of a stream all the same: a host with several queues asks a little out of order.

use units::{Lba, LbaRange};

/// Readers that are told apart.
const STREAMS_MAX: usize = 8;
/// Requests in order before anything is read ahead of them.
const REQUESTS_MIN: u32 = 4;
/// One part in so many of what a stream has read is read ahead of it: all that is read in vain.
const PART: u64 = 4;
/// Blocks that are read ahead of a stream at most. Eight requests of 128 KiB: as much as a host asks for at a time that reads in
/// order with depth 8, so that the drive has as much to do again.
pub(super) const AHEAD_BLOCKS_MAX: u64 = 256;

/// A reader.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The start of its expected next request.
    next: Lba,
    /// Blocks behind `next` and before this were prefetched.
    fetched_end: Lba,
    requests: u32,
    blocks: u64,
}

/// The readers of a volume, from the one that asked last to the one that has not for longest.
#[derive(Debug, Default)]
pub(super) struct Streams(Vec<Stream>);

impl Streams {
    /// A request for `range`, which is not empty. Returns what to read ahead of it in a volume of so many blocks: some whole
    /// requests of the same length, or nothing.
    pub(super) fn note(&mut self, range: LbaRange, volume_blocks: u64) -> LbaRange {
        let place = self.0.iter().position(|stream| stream.takes(range));
        let mut stream = match place {
            Some(place) => self.0.remove(place),
            None => {
                self.0.truncate(STREAMS_MAX - 1);
                Stream { next: range.start, fetched_end: range.start, requests: 0, blocks: 0 }
            }
        };
        stream.next = stream.next.max(range.end());
        stream.requests = stream.requests.saturating_add(1);
        stream.blocks = stream.blocks.saturating_add(range.blocks);
        let ahead = stream.take_ahead(range.blocks, volume_blocks);
        self.0.insert(0, stream);
        ahead
    }
}

impl Stream {
    /// Returns whether the request is one of this reader.
    fn takes(&self, range: LbaRange) -> bool {
        let slack = if self.requests < REQUESTS_MIN { 0 } else { AHEAD_BLOCKS_MAX };
        let (early, late) = (self.next.0.saturating_add(slack), self.next.0.saturating_sub(slack));
        (late..=early).contains(&range.start.0)
    }

    /// Takes the range to prefetch now, in requests of `request_blocks`.
    fn take_ahead(&mut self, request_blocks: u64, volume_blocks: u64) -> LbaRange {
        let start = self.fetched_end.max(self.next);
        let most = if self.requests < REQUESTS_MIN { 0 } else { self.blocks / PART };
        let end = self.next.0.saturating_add(most.min(AHEAD_BLOCKS_MAX)).min(volume_blocks);
        let requests = end.saturating_sub(start.0) / request_blocks;
        let ahead = LbaRange::new(start, requests * request_blocks);
        self.fetched_end = ahead.end();
        ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME_BLOCKS: u64 = 1 << 20;

    fn range(start: u64, blocks: u64) -> LbaRange {
        LbaRange::new(Lba(start), blocks)
    }

    /// Returns the ranges prefetched for requests for so many blocks each, one behind the other
    /// from `start` on.
    fn ahead_of(streams: &mut Streams, start: u64, requests: u64, blocks: u64) -> Vec<LbaRange> {
        let note = |n| streams.note(range(start + n * blocks, blocks), VOLUME_BLOCKS);
        (0..requests).map(note).filter(|ahead| ahead.blocks > 0).collect()
    }

    #[test]
    fn what_is_read_in_order_is_read_ahead_of_once_and_without_gaps() {
        let ahead = ahead_of(&mut Streams::default(), 1000, 100, 32);
        let first = ahead[0].start.0;
        assert!(first > 1000 + 3 * 32, "{ahead:?}");
        let mut next = first;
        for part in &ahead {
            assert_eq!((part.start.0, part.blocks % 32), (next, 0));
            next = part.end().0;
        }
        assert_eq!(next, 1000 + 100 * 32 + AHEAD_BLOCKS_MAX);
    }

    /// However many requests it was, and whatever their length.
    #[test]
    fn no_more_is_read_ahead_than_a_part_of_what_was_read() {
        for blocks in [1, 2, 7, 32, 100, 256, 300] {
            for requests in 1..200 {
                let ahead = ahead_of(&mut Streams::default(), 0, requests, blocks);
                let end = requests * blocks;
                let in_vain = ahead.last().map_or(0, |last| last.end().0.saturating_sub(end));
                assert!(in_vain <= (end / PART).min(AHEAD_BLOCKS_MAX), "{requests} of {blocks}");
            }
        }
    }

    #[test]
    fn requests_all_over_are_not_read_ahead_of() {
        let mut streams = Streams::default();
        let mut at = 1;
        for _ in 0..1000 {
            at = at * 48_271 % 0x7fff_ffff;
            assert_eq!(streams.note(range(at % VOLUME_BLOCKS, 32), VOLUME_BLOCKS + 32).blocks, 0);
        }
    }

    #[test]
    fn readers_are_told_apart() {
        let mut streams = Streams::default();
        let mut ahead = [0; 6];
        for n in 0..50 {
            for (reader, ahead) in ahead.iter_mut().enumerate() {
                let start = reader as u64 * 100_000 + n * 8;
                *ahead += streams.note(range(start, 8), VOLUME_BLOCKS).blocks;
            }
        }
        assert!(ahead.iter().all(|blocks| *blocks >= 300), "{ahead:?}");
    }

    #[test]
    fn what_comes_a_little_early_or_late_is_part_of_its_stream() {
        let mut streams = Streams::default();
        ahead_of(&mut streams, 0, 40, 8);
        let (early, late) = (range(328, 8), range(320, 8));
        let fetched = [early, late].map(|one| streams.note(one, VOLUME_BLOCKS));
        assert_eq!(streams.0.len(), 1);
        assert_eq!((fetched[0].blocks, fetched[1].blocks), (16, 0));
    }

    #[test]
    fn nothing_is_read_ahead_behind_the_end() {
        let mut streams = Streams::default();
        let ahead: Vec<_> = (0..8).map(|n| streams.note(range(n * 32, 32), 8 * 32)).collect();
        assert!(ahead.iter().all(|part| part.end().0 <= 8 * 32), "{ahead:?}");
        assert_eq!(ahead[7].blocks, 0);
        assert_eq!(streams.note(range(u64::MAX - 64, 32), u64::MAX).blocks, 0);
    }
}
