//! Hosts that break the rules, while another keeps them and must not notice (PLANE-2, PLANE-3).

use std::cell::Cell;
use std::rc::Rc;

use auth::{Group, Hash, Host, Policy, Secret};
use client::{Client, Options, Reconnect};
use dataplane::{CONNECTIONS_LEAVING_MAX, CoreOptions};
use io_traits::{Clock, Network, Spawn, Stream};
use nvme_frontend::{NvmeOptions, nqn_of};
use nvme_wire::auth::{Body, Message};
use nvme_wire::{FabricsType, Status};
use sim::Rng;
use units::{Duration, Instant, Lba, ShardIndex, Slo};
use uuid::Uuid;
use volume::VolumeSpec;

use crate::authenticating::{opened_by, options, secret, server_with, token, with_secret};
use crate::support::raw_host::{
    self, C2H_DATA, CAPSULE_RESP, RawHost, capsule, greeting, read_command, write_command,
};
use crate::support::siege::{BLOCKS, Siege, besieged};
use crate::support::{
    VOLUME, connect, create, data, formatted, host, portal, serve_with, simulate, sleep,
};

const C2H_TERM_REQ: u8 = 3;

/// Everything a host says from its greeting to a read, one PDU each.
fn session(subsystem: &nvme_wire::Nqn) -> Vec<Vec<u8>> {
    let (sqe, connect_data) = raw_host::connect_command(0, 0xFFFF, subsystem);
    vec![
        greeting(),
        capsule(1, sqe, &connect_data),
        capsule(2, raw_host::enable_command(), &[]),
        capsule(3, read_command(0, 1), &[]),
        capsule(4, write_command(9, 1), &[]),
    ]
}

/// Method: a legitimate session's PDUs are flipped, cut, repeated, swapped and dropped at random and
/// thrown at the server; then the stranger falls silent. Nothing panics, the good host works on, and
/// within the handshake and stall timeouts the stranger's connection is gone or was in order.
#[test]
fn damaged_sessions_harm_no_other_host() {
    for seed in 0..150 {
        besieged(seed, move |siege| async move {
            let world = &siege.world;
            let mut rng = world.draw(Rng::fork);
            for _ in 0..12 {
                let mut pdus = session(&nqn_of(VOLUME));
                damage(&mut pdus, &mut rng);
                let stream = world.connect(portal()).await.expect("accepted");
                let mut stranger = RawHost::over(stream);
                let _ = stranger.send(&pdus.concat()).await;
                let w = world.clone();
                world.spawn(async move {
                    sleep(&w, Duration::from_secs(1)).await;
                    stranger.stream.shutdown();
                });
            }
            siege.assert_unharmed().await;
            siege.sleep(Duration::from_secs(60)).await;
            siege.assert_unharmed().await;
            assert_eq!(siege.strangers(), 0, "seed {seed}: a stranger stayed");
        });
    }
}

fn damage(pdus: &mut Vec<Vec<u8>>, rng: &mut Rng) {
    for _ in 0..=rng.below(3) {
        if pdus.is_empty() {
            return;
        }
        let at = rng.below(pdus.len() as u64) as usize;
        match rng.below(5) {
            0 => {
                let byte = rng.below(pdus[at].len() as u64) as usize;
                pdus[at][byte] ^= 1 << rng.below(8);
            }
            1 => {
                let len = rng.below(pdus[at].len() as u64 + 1) as usize;
                pdus[at].truncate(len.max(1));
            }
            2 => pdus.insert(at, pdus[at].clone()),
            3 => {
                let other = rng.below(pdus.len() as u64) as usize;
                pdus.swap(at, other);
            }
            _ => drop(pdus.remove(at)),
        }
    }
}

