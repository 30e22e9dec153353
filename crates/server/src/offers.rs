//! Volumes that discovery at this host offers: those served here, and those of other hosts.
//!
//! - OFFER-1: a volume that moves is offered by two, in whatever order they hear of it: by what this host serves, and by what the
//!   directory says of other hosts. Neither takes back what the other offers. Where both offer one, the directory is right: of two
//!   volumes of one id hosts find the one that has the record.
//! - OFFER-2: all cores are told the same in the same order.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use access::{Access, NbdAccess, Restrictions};
use control::ChapSource;
use data_core::{Announcement, CoreMessage, NbdAddress, Place};
use dataplane::VolumeStatus;
use iscsi_frontend::{TargetRecord, target_name_of};
use nbd_frontend::{ExportPlace, ExportRecord};
use nvme_frontend::DiscoveryRecord;
use units::{CoreIndex, MetadataSize};
use uuid::Uuid;

use super::directory;
use super::state::State;
use crate::nbd_address::{Encryption, connect_line, uri};

/// The offer of a volume.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Offer {
    /// Addresses of its portal: a host is shown the first where no other is nearer.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) restrictions: Restrictions,
    /// The same for clients of NBD, if any may open it here.
    pub(super) nbd: Option<NbdOffer>,
    /// The same for iSCSI initiators, if it is served to them.
    pub(super) iscsi: Option<IscsiOffer>,
}

/// An offer of a volume to iSCSI initiators.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct IscsiOffer {
    /// Addresses of its portal.
    pub(super) addresses: Vec<SocketAddr>,
    /// Initiators that may open it. Tokens of volumes of other hosts are not known here, so where initiators authenticate
    /// discovery shows none of these.
    pub(super) access: Access,
}

/// An offer of a volume to clients of NBD.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct NbdOffer {
    /// Its name.
    pub(super) name: String,
    /// The place where they open it.
    pub(super) place: NbdPlace,
    /// The clients, with the restrictions that hold for all hosts.
    pub(super) access: Access,
}

/// The place where clients of NBD open a volume.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum NbdPlace {
    /// The core of this index.
    Core(CoreIndex),
    /// Another host, at these URIs.
    Host(Vec<String>),
}

/// The ways by which clients of NBD can open a volume.
struct Offered {
    plain: bool,
    encrypted: bool,
    unix: bool,
}

impl Offered {
    fn of(open_to: &NbdAccess, has_tls: bool) -> Self {
        let plain = !open_to.networks.is_empty();
        let encrypted = has_tls && (plain || !open_to.certificates.is_empty());
        Self { plain, encrypted, unix: open_to.unix }
    }
}

impl NbdOffer {
    /// The offer of a volume, if any client may open it.
    pub(super) fn of(name: String, place: NbdPlace, access: &Access) -> Option<Self> {
        let Access { restrictions, nbd, .. } = access;
        let (restrictions, nbd) = (restrictions.clone(), nbd.clone());
        let is_open = !nbd.is_off();
        let access = Access { restrictions, nbd, ..Access::default() };
        is_open.then_some(Self { name, place, access })
    }
}

/// By what it is offered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// It is served here.
    Here,
    /// The directory says that another host serves it.
    Elsewhere,
}

/// All offers.
#[derive(Default)]
pub(super) struct Offers(Mutex<BTreeMap<Uuid, Sources>>);

/// A volume's offers.
#[derive(Default)]
struct Sources {
    here: Option<Offer>,
    elsewhere: Option<Offer>,
}

impl Sources {
    fn now(&self) -> Option<&Offer> {
        self.elsewhere.as_ref().or(self.here.as_ref())
    }
}

