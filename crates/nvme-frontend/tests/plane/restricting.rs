//! Hosts that may not open a volume, and what they can learn of it: nothing.

use access::{Access, Restrictions, Token};
use auth::{Hash, Policy, Secret};
use client::{Client, ConnectError, Error, Options, Reconnect, discover};
use io_traits::Clock;
use nvme_frontend::{DiscoveryRecord, NvmeOptions, nqn_of};
use nvme_wire::auth::{Authentication, Body, Message};
use nvme_wire::{AdminOpcode, Cqe, Nqn, SglDescriptor, Sqe, Status};
use sim::SimWorld;
use units::{Duration, Lba, ShardIndex};
use uuid::Uuid;
use volume::VolumeSpec;
use zerocopy::FromBytes;

use crate::support::raw_host::{RawHost, capsule, connect_command, enable_command};
use crate::support::{
    SimCore, VOLUME, announce, connect, data, formatted, host, portal, serve_with, simulate, sleep,
};

const MISSING: Uuid = Uuid::from_u128(0xBAD);

fn secret() -> Secret {
    Secret::new(Hash::Sha256, &[1; 64])
}

/// The host of [`host`] is admitted; the raw one is another.
fn named() -> Restrictions {
    Restrictions { hosts: vec![host().host_nqn.into()], ..Restrictions::default() }
}

fn elsewhere() -> Restrictions {
    let networks = vec!["192.0.2.0/24".parse().expect("a network")];
    Restrictions { networks, ..Restrictions::default() }
}

fn access(restrictions: Restrictions) -> Access {
    let token = Token { secret: secret(), controller: None, until: None };
    Access { tokens: vec![token], restrictions, ..Access::default() }
}

/// A server with one volume, at which hosts have to authenticate or not.
async fn server(world: &SimWorld, authenticates: bool, restrictions: Restrictions) -> SimCore {
    let device = formatted(world.clone()).await;
    let authentication = authenticates.then(Policy::default);
    let options = NvmeOptions { authentication, ..NvmeOptions::new(portal()) };
    let core = serve_with(world.clone(), device, options).await;
    let spec = VolumeSpec { uuid: VOLUME, name: "test".into(), blocks: 64 };
    core.create_volume(ShardIndex(0), spec, volume::Terms::default()).await.expect("room");
    restrict(&core, restrictions).await;
    core
}

async fn restrict(core: &SimCore, restrictions: Restrictions) {
    core.set_access(VOLUME, access(restrictions), false).await.expect("a volume");
    announce(core);
}

fn options(authenticates: bool) -> Options {
    let credentials = client::Credentials { secret: secret(), controller_secret: None };
    let credentials = authenticates.then_some(credentials);
    Options { credentials, reconnect: Reconnect::Never, ..host() }
}

async fn outcome(world: &SimWorld, uuid: Uuid, options: Options) -> Option<ConnectError> {
    let made = Client::connect(world.clone(), portal(), &nqn_of(uuid), options).await;
    made.err()
}

#[test]
fn a_forbidden_volume_fails_as_a_missing_one_does() {
    let by_interface = |name: &str| Restrictions {
        interfaces: vec![name.parse().expect("a name")],
        ..Restrictions::default()
    };
    let other_host =
        || Restrictions { hosts: vec![Nqn::from_uuid(&[3; 16]).into()], ..Restrictions::default() };
    for authenticates in [false, true] {
        for (seed, restrictions) in (0..).zip([other_host(), elsewhere(), by_interface("eth7")]) {
            simulate(seed, move |world| async move {
                let core = server(&world, authenticates, restrictions).await;
                let forbidden = outcome(&world, VOLUME, options(authenticates)).await;
                let missing = outcome(&world, MISSING, options(authenticates)).await;
                assert!(forbidden.is_some() && forbidden == missing, "{forbidden:?} {missing:?}");
                for welcome in [Restrictions::default(), named(), by_interface("sim0")] {
                    restrict(&core, welcome).await;
                    assert_eq!(outcome(&world, VOLUME, options(authenticates)).await, None);
                }
            });
        }
    }
}

