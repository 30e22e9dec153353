//! Connects to a volume, writes to it, reads back, and shows how batches form.
//!
//! ```text
//! cargo run -p client --example volume -- 127.0.0.1:4420 nqn.2014-08.org.nvmexpress:uuid:…
//! ```
//! Give no NQN to see what the target offers. The first 64 blocks of the volume are overwritten.

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

use client::{Client, Options, Volume, discover};
use io_traits::{Buffer, Clock, Spawn};
use local_sync::oneshot;
use nvme_wire::Nqn;
use reactor::{CoreConfig, Handle, run_on_current_thread};
use units::{Lba, LbaRange};

/// Blocks that are written and read side by side.
const BLOCKS: u64 = 64;
/// The UUID in this host's NQN. A real host keeps one of its own.
const HOST_UUID: [u8; 16] = *b"client's example";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (address, nqn) = match &arguments[..] {
        [address] => (address.clone(), None),
        [address, nqn] => (address.clone(), Some(nqn.clone())),
        _ => {
            eprintln!("usage: volume IP:PORT [NQN]");
            return ExitCode::FAILURE;
        }
    };
    let config = CoreConfig::default();
    let outcome = run_on_current_thread(&config, |world| async move {
        match nqn {
            None => list(world, &address).await,
            Some(nqn) => tour(world, &address, &nqn).await,
        }
    });
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints what the target offers.
async fn list(world: Handle, address: &str) -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = address.parse()?;
    for entry in discover(world, address, Options::for_host(HOST_UUID)).await? {
        println!("{}  {}", entry.address, entry.nqn);
    }
    Ok(())
}

async fn tour(world: Handle, address: &str, nqn: &str) -> Result<(), Box<dyn Error>> {
    let (address, nqn): (SocketAddr, Nqn) = (address.parse()?, nqn.parse()?);
    let options = Options::for_host(HOST_UUID);
    let client = Client::connect(world.clone(), address, &nqn, options).await?;
    let volume = client.volume().await?;
    println!(
        "{} blocks of {} bytes; writes are atomic up to {} blocks, requests go up to {}",
        volume.capacity(),
        volume.block_size(),
        volume.atomic_write_blocks(),
        volume.max_transfer_blocks(),
    );

    let before = (world.now(), client.counters());
    let mut pending = Vec::new();
    for lba in 0..BLOCKS {
        let (sender, receiver) = oneshot();
        let volume = volume.clone();
        world.spawn(async move { sender.send(check_block(&volume, lba).await) });
        pending.push(receiver);
    }
    for outcome in pending {
        outcome.await.expect("the task sends its outcome")?;
    }
    let (elapsed, after) = (world.now() - before.0, client.counters());
    println!(
        "{} commands in {elapsed:?}, sent in {} batches, replies received in {} chunks",
        after.completed - before.1.completed,
        after.sends - before.1.sends,
        after.receives - before.1.receives,
    );

    volume.deallocate(&[LbaRange::new(Lba(0), BLOCKS)]).await?;
    volume.flush().await?;
    client.close().await;
    Ok(())
}

/// Writes one block and reads it back.
async fn check_block(volume: &Volume<Handle>, lba: u64) -> Result<(), client::Error> {
    let data = Buffer::from_bytes(format!("block {lba}").as_bytes()).into_slice();
    volume.write(Lba(lba), data.clone()).await?;
    let back = volume.read(Lba(lba), 1).await?;
    assert!(back.as_bytes() == data.as_bytes(), "block {lba} reads what was written");
    Ok(())
}
