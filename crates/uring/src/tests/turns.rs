//! Turns of the ring, and what they leave to the next.

use super::*;
use crate::RingCounters;
use crate::wake::RemoteWake;

/// A ring whose submission queue has four places.
fn narrow() -> Ring {
    Ring::with_options(&Options { sq_entries: 4, ..Options::default() }).expect("a ring")
}

/// A socket with a byte to be received.
fn readable() -> (UnixStream, Fd) {
    let (a, b) = UnixStream::pair().expect("a pair of sockets");
    (&a).write_all(b"x").expect("sends");
    (a, Fd::new(OwnedFd::from(b)))
}

#[test]
fn a_ring_has_work_from_a_request_until_its_end() {
    for ring in [cooperative(), Ring::new().expect("a ring")] {
        assert!(!ring.has_work());
        assert_eq!(ring.poll(), 0);
        assert_eq!(ring.counters(), RingCounters::default(), "nothing was asked of the kernel");
        let (a, b) = UnixStream::pair().expect("a pair of sockets");
        let mut watch = ring.watch(&Fd::new(OwnedFd::from(b)));
        assert!(ring.has_work(), "the watch is to be handed over");
        assert_eq!(told(&ring, &mut watch), None);
        assert!(!ring.has_work());
        (&a).write_all(b"x").expect("sends");
        assert!(ring.has_work(), "the kernel has something to tell");
        assert_eq!(ring.poll(), 1);
        assert!(!ring.has_work());
        assert_eq!(told(&ring, &mut watch), Some(Arrival::Some));
    }
}

#[test]
fn turns_and_what_they_brought_are_counted() {
    let ring = Ring::new().expect("a ring");
    let (_a, b) = readable();
    let _watches = [ring.watch(&b), ring.watch(&b), ring.watch(&b)];
    assert_eq!(ring.poll(), 3);
    let polled = ring.counters();
    assert_eq!((polled.sleeps, polled.completions), (0, 3));
    assert!(polled.enters > 0);
    assert_eq!(ring.wait(Some(Duration::from_millis(1)), || false), 0);
    let waited = ring.counters();
    assert_eq!((waited.sleeps, waited.completions), (1, 3));
    assert_eq!(waited.enters, polled.enters + 1);
    let _another = ring.watch(&b);
    assert_eq!(ring.wait(None, || true), 1, "there is work: it does not sleep");
    assert_eq!(ring.counters().sleeps, 1);
}

/// Method: more than the submission queue takes at a time, all of which completes at once.
#[test]
fn a_turn_hands_over_all_and_does_not_sleep_when_something_is_done() {
    let ring = narrow();
    let (_a, b) = readable();
    let watches: Vec<_> = (0..11).map(|_| ring.watch(&b)).collect();
    assert_eq!(ring.wait(Some(Duration::from_secs(10)), || false), watches.len());
    assert_eq!(ring.counters().sleeps, 0);
    assert!(!ring.has_work(), "all were handed over");
}

#[test]
fn the_last_that_asked_is_woken() {
    let ring = Ring::new().expect("a ring");
    let (a, b) = UnixStream::pair().expect("a pair of sockets");
    let mut watch = ring.watch(&Fd::new(OwnedFd::from(b)));
    let told = [(); 2].map(|()| Arc::new(Told::default()));
    for told in &told {
        let waker = Waker::from(told.clone());
        assert!(watch.poll(&mut Context::from_waker(&waker)).is_pending());
    }
    ring.poll();
    (&a).write_all(b"x").expect("sends");
    ring.poll();
    assert!(!told[0].0.load(Ordering::Relaxed), "another one has asked since");
    assert!(told[1].0.load(Ordering::Relaxed));
}

/// WAKE-1. Method: the waker comes after the core has said that it is about to sleep, while it looks for
/// work.
#[test]
fn a_core_that_is_about_to_sleep_is_woken() {
    let ring = Ring::new().expect("a ring");
    let wake = ring.remote_wake();
    for _ in 0..3 {
        let woken = ring.wait(Some(Duration::from_secs(10)), || {
            wake.wake();
            false
        });
        assert_eq!(woken, 1, "the wake event");
    }
    // A core that is awake needs no word, and none is left for its next sleep.
    assert_eq!(ring.wait(Some(Duration::from_millis(1)), || false), 0);
    wake.wake();
    assert_eq!(ring.wait(Some(Duration::from_millis(1)), || false), 0);
}

#[test]
fn a_sleeping_core_is_told_once() {
    let wake = RemoteWake::new().expect("an event");
    let written = || {
        let mut count = [0; 8];
        let event = wake.event();
        fcntl_setfl(&event, OFlags::NONBLOCK).expect("a flag");
        rustix::io::read(&event, &mut count).map(|_| u64::from_ne_bytes(count))
    };
    wake.wake();
    assert_eq!(written(), Err(Errno::AGAIN), "it is awake");
    wake.announce_sleep();
    wake.wake();
    wake.wake();
    assert_eq!(written(), Ok(1));
    wake.announce_sleep();
    wake.awake();
    wake.wake();
    assert_eq!(written(), Err(Errno::AGAIN), "it is awake again");
}

/// CHUNK-2.
#[test]
fn there_is_a_chunk_as_long_as_one_is_free_or_can_be_made() {
    let ring = Ring::new().expect("a ring");
    let mut context = Context::from_waker(Waker::noop());
    let (a, b) = socket_pair();
    let mut kept = Vec::new();
    for _ in 0..CHUNKS {
        assert!(ring.poll_chunk(&mut context).is_ready(), "{} are taken", kept.len());
        block_on(&ring, ring.send(&a, bytes(b"x"))).expect("sends");
        kept.push(receive(&ring, &b).expect("bytes"));
    }
    assert!(ring.poll_chunk(&mut context).is_pending());
    kept.pop();
    assert!(ring.poll_chunk(&mut context).is_ready());
}

/// Method: what waits to be handed over is what the window lets go.
#[test]
fn a_window_gives_the_drive_no_more_than_its_limit() {
    let ring = Ring::new().expect("a ring");
    let (file, window) = (numbered_blocks(), ReadWindow::of_two());
    let reads: Vec<_> =
        (0..10).map(|n| ring.read(&file, &window, n * 4096, Buffer::new(1))).collect();
    assert_eq!(ring.with_table(|table| table.pending.len()), 2);
    for read in reads {
        block_on(&ring, read).expect("reads");
    }
}
