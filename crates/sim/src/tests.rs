//! The simulated world keeps the promises of the traits, and of being a function of its seed.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use io_traits::{
    Buffer, Clock, Device, Listener, Network, NetworkError, SendBatch, Spawn, Stream, StreamError,
};
use units::{BLOCK_SIZE, Duration, Instant, Pba};

use super::*;

fn address() -> SocketAddr {
    "10.0.0.1:4420".parse().expect("an address")
}

fn filled(byte: u8) -> io_traits::BufferSlice {
    let mut buffer = Buffer::new(1);
    buffer.as_mut_bytes().fill(byte);
    buffer.into_slice()
}

#[test]
fn time_jumps_to_the_next_event_and_wakes_in_order() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let order = Rc::new(RefCell::new(Vec::new()));
    for seconds in [3, 1, 2] {
        let (w, order) = (world.clone(), order.clone());
        world.spawn(async move {
            w.sleep_until(Instant(seconds * 1_000_000_000)).await;
            order.borrow_mut().push((seconds, w.now().0));
        });
    }
    simulation.run_for(Duration::from_secs(5));
    let second = 1_000_000_000;
    assert_eq!(*order.borrow(), [(1, second), (2, 2 * second), (3, 3 * second)]);
}

#[test]
fn a_world_in_which_nothing_can_happen_says_so() {
    let simulation = Simulation::new(1);
    let stalled = simulation.run(std::future::pending::<()>()).expect_err("nothing ends this");
    assert_eq!(stalled.tasks, 1);
}

/// A task that is ready again and again while no time passes ends the run soon, with the time at which it spins.
#[test]
#[should_panic(expected = "tasks spin at")]
fn a_world_in_which_tasks_spin_says_so() {
    let simulation = Simulation::new(1);
    let spinning = std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        std::task::Poll::<()>::Pending
    });
    let _ = simulation.run(spinning);
}

/// Sends numbered bytes both ways and returns the trace of when which chunk came.
fn trace_of_an_echo(seed: u64) -> Vec<(u64, usize)> {
    let simulation = Simulation::new(seed);
    let world = simulation.world();
    let listener = world.listen(address()).expect("a free address");
    world.spawn(async move {
        let stream = listener.accept().await.expect("a peer");
        let mut batch = SendBatch::new();
        while let Ok(chunk) = stream.recv().await {
            batch.push_bytes(&chunk);
            batch = stream.send(batch).await.expect("the peer receives");
        }
    });
    let w = world.clone();
    simulation
        .run(async move {
            let stream = w.connect(address()).await.expect("someone listens");
            let sent: Vec<u8> = (0..200_000u32).map(|n| (n / 7) as u8).collect();
            let mut batch = SendBatch::new();
            batch.push_bytes(&sent);
            stream.send(batch).await.expect("the peer receives");
            let (mut trace, mut received) = (Vec::new(), Vec::new());
            while received.len() < sent.len() {
                let chunk = stream.recv().await.expect("an echo");
                trace.push((w.now().0, chunk.len()));
                received.extend_from_slice(&chunk);
            }
            assert!(received == sent, "bytes arrive whole and in order");
            stream.shutdown();
            assert_eq!(stream.recv().await.err(), Some(StreamError::Reset));
            trace
        })
        .expect("the echo ends")
}

#[test]
fn equal_seeds_give_equal_runs_and_others_differ() {
    assert_eq!(trace_of_an_echo(7), trace_of_an_echo(7));
    assert_ne!(trace_of_an_echo(7), trace_of_an_echo(8));
}

/// Method: the peer ends with and without bytes that it has not received.
#[test]
fn an_end_with_unread_bytes_is_a_reset() {
    for unread in [false, true] {
        let simulation = Simulation::new(9);
        let world = simulation.world();
        let listener = world.listen(address()).expect("a free address");
        world.spawn(async move {
            let peer = listener.accept().await.expect("a peer");
            if !unread {
                peer.recv().await.expect("what was sent");
            }
            peer.shutdown();
        });
        let w = world.clone();
        let test = async move {
            let stream = w.connect(address()).await.expect("someone listens");
            assert_eq!(stream.end_by_peer(), None);
            let mut batch = SendBatch::new();
            batch.push_bytes(&[1]);
            stream.send(batch).await.expect("the peer is there");
            let end = stream.recv().await.expect_err("nothing was sent");
            assert_eq!(end, if unread { StreamError::Reset } else { StreamError::Closed });
            assert_eq!(stream.end_by_peer(), Some(end));
        };
        simulation.run(test).unwrap_or_else(|stalled| panic!("{stalled:?}"));
    }
}

