//! The client in the simulated world, against a small target.

#[allow(dead_code)]
mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use client::{
    Backoff, Client, ConnectError, Disconnect, Error, Options, Reconnect, SENDS_MAX, discover,
};
use common::{address, all, filled, open, options, with_target};
use io_traits::{Buffer, Clock, Spawn};
use nvme_wire::{IoOpcode, Nqn, Status};
use units::{BLOCK_SIZE, Duration, Lba, LbaRange};

#[test]
fn every_command_does_what_it_says_with_and_without_digests() {
    for (header_digest, data_digest, success_flag) in
        [(false, false, true), (true, false, false), (false, true, true), (true, true, false)]
    {
        with_target(1, move |world, target| async move {
            target.success_flag.set(success_flag);
            let options = Options { header_digest, data_digest, ..options() };
            let volume = open(&world, &target, options).await;
            assert_eq!((volume.capacity(), volume.block_size()), (1 << 20, 4096));
            assert_eq!((volume.atomic_write_blocks(), volume.max_transfer_blocks()), (32, 32));
            for blocks in [1u32, 2, 3, 7, 32] {
                let mut data = Buffer::new(blocks as usize);
                for (byte, value) in data.as_mut_bytes().iter_mut().zip((0..=250u8).cycle()) {
                    *byte = value;
                }
                let data = data.into_slice();
                volume.write(Lba(100), data.clone()).await.expect("written");
                let back = volume.read(Lba(100), blocks).await.expect("read");
                assert!(back.as_bytes() == data.as_bytes(), "{blocks} blocks");
                assert_eq!(volume.compare(Lba(100), data).await, Ok(true));
            }
            assert_eq!(volume.compare(Lba(100), filled(1, 9)).await, Ok(false));
            volume.flush().await.expect("flushed");
            volume.verify(LbaRange::new(Lba(0), 65_536)).await.expect("verified");
            volume.write_zeroes(LbaRange::new(Lba(100), 2)).await.expect("zeroed");
            let range = LbaRange::new(Lba(104), 2);
            volume.deallocate(&[range, LbaRange::new(Lba(110), 1)]).await.expect("deallocated");
            let back = volume.read(Lba(100), 12).await.expect("read");
            let zero: Vec<usize> = (0..12)
                .filter(|block| back.as_bytes()[block * BLOCK_SIZE..][..BLOCK_SIZE] == [0; 4096])
                .collect();
            assert_eq!(zero, [0, 1, 4, 5, 10]);
        });
    }
}

/// Also one whose data does not fit into the capsule, and one that is sent again.
#[test]
fn what_is_written_through_forces_unit_access_and_nothing_else_does() {
    with_target(1, |world, target| async move {
        let volume = open(&world, &target, options()).await;
        volume.write(Lba(1), filled(1, 1)).await.expect("written");
        volume.write_through(Lba(2), filled(1, 2)).await.expect("written through");
        volume.write_through(Lba(3), filled(32, 3)).await.expect("written through");
        target.cut_after.set(Some(0));
        volume.write_through(Lba(40), filled(1, 4)).await.expect("written through, in the end");
        assert_eq!(volume.client().counters().reconnects, 1);
        volume.write(Lba(2), filled(1, 5)).await.expect("written");
        assert_eq!(*target.forced.borrow(), [2, 3, 40]);
        for (lba, byte) in [(1, 1), (2, 5), (3, 3), (34, 3), (40, 4)] {
            let back = volume.read(Lba(lba), 1).await.expect("read");
            assert!(back.as_bytes() == [byte; BLOCK_SIZE], "block {lba}");
        }
    });
}

