//! Load in the simulated world: every run here is a function of its seed.

use std::convert::Infallible;

use io_traits::Device;
use sim::{DeviceFaults, SimDevice, SimWorld, Simulation};
use units::Lba;

use super::*;
use crate::target::DeviceTarget;
use crate::verify::{Verified, VerifyError, holds_data, verify};
use crate::workload::{Access, Distribution};

const RANGE: LbaRange = LbaRange::new(Lba(0), 256);

fn workload() -> Workload {
    Workload {
        read_percent: 50,
        access: Access::Random(Distribution::Uniform),
        blocks_per_request: 1,
        depth: 8,
        limit: Limit::Bytes(2000 * BLOCK_SIZE as u64),
        rate: None,
        range: RANGE,
        seed: 3,
        interval: Duration::from_millis(10),
        on_error: OnError::Stop,
    }
}

fn setup<T: Target>(
    world: &SimWorld,
    targets: Vec<T>,
    journal: Option<&Rc<RefCell<Journal>>>,
) -> Setup<T, SimWorld, impl Fn() -> Instant + 'static> {
    let clock = world.clone();
    let now = move || clock.now();
    let journal = journal.cloned();
    Setup {
        world: world.clone(),
        now,
        targets,
        journal,
        recorder: None,
        observer: None,
        stop: None,
    }
}

fn journal() -> Rc<RefCell<Journal>> {
    Rc::new(RefCell::new(Journal::new(RANGE, 7).expect("small")))
}

#[test]
fn a_byte_limit_is_met_exactly_and_intervals_add_up() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let target = DeviceTarget::new(SimDevice::new(&world, RANGE.blocks));
    let setup = setup(&world, vec![target.clone(), target], None);
    let outcome = simulation.run(run(setup, workload())).expect("no stall").expect("valid");
    assert_eq!((outcome.requests, outcome.errors), (2000, 0));
    let sum: u64 = outcome.intervals.iter().map(|step| step.reads + step.writes).sum();
    assert_eq!(sum, 2000);
    assert!(outcome.read.requests > 900 && outcome.write.requests > 900);
    assert!(outcome.read.latency.is_some_and(|latency| latency.p99_9999_ns > 0));
}

/// Whatever is waited for: in a closed loop the next request, in an open one its arrival, hours away.
#[test]
fn a_run_ends_early_when_it_is_told_to() {
    let closed = Workload { limit: Limit::Bytes(u64::MAX), ..workload() };
    let rate = Rate { per_second: 0.0005, arrivals: Arrivals::Fixed };
    let open = Workload { rate: Some(rate), depth: 4, ..closed.clone() };
    for workload in [closed, open] {
        let simulation = Simulation::new(1);
        let world = simulation.world();
        let target = DeviceTarget::new(SimDevice::new(&world, RANGE.blocks));
        let clock = world.clone();
        let told = Instant(50_000_000);
        let stop: Stop = Box::new(move || clock.now() >= told);
        let setup = Setup { stop: Some(stop), ..setup(&world, vec![target], None) };
        let outcome = simulation.run(run(setup, workload)).expect("no stall").expect("valid");
        assert!(outcome.cut_short && outcome.errors == 0, "{outcome:?}");
        assert!(outcome.requests > 0 && outcome.seconds < 1.0, "{outcome:?}");
        assert!(world.now() < Instant(1_000_000_000), "{:?}", world.now());
    }
}

#[test]
fn what_was_written_is_found_again_and_a_flipped_bit_is_noticed() {
    let simulation = Simulation::new(2);
    let world = simulation.world();
    let device = SimDevice::new(&world, RANGE.blocks);
    let target = DeviceTarget::new(device.clone());
    let journal = journal();
    let setup = setup(&world, vec![target.clone()], Some(&journal));
    let outcome = simulation.run(run(setup, workload())).expect("no stall").expect("valid");
    assert_eq!((outcome.errors, outcome.mismatches), (0, 0));
    assert!(outcome.blocks_checked > 900);
    let check = |journal: &Rc<RefCell<Journal>>| {
        let (world, target, journal) = (world.clone(), target.clone(), journal.clone());
        let task = async move {
            target.flush().await.expect("a flush");
            verify(&world, &target, &journal, 4, None).await.expect("readable")
        };
        simulation.run(task).expect("no stall")
    };
    let sound = check(&journal);
    assert_eq!(sound.wrong, 0);
    assert!(sound.blocks >= journal.borrow().blocks_written(), "{sound:?}");
    device.flip_bit(units::Pba(9), 12_345);
    assert_eq!(check(&journal), Verified { wrong: 1, ..sound });
    assert_eq!(journal.borrow().mismatches()[0], crate::Mismatch::Damaged { lba: Lba(9) });
}

