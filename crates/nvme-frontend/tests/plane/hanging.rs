//! A device that stops answering, beside one that works.

use std::cell::Cell;
use std::rc::Rc;

use client::{Client, Options, Reconnect, Volume};
use dataplane::{ChangeError, Loss};
use device::layer::{Effect, Faulty, Rule, TimeoutDevice};
use io_traits::{Buffer, Clock, Device, Spawn};
use nvme_frontend::{NvmeCore, NvmeOptions, nqn_of};
use schedule::{CostModel, PolicyKind, Quota, SchedulerConfig};
use sim::SimWorld;
use test_hosts::cores::only_shard;
use units::{BLOCK_SIZE, DeviceIndex, Duration, Lba, Pba, Slo};
use uuid::Uuid;
use volume::VolumeSpec;

use crate::support::{
    FaultyDisk, SimCore, data, formatted, host, open_portal, portal, simulate, sleep,
};

const TIMEOUT: Duration = Duration::from_secs(2);

/// Has `device` stop answering, or answer again.
fn set_hanging(device: &FaultyDisk, hangs: bool) {
    device.set_rules(hangs.then(|| Rule::new(Effect::Hang, |_, _| true)));
}

async fn attach(world: &SimWorld, core: &SimCore, number: u128) -> FaultyDisk {
    let device = Faulty::new(formatted(world.clone()).await, world);
    let watched = TimeoutDevice::new(device.clone(), world, TIMEOUT);
    let device_number = DeviceIndex(usize::try_from(number).expect("small") - 1);
    let shard = core.attach_on(device_number, only_shard(watched).await);
    let spec = VolumeSpec { uuid: Uuid::from_u128(number), name: "v".into(), blocks: 1000 };
    core.create_volume(shard, spec, Slo::default()).await.expect("room");
    device
}

async fn connect(world: &SimWorld, number: u128) -> Volume<SimWorld> {
    let options = Options { reconnect: Reconnect::Never, ..host() };
    let nqn = nqn_of(Uuid::from_u128(number));
    let client = Client::connect(world.clone(), portal(), &nqn, options).await;
    client.expect("served").volume().await.expect("a namespace")
}

/// Requests to the device that hangs fail in time, those to the other succeed, and when it answers
/// again, what was acknowledged is there. If nothing was being written, all goes on; else what the
/// journal holds is unknown until it was read back, and that is told at once.
#[test]
fn a_hung_device_fails_its_requests_in_time_and_harms_no_other() {
    for writes in [false, true] {
        simulate(7, move |world| async move {
            let core = NvmeCore::new(&world, NvmeOptions::new(portal()));
            let hanging = attach(&world, &core, 1).await;
            let _sound = attach(&world, &core, 2).await;
            open_portal(&world, &core);
            let (bad, good) = (connect(&world, 1).await, connect(&world, 2).await);
            bad.write(Lba(5), data(1, 4)).await.expect("written");
            good.write(Lba(5), data(2, 4)).await.expect("written");
            assert!(core.stats().devices[DeviceIndex(0)].failure.is_none());

            // The journal notes that all is settled, and is idle then.
            sleep(&world, Duration::from_secs(1)).await;
            set_hanging(&hanging, true);
            let begin = world.now();
            if writes {
                bad.write(Lba(6), data(3, 1)).await.expect_err("hung");
            }
            bad.read(Lba(5), 4).await.expect_err("hung");
            let took = world.now().since(begin);
            assert!(took < Duration::from_secs(6), "{took:?}");
            let begin = world.now();
            bad.read(Lba(5), 4).await.expect_err("hung");
            assert!(world.now().since(begin) < Duration::from_secs(1), "known to be hung");
            good.write(Lba(9), data(4, 4)).await.expect("another device");
            assert!(good.read(Lba(5), 4).await.is_ok());

            assert_eq!(
                core.stats().devices[DeviceIndex(0)].failure.is_some(),
                writes,
                "only a lost journal needs to be read back"
            );
            set_hanging(&hanging, false);
            sleep(&world, Duration::from_secs(10)).await;
            let read = bad.read(Lba(5), 4).await.expect("it answers again");
            let expected = data(1, 4);
            assert_eq!(read.as_bytes()[..4096], expected.as_bytes()[..4096]);
            assert!(core.stats().devices[DeviceIndex(0)].failure.is_none());
            bad.write(Lba(6), data(3, 1)).await.expect("it works again");
        });
    }
}

