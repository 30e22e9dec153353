//! The answers that hosts get, through every layer, in a simulated world.

use client::{Options, discover};
use dataplane::Loss;
use device::layer::Verb;
use io_traits::{Buffer, Clock, Network, SendBatch, Spawn, Stream};
use nvme_frontend::{NvmeOptions, nqn_of};
use nvme_wire::Nqn;
use sim::Simulation;
use units::{BLOCK_SIZE, Duration, Lba, LbaRange};

use crate::support::{
    VOLUME, connect, create, data, delayed, host, portal, serve_new, serve_with, simulate,
};

const BLOCKS: u64 = 4096;

#[test]
fn what_was_written_is_read_with_digests_in_every_combination() {
    for (seed, (header_digest, data_digest)) in
        [(false, false), (false, true), (true, false), (true, true)].into_iter().enumerate()
    {
        simulate(seed as u64, |world| async move {
            let _server = serve_new(world.clone(), BLOCKS).await;
            let options = Options { header_digest, data_digest, queues: 2, ..host() };
            let volume = connect(world, options).await;
            assert_eq!(volume.capacity(), BLOCKS);
            // In one capsule, in one H2CData, and as much as a command may carry.
            for blocks in [1, 3, 32, volume.max_transfer_blocks()] {
                let lba = Lba(u64::from(blocks));
                let written = data(u64::from(blocks), blocks as usize);
                volume.write(lba, written.clone()).await.expect("written");
                let read = volume.read(lba, blocks).await.expect("read");
                assert!(read.as_bytes() == written.as_bytes(), "{blocks} blocks");
                assert!(volume.compare(lba, written).await.expect("compared"));
            }
        });
    }
}

/// Nothing keeps a core whose tasks are gone, though its connections refer to it: a simulator that starts
/// thousands of them would run out of memory.
#[test]
fn a_core_goes_with_its_tasks() {
    let simulation = Simulation::new(5);
    let world = simulation.world();
    let device = simulation.run(async move {
        let (_core, device) = serve_new(world.clone(), BLOCKS).await;
        let volume = connect(world.clone(), host()).await;
        volume.write(Lba(0), data(0, 1)).await.expect("written");
        device
    });
    let device = device.expect("it ends");
    assert!(device.handles() > 1, "the core serves it");
    drop(simulation);
    assert_eq!(device.handles(), 1);
}

/// Data and record are written at the same time, and one flush behind them is for all that were.
#[test]
fn a_write_takes_one_round_trip_and_shares_its_flush() {
    const AT_ONCE: u64 = 32;
    const WRITE: Duration = Duration::from_millis(400);
    const FLUSH: Duration = Duration::from_millis(200);
    simulate(21, |world| async move {
        let device = delayed(&world, WRITE, FLUSH).await;
        let flushes = || device.begun(Verb::Flush);
        let core = serve_with(world.clone(), device.clone(), NvmeOptions::new(portal())).await;
        create(&core, BLOCKS).await;
        let volume = connect(world.clone(), host()).await;
        volume.write(Lba(0), data(0, 1)).await.expect("written");

        let (begin, before) = (world.now(), flushes());
        volume.write(Lba(1), data(1, 1)).await.expect("written");
        let alone = world.now().since(begin);
        assert!(alone >= WRITE + FLUSH && alone < WRITE.mul_f64(1.5) + FLUSH, "{alone:?}");
        assert_eq!(flushes() - before, 1);

        let (begin, before) = (world.now(), flushes());
        let writes = (0..AT_ONCE).map(|number| {
            let volume = volume.clone();
            let (sender, written) = local_sync::oneshot();
            world.spawn(async move {
                sender.send(volume.write(Lba(2 + number), data(number, 1)).await);
            });
            written
        });
        for written in writes.collect::<Vec<_>>() {
            written.await.expect("it ends").expect("written");
        }
        let together = world.now().since(begin);
        assert!(together < alone * 3, "{together:?} for {AT_ONCE}, {alone:?} for one");
        let shared = flushes() - before;
        assert!(shared <= AT_ONCE / 4, "{shared} flushes for {AT_ONCE} writes");
    });
}

