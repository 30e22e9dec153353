//! A device that fails for a while and returns: what is on it serves again, without a restart.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use client::{Client, Options, Reconnect, Volume};
use dataplane::Loss;
use device::layer::{Effect, Faulty, Rule, Verb};
use io_traits::{Device, DeviceError, Spawn};
use nvme_frontend::{NvmeOptions, nqn_of};
use sim::SimWorld;
use units::{DeviceIndex, Duration, Lba, LbaRange, PbaRange, ShardIndex, Slo};
use uuid::Uuid;
use volume::{JournalLoss, OpenError, VolumeSpec};

use crate::support::{
    AnyDisk, FaultyDisk, SimCore, VOLUME, create, data, formatted, host, portal, serve_with,
    simulate, sleep,
};

/// The requests that a disk fails.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fails {
    Nothing,
    /// Writes and flushes.
    Changes,
    /// Writes of roots, both copies: the journal works.
    Checkpoints,
    Everything,
}

/// Has `device` fail these requests from now on.
fn fail(device: &FaultyDisk, fails: Fails) {
    let end = device.limits().blocks;
    let covers = move |verb, range: PbaRange| match fails {
        Fails::Nothing => false,
        Fails::Changes => verb != Verb::Read,
        // They lie in front of all extents and behind them.
        Fails::Checkpoints => {
            let is_outside = range.start.0 < 256 || range.start.0 + 256 >= end;
            verb == Verb::Write && range.blocks == 1 && is_outside
        }
        Fails::Everything => true,
    };
    device.set_rules([Rule::new(Effect::Fail { errno: 5 }, covers)]);
}

/// A server with a volume of 1 000 blocks.
async fn serve(world: &SimWorld) -> (SimCore, FaultyDisk) {
    let device = Faulty::new(formatted(world.clone()).await, world);
    let core = serve_with(world.clone(), device.clone(), NvmeOptions::new(portal())).await;
    create(&core, 1000).await;
    (core, device)
}

async fn connect(world: &SimWorld, uuid: Uuid) -> Volume<SimWorld> {
    let options = Options { reconnect: Reconnect::Never, ..host() };
    let client = Client::connect(world.clone(), portal(), &nqn_of(uuid), options).await;
    client.expect("served").volume().await.expect("a namespace")
}

/// The possible contents of a block: those acknowledged last, and those refused or never answered since.
type Model = Rc<RefCell<BTreeMap<u64, Vec<u64>>>>;

/// Writes blocks over and over while the device fails now and then, and notes what may be there.
async fn write_on(world: SimWorld, volume: Volume<SimWorld>, model: Model, worker: u64) {
    for round in 0..1200 {
        let lba = worker * 50 + world.draw(|rng| rng.below(50));
        let stamp = worker * 1_000_000 + round + 1;
        model.borrow_mut().entry(lba).or_default().push(stamp);
        if volume.write(Lba(lba), data(stamp, 1)).await.is_ok() {
            model.borrow_mut().insert(lba, vec![stamp]);
        }
        let pause = Duration::from_millis(world.draw(|rng| rng.below(40)));
        sleep(&world, pause).await;
    }
}

/// Opens the volume, and lets four write to it ([`write_on`]).
async fn write_by_four(world: &SimWorld) -> (Volume<SimWorld>, Model) {
    let volume = connect(world, VOLUME).await;
    let model = Model::default();
    for worker in 0..4 {
        world.spawn(write_on(world.clone(), volume.clone(), model.clone(), worker));
    }
    (volume, model)
}

/// Waits until [`write_on`] has ended, and reads what it wrote. Then the engine is checked, and ends.
async fn all_is_there(world: &SimWorld, core: &SimCore, volume: &Volume<SimWorld>, model: &Model) {
    sleep(world, Duration::from_secs(20)).await;
    for (lba, stamps) in model.take() {
        let found = volume.read(Lba(lba), 1).await.expect("readable");
        let fits = |stamp: &u64| data(*stamp, 1).as_bytes() == found.as_bytes();
        assert!(stamps.iter().any(fits), "block {lba}: none of {stamps:?}");
    }
    let report = core.shards()[0].check(true).await;
    assert!(report.findings.is_empty(), "{report:#?}");
    core.shutdown().await.expect("the device works");
}

