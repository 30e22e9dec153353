//! Initiators that exclude one another by reservations, and hosts of other protocols by the same ones.

use std::cell::RefCell;
use std::rc::Rc;

use client::Error;
use dataplane::CoreOptions;
use io_traits::{BufferSlice, Clock};
use iscsi_wire::Cdb;
use iscsi_wire::cdb::{opcode as scsi, reserve_in, reserve_out};
use iscsi_wire::pdu::task_function;
use nvme_wire::reservation::{
    CPTPL_SET, RACQA_ACQUIRE, RREGA_REGISTER, RRELA_RELEASE, ReservationCommand,
};
use nvme_wire::{IoOpcode, Status};
use schedule::{CostModel, PolicyKind, Quota, SchedulerConfig};
use sim::{DeviceFaults, SimDevice, SimWorld, Simulation};
use units::{DeviceIndex, Duration, Lba};

use crate::strict::{Ended, Initiator};
use crate::together::{nbd, nvme_host, serve_all};
use crate::{
    BLOCK, DEVICE_BLOCKS, VOLUME, admit, failed, good, pattern, portal, serve, serve_on, simulate,
    start_on,
};
use access::Access;
use iscsi_frontend::target_name_of;

const WRITE_EXCLUSIVE: u8 = 1;
const EXCLUSIVE_ACCESS: u8 = 3;
const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 5;
const APTPL: u8 = 1;

fn conflict(residual: i64) -> Ended {
    Ended { status: 0x18, sense: None, data: Vec::new(), residual }
}

/// A session of the initiator's port `port`, which has heard that the unit is new to it.
async fn session(world: &SimWorld, port: u8) -> Initiator {
    let target = target_name_of(VOLUME);
    let mut initiator = Initiator::open_from_port(world, portal(), &target, port).await;
    assert_eq!(ready(&mut initiator).await, failed(6, 0x29, 0, 0));
    initiator
}

async fn ready(initiator: &mut Initiator) -> Ended {
    initiator.command(Cdb([0; 16]), &[], 0).await
}

async fn out(
    initiator: &mut Initiator,
    (action, kind): (u8, u8),
    keys: [u64; 2],
    flags: u8,
) -> Ended {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[2], cdb[8]) = (scsi::PERSISTENT_RESERVE_OUT, action, kind, 24);
    let mut parameters = keys.map(u64::to_be_bytes).concat();
    parameters.extend([0, 0, 0, 0, flags, 0, 0, 0]);
    initiator.command(Cdb(cdb), &parameters, 0).await
}

async fn register(initiator: &mut Initiator, keys: [u64; 2], flags: u8) -> Ended {
    out(initiator, (reserve_out::REGISTER, 0), keys, flags).await
}

/// Returns the answer to PERSISTENT RESERVE IN.
async fn told(initiator: &mut Initiator, action: u8) -> Vec<u8> {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[7]) = (scsi::PERSISTENT_RESERVE_IN, action, 4);
    let ended = initiator.command(Cdb(cdb), &[], 1024).await;
    assert_eq!((ended.status, ended.sense), (0, None));
    ended.data
}

/// The generation, and the keys.
async fn keys(initiator: &mut Initiator) -> (u32, Vec<u64>) {
    let bytes = told(initiator, reserve_in::READ_KEYS).await;
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(number(4) as usize, bytes.len() - 8);
    let keys = bytes[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().expect("eight")));
    (number(0), keys.collect())
}

async fn write(initiator: &mut Initiator) -> Ended {
    initiator.command(Cdb::with_blocks(scsi::WRITE_10, 1, 1), &pattern(1, 1), 0).await
}

async fn may_read(initiator: &mut Initiator) -> bool {
    let ended = initiator.command(Cdb::with_blocks(scsi::READ_10, 1, 1), &[], BLOCK as u32).await;
    assert!(matches!(ended.status, 0 | 0x18), "{ended:?}");
    ended.status == 0
}

