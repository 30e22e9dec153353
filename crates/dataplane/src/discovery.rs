//! What the discovery service tells hosts.

use std::net::SocketAddr;
use std::rc::Rc;

use io_traits::{Device, World};
use nvme_target::DiscoveryLog;
use nvme_wire::Nqn;
use nvme_wire::discovery::{
    DiscoveryLogEntry, EFLAGS_EXPLICIT_PERSISTENT, SUBTYPE_CURRENT_DISCOVERY, SUBTYPE_NVM,
};

use crate::core::Core;

/// Where a subsystem can be reached: what the discovery service tells hosts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiscoveryRecord {
    /// The subsystem.
    pub nqn: Nqn,
    /// The portal that serves it.
    pub address: SocketAddr,
}

impl<W: World, D: Device> Core<W, D> {
    /// Sets what the discovery service tells hosts, and tells those that wait for a change.
    pub fn set_discovery(&self, records: &[DiscoveryRecord]) {
        let entries = records
            .iter()
            .map(|record| DiscoveryLogEntry::tcp(SUBTYPE_NVM, &record.nqn, record.address));
        let mut own = DiscoveryLogEntry::tcp(
            SUBTYPE_CURRENT_DISCOVERY,
            &Nqn::DISCOVERY,
            self.options().portal,
        );
        own.eflags = EFLAGS_EXPLICIT_PERSISTENT.into();
        let genctr = self.discovery().borrow().genctr + 1;
        let log = DiscoveryLog { genctr, entries: std::iter::once(own).chain(entries).collect() };
        *self.discovery().borrow_mut() = Rc::new(log);
        for association in self.all_associations() {
            if association.export.is_none() {
                association.on_discovery_changed();
            }
        }
    }

    pub(crate) fn discovery_log(&self) -> Rc<DiscoveryLog> {
        self.discovery().borrow().clone()
    }
}
