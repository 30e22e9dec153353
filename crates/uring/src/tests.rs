//! Rings in the modes and sizes that cores do not usually have.

use std::future::{Future, poll_fn};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use io_traits::{Buffer, BufferSlice, SendBatch};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use rustix::io::Errno;

use crate::ring::FILLS_MAX;
use crate::setup::{Mode, Options};
use crate::{Arrival, CHUNKS, Chunk, Fd, ReadWindow, Received, Ring, Watch, self_test};

mod fuse;
mod operations;
mod turns;

/// Longer than anything here takes, so that a hang is a failure.
const STEPS_MAX: usize = 1_000;

fn block_on<T>(ring: &Ring, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..STEPS_MAX {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        ring.wait(Some(Duration::from_millis(20)), || false);
    }
    panic!("a test hangs");
}

fn socket_pair() -> (Fd, Fd) {
    let (a, b) = UnixStream::pair().expect("a pair of sockets");
    (Fd::new(OwnedFd::from(a)), Fd::new(OwnedFd::from(b)))
}

fn bytes(bytes: &[u8]) -> SendBatch {
    let mut batch = SendBatch::new();
    batch.push_bytes(bytes);
    batch
}

/// The next chunk, if the socket has bytes.
fn receive(ring: &Ring, fd: &Fd) -> Option<Chunk> {
    loop {
        match ring.try_recv(fd, &mut []).expect("receives") {
            Received::Bytes { chunk, .. } => return Some(chunk),
            Received::End => return None,
            Received::Nothing => {
                let mut watch = ring.watch(fd);
                next(ring, &mut watch);
            }
            Received::NoChunk => panic!("a chunk is left"),
        }
    }
}

fn next(ring: &Ring, watch: &mut Watch) -> Arrival {
    block_on(ring, poll_fn(|context| watch.poll(context))).expect("a socket can be watched")
}

/// The event of the watch so far.
fn told(ring: &Ring, watch: &mut Watch) -> Option<Arrival> {
    ring.poll();
    match watch.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(arrival) => Some(arrival.expect("a socket can be watched")),
        Poll::Pending => None,
    }
}

fn cooperative() -> Ring {
    Ring::with_options(&Options { modes: &[Mode::Cooperative], ..Options::default() })
        .expect("this kernel has the older mode too")
}

#[test]
fn this_host_has_all_that_is_needed() {
    assert_eq!(self_test(), Ok(()));
}

#[test]
fn both_modes_carry_bytes_and_tell_of_each_arrival_once() {
    for ring in [cooperative(), Ring::new().expect("a ring")] {
        let (a, b) = socket_pair();
        let mut watch = ring.watch(&b);
        assert_eq!(told(&ring, &mut watch), None);
        assert!(matches!(ring.try_recv(&b, &mut []), Ok(Received::Nothing)));
        for _ in 0..3 {
            let sent = block_on(&ring, ring.send(&a, bytes(b"hello"))).expect("sends");
            assert!(sent.is_empty());
            assert_eq!(next(&ring, &mut watch), Arrival::Some);
            assert_eq!(told(&ring, &mut watch), None, "unless something comes");
            assert_eq!(&receive(&ring, &b).expect("bytes")[..], b"hello");
            assert_eq!(told(&ring, &mut watch), None);
        }
        block_on(&ring, ring.send(&a, bytes(b"last"))).expect("sends");
        drop(a);
        assert_eq!(next(&ring, &mut watch), Arrival::Last, "together with bytes before it");
        assert_eq!(&receive(&ring, &b).expect("bytes")[..], b"last");
        assert!(receive(&ring, &b).is_none());
    }
}

#[test]
fn what_came_before_a_watch_began_is_told() {
    let ring = Ring::new().expect("a ring");
    for is_over in [false, true] {
        let (a, b) = socket_pair();
        block_on(&ring, ring.send(&a, bytes(b"early"))).expect("sends");
        let _open = (!is_over).then_some(a);
        let expected = if is_over { Arrival::Last } else { Arrival::Some };
        assert_eq!(next(&ring, &mut ring.watch(&b)), expected);
    }
}

