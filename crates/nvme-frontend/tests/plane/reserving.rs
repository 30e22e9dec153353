//! Hosts that exclude one another from a volume by reservations.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use client::{Error, Options, Reconnect, Reservations, Volume};
use io_traits::Spawn;
use nvme_frontend::{NvmeOptions, nqn_of};
use nvme_wire::async_event::AsyncEvent;
use nvme_wire::feature::{Fid, GetFeatures, Select, SetFeatures};
use nvme_wire::identify::ONCS_RESERVATIONS;
use nvme_wire::log::{GetLogPage, Lid};
use nvme_wire::reservation::{
    CPTPL_KEEP, CPTPL_SET, RACQA_ACQUIRE, RACQA_PREEMPT, RACQA_PREEMPT_AND_ABORT, RREGA_REGISTER,
    RREGA_REPLACE, RREGA_UNREGISTER, RRELA_CLEAR, RRELA_RELEASE, ReservationCommand,
    ReservationNotification, ReservationReport,
};
use nvme_wire::sqe::NSID_ALL;
use nvme_wire::{AdminOpcode, Cqe, IoOpcode, SglDescriptor, Sqe, Status};
use schedule::{CostModel, PolicyKind, Quota, SchedulerConfig};
use sim::{Rng, SimDevice, SimWorld, Simulation};
use units::{DeviceIndex, Duration, Lba, LbaRange};
use zerocopy::FromBytes;

use crate::support::raw_host::{C2H_DATA, CAPSULE_RESP, RawHost, capsule};
use crate::support::{
    VOLUME, connect, data, portal, serve, serve_new, serve_slowly, simulate, sleep,
};

const REGISTER: IoOpcode = IoOpcode::RESERVATION_REGISTER;
const ACQUIRE: IoOpcode = IoOpcode::RESERVATION_ACQUIRE;
const RELEASE: IoOpcode = IoOpcode::RESERVATION_RELEASE;
const WRITE_EXCLUSIVE: u8 = 1;
const EXCLUSIVE_ACCESS: u8 = 2;
const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 3;

type Host = Volume<SimWorld>;

fn command(action: u8, rtype: u8, cptpl: u8) -> ReservationCommand {
    ReservationCommand { action, ignore_key: false, rtype, cptpl }
}

/// The host with this number, which is in its identifier.
async fn host(world: &SimWorld, number: u8) -> Host {
    let options = Options { reconnect: Reconnect::Never, ..Options::for_host([number; 16]) };
    connect(world.clone(), options).await
}

async fn register(host: &Host, key: u64, cptpl: u8) -> Result<(), Error> {
    host.reserve(REGISTER, command(RREGA_REGISTER, 0, cptpl), [0, key]).await
}

async fn acquire(host: &Host, action: u8, rtype: u8, keys: [u64; 2]) -> Result<(), Error> {
    host.reserve(ACQUIRE, command(action, rtype, 0), keys).await
}

/// The status with which a command failed.
fn status<T>(outcome: Result<T, Error>) -> Status {
    match outcome {
        Ok(value) => {
            drop(value);
            Status::SUCCESS
        }
        Err(Error::Target { status, .. }) => status.code(),
        Err(error) => panic!("{error}"),
    }
}

/// Keys of the registrants, each with whether it holds the reservation, in the order of the hosts.
fn keys(state: &Reservations) -> Vec<(u64, bool)> {
    let registrants = state.registrants.iter();
    registrants.map(|it| (it.rkey.get(), it.rcsts & 1 != 0)).collect()
}

/// Statuses of all kinds of requests, those that read first.
async fn statuses(host: &Host) -> [Vec<Status>; 2] {
    let range = LbaRange::new(Lba(0), 1);
    let zeroes = data(0, 1);
    let reads = vec![
        status(host.read(Lba(0), 1).await),
        status(host.read(Lba(0), 2).await),
        status(host.compare(Lba(0), zeroes.clone()).await),
        status(host.verify(range).await),
    ];
    let writes = vec![
        status(host.write(Lba(0), zeroes.clone()).await),
        status(host.compare_and_swap(Lba(0), &zeroes, &zeroes).await),
        status(host.write_zeroes(range).await),
        status(host.deallocate(&[range]).await),
        status(host.flush().await),
    ];
    [reads, writes]
}

