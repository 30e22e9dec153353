//! Every fuzz target, briefly and on stable Rust: its corpus, its seeds, and mutations of both.
//!
//! The mutations are a function of a fixed seed, so that a run can be repeated; libFuzzer looks
//! further. Only a multiplier comes from outside: `FARFLASH_TEST_SCALE`.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fuzz::{TARGETS, Target};

/// Mutations of each target at scale 1.
const MUTATIONS: u64 = 40_000;
/// The same of targets that open a whole device for each, or check and repair it.
const MUTATIONS_OF_IMAGES: u64 = 2_000;
const MUTATIONS_OF_REPAIRS: u64 = 200;
/// Mutations for targets that start a server for each, or run a whole host through all its steps.
const MUTATIONS_OF_SERVERS: u64 = 1_000;
/// Mutations for targets that start a server without a device.
const MUTATIONS_OF_DISCOVERY: u64 = 4_000;
const INPUT_LEN_MAX: usize = 16 << 10;

/// `SplitMix64`: small, and good enough to pick mutations.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).expect("below a usize")
    }
}

fn mutate(random: &mut Random, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=random.below(4) {
        let at = random.below(input.len());
        match random.below(7) {
            0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
            1 if !input.is_empty() => input[at] = random.next() as u8,
            2 if !input.is_empty() => input[at] = [0, 1, 0x7F, 0x80, 0xFF][random.below(5)],
            3 => input.truncate(at),
            4 => input.insert(at, random.next() as u8),
            5 if !other.is_empty() => {
                let from = random.below(other.len());
                let len = random.below(other.len() - from);
                let end = (at + len).min(input.len());
                input.splice(at..end, other[from..from + len].iter().copied());
            }
            _ => {
                let word = (random.next() as u32 >> random.below(32)).to_le_bytes();
                let end = (at + 4).min(input.len());
                input.splice(at..end, word);
            }
        }
    }
    input.truncate(INPUT_LEN_MAX);
}

fn check(target: &Target, input: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(target.name);
        fs::create_dir_all(&directory).expect("a place for the failing input");
        let file = directory.join("smoke-failure");
        fs::write(&file, input).expect("the failing input is kept");
        panic!("{} fails on {} ({} bytes)", target.name, file.display(), input.len());
    }
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut files: Vec<_> = fs::read_dir(directory)
        .map(|entries| entries.map(|entry| entry.expect("a readable corpus").path()).collect())
        .unwrap_or_default();
    files.sort();
    files.iter().map(|file| fs::read(file).expect("a readable corpus")).collect()
}

fn smoke(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
    let mut pool = corpus(target);
    pool.extend((target.seeds)());
    for input in &pool {
        check(target, input);
    }
    let scale = std::env::var("FARFLASH_TEST_SCALE").ok().and_then(|text| text.parse().ok());
    let mut random = Random(1);
    let mutations = match name {
        "damaged_image" => MUTATIONS_OF_IMAGES,
        "repaired_image" => MUTATIONS_OF_REPAIRS,
        "exchange_commands" | "lying_target" => MUTATIONS_OF_SERVERS,
        "discovering" | "discovery_log" => MUTATIONS_OF_DISCOVERY,
        _ => MUTATIONS,
    };
    for _ in 0..mutations * scale.unwrap_or(1) {
        let mut input = pool[random.below(pool.len())].clone();
        let other = pool[random.below(pool.len())].clone();
        mutate(&mut random, &mut input, &other);
        check(target, &input);
    }
}

macro_rules! smoke_tests {
    ($($target:ident)*) => {$(
        /// No byte of a peer or a device panics or hangs a decoder.
        ///
        /// Method: corpus, seeds and a fixed sequence of mutations through the same functions that
        /// libFuzzer drives.
        #[test]
        fn $target() {
            smoke(stringify!($target));
        }
    )*};
}

smoke_tests!(access agent_messages api_requests auth request_trace resp_requests etcd_answers exchange_commands discovering discovery_log lying_target iscsi_stream nbd_stream pdu commands target_stream target_commands initiator_stream layout_decode damaged_image repaired_image);

/// A target that is left out above would never run.
#[test]
fn every_target_has_its_smoke_test() {
    let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    let source = include_str!("smoke.rs");
    let listed = source.lines().find(|line| line.starts_with("smoke_tests!(")).expect("the list");
    assert!(names.iter().all(|name| listed.contains(name)), "{names:?}");
}
