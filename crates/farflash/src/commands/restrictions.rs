//! Restrictions of a volume to certain hosts, on the command line.

use access::{HostName, Network};
use clap::Args;
use control::{ChangeRestrictions, NbdClients, Restrictions, Volume};
use user_messages::Failure;
use user_messages::output;

/// Begins the names that hosts have for their UUID.
const UUID_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// Warns of restrictions of a volume that are likely to admit no host, or not the one that was meant.
pub(super) fn warn_of_doubts(volume: &Volume) {
    let is_iscsi = volume.iscsi_connect.is_some();
    for doubt in doubts(&volume.restrictions, &volume.nbd, is_iscsi) {
        output::note(&format!("warning: {doubt}"));
    }
}

/// Doubts about restrictions of a volume. `is_iscsi`: it is served by iSCSI.
fn doubts(restrictions: &Restrictions, nbd: &NbdClients, is_iscsi: bool) -> Vec<String> {
    let networks = restrictions.networks.iter().map(|text| (text, "host"));
    let clients = nbd.networks.iter().map(|text| (text, "client of NBD"));
    let networks = networks.chain(clients).filter_map(|(text, peer)| {
        let why = text.parse::<Network>().ok()?.matches_no_host()?;
        Some(format!("the network {text} admits no {peer}: {why}"))
    });
    let hosts = restrictions.hosts.iter().filter_map(|host| {
        let has_upper_case = host.strip_prefix(UUID_NQN)?.contains(|c: char| c.is_ascii_uppercase());
        has_upper_case.then(|| {
            format!(
                "{host} has upper-case letters: it admits only a host that writes its name so, and most write UUIDs in \
                 lower case"
            )
        })
    });
    let initiators = restrictions.hosts.iter().filter_map(|text| {
        let name = text.parse::<HostName>().ok()?;
        let is_initiator = matches!(name, HostName::Iscsi(_));
        match name.matches_no_host() {
            Some(why) => Some(format!(
                "{text} is not of the usual form of an initiator's name: {why}; compare it with \
                 /etc/iscsi/initiatorname.iscsi there"
            )),
            None if is_initiator && !is_iscsi => Some(format!(
                "{text} admits no initiator: the volume is not served by iSCSI (`farflash serve --iscsi`)"
            )),
            None => None,
        }
    });
    networks.chain(hosts).chain(initiators).collect()
}

/// Conditions that hosts must meet.
#[derive(Clone, Debug, Args)]
pub(super) struct RestrictionArgs {
    /// Only the host with this NVMe qualified name (/etc/nvme/hostnqn), or the iSCSI initiator with this name
    /// (/etc/iscsi/initiatorname.iscsi); give it again for more
    #[arg(long = "host", value_name = "NQN|IQN")]
    hosts: Vec<String>,
    /// Only hosts of this network, such as 192.0.2.0/24 or 2001:db8::/32; give it again for more
    #[arg(long = "network", value_name = "CIDR")]
    networks: Vec<String>,
    /// Only hosts that come by this interface of the server, such as a VLAN's or VXLAN's; give it
    /// again for more
    #[arg(long = "interface", value_name = "NAME")]
    interfaces: Vec<String>,
}

/// Conditions that hosts must meet from now on.
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
    #[command(flatten)]
    nbd: NbdArgs,
}

/// The clients of NBD that may open a volume from now on; what is given takes the place of all that was before.
#[derive(Clone, Debug, Args)]
pub(super) struct NbdArgs {
    /// Let clients of NBD from this network open it, without a token; give it again for more. With the other --nbd flags it
    /// replaces all clients of NBD that were named before
    #[arg(long, value_name = "CIDR")]
    nbd_network: Vec<String>,
    /// Let clients of NBD open it, without a token, that have a certificate for this domain name, which the server verifies
    #[arg(long, value_name = "NAME")]
    nbd_certificate: Vec<String>,
    /// Let clients of NBD open it, without a token, that can open the server's unix socket
    #[arg(long)]
    nbd_unix: bool,
    /// No client of NBD may open it any more
    #[arg(long, conflicts_with_all = ["nbd_network", "nbd_certificate", "nbd_unix"])]
    no_nbd: bool,
}

impl NbdArgs {
    fn change(self) -> Option<NbdClients> {
        let Self { nbd_network, nbd_certificate, nbd_unix, no_nbd } = self;
        let (networks, certificates, unix) = (nbd_network, nbd_certificate, nbd_unix);
        let clients = NbdClients { networks, certificates, unix };
        (no_nbd || !clients.are_none()).then_some(clients)
    }
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
    /// Returns the change. A list that is not named stays as it is.
    pub(super) fn change(self) -> Result<ChangeRestrictions, Failure> {
        let list = |list: Vec<String>, any: bool| (any || !list.is_empty()).then_some(list);
        let RestrictionArgs { hosts, networks, interfaces } = self.restrictions;
        let change = ChangeRestrictions {
            hosts: list(hosts, self.any_host),
            networks: list(networks, self.any_network),
            interfaces: list(interfaces, self.any_interface),
            nbd: self.nbd.change(),
        };
        if change == ChangeRestrictions::default() {
            let what = "it is not said who may open the volume";
            let remedy = "give --host, --network or --interface, or --any-host, --any-network or \
                          --any-interface; or, for NBD, --nbd-network, --nbd-certificate, --nbd-unix or \
                          --no-nbd";
            return Err(Failure::usage(what, remedy));
        }
        Ok(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_admits_no_host_is_doubted() {
        let list = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let upper = "nqn.2014-08.org.nvmexpress:uuid:550E8400-e29b-41d4-a716-446655440000";
        let restrictions = Restrictions {
            hosts: list(&[&upper.to_lowercase(), upper, "nqn.2024-01.io.Example:A"]),
            networks: list(&["10.0.0.0/8", "224.0.0.0/4"]),
            interfaces: Vec::new(),
        };
        let nbd = NbdClients { networks: list(&["ff02::/16", "::1"]), ..NbdClients::default() };
        let doubts = doubts(&restrictions, &nbd, true);
        let all = ["224.0.0.0/4 admits no host", "ff02::/16 admits no client of NBD", upper];
        assert_eq!(doubts.len(), all.len(), "{doubts:?}");
        assert!(doubts.iter().zip(all).all(|(doubt, part)| doubt.contains(part)), "{doubts:?}");
        let none = super::doubts(&Restrictions::default(), &NbdClients::default(), false);
        assert!(none.is_empty());
    }

    #[test]
    fn names_that_no_initiator_comes_with_are_doubted() {
        let names = ["iqn.1993-08.org.debian:01:4711", "iqn.debian:a", "eui.0123"];
        let hosts = names.map(str::to_owned).into();
        let restrictions = Restrictions { hosts, ..Restrictions::default() };
        let served = doubts(&restrictions, &NbdClients::default(), true);
        assert_eq!(served.len(), 2, "{served:?}");
        assert!(served[0].contains("year and month") && served[1].contains("16 hex"), "{served:?}");
        let not = doubts(&restrictions, &NbdClients::default(), false);
        assert!(not.len() == 3 && not[0].contains("--iscsi"), "{not:?}");
    }
}