fn all_are(statuses: &[Status], expected: Status) -> bool {
    statuses.iter().all(|status| *status == expected)
}

#[test]
fn a_reservation_excludes_other_hosts_until_it_is_released() {
    simulate(1, |world| async move {
        let (_core, _) = serve_new(world.clone(), 64).await;
        let (first, second, stranger) =
            (host(&world, 1).await, host(&world, 2).await, host(&world, 3).await);
        register(&first, 10, CPTPL_KEEP).await.expect("room");
        register(&second, 20, CPTPL_KEEP).await.expect("room");
        acquire(&first, RACQA_ACQUIRE, EXCLUSIVE_ACCESS, [10, 0]).await.expect("it is free");
        for excluded in [&second, &stranger] {
            let [reads, writes] = statuses(excluded).await;
            assert!(all_are(&reads, Status::RESERVATION_CONFLICT), "{reads:?}");
            assert!(all_are(&writes, Status::RESERVATION_CONFLICT), "{writes:?}");
        }
        let own = statuses(&first).await.concat();
        assert!(all_are(&own, Status::SUCCESS), "{own:?}");
        let refused = acquire(&second, RACQA_ACQUIRE, EXCLUSIVE_ACCESS, [20, 0]).await;
        assert_eq!(status(refused), Status::RESERVATION_CONFLICT);
        let release = |rtype| first.reserve(RELEASE, command(RRELA_RELEASE, rtype, 0), [10, 0]);
        assert_eq!(status(release(WRITE_EXCLUSIVE).await), Status::INVALID_FIELD);
        release(EXCLUSIVE_ACCESS).await.expect("it holds it");
        acquire(&first, RACQA_ACQUIRE, WRITE_EXCLUSIVE, [10, 0]).await.expect("it is free");
        let [reads, writes] = statuses(&stranger).await;
        assert!(all_are(&reads, Status::SUCCESS), "{reads:?}");
        assert!(all_are(&writes, Status::RESERVATION_CONFLICT), "{writes:?}");
        let state = second.reservations().await.expect("anyone may ask");
        assert_eq!((state.rtype, state.persists), (WRITE_EXCLUSIVE, false));
        assert_eq!((keys(&state), state.generation), (vec![(10, true), (20, false)], 2));
        assert_eq!(state.registrants[1].host_id, [2; 16]);
        let clear = second.reserve(RELEASE, command(RRELA_CLEAR, 0, 0), [20, 0]).await;
        assert_eq!(status(clear), Status::SUCCESS);
        let all = statuses(&stranger).await.concat();
        assert!(all_are(&all, Status::SUCCESS), "{all:?}");
    });
}

#[test]
fn registrations_change_and_end() {
    simulate(2, |world| async move {
        let (_core, _) = serve_new(world.clone(), 64).await;
        let first = host(&world, 1).await;
        let change = |action, keys| first.reserve(REGISTER, command(action, 0, 0), keys);
        assert_eq!(status(change(RREGA_REGISTER, [0, 0]).await), Status::INVALID_FIELD);
        change(RREGA_REGISTER, [0, 10]).await.expect("room");
        assert_eq!(status(change(RREGA_REGISTER, [0, 11]).await), Status::RESERVATION_CONFLICT);
        assert_eq!(status(change(RREGA_REPLACE, [9, 11]).await), Status::RESERVATION_CONFLICT);
        change(RREGA_REPLACE, [10, 11]).await.expect("its key");
        assert_eq!(status(change(RREGA_UNREGISTER, [10, 0]).await), Status::RESERVATION_CONFLICT);
        change(RREGA_UNREGISTER, [11, 0]).await.expect("its key");
        assert_eq!(keys(&first.reservations().await.expect("anyone may ask")), []);
        let whatever = |action, keys| {
            let command = ReservationCommand { ignore_key: true, ..command(action, 0, 0) };
            first.reserve(REGISTER, command, keys)
        };
        change(RREGA_REGISTER, [0, 12]).await.expect("room");
        whatever(RREGA_REPLACE, [9, 13]).await.expect("its key is not asked for");
        assert_eq!(keys(&first.reservations().await.expect("anyone may ask")), [(13, false)]);
        whatever(RREGA_UNREGISTER, [9, 0]).await.expect("its key is not asked for");
        assert_eq!(keys(&first.reservations().await.expect("anyone may ask")), []);
        for (opcode, action) in [(ACQUIRE, RACQA_ACQUIRE), (RELEASE, RRELA_CLEAR)] {
            let wrong = command(action, WRITE_EXCLUSIVE, 0);
            let wrong = ReservationCommand { ignore_key: true, ..wrong };
            let refused = status(first.reserve(opcode, wrong, [1, 1]).await);
            assert_eq!(refused, Status::INVALID_FIELD, "{} {wrong:?}", opcode.name());
        }
        for (opcode, wrong) in [
            (REGISTER, command(3, 0, 0)),
            (REGISTER, command(RREGA_REGISTER, 0, 1)),
            (ACQUIRE, command(3, WRITE_EXCLUSIVE, 0)),
            (ACQUIRE, command(RACQA_ACQUIRE, 0, 0)),
            (ACQUIRE, command(RACQA_ACQUIRE, 7, 0)),
            (RELEASE, command(2, WRITE_EXCLUSIVE, 0)),
            (RELEASE, command(RRELA_RELEASE, 0, 0)),
        ] {
            let refused = status(first.reserve(opcode, wrong, [1, 1]).await);
            assert_eq!(refused, Status::INVALID_FIELD, "{} {wrong:?}", opcode.name());
        }
    });
}