#[test]
fn unwritten_zeroed_and_deallocated_blocks_read_as_zeroes() {
    simulate(1, |world| async move {
        let (core, _) = serve_new(world.clone(), BLOCKS).await;
        let volume = connect(world, host()).await;
        let zeroes = Buffer::zeroed(4);
        let is_zero = |read: Buffer| read.as_bytes() == zeroes.as_bytes();
        assert!(is_zero(volume.read(Lba(BLOCKS - 4), 4).await.expect("read")));
        volume.write(Lba(8), data(1, 16)).await.expect("written");
        assert_eq!(core.volumes()[0].mapped_blocks, 16);
        volume.write_zeroes(LbaRange::new(Lba(8), 4)).await.expect("zeroed");
        assert!(is_zero(volume.read(Lba(8), 4).await.expect("read")));
        let ranges = [LbaRange::new(Lba(12), 4), LbaRange::new(Lba(20), 4)];
        volume.deallocate(&ranges).await.expect("deallocated");
        assert!(is_zero(volume.read(Lba(20), 4).await.expect("read")));
        let kept = volume.read(Lba(16), 4).await.expect("read");
        assert!(kept.as_bytes() == data(1, 16).blocks(8, 4).as_bytes());
        assert_eq!(core.volumes()[0].mapped_blocks, 4);
        assert!(!volume.compare(Lba(16), data(2, 4)).await.expect("compared"));
        volume.verify(LbaRange::new(Lba(0), 64)).await.expect("verified");
        volume.flush().await.expect("flushed");
    });
}

#[test]
fn requests_beyond_the_end_and_too_long_ones_are_refused_by_name() {
    simulate(1, |world| async move {
        let _server = serve_new(world.clone(), BLOCKS).await;
        let volume = connect(world, host()).await;
        let error = volume.write(Lba(BLOCKS - 1), data(1, 2)).await.expect_err("beyond");
        assert!(error.to_string().to_lowercase().contains("lba out of range"), "{error}");
        let longest = volume.max_transfer_blocks();
        assert_eq!(longest, 256, "1 MiB");
        let error = volume.read(Lba(0), longest + 1).await.expect_err("too long");
        assert!(error.to_string().contains("256"), "names the limit: {error}");
    });
}

/// A command zeroes as many blocks as it can name, as the controller advertises, and no other ones.
#[test]
fn one_command_zeroes_as_much_as_it_can_name() {
    const MOST: u64 = 1 << 16;
    simulate(1, |world| async move {
        let (core, _) = serve_new(world.clone(), 2 * MOST).await;
        let volume = connect(world, host()).await;
        for lba in [Lba(100), Lba(MOST), Lba(100 + MOST - 2)] {
            volume.write(lba, data(7, 4)).await.expect("written");
        }
        volume.write_zeroes(LbaRange::new(Lba(100), MOST)).await.expect("zeroed");
        assert_eq!(core.volumes()[0].mapped_blocks, 2);
        let read = volume.read(Lba(100 + MOST - 2), 4).await.expect("read");
        let zeroes = Buffer::zeroed(2);
        assert!(read.as_bytes()[..2 * BLOCK_SIZE] == *zeroes.as_bytes());
        assert!(read.as_bytes()[2 * BLOCK_SIZE..] == *data(7, 4).blocks(2, 2).as_bytes());
    });
}

/// Method: of 2^63 bytes, which no device has, the first and the last MiB are used, and the end is cut off and comes back.
#[test]
fn a_volume_may_be_as_large_as_can_be_said() {
    const LARGEST: u64 = 1 << 51;
    simulate(1, |world| async move {
        let (core, _) = serve_new(world.clone(), LARGEST).await;
        let volume = connect(world, host()).await;
        assert_eq!(volume.capacity(), LARGEST);
        for lba in [Lba(0), Lba(LARGEST - 256)] {
            let written = data(lba.0, 256);
            volume.write(lba, written.clone()).await.expect("written");
            let read = volume.read(lba, 256).await.expect("read");
            assert!(read.as_bytes() == written.as_bytes(), "{lba}");
        }
        assert_eq!(core.volumes()[0].mapped_blocks, 512);
        let last = volume.read(Lba(LARGEST - 1), 1).await.expect("read");
        assert!(last.as_bytes() == data(LARGEST - 256, 256).blocks(255, 1).as_bytes());
        let error = volume.read(Lba(LARGEST - 1), 2).await.expect_err("beyond");
        assert!(error.to_string().to_lowercase().contains("lba out of range"), "{error}");
        core.resize_volume(VOLUME, 256, Loss::Accepted).await.expect("resized");
        core.resize_volume(VOLUME, LARGEST, Loss::Accepted).await.expect("resized");
        assert_eq!(core.volumes()[0].mapped_blocks, 256);
        let cut_off = volume.read(Lba(LARGEST - 1), 1).await.expect("read");
        assert!(cut_off.as_bytes() == Buffer::zeroed(1).as_bytes());
    });
}

