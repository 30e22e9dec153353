//! What discovery at this host offers: volumes that are served here, and those of other hosts.
//!
//! - O1: a volume that moves is offered by two, in whatever order they hear of it: by what this host serves, and by what the
//!   directory says of other hosts. Neither takes back what the other offers. Where both offer one, the directory is right: of two
//!   volumes of one id hosts find the one that has the record.
//! - O2: all cores are told the same in the same order.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use access::{Access, Restrictions};
use iscsi_frontend::TargetRecord;
use nvme_frontend::DiscoveryRecord;
use uuid::Uuid;

use super::directory::Place;
use super::message::CoreMessage;
use super::state::State;

/// How a volume is offered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Offer {
    /// Where hosts reach its portal: the first where no other is nearer to them.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) restrictions: Restrictions,
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
    /// another offer is made (O2).
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
    pub(super) fn announce(&self, place: Place, access: &Access) {
        let core = &self.cores[place.core];
        let addresses = self.membership.addresses_of(core.portal);
        let offer = Offer { addresses, restrictions: access.restrictions.clone() };
        self.offer(place.id, Source::Here, Some(offer));
        if let Some(portal) = core.iscsi {
            let addresses = self.membership.addresses_of(portal);
            let record = TargetRecord { uuid: place.id, addresses, access: access.clone() };
            self.tell_targets(|| CoreMessage::AnnounceTarget { record: record.clone() });
        }
    }

    /// Tells all cores what iSCSI targets there are. A core that has ended answers no initiator either.
    fn tell_targets(&self, message: impl Fn() -> CoreMessage) {
        for core in self.cores.iter().filter(|core| core.iscsi.is_some()) {
            let _ = core.mailbox.send(message());
        }
    }

    /// The volume is served here no more.
    pub(super) fn withdraw(&self, id: Uuid) {
        self.offer(id, Source::Here, None);
        self.tell_targets(|| CoreMessage::WithdrawTarget { id });
    }

    /// Offers a volume by one source, or no more by that.
    pub(super) fn offer(&self, uuid: Uuid, source: Source, offer: Option<Offer>) {
        self.offers.set(uuid, source, offer, |now| {
            for core in &self.cores {
                let message = match now.cloned() {
                    Some(Offer { addresses, restrictions }) => {
                        let record = DiscoveryRecord { uuid, addresses, restrictions };
                        CoreMessage::Announce { record }
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
        Some(Offer { addresses, restrictions: Restrictions::default() })
    }

    /// What is told when offers are made in this order; what is told none is not changed by it.
    fn told(steps: &[(Source, Option<Offer>)]) -> Vec<Option<Offer>> {
        let (offers, mut told) = (Offers::default(), Vec::new());
        for (source, offer) in steps {
            offers.set(VOLUME, *source, offer.clone(), |now| told.push(now.cloned()));
        }
        told
    }

    /// O1. Method: a volume comes from another host, or goes there, and each time either source hears of it first.
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