/// Method: two hosts register, and one reserves; the power is cut at once, and another server starts on the device.
#[test]
fn reservations_outlive_a_power_cut_if_that_was_asked_for() {
    for cptpl in [CPTPL_KEEP, CPTPL_SET] {
        let persists = cptpl == CPTPL_SET;
        let device = simulate(3, move |world| async move {
            let (_core, device) = serve_new(world.clone(), 64).await;
            let (first, second) = (host(&world, 1).await, host(&world, 2).await);
            register(&second, 20, CPTPL_KEEP).await.expect("room");
            register(&first, 10, cptpl).await.expect("room");
            let taken = acquire(&first, RACQA_ACQUIRE, WRITE_EXCLUSIVE, [10, 0]).await;
            taken.expect("it is free");
            let state = first.reservations().await.expect("anyone may ask");
            assert_eq!((state.persists, state.generation), (persists, 2));
            device
        });
        simulate(4, move |world| async move {
            let _core = serve(world.clone(), device.after_crash(&world)).await;
            let (first, second) = (host(&world, 1).await, host(&world, 2).await);
            let state = first.reservations().await.expect("anyone may ask");
            let expected = vec![(10, true), (20, false)];
            assert_eq!(state.persists, persists);
            assert_eq!(keys(&state), if persists { expected } else { vec![] });
            let conflict = Status::RESERVATION_CONFLICT;
            let wrote = status(second.write(Lba(0), data(1, 1)).await);
            assert_eq!(wrote, if persists { conflict } else { Status::SUCCESS });
        });
    }
}

/// A host that replaces its key again and again until the power is cut. Returns the device, and the last key that was answered.
fn replace_until_crash(seed: u64) -> (SimDevice, u64) {
    let simulation = Simulation::new(seed);
    let world = simulation.world();
    let answered = Rc::new(Cell::new(1));
    let noted = answered.clone();
    let device = simulation
        .run(async move {
            let (_core, device) = serve_new(world.clone(), 64).await;
            let first = host(&world, 1).await;
            register(&first, 1, CPTPL_SET).await.expect("room");
            acquire(&first, RACQA_ACQUIRE, WRITE_EXCLUSIVE, [1, 0]).await.expect("it is free");
            device.crash_at_request(device.requests() + Rng::new(seed).below(100));
            world.spawn(async move {
                loop {
                    let key = noted.get();
                    let replace = command(RREGA_REPLACE, 0, CPTPL_KEEP);
                    if first.reserve(REGISTER, replace, [key, key + 1]).await.is_err() {
                        return;
                    }
                    noted.set(key + 1);
                }
            });
            device
        })
        .expect("starts");
    while !device.has_crashed() {
        simulation.run_for(Duration::from_millis(1));
    }
    (device, answered.get())
}