#[test]
fn an_initiator_port_excludes_others_until_it_releases() {
    simulate(async |world| {
        let _core = serve(&world, false).await;
        let (mut first, mut second) = (session(&world, 1).await, session(&world, 2).await);
        assert_eq!(register(&mut first, [7, 10], 0).await, conflict(0), "it has no key");
        assert_eq!(register(&mut first, [0, 10], 0).await, good(0));
        assert_eq!(register(&mut second, [0, 20], 0).await, good(0));
        assert_eq!(keys(&mut first).await, (2, vec![10, 20]));
        let reserve = |kind| (reserve_out::RESERVE, kind);
        assert_eq!(out(&mut second, reserve(EXCLUSIVE_ACCESS), [19, 0], 0).await, conflict(0));
        let unknown = out(&mut second, reserve(2), [20, 0], 0).await;
        assert_eq!((unknown.status, unknown.sense), (2, Some((5, 0x24, 0))));
        assert_eq!(out(&mut first, reserve(EXCLUSIVE_ACCESS), [10, 0], 0).await, good(0));
        assert_eq!(out(&mut second, reserve(EXCLUSIVE_ACCESS), [20, 0], 0).await, conflict(0));
        assert_eq!(write(&mut first).await, good(0));
        assert_eq!(write(&mut second).await.status, 0x18);
        assert!(may_read(&mut first).await && !may_read(&mut second).await);
        assert_eq!(ready(&mut second).await, good(0), "it may ask");
        let reservation = told(&mut second, reserve_in::READ_RESERVATION).await;
        assert_eq!(
            reservation[4..],
            [0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 3, 0, 0]
        );
        let release = |kind| (reserve_out::RELEASE, kind);
        assert_eq!(
            out(&mut first, release(WRITE_EXCLUSIVE), [10, 0], 0).await,
            failed(5, 0x26, 4, 0)
        );
        assert_eq!(out(&mut first, release(EXCLUSIVE_ACCESS), [10, 0], 0).await, good(0));
        assert_eq!(write(&mut second).await, good(0));
        let capabilities = told(&mut second, reserve_in::REPORT_CAPABILITIES).await;
        assert_eq!(capabilities, [0, 8, 5, 0x80, 0xEA, 1, 0, 0]);
    });
}

/// A registration for other ports, which REPORT CAPABILITIES says there is not (SIP_C), is refused by its flag, not by the length
/// of the TransportIDs that come with it; and it registers nothing.
#[test]
fn a_registration_of_other_ports_is_refused() {
    const SPEC_I_PT: u8 = 0x08;
    simulate(async |world| {
        let _core = serve(&world, false).await;
        let mut first = session(&world, 1).await;
        let capabilities = told(&mut first, reserve_in::REPORT_CAPABILITIES).await;
        assert_eq!(capabilities[2] & SPEC_I_PT, 0, "SIP_C");
        // With the TransportID of another port: a list of 48 bytes.
        let mut transport_id = vec![0x45, 0, 0, 44];
        transport_id.extend(b"iqn.2026-01.com.example:b,i,0x800000020000");
        transport_id.resize(48, 0);
        for action in [reserve_out::REGISTER, reserve_out::REGISTER_AND_IGNORE] {
            for ports in [&[][..], &transport_id] {
                let mut cdb = [0; 16];
                (cdb[0], cdb[1]) = (scsi::PERSISTENT_RESERVE_OUT, action);
                let mut parameters = [0_u64, 10].map(u64::to_be_bytes).concat();
                parameters.extend([0, 0, 0, 0, SPEC_I_PT, 0, 0, 0]);
                if !ports.is_empty() {
                    parameters.extend((ports.len() as u32).to_be_bytes());
                    parameters.extend(ports);
                }
                cdb[8] = parameters.len() as u8;
                let refused = first.command(Cdb(cdb), &parameters, 0).await;
                assert_eq!((refused.status, refused.sense), (2, Some((5, 0x26, 0))));
            }
        }
        assert_eq!(keys(&mut first).await, (0, vec![]));
        assert_eq!(register(&mut first, [0, 10], 0).await, good(0));
    });
}

