//! Compare and write as one, through the whole server: as a vendor specific command and fused.

use std::cell::Cell;
use std::rc::Rc;

use client::{Error, Options, Reconnect, Swap, Volume};
use dataplane::Loss;
use io_traits::{Buffer, BufferSlice, Spawn};
use local_sync::Semaphore;
use nvme_frontend::nqn_of;
use nvme_wire::io::BlockCommand;
use nvme_wire::pdu::{CapsuleResp, Digests, H2cData, R2t};
use nvme_wire::{Cqe, IoOpcode, SglDescriptor, Sqe, Status};
use sim::{DeviceFaults, Rng, SimDevice, SimWorld, Simulation};
use units::{BLOCK_SIZE, DeviceIndex, Duration, Lba};
use zerocopy::{FromBytes, IntoBytes};

use crate::support::raw_host::{CAPSULE_RESP, RawHost, capsule};
use crate::support::{VOLUME, connect, data, host, serve, serve_new, simulate, sleep};

const BLOCKS: u64 = 4096;
const COUNTER: Lba = Lba(7);
const HOSTS: u64 = 3;
const TASKS: u64 = 2;
const INCREMENTS: u64 = 4;
/// Bytes that a server takes in one H2CData, at least.
const H2C_BYTES: u32 = 32_768;

/// A counter that fills `blocks` blocks, each with the same value.
fn counter(value: u64, blocks: u32) -> BufferSlice {
    let mut buffer = Buffer::zeroed(blocks as usize);
    for block in buffer.as_mut_bytes().chunks_exact_mut(BLOCK_SIZE) {
        block[BLOCK_SIZE - 8..].copy_from_slice(&value.to_le_bytes());
    }
    buffer.into_slice()
}

/// The counter's value; panics if its blocks differ.
async fn value(volume: &Volume<SimWorld>, blocks: u32) -> u64 {
    let read = volume.read(COUNTER, blocks).await.expect("readable");
    let last = &read.as_bytes()[read.as_bytes().len() - 8..];
    let value = u64::from_le_bytes(last.try_into().expect("eight bytes"));
    assert!(read.as_bytes() == counter(value, blocks).as_bytes(), "a torn counter");
    value
}

/// Adds one, however often others come first.
async fn increment(volume: &Volume<SimWorld>, blocks: u32) -> Result<(), Error> {
    let mut known = 0;
    loop {
        let (old, new) = (counter(known, blocks), counter(known + 1, blocks));
        match volume.compare_and_swap(COUNTER, &old, &new).await? {
            Swap::Done => return Ok(()),
            Swap::Differs { offset_bytes } => {
                assert!(offset_bytes < BLOCK_SIZE as u64, "the first block differs already");
                assert!(offset_bytes >= BLOCK_SIZE as u64 - 8);
                known = value(volume, blocks).await;
            }
        }
    }
}

/// No update is lost when many add to one counter, of any size up to the atomic one.
#[test]
fn many_hosts_increment_a_counter_and_every_increment_counts() {
    for (seed, blocks) in [(1, 1), (2, 17), (3, 256)] {
        simulate(seed, move |world| async move {
            let _server = serve_new(world.clone(), BLOCKS).await;
            let running = Semaphore::new(HOSTS * TASKS);
            for number in 0..HOSTS {
                let options = Options { queues: 2, ..Options::for_host([number as u8 + 1; 16]) };
                let volume = connect(world.clone(), options).await;
                for _ in 0..TASKS {
                    let (volume, permit) = (volume.clone(), running.try_acquire(1));
                    world.spawn(async move {
                        for _ in 0..INCREMENTS {
                            increment(&volume, blocks).await.expect("carried out");
                        }
                        drop(permit);
                    });
                }
            }
            drop(running.acquire(HOSTS * TASKS).await);
            let volume = connect(world, host()).await;
            assert_eq!(value(&volume, blocks).await, HOSTS * TASKS * INCREMENTS);
        });
    }
}