/// RESERVING-1.
#[test]
fn what_was_answered_is_there_behind_a_power_cut_at_any_request() {
    for seed in 0..25 {
        let (device, answered) = replace_until_crash(seed);
        simulate(seed ^ 0xB007, move |world| async move {
            let _core = serve(world.clone(), device.after_crash(&world)).await;
            let state = host(&world, 2).await.reservations().await.expect("anyone may ask");
            let [(key, is_holder)] = keys(&state)[..] else { panic!("seed {seed}: {state:?}") };
            assert!(is_holder && (answered..=answered + 1).contains(&key), "seed {seed}: {key}");
            assert_eq!(state.rtype, WRITE_EXCLUSIVE);
        });
    }
}

/// RESERVING-3. Method: the disk is slow; the victim writes all the time.
#[test]
fn nothing_that_a_preempted_host_sent_takes_effect_later() {
    simulate(5, |world| async move {
        let _core = serve_slowly(&world, 64, NvmeOptions::new(portal())).await;
        let (first, second) = (host(&world, 1).await, host(&world, 2).await);
        register(&first, 10, CPTPL_KEEP).await.expect("room");
        register(&second, 20, CPTPL_KEEP).await.expect("room");
        acquire(&second, RACQA_ACQUIRE, WRITE_EXCLUSIVE, [20, 0]).await.expect("it is free");
        let refused = Rc::new(Cell::new(0));
        for block in 0..8 {
            let (victim, refused, own) = (second.clone(), refused.clone(), world.clone());
            world.spawn(async move {
                for stamp in 1.. {
                    match status(victim.write(Lba(block), data(stamp, 1)).await) {
                        Status::SUCCESS => {}
                        Status::RESERVATION_CONFLICT => return refused.set(refused.get() + 1),
                        other => panic!("{other:?}"),
                    }
                    sleep(&own, Duration::from_millis(block)).await;
                }
            });
        }
        sleep(&world, Duration::from_millis(333)).await;
        let preempt = RACQA_PREEMPT_AND_ABORT;
        acquire(&first, preempt, WRITE_EXCLUSIVE, [10, 20]).await.expect("its key is there");
        let at_once = first.read(Lba(0), 8).await.expect("sound");
        sleep(&world, Duration::from_secs(1)).await;
        let later = first.read(Lba(0), 8).await.expect("sound");
        assert!(at_once.as_bytes() == later.as_bytes(), "a write came behind the answer");
        assert_eq!(refused.get(), 8);
        assert_eq!(keys(&first.reservations().await.expect("anyone may ask")), [(10, true)]);
    });
}

/// RESERVING-6. Method: the device takes hardly any writes, so that those of the victim wait; nothing is
/// reserved, so nothing else would hold them up.
#[test]
fn preempt_and_abort_aborts_what_waits() {
    simulate(9, |world| async move {
        let (core, _) = serve_new(world.clone(), 64).await;
        let (first, second) = (host(&world, 1).await, host(&world, 2).await);
        register(&first, 10, CPTPL_KEEP).await.expect("room");
        register(&second, 20, CPTPL_KEEP).await.expect("room");
        let ceiling = Quota { per_second: [1e6, 20.0] };
        let (policy, cost_model) = (PolicyKind::default(), CostModel::Separate);
        let config = SchedulerConfig { policy, cost_model, ceiling, window_blocks: [64, 1] };
        core.schedule(DeviceIndex(0), Some(config), &[(VOLUME, ceiling)]);
        let ended = Rc::new(RefCell::new(Vec::new()));
        for block in 0..20 {
            let (victim, ended) = (second.clone(), ended.clone());
            world.spawn(async move {
                let status = status(victim.write(Lba(block), data(1, 1)).await);
                ended.borrow_mut().push(status);
            });
        }
        sleep(&world, Duration::from_millis(200)).await;
        let preempt = acquire(&first, RACQA_PREEMPT_AND_ABORT, WRITE_EXCLUSIVE, [10, 20]).await;
        preempt.expect("its key is there");
        let at_once = first.read(Lba(0), 20).await.expect("sound");
        sleep(&world, Duration::from_secs(5)).await;
        let later = first.read(Lba(0), 20).await.expect("sound");
        assert!(at_once.as_bytes() == later.as_bytes(), "a write came behind the answer");
        let ended = ended.take();
        let aborted = ended.iter().filter(|it| **it == Status::ABORTED_PREEMPT).count();
        let done = ended.iter().filter(|it| it.is_success()).count();
        assert_eq!((aborted + done, aborted > 10), (20, true), "{ended:?}");
        let write = status(second.write(Lba(0), data(1, 1)).await);
        assert_eq!(write, Status::SUCCESS, "it is not excluded");
    });
}

