//! Parts of blocks, and which blocks hold data.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use crate::common::{Random, Sim, TestDevice, check, crash, data, fresh, range, run_many};
use io_traits::Buffer;
use units::{BLOCK_SIZE, Lba, MetadataSize, SectorSize};
use uuid::Uuid;
use volume::{
    Blocks, CompareError, Terms, VolumeError, VolumeExtent, VolumeSpec, WRITE_BLOCKS_MAX,
};

/// A buffer of `blocks` blocks of rubbish, in which `part` is filled with `tag`: the rest is not to be written.
fn part_of(blocks: usize, part: std::ops::Range<usize>, tag: u8) -> Buffer {
    let mut buffer = Buffer::from_bytes(&vec![0xA5; blocks * BLOCK_SIZE]);
    buffer.as_mut_bytes()[part].fill(tag);
    buffer
}

fn extent(blocks: u64, is_mapped: bool) -> VolumeExtent {
    VolumeExtent { blocks, is_mapped }
}

/// Method: parts of random places and lengths, against a model of bytes; then the power is cut, and all is compared.
#[test]
fn parts_of_blocks_are_written_and_nothing_else_changes() {
    const BLOCKS: usize = 16;
    let device = TestDevice::new(64 * 256, true);
    let (mut sim, volume) = fresh(&device, None, BLOCKS as u64);
    let mut model = vec![0; BLOCKS * BLOCK_SIZE];
    let mut random = Random(7);
    for round in 1..=120_u8 {
        let first = random.below(model.len() as u64 - 1) as usize;
        let most = (model.len() - first).min(if round % 2 == 0 { 200 } else { 3 * BLOCK_SIZE });
        let end = first + 1 + random.below(most as u64) as usize;
        let end = end.min(model.len());
        let lba = first / BLOCK_SIZE;
        let blocks = end.div_ceil(BLOCK_SIZE) - lba;
        let part = first - lba * BLOCK_SIZE..end - lba * BLOCK_SIZE;
        let buffer = part_of(blocks, part.clone(), round);
        sim.run_ok(volume.write_part(Lba(lba as u64), buffer, part)).expect("room");
        model[first..end].fill(round);
        let found = sim.run_ok(volume.read(range(0, BLOCKS as u64))).expect("sound").to_vec();
        assert!(found == model, "round {round}: bytes {first}..{end}");
    }
    let shard = volume.shard().clone();
    check(&mut sim, &shard);
    drop((volume, shard));
    let volume = crash(&mut sim);
    let found = sim.run_ok(volume.read(range(0, BLOCKS as u64))).expect("sound").to_vec();
    assert!(found == model, "what was acknowledged is durable");
}

/// Method: many tasks write bytes of their own into the same two blocks at a time. A write that changed a block since another
/// one read it would be undone by that.
#[test]
fn parts_of_one_block_that_are_written_together_are_all_there() {
    const TASKS: u64 = 64;
    let device = TestDevice::new(64 * 256, true);
    let (mut sim, volume) = fresh(&device, None, 2);
    let each = 2 * BLOCK_SIZE / TASKS as usize;
    let writing = volume.clone();
    run_many(&mut sim, TASKS, TASKS, move |task| {
        let volume = writing.clone();
        async move {
            let start = task as usize * each;
            let (lba, skip) = (start / BLOCK_SIZE, start % BLOCK_SIZE);
            let part = skip..skip + each;
            let buffer = part_of(1, part.clone(), task as u8 + 1);
            volume.write_part(Lba(lba as u64), buffer, part).await.expect("room");
        }
    });
    let found = sim.run_ok(volume.read(range(0, 2))).expect("sound").to_vec();
    for (task, bytes) in found.chunks(each).enumerate() {
        assert!(bytes.iter().all(|byte| usize::from(*byte) == task + 1), "task {task}");
    }
}

