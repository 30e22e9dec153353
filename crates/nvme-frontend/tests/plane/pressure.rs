//! More than a core has memory for: from hosts that mean well, and from those that do not (PLANE-2).

use client::Options;
use dataplane::CoreOptions;
use io_traits::{Clock, Spawn, Stream};
use nvme_frontend::{NvmeOptions, nqn_of};
use nvme_wire::pdu::{Digests, H2cData};
use nvme_wire::{IoOpcode, SglDescriptor, Sqe};
use sim::SimWorld;
use units::{Duration, Lba};
use zerocopy::IntoBytes;

use crate::support::raw_host::{RawHost, capsule, read_command, write_command};
use crate::support::{
    SimCore, VOLUME, connect, data, host, portal, serve_new, serve_slowly, simulate, sleep,
};

const BLOCKS: u64 = 16_384;
const MIB_BLOCKS: u32 = 256;

fn options(memory_bytes: u64) -> NvmeOptions {
    NvmeOptions {
        core: CoreOptions { memory_bytes, ..CoreOptions::default() },
        ..NvmeOptions::new(portal())
    }
}

/// Everything is given back: connections, and the memory that they used.
async fn assert_all_is_given_back(world: &SimWorld, core: &SimCore) {
    sleep(world, Duration::from_secs(10)).await;
    let stats = core.stats();
    assert_eq!((stats.connections, stats.memory_used_bytes), (0, 0));
}

/// Writes as much as fits below `depth`, `writes` times, and returns how often it reconnected.
async fn write_deeply(
    world: &SimWorld,
    uuid: u8,
    (depth, writes, blocks): (u16, u64, usize),
) -> u64 {
    let options = Options { depth, queues: 1, ..Options::for_host([uuid; 16]) };
    let volume = connect(world.clone(), options).await;
    let (sender, mut done) = local_sync::oneshot();
    let left = std::rc::Rc::new(std::cell::Cell::new((writes, Some(sender))));
    for n in 0..writes {
        let (volume, left) = (volume.clone(), left.clone());
        world.spawn(async move {
            let lba = Lba((u64::from(uuid) * 97 + n * blocks as u64) % (BLOCKS - blocks as u64));
            volume.write(lba, data(n, blocks)).await.expect("written");
            let (count, sender) = left.take();
            if count == 1 {
                sender.expect("the last one").send(());
            } else {
                left.set((count - 1, sender));
            }
        });
    }
    (&mut done).await.expect("all are done");
    let reconnects = volume.client().counters().reconnects;
    volume.client().close().await;
    reconnects
}

/// One host writes much more than its window, in the largest transfers, to a slow disk.
#[test]
fn writes_far_beyond_the_window_all_succeed() {
    for memory_mib in [32, 256] {
        simulate(1, |world| async move {
            let core = serve_slowly(&world, BLOCKS, options(memory_mib << 20)).await;
            let reconnects = write_deeply(&world, 1, (33, 128, 256)).await;
            assert_eq!(reconnects, 0);
            assert_all_is_given_back(&world, &core).await;
        });
    }
}

/// Sixteen hosts, 64 writes of 256 KiB each at a time, 32 MiB of memory, a slow disk: no host is cut
/// off for being slow, since none is.
#[test]
fn healthy_hosts_are_not_cut_off_when_memory_is_scarce() {
    simulate(2, |world| async move {
        let core = serve_slowly(&world, BLOCKS, options(32 << 20)).await;
        let mut hosts = Vec::new();
        for uuid in 1..=16 {
            let (sender, done) = local_sync::oneshot();
            let w = world.clone();
            world.spawn(async move {
                sender.send(write_deeply(&w, uuid, (65, 256, 64)).await);
            });
            hosts.push(done);
        }
        let mut peak = 0;
        for done in hosts {
            let reconnects = done.await;
            peak = peak.max(core.stats().memory_used_bytes);
            assert_eq!(reconnects, Some(0));
        }
        assert!(peak <= 32 << 20);
        assert_all_is_given_back(&world, &core).await;
    });
}

/// A host that goes in the middle of writes which wait for memory leaves nothing behind.
#[test]
fn a_host_that_goes_with_writes_in_line_leaves_nothing_behind() {
    for seed in 0..20 {
        simulate(seed, |world| async move {
            let core = serve_slowly(&world, BLOCKS, options(32 << 20)).await;
            let (mut io, admin) =
                RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
            for cid in 0..31 {
                let command = write_command(u64::from(cid) * 256, MIB_BLOCKS);
                io.send(&capsule(cid, command, &[])).await.expect("taken in");
            }
            sleep(&world, Duration::from_millis(20)).await;
            assert!(core.stats().memory_used_bytes > 0, "some were asked for");
            io.stream.shutdown();
            admin.stream.shutdown();
            assert_all_is_given_back(&world, &core).await;
        });
    }
}

