//! The end of a volume of 2^63 bytes, than which none is larger.

use crate::common::{Sim, TestDevice, check, crash, data, fresh, range, tags};
use crate::scrub::scrub;
use layout::VOLUME_BLOCKS_MAX;
use units::{BLOCK_SIZE, Lba, LbaRange};
use volume::{CompareError, CutOff, Volume, VolumeError};

const BLOCKS: u64 = VOLUME_BLOCKS_MAX;
const LAST: u64 = BLOCKS - 1;

fn largest() -> (Sim, Volume<TestDevice>) {
    assert_eq!(u128::from(BLOCKS) * BLOCK_SIZE as u128, 1 << 63);
    fresh(&TestDevice::new(1 << 14, true), None, BLOCKS)
}

/// Cuts the power and opens the shard again: so many blocks hold data, and a check and a scrub find nothing wrong.
fn reopen(sim: &mut Sim, mapped: u64) -> Volume<TestDevice> {
    let volume = crash(sim);
    check(sim, volume.shard());
    assert_eq!(volume.shard().capacity().data, mapped);
    let (damaged, ..) = sim.run_ok(scrub(volume.shard()));
    assert_eq!(damaged, []);
    volume
}

/// As [`reopen`], and the device checked as a whole finds nothing wrong either.
fn close(sim: &mut Sim, mapped: u64) {
    let volume = reopen(sim, mapped);
    sim.run_ok(volume.shard().shutdown()).expect("writable");
    assert_eq!(crate::fsck::check(sim).faults, []);
}

/// Each kind of request, of the last block and of ranges that end there.
#[test]
fn requests_of_the_last_blocks_take_effect() {
    let (mut sim, volume) = largest();
    sim.run_ok(async {
        volume.write(Lba(LAST), data(1, 1), None).await.expect("room");
        assert_eq!(tags(&volume, LAST, 1).await, [1]);
        volume.write(Lba(BLOCKS - 256), data(2, 256), None).await.expect("room");
        assert_eq!(tags(&volume, BLOCKS - 257, 257).await, [&[0][..], &[2; 256]].concat());
        volume.compare_and_write(Lba(LAST), data(2, 1), data(3, 1)).await.expect("equal");
        let differs = volume.compare_and_write(Lba(LAST - 1), data(2, 2), data(4, 2)).await;
        let at = BLOCK_SIZE as u64;
        assert_eq!(differs, Err(CompareError::Miscompare { offset_bytes: at }));
        volume.compare(Lba(LAST - 1), data(2, 1)).await.expect("not written");
        volume.verify(range(BLOCKS - 1000, 1000)).await.expect("sound");
    });
    let volume = reopen(&mut sim, 256);
    sim.run_ok(async {
        assert_eq!(tags(&volume, LAST - 1, 2).await, [2, 3]);
        // What is zeroed and not deallocated holds zeroes.
        volume.write(Lba(LAST), data(0, 1), None).await.expect("room");
        assert_eq!((tags(&volume, LAST - 1, 2).await, volume.mapped_blocks()), (vec![2, 0], 256));
        volume.unmap(range(LAST, 1)).await.expect("possible");
        assert_eq!(volume.mapped_blocks(), 255);
        let several = [range(LAST - 9, 3), range(LAST - 2, 3), range(LAST, 1)];
        assert_eq!(volume.unmap_together(&several).await, Ok(true));
        let left = [2, 0, 0, 0, 2, 2, 2, 2, 0, 0, 0];
        assert_eq!(tags(&volume, LAST - 10, 11).await, left);
    });
    let volume = reopen(&mut sim, 250);
    sim.run_ok(async {
        volume.write(Lba(0), data(5, 2), None).await.expect("room");
        // All but the first block, in the background.
        volume.unmap(range(1, LAST)).await.expect("possible");
        assert_eq!(tags(&volume, BLOCKS - 300, 300).await, [0; 300]);
        volume.write(Lba(LAST), data(6, 1), None).await.expect("room");
    });
    let volume = reopen(&mut sim, 2);
    assert_eq!(sim.run_ok(tags(&volume, 0, 2)), [5, 0]);
    assert_eq!(sim.run_ok(tags(&volume, LAST - 1, 2)), [0, 6]);
    close(&mut sim, 2);
}