/// NVME-AUTH-8: hosts that were told Do Not Retry, or that their token is wrong, never retry. Method: the refused
/// host asks for a volume that is not here, or for none, or for another host's; first none can come, then one
/// may.
#[test]
fn a_host_that_is_refused_while_a_volume_may_come_is_told_to_retry() {
    for authenticates in [false, true] {
        simulate(3, move |world| async move {
            let core = server(&world, authenticates, elsewhere()).await;
            for may_come in [false, true, false] {
                core.await_volumes(may_come);
                for uuid in [MISSING, VOLUME] {
                    let refused = outcome(&world, uuid, options(authenticates)).await;
                    let retry = match refused.expect("refused") {
                        ConnectError::Refused { status, .. }
                        | ConnectError::Command(Error::Target { status, .. }) => !status.dnr(),
                        ConnectError::Authentication(_) => false,
                        error => panic!("{error:?}"),
                    };
                    assert_eq!(retry, may_come, "{uuid} {authenticates}");
                }
            }
        });
    }
}

/// NVME-AUTH-8: hosts come again and again for volumes that are not here, and none of that keeps them from those
/// that are.
#[test]
fn who_is_told_to_come_again_is_not_put_off_for_it() {
    simulate(4, |world| async move {
        let core = server(&world, true, Restrictions::default()).await;
        core.await_volumes(true);
        for _ in 0..40 {
            assert!(outcome(&world, MISSING, options(true)).await.is_some());
        }
        assert_eq!(outcome(&world, VOLUME, options(true)).await, None);
        core.await_volumes(false);
        for failures in 0..=32 {
            let refused = outcome(&world, MISSING, options(true)).await.expect("refused");
            let put_off = matches!(refused, ConnectError::Refused { .. });
            assert_eq!(
                put_off,
                failures == 32,
                "a host that fails is put off as ever: {refused:?}"
            );
        }
    });
}

/// All that a stranger can see of its attempt to open `uuid`, but for what is random.
async fn traces(world: &SimWorld, uuid: Uuid) -> Vec<(Status, u32)> {
    let mut traces = Vec::new();
    let mut admin = RawHost::greet(world).await.expect("greeted");
    let (sqe, bytes) = connect_command(0, 0xFFFF, &nqn_of(uuid));
    let accepted = admin.command(sqe, &bytes).await.expect("an answer");
    let cntlid = accepted.dw0() as u16;
    traces.push((accepted.status(), accepted.dw0() >> 16));
    for sqe in [enable_command(), Sqe::new(AdminOpcode::IDENTIFY.0, 0)] {
        let answer = admin.command(sqe, &[]).await.expect("an answer");
        traces.push((answer.status(), answer.dw0()));
    }
    // Queues of this controller, of one that is not there, and of another subsystem.
    for (cntlid, subsystem) in [(cntlid, uuid), (cntlid + 7, uuid), (cntlid, Uuid::from_u128(77))] {
        let mut io = RawHost::greet(world).await.expect("greeted");
        let (sqe, bytes) = connect_command(1, cntlid, &nqn_of(subsystem));
        let answer = io.command(sqe, &bytes).await.expect("an answer");
        traces.push((answer.status(), answer.dw0()));
    }
    let body = Body::Negotiate { secure_channel: 0, hashes: &[1], groups: &[0] };
    let message = Message { transaction: 3, body }.to_bytes();
    let send = Authentication::send(message.len() as u32);
    let answer = admin.command(send.into(), &message).await.expect("an answer");
    traces.push((answer.status(), answer.dw0()));
    let receive = Authentication::receive(64, SglDescriptor::transport(64));
    admin.send(&capsule(0x50, receive.into(), &[])).await.expect("sent");
    let challenge = admin.receive(24 + 64).await.expect("a challenge");
    traces.push((Status::SUCCESS, u32::from_le_bytes(challenge[24..28].try_into().expect("four"))));
    let completion = admin.receive(24).await.expect("a completion");
    let completion = Cqe::read_from_bytes(&completion[8..]).expect("16 bytes");
    traces.push((completion.status(), completion.dw0()));
    let body = Body::Reply { sequence: 0, response: &[0; 32], challenge: None, public: &[] };
    let message = Message { transaction: 3, body }.to_bytes();
    let send = Authentication::send(message.len() as u32);
    let answer = admin.command(send.into(), &message).await.expect("an answer");
    traces.push((answer.status(), answer.dw0()));
    let receive = Authentication::receive(64, SglDescriptor::transport(64));
    admin.send(&capsule(0x51, receive.into(), &[])).await.expect("sent");
    let last_words = admin.wait_for_close().await;
    traces.push((Status::SUCCESS, last_words.len() as u32));
    traces
}