#[test]
fn a_resize_is_seen_without_a_new_connection() {
    simulate(1, |world| async move {
        let (core, _) = serve_new(world.clone(), BLOCKS).await;
        let volume = connect(world, host()).await;
        volume.write(Lba(100), data(1, 1)).await.expect("written");
        for blocks in [2 * BLOCKS, 50] {
            let seen = volume.resized();
            core.resize_volume(VOLUME, blocks, Loss::Accepted).await.expect("resized");
            assert_eq!(seen.await, blocks);
        }
        volume.read(Lba(100), 1).await.expect_err("cut off");
        core.resize_volume(VOLUME, BLOCKS, Loss::Accepted).await.expect("resized");
        volume.resized().await;
        let read = volume.read(Lba(100), 1).await.expect("read");
        assert!(read.as_bytes() == Buffer::zeroed(1).as_bytes(), "cut off is gone");
    });
}

#[test]
fn discovery_lists_what_there_is() {
    simulate(1, |world| async move {
        let _server = serve_new(world.clone(), BLOCKS).await;
        let found = discover(world, portal(), host()).await.expect("a discovery service");
        let volumes: Vec<Nqn> = found.iter().filter(|d| d.is_nvm).map(|d| d.nqn).collect();
        assert_eq!(volumes, [nqn_of(VOLUME)]);
    });
}

#[test]
fn a_deleted_volume_is_gone_for_those_who_had_it_open() {
    simulate(1, |world| async move {
        let (core, _) = serve_new(world.clone(), BLOCKS).await;
        let options = Options { reconnect: client::Reconnect::Never, ..host() };
        let volume = connect(world.clone(), options).await;
        volume.write(Lba(0), data(1, 64)).await.expect("written");
        core.delete_volume(VOLUME, Loss::Accepted).await.expect("deleted");
        volume.read(Lba(0), 1).await.expect_err("gone");
        world.sleep_until(world.now() + Duration::from_secs(1)).await;
        assert_eq!(core.stats().connections, 0, "its connections were closed");
    });
}

/// Method: strangers send noise, cut-off greetings and nothing at all while a host works. The host
/// sees no error, and the strangers' connections are gone when their time is up.
#[test]
fn strangers_harm_no_host_and_do_not_stay() {
    for seed in 0..30 {
        simulate(seed, |world| async move {
            let (core, _) = serve_new(world.clone(), BLOCKS).await;
            let volume = connect(world.clone(), host()).await;
            let good = core.stats().connections;
            let mut strangers = Vec::new();
            for stranger in 0..20u64 {
                let stream = world.connect(portal()).await.expect("accepted");
                let noise: Vec<u8> = match stranger % 4 {
                    0 => Vec::new(),
                    1 => vec![0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0],
                    2 => world.draw(|rng| (0..300).map(|_| rng.next_u64() as u8).collect()),
                    _ => vec![4, 0, 72, 0, 255, 255, 255, 255, 1, 2, 3, 4],
                };
                let mut batch = SendBatch::new();
                batch.push_bytes(&noise);
                if !noise.is_empty() {
                    let _ = stream.send(batch).await;
                }
                strangers.push(stream);
            }
            for stamp in 0..50 {
                volume.write(Lba(stamp), data(stamp, 2)).await.expect("unharmed");
            }
            world.sleep_until(world.now() + Duration::from_secs(60)).await;
            let read = volume.read(Lba(49), 2).await.expect("unharmed");
            assert!(read.as_bytes() == data(49, 2).as_bytes());
            assert_eq!(core.stats().connections, good, "seed {seed}");
        });
    }
}

#[test]
fn shutdown_lets_requests_finish_and_the_next_start_finds_everything() {
    simulate(3, |world| async move {
        let (core, device) = serve_new(world.clone(), BLOCKS).await;
        let options = Options { reconnect: client::Reconnect::Never, ..host() };
        let volume = connect(world.clone(), options).await;
        volume.write(Lba(7), data(7, 9)).await.expect("written");
        core.shutdown().await.expect("a checkpoint");
        let _core = crate::support::serve(world.clone(), device).await;
        let volume = connect(world, host()).await;
        let read = volume.read(Lba(7), 9).await.expect("read");
        assert!(read.as_bytes() == data(7, 9).as_bytes());
    });
}
