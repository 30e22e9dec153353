//! Measures the engine's own cost of a request, over a device in memory. Also a smoke test: without
//! `--bench` each case runs a few requests only.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use device::MemDevice;
use executor::Executor;
use io_traits::Buffer;
use units::{Lba, LbaRange};
use uuid::Uuid;
use volume::{
    ExtentAllocator, FormatOptions, Shard, ShardOptions, Volume, VolumeSpec, format, overhead,
};

const CAPACITY_BLOCKS: u64 = (1 << 30) / 4096;

#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
}

struct Case {
    name: &'static str,
    kind: Kind,
    /// Blocks a request.
    blocks: u64,
    depth: usize,
    /// Blocks of the volume that are used.
    space: u64,
    sequential: bool,
}

/// CPU time of this thread: what others do on the machine does not count.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

fn run_until(executor: &Executor, done: impl Fn() -> bool) {
    while !done() {
        assert!(executor.run_ready(1024) > 0, "nothing left to do");
    }
}

fn open(executor: &Executor) -> Volume<MemDevice> {
    let bytes = (1 << 30) + overhead(units::ByteLen(1 << 30), 1).0;
    let device = MemDevice::new(bytes / 4096).expect("memory");
    let slot: Rc<Cell<Option<Volume<MemDevice>>>> = Rc::default();
    let (result, spawner) = (slot.clone(), executor.spawner());
    executor.spawner().spawn(async move {
        let options = FormatOptions { uuid: Uuid::from_u128(1) };
        let superblock = format(&device, &options).await.expect("formatted");
        let extents = ExtentAllocator::new(&superblock);
        let options = ShardOptions::default();
        let shard = Shard::recover(device, superblock, 0, extents, options).await.expect("blank");
        let shard = shard.confirm().await.expect("sound").start().await.expect("room");
        let (a, b) = (shard.clone(), shard.clone());
        spawner.spawn(async move { a.run_committer().await });
        spawner.spawn(async move { b.run_checkpointer().await });
        let spec = VolumeSpec { uuid: Uuid::nil(), name: "v".into(), blocks: CAPACITY_BLOCKS };
        result.set(Some(shard.create_volume(spec).await.expect("room")));
    });
    loop {
        if let Some(volume) = slot.take() {
            return volume;
        }
        executor.run_ready(64);
    }
}

fn run(executor: &Executor, volume: &Volume<MemDevice>, case: &Case, requests: usize) -> f64 {
    let left = Rc::new(Cell::new(case.depth));
    let per_task = requests / case.depth;
    let cursor = Rc::new(Cell::new(0));
    let begin = cpu_ns();
    for task in 0..case.depth {
        let (volume, left, cursor) = (volume.clone(), left.clone(), cursor.clone());
        let Case { kind, blocks, space, sequential, .. } = *case;
        let data = Buffer::zeroed(usize::try_from(blocks).expect("small")).into_slice();
        let mut seed = task as u64 + 1;
        executor.spawner().spawn(async move {
            for _ in 0..per_task {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let place = if sequential {
                    cursor.replace(cursor.get() + 1) % (space / blocks)
                } else {
                    (seed >> 33) % (space / blocks)
                };
                let lba = Lba(place * blocks);
                match kind {
                    Kind::Read => {
                        drop(volume.read(LbaRange::new(lba, blocks)).await.expect("sound"))
                    }
                    Kind::Write => volume.write(lba, data.clone(), None).await.expect("room"),
                }
            }
            left.set(left.get() - 1);
        });
    }
    run_until(executor, || left.get() == 0);
    (cpu_ns() - begin) as f64 / (per_task * case.depth) as f64
}

fn main() {
    let thorough = std::env::args().any(|arg| arg == "--bench");
    let executor = Executor::new(Arc::new(|| ()));
    let volume = open(&executor);
    let case = |name, kind, blocks, depth, space, sequential| Case {
        name,
        kind,
        blocks,
        depth,
        space,
        sequential,
    };
    let hot = 4096;
    let all = CAPACITY_BLOCKS;
    let cases = [
        case("write 4 KiB hot, depth 1", Kind::Write, 1, 1, hot, false),
        case("write 4 KiB hot, depth 32", Kind::Write, 1, 32, hot, false),
        case("fill 128 KiB, depth 8", Kind::Write, 32, 8, all, true),
        case("read 4 KiB hot, depth 32", Kind::Read, 1, 32, hot, false),
        case("read 4 KiB, depth 1", Kind::Read, 1, 1, all, false),
        case("read 4 KiB, depth 32", Kind::Read, 1, 32, all, false),
        case("read 128 KiB, depth 8", Kind::Read, 32, 8, all, false),
        case("write 4 KiB, depth 32", Kind::Write, 1, 32, all, false),
        case("write 4 KiB, depth 128", Kind::Write, 1, 128, all, false),
        case("read 128 KiB fragmented, depth 8", Kind::Read, 32, 8, all, false),
    ];
    for case in &cases {
        let requests = if thorough { 1_000_000 / case.blocks as usize } else { 320 };
        let ns = run(&executor, &volume, case, requests);
        println!("{:34} {ns:8.0} ns a request", case.name);
    }
}