#[test]
fn addresses_in_use_and_addresses_without_listener_are_refused() {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let first = world.listen(address()).expect("a free address");
    assert!(matches!(world.listen(address()), Err(NetworkError::AddressInUse { .. })));
    drop(first);
    let w = world.clone();
    let refused = simulation.run(async move { w.connect(address()).await.err() });
    assert_eq!(refused, Ok(Some(NetworkError::Refused { address: address() })));
}

#[test]
fn a_flushed_write_survives_and_an_unflushed_one_only_by_chance() {
    let mut lost = 0;
    for seed in 0..20 {
        let simulation = Simulation::new(seed);
        let device = SimDevice::new(&simulation.world(), 8);
        let d = device.clone();
        simulation
            .run(async move {
                d.write(Pba(1), filled(1)).await.expect("a sound disk");
                d.flush().await.expect("a sound disk");
                d.write(Pba(2), filled(2)).await.expect("a sound disk");
            })
            .expect("ends");
        let next_boot = Simulation::new(seed);
        let disk = device.after_crash(&next_boot.world());
        let (one, two) = next_boot
            .run(async move {
                let one = disk.read(Pba(1), Buffer::new(1)).await.expect("a sound disk");
                let two = disk.read(Pba(2), Buffer::new(1)).await.expect("a sound disk");
                (one.as_bytes().to_vec(), two.as_bytes().to_vec())
            })
            .expect("ends");
        assert!(one.iter().all(|byte| *byte == 1), "seed {seed}");
        for sector in two.chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is never torn");
            lost += u32::from(sector[0] == 0);
        }
    }
    assert!((40..120).contains(&lost), "about half of 160 sectors are lost, not {lost}");
}

#[test]
fn a_crashed_disk_never_answers() {
    let simulation = Simulation::new(3);
    let device = SimDevice::new(&simulation.world(), 8);
    device.crash_at_request(1);
    let d = device.clone();
    let stalled = simulation.run(async move {
        d.write(Pba(1), filled(1)).await.expect("before the crash");
        d.flush().await
    });
    assert!(stalled.is_err());
    assert!(device.has_crashed());
}

#[test]
fn bits_rot_and_blocks_become_unreadable_where_told() {
    let simulation = Simulation::new(3);
    let device = SimDevice::new(&simulation.world(), 8);
    let d = device.clone();
    simulation
        .run(async move {
            d.write(Pba(1), filled(0)).await.expect("a sound disk");
            d.flip_bit(Pba(1), 9);
            let block = d.read(Pba(1), Buffer::new(1)).await.expect("readable");
            assert_eq!(block.as_bytes()[..2], [0, 2]);
            d.make_unreadable(Pba(1));
            assert!(d.read(Pba(1), Buffer::new(1)).await.is_err());
            assert!(d.read(Pba(7), Buffer::new(2)).await.is_err(), "beyond the end");
            assert_eq!(
                d.read(Pba(7), Buffer::new(1)).await.expect("readable").len_bytes(),
                BLOCK_SIZE
            );
        })
        .expect("ends");
}

/// Method: of four blocks each fails in another way, before and behind a power cut; then they are mended.
#[test]
fn broken_blocks_fail_for_good_and_keep_what_they_took() {
    use units::PbaRange;
    let simulation = Simulation::new(3);
    let device = SimDevice::new(&simulation.world(), 8);
    let d = device.clone();
    let defects = [(1, Defect::Reads), (2, Defect::Writes), (3, Defect::Both)];
    simulation
        .run(async move {
            for block in 0..4 {
                d.write(Pba(block), filled(1)).await.expect("a sound disk");
            }
            for (block, defect) in defects {
                d.break_blocks(PbaRange::new(Pba(block), 1), defect);
            }
            for _ in 0..3 {
                let mut written = Vec::new();
                for block in 0..4 {
                    written.push(d.write(Pba(block), filled(2)).await.is_ok());
                }
                assert_eq!(written, [true, true, false, false]);
            }
            assert!(d.write(Pba(0), data(4)).await.is_err(), "one block fails the whole request");
            d.flush().await.expect("it flushes what it has");
        })
        .expect("ends");
    let next_boot = Simulation::new(4);
    let disk = device.after_crash_with(&next_boot.world(), Survival::Nothing);
    next_boot
        .run(async move {
            let mut seen = Vec::new();
            for block in 1..4 {
                seen.push(
                    disk.read(Pba(block), Buffer::new(1)).await.ok().map(|b| b.as_bytes()[0]),
                );
            }
            assert_eq!(seen, [None, Some(1), None]);
            disk.mend_blocks();
            assert_ne!(disk.peek(Pba(1))[0], 1);
            assert_eq!((disk.peek(Pba(2))[0], disk.peek(Pba(3))[0]), (1, 1));
            disk.write(Pba(3), filled(3)).await.expect("mended");
        })
        .expect("ends");
}