/// LOAD-JOURNAL-2: a failed write leaves either what was there or itself, and the load goes on.
#[test]
fn failed_requests_are_counted_and_never_taken_for_acknowledged() {
    let simulation = Simulation::new(3);
    let world = simulation.world();
    let device = SimDevice::new(&world, RANGE.blocks);
    device.set_faults(DeviceFaults { read_error_one_in: 50, ..DeviceFaults::default() });
    let journal = journal();
    let setup = setup(&world, vec![DeviceTarget::new(device)], Some(&journal));
    let workload = Workload { on_error: OnError::Continue, ..workload() };
    let outcome = simulation.run(run(setup, workload)).expect("no stall").expect("valid");
    assert!(outcome.errors > 5, "{}", outcome.errors);
    assert_eq!(outcome.requests + outcome.errors, 2000);
    assert_eq!(outcome.mismatches, 0);
}

#[test]
fn an_error_ends_the_run_if_asked_to() {
    let simulation = Simulation::new(4);
    let world = simulation.world();
    let device = SimDevice::new(&world, RANGE.blocks);
    device.set_faults(DeviceFaults { read_error_one_in: 10, ..DeviceFaults::default() });
    let setup = setup(&world, vec![DeviceTarget::new(device)], None);
    let outcome = simulation.run(run(setup, workload())).expect("no stall").expect("valid");
    assert!(outcome.requests < 500 && outcome.errors >= 1);
    assert!(outcome.first_error.is_some());
}

/// A device that hangs for a while, once.
#[derive(Clone)]
struct Hiccup {
    world: SimWorld,
    inner: DeviceTarget<SimDevice>,
}

const HANG: (u64, u64) = (100_000_000, 200_000_000);

impl Target for Hiccup {
    type Data = <DeviceTarget<SimDevice> as Target>::Data;
    type Error = <DeviceTarget<SimDevice> as Target>::Error;

    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(
        &self,
        range: LbaRange,
    ) -> impl Future<Output = Result<Self::Data, Self::Error>> + 'static {
        let (world, read) = (self.world.clone(), self.inner.read(range));
        async move {
            if (HANG.0..HANG.1).contains(&world.now().0) {
                world.sleep_until(Instant(HANG.1)).await;
            }
            read.await
        }
    }

    fn write(
        &self,
        range: LbaRange,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), Self::Error>> + 'static {
        self.inner.write(range, data)
    }

    fn flush(&self) -> impl Future<Output = Result<(), Self::Error>> + 'static {
        self.inner.flush()
    }

    fn block(data: &Self::Data, index: usize) -> &[u8] {
        DeviceTarget::<SimDevice>::block(data, index)
    }
}

/// A stall of 100 ms in a second at 1000 requests a second delays every tenth request, and the
/// latency says so, though only one task is issuing.
#[test]
fn an_open_loop_charges_a_stall_to_every_request_that_it_delays() {
    let simulation = Simulation::new(5);
    let world = simulation.world();
    let inner = DeviceTarget::new(SimDevice::new(&world, RANGE.blocks));
    let target = Hiccup { world: world.clone(), inner };
    for arrivals in [Arrivals::Fixed, Arrivals::Poisson] {
        let setup = setup(&world, vec![target.clone()], None);
        let workload = Workload {
            read_percent: 100,
            depth: 1,
            limit: Limit::Time(Duration::from_secs(1)),
            rate: Some(Rate { per_second: 1000.0, arrivals }),
            ..workload()
        };
        let outcome = simulation.run(run(setup, workload)).expect("no stall").expect("valid");
        assert!((900..1100).contains(&outcome.requests), "{}", outcome.requests);
        let latency = outcome.read.latency.expect("reads");
        if arrivals == Arrivals::Fixed {
            assert!(latency.p50_ns < 2_000_000, "{latency:?}");
            assert!(latency.p99_ns > 80_000_000, "{latency:?}");
        }
    }
}