/// A stranger goes through an exchange with `secret`, and damages much of what it sends; it is silent when it
/// gets no more answers. Returns true if it was let in.
async fn damaged_exchange(mut stranger: RawHost, secret: Secret, mut rng: Rng) -> bool {
    let subsystem = nqn_of(VOLUME);
    let controller_secret = rng.one_in(2).then(|| token(1).controller.expect("both have one"));
    let parties = raw_host::parties(&subsystem);
    let (mut exchange, first) = Host::new(parties, secret, controller_secret, 3);
    let (connect, connect_data) = raw_host::connect_command(0, 0xFFFF, &subsystem);
    let mut pdus = vec![greeting(), capsule(1, connect, &connect_data)];
    let (mut heard, mut has_begun, mut was_let_in) = (Vec::new(), false, false);
    loop {
        if rng.one_in(2) {
            damage(&mut pdus, &mut rng);
        }
        let bytes = pdus.concat();
        pdus.clear();
        if !bytes.is_empty() && stranger.send(&bytes).await.is_err() {
            return was_let_in;
        }
        while pdus.is_empty() {
            let Some((kind, data)) = next_pdu(&stranger, &mut heard).await else {
                return was_let_in;
            };
            if kind == CAPSULE_RESP && !has_begun {
                has_begun = true;
                pdus.extend([raw_host::say_capsule(2, &first), raw_host::hear_capsule(3)]);
            }
            if kind != C2H_DATA {
                continue;
            }
            if let Some(job) = exchange.receive(&data, &mut |bytes| bytes.fill(7)) {
                exchange.computed(&job.run());
            }
            if let Some(message) = exchange.message() {
                pdus.extend([raw_host::say_capsule(4, &message), raw_host::hear_capsule(5)]);
            }
            let body = Message::decode(&data).map(|message| message.body);
            if matches!(body, Ok(Body::Success1 { .. })) {
                was_let_in = true;
                pdus.extend(session(&subsystem).split_off(2));
            }
        }
    }
}

/// Returns the next PDU of the server; `None` if that is the end.
async fn next_pdu(stranger: &RawHost, heard: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
    loop {
        match raw_host::take_pdu(heard) {
            Some(pdu) => return Some(pdu),
            None => heard.extend(stranger.stream.recv().await.ok()?),
        }
    }
}

/// The same where hosts have to authenticate. Method: strangers go through an exchange, with the volume's
/// token or with another, and damage about half of what they send. Those with another token are never let in;
/// of those with the volume's, some are.
#[test]
fn damaged_exchanges_harm_no_host_and_let_no_stranger_in() {
    let let_in = Rc::new(Cell::new(0));
    for seed in 0..60 {
        let let_in = let_in.clone();
        simulate(seed, |world| async move {
            // Arithmetic is slow. Without it nothing is ever busy.
            let group = if seed % 10 == 0 { Group::Ffdhe2048 } else { Group::Null };
            let policy = Policy { hashes: vec![Hash::Sha256], groups: vec![group] };
            let core = server_with(&world, opened_by(&[1]), options(policy)).await;
            let good = connect(world.clone(), with_secret(1)).await;
            let siege = Siege::begin(world.clone(), core, good).await;
            for number in 0..12_u8 {
                // From addresses of their own, so that none is put off for another's failures.
                world.come_from([10, 0, 1, number].into());
                let stranger = RawHost::over(world.connect(portal()).await.expect("accepted"));
                let (stream, knows) = (stranger.stream.clone(), number % 2 == 0);
                let token = if knows { secret(1) } else { secret(2) };
                let (let_in, rng) = (let_in.clone(), world.draw(Rng::fork));
                world.spawn(async move {
                    if damaged_exchange(stranger, token, rng).await {
                        assert!(knows, "seed {seed}: it was let in without the token");
                        let_in.set(let_in.get() + 1);
                    }
                });
                let w = world.clone();
                world.spawn(async move {
                    sleep(&w, Duration::from_secs(1)).await;
                    stream.shutdown();
                });
            }
            siege.assert_unharmed().await;
            siege.sleep(Duration::from_secs(60)).await;
            siege.assert_unharmed().await;
            assert_eq!(siege.strangers(), 0, "seed {seed}: a stranger stayed");
        });
    }
    assert!(let_in.get() > 60, "{} exchanges of 360 went well", let_in.get());
}

