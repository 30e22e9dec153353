//! A core behind the iSCSI front end, in a simulation, before a strict initiator (`strict.rs`).

mod awaiting;
mod hostile;
mod lengths;
mod paces;
mod provisioning;
mod reserving;
mod strict;
mod together;

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;

use access::{Access, Restrictions, Token};
use auth::{Hash, Secret};
use dataplane::{Core, CoreOptions, Loss};
use io_traits::{Clock, Network, Spawn};
use iscsi_frontend::{IscsiCore, IscsiOptions, TargetRecord, chap_secrets, target_name_of};
use iscsi_wire::Cdb;
use iscsi_wire::cdb::opcode as scsi;
use iscsi_wire::pdu::task_function;
use sim::{DeviceFaults, SimDevice, SimWorld, Simulation};
use test_hosts::any_disk::AnyDisk;
use test_hosts::cores::only_shard;
use units::{Duration, SectorSize, ShardIndex, Slo};
use uuid::Uuid;
use volume::{FormatOptions, Terms, VolumeSpec};

use strict::{Ended, Initiator};

const VOLUME: Uuid = Uuid::from_bytes(*b"a volume of test");
const OTHER: Uuid = Uuid::from_u128(2);
const DEVICE_BLOCKS: u64 = 65_536;
const BLOCKS: u64 = 1024;
const BLOCK: usize = 4096;

type SimCore = IscsiCore<SimWorld, AnyDisk>;

fn portal() -> SocketAddr {
    "10.0.0.1:3260".parse().expect("an address")
}

fn token(byte: u8) -> Token {
    Token { secret: Secret::new(Hash::Sha256, &[byte; 64]), controller: None, until: None }
}

/// A core with two volumes, of which initiators have to know the token if `authenticates`.
async fn serve(world: &SimWorld, authenticates: bool) -> SimCore {
    serve_on(world, SimDevice::new(world, DEVICE_BLOCKS), authenticates).await
}

async fn serve_on(world: &SimWorld, device: SimDevice, authenticates: bool) -> SimCore {
    serve_with(world, device, CoreOptions::default(), authenticates).await
}

async fn serve_with(
    world: &SimWorld,
    device: SimDevice,
    options: CoreOptions,
    authenticates: bool,
) -> SimCore {
    volume::format(&device, &FormatOptions { uuid: Uuid::from_u128(1) }).await.expect("a disk");
    let core = start_on(world, device, options, authenticates).await;
    for (uuid, byte) in [(VOLUME, 1), (OTHER, 2)] {
        let spec = VolumeSpec { uuid, name: uuid.to_string(), blocks: BLOCKS };
        core.create_volume(ShardIndex(0), spec, Slo::default()).await.expect("room for a volume");
        admit(&core, uuid, Access { tokens: vec![token(byte)], ..Access::default() }).await;
    }
    core
}

/// A core that serves what is on `device`, of which nothing is announced.
async fn start_on(
    world: &SimWorld,
    device: SimDevice,
    options: CoreOptions,
    authenticates: bool,
) -> SimCore {
    let shard = only_shard(device).await;
    let core = Core::new(world, options);
    let options = IscsiOptions { authenticates, ..IscsiOptions::default() };
    let core = IscsiCore::before(core, options);
    core.attach(shard);
    let (serving, listener) = (core.clone(), world.listen(portal()).expect("a free address"));
    world.spawn(async move { Core::serve(&serving, &*serving.frontend(), listener).await });
    core
}

/// Sets and announces the conditions of a volume.
async fn admit(core: &SimCore, uuid: Uuid, access: Access) {
    core.set_access(uuid, access.clone(), false).await.expect("a volume");
    core.announce(TargetRecord { uuid, addresses: vec![portal()], access });
}

fn simulate<F: Future<Output = ()> + 'static>(scenario: impl Fn(SimWorld) -> F) {
    for seed in 0..4 {
        let simulation = Rc::new(Simulation::new(seed));
        let scenario = scenario(simulation.world());
        simulation.run(scenario).unwrap_or_else(|stalled| panic!("seed {seed}: {stalled:?}"));
    }
}

/// A session to `uuid`, which has heard that the unit is new to it.
async fn session(world: &SimWorld, uuid: Uuid) -> Initiator {
    let name = target_name_of(uuid);
    let opened = Initiator::open(world, portal(), &name, None).await;
    begun(opened.expect("it may open it")).await
}

/// A session of another port of the same initiator.
async fn session_of_port(world: &SimWorld, uuid: Uuid, port: u8) -> Initiator {
    let name = target_name_of(uuid);
    begun(Initiator::open_from_port(world, portal(), &name, port).await).await
}