/// A device fails all changes, or everything, again and again, under hosts that stay connected. Each
/// time it returns the volume takes changes again, and all that was acknowledged is there.
#[test]
fn volumes_serve_again_when_their_device_returns() {
    for seed in 0..12 {
        simulate(seed, move |world| async move {
            let (core, device) = serve(&world).await;
            let (volume, model) = write_by_four(&world).await;
            for fails in [Fails::Changes, Fails::Everything, Fails::Changes] {
                sleep(&world, Duration::from_millis(700)).await;
                fail(&device, fails);
                sleep(&world, Duration::from_millis(1500)).await;
                assert!(core.stats().devices[DeviceIndex(0)].failure.is_some(), "{fails:?}");
                fail(&device, Fails::Nothing);
                // Attempts come at growing distances.
                sleep(&world, Duration::from_secs(4)).await;
                assert!(core.stats().devices[DeviceIndex(0)].failure.is_none(), "{fails:?}");
                volume.write(Lba(900), data(5, 1)).await.expect("it takes changes again");
            }
            all_is_there(&world, &core, &volume, &model).await;
        });
    }
}

/// The handle of a device fails for ever, with requests under way or without, and the device is reopened: in
/// the midst of an attempt to read it back by the old handle, and twice. No shard goes on by an old handle
/// (SHARD-5), hosts stay connected, and all that was acknowledged is there.
#[test]
fn volumes_serve_again_by_a_new_way_when_the_old_one_is_dead() {
    for seed in 0..24 {
        simulate(seed, move |world| async move {
            let (core, mut device) = serve(&world).await;
            let (volume, model) = write_by_four(&world).await;
            for round in 0..6 {
                sleep(&world, Duration::from_millis(700)).await;
                let dead_for = world.draw(|rng| rng.below(2500)) * (round % 2);
                let renewals = 1 + world.draw(|rng| rng.below(2));
                fail(&device, Fails::Everything);
                sleep(&world, Duration::from_millis(dead_for)).await;
                for _ in 0..renewals {
                    fail(&device, Fails::Everything);
                    device = Faulty::new(device.behind().clone(), &world);
                    core.renew(DeviceIndex(0), AnyDisk::new(device.clone()));
                    assert!(
                        core.stats().devices[DeviceIndex(0)].failure.is_some(),
                        "by the old way nothing is written"
                    );
                    let pause = world.draw(|rng| rng.below(600));
                    sleep(&world, Duration::from_millis(pause)).await;
                }
                sleep(&world, Duration::from_secs(2)).await;
                assert!(core.stats().devices[DeviceIndex(0)].failure.is_none(), "round {round}");
                volume.write(Lba(900), data(5, 1)).await.expect("it takes changes again");
            }
            all_is_there(&world, &core, &volume, &model).await;
        });
    }
}

/// The state of a device gives the reason why nothing is written there, and why it is not back yet; no reason
/// once it is.
#[test]
fn a_failed_shard_says_why() {
    simulate(7, |world| async move {
        let (core, device) = serve(&world).await;
        let volume = connect(&world, VOLUME).await;
        let failure = || core.stats().devices[DeviceIndex(0)].failure.clone();
        // All that it writes is a record.
        let block = [LbaRange::new(Lba(0), 1)];
        for fails in [Fails::Everything, Fails::Changes] {
            volume.write(Lba(0), data(1, 1)).await.expect("the device works");
            assert_eq!(failure(), None);
            fail(&device, fails);
            volume.deallocate(&block).await.expect_err("nothing can be written");
            let first = failure().expect("a record was not written");
            let error = |why| matches!(why, JournalLoss::Record(DeviceError::Io { errno: 5, .. }));
            assert!(error(first.why) && first.last_attempt.is_none(), "{first:?}");
            sleep(&world, Duration::from_millis(1500)).await;
            let later = failure().expect("it fails still");
            let attempt = &later.last_attempt;
            assert!(matches!(attempt, Some(OpenError::Device(_))), "{later:?}");
            assert_eq!(later.why, first.why);
            fail(&device, Fails::Nothing);
            sleep(&world, Duration::from_secs(4)).await;
        }
        assert_eq!(failure(), None);
        core.shutdown().await.expect("it works");
    });
}