#[test]
fn what_cannot_be_watched_fails() {
    let ring = Ring::new().expect("a ring");
    let file = Fd::new(
        rustix::fs::open("/proc/self", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty())
            .expect("opens"),
    );
    let mut watch = ring.watch(&file);
    assert_eq!(block_on(&ring, poll_fn(|context| watch.poll(context))), Err(Errno::BADF));
}

#[test]
fn another_thread_wakes_a_ring_that_sleeps() {
    for ring in [cooperative(), Ring::new().expect("a ring")] {
        for round in 0..3 {
            let wake = ring.remote_wake();
            let waker = std::thread::spawn(move || {
                // Before the ring sleeps in some rounds, after it does in others. Yielding would take minutes beside programs
                // that want all of the CPU.
                (0..round * 100_000).for_each(|_| std::hint::spin_loop());
                wake.wake();
            });
            let slept = ring.wait(Some(Duration::from_secs(10)), || waker.is_finished());
            waker.join().expect("no panic");
            assert!(slept <= 1, "at most the wake event completes");
        }
        assert!(ring.counters().sleeps <= 3);
    }
}

/// Method: more than the socket takes, pinned; the peer does not read before the send has begun to
/// wait.
#[test]
fn what_waits_for_the_peer_is_not_pinned_and_arrives_whole() {
    const LEN: usize = 8 << 20;
    let ring = Ring::new().expect("a ring");
    let (a, b) = socket_pair();
    let contents: Vec<u8> = (0..LEN).map(|n| (n / 7) as u8).collect();
    let device: Rc<dyn AsRef<[u8]>> = Rc::new(contents.clone());
    let mut batch = bytes(b"header");
    batch.push_data(BufferSlice::pinned(device.clone()));
    assert_eq!(Rc::strong_count(&device), 2);
    let send = ring.send(&a, batch);
    assert_eq!(Rc::strong_count(&device), 1, "the rest was copied");
    let mut received = Vec::new();
    while received.len() < LEN + 6 {
        received.extend_from_slice(&receive(&ring, &b).expect("bytes"));
    }
    assert!(block_on(&ring, send).expect("sends").is_empty());
    assert!(received[..6] == *b"header" && received[6..] == contents);
}

/// A file of 64 blocks, each filled with its number.
fn numbered_blocks() -> Fd {
    let file = memfd_create("blocks", MemfdFlags::CLOEXEC).expect("memory");
    let contents: Vec<u8> = (0..64u8).flat_map(|n| [n; 4096]).collect();
    assert_eq!(rustix::io::pwrite(&file, &contents, 0).expect("writes"), contents.len());
    Fd::new(file)
}

/// Method: a window that holds nearly all of the reads, whether or not a task waits for them, and a ring that goes
/// away while it does.
#[test]
fn what_a_window_holds_is_read_in_the_end() {
    let ring = Ring::new().expect("a ring");
    let (file, window) = (numbered_blocks(), ReadWindow::of_two());
    let read = |block: u64| ring.read(&file, &window, block * 4096, Buffer::new(1));
    let mut reads = Vec::new();
    for n in 0..200 {
        let wanted = read(n % 64);
        if n % 3 == 0 {
            drop(wanted);
        } else {
            reads.push((n, wanted));
        }
    }
    for (n, read) in reads {
        let buffer = block_on(&ring, read).expect("reads");
        assert_eq!(buffer.as_bytes()[4095], (n % 64) as u8);
    }
    // What is behind the end of the file fails, and lets the next one go all the same.
    let (behind, next) = (read(64), read(7));
    assert_eq!(block_on(&ring, behind).map(drop), Err(Errno::IO));
    assert_eq!(block_on(&ring, next).expect("reads").as_bytes()[0], 7);
    drop((0..50).map(read).collect::<Vec<_>>());
    let in_flight = ring.with_table(|table| table.in_flight());
    assert!(in_flight >= 48, "{in_flight} are held or under way");
}

