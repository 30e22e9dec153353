//! Opens a volume by its name, through any host, and writes and reads many blocks at a time, without a thread that waits
//! for each of them.
//!
//! ```text
//! FARFLASH_API=http://127.0.0.1:7420 FARFLASH_TOKEN=DHHC-1:… cargo run -p farflash-client --example awaited -- NAME
//! ```
//! Any executor will do; the one here is as small as they get. The first 64 blocks of the volume are overwritten.

use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};

use farflash_client::{Cluster, Data, Error, OpenOptions, Reply, Request};

const BLOCK: usize = 4096;
/// Blocks that are written and read side by side.
const BLOCKS: u8 = 64;

fn main() -> ExitCode {
    let Some(name) = std::env::args().nth(1) else {
        eprintln!("usage: awaited NAME");
        return ExitCode::FAILURE;
    };
    match block_on(tour(&name)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn tour(name: &str) -> Result<(), Error> {
    let cluster = Cluster::from_env()?;
    let record = cluster.start_show(name).await?;
    println!("{name}: {} bytes at {}", record.size_bytes, record.address);
    let volume = cluster.start_open(name, &OpenOptions::from_env()).await?;

    // All of them begin here; one behind the other they are only awaited.
    let writes: Vec<_> = (0..BLOCKS)
        .map(|number| {
            let data = Data::lent(vec![number; BLOCK]);
            volume.start(Request::Write { offset: offset_of(number), data })
        })
        .collect();
    for write in writes {
        write.await?;
    }
    let reads: Vec<_> = (0..BLOCKS)
        .map(|number| volume.start(Request::Read { offset: offset_of(number), len: BLOCK }))
        .collect();
    let mut as_written = 0;
    for (read, number) in reads.into_iter().zip(0..BLOCKS) {
        let Reply::Data(data) = read.await? else { unreachable!("a read gives data") };
        as_written += usize::from(data.to_vec() == [number; BLOCK]);
    }
    println!("{as_written} of {BLOCKS} blocks read what was written");
    volume.start_close().await
}

fn offset_of(number: u8) -> u64 {
    u64::from(number) * BLOCK as u64
}

/// Runs a future on this thread, which sleeps while there is nothing to do.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Sleeper(Thread);
    impl Wake for Sleeper {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Sleeper(thread::current())).into();
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
