//! Structures that a root leads to are used only where they may lie: whole, sealed blocks that say otherwise are refused.

use layout::{
    Descriptor, EXTENT_TREE, Mapping, NodeHead, NodeView, PackedMapping, Root, encode_node,
};
use units::{BLOCK_SIZE, Lba, MetadataSize, Pba, PbaRange};
use volume::{DecodeError, Mended, OpenError, Probe, Problem, Superblock, probe, repair};

use crate::common::{Random, Sim, TestDevice, data, fresh, try_open, try_recover};
use crate::forge::forge;
use crate::fsck::check;

const DEVICE_BLOCKS: u64 = 64 << 8;
const EXTENT_BLOCKS: u32 = 1024;

/// A shard with a checkpoint, and nothing in its journal.
fn shut_down() -> (Sim, Superblock) {
    let device = TestDevice::new(DEVICE_BLOCKS, false);
    let (mut sim, volume) = fresh(&device, Some(EXTENT_BLOCKS), 20_000);
    sim.run_ok(volume.write(Lba(0), data(1, 10), None)).expect("room");
    sim.run_ok(volume.shard().shutdown()).expect("writable");
    (Sim::new(sim.device.after_crash(&mut Random(3)), 5), *volume.shard().superblock())
}

fn roots(sim: &Sim, superblock: &Superblock) -> Vec<Pba> {
    let places = [0, 1].into_iter().flat_map(|slot| superblock.root_places(0, slot));
    places.filter(|place| Root::decode(&sim.device.block(*place)).is_ok()).collect()
}

/// Reads the shard back; what is refused, and where.
fn refused(sim: &mut Sim) -> Option<(&'static str, Pba)> {
    let device = sim.device.clone();
    match sim.run_ok(try_recover(device)).err()? {
        OpenError::Damaged { what, pba, .. } => Some((what, pba)),
        error => panic!("{error}"),
    }
}

/// Method: move the journal that the roots name, to before the data and its first block, and to its end and a block further.
#[test]
fn a_journal_lies_within_the_data() {
    let (first, last) = {
        let (_, superblock) = shut_down();
        (superblock.data_start().0, superblock.data_end().0)
    };
    for (start, end, is_sound) in [
        (first, first + 100, true),
        (first - 1, first + 100, false),
        (last - 100, last, true),
        (last - 100, last + 1, false),
        (first + 100, first + 100, false),
    ] {
        let (mut sim, superblock) = shut_down();
        for place in roots(&sim, &superblock) {
            let mut root = Root::decode(&sim.device.block(place)).expect("a root");
            root.journal = PbaRange::new(Pba(start), end - start);
            root.replay.position = 0;
            let mut block = [0; BLOCK_SIZE];
            root.encode(&mut block);
            sim.device.put(place, block);
        }
        let expected = (!is_sound).then_some(("root", Pba(start)));
        assert_eq!(refused(&mut sim), expected, "{start}..{end}");
    }
}

/// Has the only leaf of the table of extents say something else of the last extent in it.
fn forge_last_extent(sim: &Sim, superblock: &Superblock, change: impl Fn(&mut u64, &mut Mapping)) {
    let roots = roots(sim, superblock).into_iter();
    let newest = roots.map(|place| Root::decode(&sim.device.block(place)).expect("a root"));
    let newest = newest.max_by_key(|root| root.generation).expect("there is one");
    let leaf = newest.extents.expect("it has extents").pba;
    forge(&sim.device, leaf, |block| {
        let view = NodeView::decode(block).expect("a node");
        let mut entries: Vec<(u64, Mapping)> = view.entries().collect();
        let (key, mapping) = entries.last_mut().expect("not empty");
        change(key, mapping);
        let head = NodeHead { tree: EXTENT_TREE, level: 0, metadata: MetadataSize::None };
        let keys: Vec<u64> = entries.iter().map(|(key, _)| *key).collect();
        let mappings: Vec<PackedMapping> = entries.iter().map(|(_, at)| (*at).into()).collect();
        encode_node(block, head, keys.into_iter(), mappings.into_iter(), &[]);
    });
}

/// Method: name the extent behind the last one, and of an extent that there is a bitmap in front of its two places or behind.
#[test]
fn extents_and_their_bitmaps_lie_where_they_may() {
    let (mut sim, superblock) = shut_down();
    let behind_last = superblock.extent_count();
    forge_last_extent(&sim, &superblock, |key, at| {
        *key = u64::from(behind_last);
        at.pba = superblock.extent(behind_last).start;
    });
    assert!(matches!(refused(&mut sim), Some(("extent table", _))));

    for (place, is_sound) in [(-1, false), (0, true), (1, true), (2, false)] {
        let (mut sim, superblock) = shut_down();
        forge_last_extent(&sim, &superblock, |extent, at| {
            let first = superblock.extent(u32::try_from(*extent).expect("small")).start;
            at.pba = Pba(first.0.saturating_add_signed(place));
            at.crc = checksum::crc32c(&sim.device.block(at.pba));
        });
        let found = refused(&mut sim);
        assert_eq!(found.is_none(), is_sound, "{place}: {found:?}");
        assert!(found.is_none_or(|(what, _)| what == "extent table"));
    }
}

