//! Reads of random 4 KiB blocks from the device in memory, beside the same copies out of a plain
//! vector. Rounds are interleaved; compare within a row.
//!
//! `cargo run --release -p device --example random_copy`

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use device::MemDevice;
use io_traits::{Buffer, Device};
use units::{BLOCK_SIZE, Pba};

const READS: u32 = 200_000;

fn main() {
    for blocks in [1u64 << 18, 1 << 12] {
        let device = MemDevice::new(blocks).expect("memory");
        let mut vector = vec![0u8; blocks as usize * BLOCK_SIZE];
        for n in 0..blocks {
            let mut buffer = Buffer::new(1);
            buffer.as_mut_bytes().fill(n as u8);
            let at = n as usize * BLOCK_SIZE;
            vector[at..at + BLOCK_SIZE].copy_from_slice(buffer.as_bytes());
            now(device.write(Pba(n), buffer.into_slice())).expect("writes");
        }
        println!("{} MiB: ns per read, device and vector", blocks >> 8);
        for round in 0..7 {
            let by_device = time(blocks, round, |n| {
                let buffer = now(device.read(Pba(n), Buffer::new(1))).expect("reads");
                assert_eq!(buffer.as_bytes()[7], n as u8);
            });
            let by_vector = time(blocks, round + 100, |n| {
                let at = n as usize * BLOCK_SIZE;
                let mut buffer = Buffer::new(1);
                buffer.as_mut_bytes().copy_from_slice(black_box(&vector[at..at + BLOCK_SIZE]));
                assert_eq!(black_box(&buffer).as_bytes()[7], n as u8);
            });
            println!("  {by_device:4.0} {by_vector:4.0}  ratio {:.2}", by_device / by_vector);
        }
    }
}

fn time(blocks: u64, seed: u64, mut read: impl FnMut(u64)) -> f64 {
    let mut state = seed + 1;
    let start = Instant::now();
    for _ in 0..READS {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        read((state >> 33) % blocks);
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(READS)
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("a device in memory completes at once"),
    }
}
