//! Hosts that get in, hosts that do not, and later changes for those that are in, in a simulated world.

use std::cell::Cell;
use std::rc::Rc;

use access::{Access, Restrictions, Token, UnixSeconds};
use auth::{Group, Hash, Host, Outcome, Policy, Secret};
use client::{Client, ConnectError, Options, Reconnect};
use io_traits::{Clock, Network, Spawn, Stream};
use nvme_frontend::{NvmeOptions, nqn_of};
use nvme_wire::auth::{Authentication, Body, Explanation, Message};
use nvme_wire::{AdminOpcode, Cqe, IoOpcode, SglDescriptor, Sqe, Status};
use sim::SimWorld;
use units::{Duration, Lba, ShardIndex};
use volume::{Terms, VolumeError, VolumeSpec};
use zerocopy::{FromBytes, IntoBytes};

use crate::support::raw_host::{
    RawHost, capsule, connect_command, disable_command, enable_command, greeting, parties,
    read_command,
};
use crate::support::{
    SimCore, VOLUME, connect, data, formatted, host, portal, serve_with, simulate, sleep,
};

const BLOCKS: u64 = 4096;
/// When the simulated world begins.
pub(crate) const NOON: UnixSeconds = UnixSeconds(1_800_000_000);

pub(crate) fn secret(number: u8) -> Secret {
    Secret::new(Hash::Sha256, &[number; 64])
}

/// The token of a number; the server's part of it has that number and 100.
pub(crate) fn token(number: u8) -> Token {
    Token { secret: secret(number), controller: Some(secret(100 + number)), until: None }
}

pub(crate) fn opened_by(secrets: &[u8]) -> Access {
    Access { tokens: secrets.iter().map(|number| token(*number)).collect(), ..Access::default() }
}

pub(crate) fn options(policy: Policy) -> NvmeOptions {
    NvmeOptions { authentication: Some(policy), ..NvmeOptions::new(portal()) }
}

async fn server(world: &SimWorld, access: Access) -> SimCore {
    server_with(world, access, options(Policy::default())).await
}

pub(crate) async fn server_with(world: &SimWorld, access: Access, options: NvmeOptions) -> SimCore {
    let device = formatted(world.clone()).await;
    let core = serve_with(world.clone(), device, options).await;
    let spec = VolumeSpec { uuid: VOLUME, name: "test".into(), blocks: BLOCKS };
    let access = access.encode().expect("short");
    let terms = Terms { access, ..Terms::default() };
    core.create_volume(ShardIndex(0), spec, terms).await.expect("room");
    core
}

pub(crate) fn with_secret(number: u8) -> Options {
    let credentials = client::Credentials { secret: secret(number), controller_secret: None };
    Options { credentials: Some(credentials), reconnect: Reconnect::Never, ..host() }
}

async fn refusal(world: &SimWorld, options: Options) -> ConnectError {
    let outcome = Client::connect(world.clone(), portal(), &nqn_of(VOLUME), options).await;
    outcome.map(drop).expect_err("refused")
}

async fn works(world: &SimWorld, options: Options) {
    let volume = connect(world.clone(), options).await;
    let written = data(1, 8);
    volume.write(Lba(5), written.clone()).await.expect("written");
    let read = volume.read(Lba(5), 8).await.expect("read");
    assert!(read.as_bytes() == written.as_bytes());
}

#[test]
fn who_knows_the_token_gets_in_on_every_queue() {
    for (seed, hash) in (0..).zip(Hash::ALL) {
        for group in [Group::Null, Group::Ffdhe2048] {
            simulate(seed, move |world| async move {
                let policy = Policy { hashes: vec![hash], groups: vec![group] };
                let _core = server_with(&world, opened_by(&[1]), options(policy)).await;
                works(&world, Options { queues: 3, ..with_secret(1) }).await;
                works(&world, Options { depth: 1, ..with_secret(1) }).await;
                let mutual =
                    client::Credentials { secret: secret(1), controller_secret: Some(secret(101)) };
                works(&world, Options { credentials: Some(mutual), ..host() }).await;
            });
        }
    }
}

