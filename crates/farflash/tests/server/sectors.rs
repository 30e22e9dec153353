//! Volumes of logical blocks of 512 bytes, over NVMe.

use std::rc::Rc;

use crate::support::host::{connect, on_core};
use crate::support::{Files, Server, succeed};
use client::{Swap, Volume};
use io_traits::{Buffer, BufferSlice, Spawn};
use nvme_wire::Nqn;
use reactor::Handle;
use units::{Lba, LbaRange};

const SECTOR: usize = 512;
/// Logical blocks that are written to: 64 blocks.
const SECTORS: u64 = 512;
const REQUESTS: u64 = 1_500;
const SEED: u64 = 20_261;
/// Tasks that count in a logical block each, of two blocks.
const COUNTERS: u64 = 16;
const STEPS: u64 = 30;

fn create(server: &Server, name: &str) -> Nqn {
    let made = server.volume_json(&["create", name, "--size", "1GiB", "--sector", "512"]);
    assert_eq!(made["sector_bytes"], 512);
    made["nqn"].as_str().unwrap().parse().unwrap()
}

fn slice(bytes: &[u8]) -> BufferSlice {
    Buffer::from_bytes(bytes).into_slice().slice(0..bytes.len())
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

/// The size is chosen with the volume, shown, kept, and not to be had with metadata.
#[test]
fn a_volume_keeps_the_size_of_its_sectors() {
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=1GiB")]);
    for round in 0..2 {
        let server = Server::start(&device);
        if round == 0 {
            create(&server, "a");
            let other = server.volume_json(&["create", "b", "--size", "1GiB"]);
            assert_eq!(other["sector_bytes"], 4096);
            let with_metadata =
                ["create", "c", "--size", "1GiB", "--sector", "512", "--metadata", "8"];
            assert!(server.volume(&with_metadata).stderr.contains("--metadata"));
            let odd = server.volume(&["create", "c", "--size", "1GiB", "--sector", "1024"]);
            assert!(odd.stderr.contains("logical blocks have 512 or 4096 bytes"), "{}", odd.stderr);
        }
        assert!(server.volume(&["show", "a"]).stdout.contains("sectors    512 bytes"));
        assert!(!server.volume(&["show", "b"]).stdout.contains("sectors"));
        server.signal("KILL");
        server.wait();
    }
}

/// The bytes that the volume is to hold.
struct Model(Vec<u8>);

impl Model {
    fn part(&mut self, range: LbaRange) -> &mut [u8] {
        let start = range.start.0 as usize * SECTOR;
        &mut self.0[start..start + range.blocks as usize * SECTOR]
    }

    /// Has one request done, and checks what it says.
    async fn step(&mut self, volume: &Volume<Handle>, random: &mut Random, number: u64) {
        let len = 1 + random.below(if number.is_multiple_of(3) { 40 } else { 12 });
        let start = random.below(SECTORS - len);
        let range = LbaRange::new(Lba(start), len);
        let now = slice(self.part(range));
        let data: Vec<u8> = (0..len as usize * SECTOR).map(|_| random.below(256) as u8).collect();
        match random.below(8) {
            0..3 => {
                volume.write(range.start, slice(&data)).await.unwrap();
                self.part(range).copy_from_slice(&data);
            }
            3 => {
                assert!(volume.compare(range.start, now.clone()).await.unwrap(), "{range}");
                let mut other = now.as_bytes().to_vec();
                *other.last_mut().unwrap() ^= 1;
                assert!(!volume.compare(range.start, slice(&other)).await.unwrap(), "{range}");
            }
            4 => {
                let mut other = now.as_bytes().to_vec();
                let at = random.below(other.len() as u64);
                other[at as usize] ^= 1;
                let differs = volume
                    .compare_and_swap(range.start, &slice(&other), &slice(&data))
                    .await
                    .unwrap();
                assert_eq!(differs, Swap::Differs { offset_bytes: at }, "{range}");
                let done = volume.compare_and_swap(range.start, &now, &slice(&data)).await.unwrap();
                assert_eq!(done, Swap::Done, "{range}");
                self.part(range).copy_from_slice(&data);
            }
            5 => {
                volume.write_zeroes(range).await.unwrap();
                self.part(range).fill(0);
            }
            6 => {
                volume.deallocate(&[range]).await.unwrap();
                self.part(range).fill(0);
            }
            _ => {
                volume.verify(range).await.unwrap();
                let found = volume.read(range.start, len as u32).await.unwrap();
                assert!(found.as_bytes()[..data.len()] == *now.as_bytes(), "{range}");
            }
        }
    }
}

/// Method: requests of random places and lengths from a fixed seed, one after the other, against a model of bytes.
#[test]
fn requests_of_any_sectors_do_what_they_say() {
    let server = Server::start("mem:256MiB");
    let (nqn, portal) = (create(&server, "a"), server.portals[0]);
    on_core(move |handle| async move {
        let volume = connect(&handle, portal, &nqn).await;
        assert_eq!((volume.block_size(), volume.capacity()), (512, (1 << 30) / 512));
        assert_eq!(volume.atomic_write_blocks(), 2048, "1 MiB");
        let (mut model, mut random) = (Model(vec![0; SECTORS as usize * SECTOR]), Random(SEED));
        for number in 0..REQUESTS {
            model.step(&volume, &mut random, number).await;
        }
        let found = volume.read(Lba(0), SECTORS as u32).await.unwrap();
        assert!(found.as_bytes() == model.0, "seed {SEED}");
        volume.deallocate(&[LbaRange::new(Lba(0), SECTORS)]).await.unwrap();
        assert_eq!(volume.used_blocks().await.unwrap(), 0);
        volume.write(Lba(9), slice(&[1; SECTOR])).await.unwrap();
        assert_eq!(volume.used_blocks().await.unwrap(), 8, "a block of 4096 bytes");
        let beyond = volume.capacity();
        assert!(volume.write(Lba(beyond), slice(&[1; SECTOR])).await.is_err());
        volume.write(Lba(beyond - 1), slice(&[1; SECTOR])).await.unwrap();
        // As long as a command can be, and across the bounds of blocks.
        let long: Vec<u8> = (0..2048 * SECTOR).map(|at| (at / 7) as u8).collect();
        volume.write_tx(Lba(1001), slice(&long)).await.unwrap();
        let found = volume.read(Lba(1001), 2048).await.unwrap();
        assert!(found.as_bytes() == long);
    });
}

/// Method: tasks count by compare-and-write, each in a logical block of its own; eight of them share a block.
#[test]
fn neighbours_that_count_at_once_lose_no_step() {
    let server = Server::start("mem:256MiB");
    let (nqn, portal) = (create(&server, "a"), server.portals[0]);
    on_core(move |handle| async move {
        let volume = Rc::new(connect(&handle, portal, &nqn).await);
        let mut all = Vec::new();
        for task in 0..COUNTERS {
            let (volume, (ended, end)) = (volume.clone(), local_sync::oneshot());
            all.push(end);
            handle.spawn(async move {
                for step in 0..STEPS {
                    let [before, after] = [step, step + 1].map(|step| slice(&[step as u8; SECTOR]));
                    let lba = Lba(task + 3);
                    let swapped = volume.compare_and_swap(lba, &before, &after).await.unwrap();
                    assert_eq!(swapped, Swap::Done, "task {task} step {step}");
                }
                ended.send(());
            });
        }
        for end in all {
            end.await.expect("the task did not fail");
        }
        let found = volume.read(Lba(3), COUNTERS as u32).await.unwrap();
        let counted = &found.as_bytes()[..COUNTERS as usize * SECTOR];
        assert!(counted.iter().all(|byte| u64::from(*byte) == STEPS));
    });
}