/// A volume is found until it is deleted: a host that is told that there is none never comes again, though the deletion may fail.
#[test]
fn a_volume_is_found_until_its_deletion_has_succeeded() {
    simulate(8, |world| async move {
        let core = NvmeCore::new(&world, NvmeOptions::new(portal()));
        let hanging = attach(&world, &core, 1).await;
        open_portal(&world, &core);
        let deleted = Rc::new(Cell::new(None));
        let (deleting, outcome) = (core.clone(), deleted.clone());
        set_hanging(&hanging, true);
        world.spawn(async move {
            outcome.set(Some(
                deleting.delete_volume(Uuid::from_u128(1), Loss::Accepted).await.is_ok(),
            ));
        });
        sleep(&world, TIMEOUT / 2).await;
        connect(&world, 1).await;
        assert_eq!((deleted.get(), core.volumes().len()), (None, 1));
        set_hanging(&hanging, false);
        sleep(&world, Duration::from_secs(2)).await;
        assert_eq!((deleted.get(), core.volumes().len()), (Some(true), 0));
        assert_eq!(core.stats().connections, 0, "its connections were closed");
    });
}

/// A change that would lose data is refused at once: it waits for no request that hangs, and none waits for it.
#[test]
fn a_deletion_that_is_refused_waits_for_no_request() {
    simulate(9, |world| async move {
        let core = NvmeCore::new(&world, NvmeOptions::new(portal()));
        let hanging = attach(&world, &core, 1).await;
        open_portal(&world, &core);
        let host = connect(&world, 1).await;
        host.write(Lba(5), data(1, 4)).await.expect("written");
        set_hanging(&hanging, true);
        let writing = host.clone();
        world.spawn(async move {
            let _ = writing.write(Lba(6), data(2, 1)).await;
        });
        sleep(&world, TIMEOUT / 4).await;
        let (volume, begin) = (Uuid::from_u128(1), world.now());
        let in_use = |refused| matches!(refused, Err(ChangeError::InUse { .. }));
        assert!(in_use(core.delete_volume(volume, Loss::Refused).await));
        assert!(in_use(core.resize_volume(volume, 1, Loss::Refused).await.map(drop)));
        assert_eq!(world.now(), begin);
    });
}

/// Many hosts ask a device that hangs for all that they may ask for, and wait in its window. A host of
/// the other device notices nothing of that.
#[test]
fn a_crowd_before_a_hung_device_slows_no_other() {
    simulate(11, |world| async move {
        let core = NvmeCore::new(&world, NvmeOptions::new(portal()));
        let hanging = attach(&world, &core, 1).await;
        let _sound = attach(&world, &core, 2).await;
        open_portal(&world, &core);
        let good = connect(&world, 2).await;
        good.write(Lba(0), data(1, 256)).await.expect("written");
        let ceiling = Quota { per_second: [1e6, 1e6] };
        let policy = PolicyKind::default();
        let config = SchedulerConfig {
            policy,
            cost_model: CostModel::Separate,
            ceiling,
            window_blocks: [64; 2],
        };
        for device in [0, 1] {
            let quotas = [(Uuid::from_u128(device as u128 + 1), ceiling)];
            core.schedule(DeviceIndex(device), Some(config), &quotas);
        }
        let mut crowd = Vec::new();
        for _ in 0..40 {
            let bad = connect(&world, 1).await;
            bad.write(Lba(0), data(3, 256)).await.expect("written");
            crowd.push(bad);
        }
        set_hanging(&hanging, true);
        for bad in &crowd {
            for _ in 0..32 {
                let bad = bad.clone();
                world.spawn(async move { drop(bad.read(Lba(0), 256).await) });
            }
        }
        sleep(&world, Duration::from_millis(100)).await;
        let windows = || core.stats().devices.into_iter().map(|device| device.window);
        let [before, other] = windows().collect::<Vec<_>>()[..] else { panic!("two devices") };
        assert!(
            before.queued[0] + before.queued[1] > 40 && other.queued == [0; 2],
            "{before:?}, {other:?}"
        );
        for n in 0..20 {
            let begin = world.now();
            good.write(Lba(300 + n), data(n, 8)).await.expect("another device");
            good.read(Lba(0), 256).await.expect("another device");
            let took = world.now().since(begin);
            assert!(took < Duration::from_millis(50), "{took:?}");
        }
        set_hanging(&hanging, false);
    });
}

