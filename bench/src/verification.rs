//! `bench-verification`: random reads with checksums compared, and without, by one engine in one process.
//!
//! It is built with an engine that can be told to leave the comparison out, which no other program is. Blocks read
//! are copied, as they are into a host's socket: a device in memory only lends its blocks, and a block that is not
//! touched never comes from memory. And by a host, over TCP, from a core that can leave it out
//! (`by_turns/served.rs`).

mod by_turns;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use allocator::Allocator;
use anyhow::Result;
use clap::Parser;
use device::MemDevice;
use io_traits::{BufferSlice, Device};
use load::Target;
use reactor::{Handle, OpenOptions, OwnedDevice};
use serde::Serialize;
use units::{BLOCK_SIZE, LbaRange};
use volume::{ReadData, Sabotage, VolumeError};

use self::by_turns::bed::{self, Background, Engine};
use self::by_turns::counted::Counted;
use self::by_turns::served::Served;
use self::by_turns::target::EngineTarget;
use self::by_turns::{DEVICE_BYTES, Length, Rates, VOLUME_BYTES, cpus, measure};

/// The engine shall run as it does in farflash.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

#[derive(Parser)]
#[command(about = "Measures what checksums cost a read, and prints rates as JSON")]
struct Args {
    /// Rounds: each measures reads with and without
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of each measurement
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// A file to be made on the disk to measure; it is removed afterwards
    #[arg(long)]
    file: PathBuf,
}

#[derive(Serialize)]
struct Output {
    file: Rates,
    mem: Rates,
    served: Rates,
}

/// A volume of which all that is read is copied to the same place.
#[derive(Clone)]
struct Copied<D: Device> {
    volume: EngineTarget<Counted<D>>,
    copy: Rc<RefCell<Vec<u8>>>,
}

impl<D: Device> Target for Copied<D> {
    type Data = ReadData;
    type Error = VolumeError;

    fn blocks(&self) -> u64 {
        self.volume.blocks()
    }

    fn read(
        &self,
        range: LbaRange,
    ) -> impl Future<Output = Result<ReadData, VolumeError>> + 'static {
        let (read, copy) = (self.volume.read(range), self.copy.clone());
        async move {
            let data = read.await?;
            let copy = &mut *copy.borrow_mut();
            copy.clear();
            data.pieces.iter().for_each(|piece| copy.extend_from_slice(piece.as_bytes()));
            std::hint::black_box(copy);
            Ok(data)
        }
    }

    fn write(
        &self,
        range: LbaRange,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), VolumeError>> + 'static {
        self.volume.write(range, data)
    }

    fn flush(&self) -> impl Future<Output = Result<(), VolumeError>> + 'static {
        self.volume.flush()
    }

    fn block(data: &ReadData, index: usize) -> &[u8] {
        EngineTarget::<Counted<D>>::block(data, index)
    }
}

fn main() -> Result<()> {
    allocator::keep_huge_pages_whole();
    let Args { rounds, seconds, file } = Args::parse();
    let length = Length { rounds, seconds };
    reactor::create_sparse(&file, DEVICE_BYTES)?;
    let owned = OwnedDevice::open(&file, OpenOptions::default())?;
    let on_file = bed::on_core(cpus::server(), move |handle: Handle| async move {
        let device = owned.attach(&handle);
        in_this_process(handle, device, length).await
    });
    std::fs::remove_file(&file)?;
    let mem = bed::on_core(cpus::server(), move |handle| async move {
        let device = MemDevice::new(DEVICE_BYTES / BLOCK_SIZE as u64)?;
        in_this_process(handle, device, length).await
    })?;
    let served = over_tcp(length)?;
    println!("{}", serde_json::to_string(&Output { file: on_file?, mem, served })?);
    Ok(())
}

async fn in_this_process<D: Device>(handle: Handle, device: D, length: Length) -> Result<Rates> {
    let engine = Engine::format(&handle, device, Background::All).await?;
    let volume = Copied { volume: engine.volume(VOLUME_BYTES).await?, copy: Rc::default() };
    let compare = async |compare: bool| {
        volume::sabotage((!compare).then_some(Sabotage::SkipReadChecksum));
    };
    measure(&handle, &volume, length, compare).await
}

fn over_tcp(length: Length) -> Result<Rates> {
    let served = Served::start(DEVICE_BYTES, VOLUME_BYTES, |compare| {
        volume::sabotage((!compare).then_some(Sabotage::SkipReadChecksum));
    })?;
    bed::on_core(cpus::client(), move |handle| async move {
        let volume = served.connect(&handle).await?;
        let compare = async |compare| served.set(&handle, compare).await;
        let rates = measure(&handle, &volume, length, compare).await?;
        served.end()?;
        Ok(rates)
    })
}