impl Offers {
    /// Offers a volume by one source, or no more by that. If hosts are to find something else by that, `tell` is called before
    /// another offer is made (OFFER-2).
    fn set(
        &self,
        id: Uuid,
        source: Source,
        offer: Option<Offer>,
        tell: impl FnOnce(Option<&Offer>),
    ) {
        // A panic elsewhere leaves the offers whole: each change is one assignment.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sources = all.entry(id).or_default();
        let before = sources.now().cloned();
        match source {
            Source::Here => sources.here = offer,
            Source::Elsewhere => sources.elsewhere = offer,
        }
        let now = sources.now();
        if now != before.as_ref() {
            tell(now);
        }
        if now.is_none() {
            all.remove(&id);
        }
    }
}

impl State {
    /// Lets hosts find a volume that is served here, at the discovery service of every core.
    pub(super) fn announce(&self, place: directory::Place, volume: &VolumeStatus, access: &Access) {
        let addresses = self.membership.addresses_of(self.cores[place.core].portal);
        let nbd = NbdOffer::of(volume.name.clone(), NbdPlace::Core(place.core), access);
        let iscsi = self.iscsi_portal(place.core, volume.metadata).map(|portal| IscsiOffer {
            addresses: self.membership.addresses_of(portal),
            access: access.clone(),
        });
        let offer = Offer { addresses, restrictions: access.restrictions.clone(), nbd, iscsi };
        self.offer(place.id, Source::Here, Some(offer));
    }

    /// The volume is served here no more.
    pub(super) fn withdraw(&self, id: Uuid) {
        self.offer(id, Source::Here, None);
    }

    /// A volume, as the core of index `at` offers it to clients of NBD.
    fn export(&self, uuid: Uuid, at: CoreIndex, offer: NbdOffer) -> ExportRecord {
        let NbdOffer { name, place, access } = offer;
        let elsewhere = |uris: Vec<String>| ExportPlace::Elsewhere { uri: uris.join(" or ") };
        let place = match place {
            NbdPlace::Core(core) if core == at => ExportPlace::Here,
            NbdPlace::Core(core) => elsewhere(self.nbd_uris(core, &name, &access.nbd)),
            NbdPlace::Host(uris) => elsewhere(uris),
        };
        ExportRecord { uuid, name, place, access }
    }

    /// The addresses of an export of a core, of the ways by which clients may open it.
    pub(super) fn nbd_uris(&self, core: CoreIndex, name: &str, open_to: &NbdAccess) -> Vec<String> {
        let ways = self.nbd_ways(core, open_to).into_iter();
        ways.map(|(address, encryption)| uri(&address, encryption, name)).collect()
    }

    /// The commands with which a Linux host connects such an export.
    pub(super) fn nbd_connect_lines(
        &self,
        core: CoreIndex,
        name: &str,
        open_to: &NbdAccess,
    ) -> Vec<String> {
        let ways = self.nbd_ways(core, open_to).into_iter();
        ways.map(|(address, encryption)| connect_line(&address, encryption, name)).collect()
    }

    /// The ways by which clients may open an export of a core.
    fn nbd_ways(&self, core: CoreIndex, open_to: &NbdAccess) -> Vec<(NbdAddress, Encryption)> {
        let (link, mut ways) = (&self.cores[core], Vec::new());
        let Offered { plain, encrypted, unix } = Offered::of(open_to, link.nbd_tls.is_some());
        for place in &link.places {
            match place {
                Place::Nbd(NbdAddress::Tcp(at)) => {
                    // The address by which hosts reach the portal.
                    let reached = SocketAddr::new(link.portal.ip(), at.port());
                    let address = NbdAddress::Tcp(reached);
                    ways.extend(encrypted.then(|| (address.clone(), Encryption::Tls)));
                    ways.extend(plain.then_some((address, Encryption::None)));
                }
                Place::Nbd(address @ NbdAddress::Unix(_)) => {
                    ways.extend(unix.then(|| (address.clone(), Encryption::None)));
                }
                Place::Iscsi(_) => {}
            }
        }
        ways
    }

