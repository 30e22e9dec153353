//! Opens a volume by its name, writes to it and reads back, and has several threads count in one of its blocks.
//!
//! ```text
//! FARFLASH_API=http://127.0.0.1:7420 FARFLASH_TOKEN=DHHC-1:… cargo run -p farflash-client --example counter -- NAME
//! ```
//! The first two blocks of the volume are overwritten.

use std::process::ExitCode;
use std::thread;

use farflash_client::{Error, OpenOptions, Swap, Volume, open};

const BLOCK: usize = 4096;
/// Offset of the number that is counted up.
const NUMBER: u64 = BLOCK as u64;
/// Threads that count, and how far each of them does.
const THREADS: usize = 4;
const STEPS: usize = 16;

fn main() -> ExitCode {
    let Some(name) = std::env::args().nth(1) else {
        eprintln!("usage: counter NAME");
        return ExitCode::FAILURE;
    };
    match tour(&name) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn tour(name: &str) -> Result<(), Error> {
    let volume = open(name, &OpenOptions::from_env())?;
    let properties = volume.properties()?;
    println!("{name}: {} bytes at {}", properties.size_bytes, properties.address);

    let mut block = [0; BLOCK];
    block[..name.len()].copy_from_slice(name.as_bytes());
    volume.write_at(&block, 0)?;
    let mut back = [0; BLOCK];
    volume.read_at(&mut back, 0)?;
    println!("reads what was written: {}", back == block);

    volume.write_zeroes(NUMBER, BLOCK as u64)?;
    thread::scope(|scope| {
        let count = || (0..STEPS).try_for_each(|_| count_up(&volume));
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(count)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    volume.read_at(&mut back, NUMBER)?;
    println!("{THREADS} threads counted to {}", number_in(&back));
    volume.close()
}

/// Adds one to the number. If two programs do so at the same time, one learns that the other was quicker, and tries
/// again.
fn count_up(volume: &Volume) -> Result<(), Error> {
    loop {
        let mut seen = [0; BLOCK];
        volume.read_at(&mut seen, NUMBER)?;
        let mut next = seen;
        next[..8].copy_from_slice(&(number_in(&seen) + 1).to_le_bytes());
        if volume.compare_and_swap(NUMBER, &seen, &next)? == Swap::Done {
            return Ok(());
        }
    }
}

fn number_in(block: &[u8; BLOCK]) -> u64 {
    let (number, _) = block.split_first_chunk().expect("a block is longer");
    u64::from_le_bytes(*number)
}