/// A greeting that comes a byte at a time is cut off by the clock, not by its length.
#[test]
fn a_slow_greeting_runs_out_of_time() {
    besieged(1, |siege| async move {
        let world = &siege.world;
        let mut stranger = RawHost::over(world.connect(portal()).await.expect("accepted"));
        let started = world.now();
        for byte in greeting() {
            if stranger.send(&[byte]).await.is_err() {
                break;
            }
            siege.sleep(Duration::from_secs(1)).await;
        }
        assert!(world.now().since(started) < Duration::from_secs(15), "tolerated too long");
        siege.sleep(Duration::from_secs(1)).await;
        assert_eq!(siege.strangers(), 0);
        siege.assert_unharmed().await;
    });
}

/// Asks for more than a window's worth of data and reads none of it: the good host goes on, and the
/// deaf one is cut off when its stall timeout is over.
#[test]
fn a_host_that_reads_no_replies_is_cut_off_and_holds_up_no_other_host() {
    besieged(2, |siege| async move {
        let mut deaf = Vec::new();
        for _ in 0..40 {
            let (mut io, admin) = siege.io_queue().await;
            for cid in 0..31 {
                io.send(&capsule(cid, read_command(0, 256), &[])).await.expect("taken in");
            }
            deaf.push((io, admin));
        }
        // 40 × 31 MiB are asked for, several times the core's memory.
        for _ in 0..20 {
            siege.assert_unharmed().await;
            siege.sleep(Duration::from_secs(3)).await;
        }
        // The admin queues were in order, and stay.
        assert_eq!(siege.strangers(), deaf.len());
        siege.assert_unharmed().await;
    });
}

/// Announces writes and never sends their data.
#[test]
fn a_host_that_owes_data_is_cut_off() {
    besieged(3, |siege| async move {
        let (mut io, _admin) = siege.io_queue().await;
        for cid in 0..31 {
            io.send(&capsule(cid, write_command(0, 256), &[])).await.expect("taken in");
        }
        for _ in 0..15 {
            siege.assert_unharmed().await;
            siege.sleep(Duration::from_secs(3)).await;
        }
        assert_eq!(siege.strangers(), 1, "only the admin queue is left");
    });
}

/// One command more than the queue has entries ends the connection, with a TermReq, and the whole association with it.
#[test]
fn a_queue_takes_no_more_commands_than_it_has_entries() {
    besieged(4, |siege| async move {
        let (mut io, mut admin) = siege.io_queue().await;
        for cid in 0..40 {
            if io.send(&capsule(cid, write_command(0, 1), &[])).await.is_err() {
                break;
            }
        }
        let bytes = io.wait_for_close().await;
        let r2t_len = 24;
        let last = bytes.chunks(r2t_len).find(|pdu| pdu[0] == C2H_TERM_REQ);
        assert!(last.is_some(), "the reason was given");
        assert_eq!(admin.wait_for_close().await, [0_u8; 0], "the admin queue has ended, too");
        siege.sleep(Duration::from_secs(2)).await;
        assert_eq!(siege.strangers(), 0);
        siege.assert_unharmed().await;
    });
}

/// More connections than there may be are closed as they come; those that are there work on.
#[test]
fn a_flood_of_connections_is_bounded() {
    besieged(5, |siege| async move {
        let world = &siege.world;
        let mut flood = Vec::new();
        for _ in 0..1500 {
            flood.push(world.connect(portal()).await.expect("accepted"));
        }
        assert!(siege.core.stats().connections <= 1200);
        siege.assert_unharmed().await;
        // Half-open connections go when their time is up, so others can come.
        siege.sleep(Duration::from_secs(12)).await;
        let later = connect(world.clone(), host()).await;
        later.read(Lba(0), 1).await.expect("served");
    });
}

