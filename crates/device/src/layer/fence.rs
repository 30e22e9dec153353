//! A gate before a device that can be shut: for good, or for users of an old handle to it.
//!
//! - FENCE-1: behind a shut gate no request begins, on any core: nor does one that waited for room at a drive.
//! - FENCE-2: a handle of a device passes until there is a newer one. So the handle from before a drive was
//!   plugged in again is not used any more, as soon as the drive was reopened.
//! - FENCE-3: nor does a request begin when the host's tenure has ended, also if no task has noticed yet (TENURE-2). It may be
//!   renewed, which a shut gate is not.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};

use cluster::{BootTime, Tenure};
use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceLimits, World};
use pin_project_lite::pin_project;
use units::{Duration, Pba, PbaRange};

use super::TimeoutDevice;

/// The number of no way.
const SHUT: u32 = u32::MAX;

#[derive(Debug, Default)]
struct Gate {
    /// The number of the way that passes (FENCE-2), or [`SHUT`].
    passes: AtomicU32,
    /// True if requests failed since this was last read.
    ails: AtomicBool,
}

/// Shuts a device for all cores. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Fence {
    gate: Arc<Gate>,
    tenure: Tenure,
    /// The clock by which the tenure ends.
    now: fn() -> BootTime,
}

/// Open until it is shut.
impl Default for Fence {
    fn default() -> Self {
        Self::during(Tenure::endless(), BootTime::default)
    }
}

impl Fence {
    /// Open for as long as `tenure` lasts by the clock `now`.
    #[must_use]
    pub fn during(tenure: Tenure, now: fn() -> BootTime) -> Self {
        Self { gate: Arc::default(), tenure, now }
    }

    /// From now on no request begins (FENCE-1).
    pub fn shut(&self) {
        self.gate.passes.store(SHUT, Ordering::SeqCst);
    }

    /// Returns whether it was shut, which is for good.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.gate.passes.load(Ordering::Relaxed) == SHUT
    }

    /// Returns whether a request by the newest way may begin now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_shut() && !self.tenure.has_ended(self.now)
    }

    /// From now on requests pass by a new way only, whose number this is; `None` if it was shut (FENCE-2).
    #[must_use]
    pub fn renew(&self) -> Option<u32> {
        let next = |way: u32| way.checked_add(1).filter(|way| *way != SHUT);
        let before = self.gate.passes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        before.ok().and_then(next)
    }

    /// Returns the newest way to `device`, for what is done apart from its cores.
    #[must_use]
    pub fn newest<D>(&self, device: D) -> Fenced<D> {
        let passes = self.gate.passes.load(Ordering::SeqCst);
        // Of one that is shut no way passes.
        let way = if passes == SHUT { 0 } else { passes };
        Fenced { device, fence: self.clone(), way }
    }

    /// Returns the first way to `device`, whose requests take at most `timeout`. The fence is also looked at behind the wait for
    /// room (FENCE-1).
    #[must_use]
    pub fn watch<D: Device, W: World>(
        &self,
        device: D,
        world: &W,
        timeout: Duration,
    ) -> TimeoutDevice<Fenced<D>, W> {
        let failing = self.clone();
        let device = Fenced::new(device, self.clone());
        TimeoutDevice::telling(device, world, timeout, move || failing.note_failure())
    }

    /// The device failed a request.
    fn note_failure(&self) {
        self.gate.ails.store(true, Ordering::Relaxed);
    }

    /// Returns true if the device failed requests since this was last called.
    #[must_use]
    pub fn take_ails(&self) -> bool {
        self.gate.ails.swap(false, Ordering::Relaxed)
    }
}

/// A device behind a fence.
#[derive(Clone, Debug)]
pub struct Fenced<D> {
    device: D,
    fence: Fence,
    /// The number of this way to it.
    way: u32,
}

impl<D> Fenced<D> {
    /// Returns the first way to the device.
    #[must_use]
    pub fn new(device: D, fence: Fence) -> Self {
        Self { device, fence, way: 0 }
    }

    /// Returns another way to the same device, by the number that [`Fence::renew`] has given.
    #[must_use]
    pub fn renewed<E>(&self, device: E, way: u32) -> Fenced<E> {
        Fenced { device, fence: self.fence.clone(), way }
    }

    /// Returns the device behind the fence, whether or not requests may begin.
    #[must_use]
    pub fn behind(&self) -> &D {
        &self.device
    }

    /// The device, if requests may begin.
    fn open(&self) -> Option<&D> {
        let Fence { gate, tenure, now } = &self.fence;
        let passes = gate.passes.load(Ordering::Relaxed) == self.way;
        (passes && !tenure.has_ended(*now)).then_some(&self.device)
    }
}

pin_project! {
    /// A request; `None` if it was not let in. An `async` block would keep room for it twice, and with it every command.
    struct Passed<F> {
        #[pin]
        request: Option<F>,
    }
}

impl<T, F: Future<Output = Result<T, DeviceError>>> Future for Passed<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().request.as_pin_mut() {
            Some(request) => request.poll(context),
            None => Poll::Ready(Err(DeviceError::Gone)),
        }
    }
}

impl<D: Device> Device for Fenced<D> {
    fn limits(&self) -> DeviceLimits {
        self.device.limits()
    }

    fn will_read(&self, range: PbaRange, fetch: impl FnMut(*const [u8])) {
        if let Some(device) = self.open() {
            device.will_read(range, fetch);
        }
    }

    fn pin(&self, range: PbaRange) -> Option<BufferSlice> {
        self.open().and_then(|device| device.pin(range))
    }

    fn has_room(&self) -> bool {
        self.open().is_some_and(Device::has_room)
    }

