//! A device whose shards are closed and come back in the same process: hosts wait meanwhile.

use std::cell::Cell;
use std::rc::Rc;

use client::Volume;
use io_traits::Spawn;
use nvme_wire::IoOpcode;
use nvme_wire::reservation::{RACQA_ACQUIRE, RREGA_REGISTER, ReservationCommand};
use sim::SimWorld;
use units::{DeviceIndex, Duration, Lba, LbaRange};

use crate::support::{
    SimCore, connect, data, host, serve_new, serve_shards, serve_slowly, simulate, sleep,
    slow_device,
};
use nvme_frontend::NvmeOptions;

/// Counts of four hosts.
#[derive(Default)]
struct Done {
    requests: Cell<u64>,
    ended: Cell<u64>,
}

/// Writes, reads, deallocates and flushes its own blocks; everything succeeds, and nothing is lost.
async fn work(world: SimWorld, volume: Volume<SimWorld>, done: Rc<Done>, worker: u64) {
    for round in 1..400 {
        let lba = Lba(worker * 50 + world.draw(|rng| rng.below(50)));
        let stamp = worker * 1_000_000 + round;
        volume.write(lba, data(stamp, 1)).await.expect("it waits, and is carried out");
        if round % 7 == 0 {
            volume.flush().await.expect("it waits, too");
        }
        let found = volume.read(lba, 1).await.expect("it waits, and is carried out");
        assert_eq!(found.as_bytes(), data(stamp, 1).as_bytes(), "{lba:?}");
        if round % 5 == 0 {
            volume.deallocate(&[LbaRange::new(lba, 1)]).await.expect("it waits, too");
            let found = volume.read(lba, 1).await.expect("readable");
            assert!(found.as_bytes().iter().all(|byte| *byte == 0));
        }
        done.requests.set(done.requests.get() + 1);
        sleep(&world, Duration::from_millis(world.draw(|rng| rng.below(20)))).await;
    }
    done.ended.set(done.ended.get() + 1);
}

async fn check(core: &SimCore) {
    let report = core.shards()[0].check(true).await;
    assert!(report.findings.is_empty(), "{report:#?}");
    core.shutdown().await.expect("the device works");
}

/// HELD-1 and HELD-2. Method: the device is closed and reopened again and again under four hosts.
#[test]
fn hosts_wait_while_a_device_is_closed_and_nothing_fails() {
    for seed in 0..12 {
        simulate(seed, move |world| async move {
            let (core, _) = serve_new(world.clone(), 1000).await;
            let (volume, done) = (connect(world.clone(), host()).await, Rc::<Done>::default());
            for worker in 0..4 {
                world.spawn(work(world.clone(), volume.clone(), done.clone(), worker));
            }
            for _ in 0..8 {
                let pause = world.draw(|rng| rng.below(300));
                sleep(&world, Duration::from_millis(pause)).await;
                core.close_device(DeviceIndex(0)).await.expect("the device works");
                // What was answered is on its way to the hosts.
                sleep(&world, Duration::from_millis(200)).await;
                let requests = done.requests.get();
                sleep(&world, Duration::from_secs(1)).await;
                assert_eq!(done.requests.get(), requests, "hosts wait");
                assert!(core.reopen_device(DeviceIndex(0), None).await);
                sleep(&world, Duration::from_millis(200)).await;
                assert!(done.requests.get() > requests, "they go on");
            }
            sleep(&world, Duration::from_secs(20)).await;
            assert_eq!(done.ended.get(), 4);
            assert_eq!(core.shards().len(), 1);
            check(&core).await;
        });
    }
}