/// Blocks of nines.
fn data(blocks: usize) -> io_traits::BufferSlice {
    let mut buffer = Buffer::new(blocks);
    buffer.as_mut_bytes().fill(9);
    buffer.into_slice()
}

#[test]
fn a_discard_that_fails_is_done_up_to_some_block() {
    use units::PbaRange;
    let mut done = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let simulation = Simulation::new(seed);
        let device = SimDevice::new(&simulation.world(), 8).with_volatile_cache(false);
        device.set_faults(DeviceFaults { discard_error_one_in: 1, ..DeviceFaults::default() });
        let d = device.clone();
        simulation
            .run(async move {
                d.write(Pba(2), data(4)).await.expect("a sound disk");
                d.discard(PbaRange::new(Pba(2), 4)).await.expect_err("it fails");
            })
            .expect("ends");
        let spoilt: Vec<bool> = (2..6).map(|block| device.peek(Pba(block))[0] != 9).collect();
        assert!(spoilt.is_sorted_by(|a, b| a >= b), "{spoilt:?}");
        done.insert(spoilt.iter().filter(|spoilt| **spoilt).count());
    }
    assert_eq!(done.len(), 5, "nothing, all, and each part");
}

/// Method: have each read go astray that may, on a disk of which each block is full of its number.
#[test]
fn a_read_that_went_astray_is_sound_when_it_is_made_again() {
    let simulation = Simulation::new(5);
    let device = SimDevice::new(&simulation.world(), 200);
    let d = device.clone();
    let wrong = simulation.run(async move {
        for block in 0..200 {
            d.write(Pba(block), filled(block as u8)).await.expect("a sound disk");
        }
        d.set_faults(DeviceFaults { misdirected_read_one_in: 1, ..DeviceFaults::default() });
        let mut wrong = 0;
        for block in 0..200 {
            for attempt in 0..10 {
                let read = d.read(Pba(block), Buffer::new(1)).await.expect("readable");
                let is_right = read.as_bytes() == [block as u8; BLOCK_SIZE];
                assert!(is_right || attempt == 0, "block {block} attempt {attempt}");
                wrong += u32::from(!is_right);
            }
        }
        wrong
    });
    assert!(wrong.expect("ends") > 150);
    let told = device.take_damage();
    assert!(told.iter().all(|damage| damage.kind == DamageKind::MisdirectedRead));
    assert_eq!(told.len(), 200);
}

#[test]
fn reads_that_are_to_fail_fail_so_often() {
    let simulation = Simulation::new(6);
    let device = SimDevice::new(&simulation.world(), 8);
    device.fail_reads_of(units::PbaRange::new(Pba(2), 2), 3);
    let d = device.clone();
    let failed = simulation.run(async move {
        let mut failed = Vec::new();
        for block in [2, 1, 2, 2, 2, 3] {
            failed.push(d.read(Pba(block), Buffer::new(1)).await.is_err());
        }
        failed
    });
    assert_eq!(failed.expect("ends"), [true, false, true, true, false, true]);
}

/// The power goes right before the second slow write is done: what was written meanwhile is there, and that is not.
#[test]
fn the_power_goes_when_a_certain_write_is_about_to_be_done() {
    let simulation = Simulation::new(7);
    let world = simulation.world();
    let device = SimDevice::new(&world, 8);
    device.slow_down([Pba(1)], 1000);
    device.crash_after_write_of([Pba(1)], 1, u64::MAX);
    let slow = device.clone();
    world.spawn(async move {
        for byte in [1, 2] {
            let _ = slow.write(Pba(1), filled(byte)).await;
        }
    });
    let quick = device.clone();
    world.spawn(async move {
        for byte in 1..=u8::MAX {
            let _ = quick.write(Pba(2), filled(byte)).await;
        }
    });
    simulation.run_for(Duration::from_secs(5));
    assert!(device.has_crashed());
    assert_eq!(device.peek(Pba(1))[0], 1);
    assert!(device.peek(Pba(2))[0] > 2);
}
