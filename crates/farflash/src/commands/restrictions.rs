//! Who may open a volume, on the command line.

use clap::Args;
use control::{ChangeRestrictions, Restrictions};

use crate::failure::Failure;

/// What hosts must be.
#[derive(Clone, Debug, Args)]
pub(super) struct RestrictionArgs {
    /// Only the host with this NVMe qualified name (/etc/nvme/hostnqn); give it again for more
    #[arg(long = "host", value_name = "NQN")]
    hosts: Vec<String>,
    /// Only hosts of this network, such as 192.0.2.0/24 or 2001:db8::/32; give it again for more
    #[arg(long = "network", value_name = "CIDR")]
    networks: Vec<String>,
    /// Only hosts that come by this interface of the server, such as a VLAN's or VXLAN's; give it
    /// again for more
    #[arg(long = "interface", value_name = "NAME")]
    interfaces: Vec<String>,
}

/// What hosts must be from now on.
#[derive(Clone, Debug, Args)]
pub(super) struct ChangeArgs {
    #[command(flatten)]
    restrictions: RestrictionArgs,
    /// Hosts of any name
    #[arg(long, conflicts_with = "hosts")]
    any_host: bool,
    /// Hosts of any network
    #[arg(long, conflicts_with = "networks")]
    any_network: bool,
    /// Hosts that come by any interface
    #[arg(long, conflicts_with = "interfaces")]
    any_interface: bool,
}

impl RestrictionArgs {
    /// The restrictions of a new volume, if there are any.
    pub(super) fn restrictions(self) -> Option<Restrictions> {
        let Self { hosts, networks, interfaces } = self;
        let restrictions = Restrictions { hosts, networks, interfaces };
        (restrictions != Restrictions::default()).then_some(restrictions)
    }
}

impl ChangeArgs {
    /// What is to change. A list that is not named stays as it is.
    pub(super) fn change(self) -> Result<ChangeRestrictions, Failure> {
        let list = |list: Vec<String>, any: bool| (any || !list.is_empty()).then_some(list);
        let RestrictionArgs { hosts, networks, interfaces } = self.restrictions;
        let change = ChangeRestrictions {
            hosts: list(hosts, self.any_host),
            networks: list(networks, self.any_network),
            interfaces: list(interfaces, self.any_interface),
        };
        if change == ChangeRestrictions::default() {
            let what = "it is not said who may open the volume";
            let remedy = "give --host, --network or --interface, or --any-host, --any-network or \
                          --any-interface";
            return Err(Failure::usage(what, remedy));
        }
        Ok(change)
    }
}