#[test]
fn who_does_not_is_refused_with_the_reason() {
    simulate(1, |world| async move {
        let _core = server(&world, opened_by(&[1])).await;
        let failed = ConnectError::Authentication(Explanation::Failed);
        assert_eq!(refusal(&world, with_secret(2)).await, failed);
        let none = Options { reconnect: Reconnect::Never, ..host() };
        assert_eq!(refusal(&world, none).await, ConnectError::AuthenticationRequired);
        let credentials =
            client::Credentials { secret: secret(1), controller_secret: Some(secret(2)) };
        let wary = Options { credentials: Some(credentials), ..with_secret(1) };
        let wrong = ConnectError::WrongController;
        assert_eq!(refusal(&world, wary).await, wrong, "the server is not who it should be");
        works(&world, with_secret(1)).await;
    });
}

/// A host that requires a proof does not talk to a server that asks for none and gives none.
#[test]
fn a_server_that_is_to_prove_itself_cannot_do_without_authentication() {
    simulate(8, |world| async move {
        let open_to_all = NvmeOptions { authentication: None, ..NvmeOptions::new(portal()) };
        let _core = server_with(&world, opened_by(&[1]), open_to_all).await;
        let credentials =
            client::Credentials { secret: secret(1), controller_secret: Some(secret(101)) };
        let wary = Options { credentials: Some(credentials), ..with_secret(1) };
        assert_eq!(refusal(&world, wary).await, ConnectError::Unproven);
        works(&world, with_secret(1)).await;
    });
}

#[test]
fn nothing_but_the_exchange_is_executed_before_it() {
    simulate(2, |world| async move {
        let _core = server(&world, opened_by(&[1])).await;
        let required = Status::AUTHENTICATION_REQUIRED.with_dnr();
        let mut admin = RawHost::greet(&world).await.expect("greeted");
        let (sqe, bytes) = connect_command(0, 0xFFFF, &nqn_of(VOLUME));
        let accepted = admin.command(sqe, &bytes).await.expect("an answer");
        assert_eq!(accepted.status(), Status::SUCCESS);
        assert_ne!(accepted.dw0() & 1 << 17, 0, "authentication is asked for");
        for sqe in [enable_command(), Sqe::new(AdminOpcode::KEEP_ALIVE.0, 0), read_command(0, 1)] {
            let answer = admin.command(sqe, &[]).await.expect("an answer");
            assert_eq!(answer.status(), required);
        }
        let mut io = RawHost::greet(&world).await.expect("greeted");
        let (sqe, bytes) = connect_command(1, accepted.dw0() as u16, &nqn_of(VOLUME));
        let answer = io.command(sqe, &bytes).await.expect("an answer");
        assert_ne!(answer.status(), Status::SUCCESS, "the controller is not enabled");
        // A host that sends something else than the exchange is cut off.
        let begin = world.now();
        let bytes = admin.wait_for_close().await;
        assert!(bytes.is_empty());
        assert!(world.now().since(begin) < Duration::from_secs(35));
    });
}

fn negotiation() -> (Sqe, Vec<u8>) {
    let body = Body::Negotiate { secure_channel: 0, hashes: &[1], groups: &[1] };
    let bytes = Message { transaction: 3, body }.to_bytes();
    (Authentication::send(bytes.len() as u32).into(), bytes)
}

