//! Operations at their bounds: short ones, abandoned ones, and those that are under way when the ring goes away.

use std::net::TcpListener;

use rustix::fs::{fstat, ftruncate};
use rustix::io::{pread, pwrite};

use super::*;
use crate::request::{Request, Step};
use crate::send::SendState;
use crate::table::Key;

/// Bytes whose count of references tells whether they are still held.
fn counted(byte: u8, len: usize) -> Rc<dyn AsRef<[u8]>> {
    Rc::new(vec![byte; len])
}

fn in_flight(ring: &Ring) -> usize {
    ring.with_table(|table| table.in_flight())
}

/// Turns until nothing but the read of the wake event is in flight.
fn finish(ring: &Ring) {
    for _ in 0..STEPS_MAX {
        ring.wait(Some(Duration::from_millis(20)), || false);
        if in_flight(ring) == 1 {
            return;
        }
    }
    panic!("{} are still in flight", in_flight(ring));
}

fn outcome(ring: &Ring, key: Key) -> (Result<(), Errno>, Request) {
    block_on(ring, poll_fn(|context| ring.poll_operation(key, context)))
}

/// Names a step, and its error.
fn name(step: &Step) -> (&'static str, Option<Errno>) {
    match step {
        Step::Again => ("again", None),
        Step::Event { .. } => ("event", None),
        Step::Finished(outcome) => ("finished", outcome.err()),
    }
}

#[test]
fn a_request_is_finished_when_all_of_it_is_done() {
    let requests = || {
        let mut state = SendState::new();
        state.begin(bytes(&[7; 8192]), 0);
        let (buffer, window) = (Buffer::new(2), ReadWindow::default());
        [
            Request::Read { buffer, offset: 0, done: 0, window },
            Request::Write { data: Buffer::new(2).into_slice(), offset: 0, done: 0 },
            Request::Send(state),
        ]
    };
    for mut request in requests() {
        for count in [1, 4000, 4190] {
            assert_eq!(name(&request.on_completion(count, 0)), ("again", None), "{count}");
        }
        for errno in [Errno::INTR, Errno::AGAIN] {
            let step = request.on_completion(-errno.raw_os_error(), 0);
            assert_eq!(name(&step), ("again", None), "{errno}");
        }
        assert_eq!(name(&request.on_completion(1, 0)), ("finished", None));
    }
    let [mut read, mut write, _] = requests();
    for request in [&mut read, &mut write] {
        assert_eq!(name(&request.on_completion(8191, 0)), ("again", None));
        let step = request.on_completion(0, 0);
        assert_eq!(name(&step), ("finished", Some(Errno::IO)), "a byte is left");
        let step = request.on_completion(-Errno::NOSPC.raw_os_error(), 0);
        assert_eq!(name(&step), ("finished", Some(Errno::NOSPC)));
    }
    let nothing = Buffer::new(1).into_slice().slice(0..0);
    let mut write = Request::Write { data: nothing, offset: 0, done: 0 };
    assert_eq!(name(&write.on_completion(0, 0)), ("finished", None), "nothing was to be written");
    let (buffer, window) = (Buffer::new(0), ReadWindow::default());
    let mut read = Request::Read { buffer, offset: 0, done: 0, window };
    assert_eq!(name(&read.on_completion(0, 0)), ("finished", None), "nothing was to be read");
}

/// Method: requests of which a part is done go to the kernel.
#[test]
fn what_is_left_of_a_request_has_its_own_place() {
    let ring = Ring::new().expect("a ring");
    let file = numbered_blocks();
    let window = ReadWindow::default();
    let buffer = Buffer::from_bytes(&[0xAA; 8192]);
    let read = Request::Read { buffer, offset: 4096, done: 4000, window };
    let (end, request) = outcome(&ring, ring.submit(&file, read));
    assert_eq!(end, Ok(()));
    let Request::Read { buffer, .. } = request else { panic!("it was a read") };
    let read = buffer.as_bytes();
    assert!(read[..4000].iter().all(|byte| *byte == 0xAA), "it was there before");
    assert!(read[4000..4096].iter().all(|byte| *byte == 1));
    assert!(read[4096..].iter().all(|byte| *byte == 2));

    let data = Buffer::from_bytes(&[0xBB; 4096]).into_slice();
    let write = Request::Write { data, offset: 3 * 4096, done: 4000 };
    assert_eq!(outcome(&ring, ring.submit(&file, write)).0, Ok(()));
    let mut block = [0; 4096];
    assert_eq!(pread(&file, &mut block, 3 * 4096), Ok(4096));
    assert!(block[..4000].iter().all(|byte| *byte == 3), "it was not written again");
    assert!(block[4000..].iter().all(|byte| *byte == 0xBB));
}