#[test]
fn every_answer_to_a_stranger_is_that_to_one_who_asks_for_what_is_not_there() {
    simulate(8, |world| async move {
        let core = server(&world, true, Restrictions::default()).await;
        for may_come in [false, true] {
            core.await_volumes(may_come);
            restrict(&core, Restrictions::default()).await;
            let there = traces(&world, VOLUME).await;
            restrict(&core, named()).await;
            let forbidden = traces(&world, VOLUME).await;
            let missing = traces(&world, MISSING).await;
            assert_eq!(there, missing, "who knows no token; {may_come}");
            assert_eq!(forbidden, missing, "who knows none, and has the wrong name; {may_come}");
        }
    });
}

/// Delay of the server's answer to a stranger (EVEN-1).
const ANSWER_AFTER: Duration = Duration::from_micros(100);
/// Least time of a command of a stranger until its answer: that, and the way of both.
const HELD_BACK: Duration = Duration::from_micros(100 + 2 * 5);

/// Measures how long the Connect of a stranger takes to be answered, and then its wrong Reply and the
/// failure, if it is asked for one.
async fn waits(world: &SimWorld, uuid: Uuid) -> Vec<Duration> {
    let mut admin = RawHost::greet(world).await.expect("greeted");
    let (sqe, bytes) = connect_command(0, 0xFFFF, &nqn_of(uuid));
    let begin = world.now();
    let answer = admin.command(sqe, &bytes).await.expect("an answer");
    let mut waits = vec![world.now().since(begin)];
    if !answer.status().is_success() {
        return waits;
    }
    let send = |body| {
        let message = Message { transaction: 3, body }.to_bytes();
        (Sqe::from(Authentication::send(message.len() as u32)), message)
    };
    let (sqe, message) = send(Body::Negotiate { secure_channel: 0, hashes: &[1], groups: &[0] });
    admin.command(sqe, &message).await.expect("an answer");
    let receive = Sqe::from(Authentication::receive(64, SglDescriptor::transport(64)));
    admin.send(&capsule(0x50, receive, &[])).await.expect("sent");
    admin.receive(24 + 64 + 24).await.expect("a challenge");
    let response = &[0; 32];
    let (sqe, message) = send(Body::Reply { sequence: 0, response, challenge: None, public: &[] });
    let begin = world.now();
    admin.send(&capsule(0x51, sqe, &message)).await.expect("sent");
    // Asked for at once, the failure comes as long behind the Reply's answer as that behind the Reply.
    admin.send(&capsule(0x52, receive, &[])).await.expect("sent");
    let completion = admin.receive(24).await.expect("a completion");
    let cqe = Cqe::read_from_bytes(&completion[8..]).expect("16 bytes");
    assert_eq!((cqe.cid.get(), cqe.status()), (0x51, Status::SUCCESS));
    waits.push(world.now().since(begin));
    admin.receive(24 + 64 + 24).await.expect("a failure");
    waits.push(world.now().since(begin + ANSWER_AFTER));
    waits
}