/// A host that asks for the answer right behind its message gets it when it is there. One may wait.
#[test]
fn an_answer_may_be_asked_for_before_it_is_there() {
    const ROOM: u32 = 512;
    simulate(17, |world| async move {
        let policy = Policy { hashes: vec![Hash::Sha256], groups: vec![Group::Ffdhe2048] };
        let _core = server_with(&world, opened_by(&[1]), options(policy)).await;
        let (mut host, _) =
            RawHost::queue(&world, (0, 0xFFFF), &nqn_of(VOLUME)).await.expect("an answer");
        let receive = Authentication::receive(ROOM, SglDescriptor::transport(ROOM));
        let (send, bytes) = negotiation();
        let mut all = capsule(11, send, &bytes);
        for cid in [12, 13] {
            all.extend(capsule(cid, receive.into(), &[]));
        }
        host.send(&all).await.expect("taken in");
        let mut completed = Vec::new();
        for _ in 0..2 {
            let bytes = host.receive(24).await.expect("a completion");
            let cqe = Cqe::read_from_bytes(&bytes[8..]).expect("16 bytes");
            completed.push((cqe.cid.get(), cqe.status()));
        }
        let busy = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
        assert_eq!(completed, [(13, busy), (11, Status::SUCCESS)]);
        let data = host.receive(24 + ROOM as usize).await.expect("data");
        assert_eq!(u16::from_le_bytes([data[8], data[9]]), 12, "of the one that waited");
        let message = Message::decode(&data[24..]).expect("a message");
        assert!(matches!(message.body, Body::Challenge { .. }), "{:?}", message.body);
    });
}

#[test]
fn malformed_commands_of_an_exchange_are_refused_and_a_false_answer_ends_the_connection() {
    simulate(3, |world| async move {
        let _core = server(&world, opened_by(&[1])).await;
        let mut admin = RawHost::greet(&world).await.expect("greeted");
        let (sqe, bytes) = connect_command(0, 0xFFFF, &nqn_of(VOLUME));
        admin.command(sqe, &bytes).await.expect("an answer");
        let (good, bytes) = negotiation();
        let invalid = Status::INVALID_FIELD.with_dnr();
        let wrong = |change: &dyn Fn(&mut Authentication)| {
            let mut command = Authentication::from(good);
            change(&mut command);
            Sqe::from(command)
        };
        for sqe in [
            wrong(&|command| command.secp = 0),
            wrong(&|command| command.spsp0 = 0),
            wrong(&|command| command.spsp1 = 7),
            wrong(&|command| command.length = 0.into()),
            wrong(&|command| command.length = 5.into()),
            wrong(&|command| command.flags |= 1),
        ] {
            let answer = admin.command(sqe, &bytes).await.expect("an answer");
            assert_eq!(answer.status(), invalid);
        }
        let answer = admin.command(good, &bytes).await.expect("an answer");
        assert_eq!(answer.status(), Status::SUCCESS);
        let body =
            Body::Reply { sequence: 0, response: &[0; 32], challenge: None, public: &[5; 256] };
        let reply = Message { transaction: 3, body }.to_bytes();
        // Out of turn: the challenge was not fetched.
        let send = Authentication::send(reply.len() as u32);
        let answer = admin.command(send.into(), &reply).await.expect("an answer");
        assert_eq!(answer.status(), Status::SUCCESS, "what is wrong is said on the next receive");
        let receive = Authentication::receive(64, SglDescriptor::transport(64));
        admin.send(&capsule(99, receive.into(), &[])).await.expect("sent");
        let last_words = admin.wait_for_close().await;
        let body = Body::Failure1(Explanation::IncorrectMessage as u8);
        let failure = Message { transaction: 3, body }.to_bytes();
        let found = last_words.windows(failure.len()).any(|part| part == failure.as_bytes());
        assert!(found, "{last_words:02x?}");
    });
}

#[test]
fn tokens_are_replaced_at_once_or_with_grace() {
    simulate(4, |world| async move {
        let core = server(&world, opened_by(&[1])).await;
        let failed = ConnectError::Authentication(Explanation::Failed);
        let old = connect(world.clone(), with_secret(1)).await;
        let change = async |access, cut| core.set_access(VOLUME, access, cut).await;
        change(opened_by(&[2, 1]), false).await.expect("a volume");
        works(&world, with_secret(1)).await;
        works(&world, with_secret(2)).await;
        change(opened_by(&[2]), false).await.expect("a volume");
        assert_eq!(refusal(&world, with_secret(1)).await, failed);
        works(&world, with_secret(2)).await;
        old.write(Lba(1), data(3, 1)).await.expect("a host that is in stays in");
        change(opened_by(&[3]), true).await.expect("a volume");
        old.write(Lba(1), data(4, 1)).await.expect_err("unless cut");
        works(&world, with_secret(3)).await;
        change(opened_by(&[]), false).await.expect("a volume");
        assert_eq!(refusal(&world, with_secret(3)).await, failed, "no token, no host");
        let gone = uuid::Uuid::from_u128(1);
        let outcome = core.set_access(gone, Access::default(), true).await;
        assert!(matches!(outcome, Err(VolumeError::Deleted)));
    });
}

