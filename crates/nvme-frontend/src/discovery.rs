//! The discovery log: each host is shown the volumes that it may open, and nothing else.
//!
//! - NVME-DISCOVERY-1: a host reads one state of the log. Its generation changes when what this host sees does, and
//!   then it is told, if it waits for that. It counts nothing else: what a host cannot see it cannot
//!   notice.
//!   Of the addresses of a portal it is told the nearest (`nearest.rs`).
//! - NVME-DISCOVERY-2: logs of all hosts together have a bound, however many hosts there are and whatever each may see
//!   (`logs.rs`). One that was dropped is rebuilt when its host reads on: it is the same, or NVME-DISCOVERY-1 has told the
//!   host.
//! - NVME-DISCOVERY-3: two logs of one generation are the same, also over connections, cores and restarts: a host may
//!   compare its log with the one that it read before it was cut off. So the generation is a digest of what
//!   the host sees, and of the number of changes while it was connected: a log that changes and changes back
//!   while it is read in pieces was not read at once. A mere count would restart with each connection, and be
//!   equal where logs are not; a count for all volumes, or the time of the last change of any, would tell of
//!   volumes that the host must not know of; a count from a random number would differ where logs are equal,
//!   and keep hosts that see the same from having one (NVME-DISCOVERY-2). A digest tells a host nothing but what it sees.
//!   The counter does not go up by one with each change, which is given up for that: hosts only compare two
//!   for equality.

mod logs;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use access::Restrictions;
use io_traits::{Device, World};
use nvme_target::DiscoveryLog;
use nvme_wire::Nqn;
use nvme_wire::discovery::{
    DiscoveryLogEntry, EFLAGS_EXPLICIT_PERSISTENT, SUBTYPE_CURRENT_DISCOVERY, SUBTYPE_NVM,
};
use uuid::Uuid;

use crate::admission::Subject;
use crate::association::Association;
use crate::frontend::NvmeCore;
use dataplane::nearest;

use logs::Logs;

/// A volume in the discovery service: its addresses, and the hosts that may open it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiscoveryRecord {
    /// The volume.
    pub uuid: Uuid,
    /// Addresses of the portal that serves it: a host is shown the first where no other is nearer.
    pub addresses: Vec<SocketAddr>,
    /// The hosts that may open it.
    pub restrictions: Restrictions,
}

struct Known {
    /// By where the host is told to go.
    entries: Vec<(SocketAddr, Rc<DiscoveryLogEntry>)>,
    restrictions: Restrictions,
}

/// All volumes that the discovery service knows.
#[derive(Default)]
pub(crate) struct Discovery {
    volumes: RefCell<BTreeMap<Uuid, Known>>,
    logs: RefCell<Logs>,
}

impl Known {
    fn new(record: DiscoveryRecord) -> Self {
        let nqn = Nqn::from_uuid(record.uuid.as_bytes());
        let entry =
            |address| (address, Rc::new(DiscoveryLogEntry::tcp(SUBTYPE_NVM, &nqn, address)));
        let entries = record.addresses.into_iter().map(entry).collect();
        Self { entries, restrictions: record.restrictions }
    }

    /// Returns the entry for a host that asks at `asked`.
    fn entry(&self, asked: IpAddr) -> Option<&Rc<DiscoveryLogEntry>> {
        nearest(asked, &self.entries).map(|(_, entry)| entry)
    }
}

impl<W: World, D: Device> NvmeCore<W, D> {
    /// Lets hosts that may open a volume find it, from now on there and under these restrictions.
    pub fn announce(&self, record: DiscoveryRecord) {
        let uuid = record.uuid;
        let known = Known::new(record);
        let before = self.discovery().volumes.borrow_mut().insert(uuid, known);
        let volumes = self.discovery().volumes.borrow();
        self.tell_hosts(|association| {
            let sees = |known: &Known| association.is_admitted_by(&known.restrictions);
            let now = &volumes[&uuid];
            // It takes a system call to learn where a host came.
            let is_same = |before: &Known| {
                before.entries == now.entries
                    || association
                        .local()
                        .is_none_or(|at| before.entry(at.ip()) == now.entry(at.ip()))
            };
            match &before {
                Some(before) => sees(before) != sees(now) || (sees(now) && !is_same(before)),
                None => sees(now),
            }
        });
    }

    /// The volume can be found no more.
    pub fn withdraw(&self, uuid: Uuid) {
        let before = self.discovery().volumes.borrow_mut().remove(&uuid);
        if let Some(before) = before {
            self.tell_hosts(|association| association.is_admitted_by(&before.restrictions));
        }
    }

    /// Tells the hosts that wait at the discovery service, and of which `concerns` says so, that there
    /// is something new (NVME-DISCOVERY-1).
    fn tell_hosts(&self, concerns: impl Fn(&Association<W, D>) -> bool) {
        for association in self.all_associations() {
            if matches!(association.subject, Subject::Discovery) && concerns(&association) {
                association.log.take();
                association.generation.set(association.generation.get() + 1);
                association.on_discovery_changed();
            }
        }
    }

    /// Returns the log of the volumes that the host of `association` may discover.
    pub(crate) fn discovery_log(&self, association: &Association<W, D>) -> Rc<DiscoveryLog> {
        let mut logs = self.discovery().logs.borrow_mut();
        let known = association.log.borrow().upgrade();
        if let Some(log) = known {
            logs.note_use(&log);
            return log;
        }
        let log = logs.keep(self.log_for(association));
        association.log.replace(Rc::downgrade(&log));
        log
    }

    fn log_for(&self, association: &Association<W, D>) -> DiscoveryLog {
        let at = association.local().unwrap_or(self.options().portal);
        let asked = at.ip();
        let portals: Vec<_> = self.options().portals().map(|portal| (portal, ())).collect();
        let own = nearest(asked, &portals).map(|(portal, ())| {
            // Hosts look for the entry that names the port which they asked, and take its flags to be those of their connection.
            let here = SocketAddr::new(portal.ip(), at.port());
            let mut own = DiscoveryLogEntry::tcp(SUBTYPE_CURRENT_DISCOVERY, &Nqn::DISCOVERY, here);
            own.eflags = EFLAGS_EXPLICIT_PERSISTENT.into();
            Rc::new(own)
        });
        let volumes = self.discovery().volumes.borrow();
        let seen = volumes
            .values()
            .filter(|known| association.is_admitted_by(&known.restrictions))
            .filter_map(|known| known.entry(asked).cloned());
        let entries: Vec<_> = own.into_iter().chain(seen).collect();
        let genctr = digest(association.generation.get(), &entries);
        DiscoveryLog { genctr, entries }
    }
}

/// Tells logs apart by how often they have changed in one association, and by what they say (NVME-DISCOVERY-3). Two that differ
/// have one digest by a chance of 1 in 2^64.
fn digest(changes: u64, entries: &[Rc<DiscoveryLogEntry>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    changes.hash(&mut hasher);
    for entry in entries {
        // All that differs between entries of this service.
        let DiscoveryLogEntry { subtype, trsvcid, subnqn, traddr, .. } = &**entry;
        subtype.hash(&mut hasher);
        [&trsvcid[..], &subnqn[..], &traddr[..]].map(unpadded).hash(&mut hasher);
    }
    hasher.finish()
}

/// A field without the zeroes behind its text, which are most of it.
fn unpadded(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or(field)
}
