//! A device that takes as long as a modelled drive would.
//!
//! - DRIVE-MODEL-1: requests are timed in the order in which they are made, under one short lock:
//!   the drive is one, whichever core asks. All cores' clocks must count from the same start.
//! - DRIVE-MODEL-2: a request is done when the model and the device below both are. Over memory,
//!   that is the model's instant; a device that is slower than its model shows through.
//! - DRIVE-MODEL-3: what the device below refuses is refused without delay, and the model does not
//!   hear of it if it lies beyond the device.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io_traits::{Buffer, BufferSlice, Clock, Device, DeviceError, DeviceLimits};
use ssd_model::Model;
use units::{BLOCK_SIZE, Instant, Pba, PbaRange};

/// A model that cores share. Cheap to clone, also into other threads.
#[derive(Clone, Debug)]
pub struct SharedModel(Arc<Mutex<Model>>);

impl SharedModel {
    /// Shares `model`.
    #[must_use]
    pub fn new(model: Model) -> Self {
        Self(Arc::new(Mutex::new(model)))
    }

    /// Blocks stored for each block that is written, as things stand.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        self.lock().write_amplification()
    }

    fn lock(&self) -> MutexGuard<'_, Model> {
        // A panic in the model leaves it as sound as any other drive with a past.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device below, delayed as a modelled drive would delay it. Cheap to clone on its core.
#[derive(Clone, Debug)]
pub struct ModelDevice<D, C> {
    inner: D,
    clock: C,
    model: SharedModel,
    /// True if a flush is needed, by the device below or by the model.
    volatile_cache: bool,
}

impl<D: Device, C: Clock + Clone + 'static> ModelDevice<D, C> {
    /// `inner` as one core sees it, delayed by the model that all cores share.
    #[must_use]
    pub fn new(inner: D, clock: C, model: SharedModel) -> Self {
        let volatile_cache = inner.limits().volatile_cache || model.lock().has_volatile_buffer();
        Self { inner, clock, model, volatile_cache }
    }

    /// When a request is done, by the model; at once if it lies beyond the device (DRIVE-MODEL-3).
    fn time(
        &self,
        range: PbaRange,
        request: impl FnOnce(&mut Model, Instant, PbaRange) -> Instant,
    ) -> Instant {
        let now = self.clock.now();
        let blocks = self.inner.limits().blocks;
        match range.checked_end() {
            Some(end) if end.0 <= blocks => request(&mut self.model.lock(), now, range),
            _ => now,
        }
    }

    /// Returns the outcome of `inner`, not before `done`.
    fn delayed<T: 'static>(
        &self,
        inner: impl Future<Output = Result<T, DeviceError>> + 'static,
        done: Instant,
    ) -> impl Future<Output = Result<T, DeviceError>> + 'static {
        let clock = self.clock.clone();
        async move {
            let output = inner.await?;
            clock.sleep_until(done).await;
            Ok(output)
        }
    }
}