#[test]
fn data_on_a_target_is_found() {
    let simulation = Simulation::new(6);
    let world = simulation.world();
    let device = SimDevice::new(&world, 300);
    let target = DeviceTarget::new(device.clone());
    let all = LbaRange::new(Lba(0), 300);
    let found = simulation.run({
        let target = target.clone();
        async move {
            let before = holds_data(&target, all).await.expect("readable");
            let data = Buffer::from_bytes(&[1]).into_slice();
            device.write(units::Pba(299), data).await.expect("writable");
            (before, holds_data(&target, all).await.expect("readable"))
        }
    });
    assert_eq!(found.expect("no stall"), (None, Some(Lba(299))));
}

#[test]
fn impossible_workloads_are_refused() {
    let simulation = Simulation::new(7);
    let world = simulation.world();
    let target = DeviceTarget::new(SimDevice::new(&world, RANGE.blocks));
    let refusal = |workload: Workload, checked: bool| {
        let journal = journal();
        let setup = setup(&world, vec![target.clone()], checked.then_some(&journal));
        simulation.run(run(setup, workload)).expect("no stall").expect_err("refused")
    };
    assert_eq!(refusal(Workload { depth: 0, ..workload() }, false), WorkloadError::Zero);
    let range = LbaRange::new(Lba(1), RANGE.blocks);
    let beyond = WorkloadError::BeyondTarget { range, blocks: RANGE.blocks };
    assert_eq!(refusal(Workload { range, ..workload() }, false), beyond);
    let busy = WorkloadError::TooBusyToCheck { needed: 257, slots: 256 };
    assert_eq!(refusal(Workload { depth: 256, ..workload() }, true), busy);
}

/// Memory: done before any task waits. Counts its reads.
#[derive(Clone)]
struct Instantaneous {
    reads: Rc<Cell<u64>>,
}

impl Target for Instantaneous {
    type Data = ();
    type Error = Infallible;

    fn blocks(&self) -> u64 {
        RANGE.blocks
    }

    fn read(&self, _range: LbaRange) -> impl Future<Output = Result<(), Self::Error>> + 'static {
        self.reads.set(self.reads.get() + 1);
        std::future::ready(Ok(()))
    }

    fn write(
        &self,
        _range: LbaRange,
        _data: BufferSlice,
    ) -> impl Future<Output = Result<(), Self::Error>> + 'static {
        std::future::ready(Ok(()))
    }

    fn flush(&self) -> impl Future<Output = Result<(), Self::Error>> + 'static {
        std::future::ready(Ok(()))
    }

    fn block(_data: &(), _index: usize) -> &[u8] {
        &[]
    }
}

#[test]
fn connections_get_their_turns_on_a_target_that_never_waits() {
    let simulation = Simulation::new(8);
    let world = simulation.world();
    let targets: Vec<Instantaneous> =
        (0..2).map(|_| Instantaneous { reads: Rc::default() }).collect();
    let setup = setup(&world, targets.clone(), None);
    let workload = Workload { read_percent: 100, depth: 1, ..workload() };
    let outcome = simulation.run(run(setup, workload)).expect("no stall").expect("valid");
    assert_eq!(outcome.requests, 2000);
    for target in targets {
        assert!((900..1100).contains(&target.reads.get()), "{}", target.reads.get());
    }
}

fn terms() -> Terms {
    Terms {
        depth: 8,
        blocks_max: 16,
        until: None,
        interval: Duration::from_millis(10),
        on_error: OnError::Stop,
        seed: 3,
    }
}

/// Method: an open loop is recorded, and the recording is played and recorded again.
#[test]
fn a_recording_of_a_run_is_the_run_again() {
    let recorded = |requests: Option<Trace>| {
        let simulation = Simulation::new(9);
        let world = simulation.world();
        let target = DeviceTarget::new(SimDevice::new(&world, RANGE.blocks));
        let recorder = Rc::new(RefCell::new(Trace::default()));
        let setup = Setup { recorder: Some(recorder.clone()), ..setup(&world, vec![target], None) };
        let rate = Some(Rate { per_second: 5000.0, arrivals: Arrivals::Poisson });
        let drawn = Workload { rate, blocks_per_request: 2, depth: 32, ..workload() };
        let outcome = simulation.run(async move {
            match requests {
                None => run(setup, drawn).await,
                Some(trace) => play(setup, Box::new(trace.into_requests(1.0)), &terms()).await,
            }
        });
        let outcome = outcome.expect("no stall").expect("valid");
        assert_eq!((outcome.requests, outcome.errors), (1000, 0));
        assert_eq!(outcome.read.bytes + outcome.write.bytes, 2000 * BLOCK_SIZE as u64);
        let mut text = Vec::new();
        recorder.borrow_mut().write(&mut text).expect("memory");
        (outcome.read.requests, text)
    };
    let (reads, first) = recorded(None);
    let trace = Trace::parse(first.as_slice()).expect("our own");
    let (again, second) = recorded(Some(trace));
    assert_eq!(reads, again);
    assert!(first == second, "the second recording differs");
}