/// A ring with queues of four places.
fn small() -> Ring {
    let options = Options { sq_entries: 4, cq_entries: 4, ..Options::default() };
    Ring::with_options(&options).expect("a ring")
}

/// Polls until the ring has nothing to do; fails if that takes too many turns.
fn come_to_rest(ring: &Ring) {
    let is_at_rest = |_: &usize| {
        ring.poll();
        !ring.has_work()
    };
    assert!((0..STEPS_MAX).any(|step| is_at_rest(&step)), "there is always more to do");
}

/// Method: queues of four places, and far more requests at once.
#[test]
fn queues_that_are_full_lose_nothing() {
    let ring = small();
    let (file, window) = (numbered_blocks(), ReadWindow::default());
    let reads: Vec<_> = (0..500u64)
        .map(|n| (n, ring.read(&file, &window, n % 64 * 4096, Buffer::new(1))))
        .collect();
    let pairs: Vec<_> = (0..60).map(|_| socket_pair()).collect();
    let mut watches: Vec<_> = pairs.iter().map(|(_, b)| ring.watch(b)).collect();
    for (a, _) in &pairs {
        drop(ring.send(a, bytes(b"x")));
    }
    for (n, read) in reads {
        let buffer = block_on(&ring, read).expect("reads");
        assert_eq!(buffer.as_bytes()[4095], (n % 64) as u8);
    }
    for ((_, b), watch) in pairs.iter().zip(&mut watches) {
        assert_eq!(next(&ring, watch), Arrival::Some);
        assert_eq!(&receive(&ring, b).expect("bytes")[..], b"x");
    }
}

/// WATCH-3. Method: a byte comes to 60 sockets at one time, for whose watches there are four places, and is not read. The ring
/// comes to rest, and a file is read. Then the bytes are received, and come again: round by round, so that watches which were
/// ended are armed again.
#[test]
fn watches_that_the_kernel_ends_are_armed_again_when_their_owner_asks() {
    let ring = small();
    let (file, window) = (numbered_blocks(), ReadWindow::default());
    let pairs: Vec<_> = (0..60).map(|_| socket_pair()).collect();
    let mut watches: Vec<_> = pairs.iter().map(|(_, b)| ring.watch(b)).collect();
    come_to_rest(&ring);
    for round in 0..5 {
        for (a, _) in &pairs {
            drop(ring.send(a, bytes(b"x")));
        }
        come_to_rest(&ring);
        let enters = ring.counters().enters;
        for _ in 0..100 {
            ring.poll();
        }
        assert_eq!(ring.counters().enters, enters, "nothing is asked of the kernel");
        let read = block_on(&ring, ring.read(&file, &window, round * 4096, Buffer::new(1)));
        assert_eq!(read.expect("reads").as_bytes()[0], round as u8);
        for ((_, b), watch) in pairs.iter().zip(&mut watches) {
            assert_eq!(next(&ring, watch), Arrival::Some);
            assert_eq!(&receive(&ring, b).expect("bytes")[..], b"x");
            assert_eq!(told(&ring, watch), None, "nothing is left");
        }
    }
}

/// Method: the usual queues, in both modes. 6000 watches of one socket are told of one byte at one time: more than there are places
/// for completions. They are told of the next one too, once they were asked.
#[test]
fn more_watches_than_completions_have_places_are_all_told() {
    for ring in [cooperative(), Ring::new().expect("a ring")] {
        let (a, b) = socket_pair();
        let mut watches: Vec<_> = (0..6000).map(|_| ring.watch(&b)).collect();
        come_to_rest(&ring);
        for _ in 0..2 {
            block_on(&ring, ring.send(&a, bytes(b"x"))).expect("sends");
            for watch in &mut watches {
                assert_eq!(next(&ring, watch), Arrival::Some);
            }
            assert_eq!(&receive(&ring, &b).expect("bytes")[..], b"x");
            for watch in &mut watches {
                assert_eq!(told(&ring, watch), None);
            }
        }
    }
}