/// Method: the file ends within the read, and has grown when the ring asks for the rest.
#[test]
fn a_short_read_goes_on_where_it_ended() {
    let ring = Ring::new().expect("a ring");
    let file = numbered_blocks();
    let window = ReadWindow::default();
    ftruncate(&file, 4196).expect("a shorter file");
    let mut read = pin!(ring.read(&file, &window, 0, Buffer::new(2)));
    let mut context = Context::from_waker(Waker::noop());
    // The first turn with a completion queues the rest, which goes out with the next one.
    while ring.poll() == 0 {
        assert!(read.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(pwrite(&file, &[9; 4096], 4196), Ok(4096));
    let buffer = block_on(&ring, read).expect("reads");
    assert_eq!(buffer.as_bytes()[4095..4197], [&[0][..], &[1; 100], &[9]].concat());
    let behind = block_on(&ring, ring.read(&file, &window, 8192, Buffer::new(1)));
    assert_eq!(behind.map(drop), Err(Errno::IO), "the file ends within");
}

#[test]
fn a_hole_reads_as_zeroes_and_leaves_the_rest() {
    let ring = Ring::new().expect("a ring");
    let file = numbered_blocks();
    block_on(&ring, ring.punch_hole(&file, 5 * 4096, 2 * 4096)).expect("a hole");
    block_on(&ring, ring.punch_hole(&file, 63 * 4096, 9 * 4096)).expect("a hole behind the end");
    assert_eq!(fstat(&file).expect("a file").st_size, 64 * 4096, "its size stays");
    for block in 0..64_u8 {
        let mut bytes = [1; 4096];
        assert_eq!(pread(&file, &mut bytes, u64::from(block) * 4096), Ok(4096));
        let expected = if matches!(block, 5 | 6 | 63) { 0 } else { block };
        assert!(bytes.iter().all(|byte| *byte == expected), "block {block}");
    }
}

#[test]
fn connections_are_made_to_both_kinds_of_addresses() {
    let ring = Ring::new().expect("a ring");
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = TcpListener::bind(address) else { continue };
        let to = listener.local_addr().expect("bound");
        let socket = tcp_socket(to.is_ipv6());
        block_on(&ring, ring.connect(&socket, to)).expect("connects");
        let (accepted, _) = listener.accept().expect("a connection");
        drop(ring.send(&socket, bytes(b"x")));
        (&accepted).read_exact(&mut [0]).expect("a byte");
        let closed = listener.local_addr().expect("bound");
        drop((listener, accepted));
        let refused = block_on(&ring, ring.connect(&tcp_socket(to.is_ipv6()), closed));
        assert_eq!(refused, Err(Errno::CONNREFUSED));
    }
}

fn tcp_socket(is_ipv6: bool) -> Fd {
    use rustix::net::{AddressFamily, SocketType, socket};
    let family = if is_ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
    Fd::new(socket(family, SocketType::STREAM, None).expect("a socket"))
}

/// URING-4. Method: a listener that accepts nothing has room for few connections; the next ones wait.
#[test]
fn a_connect_that_is_dropped_is_cancelled() {
    let ring = Ring::new().expect("a ring");
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
    rustix::net::listen(&listener, 0).expect("a shorter queue");
    let to = listener.local_addr().expect("bound");
    let sockets: Vec<Fd> = (0..4).map(|_| tcp_socket(false)).collect();
    let connects: Vec<_> = sockets.iter().map(|socket| ring.connect(socket, to)).collect();
    for _ in 0..10 {
        ring.wait(Some(Duration::from_millis(5)), || false);
    }
    assert!(in_flight(&ring) > 1, "some wait");
    drop(connects);
    finish(&ring);
}

/// URING-1, URING-4. Method: data counts its references. The outcome of what was dropped is thrown away, with its memory.
#[test]
fn an_abandoned_operation_keeps_its_memory_until_its_end_and_no_longer() {
    let ring = Ring::new().expect("a ring");
    let file = numbered_blocks();
    let data = counted(0xCC, 4096);
    drop(ring.write(&file, 4096, BufferSlice::lent(data.clone())));
    assert_eq!(Rc::strong_count(&data), 2, "the kernel is to read it");
    finish(&ring);
    assert_eq!(Rc::strong_count(&data), 1);
    let mut block = [0; 4096];
    assert_eq!(pread(&file, &mut block, 4096), Ok(4096));
    assert_eq!(block, [0xCC; 4096], "it ran to its end");
}

/// A batch of so many parts of three bytes.
fn parts(count: usize) -> SendBatch {
    let mut batch = SendBatch::new();
    for n in 0..count / 2 {
        batch.push_bytes(&[n as u8, 1, 2]);
        batch.push_data(BufferSlice::lent(counted(n as u8, 3)));
    }
    batch
}

/// URING-4. Method: more parts than a call takes, so that the kernel is asked several times.
#[test]
fn a_send_of_many_parts_arrives_whole_whether_or_not_it_is_waited_for() {
    const PARTS: usize = 4000;
    for is_dropped in [false, true] {
        let ring = Ring::new().expect("a ring");
        let (a, b) = socket_pair();
        let batch = parts(PARTS);
        let expected: Vec<u8> = batch.slices().flatten().copied().collect();
        let send = ring.send(&a, batch);
        let sent = if is_dropped {
            drop(send);
            None
        } else {
            Some(send)
        };
        let mut received = Vec::new();
        while received.len() < expected.len() {
            received.extend_from_slice(&receive(&ring, &b).expect("bytes"));
        }
        assert!(received == expected, "dropped: {is_dropped}");
        if let Some(send) = sent {
            assert!(block_on(&ring, send).expect("sends").is_empty());
        }
        finish(&ring);
        // A thousand parts in a call; watches and the wake event complete, too.
        let completions = ring.counters().completions;
        assert!(completions < 40, "{completions} completions");
    }
}

/// More than a socket takes at once.
fn stuck_send(ring: &Ring, socket: &Fd) -> Rc<dyn AsRef<[u8]>> {
    let data = counted(0, 8 << 20);
    let mut batch = bytes(b"header");
    batch.push_data(BufferSlice::lent(data.clone()));
    drop(ring.send(socket, batch));
    ring.poll();
    assert_eq!(Rc::strong_count(&data), 2, "it waits for the peer");
    data
}

#[test]
fn a_send_that_is_done_lets_go_of_its_data() {
    let ring = Ring::new().expect("a ring");
    for is_dropped in [false, true] {
        let (a, b) = socket_pair();
        let data = counted(5, 2 << 20);
        let mut batch = SendBatch::new();
        batch.push_data(BufferSlice::lent(data.clone()));
        let send = ring.send(&a, batch);
        let mut send = (!is_dropped).then_some(send);
        let mut left = 2 << 20;
        while left > 0 {
            left -= receive(&ring, &b).expect("bytes").len();
        }
        if let Some(send) = send.take() {
            drop(block_on(&ring, send).expect("sends"));
        }
        finish(&ring);
        assert_eq!(Rc::strong_count(&data), 1, "dropped: {is_dropped}");
    }
}

/// URING-5.
#[test]
fn a_ring_that_goes_away_ends_a_send_that_is_stuck() {
    let ring = Ring::new().expect("a ring");
    let (a, _b) = socket_pair();
    let data = stuck_send(&ring, &a);
    ring.wait(Some(Duration::from_millis(1)), || false);
    drop(ring);
    assert_eq!(Rc::strong_count(&data), 1, "the kernel has let go of it");
}

/// URING-5. Method: a pipe that is full takes a write when it is read from, which another thread does.
#[test]
fn a_ring_that_goes_away_waits_for_a_write() {
    let ring = Ring::new().expect("a ring");
    let (mut read, mut write) = std::io::pipe().expect("a pipe");
    fcntl_setfl(&write, OFlags::NONBLOCK).expect("a flag");
    let mut capacity = 0;
    while let Ok(count) = write.write(&[0; 4096]) {
        capacity += count;
    }
    fcntl_setfl(&write, OFlags::empty()).expect("a flag");
    let full = Fd::new(OwnedFd::from(write));
    drop(ring.write(&full, 0, Buffer::from_bytes(&[7; 4096]).into_slice()));
    ring.poll();
    drop(full);
    let reader = std::thread::spawn(move || {
        read.read_exact(&mut [0; 4096]).expect("reads");
        read
    });
    drop(ring);
    let mut read = reader.join().expect("no panic");
    let mut left = Vec::new();
    read.read_to_end(&mut left).expect("the write's end is closed");
    assert_eq!(left.len(), capacity, "what was written is there");
    assert_eq!(left[capacity - 4096..], [7; 4096]);
}

#[test]
fn a_place_in_the_table_has_another_name_each_time() {
    let ring = Ring::new().expect("a ring");
    let file = numbered_blocks();
    let mut keys: Vec<Key> = Vec::new();
    for _ in 0..5 {
        let key = ring.submit(&file, Request::Sync);
        assert!(!keys.contains(&key), "{key:?} is named again");
        keys.push(key);
        assert_eq!(outcome(&ring, key).0, Ok(()));
    }
}

/// Method: as many watches as there is room for completions, many times; all are told of a byte, and dropped before the ring
/// hears of it.
#[test]
fn watches_that_the_kernel_has_ended_can_be_dropped_before_that_is_heard() {
    let ring = small();
    let (a, b) = UnixStream::pair().expect("a pair of sockets");
    let b = Fd::new(OwnedFd::from(b));
    let watches: Vec<_> = (0..60).map(|_| ring.watch(&b)).collect();
    come_to_rest(&ring);
    assert_eq!(in_flight(&ring), 60);
    (&a).write_all(b"x").expect("sends");
    drop(watches);
    come_to_rest(&ring);
    for _ in 0..STEPS_MAX {
        ring.wait(Some(Duration::from_millis(1)), || false);
        if in_flight(&ring) <= 1 {
            break;
        }
    }
    assert_eq!(in_flight(&ring), 1, "the wake event's read");
}
