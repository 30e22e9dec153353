//! Replay of records that this program does not write in this way: the format allows them, or forbids them.

use io_traits::Device;
use layout::{DecodeError, Entry, KEY_LIMIT};
use units::{BLOCK_SIZE, Lba, LbaRange, Pba, PbaRange, Slo};
use uuid::Uuid;
use volume::{OpenError, Shard, VolumeError, VolumeSpec};

use crate::common::{
    Random, Sim, TestDevice, check, data, fresh, journal_of, open, open_with, range,
};
use crate::common::{tags, try_open, try_open_with};
use crate::forge::place_of;
use crate::forged_records::{NONE, forged, formatted};

const BLOCKS: u64 = 1 << 20;
const VOLUME: u32 = 1;
/// More than what is taken out of a map at once: it stays pending.
const LARGE: u64 = 3000;

/// A shard of which nothing is left but a journal of one record.
struct Staged {
    device: TestDevice,
    /// First block of an extent that the record reserves.
    data: Pba,
    entries: Vec<Entry<'static>>,
    uuid: Uuid,
    journal: u64,
}

impl Staged {
    fn new() -> Self {
        let (mut sim, superblock) = formatted();
        drop(open_with(&mut sim, NONE));
        let device = sim.device.after_crash(&mut Random(1));
        let data = superblock.extent(1).start.plus(2);
        let create = Entry::Create {
            volume: VOLUME,
            uuid: Uuid::from_u128(1),
            blocks: BLOCKS,
            slo: Slo::default(),
            name: "v".into(),
            access: Vec::new().into(),
        };
        let entries = vec![Entry::Reserve { extent: 1 }, create];
        let journal = journal_of(&superblock).start;
        Self { device, data, entries, uuid: superblock.uuid, journal }
    }

    /// A write of blocks of one tag, of which the data lies in those blocks.
    fn write(&mut self, lba: u64, tag: u8, blocks: &[u64]) {
        blocks.iter().for_each(|block| self.device.put(self.data.plus(*block), [tag; BLOCK_SIZE]));
        self.name(lba, tag, blocks, true);
    }

    /// The same, without the data.
    fn name(&mut self, lba: u64, tag: u8, blocks: &[u64], trusted: bool) {
        let runs: Vec<PbaRange> =
            blocks.iter().map(|block| PbaRange::new(self.data.plus(*block), 1)).collect();
        self.entries.push(Entry::Write {
            volume: VOLUME,
            lba: Lba(lba),
            trusted,
            runs: runs.into(),
            crcs: vec![checksum::crc32c(&[tag; BLOCK_SIZE]); blocks.len()].into(),
            metadata: Vec::new().into(),
        });
    }

    fn unmap(&mut self, start: u64, blocks: u64) {
        let range = LbaRange::new(Lba(start), blocks);
        self.entries.push(Entry::Unmap { volume: VOLUME, range });
    }

    fn seal(&self) -> Sim {
        let record = forged(self.uuid, 1, &self.entries);
        self.device.put(Pba(self.journal), record);
        Sim::new(self.device.clone(), 4)
    }

    /// Starts the shard, and checks it.
    fn open(&self) -> (Sim, Shard<TestDevice>) {
        let mut sim = self.seal();
        let shard = open_with(&mut sim, NONE);
        check(&mut sim, &shard);
        (sim, shard)
    }

    /// Starts the shard; why that does not work.
    fn refused(&self) -> OpenError {
        let mut sim = self.seal();
        sim.run_ok(try_open_with(sim.device.clone(), NONE)).err().expect("it is refused")
    }
}

fn first_tags(sim: &mut Sim, shard: &Shard<TestDevice>, lbas: &[u64]) -> Vec<u8> {
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    let one = |lba: &u64| sim.run_ok(tags(&volume, *lba, 1))[0];
    lbas.iter().map(one).collect()
}

/// REPLAY-4: another program may take a large range out of its map at once, and use its blocks again; here that range is
/// pending.
#[test]
fn a_block_of_a_large_deallocation_can_be_used_by_a_later_entry() {
    let mut staged = Staged::new();
    staged.write(0, 10, &[0, 1]);
    staged.write(5000, 12, &[2]);
    staged.unmap(0, LARGE);
    staged.unmap(4900, LARGE);
    staged.write(9000, 20, &[1]);
    let (mut sim, shard) = staged.open();
    assert_eq!(first_tags(&mut sim, &shard, &[0, 1, 5000, 9000]), [0, 0, 0, 20]);
    sim.run_ok(shard.checkpoint()).expect("writable");
    check(&mut sim, &shard);
}