/// CROWD-1. Method: one source holds all places, with connections that send nothing,
/// and with such as have gone as far as discovery; hosts of another source come, and those that were let in
/// before work on.
#[test]
fn a_flood_from_one_source_keeps_no_other_host_out() {
    besieged(15, |siege| async move {
        let world = &siege.world;
        let (mut silent, mut talking) = (Vec::new(), Vec::new());
        world.come_from("10.0.0.1".parse().expect("an address"));
        for n in 0..1300 {
            silent.push(world.connect(portal()).await.expect("accepted"));
            if n % 100 == 0 && n < 1000 {
                let mut host = RawHost::greet(world).await.expect("greeted");
                let (sqe, data) = raw_host::connect_command(0, 0xFFFF, &nvme_wire::Nqn::DISCOVERY);
                host.command(sqe, &data).await.expect("anybody may ask");
                talking.push(host);
            }
        }
        world.come_from("10.0.0.2".parse().expect("an address"));
        for _ in 0..20 {
            let other = connect(world.clone(), host()).await;
            other.read(Lba(0), 1).await.expect("served at once");
        }
        assert!(siege.core.stats().connections <= 1200 + 64);
        siege.assert_unharmed().await;
    });
}

/// CROWD-3. Method: one source holds all places, breaks the rules on more connections than may linger, and takes the
/// places that become free; then hosts of another come, and find room at once.
#[test]
fn a_flood_that_lingers_keeps_no_other_host_out() {
    besieged(16, |siege| async move {
        let world = &siege.world;
        world.come_from("10.0.0.1".parse().expect("an address"));
        let mut flood = Vec::new();
        for _ in 0..1200 {
            flood.push(RawHost::over(world.connect(portal()).await.expect("accepted")));
        }
        for stranger in &mut flood[1000..1128] {
            let _ = stranger.send(&[0xFF; 64]).await;
        }
        siege.sleep(Duration::from_millis(1)).await;
        for _ in 0..100 {
            flood.push(RawHost::over(world.connect(portal()).await.expect("accepted")));
        }
        assert!(siege.core.stats().connections > 1200, "some linger");
        world.come_from("10.0.0.2".parse().expect("an address"));
        let at_once = Options { reconnect: Reconnect::Never, ..host() };
        for _ in 0..20 {
            let other = connect(world.clone(), at_once.clone()).await;
            other.read(Lba(0), 1).await.expect("served at once");
            assert!(siege.core.stats().connections <= 1200 + CONNECTIONS_LEAVING_MAX);
        }
        siege.assert_unharmed().await;
    });
}

/// CROWD-2: behind the address of a flood others come in, too, in the places of those that had their chance.
#[test]
fn a_flood_does_not_keep_out_its_own_source_for_ever() {
    besieged(17, |siege| async move {
        let world = &siege.world;
        let mut flood = Vec::new();
        for n in 0..1200 {
            flood.push(RawHost::over(world.connect(portal()).await.expect("accepted")));
            if n % 4 == 0 {
                let (sqe, data) = raw_host::connect_command(0, 0xFFFF, &nvme_wire::Nqn::DISCOVERY);
                let last = flood.last_mut().expect("pushed");
                let _ = last.send(&[greeting(), capsule(1, sqe, &data)].concat()).await;
            }
        }
        let at_once = Options { reconnect: Reconnect::Never, ..host() };
        let nqn = nqn_of(VOLUME);
        let early = Client::connect(world.clone(), portal(), &nqn, at_once.clone()).await;
        assert!(early.is_err(), "all of the flood are as new");
        siege.sleep(Duration::from_secs(1)).await;
        let other = connect(world.clone(), at_once).await;
        other.read(Lba(0), 1).await.expect("served at once");
        siege.assert_unharmed().await;
    });
}