/// Ranges that pass the end by a block, that begin behind it, and of which no number says the end.
#[test]
fn requests_that_pass_the_end_are_refused_whatever_they_are() {
    let (mut sim, volume) = largest();
    sim.run_ok(volume.write(Lba(BLOCKS - 256), data(1, 256), None)).expect("room");
    let refused = |outcome: Result<(), VolumeError>, range: LbaRange| {
        assert_eq!(outcome, Err(VolumeError::OutOfRange { range, blocks: BLOCKS }));
    };
    let long = [range(1, BLOCKS), range(LAST, u64::MAX), range(u64::MAX, u64::MAX)];
    let short = [(LAST, 2), (BLOCKS, 1), (BLOCKS - 255, 256), (u64::MAX, 1), (u64::MAX - 1, 2)];
    let short = short.map(|(start, blocks)| range(start, blocks));
    sim.run_ok(async {
        for beyond in short.into_iter().chain(long) {
            refused(volume.read(beyond).await.map(drop), beyond);
            refused(volume.verify(beyond).await, beyond);
            refused(volume.unmap(beyond).await, beyond);
            refused(volume.unmap_together(&[range(LAST, 1), beyond]).await.map(drop), beyond);
        }
        for beyond in short {
            let blocks = data(2, beyond.blocks);
            refused(volume.write(beyond.start, blocks.clone(), None).await, beyond);
            let error = VolumeError::OutOfRange { range: beyond, blocks: BLOCKS };
            let compared = volume.compare(beyond.start, blocks.clone()).await;
            assert_eq!(compared, Err(CompareError::Volume(error.clone())));
            let compared = volume.compare_and_write(beyond.start, data(1, beyond.blocks), blocks);
            assert_eq!(compared.await, Err(CompareError::Volume(error)));
        }
        assert_eq!(tags(&volume, BLOCKS - 257, 257).await, [&[0][..], &[1; 256]].concat());
    });
    close(&mut sim, 256);
}

/// A block less, none at all, and all of them again, in one run and with a power cut behind each: what was cut off is gone.
#[test]
fn the_largest_volume_is_made_smaller_and_as_large_again() {
    for is_cut in [false, true] {
        let (mut sim, mut volume) = largest();
        sim.run_ok(volume.write(Lba(BLOCKS - 3), data(1, 3), None)).expect("room");
        assert_eq!(sim.run_ok(volume.resize(BLOCKS + 1)), Err(VolumeError::Spec));
        assert_eq!(sim.run_ok(volume.resize(u64::MAX)), Err(VolumeError::Spec));
        for (size, cut) in [(LAST, 1), (BLOCKS - 2, 2), (1 << 32, 3), (0, 3)] {
            let cut_off = sim.run_ok(volume.resize(size));
            assert_eq!(cut_off, Ok(Some(CutOff { blocks: cut, is_all: true })), "{size}");
            if is_cut {
                volume = reopen(&mut sim, 3 - cut);
            }
            assert_eq!(volume.blocks(), size);
            let behind = sim.run_ok(volume.write(Lba(size), data(2, 1), None));
            assert!(matches!(behind, Err(VolumeError::OutOfRange { .. })), "{size}: {behind:?}");
            assert_eq!(sim.run_ok(volume.resize(BLOCKS)), Ok(None));
            if is_cut {
                volume = reopen(&mut sim, 3 - cut);
            }
            assert_eq!(volume.blocks(), BLOCKS);
            let kept = [[1; 3].as_slice(), &[0; 3]].concat();
            let found = sim.run_ok(tags(&volume, BLOCKS - 3, 3));
            assert_eq!(found, kept[cut as usize..][..3], "{size}");
            sim.run_ok(volume.write(Lba(BLOCKS - 3), data(1, 3), None)).expect("room");
        }
        close(&mut sim, 3);
    }
}
