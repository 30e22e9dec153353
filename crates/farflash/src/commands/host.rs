//! `farflash host …`: the hosts of a service.

use clap::Subcommand;
use control::{Host, HostState};
use report::{Align, Table};
use user_messages::Failure;
use user_messages::output::note;

use super::volume::Output;

pub(super) const EXAMPLES: &str = "\
Any host of a service answers for all. A host counts as lost when it was not heard of for the time of \
its lease; its volumes are then listed as unreachable.

Examples:
  farflash host list
  farflash host list --json | jq -r '.hosts[] | select(.state == \"lost\") | .name'";

#[derive(Debug, Subcommand)]
pub(crate) enum HostCommand {
    /// List hosts: whether they are there, where, and what they have
    #[command(after_help = EXAMPLES)]
    List {
        #[command(flatten)]
        output: Output,
    },
}

impl HostCommand {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Self::List { output } = self;
        let list = output.client()?.hosts()?;
        output.print(&list, |out| write!(out, "{}", table(&list.hosts).to_text()))?;
        if let Some(reason) = list.directory.cut_off {
            note(&format!("this is as it was when the directory was last seen: {reason}"));
        }
        Ok(())
    }
}

fn table(hosts: &[Host]) -> Table {
    let mut table = Table::new(&[
        ("HOST", Align::Left),
        ("STATE", Align::Left),
        ("API", Align::Left),
        ("LABELS", Align::Left),
        ("FENCE", Align::Right),
        ("CORES", Align::Right),
        ("DEVICES", Align::Right),
        ("VOLUMES", Align::Right),
        ("VERSION", Align::Left),
    ]);
    for host in hosts {
        let labels = host.labels.iter().map(|(key, value)| format!("{key}={value}"));
        table.row([
            host.name.clone(),
            match host.state {
                HostState::Online => "online".to_owned(),
                HostState::Lost => "lost".to_owned(),
            },
            host.api.map_or_else(|| "-".to_owned(), |api| api.to_string()),
            labels.collect::<Vec<_>>().join(" "),
            host.fence_after_seconds.map_or_else(|| "-".to_owned(), |after| format!("{after}s")),
            host.cores.len().to_string(),
            host.devices.len().to_string(),
            host.volumes.to_string(),
            host.version.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    table
}