#[test]
fn hosts_hear_by_unit_attentions_what_others_did_to_them() {
    simulate(async |world| {
        let _core = serve(&world, false).await;
        let (mut first, mut second) = (session(&world, 1).await, session(&world, 2).await);
        let kind = WRITE_EXCLUSIVE_REGISTRANTS;
        assert_eq!(register(&mut first, [0, 10], APTPL).await, good(0));
        assert_eq!(register(&mut second, [0, 20], APTPL).await, good(0));
        assert_eq!(out(&mut first, (reserve_out::RESERVE, kind), [10, 0], 0).await, good(0));
        assert_eq!(write(&mut second).await, good(0), "it is registered");
        assert_eq!(out(&mut first, (reserve_out::RELEASE, kind), [10, 0], 0).await, good(0));
        assert_eq!(ready(&mut second).await, failed(6, 0x2A, 4, 0));
        assert_eq!(out(&mut first, (reserve_out::RESERVE, kind), [10, 0], 0).await, good(0));
        let preempt = (reserve_out::PREEMPT_AND_ABORT, kind);
        assert_eq!(out(&mut second, preempt, [20, 10], 0).await, good(0));
        assert_eq!(ready(&mut first).await, failed(6, 0x2A, 5, 0));
        assert_eq!(write(&mut first).await.status, 0x18);
        assert_eq!(register(&mut first, [0, 11], 0).await, good(0));
        assert_eq!(out(&mut second, (reserve_out::CLEAR, 0), [20, 0], 0).await, good(0));
        assert_eq!(ready(&mut first).await, failed(6, 0x2A, 3, 0));
        assert!(keys(&mut first).await.1.is_empty());
    });
}

#[test]
fn a_lock_goes_with_its_session() {
    simulate(async |world| {
        let _core = serve(&world, false).await;
        let (mut first, mut second) = (session(&world, 1).await, session(&world, 2).await);
        let command = |opcode: u8| {
            let mut cdb = [0; 16];
            cdb[0] = opcode;
            Cdb(cdb)
        };
        let lock = [scsi::RESERVE_6, scsi::RESERVE_10].map(command);
        assert_eq!(first.command(lock[0], &[], 0).await, good(0));
        assert_eq!(second.command(lock[1], &[], 0).await, conflict(0));
        assert_eq!(ready(&mut second).await, conflict(0));
        assert_eq!(register(&mut second, [0, 20], 0).await, conflict(0));
        assert_eq!(second.command(command(scsi::RELEASE_6), &[], 0).await, good(0));
        assert!(!may_read(&mut second).await, "another's release is of no effect");
        assert_eq!(first.command(command(scsi::RELEASE_10), &[], 0).await, good(0));
        assert!(may_read(&mut second).await);
        assert_eq!(first.command(lock[1], &[], 0).await, good(0));
        assert_eq!(second.manage(task_function::LOGICAL_UNIT_RESET).await, 0);
        for initiator in [&mut first, &mut second] {
            assert_eq!(ready(initiator).await, failed(6, 0x29, 3, 0));
        }
        assert!(may_read(&mut second).await, "a reset ends it");
        assert_eq!(first.command(lock[1], &[], 0).await, good(0));
        first.log_out().await;
        assert!(may_read(&mut second).await);
    });
}

/// The parameters of REGISTER AND MOVE to the port `port` of the same initiator.
fn to_port(keys: [u64; 2], flags: u8, port: u8) -> Vec<u8> {
    let mut id = vec![0x45, 0, 0, 0];
    id.extend(format!("iqn.2026-01.com.example:host,i,0x8000000100{port:02x}\0").bytes());
    id.resize(id.len().next_multiple_of(4), 0);
    id[3] = id.len() as u8 - 4;
    let mut parameters = keys.map(u64::to_be_bytes).concat();
    parameters.extend([0, flags, 0, 1, 0, 0, 0, id.len() as u8]);
    parameters.extend(id);
    parameters
}

async fn hand_over(initiator: &mut Initiator, parameters: &[u8]) -> Ended {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (scsi::PERSISTENT_RESERVE_OUT, reserve_out::REGISTER_AND_MOVE);
    cdb[8] = parameters.len() as u8;
    initiator.command(Cdb(cdb), parameters, 0).await
}