/// Method: tasks write the sectors of one block, each its own again and again, and the power is cut behind each write and flush in
/// turn. Then each sector is whole, and has what was answered, or what was under way.
#[test]
fn sectors_of_one_block_are_whole_behind_a_power_cut_at_any_write() {
    const SECTOR: usize = 512;
    const TAGS: u8 = 4;
    for (cut, seed) in (0..30).flat_map(|cut| (0..3).map(move |seed| (cut, seed))) {
        let device = TestDevice::new(64 * 256, true);
        let (mut sim, volume) = fresh(&device, None, 2);
        let answered = Rc::new([const { Cell::new(0_u8) }; BLOCK_SIZE / SECTOR]);
        sim.random = Random(seed);
        sim.crash_at = Some(sim.device.completed() + cut);
        for sector in 0..BLOCK_SIZE / SECTOR {
            let (volume, answered) = (volume.clone(), answered.clone());
            sim.spawn(async move {
                let part = sector * SECTOR..(sector + 1) * SECTOR;
                for tag in 1..=TAGS {
                    let buffer = part_of(1, part.clone(), tag);
                    let expected = [tag - 1; SECTOR];
                    // Half of them compare before.
                    let written = match sector % 2 {
                        0 => volume
                            .write_part(Lba(0), buffer, part.clone())
                            .await
                            .map_err(CompareError::Volume),
                        _ => {
                            volume
                                .compare_and_write_part(Lba(0), &expected, buffer, part.clone())
                                .await
                        }
                    };
                    written.expect("room");
                    answered[sector].set(tag);
                }
            });
        }
        let is_over = || answered.iter().all(|tag| tag.get() == TAGS);
        let all = poll_fn(|_| if is_over() { Poll::Ready(()) } else { Poll::Pending });
        drop(sim.run(all));
        let answered = answered.each_ref().map(Cell::get);
        drop(volume);
        let volume = crash(&mut sim);
        let found = sim.run_ok(volume.read(range(0, 1))).expect("sound").to_vec();
        for (sector, bytes) in found.chunks(SECTOR).enumerate() {
            let (tag, least) = (bytes[0], answered[sector]);
            let is_whole = bytes.iter().all(|byte| *byte == tag);
            let is_right = (least..=least + 1).contains(&tag);
            assert!(
                is_whole && is_right,
                "cut {cut} seed {seed}: sector {sector} has {tag}, not {least}"
            );
        }
        let shard = volume.shard().clone();
        check(&mut sim, &shard);
    }
}

#[test]
fn a_part_keeps_the_metadata_of_its_blocks() {
    let device = TestDevice::new(64 * 256, true);
    let (mut sim, first) = fresh(&device, None, 1);
    let terms = Terms { metadata: MetadataSize::Bytes8, ..Terms::default() };
    let spec = VolumeSpec { uuid: Uuid::from_u128(7), name: "metadata".into(), blocks: 8 };
    let volume = sim.run_ok(first.shard().create_volume_under(spec, terms)).expect("room");
    let metadata: Vec<u8> = (0..24).collect();
    let blocks = Blocks { data: data(1, 3), metadata: metadata.clone().into() };
    sim.run_ok(volume.write(Lba(2), blocks, None)).expect("room");
    for part in [10..BLOCK_SIZE + 20, 0..2 * BLOCK_SIZE] {
        let buffer = part_of(2, part.clone(), 9);
        sim.run_ok(volume.write_part(Lba(2), buffer, part)).expect("room");
    }
    let found = sim.run_ok(volume.read(range(2, 3))).expect("sound");
    assert_eq!(found.metadata[..], metadata[..]);
    let tags: Vec<u8> = found.to_vec().chunks(BLOCK_SIZE).map(|block| block[7]).collect();
    assert_eq!(tags, [9, 9, 1]);
}