/// Volumes can be made and deleted again, too, and hosts can still connect.
#[test]
fn a_shard_that_is_back_can_do_everything() {
    simulate(3, |world| async move {
        let (core, device) = serve(&world).await;
        let other = Uuid::from_u128(9);
        let returned: Rc<RefCell<Vec<(ShardIndex, usize)>>> = Rc::default();
        let (told, state) = (returned.clone(), core.clone());
        core.on_return(move |shard, lost| {
            assert!(lost.is_empty());
            told.borrow_mut().push((shard, state.volumes().len()));
        });
        fail(&device, Fails::Changes);
        let spec = |uuid| VolumeSpec { uuid, name: "w".into(), blocks: 100 };
        core.create_volume(ShardIndex(0), spec(other), Slo::default()).await.expect_err("it fails");
        core.delete_volume(VOLUME, Loss::Accepted).await.expect_err("it fails");
        sleep(&world, Duration::from_millis(400)).await;
        fail(&device, Fails::Nothing);
        sleep(&world, Duration::from_secs(3)).await;
        assert_eq!(
            *returned.borrow(),
            [(ShardIndex(0), 1)],
            "told once, with all volumes in place"
        );
        core.create_volume(ShardIndex(0), spec(other), Slo::default()).await.expect("room");
        let volume = connect(&world, other).await;
        volume.write(Lba(1), data(1, 3)).await.expect("room");
        let kept = connect(&world, VOLUME).await;
        kept.write(Lba(1), data(2, 3)).await.expect("room");
        core.delete_volume(VOLUME, Loss::Accepted).await.expect("it works again");
        assert_eq!(core.volumes().len(), 1);
        core.shutdown().await.expect("the device works");
    });
}

/// SHARD-2. A descriptor that could not be read when its core began leaves a volume that the core does not
/// know.
#[test]
fn a_volume_that_can_be_read_again_is_served_again() {
    simulate(4, |world| async move {
        let (core, device) = serve(&world).await;
        let (unread, refused) = (Uuid::from_u128(8), Uuid::from_u128(9));
        let spec = |uuid| VolumeSpec { uuid, name: "w".into(), blocks: 100 };
        let volume = core.shards()[0].create_volume(spec(unread)).await.expect("room");
        volume.write(Lba(1), data(7, 1), None).await.expect("room");
        for _ in 0..2 {
            fail(&device, Fails::Changes);
            core.create_volume(ShardIndex(0), spec(refused), Slo::default())
                .await
                .expect_err("it fails");
            fail(&device, Fails::Nothing);
            sleep(&world, Duration::from_secs(3)).await;
            let served: Vec<Uuid> = core.volumes().iter().map(|volume| volume.uuid).collect();
            assert_eq!(served, [unread, VOLUME]);
            let volume = connect(&world, unread).await;
            let found = volume.read(Lba(1), 1).await.expect("readable");
            assert_eq!(found.as_bytes(), data(7, 1).as_bytes());
        }
        core.shutdown().await.expect("the device works");
    });
}

/// A checkpoint whose write fails for longer than a few tries waits for the core's clock, and succeeds
/// when the device does.
#[test]
fn a_checkpoint_that_the_device_fails_is_tried_again() {
    simulate(5, |world| async move {
        let (core, device) = serve(&world).await;
        let volume = connect(&world, VOLUME).await;
        volume.write(Lba(1), data(1, 3)).await.expect("room");
        fail(&device, Fails::Checkpoints);
        let done = Rc::new(Cell::new(false));
        let (shard, told) = (core.shards().remove(0), done.clone());
        world.spawn(async move { told.set(shard.checkpoint().await.is_ok()) });
        sleep(&world, Duration::from_secs(3)).await;
        let failed = device.failed(Verb::Write);
        assert!(failed > 8 && !done.get(), "tried again with each tick: {failed} times");
        volume.write(Lba(5), data(2, 3)).await.expect("requests go on");
        fail(&device, Fails::Nothing);
        sleep(&world, Duration::from_secs(1)).await;
        assert!(done.get() && core.stats().devices[DeviceIndex(0)].failure.is_none());
    });
}