#[test]
fn a_swap_says_where_the_first_difference_is() {
    simulate(1, |world| async move {
        let _server = serve_new(world.clone(), BLOCKS).await;
        let volume = connect(world, host()).await;
        volume.write(Lba(3), data(1, 4)).await.expect("written");
        let mut expected = Buffer::from_bytes(data(1, 4).as_bytes());
        expected.as_mut_bytes()[9000] ^= 1;
        let swapped = volume.compare_and_swap(Lba(3), &expected.into_slice(), &data(2, 4)).await;
        assert_eq!(swapped, Ok(Swap::Differs { offset_bytes: 9000 }));
        let read = volume.read(Lba(3), 4).await.expect("readable");
        assert!(read.as_bytes() == data(1, 4).as_bytes(), "nothing changed");
        let swapped = volume.compare_and_swap(Lba(3), &data(1, 4), &data(2, 4)).await;
        assert_eq!(swapped, Ok(Swap::Done));
        let beyond = volume.compare_and_swap(Lba(BLOCKS - 1), &data(1, 2), &data(2, 2)).await;
        let Err(Error::Target { status, .. }) = beyond else { panic!("{beyond:?}") };
        assert_eq!(status.code(), Status::LBA_OUT_OF_RANGE);
        let longer = volume.compare_and_swap(Lba(0), &data(1, 257), &data(2, 257)).await;
        assert!(matches!(longer, Err(Error::TooLarge { limit: 256, .. })), "{longer:?}");
    });
}

fn half(opcode: IoOpcode, fuse: u8, slba: u64, blocks: u32) -> Sqe {
    let mut sqe = BlockCommand::new(slba, blocks).encode(opcode, 1, 0);
    sqe.dptr = SglDescriptor::in_capsule(blocks * BLOCK_SIZE as u32);
    sqe.flags |= fuse;
    sqe
}

/// Sends both halves at once and returns how the Compare and the Write ended.
async fn fused(host: &mut RawHost, slba: u64, expected: &[u8], new: &[u8]) -> [Status; 2] {
    let blocks = (new.len() / BLOCK_SIZE) as u32;
    let compare = half(IoOpcode::COMPARE, Sqe::FUSE_FIRST, slba, blocks);
    let write = half(IoOpcode::WRITE, Sqe::FUSE_SECOND, slba, blocks);
    host.send(&capsule(100, compare, expected)).await.expect("sent");
    host.send(&capsule(101, write, new)).await.expect("sent");
    let mut ended = [Status::SUCCESS; 2];
    for _ in 0..2 {
        let response = host.receive(24).await.expect("an answer");
        let cqe: Cqe = CapsuleResp::read_from_bytes(&response).expect("a completion").cqe;
        ended[usize::from(cqe.cid.get() - 100)] = cqe.status().code();
    }
    ended
}