/// Method: set the bit of the last block of an extent, and of one behind its end.
#[test]
fn a_bitmap_with_blocks_behind_its_extent_is_rebuilt() {
    for (bit, is_sound) in [(EXTENT_BLOCKS - 1, true), (EXTENT_BLOCKS, false)] {
        let (mut sim, superblock) = shut_down();
        let forged = std::cell::Cell::new((0, Pba(0)));
        forge_last_extent(&sim, &superblock, |extent, at| {
            let mut block = sim.device.block(at.pba);
            block[bit as usize / 8] |= 1 << (bit % 8);
            sim.device.put(at.pba, block);
            at.crc = checksum::crc32c(&block);
            forged.set((u32::try_from(*extent).expect("small"), at.pba));
        });
        assert!(forged.get().0 < superblock.extent_count());
        let device = sim.device.clone();
        let shard = sim.run_ok(try_open(device)).expect("bitmaps are rebuilt");
        let (extent, pba) = forged.get();
        let expected: &[Mended] = if is_sound { &[] } else { &[Mended::Bitmap { extent, pba }] };
        assert_eq!(*shard.mended(), *expected, "bit {bit}");
    }
}

/// Method: have the descriptor of a volume say that it is another.
#[test]
fn a_descriptor_of_another_volume_is_refused() {
    let (mut sim, _) = shut_down();
    let is_descriptor = |bytes: &[u8]| Descriptor::decode(bytes).is_ok();
    for place in sim.device.find_by(is_descriptor) {
        forge(&sim.device, place, |block| {
            let mut descriptor = Descriptor::decode(block).expect("a descriptor");
            descriptor.number += 1;
            descriptor.encode(block);
        });
    }
    assert!(matches!(refused(&mut sim), Some(("volume descriptor", _))));
}

/// A volume with something that only a later release knows is neither opened nor changed, whatever is asked.
///
/// Method: set each unknown flag of the descriptor, and a bit of its reserved bytes; read the shard back, check the
/// device, repair it with and without consent, and compare every block.
#[test]
fn a_volume_of_a_later_release_is_refused_and_left_as_it_is() {
    let unknown = (2..16).map(|bit| (44 + bit / 8, 1 << (bit % 8), "flags"));
    for (byte, bit, what) in unknown.chain([(59, 1, "metadata of blocks"), (63, 1, "properties")]) {
        let (mut sim, _) = shut_down();
        let place = sim.device.find_by(|bytes| Descriptor::decode(bytes).is_ok())[0];
        forge(&sim.device, place, |block| block[byte] |= bit);
        let is_it = |error: &OpenError| *error == OpenError::Later { shard: 0, pba: place, what };
        let contents = |sim: &Sim| {
            let blocks = sim.device.find_by(|_| true).into_iter();
            blocks.map(|pba| (pba, sim.device.block(pba))).collect::<Vec<_>>()
        };
        let before = contents(&sim);
        let error = sim.run_ok(try_open(sim.device.clone())).err().expect("it is refused");
        assert!(is_it(&error), "{error}");
        let faults = check(&mut sim).faults;
        let [fault] = &faults[..] else { panic!("{faults:?}") };
        let Problem::Unopened(error) = &fault.problem else { panic!("{fault:?}") };
        assert!(is_it(error) && fault.pba == Some(place), "{fault:?}");
        assert_eq!(fault.problem.repair(), None);
        for consent in [false, true] {
            let device = sim.device.clone();
            let repaired = sim.run_ok(repair(&device, consent, |_, _| ()));
            assert!(repaired.as_ref().is_err_and(is_it), "{repaired:?}");
        }
        assert!(before == contents(&sim), "byte {byte}, bit {bit:#x}");
    }
}

/// The same of the device itself.
#[test]
fn a_superblock_of_a_later_release_is_told_from_a_damaged_one() {
    let (mut sim, superblock) = shut_down();
    for place in Superblock::places(superblock.blocks) {
        forge(&sim.device, place, |block| block[50] = 1);
    }
    let device = sim.device.clone();
    let found = sim.run_ok(async move { probe(&device).await }).expect("readable");
    assert_eq!(found, Probe::Damaged(DecodeError::Unknown("properties")));
    let refused = sim.run_ok(try_open(sim.device.clone())).err();
    let expected = OpenError::Superblock(DecodeError::Unknown("properties"));
    assert_eq!(refused, Some(expected));
}
