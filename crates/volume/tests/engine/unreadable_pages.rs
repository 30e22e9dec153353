//! Pages of a map that the device does not give for a while, beside all that goes on meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::common::{Random, Sim, TestDevice, check, crash, data, range, run_many, tags};
use crate::paging::{LEAF_ENTRIES, NODE_BYTES, filled, reopen};
use io_traits::Device;
use layout::NodeView;
use units::{Lba, Pba};
use volume::{Volume, VolumeError};

const LEAVES: u64 = 60;
/// Leaves that the device does not give. The last two are deallocated meanwhile.
const LOST: [u64; 4] = [7, 20, 33, 34];
/// The memory limit of the map: a third of its size.
const LIMIT: u64 = 20 * NODE_BYTES;

/// The last tag written to each block that was written or deallocated.
type Model = Rc<RefCell<BTreeMap<u64, u8>>>;

/// The places of all nodes of volumes of a level whose first key is one of `keys`.
fn places(device: &TestDevice, level: u8, keys: &[u64]) -> Vec<Pba> {
    let is_wanted = |pba: &Pba| {
        let block = device.block(*pba);
        let view = NodeView::decode(&block).ok().filter(|view| view.tree == 1);
        view.is_some_and(|view| {
            view.level == level && view.keys().next().is_some_and(|key| keys.contains(&key))
        })
    };
    (0..device.limits().blocks).map(Pba).filter(is_wanted).collect()
}

/// Reads, writes and deallocations of one block, each in a leaf by chance, beside checkpoints. Only
/// requests that need a page of `lost` fail. Returns how many failed.
fn work(
    sim: &mut Sim,
    volume: &Volume<TestDevice>,
    model: &Model,
    seed: u64,
    lost: &'static [u64],
) -> u64 {
    let failed = Rc::new(Cell::new(0));
    let (all, known, count) = (volume.clone(), model.clone(), failed.clone());
    // No two requests have the same block.
    run_many(sim, LEAF_ENTRIES, 8, move |number| {
        let (volume, model, count) = (all.clone(), known.clone(), count.clone());
        async move {
            let mut random = Random((seed << 32) + number);
            let leaf = random.below(LEAVES);
            let lba = leaf * LEAF_ENTRIES + number;
            let tag = 1 + (number % 250) as u8;
            let (outcome, after) = match random.below(8) {
                0..3 => (volume.write(Lba(lba), data(tag, 1), None).await, Some(tag)),
                3..5 => (volume.unmap(range(lba, 1)).await, Some(0)),
                5..7 => {
                    let read = volume.read(range(lba, 1)).await;
                    let wanted = model.borrow().get(&lba).copied().unwrap_or(0);
                    (read.map(|found| assert_eq!(found.to_vec()[0], wanted, "{lba}")), None)
                }
                _ => {
                    volume.shard().checkpoint().await.expect("needs no page that is not in memory");
                    return;
                }
            };
            let needs_lost = lost.contains(&leaf);
            match outcome {
                Ok(()) => assert!(!needs_lost, "number {number}: the content is unknown"),
                Err(VolumeError::Device(_)) => {
                    assert!(needs_lost, "number {number}: leaf {leaf} is not needed");
                    count.set(count.get() + 1);
                    return;
                }
                Err(error) => panic!("number {number}: {error}"),
            }
            if let Some(tag) = after {
                model.borrow_mut().insert(lba, tag);
            }
        }
    });
    failed.get()
}

/// All blocks are what the model says, and so many hold data as were not deallocated.
fn expect_all(sim: &mut Sim, volume: &Volume<TestDevice>, model: &Model, mapped: u64) {
    for leaf in 0..LEAVES {
        let found = sim.run_ok(tags(volume, leaf * LEAF_ENTRIES, LEAF_ENTRIES));
        for (lba, tag) in (leaf * LEAF_ENTRIES..).zip(found) {
            assert_eq!(tag, model.borrow().get(&lba).copied().unwrap_or(0), "block {lba}");
        }
    }
    check(sim, volume.shard());
    assert_eq!(volume.shard().capacity().data, mapped);
}

/// PAGING-4 and RECLAIM-3: pages that the device fails to read fail the requests that need them. A
/// deallocation that needs none is acknowledged, and its space comes back with the pages.
///
/// Method: leaves of a map of which a third may be in memory cannot be read, while others are read,
/// written, deallocated and checkpointed. Then they can, in the same run or behind a power cut, and
/// all is compared.
#[test]
fn pages_that_cannot_be_read_for_a_while_fail_those_who_need_them_and_cost_nothing() {
    for seed in 0..4 {
        let (mut sim, volume) = filled(LEAVES);
        let mut volume = reopen(&mut sim, volume.shard(), LIMIT);
        let lost = places(&sim.device, 0, &LOST.map(|leaf| leaf * LEAF_ENTRIES));
        assert!(lost.len() >= LOST.len(), "{lost:?}");
        sim.device.faults(|faults| faults.read_errors.extend(lost.iter().map(|p| (p.0, u32::MAX))));
        let model = Model::default();
        let failed = work(&mut sim, &volume, &model, seed, &LOST);
        assert!(failed > 5, "{failed} requests needed what cannot be read");

        // 1 107 blocks of three leaves, of which the first two cannot be read.
        let (start, blocks) = (33 * LEAF_ENTRIES, 3 * LEAF_ENTRIES);
        sim.run_ok(volume.unmap(range(start, blocks))).expect("needs no page");
        model.borrow_mut().extend((start..start + blocks).map(|lba| (lba, 0)));
        assert_eq!(sim.run_ok(tags(&volume, start, blocks)), vec![0; blocks as usize]);
        sim.run_ok(volume.shard().checkpoint()).expect("writable");
        volume.shard().settle();
        sim.settle();

        let is_cut = seed % 2 == 1;
        if is_cut {
            volume = crash(&mut sim);
        }
        sim.device.faults(|faults| faults.read_errors.clear());
        volume.shard().settle();
        sim.settle();
        let unmapped = model.borrow().values().filter(|tag| **tag == 0).count() as u64;
        let mapped = LEAVES * LEAF_ENTRIES - unmapped;
        expect_all(&mut sim, &volume, &model, mapped);
        assert_eq!(work(&mut sim, &volume, &model, seed + 100, &[]), 0);
        let memory = volume.shard().map_memory();
        assert!(is_cut || memory.evictions > 50, "{memory:?}");
        sim.settle();
        sim.run_ok(volume.shard().shutdown()).expect("writable");
        sim = Sim::new(sim.device.after_crash(&mut Random(seed)), seed);
        assert_eq!(crate::fsck::check(&mut sim).faults, [], "seed {seed}");
    }
}
