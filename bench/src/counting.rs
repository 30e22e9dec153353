//! `bench-counting`: random reads over TCP by one host, from a core that counts and times its requests, and does not.
//!
//! It is built with a core that can be told to leave that out, which no other program is.

mod by_turns;

use allocator::Allocator;
use anyhow::Result;
use clap::Parser;

use self::by_turns::served::Served;
use self::by_turns::{DEVICE_BYTES, Length, VOLUME_BYTES, bed, cpus, measure};

/// The core shall run as it does in farflash.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

#[derive(Parser)]
#[command(about = "Measures what counting costs a read, and prints rates as JSON")]
struct Args {
    /// Rounds: each measures reads with and without
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of each measurement
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

fn main() -> Result<()> {
    allocator::keep_huge_pages_whole();
    let Args { rounds, seconds } = Args::parse();
    let served = Served::start(DEVICE_BYTES, VOLUME_BYTES, dataplane::count_requests)?;
    let rates = bed::on_core(cpus::client(), move |handle| async move {
        let volume = served.connect(&handle).await?;
        let set = async |counts| served.set(&handle, counts).await;
        let rates = measure(&handle, &volume, Length { rounds, seconds }, set).await?;
        served.end()?;
        Ok(rates)
    })?;
    println!("{}", serde_json::to_string(&rates)?);
    Ok(())
}
