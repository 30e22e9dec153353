//! A device that may stop answering: requests fail after a while instead of waiting for ever.
//!
//! - TIMEOUT-1: a request that takes longer than the timeout fails with [`DeviceError::Gone`]. It may still be
//!   carried out.
//! - TIMEOUT-2: while such a request is not done, every new one fails at once. What is carried out late can
//!   thus overwrite nothing that came after it.
//! - TIMEOUT-3: when all of them are done, the device is used again.
//!   The same holds for another way to the device, after the first one is dead ([`TimeoutDevice::renewed`]).
//! - TIMEOUT-4: a bounded number of requests is at the device at a time, so that one which hangs does not
//!   take all that the kernel has for requests that wait. Those beyond wait here.
//! - TIMEOUT-5: time for which this core did not run, as its process or its machine was stopped, is not the device's: what
//!   is done is seen before it is missed. So a request's age is counted in looks, of which none is made meanwhile.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceLimits, World};
use local_sync::Semaphore;
use slab::Slab;
use units::{Duration, Pba, PbaRange};

/// Looks for late requests in each timeout. The first that sees a request may come right behind it.
const LOOKS: u32 = 8;

/// Requests at the device at a time, on each core (TIMEOUT-4). No drive gets faster by more.
const AT_DEVICE_MAX: u64 = 512;

struct Pending {
    /// Looks that have seen it (TIMEOUT-5).
    looks: u32,
    waker: Option<Waker>,
}

impl Pending {
    fn is_late(&self) -> bool {
        self.looks > LOOKS
    }
}

struct Watch<W> {
    world: W,
    pending: RefCell<Slab<Pending>>,
    /// Requests given up that are not done (TIMEOUT-2).
    late: Cell<usize>,
    /// For each request that may be at the device (TIMEOUT-4).
    room: Semaphore,
    /// Told of each request that failed or was given up.
    failed: Box<dyn Fn()>,
}

/// A device whose requests end within a time. Cheap to clone; all clones are the same.
pub struct TimeoutDevice<D, W> {
    device: D,
    watch: Rc<Watch<W>>,
}

impl<D: Clone, W> Clone for TimeoutDevice<D, W> {
    fn clone(&self) -> Self {
        Self { device: self.device.clone(), watch: self.watch.clone() }
    }
}

/// Forgets a request when it is over, in whatever way.
struct Entry<W> {
    watch: Rc<Watch<W>>,
    key: usize,
}

impl<W> Drop for Entry<W> {
    fn drop(&mut self) {
        self.watch.pending.borrow_mut().remove(self.key);
    }
}

impl<D: Device, W: World> TimeoutDevice<D, W> {
    /// Watches `device`, whose requests take at most `timeout`, or an eighth more.
    #[must_use]
    pub fn new(device: D, world: &W, timeout: Duration) -> Self {
        Self::telling(device, world, timeout, || {})
    }

    /// As [`TimeoutDevice::new`], and calls `failed` when the device fails a request or does not answer in time.
    #[must_use]
    pub fn telling(device: D, world: &W, timeout: Duration, failed: impl Fn() + 'static) -> Self {
        let (pending, late) = (RefCell::default(), Cell::new(0));
        let (room, failed) = (Semaphore::new(AT_DEVICE_MAX), Box::new(failed));
        let watch = Rc::new(Watch { world: world.clone(), pending, late, room, failed });
        let (weak, looking) = (Rc::downgrade(&watch), world.clone());
        let pause = timeout / LOOKS;
        world.spawn(async move {
            while look(&weak) {
                looking.sleep_until(looking.now() + pause).await;
            }
        });
        Self { device, watch }
    }

    /// The same device by another way, watched as one with this: what is late there holds up what is new here
    /// (TIMEOUT-2).
    #[must_use]
    pub fn renewed(&self, device: D) -> Self {
        Self { device, watch: self.watch.clone() }
    }

    /// Returns true if requests fail at once, because earlier ones are not done.
    #[must_use]
    pub fn is_hung(&self) -> bool {
        self.watch.late.get() > 0
    }

