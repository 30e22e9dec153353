//! Device requests as values: kept, reused, and awaited together.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use io_traits::{BufferSlice, Device, DeviceError};
use units::Pba;

type Completion = Result<(), DeviceError>;

/// Memory for one device write, or flush, used again and again: the futures of a device have no
/// name, and to box each would cost an allocation per request.
pub(crate) trait IoSlot {
    fn start_write(&mut self, pba: Pba, data: BufferSlice);
    fn start_flush(&mut self);
    /// Polls what was started. Once it is done, the slot can start the next.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Completion>;
}

struct Slot<D, W, F, MakeWrite, MakeFlush> {
    device: D,
    make_write: MakeWrite,
    make_flush: MakeFlush,
    write: Pin<Box<Option<W>>>,
    flush: Pin<Box<Option<F>>>,
}

/// A slot for requests to `device`.
pub(crate) fn new_slot<D: Device>(device: &D) -> Box<dyn IoSlot> {
    Box::new(slot_with(
        device.clone(),
        |device: D, pba, data| async move { device.write(pba, data).await },
        |device: D| async move { device.flush().await },
    ))
}

fn slot_with<D, W, F, MakeWrite, MakeFlush>(
    device: D,
    make_write: MakeWrite,
    make_flush: MakeFlush,
) -> Slot<D, W, F, MakeWrite, MakeFlush>
where
    MakeWrite: Fn(D, Pba, BufferSlice) -> W,
    MakeFlush: Fn(D) -> F,
{
    Slot { device, make_write, make_flush, write: Box::pin(None), flush: Box::pin(None) }
}

impl<D, W, F, MakeWrite, MakeFlush> IoSlot for Slot<D, W, F, MakeWrite, MakeFlush>
where
    W: Future<Output = Completion>,
    F: Future<Output = Completion>,
    D: Clone,
    MakeWrite: Fn(D, Pba, BufferSlice) -> W,
    MakeFlush: Fn(D) -> F,
{
    fn start_write(&mut self, pba: Pba, data: BufferSlice) {
        self.write.set(Some((self.make_write)(self.device.clone(), pba, data)));
    }

    fn start_flush(&mut self) {
        self.flush.set(Some((self.make_flush)(self.device.clone())));
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Completion> {
        if let Some(write) = self.write.as_mut().as_pin_mut() {
            let done = write.poll(context);
            if done.is_ready() {
                self.write.set(None);
            }
            return done;
        }
        let flush = self.flush.as_mut().as_pin_mut().expect("something was started");
        let done = flush.poll(context);
        if done.is_ready() {
            self.flush.set(None);
        }
        done
    }
}

/// Awaits all of `futures`, which run concurrently, and returns their results in order.
pub(crate) async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.map(|future| Box::pin(Some(future))).collect();
    let mut outputs: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for (place, output) in running.iter_mut().zip(&mut outputs) {
            let Some(future) = place.as_mut().as_pin_mut() else { continue };
            match future.poll(context) {
                Poll::Ready(done) => {
                    *output = Some(done);
                    place.set(None);
                }
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    outputs.into_iter().map(|output| output.expect("all are done")).collect()
}