/// A target that takes two blocks at once, notes each piece, and answers after a millisecond.
#[derive(Clone)]
struct Narrow {
    world: SimWorld,
    pieces: Rc<RefCell<Vec<LbaRange>>>,
}

impl Narrow {
    fn answer(&self, range: LbaRange) -> impl Future<Output = Result<(), Infallible>> + 'static {
        let Self { world, pieces } = self.clone();
        async move {
            pieces.borrow_mut().push(range);
            world.sleep_until(world.now() + Duration::from_millis(1)).await;
            Ok(())
        }
    }
}

impl Target for Narrow {
    type Data = ();
    type Error = Infallible;

    fn blocks(&self) -> u64 {
        RANGE.blocks
    }

    fn request_blocks_max(&self) -> u32 {
        2
    }

    fn read(&self, range: LbaRange) -> impl Future<Output = Result<(), Infallible>> + 'static {
        self.answer(range)
    }

    fn write(
        &self,
        range: LbaRange,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), Infallible>> + 'static {
        assert_eq!(data.len_bytes() as u64, range.blocks * BLOCK_SIZE as u64);
        self.answer(range)
    }

    fn flush(&self) -> impl Future<Output = Result<(), Infallible>> + 'static {
        std::future::ready(Ok(()))
    }

    fn block(_data: &(), _index: usize) -> &[u8] {
        &[]
    }
}

/// Two requests for one task at one time: the pieces of each go together, and the second counts the wait for the first.
#[test]
fn large_requests_go_in_pieces_and_latency_counts_from_the_plan() {
    let simulation = Simulation::new(10);
    let world = simulation.world();
    let target = Narrow { world: world.clone(), pieces: Rc::default() };
    let planned = |kind, start| Planned { at_ns: 5_000_000, start: Lba(start), blocks: 5, kind };
    let requests = [planned(Kind::Write, 10), planned(Kind::Read, 100)];
    let setup = setup(&world, vec![target.clone()], None);
    let terms = Terms { depth: 1, ..terms() };
    let played = async move { play(setup, Box::new(requests.into_iter()), &terms).await };
    let outcome = simulation.run(played).expect("no stall").expect("valid");
    let pieces: Vec<(u64, u64)> =
        target.pieces.borrow().iter().map(|piece| (piece.start.0, piece.blocks)).collect();
    assert_eq!(pieces, [(10, 2), (12, 2), (14, 1), (100, 2), (102, 2), (104, 1)]);
    assert_eq!((outcome.write.bytes, outcome.read.bytes), (5 * 4096, 5 * 4096));
    let latency_ms = |tally: &crate::Tally| tally.latency.as_ref().expect("one").mean_ns / 1e6;
    assert!((latency_ms(&outcome.write) - 1.0).abs() < 0.01, "{outcome:?}");
    assert!((latency_ms(&outcome.read) - 2.0).abs() < 0.01, "{outcome:?}");
}

/// A world in which tasks are lost.
struct NoTasks;

impl Spawn for NoTasks {
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        drop(task);
    }

    fn spawn_now(&self, task: impl Future<Output = ()> + 'static) {
        drop(task);
    }
}

/// A check that did not happen must not pass for one that found nothing wrong.
#[test]
fn a_check_that_is_lost_is_an_error() {
    let simulation = Simulation::new(8);
    let target = DeviceTarget::new(SimDevice::new(&simulation.world(), RANGE.blocks));
    let journal = journal();
    let result = simulation.run(async move { verify(&NoTasks, &target, &journal, 4, None).await });
    assert!(matches!(result.expect("no stall"), Err(VerifyError::Lost)));
}
