//! One volume by all three protocols: what one host writes the others read, and each gets the same guarantees.

use std::cell::Cell;
use std::rc::Rc;

use access::{Access, NbdAccess};
use client::{Error, Options, Reconnect, Swap, Volume};
use dataplane::Core;
use io_traits::{Buffer, BufferSlice, Clock, Network, Spawn};
use iscsi_wire::Cdb;
use iscsi_wire::cdb::opcode as scsi;
use nbd_frontend::{ExportPlace, ExportRecord, NbdFrontend, NbdOptions, Way};
use nbd_wire::{Command, CommandFlags};
use nvme_frontend::{NvmeCore, NvmeOptions, nqn_of};
use nvme_wire::Status;
use schedule::{CostModel, Quota, SchedulerConfig};
use sim::{SimDevice, SimWorld};
use test_hosts::cores::SimNvmeCore;
pub(crate) use test_hosts::nbd;
use units::{DeviceIndex, Duration, Lba, Pba};

use crate::strict::Initiator;
use crate::{
    BLOCK, DEVICE_BLOCKS, OTHER, SimCore, VOLUME, admit, failed, good, pattern, read, serve,
    serve_on, session, session_of_port, simulate,
};

const EIO: u32 = 5;
const ENOSPC: u32 = 28;

/// Puts the front ends of the other protocols before the core, and opens its volume to NBD.
pub(crate) async fn serve_all(world: &SimWorld, core: &SimCore) -> SimNvmeCore {
    serve_all_for(world, core, None).await
}

/// The same, with a volume of a tenant.
async fn serve_all_for(world: &SimWorld, core: &SimCore, owner: Option<&str>) -> SimNvmeCore {
    let nbd = NbdAccess {
        networks: vec!["0.0.0.0/0".parse().expect("a network")],
        ..NbdAccess::default()
    };
    let access = Access { nbd, owner: owner.map(str::to_owned), ..Access::default() };
    admit(core, VOLUME, access.clone()).await;
    let by_nbd = NbdFrontend::before(core, NbdOptions::default());
    let (uuid, name, place) = (VOLUME, "db".to_owned(), ExportPlace::Here);
    by_nbd.announce(ExportRecord { uuid, name, place, access });
    let (serving, at): (Core<_, _>, _) = ((**core).clone(), by_nbd.at(Way::Network));
    let listener = world.listen(nbd::place()).expect("a free address");
    world.spawn(async move { serving.serve(&*at, listener).await });
    let nvme_portal = "10.0.0.1:4420".parse().expect("an address");
    let by_nvme = NvmeCore::before((**core).clone(), NvmeOptions::new(nvme_portal));
    let (serving, listener) = (by_nvme.clone(), world.listen(nvme_portal).expect("a free address"));
    world.spawn(async move { serving.serve(listener).await });
    by_nvme
}

pub(crate) async fn nvme_host(world: &SimWorld, number: u8) -> Volume<SimWorld> {
    let options = Options { reconnect: Reconnect::Never, ..Options::for_host([number; 16]) };
    let portal = "10.0.0.1:4420".parse().expect("an address");
    let client = client::Client::connect(world.clone(), portal, &nqn_of(VOLUME), options).await;
    client.expect("it may open it").volume().await.expect("a namespace")
}

fn slice(bytes: &[u8]) -> BufferSlice {
    Buffer::from_bytes(bytes).into_slice()
}

/// The status of what an NVMe host did.
fn status(outcome: Result<(), Error>) -> Status {
    match outcome {
        Ok(()) => Status::SUCCESS,
        Err(Error::Target { status, .. }) => status.code(),
        Err(error) => panic!("{error}"),
    }
}

async fn write(initiator: &mut Initiator, lba: u64, data: &[u8]) {
    let cdb = Cdb::with_blocks(scsi::WRITE_10, lba, (data.len() / BLOCK) as u32);
    assert_eq!(initiator.command(cdb, data, 0).await, good(0));
}

