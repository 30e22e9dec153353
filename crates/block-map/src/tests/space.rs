//! The space that maps take on the device and in memory, relative to their data: as
//! `docs/operations/install.md` says.

use super::*;

/// A volume of 10 TiB.
const SPARSE: u64 = 10 << 28;
const BLOCKS: u64 = 200_000;
/// Parts in 100 000 that a map takes most of whose nodes change between two checkpoints; and one of which single nodes do.
const TOGETHER_MAX: u64 = 400;
const APART_MAX: u64 = 600;

/// Parts in 100 000 of the data.
#[derive(Clone, Copy, Debug)]
struct Share {
    device: u64,
    memory: u64,
}

impl Share {
    /// Measures a map that is written out.
    fn of(map: &mut Map) -> Self {
        let (_, nodes, _) = check(map.root().expect("filled"), 0, u64::MAX, None);
        map.take_old_places(|_| {});
        map.place_dirty(&mut (1..).map(Pba));
        let data = map.entries() * 4096;
        let (device, memory) = (nodes * 4096, map.counters.resident.get());
        Self { device: device * 100_000 / data, memory: memory * 100_000 / data }
    }

    fn check(self, most: u64, what: &str, space: u64) {
        let percent = |share| share as f64 / 1e3;
        let (device, memory) = (percent(self.device), percent(self.memory));
        eprintln!(
            "{what}, of {space} blocks: {device:.3} % of the device, {memory:.3} % in memory"
        );
        assert!(self.device <= most && self.memory <= most, "{what}: {self:?} of 100 000");
    }
}

/// Writes single blocks at random places until there are so many.
fn fill(map: &mut Map, random: &mut Random, space: u64, blocks: u64) {
    while map.entries() < blocks {
        let key = random.next(space);
        map.insert(key, mapping(key));
    }
}

/// Deallocates single blocks at random until so many are left. `between` is done to the map before each.
fn trim(map: &mut Map, random: &mut Random, left: u64, between: impl Fn(&mut Map)) {
    let mut keys = Vec::new();
    map.for_each(0, u64::MAX, |key, _| keys.push(key)).expect("in memory");
    while keys.len() as u64 > left {
        between(map);
        let key = keys.swap_remove(random.next(keys.len() as u64) as usize);
        assert_eq!(map.remove_some(key, key + 1, &mut Vec::new()), Ok(key + 1));
    }
}

#[test]
fn maps_take_no_more_than_is_documented() {
    let mut random = Random(7);
    // Nearly full in the end, one block in ten, and one in 13 000.
    for space in [BLOCKS * 4 / 3, BLOCKS * 10, SPARSE] {
        let mut map = Map::new(1, Rc::default());
        for blocks in (BLOCKS / 2..=BLOCKS).step_by(BLOCKS as usize / 20) {
            fill(&mut map, &mut random, space, blocks);
            Share::of(&mut map).check(TOGETHER_MAX, "written at random", space);
        }
        for _ in 0..2 {
            trim(&mut map, &mut random, BLOCKS / 2, |_| ());
            fill(&mut map, &mut random, space, BLOCKS);
        }
        Share::of(&mut map).check(TOGETHER_MAX, "deallocated and written again", space);
        for one_in in [2, 4, 16] {
            trim(&mut map, &mut random, BLOCKS / one_in, |_| ());
            Share::of(&mut map).check(TOGETHER_MAX, "deallocated at random", space);
        }
    }
    let mut map = Map::new(1, Rc::default());
    for key in 0..BLOCKS {
        map.insert(key, mapping(key));
    }
    Share::of(&mut map).check(TOGETHER_MAX * 7 / 10, "written in order", BLOCKS);
}

/// The same of a map of which each change is written out by itself, as if it were so large that no two nodes change that are
/// neighbours: they are joined only where that makes one more dirty.
#[test]
fn maps_that_change_here_and_there_take_no_more_than_is_documented() {
    for space in [BLOCKS * 4 / 3, SPARSE] {
        let (mut random, mut map) = (Random(8), Map::new(1, Rc::default()));
        fill(&mut map, &mut random, space, BLOCKS);
        let write_out = |map: &mut Map| {
            map.take_old_places(|_| {});
            map.place_dirty(&mut (1..).map(Pba));
        };
        write_out(&mut map);
        let mut left = BLOCKS;
        while left > BLOCKS / 16 {
            left = left * 5 / 6;
            trim(&mut map, &mut random, left, write_out);
            Share::of(&mut map).check(APART_MAX, "deallocated here and there", space);
        }
    }
}