/// A holder hands the reservation to a port that had no session when it was registered.
#[test]
fn a_reservation_is_handed_over() {
    const UNREG: u8 = 2;
    simulate(async |world| {
        let _core = serve(&world, false).await;
        let mut first = session(&world, 1).await;
        let whole = to_port([10, 30], UNREG | APTPL, 3);
        assert_eq!(register(&mut first, [0, 10], 0).await, good(0));
        assert_eq!(hand_over(&mut first, &whole).await, conflict(0), "there is no reservation");
        let reserve = (reserve_out::RESERVE, EXCLUSIVE_ACCESS);
        assert_eq!(out(&mut first, reserve, [10, 0], 0).await, good(0));
        let itself = hand_over(&mut first, &to_port([10, 30], UNREG, 1)).await;
        assert_eq!((itself.status, itself.sense), (2, Some((5, 0x26, 0))));
        assert_eq!(hand_over(&mut first, &whole).await, good(0));
        assert_eq!(keys(&mut first).await, (2, vec![30]));
        assert!(!may_read(&mut first).await);
        let mut third = session(&world, 3).await;
        assert!(may_read(&mut third).await);
        assert_eq!(hand_over(&mut third, &to_port([30, 11], 0, 1)).await, good(0));
        assert_eq!(keys(&mut third).await, (3, vec![11, 30]));
        assert!(may_read(&mut first).await && !may_read(&mut third).await);
    });
}

/// RESERVING-6. Method: the victim has a command whose data was asked for, and others that wait before
/// the device, which takes hardly any writes; nothing is reserved, so nothing else would hold them up.
#[test]
fn commands_of_a_preempted_host_are_aborted() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let (mut first, mut second) = (session(&world, 1).await, session(&world, 2).await);
        let mut third = session(&world, 3).await;
        for (initiator, key) in [(&mut first, 10), (&mut second, 20)] {
            assert_eq!(register(initiator, [0, key], 0).await, good(0));
        }
        let ceiling = Quota { per_second: [1e6, 20.0] };
        let (policy, cost_model) = (PolicyKind::default(), CostModel::Separate);
        let config = SchedulerConfig { policy, cost_model, ceiling, window_blocks: [64, 1] };
        core.schedule(DeviceIndex(0), Some(config), &[(VOLUME, ceiling)]);
        second.withholds = true;
        let write = |lba| Cdb::with_blocks(scsi::WRITE_10, lba, 1);
        let large = Cdb::with_blocks(scsi::WRITE_10, 100, 32);
        let own = pattern(1, 5);
        let data = pattern(32, 9);
        let (block, mut tags) = (&data[..BLOCK], Vec::new());
        let kept = third.begin(write(50), &own, 0).await;
        for lba in 0..20 {
            tags.push(second.begin(write(lba), block, 0).await);
        }
        let asked = second.begin(large, &data, 0).await;
        world.sleep_until(world.now() + Duration::from_millis(200)).await;
        let preempt = (reserve_out::PREEMPT_AND_ABORT, WRITE_EXCLUSIVE);
        assert_eq!(out(&mut first, preempt, [10, 20], 0).await, good(0));
        let read = Cdb::with_blocks(scsi::READ_10, 0, 132);
        let at_once = first.command(read, &[], 132 * BLOCK as u32).await;
        // The order in which they end is not theirs.
        let mut ended = second.finish_all(&[&tags[..], &[asked]].concat(), &[]).await;
        assert_eq!(ended.remove(&asked), Some((0x40, -(data.len() as i64))));
        let done = ended.values().filter(|it| **it == (0, 0)).count();
        let aborted = ended.values().filter(|it| **it == (0x40, -(BLOCK as i64))).count();
        assert_eq!((done + aborted, aborted > 10), (20, true), "{ended:?}");
        second.withholds = false;
        assert_eq!(ready(&mut second).await, failed(6, 0x2A, 5, 0));
        assert_eq!(third.finish(kept, &own, 0).await, good(0), "it was not preempted");
        world.sleep_until(world.now() + Duration::from_secs(2)).await;
        let later = first.command(read, &[], 132 * BLOCK as u32).await;
        let changed: Vec<usize> = (0..132)
            .filter(|at| at_once.data[at * BLOCK..][..BLOCK] != later.data[at * BLOCK..][..BLOCK])
            .collect();
        assert!(changed.is_empty() || changed == [50], "{changed:?}");
        assert_eq!(write_at(&mut second, 0).await, good(0), "it is not excluded");
        for initiator in [first, second, third] {
            initiator.log_out().await;
        }
        assert_eq!(core.stats().memory_used_bytes, 0, "all that was charged is given back");
    });
}

async fn write_at(initiator: &mut Initiator, lba: u64) -> Ended {
    initiator.command(Cdb::with_blocks(scsi::WRITE_10, lba, 1), &pattern(1, 1), 0).await
}