    /// The commands with which a Linux host connects the target of a volume, if it is served by iSCSI.
    pub(super) fn iscsi_connect(
        &self,
        core: CoreIndex,
        volume: &VolumeStatus,
        chap: ChapSource<'_>,
    ) -> Option<String> {
        let portal = self.iscsi_portal(core, volume.metadata)?;
        Some(self.iscsi_commands(volume.uuid, portal, chap))
    }

    /// The same for a volume of a host whose portal is known. CHAP is used where initiators authenticate.
    pub(super) fn iscsi_commands(
        &self,
        uuid: Uuid,
        portal: SocketAddr,
        chap: ChapSource<'_>,
    ) -> String {
        let chap = self.tokens.are_required.then_some(chap);
        control::iscsi_connect(&target_name_of(uuid), &uuid.to_string(), portal, chap)
    }

    /// The address by which initiators reach the iSCSI portal of a core, if it has one. Blocks with metadata have no form in
    /// SCSI: no initiator can open such a volume.
    pub(super) fn iscsi_portal(
        &self,
        core: CoreIndex,
        metadata: MetadataSize,
    ) -> Option<SocketAddr> {
        let link = &self.cores[core];
        let mut places = link.places.iter().filter(|_| metadata.is_none());
        places.find_map(|place| match place {
            Place::Iscsi(at) => Some(SocketAddr::new(link.portal.ip(), at.port())),
            Place::Nbd(_) => None,
        })
    }

    /// Offers a volume by one source, or no more by that.
    pub(super) fn offer(&self, uuid: Uuid, source: Source, offer: Option<Offer>) {
        self.offers.set(uuid, source, offer, |now| {
            for (number, core) in self.cores.iter_enumerated() {
                let message =
                    match now.cloned() {
                        Some(Offer { addresses, restrictions, nbd, iscsi }) => {
                            let record = DiscoveryRecord { uuid, addresses, restrictions };
                            let export = nbd.map(|offer| self.export(uuid, number, offer));
                            let target = iscsi.map(|IscsiOffer { addresses, access }| {
                                TargetRecord { uuid, addresses, access }
                            });
                            CoreMessage::Announce(Box::new(Announcement { record, export, target }))
                        }
                        None => CoreMessage::Withdraw { id: uuid },
                    };
                // A core that has ended answers no host either.
                let _ = core.mailbox.send(message);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: Uuid = Uuid::from_u128(1);

    fn at(host: u8) -> Option<Offer> {
        let addresses = vec![SocketAddr::from(([192, 0, 2, host], 4420))];
        Some(Offer { addresses, restrictions: Restrictions::default(), nbd: None, iscsi: None })
    }

    /// Returns the messages to the cores when offers are made in this order; `None` where nothing changes.
    fn told(steps: &[(Source, Option<Offer>)]) -> Vec<Option<Offer>> {
        let (offers, mut told) = (Offers::default(), Vec::new());
        for (source, offer) in steps {
            offers.set(VOLUME, *source, offer.clone(), |now| told.push(now.cloned()));
        }
        told
    }

    /// OFFER-1. Method: a volume comes from another host, or goes there, and each time either source hears of it first.
    #[test]
    fn a_volume_that_moves_is_offered_where_it_is_at_last() {
        use Source::{Elsewhere, Here};
        let (here, there) = ((Here, at(1)), (Elsewhere, at(2)));
        let (not_here, not_there) = ((Here, None), (Elsewhere, None));
        let comes = [there.clone(), here.clone(), not_there.clone()];
        assert_eq!(told(&comes), [at(2), at(1)]);
        let comes = [there.clone(), not_there.clone(), here.clone()];
        assert_eq!(told(&comes), [at(2), None, at(1)]);
        let goes = [here.clone(), there.clone(), not_here.clone()];
        assert_eq!(told(&goes), [at(1), at(2)]);
        let goes = [here.clone(), not_here.clone(), there.clone()];
        assert_eq!(told(&goes), [at(1), None, at(2)]);
        let ends = [here.clone(), here, there, not_here, not_there];
        assert_eq!(told(&ends), [at(1), at(2), None], "what is the same is told once");
    }
}
