//! The behaviour of a volume without faults.

use crate::common::{Sim, TestDevice};
use io_traits::{Buffer, BufferSlice};
use units::{BLOCK_SIZE, Lba, LbaRange};
use uuid::Uuid;
use volume::{
    CompareError, CutOff, ExtentAllocator, FormatOptions, Probe, Shard, ShardOptions, Volume,
    VolumeError, VolumeSpec, active_shards, format, probe, read_superblock,
};

const MIB: u64 = 256;

fn data(tag: u8, blocks: usize) -> BufferSlice {
    Buffer::from_bytes(&vec![tag; blocks * BLOCK_SIZE]).into_slice()
}

fn range(start: u64, blocks: u64) -> LbaRange {
    LbaRange::new(Lba(start), blocks)
}

fn spec(number: u128, blocks: u64) -> VolumeSpec {
    VolumeSpec { uuid: Uuid::from_u128(number), name: format!("volume {number}"), blocks }
}

fn start(sim: &mut Sim) -> Shard<TestDevice> {
    let device = sim.device.clone();
    let shard = sim.run_ok(async {
        let superblock = read_superblock(&device).await.expect("formatted");
        let extents = ExtentAllocator::new(&superblock);
        let active = active_shards(&device, &superblock).await.expect("readable");
        assert!(active.is_empty() || active == [0]);
        let options = ShardOptions::default();
        let recovered =
            Shard::recover(device.clone(), superblock, 0, extents, options).await.expect("sound");
        assert_eq!(recovered.is_new(), active.is_empty());
        recovered.confirm().await.expect("sound").start().await.expect("room")
    });
    for task in [0, 1] {
        let shard = shard.clone();
        sim.spawn(async move {
            if task == 0 { shard.run_committer().await } else { shard.run_checkpointer().await }
        });
    }
    shard
}

fn fresh(blocks: u64, volatile: bool) -> (Sim, Shard<TestDevice>) {
    let device = TestDevice::new(blocks, volatile);
    let mut sim = Sim::new(device.clone(), 1);
    sim.run_ok(async {
        assert_eq!(probe(&device).await, Ok(Probe::Blank));
        let options = FormatOptions { uuid: Uuid::from_u128(42) };
        format(&device, &options).await.expect("large enough");
        assert!(matches!(probe(&device).await, Ok(Probe::Farflash(_))));
    });
    let shard = start(&mut sim);
    (sim, shard)
}

fn reopen(sim: &mut Sim) -> Shard<TestDevice> {
    let survivor = sim.device.after_crash(&mut sim.random);
    *sim = Sim::new(survivor, 2);
    start(sim)
}

fn check(sim: &mut Sim, shard: &Shard<TestDevice>) {
    sim.settle();
    let report = sim.run_ok(shard.check(true));
    assert!(report.findings.is_empty(), "{report:#?}");
}

async fn expect(volume: &Volume<TestDevice>, start: u64, tags: &[u8]) {
    let found = volume.read(range(start, tags.len() as u64)).await.expect("readable");
    let bytes = found.to_vec();
    for ((block, tag), crc) in bytes.chunks(BLOCK_SIZE).zip(tags).zip(&found.crcs) {
        assert!(block.iter().all(|byte| byte == tag), "expected {tag}, found {}", block[0]);
        assert_eq!(checksum::crc32c(block), *crc);
    }
    assert_eq!(bytes.len(), tags.len() * BLOCK_SIZE);
}

#[test]
fn what_is_written_is_read_back_after_a_clean_and_an_unclean_restart() {
    for volatile in [false, true] {
        let (mut sim, shard) = fresh(64 * MIB, volatile);
        sim.run_ok(async {
            let volume = shard.create_volume(spec(1, 1 << 40)).await.expect("room");
            expect(&volume, 0, &[0; 100]).await;
            volume.write(Lba(5), data(1, 3), None).await.expect("room");
            volume.write(Lba(1 << 39), data(2, 1), None).await.expect("room");
            volume.write(Lba(6), data(3, 1), None).await.expect("room");
            expect(&volume, 4, &[0, 1, 3, 1, 0]).await;
            volume.unmap(range(7, 1)).await.expect("possible");
            expect(&volume, 4, &[0, 1, 3, 0, 0]).await;
            assert_eq!(volume.mapped_blocks(), 3);
        });
        check(&mut sim, &shard);
        let shard = reopen(&mut sim);
        check(&mut sim, &shard);
        sim.run_ok(async {
            let volume = shard.volume(Uuid::from_u128(1)).expect("durable");
            assert_eq!((volume.name(), volume.blocks()), ("volume 1", 1 << 40));
            expect(&volume, 4, &[0, 1, 3, 0, 0]).await;
            expect(&volume, 1 << 39, &[2, 0]).await;
            volume.write(Lba(7), data(4, 1), None).await.expect("room");
            shard.shutdown().await.expect("writable");
            let refused = volume.write(Lba(7), data(4, 1), None).await;
            assert_eq!(refused, Err(VolumeError::ShutDown));
            expect(&volume, 6, &[3, 4]).await;
        });
        let shard = reopen(&mut sim);
        sim.run_ok(async {
            let volume = shard.volume(Uuid::from_u128(1)).expect("durable");
            expect(&volume, 4, &[0, 1, 3, 4, 0]).await;
        });
        check(&mut sim, &shard);
    }
}