/// RESERVING-5. Method: while a registration is made durable by a slow device, another initiator sends
/// a RESERVE and hangs up.
#[test]
fn a_session_that_has_ended_locks_nothing() {
    simulate(async |world| {
        let device = SimDevice::new(&world, DEVICE_BLOCKS);
        let _core = serve_on(&world, device.clone(), false).await;
        let (mut first, mut second) = (session(&world, 1).await, session(&world, 2).await);
        let mut third = session(&world, 3).await;
        assert_eq!(register(&mut first, [0, 10], APTPL).await, good(0));
        device.set_faults(DeviceFaults { slow_one_in: 1, ..DeviceFaults::default() });
        let mut cdb = [0; 16];
        (cdb[0], cdb[8]) = (scsi::PERSISTENT_RESERVE_OUT, 24);
        let mut parameters = [10_u64, 0].map(u64::to_be_bytes).concat();
        parameters.extend([0, 0, 0, 0, APTPL, 0, 0, 0]);
        let unregister = first.begin(Cdb(cdb), &parameters, 0).await;
        world.sleep_until(world.now() + Duration::from_millis(5)).await;
        let mut lock = [0; 16];
        lock[0] = scsi::RESERVE_6;
        second.begin(Cdb(lock), &[], 0).await;
        world.sleep_until(world.now() + Duration::from_millis(5)).await;
        second.hang_up();
        assert_eq!(first.finish(unregister, &parameters, 0).await, good(0));
        device.set_faults(DeviceFaults::default());
        world.sleep_until(world.now() + Duration::from_secs(10)).await;
        assert!(may_read(&mut third).await, "the lock of a session that is over");
    });
}

fn is_excluded(outcome: Result<(), Error>) -> bool {
    match outcome {
        Ok(()) => false,
        Err(Error::Target { status, .. }) if status.code() == Status::RESERVATION_CONFLICT => true,
        Err(error) => panic!("{error}"),
    }
}

fn block() -> BufferSlice {
    io_traits::Buffer::from_bytes(&pattern(1, 9)).into_slice()
}

/// Method: an initiator and an NVMe host register, and the initiator reserves; the power is cut at once, and another core starts
/// on the device.
#[test]
fn reservations_outlive_a_power_cut_if_that_was_asked_for() {
    for aptpl in [APTPL, 0] {
        let kept = Rc::new(RefCell::new(None));
        let keep = kept.clone();
        let before = Rc::new(Simulation::new(u64::from(aptpl)));
        let world = before.world();
        let reserved = before.run(async move {
            let device = SimDevice::new(&world, DEVICE_BLOCKS);
            let core = serve_on(&world, device.clone(), false).await;
            let _by_nvme = serve_all(&world, &core).await;
            let (nvme, mut scsi) = (nvme_host(&world, 0xAB).await, session(&world, 1).await);
            let registered = ReservationCommand {
                action: RREGA_REGISTER,
                ignore_key: false,
                rtype: 0,
                cptpl: CPTPL_SET,
            };
            let register_nvme = nvme.reserve(IoOpcode::RESERVATION_REGISTER, registered, [0, 16]);
            register_nvme.await.expect("room");
            // The last registration decides.
            assert_eq!(register(&mut scsi, [0, 10], aptpl).await, good(0));
            let reserve = (reserve_out::RESERVE, WRITE_EXCLUSIVE);
            assert_eq!(out(&mut scsi, reserve, [10, 0], 0).await, good(0));
            assert_eq!(keys(&mut scsi).await, (2, vec![16, 10]));
            keep.replace(Some(device));
        });
        reserved.unwrap_or_else(|stalled| panic!("{stalled:?}"));
        let device = kept.take().expect("a device");
        let after = Rc::new(Simulation::new(9));
        let world = after.world();
        let found = after.run(async move {
            let core = start_on(&world, device.after_crash(&world), CoreOptions::default(), false);
            let core = core.await;
            admit(
                &core,
                VOLUME,
                (*core.export(VOLUME).and_then(|it| it.access()).expect("a list")).clone(),
            )
            .await;
            let (mut first, mut second) = (session(&world, 1).await, session(&world, 2).await);
            let persists = aptpl == APTPL;
            let found = keys(&mut second).await.1;
            assert_eq!(found, if persists { vec![16, 10] } else { vec![] });
            assert_eq!(write(&mut second).await.status, if persists { 0x18 } else { 0 });
            assert_eq!(write(&mut first).await, good(0), "its own, or none");
            if persists {
                let status = told(&mut first, reserve_in::READ_FULL_STATUS).await;
                let name = b"iqn.2026-01.com.example:host,i,0x800000010001\0";
                assert!(status.windows(name.len()).any(|found| found == name));
                let release = (reserve_out::RELEASE, WRITE_EXCLUSIVE);
                assert_eq!(out(&mut first, release, [10, 0], 0).await, good(0), "its key is known");
            }
        });
        found.unwrap_or_else(|stalled| panic!("{stalled:?}"));
    }
}

