//! `farflash discover`: what the discovery service of a host offers.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use client::{ConnectError, Discovered, Options};
use local_devices::storage;
use reactor::CoreConfig;
use user_messages::Failure;
use user_messages::output;

use crate::address::parse_address;

pub(super) const EXAMPLES: &str = "\
Examples:
  farflash discover 192.0.2.7:4420
  farflash discover 192.0.2.7:8009 --json";

/// Longest wait for the answer.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct Discover {
    /// A portal or discovery address of the server
    #[arg(value_name = "IP:PORT", default_value = "127.0.0.1:4420", value_parser = parse_address)]
    address: SocketAddr,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Discover {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let address = self.address;
        let options = Options {
            connect_timeout: TIMEOUT,
            command_timeout: TIMEOUT,
            ..Options::for_host(uuid::Uuid::new_v4().into_bytes())
        };
        let config = CoreConfig { name: "farflash".to_owned(), ..CoreConfig::default() };
        let found = reactor::run_on_current_thread(&config, |handle| async move {
            client::discover(handle, address, options).await
        });
        let found = found.map_err(|error| storage::no_core(&error))?;
        let found = found.map_err(|error| not_discovered(address, &error))?;
        output::print("give the result somewhere to go", |out| self.print(out, &found))
    }

    fn print(&self, out: &mut dyn Write, found: &[Discovered]) -> std::io::Result<()> {
        if self.json {
            let entry = |entry: &Discovered| {
                serde_json::json!({
                    "nqn": entry.nqn.to_string(),
                    "address": entry.address,
                    "kind": if entry.is_nvm { "nvm" } else { "discovery" },
                })
            };
            let document = serde_json::json!({
                "subsystems": found.iter().map(entry).collect::<Vec<_>>(),
            });
            return writeln!(out, "{}", serde_json::to_string_pretty(&document)?);
        }
        let volumes = || found.iter().filter(|entry| entry.is_nvm);
        if volumes().next().is_none() {
            output::note(&format!("{} offers this host no volume", self.address));
        }
        volumes().try_for_each(|entry| writeln!(out, "{}  {}", entry.address, entry.nqn))
    }
}

fn not_discovered(address: SocketAddr, error: &ConnectError) -> Failure {
    Failure::runtime(
        format!("discovery at {address} failed: {error}"),
        "name a portal of a running server, as `farflash serve` logs them",
    )
}