#[test]
fn hosts_of_each_protocol_read_what_those_of_the_others_wrote() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let _by_nvme = serve_all(&world, &core).await;
        let (nvme, mut scsi) = (nvme_host(&world, 1).await, session(&world, VOLUME).await);
        let mut nbd = nbd::Client::open(&world, "db").await;
        let mut model = vec![0; 12 * BLOCK];
        let mut fill = |at: usize, bytes: &[u8]| {
            model[at..][..bytes.len()].copy_from_slice(bytes);
            model.clone()
        };
        for round in 0..3_u8 {
            let (first, second) = (pattern(4, 3 * round), pattern(4, 3 * round + 1));
            let third = pattern(2, 3 * round + 2);
            nvme.write(Lba(0), slice(&first)).await.expect("room");
            fill(0, &first);
            write(&mut scsi, 3, &second).await;
            fill(3 * BLOCK, &second);
            let at = 2 * BLOCK + 777;
            assert_eq!(nbd.write(at as u64, &third).await, 0);
            let expected = fill(at, &third);
            let by_nvme = nvme.read(Lba(0), 12).await.expect("sound blocks");
            assert!(by_nvme.as_bytes() == expected, "NVMe");
            assert!(read(&mut scsi, 0, 12).await == expected, "iSCSI");
            assert!(nbd.read(0, expected.len()).await == expected, "NBD");
        }
    });
}

/// A number that each of three hosts keeps in one block, at places of its own.
const COUNTED: u64 = 7;
const ROUNDS: u64 = 60;

fn number_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"))
}

/// Adds one at `at` of a block. Returns what was there, and what is to be.
fn counted(block: &[u8], at: usize) -> (Vec<u8>, Vec<u8>) {
    let mut next = block.to_vec();
    next[at..at + 8].copy_from_slice(&(number_at(block, at) + 1).to_le_bytes());
    (block.to_vec(), next)
}

/// Counts by COMPARE AND WRITE. Returns how often another host came first.
async fn count_by_scsi(scsi: &mut Initiator) -> u64 {
    let mut differed = 0;
    for _ in 0..ROUNDS {
        loop {
            let (before, after) = counted(&read(scsi, COUNTED, 1).await, 0);
            let mut swap = Cdb([0; 16]);
            (swap.0[0], swap.0[9], swap.0[13]) = (scsi::COMPARE_AND_WRITE, COUNTED as u8, 1);
            let ended = scsi.command(swap, &[before, after].concat(), 0).await;
            if ended.status == 0 {
                break;
            }
            assert_eq!(ended.sense, Some((0xE, 0x1D, 0)));
            differed += 1;
        }
    }
    differed
}

async fn count_by_nvme(nvme: &Volume<SimWorld>) -> u64 {
    let mut differed = 0;
    for _ in 0..ROUNDS {
        loop {
            let block = nvme.read(Lba(COUNTED), 1).await.expect("a sound block");
            let (before, after) = counted(block.as_bytes(), BLOCK - 8);
            let swap = nvme.compare_and_swap(Lba(COUNTED), &slice(&before), &slice(&after)).await;
            if swap.expect("room") == Swap::Done {
                break;
            }
            differed += 1;
        }
        // Whole blocks beside it, each of one byte.
        let beside = slice(&[differed as u8 ^ 0x5A; BLOCK]);
        nvme.write(Lba(COUNTED + 1), beside).await.expect("room");
    }
    differed
}

/// Method: three hosts change one block at once: by COMPARE AND WRITE of iSCSI and of NVMe, which count, and by writes of NBD that
/// begin and end within blocks. A change that is lost is seen in the numbers and in the bytes.
#[test]
fn hosts_of_all_protocols_change_one_block_without_losing_a_change() {
    const STRADDLES: u64 = COUNTED * BLOCK as u64 - 600;
    simulate(async |world| {
        let core = serve(&world, false).await;
        let _by_nvme = serve_all(&world, &core).await;
        let (nvme, mut scsi) = (nvme_host(&world, 1).await, session(&world, VOLUME).await);
        let mut nbd = nbd::Client::open(&world, "db").await;
        let (left, differed) = (Rc::new(Cell::new(2)), Rc::new(Cell::new(0)));
        let ended = || {
            let (left, differed) = (left.clone(), differed.clone());
            move |found: u64| {
                differed.set(differed.get() + found);
                left.set(left.get() - 1);
            }
        };
        let (by_scsi, by_nvme) = (ended(), ended());
        world.spawn(async move { by_scsi(count_by_scsi(&mut scsi).await) });
        world.spawn(async move { by_nvme(count_by_nvme(&nvme).await) });
        let (mut last, mut writes) = (Vec::new(), 0_u64);
        while left.get() > 0 {
            writes += 1;
            // Its part of the counted block is bytes 8 to 900.
            last = vec![writes as u8; 600];
            assert_eq!(nbd.write(STRADDLES, &last).await, 0);
            assert_eq!(nbd.write(STRADDLES + 608, &vec![writes as u8; 892]).await, 0);
            let beside = nbd.read((COUNTED + 1) * BLOCK as u64 + 100, 3000).await;
            assert!(beside.iter().all(|byte| *byte == beside[0]), "half a write");
        }
        let found = nbd.read(STRADDLES - 1, BLOCK + 601).await;
        assert!(found[0] == 0 && found[1..601] == last, "{writes} writes");
        let block = &found[601..];
        assert_eq!((number_at(block, 0), number_at(block, BLOCK - 8)), (ROUNDS, ROUNDS));
        assert!(block[8..900].iter().all(|byte| *byte == writes as u8), "the last one");
        assert!(block[900..BLOCK - 8].iter().all(|byte| *byte == 0), "of none");
        assert!(differed.get() > 0 && writes > 10, "they met: {} {writes}", differed.get());
    });
}