/// A session that is told all that it has to be.
async fn begun(mut initiator: Initiator) -> Initiator {
    let ended = initiator.command(Cdb([0; 16]), &[], 0).await;
    assert_eq!(ended.sense, Some((6, 0x29, 0)), "power on");
    initiator
}

fn pattern(blocks: usize, stamp: u8) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| (at / 97) as u8 ^ stamp).collect()
}

fn good(residual: i64) -> Ended {
    Ended { status: 0, sense: None, data: Vec::new(), residual }
}

fn failed(key: u8, code: u8, qualifier: u8, residual: i64) -> Ended {
    Ended { status: 2, sense: Some((key, code, qualifier)), data: Vec::new(), residual }
}

async fn read(initiator: &mut Initiator, lba: u64, blocks: u32) -> Vec<u8> {
    let cdb = Cdb::with_blocks(scsi::READ_16, lba, blocks);
    let ended = initiator.command(cdb, &[], blocks * BLOCK as u32).await;
    assert_eq!((ended.status, ended.residual), (0, 0));
    ended.data
}

#[test]
fn blocks_come_back_however_many_there_are() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        for (blocks, stamp) in [(1, 1), (3, 2), (17, 3), (256, 4)] {
            let data = pattern(blocks, stamp);
            let cdb = Cdb::with_blocks(scsi::WRITE_10, 5, blocks as u32);
            assert_eq!(initiator.command(cdb, &data, 0).await, good(0), "{blocks}");
            assert!(read(&mut initiator, 5, blocks as u32).await == data, "{blocks}");
        }
        assert_eq!(core.hosts_of(VOLUME), 1);
        initiator.log_out().await;
        assert_eq!(core.stats().memory_used_bytes, 0, "all that was charged is given back");
    });
}

#[test]
fn commands_that_change_blocks_do_what_they_say() {
    simulate(async |world| {
        let _core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        let ask = |opcode, lba, blocks| Cdb::with_blocks(opcode, lba, blocks);
        let (one, two) = (pattern(2, 1), pattern(2, 2));
        let verified = initiator.command(ask(scsi::WRITE_AND_VERIFY_16, 8, 2), &one, 0).await;
        assert_eq!(verified, good(0));
        let mut swap = Cdb([0; 16]);
        (swap.0[0], swap.0[9], swap.0[13]) = (scsi::COMPARE_AND_WRITE, 8, 2);
        let pair = [one.as_slice(), &two].concat();
        assert_eq!(initiator.command(swap, &pair, 0).await, good(0));
        let again = initiator.command(swap, &pair, 0).await;
        assert_eq!(again, failed(0xE, 0x1D, 0, -(4 * BLOCK as i64)));
        assert!(read(&mut initiator, 8, 2).await == two);
        let mut verify = ask(scsi::VERIFY_10, 8, 2);
        verify.0[1] = 2;
        assert_eq!(initiator.command(verify, &two, 0).await, good(0));
        assert_eq!(initiator.command(verify, &one, 0).await.sense, Some((0xE, 0x1D, 0)));
        let same = initiator.command(ask(scsi::WRITE_SAME_16, 100, 130), &one[..BLOCK], 0).await;
        assert_eq!(same, good(0));
        for lba in [100, 163, 164, 229] {
            assert!(read(&mut initiator, lba, 1).await == one[..BLOCK], "block {lba}");
        }
        assert!(read(&mut initiator, 230, 1).await == [0; BLOCK]);
        let mut list = vec![0; 24];
        (list[1], list[3], list[15], list[19]) = (22, 16, 8, 1);
        let mut unmap = Cdb([0; 16]);
        (unmap.0[0], unmap.0[8]) = (scsi::UNMAP, 24);
        assert_eq!(initiator.command(unmap, &list, 0).await, good(0));
        assert!(read(&mut initiator, 8, 1).await == [0; BLOCK]);
        assert!(read(&mut initiator, 9, 1).await == two[BLOCK..]);
        assert_eq!(initiator.command(ask(scsi::SYNCHRONIZE_CACHE_10, 0, 0), &[], 0).await, good(0));
    });
}