#[test]
fn requests_beyond_the_depth_wait_in_line_and_leave_in_batches() {
    with_target(2, |world, target| async move {
        let options = Options { queues: 2, depth: 16, ..options() };
        let volume = open(&world, &target, options).await;
        assert_eq!(volume.client().queues(), 2);
        let before = volume.client().counters();
        let writes = (0..400u64).map(|lba| {
            let volume = volume.clone();
            async move {
                let byte = u8::try_from(lba % 251).expect("small");
                volume.write(Lba(lba), filled(1, byte)).await.expect("written");
                let back = volume.read(Lba(lba), 1).await.expect("read");
                assert_eq!(back.as_bytes(), [byte; BLOCK_SIZE]);
            }
        });
        all(&world, writes).await;
        let counters = volume.client().counters();
        assert_eq!(counters.completed - before.completed, 800);
        assert!(counters.sends - before.sends < 800, "{counters:?}");
        assert_eq!((counters.failed, counters.damaged, counters.reconnects), (0, 0, 0));
    });
}

#[test]
fn what_the_target_says_and_what_no_command_can_carry_are_told_apart() {
    with_target(3, |world, target| async move {
        let volume = open(&world, &target, options()).await;
        let beyond = volume.read(Lba(1 << 20), 1).await.expect_err("beyond the end");
        let Error::Target { command: "Read", status, .. } = beyond else { panic!("{beyond}") };
        assert_eq!(status, Status::LBA_OUT_OF_RANGE.with_dnr());
        let large = volume.read(Lba(0), 33).await.expect_err("beyond MDTS");
        assert_eq!(large, Error::TooLarge { blocks: 33, limit: 32 });
        let odd = volume.write(Lba(0), filled(1, 1).slice(0..100)).await.expect_err("odd");
        assert_eq!(odd, Error::NotWholeBlocks { len_bytes: 100, block_bytes: 4096 });
        assert!(volume.read(Lba(0), 0).await.is_err());
        let range = LbaRange::new(Lba(0), 65_537);
        assert!(matches!(volume.write_zeroes(range).await, Err(Error::TooLarge { .. })));
    });
}

/// A write that is too large is refused as a whole: no part of it is sent. A plain write is taken as far as one
/// command carries it; a larger limit of the target is of no use.
#[test]
fn a_transactional_write_is_whole_or_refused() {
    with_target(17, |world, target| async move {
        for (nawupf, limit) in [(7, 8), (31, 32), (999, 32)] {
            target.nawupf.set(nawupf);
            let volume = open(&world, &target, options()).await;
            assert_eq!(volume.atomic_write_blocks(), limit);
            let (limit, fits) = (u64::from(limit), filled(limit as usize, nawupf as u8));
            volume.write_tx(Lba(100), fits.clone()).await.expect("written");
            let before = target.count(IoOpcode::WRITE);
            for blocks in [limit + 1, 32 + 1] {
                let refused = volume.write_tx(Lba(100), filled(blocks as usize, 9)).await;
                assert_eq!(refused, Err(Error::NotAtomic { blocks, limit }));
            }
            assert_eq!(target.count(IoOpcode::WRITE), before);
            assert_eq!(volume.compare(Lba(100), fits).await, Ok(true));
            let odd = volume.write_tx(Lba(100), filled(1, 1).slice(0..100)).await;
            assert_eq!(odd, Err(Error::NotWholeBlocks { len_bytes: 100, block_bytes: 4096 }));
            volume.write(Lba(200), filled(32, 1)).await.expect("written");
        }
    });
}

#[test]
fn a_refused_connect_says_why() {
    with_target(4, |world, target| async move {
        let nqn: Nqn = "nqn.2014-08.com.example:unknown".parse().expect("valid");
        let error = Client::connect(world.clone(), address(), &nqn, options()).await;
        let error = error.err().expect("refused");
        assert!(error.to_string().contains("no such subsystem"), "{error}");
        let elsewhere = "10.0.0.2:4420".parse().expect("an address");
        let error = Client::connect(world.clone(), elsewhere, &target.nqn, options()).await;
        assert!(matches!(error.err(), Some(ConnectError::Network(_))));
        target.mute.set(true);
        let start = world.now();
        let error = Client::connect(world.clone(), address(), &target.nqn, options()).await;
        assert!(matches!(error.err(), Some(ConnectError::Timeout { .. })));
        assert_eq!(world.now() - start, options().connect_timeout);
    });
}

