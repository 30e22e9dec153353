use std::net::SocketAddr;
use std::pin::pin;

use io_traits::Buffer;

use super::*;
use crate::memory::{Memory, Window};

const KIB: usize = 1 << 10;

/// A stream whose sends end when a test says so.
#[derive(Clone, Default)]
struct Gate {
    /// Lengths of the sends so far.
    sent: Rc<RefCell<Vec<usize>>>,
    /// The outcome of sends, if they may end.
    outcome: Rc<Cell<Option<Result<(), StreamError>>>>,
    /// Bytes that the peer has taken, if that is told.
    taken: Rc<Cell<Option<u64>>>,
}

impl Stream for Gate {
    type Chunk = Vec<u8>;

    fn recv(&self) -> impl Future<Output = Result<Vec<u8>, StreamError>> + 'static {
        std::future::ready(Err(StreamError::Closed))
    }

    fn send(
        &self,
        batch: SendBatch,
    ) -> impl Future<Output = Result<SendBatch, StreamError>> + 'static {
        self.sent.borrow_mut().push(batch.len_bytes());
        let (outcome, mut batch) = (self.outcome.clone(), Some(batch));
        poll_fn(move |_| match outcome.get() {
            None => Poll::Pending,
            Some(outcome) => Poll::Ready(outcome.map(|()| {
                let mut batch = batch.take().expect("polled once more");
                batch.clear();
                batch
            })),
        })
    }

    fn shutdown_write(&self) {}

    fn shutdown(&self) {}

    fn end_by_peer(&self) -> Option<StreamError> {
        None
    }

    fn taken_bytes(&self) -> Option<u64> {
        self.taken.get()
    }

    fn peer(&self) -> SocketAddr {
        self.local()
    }

    fn local(&self) -> SocketAddr {
        "10.0.0.1:4420".parse().expect("an address")
    }

    fn interface(&self) -> Option<String> {
        None
    }
}