/// NVME-AUTH-5 and NVME-AUTH-7. Method: the token is replaced behind each message of an exchange in which both sides prove
/// that they know it. A host that has not proved the old one by then does not get in with it; for a host that has, but is
/// not in yet, a cut ends the connection.
#[test]
fn a_token_that_is_replaced_during_an_exchange_opens_nothing_any_more() {
    /// Indices of the messages behind the first one: challenge, Reply, Success1, Success2.
    const REPLY: usize = 2;
    let cases = (0..=4).flat_map(|steps| [(steps, false), (steps, true)]);
    for (seed, (steps, cut)) in (30..).zip(cases) {
        simulate(seed, move |world| async move {
            let policy = Policy { hashes: vec![Hash::Sha256], groups: vec![Group::Null] };
            let core = server_with(&world, opened_by(&[1]), options(policy)).await;
            let volume = nqn_of(VOLUME);
            let (mut admin, _) =
                RawHost::queue(&world, (0, 0xFFFF), &volume).await.expect("an answer");
            let controller = Some(secret(101));
            let (mut exchange, first) = Host::new(parties(&volume), secret(1), controller, 3);
            admin.say(&first).await.expect("taken");
            for _ in 0..steps {
                assert_eq!(admin.step(&mut exchange).await, Ok(true));
            }
            core.set_access(VOLUME, opened_by(&[2]), cut).await.expect("a volume");
            let rest = admin.finish_exchange(exchange).await;
            let enabled = admin.command(enable_command(), &[]).await;
            let is_in = enabled.is_ok_and(|answer| answer.status() == Status::SUCCESS);
            assert_eq!(is_in, steps >= REPLY && !cut, "{steps} messages, {cut}: {rest:?}");
            works(&world, with_secret(2)).await;
        });
    }
}

#[test]
fn a_token_ends_when_its_time_is_over() {
    simulate(7, |world| async move {
        let mut access = opened_by(&[1]);
        access.rotate(token(2), NOON, Some(UnixSeconds(NOON.0 + 60)));
        let _core = server(&world, access).await;
        for number in [1, 2] {
            let controller_secret = Some(secret(100 + number));
            let mutual = client::Credentials { secret: secret(number), controller_secret };
            works(&world, Options { credentials: Some(mutual), ..host() }).await;
        }
        let old = connect(world.clone(), with_secret(1)).await;
        sleep(&world, Duration::from_secs(61)).await;
        let failed = ConnectError::Authentication(Explanation::Failed);
        assert_eq!(refusal(&world, with_secret(1)).await, failed);
        works(&world, with_secret(2)).await;
        old.write(Lba(1), data(3, 1)).await.expect("a host that is in stays in");
    });
}

#[test]
fn who_guesses_is_put_off_for_a_while() {
    simulate(5, |world| async move {
        let _core = server(&world, opened_by(&[1])).await;
        let failed = ConnectError::Authentication(Explanation::Failed);
        let mut failures = 0;
        let put_off = loop {
            match refusal(&world, with_secret(9)).await {
                error if error == failed => failures += 1,
                other => break other,
            }
        };
        assert!((16..64).contains(&failures), "{failures}");
        assert!(matches!(put_off, ConnectError::Refused { .. }), "{put_off:?}");
        sleep(&world, Duration::from_secs(11)).await;
        works(&world, with_secret(1)).await;
    });
}