/// REPLAY-4: a write that names what its block leads to already changes nothing, also beside a pending range.
#[test]
fn a_write_may_be_named_twice() {
    let mut staged = Staged::new();
    staged.write(5000, 12, &[2]);
    staged.unmap(4900, LARGE);
    staged.write(0, 10, &[0]);
    staged.write(0, 10, &[0]);
    let (mut sim, shard) = staged.open();
    assert_eq!(first_tags(&mut sim, &shard, &[0, 5000]), [10, 0]);
}

/// REPLAY-4: a block is in one map.
#[test]
fn a_block_in_use_is_refused() {
    let mut staged = Staged::new();
    staged.write(0, 10, &[0]);
    staged.write(1, 10, &[0]);
    let error = staged.refused();
    let in_use = |error: &DecodeError| *error == DecodeError::Field("block in use");
    assert!(matches!(&error, OpenError::Damaged { error, .. } if in_use(error)), "{error}");
}

/// A volume has so many pending ranges, however many large deallocations its journal has.
#[test]
fn more_large_deallocations_than_may_be_pending_are_replayed() {
    let mut staged = Staged::new();
    staged.write(BLOCKS - 1, 30, &[9]);
    for number in 0..layout::PENDING_UNMAPS_MAX as u64 + 6 {
        staged.unmap(number * (LARGE + 10), LARGE + number % 7);
    }
    staged.write(LARGE * 3, 31, &[10]);
    let (mut sim, shard) = staged.open();
    sim.run_ok(shard.checkpoint()).expect("writable");
    let sim_device = sim.device.after_crash(&mut Random(2));
    let mut sim = Sim::new(sim_device, 3);
    let shard = open_with(&mut sim, NONE);
    assert_eq!(first_tags(&mut sim, &shard, &[0, LARGE * 3, BLOCKS - 1]), [0, 31, 30]);
    check(&mut sim, &shard);
}

/// A write beyond its volume, or of a volume that is deleted, is no record that this program made.
#[test]
fn a_write_that_its_volume_does_not_have_is_refused() {
    let mut beyond = Staged::new();
    beyond.write(BLOCKS - 1, 10, &[0, 1]);
    let mut deleted = Staged::new();
    deleted.entries.push(Entry::Delete { volume: VOLUME });
    deleted.write(0, 10, &[0]);
    let mut shrunk = Staged::new();
    shrunk.entries.push(Entry::Resize { volume: VOLUME, blocks: 10 });
    shrunk.write(10, 10, &[0]);
    for staged in [beyond, deleted, shrunk] {
        let error = staged.refused();
        let is_range = |error: &DecodeError| *error == DecodeError::Field("range");
        assert!(matches!(&error, OpenError::Damaged { error, .. } if is_range(error)), "{error}");
    }
    let mut within = Staged::new();
    within.write(BLOCKS - 2, 10, &[0, 1]);
    let (mut sim, shard) = within.open();
    assert_eq!(first_tags(&mut sim, &shard, &[BLOCKS - 2, BLOCKS - 1]), [10, 10]);
}

/// REPLAY-6: of two writes whose data is not there, that one took effect whose former block a later write has.
#[test]
fn only_the_write_that_freed_a_block_is_replayed_for_its_next_user() {
    let mut staged = Staged::new();
    staged.write(0, 10, &[0]);
    staged.write(5, 15, &[1]);
    staged.write(6, 16, &[2]);
    staged.name(5, 99, &[3], false);
    staged.name(0, 99, &[4], false);
    staged.name(6, 99, &[5], false);
    staged.write(9, 20, &[0]);
    let mut sim = staged.seal();
    let shard = open_with(&mut sim, NONE);
    assert_eq!(first_tags(&mut sim, &shard, &[5, 6, 9]), [15, 16, 20]);
    let volume = shard.volume(Uuid::from_u128(1)).expect("there");
    let lost = sim.run_ok(volume.read(range(0, 1)));
    assert!(matches!(lost, Err(VolumeError::Corrupt { .. })), "its data has rotted since");
}