    fn read(
        &self,
        pba: Pba,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        Passed { request: self.open().map(|device| device.read(pba, buffer)) }
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        Passed { request: self.open().map(|device| device.write(pba, data)) }
    }

    fn write_at_once(
        &self,
        pba: Pba,
        data: &BufferSlice,
        crc: Option<&mut dyn FnMut(u32)>,
    ) -> Option<Result<(), DeviceError>> {
        match self.open() {
            Some(device) => device.write_at_once(pba, data, crc),
            None => Some(Err(DeviceError::Gone)),
        }
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        Passed { request: self.open().map(|device| device.flush()) }
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        Passed { request: self.open().map(|device| device.discard(range)) }
    }

    fn allocate(&self, range: PbaRange) -> impl Future<Output = ()> + 'static {
        let allocated = self.open().map(|device| device.allocate(range));
        async move {
            if let Some(allocated) = allocated {
                allocated.await;
            }
        }
    }

    fn is_full_below(&self) -> bool {
        self.device.is_full_below()
    }

    fn needs_space_below(&self) {
        self.device.needs_space_below();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use cluster::Term;
    use io_traits::{Clock, Spawn};
    use sim::Simulation;

    use super::*;
    use crate::MemDevice;
    use crate::layer::{Effect, Faulty, Rule, Verb};

    /// FENCE-1 and FENCE-2, for every clone of each way.
    #[test]
    fn the_newest_way_passes_until_the_gate_is_shut() {
        let memory = MemDevice::new(16).unwrap();
        let fence = Fence::default();
        let first = Fenced::new(memory.attach(), fence.clone());
        let also_first = first.clone();
        assert!(first.open().is_some());
        let second = first.renewed(memory.attach(), fence.renew().unwrap());
        assert!(first.open().is_none() && also_first.open().is_none());
        assert!(second.open().is_some() && !fence.is_shut());
        let third = first.renewed(memory.attach(), fence.renew().unwrap());
        assert!(second.open().is_none() && third.open().is_some());
        let newest = fence.newest(memory.attach());
        assert!(newest.open().is_some());
        fence.shut();
        assert!(third.open().is_none() && fence.is_shut());
        assert!(newest.open().is_none() && fence.newest(memory.attach()).open().is_none());
        assert_eq!(fence.renew(), None, "what is another's stays so");
    }

    thread_local! {
        /// The time since the machine's start, as the test has it.
        static NOW: Cell<BootTime> = Cell::default();
    }

    /// FENCE-3. Method: the tenure is confirmed, by a question of the machine's start and by a later one, on a clock that the
    /// test sets to just before its end and to its end.
    #[test]
    fn nothing_passes_behind_the_end_of_the_tenure() {
        let memory = MemDevice::new(16).unwrap();
        let tenure = Tenure::limited(Term::new(Duration::from_millis(1)));
        let device = Fenced::new(memory.attach(), Fence::during(tenure.clone(), || NOW.get()));
        let start = BootTime::default();
        let block = Buffer::zeroed(1).into_slice();
        let written = || device.write_at_once(Pba(1), &block, None);
        assert!(device.open().is_none(), "it has not begun");
        assert_eq!(written(), Some(Err(DeviceError::Gone)));
        for asked in [start + Duration::from_secs(1), start + Duration::from_secs(3600)] {
            assert!(tenure.renew(asked, asked));
            NOW.set(asked + Duration::from_micros(999));
            assert!(device.clone().open().is_some() && !device.fence.is_shut());
            assert_eq!(written(), Some(Ok(())));
            NOW.set(asked + Duration::from_millis(1));
            assert!(device.open().is_none(), "it has ended");
            assert_eq!(written(), Some(Err(DeviceError::Gone)));
        }
    }

    /// FENCE-1. Method: a drive has all that it may have at a time, and more waits, when the gate is shut, or opened for another
    /// way. Then the drive goes on.
    #[test]
    fn what_waits_for_room_when_the_gate_is_shut_never_begins() {
        for is_for_good in [false, true] {
            let simulation = Simulation::new(1);
            let world = simulation.world();
            let run = simulation.run(async move {
                let memory = MemDevice::new(2048).unwrap().attach();
                let (fence, busy) = (Fence::default(), Faulty::new(memory, &world));
                busy.set_rules([Rule::of(Effect::Hang, &[Verb::Write])]);
                let begun = || busy.begun(Verb::Write);
                let device = fence.watch(busy.clone(), &world, Duration::from_secs(30));
                let outcomes = Rc::new(RefCell::new([0; 2]));
                for pba in 0..1024 {
                    let write = device.write(Pba(pba), Buffer::new(1).into_slice());
                    let outcomes = outcomes.clone();
                    world.spawn(async move {
                        let is_done = write.await.is_ok();
                        outcomes.borrow_mut()[usize::from(is_done)] += 1;
                    });
                }
                let pause = || world.sleep_until(world.now() + Duration::from_millis(1));
                pause().await;
                let room = begun();
                assert!((1..1024).contains(&room) && *outcomes.borrow() == [0, 0], "{room}");
                match is_for_good {
                    true => fence.shut(),
                    false => drop(fence.renew().unwrap()),
                }
                busy.set_rules([]);
                pause().await;
                assert_eq!((begun(), outcomes.take()), (room, [1024 - room, room]));
            });
            run.unwrap();
        }
    }

    #[test]
    fn a_failure_is_told_once() {
        let fence = Fence::default();
        assert!(!fence.take_ails());
        fence.clone().note_failure();
        assert!(fence.take_ails() && !fence.take_ails());
    }
}