/// Method: on the simulated network, where computing takes no time, what is not held back is there within 100 µs.
#[test]
fn what_a_stranger_is_told_of_volumes_is_held_back() {
    for authenticates in [false, true] {
        simulate(12, move |world| async move {
            let core = server(&world, authenticates, named()).await;
            let mut all = waits(&world, VOLUME).await;
            all.extend(waits(&world, MISSING).await);
            assert_eq!(all.len(), if authenticates { 6 } else { 2 });
            assert!(all.iter().all(|wait| *wait >= HELD_BACK), "{all:?}");
            restrict(&core, Restrictions::default()).await;
            if authenticates {
                let there = waits(&world, VOLUME).await;
                assert!(there.iter().all(|wait| *wait >= HELD_BACK), "{there:?}");
            } else {
                let mut admin = RawHost::greet(&world).await.expect("greeted");
                let (sqe, bytes) = connect_command(0, 0xFFFF, &nqn_of(VOLUME));
                let begin = world.now();
                admin.command(sqe, &bytes).await.expect("an answer");
                let took = world.now().since(begin);
                assert!(took < HELD_BACK, "an admitted host does not wait: {took:?}");
            }
        });
    }
}

#[test]
fn a_host_that_no_longer_qualifies_is_cut_and_no_other() {
    simulate(9, |world| async move {
        let core = server(&world, true, Restrictions::default()).await;
        let one = connect(world.clone(), options(true)).await;
        let two_options = Options { host_nqn: Nqn::from_uuid(&[5; 16]), ..options(true) };
        let two = connect(world.clone(), two_options).await;
        restrict(&core, named()).await;
        one.write(Lba(1), data(1, 1)).await.expect("it is named");
        two.write(Lba(1), data(2, 1)).await.expect_err("it is not");
        restrict(&core, elsewhere()).await;
        one.write(Lba(1), data(1, 1)).await.expect_err("it comes from another network");
        sleep(&world, Duration::from_secs(2)).await;
        assert_eq!(core.stats().connections, 0);
    });
}

#[test]
fn a_host_discovers_what_it_may_open() {
    simulate(10, |world| async move {
        let core = server(&world, false, named()).await;
        let found = async |options| {
            let all = discover(world.clone(), portal(), options).await.expect("a service");
            all.into_iter().filter(|found| found.is_nvm).count()
        };
        let stranger = || Options { host_nqn: Nqn::from_uuid(&[5; 16]), ..host() };
        assert_eq!((found(host()).await, found(stranger()).await), (1, 0));
        restrict(&core, Restrictions::default()).await;
        assert_eq!((found(host()).await, found(stranger()).await), (1, 1));
        restrict(&core, elsewhere()).await;
        assert_eq!((found(host()).await, found(stranger()).await), (0, 0));
    });
}

/// A host that waits for changes hears of those that it can see, and of no others.
#[test]
fn a_host_is_told_of_what_concerns_it() {
    simulate(11, |world| async move {
        let core = server(&world, false, Restrictions::default()).await;
        let mut admin = RawHost::greet(&world).await.expect("greeted");
        let (sqe, bytes) = connect_command(0, 0xFFFF, &Nqn::DISCOVERY);
        admin.command(sqe, &bytes).await.expect("an answer");
        admin.command(enable_command(), &[]).await.expect("enabled");
        let config = nvme_wire::feature::SetFeatures {
            fid: nvme_wire::feature::Fid::ASYNC_EVENT_CONFIG,
            save: false,
            value: 1 << 31,
            nsid: 0,
        };
        let answer = admin.command(config.encode(), &[]).await.expect("an answer");
        assert!(answer.status().is_success(), "{}", answer.status());
        let request = Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0, 0);
        admin.send(&capsule(0x70, request, &[])).await.expect("sent");
        let unseen =
            DiscoveryRecord { uuid: MISSING, addresses: vec![portal()], restrictions: named() };
        core.announce(unseen.clone());
        core.withdraw(MISSING);
        sleep(&world, Duration::from_millis(50)).await;
        let alive = Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0);
        let answer = admin.command(alive, &[]).await.expect("an answer");
        assert_ne!(answer.cid.get(), 0x70, "nothing that it may see has changed");
        core.announce(DiscoveryRecord { restrictions: Restrictions::default(), ..unseen });
        let event = admin.receive(24).await.expect("an event");
        assert_eq!(Cqe::read_from_bytes(&event[8..]).expect("16 bytes").cid.get(), 0x70);
    });
}
