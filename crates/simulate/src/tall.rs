//! A disk with a volume whose map has three levels.
//!
//! Of each leaf all entries but one are deallocated while the leaves beside it are not in memory, so that they do not become
//! one. So there are many leaves, and little to look at.

use std::cell::OnceCell;
use std::rc::Rc;

use sim::{SimDevice, SimWorld, Simulation, Survival};
use units::{Lba, LbaRange, MetadataSize};
use uuid::Uuid;
use volume::FormatOptions;

use crate::content;
use crate::history::Fate;
use crate::model::VolumeModel;
use crate::rig::{self, Rig, Service};
use crate::run::Run;
use crate::scenario::{DEVICE_BLOCKS, EXTENT_BLOCKS};
use crate::seam::{Seam, SeamDevice};

/// Metadata of each block: the more, the fewer entries has a leaf.
pub(crate) const METADATA: MetadataSize = MetadataSize::Bytes64;
/// Entries of a leaf that is filled in order.
const LEAF_ENTRIES: u64 = 54;
/// Leaves: more than an inner node has children, which are 254.
const LEAVES: u64 = 270;
/// Leaves that are filled before they are emptied: all at once have no room.
const BATCH: usize = 90;
/// Blocks of the volume.
pub(crate) const BLOCKS: u64 = (LEAVES + 1) * LEAF_ENTRIES;

/// The blocks that are written.
pub(crate) fn places() -> impl Iterator<Item = u64> {
    (1..=LEAVES).map(|leaf| leaf * LEAF_ENTRIES)
}

/// Returns the known state of the disk: one volume, one write for each leaf.
pub(crate) fn known(run: &Run) -> Rc<VolumeModel> {
    run.set_metadata(METADATA);
    let model = run.new_volume(0, BLOCKS);
    model.created.set(Fate::Done);
    for lba in places() {
        let tag = run.begin(&model, LbaRange::new(Lba(lba), 1), false);
        run.end(&model, tag, Ok(()));
    }
    model
}

thread_local! {
    static DISK: OnceCell<SimDevice> = const { OnceCell::new() };
}

/// The disk, in another world.
///
/// # Panics
/// The engine fails on a sound disk.
pub(crate) fn disk(world: &SimWorld) -> SimDevice {
    // No run of its own: whichever comes first on a thread makes it.
    let made = || situations::apart(make);
    DISK.with(|disk| disk.get_or_init(made).after_crash_with(world, Survival::Everything))
}

fn make() -> SimDevice {
    let simulation = Simulation::new(1);
    let world = simulation.world();
    let disk = SimDevice::new(&world, DEVICE_BLOCKS);
    let device = SeamDevice::new(&world, disk.clone(), Seam::Honest);
    let made = simulation.run(async move {
        let options = FormatOptions { uuid: Uuid::from_u128(7) };
        let formatted = volume::format_with_extents(&device, &options, EXTENT_BLOCKS).await;
        formatted.expect("a sound disk");
        let model = known(&Run::default());
        let rig = open(&world, &device).await;
        rig.create(&model, BLOCKS).await.expect("room");
        rig.shutdown().await.expect("a sound disk");
        let leaves: Vec<u64> = places().collect();
        let (mut filled, mut emptied) = (0, 0);
        while emptied < leaves.len() {
            let next = &leaves[filled..(filled + BATCH).min(leaves.len())];
            fill(&open(&world, &device).await, &model, next).await;
            filled += next.len();
            // The last one is full until the next one is there, which else would begin in it.
            let last = if filled == leaves.len() { filled } else { filled - 1 };
            for parity in [0, 1] {
                // A leaf beside one that is read back is not, and stays as it is.
                let others = leaves[emptied..last].iter().skip(parity).step_by(2);
                empty(&open(&world, &device).await, &model, others).await;
            }
            emptied = last;
        }
    });
    made.expect("nothing waits forever");
    assert_eq!(levels(&disk), 3);
    disk
}

async fn open(world: &SimWorld, device: &SeamDevice) -> Rig {
    let shards = rig::open(device, &[0], None).await.expect("a sound disk");
    Rig::start(world, shards, Service::default())
}

/// Fills leaves. Each block has the tag that [`known`] gives the first one of its leaf.
async fn fill(rig: &Rig, model: &VolumeModel, leaves: &[u64]) {
    let target = rig.target(model).await.expect("created");
    for lba in leaves {
        let data = content::data(model.id, *lba, LEAF_ENTRIES, lba / LEAF_ENTRIES);
        target.write(Lba(*lba), data).await.expect("room");
    }
    rig.shutdown().await.expect("a sound disk");
}

/// Leaves of each of these leaves its first entry.
async fn empty(rig: &Rig, model: &VolumeModel, leaves: impl Iterator<Item = &u64>) {
    let target = rig.target(model).await.expect("created");
    for lba in leaves {
        let others = LbaRange::new(Lba(lba + 1), LEAF_ENTRIES - 1);
        target.clear(others, true).await.expect("a sound disk");
    }
    rig.shutdown().await.expect("a sound disk");
}

/// Levels of the tallest tree of the volume that was ever on the disk.
fn levels(disk: &SimDevice) -> u8 {
    let blocks = disk.written_blocks().into_iter().map(|pba| disk.peek(pba));
    let nodes = blocks.filter(|block| block.starts_with(b"FMN1") && block[8..12] == [1, 0, 0, 0]);
    nodes.map(|block| block[4] + 1).max().unwrap_or(0)
}