/// An NVMe host reserves, an initiator sees that and preempts it, and an NBD client is excluded by both.
#[test]
fn hosts_of_all_protocols_share_one_set_of_reservations() {
    const EPERM: u32 = 1;
    simulate(async |world| {
        let core = serve(&world, false).await;
        let _by_nvme = serve_all(&world, &core).await;
        let (nvme, mut scsi) = (nvme_host(&world, 0xAB).await, session(&world, 1).await);
        let mut nbd = nbd::Client::open(&world, "db").await;
        let command =
            |action, rtype, cptpl| ReservationCommand { action, ignore_key: false, rtype, cptpl };
        let registered = command(RREGA_REGISTER, 0, CPTPL_SET);
        nvme.reserve(IoOpcode::RESERVATION_REGISTER, registered, [0, 0x10]).await.expect("room");
        assert_eq!(keys(&mut scsi).await, (1, vec![0x10]));
        assert_eq!(register(&mut scsi, [0, 0x20], APTPL).await, good(0));
        let acquired = command(RACQA_ACQUIRE, WRITE_EXCLUSIVE, 0);
        nvme.reserve(IoOpcode::RESERVATION_ACQUIRE, acquired, [0x10, 0]).await.expect("it is free");
        assert_eq!(write(&mut scsi).await.status, 0x18);
        assert_eq!(nbd.write(0, &[1; 512]).await, EPERM);
        assert!(may_read(&mut scsi).await && nbd.read(0, 512).await.len() == 512);
        let status = told(&mut scsi, reserve_in::READ_FULL_STATUS).await;
        let (holder, other) = status[8..].split_at(24 + 4 + 68 + 4);
        assert_eq!((holder[7], holder[12], holder[13]), (0x10, 1, 1));
        let name = "nqn.2014-08.org.nvmexpress:uuid:abababab-abab-abab-abab-abababababab";
        assert_eq!((holder[24], &holder[28..28 + name.len()]), (5, name.as_bytes()));
        assert_eq!((other[7], other[12], other[13], other[24]), (0x20, 0, 0, 0x45));
        let name = b"iqn.2026-01.com.example:host,i,0x800000010001\0";
        assert_eq!(other[28..28 + name.len()], *name);

        let preempt = (reserve_out::PREEMPT, EXCLUSIVE_ACCESS);
        assert_eq!(out(&mut scsi, preempt, [0x20, 0x10], 0).await, good(0));
        assert!(is_excluded(nvme.write(Lba(1), block()).await));
        assert!(is_excluded(nvme.read(Lba(1), 1).await.map(drop)));
        assert_eq!(nbd.write(0, &[1; 512]).await, EPERM);
        assert_eq!(write(&mut scsi).await, good(0));
        let state = nvme.reservations().await.expect("anyone may ask");
        assert_eq!((state.rtype, state.persists, state.registrants.len()), (2, true, 1));
        let holder = state.registrants[0];
        assert_eq!((holder.rkey.get(), holder.rcsts), (0x20, 1));
        let released = command(RRELA_RELEASE, 2, 0);
        let refused = nvme.reserve(IoOpcode::RESERVATION_RELEASE, released, [0x10, 0]).await;
        assert!(is_excluded(refused), "it is not registered any more");

        // The access list of the volume is changed, and the reservation is still there.
        admit(
            &core,
            VOLUME,
            (*core.export(VOLUME).and_then(|it| it.access()).expect("a list")).clone(),
        )
        .await;
        admit(&core, VOLUME, Access::default()).await;
        assert!(is_excluded(nvme.write(Lba(1), block()).await));
        assert_eq!(out(&mut scsi, (reserve_out::CLEAR, 0), [0x20, 0], 0).await, good(0));
        assert!(!is_excluded(nvme.write(Lba(1), block()).await));
    });
}