/// The next PDU on a queue: its type, and its completion or its data.
async fn next_pdu(host: &mut RawHost) -> (u8, Vec<u8>) {
    let mut heard = host.receive(8).await.expect("open");
    let len = u32::from_le_bytes(heard[4..8].try_into().expect("four bytes")) as usize;
    heard.extend(host.receive(len - 8).await.expect("open"));
    let kind = heard[0];
    let data = if kind == C2H_DATA { usize::from(heard[3]) } else { 8 };
    (kind, heard.split_off(data))
}

fn cqe(pdu: &(u8, Vec<u8>)) -> Cqe {
    assert_eq!(pdu.0, CAPSULE_RESP);
    Cqe::read_from_bytes(&pdu.1).expect("16 bytes")
}

/// The next notification that a host reads, at once.
async fn notification(admin: &mut RawHost, cid: u16) -> ReservationNotification {
    let page = GetLogPage::new(Lid::RESERVATION_NOTIFICATION, NSID_ALL, 0, 64);
    admin.send(&capsule(cid, page.encode(), &[])).await.expect("open");
    let (kind, bytes) = next_pdu(admin).await;
    assert_eq!(kind, C2H_DATA);
    assert_eq!(cqe(&next_pdu(admin).await).cid.get(), cid);
    ReservationNotification::read_from_bytes(&bytes).expect("64 bytes")
}

/// The raw host registers by this, under key 90.
fn register_raw() -> (Sqe, Vec<u8>) {
    let mut sqe = command(RREGA_REGISTER, 0, CPTPL_KEEP).encode(REGISTER, 1);
    sqe.dptr = SglDescriptor::in_capsule(16);
    (sqe, [0_u64, 90].map(u64::to_le_bytes).concat())
}

#[test]
fn a_host_is_told_what_others_did_to_it() {
    simulate(6, |world| async move {
        let (_core, _) = serve_new(world.clone(), 64).await;
        let (mut io, mut admin) =
            RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("a queue");
        let first = host(&world, 1).await;
        register(&first, 10, CPTPL_KEEP).await.expect("room");
        let kind = WRITE_EXCLUSIVE_REGISTRANTS;
        let wait = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
        admin.send(&capsule(500, wait, &[])).await.expect("open");
        let (sqe, data) = register_raw();
        // Released, and then preempted: one event until the log has been read.
        assert!(io.command(sqe, &data).await.expect("open").status().is_success());
        acquire(&first, RACQA_ACQUIRE, kind, [10, 0]).await.expect("it is free");
        first.reserve(RELEASE, command(RRELA_RELEASE, kind, 0), [10, 0]).await.expect("its own");
        acquire(&first, RACQA_PREEMPT, kind, [10, 90]).await.expect("its key is there");
        let event = cqe(&next_pdu(&mut admin).await);
        assert_eq!(event.cid.get(), 500);
        assert_eq!(AsyncEvent::decode(event.dw0()), AsyncEvent::RESERVATION_NOTIFICATION);
        for (n, kind, available) in [
            (1, ReservationNotification::RESERVATION_RELEASED, 1),
            (2, ReservationNotification::REGISTRATION_PREEMPTED, 0),
        ] {
            let page = notification(&mut admin, 600 + n).await;
            assert_eq!((page.count.get(), page.kind), (n.into(), kind));
            assert_eq!((page.available, page.nsid.get()), (available, 1));
        }
        assert_eq!(notification(&mut admin, 610).await.count.get(), 0, "there is no more");
        // What is masked makes neither a log page nor an event.
        let fid = Fid::RESERVATION_MASK;
        let mask = SetFeatures { fid, save: false, value: 1 << 3, nsid: 1 };
        admin.send(&capsule(700, mask.encode(), &[])).await.expect("open");
        assert!(cqe(&next_pdu(&mut admin).await).status().is_success());
        let get = GetFeatures { fid, select: Select::Current, parameter: 0, nsid: 1 };
        admin.send(&capsule(701, get.encode(), &[])).await.expect("open");
        assert_eq!(cqe(&next_pdu(&mut admin).await).dw0(), 1 << 3);
        let (sqe, data) = register_raw();
        assert!(io.command(sqe, &data).await.expect("open").status().is_success());
        first.reserve(RELEASE, command(RRELA_CLEAR, 0, 0), [10, 0]).await.expect("registered");
        assert_eq!(notification(&mut admin, 702).await.count.get(), 0, "it is masked");
    });
}