#[test]
fn lengths_that_differ_are_told_by_residuals() {
    simulate(async |world| {
        let _core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        let block = BLOCK as i64;
        let two = pattern(2, 1);
        let write = |blocks| Cdb::with_blocks(scsi::WRITE_10, 0, blocks);
        assert_eq!(initiator.command(write(1), &two, 0).await, good(-block));
        assert!(
            read(&mut initiator, 1, 1).await == [0; BLOCK],
            "the second block is no part of it"
        );
        assert_eq!(initiator.command(write(3), &two, 0).await, good(block));
        assert!(read(&mut initiator, 0, 2).await == two);
        let short = initiator.command(write(1), &two[..200], 0).await;
        assert_eq!(short, failed(5, 0x0E, 3, block - 200));
        let reading = Cdb::with_blocks(scsi::READ_10, 0, 2);
        let ended = initiator.command(reading, &[], 100).await;
        assert_eq!((ended.data.as_slice(), ended.residual), (&two[..100], 2 * block - 100));
        let ended = initiator.command(reading, &[], 3 * BLOCK as u32).await;
        assert_eq!((ended.data.len(), ended.residual), (2 * BLOCK, -block));
        let beyond = Cdb::with_blocks(scsi::READ_10, BLOCKS, 1);
        assert_eq!(initiator.command(beyond, &[], 4096).await, failed(5, 0x21, 0, -block));
        assert_eq!(initiator.command(Cdb([0x7F; 16]), &[], 0).await, failed(5, 0x20, 0, 0));
    });
}

#[test]
fn initiators_that_have_to_authenticate_do() {
    simulate(async |world| {
        let core = serve(&world, true).await;
        let (name, user) = (target_name_of(VOLUME), VOLUME.to_string());
        let secret = chap_secrets(&token(1).secret, None).initiator;
        let other = chap_secrets(&token(2).secret, None).initiator;
        let open = |target: String, user: String, secret: String| {
            let world = world.clone();
            async move {
                let credentials = Some((user.as_str(), secret.as_str()));
                Initiator::open(&world, portal(), &target, credentials).await.map(drop)
            }
        };
        assert_eq!(open(name.clone(), user.clone(), secret.to_string()).await, Ok(()));
        let refused = Err([2, 1]);
        assert_eq!(open(name.clone(), user.clone(), other.to_string()).await, refused);
        assert_eq!(open(name.clone(), OTHER.to_string(), other.to_string()).await, refused);
        assert_eq!(Initiator::open(&world, portal(), &name, None).await.map(drop), refused);
        let absent = target_name_of(Uuid::from_u128(9));
        assert_eq!(open(absent.clone(), user.clone(), secret.to_string()).await, refused);
        assert_eq!(Initiator::open(&world, portal(), &absent, None).await.map(drop), refused);
        assert_eq!(Initiator::discover(&world, portal(), None).await.map(drop), refused);
        let credentials = Some((user.as_str(), secret.as_str()));
        let discovery = Initiator::discover(&world, portal(), credentials).await;
        let told = discovery.expect("it knows a secret").send_targets("All").await;
        let address = ("TargetAddress".into(), format!("{},1", portal()));
        assert_eq!(told, [("TargetName".into(), name.clone()), address]);
        admit(&core, VOLUME, Access { tokens: vec![token(3)], ..Access::default() }).await;
        assert_eq!(open(name, user, secret.to_string()).await, refused, "the token is another");
    });
}

/// ISCSI-LOGIN-3. Method: logins with a wrong secret up to the limit; then the right one is not heard for as long as the limit
/// counts, at that target, and another target is.
#[test]
fn a_source_that_guesses_is_told_to_come_later() {
    simulate(async |world| {
        let _core = serve(&world, true).await;
        let open = |uuid: Uuid, byte: u8| {
            let world = world.clone();
            async move {
                let secret = chap_secrets(&token(byte).secret, None).initiator;
                let (name, user) = (target_name_of(uuid), uuid.to_string());
                let credentials = Some((user.as_str(), secret.as_str()));
                Initiator::open(&world, portal(), &name, credentials).await.map(drop)
            }
        };
        for attempt in 0..32 {
            assert_eq!(open(VOLUME, 9).await, Err([2, 1]), "attempt {attempt}");
        }
        assert_eq!(open(VOLUME, 9).await, Err([3, 1]), "it is not looked at");
        assert_eq!(open(VOLUME, 1).await, Err([3, 1]), "nor is the right one");
        assert_eq!(open(OTHER, 2).await, Ok(()), "it did not guess at that");
        world.sleep_until(world.now() + Duration::from_secs(11)).await;
        assert_eq!(open(VOLUME, 1).await, Ok(()));
    });
}

