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
