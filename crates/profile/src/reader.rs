//! The loop of a reading thread: one request after the other, and nothing else.
//!
//! Reads are asynchronous for the sake of volumes; those of a file are done when they return.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use random::Rng;
use rustix::thread::gettid;

use crate::cause::Request;
use crate::clock;
use crate::drive::BLOCK;
use crate::recorder::{Recorded, Recorder, Room, SlowerThan, Until};
use crate::trace::Note;

/// A drive that fails so often in a row is read no more.
const ERRORS_MAX: u32 = 100;
/// Requests by which the profiler's own time is measured, and repetitions, of which the median counts.
const OVERHEAD_REQUESTS: u64 = 50_000;
const OVERHEAD_REPEATS: usize = 5;

/// The length of a run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Limit {
    /// So long.
    Time(Duration),
    /// So many requests of each drive.
    Requests(u64),
}

/// The loop of one drive.
#[derive(Debug)]
pub struct Reader {
    pub(crate) index: usize,
    pub(crate) cpu: u32,
    /// The drive is no block device of this host.
    pub(crate) is_elsewhere: bool,
    /// Blocks among which each read draws one.
    pub(crate) blocks: u64,
    pub(crate) warm_up: Duration,
    pub(crate) limit: Limit,
    pub(crate) slower_than: SlowerThan,
    pub(crate) seed: u64,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) notes: Option<Sender<Note>>,
    /// Made before the threads meet, so that none is disturbed by the making of another's.
    pub(crate) room: Room,
}

/// The results of a loop.
#[derive(Debug)]
pub struct Read {
    pub(crate) recorder: Recorder,
    pub(crate) last_error: Option<io::Error>,
    pub(crate) gave_up: bool,
}

impl Reader {
    /// Reads until the limit, on the thread that makes the calls. `read` gets the offset in bytes.
    pub async fn run(self, mut read: impl AsyncFnMut(u64) -> io::Result<()>) -> Read {
        let Self { index: drive, cpu, is_elsewhere, .. } = self;
        let mut rng = Rng::of_stream(self.seed, drive as u64);
        let tid = gettid().as_raw_nonzero().get() as u32;
        let warm_until_ns = clock::now_ns() + self.warm_up.as_nanos() as u64;
        let until = match self.limit {
            Limit::Time(time) => Until::Ns(warm_until_ns + time.as_nanos() as u64),
            Limit::Requests(count) => Until::Requests(count),
        };
        let mut recorder = Recorder::new(self.room, warm_until_ns, until, self.slower_than);
        let (mut last_error, mut failed_in_a_row) = (None, 0);
        loop {
            let offset = rng.below(self.blocks) * BLOCK as u64;
            let begin_ns = clock::now_ns();
            let outcome = read(offset).await;
            let end_ns = clock::now_ns();
            match outcome {
                Ok(()) => {
                    failed_in_a_row = 0;
                    let recorded = recorder.on_request(begin_ns, end_ns);
                    if recorded != Recorded::Plain
                        && let Some(notes) = &self.notes
                    {
                        let request = Request { drive, tid, cpu, begin_ns, end_ns, is_elsewhere };
                        tell(notes, recorded, request);
                    }
                }
                Err(error) => {
                    recorder.on_error(begin_ns);
                    last_error = Some(error);
                    failed_in_a_row += 1;
                }
            }
            let gave_up = failed_in_a_row >= ERRORS_MAX;
            if gave_up || recorder.is_over(end_ns) || self.stop.load(Ordering::Relaxed) {
                return Read { recorder, last_error, gave_up };
            }
        }
    }

    /// The same with reads that are done when they return.
    pub fn run_at_once(self, mut read: impl FnMut(u64) -> io::Result<()>) -> Read {
        let done = pin!(self.run(async |offset| read(offset)));
        match done.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(read) => read,
            Poll::Pending => unreachable!("no read of this loop waits"),
        }
    }
}

fn tell(notes: &Sender<Note>, recorded: Recorded, request: Request) {
    let note = match recorded {
        Recorded::Usual => Note::Usual(request),
        Recorded::Slow | Recorded::Plain => Note::Slow(request),
    };
    // The collector ends only after all senders are gone.
    let _ = notes.send(note);
}

/// Time of the loop for a request, without the read: two readings of the clock, the draw of a place, the records.
pub(crate) fn overhead_ns() -> f64 {
    let reader = || Reader {
        index: 0,
        cpu: 0,
        is_elsewhere: false,
        blocks: 1 << 28,
        warm_up: Duration::ZERO,
        limit: Limit::Requests(OVERHEAD_REQUESTS),
        slower_than: SlowerThan::WarmUp,
        seed: 1,
        stop: Arc::default(),
        notes: None,
        room: Room::default(),
    };
    let once = || {
        let reader = reader();
        let begin_ns = clock::now_ns();
        reader.run_at_once(|offset| {
            std::hint::black_box(offset);
            Ok(())
        });
        (clock::now_ns() - begin_ns) as f64 / OVERHEAD_REQUESTS as f64
    };
    let mut all: Vec<f64> = (0..OVERHEAD_REPEATS).map(|_| once()).collect();
    all.sort_by(f64::total_cmp);
    all[OVERHEAD_REPEATS / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(limit: Limit) -> Reader {
        Reader {
            index: 3,
            cpu: 0,
            is_elsewhere: false,
            blocks: 10,
            warm_up: Duration::ZERO,
            limit,
            slower_than: SlowerThan::Ns(0),
            seed: 1,
            stop: Arc::default(),
            notes: None,
            room: Room::default(),
        }
    }

    #[test]
    fn every_block_is_read_and_the_count_is_kept() {
        let mut seen = [0u32; 10];
        let read = reader(Limit::Requests(1000)).run_at_once(|offset| {
            assert_eq!(offset % 4096, 0);
            seen[(offset / 4096) as usize] += 1;
            Ok(())
        });
        assert_eq!(read.recorder.latencies.count(), 1000);
        assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
    }

    #[test]
    fn a_drive_that_always_fails_is_given_up_and_single_errors_are_counted() {
        let mut reads = 0;
        let read = reader(Limit::Requests(1000)).run_at_once(|_| {
            reads += 1;
            if reads % 4 == 0 { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
        });
        assert_eq!((read.recorder.errors, read.gave_up), (333, false));
        assert_eq!(read.recorder.latencies.count(), 1000);
        let read = reader(Limit::Requests(1000)).run_at_once(|_| Err(io::ErrorKind::Other.into()));
        assert!(read.gave_up && read.last_error.is_some());
        assert_eq!(read.recorder.latencies.count(), 0);
    }

    #[test]
    fn a_stopped_run_keeps_what_it_has() {
        let reader = reader(Limit::Time(Duration::from_secs(3600)));
        let (mut reads, stop) = (0, reader.stop.clone());
        let read = reader.run_at_once(|_| {
            reads += 1;
            stop.store(reads == 5, Ordering::Relaxed);
            Ok(())
        });
        assert_eq!(read.recorder.latencies.count(), 5);
    }
}