/// Method: commands at logical blocks that begin and end within blocks, each with what it has to leave alone.
#[test]
fn logical_blocks_of_512_bytes_are_read_and_changed_by_themselves() {
    const SMALL: Uuid = Uuid::from_u128(3);
    const SECTOR: usize = 512;
    simulate(async |world| {
        let core = serve(&world, false).await;
        let spec = VolumeSpec { uuid: SMALL, name: SMALL.to_string(), blocks: BLOCKS };
        let terms = Terms { sector: SectorSize::Bytes512, ..Terms::default() };
        core.create_volume(ShardIndex(0), spec, terms).await.expect("room");
        admit(&core, SMALL, Access::default()).await;
        let mut initiator = session(&world, SMALL).await;
        let ask = |opcode, lba, blocks| Cdb::with_blocks(opcode, lba, blocks);
        let capacity = Cdb([scsi::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let ended = initiator.command(capacity, &[], 8).await;
        assert_eq!(ended.data, [0, 0, 0x1F, 0xFF, 0, 0, 2, 0]);
        let mut model = vec![0; 64 * SECTOR];
        let fill = |model: &mut Vec<u8>, first: usize, bytes: &[u8]| {
            model[first * SECTOR..][..bytes.len()].copy_from_slice(bytes);
        };
        let bytes = pattern(3, 7);
        for (lba, blocks) in [(3, 1), (7, 2), (8, 16), (13, 20), (33, 6)] {
            let data = &bytes[..blocks * SECTOR];
            assert_eq!(
                initiator.command(ask(scsi::WRITE_10, lba, blocks as u32), data, 0).await,
                good(0)
            );
            fill(&mut model, lba as usize, data);
        }
        let mut swap = Cdb([0; 16]);
        (swap.0[0], swap.0[9], swap.0[13]) = (scsi::COMPARE_AND_WRITE, 15, 3);
        let (before, after) = (model[15 * SECTOR..18 * SECTOR].to_vec(), pattern(1, 99));
        let pair = [before.as_slice(), &after[..3 * SECTOR]].concat();
        assert_eq!(initiator.command(swap, &pair, 0).await, good(0));
        fill(&mut model, 15, &after[..3 * SECTOR]);
        let again = initiator.command(swap, &pair, 0).await;
        assert_eq!(again.sense, Some((0xE, 0x1D, 0)));
        let mut verify = ask(scsi::VERIFY_10, 6, 30);
        verify.0[1] = 2;
        let now = model[6 * SECTOR..36 * SECTOR].to_vec();
        assert_eq!(initiator.command(verify, &now, 0).await, good(0));
        let same = &after[..SECTOR];
        assert_eq!(initiator.command(ask(scsi::WRITE_SAME_16, 40, 9), same, 0).await, good(0));
        (40..49).for_each(|sector| fill(&mut model, sector, same));
        let zero = [0; SECTOR];
        assert_eq!(initiator.command(ask(scsi::WRITE_SAME_16, 5, 4), &zero, 0).await, good(0));
        (5..9).for_each(|sector| fill(&mut model, sector, &zero));
        let mut list = vec![0; 24];
        (list[1], list[3], list[15], list[19]) = (22, 16, 14, 19);
        let mut unmap = Cdb([0; 16]);
        (unmap.0[0], unmap.0[8]) = (scsi::UNMAP, 24);
        assert_eq!(initiator.command(unmap, &list, 0).await, good(0));
        (14..33).for_each(|sector| fill(&mut model, sector, &zero));
        for (lba, blocks) in [(0, 64), (5, 1), (7, 30), (47, 3)] {
            let read = ask(scsi::READ_16, lba, blocks as u32);
            let ended = initiator.command(read, &[], (blocks * SECTOR) as u32).await;
            assert!(
                ended.data == model[lba as usize * SECTOR..][..blocks * SECTOR],
                "{lba}+{blocks}"
            );
        }
        // A part of what is written is whole logical blocks, too.
        let short = initiator.command(ask(scsi::WRITE_10, 1, 2), &bytes[..SECTOR], 0).await;
        assert_eq!(short, good(SECTOR as i64));
        initiator.log_out().await;
        assert_eq!(core.stats().memory_used_bytes, 0, "all that was charged is given back");
    });
}

#[test]
fn targets_are_told_to_those_that_may_open_them() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let mut discovery = Initiator::discover(&world, portal(), None).await.expect("open");
        assert_eq!(discovery.send_targets("All").await.len(), 4);
        let networks = vec!["192.0.2.0/24".parse().expect("a network")];
        let restrictions = Restrictions { networks, ..Restrictions::default() };
        admit(&core, VOLUME, Access { restrictions, ..Access::default() }).await;
        let told = discovery.send_targets("All").await;
        assert_eq!(told[0].1, target_name_of(OTHER));
        assert_eq!(told.len(), 2);
        assert!(discovery.send_targets(&target_name_of(VOLUME)).await.is_empty());
        let opened = Initiator::open(&world, portal(), &target_name_of(VOLUME), None).await;
        assert_eq!(opened.map(drop), Err([2, 3]));
        core.withdraw(OTHER);
        assert!(discovery.send_targets("All").await.is_empty());
        discovery.log_out().await;
    });
}