#[test]
fn hundreds_of_half_finished_exchanges_harm_no_host_and_end() {
    simulate(6, |world| async move {
        let core = server(&world, opened_by(&[1])).await;
        let volume = connect(world.clone(), with_secret(1)).await;
        for _ in 0..300 {
            let world = world.clone();
            world.clone().spawn(async move {
                let mut admin = RawHost::greet(&world).await.expect("greeted");
                let (sqe, bytes) = connect_command(0, 0xFFFF, &nqn_of(VOLUME));
                admin.command(sqe, &bytes).await.expect("an answer");
                let (sqe, bytes) = negotiation();
                admin.command(sqe, &bytes).await.expect("an answer");
                admin.wait_for_close().await;
            });
        }
        let end = world.now() + Duration::from_secs(5);
        let mut written = 0;
        while world.now() < end {
            volume.write(Lba(written % BLOCKS), data(written, 1)).await.expect("written");
            written += 1;
        }
        assert!(written > 1000, "{written} writes in five seconds");
        assert!(core.stats().connections > 300);
        sleep(&world, Duration::from_secs(40)).await;
        assert!(core.stats().connections < 10, "{}", core.stats().connections);
    });
}

/// Volume, and a host at it that has authenticated and enabled its controller: the server, the host's admin
/// queue, and the controller's number.
pub(crate) async fn enabled(world: &SimWorld) -> (SimCore, RawHost, u16) {
    let policy = Policy { hashes: vec![Hash::Sha256], groups: vec![Group::Null] };
    let core = server_with(world, opened_by(&[1]), options(policy)).await;
    let volume = nqn_of(VOLUME);
    let (mut admin, accepted) =
        RawHost::queue(world, (0, 0xFFFF), &volume).await.expect("an answer");
    assert_eq!(admin.authenticate(&volume, secret(1)).await, Ok(Outcome::Authenticated));
    let answer = admin.command(enable_command(), &[]).await.expect("an answer");
    assert_eq!(answer.status(), Status::SUCCESS);
    (core, admin, accepted.dw0() as u16)
}

pub(crate) async fn flush(queue: &mut RawHost) -> Status {
    let flush = Sqe::new(IoOpcode::FLUSH.0, 1);
    queue.command(flush, &[]).await.expect("an answer").status()
}

/// ASSOCIATION-1 and ASSOCIATION-2: strangers that know the names of a host and its controller ask for its queue, before
/// it and while it authenticates.
#[test]
fn a_queue_is_whose_host_has_authenticated() {
    simulate(8, |world| async move {
        let (_core, mut admin, cntlid) = enabled(&world).await;
        let volume = nqn_of(VOLUME);
        let asks = async |qid| {
            let asked = RawHost::queue(&world, (qid, cntlid), &volume).await;
            asked.map(|(host, answer)| (host, answer.status())).expect("an answer")
        };
        let (mut early, status) = asks(1).await;
        assert_eq!(status, Status::SUCCESS);
        let (mut own, status) = asks(1).await;
        assert_eq!(status, Status::SUCCESS, "no connection has the queue yet");
        let (mut late, status) = asks(1).await;
        assert_eq!(status, Status::SUCCESS);
        let required = Status::AUTHENTICATION_REQUIRED.with_dnr();
        assert_eq!((flush(&mut early).await, flush(&mut own).await), (required, required));
        let begin = world.now();
        assert_eq!(own.authenticate(&volume, secret(1)).await, Ok(Outcome::Authenticated));
        assert_eq!(flush(&mut own).await, Status::SUCCESS);
        early.wait_for_close().await;
        late.wait_for_close().await;
        assert!(world.now().since(begin) < Duration::from_secs(2), "they are cut at once");
        let (_, status) = asks(1).await;
        assert_eq!(status.code(), Status::COMMAND_SEQUENCE_ERROR, "now it is in use");
        assert_eq!(flush(&mut own).await, Status::SUCCESS, "and no other host's");

        // Of two that could, the first that does. When it has gone the queue is free.
        let (mut one, _) = asks(2).await;
        let (mut other, _) = asks(2).await;
        assert_eq!(other.authenticate(&volume, secret(1)).await, Ok(Outcome::Authenticated));
        one.wait_for_close().await;
        assert_eq!(flush(&mut other).await, Status::SUCCESS);
        other.stream.shutdown();
        sleep(&world, Duration::from_secs(2)).await;
        let (mut next, status) = asks(2).await;
        assert_eq!(status, Status::SUCCESS);
        // A reset ends what was asked for before it.
        let answer = admin.command(disable_command(), &[]).await.expect("an answer");
        assert_eq!(answer.status(), Status::SUCCESS);
        next.wait_for_close().await;
        own.wait_for_close().await;
        admin.command(enable_command(), &[]).await.expect("an answer");
        let (mut again, _) = asks(2).await;
        assert_eq!(again.authenticate(&volume, secret(1)).await, Ok(Outcome::Authenticated));
        assert_eq!(flush(&mut again).await, Status::SUCCESS);
    });
}