impl<D: Device, C: Clock + Clone + 'static> Device for ModelDevice<D, C> {
    fn limits(&self) -> DeviceLimits {
        let volatile_cache = self.volatile_cache;
        DeviceLimits { volatile_cache, pins: false, ..self.inner.limits() }
    }

    fn has_room(&self) -> bool {
        self.inner.has_room()
    }

    fn read(
        &self,
        pba: Pba,
        buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        let done = self.time(PbaRange::new(pba, buffer.len_blocks() as u64), Model::read);
        self.delayed(self.inner.read(pba, buffer), done)
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let blocks = (data.len_bytes() / BLOCK_SIZE) as u64;
        let done = self.time(PbaRange::new(pba, blocks), Model::write);
        self.delayed(self.inner.write(pba, data), done)
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let done = self.model.lock().flush(self.clock.now());
        self.delayed(self.inner.flush(), done)
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let done = self.time(range, Model::discard);
        self.delayed(self.inner.discard(range), done)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use io_traits::Spawn;
    use sim::{SimWorld, Simulation};
    use ssd_model::{Params, Preset};
    use units::Duration;

    use super::*;
    use crate::MemDevice;

    const BLOCKS: u64 = 1 << 14;

    /// A drive whose timing is known to the nanosecond.
    fn plain() -> Params {
        let preset = Preset::P3700.params();
        Params { jitter: 0.0, tail_share: 0.0, pause_every_s: 0.0, ..preset }
    }

    fn shared(params: &Params) -> (MemDevice, SharedModel) {
        let model = Model::new(params, BLOCKS, 1).expect("a sound description");
        (MemDevice::new(BLOCKS).expect("memory"), SharedModel::new(model))
    }

    fn device(world: &SimWorld, params: &Params) -> ModelDevice<MemDevice, SimWorld> {
        let (memory, model) = shared(params);
        ModelDevice::new(memory, world.clone(), model)
    }

    fn filled(blocks: usize, byte: u8) -> BufferSlice {
        let mut buffer = Buffer::new(blocks);
        buffer.as_mut_bytes().fill(byte);
        buffer.into_slice()
    }

    #[test]
    fn data_comes_back_after_the_time_of_the_model() {
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let device = device(&world, &plain());
        let done = simulation.run(async move {
            device.write(Pba(5), filled(3, 7)).await.expect("writes");
            let written = world.now();
            let read = device.read(Pba(6), Buffer::new(2)).await.expect("reads");
            assert!(read.as_bytes().iter().all(|byte| *byte == 7));
            (written, world.now() - written)
        });
        // The last of three blocks arrives in the time that they take beyond a command.
        let (written, read) = done.expect("time passes");
        assert!((15_000..20_000).contains(&written.0), "{written:?}");
        assert!((92_000..96_000).contains(&read.as_nanos()), "{read:?}");
    }

    #[test]
    fn a_request_beyond_the_end_is_refused_at_once() {
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let device = device(&world, &plain());
        let range = PbaRange::new(Pba(BLOCKS - 1), 2);
        let refused = Err(DeviceError::OutOfRange { range });
        let outcome = simulation.run(async move {
            assert!(device.read(range.start, Buffer::new(2)).await.is_err());
            assert_eq!(device.write(range.start, filled(2, 1)).await, refused);
            assert_eq!(device.discard(range).await, refused);
            device.discard(PbaRange::new(Pba(0), 9)).await.expect("discards");
            device.flush().await.expect("flushes");
            world.now()
        });
        assert_eq!(outcome, Ok(Instant(40_000)), "a discard and a flush");
    }

    #[test]
    fn a_volatile_buffer_shows_in_the_limits() {
        let world = Simulation::new(1).world();
        assert!(!device(&world, &plain()).limits().volatile_cache);
        let params = Params { volatile_buffer: true, ..plain() };
        assert!(device(&world, &params).limits().volatile_cache);
    }

    /// Reads by `tasks` tasks over one second of simulated time, and when each of them ended.
    fn reads_of(tasks: usize, seed: u64) -> Vec<Instant> {
        let simulation = Simulation::new(seed);
        let world = simulation.world();
        let (memory, model) = shared(&Preset::P3700.params());
        let ends = Rc::new(RefCell::new(Vec::new()));
        for task in 0..tasks as u64 {
            // Each has a device of its own, as cores do.
            let device = ModelDevice::new(memory.attach(), world.clone(), model.clone());
            let (world, ends) = (world.clone(), ends.clone());
            world.clone().spawn(async move {
                let mut block = task * 7919;
                while world.now() < Instant(0) + Duration::from_secs(1) {
                    block = block.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                    let pba = Pba((block >> 40) % BLOCKS);
                    device.read(pba, Buffer::new(1)).await.expect("reads");
                    ends.borrow_mut().push(world.now());
                }
            });
        }
        simulation.run_for(Duration::from_secs(2));
        ends.take()
    }

    /// DRIVE-MODEL-1: the drive's limit holds for all cores together.
    #[test]
    fn cores_share_one_drive() {
        let alone = reads_of(1, 3).len();
        assert!((9_000..12_000).contains(&alone), "{alone}");
        let many = reads_of(128, 3).len();
        assert!((440_000..480_000).contains(&many), "{many}");
    }

    #[test]
    fn a_simulation_on_it_is_a_function_of_its_seed() {
        assert_eq!(reads_of(8, 3), reads_of(8, 3));
    }

    /// On the real clock, no request is done before the model says so.
    #[test]
    fn in_real_time_a_read_takes_no_less_than_the_model_says() {
        use reactor::{CoreConfig, Handle, run_on_current_thread};

        let main = |handle: Handle| async move {
            let (memory, model) = shared(&plain());
            let device = ModelDevice::new(memory, handle.clone(), model);
            for n in 0..100 {
                let begin = handle.now();
                device.read(Pba(n * 97), Buffer::new(1)).await.expect("reads");
                let took = handle.precise_now() - begin;
                assert!(took >= Duration::from_micros(92), "{took:?}");
            }
        };
        run_on_current_thread(&CoreConfig::default(), main).expect("this host has io_uring");
    }
}