#[test]
fn a_watch_that_lapsed_can_be_dropped() {
    let ring = small();
    let (a, b) = socket_pair();
    let watches: Vec<_> = (0..60).map(|_| ring.watch(&b)).collect();
    come_to_rest(&ring);
    block_on(&ring, ring.send(&a, bytes(b"x"))).expect("sends");
    come_to_rest(&ring);
    let in_flight = || ring.with_table(|table| table.in_flight());
    assert!(in_flight() < 60, "some have lapsed");
    drop(watches);
    come_to_rest(&ring);
    assert_eq!(in_flight(), 0);
}

/// Method: a turn is given more than it may hand over. What is left goes with the next turns.
#[test]
fn a_turn_has_a_bound() {
    const WATCHES: usize = 1000;
    let ring = small();
    let (_a, b) = socket_pair();
    let _watches: Vec<_> = (0..WATCHES).map(|_| ring.watch(&b)).collect();
    let mut turns = 0;
    while ring.has_work() {
        let enters = ring.counters().enters;
        ring.poll();
        turns += 1;
        assert!(ring.counters().enters - enters <= FILLS_MAX as u64);
    }
    assert!((WATCHES.div_ceil(4 * FILLS_MAX)..STEPS_MAX).contains(&turns), "{turns}");
}

#[test]
fn watches_that_are_dropped_give_their_place_back_and_cost_no_bytes() {
    let ring = Ring::new().expect("a ring");
    let (a, b) = socket_pair();
    for n in 0..1000_u16 {
        let watch = ring.watch(&b);
        if n % 5 == 0 {
            ring.poll();
        }
        block_on(&ring, ring.send(&a, bytes(&n.to_le_bytes()))).expect("sends");
        drop(watch);
        if n % 3 == 0 {
            ring.poll();
        }
        assert_eq!(receive(&ring, &b).expect("bytes")[..], n.to_le_bytes());
    }
    let in_flight = || ring.with_table(|table| table.in_flight());
    // What was cancelled last ends in a turn of its own.
    for _ in 0..STEPS_MAX {
        if in_flight() <= 1 {
            break;
        }
        ring.wait(Some(Duration::from_millis(20)), || false);
    }
    assert!(in_flight() <= 1, "the wake event's read at most");
}

/// CHUNK-3.
#[test]
fn bytes_go_where_they_belong_and_those_behind_them_into_a_chunk() {
    let ring = Ring::new().expect("a ring");
    let (a, b) = socket_pair();
    let sent: Vec<u8> = (0..20_000u32).map(|n| (n / 7) as u8).collect();
    block_on(&ring, ring.send(&a, bytes(&sent))).expect("sends");
    let mut place = [0; 10_000];
    let mut at = 0;
    // The first is full, with a part of a chunk behind it; for the second too little has come.
    for (landed, behind, full) in [(10_000, 4096, true), (5_904, 0, false)] {
        match ring.try_recv(&b, &mut place) {
            Ok(Received::Bytes { landed: here, chunk, is_full }) => {
                assert_eq!((here, chunk.len(), is_full), (landed, behind, full));
                assert_eq!(place[..here], sent[at..at + here]);
                assert_eq!(chunk[..], sent[at + here..at + here + behind]);
            }
            other => panic!("bytes have come: {other:?}"),
        }
        at += landed + behind;
    }
    assert!(matches!(ring.try_recv(&b, &mut place), Ok(Received::Nothing)));
    drop(a);
    assert!(matches!(ring.try_recv(&b, &mut place), Ok(Received::End)));
}

