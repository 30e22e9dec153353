//! What maps take, on the device and in memory, of the data that they lead to: as `docs/operations.md` says.

use super::*;

/// A volume of 10 TiB.
const SPARSE: u64 = 10 << 28;
const BLOCKS: u64 = 200_000;
/// Parts in 100 000 that a map takes, of which only blocks were deallocated that are written again; and any.
const WRITTEN_MAX: u64 = 400;
const TRIMMED_MAX: u64 = 600;

/// Parts in 100 000 of the data.
#[derive(Clone, Copy, Debug)]
struct Share {
    device: u64,
    memory: u64,
}

impl Share {
    /// Of a map that is written out.
    fn of(map: &mut Map) -> Self {
        let (_, nodes, _) = check(map.root().expect("filled"), 0, u64::MAX, None);
        map.take_old_places(|_| {});
        map.place_dirty(&mut (1..).map(Pba));
        let data = map.entries() * 4096;
        let (device, memory) = (nodes * 4096, map.tally.resident.get());
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

/// Deallocates single blocks at random until one of so many is left.
fn trim(map: &mut Map, random: &mut Random, one_in: usize) {
    let mut keys = Vec::new();
    map.for_each(0, u64::MAX, |key, _| keys.push(key)).expect("in memory");
    let left = keys.len() / one_in;
    while keys.len() > left {
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
            Share::of(&mut map).check(WRITTEN_MAX, "written at random", space);
        }
        for _ in 0..2 {
            trim(&mut map, &mut random, 2);
            fill(&mut map, &mut random, space, BLOCKS);
        }
        Share::of(&mut map).check(WRITTEN_MAX, "deallocated and written again", space);
        for one_in in [2, 2, 4] {
            trim(&mut map, &mut random, one_in);
            Share::of(&mut map).check(TRIMMED_MAX, "deallocated at random", space);
        }
    }
    let mut map = Map::new(1, Rc::default());
    for key in 0..BLOCKS {
        map.insert(key, mapping(key));
    }
    Share::of(&mut map).check(WRITTEN_MAX * 7 / 10, "written in order", BLOCKS);
}