/// Method: a bit of a block at rest is flipped, the middle one of what each host reads.
#[test]
fn a_corrupt_block_is_reported_by_each_protocol() {
    simulate(async |world| {
        let device = SimDevice::new(&world, DEVICE_BLOCKS);
        let core = serve_on(&world, device.clone(), false).await;
        let _by_nvme = serve_all(&world, &core).await;
        let (nvme, mut scsi) = (nvme_host(&world, 1).await, session(&world, VOLUME).await);
        let mut nbd = nbd::Client::open(&world, "db").await;
        let data = pattern(3, 0x77);
        nvme.write(Lba(40), slice(&data)).await.expect("room");
        let lost: Vec<Pba> = device
            .written_blocks()
            .into_iter()
            .filter(|pba| device.peek(*pba) == data[BLOCK..2 * BLOCK])
            .collect();
        assert!(!lost.is_empty());
        lost.iter().for_each(|pba| device.flip_bit(*pba, 1000));

        let reading = Cdb::with_blocks(scsi::READ_10, 40, 3);
        let (ended, information) = scsi.failed_at(reading, 3 * BLOCK as u32).await;
        assert_eq!(ended, failed(3, 0x11, 0, -(3 * BLOCK as i64)), "MEDIUM ERROR");
        assert_eq!(information, Some(41));
        let by_nvme = nvme.read(Lba(40), 3).await.map(drop);
        assert_eq!(status(by_nvme), Status::UNRECOVERED_READ_ERROR);
        let at = 40 * BLOCK as u64 + 9;
        let ask = (Command::READ, CommandFlags::default());
        let by_nbd = nbd.ask(ask.0, ask.1, at, 2 * BLOCK as u64).await.expect("an answer");
        assert_eq!((by_nbd.error, by_nbd.data.len()), (EIO, 0));
        // A part of a block cannot be written either: the rest of it is not known.
        assert_eq!(nbd.write(41 * BLOCK as u64 + 1, &[1; 5]).await, EIO);

        assert!(read(&mut scsi, 42, 1).await == data[2 * BLOCK..], "its neighbour is sound");
        assert!(nbd.read(at, BLOCK - 9).await == data[9..BLOCK]);
        write(&mut scsi, 41, &data[..BLOCK]).await;
        assert!(nbd.read(41 * BLOCK as u64, BLOCK).await == data[..BLOCK], "it is another block");
    });
}

/// Reads that ended, of each protocol, and of the other volume.
type Counts = [Rc<Cell<u64>>; 4];

/// Starts hosts that read a block again and again, `EACH` of a kind.
async fn flood(world: &SimWorld, counts: &Counts) {
    const EACH: u8 = 12;
    let add = |count: &Cell<u64>| count.set(count.get() + 1);
    for number in 1..=EACH {
        let (nvme, of_nvme) = (nvme_host(world, number).await, counts[0].clone());
        world.spawn(async move {
            while nvme.read(Lba(1), 1).await.is_ok() {
                add(&of_nvme);
            }
        });
        for (uuid, count) in [(VOLUME, &counts[1]), (OTHER, &counts[3])] {
            let (mut scsi, count) = (session_of_port(world, uuid, number).await, count.clone());
            world.spawn(async move {
                loop {
                    read(&mut scsi, 1, 1).await;
                    add(&count);
                }
            });
        }
        let (mut nbd, of_nbd) = (nbd::Client::open(world, "db").await, counts[2].clone());
        world.spawn(async move {
            loop {
                nbd.read(BLOCK as u64, BLOCK).await;
                add(&of_nbd);
            }
        });
    }
}

