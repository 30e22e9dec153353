//! `farflash datastore`: the key-value server, which is a program of its own, since it alone needs RocksDB.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process;

use clap::Subcommand;
use datastore::Serve;
use user_messages::Failure;

const PROGRAM: &str = "farflash-datastore";

const EXAMPLES: &str = "\
Examples:
  A server whose data lies on a volume that is mounted at /srv/db:
    farflash datastore serve --data /srv/db/kv
    redis-cli set user:1 anna

  As in the measurements of remote Flash: SET appends 100 bytes at a time, up to 10 kB, with little memory:
    farflash datastore serve --data /srv/db/kv --set append --append-max 10kB --memory 512MiB --direct-io

  Open to the network, with a password, metrics, and writes that are on the device before they are answered:
    farflash datastore serve --data /srv/db/kv --listen 192.0.2.10:6379 --password-file /etc/farflash/kv-password \\
      --metrics 192.0.2.10:9121 --writes synced

SIGTERM makes all writes durable and ends the server.";

#[derive(Debug, Subcommand)]
pub(crate) enum DatastoreCommand {
    /// Serve keys and values from a directory over the protocol of Redis
    #[command(after_help = EXAMPLES)]
    Serve(Box<Serve>),
}

impl DatastoreCommand {
    /// Becomes the server's program, with the same arguments.
    pub(super) fn run(self) -> Result<(), Failure> {
        let Self::Serve(serve) = self;
        serve.plan().map_err(|error| {
            Failure::usage(error.to_string(), "see `farflash datastore serve --help`")
        })?;
        let program = program();
        let error = process::Command::new(&program).args(arguments(std::env::args_os())).exec();
        let what = format!("{} cannot be run: {error}", program.display());
        let remedy = "install the package farflash-datastore, or build it by `make datastore`";
        Err(Failure::runtime(what, remedy))
    }
}

/// The program beside this one, or else that of the path.
fn program() -> PathBuf {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(|directory| directory.join(PROGRAM));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM))
}

/// The arguments behind `farflash datastore`.
fn arguments(all: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    all.skip(2)
}
