//! SendTargets: the targets that an initiator may open, at addresses that it can reach.
//!
//! - ISCSI-DISCOVERY-1: without authentication, an initiator is told the volumes whose restrictions admit it. Where
//!   initiators authenticate, it is told the one volume whose secret it knows.
//! - ISCSI-DISCOVERY-2: of a target's addresses it is told the one that is nearest to the address at which it asked.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use access::Access;
use dataplane::{Peer, nearest};
use io_traits::{Device, World};
use iscsi_target::PORTAL_GROUP;
use iscsi_wire::text;
use uuid::Uuid;

use crate::connection::Connection;
use crate::frontend::{IscsiCore, target_name_of, uuid_of};

/// The places where a volume can be reached, and its conditions.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TargetRecord {
    /// The volume.
    pub uuid: Uuid,
    /// Addresses at which initiators reach the portal that serves it: the first where no other is nearer to them.
    pub addresses: Vec<SocketAddr>,
    /// Conditions under which it may be opened.
    pub access: Access,
}

/// All volumes that discovery knows.
#[derive(Default)]
pub(crate) struct Discovery {
    pub(crate) volumes: RefCell<BTreeMap<Uuid, TargetRecord>>,
}

impl<W: World, D: Device> IscsiCore<W, D> {
    /// Lets initiators that may open a volume find it, from now on there and under these conditions.
    pub fn announce(&self, record: TargetRecord) {
        self.discovery().volumes.borrow_mut().insert(record.uuid, record);
    }

    /// The volume can be found no more.
    pub fn withdraw(&self, uuid: Uuid) {
        self.discovery().volumes.borrow_mut().remove(&uuid);
    }
}

impl<W: World, D: Device> Connection<W, D> {
    /// Answers `SendTargets=which` (RFC 7143, appendix C).
    pub(crate) fn send_targets(&self, which: &str) -> Vec<u8> {
        let session = self.target().session().cloned();
        let Some(session) = session else { return Vec::new() };
        let is_discovery = self.target().is_discovery();
        // In a normal session, without a name or with its own, its target; no other.
        let own = session.target.as_ref().and_then(uuid_of);
        let named = iscsi_wire::IscsiName::new(which).ok().and_then(|name| uuid_of(&name));
        let wanted = match (is_discovery, which) {
            (true, "All") => None,
            (true, _) => Some(named.unwrap_or_else(Uuid::nil)),
            (false, "") => own,
            (false, _) => own.filter(|own| Some(*own) == named).or(Some(Uuid::nil())),
        };
        let proven = self.target().proven().and_then(|user| user.parse::<Uuid>().ok());
        let interface = || self.interface();
        let peer = Peer {
            host: session.initiator.as_str(),
            address: self.peer().ip(),
            interface: &interface,
        };
        let mut pairs = Vec::new();
        let volumes = self.core.discovery().volumes.borrow();
        for (uuid, record) in volumes.iter() {
            let is_shown = wanted.is_none_or(|wanted| wanted == *uuid)
                && peer.is_admitted_by(&record.access.restrictions)
                && (!self.core.options().authenticates || proven == Some(*uuid));
            if is_shown {
                put_target(&mut pairs, record, self.local().ip());
            }
        }
        pairs
    }
}

fn put_target(pairs: &mut Vec<u8>, record: &TargetRecord, asked: IpAddr) {
    let places: Vec<_> = record.addresses.iter().map(|address| (*address, ())).collect();
    // ISCSI-DISCOVERY-2.
    let Some((address, ())) = nearest(asked, &places) else { return };
    text::put(pairs, "TargetName", &target_name_of(record.uuid));
    text::put(pairs, "TargetAddress", &format!("{address},{PORTAL_GROUP}"));
}
