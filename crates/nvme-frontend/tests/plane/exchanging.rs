//! Exchanges that are under way while tokens, restrictions and volumes change, and what a host gets for one that succeeds.

use access::{Access, Restrictions, UnixSeconds};
use auth::{Group, Hash, Host, Outcome, Policy};
use client::{Client, Credentials, Options, Reconnect};
use dataplane::{CoreOptions, Loss};
use io_traits::{Clock, Spawn, Stream};
use nvme_frontend::{NvmeOptions, nqn_of};
use nvme_wire::auth::{Authentication, Body, Explanation, Message};
use nvme_wire::{AdminOpcode, SglDescriptor, Sqe, Status};
use sim::SimWorld;
use units::{DeviceIndex, Duration, Lba, ShardIndex};
use uuid::Uuid;
use volume::{Terms, VolumeSpec};

use crate::authenticating::{NOON, enabled, flush, opened_by, options, secret, server_with, token};
use crate::support::raw_host::RawHost;
use crate::support::{SimCore, VOLUME, data, host, portal, simulate, sleep};

const MISSING: Uuid = Uuid::from_u128(0xBAD);
const FAILED: Outcome = Outcome::Failed(Explanation::Failed);

fn policy(group: Group) -> Policy {
    Policy { hashes: vec![Hash::Sha256], groups: vec![group] }
}

/// A host in the midst of an exchange for a volume.
struct Visitor {
    host: RawHost,
    exchange: Host,
}

impl Visitor {
    async fn new(world: &SimWorld, uuid: Uuid, knows: u8) -> Self {
        let nqn = nqn_of(uuid);
        let (mut host, answer) = RawHost::queue(world, (0, 0xFFFF), &nqn).await.expect("an answer");
        assert_eq!(answer.status(), Status::SUCCESS);
        let exchange = host.begin_exchange(&nqn, secret(knows)).await.expect("a challenge");
        Self { host, exchange }
    }

    async fn finish(mut self) -> Outcome {
        self.host.finish_exchange(self.exchange).await.expect("an answer")
    }
}

/// NVME-AUTH-7. Method: tokens are replaced, or the grace for one ends, between the Connect and the Reply.
#[test]
fn what_opens_a_volume_is_decided_when_the_host_replies() {
    for group in [Group::Null, Group::Ffdhe2048] {
        simulate(1, move |world| async move {
            let core = server_with(&world, opened_by(&[1]), options(policy(group))).await;
            let old = Visitor::new(&world, VOLUME, 1).await;
            let new = Visitor::new(&world, VOLUME, 2).await;
            core.set_access(VOLUME, opened_by(&[2]), false).await.expect("a volume");
            assert_eq!(old.finish().await, FAILED, "{group:?}: its token is another now");
            assert_eq!(new.finish().await, Outcome::Authenticated);

            let mut access = opened_by(&[2]);
            access.rotate(token(3), NOON, Some(UnixSeconds(NOON.0 + 20)));
            core.set_access(VOLUME, access, false).await.expect("a volume");
            let in_time = Visitor::new(&world, VOLUME, 2).await;
            let late = Visitor::new(&world, VOLUME, 2).await;
            assert_eq!(in_time.finish().await, Outcome::Authenticated);
            sleep(&world, Duration::from_secs(21)).await;
            assert_eq!(late.finish().await, FAILED, "{group:?}: the grace is over");
        });
    }
}

/// NVME-AUTH-8. Method: nothing is awaited any more when the host replies, or when it asks for the answer to that.
#[test]
fn a_host_whose_volume_comes_during_its_exchange_is_told_to_come_again() {
    for comes_behind_reply in [false, true] {
        simulate(1, move |world| async move {
            let core = server_with(&world, opened_by(&[1]), options(policy(Group::Null))).await;
            core.await_volumes(true);
            let mut early = Visitor::new(&world, MISSING, 1).await;
            core.await_volumes(comes_behind_reply);
            let reply = early.exchange.message().expect("a reply");
            early.host.say(&reply).await.expect("taken");
            core.await_volumes(false);
            let ask = Authentication::receive(64, SglDescriptor::transport(64));
            let answer = early.host.command(ask.into(), &[]).await.expect("an answer");
            assert_eq!(answer.status(), Status::NAMESPACE_NOT_READY, "{comes_behind_reply}");
            assert_eq!(core.nvme_stats().authentication_failures, 0, "no guess");

            let late = Visitor::new(&world, MISSING, 1).await;
            assert_eq!(late.finish().await, FAILED);
            assert_eq!(core.nvme_stats().authentication_failures, 1);
        });
    }
}

/// A change of a volume, or of the hosts that may open it. Suspending the core is not among them: there all
/// hosts are told to retry.
#[derive(Clone, Copy, Debug)]
enum Change {
    Deleted,
    Restricted,
    Cut,
    Abandoned,
}