#[test]
fn a_second_login_takes_the_place_of_the_first() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let mut first = session(&world, VOLUME).await;
        let mut second = session(&world, VOLUME).await;
        assert!(first.receive().await.is_none(), "the first one has ended");
        assert_eq!(core.hosts_of(VOLUME), 1);
        assert!(read(&mut second, 0, 1).await == [0; BLOCK]);
    });
}

#[test]
fn a_session_is_told_of_its_volume() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        core.resize_volume(OTHER, 2 * BLOCKS, Loss::Accepted).await.expect("room");
        core.resize_volume(VOLUME, 2 * BLOCKS, Loss::Accepted).await.expect("room");
        assert_eq!(initiator.event().await, (0, Some((6, 0x2A, 9))));
        let capacity = Cdb([scsi::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(initiator.command(capacity, &[], 8).await, failed(6, 0x2A, 9, -8));
        let ended = initiator.command(capacity, &[], 8).await;
        assert_eq!(ended.data, [0, 0, 7, 0xFF, 0, 0, 0x10, 0]);
        core.shutdown().await.expect("a sound disk");
        assert_eq!(initiator.event().await.0, 3, "the session is dropped");
        assert!(initiator.receive().await.is_none());
    });
}

/// ISCSI-TASK-1. Method: another initiator has written; the device is slow. Nothing comes behind the answer to the reset.
#[test]
fn a_reset_waits_for_commands_of_all_sessions() {
    simulate(async |world| {
        let device = SimDevice::new(&world, DEVICE_BLOCKS);
        let _core = serve_on(&world, device.clone(), false).await;
        let mut first = session(&world, VOLUME).await;
        let name = target_name_of(VOLUME);
        let mut second = Initiator::open_from_port(&world, portal(), &name, 7).await;
        assert_eq!(second.command(Cdb([0; 16]), &[], 0).await.sense, Some((6, 0x29, 0)));
        for (function, is_told) in
            [(task_function::CLEAR_TASK_SET, false), (task_function::LOGICAL_UNIT_RESET, true)]
        {
            device.set_faults(DeviceFaults { slow_one_in: 1, ..DeviceFaults::default() });
            let data = pattern(1, function);
            let itt = second.begin(Cdb::with_blocks(scsi::WRITE_10, 3, 1), &data, 0).await;
            world.sleep_until(world.now() + Duration::from_millis(5)).await;
            assert_eq!(first.manage(function).await, 0);
            device.set_faults(DeviceFaults::default());
            if is_told {
                assert_eq!(first.command(Cdb([0; 16]), &[], 0).await.sense, Some((6, 0x29, 3)));
            }
            assert!(read(&mut first, 3, 1).await == data, "it was done before the answer");
            let ended = second.finish(itt, &data, 0).await;
            assert_eq!((ended.status, ended.residual), (0x40, -(BLOCK as i64)), "TASK ABORTED");
            let told = second.command(Cdb([0; 16]), &[], 0).await.sense;
            assert_eq!(told, is_told.then_some((6, 0x29, 3)));
        }
        device.set_faults(DeviceFaults { slow_one_in: 1, ..DeviceFaults::default() });
        second.begin(Cdb::with_blocks(scsi::WRITE_10, 4, 1), &pattern(1, 1), 0).await;
        world.sleep_until(world.now() + Duration::from_millis(5)).await;
        second.hang_up();
        assert_eq!(first.manage(task_function::CLEAR_TASK_SET).await, 0, "it is not waited for");
    });
}

#[test]
fn resets_are_answered_and_told() {
    simulate(async |world| {
        let _core = serve(&world, false).await;
        let mut initiator = session(&world, VOLUME).await;
        assert_eq!(initiator.manage(task_function::ABORT_TASK).await, 1, "no such task");
        assert_eq!(initiator.manage(task_function::LOGICAL_UNIT_RESET).await, 0);
        assert_eq!(initiator.command(Cdb([0; 16]), &[], 0).await.sense, Some((6, 0x29, 3)));
        assert_eq!(initiator.command(Cdb([0; 16]), &[], 0).await, good(0));
        assert_eq!(initiator.manage(task_function::TARGET_COLD_RESET).await, 0);
        assert!(initiator.receive().await.is_none(), "the session ends");
    });
}