/// A connection that only asks to be a host's queue is judged by itself: its address is not held against the
/// host.
#[test]
fn a_restriction_keeps_out_who_asks_for_a_queue_from_elsewhere_and_not_its_host() {
    simulate(10, |world| async move {
        let (core, _admin, cntlid) = enabled(&world).await;
        let volume = nqn_of(VOLUME);
        let (mut own, _) = RawHost::queue(&world, (1, cntlid), &volume).await.expect("an answer");
        assert_eq!(own.authenticate(&volume, secret(1)).await, Ok(Outcome::Authenticated));
        // A connection to another address of the server comes from another network.
        let elsewhere = "10.0.0.2:4420".parse().expect("an address");
        let listener = world.listen(elsewhere).expect("a free address");
        let serving = core.clone();
        world.spawn(async move { serving.serve(listener).await });
        let stream = world.connect(elsewhere).await.expect("someone listens");
        let mut stranger = RawHost::over(stream);
        stranger.send(&greeting()).await.expect("taken in");
        stranger.receive(128).await.expect("greeted");
        let (sqe, bytes) = connect_command(2, cntlid, &volume);
        let answer = stranger.command(sqe, &bytes).await.expect("an answer");
        assert_eq!(answer.status(), Status::SUCCESS);
        let networks = vec!["10.0.0.1/32".parse().expect("a network")];
        let restrictions = Restrictions { networks, ..Restrictions::default() };
        let access = Access { restrictions, ..opened_by(&[1]) };
        core.set_access(VOLUME, access, false).await.expect("a volume");
        assert_eq!(flush(&mut own).await, Status::SUCCESS);
        let outcome = stranger.authenticate(&volume, secret(1)).await;
        assert_eq!(outcome, Ok(Outcome::Failed(Explanation::Failed)), "not from there");
        assert_eq!(flush(&mut own).await, Status::SUCCESS);
    });
}

/// NVME-AUTH-1: a host that is slow at arithmetic does not lose its controller for want of a Keep Alive that it cannot
/// send yet.
#[test]
fn a_host_may_take_longer_to_authenticate_than_between_two_keep_alives() {
    simulate(11, |world| async move {
        let _core = server(&world, opened_by(&[1])).await;
        let volume = nqn_of(VOLUME);
        let (mut sqe, bytes) = connect_command(0, 0xFFFF, &volume);
        // The keep alive timeout, in milliseconds.
        sqe.cdw12 = 2_000.into();
        let mut admin = RawHost::greet(&world).await.expect("greeted");
        let answer = admin.command(sqe, &bytes).await.expect("an answer");
        assert_eq!(answer.status(), Status::SUCCESS);
        sleep(&world, Duration::from_secs(25)).await;
        assert_eq!(admin.authenticate(&volume, secret(1)).await, Ok(Outcome::Authenticated));
        let answer = admin.command(enable_command(), &[]).await.expect("an answer");
        assert_eq!(answer.status(), Status::SUCCESS);
        let begin = world.now();
        admin.wait_for_close().await;
        let kept = world.now().since(begin);
        assert!(kept < Duration::from_secs(4), "{kept:?}: the timer runs from then on");
    });
}

