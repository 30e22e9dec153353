//! Bursts and trials by themselves, at their bounds.

use super::*;

const MILLI: Duration = Duration::from_millis(1);
const MICRO: Duration = Duration::from_micros(1);

/// A drive that has `given` reads completes `done` of them at one time, after `silence`.
fn burst(bursts: &mut Bursts, now: &mut Instant, silence: Duration, given: usize, done: usize) {
    *now += silence;
    for n in 0..done {
        bursts.complete(*now, given - n, 0);
    }
}

/// Returns after how many bursts the drive counts as one that completes all at once.
fn bursts_until_all(silence: Duration, given: usize, done: usize) -> Option<usize> {
    let (mut bursts, mut now) = (Bursts::default(), Instant::now());
    bursts.start(now);
    (0..1000).find(|_| {
        burst(&mut bursts, &mut now, silence, given, done);
        bursts.are_all()
    })
}

/// A burst is judged when the next one begins.
#[test]
fn a_drive_is_known_by_its_bursts() {
    assert_eq!(bursts_until_all(MILLI, 4, 4), Some(63));
    assert_eq!(bursts_until_all(MILLI, 128, 128), Some(2), "each counts for half");
    assert_eq!(bursts_until_all(MILLI, 256, 256), Some(2), "and no more");
    assert_eq!(bursts_until_all(MILLI, 4, 2), None, "half of what it had");
    assert_eq!(bursts_until_all(MILLI, 1, 1), None, "one read says nothing");
    assert_eq!(bursts_until_all(20 * MICRO, 4, 4), Some(63));
    assert_eq!(bursts_until_all(19 * MICRO, 4, 4), None, "its askers do not feel it");
}

#[test]
fn a_drive_that_completes_fewer_at_a_time_is_known_by_that_later() {
    let (mut bursts, mut now) = (Bursts::default(), Instant::now());
    bursts.start(now);
    for _ in 0..64 {
        burst(&mut bursts, &mut now, MILLI, 4, 4);
    }
    assert!(bursts.are_all());
    // Each counts for as much less as it has fewer reads.
    let until = (0..1000).find(|_| {
        burst(&mut bursts, &mut now, MILLI, 4, 1);
        !bursts.are_all()
    });
    assert_eq!(until, Some(288));
}

/// Completions belong together within an eighth of the silence before them, and no more than the drive had.
#[test]
fn completions_belong_together_for_a_part_of_the_silence() {
    for (apart, are_all) in [(100, true), (101, false)] {
        let (mut bursts, mut now) = (Bursts::default(), Instant::now());
        bursts.start(now);
        for _ in 0..200 {
            now += 800 * MICRO;
            bursts.complete(now, 2, 0);
            now += apart * MICRO;
            bursts.complete(now, 1, 0);
        }
        assert_eq!(bursts.are_all(), are_all, "{apart} us apart");
    }
    let (mut bursts, mut now) = (Bursts::default(), Instant::now());
    bursts.start(now);
    burst(&mut bursts, &mut now, MILLI, 4, 4);
    bursts.complete(now, 9, 0);
    assert_eq!(bursts.peak(), 4, "the fifth is of another burst");
    burst(&mut bursts, &mut now, MILLI, 2, 1);
    assert_eq!(bursts.peak(), 9);
}

#[test]
fn the_peak_is_that_of_the_last_bursts() {
    let (mut bursts, mut now) = (Bursts::default(), Instant::now());
    bursts.start(now);
    now += MILLI;
    bursts.complete(now, 5, 3);
    for judged in 1..=40 {
        burst(&mut bursts, &mut now, MILLI, 2, 1);
        // Runs of 16 bursts: the first one's, and then that of the run before.
        let expected = if judged < 32 { 8 } else { 2 };
        assert_eq!(bursts.peak(), expected, "{judged} bursts were judged");
    }
}

/// A trial of a drive that is faster when reads are held in so many of the eight pairs of turns, and as fast in the others.
struct Tried {
    trial: Trial,
    now: Instant,
    reads: u32,
    wins: u32,
}

const TURN: u32 = 256;
const TRIAL: u32 = 16 * TURN;

impl Tried {
    fn new(wins: u32) -> Self {
        Self { trial: Trial::default(), now: Instant::now(), reads: 0, wins }
    }

    /// Completes a read; returns whether reads are held from then on.
    fn next(&mut self) -> bool {
        let pair = self.reads / (2 * TURN) % 8;
        let is_faster = self.trial.holds() && pair < self.wins;
        self.now += if is_faster { 9 * MICRO } else { 10 * MICRO };
        self.reads += 1;
        self.trial.complete(self.now, true);
        self.trial.holds()
    }
}

#[test]
fn holding_is_tried_by_turns_and_kept_where_it_wins() {
    for wins in [0, 5, 6, 8] {
        let mut tried = Tried::new(wins);
        assert!(!tried.trial.holds());
        for read in 1..TRIAL {
            assert_eq!(tried.next(), read / TURN % 2 == 1, "read {read}");
        }
        let kept = wins >= 6;
        for read in 0..16 * TRIAL {
            assert_eq!(tried.next(), kept, "read {read} after the trial");
        }
        // The next trial begins.
        for read in 0..2 * TURN {
            assert_eq!(tried.next(), read / TURN == 1, "read {read} of the next trial");
        }
    }
}

#[test]
fn a_trial_ends_with_a_drive_that_is_not_suited() {
    let mut tried = Tried::new(8);
    while !tried.next() {}
    tried.trial.complete(tried.now, false);
    assert!(!tried.trial.holds());
    for read in 1..TURN {
        assert!(!tried.next(), "read {read}");
    }
    assert!(tried.next(), "the trial began again");
}

#[test]
fn a_window_gives_all_until_it_is_told_to_hold() {
    let mut window = Window::<u32>::default();
    let now = Instant::now();
    for read in 0..100 {
        assert!(window.admit(|| now, read));
    }
    assert_eq!((window.given, window.limit()), (100, usize::MAX));
    window.fixed = Some(2);
    for read in 100..104 {
        assert!(!window.admit(|| now, read), "it has more than that already");
    }
    for left in (2..100).rev() {
        window.complete(now);
        assert_eq!((window.given, window.next()), (left, None));
    }
    window.complete(now);
    assert_eq!([window.next(), window.next()], [Some(100), None]);
    assert!(!window.admit(|| now, 104));
    window.complete(now);
    assert_eq!([window.next(), window.next()], [Some(101), None]);
}