const CHANGES: [Change; 4] = [Change::Deleted, Change::Restricted, Change::Cut, Change::Abandoned];

impl Change {
    async fn make(self, core: &SimCore) {
        let networks = vec!["192.0.2.0/24".parse().expect("a network")];
        let elsewhere = Restrictions { networks, ..Restrictions::default() };
        let set = async |access, cut| {
            core.set_access(VOLUME, access, cut).await.map(drop).expect("a volume");
        };
        match self {
            Self::Deleted => core.delete_volume(VOLUME, Loss::Accepted).await.expect("a volume"),
            Self::Restricted => {
                set(Access { restrictions: elsewhere, ..opened_by(&[1]) }, false).await;
            }
            Self::Cut => set(opened_by(&[2]), true).await,
            Self::Abandoned => core.abandon(DeviceIndex(0)),
        }
    }
}

/// NVME-AUTH-4 and NVME-AUTH-5. Method: strangers have begun to open a volume, and one that does not exist, when something
/// becomes of the first. Two of them go on and two say no more; of both volumes they meet the same.
#[test]
fn who_is_in_the_midst_of_an_exchange_learns_nothing_of_what_becomes_of_a_volume() {
    for change in CHANGES {
        simulate(2, move |world| async move {
            let core = server_with(&world, opened_by(&[1]), options(policy(Group::Null))).await;
            let begun = async |uuid| {
                (Visitor::new(&world, uuid, 9).await, Visitor::new(&world, uuid, 9).await)
            };
            let there = begun(VOLUME).await;
            let missing = begun(MISSING).await;
            change.make(&core).await;
            sleep(&world, Duration::from_secs(5)).await;
            for (mut going_on, mut silent) in [there, missing] {
                let alive = Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0);
                let answer = silent.host.command(alive, &[]).await.expect("it is not cut");
                assert_eq!(answer.status(), Status::AUTHENTICATION_REQUIRED.with_dnr());
                let outcome = going_on.host.finish_exchange(going_on.exchange).await;
                assert_eq!(outcome, Ok(FAILED), "{change:?}");
                going_on.host.wait_for_close().await;
                let left = Duration::from_secs(30 - 5 - 1);
                let world = world.clone();
                world.clone().spawn(async move {
                    let begin = world.now();
                    silent.host.wait_for_close().await;
                    let lived = world.now().since(begin);
                    assert!((left..left * 2).contains(&lived), "{change:?}: {lived:?}");
                });
            }
            sleep(&world, Duration::from_secs(40)).await;
            assert_eq!(core.stats().connections, 0);
        });
    }
}

/// NVME-AUTH-5. Method: a host has replied rightly, and not heard of that yet.
#[test]
fn who_has_shown_that_it_knows_the_token_is_cut_with_those_who_were_let_in() {
    for change in CHANGES {
        simulate(3, move |world| async move {
            let core = server_with(&world, opened_by(&[1]), options(policy(Group::Null))).await;
            let Visitor { mut host, mut exchange } = Visitor::new(&world, VOLUME, 1).await;
            let reply = exchange.message().expect("a Reply");
            host.say(&reply).await.expect("it is right");
            let begin = world.now();
            change.make(&core).await;
            host.wait_for_close().await;
            assert!(world.now().since(begin) < Duration::from_secs(1), "{change:?}");
        });
    }
}

/// The same of an I/O queue, whose host's address may be another.
#[test]
fn who_has_replied_for_an_io_queue_is_cut_with_its_controller() {
    simulate(4, |world| async move {
        let (core, _admin, cntlid) = enabled(&world).await;
        let volume = nqn_of(VOLUME);
        let (mut io, _) = RawHost::queue(&world, (1, cntlid), &volume).await.expect("an answer");
        let mut exchange = io.begin_exchange(&volume, secret(1)).await.expect("a challenge");
        let (mut own, _) = RawHost::queue(&world, (2, cntlid), &volume).await.expect("an answer");
        assert_eq!(own.authenticate(&volume, secret(1)).await, Ok(Outcome::Authenticated));
        assert_eq!(flush(&mut own).await, Status::SUCCESS);
        let reply = exchange.message().expect("a Reply");
        io.say(&reply).await.expect("it is right");
        Change::Restricted.make(&core).await;
        io.wait_for_close().await;
        own.wait_for_close().await;
    });
}