#[test]
fn persistence_is_a_feature_of_the_namespace() {
    simulate(7, |world| async move {
        let (_core, _) = serve_new(world.clone(), 64).await;
        let (mut io, mut admin) =
            RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("a queue");
        let fid = Fid::RESERVATION_PERSISTENCE;
        let first = host(&world, 1).await;
        let get = GetFeatures { fid, select: Select::Current, parameter: 0, nsid: 1 };
        for value in [1, 0, 1] {
            let set = SetFeatures { fid, save: false, value, nsid: 1 };
            let set = admin.command(set.encode(), &[]).await.expect("open");
            assert!(set.status().is_success());
            let now = admin.command(get.encode(), &[]).await.expect("open").dw0();
            let persists = first.reservations().await.expect("anyone may ask").persists;
            assert_eq!((now, persists), (value, value == 1));
        }
        let without_namespace = SetFeatures { fid, save: false, value: 1, nsid: 0 };
        let refused = admin.command(without_namespace.encode(), &[]).await.expect("open");
        assert_eq!(refused.status().code(), Status::INVALID_NAMESPACE_OR_FORMAT);
        let regular = ReservationReport { len_bytes: 64, extended: false }.encode(1);
        let refused = io.command(regular, &[]).await.expect("open");
        assert_eq!(refused.status().code(), Status::HOST_ID_INCONSISTENT_FORMAT);
    });
}

#[test]
fn identify_says_what_there_is() {
    simulate(8, |world| async move {
        let (_core, _) = serve_new(world.clone(), 64).await;
        let volume = host(&world, 1).await;
        let identify = volume.client().identify_controller().await.expect("open");
        assert_ne!(identify.oncs.get() & ONCS_RESERVATIONS, 0);
        let (_io, mut admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("a queue");
        // RESCAP of the namespace, and of what all command sets have.
        for (cns, at) in [(0x00_u32, 31), (0x08, 2)] {
            let mut sqe = Sqe::new(AdminOpcode::IDENTIFY.0, 1);
            (sqe.dptr, sqe.cdw10) = (SglDescriptor::transport(4096), cns.into());
            admin.send(&capsule(800, sqe, &[])).await.expect("open");
            let (kind, bytes) = next_pdu(&mut admin).await;
            assert_eq!((kind, bytes[at]), (C2H_DATA, 0xFF), "CNS {cns}");
            assert!(cqe(&next_pdu(&mut admin).await).status().is_success());
        }
    });
}

#[test]
fn keys_come_as_many_as_a_command_has() {
    simulate(10, |world| async move {
        let (_core, _) = serve_new(world.clone(), 64).await;
        let (mut io, _admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("a queue");
        for (opcode, rtype, len) in
            [(REGISTER, 0, 8), (ACQUIRE, WRITE_EXCLUSIVE, 24), (RELEASE, WRITE_EXCLUSIVE, 16)]
        {
            let mut sqe = command(0, rtype, CPTPL_KEEP).encode(opcode, 1);
            sqe.dptr = SglDescriptor::in_capsule(len);
            let refused = io.command(sqe, &vec![1; len as usize]).await.expect("open");
            let status = refused.status().code();
            assert_eq!(status, Status::DATA_SGL_LENGTH_INVALID, "{}", opcode.name());
        }
        let report = ReservationReport { len_bytes: 128, extended: true };
        let mut short = report.encode(1);
        short.dptr = SglDescriptor::transport(64);
        let refused = io.command(short, &[]).await.expect("open");
        assert_eq!(refused.status().code(), Status::DATA_SGL_LENGTH_INVALID);
    });
}