/// HELD-3: a reservation that ends with the power of the server is no durable one, and is there afterwards.
#[test]
fn reservations_outlive_a_closed_device() {
    simulate(5, |world| async move {
        let (core, _) = serve_new(world.clone(), 1000).await;
        let [first, second] = [1, 2].map(|id| client::Options::for_host([id; 16]));
        let first = connect(world.clone(), first).await;
        let second = connect(world.clone(), second).await;
        let command =
            |action, rtype| ReservationCommand { action, ignore_key: false, rtype, cptpl: 0 };
        let register = command(RREGA_REGISTER, 0);
        first.reserve(IoOpcode::RESERVATION_REGISTER, register, [0, 7]).await.expect("registered");
        core.close_device(DeviceIndex(0)).await.expect("the device works");
        let reserved = Rc::new(Cell::new(false));
        let (told, reserving) = (reserved.clone(), first.clone());
        world.spawn(async move {
            let acquire = command(RACQA_ACQUIRE, 1);
            let keys = [7, 0];
            let done = reserving.reserve(IoOpcode::RESERVATION_ACQUIRE, acquire, keys).await;
            done.expect("it waits, and is carried out");
            told.set(true);
        });
        sleep(&world, Duration::from_secs(1)).await;
        assert!(!reserved.get(), "it waits");
        assert!(core.reopen_device(DeviceIndex(0), None).await);
        sleep(&world, Duration::from_secs(1)).await;
        assert!(reserved.get());
        core.close_device(DeviceIndex(0)).await.expect("the device works");
        assert!(core.reopen_device(DeviceIndex(0), None).await);
        second.write(Lba(0), data(1, 1)).await.expect_err("the other host excludes it");
        first.write(Lba(0), data(1, 1)).await.expect("it may");
        check(&core).await;
    });
}

/// A request that takes its time is waited for; one that takes too long is not: the device is let go of as it was.
#[test]
fn a_device_that_does_not_come_to_rest_goes_on_as_it_was() {
    simulate(6, |world| async move {
        let core = serve_slowly(&world, 1000, NvmeOptions::new(crate::support::portal())).await;
        let volume = connect(world.clone(), host()).await;
        let (writing, written) = (volume.clone(), Rc::new(Cell::new(false)));
        let told = written.clone();
        world.spawn(async move {
            writing.write(Lba(0), data(1, 1)).await.expect("it takes its time");
            told.set(true);
        });
        sleep(&world, Duration::from_millis(1)).await;
        let (closing, outcome) = (core.clone(), Rc::new(Cell::new(None)));
        let closed = outcome.clone();
        world.spawn(async move { closed.set(Some(closing.close_device(DeviceIndex(0)).await)) });
        sleep(&world, Duration::from_millis(1)).await;
        assert!(!written.get() && outcome.take().is_none(), "it is under way");
        assert!(core.reopen_device(DeviceIndex(0), None).await);
        sleep(&world, Duration::from_secs(5)).await;
        assert!(written.get());
        assert!(outcome.take().expect("it has ended").is_err());
        let found = volume.read(Lba(0), 1).await.expect("it is served");
        assert_eq!(found.as_bytes(), data(1, 1).as_bytes());
        core.close_device(DeviceIndex(0)).await.expect("at rest it can be closed");
        assert!(core.reopen_device(DeviceIndex(0), None).await);
        core.shutdown().await.expect("the device works");
    });
}

/// HELD-5. Method: of a device with two shards the first one takes its time; meanwhile the device is let go of. Whether the
/// second one was closed or not by then, both serve afterwards.
#[test]
fn all_shards_serve_once_the_device_is_let_go_of() {
    simulate(7, |world| async move {
        let options = NvmeOptions::new(crate::support::portal());
        let core = serve_shards(world.clone(), slow_device(&world).await, 2, options).await;
        let (closing, outcome) = (core.clone(), Rc::new(Cell::new(None)));
        let closed = outcome.clone();
        world.spawn(async move { closed.set(Some(closing.close_device(DeviceIndex(0)).await)) });
        sleep(&world, Duration::from_millis(1)).await;
        let are_closing = || core.shards().iter().map(|it| it.is_closing()).collect::<Vec<_>>();
        assert_eq!(are_closing(), [true, false], "the first one is under way");
        assert!(core.reopen_device(DeviceIndex(0), None).await);
        sleep(&world, Duration::from_secs(5)).await;
        assert!(outcome.take().is_some(), "it has ended");
        assert_eq!(are_closing(), [false, false]);
        core.close_device(DeviceIndex(0)).await.expect("at rest it can be closed");
        assert!(core.reopen_device(DeviceIndex(0), None).await);
        core.shutdown().await.expect("the device works");
    });
}