#[test]
fn volumes_come_go_and_change_their_size() {
    let (mut sim, shard) = fresh(64 * MIB, false);
    sim.run_ok(async {
        let a = shard.create_volume(spec(1, 100)).await.expect("room");
        let b = shard.create_volume(spec(2, 100)).await.expect("room");
        let again = shard.create_volume(spec(2, 100)).await.err();
        assert_eq!(again, Some(VolumeError::Exists(Uuid::from_u128(2))));
        a.write(Lba(90), data(1, 10), None).await.expect("room");
        b.write(Lba(90), data(2, 10), None).await.expect("room");
        let beyond = a.write(Lba(91), data(1, 10), None).await;
        assert!(matches!(beyond, Err(VolumeError::OutOfRange { blocks: 100, .. })));
        let cut_off = a.resize(95).await.expect("possible");
        assert_eq!(cut_off, Some(CutOff { blocks: 5, is_all: true }));
        assert!(a.read(range(90, 6)).await.is_err());
        assert_eq!(a.resize(100).await, Ok(None), "nothing is cut off");
        expect(&a, 94, &[1, 0, 0]).await;
        a.write(Lba(96), data(3, 1), None).await.expect("room");
        expect(&a, 94, &[1, 0, 3]).await;
        shard.delete_volume(b.uuid()).await.expect("there");
        assert_eq!(b.read(range(0, 1)).await.err(), Some(VolumeError::Deleted));
        assert_eq!(shard.delete_volume(b.uuid()).await, Err(VolumeError::Deleted));
        shard.create_volume(spec(2, 7)).await.expect("the name is free again");
        shard.checkpoint().await.expect("writable");
        shard.checkpoint().await.expect("writable");
        assert_eq!(shard.capacity().data, 6);
    });
    check(&mut sim, &shard);
    let shard = reopen(&mut sim);
    sim.run_ok(async {
        let sizes: Vec<u64> = shard.volumes().iter().map(Volume::blocks).collect();
        assert_eq!(sizes, [100, 7]);
        expect(&shard.volumes()[0], 94, &[1, 0, 3]).await;
        expect(&shard.volumes()[1], 0, &[0; 7]).await;
    });
    check(&mut sim, &shard);
}

#[test]
fn compare_and_write_changes_all_or_says_where_it_differs() {
    let (mut sim, shard) = fresh(64 * MIB, true);
    sim.run_ok(async {
        let volume = shard.create_volume(spec(1, 100)).await.expect("room");
        volume.write(Lba(1), data(1, 1), None).await.expect("room");
        let mut old = vec![0; 2 * BLOCK_SIZE];
        old[BLOCK_SIZE..].fill(1);
        let old = Buffer::from_bytes(&old).into_slice();
        assert_eq!(volume.compare(Lba(0), old.clone()).await, Ok(()));
        let swapped = volume.compare_and_write(Lba(0), old.clone(), data(7, 2)).await;
        assert_eq!(swapped, Ok(()));
        expect(&volume, 0, &[7, 7, 0]).await;
        let refused = volume.compare_and_write(Lba(0), old, data(8, 2)).await;
        assert_eq!(refused, Err(CompareError::Miscompare { offset_bytes: 0 }));
        let offset_bytes = BLOCK_SIZE as u64;
        let refused = volume.compare(Lba(1), data(7, 2)).await;
        assert_eq!(refused, Err(CompareError::Miscompare { offset_bytes }));
        expect(&volume, 0, &[7, 7, 0]).await;
    });
    check(&mut sim, &shard);
}
