//! `farflash quota`: what tenants may have, and what of it they have.

use clap::Args;
use control::{TenantQuota, Use};
use report::{Align, Table};
use units::ByteLen;
use user_messages::Failure;

use super::volume::Output;

pub(super) const EXAMPLES: &str = "\
A tenant sees its own, an operator all tenants of the list of users. What is used stands before what may be: on all hosts \
of the service together.

Examples:
  farflash quota
  farflash quota --json | jq '.quotas[] | select(.volumes.used == .volumes.limit) | .tenant'";

const NONE: &str = "there are no tenants; `farflash api-token NAME --tenant` makes one for the list of users \
                    (`farflash serve --api-users`)";

#[derive(Debug, Args)]
pub(crate) struct Quota {
    #[command(flatten)]
    output: Output,
}

impl Quota {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let list = self.output.client()?.quotas()?;
        self.output.print(&list, |out| match list.quotas.is_empty() {
            true => writeln!(out, "{NONE}"),
            false => write!(out, "{}", table(&list.quotas).to_text()),
        })
    }
}

fn table(quotas: &[TenantQuota]) -> Table {
    let mut table = Table::new(&[
        ("TENANT", Align::Left),
        ("VOLUMES", Align::Right),
        ("PROVISIONED", Align::Right),
        ("ALLOCATED", Align::Right),
        ("SHARE", Align::Right),
        ("READS/S", Align::Right),
        ("WRITES/S", Align::Right),
    ]);
    let count = |part: Use| text(part, |number| number.to_string());
    let bytes = |part: Use| text(part, |number| ByteLen(number).to_string());
    for quota in quotas {
        table.row([
            quota.tenant.clone(),
            count(quota.volumes),
            bytes(quota.provisioned_bytes),
            bytes(quota.allocated_bytes),
            count(quota.share),
            count(quota.reads_per_second),
            count(quota.writes_per_second),
        ]);
    }
    table
}

/// Text for the amount in use, and for the limit if there is one.
fn text(part: Use, shown: impl Fn(u64) -> String) -> String {
    match part.limit {
        Some(limit) => format!("{} of {}", shown(part.used), shown(limit)),
        None => shown(part.used),
    }
}