#[test]
fn damaged_and_interrupted_commands_are_repeated_a_few_times() {
    with_target(5, |world, target| async move {
        let volume = open(&world, &target, options()).await;
        volume.write(Lba(1), filled(2, 5)).await.expect("written");
        target.damage.set(2);
        let back = volume.read(Lba(1), 2).await.expect("the third attempt is whole");
        assert!(back.as_bytes().iter().all(|byte| *byte == 5));
        assert_eq!(volume.client().counters().damaged, 2);
        target.damage.set(100);
        assert_eq!(volume.read(Lba(1), 2).await.err(), Some(Error::Damaged { attempts: 4 }));
        target.damage.set(0);
        target.fail.set(Some((3, Status::TRANSIENT_TRANSPORT_ERROR)));
        volume.write(Lba(1), filled(1, 6)).await.expect("the fourth attempt succeeds");
        target.fail.set(Some((1, Status::WRITE_FAULT)));
        assert!(volume.write(Lba(1), filled(1, 7)).await.is_err(), "no transient error");
    });
}

/// The commands that connect are repeated like any other, at once.
#[test]
fn a_transient_error_while_connecting_costs_no_more_than_another_attempt() {
    with_target(13, |world, target| async move {
        let since = world.now();
        for count in 1..=3 {
            target.fail_admin.set(Some((count, Status::TRANSIENT_TRANSPORT_ERROR)));
            target.damage_admin.set(count);
            open(&world, &target, options()).await;
        }
        assert!(world.now() - since < Duration::from_secs(1));
        target.fail_admin.set(Some((100, Status::TRANSIENT_TRANSPORT_ERROR)));
        let error = Client::connect(world.clone(), address(), &target.nqn, options()).await;
        assert!(matches!(error.err(), Some(ConnectError::Refused { .. })), "after four attempts");
        assert!(world.now() - since < Duration::from_secs(1));
    });
}

/// Method: cut the connection at every one of the first commands, with many outstanding; each
/// must succeed exactly once for its caller, and the blocks must hold what was written last. More
/// seeds by `FARFLASH_TEST_SCALE`.
#[test]
fn a_lost_connection_is_made_again_and_nothing_is_forgotten() {
    let scale = std::env::var("FARFLASH_TEST_SCALE").ok().and_then(|text| text.parse().ok());
    for (seed, cut) in (0..scale.unwrap_or(1)).flat_map(|seed| (0..40).map(move |cut| (seed, cut)))
    {
        with_target(100 + seed * 40 + u64::from(cut), move |world, target| async move {
            let volume = open(&world, &target, Options { queues: 2, ..options() }).await;
            target.cut_after.set(Some(cut));
            let rounds = (0..20u64).map(|task| {
                let volume = volume.clone();
                async move {
                    for round in 0..3 {
                        let byte = u8::try_from(task * 3 + round).expect("small");
                        let data = filled(if round == 1 { 5 } else { 1 }, byte);
                        volume.write(Lba(task * 8), data).await.expect("written");
                        let back = volume.read(Lba(task * 8), 1).await.expect("read");
                        assert_eq!(back.as_bytes(), [byte; BLOCK_SIZE]);
                    }
                }
            });
            all(&world, rounds).await;
            let counters = volume.client().counters();
            assert_eq!(counters.reconnects, 1, "cut {cut}");
            assert!(target.accepted.get() == 6, "cut {cut}");
        });
    }
}