    fn watch<T, F, S>(
        &self,
        start: S,
    ) -> impl Future<Output = Result<T, DeviceError>> + 'static + use<T, F, S, D, W>
    where
        T: 'static,
        F: Future<Output = Result<T, DeviceError>> + 'static,
        S: FnOnce(D) -> F + 'static,
    {
        let watch = self.watch.clone();
        // TIMEOUT-2: it is not even begun.
        let request = (!self.is_hung()).then(|| {
            let (watch, device) = (watch.clone(), self.device.clone());
            Box::pin(async move {
                let _room = watch.room.acquire(1).await;
                if watch.late.get() > 0 {
                    return Err(DeviceError::Gone);
                }
                start(device).await
            })
        });
        async move {
            let mut request = request.ok_or(DeviceError::Gone)?;
            let waiting = Pending { looks: 0, waker: None };
            let key = watch.pending.borrow_mut().insert(waiting);
            let entry = Entry { watch, key };
            let outcome = std::future::poll_fn(|context| {
                if let Poll::Ready(outcome) = request.as_mut().poll(context) {
                    return Poll::Ready(Some(outcome));
                }
                let pending = &mut entry.watch.pending.borrow_mut()[key];
                if pending.is_late() {
                    return Poll::Ready(None);
                }
                pending.waker = Some(context.waker().clone());
                Poll::Pending
            })
            .await;
            let watch = entry.watch.clone();
            if let Some(outcome) = outcome {
                if let Err(DeviceError::Gone | DeviceError::Io { .. }) = outcome {
                    (watch.failed)();
                }
                return outcome;
            }
            (watch.failed)();
            watch.late.set(watch.late.get() + 1);
            watch.world.clone().spawn(async move {
                // TIMEOUT-3.
                let _ = request.await;
                watch.late.set(watch.late.get() - 1);
                if watch.late.get() == 0 {
                    tracing::warn!("the device answers again");
                }
            });
            Err(DeviceError::Gone)
        }
    }
}

/// Gives up requests that are late. Returns false if the device is no longer in use.
fn look<W: World>(watch: &Weak<Watch<W>>) -> bool {
    let Some(watch) = watch.upgrade() else { return false };
    let mut wakers = Vec::new();
    for (_, pending) in watch.pending.borrow_mut().iter_mut() {
        pending.looks = (pending.looks + 1).min(LOOKS + 1);
        if pending.is_late() {
            wakers.extend(pending.waker.take());
        }
    }
    if !wakers.is_empty() {
        tracing::error!(requests = wakers.len(), "the device does not answer");
    }
    wakers.into_iter().for_each(Waker::wake);
    true
}

impl<D: Device, W: World> Device for TimeoutDevice<D, W> {
    fn limits(&self) -> DeviceLimits {
        self.device.limits()
    }

    fn will_read(&self, range: PbaRange, fetch: impl FnMut(*const [u8])) {
        self.device.will_read(range, fetch);
    }

    fn pin(&self, range: PbaRange) -> Option<BufferSlice> {
        self.device.pin(range)
    }

    /// Half of the room is for requests with a waiting task: a request that is not polled keeps its part
    /// until it is dropped.
    fn has_room(&self) -> bool {
        let has_room = self.watch.room.available() > AT_DEVICE_MAX / 2;
        has_room && !self.is_hung() && self.device.has_room()
    }

    fn read(
        &self,
        pba: Pba,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        self.watch(move |device| async move { device.read(pba, buffer).await })
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.watch(move |device| async move { device.write(pba, data).await })
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.watch(move |device| async move { device.flush().await })
    }

    /// Has no time limit: no task waits for it, and its blocks are not used meanwhile.
    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        self.device.discard(range)
    }

    fn allocate(&self, range: PbaRange) -> impl Future<Output = ()> + 'static {
        let allocated = self.watch(move |device| async move {
            device.allocate(range).await;
            Ok(())
        });
        async move {
            let _: Result<(), DeviceError> = allocated.await;
        }
    }

    fn is_full_below(&self) -> bool {
        self.device.is_full_below()
    }

    fn needs_space_below(&self) {
        self.device.needs_space_below();
    }
}