/// CROWD-4. Method: a host makes controllers of one volume, which it never has to keep alive, as long as it is let;
/// then hosts of another come, with as many queues as they like.
#[test]
fn hosts_of_one_volume_leave_places_for_those_of_others() {
    besieged(18, |siege| async move {
        let world = &siege.world;
        let other = Uuid::from_u128(2);
        let spec = VolumeSpec { uuid: other, name: "other".into(), blocks: BLOCKS };
        siege.core.create_volume(ShardIndex(0), spec, Slo::default()).await.expect("room");
        let mut greedy = Vec::new();
        let refused = loop {
            let asked = RawHost::queue(world, (0, 0xFFFF), &nqn_of(VOLUME)).await;
            let (host, answer) = asked.expect("an answer");
            if answer.status() != Status::SUCCESS {
                break answer.status();
            }
            greedy.push(host);
            assert!(greedy.len() < 1200, "it gets all places");
        };
        assert_eq!(refused.code(), Status::CONNECT_CONTROLLER_BUSY);
        let mut others = Vec::new();
        for n in 0..4 {
            let own = Options::for_host([20 + n; 16]);
            let options = Options { queues: 64, reconnect: Reconnect::Never, ..own };
            let client = Client::connect(world.clone(), portal(), &nqn_of(other), options).await;
            let volume = client.expect("a place").volume().await.expect("a namespace");
            volume.write(Lba(n.into()), data(n.into(), 1)).await.expect("served");
            others.push(volume);
        }
        let connections = 2 + greedy.len() + 1 + 4 * 65;
        assert_eq!(
            siege.core.stats().connections,
            connections,
            "all, and the one that was refused"
        );
        siege.assert_unharmed().await;
    });
}

/// All places have those that were let in.
#[test]
fn who_finds_no_place_is_closed_and_counted() {
    simulate(19, |world| async move {
        let options = NvmeOptions {
            core: CoreOptions { connections_max: 2, ..CoreOptions::default() },
            ..NvmeOptions::new(portal())
        };
        let core = serve_with(world.clone(), formatted(world.clone()).await, options).await;
        create(&core, BLOCKS).await;
        let good = connect(world.clone(), host()).await;
        assert_eq!(core.stats().connections_refused, 0);
        for refused in 1..=2 {
            let options = Options { reconnect: Reconnect::Never, ..Options::for_host([9; 16]) };
            let client = Client::connect(world.clone(), portal(), &nqn_of(VOLUME), options).await;
            assert!(client.is_err());
            let stats = core.stats();
            assert_eq!((stats.connections, stats.connections_refused), (2, refused));
        }
        good.write(Lba(0), data(1, 1)).await.expect("unharmed");
    });
}

#[test]
fn commands_before_connect_and_unknown_subsystems_get_their_status() {
    besieged(6, |siege| async move {
        let world = &siege.world;
        let mut early = RawHost::greet(world).await.expect("greeted");
        let reply = early.command(read_command(0, 1), &[]).await.expect("answered");
        assert_eq!(reply.status().code(), Status::COMMAND_SEQUENCE_ERROR);

        let unknown = nvme_wire::Nqn::from_uuid(&[1; 16]);
        let (sqe, connect_data) = raw_host::connect_command(0, 0xFFFF, &unknown);
        assert_eq!(nvme_wire::fabrics::fctype(&sqe), FabricsType::CONNECT);
        let reply = early.command(sqe, &connect_data).await.expect("answered");
        assert_eq!(reply.status().code(), Status::CONNECT_INVALID_PARAMETERS);
    });
}

/// A host that stops saying anything loses its controller when its keep alive timer expires; and when it has not been
/// enabled for two minutes.
#[test]
fn a_silent_host_loses_its_controller() {
    besieged(7, |siege| async move {
        for (is_enabled, lives_secs) in [(true, 2), (false, 120)] {
            let mut admin = RawHost::greet(&siege.world).await.expect("greeted");
            let (mut sqe, who) = raw_host::connect_command(0, 0xFFFF, &nqn_of(VOLUME));
            // KATO is in dword 12: two seconds.
            sqe.cdw12 = 2000.into();
            let reply = admin.command(sqe, &who).await.expect("answered");
            assert!(reply.status().is_success());
            if is_enabled {
                admin.command(raw_host::enable_command(), &[]).await.expect("enabled");
            }
            let begun: Instant = siege.world.now();
            admin.wait_for_close().await;
            let lived = siege.world.now().since(begun);
            assert!(
                (lives_secs..lives_secs + 2).contains(&lived.as_secs()),
                "closed after {lived:?}"
            );
        }
        siege.sleep(Duration::from_secs(1)).await;
        assert_eq!(siege.strangers(), 0);
        siege.assert_unharmed().await;
    });
}