#[test]
fn fused_compare_and_write_is_one_operation() {
    simulate(1, |world| async move {
        let _server = serve_new(world.clone(), BLOCKS).await;
        let volume = connect(world.clone(), host()).await;
        volume.write(Lba(3), data(1, 2)).await.expect("written");
        let (mut io, _admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connects");
        let (old, new) = (data(1, 2), data(2, 2));
        let ended = fused(&mut io, 3, old.as_bytes(), new.as_bytes()).await;
        assert_eq!(ended, [Status::SUCCESS; 2]);
        let ended = fused(&mut io, 3, old.as_bytes(), data(3, 2).as_bytes()).await;
        assert_eq!(ended, [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED]);
        let ended = fused(&mut io, BLOCKS - 1, old.as_bytes(), new.as_bytes()).await;
        assert_eq!(ended, [Status::LBA_OUT_OF_RANGE, Status::ABORTED_FAILED_FUSED]);
        let read = volume.read(Lba(3), 2).await.expect("readable");
        assert!(read.as_bytes() == new.as_bytes());
    });
}

/// The result of the comparison is returned also where the write that was to follow fails. Method: the disk
/// fails all writes.
#[test]
fn a_write_that_fails_leaves_the_comparison_as_it_was() {
    simulate(4, |world| async move {
        let (core, device) = serve_new(world.clone(), BLOCKS).await;
        let volume = connect(world.clone(), host()).await;
        let (old, new) = (data(1, 2), data(2, 2));
        volume.write(Lba(3), old.clone()).await.expect("written");
        let (mut io, _admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connects");
        device.set_faults(DeviceFaults { write_error_one_in: 1, ..DeviceFaults::default() });
        let differs = fused(&mut io, 3, new.as_bytes(), new.as_bytes()).await;
        assert_eq!(differs, [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED]);
        let ended = fused(&mut io, 3, old.as_bytes(), new.as_bytes()).await;
        assert_eq!(ended, [Status::SUCCESS, Status::WRITE_FAULT]);
        let failed = volume.compare_and_swap(Lba(3), &old, &new).await;
        let Err(Error::Target { status, .. }) = failed else { panic!("{failed:?}") };
        assert_eq!(status.code(), Status::WRITE_FAULT, "the vendor specific form");
        let read = volume.read(Lba(3), 2).await.expect("readable");
        assert!(read.as_bytes() == old.as_bytes(), "nothing changed");
        drop(core);
    });
}

/// Method: the second half names one block more, or the next ones, in the capsule and by R2T; then the queue swaps.
#[test]
fn halves_that_name_different_blocks_are_both_invalid() {
    simulate(5, |world| async move {
        let (core, _) = serve_new(world.clone(), BLOCKS).await;
        let (mut io, admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connects");
        for (slba, blocks) in [(4, 2), (3, 1), (3, 3), (3, 8)] {
            let compare = half(IoOpcode::COMPARE, Sqe::FUSE_FIRST, 3, 2);
            io.send(&capsule(100, compare, data(1, 2).as_bytes())).await.expect("sent");
            let bytes = data(2, blocks as usize);
            let (mut write, mut carried) =
                (half(IoOpcode::WRITE, Sqe::FUSE_SECOND, slba, blocks), bytes.as_bytes());
            if blocks == 8 {
                (write.dptr, carried) = (SglDescriptor::transport(8 * BLOCK_SIZE as u32), &[]);
            }
            io.send(&capsule(101, write, carried)).await.expect("sent");
            for _ in 0..2 {
                let response = io.receive(24).await.expect("an answer");
                let cqe = CapsuleResp::read_from_bytes(&response).expect("a completion").cqe;
                assert_eq!(cqe.status(), Status::INVALID_FIELD.with_dnr(), "{slba} {blocks}");
            }
        }
        let ended = fused(&mut io, 3, &[0; 2 * BLOCK_SIZE], data(2, 2).as_bytes()).await;
        assert_eq!(ended, [Status::SUCCESS; 2], "the queue goes on");
        drop((io, admin));
        sleep(&world, Duration::from_secs(3)).await;
        assert_eq!(core.stats().memory_used_bytes, 0);
    });
}

/// Sends both halves at once, then the data of each as the server asks for it, and returns how they ended.
async fn fused_on_request(
    host: &mut RawHost,
    slba: u64,
    expected: &[u8],
    new: &[u8],
) -> [Status; 2] {
    let len = new.len() as u32;
    let command = BlockCommand::new(slba, len / BLOCK_SIZE as u32);
    let halves = [(IoOpcode::COMPARE, Sqe::FUSE_FIRST), (IoOpcode::WRITE, Sqe::FUSE_SECOND)];
    for (cid, (opcode, fuse)) in (100..).zip(halves) {
        let mut half = command.encode(opcode, 1, len);
        half.flags |= fuse;
        host.send(&capsule(cid, half, &[])).await.expect("sent");
    }
    let (mut ended, mut answers) = ([Status::SUCCESS; 2], 0);
    while answers < 2 {
        let pdu = host.receive(24).await.expect("an R2T or an answer");
        if pdu[0] == CAPSULE_RESP {
            let cqe = CapsuleResp::read_from_bytes(&pdu).expect("a completion").cqe;
            ended[usize::from(cqe.cid.get() - 100)] = cqe.status().code();
            answers += 1;
            continue;
        }
        let r2t = R2t::read_from_bytes(&pdu).expect("an R2T");
        let data = if r2t.cccid.get() == 100 { expected } else { new };
        let (from, to) = (r2t.r2to.get(), r2t.r2to.get() + r2t.r2tl.get());
        for at in (from..to).step_by(H2C_BYTES as usize) {
            let end = to.min(at + H2C_BYTES);
            let ids = (r2t.cccid.get(), r2t.ttag.get());
            let header = H2cData::new(ids, (at, end - at), end == to, Digests::default(), 4);
            let mut bytes = header.as_bytes().to_vec();
            bytes.extend_from_slice(&data[at as usize..end as usize]);
            host.send(&bytes).await.expect("sent");
        }
    }
    ended
}

/// The same for as much as is atomic: all of it is compared and written, or nothing.
///
/// Method: swap 256 blocks, refuse a swap whose last byte differs, and read all of it each time, with what lies on either side.
#[test]
fn fused_compare_and_write_of_the_atomic_size_is_one_operation() {
    simulate(3, |world| async move {
        let _server = serve_new(world.clone(), BLOCKS).await;
        let volume = connect(world.clone(), host()).await;
        let (old, new) = (data(1, 256), data(2, 256));
        volume.write(Lba(3), old.clone()).await.expect("written");
        let (mut io, _admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connects");
        let mut other = old.as_bytes().to_vec();
        *other.last_mut().expect("not empty") ^= 1;
        let refused = fused_on_request(&mut io, 3, &other, new.as_bytes()).await;
        assert_eq!(refused, [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED]);
        let read = volume.read(Lba(3), 256).await.expect("readable");
        assert!(read.as_bytes() == old.as_bytes(), "nothing changed");
        let ended = fused_on_request(&mut io, 3, old.as_bytes(), new.as_bytes()).await;
        assert_eq!(ended, [Status::SUCCESS; 2]);
        let read = volume.read(Lba(3), 256).await.expect("readable");
        assert!(read.as_bytes() == new.as_bytes(), "all of it changed");
        for beside in [Lba(2), Lba(259)] {
            let read = volume.read(beside, 1).await.expect("readable");
            assert!(read.as_bytes().iter().all(|byte| *byte == 0), "{beside}");
        }
    });
}

/// Neither form is a way round a ceiling: both are accounted as writes of their blocks.
#[test]
fn both_forms_are_accounted() {
    simulate(2, |world| async move {
        let (core, _) = serve_new(world.clone(), BLOCKS).await;
        let volume = connect(world.clone(), host()).await;
        let (mut io, _admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connects");
        let written = || core.flows_from(VOLUME, 1)[0].done.flow.blocks[1];
        let (before, zeroes) = (written(), Buffer::zeroed(2).into_slice());
        let swapped = volume.compare_and_swap(Lba(0), &zeroes, &data(1, 2)).await;
        assert_eq!((swapped, written() - before), (Ok(Swap::Done), 2));
        let ended = fused(&mut io, 0, data(1, 2).as_bytes(), data(2, 2).as_bytes()).await;
        assert_eq!((ended, written() - before), ([Status::SUCCESS; 2], 4));
    });
}

/// Method: errors of the engine, of what was not whole, and of what never was a command's; the volume goes at last.
#[test]
fn errors_are_counted_by_what_hosts_are_told() {
    simulate(3, |world| async move {
        let (core, _) = serve_new(world.clone(), BLOCKS).await;
        let (mut io, admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connects");
        let [one, two] = [data(1, 2), data(2, 2)];
        let differs = fused(&mut io, 0, one.as_bytes(), two.as_bytes()).await;
        assert_eq!(differs, [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED]);
        // A second half without a first one, and a first one without a second.
        let second = half(IoOpcode::WRITE, Sqe::FUSE_SECOND, 0, 2);
        io.send(&capsule(100, second, two.as_bytes())).await.expect("sent");
        let first = half(IoOpcode::COMPARE, Sqe::FUSE_FIRST, 0, 2);
        io.send(&capsule(101, first, one.as_bytes())).await.expect("sent");
        let alone = half(IoOpcode::WRITE, 0, BLOCKS, 2);
        io.send(&capsule(102, alone, two.as_bytes())).await.expect("sent");
        for _ in 0..3 {
            io.receive(24).await.expect("an answer");
        }
        let told = |errors: &dataplane::ErrorCounts| {
            errors.iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>()
        };
        let expected = [
            (Status::ABORTED_FAILED_FUSED.name(), 1),
            (Status::ABORTED_MISSING_FUSED.name(), 2),
            (Status::COMPARE_FAILURE.name(), 1),
            (Status::LBA_OUT_OF_RANGE.name(), 1),
        ];
        assert_eq!(told(&core.flows_from(VOLUME, 1)[0].done.errors), expected);
        assert!(told(&core.nvme_stats().errors).is_empty());
        drop((io, admin));
        core.delete_volume(VOLUME, Loss::Accepted).await.expect("deleted");
        sleep(&world, Duration::from_secs(5)).await;
        let device = &core.stats().devices[DeviceIndex(0)].done;
        assert_eq!(told(&device.errors), expected, "also of what is gone");
        assert_eq!(device.latency[1].counts.iter().sum::<u64>(), device.flow.requests);
        let asked = RawHost::queue(&world, (0, 0xFFFF), &nqn_of(VOLUME)).await;
        assert!(!asked.expect("an answer").1.status().is_success(), "it is gone");
        let refused = Status::CONNECT_INVALID_PARAMETERS.name();
        assert_eq!(told(&core.nvme_stats().errors), [(refused, 1)]);
    });
}

/// A first half whose second half never comes holds up neither the others nor the end of service.
#[test]
fn half_an_operation_holds_up_no_host() {
    simulate(1, |world| async move {
        let (core, _) = serve_new(world.clone(), BLOCKS).await;
        let (mut io, _admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connects");
        let compare = half(IoOpcode::COMPARE, Sqe::FUSE_FIRST, 0, 2);
        io.send(&capsule(100, compare, data(1, 2).as_bytes())).await.expect("sent");
        let volume = connect(world.clone(), host()).await;
        volume.write(Lba(0), data(1, 2)).await.expect("unharmed");
        crate::support::sleep(&world, Duration::from_secs(60)).await;
        assert!(io.wait_for_close().await.is_empty(), "cut off without an answer");
        let (mut io, _admin) = RawHost::io_queue(&world, &nqn_of(VOLUME)).await.expect("connects");
        io.send(&capsule(100, compare, data(1, 2).as_bytes())).await.expect("sent");
        crate::support::sleep(&world, Duration::from_millis(10)).await;
        core.shutdown().await.expect("a checkpoint");
    });
}

fn run_until_crash(seed: u64) -> (SimDevice, u64, u64) {
    let simulation = Simulation::new(seed);
    let world = simulation.world();
    let (begun, done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let counts = (begun.clone(), done.clone());
    let device = simulation
        .run(async move {
            let (_core, device) = serve_new(world.clone(), BLOCKS).await;
            let options = Options { reconnect: Reconnect::Never, ..host() };
            let volume = connect(world.clone(), options).await;
            device.crash_at_request(device.requests() + Rng::new(seed).below(300));
            for _ in 0..TASKS {
                let (volume, (begun, done)) = (volume.clone(), counts.clone());
                world.spawn(async move {
                    loop {
                        begun.set(begun.get() + 1);
                        if increment(&volume, 3).await.is_err() {
                            return;
                        }
                        done.set(done.get() + 1);
                    }
                });
            }
            device
        })
        .expect("starts");
    while !device.has_crashed() {
        simulation.run_for(Duration::from_millis(1));
    }
    (device, done.get(), begun.get())
}

/// After a power cut the counter is whole, has every acknowledged increment, and none that no host asked for.
#[test]
fn a_power_cut_tears_no_swap_and_loses_none() {
    for seed in 0..25 {
        let (device, done, begun) = run_until_crash(seed);
        let next_boot = Simulation::new(seed ^ 0xB007);
        let world = next_boot.world();
        let survivor = device.after_crash(&world);
        let checked = next_boot.run(async move {
            let _core = serve(world.clone(), survivor).await;
            let volume = connect(world, host()).await;
            let value = value(&volume, 3).await;
            assert!((done..=begun).contains(&value), "seed {seed}: {done} <= {value} <= {begun}");
        });
        checked.unwrap_or_else(|stalled| panic!("seed {seed}: no recovery: {stalled:?}"));
    }
}