/// A host fills 64 queues of 128 entries, and all that it asks for is with the server at a time. One entry of each queue
/// stays free: a queue that is full would look like one that is empty (NVMe base specification, 3.3.1.4).
#[test]
fn all_queues_of_a_controller_can_be_full_at_a_time() {
    const QUEUES: u16 = 64;
    const ENTRIES: u16 = 128;
    const BLOCKS: u64 = 1000;
    let requests = u64::from(QUEUES) * u64::from(ENTRIES - 1);
    simulate(13, move |world| async move {
        let core = NvmeCore::new(&world, NvmeOptions::new(portal()));
        let hanging = attach(&world, &core, 1).await;
        open_portal(&world, &core);
        let options =
            Options { queues: QUEUES, depth: ENTRIES, reconnect: Reconnect::Never, ..host() };
        let nqn = nqn_of(Uuid::from_u128(1));
        let client = Client::connect(world.clone(), portal(), &nqn, options).await.expect("served");
        assert_eq!(client.queues(), QUEUES);
        let volume = client.volume().await.expect("a namespace");
        for lba in 0..BLOCKS {
            volume.write(Lba(lba), data(lba, 1)).await.expect("written");
        }
        set_hanging(&hanging, true);
        let answered = Rc::new(Cell::new(0));
        // Twice as many: the other half waits its turn in the host.
        for request in 0..2 * requests {
            let (volume, answered) = (volume.clone(), answered.clone());
            world.spawn(async move {
                let lba = request % BLOCKS;
                let read = volume.read(Lba(lba), 1).await.expect("read");
                assert_eq!(read.as_bytes(), data(lba, 1).as_bytes());
                answered.set(answered.get() + 1);
            });
        }
        sleep(&world, TIMEOUT / 4).await;
        let stats = core.stats();
        let flow = &stats.devices[DeviceIndex(0)].done.flow;
        assert_eq!((flow.queued + flow.in_flight, answered.get()), (requests, 0));
        assert!(stats.memory_used_bytes >= requests * BLOCK_SIZE as u64, "{stats:?}");
        set_hanging(&hanging, false);
        sleep(&world, TIMEOUT).await;
        assert_eq!(answered.get(), 2 * requests);
        assert_eq!(core.stats().memory_used_bytes, 0);
    });
}

/// TIMEOUT-4: half of the room is for requests with a waiting task.
#[test]
fn a_device_that_has_half_of_what_it_may_have_is_busy() {
    simulate(8, |world| async move {
        let device = Faulty::new(formatted(world.clone()).await, &world);
        set_hanging(&device, true);
        let watched = TimeoutDevice::new(device.clone(), &world, TIMEOUT);
        let mut requests = 0;
        while watched.has_room() {
            let read = watched.read(Pba(0), Buffer::new(1));
            world.spawn(async move { drop(read.await) });
            sleep(&world, Duration::from_micros(1)).await;
            requests += 1;
        }
        assert_eq!(requests, 256);
        set_hanging(&device, false);
        sleep(&world, Duration::from_millis(10)).await;
        assert!(watched.has_room());
    });
}

/// TIMEOUT-5. Method: the process stands still while a request is at the device, which is done soon after both go on.
#[test]
fn a_device_is_not_given_up_for_time_in_which_the_server_did_not_run() {
    simulate(9, |world| async move {
        let device = Faulty::new(formatted(world.clone()).await, &world);
        set_hanging(&device, true);
        let watched = TimeoutDevice::new(device.clone(), &world, TIMEOUT);
        let (read, is_read) = (watched.read(Pba(0), Buffer::new(1)), Rc::new(Cell::new(None)));
        let told = is_read.clone();
        world.spawn(async move { told.set(Some(read.await.is_ok())) });
        sleep(&world, TIMEOUT / 4).await;
        world.stand_still(TIMEOUT * 10);
        sleep(&world, TIMEOUT / 4).await;
        assert_eq!(is_read.get(), None);
        set_hanging(&device, false);
        sleep(&world, Duration::from_millis(10)).await;
        assert_eq!(is_read.get(), Some(true));
    });
}
