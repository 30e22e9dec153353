//! The command line: one file per subcommand.

mod api;
mod attach;
mod authentication;
mod bench;
mod calibrate;
mod cost;
mod datastore;
mod detach;
mod device;
mod discover;
mod format;
mod fsck;
mod grow;
mod host;
mod interrupt;
mod kv_load;
mod leave_cluster;
mod manual;
mod membership;
mod profile;
mod quota;
mod reproduce;
mod restrictions;
mod scrub;
mod serve;
mod settings;
mod status;
mod token_file;
mod tokens;
mod top;
mod tune;
mod usage;
mod volume;

use clap::{CommandFactory, Parser, Subcommand};
use user_messages::Failure;

const EXAMPLES: &str = "\
Examples:
  A server on a file, and a volume on it:
    farflash format --device file:/srv/flash.img,size=8GiB
    farflash serve  --device file:/srv/flash.img --cores 0 --listen 127.0.0.1:4420
    farflash volume create db-1 --size 1GiB

  A server on memory, to try things out:
    farflash serve --device mem:1GiB --cores 0 --auth off

Exit codes: 0 done, 1 could not be done, 2 asked for something that makes no sense.";

/// A Flash server: thin, isolated volumes over NVMe/TCP from a file or block device.
#[derive(Debug, Parser)]
#[command(name = "farflash", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(arg_required_else_help = true, infer_subcommands = false)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prepare a device for `serve`
    #[command(after_help = format::EXAMPLES)]
    Format(format::Format),
    /// Check a device that no server uses, and mend it if told to
    #[command(after_help = fsck::EXAMPLES)]
    Fsck(fsck::Fsck),
    /// Have a running server read all that lies on its device, to find damage
    #[command(after_help = scrub::EXAMPLES)]
    Scrub(scrub::Scrub),
    /// Serve the volumes of a device over NVMe/TCP
    #[command(after_help = serve::EXAMPLES)]
    Serve(Box<serve::Serve>),
    /// Put load on a volume or a local device, and measure it
    #[command(after_help = bench::EXAMPLES)]
    Bench(Box<bench::Bench>),
    /// Use a volume as a local file, without a kernel initiator
    #[command(after_help = attach::EXAMPLES)]
    Attach(Box<attach::Attach>),
    /// Give up a volume that is attached as a file
    #[command(after_help = detach::EXAMPLES)]
    Detach(detach::Detach),
    /// List the volumes that a host's discovery service offers
    #[command(after_help = discover::EXAMPLES)]
    Discover(discover::Discover),
    /// Run an experiment of the papers again, on modelled drives
    #[command(after_help = reproduce::EXAMPLES)]
    Reproduce(reproduce::Reproduce),
    /// Compare the cost of direct-attached and disaggregated Flash
    #[command(after_help = cost::EXAMPLES)]
    Cost(Box<cost::Cost>),
    /// Serve keys and values from a volume, as the tier above Flash
    #[command(subcommand)]
    Datastore(datastore::DatastoreCommand),
    /// Put load on a key-value server, and measure it
    #[command(after_help = kv_load::EXAMPLES)]
    KvLoad(Box<kv_load::KvLoad>),
    /// Measure the read latency of many drives at once, to six nines, and why it is long
    #[command(after_help = profile::EXAMPLES)]
    Profile(Box<profile::ProfileCommand>),
    /// Propose settings of this host, apply them, and take them back
    #[command(subcommand)]
    Tune(tune::TuneCommand),
    /// Measure what a device can do, and propose a ceiling for it
    #[command(after_help = calibrate::EXAMPLES)]
    Calibrate(Box<calibrate::Calibrate>),
    /// Say whether a running server is well
    #[command(after_help = status::EXAMPLES)]
    Status(status::Status),
    /// Watch what the volumes of a running server do and get
    #[command(after_help = top::EXAMPLES)]
    Top(top::Top),
    /// Show and change how a running server's device is shared
    #[command(subcommand)]
    Device(device::DeviceCommand),
    /// Use all of a device that was made larger
    #[command(after_help = grow::EXAMPLES)]
    Grow(grow::Grow),
    /// Have a device belong to no cluster, if its cluster is gone for good
    #[command(after_help = leave_cluster::EXAMPLES)]
    LeaveCluster(leave_cluster::LeaveCluster),
    /// List the hosts of a service
    #[command(subcommand)]
    Host(host::HostCommand),
    /// Show what tenants may have, and have
    #[command(after_help = quota::EXAMPLES)]
    Quota(quota::Quota),
    /// Make a token for an operator or tenant of the API
    #[command(after_help = api::EXAMPLES)]
    ApiToken(api::MakeToken),
    /// Create, list, show, change and delete volumes of a running server
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    /// Print what a shell needs to complete this command line
    #[command(after_help = manual::COMPLETIONS_EXAMPLES)]
    Completions(manual::Completions),
    /// Write the manual pages of all commands
    #[command(after_help = manual::PAGES_EXAMPLES)]
    Man(manual::Pages),
}

impl CommandLine {
    /// Does what the command line says.
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Format(command) => command.run(),
            Command::Fsck(command) => command.run(),
            Command::Scrub(command) => command.run(),
            Command::Serve(command) => command.run(),
            Command::Bench(command) => command.run(),
            Command::Attach(command) => command.run(),
            Command::Detach(command) => command.run(),
            Command::Discover(command) => command.run(),
            Command::Reproduce(command) => command.run(),
            Command::Cost(command) => command.run(),
            Command::Datastore(command) => command.run(),
            Command::KvLoad(command) => command.run(),
            Command::Profile(command) => command.run(),
            Command::Tune(command) => command.run(),
            Command::Calibrate(command) => command.run(),
            Command::Status(command) => command.run(),
            Command::Top(command) => command.run(),
            Command::Device(command) => command.run(),
            Command::Grow(command) => command.run(),
            Command::LeaveCluster(command) => command.run(),
            Command::Host(command) => command.run(),
            Command::Quota(command) => command.run(),
            Command::ApiToken(command) => command.run(),
            Command::Volume(command) => command.run(),
            Command::Completions(command) => command.run(Self::command()),
            Command::Man(command) => command.run(Self::command()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each command below `command`, itself included, with its whole name.
    fn all(command: &clap::Command, name: String) -> Vec<(String, clap::Command)> {
        let below = command.get_subcommands().filter(|below| below.get_name() != "help");
        let below = below.flat_map(|below| all(below, format!("{name} {}", below.get_name())));
        let below: Vec<_> = below.collect();
        [(name, command.clone())].into_iter().chain(below).collect()
    }

    /// A paragraph is one line, which is broken to fit the terminal. One that is broken already gets a line with a
    /// single word on it wherever the terminal is narrower.
    #[test]
    fn help_is_broken_where_the_terminal_ends() {
        let begins = |line: &str| line.starts_with(|first: char| first != ' ');
        for (name, command) in all(&CommandLine::command(), "farflash".to_owned()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().collect();
            for pair in lines.windows(2) {
                let is_whole = pair[0].ends_with(['.', ':']);
                let goes_on = begins(pair[0]) && begins(pair[1]) && !is_whole;
                assert!(!goes_on, "{name}: `{}` goes on in the next line", pair[0]);
            }
        }
    }
}