#[test]
fn a_target_that_falls_silent_is_left_and_asked_again() {
    with_target(6, |world, target| async move {
        let volume = open(&world, &target, options()).await;
        target.mute.set(true);
        let speaking = target.clone();
        let clock = world.clone();
        let later = world.now() + Duration::from_secs(31);
        world.spawn(async move {
            clock.sleep_until(later).await;
            speaking.mute.set(false);
        });
        volume.write(Lba(3), filled(1, 3)).await.expect("in the end");
        assert_eq!(volume.client().counters().reconnects, 1);
        assert!(target.count(IoOpcode::WRITE) >= 2, "it was sent again");
    });
}

/// A command without an answer costs the others a while, but not for ever, and so does one that ends
/// every connection: the attempts to connect come ever more slowly.
#[test]
fn a_request_that_ends_every_connection_fails_in_the_end_and_harms_the_others_no_more() {
    with_target(12, |world, target| async move {
        let volume = open(&world, &target, options()).await;
        volume.write(Lba(1), filled(1, 3)).await.expect("written");
        let (reading, clock, seen) = (volume.clone(), world.clone(), Rc::new(RefCell::new(0)));
        let reads = seen.clone();
        world.spawn(async move {
            while let Ok(back) = reading.read(Lba(1), 1).await {
                assert_eq!(back.as_bytes(), [3; BLOCK_SIZE]);
                *reads.borrow_mut() += 1;
                clock.sleep_until(clock.now() + Duration::from_millis(1)).await;
            }
        });
        target.deaf.set(Some(5));
        let since = world.now();
        let error = volume.read(Lba(5), 1).await.err();
        let sends = SENDS_MAX;
        let last = Disconnect::CommandTimeout;
        assert_eq!(error, Some(Error::Unanswered { sends, last }));
        let waited = world.now() - since;
        assert!(waited >= options().command_timeout.saturating_mul(6), "{waited:?}");
        assert!(waited < Duration::from_secs(200), "{waited:?}");
        assert_eq!(volume.client().counters().reconnects, 5);

        target.fatal.set(Some(6));
        let since = world.now();
        let error = volume.write(Lba(6), filled(1, 1)).await.err();
        assert!(matches!(error, Some(Error::Unanswered { sends: SENDS_MAX, .. })), "{error:?}");
        // Five delays, each at least half of 20, 40, 80, 160 and 320 ms.
        let waited = world.now() - since;
        assert!(waited >= Duration::from_millis(310), "{waited:?}");
        // Requests on the same connections go on, and so do those on the connections of the next one.
        let go_on = async || {
            let before = *seen.borrow();
            world.sleep_until(world.now() + Duration::from_secs(5)).await;
            assert!(*seen.borrow() > before, "the others go on");
        };
        go_on().await;
        let writes = (6..20u64).map(|lba| {
            let volume = volume.clone();
            async move {
                let outcome = volume.write(Lba(lba), filled(1, 1)).await;
                assert_eq!(outcome.is_ok(), lba != 6, "{lba}: {outcome:?}");
            }
        });
        all(&world, writes).await;
        go_on().await;
        volume.client().close().await;
    });
}

#[test]
fn without_a_target_requests_fail_when_the_time_is_over() {
    with_target(7, |world, target| async move {
        let give_up_after = Duration::from_secs(5);
        let backoff = Backoff { give_up_after, ..Backoff::default() };
        let options = Options { reconnect: Reconnect::Backoff(backoff), ..options() };
        let volume = open(&world, &target, options.clone()).await;
        target.down.set(true);
        target.cut();
        let start = world.now();
        // It goes out before the end of the connection is noticed.
        let error = volume.read(Lba(0), 1).await.err();
        assert!(matches!(error, Some(Error::Unanswered { sends: 1, .. })), "{error:?}");
        assert!(world.now() - start >= give_up_after);
        assert!(world.now() - start < Duration::from_secs(10));
        let later = volume.flush().await;
        assert_eq!(later, Err(Error::Disconnected(Disconnect::GaveUp)), "at once");
        let why = volume.client().last_connect_error().expect("it failed");
        assert!(matches!(why, ConnectError::Command(Error::Disconnected(_))), "{why}");
        let never = Options { reconnect: Reconnect::Never, ..options };
        target.down.set(false);
        let volume = open(&world, &target, never).await;
        target.cut();
        assert!(matches!(volume.flush().await, Err(Error::Disconnected(_))));
    });
}