/// Method: each task reads eight bytes of its own with a comparison that fails, until its own write succeeds; all lie in the same
/// two blocks. A write that changed a block behind the comparison of another would be undone by that.
#[test]
fn parts_that_are_compared_and_written_together_are_all_there() {
    const TASKS: u64 = 32;
    let device = TestDevice::new(64 * 256, true);
    let (mut sim, volume) = fresh(&device, None, 2);
    let each = 2 * BLOCK_SIZE / TASKS as usize;
    let writing = volume.clone();
    run_many(&mut sim, TASKS, TASKS, move |task| {
        let volume = writing.clone();
        async move {
            let start = task as usize * each;
            let (lba, skip) = (Lba((start / BLOCK_SIZE) as u64), start % BLOCK_SIZE);
            let part = skip..skip + each;
            for step in 1..4_u8 {
                let write = |before, tag| {
                    let buffer = part_of(1, part.clone(), tag);
                    let (volume, part) = (volume.clone(), part.clone());
                    let expected = vec![before; each];
                    async move { volume.compare_and_write_part(lba, &expected, buffer, part).await }
                };
                let differs = write(step, 0xEE).await;
                assert_eq!(differs, Err(CompareError::Miscompare { offset_bytes: 0 }));
                write(step - 1, step).await.expect("as expected");
            }
        }
    });
    let found = sim.run_ok(volume.read(range(0, 2))).expect("sound").to_vec();
    assert!(found.iter().all(|byte| *byte == 3), "nothing is lost");
}

#[test]
fn a_part_is_compared_and_nothing_around_it() {
    let device = TestDevice::new(64 * 256, true);
    let (mut sim, volume) = fresh(&device, None, 8);
    sim.run_ok(volume.write(Lba(1), data(7, 2), None)).expect("room");
    let found = sim.run_ok(volume.read(range(0, 8))).expect("sound").to_vec();
    for (skip, len) in [(0, 1), (3584, 1024), (512, 8000), (BLOCK_SIZE - 1, 1), (100, 0)] {
        let at = BLOCK_SIZE + skip;
        let mut expected = found[at..at + len].to_vec();
        assert_eq!(sim.run_ok(volume.compare_part(Lba(1), skip, &expected)), Ok(()));
        if let Some(last) = expected.last_mut() {
            *last ^= 1;
            let offset_bytes = len as u64 - 1;
            let differs = Err(CompareError::Miscompare { offset_bytes });
            assert_eq!(sim.run_ok(volume.compare_part(Lba(1), skip, &expected)), differs);
            let buffer = part_of((skip + len).div_ceil(BLOCK_SIZE), skip..skip + len, 9);
            let swap = volume.compare_and_write_part(Lba(1), &expected, buffer, skip..skip + len);
            assert_eq!(sim.run_ok(swap), differs);
        }
    }
    assert!(sim.run_ok(volume.read(range(0, 8))).expect("sound").to_vec() == found);
    let beyond = sim.run_ok(volume.compare_part(Lba(7), 4000, &[0; 97]));
    assert!(matches!(beyond, Err(CompareError::Volume(VolumeError::OutOfRange { .. }))));
}

/// The size of sectors lies in the descriptor: it is there again after a crash, and a volume without it has blocks of 4096 bytes.
#[test]
fn the_size_of_sectors_is_kept_for_life() {
    let device = TestDevice::new(64 * 256, true);
    let (mut sim, first) = fresh(&device, None, 1);
    let spec = |id| VolumeSpec { uuid: Uuid::from_u128(id), name: "sectors".into(), blocks: 8 };
    let sector = SectorSize::Bytes512;
    let terms = Terms { sector, ..Terms::default() };
    let shard = first.shard().clone();
    let volume = sim.run_ok(shard.create_volume_under(spec(7), terms.clone())).expect("room");
    assert_eq!((volume.sector_size(), volume.blocks()), (sector, 8));
    let both = Terms { metadata: MetadataSize::Bytes8, ..terms };
    let refused = sim.run_ok(shard.create_volume_under(spec(8), both));
    assert!(matches!(refused, Err(VolumeError::Spec)));
    drop((volume, shard, first));
    let first = crash(&mut sim);
    assert_eq!(first.sector_size(), SectorSize::Bytes4096);
    let again = first.shard().volume(Uuid::from_u128(7)).expect("it was acknowledged");
    assert_eq!(again.sector_size(), sector);
}

