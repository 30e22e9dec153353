//! Side-by-side benchmarks: farflash beside the machine's limit and beside its peers. And the demo.

mod bounds;
mod case;
mod compare;
mod cpus;
mod datastore;
mod demo;
mod demo_plot;
mod distance;
mod driver;
mod engine;
mod front_ends;
mod goals;
mod host;
mod idle;
mod machine;
mod null;
mod page;
mod peers;
mod process;
mod run_args;
mod sharing;
mod steady;
mod tenants;
mod verdict;
mod writes;

use std::path::PathBuf;

use allocator::Allocator;
use anyhow::Result;
use clap::{Parser, Subcommand};
use units::ByteLen;

use crate::null::{Blocks, Direction, NullSpec};

/// The engine that runs in this process shall run as it does in farflash.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

#[derive(Parser)]
#[command(about = "Benchmarks farflash beside the machine's limit and beside its peers")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure the machine's limit once
    Null(NullArgs),
    /// Measure everything side by side, in interleaved rounds
    Compare(compare::CompareArgs),
    /// Measure the volume engine beside the raw device, at equal durability
    Engine(engine::EngineArgs),
    /// Measure what it costs to share a device and a core fairly
    Sharing(run_args::RunArgs),
    /// Measure what many tenants cost: authentication, metrics, volumes and connections by the thousand
    Tenants(run_args::RunArgs),
    /// Measure iSCSI, NBD and NVMe/TCP beside one another, and beside servers of others
    FrontEnds(run_args::RunArgs),
    /// Measure writes, mixed loads and large requests beside null servers, and beside another build
    Writes(writes::WritesArgs),
    /// Measure the load generator beside redis-benchmark, and a datastore with remote Flash beside one with local Flash
    Datastore(run_args::RunArgs),
    /// Measure a server beside tasks that take all CPUs, before and after `farflash tune`, and the profiler on 64 drives
    Host(run_args::RunArgs),
    /// Answer requests for keys at once, for `datastore`
    #[command(hide = true)]
    Echo {
        /// Port on loopback
        #[arg(long)]
        port: u16,
    },
    /// Mount a file on a server that only reads and writes another file, for `datastore`
    #[command(hide = true)]
    NullFile {
        /// File to mount it over
        #[arg(long)]
        mount: PathBuf,
        /// The other file
        #[arg(long)]
        image: PathBuf,
    },
    /// Serve volumes, kill the server under load, verify everything, plot it
    Demo(demo::DemoArgs),
}

#[derive(clap::Args)]
struct NullArgs {
    /// Direction of the data
    #[arg(long, value_enum, default_value = "read")]
    rw: Direction,
    /// Bytes of data in a request
    #[arg(long, default_value = "4KiB")]
    bs: ByteLen,
    /// Blocks that the server sends
    #[arg(long, value_enum, default_value = "cached")]
    blocks: Blocks,
    /// Requests outstanding on a connection
    #[arg(long, default_value_t = 32)]
    qd: u64,
    /// TCP connections
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Length of the run
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// CPU of the server
    #[arg(long, default_value_t = cpus::server())]
    server_cpu: usize,
    /// CPU of the client
    #[arg(long, default_value_t = cpus::client())]
    client_cpu: usize,
}

fn main() -> Result<()> {
    allocator::keep_huge_pages_whole();
    match Cli::parse().command {
        Command::Null(args) => {
            let spec = NullSpec {
                direction: args.rw,
                block_bytes: usize::try_from(args.bs.0)?,
                blocks: args.blocks,
                depth: args.qd,
                connections: args.connections,
                server_cpu: args.server_cpu,
                client_cpu: args.client_cpu,
                warm_up_seconds: 0.0,
                seconds: args.seconds,
            };
            println!("{}", serde_json::to_string(&null::run(&spec)?)?);
            Ok(())
        }
        Command::Compare(args) => compare::compare(&args),
        Command::Engine(args) => engine::engine(&args),
        Command::Sharing(args) => sharing::sharing(&args),
        Command::Tenants(args) => tenants::tenants(&args),
        Command::FrontEnds(args) => front_ends::front_ends(&args),
        Command::Writes(args) => writes::writes(&args),
        Command::Datastore(args) => datastore::datastore(&args),
        Command::Host(args) => host::host(&args),
        Command::Echo { port } => datastore::echo::serve(port),
        Command::NullFile { mount, image } => datastore::null_file::serve(&mount, &image),
        Command::Demo(args) => demo::demo(&args),
    }
}