/// Each new connection is made, and lost before a request goes out on it.
#[test]
fn connections_that_never_hold_are_given_up() {
    with_target(45, |world, target| async move {
        let give_up_after = Duration::from_secs(60);
        let backoff = Backoff { give_up_after, ..Backoff::default() };
        let options = Options { reconnect: Reconnect::Backoff(backoff), ..options() };
        let volume = open(&world, &target, options).await;
        target.repeats_connects.set(true);
        target.cut();
        let (reading, ended) = (volume.clone(), Rc::new(Cell::new(false)));
        let end = ended.clone();
        world.spawn(async move {
            assert!(reading.read(Lba(0), 1).await.is_err());
            end.set(true);
        });
        world.sleep_until(world.now() + give_up_after / 2).await;
        assert!(!ended.get(), "given up early");
        world.sleep_until(world.now() + give_up_after).await;
        assert!(ended.get(), "not given up");
        assert_eq!(volume.flush().await, Err(Error::Disconnected(Disconnect::GaveUp)), "at once");
        assert!(target.accepted.get() > 20, "{} connections", target.accepted.get());
    });
}

#[test]
fn a_resize_is_noticed() {
    with_target(8, |world, target| async move {
        let volume = open(&world, &target, options()).await;
        for blocks in [2 << 20, 1000] {
            let (resizing, clock) = (target.clone(), world.clone());
            world.spawn(async move {
                clock.sleep_until(clock.now() + Duration::from_secs(1)).await;
                resizing.resize(blocks);
            });
            assert_eq!(volume.resized().await, blocks);
            assert_eq!(volume.capacity(), blocks);
        }
    });
}

/// A caller that waits for a new size gets it, also if another task asked for it.
#[test]
fn a_resize_that_another_task_asked_for_is_noticed() {
    with_target(14, |world, target| async move {
        let volume = open(&world, &target, options()).await;
        let (client, resizing, clock) = (volume.client(), target.clone(), world.clone());
        world.spawn(async move {
            clock.sleep_until(clock.now() + Duration::from_secs(1)).await;
            resizing.size.set(1000);
            client.volume().await.expect("it is there");
        });
        assert_eq!(volume.resized().await, 1000);
    });
}

/// Method: each Asynchronous Event Request is answered at once, for ten seconds.
#[test]
fn a_flood_of_events_is_read_at_the_clients_pace() {
    with_target(16, |world, target| async move {
        target.restless.set(true);
        let volume = open(&world, &target, options()).await;
        world.sleep_until(world.now() + Duration::from_secs(10)).await;
        let asked = target.event_requests.get();
        assert!((50..=110).contains(&asked), "{asked} events");
        target.restless.set(false);
        target.resize(1000);
        assert_eq!(volume.resized().await, 1000);
    });
}

#[test]
fn a_dropped_request_gives_its_place_back_once_the_reply_came() {
    with_target(9, |world, target| async move {
        let volume = open(&world, &target, options()).await;
        for round in 0..50u64 {
            let mut pending = Vec::new();
            for lba in 0..12u64 {
                let volume = volume.clone();
                pending.push(Box::pin(async move { volume.read(Lba(lba), 2).await }));
            }
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            for request in &mut pending {
                assert!(request.as_mut().poll(&mut context).is_pending());
            }
            let pause = world.now() + Duration::from_micros(round * 17);
            world.sleep_until(pause).await;
            drop(pending);
        }
        let data = volume.read(Lba(0), 1).await.expect("there is room");
        assert_eq!(data.as_bytes(), [0; BLOCK_SIZE]);
        assert_eq!(volume.client().counters().reconnects, 0);
    });
}