/// Method: a host whose queues are open authenticates once more on each of them. Meanwhile, and behind that, commands are
/// carried out. When the volume has another token, the queue ends on which the host uses the old one; with the admin queue all do.
#[test]
fn a_host_that_authenticates_once_more_goes_on_or_ends() {
    simulate(7, |world| async move {
        let (core, mut admin, cntlid) = enabled(&world).await;
        let volume = nqn_of(VOLUME);
        let mut queues = Vec::new();
        for qid in 1..=2 {
            let (mut io, _) = RawHost::queue(&world, (qid, cntlid), &volume).await.expect("asked");
            assert_eq!(io.authenticate(&volume, secret(1)).await, Ok(Outcome::Authenticated));
            queues.push(io);
        }
        let alive = Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0);
        let exchange = admin.begin_exchange(&volume, secret(1)).await.expect("a challenge");
        let answer = admin.command(alive, &[]).await.expect("it is open all the while");
        assert_eq!(answer.status(), Status::SUCCESS);
        assert_eq!(admin.finish_exchange(exchange).await, Ok(Outcome::Authenticated));
        for io in &mut queues {
            let exchange = io.begin_exchange(&volume, secret(1)).await.expect("a challenge");
            assert_eq!(flush(io).await, Status::SUCCESS);
            assert_eq!(io.finish_exchange(exchange).await, Ok(Outcome::Authenticated));
            assert_eq!(flush(io).await, Status::SUCCESS);
        }
        assert_eq!(core.stats().connections_let_in, 3, "each counts once");

        core.set_access(VOLUME, opened_by(&[2]), false).await.expect("a volume");
        assert_eq!(queues[0].authenticate(&volume, secret(1)).await, Ok(FAILED));
        queues[0].wait_for_close().await;
        assert_eq!(flush(&mut queues[1]).await, Status::SUCCESS, "it stays open by the old token");
        assert_eq!(admin.authenticate(&volume, secret(2)).await, Ok(Outcome::Authenticated));
        assert_eq!(admin.authenticate(&volume, secret(1)).await, Ok(FAILED));
        admin.wait_for_close().await;
        queues[1].wait_for_close().await;
        sleep(&world, Duration::from_secs(2)).await;
        assert_eq!(core.stats().connections, 0);
    });
}

/// CROWD-4, where hosts have to authenticate. Method: a host that knows a volume's
/// token makes as many controllers as it is let.
#[test]
fn who_knows_one_token_leaves_places_for_hosts_of_other_volumes() {
    simulate(5, |world| async move {
        let of_policy = options(policy(Group::Null));
        let options = NvmeOptions {
            core: CoreOptions { connections_max: 200, ..CoreOptions::default() },
            ..of_policy
        };
        let core = server_with(&world, opened_by(&[1]), options).await;
        let other = Uuid::from_u128(2);
        let spec = VolumeSpec { uuid: other, name: "other".into(), blocks: 64 };
        let access = opened_by(&[2]).encode().expect("short");
        let terms = Terms { access, ..Terms::default() };
        core.create_volume(ShardIndex(0), spec, terms).await.expect("room");
        let mut greedy = Vec::new();
        for _ in 0..105 {
            let mut visitor = Visitor::new(&world, VOLUME, 1).await;
            let outcome = visitor.host.finish_exchange(visitor.exchange).await;
            assert_eq!(outcome, Ok(Outcome::Authenticated), "it knows the token");
            greedy.push(visitor.host);
        }
        sleep(&world, Duration::from_secs(2)).await;
        assert_eq!(core.stats().connections, 100, "half is left");
        let credentials = Some(Credentials { secret: secret(2), controller_secret: None });
        let options = Options { queues: 64, credentials, reconnect: Reconnect::Never, ..host() };
        let client = Client::connect(world.clone(), portal(), &nqn_of(other), options).await;
        let volume = client.expect("a place").volume().await.expect("a namespace");
        volume.write(Lba(1), data(1, 1)).await.expect("served");
        assert_eq!(core.stats().connections, 165);
    });
}

/// A server with a second volume, which another token opens.
async fn with_two_volumes(world: &SimWorld) -> (SimCore, Uuid) {
    with_two_volumes_for(world, Group::Null).await
}

async fn with_two_volumes_for(world: &SimWorld, group: Group) -> (SimCore, Uuid) {
    let core = server_with(world, opened_by(&[1]), options(policy(group))).await;
    let other = Uuid::from_u128(2);
    let spec = VolumeSpec { uuid: other, name: "other".into(), blocks: 64 };
    let access = opened_by(&[2]).encode().expect("short");
    core.create_volume(ShardIndex(0), spec, Terms { access, ..Terms::default() })
        .await
        .expect("room");
    (core, other)
}

/// Returns the answer to the Connect of an admin queue.
async fn answer(world: &SimWorld, uuid: Uuid) -> Status {
    let asked = RawHost::queue(world, (0, 0xFFFF), &nqn_of(uuid)).await;
    asked.expect("an answer").1.status().code()
}