/// COMPUTE-2: behind hundreds of hosts that make the server compute, one from elsewhere waits as behind a few.
#[test]
fn who_asks_for_much_arithmetic_waits_behind_himself() {
    simulate(12, |world| async move {
        let policy = Policy { hashes: vec![Hash::Sha256], groups: vec![Group::Ffdhe2048] };
        let core = server_with(&world, opened_by(&[1]), options(policy)).await;
        let volume = nqn_of(VOLUME);
        let began = Rc::new(Cell::new(0));
        for _ in 0..200 {
            let (world, began) = (world.clone(), began.clone());
            world.clone().spawn(async move {
                let (mut host, _) =
                    RawHost::queue(&world, (0, 0xFFFF), &nqn_of(VOLUME)).await.expect("an answer");
                let (sqe, bytes) = negotiation();
                began.set(began.get() + 1);
                host.command(sqe, &bytes).await.expect("an answer");
                host.wait_for_close().await;
            });
        }
        while began.get() < 200 {
            sleep(&world, Duration::from_millis(1)).await;
        }
        // A connection to another address of the server comes from another network.
        let elsewhere = "10.0.0.2:4420".parse().expect("an address");
        let listener = world.listen(elsewhere).expect("a free address");
        world.spawn(async move { core.serve(listener).await });
        let stream = world.connect(elsewhere).await.expect("someone listens");
        let mut host = RawHost::over(stream);
        host.send(&greeting()).await.expect("taken in");
        host.receive(128).await.expect("greeted");
        let (sqe, bytes) = connect_command(0, 0xFFFF, &volume);
        host.command(sqe, &bytes).await.expect("an answer");
        let begin = world.now();
        assert_eq!(host.authenticate(&volume, secret(1)).await, Ok(Outcome::Authenticated));
        let took = world.now().since(begin);
        // Two pieces of up to 10 ms, and before each at most as much that others began.
        assert!(took < Duration::from_millis(80), "{took:?}");
    });
}

/// NVME-AUTH-2: that a host with many queues has the wrong token is one failure, and keeps no other at its address from
/// the volume.
#[test]
fn a_wrong_token_of_many_queues_counts_once() {
    simulate(14, |world| async move {
        let (core, _admin, cntlid) = enabled(&world).await;
        let volume = nqn_of(VOLUME);
        for attempt in 1..=2 {
            for qid in 1..=64 {
                let asked = RawHost::queue(&world, (qid, cntlid), &volume).await;
                let (mut queue, answer) = asked.expect("an answer");
                assert_eq!(answer.status(), Status::SUCCESS, "queue {qid}");
                let outcome = queue.authenticate(&volume, secret(9)).await;
                assert_ne!(outcome, Ok(Outcome::Authenticated));
                queue.stream.shutdown();
            }
            assert_eq!(core.nvme_stats().authentication_failures, 64 * attempt);
        }
        works(&world, with_secret(1)).await;
        assert_eq!(core.nvme_stats().connects_put_off, 0);
    });
}

/// NVME-AUTH-2 holds for I/O queues, too.
#[test]
fn who_guesses_at_an_io_queue_is_put_off_for_a_while() {
    simulate(9, |world| async move {
        let (core, _admin, cntlid) = enabled(&world).await;
        let volume = nqn_of(VOLUME);
        let mut failures = 0;
        loop {
            let asked = RawHost::queue(&world, (1, cntlid), &volume).await;
            let (mut stranger, answer) = asked.expect("an answer");
            if answer.status().code() == Status::CONNECT_CONTROLLER_BUSY {
                break;
            }
            let outcome = stranger.authenticate(&volume, secret(9)).await;
            assert_ne!(outcome, Ok(Outcome::Authenticated));
            stranger.wait_for_close().await;
            stranger.stream.shutdown();
            failures += 1;
            assert!(failures < 64, "it may guess for ever");
        }
        assert!(failures >= 16, "{failures}");
        assert_eq!(core.nvme_stats().connects_put_off, 1);
        sleep(&world, Duration::from_secs(11)).await;
        let asked = RawHost::queue(&world, (1, cntlid), &volume).await;
        let (mut own, _) = asked.expect("an answer");
        assert_eq!(own.authenticate(&volume, secret(1)).await, Ok(Outcome::Authenticated));
        assert_eq!(flush(&mut own).await, Status::SUCCESS);
    });
}