fn outbox() -> (Outbox, Gate, Memory, Window) {
    let memory = Memory::new(64 << 20);
    let window = memory.window(32 << 20);
    let gate = Gate::default();
    (Outbox::new(gate.clone(), Notify::new()), gate, memory, window)
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn put_data(outbox: &Outbox, window: &Window, len_bytes: usize) {
    outbox.put(|out| {
        out.bytes(&[1; 24]);
        out.data(Buffer::new(len_bytes / BLOCK_SIZE).into_slice());
        out.hold(window.take_anyway(len_bytes as i64));
    });
}

/// OUTBOX-7: an outbox that has failed holds nothing, whatever waited and whatever is put in later.
#[test]
fn a_failed_outbox_gives_all_memory_back_and_takes_no_more() {
    let (outbox, gate, memory, window) = outbox();
    let mut run = pin!(outbox.run());
    assert!(poll(run.as_mut()).is_pending());
    for _ in 0..8 {
        put_data(&outbox, &window, 256 * KIB);
    }
    assert_eq!(memory.used_bytes(), 2 << 20);
    gate.outcome.set(Some(Err(StreamError::Reset)));
    assert_eq!(poll(run.as_mut()), Poll::Ready(Err(StreamError::Reset)));
    assert_eq!((memory.used_bytes(), outbox.copied_bytes()), (0, 0));
    put_data(&outbox, &window, 4 * KIB);
    assert_eq!((memory.used_bytes(), outbox.copied_bytes()), (0, 0));
    assert!(outbox.has_ended());
}

/// OUTBOX-7, where the failure is found while something is put in.
#[test]
fn a_send_that_fails_at_once_ends_the_outbox() {
    let (outbox, gate, memory, window) = outbox();
    let mut run = pin!(outbox.run());
    assert!(poll(run.as_mut()).is_pending());
    gate.outcome.set(Some(Err(StreamError::Reset)));
    put_data(&outbox, &window, BATCH_BYTES_MAX);
    put_data(&outbox, &window, BATCH_BYTES_MAX);
    assert_eq!(poll(run.as_mut()), Poll::Ready(Err(StreamError::Reset)));
    assert_eq!(memory.used_bytes(), 0);
}

/// OUTBOX-6: while a send waits for the peer, nothing is pinned but what it sends itself, which is the stream's
/// affair.
#[test]
fn pinned_data_does_not_wait_for_the_peer() {
    let (outbox, gate, _memory, window) = outbox();
    let device: Rc<dyn AsRef<[u8]>> = Rc::new(vec![7; BATCH_BYTES_MAX]);
    let pins = || Rc::strong_count(&device) - 1;
    let put = || {
        outbox.put(|out| {
            out.bytes(&[1; 24]);
            out.data(BufferSlice::pinned(device.clone()));
            out.hold(window.take_anyway(BATCH_BYTES_MAX as i64));
        });
    };
    gate.outcome.set(Some(Ok(())));
    let mut run = pin!(outbox.run());
    assert!(poll(run.as_mut()).is_pending());
    put();
    assert_eq!((pins(), gate.sent.borrow().iter().sum::<usize>()), (0, 24 + BATCH_BYTES_MAX));
    gate.outcome.set(None);
    put();
    assert_eq!(pins(), 1, "the batch that is being sent");
    put();
    assert_eq!(pins(), 1, "put in while one is being sent");
    gate.outcome.set(Some(Ok(())));
    assert!(poll(run.as_mut()).is_pending());
    assert_eq!((pins(), gate.sent.borrow().iter().sum::<usize>()), (0, 3 * (24 + BATCH_BYTES_MAX)));
}

/// OUTBOX-4.
#[test]
fn much_is_sent_at_once_and_little_when_the_task_runs() {
    let (outbox, gate, memory, window) = outbox();
    gate.outcome.set(Some(Ok(())));
    let mut run = pin!(outbox.run());
    assert!(poll(run.as_mut()).is_pending());
    let enough = BATCH_BYTES_MAX.div_ceil(24 + 64 * KIB);
    for _ in 1..enough {
        put_data(&outbox, &window, 64 * KIB);
    }
    assert!(gate.sent.borrow().is_empty());
    put_data(&outbox, &window, 64 * KIB);
    assert_eq!(*gate.sent.borrow(), [enough * (24 + 64 * KIB)]);
    assert_eq!(memory.used_bytes(), 0, "sent, and free before `put` returned");
    put_data(&outbox, &window, 4 * KIB);
    assert_eq!(gate.sent.borrow().len(), 1);
    assert!(poll(run.as_mut()).is_pending());
    assert_eq!(gate.sent.borrow().len(), 2);
}

/// OUTBOX-1, OUTBOX-5: what is put in during a send waits, and leaves in sends of bounded length.
#[test]
fn a_long_queue_leaves_in_pieces() {
    let (outbox, gate, memory, window) = outbox();
    let mut run = pin!(outbox.run());
    assert!(poll(run.as_mut()).is_pending());
    for _ in 0..7 {
        put_data(&outbox, &window, 1 << 20);
    }
    assert_eq!(outbox.taken_bytes(), Some(2 * (24 + (1 << 20))), "as far as is known");
    gate.taken.set(Some(5));
    assert_eq!(outbox.taken_bytes(), Some(5));
    assert_eq!(gate.sent.borrow().len(), 1);
    outbox.close();
    gate.outcome.set(Some(Ok(())));
    assert_eq!(poll(run.as_mut()), Poll::Ready(Ok(())));
    let sent = gate.sent.borrow();
    assert_eq!(sent.iter().sum::<usize>(), 7 * (24 + (1 << 20)));
    assert!(sent.iter().all(|len| *len <= BATCH_BYTES_MAX + BLOCK_SIZE), "{sent:?}");
    assert_eq!(memory.used_bytes(), 0);
    assert_eq!(outbox.taken_bytes(), None, "nothing waits");
}