#[test]
fn a_receiver_without_a_chunk_is_told_when_one_is_free() {
    let ring = Ring::new().expect("a ring");
    let (a, b) = socket_pair();
    let mut kept: Vec<_> = (0..CHUNKS)
        .map(|_| {
            block_on(&ring, ring.send(&a, bytes(b"x"))).expect("sends");
            receive(&ring, &b).expect("bytes")
        })
        .collect();
    block_on(&ring, ring.send(&a, bytes(b"y"))).expect("sends");
    assert!(matches!(ring.try_recv(&b, &mut []), Ok(Received::NoChunk)));
    let told = Arc::new(Told::default());
    let waker = Waker::from(told.clone());
    assert!(ring.poll_chunk(&mut Context::from_waker(&waker)).is_pending());
    assert!(!told.0.load(Ordering::Relaxed));
    kept.pop();
    assert!(told.0.load(Ordering::Relaxed));
    assert_eq!(&receive(&ring, &b).expect("bytes")[..], b"y");
}

#[derive(Default)]
struct Told(AtomicBool);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Until it has ended, whether or not someone still waits for it.
fn needs_kernel_threads_until_its_end<F>(ring: &Ring, start: impl Fn() -> F)
where
    F: Future<Output = Result<(), Errno>>,
{
    for is_dropped in [false, true] {
        assert!(!ring.waits_for_kernel_threads(), "nothing is in flight");
        let operation = start();
        assert!(ring.waits_for_kernel_threads(), "it is in flight");
        if is_dropped {
            drop(operation);
            (0..STEPS_MAX).find(|_| {
                ring.wait(Some(Duration::from_millis(20)), || false);
                !ring.waits_for_kernel_threads()
            });
        } else {
            block_on(ring, operation).expect("it works");
        }
    }
    assert!(!ring.waits_for_kernel_threads(), "it has ended");
}

#[test]
fn changes_of_files_may_need_threads_of_the_kernel_and_sockets_do_not() {
    let ring = Ring::new().expect("a ring");
    let (a, b) = socket_pair();
    let mut watch = ring.watch(&b);
    ring.poll();
    let file = memfd_create("file", MemfdFlags::empty()).expect("a file in memory");
    let file = Fd::new(file);
    let block = Buffer::new(1).into_slice();
    needs_kernel_threads_until_its_end(&ring, || ring.write(&file, 0, block.clone()));
    needs_kernel_threads_until_its_end(&ring, || ring.sync_data(&file));
    needs_kernel_threads_until_its_end(&ring, || ring.punch_hole(&file, 0, 4096));
    block_on(&ring, ring.send(&a, bytes(b"end"))).expect("sends");
    next(&ring, &mut watch);
}

/// URING-5. Method: a pipe that is full takes a write when it is read from, and not before.
#[test]
fn files_are_settled_when_no_write_is_under_way() {
    let ring = Ring::new().expect("a ring");
    let (a, b) = socket_pair();
    let _watch = ring.watch(&b);
    drop(ring.send(&a, bytes(b"x")));
    assert!(ring.settle_until(Instant::now()), "sockets are no files");
    let (mut read, mut write) = std::io::pipe().expect("a pipe");
    fcntl_setfl(&write, OFlags::NONBLOCK).expect("a flag");
    while write.write(&[0; 4096]).is_ok() {}
    fcntl_setfl(&write, OFlags::empty()).expect("a flag");
    let full = Fd::new(OwnedFd::from(write));
    drop(ring.write(&full, 0, Buffer::new(1).into_slice()));
    ring.poll();
    assert!(!ring.settle_until(Instant::now()), "it is under way, though no task waits for it");
    read.read_exact(&mut [0; 4096]).expect("reads");
    assert!(ring.settle(), "it has found room");
    assert!(!ring.with_table(|table| table.changes_files()), "it has ended");
}