/// Hosts of all protocols together get what their volume was promised, and those of another volume theirs.
#[test]
fn floods_of_three_protocols_share_the_rate_of_their_volume() {
    const RATE: f64 = 600.0;
    const OTHER_RATE: f64 = 900.0;
    const SECONDS: u64 = 4;
    simulate(async |world| {
        let core = serve(&world, false).await;
        let _by_nvme = serve_all(&world, &core).await;
        for uuid in [VOLUME, OTHER] {
            write(&mut session(&world, uuid).await, 1, &pattern(1, 1)).await;
        }
        let config = SchedulerConfig {
            policy: "sts".parse().expect("a policy"),
            cost_model: CostModel::Separate,
            ceiling: Quota { per_second: [RATE + OTHER_RATE, 100.0] },
            window_blocks: [64, 8],
        };
        let quota = |reads| Quota { per_second: [reads, 10.0] };
        core.schedule(
            DeviceIndex(0),
            Some(config),
            &[(VOLUME, quota(RATE)), (OTHER, quota(OTHER_RATE))],
        );
        let counts = Counts::default();
        flood(&world, &counts).await;
        world.sleep_until(world.now() + Duration::from_secs(1)).await;
        counts.iter().for_each(|count| count.set(0));
        world.sleep_until(world.now() + Duration::from_secs(SECONDS)).await;
        let rates = counts.each_ref().map(|count| count.get() as f64 / SECONDS as f64);
        let together: f64 = rates[..3].iter().sum();
        assert!((together / RATE - 1.0).abs() < 0.03, "{rates:?}");
        assert!((rates[3] / OTHER_RATE - 1.0).abs() < 0.03, "{rates:?}");
        // No protocol has a way round the others.
        for rate in &rates[..3] {
            assert!((rate / (RATE / 3.0) - 1.0).abs() < 0.15, "{rates:?}");
        }
    });
}

/// A tenant's space is one for all protocols: writes that add blocks are refused, others are not.
#[test]
fn space_that_is_spent_is_told_by_each_protocol() {
    simulate(async |world| {
        let core = serve(&world, false).await;
        let _by_nvme = serve_all_for(&world, &core, Some("acme")).await;
        core.bound_tenants(vec!["acme".into()]);
        core.allot(&[(0, 4)]);
        let (nvme, mut scsi) = (nvme_host(&world, 1).await, session(&world, VOLUME).await);
        let mut nbd = nbd::Client::open(&world, "db").await;
        let data = pattern(4, 9);
        write(&mut scsi, 0, &data).await;
        let more = Cdb::with_blocks(scsi::WRITE_10, 4, 1);
        let refused = scsi.command(more, &data[..BLOCK], 0).await;
        assert_eq!(refused, failed(7, 0x27, 7, -(BLOCK as i64)));
        let by_nvme = nvme.write(Lba(4), slice(&data[..BLOCK])).await;
        assert_eq!(status(by_nvme), Status::CAPACITY_EXCEEDED);
        assert_eq!(nbd.write(4 * BLOCK as u64 + 5, &[1; 10]).await, ENOSPC);
        // What is there may be written again.
        write(&mut scsi, 2, &data[..BLOCK]).await;
        nvme.write(Lba(2), slice(&data[..BLOCK])).await.expect("no more blocks");
        assert_eq!(nbd.write(2 * BLOCK as u64 + 5, &[1; 10]).await, 0);
        core.allot(&[(0, 5)]);
        assert_eq!(nbd.write(4 * BLOCK as u64 + 5, &[1; 10]).await, 0);
        let refused = scsi.command(Cdb::with_blocks(scsi::WRITE_10, 5, 1), &data[..BLOCK], 0).await;
        assert_eq!(refused.sense, Some((7, 0x27, 7)), "NBD has the last one");
        write(&mut session(&world, OTHER).await, 0, &data).await;
    });
}
