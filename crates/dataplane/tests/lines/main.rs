//! A core behind a front end that speaks lines (`frontend.rs`): the seam carries a protocol that is not NVMe.

mod recording;

use std::future::Future;
use std::rc::Rc;

use access::{Access, Restrictions};
use dataplane::{ChangeError, Core, CoreOptions, Loss};
use io_traits::{Clock, Network, Spawn};
use sim::{SimDevice, SimWorld, Simulation};
use test_hosts::cores::{SimCore, only_shard};
use test_hosts::lines::{Host, LineFrontend, portal};
use units::{Duration, ShardIndex, Slo};
use uuid::Uuid;
use volume::{FormatOptions, VolumeSpec};

const VOLUME: Uuid = Uuid::from_bytes(*b"a volume of test");
const OTHER: Uuid = Uuid::from_u128(2);
const DEVICE_BLOCKS: u64 = 65_536;
const BLOCKS: u64 = 64;

/// A core with two volumes.
async fn serve(world: &SimWorld) -> SimCore {
    let device = SimDevice::new(world, DEVICE_BLOCKS);
    volume::format(&device, &FormatOptions { uuid: Uuid::from_u128(1) })
        .await
        .expect("a sound disk");
    let shard = only_shard(device).await;
    let core = Core::new(world, CoreOptions::default());
    core.add_frontend(Rc::new(LineFrontend), ["failed"]);
    core.attach(shard);
    for uuid in [VOLUME, OTHER] {
        let spec = VolumeSpec { uuid, name: uuid.to_string(), blocks: BLOCKS };
        core.create_volume(ShardIndex(0), spec, Slo::default()).await.expect("room for a volume");
    }
    let (serving, listener) = (core.clone(), world.listen(portal()).expect("a free address"));
    world.spawn(async move { serving.serve(&LineFrontend, listener).await });
    core
}

fn simulate<F: Future<Output = ()> + 'static>(scenario: impl Fn(SimWorld) -> F) {
    for seed in 0..4 {
        let simulation = Rc::new(Simulation::new(seed));
        let scenario = scenario(simulation.world());
        simulation.run(scenario).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled:?}"));
    }
}

#[test]
fn requests_of_every_kind_are_carried_out_and_answered() {
    simulate(async |world| {
        let core = serve(&world).await;
        let mut host = Host::with_volume(&world, VOLUME).await;
        assert_eq!(host.read(3).await, 0);
        assert_eq!(host.ask("2 write 0 3 7").await, "2 done");
        assert_eq!(host.ask("3 flush 0").await, "3 done");
        assert_eq!(host.read(3).await, 7);
        assert_eq!(host.ask("4 compare 0 3 7").await, "4 done");
        assert_eq!(host.ask("5 compare 0 3 8").await, "5 differs at 0");
        assert_eq!(host.ask("6 swap 0 3 8 9").await, "6 differs at 0");
        assert_eq!(host.ask("7 swap 0 3 7 9").await, "7 done");
        assert_eq!(host.read(3).await, 9);
        assert_eq!(host.ask("8 verify 0 3").await, "8 done");
        assert_eq!(host.ask("8 unmap 0 0 8").await, "8 done");
        assert_eq!(host.read(3).await, 0);
        assert_eq!(host.ask("8 write 0 4 1").await, "8 done");
        assert_eq!(host.ask("8 zero 0 4 1").await, "8 done");
        assert_eq!(host.read(4).await, 0);
        let beyond = host.ask(&format!("8 write 0 {BLOCKS} 1")).await;
        assert!(beyond.starts_with("8 failed: "), "{beyond}");
        assert_eq!(core.stats().memory_used_bytes, 0, "all that was charged is given back");
    });
}

/// Requests of one session, of several volumes, are in flight together.
#[test]
fn a_session_has_several_exports_and_requests_at_a_time() {
    simulate(async |world| {
        let core = serve(&world).await;
        let mut host = Host::with_volume(&world, VOLUME).await;
        assert_eq!(host.ask(&format!("1 open {OTHER} me")).await, format!("1 opened 1 {BLOCKS}"));
        let lines: Vec<String> =
            (0..40).map(|n| format!("{n} write {} {} {n}", n % 2, n / 2)).collect();
        host.send(&lines.join("\n")).await;
        let mut answers = Vec::new();
        for _ in 0..40 {
            answers.push(host.line().await.expect("an answer"));
        }
        answers.sort();
        let mut expected: Vec<String> = (0..40).map(|n| format!("{n} done")).collect();
        expected.sort();
        assert_eq!(answers, expected);
        assert_eq!((host.read(0).await, host.read(19).await), (0, 38));
        let flows = core.flows_from(Uuid::nil(), 2);
        assert!(flows.iter().all(|flow| flow.done.flow.blocks[1] == 20), "{flows:?}");
    });
}