/// As above, with reads whose replies wait to be sent.
#[test]
fn a_host_that_goes_with_replies_in_line_leaves_nothing_behind() {
    simulate(3, |world| async move {
        let core = serve_slowly(&world, BLOCKS, options(32 << 20)).await;
        write_deeply(&world, 1, (8, 32, 256)).await;
        let (mut io, admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
        for cid in 0..31 {
            let command = read_command(0, MIB_BLOCKS);
            io.send(&capsule(cid, command, &[])).await.expect("taken in");
        }
        sleep(&world, Duration::from_millis(200)).await;
        assert!(core.stats().memory_used_bytes > 1 << 20, "replies wait");
        io.stream.shutdown();
        admin.stream.shutdown();
        assert_all_is_given_back(&world, &core).await;
    });
}

/// A host that reads slowly, but reads, is served to the end, however deep its queue.
#[test]
fn a_slow_reader_is_not_cut_off() {
    simulate(8, |world| async move {
        let core = serve_slowly(&world, BLOCKS, options(256 << 20)).await;
        write_deeply(&world, 1, (8, 32, 256)).await;
        let (mut io, admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
        let ask = |cid: u16| capsule(cid, read_command(0, MIB_BLOCKS), &[]);
        let all: Vec<u8> = (0..31).flat_map(ask).collect();
        io.send(&all).await.expect("taken in");
        let started = world.now();
        let mut left = 31 * ((1 << 20) + 24 + 24);
        while left > 0 {
            sleep(&world, Duration::from_millis(100)).await;
            let part = left.min(32 << 10);
            io.receive(part).await.expect("served");
            left -= part;
        }
        assert!(world.now().since(started) > Duration::from_secs(90), "slow indeed");
        io.stream.shutdown();
        admin.stream.shutdown();
        assert_all_is_given_back(&world, &core).await;
    });
}

/// Replies without data are bounded, too: a host that asks and does not read is not heard any more,
/// and cut off in the end, even while it owes data that it sends drop by drop.
#[test]
fn a_deaf_host_cannot_pile_up_completions() {
    for owes_data in [false, true] {
        simulate(4, |world| async move {
            let (core, _) = serve_new(world.clone(), BLOCKS).await;
            let (mut io, admin) =
                RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
            let mut ttag = 0;
            if owes_data {
                io.send(&capsule(1, write_command(0, MIB_BLOCKS), &[])).await.expect("taken in");
                let r2t = io.receive(24).await.expect("an R2T");
                ttag = u16::from_le_bytes([r2t[10], r2t[11]]);
            }
            let unknown = Sqe { dptr: SglDescriptor::transport(0), ..Sqe::new(0x7F, 1) };
            let (started, mut sent, mut datao) = (world.now(), 0u64, 0);
            loop {
                let mut bytes = capsule(2, unknown, &[]).repeat(500);
                sent += bytes.len() as u64;
                if owes_data {
                    let header = H2cData::new((1, ttag), (datao, 4), false, Digests::default(), 4);
                    bytes.extend_from_slice(header.as_bytes());
                    bytes.extend_from_slice(&[0; 4]);
                    datao += 4;
                }
                if io.send(&bytes).await.is_err() {
                    break;
                }
            }
            let lived = world.now().since(started);
            assert!(lived < Duration::from_secs(33), "cut off after {lived:?}");
            assert!(sent < 8 << 20, "{sent} bytes were taken in");
            admin.stream.shutdown();
            sleep(&world, Duration::from_secs(2)).await;
            assert_eq!(core.stats().connections, 0);
        });
    }
}

/// Data that was asked for comes in drops, forever moving: its memory is taken back all the same,
/// sooner if others are in need of it.
#[test]
fn a_trickle_does_not_keep_memory() {
    simulate(5, |world| async move {
        let core = serve_slowly(&world, BLOCKS, options(32 << 20)).await;
        let mut trickles = Vec::new();
        for _ in 0..31 {
            let (mut io, admin) =
                RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
            let w = world.clone();
            world.spawn(async move {
                io.send(&capsule(1, write_command(0, MIB_BLOCKS), &[])).await.expect("taken in");
                let r2t = io.receive(24).await.expect("an R2T");
                let ttag = u16::from_le_bytes([r2t[10], r2t[11]]);
                for datao in (0..).step_by(4) {
                    let header = H2cData::new((1, ttag), (datao, 4), false, Digests::default(), 4);
                    if io.send(&[header.as_bytes(), &[0; 4]].concat()).await.is_err() {
                        return;
                    }
                    sleep(&w, Duration::from_millis(500)).await;
                }
            });
            trickles.push(admin);
        }
        sleep(&world, Duration::from_secs(1)).await;
        assert_eq!(core.stats().memory_used_bytes, 31 << 20);
        let started = world.now();
        let reconnects = write_deeply(&world, 1, (17, 32, 256)).await;
        let took = world.now().since(started);
        assert!(took < Duration::from_secs(10), "held up for {took:?}");
        assert_eq!(reconnects, 0);
        trickles.iter().for_each(|admin| admin.stream.shutdown());
        assert_all_is_given_back(&world, &core).await;
    });
}

/// Hosts that hold all memory: each owes the data of a write of 1 MiB, which it was asked for.
async fn hosts_that_hold_all(
    world: &SimWorld,
    core: &SimCore,
    memory_bytes: u64,
) -> Vec<(RawHost, RawHost)> {
    let mut hosts = Vec::new();
    for _ in 0..memory_bytes >> 20 {
        let (mut io, admin) = RawHost::io_queue(world, &nqn_of(VOLUME)).await.expect("connected");
        io.send(&capsule(0, write_command(0, MIB_BLOCKS), &[])).await.expect("taken in");
        io.receive(24).await.expect("an R2T");
        hosts.push((io, admin));
    }
    assert_eq!(core.stats().memory_used_bytes, memory_bytes);
    hosts
}

/// MEMORY-3: a host that may still send what was asked for is not read from while it has more than a little debt. Method: others
/// hold all memory; behind a command whose data is awaited come 30 writes with their data in the capsule.
#[test]
fn a_host_in_debt_is_not_read_from() {
    const MEMORY: u64 = 32 << 20;
    const IN_CAPSULE: u32 = 16 << 10;
    simulate(13, |world| async move {
        let core = serve_slowly(&world, BLOCKS, options(MEMORY)).await;
        let mut hosts = hosts_that_hold_all(&world, &core, MEMORY).await;
        let (io, _) = hosts.last_mut().expect("there are some");
        let write = |cid: u16| {
            let mut sqe = write_command(u64::from(cid) * 4, IN_CAPSULE / 4096);
            sqe.dptr = SglDescriptor::in_capsule(IN_CAPSULE);
            capsule(cid, sqe, &[7; IN_CAPSULE as usize])
        };
        io.send(&(1..=30).flat_map(write).collect::<Vec<u8>>()).await.expect("taken in");
        let mut peak = 0;
        for _ in 0..1000 {
            sleep(&world, Duration::from_micros(100)).await;
            peak = peak.max(core.stats().memory_used_bytes - MEMORY);
        }
        // What is allowed, and what was received with the byte that went beyond it.
        assert!((1..=(32 << 10) + (64 << 10)).contains(&peak), "{peak} bytes of debt");
        io.receive(30 * 24).await.expect("all are answered, one after the other");
        for (io, admin) in hosts {
            io.stream.shutdown();
            admin.stream.shutdown();
        }
        assert_all_is_given_back(&world, &core).await;
    });
}

/// MEMORY-3: a command that alone owes more than a little is read to its end. Method: others hold all memory; a compare that is
/// half of a pair, and pays for both, comes with its data in two parts.
#[test]
fn a_command_that_owes_much_alone_can_arrive() {
    const MEMORY: u64 = 32 << 20;
    const IN_CAPSULE: u32 = 16 << 10;
    simulate(16, |world| async move {
        let core = serve_slowly(&world, BLOCKS, options(MEMORY)).await;
        let mut hosts = hosts_that_hold_all(&world, &core, MEMORY).await;
        let (io, _) = hosts.last_mut().expect("there are some");
        let half = |cid: u16, opcode: IoOpcode, fuse: u8| {
            let mut sqe = write_command(0, IN_CAPSULE / 4096);
            sqe.opcode = opcode.0;
            sqe.flags |= fuse;
            sqe.dptr = SglDescriptor::in_capsule(IN_CAPSULE);
            capsule(cid, sqe, &[0; IN_CAPSULE as usize])
        };
        let compare = half(1, IoOpcode::COMPARE, Sqe::FUSE_FIRST);
        let write = half(2, IoOpcode::WRITE, Sqe::FUSE_SECOND);
        let (begin, end) = compare.split_at(compare.len() / 2);
        for part in [begin, end, &write] {
            io.send(part).await.expect("taken in");
            sleep(&world, Duration::from_millis(10)).await;
        }
        let answers = io.receive(2 * 24).await.expect("both halves are answered");
        assert!(answers.chunks(24).all(|answer| answer[22] & 0xFE == 0 && answer[23] == 0));
        for (io, admin) in hosts {
            io.stream.shutdown();
            admin.stream.shutdown();
        }
        assert_all_is_given_back(&world, &core).await;
    });
}

/// Sends a write of 1 MiB, asked for with the R2T that comes next, in `parts` equal parts, each behind a `pause`.
async fn send_slowly(world: &SimWorld, io: &mut RawHost, parts: u32, pause: Duration) {
    let r2t = io.receive(24).await.expect("an R2T");
    let ids = (1, u16::from_le_bytes([r2t[10], r2t[11]]));
    let len = (1 << 20) / parts;
    for part in 0..parts {
        sleep(world, pause).await;
        let is_last = part + 1 == parts;
        let header = H2cData::new(ids, (part * len, len), is_last, Digests::default(), 4);
        let bytes = [header.as_bytes(), &vec![7; len as usize]].concat();
        io.send(&bytes).await.expect("not cut off");
    }
}

/// Many queues send one long write each over a slow network, steadily: each takes long, and none is cut off, though there is not
/// memory for all at a time.
#[test]
fn writes_over_a_slow_network_are_waited_for_while_memory_is_short() {
    simulate(10, |world| async move {
        let core = serve_slowly(&world, BLOCKS, options(32 << 20)).await;
        let mut queues = Vec::new();
        for _ in 0..40 {
            let (mut io, admin) =
                RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
            let (sender, done) = local_sync::oneshot();
            let w = world.clone();
            world.spawn(async move {
                io.send(&capsule(1, write_command(0, MIB_BLOCKS), &[])).await.expect("taken in");
                send_slowly(&w, &mut io, 64, Duration::from_millis(250)).await;
                io.receive(24).await.expect("written");
                io.stream.shutdown();
                sender.send(());
            });
            queues.push((done, admin));
        }
        let started = world.now();
        for (done, admin) in queues {
            done.await.expect("written");
            admin.stream.shutdown();
        }
        assert!(
            world.now().since(started) > Duration::from_secs(30),
            "some had to wait for others"
        );
        assert_all_is_given_back(&world, &core).await;
    });
}

/// A host that has asked for 1 MiB four times and read nothing of it, and its admin queue.
async fn reader_of_4_mib(world: &SimWorld) -> (RawHost, RawHost) {
    let (mut io, admin) = RawHost::io_queue(world, &nqn_of(VOLUME)).await.expect("connected");
    let ask = |cid: u16| capsule(cid, read_command(0, MIB_BLOCKS), &[]);
    io.send(&(0..4).flat_map(ask).collect::<Vec<u8>>()).await.expect("taken in");
    (io, admin)
}

/// Replies to many deep queues leave over a slow network, steadily: what the kernel was given at a time takes it long, and no host is
/// cut off, though others wait for the memory.
#[test]
fn readers_on_a_slow_network_are_waited_for_while_memory_is_short() {
    simulate(11, |world| async move {
        let core = serve_slowly(&world, BLOCKS, options(32 << 20)).await;
        write_deeply(&world, 1, (8, 32, 256)).await;
        let mut readers = Vec::new();
        for _ in 0..32 {
            let (mut io, admin) = reader_of_4_mib(&world).await;
            let (sender, done) = local_sync::oneshot();
            let w = world.clone();
            world.spawn(async move {
                for _ in 0..120 {
                    sleep(&w, Duration::from_millis(250)).await;
                    io.receive(32 << 10).await.expect("not cut off");
                }
                io.stream.shutdown();
                sender.send(());
            });
            readers.push((done, admin));
        }
        for (done, admin) in readers {
            done.await.expect("read");
            admin.stream.shutdown();
        }
        assert_all_is_given_back(&world, &core).await;
    });
}

/// Replies that their host reads drop by drop keep no memory that others wait for.
#[test]
fn a_reader_of_drops_does_not_keep_memory() {
    simulate(12, |world| async move {
        let core = serve_slowly(&world, BLOCKS, options(32 << 20)).await;
        write_deeply(&world, 1, (8, 32, 256)).await;
        let mut admins = Vec::new();
        for _ in 0..31 {
            let (mut io, admin) = reader_of_4_mib(&world).await;
            let w = world.clone();
            world.spawn(async move {
                while io.receive(1000).await.is_ok() {
                    sleep(&w, Duration::from_millis(500)).await;
                }
            });
            admins.push(admin);
        }
        sleep(&world, Duration::from_secs(1)).await;
        let started = world.now();
        let reconnects = write_deeply(&world, 1, (17, 32, 256)).await;
        let took = world.now().since(started);
        assert!(took < Duration::from_secs(10), "held up for {took:?}");
        assert_eq!(reconnects, 0);
        admins.iter().for_each(|admin| admin.stream.shutdown());
        assert_all_is_given_back(&world, &core).await;
    });
}

/// Verify and Compare read what they check: within the budget.
#[test]
fn what_is_only_checked_takes_memory_from_the_budget() {
    simulate(6, |world| async move {
        let core = serve_slowly(&world, BLOCKS, options(32 << 20)).await;
        write_deeply(&world, 1, (8, 64, 256)).await;
        let (mut io, admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
        let verify = |cid: u16| {
            let command = nvme_wire::io::BlockCommand::new(0, MIB_BLOCKS);
            capsule(cid, command.encode(IoOpcode::VERIFY, 1, 0), &[])
        };
        let all: Vec<u8> = (0..31).flat_map(verify).collect();
        io.send(&all).await.expect("taken in");
        let mut peak = 0;
        for _ in 0..400 {
            sleep(&world, Duration::from_micros(10)).await;
            peak = peak.max(core.stats().memory_used_bytes);
        }
        assert!((1 << 20..=8 << 20).contains(&peak), "{peak} bytes were counted");
        io.receive(31 * 24).await.expect("all are answered");
        io.stream.shutdown();
        admin.stream.shutdown();
        assert_all_is_given_back(&world, &core).await;
    });
}

/// The end of service waits for the data of writes that are on their way, and no longer.
#[test]
fn shutdown_takes_in_what_is_on_its_way() {
    simulate(7, |world| async move {
        let (core, device) = serve_new(world.clone(), BLOCKS).await;
        let (mut io, _admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connected");
        let block = data(5, 8);
        io.send(&capsule(1, write_command(64, 8), &[])).await.expect("taken in");
        let r2t = io.receive(24).await.expect("an R2T");
        let ttag = u16::from_le_bytes([r2t[10], r2t[11]]);
        let (started, stopping, w) = (world.now(), core.clone(), world.clone());
        let (sender, done) = local_sync::oneshot();
        world.spawn(async move {
            stopping.shutdown().await.expect("a checkpoint");
            sender.send(w.now());
        });
        sleep(&world, Duration::from_millis(100)).await;
        let header = H2cData::new((1, ttag), (0, 32_768), true, Digests::default(), 4);
        let late = capsule(2, write_command(64, 8), &[]);
        let transfer = [late.as_slice(), header.as_bytes(), block.as_bytes()].concat();
        io.send(&transfer).await.expect("taken in");
        let reply = io.wait_for_close().await;
        assert_eq!(reply.len(), 24, "one completion, and none for what came too late");
        assert_eq!((reply[0], reply[20]), (5, 1), "that of the first command");
        let took = done.await.expect("shut down").since(started);
        assert!(took < Duration::from_secs(1), "it took {took:?}");

        let _core = crate::support::serve(world.clone(), device).await;
        let volume = connect(world, host()).await;
        let read = volume.read(Lba(64), 8).await.expect("read");
        assert!(read.as_bytes() == block.as_bytes());
    });
}

/// The reason for an end reaches the host even if it goes on talking.
#[test]
fn last_words_are_heard() {
    for seed in 0..20 {
        simulate(seed, |world| async move {
            let (core, _) = serve_new(world.clone(), BLOCKS).await;
            let mut stranger = RawHost::greet(&world).await.expect("greeted");
            let w = world.clone();
            let stream = stranger.stream.clone();
            world.spawn(async move {
                let mut talker = RawHost::over(stream);
                for _ in 0..50 {
                    if talker.send(&[0xEE; 3000]).await.is_err() {
                        return;
                    }
                    sleep(&w, Duration::from_micros(20)).await;
                }
            });
            let last_words = stranger.wait_for_close().await;
            assert_eq!(last_words.first(), Some(&3), "seed {seed}: a C2HTermReq");
            stranger.stream.shutdown();
            sleep(&world, Duration::from_secs(2)).await;
            assert_eq!(core.stats().connections, 0);
        });
    }
}