/// REPLAY-2: of a write in two runs the first cannot be read, and the second is not what was written.
#[test]
fn a_write_is_undone_whose_second_run_differs_behind_one_that_cannot_be_read() {
    for is_there in [false, true] {
        let mut staged = Staged::new();
        staged.write(0, 10, &[0, 2]);
        staged.name(0, 20, &[4, 6], false);
        if is_there {
            staged.device.put(staged.data.plus(6), [20; BLOCK_SIZE]);
        }
        let unreadable = (staged.data.plus(4).0, u32::MAX);
        staged.device.faults(|faults| faults.read_errors.extend([unreadable]));
        let mut sim = staged.seal();
        let shard = open_with(&mut sim, NONE);
        match is_there {
            false => assert_eq!(first_tags(&mut sim, &shard, &[0, 1]), [10, 10]),
            true => assert_eq!(first_tags(&mut sim, &shard, &[1]), [20]),
        }
    }
}

/// REPLAY-2: what its data would be cannot be there.
#[test]
fn a_run_beyond_the_device_keeps_its_write_from_effect() {
    let mut staged = Staged::new();
    staged.write(0, 10, &[0]);
    let blocks = staged.device.limits().blocks;
    staged.name(0, 20, &[blocks - staged.data.0], false);
    let mut sim = staged.seal();
    let shard = open_with(&mut sim, NONE);
    assert_eq!(first_tags(&mut sim, &shard, &[0]), [10]);
}

/// The largest volumes are shrunk to nothing, and deleted.
#[test]
fn the_last_keys_of_a_volume_go_with_it() {
    let last = KEY_LIMIT.min(layout::VOLUME_BLOCKS_MAX) - 1;
    for entry in [Entry::Resize { volume: VOLUME, blocks: 0 }, Entry::Delete { volume: VOLUME }] {
        let mut staged = Staged::new();
        let grow = Entry::Resize { volume: VOLUME, blocks: layout::VOLUME_BLOCKS_MAX };
        staged.entries.push(grow);
        staged.write(last, 10, &[0]);
        staged.entries.push(entry);
        let (mut sim, shard) = staged.open();
        sim.run_ok(shard.checkpoint()).expect("writable");
        check(&mut sim, &shard);
        let mapped: u64 = shard.volumes().iter().map(|volume| volume.mapped_blocks()).sum();
        assert_eq!(mapped, 0);
    }
}

/// The reason is the device, not the shard's root. Method: replay needs a leaf that cannot be read.
#[test]
fn a_node_that_replay_cannot_read_is_an_error_of_the_device() {
    let (mut sim, volume) = fresh(&TestDevice::new(64 << 8, false), None, 1000);
    sim.run_ok(volume.write(Lba(0), data(1, 2), None)).expect("room");
    sim.run_ok(volume.shard().checkpoint()).expect("writable");
    let (_, leaf) = (0, place_of(&sim.device, VOLUME, 0).0);
    sim.run_ok(volume.write(Lba(1), data(2, 1), None)).expect("room");
    let mut sim = Sim::new(sim.device.after_crash(&mut Random(1)), 2);
    sim.device.faults(|faults| faults.read_errors.extend([(leaf.0, u32::MAX)]));
    let error = sim.run_ok(try_open(sim.device.clone())).err().expect("it needs the leaf");
    assert!(matches!(error, OpenError::Device(_)), "{error}");
    sim.device.faults(|faults| faults.read_errors.clear());
    let shard = open(&mut sim);
    assert_eq!(first_tags(&mut sim, &shard, &[0, 1]), [1, 2]);
}

/// The table of volumes takes several nodes.
#[test]
fn a_shard_with_many_volumes_starts_with_all_of_them() {
    const COUNT: u128 = 700;
    let (mut sim, volume) = fresh(&TestDevice::new(1 << 16, false), None, 1000);
    let shard = volume.shard().clone();
    for number in 2..=COUNT {
        let spec = VolumeSpec { uuid: Uuid::from_u128(number), name: "v".into(), blocks: 9 };
        sim.run_ok(shard.create_volume(spec)).expect("room");
    }
    sim.run_ok(shard.checkpoint()).expect("writable");
    let mut sim = Sim::new(sim.device.after_crash(&mut Random(1)), 2);
    let shard = open(&mut sim);
    assert_eq!(shard.volumes().len(), COUNT as usize);
    check(&mut sim, &shard);
}