#[test]
fn a_part_out_of_bounds_is_refused() {
    let device = TestDevice::new(64 * 256, true);
    let (mut sim, volume) = fresh(&device, None, 8);
    let beyond = sim.run_ok(volume.write_part(Lba(7), part_of(2, 0..5000, 1), 0..5000));
    assert!(matches!(beyond, Err(VolumeError::OutOfRange { .. })), "{beyond:?}");
    let blocks = WRITE_BLOCKS_MAX as usize + 1;
    let long = sim.run_ok(volume.write_part(Lba(0), Buffer::zeroed(blocks), 1..BLOCK_SIZE));
    assert!(matches!(long, Err(VolumeError::Length { .. })), "{long:?}");
    assert_eq!(sim.run_ok(volume.write_part(Lba(0), Buffer::zeroed(1), 5..5)), Ok(()));
}

#[test]
fn extents_tell_data_from_holes() {
    let device = TestDevice::new(64 * 256, true);
    let (mut sim, volume) = fresh(&device, None, 100_000);
    let extents = |sim: &mut Sim, start, blocks, max| {
        sim.run_ok(volume.extents(range(start, blocks), max)).expect("sound")
    };
    assert_eq!(extents(&mut sim, 0, 100_000, 9), [extent(100_000, false)]);
    for (lba, blocks) in [(10, 5), (15, 1), (17, 2), (50_000, 1)] {
        sim.run_ok(volume.write(Lba(lba), data(1, blocks), None)).expect("room");
    }
    let all = [
        extent(10, false),
        extent(6, true),
        extent(1, false),
        extent(2, true),
        extent(49_981, false),
        extent(1, true),
        extent(49_999, false),
    ];
    assert_eq!(extents(&mut sim, 0, 100_000, 9), all);
    assert_eq!(extents(&mut sim, 0, 100_000, 3), all[..3]);
    assert_eq!(extents(&mut sim, 12, 2, 9), [extent(2, true)]);
    assert_eq!(extents(&mut sim, 16, 1, 1), [extent(1, false)]);
    sim.run_ok(volume.unmap(range(11, 4))).expect("room");
    let around = [extent(1, true), extent(4, false), extent(1, true), extent(1, false)];
    assert_eq!(extents(&mut sim, 10, 7, 9), around);
    // Ranges that are too long to be taken out of the map at once: behind data, and all.
    sim.run_ok(volume.write(Lba(2), data(1, 3), None)).expect("room");
    sim.run_ok(volume.unmap(range(5, 40_000))).expect("room");
    let before = [extent(2, false), extent(3, true), extent(49_995, false), extent(1, true)];
    assert_eq!(extents(&mut sim, 0, 50_001, 9), before);
    sim.run_ok(volume.unmap(range(0, 100_000))).expect("room");
    assert_eq!(extents(&mut sim, 0, 100_000, 9), [extent(100_000, false)]);
    let beyond = sim.run_ok(volume.extents(range(99_999, 2), 9));
    assert!(matches!(beyond, Err(VolumeError::OutOfRange { .. })), "{beyond:?}");
}

/// One answer tells a bounded part of a volume that is all data: no core is kept from others by it.
#[test]
fn long_extents_are_told_in_parts() {
    let device = TestDevice::new(300 * 256, true);
    let (mut sim, volume) = fresh(&device, None, 70_000);
    for lba in (0..68_000).step_by(2000) {
        sim.run_ok(volume.write(Lba(lba), data(1, 2000), None)).expect("room");
    }
    let told = sim.run_ok(volume.extents(range(0, 70_000), 9)).expect("sound");
    assert_eq!(told, [extent(65_536, true)]);
    let rest = sim.run_ok(volume.extents(range(65_536, 4464), 9)).expect("sound");
    assert_eq!(rest, [extent(68_000 - 65_536, true), extent(2000, false)]);
}