/// THROTTLE-2. Method: a host guesses, and another one at its address connects. A guess
/// counts at once, though the host neither fetches its result nor leaves.
#[test]
fn who_guesses_at_one_volume_keeps_its_neighbours_from_no_other() {
    simulate(6, |world| async move {
        let (core, other) = with_two_volumes(&world).await;
        let mut guesses = Vec::new();
        for uuid in [VOLUME, MISSING] {
            for _ in 0..32 {
                let Visitor { mut host, mut exchange } = Visitor::new(&world, uuid, 9).await;
                host.say(&exchange.message().expect("a Reply")).await.expect("an answer");
                guesses.push(host);
            }
            assert_eq!(answer(&world, uuid).await, Status::CONNECT_CONTROLLER_BUSY);
        }
        let neighbour = Visitor::new(&world, other, 2).await;
        assert_eq!(neighbour.finish().await, Outcome::Authenticated);
        let stats = core.nvme_stats();
        assert_eq!((stats.authentication_failures, stats.connects_put_off), (64, 2));
    });
}

/// NVME-AUTH-2. Method: a source begins many exchanges before it replies in any of them. Behind 32 wrong
/// Replies, one that is right meets what another wrong one does; at another volume, or when the time is over, it does not.
#[test]
fn who_begins_many_exchanges_at_once_has_no_more_guesses() {
    for group in [Group::Null, Group::Ffdhe2048] {
        simulate(10, move |world| async move {
            let (core, other) = with_two_volumes_for(&world, group).await;
            let mut wrong = Vec::new();
            for _ in 0..48 {
                wrong.push(Visitor::new(&world, VOLUME, 9).await);
            }
            let right = Visitor::new(&world, VOLUME, 1).await;
            let late = Visitor::new(&world, VOLUME, 1).await;
            let neighbour = Visitor::new(&world, other, 2).await;
            let judged = async |visitor: Visitor| {
                let Visitor { mut host, exchange } = visitor;
                let begin = world.now();
                assert_eq!(host.finish_exchange(exchange).await, Ok(FAILED), "{group:?}");
                let took = world.now().since(begin);
                host.wait_for_close().await;
                took
            };
            let mut times = Vec::new();
            for guess in wrong {
                times.push(judged(guess).await);
            }
            let took = judged(right).await;
            assert!(times.iter().any(|time| *time <= took), "{group:?}: {took:?}, {times:?}");
            assert!(times.iter().any(|time| *time >= took), "{group:?}: {took:?}, {times:?}");
            assert_eq!(neighbour.finish().await, Outcome::Authenticated);
            let stats = core.nvme_stats();
            assert_eq!((stats.authentication_failures, stats.connects_put_off), (49, 0));
            sleep(&world, Duration::from_secs(11)).await;
            assert_eq!(late.finish().await, Outcome::Authenticated);
        });
    }
}

/// Method: hosts leave, and are cut by the server, in the midst of an exchange, and one leaves since it does not believe
/// the server.
#[test]
fn who_has_not_guessed_has_not_failed() {
    simulate(7, |world| async move {
        let (core, _) = with_two_volumes(&world).await;
        for n in 0..40 {
            let visitor = Visitor::new(&world, VOLUME, 9).await;
            if n % 2 == 0 {
                visitor.host.stream.shutdown();
            } else {
                world.clone().spawn(async move {
                    let mut host = visitor.host;
                    host.wait_for_close().await;
                });
            }
        }
        sleep(&world, Duration::from_secs(32)).await;
        assert_eq!(core.stats().connections, 0);
        for _ in 0..10 {
            let body = Body::Failure2(Explanation::Failed as u8);
            let Visitor { mut host, .. } = Visitor::new(&world, VOLUME, 9).await;
            let left = Message { transaction: 3, body }.to_bytes();
            host.say(&left).await.expect("an answer");
        }
        assert_eq!(core.nvme_stats().authentication_failures, 0);
        assert_eq!(answer(&world, VOLUME).await, Status::SUCCESS);
    });
}

/// NVME-AUTH-8: a core that is suspended tells no host that its proof is wrong, whether its volume
/// is there or not.
#[test]
fn who_comes_to_a_suspended_core_is_put_off() {
    for uuid in [VOLUME, MISSING] {
        simulate(3, move |world| async move {
            let core = server_with(&world, opened_by(&[1]), options(policy(Group::Null))).await;
            core.suspend();
            let mut visitor = Visitor::new(&world, uuid, 9).await;
            let outcome = visitor.host.finish_exchange(visitor.exchange).await;
            assert!(outcome.is_err(), "it learns nothing: {outcome:?}");
            core.resume();
            assert_eq!(
                Visitor::new(&world, uuid, 9).await.finish().await,
                FAILED,
                "not put off for it"
            );
        });
    }
}