#[test]
fn an_idle_client_keeps_itself_alive_and_a_dropped_one_leaves() {
    with_target(10, |world, target| async move {
        let volume = open(&world, &target, options()).await;
        world.sleep_until(world.now() + Duration::from_secs(80)).await;
        assert_eq!(target.keep_alives.get(), 10);
        volume.client().close().await;
        assert_eq!(volume.flush().await, Err(Error::Closed));
        let second = open(&world, &target, options()).await;
        let pending = second.clone();
        let seen = Rc::new(RefCell::new(None));
        let outcome = seen.clone();
        world.spawn(async move {
            *outcome.borrow_mut() = Some(pending.read(Lba(0), 1).await.is_ok());
        });
        drop(second);
        world.sleep_until(world.now() + Duration::from_secs(1)).await;
        assert_eq!(*seen.borrow(), Some(true), "a request keeps its volume open");
        let before = target.keep_alives.get();
        world.sleep_until(world.now() + Duration::from_secs(60)).await;
        assert_eq!(target.keep_alives.get(), before, "the connection is closed");
    });
}

/// Method: three times as many commands as the admin queue holds, each answered long after the target would have
/// ended a controller that says nothing.
#[test]
fn a_client_keeps_itself_alive_behind_a_full_admin_queue() {
    const SLOW: Duration = Duration::from_secs(25);
    with_target(15, |world, target| async move {
        let options = options();
        let interval = options.keep_alive / 2;
        let client = open(&world, &target, options).await.client();
        target.log_pause.set(SLOW);
        let since = world.now();
        let asked = (0..80).map(|_| {
            let client = client.clone();
            async move { assert!(client.smart_health().await.is_ok()) }
        });
        let (clock, silent) = (world.clone(), target.clone());
        world.spawn(async move {
            for beats in 1..=9 {
                clock.sleep_until(since + interval * beats + Duration::from_secs(1)).await;
                assert_eq!(silent.keep_alives.get(), beats, "after {:?}", clock.now() - since);
            }
        });
        all(&world, asked).await;
        assert!(world.now() - since >= SLOW * 3, "the queue was full all the time");
        assert_eq!(client.counters().reconnects, 0);
    });
}

#[test]
fn discovery_lists_what_the_target_offers() {
    with_target(11, |world, target| async move {
        let found = discover(world.clone(), address(), options()).await.expect("a log");
        assert_eq!(found.len(), 5);
        assert!(found.iter().all(|entry| entry.nqn == target.nqn && entry.is_nvm));
        assert_eq!(found[0].address, address());
    });
}

/// Method: a log of 16384 records, or of one that says it changed whenever it is looked at, each piece of it
/// just in time for a command. Neither is refused: a log that is read in time may be long, and change.
#[test]
fn a_discovery_ends_in_time_however_slow_long_and_restless_the_log_is() {
    let cases = [(12, u64::MAX, 0), (13, 1, 1), (14, u64::MAX, 1)];
    for (seed, records, step) in cases {
        with_target(seed, move |world, target| async move {
            let options = options();
            target.records.set(records);
            target.generation.set((1, step));
            let found = discover(world.clone(), address(), options.clone()).await.expect("a log");
            assert_eq!(found.len() as u64, records.min(5));

            target.log_pause.set(options.command_timeout - Duration::from_secs(1));
            let (since, limit) = (world.now(), options.discovery_timeout);
            let found = discover(world.clone(), address(), options).await;
            let late = ConnectError::DiscoveryTimeout { address: address(), limit };
            assert_eq!(found, Err(late));
            assert_eq!(world.now() - since, limit);
            world.sleep_until(world.now() + Duration::from_secs(1)).await;
            assert_eq!(target.open.get(), 0, "its connection is ended");
        });
    }
}