#[test]
fn a_host_that_may_not_open_a_volume_is_refused() {
    simulate(async |world| {
        let core = serve(&world).await;
        let networks = vec!["192.0.2.0/24".parse().expect("a network")];
        let restrictions = Restrictions { networks, ..Restrictions::default() };
        let access = Access { restrictions, ..Access::default() };
        core.set_access(VOLUME, access, false).await.expect("a volume");
        let mut host = Host::connect(&world).await;
        assert_eq!(host.ask(&format!("1 open {VOLUME} me")).await, "1 refused");
        assert_eq!(host.ask(&format!("2 open {} me", Uuid::from_u128(9))).await, "2 refused");
        assert_eq!(host.ask(&format!("3 open {OTHER} me")).await, format!("3 opened 0 {BLOCKS}"));
        core.suspend();
        assert_eq!(host.line().await.as_deref(), Some("* closed: the volume is not served now"));
        let mut late = Host::connect(&world).await;
        assert_eq!(late.ask(&format!("1 open {OTHER} me")).await, "1 refused");
        core.resume();
        assert_eq!(late.ask(&format!("2 open {OTHER} me")).await, format!("2 opened 0 {BLOCKS}"));
    });
}

#[test]
fn what_is_in_use_is_not_lost_unless_it_may_be() {
    simulate(async |world| {
        let core = serve(&world).await;
        let in_use = |mapped_blocks| ChangeError::InUse { mapped_blocks, connections: 1 };
        let mut host = Host::with_volume(&world, VOLUME).await;
        let open = core.delete_volume(VOLUME, Loss::Refused).await;
        assert_eq!(open, Err(in_use(0)));
        let smaller = core.resize_volume(VOLUME, BLOCKS / 2, Loss::Refused).await;
        assert_eq!(smaller.err(), Some(in_use(0)));
        core.resize_volume(VOLUME, 2 * BLOCKS, Loss::Refused).await.expect("nothing is lost");
        let expected = format!("* 0 has {}", 2 * BLOCKS);
        assert_eq!(host.line().await.as_deref(), Some(expected.as_str()));

        assert_eq!(host.ask("2 write 0 3 7").await, "2 done");
        assert_eq!(core.delete_volume(VOLUME, Loss::Refused).await, Err(in_use(1)));
        let smaller = core.resize_volume(VOLUME, BLOCKS, Loss::Refused).await;
        assert_eq!(smaller.err(), Some(in_use(1)));

        assert_eq!(host.ask("no command").await, "* closed: a line is no command");
        assert_eq!(host.line().await, None, "the connection has ended");
        world.sleep_until(world.now() + Duration::from_secs(1)).await;
        let holds = ChangeError::InUse { mapped_blocks: 1, connections: 0 };
        assert_eq!(core.delete_volume(VOLUME, Loss::Refused).await, Err(holds));
        core.delete_volume(VOLUME, Loss::Accepted).await.expect("a volume");
        core.delete_volume(OTHER, Loss::Refused).await.expect("no host uses it");
    });
}

#[test]
fn a_session_is_told_of_its_volumes_and_of_no_others() {
    simulate(async |world| {
        let core = serve(&world).await;
        let mut host = Host::with_volume(&world, VOLUME).await;
        core.resize_volume(OTHER, 2 * BLOCKS, Loss::Accepted).await.expect("room");
        core.resize_volume(VOLUME, BLOCKS / 2, Loss::Accepted).await.expect("room");
        let expected = format!("* 0 has {}", BLOCKS / 2);
        assert_eq!(host.line().await.as_deref(), Some(expected.as_str()));
        core.delete_volume(OTHER, Loss::Accepted).await.expect("a volume");
        assert_eq!(host.ask("2 write 0 3 7").await, "2 done");
        core.delete_volume(VOLUME, Loss::Accepted).await.expect("a volume");
        assert_eq!(host.line().await.as_deref(), Some("* closed: the volume is gone"));
        assert_eq!(host.line().await, None, "the connection has ended");
        world.sleep_until(world.now() + Duration::from_secs(1)).await;
        assert_eq!((core.stats().connections, core.stats().connections_let_in), (0, 0));
    });
}

#[test]
fn a_session_ends_when_its_tokens_are_replaced_and_when_the_core_stops() {
    simulate(async |world| {
        let core = serve(&world).await;
        let mut cut = Host::with_volume(&world, VOLUME).await;
        core.set_access(VOLUME, Access::default(), true).await.expect("a volume");
        assert_eq!(cut.line().await.as_deref(), Some("* closed: access was revoked"));
        let mut host = Host::with_volume(&world, VOLUME).await;
        host.send("2 write 0 3 7").await;
        assert_eq!(host.line().await.as_deref(), Some("2 done"));
        core.shutdown().await.expect("a sound disk");
        assert_eq!(host.line().await.as_deref(), Some("* closed: the server stops"));
        assert_eq!(host.line().await, None);
    });
}
